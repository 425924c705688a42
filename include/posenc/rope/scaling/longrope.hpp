// SPDX-License-Identifier: MIT
/// \file
/// LongRoPE: one searched factor per pair, in two sets.
#pragma once

#include <cmath>
#include <vector>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>

namespace posenc::inline v0_2 {

/// What decides between LongRoPE's short and long factors.
enum class longrope_selection : unsigned char {
  sequence_length,  ///< long when the sequence is longer than the original context: the authors, Hugging Face
  context_limit,  ///< long when max_context is larger than the original context, however short the sequence:
                  ///< vLLM (max_model_len), llama.cpp (n_ctx of a sequence)
};

/// What s is taken to be when both `factor` and `max_context` are there.
enum class longrope_stretch : unsigned char {
  factor_first,  ///< `factor`: Hugging Face today
  ratio_first,   ///< max_context / original_context: older Hugging Face, vLLM, llama.cpp
};

/// LongRoPE ("longrope", "su"; Ding et al. 2024, arXiv:2402.13753): w'_p = w_p / f_p, f the long factors when
/// the sequence has more than L0 tokens (strictly), the short ones otherwise.
///
/// m = `attention_factor` if given, else √(1 + ln s / ln L0), and 1 for s ≤ 1; it is the same for short
/// sequences. The choice is made once per sequence by the caller: keys rotated under the other set are wrong.
struct longrope {
  std::vector<double> short_factor{};        ///< one per pair
  std::vector<double> long_factor{};         ///< one per pair
  double original_context = 0;               ///< L0, in tokens; there is no default
  std::optional<double> factor{};            ///< s; max_context / original_context if not given
  std::optional<double> max_context{};       ///< "max_position_embeddings" of the extended model
  std::optional<double> attention_factor{};  ///< replaces the formula for m
  longrope_selection selection = longrope_selection::sequence_length;  ///< which factors a length takes
  longrope_stretch stretch = longrope_stretch::factor_first;           ///< s for the magnitude
  std::optional<double> short_mscale{};  ///< vLLM: replaces m when the short factors are selected
  std::optional<double> long_mscale{};   ///< vLLM: replaces m when the long factors are selected

  /// True when the long factors apply. \throws std::invalid_argument when what decides is not given.
  [[nodiscard]] bool selects_long(std::optional<position> length) const {
    if (selection == longrope_selection::context_limit) {
      detail::require(max_context.has_value(), "LongRoPE selected by context limit needs max_context");
      return *max_context > original_context;
    }
    detail::require(length.has_value(),
                    "LongRoPE depends on the length of the sequence: give it a context_length");
    return static_cast<double>(*length) > original_context;
  }

  /// s, which decides m. \throws std::invalid_argument when neither factor nor max_context is given.
  [[nodiscard]] double stretch_factor() const {
    detail::require(factor || max_context, "LongRoPE needs a factor, a max_context or an attention_factor");
    const bool use_factor = factor && (stretch == longrope_stretch::factor_first || !max_context);
    return use_factor ? *factor : *max_context / original_context;
  }

  /// \throws std::invalid_argument when a list has not one factor per pair, a number is missing or not
  /// positive.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape,
                                              std::optional<position> length) const {
    check(shape);
    const bool is_long = selects_long(length);
    const std::vector<double>& factors = is_long ? long_factor : short_factor;
    frequency_ladder<Real> result{detail::base_powers<Real>(factors.size(), shape.rotary_dim, shape.base),
                                  attention_factor_of(is_long)};
    for (std::size_t p = 0; p < factors.size(); ++p) {
      Real& w = result.inv_freq[p];
      w = detail::quotient(Real{1}, detail::stored(static_cast<Real>(factors[p]) * w));
    }
    return result;
  }

 private:
  [[nodiscard]] double attention_factor_of(bool is_long) const {
    if (const std::optional<double>& mscale = is_long ? long_mscale : short_mscale) return *mscale;
    if (attention_factor) return *attention_factor;
    const double s = stretch_factor();
    if (s <= 1) return 1;
    detail::require(original_context > 1, "LongRoPE needs an original context above 1, not ",
                    original_context);
    return std::sqrt(1 + std::log(s) / std::log(original_context));
  }

  void check(const rotary_shape& shape) const {
    using detail::is_finite, detail::require;
    const auto pairs = static_cast<std::size_t>(shape.pairs());
    require(short_factor.size() == pairs && long_factor.size() == pairs, "LongRoPE needs ", pairs,
            " short and long factors for rotary_dim ", shape.rotary_dim, ", not ", short_factor.size(),
            " and ", long_factor.size());
    for (const std::vector<double>* list : {&short_factor, &long_factor})
      for (const double f : *list) require(is_finite(f) && f > 0, "LongRoPE: a factor of ", f);
    require(is_finite(original_context) && original_context > 0, "LongRoPE needs the original context, not ",
            original_context);
    for (const std::optional<double>* number :
         {&factor, &max_context, &attention_factor, &short_mscale, &long_mscale})
      require(!*number || (is_finite(**number) && **number > 0), "LongRoPE: ", number->value_or(0),
              " where a positive number belongs");
  }
};

}  // namespace posenc::inline v0_2
