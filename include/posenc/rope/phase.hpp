// SPDX-License-Identifier: MIT
/// \file
/// Angles that stay exact at any position.
///
/// A float32 product position·frequency is off by 0.05 radians at position one million; a double product
/// loses a bit for every doubling of the position. Here a frequency is a *fraction of a full turn* in 128-bit
/// fixed point, and a whole turn is where the integer wraps around: multiplying by a 64-bit position is an
/// integer multiplication that reduces modulo 2π by itself, without rounding, for every position. -ffast-math
/// has nothing to reorder in it.
///
/// | quantity | bound |
/// |---|---|
/// | fraction of a turn from a frequency w in radians | relative 2^-63; 2^-52 where long double is double |
/// | phase of position p | that error times \|p\|·w, nothing else |
/// | cos, sin as float, \|p\| and \|p\|·w ≤ 2^26, where they are ≥ 1e-4 | 1 ulp of float |
/// | cos, sin as double, given the phase | 2 ulp of double |
///
/// tests/rope/accuracy_test.cpp holds the code to this table.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <numbers>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// The cosine and sine of one angle.
template <std::floating_point T>
struct cos_sin {
  T cos;  ///< of the angle
  T sin;  ///< of the angle
};

/// A fraction of a full turn, (hi·2^64 + lo) / 2^128: the phase of a rotation, or how far it rotates per token.
/// Arithmetic wraps around at a whole turn, which is what phases do.
struct phase {
  std::uint64_t hi = 0;  ///< whole units of 2^−64 of a turn
  std::uint64_t lo = 0;  ///< units of 2^−128 of a turn

  /// The fraction of a turn that `radians` covers. Any finite value; whole turns drop out.
  [[nodiscard]] static phase from_radians(long double radians) noexcept {
    constexpr long double two_to_64 = 18446744073709551616.0L;
    const long double turns = radians / (2 * std::numbers::pi_v<long double>);
    const long double fraction = turns - std::floor(turns);
    const long double scaled = fraction * two_to_64;
    if (!(scaled < two_to_64)) return {};  // −tiny − floor(−tiny) rounds to one whole turn
    const auto upper = static_cast<std::uint64_t>(scaled);
    const auto lower = static_cast<std::uint64_t>((scaled - static_cast<long double>(upper)) * two_to_64);
    return {upper, lower};
  }

  /// The sum, less whole turns.
  [[nodiscard]] friend constexpr phase operator+(phase a, phase b) noexcept {
    const std::uint64_t low_sum = a.lo + b.lo;
    return {a.hi + b.hi + (low_sum < a.lo ? 1u : 0u), low_sum};
  }

  /// The same angle the other way round.
  [[nodiscard]] constexpr phase operator-() const noexcept { return {~hi + (lo == 0 ? 1u : 0u), ~lo + 1u}; }

  /// The phase after `p` tokens, exactly, modulo one turn.
  [[nodiscard]] friend constexpr phase operator*(phase per_token, position p) noexcept {
    const std::uint64_t steps =
        p < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(p) : static_cast<std::uint64_t>(p);
    const phase forward{per_token.hi * steps + high_product(per_token.lo, steps), per_token.lo * steps};
    return p < 0 ? -forward : forward;
  }

  /// Equal to the last bit.
  [[nodiscard]] friend constexpr bool operator==(phase, phase) noexcept = default;

 private:
  [[nodiscard]] static constexpr std::uint64_t high_product(std::uint64_t a, std::uint64_t b) noexcept {
    constexpr std::uint64_t low_half = 0xffff'ffffu;
    const std::uint64_t a_low = a & low_half, a_high = a >> 32, b_low = b & low_half, b_high = b >> 32;
    const std::uint64_t cross = a_high * b_low + ((a_low * b_low) >> 32);
    const std::uint64_t middle = a_low * b_high + (cross & low_half);
    return a_high * b_high + (cross >> 32) + (middle >> 32);
  }
};

namespace detail {
/// The fraction of a turn that a frequency covers per token.
/// \throws std::invalid_argument when it is not finite, or so large that the last line but one of the table
/// would not hold even at position 1. (Frameworks make NaN or noise of such frequencies.)
[[nodiscard]] inline phase phase_of_frequency(long double radians, const char* what) {
  constexpr double limit = 0x1p26;
  const auto shown = static_cast<double>(radians);
  require(is_finite(shown) && std::abs(shown) <= limit, what, ": a frequency of ", shown,
          " radians per token is not within ±", limit, " (2^26), where angles are exact");
  return phase::from_radians(radians);
}
}  // namespace detail

/// The cosine and sine of a phase. The nearest quarter turn is taken off in integers, so that values near a
/// zero of cos or sin keep their relative precision; what is left (at most π/4) is evaluated in double, or in
/// T where T is wider.
template <std::floating_point T>
[[nodiscard]] cos_sin<T> cos_sin_of(phase at) noexcept {
  using work = decltype(T{} + double{});
  const std::uint64_t quarter = (at.hi + (std::uint64_t{1} << 61)) >> 62;
  const auto rest_hi = static_cast<std::int64_t>(at.hi - (quarter << 62));
  const work turns = static_cast<work>(rest_hi) * static_cast<work>(0x1p-64) +
                     static_cast<work>(at.lo) * static_cast<work>(0x1p-128);
  const work angle = turns * (2 * std::numbers::pi_v<work>);
  const T c = static_cast<T>(std::cos(angle));
  const T s = static_cast<T>(std::sin(angle));
  switch (quarter & 3u) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

}  // namespace posenc::inline v0_2
