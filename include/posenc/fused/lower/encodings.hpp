// SPDX-License-Identifier: MIT
/// \file
/// From encodings to the plain numbers that kernels read (problem.hpp).
///
/// | door | lowers to | otherwise |
/// |---|---|---|
/// | rotate | the rotation that `lowered()` returns | the encoding's rotate, row by row |
/// | bias(head, offset) | ALiBi: two slopes per head; else one diagonal per head (below) | element by element |
/// | bias(head, query, key) | | element by element |
/// | relative_key, relative_value | rows by offset, multiplied as a matrix, where positions are consecutive and nothing rotary | row by row |
/// | scale | | once per query |
///
/// What can be refused is refused here, before any output is written: the scale is evaluated at every query,
/// tokens are looked up in the tables of multi-axis rotations, a diagonal is filled; a bias by element is tried
/// on one pair of tokens for every head. What an encoding's functions throw later, inside the kernels, reaches
/// the caller under every executor.
///
/// A diagonal ends where the bias stops changing (`bias_reach`) or at the distances of the problem.
///
/// An encoding of your own is lowered further when it has `const posenc::rotation& lowered() const`, or
/// `position bias_reach() const`: the distance from which on, to either side, its bias(head, offset) stays
/// what it is.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include <posenc/attention/options.hpp>
#include <posenc/encoding.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/t5_bias.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/problem.hpp>

namespace posenc::inline v0_2::detail::fused_lowering {
using namespace fused_problem;

/// Kernels count exponents in base 2.
inline constexpr double log2_of_e = 1.4426950408889634;

template <class E>
inline constexpr bool is_combined = false;
template <class A, class B>
inline constexpr bool is_combined<combined<A, B>> = true;

template <class E>
inline constexpr bool is_alibi = false;
template <class T>
inline constexpr bool is_alibi<alibi<T>> = true;

template <class E>
concept has_rotation = requires(const E& e) {
  { e.lowered() } -> std::convertible_to<const rotation&>;
};

template <class E>
concept has_bias_reach = requires(const E& e) {
  { e.bias_reach() } -> std::convertible_to<position>;
};

/// The one rotation an encoding comes down to; null when it has none or is not made of exactly one.
template <class E>
[[nodiscard]] const rotation* rotation_of(const E& encoding) {
  if constexpr (has_rotation<E>) {
    return &encoding.lowered();
  } else if constexpr (is_combined<E>) {
    using first = std::remove_cvref_t<decltype(encoding.first)>;
    using second = std::remove_cvref_t<decltype(encoding.second)>;
    if constexpr (!rotates<second, float>)
      return rotation_of(encoding.first);
    else if constexpr (!rotates<first, float>)
      return rotation_of(encoding.second);
    else
      return nullptr;
  } else {
    return nullptr;
  }
}

/// The ALiBi that is the only bias of an encoding, or null.
template <class E>
[[nodiscard]] auto alibi_of(const E& encoding) {
  if constexpr (is_alibi<E>) {
    return &encoding;
  } else if constexpr (is_combined<E>) {
    using first = std::remove_cvref_t<decltype(encoding.first)>;
    using second = std::remove_cvref_t<decltype(encoding.second)>;
    if constexpr (!biases<second>)
      return alibi_of(encoding.first);
    else if constexpr (!biases<first>)
      return alibi_of(encoding.second);
    else
      return static_cast<const alibi<float>*>(nullptr);
  } else {
    return static_cast<const alibi<float>*>(nullptr);
  }
}

/// The distance from which on a bias by offset does not change, to either side, where that is known.
template <class E>
[[nodiscard]] std::optional<position> bias_reach_of(const E& encoding) {
  if constexpr (has_bias_reach<E>) {
    return encoding.bias_reach();
  } else if constexpr (is_combined<E>) {
    std::optional<position> first = 0, second = 0;
    if constexpr (biases<std::remove_cvref_t<decltype(encoding.first)>>)
      first = bias_reach_of(encoding.first);
    if constexpr (biases<std::remove_cvref_t<decltype(encoding.second)>>)
      second = bias_reach_of(encoding.second);
    if (!first || !second) return std::nullopt;
    return (std::max)(*first, *second);
  } else {
    return std::nullopt;
  }
}
template <class T>
[[nodiscard]] std::optional<position> bias_reach_of(const t5_bias<T>& encoding) {
  return encoding.thresholds().back();
}
template <class T>
[[nodiscard]] std::optional<position> bias_reach_of(const relative_bias<T>& encoding) {
  return (std::max)(encoding.clip().left, encoding.clip().right);
}

/// The smallest and the largest position of a tensor's rows [begin, end), which must not be empty.
struct position_bounds {
  position lowest = 0, highest = 0;
};
[[nodiscard]] inline position_bounds bounds_of(const row_positions& rows, const row_range& range) {
  if (!rows.each) return {rows[range.begin], rows[range.end - 1]};
  const auto [lowest, highest] = std::minmax_element(rows.each + range.begin, rows.each + range.end);
  return {*lowest, *highest};
}

/// Distances δ = query − key; none by default.
struct distance_range {
  position first = 0, last = -1;
  /// How many they are; the largest number there is where they are more.
  [[nodiscard]] position count() const noexcept {
    if (first > last) return 0;
    constexpr position most = (std::numeric_limits<position>::max)();
    const auto steps = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    return steps < static_cast<std::uint64_t>(most) ? static_cast<position>(steps) + 1 : most;
  }
};
/// Every distance between valid tokens.
[[nodiscard]] inline distance_range all_distances(const attention_problem& problem) {
  if (problem.valid_queries.begin >= problem.valid_queries.end || problem.valid_keys.begin >= problem.valid_keys.end)
    return {};
  const position_bounds queries = bounds_of(problem.queries, problem.valid_queries),
                        keys = bounds_of(problem.keys, problem.valid_keys);
  return {queries.lowest - keys.highest, queries.highest - keys.lowest};
}
/// Drops a limit that no distance reaches: kernels need not look, nor add it to a distance that is as large as
/// distances get.
inline void drop_idle_limits(attention_problem& problem) {
  const distance_range all = all_distances(problem);
  if (-all.first <= problem.farthest_ahead) problem.farthest_ahead = attention_problem::no_limit;
  if (all.last <= problem.farthest_behind) problem.farthest_behind = attention_problem::no_limit;
}
/// Those that are seen, cut off where the bias stops changing.
[[nodiscard]] inline distance_range seen_distances(distance_range range, const attention_problem& problem,
                                                   std::optional<position> reach) {
  if (problem.farthest_ahead != attention_problem::no_limit) range.first = (std::max)(range.first, -problem.farthest_ahead);
  if (problem.farthest_behind != attention_problem::no_limit) range.last = (std::min)(range.last, problem.farthest_behind);
  if (range.first > range.last) return {};
  if (!reach) return range;
  return {(std::clamp)(range.first, -*reach, *reach), (std::clamp)(range.last, -*reach, *reach)};
}

/// What a problem's bias takes, decided before memory is there.
struct bias_plan {
  distance_bias::form kind = distance_bias::form::none;
  distance_range distances{};
  bool by_element = false;
  std::size_t bytes = 0;
};

template <class E>
[[nodiscard]] bias_plan plan_bias(const E& encoding, const attention_problem& problem) {
  bias_plan plan;
  if constexpr (biases<E>) {
    const auto heads = static_cast<std::size_t>(problem.heads);
    if (const auto* line = alibi_of(encoding)) {
      require(line->heads() >= problem.heads, "alibi: ", line->heads(), " slopes for ", problem.heads, " heads");
      plan.kind = distance_bias::form::linear;
      plan.bytes = 2 * heads * sizeof(double);
      return plan;
    }
    if constexpr (biases_by_offset<E>) {
      const distance_range all = all_distances(problem);
      plan.distances = seen_distances(all, problem, bias_reach_of(encoding));
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

/// Tells `problem` what form its bias takes, without its values: enough to plan.
template <class E>
void announce_bias(const bias_plan& plan, attention_problem& problem) {
  problem.bias.kind = plan.kind;
  if constexpr (biases<E>) {
    if (plan.by_element)
      problem.callbacks.bias = [](const void* of, index_t head, position query, position key) {
        return static_cast<float>(bias_of(*static_cast<const E*>(of), static_cast<int>(head), query, key));
      };
  }
}

/// Fills in the values of the bias of `problem`; `memory` holds plan.bytes.
template <class E>
void lower_bias([[maybe_unused]] const E& encoding, const bias_plan& plan, [[maybe_unused]] void* memory,
                attention_problem& problem) {
  if constexpr (biases<E>) {
    if (plan.kind == distance_bias::form::linear) {
      const auto* const line = alibi_of(encoding);
      auto* const slopes = static_cast<double*>(memory);
      for (index_t h = 0; h < problem.heads; ++h) {
        const double slope = line->slopes()[static_cast<std::size_t>(h)];
        slopes[h] = -slope;
        slopes[problem.heads + h] = line->form() == alibi_form::symmetric ? slope : -slope;
      }
      problem.bias.behind = slopes;
      problem.bias.ahead = slopes + problem.heads;
    }
  }
  if constexpr (biases_by_offset<E>) {
    if (plan.kind == distance_bias::form::diagonal) {
      auto* const values = static_cast<float*>(memory);
      const index_t count = plan.distances.count();
      for (index_t h = 0; h < problem.heads; ++h)
        for (index_t n = 0; n < count; ++n) {
          const auto value = encoding.bias(static_cast<int>(h), -(plan.distances.first + n));
          values[h * count + n] = static_cast<float>(static_cast<double>(value) * log2_of_e);
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

/// Checks every rotation that `encoding` is made of. \throws std::invalid_argument, std::out_of_range
template <class E>
void check_rotations(const E& encoding, const attention_problem& problem) {
  if constexpr (has_rotation<E>) {
    const rotation& rotary = encoding.lowered();
    require(rotary.head_dim == problem.head_dim, "a head of ", problem.head_dim,
            " channels given to a rotation of head_dim ", rotary.head_dim);
    if (rotary.text_follows) return;
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i)
      rotary.check_token(problem.queries[i]);
    for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j) rotary.check_token(problem.keys[j]);
  } else if constexpr (is_combined<E>) {
    check_rotations(encoding.first, problem);
    check_rotations(encoding.second, problem);
  }
}

/// Lets those functions throw here that would throw inside the kernels: a position without a value, a table of
/// fewer heads.
template <class E>
void check_calls(const E& encoding, const attention_problem& problem) {
  const row_range queries = problem.valid_queries;
  if (problem.callbacks.scale)
    for (index_t i = queries.begin; i < queries.end; ++i) problem.callbacks.scale(&encoding, problem.queries[i]);
  if (!problem.callbacks.bias || queries.begin >= queries.end) return;
  const position query = problem.queries[queries.end - 1];
  for (index_t j = problem.valid_keys.begin; j < problem.valid_keys.end; ++j) {
    if (!problem.sees(query, problem.keys[j])) continue;
    for (index_t h = 0; h < problem.heads; ++h) problem.callbacks.bias(&encoding, h, query, problem.keys[j]);
    return;
  }
}

/// Every door but the bias. `encoding` has to outlive the problem.
/// \throws std::invalid_argument, std::out_of_range when the encoding does not fit the problem.
template <class E>
void lower_doors(const E& encoding, attention_problem& problem) {
  problem.callbacks.encoding = &encoding;
  if constexpr (rotates<E, float>) {
    check_rotations(encoding, problem);
    const rotation* const rotary = rotation_of(encoding);
    if (rotary) {
      if (rotary->rotary_dim > 0) problem.rotary = rotary;
    } else {
      problem.callbacks.rotate = [](const void* of, float* head, index_t channels, position at, rotation_side side) {
        const std::span<float> row(head, static_cast<std::size_t>(channels));
        if (side == rotation_side::query)
          rotate_query(*static_cast<const E*>(of), row, at);
        else
          rotate_key(*static_cast<const E*>(of), row, at);
      };
    }
  }
  if constexpr (has_relative_key<E>) {
    if (problem.query_tokens > 0 && problem.key_tokens > 0)
      check_relative_row(encoding.relative_key(0, 0), problem.head_dim, "relative_key");
    problem.callbacks.relative_key = [](const void* of, index_t head, position offset, float* row,
                                 index_t channels) {
      copy_row(static_cast<const E*>(of)->relative_key(static_cast<int>(head), offset), row, channels);
    };
  }
  if constexpr (has_relative_value<E>) {
    if (problem.query_tokens > 0 && problem.key_tokens > 0)
      check_relative_row(encoding.relative_value(0, 0), problem.value_dim, "relative_value");
    problem.callbacks.relative_value = [](const void* of, index_t head, position offset, float* row,
                                   index_t channels) {
      copy_row(static_cast<const E*>(of)->relative_value(static_cast<int>(head), offset), row, channels);
    };
  }
  if constexpr (scales<E>)
    problem.callbacks.scale = [](const void* of, position query) {
      return static_cast<double>(static_cast<const E*>(of)->scale(query));
    };
}

}  // namespace posenc::inline v0_2::detail::fused_lowering
