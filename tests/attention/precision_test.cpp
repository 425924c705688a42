// SPDX-License-Identifier: MIT
/// \file
/// The reference attention in float and in double against itself in long double over a sweep of shapes and
/// options, and its derivatives against differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <unsupported/Eigen/AutoDiff>

#include <gtest/gtest.h>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/rope.hpp>

namespace precision_test {

using posenc::attention_options;
using posenc::attention_result;
using posenc::causal;
using posenc::index_t;
using posenc::position;
using posenc::positions;
using posenc::row_major_matrix;
using posenc::detail::is_minus_infinity;

struct shape {
  index_t head_dim, value_dim, queries, keys, heads, kv_heads;
};

/// What a call asks for, by name.
struct flavour {
  const char* name;
  attention_options options;
};

const std::vector<double> six_sinks{0.5, -3, 0, 2, 8, -0.25};

std::vector<flavour> flavours(const shape& s) {
  const index_t valid = (s.keys + 1) / 2;
  std::vector<flavour> all{
      {"bidirectional", {}},
      {"causal", {.mask = causal}},
      {"window", {.mask = causal, .window = {.lookback = 3}}},
      {"two-sided window", {.window = {.lookback = 4, .lookahead = 2}}},
      {"scale 1", {.mask = causal, .scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim)) * 1.5}},
      {"softcap", {.softcap = 2.5}},
      {"sinks", {.mask = causal, .sinks = std::span(six_sinks).first(static_cast<std::size_t>(s.heads))}},
      {"valid rows",
       {.valid_keys = posenc::row_range{0, valid}, .valid_queries = posenc::row_range{0, s.queries}}},
      {"far out", {.mask = causal, .key_positions = positions::from(position{1} << 40)}},
      {"negative", {.mask = causal, .key_positions = positions::from(-1'000'003)}},
  };
  for (flavour& one : all) {
    one.options.heads = s.heads, one.options.kv_heads = s.kv_heads;
    const bool must_be_told = s.queries > s.keys && !one.options.query_positions.given();
    if (must_be_told && !one.options.key_positions.given()) one.options.query_positions = positions::from(-1);
    if (must_be_told && one.options.key_positions.given())
      one.options.query_positions = positions::from(one.options.key_positions[0] - 1);
  }
  return all;
}

std::vector<shape> shapes() {
  std::vector<shape> all;
  const std::vector<std::pair<index_t, index_t>> lengths{{0, 0}, {0, 3}, {1, 0},  {1, 1},  {2, 2},
                                                         {3, 2}, {7, 7}, {1, 33}, {5, 40}, {33, 33}};
  const std::vector<std::pair<index_t, index_t>> groups{{1, 1}, {4, 2}, {6, 1}, {3, 3}};
  std::size_t turn = 0;
  for (const index_t head_dim : {1, 2, 3, 5, 8, 16, 31, 64, 80, 127, 128, 160})
    for (const auto& [queries, keys] : lengths) {
      const auto [heads, kv_heads] = groups[turn++ % groups.size()];
      all.push_back({head_dim, turn % 5 == 0 ? head_dim + 3 : head_dim, queries, keys, heads, kv_heads});
    }
  return all;
}

/// Numbers that are floats, so that all scalars start from the same ones.
row_major_matrix<long double> floats(index_t rows, index_t columns, std::mt19937& bits) {
  row_major_matrix<long double> result(rows, columns);
  for (index_t i = 0; i < result.size(); ++i)
    result.data()[i] = static_cast<float>((static_cast<double>(bits()) * 0x1p-31 - 1) * 1.7);
  return result;
}

template <class S>
struct inputs {
  row_major_matrix<S> q, k, v;
};

template <class S>
inputs<S> as(const inputs<long double>& exact) {
  return {exact.q.template cast<S>(), exact.k.template cast<S>(), exact.v.template cast<S>()};
}

/// The encoding number `which` in the scalar T; calls use(encoding).
template <class T, class Use>
auto with_encoding(int which, const shape& s, const Use& use) {
  const auto rope = [&](posenc::pairing layout, index_t offset) {
    return posenc::rope<T>{{.head_dim = s.head_dim,
                            .rotary_dim = (s.head_dim - offset) / 2 * 2,
                            .rotary_offset = offset,
                            .pairing = layout}};
  };
  switch (which) {
    case 0:
      return use(posenc::no_encoding{});
    case 1:
      return use(rope(posenc::pairing::half_split, 0));
    case 2:
      return use(rope(posenc::pairing::interleaved, s.head_dim / 4));
    default:
      return use(posenc::combine(rope(posenc::pairing::half_split, 0), posenc::alibi<T>{{.heads = s.heads}}));
  }
}

template <class S>
attention_result<S> attend(const inputs<S>& in, int which, const shape& s, const attention_options& options) {
  return with_encoding<S>(which, s, [&](const auto& encoding) {
    return posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, encoding, options);
  });
}

/// ‖a − b‖ / ‖b‖ over the whole output; log-sum-exps absolute below 1, relative above, −∞ in the same places.
template <class S>
double error_of(const attention_result<S>& found, const attention_result<long double>& exact) {
  const long double size = exact.output.norm();
  const long double apart = (found.output.template cast<long double>() - exact.output).norm();
  double worst = size > 0 ? static_cast<double>(apart / size) : static_cast<double>(apart);
  for (index_t i = 0; i < exact.log_sum_exp.size(); ++i) {
    const S lse = found.log_sum_exp.data()[i];
    const long double expected = exact.log_sum_exp.data()[i];
    if (is_minus_infinity(lse) != is_minus_infinity(expected)) return (std::numeric_limits<double>::max)();
    if (is_minus_infinity(expected)) continue;
    const long double difference = std::abs(static_cast<long double>(lse) - expected);
    worst = (std::max)(worst, static_cast<double>(difference / (std::max)(1.0L, std::abs(expected))));
  }
  return posenc::detail::is_finite(worst) ? worst : (std::numeric_limits<double>::max)();
}

TEST(precision, float_to_2e_6_and_double_to_1e_14_over_the_shape_sweep) {
  std::mt19937 bits(7);
  double worst_float = 0, worst_double = 0;
  std::string where_float, where_double;
  int cases = 0;
  for (const shape& s : shapes()) {
    const inputs<long double> exact{floats(s.queries, s.heads * s.head_dim, bits),
                                    floats(s.keys, s.kv_heads * s.head_dim, bits),
                                    floats(s.keys, s.kv_heads * s.value_dim, bits)};
    const inputs<float> single = as<float>(exact);
    const inputs<double> twice = as<double>(exact);
    for (const flavour& asked : flavours(s)) {
      const int which = cases++ % 4;
      const auto truth = attend(exact, which, s, asked.options);
      const auto note = [&](double error, double& worst, std::string& where) {
        if (error <= worst) return;
        worst = error;
        where = std::string(asked.name) + ", encoding " + std::to_string(which) + ", head_dim " +
                std::to_string(s.head_dim) + ", " + std::to_string(s.queries) + " queries, " +
                std::to_string(s.keys) + " keys, " + std::to_string(s.heads) + "/" +
                std::to_string(s.kv_heads) + " heads";
      };
      note(error_of(attend(single, which, s, asked.options), truth), worst_float, where_float);
      note(error_of(attend(twice, which, s, asked.options), truth), worst_double, where_double);
    }
  }
  EXPECT_EQ(cases, 1200);
  EXPECT_LE(worst_float, 2e-6) << where_float;
  EXPECT_LE(worst_double, 1e-14) << where_double;
  RecordProperty("worst_float", std::to_string(worst_float * 1e9) + "e-9");
  RecordProperty("worst_double", std::to_string(worst_double * 1e18) + "e-18");
}

/// 16-bit storage: computed as if the stored values had been float, rounded once at the end.
template <class S>
void expect_computed_as_float(double half_unit) {
  std::mt19937 bits(11);
  const inputs<long double> exact{floats(9, 64, bits), floats(9, 32, bits), floats(9, 32, bits)};
  const inputs<S> stored = as<S>(exact);
  const inputs<float> widened{stored.q.template cast<float>(), stored.k.template cast<float>(),
                              stored.v.template cast<float>()};
  const attention_options options{.heads = 4, .kv_heads = 2, .mask = causal};
  const posenc::rope<float> rope{{.head_dim = 16, .pairing = posenc::pairing::half_split}};
  const auto found =
      posenc::reference::attention_with_log_sum_exp(stored.q, stored.k, stored.v, rope, options);
  const auto expected =
      posenc::reference::attention_with_log_sum_exp(widened.q, widened.k, widened.v, rope, options);
  EXPECT_EQ(found.log_sum_exp, expected.log_sum_exp);
  for (index_t i = 0; i < found.output.size(); ++i) {
    const float value = expected.output.data()[i];
    EXPECT_NEAR(static_cast<float>(found.output.data()[i]), value,
                half_unit * std::abs(static_cast<double>(value)) + 1e-7);
  }
}

TEST(precision, sixteen_bit_storage_is_rounded_once) {
  expect_computed_as_float<Eigen::half>(0x1p-11);
  expect_computed_as_float<Eigen::bfloat16>(0x1p-8);
}

// Derivatives --------------------------------------------------------------------------------------------

using dual = Eigen::AutoDiffScalar<Eigen::Matrix<double, 1, 1>>;

/// Σ weights·output + Σ log_sum_exp of one call, everything that a score can hold switched on.
template <class T>
T loss(const inputs<T>& in, const attention_options& options) {
  const posenc::rope<double> rope{{.head_dim = 4, .pairing = posenc::pairing::interleaved}};
  const auto encoding = posenc::combine(rope, posenc::alibi<double>{{.heads = 2}});
  const auto result = posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, encoding, options);
  T total(0);
  for (index_t i = 0; i < result.output.size(); ++i)
    total += T(result.output.data()[i] * T(0.1 * static_cast<double>(i % 7) - 0.3));
  for (index_t i = 0; i < result.log_sum_exp.size(); ++i)
    if (!is_minus_infinity(result.log_sum_exp.data()[i])) total += result.log_sum_exp.data()[i];
  return total;
}

TEST(derivatives, of_q_k_and_v_by_rule_equal_differences) {
  std::mt19937 bits(3);
  const std::vector<double> sinks{0.5, -1};
  const attention_options options{.heads = 2,
                                  .kv_heads = 1,
                                  .mask = causal,
                                  .window = {.lookback = 1},
                                  .softcap = 1.5,
                                  .sinks = sinks,
                                  .key_positions = positions::from(1'000),
                                  .valid_queries = posenc::row_range{1, 3}};
  const inputs<long double> at{floats(3, 8, bits), floats(3, 4, bits), floats(3, 4, bits)};
  const auto compare = [&](row_major_matrix<long double> inputs<long double>::*member, std::size_t which) {
    for (index_t n = 0; n < (at.*member).size(); ++n) {
      inputs<dual> by_rule{at.q.cast<double>().cast<dual>(), at.k.cast<double>().cast<dual>(),
                           at.v.cast<double>().cast<dual>()};
      row_major_matrix<dual>& moved = *std::vector{&by_rule.q, &by_rule.k, &by_rule.v}[which];
      moved.data()[n].derivatives()[0] = 1;
      constexpr long double step = 0x1p-17L;
      inputs<long double> above = at, below = at;
      (above.*member).data()[n] += step, (below.*member).data()[n] -= step;
      const auto difference = static_cast<double>((loss(above, options) - loss(below, options)) / (2 * step));
      EXPECT_NEAR(loss(by_rule, options).derivatives()[0], difference, 1e-9) << which << ", element " << n;
    }
  };
  compare(&inputs<long double>::q, 0);
  compare(&inputs<long double>::k, 1);
  compare(&inputs<long double>::v, 2);
}

TEST(derivatives, of_a_row_that_sees_nothing_are_zero) {
  inputs<dual> in{row_major_matrix<dual>::Constant(1, 2, dual(1)),
                  row_major_matrix<dual>::Constant(1, 2, dual(2)),
                  row_major_matrix<dual>::Constant(1, 2, dual(3))};
  in.k(0, 0).derivatives()[0] = 1;
  const auto result = posenc::reference::attention_with_log_sum_exp(
      in.q, in.k, in.v, posenc::no_encoding{},
      {.mask = causal, .query_positions = positions::from(0), .key_positions = positions::from(1)});
  EXPECT_EQ(result.output(0, 0).value(), 0);
  EXPECT_EQ(result.output(0, 0).derivatives()[0], 0);
  EXPECT_TRUE(is_minus_infinity(result.log_sum_exp(0, 0)));
}

}  // namespace precision_test
