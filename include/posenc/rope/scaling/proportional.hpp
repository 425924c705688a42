// SPDX-License-Identifier: MIT
/// \file
/// Proportional RoPE: a part of the pairs rotates, spread over the whole head.
#pragma once

#include <cmath>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

/// Proportional RoPE ("proportional", Gemma-4): the first floor(partial·head_dim/2) pairs have the frequency
/// θ^(−2p/head_dim) / s, the others stand still. Unlike a partial rotary_dim the exponent and the pairing
/// run over the whole head: under half_split the channels that stand still are a hole in each half, not a
/// tail.
struct proportional {
  double partial_rotary_factor = 1;  ///< the share of pairs that rotates, in [0, 1]
  double factor = 1;                 ///< s ≥ 1

  /// \throws std::invalid_argument when rotary_dim is not the whole head, the share lies outside [0, 1]
  /// or the factor is < 1.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    using detail::is_finite, detail::require;
    require(shape.rotary_dim == shape.head_dim,
            "proportional RoPE spans the whole head: leave rotary_dim at head_dim ", shape.head_dim,
            " instead of ", shape.rotary_dim, " and give partial_rotary_factor");
    require(is_finite(partial_rotary_factor) && partial_rotary_factor >= 0 && partial_rotary_factor <= 1,
            "proportional RoPE needs a partial_rotary_factor in [0, 1], not ", partial_rotary_factor);
    require(is_finite(factor) && factor >= 1, "proportional RoPE needs a factor >= 1, not ", factor);
    const double rotating = std::floor(partial_rotary_factor * static_cast<double>(shape.head_dim) / 2);
    frequency_ladder<Real> result{
        detail::base_powers<Real>(static_cast<std::size_t>(rotating), shape.head_dim, shape.base), 1};
    for (Real& w : result.inv_freq)
      w = detail::quotient(detail::quotient(Real{1}, w), static_cast<Real>(factor));
    result.inv_freq.resize(static_cast<std::size_t>(shape.pairs()), Real{0});
    return result;
  }
};

}  // namespace posenc::inline v0_2
