// SPDX-License-Identifier: MIT
/// \file
/// Splits of the keys of a problem with few queries, and how their results become one. Included once per instruction set.
///
/// A long cache is cut by its shape alone, so that the bits of a result do not depend on how many threads there are.
#if defined(POSENC_FUSED_SPLITS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_SPLITS_INL_HPP
#undef POSENC_FUSED_SPLITS_INL_HPP
#else
#define POSENC_FUSED_SPLITS_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/kernels/finish-inl.hpp>
#include <posenc/fused/kernels/visible-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Tasks wanted of one problem, and the fewest keys that are worth a split.
inline constexpr index_t wanted_tasks = 32, shortest_split = 1024;

/// Rows of keys that some query of the problem sees.
inline HWY_NOINLINE row_range seen_keys(const attention_problem& problem) {
  row_range range{problem.valid_keys.begin, problem.valid_keys.begin};
  for (index_t n = 0; n < problem.run_count; ++n)
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i) {
      const row_bounds seen = bounds_in(problem, i, problem.runs[n]);
      range = hull_of(range, hull_of(seen.base, seen.open));
    }
  return range;
}

/// Cuts the keys that are seen, where each of `groups` tasks would read them all, into splits of whole blocks.
inline HWY_NOINLINE void split_keys(const attention_problem& problem, index_t groups, index_t block,
                                    task_plan& plan) {
  plan.keys = seen_keys(problem);
  const index_t keys = plan.keys.end - plan.keys.begin;
  const index_t splits =
      (std::clamp)(keys / shortest_split, index_t{1}, (wanted_tasks + groups - 1) / groups);
  plan.split = round_up((std::max)(index_t{1}, (keys + splits - 1) / splits), block);
  plan.tiles = (std::max)(index_t{1}, (keys + plan.split - 1) / plan.split);
  plan.tasks = groups * plan.tiles;
  plan.merges = plan.tiles > 1 ? groups : 0;
}

HWY_INLINE row_range keys_of_split(const task_plan& plan, index_t split) {
  const index_t begin = (std::min)(plan.keys.end, plan.keys.begin + split * plan.split);
  return {begin, (std::min)(plan.keys.end, begin + plan.split)};
}

/// Floats of one row's partial result: its output, padded, then largest and total.
HWY_INLINE index_t partial_stride(const attention_problem& problem) {
  return round_up(problem.value_dim, panel_width()) + panel_width();
}

/// What a linear bias left out of every score of a row, in nats.
HWY_INLINE double left_out(const attention_problem& problem, index_t head, index_t query) {
  const bool is_token = query >= problem.valid_queries.begin && query < problem.valid_queries.end;
  if (problem.bias.kind != distance_bias::form::linear || !is_token) return 0;
  return bias_left_out(problem, head, nearest_distance(problem, query));
}

struct head_and_query {
  index_t head, query;
};

/// Adds up the partial results of the splits, in their order, in place of the first, and writes the output rows.
/// `row_of(r)` says whose row r is.
template <class RowOf>
HWY_NOINLINE void merge_partials(const attention_problem& problem, index_t rows, index_t splits,
                                 index_t split_floats, float* partials, const RowOf& row_of) {
  const index_t stride = partial_stride(problem), state = round_up(problem.value_dim, panel_width());
  for (index_t r = 0; r < rows; ++r) {
    float* const sum = partials + r * stride;
    for (index_t split = 1; split < splits; ++split) {
      const float* const next = partials + split * split_floats + r * stride;
      const float largest = (std::max)(sum[state], next[state]);
      const float_vector keep = exp4_of(constant(sum[state] - largest)),
                         add = exp4_of(constant(next[state] - largest));
      for (index_t c = 0; c < state; c += lanes())
        store(hn::MulAdd(load(sum + c), keep, hn::Mul(load(next + c), add)), sum + c);
      sum[state + 1] = sum[state + 1] * hn::GetLane(keep) + next[state + 1] * hn::GetLane(add);
      sum[state] = largest;
    }
    const auto [head, query] = row_of(r);
    const bool is_token = query >= problem.valid_queries.begin && query < problem.valid_queries.end;
    finish_row(problem, head, query,
               {sum[state], sum[state + 1], sum, is_token, left_out(problem, head, query)});
  }
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
