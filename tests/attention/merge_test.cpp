// SPDX-License-Identifier: MIT
/// \file
/// Merging attention over parts of the keys.
#include <posenc/attention/merge.hpp>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace merge_test {

using posenc::attention_part;
using posenc::attention_result;
using posenc::index_t;
using posenc::merge;
using posenc::merge_into;
using posenc::row_major_matrix;
using posenc::detail::is_minus_infinity;

constexpr double empty = -std::numeric_limits<double>::infinity();

template <class S>
attention_result<S> one_row(std::vector<S> output, S log_sum_exp) {
  attention_result<S> result;
  result.output.resize(1, static_cast<index_t>(output.size()));
  for (std::size_t c = 0; c < output.size(); ++c) result.output(0, static_cast<index_t>(c)) = output[c];
  result.log_sum_exp.setConstant(1, 1, log_sum_exp);
  return result;
}

TEST(merge, hand_worked_weights_of_one_and_three) {
  // e^0 = 1 and e^(ln 3) = 3: a quarter of the first and three quarters of the second; ln 4 in all.
  const auto whole =
      merge<double>({one_row<double>({4, 0}, 0), one_row<double>({8, -4}, 1.0986122886681098)});
  EXPECT_NEAR(whole.output(0, 0), 7, 1e-15);
  EXPECT_NEAR(whole.output(0, 1), -3, 1e-15);
  EXPECT_NEAR(whole.log_sum_exp(0, 0), 1.3862943611198906, 1e-15);
}

TEST(merge, an_empty_part_changes_no_bit) {
  const auto part = one_row<float>({0.1f, -3.7f}, 12.34f);
  const auto nothing = one_row<float>({0, 0}, static_cast<float>(empty));
  for (const auto& whole : {merge<float>({part, nothing}), merge<float>({nothing, part, nothing})}) {
    EXPECT_EQ(whole.output, part.output);
    EXPECT_EQ(whole.log_sum_exp, part.log_sum_exp);
  }
}

TEST(merge, rubbish_in_an_empty_part_is_not_looked_at) {
  const auto part = one_row<double>({2}, 1);
  const auto rubbish = one_row<double>({std::numeric_limits<double>::quiet_NaN()}, empty);
  EXPECT_EQ(merge<double>({rubbish, part}).output(0, 0), 2);
}

TEST(merge, all_parts_empty_give_zero_and_minus_infinity) {
  const auto nothing = one_row<double>({0, 0}, empty);
  const auto whole = merge<double>({nothing, nothing});
  EXPECT_EQ(whole.output(0, 0), 0);
  EXPECT_EQ(whole.output(0, 1), 0);
  EXPECT_TRUE(is_minus_infinity(whole.log_sum_exp(0, 0)));
}

TEST(merge, large_logits_do_not_overflow) {
  const auto whole = merge<float>({one_row<float>({1}, 90'000.f), one_row<float>({3}, 90'000.f)});
  EXPECT_FLOAT_EQ(whole.output(0, 0), 2.f);
  EXPECT_FLOAT_EQ(whole.log_sum_exp(0, 0), 90'000.69f);
  const auto far = merge<float>({one_row<float>({1}, -90'000.f), one_row<float>({3}, 90'000.f)});
  EXPECT_EQ(far.output(0, 0), 3.f);
  EXPECT_EQ(far.log_sum_exp(0, 0), 90'000.f);
}

TEST(merge, is_associative_and_commutative_to_rounding) {
  const auto a = one_row<double>({1, 2, 3}, 0.3), b = one_row<double>({-4, 0.5, 9}, 1.7),
             c = one_row<double>({7, -7, 0.25}, -2.2);
  const auto flat = merge<double>({a, b, c});
  for (const auto& other : {merge<double>({merge<double>({a, b}), c}),
                            merge<double>({a, merge<double>({b, c})}), merge<double>({c, a, b})}) {
    EXPECT_LE((flat.output - other.output).norm(), 1e-15 * flat.output.norm());
    EXPECT_NEAR(flat.log_sum_exp(0, 0), other.log_sum_exp(0, 0), 4e-16);
  }
}

TEST(merge, of_one_part_is_that_part) {
  const auto part = one_row<float>({0.1f, -3.7f}, 12.34f);
  EXPECT_EQ(merge<float>({part}).output, part.output);
  EXPECT_EQ(merge<float>({part}).log_sum_exp, part.log_sum_exp);
}

TEST(merge, sixteen_bit_outputs_merge_through_float_log_sum_exps) {
  using half = Eigen::half;
  attention_result<half> a, b;
  a.output.setConstant(1, 1, half(1.f)), b.output.setConstant(1, 1, half(2.f));
  a.log_sum_exp.setConstant(1, 1, 0.f), b.log_sum_exp.setConstant(1, 1, 0.f);
  EXPECT_EQ(static_cast<float>(merge<half>({a, b}).output(0, 0)), 1.5f);
}

// Two tokens, two heads of two channels, head-major with gaps, merged into the first part itself.
TEST(merge, into_one_of_the_parts_and_through_strides) {
  std::vector<double> first(16, 77), second(16, 88), first_lse(8, 55), second_lse(4, 0);
  const posenc::heads_view<double> out{first.data(), 2, 2, 2, 3, 8};
  const posenc::heads_view<double> other{second.data(), 2, 2, 2, 2, 4};
  const posenc::head_scalars_view<double> lse{first_lse.data(), 2, 2, 2, 4};
  for (index_t i = 0; i < 2; ++i)
    for (index_t h = 0; h < 2; ++h) {
      for (std::size_t c = 0; c < 2; ++c) out(i, h)[c] = 1, other(i, h)[c] = 3;
      lse(i, h) = 0;
    }
  const std::vector<attention_part<double>> parts{
      {out, {first_lse.data(), 2, 2, 2, 4}},
      {other, {second_lse.data(), 2, 2, 2, 1}},
  };
  merge_into<double>(parts, out, lse);
  for (index_t i = 0; i < 2; ++i)
    for (index_t h = 0; h < 2; ++h) {
      EXPECT_EQ(out(i, h)[0], 2);
      EXPECT_EQ(out(i, h)[1], 2);
      EXPECT_NEAR(lse(i, h), 0.69314718055994531, 1e-16);
    }
  for (const std::size_t gap : {2u, 5u, 6u, 7u, 10u, 13u, 14u, 15u}) EXPECT_EQ(first[gap], 77) << gap;
  for (const std::size_t gap : {1u, 3u, 5u, 7u}) EXPECT_EQ(first_lse[gap], 55) << gap;
}

TEST(merge, of_no_parts_is_nothing_seen_where_there_is_a_shape) {
  std::vector<float> out(4, 9.f), lse(2, 9.f);
  merge_into<float>({}, posenc::token_major(out.data(), 2, 1, 2), {lse.data(), 2, 1, 1, 1});
  EXPECT_EQ(out, std::vector<float>(4, 0.f));
  EXPECT_TRUE(is_minus_infinity(lse[0]));
  EXPECT_THROW(static_cast<void>(merge(std::vector<attention_result<float>>{})), std::invalid_argument);
}

template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "";
}

TEST(merge, refuses_what_does_not_fit_before_writing) {
  std::vector<double> memory(64, 1), lse(8, 0);
  const auto view = [&](std::ptrdiff_t at) { return posenc::token_major(memory.data() + at, 2, 1, 4); };
  const posenc::head_scalars_view<const double> ones{lse.data(), 2, 1, 1, 1};
  const auto into = [&](std::vector<attention_part<double>> parts, posenc::heads_view<double> out,
                        posenc::head_scalars_view<double> out_lse = {}) {
    return refusal([&] { merge_into<double>(parts, out, out_lse); });
  };
  EXPECT_NE(into({{view(0), ones}}, view(1)).find("overlaps part 0"), std::string::npos);
  EXPECT_NE(into({{view(0), ones}}, posenc::token_major(memory.data() + 32, 2, 1, 5)).find("2 x 1 x 5"),
            std::string::npos);
  EXPECT_NE(into({{view(0), {lse.data(), 3, 1, 1, 1}}}, view(8)).find("3 x 1"), std::string::npos);
  EXPECT_NE(into({{view(0), ones}}, view(8), {lse.data() + 1, 2, 1, 1, 1}).find("same numbers"),
            std::string::npos);
  EXPECT_NE(into({{view(0), ones}}, view(8), {memory.data() + 9, 2, 1, 1, 1}).find("overlaps the output"),
            std::string::npos);
  EXPECT_EQ(memory, std::vector<double>(64, 1));
  const auto narrow = one_row<double>({1}, 0), wide = one_row<double>({1, 2}, 0);
  EXPECT_NE(refusal([&] {
              static_cast<void>(merge<double>({narrow, wide}));
            }).find("part 1"),
            std::string::npos);
}

}  // namespace merge_test
