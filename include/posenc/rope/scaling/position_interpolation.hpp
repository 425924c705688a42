// SPDX-License-Identifier: MIT
/// \file
/// Position interpolation: every position is divided by one factor.
#pragma once

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

/// Position interpolation ("linear"): w'_p = w_p / s, the same as feeding position/s (Chen et al. 2023,
/// arXiv:2306.15595). The frequency is divided, not the base.
struct position_interpolation {
  double factor = 0;  ///< s = new length / trained length, ≥ 1; there is no default

  /// \throws std::invalid_argument when factor < 1 or not finite.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    detail::require(detail::is_finite(factor) && factor >= 1,
                    "position interpolation needs a factor >= 1, not ", factor);
    frequency_ladder<Real> result{plain_frequencies<Real>(shape.rotary_dim, shape.base), 1};
    for (Real& w : result.inv_freq) w = detail::quotient(w, static_cast<Real>(factor));
    return result;
  }
};

}  // namespace posenc::inline v0_2
