// SPDX-License-Identifier: MIT
/// \file
/// The gradient of attention at the speed of the machine: the functions of attention/backward.hpp again, same
/// arguments, same answer.
///
///     const auto forward = posenc::fused::attention_with_log_sum_exp(q, k, v, encoding, options);
///     const auto grad = posenc::fused::attention_backward(q, k, v, forward, d_out, encoding, options);
///
/// Scores are computed again from the log-sum-exp, a tile at a time, so memory grows with the tokens and not with their
/// square: per worker a copy of the gradients of one KV head, or per task where several tasks meet in a KV head. What
/// encodings learn is summed in double. The bits do not depend on the executor.
///
/// | | |
/// |---|---|
/// | storage, shapes, masks, encodings | as fused.hpp says; gradients are stored as their tensors are |
/// | bias by distance | summed along diagonals, one number per head and distance; a line by its two sides |
/// | content terms, biases of both positions | the encoding's adjoint, element by element |
/// | xPos | growth on one frame for the whole call: positions that lie within ±2^15 of its middle |
/// | infinities and NaNs | reach every gradient that a tile shares with them |
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/attention/backward.hpp>
#include <posenc/fused/backward_problem.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/run.hpp>

namespace posenc::inline v0_2 {

namespace detail::fused_backward {
using namespace fused_plans;

/// An encoding with its parameters counted, for adjoints that are called from kernels.
template <class E>
struct adjoint_context {
  const E& encoding;
  parameter_counts<E> counts;
  [[nodiscard]] std::span<double> all(double* gradient) const { return {gradient, counts.count}; }
  [[nodiscard]] static const adjoint_context& of(const void* context) {
    return *static_cast<const adjoint_context*>(context);
  }
};

/// True where an encoding, or a part of it, takes the gradient of its rotation itself.
template <class E>
inline constexpr bool takes_rotation = has_rotate_adjoint<E, double>;
template <class A, class B>
inline constexpr bool takes_rotation<combined<A, B>> = takes_rotation<A> || takes_rotation<B>;

/// True where rows of both positions have somewhere to go.
template <class E>
inline constexpr bool learns_relative_key = has_relative_key_adjoint<E, double>;
template <class A, class B>
inline constexpr bool learns_relative_key<combined<A, B>> = learns_relative_key<A> || learns_relative_key<B>;
template <class E>
inline constexpr bool learns_relative_value = has_relative_value_adjoint<E, double>;
template <class A, class B>
inline constexpr bool learns_relative_value<combined<A, B>> =
    learns_relative_value<A> || learns_relative_value<B>;

template <class E>
[[nodiscard]] adjoint_callbacks adjoints_of(const adjoint_context<E>& context) {
  using self = adjoint_context<E>;
  using adjoints = adjoint<double, E>;
  adjoint_callbacks result;
  result.of = &context;
  if constexpr (biases<E>)
    result.bias = [](const void* of, index_t head, position query, position key, double d, double* gradient) {
      const self& c = self::of(of);
      adjoints::bias(c.encoding, c.counts, static_cast<int>(head), query, key, d, c.all(gradient));
    };
  if constexpr (learns_relative_key<E>)
    result.relative_key = [](const void* of, index_t head, position offset, const double* d, index_t channels,
                             double* gradient) {
      const self& c = self::of(of);
      adjoints::relative_key(c.encoding, c.counts, static_cast<int>(head), offset,
                             {d, static_cast<std::size_t>(channels)}, c.all(gradient));
    };
  if constexpr (learns_relative_value<E>)
    result.relative_value = [](const void* of, index_t head, position offset, const double* d,
                               index_t channels, double* gradient) {
      const self& c = self::of(of);
      adjoints::relative_value(c.encoding, c.counts, static_cast<int>(head), offset,
                               {d, static_cast<std::size_t>(channels)}, c.all(gradient));
    };
  if constexpr (scales<E>)
    result.scale = [](const void* of, index_t head, position query, double d, double* gradient) {
      const self& c = self::of(of);
      adjoints::scale(c.encoding, c.counts, static_cast<int>(head), query, d, c.all(gradient));
    };
  if constexpr (rotates<E, float> && (!lowers_to_rotation<E> || takes_rotation<E>))
    result.rotate = [](const void* of, const float* head, float* d_head, index_t channels, position at,
                       const axis_positions* place, rotation_side side, double* gradient) {
      const self& c = self::of(of);
      const auto count = static_cast<std::size_t>(channels);
      using scalar = std::conditional_t<rotates<E, double>, double, float>;
      std::vector<scalar> before(head, head + count), back(d_head, d_head + count),
          sums(c.counts.count, scalar(0));
      rotate_back<scalar>(c.encoding, c.counts, before, back, rotated_row(at, place, side), sums);
      for (std::size_t n = 0; n < count; ++n) d_head[n] = static_cast<float>(back[n]);
      for (std::size_t n = 0; n < sums.size(); ++n) gradient[n] += static_cast<double>(sums[n]);
    };
  return result;
}

/// What the tasks of one sequence collected, added up in their order.
template <class E>
void add_collected(const backward_problem& problem, const task_plan& tasks, const adjoint_context<E>& context,
                   parameter_gradients<double>& to) {
  const auto parameters = to.encoding.values();
  const distance_bias& bias = problem.bias;
  const auto of_head = static_cast<std::size_t>(problem.collected_of_head());
  std::vector<double> heads(static_cast<std::size_t>(problem.heads) * of_head, 0.0);
  for (index_t task = 0; task < tasks.tasks + tasks.merges; ++task) {
    const double* const from = problem.collected_by(task);
    for (std::size_t n = 0; n < parameters.size(); ++n) parameters[n] += from[n];
    if (task >= tasks.tasks) continue;
    const index_t chunk = task / tasks.split;  // tasks of a chunk of heads side by side
    const index_t in_group = chunk % tasks.head_chunks * tasks.heads_per_task;
    const index_t first = chunk / tasks.head_chunks * problem.group + in_group,
                  count = (std::min)(tasks.heads_per_task, problem.group - in_group);
    for (std::size_t n = 0; n < static_cast<std::size_t>(count) * of_head; ++n)
      heads[static_cast<std::size_t>(first) * of_head + n] += from[parameters.size() + n];
  }
  for (index_t head = 0; head < problem.heads; ++head) {
    const double* const sums = heads.data() + static_cast<std::size_t>(head) * of_head;
    to.head_scales[static_cast<std::size_t>(head)] += sums[0];
    if (problem.sinks) to.sinks[static_cast<std::size_t>(head)] += sums[1];
    if constexpr (biases<E>) {
      const auto add = [&](position distance, double d) {
        adjoint<double, E>::bias(context.encoding, context.counts, static_cast<int>(head), distance, 0, d,
                                 parameters);
      };
      if (bias.kind == distance_bias::form::linear) {
        add(1, sums[2]), add(-1, -sums[3]);
      } else if (bias.kind == distance_bias::form::diagonal) {
        for (index_t n = 0; n < bias.stride; ++n)
          if (sums[2 + n] != 0) add(bias.first + n, sums[2 + n]);
      }
    }
  }
}

/// The backward of a batch with a concrete encoding.
template <class Q, class K, class V, class O, class E>
[[nodiscard]] parameter_gradients<float> run_batch(const kernel_table& forward_kernels,
                                                   std::span<const backward_sequence<Q, K, V, O>> sequences,
                                                   const E& encoding, const fused::execution& how) {
  static_assert(check_storage<Q, K, V, O>());
  static_assert(
      is_computed<K> && is_computed<V>,
      "posenc: gradients are stored as float, Eigen::bfloat16 or Eigen::half, as their keys and values are");
  const kernel_table kernels = forward_kernels.backward();
  for (const auto& s : sequences) {
    check_backward(s);
    const auto apart = [&how](const auto& view, const char* what) { check_scratch(how.memory, view, what); };
    apart(s.q, "q"), apart(s.k, "k"), apart(s.v, "v"), apart(s.out, "the output");
    apart(as_rows(s.log_sum_exp), "log_sum_exp"), apart(s.d_out, "d_out");
    apart(s.d_q, "d_q"), apart(s.d_k, "d_k"), apart(s.d_v, "d_v");
    require(s.options.heads == sequences[0].options.heads, "attention_backward: a batch of ",
            sequences[0].options.heads, " and of ", s.options.heads, " heads");
  }
  check_gradients_apart(sequences);
  using sequence = backward_sequence<Q, K, V, O>;
  const fused_calls::encodings_of_batch<E> encodings(encoding, sequences);
  using settled = std::remove_cvref_t<decltype(encodings[0])>;
  static_assert(check_encoding<settled, float>());
  fused::workspace own;
  builder making(how.memory ? *how.memory : own, kernels, sequences.size(), how.arithmetic, how.unit);
  parameter_gradients<double> sums;
  std::vector<adjoint_context<settled>> contexts;
  contexts.reserve(sequences.size());
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const sequence& s = sequences[n];
    check_embedded<settled, float>(s.options.is_embedded);
    require(rotation_of_values(encodings[n]) == nullptr,
            "attention_backward: no gradient through values that rotate (rotates_values)");
    const resolved_options call = resolve(s.options, s.q, s.k, s.v);
    making.add(call, fused_calls::types_of<Q, K, V, O>(), encodings[n]);
    contexts.push_back({encodings[n], parameter_counts<settled>(encodings[n])});
    if (!call.sinks.empty()) sums.sinks.resize(static_cast<std::size_t>(call.heads), 0.0);
    sums.head_scales.resize(static_cast<std::size_t>(call.heads), 0.0);
  }
  making.finish(static_cast<index_t>(how.executor.workers()));
  if (!sequences.empty())
    sums.encoding = parameter_list<double>::zeros_like(parameters_of_concrete(encodings[0]));

  std::vector<backward_problem> problems(sequences.size());
  std::vector<std::vector<double>> collected(sequences.size());
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const sequence& s = sequences[n];
    making.prepare(n, encodings[n]);
    const item& one = making.items()[n];
    backward_problem& problem = problems[n];
    static_cast<attention_problem&>(problem) = one.bound(making.memory());
    problem.q = tensor_of(s.q), problem.k = cache_of(s.k), problem.v = cache_of(s.v);
    problem.result = tensor_of(s.out), problem.upstream = tensor_of(s.d_out);
    problem.d_q = output_of(s.d_q), problem.d_k = output_of(s.d_k), problem.d_v = output_of(s.d_v);
    problem.log_sum_exp = const_cast<float*>(s.log_sum_exp.data);  // it is only read
    problem.lse_token_stride = s.log_sum_exp.token_stride;
    problem.lse_head_stride = s.log_sum_exp.head_stride;
    problem.adjoint = adjoints_of(contexts[n]);
    problem.parameters = static_cast<index_t>(contexts[n].counts.count);
    problem.collected_stride = problem.parameters + one.tasks.heads_per_task * problem.collected_of_head();
    collected[n].assign(
        static_cast<std::size_t>((one.tasks.tasks + one.tasks.merges) * problem.collected_stride), 0.0);
    problem.collected = collected[n].data();
  }
  fused_plans::run(kernels, making.where(), std::span<const item>(making.items(), sequences.size()),
                   making.memory(), how.executor,
                   [&](std::size_t n) -> const attention_problem& { return problems[n]; });
  for (std::size_t n = 0; n < sequences.size(); ++n)
    add_collected(problems[n], making.items()[n].tasks, contexts[n], sums);

  parameter_gradients<float> result;
  result.encoding = parameter_list<float>::zeros_like(sums.encoding);
  for (std::size_t n = 0; n < sums.encoding.size(); ++n)
    result.encoding.values()[n] = static_cast<float>(sums.encoding.values()[n]);
  for (const double x : sums.sinks) result.sinks.push_back(static_cast<float>(x));
  for (const double x : sums.head_scales) result.head_scales.push_back(static_cast<float>(x));
  return result;
}

}  // namespace detail::fused_backward

namespace fused {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// The backward of several sequences with the same encoding into the caller's memory, each tensor of a type of its own.
/// The parameters' gradients are the sums over the sequences. Nothing is written when it throws, unless it is one of the
/// encoding's own functions that kernels call.
/// \throws std::invalid_argument where a log_sum_exp is missing, shapes do not fit, or a gradient shares memory with an
/// input or another gradient; std::out_of_range
template <class Q, class K, class V, class O, class E>
parameter_gradients<float> attention_backward_batch(std::span<const backward_sequence<Q, K, V, O>> sequences,
                                                    const E& encoding, const execution& how = {}) {
  return posenc::detail::with_concrete(encoding, [&](const auto& one) {
    return posenc::detail::fused_backward::run_batch(posenc::detail::fused_kernels::this_isa::kernels(),
                                                     sequences, one, how);
  });
}

/// The backward of one sequence into the caller's memory. \throws as attention_backward_batch does
template <class Q, class K, class V, class O, class E>
parameter_gradients<float> attention_backward_into(const backward_sequence<Q, K, V, O>& sequence,
                                                   const E& encoding, const execution& how = {}) {
  return fused::attention_backward_batch(std::span<const backward_sequence<Q, K, V, O>>(&sequence, 1),
                                         encoding, how);
}

/// Gradients of attention over matrices of tokens × (heads·head_dim).
/// \param forward what attention_with_log_sum_exp gave for the same arguments
/// \param d_out the gradient of its output, of the same shape
/// \throws std::invalid_argument, std::out_of_range
template <class Q, class K, class V, class O, class D, class E>
[[nodiscard]] auto attention_backward(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                      const Eigen::MatrixBase<V>& v, const attention_result<O>& forward,
                                      const Eigen::MatrixBase<D>& d_out, const E& encoding,
                                      const attention_options& options = {}, const execution& how = {}) {
  return posenc::detail::backward_over_matrices(q, k, v, forward, d_out, options, [&](const auto& sequence) {
    return fused::attention_backward_into(sequence, encoding, how);
  });
}

}  // inline namespace
}  // namespace fused

/// fused::attention_backward as a function object, to hand to self_attention_backward and to the property checks.
struct fused_attention_backward {
  fused::execution how{};  ///< on which threads, in which memory

  /// Fused::attention_backward of the same arguments.
  template <class Q, class K, class V, class F, class D, class E>
  [[nodiscard]] auto operator()(const Q& q, const K& k, const V& v, const F& forward, const D& d_out,
                                const E& encoding, const attention_options& options) const {
    return fused::attention_backward(q, k, v, forward, d_out, encoding, options, how);
  }
};

}  // namespace posenc::inline v0_2
