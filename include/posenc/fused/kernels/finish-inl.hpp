// SPDX-License-Identifier: MIT
/// \file
/// From the running softmax of a row to its output and log-sum-exp. Included once per instruction set.
#if defined(POSENC_FUSED_FINISH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_FINISH_INL_HPP
#undef POSENC_FUSED_FINISH_INL_HPP
#else
#define POSENC_FUSED_FINISH_INL_HPP
#endif

#include <algorithm>
#include <cmath>

#include <posenc/detail/floating.hpp>
#include <posenc/fused/kernels/softmax-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// The state of one row after all keys: the largest score, Σ weights, Σ weights·values.
struct row_state {
  float largest, total;
  const float* output;  ///< in whole vectors
  bool is_token;        ///< false for padding, which yields 0 and −∞
  double left_out = 0;  ///< what every score still lacks, in nats
};

/// Writes one output row, Σ w v / Σ w with the head's sink counted, and its log-sum-exp. A row that saw
/// nothing is 0 and −∞.
inline HWY_NOINLINE void finish_row(const attention_problem& problem, index_t head, index_t row,
                                    const row_state& state) {
  void* const to = problem.out.row(row, head);
  float* const lse = problem.log_sum_exp ? problem.log_sum_exp + row * problem.lse_token_stride +
                                               head * problem.lse_head_stride
                                         : nullptr;
  // A NaN never becomes the largest score, but it is in the total.
  const bool saw = state.is_token && (state.largest > lowest_score || !(state.total == 0));
  const bool sink = state.is_token && problem.sinks != nullptr && !is_minus_infinity(problem.sinks[head]);
  if (!saw && !sink) {
    HWY_ALIGN const float nothing[widest_head + vector_slack] = {};
    store_row(nothing, 0.0f, problem.value_dim, problem.out.type, to);
    if (lse) *lse = minus_infinity<float>();
    return;
  }
  double m = saw ? static_cast<double>(state.largest) / score_unit + state.left_out : 0,
         sum = saw ? static_cast<double>(state.total) : 0;
  double factor = 1;
  if (sink) {
    const double logit = problem.sinks[head], top = saw ? (std::max)(m, logit) : logit;
    factor = saw ? std::exp(m - top) : 0;
    sum = sum * factor + std::exp(logit - top);
    m = top;
  }
  const float* output = state.output;
  HWY_ALIGN float rotated[widest_head + vector_slack];
  if (problem.rotates_values()) {
    std::copy_n(output, problem.value_dim, rotated);
    rotate_value(*problem.rotary, place_of(problem.queries, row), true, rotated);
    output = rotated;
  }
  store_row(output, static_cast<float>(factor / sum), problem.value_dim, problem.out.type, to);
  if (lse) *lse = static_cast<float>(m + std::log(sum));
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
