// SPDX-License-Identifier: MIT
/// \file
/// Rotation by the caller's cos and sin: worked by hand, in every layout of the tables, and at their ends.
#include <posenc/encodings/rope_table.hpp>

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/rope/apply.hpp>

#include "refusals.hpp"

namespace rope_table_test {

using namespace posenc;

static_assert(!std::is_default_constructible_v<rope_table_options>, "the pairing has no default");
static_assert(rotates<rope_table<float>, Eigen::half> && !lowers_to_rotation<rope_table<float>>);

rope_table_options middle(pairing layout) {
  return {.head_dim = 6, .rotary_dim = 4, .rotary_offset = 1, .pairing = layout};
}

// Row 1 is (2, 3) on pair 0 and (-1, 1/2) on pair 1: neither is a point of the unit circle, and neither is made one.
// The pairs of (2, 3, 4, 5) are (2, 4) and (3, 5) in half_split, (2, 3) and (4, 5) in interleaved:
//   2·2 - 4·3 = -8   2·3 + 4·2 = 14    -3 - 5/2 = -5.5   3/2 - 5 = -3.5
//   2·2 - 3·3 = -5   2·3 + 3·2 = 12    -4 - 5/2 = -6.5   4/2 - 5 = -3
const std::vector<double> cos_rows{7, 7, 2, -1}, sin_rows{7, 7, 3, 0.5};
const std::vector<float> before{1, 2, 3, 4, 5, 6};
std::vector<float> by_hand(pairing layout) {
  if (layout == pairing::half_split) return {1, -8, -5.5f, 14, -3.5f, 6};
  return {1, -5, 12, -6.5f, -3, 6};
}

template <class T>
std::vector<float> turned(pairing layout, const angle_table<T>& cos, const angle_table<T>& sin,
                          position row) {
  std::vector<float> head = before;
  rope_table<T>(middle(layout), cos, sin).rotate(std::span<float>(head), row);
  return head;
}

template <class T>
std::vector<T> as(const std::vector<double>& values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(value));
  return result;
}

template <class T>
class rope_table_of : public ::testing::Test {};
using scalars = ::testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(rope_table_of, scalars);

TYPED_TEST(rope_table_of, turns_as_worked_by_hand) {
  const std::vector<TypeParam> cos = as<TypeParam>(cos_rows), sin = as<TypeParam>(sin_rows);
  for (const pairing layout : {pairing::half_split, pairing::interleaved})
    EXPECT_EQ(turned(layout, dense_angles(cos.data(), 2, 2), dense_angles(sin.data(), 2, 2), 1),
              by_hand(layout));
}

TYPED_TEST(rope_table_of, turns_narrow_heads_in_float) {
  const std::vector<TypeParam> cos = as<TypeParam>(cos_rows), sin = as<TypeParam>(sin_rows);
  std::vector<Eigen::bfloat16> head;
  for (const float x : before) head.push_back(Eigen::bfloat16(x));
  rope_table<TypeParam>(middle(pairing::interleaved), dense_angles(cos.data(), 2, 2),
                        dense_angles(sin.data(), 2, 2))
      .rotate(std::span<Eigen::bfloat16>(head), 1);
  for (std::size_t c = 0; c < head.size(); ++c)
    EXPECT_EQ(static_cast<float>(head[c]), by_hand(pairing::interleaved)[c]) << "channel " << c;
}

TEST(rope_table, reads_cos_and_sin_of_one_buffer) {  // rows of [cos | sin]
  const std::vector<float> both{7, 7, 7, 7, 2, -1, 3, 0.5f};
  const angle_table<float> cos{both.data(), 2, 2, 4}, sin{both.data() + 2, 2, 2, 4};
  EXPECT_EQ(turned(pairing::half_split, cos, sin, 1), by_hand(pairing::half_split));
}

TEST(rope_table, reads_tables_that_hold_every_value_twice) {
  const std::vector<float> cos_halves{7, 7, 7, 7, 2, -1, 2, -1}, sin_halves{7, 7, 7, 7, 3, 0.5f, 3, 0.5f};
  EXPECT_EQ(turned(pairing::half_split, angle_table<float>{cos_halves.data(), 2, 2, 4},
                   angle_table<float>{sin_halves.data(), 2, 2, 4}, 1),
            by_hand(pairing::half_split));
  const std::vector<float> cos_pairs{7, 7, 7, 7, 2, 2, -1, -1}, sin_pairs{7, 7, 7, 7, 3, 3, 0.5f, 0.5f};
  EXPECT_EQ(turned(pairing::interleaved, angle_table<float>{cos_pairs.data(), 2, 2, 4, 2},
                   angle_table<float>{sin_pairs.data(), 2, 2, 4, 2}, 1),
            by_hand(pairing::interleaved));
}

/// Tables of cos and sin of p·10000^(−2i/8), by the standard library.
struct plain_tables {
  std::vector<double> cos{}, sin{};
  static constexpr index_t rows = 40, pairs = 4;

  plain_tables() {
    for (index_t p = 0; p < rows; ++p)
      for (index_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / 4);
        cos.push_back(std::cos(angle)), sin.push_back(std::sin(angle));
      }
  }
  [[nodiscard]] rope_table<double> encoding(pairing layout) const {
    return {{.head_dim = 8, .pairing = layout},
            dense_angles(cos.data(), rows, pairs),
            dense_angles(sin.data(), rows, pairs)};
  }
};

TEST(rope_table, is_rope_where_the_tables_are_ropes) {
  const plain_tables tables;
  const row_major_matrix<double> q = row_major_matrix<double>::Random(7, 16),
                                 k = row_major_matrix<double>::Random(30, 8),
                                 v = row_major_matrix<double>::Random(30, 8);
  const std::vector<position> places{39, 0, 3, 3, 17, 20, 38};
  const attention_options options{.heads = 2,
                                  .kv_heads = 1,
                                  .query_positions = positions::each(places),
                                  .key_positions = positions::from(5)};
  for (const pairing layout : {pairing::half_split, pairing::interleaved}) {
    const rope<double> angles{{.head_dim = 8, .pairing = layout}};
    const auto by_table = reference::attention(q, k, v, tables.encoding(layout), options);
    const auto by_rope = reference::attention(q, k, v, angles, options);
    EXPECT_LE((by_table - by_rope).cwiseAbs().maxCoeff(), 1e-13) << name_of(layout);
  }
}

TEST(rope_table, rotates_whole_tensors) {
  const plain_tables tables;
  const auto encoding = tables.encoding(pairing::half_split);
  const rope<double> angles{{.head_dim = 8, .pairing = pairing::half_split}};
  const row_major_matrix<double> x = row_major_matrix<double>::Random(5, 24);
  row_major_matrix<double> in_place = x, copied = row_major_matrix<double>::Zero(5, 24), expected = x;
  rotate_heads(as_heads(in_place, 3), encoding, positions::from(35));
  rotate_heads(as_heads(x, 3), as_heads(copied, 3), encoding, positions::from(35));
  rotate_heads(as_heads(expected, 3), angles, positions::from(35));
  EXPECT_LE((in_place - expected).cwiseAbs().maxCoeff(), 1e-13);
  EXPECT_TRUE(copied == in_place);
}

TEST(rope_table, a_position_outside_is_refused_before_anything_is_written) {
  const plain_tables tables;
  const auto encoding = tables.encoding(pairing::half_split);
  EXPECT_EQ(encoding.rows(), 40);
  const row_major_matrix<double> x = row_major_matrix<double>::Random(5, 24);
  row_major_matrix<double> y = x, to = row_major_matrix<double>::Constant(5, 24, 3);
  for (const position p : {position{-1}, position{40}, position{1} << 61})
    EXPECT_REFUSAL(encoding.rotate(std::span<double>(y.data(), 8), p), std::out_of_range, std::to_string(p));
  EXPECT_REFUSAL(rotate_heads(as_heads(y, 3), encoding, positions::from(36)), std::out_of_range,
                 "position 40 lies outside the 40 rows");
  EXPECT_REFUSAL(rotate_heads(as_heads(x, 3), as_heads(to, 3), encoding, positions::from(-2)),
                 std::out_of_range, "position -2");
  EXPECT_REFUSAL(
      rotate_heads(as_heads(y, 3), combine(encoding, alibi<double>{{.heads = 3}}), positions::from(36)),
      std::out_of_range, "position 40");
  EXPECT_TRUE(y == x);
  EXPECT_TRUE((to.array() == 3).all());
  EXPECT_REFUSAL(reference::attention(x, x, x, encoding, {.heads = 3, .key_positions = positions::from(36)}),
                 std::out_of_range, "position 40");
}

TEST(rope_table, heads_of_another_width_are_refused_before_anything_is_written) {
  const plain_tables tables;
  const auto encoding = tables.encoding(pairing::half_split);
  const row_major_matrix<double> x = row_major_matrix<double>::Random(2, 24);
  row_major_matrix<double> to = row_major_matrix<double>::Constant(2, 24, 3);
  EXPECT_REFUSAL(rotate_heads(as_heads(x, 2), as_heads(to, 2), encoding, positions::from(0)),
                 std::invalid_argument, "a head of 12 channels, head_dim is 8");
  EXPECT_TRUE((to.array() == 3).all());
  EXPECT_REFUSAL(reference::attention(x, x, x, encoding, {.heads = 2}), std::invalid_argument,
                 "head_dim is 8");
}

TEST(rope_table, descriptions_that_mean_nothing_are_refused) {
  const std::vector<float> numbers(64);
  const auto make = [&](const rope_table_options& options, const angle_table<float>& cos,
                        const angle_table<float>& sin) { return rope_table<float>(options, cos, sin); };
  const angle_table<float> two = dense_angles(numbers.data(), 5, 2),
                           three = dense_angles(numbers.data(), 5, 3);
  const auto options = [](index_t head_dim, std::optional<index_t> rotary_dim = {}, index_t offset = 0) {
    return rope_table_options{.head_dim = head_dim,
                              .rotary_dim = rotary_dim,
                              .rotary_offset = offset,
                              .pairing = pairing::half_split};
  };
  EXPECT_NO_THROW(make(options(4), two, two));
  EXPECT_NO_THROW(make(options(9, 4, 5), two, two));
  EXPECT_REFUSAL(make(options(0), two, two), std::invalid_argument, "head_dim 0");
  EXPECT_REFUSAL(make(options(5), two, two), std::invalid_argument, "rotary_dim 5");
  EXPECT_REFUSAL(make(options(4, -2), two, two), std::invalid_argument, "rotary_dim -2");
  EXPECT_REFUSAL(make(options(5, 4, 2), two, two), std::invalid_argument, "rotary_dim 4 at offset 2");
  EXPECT_REFUSAL(make(options(4, 4, -1), two, two), std::invalid_argument, "rotary_offset -1");
  EXPECT_REFUSAL(make(options(4), two, three), std::invalid_argument, "sin has 3 pairs");
  EXPECT_REFUSAL(make(options(8), two, two), std::invalid_argument,
                 "cos has 2 pairs per row, needed is rotary_dim / 2 = 4");
  EXPECT_REFUSAL(make(options(4), two, dense_angles(numbers.data(), 6, 2)), std::invalid_argument,
                 "cos has 5 rows, sin has 6");
  EXPECT_REFUSAL(make(options(4), two, dense_angles<float>(nullptr, 5, 2)), std::invalid_argument,
                 "sin has no memory");
  EXPECT_REFUSAL(make(options(4), {numbers.data(), 5, 2, 0}, two), std::invalid_argument,
                 "cos has row_stride 0");
  EXPECT_REFUSAL(make(options(4), {numbers.data(), 5, 2, 2, 0}, two), std::invalid_argument,
                 "cos has pair_stride 0");
}

TEST(rope_table, a_rotary_width_of_zero_turns_nothing) {
  const rope_table<float> none{{.head_dim = 3, .rotary_dim = 0, .pairing = pairing::interleaved},
                               dense_angles<float>(nullptr, 8, 0),
                               dense_angles<float>(nullptr, 8, 0)};
  std::vector<float> head{1, 2, 3};
  none.rotate(std::span<float>(head), 7);
  EXPECT_EQ(head, (std::vector<float>{1, 2, 3}));
}

}  // namespace rope_table_test
