// SPDX-License-Identifier: MIT
/// \file
/// Theta scaling: a larger base stretches the low frequencies and leaves the high ones.
#pragma once

#include <cmath>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

namespace detail {
/// θ·g^(r/(r−2)): the base under which pair 0 keeps its frequency and the last pair is divided by exactly g.
template <std::floating_point Number>
[[nodiscard]] Number stretched_base(const rotary_shape& shape, Number stretch) {
  require(shape.rotary_dim > 2, "theta scaling needs more than one pair: rotary_dim ", shape.rotary_dim);
  const Number r = static_cast<Number>(shape.rotary_dim);
  return static_cast<Number>(shape.base) * std::pow(stretch, r / (r - 2));
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
    using number = detail::description_t<Real>;
    return {
        plain_frequencies<Real>(shape.rotary_dim, detail::stretched_base(shape, static_cast<number>(factor))),
        1};
  }
};

/// The "ntk" scaling of vLLM (Su Jianlin's mixed form, kexue.fm/archives/9706): w'_p = (θ·s)^(−2p/r) /
/// s^(2/r). Unlike theta_scaling it slows pair 0 down as well, by s^(2/r), and the last pair by exactly s.
struct kexue_ntk {
  double factor = 0;  ///< s, ≥ 1; there is no default

  /// \throws std::invalid_argument when factor < 1 or not finite.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    detail::require(detail::is_finite(factor) && factor >= 1, "kexue_ntk needs a factor >= 1, not ", factor);
    using number = detail::description_t<Real>;
    const number s = static_cast<number>(factor), r = static_cast<number>(shape.rotary_dim);
    frequency_ladder<Real> result{
        plain_frequencies<Real>(shape.rotary_dim, static_cast<number>(shape.base) * s), 1};
    const Real divisor = static_cast<Real>(std::pow(s, 2 / r));
    for (Real& w : result.inv_freq) w = detail::quotient(w, divisor);
    return result;
  }
};

}  // namespace posenc::inline v0_2
