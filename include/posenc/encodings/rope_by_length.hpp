// SPDX-License-Identifier: MIT
/// \file
/// RoPE under a scaling that depends on the length of the sequence (LongRoPE, dynamic NTK), as one value for all
/// sequences of a model: each call says its own length in attention_options::context_length.
///
///     const posenc::rope_by_length<float> phi3{{.head_dim = 96, .pairing = posenc::pairing::half_split}, longrope};
///     options.context_length = 5000;                                      // this sequence's, decided once
///     Eigen::MatrixXf out = posenc::fused::attention(q, k, v, phi3, options);
///
/// Ding et al. 2024, "LongRoPE", arXiv:2402.13753. A cache of keys that were rotated under one length is not one of
/// another length; unrotated caches may change it from call to call.
#pragma once

#include <concepts>
#include <utility>

#include <posenc/encodings/rope.hpp>
#include <posenc/rope/scaling.hpp>

namespace posenc::inline v0_2 {

/// The options and the scaling of a rope that is settled by the length of a sequence. T is the precision of cos and sin.
template <std::floating_point T>
class rope_by_length {
 public:
  /// \throws std::invalid_argument when the options or the scaling mean nothing
  rope_by_length(const rope_options& options, any_scaling scaling)
      : options_(options), scaling_(std::move(scaling)) {
    (void)at_length(1);  // what means nothing is refused here and not in the first call
  }

  /// The rope of a sequence of `length` tokens. \throws std::invalid_argument when length is not positive
  [[nodiscard]] rope<T> at_length(position length) const {
    detail::require(length >= 1, "rope_by_length: a sequence of ", length, " tokens");
    return rope<T>{options_, scaling_, length};
  }

  /// What it was made from.
  [[nodiscard]] const rope_options& options() const noexcept { return options_; }
  /// The scaling that each length settles.
  [[nodiscard]] const any_scaling& scaling() const noexcept { return scaling_; }

 private:
  rope_options options_;
  any_scaling scaling_;
};

}  // namespace posenc::inline v0_2
