// SPDX-License-Identifier: MIT
/// \file
/// What a context-extension scheme does to a rotation, before anyone trains or runs anything: to each pair's
/// wavelength, to the range of phases a model has seen, to the score against distance, and to distances that
/// look alike.
///
///     const posenc::rotary_shape shape{128, 128, 10'000.0};
///     posenc::rope<double> before{options}, after{options, posenc::yarn{.factor = 4, .original_context = 4096}};
///     for (const auto& pair : posenc::ladder_report(before.inv_freq(), after.inv_freq(), 4096)) …
///     posenc::unseen_pairs(before.inv_freq(), 4096, after.inv_freq(), 16'384);   // 0 under interpolation
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numbers>
#include <span>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2 {

/// What a scheme did to the frequency of a pair.
enum class pair_band : unsigned char {
  kept,       ///< divided by 1
  blended,    ///< divided by something between
  stretched,  ///< divided by the most that any pair of this ladder is divided by
  raised,     ///< divided by less than 1: rotates faster than before
  still,      ///< does not rotate
};

/// The name of a band as this library writes it.
[[nodiscard]] constexpr const char* name_of(pair_band band) noexcept {
  switch (band) {
    case pair_band::kept:
      return "kept";
    case pair_band::blended:
      return "blended";
    case pair_band::stretched:
      return "stretched";
    case pair_band::raised:
      return "raised";
    default:
      return "still";
  }
}

/// One pair of a ladder, seen beside the ladder without the scheme.
struct pair_report {
  double inv_freq = 0;    ///< radians per token under the scheme
  double wavelength = 0;  ///< tokens per turn under the scheme; infinite for a pair that does not rotate
  double turns = 0;       ///< turns within the trained length, without the scheme
  double divisor = 1;     ///< the scheme divided the frequency by this; infinite for a pair it stopped
  pair_band band = pair_band::kept;  ///< what the scheme does to this pair
};

/// Each pair of a ladder: `plain` without the scheme, `scaled` under it.
/// \throws std::invalid_argument when the ladders differ in length or the trained length is not positive.
[[nodiscard]] inline std::vector<pair_report> ladder_report(std::span<const double> plain,
                                                            std::span<const double> scaled,
                                                            double trained_length) {
  detail::require(plain.size() == scaled.size(), "ladder_report: ", plain.size(), " frequencies beside ",
                  scaled.size());
  detail::require(trained_length > 0, "ladder_report: a trained length of ", trained_length);
  const double full_turn = 2 * std::numbers::pi;
  // Ladders are rounded to double, those of some files to float32 divisors: a ratio so near 1 is 1.
  const double same = 1e-9;
  std::vector<pair_report> report;
  double most = 1;
  for (std::size_t p = 0; p < plain.size(); ++p) {
    const double w = scaled[p];
    const bool turns = w > 0;
    report.push_back({.inv_freq = w,
                      .wavelength = turns ? full_turn / w : HUGE_VAL,
                      .turns = plain[p] * trained_length / full_turn,
                      .divisor = turns ? plain[p] / w : HUGE_VAL});
    if (turns) most = (std::max)(most, plain[p] / w);
  }
  for (pair_report& pair : report) {
    if (!(pair.inv_freq > 0))
      pair.band = pair_band::still;
    else if (std::abs(pair.divisor - 1) <= same)
      pair.band = pair_band::kept;
    else if (pair.divisor < 1)
      pair.band = pair_band::raised;
    else
      pair.band = pair.divisor >= most * (1 - same) ? pair_band::stretched : pair_band::blended;
  }
  return report;
}

/// How many pairs reach, within `length` tokens of the scaled ladder, phases that the model has not seen
/// within `trained_length` tokens of the plain one. A pair that made a full turn has seen all phases.
/// Position interpolation by length/trained_length leaves none; plain extrapolation leaves every slow pair.
[[nodiscard]] inline index_t unseen_pairs(std::span<const double> plain, double trained_length,
                                          std::span<const double> scaled, double length) {
  detail::require(plain.size() == scaled.size(), "unseen_pairs: ", plain.size(), " frequencies beside ",
                  scaled.size());
  const double full_turn = 2 * std::numbers::pi;
  index_t unseen = 0;
  for (std::size_t p = 0; p < plain.size(); ++p) {
    const double seen = (std::min)(plain[p] * trained_length, full_turn);
    const double reached = (std::min)(scaled[p] * length, full_turn);
    if (reached > seen * (1 + 1e-12)) ++unseen;
  }
  return unseen;
}

/// An encoding that gives its angles: rope, multi_axis_rope, xpos.
template <class E>
concept has_angles = requires(const E& encoding, index_t pair, position p) {
  { encoding.lowered() } -> std::convertible_to<const rotation&>;
  encoding.angle(pair, p);
};

/// The score of a query and a key that agree in every channel, per channel, at a distance in tokens:
///
///     (2 m² Σ_p cos(distance·w_p) + channels that do not rotate) / head_dim
///
/// 1 at distance 0 but for the attention factor; how fast it falls is how sharply near tokens are told apart, and
/// where it comes back is what looks alike.
template <has_angles E>
[[nodiscard]] double score_at_distance(const E& encoding, position distance) {
  const rotation& by = encoding.lowered();
  double turning = 0;
  for (index_t pair = 0; pair < by.pairs(); ++pair)
    turning += static_cast<double>(encoding.angle(pair, distance).cos);
  const double resting = static_cast<double>(by.head_dim - by.rotary_dim);
  return (2 * turning * by.attention_factor * by.attention_factor + resting) /
         static_cast<double>(by.head_dim);
}

/// The distance between the rotations of two positions: the root mean square over the rotary pairs of
/// |e^{iφ_p} − 1|, from 0 (the same) to 2 (opposite everywhere); about √2 for unrelated phases.
template <has_angles E>
[[nodiscard]] double phase_distance(const E& encoding, position distance) {
  const rotation& by = encoding.lowered();
  double squares = 0;
  for (index_t pair = 0; pair < by.pairs(); ++pair) {
    const auto [cos, sin] = encoding.angle(pair, distance);
    const double c = static_cast<double>(cos) - 1, s = static_cast<double>(sin);
    squares += c * c + s * s;
  }
  return by.pairs() == 0 ? 0 : std::sqrt(squares / static_cast<double>(by.pairs()));
}

/// A distance and how far its rotation is from none.
struct look_alike {
  position distance = 0;      ///< in tokens
  double phase_distance = 0;  ///< root mean square over the pairs of |R(distance) − 1|
};

/// The distance in [first, last] that is hardest to tell from 0: where two positions nearly collide. Looks at
/// every distance, so that it takes (last − first + 1)·pairs sines.
/// \throws std::invalid_argument when the range is empty.
template <has_angles E>
[[nodiscard]] look_alike closest_look_alike(const E& encoding, position first, position last) {
  detail::require(first <= last, "closest_look_alike: no distance between ", first, " and ", last);
  look_alike closest{first, phase_distance(encoding, first)};
  for (position distance = first + 1; distance <= last; ++distance) {
    const double here = phase_distance(encoding, distance);
    if (here < closest.phase_distance) closest = {distance, here};
  }
  return closest;
}

}  // namespace posenc::inline v0_2
