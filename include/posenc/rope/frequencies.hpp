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

namespace posenc::inline v0_1 {

/// What a scaling scheme is told about the rotary slice of a head.
struct rotary_shape {
  index_t head_dim = 0;
  index_t rotary_dim = 0;  ///< r, even; the denominator of the exponents (head_dim only for `proportional`)
  double base = 10'000.0;  ///< θ, "rope_theta"

  [[nodiscard]] index_t pairs() const noexcept { return rotary_dim / 2; }
};

/// One inverse frequency per pair, in radians per token, and the magnitude m that multiplies cos and sin.
template <std::floating_point Real>
struct frequency_ladder {
  std::vector<Real> inv_freq;
  double attention_factor = 1;
};

/// The ladder RoPE was published with: w_p = θ^(−2p/r), p = 0 … r/2−1 (Su et al. 2021, arXiv:2104.09864).
///
/// Real = long double is the exact mode. Real = float does the same in the frameworks' order of float32
/// operations, 1 / θ^(2p/r); every scaling scheme is written once, over Real, and serves both modes.
template <std::floating_point Real>
[[nodiscard]] std::vector<Real> plain_frequencies(index_t rotary_dim, double base) {
  std::vector<Real> inv_freq(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t p = 0; p < inv_freq.size(); ++p) {
    const Real exponent = static_cast<Real>(2 * p) / static_cast<Real>(rotary_dim);
    inv_freq[p] = Real{1} / std::pow(static_cast<Real>(base), exponent);
  }
  return inv_freq;
}

/// A context-extension scheme: a plain value with one pure function from the shape of the rotary slice (and,
/// for schemes that depend on it, the length of the sequence) to frequencies and magnitude.
///
///     struct my_scaling {
///       template <std::floating_point Real>
///       posenc::frequency_ladder<Real> ladder(const posenc::rotary_shape&, std::optional<posenc::position>
///       length) const;
///     };
///
/// A scheme that depends on the length throws std::invalid_argument when it is not told; the others ignore
/// it.
template <class S>
concept rope_scaling = requires(const S& scheme, const rotary_shape& shape, std::optional<position> length) {
  { scheme.template ladder<long double>(shape, length) } -> std::same_as<frequency_ladder<long double>>;
  { scheme.template ladder<float>(shape, length) } -> std::same_as<frequency_ladder<float>>;
};

/// No scaling: the ladder as published.
struct no_scaling {
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    return {plain_frequencies<Real>(shape.rotary_dim, shape.base), 1};
  }
};

}  // namespace posenc::inline v0_1
