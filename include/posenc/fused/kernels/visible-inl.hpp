// SPDX-License-Identifier: MIT
/// \file
/// Which keys the queries of a problem see, as ranges of rows. Included once per instruction set.
///
/// On a run of consecutive positions, what mask, window, chunk, documents and blocks leave to a query is one range of
/// rows, and what its block opens is another. Kernels skip, cut and mask tiles by those two ranges alone.
#if defined(POSENC_FUSED_VISIBLE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_VISIBLE_INL_HPP
#undef POSENC_FUSED_VISIBLE_INL_HPP
#else
#define POSENC_FUSED_VISIBLE_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/storage/load-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

HWY_INLINE bool is_empty(const row_range& rows) { return rows.begin >= rows.end; }

HWY_INLINE row_range intersection(const row_range& a, const row_range& b) {
  return {(std::max)(a.begin, b.begin), (std::min)(a.end, b.end)};
}

/// The smallest range that holds both.
HWY_INLINE row_range hull_of(const row_range& a, const row_range& b) {
  if (is_empty(a)) return b;
  if (is_empty(b)) return a;
  return {(std::min)(a.begin, b.begin), (std::max)(a.end, b.end)};
}

/// Rows of a run whose positions lie in [lowest, highest]. Distances of positions reach to 2^63, so each difference is
/// taken where it is known to fit.
HWY_INLINE row_range rows_between(const key_run& run, position lowest, position highest) {
  const position last = run.first + (run.end - run.begin) - 1;
  if (is_empty({run.begin, run.end}) || lowest > last || highest < run.first) return {run.begin, run.begin};
  return {lowest <= run.first ? run.begin : run.begin + (lowest - run.first),
          highest >= last ? run.end : run.begin + (highest - run.first) + 1};
}

/// Rows of a run that limits of position leave to a query.
HWY_INLINE row_range rows_in_reach(const key_run& run, position query, position behind, position ahead,
                                   position chunk) {
  constexpr position farthest = (std::numeric_limits<position>::max)();
  position lowest = behind == attention_problem::no_limit ? -farthest : query - behind;
  position highest = ahead == attention_problem::no_limit ? farthest : query + ahead;
  if (chunk > 0) {
    const position begin = chunk_begin(query, chunk);
    lowest = (std::max)(lowest, begin);
    highest = (std::min)(highest, begin + (chunk - 1));
  }
  return rows_between(run, lowest, highest);
}

/// The rows of a run that query row `row` sees, elements aside.
inline HWY_NOINLINE row_bounds bounds_in(const attention_problem& problem, index_t row, const key_run& run) {
  const position query = problem.queries[row];
  row_bounds seen{rows_in_reach(run, query, problem.farthest_behind, problem.farthest_ahead, problem.chunk),
                  {}};
  if (!problem.bounds) return seen;
  const row_bounds& by_rows = problem.bounds[row];
  seen.base = intersection(seen.base, by_rows.base);
  seen.open =
      intersection(rows_in_reach(run, query, problem.window_behind, problem.window_ahead, 0), by_rows.open);
  if (is_empty(seen.base)) seen.base = {run.begin, run.begin};
  if (is_empty(seen.open)) seen.open = {run.begin, run.begin};
  return seen;
}

/// Whether these bounds hold a row.
HWY_INLINE bool holds(const row_bounds& seen, index_t row) {
  return (row >= seen.base.begin && row < seen.base.end) || (row >= seen.open.begin && row < seen.open.end);
}

/// What a range of rows spans.
struct position_span {
  position lowest = 0, highest = 0;
  bool run = false;
};

HWY_INLINE position_span span_of(const row_positions& positions, index_t first, index_t count) {
  if (positions.is_run(first, count)) return {positions[first], positions[first] + count - 1, true};
  position_span span{positions[first], positions[first], false};
  for (index_t n = 1; n < count; ++n) {
    span.lowest = (std::min)(span.lowest, positions[first + n]);
    span.highest = (std::max)(span.highest, positions[first + n]);
  }
  return span;
}

enum class sight : unsigned char { none, some, all };

/// What queries in `queries` see of scattered keys in `keys`, judged by the ends of both; `some` where rows or chunks
/// decide as well.
HWY_INLINE sight sight_of(const attention_problem& problem, const position_span& queries,
                          const position_span& keys) {
  if (problem.bounds || problem.chunk > 0) return sight::some;
  const position nearest_ahead = keys.lowest - queries.highest,
                 farthest_ahead = keys.highest - queries.lowest;
  const bool ahead_limited = problem.farthest_ahead != attention_problem::no_limit,
             behind_limited = problem.farthest_behind != attention_problem::no_limit;
  if (ahead_limited && nearest_ahead > problem.farthest_ahead) return sight::none;
  if (behind_limited && -farthest_ahead > problem.farthest_behind) return sight::none;
  if (ahead_limited && farthest_ahead > problem.farthest_ahead) return sight::some;
  if (behind_limited && -nearest_ahead > problem.farthest_behind) return sight::some;
  return sight::all;
}

/// query − key for the nearest key that query row `row` sees, elements aside; 0 where keys lie on both sides, or
/// none is seen. A linear bias is added relative to it: far-away keys then cost no bits.
inline HWY_NOINLINE position nearest_distance(const attention_problem& problem, index_t row) {
  const position query = problem.queries[row];
  constexpr position none = (std::numeric_limits<position>::max)();
  position behind = none, ahead = none;  // distances to the nearest key on either side
  const auto see = [&](position first, position last) {
    if (query >= first) behind = (std::min)(behind, query > last ? query - last : 0);
    if (query <= last) ahead = (std::min)(ahead, query < first ? first - query : 0);
  };
  if (!problem.runs)
    for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j)
      if (problem.sees(row, j)) see(problem.keys[j], problem.keys[j]);
  for (index_t n = 0; n < problem.run_count; ++n) {
    const key_run& run = problem.runs[n];
    const row_bounds seen = bounds_in(problem, row, run);
    for (const row_range& rows : {seen.base, seen.open})
      if (!is_empty(rows)) see(run.first + (rows.begin - run.begin), run.first + (rows.end - 1 - run.begin));
  }
  return ahead == none ? (behind == none ? 0 : behind) : behind == none ? -ahead : 0;
}

/// The bias of a head at the distance of the nearest key, in nats: what a linear bias left out of every score of a row.
HWY_INLINE double bias_left_out(const attention_problem& problem, index_t head, position nearest) {
  if (problem.bias.kind != distance_bias::form::linear) return 0;
  return (nearest >= 0 ? problem.bias.behind : problem.bias.ahead)[head] * static_cast<double>(nearest);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
