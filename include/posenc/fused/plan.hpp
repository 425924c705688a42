// SPDX-License-Identifier: MIT
/// \file
/// Plan once, run often: everything about a fused call that does not depend on where its tensors lie.
///
///     posenc::fused::plan step(rope, options, {.queries = 1, .keys = n}, executor);
///     for (auto& layer : layers) step.run(layer.q, layer.k, layer.v, layer.out);
///
/// Options → resolve → lower → task cut and scratch happen when the plan is made; run() checks pointers and strides,
/// and computes. It neither allocates nor lowers. One-shot calls (run.hpp) are a plan and one run.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <posenc/attention/options.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/fused/lower/encodings.hpp>
#include <posenc/fused/lower/visibility.hpp>
#include <posenc/fused/problem.hpp>
#include <posenc/fused/target.hpp>
#include <posenc/fused/units/machine.hpp>
#include <posenc/fused/workspace.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace fused {

/// Which of tokens and heads lie side by side in a cache.
enum class memory_order : unsigned char {
  token_major,  ///< [token][head][channel]
  head_major,   ///< [head][token][channel]
};

/// What a plan is made for. Widths that are not given are those of the options, else of the encoding's rotation.
struct shape {
  index_t queries = 0;                 ///< query rows
  index_t keys = 0;                    ///< key and value rows
  std::optional<index_t> head_dim{};   ///< channels of a head of q and k
  std::optional<index_t> value_dim{};  ///< head_dim if not given
  storage q = storage::float32;        ///< what q holds
  storage k = storage::float32;        ///< what k holds
  storage v = storage::float32;        ///< what v holds
  storage out = storage::float32;      ///< what the output holds
  /// How k and v lie in memory. It decides how tasks are cut and so the speed of decode; any strides can be run.
  memory_order order = memory_order::token_major;
};

/// The kernels that a plan can choose.
enum class kernel : unsigned char {
  none,     ///< no queries
  prefill,  ///< many queries: tiles of keys are copied, rotated and multiplied as matrices
  decode,   ///< few queries: keys are read where they lie
  stacked,  ///< few queries of many heads over one KV head: its heads side by side, as in prefill
};
/// The forms that a bias can take in a plan.
enum class bias_form : unsigned char {
  none,
  linear,      ///< two slopes per head
  diagonal,    ///< one number per head and distance
  by_element,  ///< the encoding's function, called for every score
};

}  // namespace fused

namespace detail::fused_plans {
using namespace fused_problem;

[[nodiscard]] inline std::size_t to_line(std::size_t bytes) {
  constexpr std::size_t line = fused::workspace::line;
  return (bytes + line - 1) / line * line;
}

/// One sequence of a batch, planned: no pointer into scratch, only where it lies there.
struct item {
  attention_problem problem;
  task_plan tasks;
  fused_lowering::bias_plan bias;
  index_t run_count = 0;
  bool has_bounds = false;
  std::size_t facts_at = 0, shared_at = 0, bias_at = 0;  ///< bytes from the start of the scratch
  index_t first_task = 0, first_merge = 0;

  [[nodiscard]] std::size_t run_bytes() const {
    return to_line(static_cast<std::size_t>(run_count) * sizeof(key_run));
  }
  [[nodiscard]] std::size_t facts_bytes() const {
    return run_bytes() +
           (has_bounds ? to_line(static_cast<std::size_t>(problem.query_tokens) * sizeof(row_bounds)) : 0);
  }
  [[nodiscard]] std::size_t shared_bytes() const {
    return to_line(static_cast<std::size_t>(tasks.shared_floats) * sizeof(float));
  }
  [[nodiscard]] key_run* runs(std::byte* memory) const {
    return run_count > 0 ? reinterpret_cast<key_run*>(memory + facts_at) : nullptr;
  }
  [[nodiscard]] row_bounds* bounds(std::byte* memory) const {
    return has_bounds ? reinterpret_cast<row_bounds*>(memory + facts_at + run_bytes()) : nullptr;
  }
  [[nodiscard]] float* shared(std::byte* memory) const {
    return reinterpret_cast<float*>(memory + shared_at);
  }

  /// The problem with its pointers into scratch.
  [[nodiscard]] attention_problem bound(std::byte* memory) const {
    attention_problem result = problem;
    result.runs = runs(memory);
    result.run_count = run_count;
    result.bounds = bounds(memory);
    if (problem.bias.kind == distance_bias::form::linear) {
      result.bias.behind = reinterpret_cast<const double*>(memory + bias_at);
      result.bias.ahead = result.bias.behind + problem.heads;
    } else if (problem.bias.kind == distance_bias::form::diagonal) {
      result.bias.values = reinterpret_cast<const float*>(memory + bias_at);
    }
    return result;
  }
};
static_assert(std::is_trivially_destructible_v<item> && std::is_trivially_copyable_v<item>);

/// Where everything of a batch lies in its scratch.
struct layout {
  std::size_t bytes = 0, worker_bytes = 0, workers_at = 0;
  index_t tasks = 0, merges = 0;
  double operations = 0;  ///< multiplications and additions of both products, roughly
};

/// Checks one sequence and says what it comes down to, without memory.
/// \throws std::invalid_argument, std::out_of_range
template <class E>
[[nodiscard]] item lower(const resolved_options& given, const fused::shape& types, const E& encoding) {
  require(given.head_dim <= 1024 && given.value_dim <= 1024, "fused attention: head_dim ", given.head_dim,
          " and value_dim ", given.value_dim, " must not exceed 1024");
  require(given.head_dim % channels_of(types.k) == 0 && given.value_dim % channels_of(types.v) == 0,
          "fused attention: head_dim ", given.head_dim, " and value_dim ", given.value_dim,
          " are not whole blocks of q8_0");
  require(types.k != storage::int8_by_token && types.v != storage::int8_by_channel,
          "fused attention: k is stored as ", name_of(types.k), " and v as ", name_of(types.v),
          "; keys have scales by channel, values by token");
  for (const storage type : {types.q, types.out})
    require(type <= storage::float16, "fused attention: q and out are float, bfloat16 or half, not ",
            name_of(type));
  item one;
  attention_problem& problem = one.problem;
  problem.q.type = types.q, problem.k.type = types.k, problem.v.type = types.v, problem.out.type = types.out;
  problem.token_major = types.order == fused::memory_order::token_major;
  problem.query_tokens = given.query_tokens;
  problem.key_tokens = given.key_tokens;
  problem.heads = given.heads;
  problem.kv_heads = given.kv_heads;
  problem.group = given.group;
  problem.head_dim = given.head_dim;
  problem.value_dim = given.value_dim;
  problem.scale = given.scale;
  problem.head_scales = given.head_scales.empty() ? nullptr : given.head_scales.data();
  // Far above every score a cap changes nothing, and its parts would leave the range of float.
  problem.softcap = given.softcap > 1e30 ? 0 : given.softcap;
  problem.sinks = given.sinks.empty() ? nullptr : given.sinks.data();
  problem.valid_queries = given.valid_queries;
  problem.valid_keys = given.valid_keys;
  problem.queries = fused_lowering::rows_of(given.query_positions);
  problem.keys = fused_lowering::rows_of(given.key_positions);
  problem.keys_are_rotated = given.keys_are_rotated;
  fused_lowering::lower_visibility(given.visible, problem);
  fused_lowering::drop_idle_limits(problem);
  check_axes<E, float>(given.query_positions, given.key_positions);
  fused_lowering::lower_doors(encoding, problem);
  one.bias = fused_lowering::plan_bias(encoding, problem, fused_lowering::opens_rows(given.visible));
  fused_lowering::announce_bias<E>(one.bias, problem);
  one.has_bounds = given.visible.limits_rows();
  one.run_count = fused_lowering::count_runs(problem);
  return one;
}

/// A batch on its way from options to scratch that is ready to run.
class builder {
 public:
  /// \throws std::invalid_argument where the machine lacks the matrix unit that is asked
  builder(fused::workspace& memory, const kernel_table& kernels, std::size_t sequences,
          fused::arithmetic arithmetic, fused::matrix_unit unit)
      : workspace_(memory),
        kernels_(kernels),
        items_bytes_(to_line(sequences * sizeof(item))),
        arithmetic_(arithmetic),
        unit_(unit) {
    require(kernels.has_unit(unit), "fused attention: no matrix_unit::", fused_units::name_of(unit),
            " on this processor, or none in the kernels of ", kernels.name);
    // Most calls of few queries fit into this, so that a call with scratch of its own allocates once.
    constexpr std::size_t usual = std::size_t{80} * 1024;
    memory_ = workspace_.is_borrowed() ? workspace_.reserve(0) : workspace_.reserve(usual);
    plan_.bytes = items_bytes_;
    grow(0);
  }

  template <class E>
  void add(const resolved_options& given, const fused::shape& types, const E& encoding) {
    item one = lower(given, types, encoding);
    one.problem.arithmetic = arithmetic_, one.problem.unit = unit_;
    one.facts_at = plan_.bytes;
    plan_.bytes += one.facts_bytes();
    grow(one.facts_at);
    if (key_run* const runs = one.runs(memory_)) fused_lowering::fill_runs(one.problem, one.run_count, runs);
    if (row_bounds* const bounds = one.bounds(memory_))
      fused_lowering::fill_bounds(given.visible, one.problem, bounds);
    const attention_problem bound = one.bound(memory_);
    fused_lowering::check_callbacks(bound);
    one.tasks = kernels_.plan(bound);
    if (one.tasks.tasks == 0) one.bias.bytes = 0;
    one.shared_at = plan_.bytes;
    one.bias_at = one.shared_at + one.shared_bytes();
    plan_.bytes = one.bias_at + to_line(one.bias.bytes);
    plan_.worker_bytes = (std::max)(
        plan_.worker_bytes, to_line(static_cast<std::size_t>(one.tasks.worker_floats) * sizeof(float)));
    one.first_task = plan_.tasks;
    one.first_merge = plan_.merges;
    plan_.tasks += one.tasks.tasks;
    plan_.merges += one.tasks.merges;
    plan_.operations += 2.0 * static_cast<double>(bound.query_tokens) *
                        static_cast<double>(bound.key_tokens) *
                        static_cast<double>(bound.heads * (bound.head_dim + bound.value_dim));
    std::construct_at(items() + count_++, one);
  }

  /// Room for workers. After this the layout stands.
  /// \throws std::invalid_argument when borrowed memory is too small
  void finish(index_t workers) {
    require(workers >= 1, "fused attention: an executor of ", workers, " workers");
    const std::size_t kept = plan_.bytes;
    plan_.workers_at = plan_.bytes;
    plan_.bytes += plan_.worker_bytes * static_cast<std::size_t>(workers);
    grow(kept);
  }

  /// Fills in what tasks share: the bias of one sequence and its table of R(t).
  template <class E>
  void prepare(std::size_t n, const E& encoding, bool keeps_table = false) {
    item& one = items()[n];
    if (one.tasks.tasks == 0) return;  // it has no memory either
    fused_lowering::lower_bias(encoding, one.bias, memory_ + one.bias_at, one.problem);
    if (!keeps_table) kernels_.prepare(one.bound(memory_), one.tasks, one.shared(memory_));
  }

  [[nodiscard]] item* items() const { return reinterpret_cast<item*>(memory_); }
  [[nodiscard]] std::byte* memory() const { return memory_; }
  [[nodiscard]] const layout& where() const { return plan_; }

 private:
  void grow(std::size_t keep) { memory_ = workspace_.reserve(plan_.bytes, (std::max)(keep, items_bytes_)); }

  fused::workspace& workspace_;
  kernel_table kernels_;
  std::size_t items_bytes_, count_ = 0;
  std::byte* memory_ = nullptr;
  layout plan_;
  fused::arithmetic arithmetic_;
  fused::matrix_unit unit_;
};

/// Runs tasks on an executor. What the encoding's own functions throw inside a task would end the program where
/// the task runs on another thread, so it is kept, the tasks that have not begun are left out, and it is thrown
/// again here when all have returned.
template <class Task>
void run_tasks(const fused::executor_ref& executor, index_t tasks, const Task& task_of) {
  struct guarded {
    const Task& task_of;
    mutable std::atomic<bool> failed = false;
#if defined(__cpp_exceptions)
    mutable std::exception_ptr thrown{};
#endif
  };
  const guarded all{task_of};
  executor.run(tasks, fused::task_ref(
                          [](const void* of, index_t task, index_t worker) noexcept {
                            const auto& one = *static_cast<const guarded*>(of);
#if defined(__cpp_exceptions)
                            if (one.failed.load(std::memory_order_relaxed)) return;
                            try {
                              one.task_of(task, worker);
                            } catch (...) {
                              if (!one.failed.exchange(true)) one.thrown = std::current_exception();
                            }
#else
                            one.task_of(task, worker);
#endif
                          },
                          &all));
#if defined(__cpp_exceptions)
  if (all.thrown) std::rethrow_exception(all.thrown);
#endif
}

/// Below so many operations the calling thread is done before another would have begun.
inline constexpr double worth_threads = 2e6;

/// Runs a batch whose problems are bound; `problem_of(n)` is the n-th.
template <class ProblemOf>
void run(const kernel_table& kernels, const layout& where, std::span<const item> items, std::byte* memory,
         const fused::executor_ref& given, const ProblemOf& problem_of) {
  const fused::executor_ref executor = where.operations < worth_threads ? fused::executor_ref() : given;
  const auto scratch_of = [&](index_t worker) {
    return reinterpret_cast<float*>(memory + where.workers_at +
                                    where.worker_bytes * static_cast<std::size_t>(worker));
  };
  const auto item_of = [&](index_t task, index_t item::*first) {
    if (items.size() == 1) return std::size_t{0};
    return static_cast<std::size_t>(
               std::upper_bound(items.begin(), items.end(), task,
                                [first](index_t t, const item& i) { return t < i.*first; }) -
               items.begin()) -
           1;
  };
  run_tasks(executor, where.tasks, [&](index_t task, index_t worker) {
    const std::size_t n = item_of(task, &item::first_task);
    kernels.run(problem_of(n), items[n].tasks, items[n].shared(memory), scratch_of(worker),
                task - items[n].first_task);
  });
  if (where.merges == 0) return;
  run_tasks(executor, where.merges, [&](index_t task, index_t worker) {
    const std::size_t n = item_of(task, &item::first_merge);
    kernels.merge(problem_of(n), items[n].tasks, items[n].shared(memory), scratch_of(worker),
                  task - items[n].first_merge);
  });
}

/// A view as kernels take it.
template <class T>
[[nodiscard]] tensor tensor_of(const heads_view<T>& view) {
  return {reinterpret_cast<const char*>(view.data), storage_of<std::remove_const_t<T>>, view.token_stride,
          view.head_stride};
}
template <class T>
[[nodiscard]] output_tensor output_of(const heads_view<T>& view) {
  return {reinterpret_cast<char*>(view.data), storage_of<T>, view.token_stride, view.head_stride};
}

/// A stride in bytes. One that nothing uses may be any number.
template <class T>
[[nodiscard]] index_t bytes_of_stride(index_t stride) noexcept {
  return static_cast<index_t>(static_cast<std::size_t>(stride) * sizeof(T));
}

/// Rows of a cache as kernels take them.
template <class T>
[[nodiscard]] row_layout layout_of(const heads_view<T>& view) {
  return {reinterpret_cast<const char*>(view.data), bytes_of_stride<T>(view.token_stride),
          bytes_of_stride<T>(view.head_stride)};
}
template <class T>
[[nodiscard]] row_layout layout_of(const paged_view<T>& view) {
  return {nullptr,
          bytes_of_stride<T>(view.token_stride),
          bytes_of_stride<T>(view.head_stride),
          view.pages.data(),
          view.table.data(),
          view.page_tokens};
}
template <class T>
[[nodiscard]] row_layout layout_of(const cache_rows<T>& rows) {
  return rows.in_pages ? layout_of(rows.paged) : layout_of(rows.block);
}
template <class S>
[[nodiscard]] cache_tensor cache_of(const S& source) {
  return {.type = storage_of<S>, .own = {layout_of(source), {}}};
}
[[nodiscard]] inline cache_tensor cache_of(const quantised_keys& source) {
  return {.type = storage_of<quantised_keys>,
          .own = {layout_of(source.codes), layout_of(source.scales)},
          .group_tokens = source.group_tokens};
}
[[nodiscard]] inline cache_tensor cache_of(const quantised_values& source) {
  return {.type = storage_of<quantised_values>, .own = {layout_of(source.codes), layout_of(source.scales)}};
}
[[nodiscard]] inline cache_tensor cache_of(const q8_0_view& source) {
  return {.type = storage_of<q8_0_view>, .own = {layout_of(source.blocks), {}}};
}
template <class S>
[[nodiscard]] cache_tensor cache_of(const joined<S>& source) {
  cache_tensor all = cache_of(source.after);
  const cache_tensor before = cache_of(source.before);
  all.before = before.own;
  all.before_tokens = shape_of_source(source.before).tokens;
  require(all.before_tokens == 0 || shape_of_source(source.after).tokens == 0 ||
              before.group_tokens == all.group_tokens,
          "fused attention: groups of ", before.group_tokens, " tokens joined to groups of ",
          all.group_tokens);
  if (shape_of_source(source.after).tokens == 0) all.group_tokens = before.group_tokens;
  return all;
}

/// Q and O are scalars, K and V scalars or sources.
template <class Q, class K, class V, class O>
consteval bool check_storage() {
  static_assert(
      is_computed<Q> && is_computed<std::remove_const_t<O>>,
      "posenc: fused attention takes queries and outputs of float, Eigen::bfloat16 or Eigen::half, each of "
      "its own. For double and other scalars use posenc::reference::attention, or convert.");
  static_assert(
      has_storage<K> && has_storage<V>,
      "posenc: fused attention takes keys and values of float, Eigen::bfloat16, Eigen::half, float8_e4m3 or "
      "quantised (cache/). For double and other scalars use posenc::reference::attention, or convert.");
  static_assert(
      storage_of<K> != fused::storage::int8_by_token && storage_of<V> != fused::storage::int8_by_channel,
      "posenc: quantised_keys are keys, quantised_values are values");
  static_assert(!std::is_const_v<O>, "posenc: the output of attention must be writable, not a view of const");
  return true;
}

/// Refuses scratch that shares memory with a tensor.
template <kv_source S>
void check_scratch(const fused::workspace* memory, const S& source, const char* what) {
  if (!memory || !memory->is_borrowed()) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory->borrowed().data());
  for_each_part(source, [&](const auto& view) {
    if (view.empty()) return;
    const address_range a = addresses(view);
    require(a.begin >= begin + memory->borrowed().size() || begin >= a.end,
            "fused attention: the borrowed workspace overlaps ", what, " in memory");
  });
}

/// Everything a plan knows but its instruction set.
class planned {
 public:
  planned(const planned&) = delete;
  planned& operator=(const planned&) = delete;
  planned(planned&&) noexcept = default;
  planned& operator=(planned&&) noexcept = default;
  ~planned() = default;

  /// Attention over tensors of the planned shape. Neither lowers nor allocates; nothing is written when it throws,
  /// unless it is a function of the encoding's that throws in a kernel.
  /// \param q,k,v,out views of the planned storage, k and v any source of it (cache/source.hpp); out apart from the others
  /// \param log_sum_exp ln Z per token and head, or an empty view
  /// \throws std::invalid_argument when a view does not fit the plan
  template <class Q, kv_source K, kv_source V, class O>
  void run(heads_view<Q> q, const K& k, const V& v, heads_view<O> out,
           head_scalars_view<float> log_sum_exp = {}) {
    static_assert(check_storage<std::remove_const_t<Q>, K, V, O>());
    require(is_ready_, "fused::plan: the last reshape was refused; reshape the plan before it runs");
    const item& one = item_;
    check_types(one.problem, storage_of<std::remove_const_t<Q>>, storage_of<K>, storage_of<V>, storage_of<O>);
    const attention_shape shape = shape_of(q, k, v);
    check_shape(one.problem, shape);
    check_output(shape, q, k, v, out, log_sum_exp);
    check_scratch(borrowed_, q, "q"), check_scratch(borrowed_, k, "k"), check_scratch(borrowed_, v, "v");
    check_scratch(borrowed_, out, "the output"),
        check_scratch(borrowed_, as_rows(log_sum_exp), "log_sum_exp");
    attention_problem problem = one.bound(memory_);
    problem.q = tensor_of(q), problem.k = cache_of(k), problem.v = cache_of(v), problem.out = output_of(out);
    problem.log_sum_exp = log_sum_exp.data;
    problem.lse_token_stride = log_sum_exp.token_stride;
    problem.lse_head_stride = log_sum_exp.head_stride;
    fused_plans::run(kernels_, where_, std::span<const item>(&one, 1), memory_, executor_,
                     [&problem](std::size_t) -> const attention_problem& { return problem; });
  }
  /// The same over row-major matrices of tokens × (heads·head_dim), which are used in place.
  template <class Q, class K, class V, class O>
  void run(const Eigen::PlainObjectBase<Q>& q, const Eigen::PlainObjectBase<K>& k,
           const Eigen::PlainObjectBase<V>& v, Eigen::PlainObjectBase<O>& out) {
    const attention_problem& problem = item_.problem;
    run(as_heads(q.derived(), problem.heads), as_heads(k.derived(), problem.kv_heads),
        as_heads(v.derived(), problem.kv_heads), as_heads(out.derived(), problem.heads));
  }

  /// Plans the same call for other lengths, in the same memory: what does not depend on them stays. Positions that are
  /// given one by one, and masks by row, have to fit the new lengths.
  /// \throws std::invalid_argument and what the encoding throws; the plan is then as it was, but runs only after
  /// another reshape
  void reshape(index_t queries, index_t keys) { reshape(options_, queries, keys); }
  /// Plans the same encoding for other options and lengths.
  void reshape(const attention_options& options, index_t queries, index_t keys) {
    fused::shape shape = shape_;
    shape.queries = queries, shape.keys = keys;
    rebuild_(*this, options, shape);
  }

  /// Bytes of scratch, all workers' included.
  [[nodiscard]] std::size_t bytes() const noexcept { return where_.bytes; }
  [[nodiscard]] fused::kernel kernel() const noexcept {
    const task_plan& tasks = item_.tasks;
    return tasks.tasks == 0 ? fused::kernel::none
           : tasks.decode   ? fused::kernel::decode
           : tasks.stacked  ? fused::kernel::stacked
                            : fused::kernel::prefill;
  }
  [[nodiscard]] fused::bias_form bias() const noexcept {
    const item& one = item_;
    return one.bias.by_element                                      ? fused::bias_form::by_element
           : one.problem.bias.kind == distance_bias::form::linear   ? fused::bias_form::linear
           : one.problem.bias.kind == distance_bias::form::diagonal ? fused::bias_form::diagonal
                                                                    : fused::bias_form::none;
  }
  /// Distances of the diagonal, where the bias is one.
  [[nodiscard]] index_t bias_distances() const noexcept {
    return bias() == fused::bias_form::diagonal ? static_cast<index_t>(item_.bias.distances.count()) : 0;
  }
  /// True where keys rotate in registers on their way, false where they are taken as they are or the encoding's own
  /// function rotates them.
  [[nodiscard]] bool rotates_on_load() const noexcept {
    return item_.problem.rotary != nullptr && !item_.problem.keys_are_rotated;
  }
  /// Tasks of the main phase, and of the phase that merges splits of the keys.
  [[nodiscard]] index_t tasks() const noexcept { return where_.tasks; }
  [[nodiscard]] index_t merges() const noexcept { return where_.merges; }
  /// Runs of consecutive positions that the keys are; 0 where they are taken one by one.
  [[nodiscard]] index_t key_runs() const noexcept { return item_.run_count; }
  /// What forms the products: none where they are products of floats.
  [[nodiscard]] fused::matrix_unit unit() const noexcept { return item_.tasks.unit; }
  /// How products are formed on this machine: float32, or in so many pieces of bfloat16.
  [[nodiscard]] fused::arithmetic arithmetic() const noexcept {
    constexpr fused::arithmetic by_pieces[] = {fused::arithmetic::float32, fused::arithmetic::bfloat16,
                                               fused::arithmetic::bfloat16x2, fused::arithmetic::bfloat16x3};
    return by_pieces[item_.tasks.pieces];
  }
  /// The instruction set, by Highway's name, and the matrix unit where one pays: "AVX3_DL+AMX".
  [[nodiscard]] const char* target() const noexcept { return kernels_.name; }

  /// Made through fused::plan.
  template <class E>
  planned(const kernel_table& kernels, std::shared_ptr<const E> encoding, const attention_options& options,
          const fused::shape& shape, const fused::execution& how)
      : kernels_(kernels),
        executor_(how.executor),
        borrowed_(how.memory),
        arithmetic_(how.arithmetic),
        unit_(how.unit),
        encoding_(encoding),
        rebuild_([](planned& self, const attention_options& told, const fused::shape& lengths) {
          self.build(*static_cast<const E*>(self.encoding_.get()), told, lengths);
        }) {
    build(*encoding, options, shape);
  }

 protected:
  template <class E>
  [[nodiscard]] static attention_shape whole_shape(const E& encoding, const attention_options& options,
                                                   const fused::shape& shape) {
    std::optional<index_t> head_dim = shape.head_dim ? shape.head_dim : options.head_dim;
    if constexpr (lowers_to_rotation<E>)
      if (!head_dim) head_dim = encoding.lowered().head_dim;
    require(
        head_dim.has_value(),
        "fused::plan: head_dim is known neither from the shape nor from the options nor from the encoding");
    const std::optional<index_t> value_dim = shape.value_dim ? shape.value_dim : options.value_dim;
    return {shape.queries, shape.keys,
            options.heads, options.kv_heads.value_or(options.heads),
            *head_dim,     value_dim.value_or(*head_dim)};
  }

  template <class E>
  void build(const E& encoding, const attention_options& options, const fused::shape& shape) {
    if constexpr (settles_by_length<E>) {
      using settled = decltype(encoding.at_length(1));
      auto made = std::make_shared<const settled>(encoding.at_length(checked_length(options.context_length)));
      build_settled(*made, options, shape, false);
      settled_ = std::move(made);
    } else {
      build_settled(encoding, options, shape, true);
    }
  }

  /// Plans in scratch, which may be written by halves where it throws: what the plan is, it becomes at the end.
  /// \param is_same the encoding is that of the plan before
  template <class E>
  void build_settled(const E& encoding, const attention_options& options, const fused::shape& shape,
                     bool is_same) {
    static_assert(check_encoding<E, float>());
    check_embedded<E, float>(options.is_embedded);
    fused::workspace& scratch = borrowed_ ? *borrowed_ : own_;
    const bool was_planned = std::exchange(is_ready_, false) && is_same;
    builder making(scratch, kernels_, 1, arithmetic_, unit_);
    making.add(resolve(options, whole_shape(encoding, options, shape)), shape, encoding);
    making.finish(static_cast<index_t>(executor_.workers()));
    // The table of R(t) lies at the start of what tasks share and depends on the encoding and its own size alone.
    const item& now = *making.items();
    const bool keeps_table = was_planned && making.memory() == memory_ && item_.tasks.tasks > 0 &&
                             now.shared_at == item_.shared_at &&
                             now.tasks.table_floats == item_.tasks.table_floats;
    making.prepare(0, encoding, keeps_table);
    item_ = *making.items();
    memory_ = making.memory();
    where_ = making.where();
    options_ = options, shape_ = shape;
    is_ready_ = true;
  }

  static void check_types(const attention_problem& problem, storage q, storage k, storage v, storage out) {
    const auto check = [](const char* name, storage planned, storage given) {
      require(planned == given, "fused::plan: ", name, " is stored as ", name_of(given), ", planned for ",
              name_of(planned), " (shape.", name, ")");
    };
    check("q", problem.q.type, q), check("k", problem.k.type, k), check("v", problem.v.type, v);
    check("out", problem.out.type, out);
  }
  static void check_shape(const attention_problem& problem, const attention_shape& shape) {
    // Lengths last: where heads and tokens of a view are swapped, they are wrong as well, and reshape does not help.
    require(shape.heads == problem.heads && shape.kv_heads == problem.kv_heads, "fused::plan: q has ",
            shape.heads, " heads and k and v ", shape.kv_heads, ", planned for options of heads ",
            problem.heads, " and kv_heads ", problem.kv_heads);
    require(shape.head_dim == problem.head_dim && shape.value_dim == problem.value_dim,
            "fused::plan: head_dim ", shape.head_dim, " and value_dim ", shape.value_dim, ", planned for ",
            problem.head_dim, " and ", problem.value_dim,
            " (of the shape, else of the options, else of the encoding)");
    require(shape.query_tokens == problem.query_tokens && shape.key_tokens == problem.key_tokens,
            "fused::plan: ", shape.query_tokens, " queries and ", shape.key_tokens, " keys, planned for ",
            problem.query_tokens, " and ", problem.key_tokens, ": call reshape(", shape.query_tokens, ", ",
            shape.key_tokens, ") first");
  }

  kernel_table kernels_;
  fused::executor_ref executor_;
  fused::workspace own_{};
  fused::workspace* borrowed_ = nullptr;
  fused::arithmetic arithmetic_;
  fused::matrix_unit unit_;
  std::byte* memory_ = nullptr;
  item item_{};
  layout where_{};
  bool is_ready_ = false;  ///< memory_ holds what item_ says
  attention_options options_{};
  fused::shape shape_{};
  std::shared_ptr<const void> encoding_, settled_;
  void (*rebuild_)(planned&, const attention_options&, const fused::shape&) = nullptr;
};

}  // namespace detail::fused_plans

namespace fused {
// The instruction set is that of the translation unit (target.hpp): what depends on it lies in a namespace of its name,
// so that translation units with different flags may meet in one program.
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// A fused attention call without its tensors. It keeps a copy of the encoding and of the options; positions, sinks and
/// dense masks stay the caller's memory and have to outlive it. One run at a time.
class plan : public posenc::detail::fused_plans::planned {
 public:
  /// \throws std::invalid_argument, std::out_of_range when the parts do not fit one another
  template <class E>
  plan(const E& encoding, const attention_options& options, const fused::shape& shape,
       const execution& how = {})
      : planned(posenc::detail::with_concrete(encoding, [&](const auto& one) {
          using concrete = std::remove_cvref_t<decltype(one)>;
          return planned(posenc::detail::fused_kernels::this_isa::kernels(),
                         std::make_shared<const concrete>(one), options, shape, how);
        })) {}
  /// The same with an executor alone. It has to outlive the plan, so a temporary that would only be referred to is
  /// refused (executor_ref).
  template <class E, class X>
  requires(executor<std::remove_cvref_t<X>>&& std::constructible_from<executor_ref, X>)
      plan(const E& encoding, const attention_options& options, const fused::shape& shape, X&& by)
      : plan(encoding, options, shape, execution{.executor = std::forward<X>(by)}) {}
};

/// The instruction set that fused calls of this translation unit take, by Highway's name: "AVX2", "AVX3", "NEON", …; and
/// the matrix unit where this processor has one that pays: "AVX3_DL+AMX".
[[nodiscard]] inline const char* target_name() noexcept {
  return posenc::detail::fused_kernels::this_isa::kernels().name;
}

}  // inline namespace
}  // namespace fused
}  // namespace posenc::inline v0_2
