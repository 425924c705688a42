// SPDX-License-Identifier: MIT
/// \file
/// Llama 3.1's scaling: three bands by wavelength.
#pragma once

#include <cmath>
#include <numbers>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

/// Llama 3.1 ("llama3"; Dubey et al. 2024, arXiv:2407.21783, and the authors' code): by wavelength λ = 2π/w,
///
///     λ < L0/high      w' = w
///     λ > L0/low       w' = w / s
///     between          w' = w·((1 − t)/s + t),   t = (L0/λ − low) / (high − low)
///
/// low == high (Llama-4 Scout) is a step at λ = L0/low; a wavelength that meets it exactly is kept.
struct llama3 {
  double factor = 0;            ///< s, ≥ 1; there is no default
  double low_freq_factor = 0;   ///< turns within L0 at and below which a pair is divided by s
  double high_freq_factor = 0;  ///< turns within L0 at and above which a pair is kept; ≥ low_freq_factor
  double original_context = 0;  ///< L0: the length the model was trained with, in tokens

  /// \throws std::invalid_argument when the factor is < 1, a length or a band edge is not positive, or
  /// high < low.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    check();
    using number = detail::description_t<Real>;
    using detail::stored, detail::quotient;
    const auto as_real = [](number value) { return static_cast<Real>(value); };
    const number low = low_freq_factor, high = high_freq_factor, context = original_context;
    const Real longest_kept = as_real(context / high), shortest_divided = as_real(context / low);
    const Real s = as_real(factor);
    frequency_ladder<Real> result{plain_frequencies<Real>(shape.rotary_dim, shape.base), 1};
    for (Real& w : result.inv_freq) {
      // A number divided by a tensor is its reciprocal times the number in the framework: two roundings.
      const Real wavelength = stored(quotient(Real{1}, w) * as_real(2 * std::numbers::pi_v<number>));
      if (wavelength > shortest_divided) {
        w = quotient(w, s);
      } else if (!(wavelength < longest_kept) && low < high) {
        const Real turns = stored(quotient(Real{1}, wavelength) * as_real(context));
        const Real share = quotient(stored(turns - as_real(low)), as_real(high - low));
        w = quotient(stored(stored(1 - share) * w), s) + stored(share * w);
      }
    }
    return result;
  }

 private:
  void check() const {
    using detail::is_finite, detail::require;
    require(is_finite(factor) && factor >= 1, "llama3 scaling needs a factor >= 1, not ", factor);
    require(is_finite(original_context) && original_context > 0,
            "llama3 scaling needs the original context, not ", original_context);
    require(is_finite(low_freq_factor) && is_finite(high_freq_factor) && low_freq_factor > 0 &&
                high_freq_factor >= low_freq_factor,
            "llama3 scaling needs high_freq_factor >= low_freq_factor > 0, not ", high_freq_factor, " and ",
            low_freq_factor);
  }
};

}  // namespace posenc::inline v0_2
