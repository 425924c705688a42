// SPDX-License-Identifier: MIT
/// \file
/// From encodings to the plain numbers that kernels read (problem.hpp). No encoding is named here: what one can be
/// lowered to, it says itself by the members that encoding.hpp lists, ours and users' alike.
///
/// | door | lowers to | otherwise |
/// |---|---|---|
/// | rotate | the rotation that `lowered()` returns | the encoding's rotate, row by row |
/// | bias(head, offset) | `linear_bias(head)`: two slopes per head; else one diagonal per head (below) | element by element |
/// | bias(head, query, key) | | element by element |
/// | relative_key, relative_value | rows by offset, multiplied as a matrix, where positions are consecutive and nothing rotates | row by row |
/// | scale | | once per query and head |
///
/// What can be refused is refused here, before any output is written: the scale is evaluated at every query,
/// tokens are looked up in the tables of multi-axis rotations and by check_rotate, a diagonal is filled; a bias by
/// element is tried on one pair of tokens for every head. What an encoding's functions throw later, inside the
/// kernels, reaches the caller under every executor.
///
/// A diagonal ends where the bias stops changing (`bias_reach`) or at the distances of the call.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include <posenc/attention/options.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/problem.hpp>

namespace posenc::inline v0_2::detail::fused_lowering {
using namespace fused_problem;

struct position_bounds {
  position lowest = 0, highest = -1;
};
[[nodiscard]] inline position_bounds bounds_of(const row_positions& positions, const row_range& rows) {
  if (rows.begin >= rows.end) return {};
  if (positions.is_run(rows.begin, rows.end - rows.begin) && !positions.each)
    return {positions[rows.begin], positions[rows.end - 1]};
  position_bounds bounds{positions[rows.begin], positions[rows.begin]};
  for (index_t row = rows.begin; row < rows.end; ++row) {
    bounds.lowest = (std::min)(bounds.lowest, positions[row]);
    bounds.highest = (std::max)(bounds.highest, positions[row]);
  }
  return bounds;
}

/// Distances query − key, first … last; empty when first > last.
struct distance_range {
  position first = 0, last = -1;

  /// How many there are; the largest number there is when they are more.
  [[nodiscard]] position count() const noexcept {
    if (first > last) return 0;
    constexpr position most = (std::numeric_limits<position>::max)();
    const auto steps = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    return steps < static_cast<std::uint64_t>(most) ? static_cast<position>(steps) + 1 : most;
  }
};
/// Every distance between valid tokens.
[[nodiscard]] inline distance_range all_distances(const attention_problem& problem) {
  if (problem.valid_queries.begin >= problem.valid_queries.end ||
      problem.valid_keys.begin >= problem.valid_keys.end)
    return {};
  const position_bounds queries = bounds_of(problem.queries, problem.valid_queries),
                        keys = bounds_of(problem.keys, problem.valid_keys);
  return {queries.lowest - keys.highest, queries.highest - keys.lowest};
}
/// Drops a limit that no distance reaches: kernels need not look, nor add it to a distance that is as large as
/// distances get.
inline void drop_idle_limits(attention_problem& problem) {
  const distance_range all = all_distances(problem);
  constexpr position none = attention_problem::no_limit;
  if (-all.first <= problem.farthest_ahead) problem.farthest_ahead = none;
  if (all.last <= problem.farthest_behind) problem.farthest_behind = none;
  if (-all.first <= problem.window_ahead) problem.window_ahead = none;
  if (all.last <= problem.window_behind) problem.window_behind = none;
}
/// Those that may be seen, cut off where the bias stops changing.
[[nodiscard]] inline distance_range seen_distances(distance_range range, const attention_problem& problem,
                                                   bool opens_rows, std::optional<position> reach) {
  constexpr position none = attention_problem::no_limit;
  const position ahead = opens_rows ? problem.window_ahead : problem.farthest_ahead,
                 behind = opens_rows ? problem.window_behind : problem.farthest_behind;
  if (ahead != none) range.first = (std::max)(range.first, -ahead);
  if (behind != none) range.last = (std::min)(range.last, behind);
  if (range.first > range.last) return {};
  if (!reach) return range;
  return {(std::clamp)(range.first, -*reach, *reach), (std::clamp)(range.last, -*reach, *reach)};
}

/// What the bias of a problem takes, decided before memory is there.
struct bias_plan {
  distance_bias::form kind = distance_bias::form::none;
  distance_range distances{};
  bool by_element = false;
  std::size_t bytes = 0;
};

template <class E>
[[nodiscard]] std::optional<position> checked_reach(const E& encoding) {
  if constexpr (has_bias_reach<E>) {
    const position reach = encoding.bias_reach();
    require(reach >= 0 && reach <= position_limit, "fused attention: bias_reach() of this encoding is ",
            reach, "; it is a distance, not negative");
    return reach;
  } else {
    return std::nullopt;
  }
}

/// \param opens_rows blocks let queries see keys that mask and window would hide
template <class E>
[[nodiscard]] bias_plan plan_bias(const E& encoding, const attention_problem& problem, bool opens_rows) {
  bias_plan plan;
  if constexpr (biases<E>) {
    const auto heads = static_cast<std::size_t>(problem.heads);
    if constexpr (has_bias_heads<E>) {
      const index_t made_for = encoding.bias_heads();
      require(made_for == 0 || made_for == problem.heads, "attention: a bias made for ", made_for,
              " heads, the option heads says ", problem.heads);
    }
    if constexpr (has_linear_bias<E>) {
      plan.kind = distance_bias::form::linear;
      plan.bytes = 2 * heads * sizeof(double);
      return plan;
    } else if constexpr (biases_by_offset<E>) {
      const distance_range all = all_distances(problem);
      plan.distances = seen_distances(all, problem, opens_rows, checked_reach(encoding));
      if (plan.distances.count() <= 0) return plan;
      // Scattered positions may span any distance; then a table costs more than it saves. And kernels that read
      // it count a tile beyond a distance, which must not be the last number there is.
      const bool is_near = all.first > -attention_problem::no_limit && all.last < attention_problem::no_limit;
      if (is_near && plan.distances.count() <= problem.query_tokens + problem.key_tokens + 4096) {
        plan.kind = distance_bias::form::diagonal;
        plan.bytes = heads * static_cast<std::size_t>(plan.distances.count()) * sizeof(float);
        return plan;
      }
    }
    plan.by_element = true;
  }
  return plan;
}

/// Tells the problem what form its bias takes, without its values: enough to plan.
template <class E>
void announce_bias(const bias_plan& plan, attention_problem& problem) {
  problem.bias.kind = plan.kind;
  if constexpr (biases<E>) {
    if (plan.by_element)
      problem.callbacks.bias = [](const void* of, index_t head, position query, position key) {
        return bias_as<float>(*static_cast<const E*>(of), static_cast<int>(head), query, key);
      };
  }
}

/// Fills in the values of the bias; `memory` holds plan.bytes.
template <class E>
void lower_bias([[maybe_unused]] const E& encoding, const bias_plan& plan, [[maybe_unused]] void* memory,
                attention_problem& problem) {
  if constexpr (has_linear_bias<E>) {
    if (plan.kind == distance_bias::form::linear) {
      auto* const slopes = static_cast<double*>(memory);
      for (index_t h = 0; h < problem.heads; ++h) {
        const bias_line line = encoding.linear_bias(static_cast<int>(h));
        require(is_finite(line.behind) && is_finite(line.ahead), "fused attention: the linear bias of head ",
                h, " has slopes ", line.behind, " and ", line.ahead);
        slopes[h] = line.behind;
        slopes[problem.heads + h] = line.ahead;
      }
      problem.bias.behind = slopes;
      problem.bias.ahead = slopes + problem.heads;
    }
  } else if constexpr (biases_by_offset<E>) {
    if (plan.kind == distance_bias::form::diagonal) {
      auto* const values = static_cast<float*>(memory);
      const index_t count = plan.distances.count();
      for (index_t h = 0; h < problem.heads; ++h)
        for (index_t n = 0; n < count; ++n) {
          const position distance = plan.distances.first + n;
          const auto value = bias_as<double>(encoding, static_cast<int>(h), distance, 0);
          values[h * count + n] = static_cast<float>(value * score_unit);
        }
      problem.bias.values = values;
      problem.bias.stride = count;
      problem.bias.first = plan.distances.first;
      problem.bias.last = plan.distances.last;
    }
  }
}

template <class Row>
void copy_row(const Row& from, float* to, index_t channels) {
  for (index_t c = 0; c < channels; ++c) to[c] = static_cast<float>(from[static_cast<std::size_t>(c)]);
}

template <class Row>
void check_relative_row(const Row& row, index_t channels, const char* what) {
  if constexpr (requires { row.size(); })
    require(static_cast<index_t>(row.size()) == channels, what, " returns rows of ",
            static_cast<index_t>(row.size()), " channels for heads of ", channels);
}

/// Checks a rotation against the problem. \throws std::invalid_argument, std::out_of_range
inline void check_rotation(const rotation& rotary, const attention_problem& problem) {
  require(rotary.head_dim == problem.head_dim, "a head of ", problem.head_dim,
          " channels given to a rotation of head_dim ", rotary.head_dim);
  require(std::abs(rotary.attention_factor) <= 1e15, "fused attention: an attention_factor of ",
          rotary.attention_factor, " is beyond what float products carry (1e15)");
  if (rotary.text_follows || problem.queries.places) return;
  for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i)
    rotary.check_token(problem.queries[i]);
  for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j)
    rotary.check_token(problem.keys[j]);
}

/// True where a rotation by a sum of positions is one by either and then by the other for all tokens of the problem: on
/// one axis, and for text under a rotation of several, which stands at the same place on all of them.
[[nodiscard]] inline bool splits_positions(const rotation& rotary, const attention_problem& problem) {
  if (rotary.depends_on_offset_only()) return true;
  if (!rotary.framework_frequencies.empty() || problem.queries.places || problem.keys.places) return false;
  const auto table = static_cast<position>(rotary.axis_positions_of_token.size());
  const auto is_text = [table](const row_positions& positions, const row_range& rows) {
    const position_bounds bounds = bounds_of(positions, rows);
    return rows.begin >= rows.end || table == 0 || bounds.lowest >= table || bounds.highest < 0;
  };
  constexpr int extra = 3;  // where text stands still
  return std::find(rotary.axis_of_pair.begin(), rotary.axis_of_pair.end(), extra) ==
             rotary.axis_of_pair.end() &&
         is_text(problem.queries, problem.valid_queries) && is_text(problem.keys, problem.valid_keys);
}

/// Checks every rotation that an encoding is made of.
template <class E>
void check_rotations(const E& encoding, const attention_problem& problem) {
  if constexpr (lowers_to_rotation<E>) {
    check_rotation(encoding.lowered(), problem);
  } else if constexpr (requires { encoding.first, encoding.second; }) {
    check_rotations(encoding.first, problem);
    check_rotations(encoding.second, problem);
  } else if constexpr (checks_rotate<E>) {
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i)
      encoding.check_rotate(problem.head_dim, problem.queries[i]);
    if (problem.keys_are_rotated) return;
    for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j)
      encoding.check_rotate(problem.head_dim, problem.keys[j]);
  }
}

/// Lets those functions throw here that would throw inside the kernels: a position without a value, a table of
/// fewer heads.
inline void check_callbacks(const attention_problem& problem) {
  const encoding_callbacks& callbacks = problem.callbacks;
  const row_range queries = problem.valid_queries;
  if (callbacks.scale)
    for (index_t i = queries.begin; i < queries.end; ++i)
      for (index_t h = 0; h < problem.heads; ++h)
        (void)callbacks.scale(callbacks.encoding, h, problem.queries[i]);
  if (!callbacks.bias || queries.begin >= queries.end) return;
  const index_t last = queries.end - 1;
  for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j) {
    if (!problem.sees(last, j)) continue;
    for (index_t h = 0; h < problem.heads; ++h)
      (void)callbacks.bias(callbacks.encoding, h, problem.queries[last], problem.keys[j]);
    return;
  }
}

template <class E>
void call_rotate(const void* of, float* head, index_t channels, position at, const axis_positions* place,
                 rotation_side side) {
  const E& encoding = *static_cast<const E*>(of);
  const std::span<float> row(head, static_cast<std::size_t>(channels));
  if constexpr (rotates_on_axes<E, float>)
    if (place) return encoding.rotate_on_axes(row, *place);
  if (side == rotation_side::query)
    rotate_query(encoding, row, at);
  else
    rotate_key(encoding, row, at);
}

/// Every door but the bias. `encoding` has to outlive the problem.
/// \throws std::invalid_argument, std::out_of_range when the encoding does not fit
template <class E>
void lower_doors(const E& encoding, attention_problem& problem) {
  problem.callbacks.encoding = &encoding;
  if constexpr (rotates<E, float>) {
    check_rotations(encoding, problem);
    if constexpr (lowers_to_rotation<E>) {
      const rotation& rotary = encoding.lowered();
      if (rotary.rotary_dim > 0) problem.rotary = &rotary;
      if (rotary.rotates_values) rotary.check_values(problem.value_dim);
      problem.splits_positions = splits_positions(rotary, problem);
    } else {
      problem.callbacks.rotate = call_rotate<E>;
    }
  }
  const bool has_pairs = problem.query_tokens > 0 && problem.key_tokens > 0;
  if constexpr (has_relative_key<E>) {
    if (has_pairs) check_relative_row(encoding.relative_key(0, 0), problem.head_dim, "relative_key");
    problem.callbacks.relative_key = [](const void* of, index_t head, position offset, float* row,
                                        index_t channels) {
      copy_row(static_cast<const E*>(of)->relative_key(static_cast<int>(head), offset), row, channels);
    };
  }
  if constexpr (has_relative_value<E>) {
    if (has_pairs) check_relative_row(encoding.relative_value(0, 0), problem.value_dim, "relative_value");
    problem.callbacks.relative_value = [](const void* of, index_t head, position offset, float* row,
                                          index_t channels) {
      copy_row(static_cast<const E*>(of)->relative_value(static_cast<int>(head), offset), row, channels);
    };
  }
  if constexpr (scales<E>)
    problem.callbacks.scale = [](const void* of, index_t head, position query) {
      return static_cast<double>(scale_of(*static_cast<const E*>(of), static_cast<int>(head), query));
    };
}

}  // namespace posenc::inline v0_2::detail::fused_lowering
