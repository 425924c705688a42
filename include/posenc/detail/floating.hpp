// SPDX-License-Identifier: MIT
/// \file
/// Questions about floating-point values that -ffast-math must not answer for us. Under that flag the
/// compiler may assume that no infinity and no NaN exists and folds the usual comparisons away; the bit
/// pattern cannot be folded.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace posenc::inline v0_2::detail {

/// True unless `value` is an infinity or a NaN. A long double beyond the range of double counts as infinite.
[[nodiscard]] inline bool is_finite(double value) noexcept {
  constexpr std::uint64_t exponent_mask = 0x7ff0'0000'0000'0000u;
  return (std::bit_cast<std::uint64_t>(value) & exponent_mask) != exponent_mask;
}

/// True for −∞ alone: the log-sum-exp of a row that sees no key. Scalars that are no plain floating-point
/// type (automatic differentiation) are compared as usual.
template <class Scalar>
[[nodiscard]] bool is_minus_infinity(const Scalar& value) noexcept {
  if constexpr (std::is_floating_point_v<Scalar>)
    return std::bit_cast<std::uint64_t>(static_cast<double>(value)) == 0xfff0'0000'0000'0000u;
  else
    return value < std::numeric_limits<Scalar>::lowest();
}

template <class Scalar>
[[nodiscard]] Scalar minus_infinity() noexcept {
  return Scalar(-std::numeric_limits<Scalar>::infinity());
}

}  // namespace posenc::inline v0_2::detail
