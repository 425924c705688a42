// SPDX-License-Identifier: MIT
/// \file
/// YaRN: interpolate the slow pairs, keep the fast ones, and sharpen the softmax a little.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_1 {

/// YaRN (Peng et al. 2023, arXiv:2309.00071), as its authors' code and the frameworks compute it:
///
///     w'_p = w_p·(1 − g_p) + (w_p / s)·g_p,   g_p = clip((p − low) / (high − low), 0, 1)
///
/// with low, high = the pair indexes that make beta_fast and beta_slow turns within the original context.
/// (The paper's ramp is linear in the number of turns; everyone's code is linear in the pair index.)
///
/// The magnitude m on cos and sin is `attention_factor` if given; else, with both mscale values non-zero,
/// M(s, mscale) / M(s, mscale_all_dim); else M(s, 1), where M(s, k) = 0.1·k·ln s + 1. A lone mscale is
/// ignored.
struct yarn {
  double factor = 0;            ///< s, ≥ 1; there is no default
  double original_context = 0;  ///< L0: the length the model was trained with, in tokens; there is no default
  double beta_fast = 32;        ///< pairs that make more turns than this within L0 keep their frequency
  double beta_slow = 1;         ///< pairs that make fewer turns than this are interpolated fully
  std::optional<double> attention_factor{};  ///< replaces the formula for m; 1 switches it off
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;  ///< round the ramp's ends outwards to whole pairs

  /// M(s, k): the paper's temperature, as a magnitude on q and on k.
  [[nodiscard]] static double magnitude(double s, double k) { return s <= 1 ? 1 : 0.1 * k * std::log(s) + 1; }

  /// The ends of the ramp, as (fractional) pair indexes, before they are clamped apart.
  [[nodiscard]] std::pair<double, double> ramp(const rotary_shape& shape) const {
    const auto pair_making = [&](double turns) {
      return static_cast<double>(shape.rotary_dim) *
             std::log(original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(shape.base));
    };
    double low = pair_making(beta_fast), high = pair_making(beta_slow);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    return {(std::max)(low, 0.0), (std::min)(high, static_cast<double>(shape.rotary_dim - 1))};
  }

  /// \throws std::invalid_argument when the factor is < 1, the original context or a beta is not positive, or
  /// the base is not above 1.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    check(shape);
    const auto [low, high_end] = ramp(shape);
    const double high = high_end == low ? high_end + 0.001 : high_end;
    frequency_ladder<Real> result{plain_frequencies<Real>(shape.rotary_dim, shape.base), 1};
    for (std::size_t p = 0; p < result.inv_freq.size(); ++p) {
      const Real position_on_ramp =
          (static_cast<Real>(p) - static_cast<Real>(low)) / static_cast<Real>(high - low);
      const Real interpolated_share = std::clamp(position_on_ramp, Real{0}, Real{1});
      const Real kept_share = 1 - interpolated_share;
      Real& w = result.inv_freq[p];
      w = w / static_cast<Real>(factor) * (1 - kept_share) + w * kept_share;
    }
    result.attention_factor = magnitude_of_cos_and_sin();
    return result;
  }

 private:
  [[nodiscard]] double magnitude_of_cos_and_sin() const {
    if (attention_factor) return *attention_factor;
    if (mscale != 0 && mscale_all_dim != 0)
      return magnitude(factor, mscale) / magnitude(factor, mscale_all_dim);
    return magnitude(factor, 1);
  }

  void check(const rotary_shape& shape) const {
    using detail::is_finite, detail::require;
    require(is_finite(factor) && factor >= 1, "YaRN needs a factor >= 1, not ", factor);
    require(is_finite(original_context) && original_context > 0, "YaRN needs the original context, not ",
            original_context);
    require(is_finite(beta_fast) && is_finite(beta_slow) && beta_slow > 0 && beta_fast >= beta_slow,
            "YaRN needs beta_fast >= beta_slow > 0, not ", beta_fast, " and ", beta_slow);
    require(shape.base > 1, "YaRN needs a base above 1, not ", shape.base);
    require(is_finite(mscale) && is_finite(mscale_all_dim), "YaRN needs finite mscale values, not ", mscale,
            " and ", mscale_all_dim);
    require(!attention_factor || is_finite(*attention_factor), "YaRN needs a finite attention factor");
  }
};

}  // namespace posenc::inline v0_1
