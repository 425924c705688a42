// SPDX-License-Identifier: MIT
/// \file
/// Attention as the papers write it: the documentation of what posenc computes, and what every kernel is
/// tested against.
///
///     s_ij = τ_hi·σ_h·( q̂_i·k̂_j + q_i·r_{j−i} ),  q̂ = R(i) q,  k̂ = R(j) k     (doors rotate, bias by content, scale)
///     s_ij ← c·tanh(s_ij / c)                                                 (softcap)
///     s_ij ← s_ij + b_h(i, j)                                                 (door bias, dense bias)
///     out_i = Σ_j e^{s_ij} (v_j + a_{j−i}) / Z_i,  Z_i = Σ_j e^{s_ij} + e^{sink},  over the keys j that i sees
///     (where values rotate too: R(−i) Σ_j e^{s_ij} R(j) v_j / Z_i)
///     log_sum_exp_i = ln Z_i
///
/// The door embed is not here: it adds to rows before they are projected (encoding.hpp, self_attention.hpp).
///
/// Vaswani et al. 2017, arXiv:1706.03762. Works for float, double, long double, Eigen::half and
/// Eigen::bfloat16 (computed in float, summed in double like float) and for automatic-differentiation
/// scalars. q, k, v and the output may each have a type of their own.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <posenc/attention/batch.hpp>
#include <posenc/attention/options.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/detail/scalar.hpp>
#include <posenc/encoding.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Attention output with the natural log-sum-exp of every row, so that partial results can be merged
/// (attention/merge.hpp).
template <class S>
struct attention_result {
  row_major_matrix<S> output;                          ///< tokens × (heads·value_dim)
  row_major_matrix<detail::working_t<S>> log_sum_exp;  ///< tokens × heads
};

/// How far a score has come when it is shown.
enum class score_stage : unsigned char {
  scaled,   ///< τ·σ·q̂·k̂, every key, hidden ones included
  capped,   ///< after the softcap
  biased,   ///< after bias and mask: hidden keys are −∞
  weights,  ///< after the softmax: hidden keys are 0; with a sink a row adds up to less than 1
};

namespace reference {

namespace detail {
using namespace posenc::detail;

/// What three stored types are computed in.
template <class Q, class K, class V>
struct work_of {
  using type = std::common_type_t<working_t<Q>, working_t<K>, working_t<V>>;
};
template <class S>
struct work_of<S, S, S> {
  using type = working_t<S>;
};
template <class Q, class K, class V>
using work_of_t =
    typename work_of<std::remove_const_t<Q>, std::remove_const_t<K>, std::remove_const_t<V>>::type;

/// Σ_c a_c·b_c
template <class Sum, class A, class B>
[[nodiscard]] Sum dot(const A& a, const B& b) {
  require(a.size() == b.size(), "a row of ", b.size(), " channels meets a head of ", a.size());
  Sum total(0);
  for (std::size_t c = 0; c < a.size(); ++c) total += Sum(static_cast<Sum>(a[c]) * static_cast<Sum>(b[c]));
  return total;
}

/// The rows of a KV head of a source that are tokens.
template <class Work, class Source>
[[nodiscard]] std::vector<std::vector<Work>> rows_of_head(const Source& source, const resolved_options& call,
                                                          index_t kv_head) {
  std::vector<std::vector<Work>> rows(static_cast<std::size_t>(call.key_tokens));
  for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j)
    rows[static_cast<std::size_t>(j)] = row_of<Work>(source, j, kv_head);
  return rows;
}

/// The values of a KV head, rotated where the encoding says so.
template <class Work, class V, class E>
[[nodiscard]] std::vector<std::vector<Work>> values_of_head(const V& v, const E& encoding,
                                                            const resolved_options& call, index_t kv_head) {
  std::vector<std::vector<Work>> values = rows_of_head<Work>(v, call, kv_head);
  if (const rotation* const by = rotation_of_values(encoding); by && !call.keys_are_rotated)
    for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j)
      by->apply_to_value(std::span<Work>(values[static_cast<std::size_t>(j)]), call.key_positions, j, false);
  return values;
}

/// The keys of a KV head, rotated.
template <class Work, class K, class E>
[[nodiscard]] std::vector<std::vector<Work>> rotated_keys(const K& k, const E& encoding,
                                                          const resolved_options& call, index_t kv_head) {
  std::vector<std::vector<Work>> keys = rows_of_head<Work>(k, call, kv_head);
  for (index_t j = call.valid_keys.begin; j < call.valid_keys.end && !call.keys_are_rotated; ++j)
    rotate_row(encoding, std::span<Work>(keys[static_cast<std::size_t>(j)]), call.key_positions, j, false);
  return keys;
}

/// One query against the keys of its KV head.
template <class Work, class E>
class score_row {
 public:
  using sum = sum_t<Work>;

  template <class Q>
  score_row(const heads_view<const Q>& q, const std::vector<std::vector<Work>>& keys, const E& encoding,
            const resolved_options& call, index_t head, index_t i)
      : keys_(keys),
        encoding_(encoding),
        call_(call),
        head_(head),
        i_(i),
        query_(row_of<Work>(q, i, head)),
        rotated_(query_),
        scale_(static_cast<sum>(call.scale_of(head))) {
    rotate_row(encoding, std::span<Work>(rotated_), call.query_positions, i, true);
    if constexpr (scales<E>) scale_ *= static_cast<sum>(scale_of(encoding, number(), here()));
  }

  /// q̂·k̂ + q·r
  [[nodiscard]] sum product(index_t j) const {
    sum score = dot<sum>(rotated_, keys_[static_cast<std::size_t>(j)]);
    if constexpr (has_relative_key<E>)
      score += dot<sum>(query_, encoding_.relative_key(number(), call_.key_positions[j] - here()));
    return score;
  }
  /// τ·σ·( q̂·k̂ + q·r )
  [[nodiscard]] sum scaled(index_t j) const { return sum(product(j) * scale_); }
  [[nodiscard]] sum capped(index_t j) const {
    using std::tanh;
    const sum score = scaled(j);
    if (!(call_.softcap > 0)) return score;
    return static_cast<sum>(call_.softcap) * tanh(sum(score / static_cast<sum>(call_.softcap)));
  }
  /// The score as the softmax sees it; nothing where the key is hidden. −∞ meets no arithmetic: under -ffast-math
  /// ∞ − ∞ is anything.
  [[nodiscard]] std::optional<sum> biased(index_t j) const {
    if (!call_.sees(head_, i_, j)) return std::nullopt;
    sum score = capped(j);
    if constexpr (biases<E>) {
      const auto bias = bias_as<sum>(encoding_, number(), here(), call_.key_positions[j]);
      if (is_minus_infinity(bias)) return std::nullopt;
      score += bias;
    }
    if (call_.visible.has_dense_bias()) {
      const double bias = call_.visible.bias(head_, i_, j);
      if (is_minus_infinity(bias)) return std::nullopt;
      score += static_cast<sum>(bias);
    }
    if (is_minus_infinity(score)) return std::nullopt;  // as may an infinite product
    return score;
  }

  /// What the backward needs: q, q̂, k̂ and τ·σ.
  [[nodiscard]] const std::vector<Work>& query() const { return query_; }
  [[nodiscard]] const std::vector<Work>& rotated() const { return rotated_; }
  [[nodiscard]] const std::vector<Work>& key(index_t j) const { return keys_[static_cast<std::size_t>(j)]; }
  [[nodiscard]] const sum& factor() const { return scale_; }

 private:
  [[nodiscard]] int number() const { return static_cast<int>(head_); }
  [[nodiscard]] position here() const { return call_.query_positions[i_]; }

  const std::vector<std::vector<Work>>& keys_;
  const E& encoding_;
  const resolved_options& call_;
  index_t head_, i_;
  std::vector<Work> query_, rotated_;
  sum scale_;
};

/// The softmax of a row: the weights of the keys it sees, and ln Σ.
template <class Sum>
struct row_weights {
  std::vector<index_t> seen;
  std::vector<Sum> weights;
  Sum log_sum_exp = minus_infinity<Sum>();
};

template <class Work, class E>
[[nodiscard]] row_weights<sum_t<Work>> softmax_of(const score_row<Work, E>& row, const resolved_options& call,
                                                  index_t head) {
  using sum = sum_t<Work>;
  using std::exp, std::log;
  row_weights<sum> result;
  for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j)
    if (const std::optional<sum> score = row.biased(j)) {
      result.seen.push_back(j);
      result.weights.push_back(*score);
    }
  std::vector<sum>& scores = result.weights;
  if (!call.sinks.empty() && !is_minus_infinity(call.sinks[static_cast<std::size_t>(head)]))
    scores.push_back(static_cast<sum>(call.sinks[static_cast<std::size_t>(head)]));
  if (scores.empty()) return result;
  sum largest = scores[0];
  for (const sum& score : scores)
    if (score > largest) largest = score;
  sum total(0);
  for (sum& score : scores) {
    score = exp(sum(score - largest));
    total += score;
  }
  for (sum& weight : scores) weight /= total;
  scores.resize(result.seen.size());  // the sink has no value
  result.log_sum_exp = largest + sum(log(total));
  return result;
}

/// Calls use(head, row, i) for every valid query of every head.
template <class Work, class Q, class K, class E, class Use>
void for_each_row(const heads_view<const Q>& q, const K& k, const E& encoding, const resolved_options& call,
                  Use&& use) {
  check_axes<E, Work>(call.query_positions, call.key_positions);
  if constexpr (has_bias_heads<E>) {
    const index_t made_for = encoding.bias_heads();
    require(made_for == 0 || made_for == call.heads, "attention: a bias made for ", made_for,
            " heads, the option "
            "heads says ",
            call.heads);
  }
  for (index_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
    const auto keys = rotated_keys<Work>(k, encoding, call, kv_head);
    for (index_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head)
      for (index_t i = call.valid_queries.begin; i < call.valid_queries.end; ++i)
        use(head, score_row<Work, E>(q, keys, encoding, call, head, i), i);
  }
}

/// Attention of one resolved call.
template <class S, class Q, class K, class V, class E>
[[nodiscard]] attention_result<S> attend(const heads_view<const Q>& q, const K& k, const V& v,
                                         const E& encoding, const resolved_options& call) {
  using work = work_of_t<Q, source_scalar_t<K>, source_scalar_t<V>>;
  using sum = sum_t<work>;
  attention_result<S> result;
  result.output.setZero(call.query_tokens, call.heads * call.value_dim);
  result.log_sum_exp.setConstant(call.query_tokens, call.heads, minus_infinity<working_t<S>>());
  std::vector<sum> output(static_cast<std::size_t>(call.value_dim));
  std::vector<std::vector<work>> values;
  index_t values_of = -1;
  const rotation* const value_rotation = rotation_of_values(encoding);
  if (value_rotation) value_rotation->check_values(call.value_dim);
  for_each_row<work>(q, k, encoding, call, [&](index_t head, const score_row<work, E>& row, index_t i) {
    if (const index_t kv_head = head / call.group; kv_head != values_of)
      values = values_of_head<work>(v, encoding, call, values_of = kv_head);
    const row_weights<sum> softmax = softmax_of(row, call, head);
    for (sum& channel : output) channel = sum(0);
    for (std::size_t n = 0; n < softmax.seen.size(); ++n) {
      const std::vector<work>& value = values[static_cast<std::size_t>(softmax.seen[n])];
      const sum& weight = softmax.weights[n];
      for (std::size_t c = 0; c < output.size(); ++c) output[c] += sum(weight * static_cast<sum>(value[c]));
      if constexpr (has_relative_value<E>) {
        const auto shift = encoding.relative_value(
            static_cast<int>(head), call.key_positions[softmax.seen[n]] - call.query_positions[i]);
        require(shift.size() == output.size(), "relative_value: a row of ", shift.size(),
                " channels for values of ", output.size());
        for (std::size_t c = 0; c < output.size(); ++c) output[c] += sum(weight * static_cast<sum>(shift[c]));
      }
    }
    if (value_rotation) value_rotation->apply_to_value(std::span<sum>(output), call.query_positions, i, true);
    for (index_t c = 0; c < call.value_dim; ++c)
      result.output(i, head * call.value_dim + c) =
          static_cast<S>(static_cast<working_t<S>>(output[static_cast<std::size_t>(c)]));
    result.log_sum_exp(i, head) = static_cast<working_t<S>>(softmax.log_sum_exp);
  });
  return result;
}

/// Attention as the public functions give it: the types and the encoding checked, the options resolved.
template <class S, class Q, class K, class V, class E>
[[nodiscard]] attention_result<S> result_of(const heads_view<const Q>& q, const K& k, const V& v,
                                            const E& encoding, const attention_options& options) {
  return with_settled(encoding, options.context_length, [&](const auto& one) {
    using concrete = std::remove_cvref_t<decltype(one)>;
    using work = work_of_t<Q, source_scalar_t<K>, source_scalar_t<V>>;
    static_assert(check_encoding<concrete, work>());
    check_embedded<concrete, work>(options.is_embedded);
    return attend<S>(q, k, v, one, resolve(options, q, k, v));
  });
}

/// Puts a result where the caller wants it.
template <class O>
void write(const attention_result<O>& result, const heads_view<O>& out,
           const head_scalars_view<working_t<O>>& log_sum_exp) {
  for (index_t i = 0; i < out.tokens; ++i)
    for (index_t head = 0; head < out.heads; ++head) {
      for (index_t c = 0; c < out.head_dim; ++c)
        out(i, head)[static_cast<std::size_t>(c)] = result.output(i, head * out.head_dim + c);
      if (log_sum_exp.data) log_sum_exp(i, head) = result.log_sum_exp(i, head);
    }
}

}  // namespace detail

/// Attention over strided views or other sources of keys and values (cache/source.hpp) with its log-sum-exp; see the
/// top of the file for the formula. They may be of any types; the result has that of q.
/// \throws std::invalid_argument, std::out_of_range
template <class Q, kv_source K, kv_source V, class E>
[[nodiscard]] attention_result<std::remove_const_t<Q>> attention_with_log_sum_exp(
    heads_view<Q> q, const K& k, const V& v, const E& encoding, const attention_options& options) {
  using scalar = std::remove_const_t<Q>;
  return detail::result_of<scalar>(heads_view<const scalar>(q), k, v, encoding, options);
}

/// The same into the caller's memory; nothing is written when it throws.
/// \param out tokens × heads × value_dim, apart from q, k and v
/// \param log_sum_exp ln Z per token and head, or an empty view
template <class Q, kv_source K, kv_source V, class E, class O>
void attention_into(heads_view<Q> q, const K& k, const V& v, const E& encoding,
                    const attention_options& options, heads_view<O> out,
                    std::type_identity_t<head_scalars_view<detail::working_t<O>>> log_sum_exp = {}) {
  detail::check_output(detail::shape_of(q, k, v), q, k, v, out, log_sum_exp);
  const attention_result<O> result =
      detail::result_of<O>(heads_view<const std::remove_const_t<Q>>(q), k, v, encoding, options);
  detail::write(result, out, log_sum_exp);
}

/// Several sequences of different lengths and positions in one call, all with the same encoding. Nothing is written
/// when it throws.
/// \throws std::invalid_argument, std::out_of_range; also where a sequence writes what another reads or writes
template <class Q, class K, class V, class O, class E>
void attention_batch(std::span<const attention_sequence<Q, K, V, O>> sequences, const E& encoding) {
  for (const auto& s : sequences)
    detail::check_output(detail::shape_of(s.q, s.k, s.v), s.q, s.k, s.v, s.out, s.log_sum_exp);
  detail::check_apart(sequences);
  std::vector<attention_result<O>> results;
  for (const auto& s : sequences) results.push_back(detail::result_of<O>(s.q, s.k, s.v, encoding, s.options));
  for (std::size_t n = 0; n < sequences.size(); ++n)
    detail::write(results[n], sequences[n].out, sequences[n].log_sum_exp);
}

/// The same for a vector.
template <class Q, class K, class V, class O, class E>
void attention_batch(const std::vector<attention_sequence<Q, K, V, O>>& sequences, const E& encoding) {
  reference::attention_batch(std::span<const attention_sequence<Q, K, V, O>>(sequences), encoding);
}

/// Attention over matrices of tokens × (heads·head_dim), with its log-sum-exp. Column-major matrices and
/// expressions are copied into row-major order first.
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention_with_log_sum_exp(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                              const Eigen::MatrixBase<V>& v, const E& encoding,
                                              const attention_options& options) {
  const posenc::detail::attention_matrices m(q, k, v, options);
  return attention_with_log_sum_exp(m.q(), m.k(), m.v(), encoding, options);
}

/// Attention over matrices or views: the output, tokens × (heads·value_dim), row-major.
///
///     Eigen::MatrixXf out = posenc::reference::attention(q, k, v, rope, options);
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, const E& encoding,
                             const attention_options& options = {}) {
  return attention_with_log_sum_exp(q, k, v, encoding, options).output;
}

/// The scores or weights themselves, which attention never keeps: to plot them, or to hand them on. Rows and keys
/// that are padding get 0 as weights, else −∞. Memory of heads × queries × keys is the caller's.
/// \param stage how far the scores have come
/// \throws std::invalid_argument, std::out_of_range; nothing is written then
template <class Q, kv_source K, class E, class T>
void scores_into(heads_view<Q> q, const K& k, const E& encoding, const attention_options& options,
                 score_stage stage, scores_view<T> out) {
  using scalar = detail::source_scalar_t<K>;
  using work = detail::work_of_t<Q, scalar, scalar>;
  using sum = detail::sum_t<work>;
  attention_options without_values = options;
  without_values.value_dim.reset();
  const detail::resolved_options call = detail::resolve(without_values, q, k, k);
  detail::require(out.heads == call.heads && out.queries == call.query_tokens && out.keys == call.key_tokens,
                  "scores_into: ", out.heads, " x ", out.queries, " x ", out.keys, " given, needed is ",
                  call.heads, " x ", call.query_tokens, " x ", call.key_tokens);
  detail::require(out.data != nullptr || out.heads * out.queries * out.keys == 0,
                  "scores_into: no memory behind ", out.heads, " x ", out.queries, " x ", out.keys);
  std::vector<T> values(static_cast<std::size_t>(call.heads * call.query_tokens * call.key_tokens),
                        stage == score_stage::weights ? T(0) : static_cast<T>(detail::minus_infinity<sum>()));
  detail::with_settled(encoding, options.context_length, [&](const auto& one) {
    using concrete = std::remove_cvref_t<decltype(one)>;
    static_assert(detail::check_encoding<concrete, work>());
    detail::check_embedded<concrete, work>(options.is_embedded);
    detail::for_each_row<work>(
        heads_view<const std::remove_const_t<Q>>(q), k, one, call,
        [&](index_t head, const detail::score_row<work, concrete>& row, index_t i) {
          T* const to = values.data() + (head * call.query_tokens + i) * call.key_tokens;
          if (stage == score_stage::weights) {
            const auto softmax = detail::softmax_of(row, call, head);
            for (std::size_t n = 0; n < softmax.seen.size(); ++n)
              to[softmax.seen[n]] = static_cast<T>(softmax.weights[n]);
            return;
          }
          for (index_t j = call.valid_keys.begin; j < call.valid_keys.end; ++j) {
            if (stage == score_stage::biased) {
              if (const auto score = row.biased(j)) to[j] = static_cast<T>(*score);
            } else {
              to[j] = static_cast<T>(stage == score_stage::capped ? row.capped(j) : row.scaled(j));
            }
          }
        });
  });
  const T* from = values.data();
  for (index_t head = 0; head < call.heads; ++head)
    for (index_t i = 0; i < call.query_tokens; ++i)
      for (index_t j = 0; j < call.key_tokens; ++j) out(head, i, j) = *from++;
}

}  // namespace reference
}  // namespace posenc::inline v0_2
