// SPDX-License-Identifier: MIT
/// \file
/// Runs one generated case through the fused path and the reference in double, and says how far apart they
/// are.
#pragma once

#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/sweep_case.hpp"
#include "fused/sweep_encodings.hpp"

namespace sweep {

/// Relative distance of neighbouring numbers of a storage type.
template <class S>
inline constexpr double spacing = std::is_same_v<S, float>         ? 0x1p-23
                                  : std::is_same_v<S, Eigen::half> ? 0x1p-10
                                                                   : 0x1p-7;

template <class S>
tensor<double> widened(const tensor<S>& from) {
  tensor<double> result = {from.view.tokens, from.view.heads, from.view.head_dim, 0, 0.0};
  for (index_t t = 0; t < from.view.tokens; ++t)
    for (index_t h = 0; h < from.view.heads; ++h)
      for (index_t x = 0; x < from.view.head_dim; ++x) {
        const auto at = static_cast<std::size_t>(x);
        result.view(t, h)[at] = static_cast<double>(static_cast<float>(from.view(t, h)[at]));
      }
  return result;
}

template <class T>
double largest_norm(const posenc::heads_view<T>& view, const posenc::row_range& rows) {
  double largest = 0;
  for (index_t t = rows.begin; t < rows.end; ++t)
    for (index_t h = 0; h < view.heads; ++h) {
      double sum = 0;
      for (const auto x : view(t, h)) sum += static_cast<double>(x) * static_cast<double>(x);
      largest = (std::max)(largest, std::sqrt(sum));
    }
  return largest;
}

/// How large the terms of a score get: float scores are off by so many roundings.
template <class E>
double score_size(const E& encoding, const posenc::detail::resolved_options& call, double q, double k) {
  double scale = std::abs(call.scale);
  for (const double of_head : call.head_scales) scale = (std::max)(scale, std::abs(of_head));
  double size = q * k * scale * 2 + q * scale;
  if (call.valid_queries.begin >= call.valid_queries.end || call.valid_keys.begin >= call.valid_keys.end)
    return 0;
  if (call.visible.has_dense_bias()) size += 6;
  if constexpr (posenc::biases<E>) {
    for (const index_t i : {call.valid_queries.begin, call.valid_queries.end - 1})
      for (const index_t j : {call.valid_keys.begin, call.valid_keys.end - 1})
        for (index_t h = 0; h < call.heads; ++h) {
          const auto bias = static_cast<double>(posenc::detail::bias_of(
              encoding, static_cast<int>(h), call.query_positions[i], call.key_positions[j]));
          if (std::isfinite(bias)) size = (std::max)(size, size + std::abs(bias));
        }
  }
  return size;
}

/// Relative error of a number cut into pieces of bfloat16, and of a product of two: twice the first, and what the products
/// left out come to. 0 pieces are floats.
[[nodiscard]] constexpr double cutting_error(int pieces) {
  return pieces == 0 ? 0 : pieces == 1 ? 0x1p-8 : pieces == 2 ? 0x1p-15 : 0x1p-22;
}
[[nodiscard]] constexpr posenc::fused::arithmetic arithmetic_of(int pieces) {
  using posenc::fused::arithmetic;
  return pieces == 1   ? arithmetic::bfloat16
         : pieces == 2 ? arithmetic::bfloat16x2
         : pieces == 3 ? arithmetic::bfloat16x3
                       : arithmetic::float32;
}

struct verdict {
  double worst = 0;  ///< largest error, in units of what is allowed
  std::string problem{};
};

/// A case with its memory and its answer, for as many runs of the fused path as one likes. S, K, V and O are what q, k, v
/// and the output are stored as.
template <class S, class K = S, class V = K, class O = S>
class prepared_case {
 public:
  explicit prepared_case(const sweep_case& drawn)
      : c_(drawn),
        options_(c_.settled()),
        valid_q_(options_.valid_queries.value_or(posenc::row_range{0, c_.queries})),
        valid_k_(options_.valid_keys.value_or(posenc::row_range{0, c_.keys})),
        q_(c_.queries, c_.heads, c_.head_dim, c_.layout_q, nan<S>()),
        k_(c_.keys, c_.kv_heads, c_.head_dim, c_.layout_k, nan<K>()),
        v_(c_.keys, c_.kv_heads, c_.value_dim, c_.layout_v, nan<V>()) {
    dice draw(c_.seed + 77);
    q_.fill(draw, valid_q_.begin, valid_q_.end, c_.size);
    k_.fill(draw, valid_k_.begin, valid_k_.end, c_.size);
    v_.fill(draw, valid_k_.begin, valid_k_.end, 1);
    const tensor<double> q_wide = widened(q_), k_wide = widened(k_), v_wide = widened(v_);
    expected_ = with_encoding<double>(c_, [&](const auto& encoding) {
      return posenc::reference::attention_with_log_sum_exp(q_wide.view, k_wide.view, v_wide.view, encoding,
                                                           options_);
    });
    const auto call = posenc::detail::resolve(options_, q_.view, k_.view, v_.view);
    with_encoding<float>(c_, [&](const auto& encoding) {
      size_ = score_size(encoding, call, largest_norm(q_.view, valid_q_), largest_norm(k_.view, valid_k_));
      if (!c_.keys_are_rotated) return;
      for (index_t j = valid_k_.begin; j < valid_k_.end; ++j)
        for (index_t h = 0; h < c_.kv_heads; ++h)
          posenc::detail::rotate_key(encoding, k_.view(j, h), call.key_positions[j]);
    });
    value_size_ = largest_norm(v_wide.view, valid_k_) / std::sqrt(static_cast<double>(c_.value_dim)) * 3 + 3;
  }

  prepared_case(const prepared_case&) = delete;
  prepared_case& operator=(const prepared_case&) = delete;

  /// Runs the fused path and compares.
  [[nodiscard]] verdict run(const posenc::fused::executor_ref& executor = {}) const {
    // In float whatever the storage: on a machine with a matrix unit, 16 bits would take it.
    return run({.executor = executor, .arithmetic = posenc::fused::arithmetic::float32}, 0);
  }
  /// The same with products of so many pieces.
  [[nodiscard]] verdict run(posenc::fused::matrix_unit unit, int pieces) const {
    return run({.arithmetic = arithmetic_of(pieces), .unit = unit}, pieces);
  }

  /// Runs `attend`, which takes the arguments of attention_into, and compares. Its products are of so many pieces; 0 for
  /// floats.
  template <class Attend>
  [[nodiscard]] verdict run_with(const Attend& attend, int pieces = 0) const {
    const O pattern = static_cast<O>(-1234.5f);
    tensor<O> out(c_.queries, c_.heads, c_.value_dim, c_.layout_out, pattern);
    posenc::row_major_matrix<float> log_sum_exp =
        posenc::row_major_matrix<float>::Constant(c_.queries, c_.heads + 1, 7);
    with_encoding<float>(c_, [&](const auto& encoding) {
      posenc::attention_options options = options_;
      options.keys_are_rotated = c_.keys_are_rotated;
      attend(posenc::heads_view<const S>(q_.view), posenc::heads_view<const K>(k_.view),
             posenc::heads_view<const V>(v_.view), encoding, options, out.view,
             posenc::head_scalars_view<float>{log_sum_exp.data(), c_.queries, c_.heads, c_.heads + 1, 1});
    });
    verdict result = compare(out, log_sum_exp, cutting_error(pieces));
    if (!out.gaps_hold(pattern)) result = {1e30, c_.text() + ": wrote between the rows of the output"};
    if (log_sum_exp.rows() > 0 && !(log_sum_exp.col(c_.heads).array() == 7).all())
      result = {1e30, c_.text() + ": wrote between the rows of the log-sum-exp"};
    return result;
  }

 private:
  [[nodiscard]] verdict run(const posenc::fused::execution& how, int pieces) const {
    return run_with(
        [&](const auto& q, const auto& k, const auto& v, const auto& encoding,
            const posenc::attention_options& options, const auto& out, const auto& log_sum_exp) {
          posenc::fused::attention_into(q, k, v, encoding, options, out, log_sum_exp, how);
        },
        pieces);
  }

  template <class T>
  static T nan() {
    return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  }

  [[nodiscard]] verdict compare(const tensor<O>& out, const posenc::row_major_matrix<float>& log_sum_exp,
                                double cutting) const {
    // xPos multiplies what it turns by up to 4 on this domain.
    const double size = c_.encoding == 4 ? size_ * 16 : size_;
    double score_error = (6 + size) * 0x1p-23 + size * cutting;
    if (c_.keys_are_rotated && sizeof(K) == 2) score_error += size * spacing<K>;
    verdict result;
    const auto see = [&](double error, double allowed, index_t i, index_t h, index_t channel, double got,
                         double want) {
      const double share = std::isfinite(error) ? error / allowed : 1e30;
      if (share <= result.worst) return;
      result.worst = share;
      if (share <= 1) return;
      std::ostringstream text;
      text << c_.text() << "; row " << i << " head " << h << " channel " << channel << ": " << got
           << ", reference " << want << ", error " << share << " times what is allowed";
      result.problem = text.str();
    };
    for (index_t i = 0; i < c_.queries; ++i)
      for (index_t h = 0; h < c_.heads; ++h) {
        const double want = expected_.log_sum_exp(i, h), got = static_cast<double>(log_sum_exp(i, h));
        if (std::isinf(want))
          see(got == want ? 0 : 1e30, 1, i, h, -1, got, want);
        else
          see(std::abs(got - want), score_error + cutting + std::abs(want) * 0x1p-23, i, h, -1, got, want);
        for (index_t x = 0; x < c_.value_dim; ++x) {
          const double wanted = expected_.output(i, h * c_.value_dim + x);
          const double found =
              static_cast<double>(static_cast<float>(out.view(i, h)[static_cast<std::size_t>(x)]));
          if (std::isinf(want))
            see(found == 0 ? 0 : 1e30, 1, i, h, x, found, wanted);
          else
            see(std::abs(found - wanted),
                (score_error + cutting) * value_size_ + std::abs(wanted) * spacing<O> * 0.51 + 0x1p-24, i, h,
                x, found, wanted);
        }
      }
    return result;
  }

  sweep_case c_;
  posenc::attention_options options_;  // points into c_
  posenc::row_range valid_q_, valid_k_;
  tensor<S> q_;
  tensor<K> k_;
  tensor<V> v_;
  posenc::attention_result<double> expected_;
  double size_ = 0, value_size_ = 0;
};

/// Cases that sanitizers make slow are thinned out.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::uint32_t thinned = 8;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr std::uint32_t thinned = 8;
#else
inline constexpr std::uint32_t thinned = 1;
#endif
#else
inline constexpr std::uint32_t thinned = 1;
#endif

/// Draws `count` cases from seed `first` on and hands each, prepared, to `use`, which says whether to go on.
template <class S, class K = S, class V = K, class O = S, class Use>
void for_each_case(std::uint32_t first, std::uint32_t count, Use&& use) {
  for (std::uint32_t seed = first; seed < first + count / thinned; ++seed) {
    const auto encoding = static_cast<index_t>(seed % static_cast<std::uint32_t>(kind_count));
    const sweep_case c = make_case(seed, encoding, kinds[encoding].where, kinds[encoding].rotary);
    if (!use(prepared_case<S, K, V, O>(c))) return;
  }
}

}  // namespace sweep
