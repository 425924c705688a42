// SPDX-License-Identifier: MIT
/// \file
/// The frequency ladder of RoPE and the seam where context-extension schemes change it.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <vector>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// What a scaling scheme gets to know of the rotary slice of a head.
struct rotary_shape {
  index_t head_dim = 0;    ///< channels of a head
  index_t rotary_dim = 0;  ///< r, even; the denominator of the exponents (head_dim only for `proportional`)
  double base = 10'000.0;  ///< θ, "rope_theta"

  /// R/2.
  [[nodiscard]] index_t pairs() const noexcept { return rotary_dim / 2; }
};

/// One inverse frequency per pair, in radians per token, and the attention factor m that multiplies cos and sin.
template <std::floating_point Real>
struct frequency_ladder {
  std::vector<Real> inv_freq;   ///< radians per token, one per pair
  double attention_factor = 1;  ///< m: multiplies cos and sin
};

namespace detail {

/// What the numbers that describe a scheme are computed in: double in the framework mode, as in Python, and
/// long double in the exact mode.
template <std::floating_point Real>
using description_t = decltype(Real{} + double{});

/// The value as memory would hold it. The frameworks round after every float32 operation; a compiler that
/// fuses a product into the following sum (-march=native) would not. The exact mode is left alone.
template <std::floating_point Real>
[[nodiscard]] Real stored(Real value) noexcept {
  if constexpr (std::same_as<Real, float>) {
    const volatile float in_memory = value;
    return in_memory;
  } else {
    return value;
  }
}

/// a / b, rounded once: under -ffast-math a compiler would otherwise multiply by an estimated reciprocal.
template <std::floating_point Real>
[[nodiscard]] Real quotient(Real a, Real b) noexcept {
  return stored(stored(a) / stored(b));
}

/// θ^(2p/width) for p = 0 … count−1. In float32 the power is formed in double and rounded once, which does
/// not depend on the quality of the platform's powf.
template <std::floating_point Real>
[[nodiscard]] std::vector<Real> base_powers(std::size_t count, index_t width, description_t<Real> base) {
  std::vector<Real> powers(count);
  const Real theta = static_cast<Real>(base);
  for (std::size_t p = 0; p < count; ++p) {
    using wide = description_t<Real>;
    const volatile wide exponent = quotient(static_cast<Real>(2 * p), static_cast<Real>(width));
    powers[p] = static_cast<Real>(std::pow(static_cast<wide>(theta), wide{exponent}));
  }
  return powers;
}

}  // namespace detail

/// The ladder RoPE was published with: w_p = θ^(−2p/r), p = 0 … r/2−1 (Su et al. 2021, arXiv:2104.09864).
///
/// Real = long double is the exact mode. Real = float does the same in the frameworks' order of float32
/// operations, 1 / θ^(2p/r); every scaling scheme is written once, over Real, and serves both modes.
template <std::floating_point Real>
[[nodiscard]] std::vector<Real> plain_frequencies(index_t rotary_dim, detail::description_t<Real> base) {
  std::vector<Real> inv_freq =
      detail::base_powers<Real>(static_cast<std::size_t>(rotary_dim / 2), rotary_dim, base);
  for (Real& w : inv_freq) w = detail::quotient(Real{1}, w);
  return inv_freq;
}

/// A context-extension scheme: a plain value with one pure function from the shape of the rotary slice (and,
/// for schemes that depend on it, the length of the sequence) to frequencies and attention factor.
///
///     struct my_scaling {
///       template <std::floating_point Real>
///       posenc::frequency_ladder<Real> ladder(const posenc::rotary_shape& shape,
///                                             std::optional<posenc::position> length) const;
///     };
///     posenc::rope<float> rope{{.head_dim = 64, .pairing = posenc::pairing::half_split}, my_scaling{}};
///
/// A scheme that depends on the length throws std::invalid_argument when it is not given; the others ignore it.
template <class S>
concept rope_scaling = requires(const S& scheme, const rotary_shape& shape, std::optional<position> length) {
  { scheme.template ladder<long double>(shape, length) } -> std::same_as<frequency_ladder<long double>>;
  { scheme.template ladder<float>(shape, length) } -> std::same_as<frequency_ladder<float>>;
};

/// No scaling: the ladder as published.
struct no_scaling {
  /// The published ladder.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    return {plain_frequencies<Real>(shape.rotary_dim, shape.base), 1};
  }
};

}  // namespace posenc::inline v0_2
