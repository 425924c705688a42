// SPDX-License-Identifier: MIT
/// \file
/// The entry points of one instruction set: how a problem is cut into tasks, and running one. Included once
/// per instruction set.
#if defined(POSENC_FUSED_KERNELS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_KERNELS_INL_HPP
#undef POSENC_FUSED_KERNELS_INL_HPP
#else
#define POSENC_FUSED_KERNELS_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/decode-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// Floats from one row of the step table to the next.
HWY_INLINE index_t step_stride(const problem& call) { return 2 * round_up(call.turns->pairs(), lanes()); }

/// True where the step table is used: by keys that turn on load and by many queries, whose phases add up.
HWY_INLINE bool needs_step_table(const problem& call, const task_plan& plan) {
  return call.turns && call.turns->depends_on_offset_only() && call.turns->pairs() > 0 &&
         !(plan.decode && call.keys_are_rotated);
}

HWY_INLINE key_loader loader_of(const problem& call, const task_plan& plan, const float* shared) {
  const rotation* const turns = call.keys_are_rotated ? nullptr : call.turns;
  return {call, turns, packing_of(turns, call.head_dim), shared,
          needs_step_table(call, plan) ? step_stride(call) : 0};
}

HWY_INLINE index_t table_rows(const problem& call, const task_plan& plan) {
  return plan.decode ? decode_keys(call) : prefill_keys;
}
HWY_INLINE index_t table_floats(const problem& call, const task_plan& plan) {
  return needs_step_table(call, plan) ? table_rows(call, plan) * step_stride(call) : 0;
}

inline HWY_NOINLINE void plan_prefill(const problem& call, const packed_head& pack, task_plan& result) {
  result.heads_per_task = (std::min)(call.group, prefill_heads);
  result.head_chunks = (call.group + result.heads_per_task - 1) / result.heads_per_task;
  const index_t most_rows =
      (std::max)(prefill_columns / result.heads_per_task / panel_width(), index_t{1}) * panel_width();
  result.rows = (std::min)(most_rows, round_up(call.query_tokens, panel_width()));
  result.tiles = (call.query_tokens + result.rows - 1) / result.rows;
  result.tasks = result.tiles * result.head_chunks * call.kv_heads;
  result.worker_floats = prefill_scratch(nullptr, call, pack, result.heads_per_task, result.rows).floats;
  result.shared_floats = table_floats(call, result);
}

inline HWY_NOINLINE task_plan plan(const problem& call) {
  task_plan result;
  if (call.query_tokens == 0) return result;
  const packed_head pack = packing_of(call.keys_are_rotated ? nullptr : call.turns, call.head_dim);
  if (!fits_decode(call)) {
    plan_prefill(call, pack, result);
    return result;
  }
  result = plan_decode(call);
  result.worker_floats = decode_scratch(nullptr, call, pack, result).floats;
  result.shared_floats = table_floats(call, result);
  if (result.merges > 0) result.shared_floats += result.tasks * result.rows * partial_stride(call);
  return result;
}

inline HWY_NOINLINE void prepare(const problem& call, const task_plan& plan, float* shared) {
  if (needs_step_table(call, plan))
    fill_step_table(*call.turns, table_rows(call, plan), step_stride(call), shared);
}

/// The heads of group `group` of a decode: chunks of the query heads first, KV heads after.
HWY_INLINE decode_rows_of_task decode_rows_of(const problem& call, const task_plan& plan, index_t group) {
  const index_t kv_heads = decode_kv_heads(call), first_kv = group / plan.head_chunks * kv_heads;
  const index_t in_group = group % plan.head_chunks * plan.heads_per_task;
  return {first_kv,          (std::min)(kv_heads, call.kv_heads - first_kv),
          in_group,          (std::min)(plan.heads_per_task, call.group - in_group),
          call.query_tokens, call.group};
}

/// Where the split results of a decode lie: group by group, split by split, behind the step table.
HWY_INLINE float* partials_of(const problem& call, const task_plan& plan, float* shared, index_t task) {
  return shared + table_floats(call, plan) + task * plan.rows * partial_stride(call);
}

inline HWY_NOINLINE void run_decode(const problem& call, const task_plan& plan, const key_loader& loader,
                                    float* shared, float* scratch, index_t task) {
  const row_range range = decode_range(call);
  const index_t begin = (std::min)(range.end, range.begin + task % plan.tiles * plan.split);
  const decode_task work{call,
                         loader,
                         decode_scratch(scratch, call, loader.pack, plan),
                         decode_rows_of(call, plan, task / plan.tiles),
                         {begin, (std::min)(range.end, begin + plan.split)}};
  work.attend();
  if (plan.merges > 0)
    work.write_partials(partials_of(call, plan, shared, task));
  else
    work.write_rows();
}

inline HWY_NOINLINE void run_prefill(const problem& call, const task_plan& plan, const key_loader& loader,
                                     float* scratch, index_t task) {
  // The last tile sees most under a causal mask: it goes first, so that the short ones fill the end.
  const index_t tile = plan.tiles - 1 - task / (plan.head_chunks * call.kv_heads);
  const index_t chunk = task % (plan.head_chunks * call.kv_heads);
  const index_t kv_head = chunk / plan.head_chunks, in_group = chunk % plan.head_chunks * plan.heads_per_task;
  const index_t first_row = tile * plan.rows, rows = (std::min)(plan.rows, call.query_tokens - first_row);
  const row_range tokens{(std::clamp)(call.valid_queries.begin - first_row, index_t{0}, rows),
                         (std::clamp)(call.valid_queries.end - first_row, index_t{0}, rows)};
  const bool anchored =
      call.turns && call.keys_are_rotated;  // rotated keys carry the growth from the encoding's origin
  const position origin = anchored ? call.turns->growth_origin
                                   : (tokens.begin < tokens.end ? call.queries[first_row + tokens.begin] : 0);
  const prefill_task work{call,
                          loader,
                          prefill_scratch(scratch, call, loader.pack, plan.heads_per_task, plan.rows),
                          kv_head,
                          kv_head * call.group + in_group,
                          (std::min)(plan.heads_per_task, call.group - in_group),
                          first_row,
                          rows,
                          plan.rows / panel_width(),
                          tokens,
                          origin};
  work.run();
}

inline HWY_NOINLINE void run(const problem& call, const task_plan& plan, float* shared, float* scratch,
                             index_t task) {
  const key_loader loader = loader_of(call, plan, shared);
  if (plan.decode)
    run_decode(call, plan, loader, shared, scratch, task);
  else
    run_prefill(call, plan, loader, scratch, task);
}

inline HWY_NOINLINE void merge(const problem& call, const task_plan& plan, float* shared, float*,
                               index_t task) {
  merge_partials(call, decode_rows_of(call, plan, task), plan.tiles, plan.rows * partial_stride(call),
                 partials_of(call, plan, shared, task * plan.tiles));
}

/// The entry points of this instruction set.
inline kernel_table table() { return {hwy::TargetName(HWY_TARGET), plan, prepare, run, merge}; }

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
