// SPDX-License-Identifier: MIT
/// \file
/// RoPE whose frequencies are learned: door *rotate*, with a gradient for each w_p.
///
///     ∂q̂/∂w_p = position · m·R(φ + 90°) q,    so   dw_p = Σ position·( â·d_b̂ − b̂·d_â )
///
/// over queries and keys, where (â, b̂) is the rotated pair and (d_â, d_b̂) the gradient that comes back to it. A plain
/// rope (encodings/rope.hpp) has no parameters and costs no sums.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <posenc/encodings/rope.hpp>
#include <posenc/parameters.hpp>

namespace posenc::inline v0_2 {

/// RoPE with one learned frequency per pair. T is the precision of cos and sin.
///
///     posenc::learned_rope<float> learned{{.head_dim = 64, .pairing = posenc::pairing::half_split}};
template <std::floating_point T>
class learned_rope {
 public:
  /// \param options of the rotation; angles are exact whatever they say
  /// \param start where the frequencies begin: the ladder of the options and of a scaling
  template <rope_scaling Scaling = no_scaling>
  explicit learned_rope(const rope_options& options, const Scaling& start = {})
      : options_(options), rope_(exact(options), start) {}

  /// Door *rotate*, as rope's.
  template <class S>
  void rotate(std::span<S> head, position p) const {
    rope_.rotate(head, p);
  }
  /// The settled description, for kernels.
  [[nodiscard]] const rotation& lowered() const noexcept { return rope_.lowered(); }
  /// Radians per token, one per pair.
  [[nodiscard]] std::span<const double> inv_freq() const noexcept { return rope_.inv_freq(); }

  /// What is learned (parameters.hpp): "inv_freq", pairs × 1, radians per token.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add(
        "inv_freq",
        Eigen::Map<const Eigen::VectorXd>(inv_freq().data(), static_cast<Eigen::Index>(inv_freq().size())));
  }
  /// The same encoding with these numbers.
  [[nodiscard]] learned_rope with_parameters(const parameter_list<double>& p) const {
    frequency_ladder<long double> ladder;
    for (const double w : p.values()) ladder.inv_freq.push_back(static_cast<long double>(w));
    ladder.attention_factor = rope_.attention_factor();
    learned_rope result = *this;
    result.rope_ = rope<T>::from_frequencies(exact(options_), ladder);
    return result;
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *rotate* makes of them (parameters.hpp).
  template <class S>
  void rotate_adjoint(std::span<const S> head, std::span<S> d_head, position p, rotation_side,
                      std::span<S> gradient) const {
    const rotation& by = lowered();
    for (index_t pair = 0; pair < by.pairs(); ++pair) {
      const cos_sin<T> at = by.cos_sin_at<T>(pair, p);
      by.rotate_pair(d_head, pair, cos_sin<T>{at.cos, -at.sin}, static_cast<T>(by.attention_factor));
      // Rotations commute: the product of rotated pairs is that of the pairs before.
      const auto [first, second] = channels_of_pair(by.pairing, by.rotary_dim, pair);
      const auto a = static_cast<std::size_t>(by.offset + first),
                 b = static_cast<std::size_t>(by.offset + second);
      gradient[static_cast<std::size_t>(pair)] +=
          S(static_cast<S>(p) * S(head[a] * d_head[b] - head[b] * d_head[a]));
    }
  }

 private:
  [[nodiscard]] static rope_options exact(rope_options options) {
    options.angles = angle_mode::exact;
    return options;
  }

  rope_options options_;
  rope<T> rope_;
};

}  // namespace posenc::inline v0_2
