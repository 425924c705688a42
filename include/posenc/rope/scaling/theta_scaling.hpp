// SPDX-License-Identifier: MIT
/// \file
/// Theta scaling: a larger base stretches the low frequencies and leaves the high ones.
#pragma once

#include <cmath>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_1 {

namespace detail {
/// θ·g^(r/(r−2)): the base under which pair 0 keeps its frequency and the last pair is divided by exactly g.
[[nodiscard]] inline double stretched_base(const rotary_shape& shape, double stretch) {
  require(shape.rotary_dim > 2, "theta scaling needs more than one pair: rotary_dim ", shape.rotary_dim);
  const double r = static_cast<double>(shape.rotary_dim);
  return shape.base * std::pow(stretch, r / (r - 2));
}
}  // namespace detail

/// Theta scaling, also known as fixed NTK-aware scaling: θ' = θ·s^(r/(r−2)). Pair 0 keeps its frequency, the
/// last pair is divided by exactly s, those between by a power of s (bloc97 2023; Peng et al. 2023,
/// arXiv:2309.00071, section 3.1). For a plainly larger θ (adjusted base frequency, as in CodeLlama) set
/// rope_options::base instead.
struct theta_scaling {
  double factor = 0;  ///< s, ≥ 1; there is no default

  /// \throws std::invalid_argument when factor < 1 or not finite, or when there is only one pair.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    detail::require(detail::is_finite(factor) && factor >= 1, "theta scaling needs a factor >= 1, not ",
                    factor);
    return {plain_frequencies<Real>(shape.rotary_dim, detail::stretched_base(shape, factor)), 1};
  }
};

}  // namespace posenc::inline v0_1
