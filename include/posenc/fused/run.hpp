// SPDX-License-Identifier: MIT
/// \file
/// Attention at the speed of the machine: the functions of attention/reference.hpp again, same arguments,
/// same answer.
///
///     Eigen::MatrixXf out = posenc::fused::attention(q, k, v, rope, options);
///
/// Queries and keys are turned in registers inside the attention loop: no rotated copy of either is ever
/// written, only a tile at a time, an unrotated cache costs little, and scores exist one tile at a time.
///
/// | | |
/// |---|---|
/// | storage | float, Eigen::bfloat16, Eigen::half, the same for q, k, v and output; arithmetic and log-sum-exp in float |
/// | shapes | head_dim and value_dim 1 … 512, any number of tokens, any strides; nothing between rows is touched |
/// | encodings | every one: what each door comes down to is told in lowering.hpp |
/// | error | relative (norm) ≤ 1e-6 of the exact result for float storage, at any position |
/// | threads | an executor (executor.hpp); the bits of the result do not depend on it |
/// | memory | per worker, bounded by tile sizes; none is allocated when a workspace is handed in (workspace.hpp) |
///
/// Needs the headers of Google Highway. How the instruction set is chosen: target.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>

#include <Eigen/Core>

#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/fused/lower/encodings.hpp>
#include <posenc/fused/target.hpp>
#include <posenc/fused/workspace.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace fused {

/// What a fused problem can be told beyond attention_options.
struct call_options {
  bool keys_are_rotated =
      false;                    ///< k holds keys that the encoding has turned already; only the queries turn
  workspace* memory = nullptr;  ///< scratch of the caller's; the problem makes its own when null
};

/// One sequence of a ragged batch: its own lengths, positions, cache and output.
template <class S>
struct sequence {
  heads_view<const S> q, k, v;
  heads_view<S> out;
  head_scalars_view<float> log_sum_exp{};  ///< empty where it is not wanted
  attention_options options{};
};

}  // namespace fused

namespace detail::fused_calls {
using namespace fused_problem;
using fused::call_options;
using fused::sequence;

template <class S>
concept storable = std::same_as<S, float> || std::same_as<S, Eigen::bfloat16> || std::same_as<S, Eigen::half>;

template <storable S>
inline constexpr storage storage_of = std::same_as<S, float>             ? storage::float32
                                      : std::same_as<S, Eigen::bfloat16> ? storage::bfloat16
                                                                         : storage::float16;

template <class S, class E>
consteval bool check_types() {
  static_assert(storable<S>,
                "posenc: fused attention takes float, Eigen::bfloat16 or Eigen::half, the same for q, k, v "
                "and the output. "
                "Convert, or use posenc::reference::attention, which takes any scalar.");
  return check_encoding<E, float>();
}

/// One sequence on its way through a problem. Lives in the workspace, so it has nothing to destroy.
struct item {
  attention_problem problem;
  task_plan plan;
  fused_lowering::bias_plan bias;
  std::size_t bias_at = 0, shared_at = 0;  ///< bytes from the start of the workspace
  index_t first_task = 0, first_merge = 0;
};
static_assert(std::is_trivially_destructible_v<item>);

[[nodiscard]] inline std::size_t to_line(std::size_t bytes) {
  constexpr std::size_t line = fused::workspace::line;
  return (bytes + line - 1) / line * line;
}

[[nodiscard]] inline row_positions rows_of(const positions& at) {
  return at.is_run() ? row_positions{at[0], nullptr} : row_positions{0, at.explicit_positions().data()};
}

/// Checks one sequence and says what it comes down to; writes nothing.
/// \throws std::invalid_argument, std::out_of_range
template <class S, class E>
[[nodiscard]] item lower(const sequence<S>& s, const E& encoding, bool keys_are_rotated,
                         const kernel_table& kernels) {
  const resolved_options given = resolve(s.options, s.q, s.k, s.v);
  check_output(given, s.q, s.k, s.v, s.out, s.log_sum_exp);
  require(given.head_dim <= 512 && given.value_dim <= 512, "fused attention: head_dim ", given.head_dim,
          " and value_dim ", given.value_dim, " must not exceed 512");
  constexpr storage type = storage_of<S>;
  item result;
  attention_problem& problem = result.problem;
  problem.q = {s.q.data, type, s.q.token_stride, s.q.head_stride};
  problem.k = {s.k.data, type, s.k.token_stride, s.k.head_stride};
  problem.v = {s.v.data, type, s.v.token_stride, s.v.head_stride};
  problem.out = {s.out.data, type, s.out.token_stride, s.out.head_stride};
  problem.log_sum_exp = s.log_sum_exp.data;
  problem.lse_token_stride = s.log_sum_exp.token_stride;
  problem.lse_head_stride = s.log_sum_exp.head_stride;
  problem.query_tokens = given.query_tokens;
  problem.key_tokens = given.key_tokens;
  problem.heads = given.heads;
  problem.kv_heads = given.kv_heads;
  problem.group = given.group;
  problem.head_dim = given.head_dim;
  problem.value_dim = given.value_dim;
  problem.scale = given.scale;
  // Far above every score a cap changes nothing, and its parts would leave the range of float.
  problem.softcap = given.softcap > 1e30 ? 0 : given.softcap;
  problem.sinks = given.sinks.empty() ? nullptr : given.sinks.data();
  problem.valid_queries = given.valid_queries;
  problem.valid_keys = given.valid_keys;
  problem.queries = rows_of(given.query_positions);
  problem.keys = rows_of(given.key_positions);
  problem.farthest_behind = (std::min)(given.lookback.value_or(attention_problem::no_limit), position{attention_problem::no_limit});
  problem.farthest_ahead =
      given.causal ? 0 : (std::min)(given.lookahead.value_or(attention_problem::no_limit), position{attention_problem::no_limit});
  fused_lowering::drop_idle_limits(problem);
  problem.keys_are_rotated = keys_are_rotated;
  fused_lowering::lower_doors(encoding, problem);
  result.bias = fused_lowering::plan_bias(encoding, problem);
  fused_lowering::announce_bias<E>(result.bias, problem);
  result.plan = kernels.plan(problem);
  return result;
}

/// Where everything of a problem lies in its workspace.
struct layout {
  std::size_t items = 0, bytes = 0, worker_bytes = 0, workers_at = 0;
  index_t tasks = 0, merges = 0;

  void add(item& one) {
    one.bias_at = bytes;
    bytes += to_line(one.bias.bytes);
    one.shared_at = bytes;
    bytes += to_line(static_cast<std::size_t>(one.plan.shared_floats) * sizeof(float));
    worker_bytes =
        (std::max)(worker_bytes, to_line(static_cast<std::size_t>(one.plan.worker_floats) * sizeof(float)));
    one.first_task = tasks;
    one.first_merge = merges;
    tasks += one.plan.tasks;
    merges += one.plan.merges;
  }
  void add_workers(index_t workers) {
    workers_at = bytes;
    bytes += worker_bytes * static_cast<std::size_t>(workers);
  }
};

template <class S, class E, class Isa>
[[nodiscard]] layout measure(std::span<const sequence<S>> sequences, const E& encoding, bool keys_are_rotated,
                             index_t workers) {
  const kernel_table kernels = Isa::kernels();
  layout result;
  result.bytes = to_line(sequences.size() * sizeof(item));
  for (const sequence<S>& s : sequences) {
    item one = lower(s, encoding, keys_are_rotated, kernels);
    fused_lowering::check_calls(encoding, one.problem);
    result.add(one);
  }
  result.add_workers(workers);
  return result;
}

/// Runs tasks on an executor. What the encoding's own functions throw inside a task would end the program where
/// the task runs on another thread, so it is kept, the tasks that have not begun are left out, and it is thrown
/// again here when all have returned.
template <class X, class Task>
void run_tasks(const X& executor, index_t tasks, const Task& task_of) {
#if defined(__cpp_exceptions)
  std::atomic<bool> failed = false;
  std::exception_ptr thrown;
  executor.run(tasks, [&](index_t task, index_t worker) noexcept {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      task_of(task, worker);
    } catch (...) {
      if (!failed.exchange(true)) thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
#else
  executor.run(tasks, task_of);
#endif
}

/// A batch: checked first, all of it, then run.
template <class S, class E, class X, class Isa>
void run(std::span<const sequence<S>> sequences, const E& encoding, const call_options& options,
         const X& executor) {
  static_assert(check_types<S, E>());
  const kernel_table kernels = Isa::kernels();
  const auto workers = static_cast<index_t>(executor.workers());
  require(workers >= 1, "fused attention: an executor of ", workers, " workers");
  const layout whole = measure<S, E, Isa>(sequences, encoding, options.keys_are_rotated, workers);
  if (whole.tasks == 0) return;

  fused::workspace own;
  std::byte* const memory = (options.memory ? *options.memory : own).reserve(whole.bytes);
  item* const items = reinterpret_cast<item*>(memory);
  layout placed;
  placed.bytes = to_line(sequences.size() * sizeof(item));
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    item* const one =
        std::construct_at(items + n, lower(sequences[n], encoding, options.keys_are_rotated, kernels));
    placed.add(*one);
    fused_lowering::lower_bias(encoding, one->bias, memory + one->bias_at, one->problem);
    kernels.prepare(one->problem, one->plan, reinterpret_cast<float*>(memory + one->shared_at));
  }
  const std::span<const item> all(items, sequences.size());
  const auto shared_of = [memory](const item& one) {
    return reinterpret_cast<float*>(memory + one.shared_at);
  };
  const auto scratch_of = [memory, &whole](index_t worker) {
    return reinterpret_cast<float*>(memory + whole.workers_at +
                                    whole.worker_bytes * static_cast<std::size_t>(worker));
  };
  run_tasks(executor, whole.tasks, [&](index_t task, index_t worker) {
    const item& one = *(std::upper_bound(all.begin(), all.end(), task,
                                         [](index_t t, const item& i) { return t < i.first_task; }) -
                        1);
    kernels.run(one.problem, one.plan, shared_of(one), scratch_of(worker), task - one.first_task);
  });
  if (whole.merges == 0) return;
  run_tasks(executor, whole.merges, [&](index_t task, index_t worker) {
    const item& one = *(std::upper_bound(all.begin(), all.end(), task,
                                         [](index_t t, const item& i) { return t < i.first_merge; }) -
                        1);
    kernels.merge(one.problem, one.plan, shared_of(one), scratch_of(worker), task - one.first_merge);
  });
}

template <class S, class E, class X, class Isa>
[[nodiscard]] attention_result<S> result_of(heads_view<const S> q, heads_view<const S> k,
                                            heads_view<const S> v, const E& encoding,
                                            const attention_options& options, const call_options& problem,
                                            const X& executor) {
  static_assert(check_types<S, E>());
  const resolved_options given = resolve(options, q, k, v);
  attention_result<S> result;
  result.output.resize(given.query_tokens, given.heads * given.value_dim);
  result.log_sum_exp.resize(given.query_tokens, given.heads);
  const sequence<S> one{q,
                        k,
                        v,
                        token_major(result.output.data(), given.query_tokens, given.heads, given.value_dim),
                        {result.log_sum_exp.data(), given.query_tokens, given.heads, given.heads, 1},
                        options};
  run<S, E, X, Isa>(std::span<const sequence<S>>(&one, 1), encoding, problem, executor);
  return result;
}

}  // namespace detail::fused_calls

namespace fused {

/// The instruction set that fused callbacks of this program take, by Highway's name: "AVX2", "AVX3", "NEON", …
template <class Isa = posenc::detail::fused_kernels::this_isa>
[[nodiscard]] const char* target_name() noexcept {
  return Isa::kernels().name;
}

/// Attention over strided views into the caller's memory. Nothing is written when it throws, unless it is one
/// of the encoding's own functions that kernels problem (lowering.hpp) that throws: then the output is partly
/// written. \param out tokens × heads × value_dim, apart from q, k and v \param log_sum_exp ln Z per token and
/// head, or an empty view \throws std::invalid_argument, std::out_of_range
template <class S, class E, executor X = serial_executor, class Isa = posenc::detail::fused_kernels::this_isa>
void attention_into(std::type_identity_t<heads_view<const S>> q, std::type_identity_t<heads_view<const S>> k,
                    std::type_identity_t<heads_view<const S>> v, const E& encoding,
                    const attention_options& options, heads_view<S> out,
                    head_scalars_view<float> log_sum_exp = {}, const call_options& problem = {},
                    const X& executor = {}) {
  const sequence<S> one{q, k, v, out, log_sum_exp, options};
  posenc::detail::fused_calls::run<S, E, X, Isa>(std::span<const sequence<S>>(&one, 1), encoding, problem,
                                                 executor);
}

/// Several sequences of different lengths and positions in one problem, all with the same encoding. Every
/// sequence is checked before any output is written. \throws std::invalid_argument, std::out_of_range
template <class S, class E, executor X = serial_executor, class Isa = posenc::detail::fused_kernels::this_isa>
void attention_batch(std::span<const sequence<S>> sequences, const E& encoding, const call_options& problem = {},
                     const X& executor = {}) {
  posenc::detail::fused_calls::run<S, E, X, Isa>(sequences, encoding, problem, executor);
}

/// Bytes that a workspace over the caller's own memory needs for this batch and an executor of so many
/// workers. \throws std::invalid_argument, std::out_of_range as the problem would
template <class S, class E, class Isa = posenc::detail::fused_kernels::this_isa>
[[nodiscard]] std::size_t workspace_bytes(std::span<const sequence<S>> sequences, const E& encoding,
                                          const call_options& problem = {}, index_t workers = 1) {
  static_assert(posenc::detail::fused_calls::check_types<S, E>());
  return workspace::line +
         posenc::detail::fused_calls::measure<S, E, Isa>(sequences, encoding, problem.keys_are_rotated, workers)
             .bytes;
}

/// Attention over strided views, with its log-sum-exp.
template <class S, class E, executor X = serial_executor, class Isa = posenc::detail::fused_kernels::this_isa>
[[nodiscard]] attention_result<S> attention_with_log_sum_exp(
    heads_view<const S> q, std::type_identity_t<heads_view<const S>> k,
    std::type_identity_t<heads_view<const S>> v, const E& encoding, const attention_options& options,
    const call_options& problem = {}, const X& executor = {}) {
  return posenc::detail::fused_calls::result_of<S, E, X, Isa>(q, k, v, encoding, options, problem, executor);
}

/// The same over views through which one could write.
template <class Q, class K, class V, class E, executor X = serial_executor,
          class Isa = posenc::detail::fused_kernels::this_isa>
requires(!std::is_const_v<Q> || !std::is_const_v<K> || !std::is_const_v<V>)
    [[nodiscard]] attention_result<std::remove_const_t<Q>> attention_with_log_sum_exp(
        heads_view<Q> q, heads_view<K> k, heads_view<V> v, const E& encoding,
        const attention_options& options, const call_options& problem = {}, const X& executor = {}) {
  using S = std::remove_const_t<Q>;
  return posenc::detail::fused_calls::result_of<S, E, X, Isa>(heads_view<const S>(q), heads_view<const S>(k),
                                                              heads_view<const S>(v), encoding, options, problem,
                                                              executor);
}

/// Attention over matrices of tokens × (heads·head_dim), with its log-sum-exp. Column-major matrices and
/// expressions are copied into row-major order first.
template <class Q, class K, class V, class E, executor X = serial_executor,
          class Isa = posenc::detail::fused_kernels::this_isa>
[[nodiscard]] auto attention_with_log_sum_exp(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                              const Eigen::MatrixBase<V>& v, const E& encoding,
                                              const attention_options& options, const call_options& problem = {},
                                              const X& executor = {}) {
  using S = typename Q::Scalar;
  const readable_matrix<S> q_rows(q), k_rows(k), v_rows(v);
  const index_t kv_heads = options.kv_heads.value_or(options.heads);
  return posenc::detail::fused_calls::result_of<S, E, X, Isa>(q_rows.heads(options.heads),
                                                              k_rows.heads(kv_heads), v_rows.heads(kv_heads),
                                                              encoding, options, problem, executor);
}

/// Attention over matrices or views: the output, tokens × (heads·value_dim), row-major.
template <class Q, class K, class V, class E, executor X = serial_executor,
          class Isa = posenc::detail::fused_kernels::this_isa>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, const E& encoding,
                             const attention_options& options = {}, const call_options& problem = {},
                             const X& executor = {}) {
  return fused::attention_with_log_sum_exp(q, k, v, encoding, options, problem, executor).output;
}

}  // namespace fused
}  // namespace posenc::inline v0_2
