// SPDX-License-Identifier: MIT
/// \file
/// The entry points of one instruction set: how a problem is cut into tasks, and running one. Included once
/// per instruction set.
#if defined(POSENC_FUSED_ENTRY_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_ENTRY_INL_HPP
#undef POSENC_FUSED_ENTRY_INL_HPP
#else
#define POSENC_FUSED_ENTRY_INL_HPP
#endif

#include <algorithm>
#include <string>

#include <posenc/fused/kernels/backward-inl.hpp>
#include <posenc/fused/kernels/decode-inl.hpp>
#include <posenc/fused/kernels/matrix_prefill-inl.hpp>
#include <posenc/fused/kernels/prefill-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// True where the step table is used: by keys that rotate on load and by many queries, whose phases add up.
HWY_INLINE bool needs_step_table(const attention_problem& problem, const task_plan& plan) {
  return problem.rotary && problem.splits_positions && problem.rotary->pairs() > 0 &&
         !(plan.decode && problem.keys_are_rotated);
}

HWY_INLINE key_loader loader_of(const attention_problem& problem, const task_plan& plan,
                                const float* shared) {
  const rotation* const rotary = problem.keys_are_rotated ? nullptr : problem.rotary;
  return {problem, rotary, packing_of(rotary, problem.head_dim), shared,
          needs_step_table(problem, plan) ? step_stride(*problem.rotary) : 0};
}

HWY_INLINE index_t table_rows(const attention_problem& problem, const task_plan& plan) {
  return plan.decode ? decode_keys(problem) : prefill_keys;
}
HWY_INLINE index_t table_floats(const attention_problem& problem, const task_plan& plan) {
  return needs_step_table(problem, plan) ? table_rows(problem, plan) * step_stride(*problem.rotary) : 0;
}

inline HWY_NOINLINE void plan_prefill(const attention_problem& problem, const packed_head& pack,
                                      task_plan& result) {
  choose_unit(problem, result);
  result.heads_per_task = (std::min)(problem.group, prefill_heads);
  result.head_chunks = (problem.group + result.heads_per_task - 1) / result.heads_per_task;
  const index_t columns = result.pieces > 0 ? matrix_columns : prefill_columns;
  const index_t most_rows =
      (std::max)(columns / result.heads_per_task / panel_width(), index_t{1}) * panel_width();
  result.rows = (std::min)(most_rows, round_up(problem.query_tokens, panel_width()));
  result.tiles = (problem.query_tokens + result.rows - 1) / result.rows;
  result.tasks = result.tiles * result.head_chunks * problem.kv_heads;
  result.worker_floats = prefill_floats(problem, pack, result);
  result.table_floats = table_floats(problem, result);
  result.shared_floats = result.table_floats;
}

/// True when the heads of a KV head are stacked: few queries each, many together.
HWY_INLINE bool fits_stack(const attention_problem& problem) {
  const row_range& valid = problem.valid_queries;
  return problem.runs && problem.query_tokens < panel_width() && problem.group > 1 &&
         problem.group * problem.query_tokens >= panel_width() / 2 + panel_width() / 8 && valid.begin == 0 &&
         valid.end == problem.query_tokens && !problem.callbacks.relative_key &&
         !problem.callbacks.relative_value && (!problem.rotary || problem.rotary->growth_per_token.empty());
}

/// Columns of a task: as many as leave packed queries and output in the L2 cache.
HWY_INLINE index_t stacked_columns(const attention_problem& problem) {
  const index_t fit = 65536 / (std::max)(problem.head_dim, problem.value_dim) / panel_width() * panel_width();
  return (std::clamp)(fit, panel_width(), prefill_columns);
}

inline HWY_NOINLINE void plan_stack(const attention_problem& problem, const packed_head& pack,
                                    task_plan& result) {
  const index_t columns = problem.group * problem.query_tokens;
  result.stacked = true;
  choose_unit(problem, result);
  const index_t chunks = (columns + stacked_columns(problem) - 1) / stacked_columns(problem);
  result.rows = round_up((columns + chunks - 1) / chunks, panel_width());
  result.head_chunks = (columns + result.rows - 1) / result.rows;
  split_keys(problem, problem.kv_heads * result.head_chunks, prefill_keys, result);
  result.worker_floats = prefill_floats(problem, pack, result);
}

inline HWY_NOINLINE task_plan plan(const attention_problem& problem) {
  task_plan result;
  if (problem.query_tokens == 0) return result;
  const packed_head pack = packing_of(problem.keys_are_rotated ? nullptr : problem.rotary, problem.head_dim);
  if (fits_stack(problem)) {
    plan_stack(problem, pack, result);
  } else if (fits_decode(problem)) {
    result = plan_decode(problem);
    result.worker_floats = decode_scratch(nullptr, problem, pack, result).floats;
  } else {
    plan_prefill(problem, pack, result);
    return result;
  }
  result.table_floats = table_floats(problem, result);
  result.shared_floats = result.table_floats;
  if (result.merges > 0) result.shared_floats += result.tasks * result.rows * partial_stride(problem);
  return result;
}

inline HWY_NOINLINE void prepare(const attention_problem& problem, const task_plan& plan, float* shared) {
  if (needs_step_table(problem, plan))
    fill_step_table(*problem.rotary, table_rows(problem, plan), step_stride(*problem.rotary), shared);
}

/// The heads of group `group` of a decode: chunks of the query heads first, KV heads after.
HWY_INLINE decode_rows_of_task decode_rows_of(const attention_problem& problem, const task_plan& plan,
                                              index_t group) {
  const index_t kv_heads = decode_kv_heads(problem), first_kv = group / plan.head_chunks * kv_heads;
  const index_t in_group = group % plan.head_chunks * plan.heads_per_task;
  return {first_kv,
          (std::min)(kv_heads, problem.kv_heads - first_kv),
          in_group,
          (std::min)(plan.heads_per_task, problem.group - in_group),
          problem.query_tokens,
          problem.group,
          key_rotation_of(problem) == key_rotation::by_call};
}

/// Where the split results of a decode lie: group by group, split by split, after the step table.
HWY_INLINE float* partials_of(const attention_problem& problem, const task_plan& plan, float* shared,
                              index_t task) {
  return shared + table_floats(problem, plan) + task * plan.rows * partial_stride(problem);
}

inline HWY_NOINLINE void run_decode(const attention_problem& problem, const task_plan& plan,
                                    const key_loader& loader, float* shared, float* scratch, index_t task) {
  const decode_task work{problem, loader, decode_scratch(scratch, problem, loader.pack, plan),
                         decode_rows_of(problem, plan, task / plan.tiles),
                         keys_of_split(plan, task % plan.tiles)};
  work.attend();
  if (plan.merges > 0)
    work.write_partials(partials_of(problem, plan, shared, task));
  else
    work.write_rows();
}

/// Runs a prefill task; `to` takes the state of its rows, where their keys are split.
inline HWY_NOINLINE void run_tiles(const prefill_task& task, const task_plan& plan, float* scratch,
                                   float* to = nullptr) {
  if (plan.pieces > 0)
    run_on_unit(task, plan, scratch, to);
  else
    task.run(task, to);
}

inline HWY_NOINLINE void run_prefill(const attention_problem& problem, const task_plan& plan,
                                     const key_loader& loader, float* scratch, index_t task) {
  // The last tile sees most under a causal mask: it goes first, so that the short ones fill the end.
  const index_t tile = plan.tiles - 1 - task / (plan.head_chunks * problem.kv_heads);
  run_tiles(
      prefill_task_of(problem, plan, loader, scratch, tile, task % (plan.head_chunks * problem.kv_heads)),
      plan, scratch);
}

inline HWY_NOINLINE void run_stack(const attention_problem& problem, const task_plan& plan,
                                   const key_loader& loader, float* shared, float* scratch, index_t task) {
  const index_t group = task / plan.tiles, kv_head = group / plan.head_chunks;
  const index_t first_row = group % plan.head_chunks * plan.rows;
  const index_t rows = (std::min)(plan.rows, problem.group * problem.query_tokens - first_row);
  const prefill_task work{problem,
                          loader,
                          scratch_of(plan, scratch, problem, loader.pack),
                          kv_head,
                          kv_head * problem.group,
                          1,
                          first_row,
                          rows,
                          plan.rows / panel_width(),
                          {0, rows},
                          0,
                          problem.query_tokens,
                          keys_of_split(plan, task % plan.tiles)};
  run_tiles(work, plan, scratch, plan.merges > 0 ? partials_of(problem, plan, shared, task) : nullptr);
}

inline HWY_NOINLINE void run(const attention_problem& problem, const task_plan& plan, float* shared,
                             float* scratch, index_t task) {
  const key_loader loader = loader_of(problem, plan, shared);
  if (plan.decode)
    run_decode(problem, plan, loader, shared, scratch, task);
  else if (plan.stacked)
    run_stack(problem, plan, loader, shared, scratch, task);
  else
    run_prefill(problem, plan, loader, scratch, task);
}

inline HWY_NOINLINE void merge(const attention_problem& problem, const task_plan& plan, float* shared, float*,
                               index_t task) {
  const index_t split_floats = plan.rows * partial_stride(problem);
  float* const partials = partials_of(problem, plan, shared, task * plan.tiles);
  if (plan.decode) {
    const decode_rows_of_task rows = decode_rows_of(problem, plan, task);
    merge_partials(problem, rows.rows(), plan.tiles, split_floats, partials, [&](index_t r) {
      return head_and_query{rows.head_of(rows.slot(r)), rows.query_of(rows.slot(r))};
    });
  } else {
    const index_t kv_head = task / plan.head_chunks, first = task % plan.head_chunks * plan.rows;
    const index_t queries = problem.query_tokens;
    merge_partials(
        problem, (std::min)(plan.rows, problem.group * queries - first), plan.tiles, split_floats, partials,
        [&](index_t r) {
          return head_and_query{kv_head * problem.group + (first + r) / queries, (first + r) % queries};
        });
  }
}

/// The backward is cut into tiles of queries as the prefill is; task t takes every chunks-th tile of some heads of a KV
/// head, so that each sees about as much under a causal mask.
inline HWY_NOINLINE task_plan plan_backward(const attention_problem& problem) {
  task_plan result;
  const packed_head pack = packing_of(problem.keys_are_rotated ? nullptr : problem.rotary, problem.head_dim);
  result.heads_per_task = (std::min)(problem.group, prefill_heads);
  result.head_chunks = (problem.group + result.heads_per_task - 1) / result.heads_per_task;
  const index_t most_rows = (std::max)(backward_channels / (problem.head_dim + problem.value_dim) /
                                           result.heads_per_task / panel_width(),
                                       index_t{1}) *
                            panel_width();
  result.rows =
      (std::max)((std::min)(most_rows, round_up(problem.query_tokens, panel_width())), panel_width());
  result.tiles = (problem.query_tokens + result.rows - 1) / result.rows;
  const index_t groups = problem.kv_heads * result.head_chunks;
  const index_t chunks =
      (std::clamp)((backward_tasks + groups - 1) / groups, index_t{1}, (std::max)(result.tiles, index_t{1}));
  result.split = chunks;
  result.tasks = groups * chunks;
  const bool alone = result.head_chunks * chunks == 1;
  result.merges = alone ? 0 : problem.kv_heads * ((problem.key_tokens + merge_keys - 1) / merge_keys);
  const index_t columns = result.heads_per_task * result.rows, sums = backward_sum_floats(problem, pack);
  result.table_floats = table_floats(problem, result);
  result.shared_floats = round_up(result.table_floats, 16) + (alone ? 0 : result.tasks * sums);
  result.worker_floats = prefill_scratch(nullptr, problem, pack, result.heads_per_task, result.rows).floats +
                         backward_scratch(nullptr, problem, pack, columns).floats + (alone ? sums : 0);
  return result;
}

/// The sums of the tasks of a problem, where several meet in a KV head: [KV head][task][key].
HWY_INLINE float* backward_sums(const attention_problem& problem, const task_plan& plan,
                                const packed_head& pack, float* shared, index_t task) {
  return shared + round_up(table_floats(problem, plan), 16) + task * backward_sum_floats(problem, pack);
}

inline HWY_NOINLINE void run_backward(const attention_problem& problem, const task_plan& plan, float* shared,
                                      float* scratch, index_t task) {
  const auto& full = static_cast<const backward_problem&>(problem);
  const key_loader loader = loader_of(problem, plan, shared);
  // Tasks of a KV head side by side: its heads in chunks, their tiles in chunks.
  const index_t per_head = plan.head_chunks * plan.split, kv_head = task / per_head;
  const index_t head_chunk = task % per_head / plan.split, tile_chunk = task % plan.split;
  const index_t chunk = kv_head * plan.head_chunks + head_chunk;
  const index_t forward_floats =
      prefill_scratch(nullptr, problem, loader.pack, plan.heads_per_task, plan.rows).floats;
  const backward_scratch own(scratch + forward_floats, problem, loader.pack, plan.heads_per_task * plan.rows);
  const bool alone = plan.merges == 0;
  const index_t sum_floats = backward_sum_floats(problem, loader.pack);
  float* const sums =
      alone ? scratch + forward_floats + own.floats : backward_sums(problem, plan, loader.pack, shared, task);
  // Products read whole vectors: what lies after the last channel of a row has to be a number.
  const prefill_scratch forward_scratch(scratch, problem, loader.pack, plan.heads_per_task, plan.rows);
  std::fill_n(forward_scratch.keys, prefill_keys * loader.pack.stride + lanes(), 0.0f);
  std::fill_n(forward_scratch.values, prefill_keys * forward_scratch.output_stride, 0.0f);
  const index_t columns = plan.heads_per_task * plan.rows;
  std::fill_n(own.query_rows, columns * loader.pack.stride, 0.0f);
  std::fill_n(own.up_rows, columns * own.up_stride, 0.0f);
  std::fill_n(sums, sum_floats, 0.0f);
  float* const d_values = sums + problem.key_tokens * key_sum_stride(loader.pack);
  for (index_t tile = tile_chunk; tile < plan.tiles; tile += plan.split) {
    prefill_task forward = prefill_task_of(problem, plan, loader, scratch, tile, chunk);
    forward.growth_origin = backward_origin(problem);
    const backward_task work{forward, full, own, sums, d_values, full.collected_by(task)};
    work.run();
  }
  if (alone)
    write_key_gradients(full, loader, kv_head, {0, problem.key_tokens}, sums, 1, sum_floats,
                        full.collected_by(task));
}

inline HWY_NOINLINE void merge_backward(const attention_problem& problem, const task_plan& plan,
                                        float* shared, float*, index_t task) {
  const auto& full = static_cast<const backward_problem&>(problem);
  const key_loader loader = loader_of(problem, plan, shared);
  const index_t blocks = plan.merges / problem.kv_heads, kv_head = task / blocks;
  const index_t per_head = plan.head_chunks * plan.split, begin = task % blocks * merge_keys;
  write_key_gradients(full, loader, kv_head, {begin, (std::min)(begin + merge_keys, problem.key_tokens)},
                      backward_sums(problem, plan, loader.pack, shared, kv_head * per_head), per_head,
                      backward_sum_floats(problem, loader.pack), full.collected_by(plan.tasks + task));
}

/// Highway's name of this instruction set; with a matrix unit that pays, "AVX3_DL+AMX".
inline HWY_NOINLINE const char* target_name() {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  const auto with = [](const char* unit) {
    static const std::string name = std::string(hwy::TargetName(HWY_TARGET)) + unit;
    return name.c_str();
  };
  const fused_units::processor& processor = fused_units::this_processor();
  if (processor.has_amx) return with("+AMX");
  if (processor.is_fast_at_avx512_bf16) return with("+AVX512_BF16");
#endif
  return hwy::TargetName(HWY_TARGET);
}

inline kernel_table backward_table() {
  return {target_name(), plan_backward, prepare, run_backward, merge_backward, nullptr, has_unit};
}

/// The entry points of this instruction set.
inline kernel_table table() { return {target_name(), plan, prepare, run, merge, backward_table, has_unit}; }

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
