// SPDX-License-Identifier: MIT
/// \file
/// The precision that the numbers of an encoding are kept in, as a value chosen at run time.
///
/// An encoding tells two positions apart only as far as its numbers are still different once they are stored: a table of
/// cos and sin in bfloat16 has 8 bits of significand, whatever precision the angles were formed in.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <Eigen/Core>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// What cos, sin, embeddings and biases are rounded to.
enum class code_storage : unsigned char { float32, bfloat16, half };

/// The name of a storage precision as this library writes it.
[[nodiscard]] constexpr const char* name_of(code_storage storage) noexcept {
  switch (storage) {
    case code_storage::float32:
      return "float32";
    case code_storage::bfloat16:
      return "bfloat16";
    default:
      return "half";
  }
}

/// Bits of the significand, the leading one included: 24, 8, 11.
[[nodiscard]] constexpr int significand_bits(code_storage storage) noexcept {
  return storage == code_storage::float32 ? 24 : storage == code_storage::bfloat16 ? 8 : 11;
}

/// The largest relative error of rounding to nearest: 2^−24, 2^−8, 2^−11 (2^−significand_bits).
[[nodiscard]] inline double rounding_of(code_storage storage) noexcept {
  return std::ldexp(1.0, -significand_bits(storage));
}

/// The smallest positive number of the storage, denormal numbers included: 2^−149, 2^−133, 2^−24.
[[nodiscard]] inline double smallest_of(code_storage storage) noexcept {
  return std::ldexp(1.0, storage == code_storage::float32    ? -149
                         : storage == code_storage::bfloat16 ? -133
                                                             : -24);
}

/// From this position on, positions kept in the storage are no longer told from their neighbours: 2^24, 256, 2048. (This
/// library keeps positions as integers; the number is for systems that form positions or angles in 16 bits.)
[[nodiscard]] constexpr position exact_positions(code_storage storage) noexcept {
  return position{1} << significand_bits(storage);
}

/// The value as it is stored: rounded to float first, then to 16 bits, as the encodings do it. Negative zero becomes
/// zero, so that equal numbers have equal bits.
[[nodiscard]] inline float stored(double value, code_storage storage) noexcept {
  const float single = static_cast<float>(value);
  float kept = single;
  if (storage == code_storage::bfloat16) kept = static_cast<float>(Eigen::bfloat16(single));
  if (storage == code_storage::half) kept = static_cast<float>(Eigen::half(single));
  return kept == 0 ? 0.0f : kept;
}

namespace detail {
/// The bits of a stored value; equal exactly where the values are (NaN aside).
[[nodiscard]] inline std::uint32_t stored_bits(double value, code_storage storage) noexcept {
  return std::bit_cast<std::uint32_t>(stored(value, storage));
}
}  // namespace detail

}  // namespace posenc::inline v0_2
