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
  return at.is_run() ? row_positions{at[0], nullptr, places}
                     : row_positions{0, at.explicit_positions().data(), places};
}

/// The fewest keys that a run has on average where keys are treated as runs.
inline constexpr index_t shortest_run = 16;

/// How many runs the valid keys are; 0 where they are so short that keys are taken one by one.
[[nodiscard]] inline index_t count_runs(const attention_problem& problem) {
  const row_range keys = problem.valid_keys;
  if (!problem.keys.each) return 1;
  index_t runs = 1;
  for (index_t j = keys.begin + 1; j < keys.end; ++j)
    if (problem.keys.each[j] != problem.keys.each[j - 1] + 1) ++runs;
  return runs == 1 || runs * shortest_run <= keys.end - keys.begin ? runs : 0;
}

inline void fill_runs(const attention_problem& problem, index_t count, key_run* to) {
  const row_range keys = problem.valid_keys;
  index_t begin = keys.begin;
  for (index_t n = 0; n < count; ++n) {
    index_t end = begin < keys.end ? begin + 1 : keys.end;
    if (!problem.keys.each)
      end = keys.end;
    else
      while (end < keys.end && problem.keys.each[end] == problem.keys.each[end - 1] + 1) ++end;
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
