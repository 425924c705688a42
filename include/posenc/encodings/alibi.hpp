// SPDX-License-Identifier: MIT
/// \file
/// Attention with linear biases (ALiBi): door *bias*.
///
///     s_ij ← s_ij − m_h·(i − j)
///
/// Press et al. 2022, arXiv:2108.12409. Each head lowers a key in proportion to its distance. For n heads
/// let n₂ be the largest power of two ≤ n and B = bias_max = 8:
///
///     h < n₂:  m_h = 2^(−B·(h+1)/n₂)
///     h ≥ n₂:  m_h = 2^(−B·(2(h−n₂)+1)/(2·n₂))      (every other slope of the next power of two)
///
/// so the first slope of 8 heads is 1/2, and that of one head 2^−8. The same in the authors' code, Bloom, MPT
/// and ggml (max_bias).
///
/// Implementations that add m·j or m·(j − len + 1) instead give the same softmax and another log-sum-exp, and
/// lose bits in 16-bit storage; here it is always the distance.
///
/// | variant | here |
/// |---|---|
/// | paper, Bloom, MPT, ggml: q·k·σ + bias | alibi{options} |
/// | bias_max of MPT ("alibi_bias_max"), ggml ("max_alibi_bias") | options.bias_max |
/// | Falcon-RW: (q·k + bias)·σ, slopes rounded to bfloat16 | alibi::falcon(options, head_dim) |
/// | heads sharded over devices | options.head_offset, options.total_heads |
/// | anything else | alibi::from_slopes(slopes) |
///
/// Golden values: tests/golden/alibi.json, attention.json, disagreements.json.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <posenc/detail/floating.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// What ALiBi gives to keys ahead of the query. Under a causal mask nobody sees the difference.
enum class alibi_form : unsigned char {
  symmetric,  ///< −m·|i − j|: keys ahead are lowered like keys behind (bidirectional models)
  causal,  ///< −m·(i − j) as written, for causal masks: the line goes on and *raises* keys ahead, as every
           ///< implementation that adds m·j does
};

/// What an ALiBi is.
struct alibi_options {
  index_t heads = 0;                        ///< query heads of this call
  double bias_max = 8;                      ///< B; the last slope of a power-of-two head count is 2^−B
  alibi_form form = alibi_form::symmetric;  ///< keys ahead of the query
  index_t head_offset = 0;                  ///< the first of these heads among all heads of the model
  std::optional<index_t> total_heads{};     ///< heads of the model; head_offset + heads if not given
};

/// The published slopes of all `total_heads` heads of a model, within 1 ulp.
/// \throws std::invalid_argument when total_heads is not positive, or bias_max not positive and finite.
[[nodiscard]] inline std::vector<double> alibi_slopes(index_t total_heads, double bias_max = 8) {
  detail::require(total_heads >= 1, "alibi: heads ", total_heads, " is not positive");
  detail::require(detail::is_finite(bias_max) && bias_max > 0, "alibi: bias_max ", bias_max,
                  " must be positive and finite");
  index_t power_of_two = 1;
  while (power_of_two <= total_heads / 2) power_of_two *= 2;
  std::vector<double> slopes;
  for (index_t h = 0; h < total_heads; ++h) {
    const index_t numerator = h < power_of_two ? 2 * (h + 1) : 2 * (h - power_of_two) + 1;
    const long double exponent = static_cast<long double>(bias_max) * static_cast<long double>(numerator) /
                                 static_cast<long double>(2 * power_of_two);
    slopes.push_back(static_cast<double>(std::exp2(-exponent)));
  }
  return slopes;
}

/// Linear biases. T is the scalar of the bias; slopes and products are formed in double.
///
///     posenc::alibi<float> bloom{{.heads = 112}};
///     posenc::alibi<float> shard{{.heads = 8, .head_offset = 16, .total_heads = 32}};
template <std::floating_point T>
class alibi {
 public:
  /// The published slopes.
  /// \throws std::invalid_argument when the heads do not lie among total_heads or bias_max means nothing.
  explicit alibi(const alibi_options& options) : alibi(published(options), options.form) {}

  /// Slopes of the caller's own, one per query head, positive or zero: a slope m *lowers* distant keys.
  /// \throws std::invalid_argument when there is none, or one is negative or not finite.
  [[nodiscard]] static alibi from_slopes(std::span<const double> slopes,
                                         alibi_form form = alibi_form::symmetric) {
    return alibi(std::vector<double>(slopes.begin(), slopes.end()), form);
  }

  /// Falcon-RW: the bias is added before the scale 1/√head_dim, and slopes are rounded to bfloat16 first. The
  /// effective slope is therefore bfloat16(m)/√head_dim, to be used with the usual scale on q·k.
  /// \throws std::invalid_argument also when head_dim is not positive.
  [[nodiscard]] static alibi falcon(const alibi_options& options, index_t head_dim) {
    detail::require(head_dim >= 1, "alibi: head_dim ", head_dim, " is not positive");
    std::vector<double> slopes = published(options);
    for (double& slope : slopes)
      slope = static_cast<double>(static_cast<float>(Eigen::bfloat16(static_cast<float>(slope)))) /
              std::sqrt(static_cast<double>(head_dim));
    return alibi(std::move(slopes), options.form);
  }

  /// Door *bias*; `offset` is key − query.
  /// \throws std::invalid_argument when there is no such head.
  [[nodiscard]] T bias(int head, position offset) const {
    detail::require(head >= 0 && static_cast<std::size_t>(head) < slopes_.size(), "alibi: head ", head,
                    " asked for, made for ", slopes_.size(), " heads");
    const double distance = static_cast<double>(offset);
    const double signed_distance = form_ == alibi_form::symmetric && distance > 0 ? -distance : distance;
    return static_cast<T>(slopes_[static_cast<std::size_t>(head)] * signed_distance);
  }

  /// m_h of each query head, whatever was folded into it included.
  [[nodiscard]] std::span<const double> slopes() const noexcept { return slopes_; }
  /// Query heads that it is made for.
  [[nodiscard]] index_t heads() const noexcept { return static_cast<index_t>(slopes_.size()); }

  /// The bias is made for exactly these heads.
  [[nodiscard]] index_t bias_heads() const noexcept { return heads(); }

  /// The bias as a line, for kernels. \throws std::invalid_argument when there is no such head.
  [[nodiscard]] bias_line linear_bias(int head) const {
    detail::require(head >= 0 && static_cast<std::size_t>(head) < slopes_.size(), "alibi: head ", head,
                    " asked for, made for ", slopes_.size(), " heads");
    const double slope = slopes_[static_cast<std::size_t>(head)];
    return {-slope, form_ == alibi_form::symmetric ? slope : -slope};
  }
  /// What keys ahead of the query get.
  [[nodiscard]] alibi_form form() const noexcept { return form_; }

  /// What is learned (parameters.hpp): "slopes", heads × 1. A slope must stay positive or zero.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add(
        "slopes", Eigen::Map<const Eigen::VectorXd>(slopes_.data(), static_cast<Eigen::Index>(heads())));
  }
  /// The same encoding with these numbers.
  [[nodiscard]] alibi with_parameters(const parameter_list<double>& p) const {
    return from_slopes(p.values(), form_);
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *bias* makes of them (parameters.hpp).
  template <class S>
  void bias_adjoint(int head, position offset, const S& d, std::span<S> gradient) const {
    const S distance = static_cast<S>(form_ == alibi_form::symmetric && offset > 0 ? -offset : offset);
    gradient[static_cast<std::size_t>(head)] += S(d * distance);
  }

 private:
  alibi(std::vector<double> slopes, alibi_form form) : slopes_(std::move(slopes)), form_(form) {
    detail::require(!slopes_.empty(), "alibi: no slopes");
    for (std::size_t h = 0; h < slopes_.size(); ++h)
      detail::require(detail::is_finite(slopes_[h]) && slopes_[h] >= 0, "alibi: slope ", slopes_[h],
                      " of head ", h, " must be finite and not negative (a slope lowers distant keys)");
  }

  [[nodiscard]] static std::vector<double> published(const alibi_options& options) {
    const index_t first = options.head_offset, total = options.total_heads.value_or(first + options.heads);
    detail::require(options.heads >= 1, "alibi: heads ", options.heads, " is not positive");
    detail::require(first >= 0 && first <= total - options.heads, "alibi: heads ", first, " to ", first,
                    " + ", options.heads, " of ", total);
    const std::vector<double> all = alibi_slopes(total, options.bias_max);
    return {all.begin() + first, all.begin() + first + options.heads};
  }

  std::vector<double> slopes_;
  alibi_form form_;
};

}  // namespace posenc::inline v0_2
