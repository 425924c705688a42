// SPDX-License-Identifier: MIT
/// \file
/// What the property checks share: their result, their settings, and the small random layer they run.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/attention/self_attention.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// The property battery; see posenc/testing.hpp.
namespace testing {

/// What a check found.
struct check_result {
  double worst_error = 0;  ///< relative unless the check says otherwise; NaN counts as the largest double
  std::string where{};     ///< a sentence; empty when nothing differed

  /// Whether the worst error is at most this.
  [[nodiscard]] bool within(double bound) const noexcept { return worst_error <= bound; }
};

/// The settings of a check: the shape of the attention it runs and where the tokens stand.
struct setup {
  index_t tokens = 6;            ///< of the sequence
  index_t heads = 4;             ///< query heads
  index_t kv_heads = 2;          ///< KV heads
  index_t head_dim = 8;          ///< channels of a head
  index_t model_dim = 0;         ///< width of a token embedding; 0 stands for heads·head_dim
  attention_mask mask = causal;  ///< of the attention that encodings are checked in
  /// Positions of the first token that are tried; keep them inside the range of a learned table.
  std::vector<position> starts{0, 1, 1'000'003, -4'097};
  std::uint32_t seed = 1;  ///< of the random weights
};

namespace detail {
using posenc::detail::is_finite, posenc::detail::is_minus_infinity, posenc::detail::require,
    posenc::detail::sentence_of;

/// Keeps the worst error seen and says where it was.
class worst_case {
 public:
  template <class... Parts>
  void see(double error, const Parts&... where) {
    if (!is_finite(error)) error = (std::numeric_limits<double>::max)();
    if (error <= result_.worst_error) return;
    result_.worst_error = error;
    result_.where = sentence_of(where...).substr(8);  // without "posenc: "
  }
  [[nodiscard]] check_result result() const { return result_; }

 private:
  check_result result_;
};

/// Numbers with mean 0 and variance 1, the same on every platform.
class random_numbers {
 public:
  explicit random_numbers(std::uint32_t seed) : bits_(seed) {}
  [[nodiscard]] double operator()() {
    constexpr double root_of_3 = 1.7320508075688772;
    return (static_cast<double>(bits_()) * 0x1p-31 - 1.0) * root_of_3;
  }
  template <class S>
  [[nodiscard]] row_major_matrix<S> matrix(index_t rows, index_t columns, double deviation = 1) {
    row_major_matrix<S> result(rows, columns);
    for (index_t i = 0; i < rows; ++i)
      for (index_t j = 0; j < columns; ++j) result(i, j) = static_cast<S>((*this)() * deviation);
    return result;
  }
  [[nodiscard]] std::mt19937& bits() { return bits_; }

 private:
  std::mt19937 bits_;
};

/// ‖a − b‖ / max(‖a‖, ‖b‖); 0 when both are zero.
template <class A, class B>
[[nodiscard]] double difference(const A& a, const B& b) {
  long double apart = 0, size_a = 0, size_b = 0;
  for (std::size_t c = 0; c < a.size(); ++c) {
    const auto x = static_cast<long double>(a[c]), y = static_cast<long double>(b[c]);
    apart += (x - y) * (x - y), size_a += x * x, size_b += y * y;
  }
  const long double size = (std::max)(size_a, size_b);
  if (apart == 0 && is_finite(static_cast<double>(size))) return 0;
  return static_cast<double>(std::sqrt(apart / size));
}

/// Absolute below 1, relative above: log-sum-exps are logarithms.
template <class T>
[[nodiscard]] double difference_of_logarithms(const T& a, const T& b) {
  if (is_minus_infinity(a) || is_minus_infinity(b))
    return is_minus_infinity(a) && is_minus_infinity(b) ? 0 : (std::numeric_limits<double>::max)();
  const auto x = static_cast<long double>(a), y = static_cast<long double>(b);
  return static_cast<double>(std::abs(x - y) / (std::max)({1.0L, std::abs(x), std::abs(y)}));
}

/// Output and log-sum-exp of one row against one row of another result.
template <class S>
[[nodiscard]] double difference_of_rows(const attention_result<S>& a, index_t row_a,
                                        const attention_result<S>& b, index_t row_b) {
  const auto width = static_cast<std::size_t>(a.output.cols());
  double worst = difference(std::span<const S>(a.output.row(row_a).data(), width),
                            std::span<const S>(b.output.row(row_b).data(), width));
  for (index_t head = 0; head < a.log_sum_exp.cols(); ++head)
    worst =
        (std::max)(worst, difference_of_logarithms(a.log_sum_exp(row_a, head), b.log_sum_exp(row_b, head)));
  return worst;
}

[[nodiscard]] inline std::vector<position> consecutive(position start, std::size_t count) {
  std::vector<position> result(count);
  std::iota(result.begin(), result.end(), start);
  return result;
}

/// Positions with gaps, so that no row number can stand in for one: start + 0, 1, 3, 6, 10, …
[[nodiscard]] inline std::vector<position> spread_positions(position start, index_t tokens) {
  std::vector<position> result;
  for (index_t i = 0; i < tokens; ++i) result.push_back(start + i * (i + 1) / 2);
  return result;
}

/// Orders of n things: reversed, all rotations, swaps of neighbours, and some shuffles.
[[nodiscard]] inline std::vector<std::vector<index_t>> some_orders(index_t n, std::mt19937& bits) {
  std::vector<index_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), index_t{0});
  std::vector<std::vector<index_t>> orders;
  orders.emplace_back(order.rbegin(), order.rend());
  for (index_t k = 1; k < n; ++k) {
    std::rotate(order.begin(), order.begin() + 1, order.end());
    orders.push_back(order);
  }
  std::iota(order.begin(), order.end(), index_t{0});
  for (std::size_t k = 0; k + 1 < order.size(); ++k) {
    orders.push_back(order);
    std::swap(orders.back()[k], orders.back()[k + 1]);
  }
  for (int shuffle = 0; shuffle < 4 && n > 1; ++shuffle) {
    for (std::size_t k = order.size() - 1; k > 0; --k) std::swap(order[k], order[bits() % (k + 1)]);
    orders.push_back(order);
  }
  return orders;
}

/// Refuses a setup whose heads are not those that the encoding rotates. \throws std::invalid_argument
template <class E>
void check_width(const E& encoding, index_t head_dim) {
  if constexpr (lowers_to_rotation<E>)
    require(encoding.lowered().head_dim == head_dim, "testing: the setup's head_dim is ", head_dim,
            ", this encoding rotates heads of ", encoding.lowered().head_dim, ": set .head_dim");
}

/// Random tokens and a random layer.
template <class S>
struct world {
  row_major_matrix<S> x;
  self_attention<S> layer;
  attention_options options;

  explicit world(const setup& s) {
    require(s.tokens >= 1 && s.heads >= 1 && s.kv_heads >= 1 && s.head_dim >= 1 && s.model_dim >= 0,
            "testing: a setup of ", s.tokens, " tokens, ", s.heads, " heads, ", s.kv_heads,
            " kv_heads, head_dim ", s.head_dim);
    random_numbers random(s.seed);
    const index_t width = s.model_dim > 0 ? s.model_dim : s.heads * s.head_dim;
    const double deviation = 1 / std::sqrt(static_cast<double>(width));
    x = random.matrix<S>(s.tokens, width);
    layer.query = random.matrix<S>(width, s.heads * s.head_dim, deviation);
    layer.key = random.matrix<S>(width, s.kv_heads * s.head_dim, deviation);
    layer.value = random.matrix<S>(width, s.kv_heads * s.head_dim, deviation);
    options.heads = s.heads, options.kv_heads = s.kv_heads, options.mask = s.mask;
    options.is_embedded = true;  // project() and the layer do that
  }

  /// Rows of x in another order.
  [[nodiscard]] row_major_matrix<S> reordered(const std::vector<index_t>& order) const {
    row_major_matrix<S> result(x.rows(), x.cols());
    for (std::size_t i = 0; i < order.size(); ++i) result.row(static_cast<index_t>(i)) = x.row(order[i]);
    return result;
  }

  template <class E, class Attention>
  [[nodiscard]] attention_result<S> attend(const row_major_matrix<S>& tokens, const E& encoding,
                                           const positions& where, attention_options told,
                                           const Attention& attention) const {
    check_width(encoding, layer.query.cols() / options.heads);
    told.key_positions = where;
    return layer.attend(tokens, encoding, told, attention);
  }

  /// q, k and v as the layer makes them, for checks that call attention in parts.
  struct projections {
    row_major_matrix<S> q, k, v;
  };
  template <class E>
  [[nodiscard]] projections project(const E& encoding, const positions& where) const {
    check_width(encoding, layer.query.cols() / options.heads);
    row_major_matrix<S> embedded = x;
    embed_rows(embedded, encoding, where);
    return {embedded * layer.query, embedded * layer.key, embedded * layer.value};
  }
};

}  // namespace detail
}  // namespace testing
}  // namespace posenc::inline v0_2
