// SPDX-License-Identifier: MIT
/// \file
/// Which phases training has shown to each pair, and which pairs meet phases that it never showed.
///
/// Within L tokens a pair of w radians per token goes along an arc of L·w, at most the whole circle. Trained on one ladder
/// and length and used with another, a pair enters phases never seen where its arc became longer. A pair that went around has
/// met the whole circle, up to gaps between the phases of whole tokens; the largest is given too.
///
///     posenc::coverage_report(before.lowered().phase_per_token, 8192, after.lowered().phase_per_token, 131'072)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/phase.hpp>

namespace posenc::inline v0_2 {

/// One pair's circle.
struct pair_coverage {
  double seen = 0;   ///< the share of the circle that training covered, 0 to 1
  double used = 0;   ///< the share that the target length covers
  double turns = 0;  ///< turns within the target length
  double largest_gap =
      0;  ///< in turns: the widest arc of the circle without a trained phase, the untrained part included

  /// The share of the circle that is used and was never seen.
  [[nodiscard]] double unseen() const noexcept { return is_unseen() ? used - seen : 0; }
  /// True where the pair enters phases never seen. A ladder that was rounded once more is no new phase.
  [[nodiscard]] bool is_unseen() const noexcept { return used > seen * (1 + 1e-12); }
};

namespace detail {
[[nodiscard]] inline double turns_of(phase per_token) noexcept {
  // Beyond half a turn per token forwards is backwards.
  const double forwards = std::ldexp(static_cast<double>(per_token.hi), -64) +
                          std::ldexp(static_cast<double>(per_token.lo), -128);
  if (per_token.hi >> 63 == 0) return forwards;
  const phase back = -per_token;
  return std::ldexp(static_cast<double>(back.hi), -64) + std::ldexp(static_cast<double>(back.lo), -128);
}
}  // namespace detail

/// The widest arc between neighbouring phases of the positions 0 … count−1 on the circle, in turns. By the three-distance
/// theorem: it is the sum of the nearest approaches to the start from both sides, or one of them, and these are found like a
/// greatest common divisor, in O(log count) steps.
/// \throws std::invalid_argument when there is no position.
[[nodiscard]] inline double largest_phase_gap(phase per_token, position count) {
  detail::require(count >= 1, "largest_phase_gap: of ", count, " positions");
  const std::uint64_t positions_count = static_cast<std::uint64_t>(count);
  // After position `ahead_at` the pair stands `ahead` past the start, after `behind_at` `behind` before it. In 2^−64 turns;
  // the whole circle is 2^64 and does not fit, so that a pair that does not rotate is an answer of its own.
  std::uint64_t ahead = per_token.hi, behind = std::uint64_t{0} - per_token.hi, ahead_at = 1, behind_at = 1;
  if (count == 1 || ahead == 0) return 1;
  while (ahead_at + behind_at < positions_count) {
    if (ahead == behind)
      return std::ldexp(static_cast<double>(ahead), -64);  // comes back to the start exactly
    const bool shorten_ahead = ahead > behind;
    std::uint64_t& longer = shorten_ahead ? ahead : behind;
    std::uint64_t& longer_at = shorten_ahead ? ahead_at : behind_at;
    const std::uint64_t shorter = shorten_ahead ? behind : ahead,
                        shorter_at = shorten_ahead ? behind_at : ahead_at;
    // As many steps at once as leave the longer one positive and stay within the positions.
    const std::uint64_t times =
        (std::min)((longer - 1) / shorter, (positions_count - 1 - longer_at) / shorter_at);
    longer -= times * shorter;
    longer_at += times * shorter_at;
  }
  const double a = std::ldexp(static_cast<double>(ahead), -64),
               b = std::ldexp(static_cast<double>(behind), -64);
  return ahead_at + behind_at > positions_count ? a + b : (std::max)(a, b);
}

/// Each pair of two ladders of the same length.
/// \throws std::invalid_argument when the ladders differ in length or a length is not positive.
[[nodiscard]] inline std::vector<pair_coverage> coverage_report(std::span<const phase> trained,
                                                                position trained_length,
                                                                std::span<const phase> used,
                                                                position length) {
  detail::require(trained.size() == used.size(), "coverage_report: ", trained.size(), " frequencies beside ",
                  used.size());
  detail::require(trained_length >= 1 && length >= 1, "coverage_report: lengths ", trained_length, " and ",
                  length);
  std::vector<pair_coverage> report;
  for (std::size_t p = 0; p < used.size(); ++p) {
    const double turns = detail::turns_of(used[p]) * static_cast<double>(length);
    report.push_back(
        {.seen = (std::min)(detail::turns_of(trained[p]) * static_cast<double>(trained_length), 1.0),
         .used = (std::min)(turns, 1.0),
         .turns = turns,
         .largest_gap = largest_phase_gap(trained[p], trained_length)});
  }
  return report;
}

/// How many pairs enter phases never seen.
[[nodiscard]] inline index_t unseen_pairs(std::span<const pair_coverage> report) {
  return std::count_if(report.begin(), report.end(),
                       [](const pair_coverage& pair) { return pair.is_unseen(); });
}

}  // namespace posenc::inline v0_2
