// SPDX-License-Identifier: MIT
/// \file
/// Whole numbers on a geometric ladder, without logarithms: bucket boundaries that do not depend on how a
/// libm rounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2::detail {

/// A natural number of any size, with the two operations that comparing powers takes.
class natural {
 public:
  /// this ← this · factor^times, for factor < 2^32.
  natural& multiply(std::uint64_t factor, index_t times) {
    for (; times > 0; --times) {
      std::uint64_t carry = 0;
      for (std::uint32_t& limb : limbs_) {
        carry += limb * factor;
        limb = static_cast<std::uint32_t>(carry);
        carry >>= 32;
      }
      if (carry != 0) limbs_.push_back(static_cast<std::uint32_t>(carry));
    }
    return *this;
  }

  [[nodiscard]] friend std::strong_ordering operator<=>(const natural& a, const natural& b) noexcept {
    if (a.limbs_.size() != b.limbs_.size()) return a.limbs_.size() <=> b.limbs_.size();
    for (std::size_t n = a.limbs_.size(); n-- > 0;)
      if (a.limbs_[n] != b.limbs_[n]) return a.limbs_[n] <=> b.limbs_[n];
    return std::strong_ordering::equal;
  }

 private:
  std::vector<std::uint32_t> limbs_{1};  // base 2^32, lowest first, no leading zeros
};

/// The largest distance that geometric ladders are computed for: 2^32 − 1.
inline constexpr position largest_rung = (std::numeric_limits<std::uint32_t>::max)();

/// A rung low^(1−step/steps) · high^(step/steps) of a ladder from low to high.
struct rung {
  position floor = 0;  ///< the largest whole number not above it
  bool exact = false;  ///< the rung is that whole number

  /// The smallest whole number not below it.
  [[nodiscard]] position ceil() const noexcept { return exact ? floor : floor + 1; }
};

/// Rung `step` of `steps`, 1 ≤ low ≤ high ≤ largest_rung, 0 ≤ step ≤ steps ≠ 0. Floating point only guesses;
/// the answer satisfies floor^steps ≤ low^(steps−step)·high^step < (floor+1)^steps in whole numbers. Where
/// the guess is farther from a whole number than it can be wrong, that holds without being computed, which
/// keeps ladders of thousands of rungs quick.
[[nodiscard]] inline rung geometric_rung(position low, position high, index_t step, index_t steps) {
  if (step == 0 || step == steps) return {step == 0 ? low : high, true};
  const long double share = static_cast<long double>(step) / static_cast<long double>(steps);
  const long double guess = static_cast<long double>(low) *
                            std::pow(static_cast<long double>(high) / static_cast<long double>(low), share);
  const long double below = std::floor(guess), margin = guess * 0x1p-40L;
  if (guess - below > margin && below + 1 - guess > margin) return {static_cast<position>(below), false};

  natural target;
  target.multiply(static_cast<std::uint64_t>(low), steps - step);
  target.multiply(static_cast<std::uint64_t>(high), step);
  const auto power_of = [steps](position value) {
    natural power;
    power.multiply(static_cast<std::uint64_t>(value), steps);
    return power;
  };
  position floor = (std::clamp)(static_cast<position>(std::round(guess)), low, high);
  while (power_of(floor) > target) --floor;  // stops at low at the latest
  while (floor < high && power_of(floor + 1) <= target) ++floor;
  return {floor, std::is_eq(power_of(floor) <=> target)};
}

/// |distance|; the most negative one included.
[[nodiscard]] constexpr std::uint64_t magnitude_of(position distance) noexcept {
  const auto bits = static_cast<std::uint64_t>(distance);
  return distance < 0 ? std::uint64_t{0} - bits : bits;
}

}  // namespace posenc::inline v0_2::detail
