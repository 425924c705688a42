// SPDX-License-Identifier: MIT
/// \file
/// From one pairing to the other, whole tensors, and the shift of cached keys.
#include <posenc/rope/apply.hpp>
#include <posenc/rope/convert_pairing.hpp>

#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/encodings/xpos.hpp>

#include "rope_golden.hpp"

namespace conversion_test {

using namespace posenc;
using matrix = row_major_matrix<double>;
constexpr auto half = pairing::half_split, interleaved = pairing::interleaved;

/// Six rotary channels at offset 1 of eight, by hand.
TEST(convert_pairing, is_the_documented_permutation) {
  std::vector<int> head{90, 0, 1, 2, 3, 4, 5, 91};
  const pairing_conversion there{
      .head_dim = 8, .rotary_dim = 6, .rotary_offset = 1, .from = half, .to = interleaved};
  convert_pairing(std::span<int>(head), there);
  EXPECT_EQ(head, (std::vector<int>{90, 0, 3, 1, 4, 2, 5, 91}));
  const pairing_conversion back{
      .head_dim = 8, .rotary_dim = 6, .rotary_offset = 1, .from = interleaved, .to = half};
  convert_pairing(std::span<int>(head), back);
  EXPECT_EQ(head, (std::vector<int>{90, 0, 1, 2, 3, 4, 5, 91}));
}

TEST(convert_pairing, to_the_same_pairing_changes_nothing) {
  std::vector<int> head{1, 2, 3, 4};
  convert_pairing(std::span<int>(head), {.head_dim = 4, .from = half, .to = half});
  EXPECT_EQ(head, (std::vector<int>{1, 2, 3, 4}));
}

/// The sense of it: converted vectors under the other pairing are the converted result.
TEST(convert_pairing, commutes_with_the_rotation) {
  for (const bool forth : {false, true}) {
    const pairing from = forth ? half : interleaved, to = forth ? interleaved : half;
    const pairing_conversion conversion{
        .head_dim = 10, .rotary_dim = 6, .rotary_offset = 2, .from = from, .to = to};
    const rope<double> one{{.head_dim = 10, .rotary_dim = 6, .rotary_offset = 2, .pairing = from}};
    const rope<double> other{{.head_dim = 10, .rotary_dim = 6, .rotary_offset = 2, .pairing = to}};
    std::vector<double> a{1, -2, 3, 4, -5, 6, 7, 8, -9, 10}, b = a;
    one.rotate(std::span<double>(a), 77);
    convert_pairing(std::span<double>(a), conversion);
    convert_pairing(std::span<double>(b), conversion);
    other.rotate(std::span<double>(b), 77);
    EXPECT_EQ(a, b);
  }
}

TEST(convert_pairing, of_weight_rows_is_that_of_the_projected_heads) {
  const matrix w = matrix::Random(3 * 8, 5);
  const matrix x = matrix::Random(4, 5);
  const pairing_conversion conversion{.head_dim = 8, .rotary_dim = 4, .from = half, .to = interleaved};
  matrix heads = x * w.transpose();
  convert_pairing(as_heads(heads, 3), conversion);
  const matrix converted = converted_weight_rows(w, conversion);
  EXPECT_EQ(heads, matrix(x * converted.transpose()));

  Eigen::MatrixXd column_major = w;  // in place, in the other storage order, through a map
  convert_weight_rows(Eigen::Map<Eigen::MatrixXd>(column_major.data(), 24, 5), conversion);
  EXPECT_EQ(matrix(column_major), converted);
  const Eigen::VectorXd bias = Eigen::VectorXd::LinSpaced(24, 0, 23);
  EXPECT_EQ(converted_weight_rows(bias, conversion)(1), 2);
  EXPECT_THROW(static_cast<void>(converted_weight_rows(matrix(matrix::Zero(12, 2)), conversion)),
               std::invalid_argument);
}

TEST(convert_pairing, copies_between_strided_views) {
  std::vector<float> source(2 * 3 * 6, -1), target(2 * 4 * 8, -2);
  heads_view<float> from{source.data(), 2, 2, 4, 18, 6}, to{target.data(), 2, 2, 4, 32, 8};
  for (index_t t = 0; t < 2; ++t)
    for (index_t h = 0; h < 2; ++h)
      for (std::size_t c = 0; c < 4; ++c)
        from(t, h)[c] = static_cast<float>(100 * t + 10 * h) + static_cast<float>(c);
  convert_pairing(from, to, {.head_dim = 4, .from = half, .to = interleaved});
  EXPECT_EQ(to(1, 1)[1], 112);
  EXPECT_EQ(to(1, 1)[2], 111);
  EXPECT_EQ(target[4], -2);  // between the heads
  EXPECT_EQ(from(1, 1)[1], 111);
  const heads_view<float> shifted{source.data() + 2, 2, 2, 4, 18, 6};
  EXPECT_THROW(convert_pairing(from, shifted, {.head_dim = 4, .from = half, .to = interleaved}),
               std::invalid_argument);
}

TEST(convert_pairing, refuses_what_means_nothing) {
  std::vector<int> head(8);
  const auto refused = [&](const pairing_conversion& conversion) {
    EXPECT_THROW(convert_pairing(std::span<int>(head), conversion), std::invalid_argument);
  };
  refused({.head_dim = 6, .from = half, .to = interleaved});
  refused({.head_dim = 8, .rotary_dim = 3, .from = half, .to = interleaved});
  refused({.head_dim = 8, .rotary_dim = 10, .from = half, .to = interleaved});
  refused({.head_dim = 8, .rotary_dim = 8, .rotary_offset = 2, .from = half, .to = interleaved});
}

// --- whole tensors ---

const yarn magnified{.factor = 4, .original_context = 64, .attention_factor = 1.5};

TEST(rotate_heads, is_rotate_head_by_head) {
  const rope<double> encoding{{.head_dim = 6, .rotary_dim = 4, .rotary_offset = 2, .pairing = half},
                              magnified};
  const matrix before = matrix::Random(5, 3 * 6);
  matrix expected = before, out = matrix::Zero(5, 18), in_place = before;
  for (index_t t = 0; t < 5; ++t)
    for (index_t h = 0; h < 3; ++h) encoding.rotate(as_heads(expected, 3)(t, h), 100 + t);
  rotate_heads(as_heads(in_place, 3), encoding, positions::from(100));
  EXPECT_EQ(in_place, expected);
  rotate_heads(as_heads(before, 3), as_heads(out, 3), encoding, positions::from(100));
  EXPECT_EQ(out, expected);  // the channels that do not turn are copied
  const std::vector<position> scattered{7, 7, -3, 1 << 30, 0};
  rotate_heads(as_heads(before, 3), as_heads(out, 3), encoding, positions::each(scattered));
  expected = before;
  for (index_t t = 0; t < 5; ++t)
    for (index_t h = 0; h < 3; ++h)
      encoding.rotate(as_heads(expected, 3)(t, h), scattered[static_cast<std::size_t>(t)]);
  EXPECT_EQ(out, expected);
}

TEST(rotate_heads, touches_nothing_between_the_rows) {
  const rope<float> encoding{{.head_dim = 4, .pairing = interleaved}};
  std::vector<float> buffer(3 * 11, 9);
  rotate_heads(heads_view<float>{buffer.data() + 1, 3, 2, 4, 11, 5}, encoding, positions::from(1));
  for (std::size_t t = 0; t < 3; ++t)
    for (const std::size_t gap : {0u, 5u, 10u}) EXPECT_EQ(buffer[11 * t + gap], 9);
}

TEST(rotate_heads, refuses_shapes_and_partial_overlap) {
  const rope<float> encoding{{.head_dim = 4, .pairing = interleaved}};
  std::vector<float> buffer(64, 1);
  const std::vector<float> untouched = buffer;
  const heads_view<float> view = token_major(buffer.data(), 4, 2, 4);
  const heads_view<float> shifted = token_major(buffer.data() + 2, 4, 2, 4);
  EXPECT_THROW(rotate_heads(view, shifted, encoding, positions::from(0)), std::invalid_argument);
  EXPECT_THROW(rotate_heads(view, encoding, positions{}), std::invalid_argument);
  EXPECT_THROW(rotate_heads(token_major(buffer.data(), 4, 2, 6), encoding, positions::from(0)),
               std::invalid_argument);
  EXPECT_THROW(rotate_heads(view, token_major(buffer.data() + 32, 2, 2, 4), encoding, positions::from(0)),
               std::invalid_argument);
  const std::vector<position> three(3);
  EXPECT_THROW(rotate_heads(view, encoding, positions::each(three)), std::invalid_argument);
  const auto vision = multi_axis_rope<float>::vision(vision_form::alternating, 4, patch_positions(1, 3));
  EXPECT_THROW(rotate_heads(view, vision, positions::from(0)), std::out_of_range);
  EXPECT_EQ(buffer, untouched);
}

TEST(rotate_heads, knows_the_sides_of_xpos) {
  const xpos<double> encoding{{.rope = {.head_dim = 4, .pairing = interleaved}}};
  matrix query = matrix::Random(2, 4), key = query;
  matrix expected_query = query, expected_key = key;
  for (index_t t = 0; t < 2; ++t) {
    encoding.rotate_query(as_heads(expected_query, 1)(t, 0), 5 + t);
    encoding.rotate_key(as_heads(expected_key, 1)(t, 0), 5 + t);
  }
  rotate_heads(as_heads(query, 1), encoding, positions::from(5), rotation_side::query);
  rotate_heads(as_heads(key, 1), encoding, positions::from(5));
  EXPECT_EQ(query, expected_query);
  EXPECT_EQ(key, expected_key);
}

// --- context shift ---

TEST(shift_keys, is_the_rotation_at_the_new_position) {
  for (const pairing layout : {half, interleaved}) {
    const rope<double> encoding{{.head_dim = 10, .rotary_dim = 6, .rotary_offset = 1, .pairing = layout},
                                magnified};
    const matrix raw = matrix::Random(4, 20);
    matrix moved = raw, expected = raw;
    rotate_heads(as_heads(moved, 2), encoding, positions::from(1000));
    rotate_heads(as_heads(expected, 2), encoding, positions::from(40));
    shift_keys(as_heads(moved, 2), encoding, -960);
    EXPECT_TRUE(moved.isApprox(expected, 1e-14));  // m is not applied again
    for (const index_t still : {0, 7, 8, 9}) EXPECT_EQ(moved.col(still), raw.col(still));
  }
}

TEST(shift_keys, shifts_add_up) {
  const rope<double> encoding{{.head_dim = 8, .pairing = half}, magnified};
  const matrix raw = matrix::Random(3, 8);
  matrix once = raw, in_steps = raw, there_and_back = raw;
  shift_keys(as_heads(once, 1), encoding, -123'456);
  for (const position step : {-100'000, -23'000, -456}) shift_keys(as_heads(in_steps, 1), encoding, step);
  EXPECT_TRUE(in_steps.isApprox(once, 1e-14));
  shift_keys(as_heads(there_and_back, 1), encoding, 77);
  shift_keys(as_heads(there_and_back, 1), encoding, -77);
  EXPECT_TRUE(there_and_back.isApprox(raw, 1e-15));
  shift_keys(as_heads(once, 1), encoding, 0);
  EXPECT_TRUE(once.isApprox(in_steps, 1e-14));
}

TEST(shift_keys, moves_the_growth_of_xpos) {
  const xpos<double> encoding{{.rope = {.head_dim = 8, .pairing = interleaved}, .origin = 3}};
  const matrix raw = matrix::Random(3, 8);
  matrix moved = raw, expected = raw;
  rotate_heads(as_heads(moved, 1), encoding, positions::from(500));
  rotate_heads(as_heads(expected, 1), encoding, positions::from(20));
  shift_keys(as_heads(moved, 1), encoding, -480);
  EXPECT_TRUE(moved.isApprox(expected, 1e-13));
}

TEST(shift_keys, refuses_several_axes_and_wrong_shapes) {
  const multi_axis_rope<float> several{{.head_dim = 8, .pairing = half}, {1, 1, 2}, axis_order::chunked, {}};
  std::vector<float> buffer(64);
  EXPECT_THROW(shift_keys(token_major(buffer.data(), 4, 2, 8), several, 1), std::invalid_argument);
  const rope<float> encoding{{.head_dim = 4, .pairing = half}};
  EXPECT_THROW(shift_keys(token_major(buffer.data(), 4, 2, 8), encoding, 1), std::invalid_argument);
}

}  // namespace conversion_test
