// SPDX-License-Identifier: MIT
/// \file
/// xPos: RoPE whose scores fade with distance. Door *rotate*, with queries and keys treated differently.
///
///     q_i ← R(i) q_i · ζ^(i/B),   k_j ← R(j) k_j · ζ^(−j/B),   ζ_p = (2p/d + γ) / (1 + γ)
///
/// so that pair p of a score carries ζ_p^((i−j)/B): for keys behind the query (causal attention) the fast
/// pairs fade with the distance. Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv:2212.10554; γ
/// = 0.4 and B = 512 as in the authors' code (torchscale).
///
/// ζ^(i/B) itself leaves the range of float32 beyond about 2^15 tokens: give both sides a common `origin`
/// near them (scores do not depend on it), or attend with unrotated keys, where the kernels choose one.
///
/// Golden values: tests/golden/xpos.json.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include <posenc/encodings/rope.hpp>

namespace posenc::inline v0_2 {

/// What an xPos is. The pairs are those of the options; torchscale pairs interleaved channels.
struct xpos_options {
  rope_options rope;        ///< the rotation
  double gamma = 0.4;       ///< γ > 0
  double scale_base = 512;  ///< B > 0: tokens over which the slowest-fading score factor is ζ
  position origin = 0;      ///< where the growth is 1, on both sides
};

/// xPos. T is the precision of cos and sin.
template <std::floating_point T>
class xpos {
 public:
  /// \throws std::invalid_argument when the options mean nothing.
  explicit xpos(const xpos_options& options) : rope_(options.rope), rotation_(rope_.lowered()) {
    detail::require(detail::is_finite(options.gamma) && options.gamma > 0, "xpos: gamma ", options.gamma,
                    " must be positive");
    detail::require(detail::is_finite(options.scale_base) && options.scale_base > 0, "xpos: scale_base ",
                    options.scale_base, " must be positive");
    const long double gamma = options.gamma, width = static_cast<long double>(rotation_.rotary_dim);
    for (index_t p = 0; p < rotation_.pairs(); ++p) {
      const long double zeta = (2 * static_cast<long double>(p) / width + gamma) / (1 + gamma);
      rotation_.growth_per_token.push_back(std::log(zeta) / static_cast<long double>(options.scale_base));
    }
    rotation_.growth_origin = options.origin;
  }

  /// Door *rotate*: rotates a query at position `p`, in place.
  template <class S>
  void rotate_query(std::span<S> head, position p) const {
    rotation_.template apply<T>(head, p, rotation_side::query);
  }

  /// Door *rotate*: rotates a key at position `p`, in place.
  template <class S>
  void rotate_key(std::span<S> head, position p) const {
    rotation_.template apply<T>(head, p, rotation_side::key);
  }

  /// cos φ and sin φ of one pair at position `p`, without growth.
  [[nodiscard]] cos_sin<T> angle(index_t pair, position p) const { return rope_.angle(pair, p); }

  /// What multiplies pair `pair` of a query (or key) at position `p`.
  [[nodiscard]] double growth(index_t pair, position p, rotation_side side) const noexcept {
    return rotation_.attention_factor_at(pair, p, side);
  }

  /// Radians per token of each pair.
  [[nodiscard]] std::span<const double> inv_freq() const noexcept { return rope_.inv_freq(); }

  /// The settled description, for kernels.
  [[nodiscard]] const rotation& lowered() const noexcept { return rotation_; }

 private:
  rope<T> rope_;
  rotation rotation_;
};

}  // namespace posenc::inline v0_2
