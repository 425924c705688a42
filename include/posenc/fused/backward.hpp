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
/// A training loop plans once (backward_plan):
///
///     posenc::fused::plan forward(rope, options, {.queries = n, .keys = n}, executor);
///     posenc::fused::backward_plan plan(rope, options, {.queries = n, .keys = n}, executor);
///     forward.run(q, k, v, out, log_sum_exp);
///     const auto& learned = plan.run_backward(posenc::backward_sequence<float>{.q = q, …});
///
/// | | |
/// |---|---|
/// | storage, shapes, masks, encodings | as fused.hpp says; gradients are stored as their tensors are |
/// | bias by distance | summed along diagonals, one number per head and distance; a line by its two sides |
/// | content terms, biases of both positions | the encoding's adjoint, element by element |
/// | xPos | growth on one frame for the whole call: positions that lie within ±2^15 of its middle |
/// | infinities and NaNs | reach every gradient that a tile shares with them |
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
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
/// \param heads memory for what each head collected
template <class E>
void add_collected(const backward_problem& problem, const task_plan& tasks, const void* context,
                   std::span<double> heads, parameter_gradients<double>& to) {
  const auto parameters = to.encoding.values();
  const distance_bias& bias = problem.bias;
  const auto of_head = static_cast<std::size_t>(problem.collected_of_head());
  std::fill(heads.begin(), heads.end(), 0.0);
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
      const auto& of = adjoint_context<E>::of(context);
      const auto add = [&](position distance, double d) {
        adjoint<double, E>::bias(of.encoding, of.counts, static_cast<int>(head), distance, 0, d, parameters);
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

/// What the tasks of one sequence add up beside its tensors' gradients, and the adjoints that they call.
class collector {
 public:
  /// \param encoding settled; it stays the caller's
  template <class E>
  explicit collector(const E& encoding)
      : context_(new adjoint_context<E>{encoding, parameter_counts<E>(encoding)},
                 [](const void* of) { delete static_cast<const adjoint_context<E>*>(of); }),
        adjoints_(adjoints_of(adjoint_context<E>::of(context_.get()))),
        parameters_(static_cast<index_t>(adjoint_context<E>::of(context_.get()).counts.count)),
        add_(add_collected<E>) {}

  /// Takes memory for the tasks of a planned call.
  void reserve(const item& one) {
    backward_problem problem;
    static_cast<attention_problem&>(problem) = one.problem;
    const index_t of_head = problem.collected_of_head();
    stride_ = parameters_ + one.tasks.heads_per_task * of_head;
    by_task_.resize(static_cast<std::size_t>((one.tasks.tasks + one.tasks.merges) * stride_));
    by_head_.resize(static_cast<std::size_t>(problem.heads * of_head));
  }

  /// A run over these tensors, with nothing collected yet.
  template <class Q, class K, class V, class O>
  [[nodiscard]] backward_problem problem(const item& one, std::byte* memory,
                                         const backward_sequence<Q, K, V, O>& s) {
    backward_problem result;
    static_cast<attention_problem&>(result) = one.bound(memory);
    result.q = tensor_of(s.q), result.k = cache_of(s.k), result.v = cache_of(s.v);
    result.result = tensor_of(s.out), result.upstream = tensor_of(s.d_out);
    result.d_q = output_of(s.d_q), result.d_k = output_of(s.d_k), result.d_v = output_of(s.d_v);
    result.log_sum_exp = const_cast<float*>(s.log_sum_exp.data);  // it is only read
    result.lse_token_stride = s.log_sum_exp.token_stride;
    result.lse_head_stride = s.log_sum_exp.head_stride;
    result.adjoint = adjoints_;
    result.parameters = parameters_;
    result.collected_stride = stride_;
    std::fill(by_task_.begin(), by_task_.end(), 0.0);
    result.collected = by_task_.data();
    return result;
  }
  void add_to(parameter_gradients<double>& sums, const backward_problem& problem, const item& one) {
    add_(problem, one.tasks, context_.get(), by_head_, sums);
  }

 private:
  std::shared_ptr<const void> context_;
  adjoint_callbacks adjoints_;
  index_t parameters_, stride_ = 0;
  void (*add_)(const backward_problem&, const task_plan&, const void*, std::span<double>,
               parameter_gradients<double>&);
  std::vector<double> by_task_{}, by_head_{};
};

/// Room for the sums over the parameters of a call.
inline void reserve_sums(parameter_gradients<double>& sums, index_t heads, bool has_sinks) {
  if (has_sinks) sums.sinks.resize(static_cast<std::size_t>(heads), 0.0);
  sums.head_scales.resize(static_cast<std::size_t>(heads), 0.0);
}
/// The sums in float, in the memory that `to` has where it is of their shape.
inline void narrow(const parameter_gradients<double>& sums, parameter_gradients<float>& to) {
  if (to.encoding.blocks() != sums.encoding.blocks() || to.encoding.size() != sums.encoding.size())
    to.encoding = parameter_list<float>::zeros_like(sums.encoding);
  to.sinks.resize(sums.sinks.size()), to.head_scales.resize(sums.head_scales.size());
  const auto copy = [](std::span<const double> from, std::span<float> into) {
    std::transform(from.begin(), from.end(), into.begin(), [](double x) { return static_cast<float>(x); });
  };
  copy(sums.encoding.values(), to.encoding.values());
  copy(sums.sinks, to.sinks), copy(sums.head_scales, to.head_scales);
}

template <class Q, class K, class V, class O>
consteval bool check_backward_storage() {
  static_assert(check_storage<Q, K, V, O>());
  static_assert(
      is_computed<K> && is_computed<V>,
      "posenc: gradients are stored as float, Eigen::bfloat16 or Eigen::half, as their keys and values are");
  return true;
}
template <class E>
void check_values_stay(const E& encoding) {
  require(rotation_of_values(encoding) == nullptr,
          "attention_backward: no gradient through values that rotate (rotates_values)");
}
/// Refuses scratch that shares memory with a tensor of the call.
template <class Sequence>
void check_scratch_apart(const fused::workspace* memory, const Sequence& s) {
  const auto apart = [memory](const auto& view, const char* what) { check_scratch(memory, view, what); };
  apart(s.q, "q"), apart(s.k, "k"), apart(s.v, "v"), apart(s.out, "the output");
  apart(as_rows(s.log_sum_exp), "log_sum_exp"), apart(s.d_out, "d_out");
  apart(s.d_q, "d_q"), apart(s.d_k, "d_k"), apart(s.d_v, "d_v");
}

/// The backward of a batch with a concrete encoding.
template <class Q, class K, class V, class O, class E>
[[nodiscard]] parameter_gradients<float> run_batch(const kernel_table& forward_kernels,
                                                   std::span<const backward_sequence<Q, K, V, O>> sequences,
                                                   const E& encoding, const fused::execution& how) {
  static_assert(check_backward_storage<Q, K, V, O>());
  const kernel_table kernels = forward_kernels.backward();
  for (const auto& s : sequences) {
    check_backward(s);
    check_scratch_apart(how.memory, s);
    require(s.options.heads == sequences[0].options.heads, "attention_backward: a batch of ",
            sequences[0].options.heads, " and of ", s.options.heads, " heads");
  }
  check_gradients_apart(sequences);
  const fused_calls::encodings_of_batch<E> encodings(encoding, sequences);
  using settled = std::remove_cvref_t<decltype(encodings[0])>;
  static_assert(check_encoding<settled, float>());
  fused::workspace own;
  builder making(how.memory ? *how.memory : own, kernels, sequences.size(), how.arithmetic, how.unit);
  parameter_gradients<double> sums;
  std::vector<collector> collectors;
  collectors.reserve(sequences.size());
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const auto& s = sequences[n];
    check_embedded<settled, float>(s.options.is_embedded);
    check_values_stay(encodings[n]);
    const resolved_options call = resolve(s.options, s.q, s.k, s.v);
    making.add(call, fused_calls::types_of<Q, K, V, O>(), encodings[n]);
    collectors.emplace_back(encodings[n]);
    reserve_sums(sums, call.heads, !call.sinks.empty());
  }
  making.finish(static_cast<index_t>(how.executor.workers()));
  if (!sequences.empty())
    sums.encoding = parameter_list<double>::zeros_like(parameters_of_concrete(encodings[0]));

  std::vector<backward_problem> problems(sequences.size());
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    making.prepare(n, encodings[n]);
    const item& one = making.items()[n];
    collectors[n].reserve(one);
    problems[n] = collectors[n].problem(one, making.memory(), sequences[n]);
  }
  fused_plans::run(kernels, making.where(), std::span<const item>(making.items(), sequences.size()),
                   making.memory(), how.executor,
                   [&](std::size_t n) -> const attention_problem& { return problems[n]; });
  for (std::size_t n = 0; n < sequences.size(); ++n)
    collectors[n].add_to(sums, problems[n], making.items()[n]);
  parameter_gradients<float> result;
  narrow(sums, result);
  return result;
}

/// Everything a plan of the backward knows but its instruction set. It is the forward's plan with other kernels.
class backward_planned : private planned {
 public:
  using planned::bias, planned::bias_distances, planned::key_runs;
  using planned::bytes, planned::tasks, planned::merges, planned::target;

  /// The backward over tensors of the planned shape, as attention_backward_into computes it, bit for bit. Neither lowers
  /// nor allocates, unless it is an encoding's own function that kernels call; nothing is written when it throws,
  /// unless it is such a function that throws.
  /// \param s tensors of the planned storage. Its options are not read: those of the plan stand
  /// \return gradients of the parameters, the plan's until it runs again
  /// \throws std::invalid_argument when a tensor does not fit the plan or shares memory with a gradient, or the
  /// log_sum_exp is missing
  template <class Q, class K, class V, class O>
  const parameter_gradients<float>& run_backward(const backward_sequence<Q, K, V, O>& s) {
    static_assert(check_backward_storage<Q, K, V, O>());
    require(is_ready_, "fused::backward_plan: the last reshape was refused; reshape the plan before it runs");
    check_types(item_.problem, storage_of<Q>, storage_of<K>, storage_of<V>, storage_of<O>);
    check_shape(item_.problem, shape_of(s.q, s.k, s.v));
    check_backward(s);
    check_gradients_apart(std::span<const backward_sequence<Q, K, V, O>>(&s, 1));
    check_scratch_apart(borrowed_, s);
    const backward_problem problem = collected_->problem(item_, memory_, s);
    fused_plans::run(kernels_, where_, std::span<const item>(&item_, 1), memory_, executor_,
                     [&problem](std::size_t) -> const attention_problem& { return problem; });
    for (const std::span<double> all :
         {sums_.encoding.values(), std::span(sums_.sinks), std::span(sums_.head_scales)})
      std::fill(all.begin(), all.end(), 0.0);
    collected_->add_to(sums_, problem, item_);
    narrow(sums_, result_);
    return result_;
  }
  /// The same over matrices of tokens × (heads·head_dim). `to` allocates where it is not of their shape.
  /// \param forward what attention_with_log_sum_exp gave
  template <class Q, class K, class V, class O>
  void run_backward(const Eigen::PlainObjectBase<Q>& q, const Eigen::PlainObjectBase<K>& k,
                    const Eigen::PlainObjectBase<V>& v, const attention_result<typename O::Scalar>& forward,
                    const Eigen::PlainObjectBase<O>& d_out,
                    attention_gradients<typename Q::Scalar, typename K::Scalar, typename V::Scalar>& to) {
    attention_options heads;
    heads.heads = item_.problem.heads, heads.kv_heads = item_.problem.kv_heads;
    const attention_matrices m(q, k, v, heads);
    static_cast<parameter_gradients<float>&>(to) =
        run_backward(sequence_of(m, forward, as_heads(d_out.derived(), heads.heads), heads, to));
  }

  /// Plans the same call for other lengths, or other options, as planned::reshape does.
  /// \throws std::invalid_argument and what the encoding throws; the plan then runs only after another reshape
  void reshape(index_t queries, index_t keys) { reshape(options_, queries, keys); }
  void reshape(const attention_options& options, index_t queries, index_t keys) {
    planned::reshape(options, queries, keys);
    prepare_(*this);
  }

  /// Made through fused::backward_plan.
  template <class E>
  backward_planned(const kernel_table& forward_kernels, const std::shared_ptr<const E>& encoding,
                   const attention_options& options, const fused::shape& shape, const fused::execution& how)
      : planned(forward_kernels.backward(), encoding, options, shape, how),
        prepare_([](backward_planned& self) { self.prepare<E>(); }) {
    prepare_(*this);
  }

 private:
  template <class E>
  void prepare() {
    if constexpr (settles_by_length<E>)
      prepare_for(*static_cast<const decltype(std::declval<const E&>().at_length(1))*>(settled_.get()));
    else
      prepare_for(*static_cast<const E*>(encoding_.get()));
  }
  template <class E>
  void prepare_for(const E& encoding) {
    is_ready_ = false;
    check_values_stay(encoding);
    sums_ = {};
    sums_.encoding = parameter_list<double>::zeros_like(parameters_of_concrete(encoding));
    reserve_sums(sums_, item_.problem.heads, item_.problem.sinks != nullptr);
    narrow(sums_, result_);
    collected_.emplace(encoding).reserve(item_);
    is_ready_ = true;
  }

  std::optional<collector> collected_{};
  parameter_gradients<double> sums_{};
  parameter_gradients<float> result_{};
  void (*prepare_)(backward_planned&);
};

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

/// The backward of a fused attention call without its tensors: planned once, run often. It keeps a copy of the encoding
/// and of the options; positions, sinks and dense masks stay the caller's memory and have to outlive it, and an encoding
/// whose parameters have changed is planned anew. One run at a time.
class backward_plan : public posenc::detail::fused_backward::backward_planned {
 public:
  /// \throws std::invalid_argument, std::out_of_range when the parts do not fit one another
  template <class E>
  backward_plan(const E& encoding, const attention_options& options, const fused::shape& shape,
                const execution& how = {})
      : backward_planned(posenc::detail::with_concrete(encoding, [&](const auto& one) {
          using concrete = std::remove_cvref_t<decltype(one)>;
          return backward_planned(posenc::detail::fused_kernels::this_isa::kernels(),
                                  std::make_shared<const concrete>(one), options, shape, how);
        })) {}
  /// The same with an executor alone, which has to outlive the plan, as in fused::plan.
  template <class E, class X>
  requires(executor<std::remove_cvref_t<X>>&& std::constructible_from<executor_ref, X>)
      backward_plan(const E& encoding, const attention_options& options, const fused::shape& shape, X&& by)
      : backward_plan(encoding, options, shape, execution{.executor = std::forward<X>(by)}) {}
};

}  // inline namespace
}  // namespace fused

/// fused::attention_backward as a function object, to hand to self_attention_backward and to the property checks.
struct fused_attention_backward {
  fused::execution how{};  ///< on which threads, in which memory

  /// What fused::attention_backward gives of the same arguments.
  template <class Q, class K, class V, class F, class D, class E>
  [[nodiscard]] auto operator()(const Q& q, const K& k, const V& v, const F& forward, const D& d_out,
                                const E& encoding, const attention_options& options) const {
    return fused::attention_backward(q, k, v, forward, d_out, encoding, options, how);
  }
};

}  // namespace posenc::inline v0_2
