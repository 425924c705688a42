// SPDX-License-Identifier: MIT
/// \file
/// Attention as the papers write it: the documentation of what posenc computes, and what every kernel is
/// tested against.
///
///     s_ij = τ_i·σ·( q̂_i·k̂_j + q_i·r_{j−i} ),  q̂ = R(i) q,  k̂ = R(j) k     (doors rotate, bias by content, scale)
///     s_ij ← c·tanh(s_ij / c)                                               (softcap)
///     s_ij ← s_ij + b_h(i, j)                                               (door bias)
///     out_i = Σ_j e^{s_ij} (v_j + a_{j−i}) / Z_i,  Z_i = Σ_j e^{s_ij} + e^{sink},  over the keys j that i may see
///     log_sum_exp_i = ln Z_i
///
/// The door embed is not here: it adds to rows before they are projected (encoding.hpp, self_attention.hpp), so
/// an encoding with that door alone changes nothing in this call.
///
/// Vaswani et al. 2017, arXiv:1706.03762. Works for float, double, long double, Eigen::half and
/// Eigen::bfloat16 (computed in float, summed in double like float) and for automatic-differentiation
/// scalars.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <posenc/attention/options.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/detail/scalar.hpp>
#include <posenc/encoding.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_1 {

/// Attention output with the natural log-sum-exp of every row, so that partial results can be merged
/// (attention/merge.hpp).
template <class S>
struct attention_result {
  row_major_matrix<S> output;                          ///< tokens × (heads·value_dim)
  row_major_matrix<detail::working_t<S>> log_sum_exp;  ///< tokens × heads
};

namespace reference {

namespace detail {
using namespace posenc::detail;

/// Σ_c a_c·b_c
template <class Sum, class A, class B>
[[nodiscard]] Sum dot(const A& a, const B& b) {
  require(a.size() == b.size(), "a row of ", b.size(), " channels meets a head of ", a.size());
  Sum total(0);
  for (std::size_t c = 0; c < a.size(); ++c) total += Sum(static_cast<Sum>(a[c]) * static_cast<Sum>(b[c]));
  return total;
}

/// One head as numbers that can be computed with.
template <class S>
[[nodiscard]] std::vector<working_t<S>> copy_of(std::span<const S> head) {
  std::vector<working_t<S>> copy(head.size());
  for (std::size_t c = 0; c < head.size(); ++c) copy[c] = static_cast<working_t<S>>(head[c]);
  return copy;
}

/// What a row of attention comes to: Σ_j w_j v_j and ln Σ_j w_j over the keys it sees.
template <class Sum>
struct attended_row {
  std::vector<Sum> output;
  Sum log_sum_exp;
};

/// The row of query head `head` and query row `i`, given the rotated keys of its KV head.
template <class S, class E>
[[nodiscard]] attended_row<sum_t<S>> attend(const heads_view<const S>& q,
                                            const std::vector<std::vector<working_t<S>>>& keys,
                                            const heads_view<const S>& v, const E& encoding,
                                            const resolved_options& call, index_t head, index_t i) {
  using work = working_t<S>;
  using sum = sum_t<S>;
  using std::exp, std::log, std::tanh;
  const int h = static_cast<int>(head);
  const position here = call.query_positions[i];

  const std::vector<work> query = copy_of(q(i, head));
  std::vector<work> rotated = query;
  rotate_query(encoding, std::span<work>(rotated), here);

  sum scale = static_cast<sum>(call.scale);
  if constexpr (scales<E>) scale *= static_cast<sum>(encoding.scale(here));

  std::vector<index_t> seen;
  std::vector<sum> scores;
  for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j) {
    const position there = call.key_positions[j];
    if (!call.sees(here, there)) continue;
    sum score = dot<sum>(rotated, keys[static_cast<std::size_t>(j)]);
    if constexpr (has_relative_key<E>) score += dot<sum>(query, encoding.relative_key(h, there - here));
    score *= scale;
    if (call.softcap > 0)
      score = static_cast<sum>(call.softcap) * tanh(sum(score / static_cast<sum>(call.softcap)));
    if constexpr (biases<E>) {
      const auto bias = static_cast<sum>(bias_of(encoding, h, here, there));
      if (is_minus_infinity(bias)) continue;  // a bias may mask as well; asked before any arithmetic with it
      score += bias;
    }
    if (is_minus_infinity(score)) continue;  // as may an infinite product
    seen.push_back(j);
    scores.push_back(score);
  }
  if (!call.sinks.empty()) scores.push_back(static_cast<sum>(call.sinks[static_cast<std::size_t>(head)]));

  attended_row<sum> row{std::vector<sum>(static_cast<std::size_t>(call.value_dim), sum(0)),
                        minus_infinity<sum>()};
  if (scores.empty()) return row;
  sum largest = scores[0];
  for (const sum& score : scores)
    if (score > largest) largest = score;
  sum total(0);
  for (std::size_t n = 0; n < scores.size(); ++n) {
    const sum weight = exp(sum(scores[n] - largest));
    total += weight;
    if (n == seen.size()) break;  // the sink has no value
    const std::span<const S> value = v(seen[n], head / call.group);
    for (std::size_t c = 0; c < row.output.size(); ++c)
      row.output[c] += sum(weight * static_cast<sum>(value[c]));
    if constexpr (has_relative_value<E>) {
      const auto shift = encoding.relative_value(h, call.key_positions[seen[n]] - here);
      require(shift.size() == row.output.size(), "relative_value: a row of ", shift.size(),
              " channels for values of ", row.output.size());
      for (std::size_t c = 0; c < row.output.size(); ++c)
        row.output[c] += sum(weight * static_cast<sum>(shift[c]));
    }
  }
  for (sum& channel : row.output) channel /= total;
  row.log_sum_exp = largest + sum(log(total));
  return row;
}

}  // namespace detail

/// Attention over strided views with its log-sum-exp; see the top of the file for the formula.
/// \throws std::invalid_argument, std::out_of_range
template <class S, class E>
[[nodiscard]] attention_result<S> attention_with_log_sum_exp(heads_view<const S> q, heads_view<const S> k,
                                                             heads_view<const S> v, const E& encoding,
                                                             const attention_options& options) {
  using work = detail::working_t<S>;
  static_assert(detail::check_encoding<E, work>());
  const detail::resolved_options call = detail::resolve(options, q, k, v);
  attention_result<S> result;
  result.output.setZero(call.query_tokens, call.heads * call.value_dim);
  result.log_sum_exp.setConstant(call.query_tokens, call.heads, detail::minus_infinity<work>());

  for (index_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
    std::vector<std::vector<work>> keys(static_cast<std::size_t>(call.key_tokens));
    for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j) {
      std::vector<work>& key = keys[static_cast<std::size_t>(j)];
      key = detail::copy_of(k(j, kv_head));
      detail::rotate_key(encoding, std::span<work>(key), call.key_positions[j]);
    }
    for (index_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head)
      for (index_t i = call.valid_queries.begin; i < call.valid_queries.end; ++i) {
        const auto row = detail::attend(q, keys, v, encoding, call, head, i);
        for (index_t c = 0; c < call.value_dim; ++c)
          result.output(i, head * call.value_dim + c) =
              static_cast<S>(row.output[static_cast<std::size_t>(c)]);
        result.log_sum_exp(i, head) = static_cast<work>(row.log_sum_exp);
      }
  }
  return result;
}

/// The same over views through which one could write.
template <class Q, class K, class V, class E>
requires(!std::is_const_v<Q> || !std::is_const_v<K> || !std::is_const_v<V>)
    [[nodiscard]] attention_result<std::remove_const_t<Q>> attention_with_log_sum_exp(
        heads_view<Q> q, heads_view<K> k, heads_view<V> v, const E& encoding,
        const attention_options& options) {
  using S = std::remove_const_t<Q>;
  return attention_with_log_sum_exp<S>(heads_view<const S>(q), heads_view<const S>(k), heads_view<const S>(v),
                                       encoding, options);
}

/// The same into the caller's memory; nothing is written when it throws.
/// \param out tokens × heads × value_dim, apart from q, k and v
/// \param log_sum_exp ln Z per token and head, or an empty view
template <class S, class E>
void attention_into(std::type_identity_t<heads_view<const S>> q, std::type_identity_t<heads_view<const S>> k,
                    std::type_identity_t<heads_view<const S>> v, const E& encoding,
                    const attention_options& options, heads_view<S> out,
                    std::type_identity_t<head_scalars_view<detail::working_t<S>>> log_sum_exp = {}) {
  detail::check_output(detail::resolve(options, q, k, v), q, k, v, out, log_sum_exp);
  const attention_result<S> result = attention_with_log_sum_exp<S>(q, k, v, encoding, options);
  for (index_t i = 0; i < out.tokens; ++i)
    for (index_t head = 0; head < out.heads; ++head) {
      for (index_t c = 0; c < out.head_dim; ++c)
        out(i, head)[static_cast<std::size_t>(c)] = result.output(i, head * out.head_dim + c);
      if (log_sum_exp.data) log_sum_exp(i, head) = result.log_sum_exp(i, head);
    }
}

/// Attention over matrices of tokens × (heads·head_dim), with its log-sum-exp. Column-major matrices and
/// expressions are copied into row-major order first.
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention_with_log_sum_exp(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                              const Eigen::MatrixBase<V>& v, const E& encoding,
                                              const attention_options& options) {
  using S = typename Q::Scalar;
  const readable_matrix<S> q_rows(q), k_rows(k), v_rows(v);
  const index_t kv_heads = options.kv_heads.value_or(options.heads);
  return attention_with_log_sum_exp<S>(q_rows.heads(options.heads), k_rows.heads(kv_heads),
                                       v_rows.heads(kv_heads), encoding, options);
}

/// Attention over matrices or views: the output, tokens × (heads·value_dim), row-major.
///
///     Eigen::MatrixXf out = posenc::reference::attention(q, k, v, rope, options);
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, const E& encoding,
                             const attention_options& options = {}) {
  return attention_with_log_sum_exp(q, k, v, encoding, options).output;
}

}  // namespace reference
}  // namespace posenc::inline v0_1
