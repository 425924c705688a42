// SPDX-License-Identifier: MIT
/// \file
/// The gradient of attention as the papers write it, in plain loops: what fused::attention_backward is tested against.
///
///     const auto forward = posenc::reference::attention_with_log_sum_exp(q, k, v, encoding, options);
///     const auto grad = posenc::reference::attention_backward(q, k, v, forward, d_out, encoding, options);
///     // grad.q, grad.k, grad.v, grad.encoding["table"], grad.sinks, grad.head_scales
///
/// With the names of attention/reference.hpp, dX the gradient of a loss by X, over the keys j that i sees:
///
///     p_ij = e^{s_ij − log_sum_exp_i},   D_i = Σ_c dout_ic·out_ic
///     dv_j += p_ij·dout_i,               da_{j−i} += p_ij·dout_i
///     ds_ij = p_ij·( dout_i·(v_j + a_{j−i}) − D_i ),   db_h(i, j) += ds_ij,   dsink_h −= e^{sink − log_sum_exp_i}·D_i
///     dx_ij = ds_ij·(1 − tanh²(x_ij/c)),  x_ij = τ_hi·σ_h·y_ij the score before the softcap
///     dσ_h += dx_ij·τ_hi·y_ij,            dτ_hi += dx_ij·σ_h·y_ij
///     dq̂_i += dx_ij·τσ·k̂_j,  dk̂_j += dx_ij·τσ·q̂_i,  dq_i += dx_ij·τσ·r_{j−i},  dr_{j−i} += dx_ij·τσ·q_i
///     dq_i += R(i)ᵀ dq̂_i,    dk_j = R(j)ᵀ dk̂_j          (what multiplies a rotation stays: not the inverse)
///
/// Dao 2023, "FlashAttention-2", arXiv:2307.08691. What an encoding's parameters are: parameters.hpp.
///
/// Output and log-sum-exp may be those of a call over more keys than these (merged parts): the gradients are then those
/// of this part, and dq of all parts add up.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/attention/self_attention.hpp>
#include <posenc/parameters.hpp>

namespace posenc::inline v0_2 {

/// Gradients of what a call has beside its tensors. T is their scalar.
template <class T>
struct parameter_gradients {
  parameter_list<T> encoding{};  ///< by the encoding's parameters, named as they are
  std::vector<T> sinks{};        ///< by each head's sink; empty where the call has none
  std::vector<T> head_scales{};  ///< by each head's σ; of one `scale` for all it is their sum
};

/// Gradients of an attention call.
template <class Q, class K = Q, class V = K>
struct attention_gradients : parameter_gradients<detail::working_t<Q>> {
  row_major_matrix<Q> q;  ///< tokens × (heads·head_dim)
  row_major_matrix<K> k;  ///< tokens × (kv_heads·head_dim)
  row_major_matrix<V> v;  ///< tokens × (kv_heads·value_dim)
};

/// One sequence of a backward call: the forward's inputs and results, the gradient of its output, and where the
/// gradients go.
template <class Q, class K = Q, class V = K, class O = Q>
struct backward_sequence {
  heads_view<const Q> q;                                      ///< queries of the forward
  heads_view<const K> k;                                      ///< keys of the forward
  heads_view<const V> v;                                      ///< values of the forward
  heads_view<const O> out;                                    ///< what the forward gave
  head_scalars_view<const detail::working_t<O>> log_sum_exp;  ///< what the forward gave beside `out`
  heads_view<const O> d_out;                                  ///< gradient of the output
  heads_view<Q> d_q;                                          ///< where the gradient of q goes
  heads_view<K> d_k;                                          ///< where the gradient of k goes
  heads_view<V> d_v;                                          ///< where the gradient of v goes
  attention_options options{};                                ///< those of the forward
};

namespace detail {

/// Checks a backward call before anything is computed. \throws std::invalid_argument
template <class Q, class K, class V, class O>
void check_backward(const backward_sequence<Q, K, V, O>& s) {
  const attention_shape shape = shape_of(s.q, s.k, s.v);
  require(
      s.log_sum_exp.data != nullptr || s.q.tokens == 0,
      "attention_backward: the log_sum_exp of the forward is missing (attention_with_log_sum_exp gives it)");
  require(s.log_sum_exp.tokens == shape.query_tokens && s.log_sum_exp.heads == shape.heads,
          "attention_backward: log_sum_exp is ", s.log_sum_exp.tokens, " x ", s.log_sum_exp.heads,
          ", needed is ", shape.query_tokens, " x ", shape.heads);
  const auto check = [](const auto& view, index_t tokens, index_t heads, index_t width, const char* what) {
    check_view(view, what);
    require(view.tokens == tokens && view.heads == heads && view.head_dim == width,
            "attention_backward: ", what, " is ", view.tokens, " x ", view.heads, " x ", view.head_dim,
            ", needed is ", tokens, " x ", heads, " x ", width);
  };
  check(s.out, shape.query_tokens, shape.heads, shape.value_dim, "the output");
  check(s.d_out, shape.query_tokens, shape.heads, shape.value_dim, "d_out");
  check(s.d_q, shape.query_tokens, shape.heads, shape.head_dim, "d_q");
  check(s.d_k, shape.key_tokens, shape.kv_heads, shape.head_dim, "d_k");
  check(s.d_v, shape.key_tokens, shape.kv_heads, shape.value_dim, "d_v");
}

/// Refuses gradients that share memory with what some sequence reads, or with one another.
template <class Sequence>
void check_gradients_apart(std::span<const Sequence> sequences) {
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& a = sequences[n];
    const auto check = [&](const auto& gradient, const char* name, int order) {
      check_disjoint_rows(gradient, name);
      for (std::size_t m = 0; m < sequences.size(); ++m) {
        const Sequence& b = sequences[m];
        require(!overlap(gradient, b.q) && !overlap(gradient, b.k) && !overlap(gradient, b.v) &&
                    !overlap(gradient, b.out) && !overlap(gradient, b.d_out) &&
                    !overlap(gradient, as_rows(b.log_sum_exp)),
                "attention_backward: ", name, " overlaps an input in memory");
        const auto apart = [&](const auto& other, int its_order) {
          require((n == m && order >= its_order) || m < n || !overlap(gradient, other),
                  "attention_backward: ", name, " overlaps another gradient in memory");
        };
        apart(b.d_q, 0), apart(b.d_k, 1), apart(b.d_v, 2);
      }
    };
    check(a.d_q, "d_q", 0), check(a.d_k, "d_k", 1), check(a.d_v, "d_v", 2);
  }
}

/// The views of a call over matrices. \throws std::invalid_argument when the forward's matrices have other shapes
template <class Q, class K, class V, class O>
[[nodiscard]] backward_sequence<Q, K, V, O> sequence_of(const attention_matrices<Q, K, V>& m,
                                                        const attention_result<O>& forward,
                                                        const heads_view<const O>& d_out,
                                                        const attention_options& options,
                                                        attention_gradients<Q, K, V>& to) {
  const index_t heads = options.heads, kv_heads = options.kv_heads.value_or(heads);
  require(
      forward.log_sum_exp.size() > 0 || m.q().tokens == 0,
      "attention_backward: the log_sum_exp of the forward is missing (attention_with_log_sum_exp gives it)");
  require(forward.output.cols() % heads == 0, "attention_backward: the output has ", forward.output.cols(),
          " columns, which is no multiple of heads = ", heads);
  const auto lse_heads = forward.log_sum_exp.cols();
  to.q.resize(m.q().tokens, heads * m.q().head_dim);
  to.k.resize(m.k().tokens, kv_heads * m.k().head_dim);
  to.v.resize(m.v().tokens, kv_heads * m.v().head_dim);
  return {m.q(),
          m.k(),
          m.v(),
          as_heads(forward.output, heads),
          {forward.log_sum_exp.data(), forward.log_sum_exp.rows(), lse_heads, lse_heads, 1},
          d_out,
          as_heads(to.q, heads),
          as_heads(to.k, kv_heads),
          as_heads(to.v, kv_heads),
          options};
}

/// A backward over matrices by way of `backward(sequence)`.
template <class Q, class K, class V, class O, class D, class Backward>
[[nodiscard]] auto backward_over_matrices(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                          const Eigen::MatrixBase<V>& v, const attention_result<O>& forward,
                                          const Eigen::MatrixBase<D>& d_out, const attention_options& options,
                                          const Backward& backward) {
  static_assert(std::is_same_v<typename D::Scalar, O>, "posenc: d_out must have the scalar of the output");
  const attention_matrices m(q, k, v, options);
  const readable_matrix<O> upstream(d_out);
  attention_gradients<typename Q::Scalar, typename K::Scalar, typename V::Scalar> result;
  const auto sequence = sequence_of(m, forward, upstream.heads(options.heads), options, result);
  static_cast<parameter_gradients<working_t<typename Q::Scalar>>&>(result) = backward(sequence);
  return result;
}

}  // namespace detail

namespace reference {
namespace detail {

/// The gradients of one sequence as sums, tensors [token][head][channel].
template <class Sum>
struct gradient_sums {
  std::vector<Sum> q, k, v;
};

/// The backward of one resolved call.
template <class Q, class K, class V, class O, class E>
class backward_of {
 public:
  using work = work_of_t<Q, K, V>;
  using sum = sum_t<work>;

  backward_of(const backward_sequence<Q, K, V, O>& s, const E& encoding, const resolved_options& call,
              parameter_gradients<sum>& shared)
      : s_(s), encoding_(encoding), call_(call), counts_(encoding), shared_(shared) {
    result_.q.assign(cells(s.q), sum(0)), result_.k.assign(cells(s.k), sum(0));
    result_.v.assign(cells(s.v), sum(0));
  }

  [[nodiscard]] gradient_sums<sum> run() {
    for_each_row<work>(
        s_.q, s_.k, encoding_, call_,
        [&](index_t head, const score_row<work, E>& row, index_t i) { add_row(head, row, i); });
    if (!call_.keys_are_rotated)
      for (index_t head = 0; head < call_.kv_heads; ++head)
        for (index_t j = call_.valid_keys.begin; j < call_.valid_keys.end; ++j)
          rotate_row_back(s_.k(j, head), result_.k.data() + at(s_.k, j, head),
                          {call_.key_positions, j, rotation_side::key});
    return std::move(result_);
  }

 private:
  using adjoints = adjoint<sum, E>;

  template <class View>
  [[nodiscard]] static std::size_t cells(const View& view) {
    return static_cast<std::size_t>(view.tokens * view.heads * view.head_dim);
  }
  template <class View>
  [[nodiscard]] static index_t at(const View& view, index_t token, index_t head) {
    return (token * view.heads + head) * view.head_dim;
  }
  [[nodiscard]] std::span<sum> parameters() { return shared_.encoding.values(); }

  /// In the scalar of the sums where the encoding rotates it.
  template <class S>
  void rotate_row_back(std::span<const S> head, sum* d_head, const rotated_row& where) {
    if constexpr (rotates<E, work>) {
      using scalar = std::conditional_t<rotates<E, sum>, sum, work>;
      std::vector<scalar> before(head.size()), back(head.size());
      for (std::size_t c = 0; c < head.size(); ++c) {
        before[c] = static_cast<scalar>(static_cast<work>(head[c]));
        back[c] = static_cast<scalar>(d_head[c]);
      }
      if constexpr (std::is_same_v<scalar, sum>) {
        rotate_back<sum>(encoding_, counts_, before, back, where, parameters());
      } else {
        std::vector<scalar> gradient(parameters().size(), scalar(0));
        rotate_back<scalar>(encoding_, counts_, before, back, where, gradient);
        for (std::size_t n = 0; n < gradient.size(); ++n) parameters()[n] += static_cast<sum>(gradient[n]);
      }
      for (std::size_t c = 0; c < head.size(); ++c) d_head[c] = static_cast<sum>(back[c]);
    }
  }

  void add_row(index_t head, const score_row<work, E>& row, index_t i) {
    using std::exp, std::tanh;
    const auto h = static_cast<std::size_t>(head);
    const int number = static_cast<int>(head);
    const index_t kv_head = head / call_.group;
    const position here = call_.query_positions[i];
    const sum log_sum_exp = static_cast<sum>(s_.log_sum_exp(i, head));
    if (is_minus_infinity(log_sum_exp)) return;  // a row that saw nothing
    const auto widened = [](const auto& from) {
      std::vector<sum> to(from.size());
      for (std::size_t c = 0; c < from.size(); ++c) to[c] = static_cast<sum>(static_cast<work>(from[c]));
      return to;
    };
    const std::vector<sum> d_out = widened(s_.d_out(i, head));
    const sum d = dot<sum>(d_out, widened(s_.out(i, head)));
    std::vector<sum> d_rotated(row.query().size(), sum(0)), d_query = d_rotated, d_row;
    sum d_tau(0);
    sum tau(1);
    if constexpr (scales<E>) tau = static_cast<sum>(scale_of(encoding_, number, here));
    for (index_t j = call_.valid_keys.begin; j < call_.valid_keys.end; ++j) {
      const std::optional<sum> score = row.biased(j);
      if (!score) continue;
      const position offset = call_.key_positions[j] - here;
      const sum weight = exp(sum(*score - log_sum_exp));
      std::vector<sum> value = widened(s_.v(j, kv_head));
      if constexpr (has_relative_value<E>) {
        const auto shift = encoding_.relative_value(number, offset);
        for (std::size_t c = 0; c < value.size(); ++c) value[c] += static_cast<sum>(shift[c]);
        d_row.assign(d_out.begin(), d_out.end());
        for (sum& x : d_row) x *= weight;
        adjoints::relative_value(encoding_, counts_, number, offset, d_row, parameters());
      }
      sum* const d_value = result_.v.data() + at(s_.v, j, kv_head);
      for (std::size_t c = 0; c < d_out.size(); ++c) d_value[c] += sum(weight * d_out[c]);

      sum d_score = weight * sum(dot<sum>(d_out, value) - d);
      adjoints::bias(encoding_, counts_, number, here, call_.key_positions[j], d_score, parameters());
      const sum product = row.product(j);
      if (call_.softcap > 0) {
        const sum t = tanh(sum(product * row.factor() / static_cast<sum>(call_.softcap)));
        d_score *= sum(sum(1) - t * t);
      }
      const auto sigma = static_cast<sum>(call_.scale_of(head));
      shared_.head_scales[h] += d_score * product * tau;
      d_tau += d_score * product * sigma;
      d_score *= row.factor();
      const std::vector<work>& key = row.key(j);
      sum* const d_key = result_.k.data() + at(s_.k, j, kv_head);
      for (std::size_t c = 0; c < key.size(); ++c) {
        d_rotated[c] += sum(d_score * static_cast<sum>(key[c]));
        d_key[c] += sum(d_score * static_cast<sum>(row.rotated()[c]));
      }
      if constexpr (has_relative_key<E>) {
        const auto relative = encoding_.relative_key(number, offset);
        d_row = widened(row.query());
        for (std::size_t c = 0; c < d_row.size(); ++c) {
          d_query[c] += sum(d_score * static_cast<sum>(relative[c]));
          d_row[c] *= d_score;
        }
        adjoints::relative_key(encoding_, counts_, number, offset, d_row, parameters());
      }
    }
    if constexpr (scales<E>) adjoints::scale(encoding_, counts_, number, here, d_tau, parameters());
    if (!call_.sinks.empty() && !is_minus_infinity(call_.sinks[h]))
      shared_.sinks[h] -= sum(exp(sum(static_cast<sum>(call_.sinks[h]) - log_sum_exp)) * d);
    rotate_row_back(s_.q(i, head), d_rotated.data(), {call_.query_positions, i, rotation_side::query});
    sum* const to = result_.q.data() + at(s_.q, i, head);
    for (std::size_t c = 0; c < d_query.size(); ++c) to[c] = d_rotated[c] + d_query[c];
  }

  const backward_sequence<Q, K, V, O>& s_;
  const E& encoding_;
  const resolved_options& call_;
  parameter_counts<E> counts_;
  parameter_gradients<sum>& shared_;
  gradient_sums<sum> result_;
};

template <class S, class Sum>
void write_sums(const std::vector<Sum>& sums, const heads_view<S>& to) {
  const Sum* from = sums.data();
  for (index_t token = 0; token < to.tokens; ++token)
    for (index_t head = 0; head < to.heads; ++head)
      for (S& channel : to(token, head)) channel = static_cast<S>(static_cast<working_t<S>>(*from++));
}

template <class T, class Sum>
[[nodiscard]] std::vector<T> narrowed(const std::vector<Sum>& sums) {
  std::vector<T> result;
  for (const Sum& x : sums) result.push_back(static_cast<T>(x));
  return result;
}

}  // namespace detail

/// The backward of several sequences with the same encoding into the caller's memory; see the top of the file. The
/// parameters' gradients are the sums over the sequences. Nothing is written when it throws.
/// \throws std::invalid_argument where a log_sum_exp is missing, shapes do not fit, or a gradient shares memory with an
/// input or another gradient; std::out_of_range
template <class Q, class K, class V, class O, class E>
parameter_gradients<detail::working_t<Q>> attention_backward_batch(
    std::span<const backward_sequence<Q, K, V, O>> sequences, const E& encoding) {
  using work = detail::work_of_t<Q, K, V>;
  using sum = detail::sum_t<work>;
  using result_scalar = detail::working_t<Q>;
  for (const auto& s : sequences) {
    detail::check_backward(s);
    detail::require(s.options.heads == sequences[0].options.heads, "attention_backward: a batch of ",
                    sequences[0].options.heads, " and of ", s.options.heads, " heads");
  }
  detail::check_gradients_apart(sequences);
  parameter_gradients<sum> shared;
  std::vector<detail::gradient_sums<sum>> sums;
  for (const auto& s : sequences)
    detail::with_settled(encoding, s.options.context_length, [&](const auto& one) {
      using concrete = std::remove_cvref_t<decltype(one)>;
      static_assert(detail::check_encoding<concrete, work>());
      detail::check_embedded<concrete, work>(s.options.is_embedded);
      detail::require(detail::rotation_of_values(one) == nullptr,
                      "attention_backward: no gradient through values that rotate (rotates_values)");
      const detail::resolved_options call = detail::resolve(s.options, s.q, s.k, s.v);
      if (sums.empty())
        shared.encoding = parameter_list<sum>::zeros_like(detail::parameters_of_concrete(one));
      const auto heads = static_cast<std::size_t>(call.heads);
      if (!call.sinks.empty()) shared.sinks.resize(heads, sum(0));
      shared.head_scales.resize(heads, sum(0));
      sums.push_back(detail::backward_of<Q, K, V, O, concrete>(s, one, call, shared).run());
    });
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    detail::write_sums(sums[n].q, sequences[n].d_q);
    detail::write_sums(sums[n].k, sequences[n].d_k);
    detail::write_sums(sums[n].v, sequences[n].d_v);
  }
  parameter_gradients<result_scalar> result;
  result.encoding = parameter_list<result_scalar>::zeros_like(shared.encoding);
  for (std::size_t n = 0; n < shared.encoding.size(); ++n)
    result.encoding.values()[n] = static_cast<result_scalar>(shared.encoding.values()[n]);
  result.sinks = detail::narrowed<result_scalar>(shared.sinks);
  result.head_scales = detail::narrowed<result_scalar>(shared.head_scales);
  return result;
}

/// The backward of one sequence into the caller's memory. Nothing is written when it throws.
/// \throws std::invalid_argument, std::out_of_range as attention_backward_batch does
template <class Q, class K, class V, class O, class E>
parameter_gradients<detail::working_t<Q>> attention_backward_into(
    const backward_sequence<Q, K, V, O>& sequence, const E& encoding) {
  return attention_backward_batch(std::span<const backward_sequence<Q, K, V, O>>(&sequence, 1), encoding);
}

/// Gradients of attention over matrices of tokens × (heads·head_dim).
/// \param forward what attention_with_log_sum_exp gave for the same arguments
/// \param d_out the gradient of its output, of the same shape
/// \throws std::invalid_argument, std::out_of_range
template <class Q, class K, class V, class O, class D, class E>
[[nodiscard]] auto attention_backward(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                      const Eigen::MatrixBase<V>& v, const attention_result<O>& forward,
                                      const Eigen::MatrixBase<D>& d_out, const E& encoding,
                                      const attention_options& options = {}) {
  return posenc::detail::backward_over_matrices(q, k, v, forward, d_out, options, [&](const auto& sequence) {
    return reference::attention_backward_into(sequence, encoding);
  });
}

}  // namespace reference

/// reference::attention_backward as a function object: the backward that is used where none is passed.
struct reference_attention_backward {
  /// Reference::attention_backward of the same arguments.
  template <class Q, class K, class V, class F, class D, class E>
  [[nodiscard]] auto operator()(const Q& q, const K& k, const V& v, const F& forward, const D& d_out,
                                const E& encoding, const attention_options& options) const {
    return reference::attention_backward(q, k, v, forward, d_out, encoding, options);
  }
};

/// The gradient of embed_rows: adds to `gradient` (one number per parameter) what rows of gradient d_x say about the
/// encoding. Rows themselves pass through: d of x is d_x.
/// \throws std::invalid_argument when there is another number of parameters
template <class S, class E>
void embed_rows_backward(const row_major_matrix<S>& d_x, const E& encoding, const positions& where,
                         parameter_list<detail::working_t<S>>& gradient) {
  const positions rows = where.resolve(d_x.rows(), "token");
  detail::with_concrete(encoding, [&](const auto& one) {
    using concrete = std::remove_cvref_t<decltype(one)>;
    using sum = detail::sum_t<S>;
    const detail::parameter_counts<concrete> counts(one);
    detail::require(gradient.size() == counts.count, "embed_rows_backward: a gradient of ", gradient.size(),
                    " numbers for ", counts.count, " parameters");
    if constexpr (embeds<concrete, S>) {
      std::vector<sum> sums(counts.count, sum(0)), row(static_cast<std::size_t>(d_x.cols()));
      for (index_t i = 0; i < d_x.rows(); ++i) {
        for (std::size_t c = 0; c < row.size(); ++c)
          row[c] = static_cast<sum>(static_cast<detail::working_t<S>>(d_x(i, static_cast<index_t>(c))));
        detail::adjoint<sum, concrete>::embed(one, counts, row, rows[i], sums);
      }
      for (std::size_t n = 0; n < sums.size(); ++n)
        gradient.values()[n] += static_cast<detail::working_t<S>>(sums[n]);
    }
  });
}

/// Gradients of a self_attention layer.
template <class S>
struct self_attention_gradients : parameter_gradients<detail::working_t<S>> {
  row_major_matrix<S> x;                        ///< of the tokens
  row_major_matrix<S> query;                    ///< of W_q
  row_major_matrix<S> key;                      ///< of W_k
  row_major_matrix<S> value;                    ///< of W_v
  std::optional<row_major_matrix<S>> output{};  ///< of the output projection, where there is one
};

/// The gradient of self_attention by its tokens, its weights, and the parameters of the encoding, those that embed
/// included. The forward is computed again.
/// \param d_hidden the gradient of what the layer gave
/// \param attention,backward what computes attention and its gradient
/// \throws std::invalid_argument, std::out_of_range
template <class S, class E, class Attention = reference_attention,
          class Backward = reference_attention_backward>
[[nodiscard]] self_attention_gradients<S> self_attention_backward(
    const self_attention<S>& layer, const row_major_matrix<S>& x, const row_major_matrix<S>& d_hidden,
    const E& encoding, attention_options options = {}, const Attention& attention = {},
    const Backward& backward = {}) {
  const attention_result<S> forward = layer.attend(x, encoding, options, attention);  // checks everything
  const index_t width = layer.output ? layer.output->cols() : forward.output.cols();
  detail::require(d_hidden.rows() == x.rows() && d_hidden.cols() == width,
                  "self_attention_backward: d_hidden is ", d_hidden.rows(), " x ", d_hidden.cols(),
                  ", needed is ", x.rows(), " x ", width);
  options.is_embedded = true;
  if (!options.key_positions.given()) options.key_positions = positions::from(0);
  options.query_positions = options.key_positions;
  row_major_matrix<S> embedded = x;
  embed_rows(embedded, encoding, options.key_positions);
  const row_major_matrix<S> q = embedded * layer.query, k = embedded * layer.key, v = embedded * layer.value;
  self_attention_gradients<S> result;
  row_major_matrix<S> d_out = d_hidden;
  if (layer.output) {
    result.output = row_major_matrix<S>(forward.output.transpose() * d_hidden);
    d_out = d_hidden * layer.output->transpose();
  }
  auto inner = backward(q, k, v, forward, d_out, encoding, options);
  result.query = embedded.transpose() * inner.q;
  result.key = embedded.transpose() * inner.k;
  result.value = embedded.transpose() * inner.v;
  result.x =
      inner.q * layer.query.transpose() + inner.k * layer.key.transpose() + inner.v * layer.value.transpose();
  static_cast<parameter_gradients<detail::working_t<S>>&>(result) = std::move(inner);
  embed_rows_backward(result.x, encoding, options.key_positions, result.encoding);
  return result;
}

}  // namespace posenc::inline v0_2
