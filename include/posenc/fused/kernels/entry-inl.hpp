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

#include <posenc/fused/kernels/decode-inl.hpp>
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
  result.heads_per_task = (std::min)(problem.group, prefill_heads);
  result.head_chunks = (problem.group + result.heads_per_task - 1) / result.heads_per_task;
  const index_t most_rows =
      (std::max)(prefill_columns / result.heads_per_task / panel_width(), index_t{1}) * panel_width();
  result.rows = (std::min)(most_rows, round_up(problem.query_tokens, panel_width()));
  result.tiles = (problem.query_tokens + result.rows - 1) / result.rows;
  result.tasks = result.tiles * result.head_chunks * problem.kv_heads;
  result.worker_floats = prefill_scratch(nullptr, problem, pack, result.heads_per_task, result.rows).floats;
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

/// Columns of a task: as many as leave packed queries and output in the second-level cache.
HWY_INLINE index_t stacked_columns(const attention_problem& problem) {
  const index_t fit = 65536 / (std::max)(problem.head_dim, problem.value_dim) / panel_width() * panel_width();
  return (std::clamp)(fit, panel_width(), prefill_columns);
}

inline HWY_NOINLINE void plan_stack(const attention_problem& problem, const packed_head& pack,
                                    task_plan& result) {
  const index_t columns = problem.group * problem.query_tokens;
  result.stacked = true;
  const index_t chunks = (columns + stacked_columns(problem) - 1) / stacked_columns(problem);
  result.rows = round_up((columns + chunks - 1) / chunks, panel_width());
  result.head_chunks = (columns + result.rows - 1) / result.rows;
  split_keys(problem, problem.kv_heads * result.head_chunks, prefill_keys, result);
  result.worker_floats = prefill_scratch(nullptr, problem, pack, 1, result.rows).floats;
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

inline HWY_NOINLINE void run_prefill(const attention_problem& problem, const task_plan& plan,
                                     const key_loader& loader, float* scratch, index_t task) {
  // The last tile sees most under a causal mask: it goes first, so that the short ones fill the end.
  const index_t tile = plan.tiles - 1 - task / (plan.head_chunks * problem.kv_heads);
  const index_t chunk = task % (plan.head_chunks * problem.kv_heads);
  const index_t kv_head = chunk / plan.head_chunks, in_group = chunk % plan.head_chunks * plan.heads_per_task;
  const index_t first_row = tile * plan.rows, rows = (std::min)(plan.rows, problem.query_tokens - first_row);
  const row_range tokens{(std::clamp)(problem.valid_queries.begin - first_row, index_t{0}, rows),
                         (std::clamp)(problem.valid_queries.end - first_row, index_t{0}, rows)};
  const bool anchored =
      problem.rotary && problem.keys_are_rotated;  // rotated keys carry the growth from the encoding's origin
  const position origin = anchored
                              ? problem.rotary->growth_origin
                              : (tokens.begin < tokens.end ? problem.queries[first_row + tokens.begin] : 0);
  const prefill_task work{problem,
                          loader,
                          prefill_scratch(scratch, problem, loader.pack, plan.heads_per_task, plan.rows),
                          kv_head,
                          kv_head * problem.group + in_group,
                          (std::min)(plan.heads_per_task, problem.group - in_group),
                          first_row,
                          rows,
                          plan.rows / panel_width(),
                          tokens,
                          origin,
                          0,
                          problem.valid_keys};
  work.attend_all();
  work.write_rows();
}

inline HWY_NOINLINE void run_stack(const attention_problem& problem, const task_plan& plan,
                                   const key_loader& loader, float* shared, float* scratch, index_t task) {
  const index_t group = task / plan.tiles, kv_head = group / plan.head_chunks;
  const index_t first_row = group % plan.head_chunks * plan.rows;
  const index_t rows = (std::min)(plan.rows, problem.group * problem.query_tokens - first_row);
  const prefill_task work{problem,
                          loader,
                          prefill_scratch(scratch, problem, loader.pack, 1, plan.rows),
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
  work.attend_all();
  if (plan.merges > 0)
    work.write_partials(partials_of(problem, plan, shared, task));
  else
    work.write_rows();
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

/// The entry points of this instruction set.
inline kernel_table table() { return {hwy::TargetName(HWY_TARGET), plan, prepare, run, merge}; }

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
