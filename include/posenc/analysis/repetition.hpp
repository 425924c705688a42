// SPDX-License-Identifier: MIT
/// \file
/// Where codes come near each other: the smallest distance between two codes, and the first place where all frequencies
/// nearly repeat together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/analysis/codes.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/phase.hpp>

namespace posenc::inline v0_2 {

/// Two positions and how far apart their codes are: the root mean square over the components.
struct code_distance {
  position first = 0;   ///< the earlier of the two
  position second = 0;  ///< the later
  double distance = 0;  ///< root mean square over the components
};

/// The distance of the codes of two positions: √( Σ |c_first − c_second|² / components ).
template <position_codes C>
[[nodiscard]] double distance_between(const C& codes, position first, position second) {
  double squares = 0;
  for (index_t component = 0; component < codes.components(); ++component) {
    const code_point a = codes.at(component, first), b = codes.at(component, second);
    squares += (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]);
  }
  return codes.components() == 0 ? 0 : std::sqrt(squares / static_cast<double>(codes.components()));
}

/// Calls visit(offset, distance) for offsets first … last, ascending: how far apart the codes of positions p and p + offset
/// are, whatever p,
///
///     m·√( Σ_p 4·sin²(offset·w_p/2) / pairs )
///
/// Right to 1e-13; about 2 ns for each offset and pair.
/// \throws std::invalid_argument when the codes do not depend on the offset alone (xpos, float32 angles, several axes).
template <class Visit>
void each_offset_distance(const rotation_codes& codes, position first, position last, const Visit& visit) {
  detail::require(codes.depends_on_offset_only(),
                  "each_offset_distance: the distance of these codes does not depend on the offset alone");
  const std::span<const phase> phases = codes.phases();
  const std::size_t pairs = phases.size();
  constexpr position block = 128;  // one exact start, then complex products
  std::vector<double> cosines(pairs), sines(pairs), step_cos(pairs), step_sin(pairs);
  std::vector<phase> half(pairs);
  for (std::size_t p = 0; p < pairs; ++p) {
    half[p] = {phases[p].hi >> 1, (phases[p].hi << 63) | (phases[p].lo >> 1)};
    const auto [cos, sin] = cos_sin_of<double>(half[p]);
    step_cos[p] = cos, step_sin[p] = sin;
  }
  const double m = codes.by().attention_factor;
  const double factor = pairs == 0 ? 0 : 4 * m * m / static_cast<double>(pairs);
  for (position start = first; start <= last; start += block) {
    for (std::size_t p = 0; p < pairs; ++p) {
      const auto [cos, sin] = cos_sin_of<double>(half[p] * start);
      cosines[p] = cos, sines[p] = sin;
    }
    const position end = (std::min)(last, start + block - 1);
    for (position offset = start; offset <= end; ++offset) {
      double squares = 0;
      for (std::size_t p = 0; p < pairs; ++p) {
        const double c = cosines[p], s = sines[p];
        squares += s * s;
        cosines[p] = c * step_cos[p] - s * step_sin[p];
        sines[p] = s * step_cos[p] + c * step_sin[p];
      }
      visit(offset, std::sqrt(factor * squares));
    }
  }
}

/// The two positions whose codes are nearest to each other, among offsets first … last (all of the codes' if not given). Of
/// equal distances the smallest offset.
/// \throws std::invalid_argument when the range is empty, or as each_offset_distance does.
[[nodiscard]] inline code_distance closest_codes(const rotation_codes& codes, position first = 1,
                                                 std::optional<position> last = std::nullopt) {
  const position end = last.value_or(codes.length() - 1);
  detail::require(first <= end, "closest_codes: no offset between ", first, " and ", end);
  code_distance closest{0, first, (std::numeric_limits<double>::max)()};
  each_offset_distance(codes, first, end, [&](position offset, double distance) {
    if (distance < closest.distance) closest = {0, offset, distance};
  });
  return closest;
}

/// The same for codes of any kind, by comparing all pairs: O(length²·components), for tables of a few thousand positions.
/// \throws std::invalid_argument when there are fewer than two positions.
template <position_codes C>
[[nodiscard]] code_distance closest_codes_of_all(const C& codes) {
  detail::require(codes.length() >= 2, "closest_codes_of_all: a length of ", codes.length());
  code_distance closest{0, 1, (std::numeric_limits<double>::max)()};
  for (position i = 0; i < codes.length(); ++i)
    for (position j = i + 1; j < codes.length(); ++j) {
      const double distance = distance_between(codes, i, j);
      if (distance < closest.distance) closest = {i, j, distance};
    }
  return closest;
}

/// The smallest offset in [first, last] at which every frequency has come back to within `tolerance` of a turn of where it
/// started; nothing where there is none. Exact: phases are integers.
///
/// Goes from the slowest pair to the fastest and jumps to where the first that is away comes back, so that it takes about
/// last / (the longest period) steps and not `last`: 10^12 takes a moment for the ladder of a model.
///
/// \param tolerance in turns, above 0 and below 1/2; 1/36 is ten degrees
/// \throws std::invalid_argument when the tolerance or the range means nothing.
[[nodiscard]] inline std::optional<position> first_near_repetition(std::span<const phase> ladder,
                                                                   double tolerance, position first,
                                                                   position last) {
  detail::require(tolerance > 0 && tolerance < 0.5, "first_near_repetition: a tolerance of ", tolerance,
                  " turns is not between 0 and 1/2");
  detail::require(first >= 0 && last <= position_limit, "first_near_repetition: offsets ", first, " to ",
                  last);
  const auto near_zero = static_cast<std::uint64_t>(std::ldexp(tolerance, 64));
  const auto magnitude = [](std::uint64_t hi) { return (std::min)(hi, std::uint64_t{0} - hi); };
  std::vector<phase> slowest_first(ladder.begin(), ladder.end());
  std::sort(slowest_first.begin(), slowest_first.end(),
            [&](const phase& a, const phase& b) { return magnitude(a.hi) < magnitude(b.hi); });
  for (position offset = first; offset <= last;) {
    std::uint64_t jump = 0;
    for (const phase& per_token : slowest_first) {
      const std::uint64_t at = (per_token * offset).hi;
      if (magnitude(at) <= near_zero) continue;
      // Backwards is forwards from the other side. The step is rounded up: a jump may fall short, never too far.
      const bool backwards = (per_token.hi >> 63) != 0;
      const std::uint64_t step = backwards ? std::uint64_t{0} - per_token.hi : per_token.hi + 1;
      const std::uint64_t here = backwards ? std::uint64_t{0} - at : at;
      const std::uint64_t way = std::uint64_t{0} - near_zero - here;
      jump = (std::max)(std::uint64_t{1}, way / step);
      break;
    }
    if (jump == 0) return offset;
    if (jump > static_cast<std::uint64_t>(last - offset)) return std::nullopt;
    offset += static_cast<position>(jump);
  }
  return std::nullopt;
}

}  // namespace posenc::inline v0_2
