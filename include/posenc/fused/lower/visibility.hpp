// SPDX-License-Identifier: MIT
/// \file
/// From positions and masks to what kernels read: runs of keys, limits by distance, bounds by row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include <posenc/attention/options.hpp>
#include <posenc/fused/lower/encodings.hpp>
#include <posenc/fused/problem.hpp>

namespace posenc::inline v0_2::detail::fused_lowering {

[[nodiscard]] inline row_positions rows_of(const positions& at) {
  const axis_positions* const places = at.has_axes() ? at.axes().data() : nullptr;
  if (!at.is_run() && at.ring_split() == 0) return {0, at.explicit_positions().data(), places};
  const index_t split = at.ring_split(), lap = split > 0 ? at.ring_capacity() : 0;
  return {split > 0 ? at[0] - lap : at[0], nullptr, places, split, lap};
}

/// The fewest keys that a run has on average where keys are treated as runs.
inline constexpr index_t shortest_run = 16;

/// Where the run of key row `begin` ends.
[[nodiscard]] inline index_t end_of_run(const row_positions& keys, index_t begin, index_t end) {
  if (!keys.each) return begin < keys.split ? (std::min)(keys.split, end) : end;
  index_t row = (std::min)(begin + 1, end);
  while (row < end && keys.each[row] == keys.each[row - 1] + 1) ++row;
  return row;
}

/// How many runs the valid keys are; 0 where they are so short that keys are taken one by one.
[[nodiscard]] inline index_t count_runs(const attention_problem& problem) {
  const row_range keys = problem.valid_keys;
  index_t runs = 1;
  for (index_t row = end_of_run(problem.keys, keys.begin, keys.end); row < keys.end; ++runs)
    row = end_of_run(problem.keys, row, keys.end);
  return !problem.keys.each || runs == 1 || runs * shortest_run <= keys.end - keys.begin ? runs : 0;
}

inline void fill_runs(const attention_problem& problem, index_t count, key_run* to) {
  const row_range keys = problem.valid_keys;
  index_t begin = keys.begin;
  for (index_t n = 0; n < count; ++n) {
    const index_t end = end_of_run(problem.keys, begin, keys.end);
    to[n] = {begin, end, begin < keys.end ? problem.keys[begin] : 0};
    begin = end;
  }
}

/// Mask by position, window and chunk; the parts that are asked score by score.
inline void lower_visibility(const key_visibility& visible, attention_problem& problem) {
  constexpr position none = attention_problem::no_limit;
  const attention_window& window = visible.window();
  problem.farthest_behind = (std::min)(window.lookback.value_or(none), position{none});
  problem.farthest_ahead =
      visible.causal_by_position() ? 0 : (std::min)(window.lookahead.value_or(none), position{none});
  if (visible.blocks_keep_window()) {
    problem.window_behind = problem.farthest_behind;
    problem.window_ahead = (std::min)(window.lookahead.value_or(none), position{none});
  }
  problem.chunk = visible.chunk().value_or(0);
  problem.elements = visible.needs_elements() ? visible.parts() : nullptr;
}

/// True when blocks let queries see what mask and window hide.
[[nodiscard]] inline bool opens_rows(const key_visibility& visible) {
  return visible.parts() && !visible.parts()->blocks.empty();
}

inline void fill_bounds(const key_visibility& visible, const attention_problem& problem, row_bounds* to) {
  for (index_t i = 0; i < problem.query_tokens; ++i) {
    const visible_rows rows = visible.rows(i);
    const auto within = [&rows](const row_range& range) {
      const index_t begin = (std::max)(range.begin, rows.inside.begin);
      return row_range{begin, (std::max)(begin, (std::min)(range.end, rows.inside.end))};
    };
    std::construct_at(to + i, row_bounds{within(rows.ordered), within(rows.block)});
  }
}

}  // namespace posenc::inline v0_2::detail::fused_lowering
