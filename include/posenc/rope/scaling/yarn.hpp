// SPDX-License-Identifier: MIT
/// \file
/// YaRN: interpolate the slow pairs, keep the fast ones, and sharpen the softmax a little.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

/// What an explicit attention factor means to YaRN.
enum class yarn_attention_factor : unsigned char {
  replaces,    ///< m itself: Hugging Face
  multiplies,  ///< m is the formula times it: the YaRN authors' code, vLLM's attn_factor
  ignored,     ///< the formula alone: llama.cpp, vLLM before its pull request 48351
};

/// What the pair mscale, mscale_all_dim means to YaRN's attention factor. (DeepSeek's softmax multiplier is apart
/// from it: see deepseek_softmax_multiplier.)
enum class yarn_mscale : unsigned char {
  ratio_if_both,  ///< M(s, mscale) / M(s, mscale_all_dim) when both are non-zero, else M(s, 1): Hugging Face
  ratio,          ///< the ratio always, so that 0 and 0 give 1: vLLM's DeepSeek class
  ignored,        ///< M(s, 1): vLLM's generic class
};

/// YaRN (Peng et al. 2023, arXiv:2309.00071), as its authors' code and the frameworks compute it:
///
///     w'_p = w_p·(1 − g_p) + (w_p / s)·g_p,   g_p = clip((p − low) / (high − low), 0, 1)
///
/// with low, high = the pair indexes that make beta_fast and beta_slow turns within the original context.
/// (The paper's ramp is linear in the number of turns; everyone's code is linear in the pair index. Where an
/// original context is so short or a base so small that the ends cross, the arithmetic is the frameworks'.)
///
/// The attention factor m on cos and sin is `attention_factor` if given; else, with both mscale values non-zero,
/// M(s, mscale) / M(s, mscale_all_dim); else M(s, 1), where M(s, k) = 0.1·k·ln s + 1. A lone mscale is
/// ignored. The two rules at the end choose what other systems do.
struct yarn {
  double factor = 0;            ///< s, ≥ 1; there is no default
  double original_context = 0;  ///< L0: the length the model was trained with, in tokens; there is no default
  double beta_fast = 32;  ///< pairs that make more turns than this within L0 keep their frequency; 0 means 32
  double beta_slow = 1;   ///< pairs that make fewer turns than this are interpolated fully; 0 means 1
  std::optional<double> attention_factor{};  ///< replaces the formula for m; 1 switches it off
  double mscale = 0;                         ///< k of the numerator; 0: not given
  double mscale_all_dim = 0;                 ///< k of the denominator; 0: not given
  bool truncate = true;  ///< round the ramp's ends outwards to whole pairs; ggml always does
  yarn_attention_factor attention_factor_rule =
      yarn_attention_factor::replaces;                   ///< what an explicit attention_factor does
  yarn_mscale mscale_rule = yarn_mscale::ratio_if_both;  ///< what mscale and mscale_all_dim do

  /// M(s, k): the paper's temperature, as a attention factor on q and on k.
  [[nodiscard]] static double attention_factor_of(double s, double k) {
    return s <= 1 ? 1 : 0.1 * k * std::log(s) + 1;
  }

  /// The ends of the ramp, as (fractional) pair indexes, before they are kept apart. The upper end is clamped
  /// to r − 1, not to the last pair.
  template <std::floating_point Number = double>
  [[nodiscard]] std::pair<Number, Number> ramp(const rotary_shape& shape) const {
    const auto pair_making = [&](double turns) {
      const Number slow_down = static_cast<Number>(original_context) /
                               (static_cast<Number>(turns) * 2 * std::numbers::pi_v<Number>);
      return static_cast<Number>(shape.rotary_dim) * std::log(slow_down) /
             (2 * std::log(static_cast<Number>(shape.base)));
    };
    Number low = pair_making(fast()), high = pair_making(slow());
    if (truncate) low = std::floor(low), high = std::ceil(high);
    return {(std::max)(low, Number{0}), (std::min)(high, static_cast<Number>(shape.rotary_dim - 1))};
  }

  /// \throws std::invalid_argument when the factor is < 1, the original context or a beta is not positive, or
  /// the base is not above 1.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape, std::optional<position>) const {
    using number = detail::description_t<Real>;
    using detail::stored, detail::quotient;
    check(shape);
    // Where the ends are rounded, they are so in double: nobody's code decides on 64 bits of mantissa.
    const auto [low, high_end] =
        truncate ? std::pair<number, number>(ramp<double>(shape)) : ramp<number>(shape);
    const number high = high_end == low ? high_end + number{0.001} : high_end;
    frequency_ladder<Real> result{
        detail::base_powers<Real>(static_cast<std::size_t>(shape.pairs()), shape.rotary_dim, shape.base), 1};
    for (std::size_t p = 0; p < result.inv_freq.size(); ++p) {
      const Real beyond_low = stored(static_cast<Real>(p) - static_cast<Real>(low));
      const Real along_ramp = quotient(beyond_low, static_cast<Real>(high - low));
      const Real kept_share = stored(1 - std::clamp(along_ramp, Real{0}, Real{1}));
      const Real power = result.inv_freq[p];
      const Real kept = quotient(Real{1}, power);
      const Real interpolated = quotient(Real{1}, stored(static_cast<Real>(factor) * power));
      result.inv_freq[p] = stored(interpolated * stored(1 - kept_share)) + stored(kept * kept_share);
    }
    result.attention_factor = settled_attention_factor();
    return result;
  }

 private:
  [[nodiscard]] double fast() const { return beta_fast == 0 ? 32 : beta_fast; }
  [[nodiscard]] double slow() const { return beta_slow == 0 ? 1 : beta_slow; }

  [[nodiscard]] double formula() const {
    const bool both = mscale != 0 && mscale_all_dim != 0;
    if (mscale_rule == yarn_mscale::ratio || (mscale_rule == yarn_mscale::ratio_if_both && both))
      return attention_factor_of(factor, mscale) / attention_factor_of(factor, mscale_all_dim);
    return attention_factor_of(factor, 1);
  }

  [[nodiscard]] double settled_attention_factor() const {
    if (!attention_factor || attention_factor_rule == yarn_attention_factor::ignored) return formula();
    if (attention_factor_rule == yarn_attention_factor::multiplies) return formula() * *attention_factor;
    return *attention_factor;
  }

  void check(const rotary_shape& shape) const {
    using detail::is_finite, detail::require;
    require(is_finite(factor) && factor >= 1, "YaRN needs a factor >= 1, not ", factor);
    require(is_finite(original_context) && original_context > 0, "YaRN needs the original context, not ",
            original_context);
    require(is_finite(beta_fast) && is_finite(beta_slow) && slow() > 0 && fast() >= slow(),
            "YaRN needs beta_fast >= beta_slow > 0, not ", beta_fast, " and ", beta_slow);
    require(shape.base > 1, "YaRN needs a base above 1, not ", shape.base);
    require(is_finite(mscale) && is_finite(mscale_all_dim), "YaRN needs finite mscale values, not ", mscale,
            " and ", mscale_all_dim);
    require(!attention_factor || (is_finite(*attention_factor) && *attention_factor > 0),
            "YaRN needs a positive attention factor, not ", attention_factor.value_or(0));
  }
};

/// DeepSeek's softmax multiplier, M(s, mscale_all_dim)², 1 where mscale_all_dim is 0: DeepSeek-V2, V3 and
/// Mistral-4 multiply 1/√head_dim by it (the whole logit, unrotated channels included), apart from m on cos
/// and sin. Hugging Face left it out until its pull request 47435; to agree with that, leave it out of
/// attention_options::scale.
[[nodiscard]] inline double deepseek_softmax_multiplier(const yarn& scaling) {
  const double once =
      scaling.mscale_all_dim == 0 ? 1 : yarn::attention_factor_of(scaling.factor, scaling.mscale_all_dim);
  return once * once;
}

}  // namespace posenc::inline v0_2
