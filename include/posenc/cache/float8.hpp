// SPDX-License-Identifier: MIT
/// \file
/// float8_e4m3: the 8-bit floating point of fp8 caches (Micikevicius et al. 2022, arXiv:2209.05433; the variant without
/// infinities that frameworks call e4m3fn). Sign, four bits of exponent with bias 7, three of fraction; ±448 is the
/// largest, 2^−9 the smallest, 0x7f and 0xff are NaN.
///
///     const posenc::heads_view<const posenc::float8_e4m3> k = ...;   // any view of a cache takes it
///
/// Engines keep one scale for a whole tensor beside it: multiply attention_options::scale by that of k, and the output by
/// that of v.
#pragma once

#include <bit>
#include <cstdint>

namespace posenc::inline v0_2 {

/// A number stored as e4m3; computed with as float.
struct float8_e4m3 {
  std::uint8_t bits = 0;  ///< sign, four bits of exponent, three of mantissa

  constexpr float8_e4m3() = default;
  /// Nearest, ties to even; what lies beyond ±448 becomes ±448, infinities too, and NaN stays NaN, as in PyTorch 2.15
  /// (older ones made NaN of what rounds beyond ±448).
  constexpr explicit float8_e4m3(float value) noexcept : bits(nearest(value)) {}
  /// The number with this pattern.
  [[nodiscard]] static constexpr float8_e4m3 of_bits(std::uint8_t pattern) noexcept {
    float8_e4m3 result;
    result.bits = pattern;
    return result;
  }

  /// The exact value; 0x7f and 0xff are NaN.
  // NOLINTNEXTLINE(google-explicit-constructor): every e4m3 is a float
  constexpr operator float() const noexcept {
    const std::uint32_t sign = std::uint32_t{bits & 0x80u} << 24, size = bits & 0x7fu;
    if (size == 0x7fu) return std::bit_cast<float>(sign | 0x7fc0'0000u);
    if (size >= 0x08u) return std::bit_cast<float>(sign | ((size << 20) + (120u << 23)));
    const float subnormal = static_cast<float>(size) * 0x1p-9f;
    return sign != 0 ? -subnormal : subnormal;
  }

 private:
  [[nodiscard]] static constexpr std::uint8_t nearest(float value) noexcept {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint8_t>((all >> 24) & 0x80u);
    const std::uint32_t size = all & 0x7fff'ffffu;
    constexpr std::uint32_t first_normal = 121u << 23;  // 2^-6
    std::uint32_t kept = 0, rest = 0, half = 0;
    if (size >= first_normal) {
      const std::uint32_t moved = size - (120u << 23);
      kept = moved >> 20, rest = moved & 0xf'ffffu, half = 0x8'0000u;
    } else {
      // In steps of 2^-9: the fraction with its leading one, shifted by what the exponent lacks.
      const std::uint32_t exponent = size >> 23, shift = 141u - exponent;
      if (exponent == 0 || shift > 24u + 1u) return sign;  // below a quarter of the smallest
      const std::uint32_t fraction = (size & 0x7f'ffffu) | 0x80'0000u;
      kept = shift > 31 ? 0 : fraction >> shift, rest = fraction & ((1u << shift) - 1u),
      half = 1u << (shift - 1u);
    }
    if (rest > half || (rest == half && (kept & 1u) != 0)) ++kept;
    return static_cast<std::uint8_t>(sign | (size > 0x7f80'0000u ? 0x7fu : kept > 0x7eu ? 0x7eu : kept));
  }
};
static_assert(sizeof(float8_e4m3) == 1);

}  // namespace posenc::inline v0_2
