// SPDX-License-Identifier: MIT
/// \file
/// A temperature that grows with the query's position: door *scale*.
///
///     s_ij ← τ_i s_ij,   τ_i = 1 + β·ln(1 + floor((i + first) / N))
///
/// Golden values: tests/golden/logit_scale.json.
#pragma once

#include <cmath>
#include <span>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// Position-dependent logit scale. Models multiply the query by it; on the score it is the same.
///
///     auto encoding = posenc::combine(rope, posenc::logit_scale::ministral(0.1, 16'384));
///
/// The position is the token's index in the sequence, whatever a model's position ids say. Models that apply
/// it to some layers only (Llama-4: the layers without rotation) leave it out of the others.
class logit_scale {
 public:
  /// Llama-4: N = floor_scale, β = attn_scale, counted from 1. GGUF: attention.temperature_length and
  /// attention.temperature_scale. \throws std::invalid_argument when a number is not positive.
  [[nodiscard]] static logit_scale llama4(double attn_scale = 0.1, double floor_scale = 8192) {
    return {attn_scale, floor_scale, 1};
  }

  /// Ministral-3, Mistral-4: N = original_max_position_embeddings, β = llama_4_scaling_beta, counted from 0.
  /// \throws std::invalid_argument when a number is not positive.
  [[nodiscard]] static logit_scale ministral(double beta, double original_context) {
    return {beta, original_context, 0};
  }

  /// Door *scale*: τ at a query position. \throws std::out_of_range when it is negative.
  [[nodiscard]] double scale(position query) const {
    detail::require_in_range(query >= 0, "logit_scale: position ", query, " is negative");
    return 1 + beta_ * growth(query);
  }

  /// What is learned (parameters.hpp): "beta", one number.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add("beta", Eigen::Matrix<double, 1, 1>(beta_));
  }
  /// The same encoding with these numbers.
  [[nodiscard]] logit_scale with_parameters(const parameter_list<double>& p) const {
    return {p["beta"](0, 0), interval_, first_};
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *scale* makes of them (parameters.hpp).
  template <class S>
  void scale_adjoint(int /*head*/, position query, const S& d, std::span<S> gradient) const {
    gradient[0] += S(d * static_cast<S>(growth(query)));
  }

  /// Β.
  [[nodiscard]] double beta() const noexcept { return beta_; }
  /// Tokens per step of the temperature.
  [[nodiscard]] double interval() const noexcept { return interval_; }
  /// The number that the first token counts as: 1 in Llama-4, 0 in Ministral.
  [[nodiscard]] position first() const noexcept { return first_; }

 private:
  logit_scale(double beta, double interval, position first)
      : beta_(beta), interval_(interval), first_(first) {
    detail::require(detail::is_finite(beta) && beta >= 0, "logit_scale: beta ", beta,
                    " must be finite and not negative");
    detail::require(detail::is_finite(interval) && interval > 0, "logit_scale: an interval of ", interval,
                    " tokens");
  }

  [[nodiscard]] double growth(position query) const {
    return std::log1p(std::floor(static_cast<double>(query + first_) / interval_));
  }

  double beta_;
  double interval_;
  position first_;
};

}  // namespace posenc::inline v0_2
