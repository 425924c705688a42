// SPDX-License-Identifier: MIT
/// \file
/// How well a distance Δ is told from Δ + δ, and by which frequencies.
///
/// Rotations are isometries: |R(Δ + δ) − R(Δ)| = |R(δ) − 1| does not depend on Δ. What does depend on Δ is what a pair can say:
///
/// | state of a pair at (Δ, δ) | meaning |
/// |---|---|
/// | carries | within its first turn, and its stored numbers differ: it alone says which of the two is farther |
/// | wrapped | past its first turn: its numbers differ, but it knows the distance only up to whole turns |
/// | unmoved | its stored numbers are the same at both distances |
///
/// and how much of the score of equal vectors is left (score_change).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <posenc/analysis/code_storage.hpp>
#include <posenc/analysis/codes.hpp>
#include <posenc/analysis/coverage.hpp>
#include <posenc/analysis/repetition.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// What a pair says about Δ against Δ + δ; see the table at the top.
enum class pair_state : unsigned char { carries, wrapped, unmoved };

/// The name of a state as this library writes it.
[[nodiscard]] constexpr const char* name_of(pair_state state) noexcept {
  return state == pair_state::carries ? "carries" : state == pair_state::wrapped ? "wrapped" : "unmoved";
}

/// Two distances beside each other.
struct resolution {
  position distance = 0;       ///< Δ
  position step = 0;           ///< δ
  double code_distance = 0;    ///< root mean square over the pairs of |c(Δ + δ) − c(Δ)|
  double stored_distance = 0;  ///< the same of the stored numbers
  double score_change = 0;     ///< of equal vectors, per rotary channel: S(Δ + δ) − S(Δ), S(0) = m²
  std::vector<pair_state> pairs{};  ///< what each pair says at Δ

  /// How many pairs are in a state.
  [[nodiscard]] index_t count(pair_state state) const {
    return std::count(pairs.begin(), pairs.end(), state);
  }
};

/// Δ beside Δ + δ. The codes' length does not matter.
/// \throws std::invalid_argument when Δ is negative or δ is not positive.
[[nodiscard]] inline resolution resolution_at(const rotation_codes& codes, position distance, position step,
                                              code_storage storage) {
  detail::require(distance >= 0 && step >= 1, "resolution_at: distance ", distance, " and step ", step);
  resolution result{.distance = distance, .step = step};
  const auto pairs = codes.components();
  double squares = 0, stored_squares = 0, change = 0;
  for (index_t pair = 0; pair < pairs; ++pair) {
    const code_point near_code = codes.at(pair, distance), far_code = codes.at(pair, distance + step);
    bool moved = false;
    for (const std::size_t part : {std::size_t{0}, std::size_t{1}}) {
      const double before = static_cast<double>(stored(near_code[part], storage));
      const double after = static_cast<double>(stored(far_code[part], storage));
      moved = moved || before != after;
      squares += (far_code[part] - near_code[part]) * (far_code[part] - near_code[part]);
      stored_squares += (after - before) * (after - before);
    }
    const double m = codes.by().attention_factor_at(pair, 0, rotation_side::key);
    change += m * (far_code[0] - near_code[0]);
    const double turns = detail::turns_of(codes.phases()[static_cast<std::size_t>(pair)]) *
                         static_cast<double>(distance + step);
    result.pairs.push_back(!moved       ? pair_state::unmoved
                           : turns <= 1 ? pair_state::carries
                                        : pair_state::wrapped);
  }
  if (pairs == 0) return result;
  const double count = static_cast<double>(pairs);
  result.code_distance = std::sqrt(squares / count);
  result.stored_distance = std::sqrt(stored_squares / count);
  result.score_change = change / count;
  return result;
}

/// How many other distances in [0, length) are at most as far from Δ, in codes, as Δ + δ is, without lying between Δ − δ and
/// Δ + δ: what would be taken for Δ by whoever cannot tell Δ + δ from Δ. Looks at every offset, 2 ns for each and pair.
/// \throws std::invalid_argument when Δ lies outside the length or δ is not positive, or as each_offset_distance does.
[[nodiscard]] inline std::uint64_t look_alikes(const rotation_codes& codes, position distance,
                                               position step) {
  const position length = codes.length();
  detail::require(distance >= 0 && distance < length && step >= 1, "look_alikes: distance ", distance,
                  " and step ", step, " in a length of ", length);
  double limit = 0;
  each_offset_distance(codes, step, step, [&](position, double d) { limit = d; });
  std::uint64_t alike = 0;
  each_offset_distance(codes, step + 1, (std::max)(distance, length - 1 - distance),
                       [&](position offset, double d) {
                         if (d > limit) return;
                         if (offset <= distance) ++alike;
                         if (offset < length - distance) ++alike;
                       });
  return alike;
}

}  // namespace posenc::inline v0_2
