// SPDX-License-Identifier: MIT
/// \file
/// Dynamic NTK: theta scaling by as much as the sequence at hand needs.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/frequencies.hpp>
#include <posenc/rope/scaling/theta_scaling.hpp>

namespace posenc::inline v0_2 {

/// How far dynamic NTK stretches; systems disagree on one and the same config.json.
enum class dynamic_ntk_rule : unsigned char {
  sequence_length,  ///< s·n/L − (s−1) at the length n of the sequence, n ≥ L: Hugging Face, and vLLM since
                    ///< its pull request 41277
  full_extension,      ///< the same evaluated at n = s·L for every length: vLLM before that
  power_of_two_steps,  ///< 2^(ceil(log2(n/L))+1) − 1, the factor is not used: Qwen-1 and lmdeploy
};

/// Dynamic NTK ("dynamic"): θ_eff = θ·g^(r/(r−2)) with the stretch g of the rule, by default
/// g = s·n/L − (s−1). Inside the trained length the frequencies are the plain ones; beyond it they change
/// with the length, so that keys which were rotated for another length are wrong: keep unrotated keys or
/// decide the length once per sequence.
///
/// Hugging Face's modules remember the longest length seen and recompute only on growth; here nothing is
/// remembered, the length is an argument.
struct dynamic_ntk {
  double factor = 0;       ///< s, ≥ 1; there is no default
  double max_context = 0;  ///< L: "max_position_embeddings", the length up to which nothing is stretched
  dynamic_ntk_rule rule = dynamic_ntk_rule::sequence_length;  ///< what counts as the length

  /// The stretch g of the last pair for a sequence of `length` tokens.
  /// \throws std::invalid_argument when the factor is < 1, the context not positive, or the rule needs a
  /// length and gets none.
  template <std::floating_point Number = double>
  [[nodiscard]] Number stretch(std::optional<position> length) const {
    detail::require(detail::is_finite(factor) && factor >= 1, "dynamic NTK needs a factor >= 1, not ",
                    factor);
    detail::require(detail::is_finite(max_context) && max_context > 0,
                    "dynamic NTK needs the context length that the model was trained with, not ",
                    max_context);
    const Number s = static_cast<Number>(factor), trained = static_cast<Number>(max_context);
    if (rule == dynamic_ntk_rule::full_extension) return s * (s * trained) / trained - (s - 1);
    detail::require(length.has_value(),
                    "dynamic NTK depends on the length of the sequence: give it a context_length");
    const Number n = (std::max)(static_cast<Number>(*length), trained);
    if (rule == dynamic_ntk_rule::power_of_two_steps)
      return std::exp2(std::ceil(std::log2(n / trained)) + 1) - 1;
    return s * n / trained - (s - 1);
  }

  /// \throws std::invalid_argument as stretch() does, and when there is only one pair.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape,
                                              std::optional<position> length) const {
    using number = detail::description_t<Real>;
    if constexpr (std::same_as<Real, float>) {
      // The frameworks keep the length in a tensor, so that beyond the trained length the base is float32,
      // too.
      const bool in_a_tensor =
          rule == dynamic_ntk_rule::sequence_length && length && static_cast<double>(*length) > max_context;
      if (in_a_tensor)
        return {plain_frequencies<float>(shape.rotary_dim, base_in_float32(shape, *length)), 1};
    }
    return {plain_frequencies<Real>(shape.rotary_dim, detail::stretched_base(shape, stretch<number>(length))),
            1};
  }

 private:
  [[nodiscard]] float base_in_float32(const rotary_shape& shape, position length) const {
    using detail::stored, detail::quotient;
    static_cast<void>(detail::stretched_base(shape, stretch(length)));  // checks the numbers
    const auto as_float = [](double number) { return static_cast<float>(number); };
    const float extended = stored(as_float(factor) * static_cast<float>(length));
    const float g = stored(quotient(extended, as_float(max_context)) - as_float(factor - 1));
    const double r = static_cast<double>(shape.rotary_dim);
    const volatile double exponent = r / (r - 2);  // a number, not a tensor: stays double
    return stored(as_float(shape.base) * as_float(std::pow(static_cast<double>(g), double{exponent})));
  }
};

}  // namespace posenc::inline v0_2
