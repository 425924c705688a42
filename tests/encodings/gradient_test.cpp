// SPDX-License-Identifier: MIT
/// \file
/// Learned tables of automatic-differentiation scalars: the gradient of attention with respect to the table
/// entries, against central differences of the same call in double.
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>
#include <unsupported/Eigen/AutoDiff>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>

namespace gradient_test {

using posenc::index_t;
using active = Eigen::AutoDiffScalar<Eigen::VectorXd>;

template <class S>
using matrix = posenc::row_major_matrix<S>;

constexpr index_t tokens = 4, width = 2;

/// Deterministic numbers of order 1.
matrix<double> numbers(index_t rows, index_t columns, double phase) {
  matrix<double> result(rows, columns);
  for (index_t n = 0; n < result.size(); ++n)
    result.data()[n] = std::sin(1.7 * static_cast<double>(n) + phase);
  return result;
}

/// The table with entry n differentiated along unit vector n.
matrix<active> activated(const matrix<double>& table) {
  matrix<active> result(table.rows(), table.cols());
  const auto size = static_cast<int>(table.size());
  for (int n = 0; n < size; ++n) result.data()[n] = active(table.data()[n], size, n);
  return result;
}

/// A weighted sum of what attention gives, for a table of scalars S, with the encoding made from it.
template <class S, class Make>
S loss(const matrix<S>& table, Make make) {
  const auto constant = [&table](const matrix<double>& values) {
    matrix<S> result = values.template cast<S>();
    if constexpr (std::is_same_v<S, active>)  // as many derivatives as the table has entries, all zero
      for (index_t n = 0; n < result.size(); ++n) result.data()[n].derivatives().setZero(table.size());
    static_cast<void>(table);
    return result;
  };
  matrix<S> q = constant(numbers(tokens, width, 0.3)), k = constant(numbers(tokens, width, 1.1));
  const matrix<S> v = constant(numbers(tokens, width, 2.2));
  const auto encoding = make(table);
  using encoding_type = std::decay_t<decltype(encoding)>;
  if constexpr (posenc::embeds<encoding_type, S>)
    for (index_t i = 0; i < tokens; ++i) {
      encoding.embed(std::span<S>(&q(i, 0), width), i);
      encoding.embed(std::span<S>(&k(i, 0), width), i);
    }
  const matrix<S> out = posenc::reference::attention(q, k, v, encoding, {.is_embedded = true});
  S sum = out(0, 0);
  for (index_t n = 1; n < out.size(); ++n) sum += S(out.data()[n] * static_cast<double>(n + 1));
  return sum;
}

template <class Make>
void check_gradient(const matrix<double>& table, Make make) {
  const active result = loss<active>(activated(table), make);
  ASSERT_EQ(result.derivatives().size(), table.size());
  EXPECT_NEAR(result.value(), loss<double>(table, make), 1e-14);
  EXPECT_GT(result.derivatives().norm(), 0.01);
  constexpr double step = 1e-5;
  for (index_t n = 0; n < table.size(); ++n) {
    matrix<double> above = table, below = table;
    above.data()[n] += step, below.data()[n] -= step;
    const double slope = (loss<double>(above, make) - loss<double>(below, make)) / (2 * step);
    EXPECT_NEAR(result.derivatives()[n], slope, 1e-8) << "table entry " << n;
  }
}

constexpr posenc::relative_clip clip{
    .direction = posenc::relative_direction::key_minus_query, .left = 2, .right = 1};

TEST(encoding_gradients, learned_absolute) {
  check_gradient(numbers(tokens + 1, width, 0.5), []<class S>(const matrix<S>& table) {
    return posenc::learned_absolute<S>(table, {.row_offset = 1});
  });
}

TEST(encoding_gradients, relative_bias) {
  check_gradient(numbers(1, clip.rows(), 0.5), []<class S>(const matrix<S>& table) {
    return posenc::relative_bias<S>(clip, posenc::bias_table<S>::heads_by_rows(table));
  });
}

TEST(encoding_gradients, t5_bias) {
  check_gradient(numbers(6, 1, 0.5), []<class S>(const matrix<S>& table) {
    return posenc::t5_bias<S>({.buckets = 6, .max_distance = 3, .bidirectional = true},
                              posenc::bias_table<S>::rows_by_heads(table));
  });
}

TEST(encoding_gradients, shaw_key_and_value_side) {
  check_gradient(numbers(2 * clip.rows(), width, 0.5), []<class S>(const matrix<S>& table) {
    return posenc::shaw_with_values<S>(clip, table.topRows(clip.rows()), table.bottomRows(clip.rows()));
  });
}

TEST(encoding_gradients, sinusoidal_adds_constants) {
  const posenc::sinusoidal<double> encoding{{.width = 2, .convention = posenc::sinusoid::paper}};
  std::vector<active> token{active(1.0, 2, 0), active(2.0, 2, 1)};
  encoding.embed(std::span<active>(token), 0);
  EXPECT_EQ(token[1].value(), 3);
  EXPECT_EQ(token[1].derivatives(), Eigen::Vector2d(0, 1));
}

}  // namespace gradient_test
