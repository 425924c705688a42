// SPDX-License-Identifier: MIT
/// \file
/// What the backward kernels get beside the forward's problem.
#pragma once

#include <posenc/fused/problem.hpp>

namespace posenc::inline v0_2::detail::fused_problem {

/// Calls back into an encoding's adjoints (parameters.hpp); `of` is what they take as their first argument. Null where a
/// door has none.
struct adjoint_callbacks {
  const void* of = nullptr;
  void (*bias)(const void*, index_t head, position query, position key, double d, double* gradient) = nullptr;
  void (*relative_key)(const void*, index_t head, position offset, const double* d_row, index_t channels,
                       double* gradient) = nullptr;
  void (*relative_value)(const void*, index_t head, position offset, const double* d_row, index_t channels,
                         double* gradient) = nullptr;
  void (*scale)(const void*, index_t head, position query, double d, double* gradient) = nullptr;
  /// For rotations that kernels cannot turn back themselves. `head` is the head before the rotation.
  void (*rotate)(const void*, const float* head, float* d_head, index_t channels, position,
                 const axis_positions*, rotation_side, double* gradient) = nullptr;
};

/// One sequence's backward. `log_sum_exp` is read.
struct backward_problem : attention_problem {
  tensor result, upstream;  ///< the forward's output and its gradient
  output_tensor d_q, d_k, d_v;
  adjoint_callbacks adjoint{};
  index_t parameters = 0;  ///< of the encoding
  /// Sums of each task, `collected_stride` apart: the encoding's parameters, then for each head of the task what
  /// collected_of_head() counts.
  double* collected = nullptr;
  index_t collected_stride = 0;

  /// Numbers that a task collects for a head: its scale, its sink, and its bias by distance, one for each entry of a
  /// diagonal or one for each side of a line.
  [[nodiscard]] index_t collected_of_head() const noexcept {
    return 2 + (bias.kind == distance_bias::form::linear     ? 2
                : bias.kind == distance_bias::form::diagonal ? bias.stride
                                                             : 0);
  }
  [[nodiscard]] double* collected_by(index_t task) const noexcept {
    return collected + task * collected_stride;
  }
};

}  // namespace posenc::inline v0_2::detail::fused_problem
