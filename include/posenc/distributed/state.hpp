// SPDX-License-Identifier: MIT
/// \file
/// The result of attention to the keys seen so far: output and log-sum-exp of each query row and head, to which parts
/// are merged one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/shared_prefix.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// Outputs in float, rows × heads × value_dim, and log-sum-exps in double: those of parts are float, but many of them
/// add up.
class running_result {
 public:
  running_result(index_t rows, index_t heads, index_t value_dim)
      : rows_(rows),
        heads_(heads),
        value_dim_(value_dim),
        output_(static_cast<std::size_t>(rows * heads * value_dim)),
        log_sum_exp_(static_cast<std::size_t>(rows * heads), minus_infinity<double>()) {}

  [[nodiscard]] index_t cells() const noexcept { return rows_ * heads_; }
  [[nodiscard]] index_t value_dim() const noexcept { return value_dim_; }
  /// Of row · heads + head.
  [[nodiscard]] float* output(index_t cell) noexcept { return output_.data() + cell * value_dim_; }
  [[nodiscard]] double& log_sum_exp(index_t cell) noexcept {
    return log_sum_exp_[static_cast<std::size_t>(cell)];
  }

  /// Merges what a part gave for rows from `first` on.
  void merge(const fused_calls::partial_result& part, index_t first, index_t count,
             const fused::executor_ref& executor) {
    fused_plans::run_tasks(executor, (count + rows_of_task - 1) / rows_of_task, [&](index_t task, index_t) {
      const index_t end = (std::min)(count, (task + 1) * rows_of_task);
      for (index_t i = task * rows_of_task; i < end; ++i)
        for (index_t h = 0; h < heads_; ++h)
          merge_cell((first + i) * heads_ + h, part.row(i, h), static_cast<double>(part.lse(i, h)));
    });
  }
  /// Merges what another part gave for one row and head.
  void merge_cell(index_t cell, const float* output, double lse) {
    const std::span<float> to(this->output(cell), static_cast<std::size_t>(value_dim_));
    log_sum_exp(cell) = fused_calls::merge_row(to.data(), log_sum_exp(cell), output, lse, to);
  }

  /// Lets each head's sink join the rows of `valid`: once for the whole call.
  void add_sinks(std::span<const double> sinks, const auto& valid_rows) {
    if (sinks.empty()) return;
    const std::vector<float> nothing(static_cast<std::size_t>(value_dim_));
    for (const auto& piece : valid_rows)
      for (index_t i = piece.rows.begin; i < piece.rows.end; ++i)
        for (index_t h = 0; h < heads_; ++h)
          merge_cell(i * heads_ + h, nothing.data(), sinks[static_cast<std::size_t>(h)]);
  }

  /// Hands the result over, rounded to what the caller stores.
  template <class O>
  void write(const heads_view<O>& out, const head_scalars_view<float>& log_sum_exps) {
    for (index_t i = 0; i < rows_; ++i)
      for (index_t h = 0; h < heads_; ++h) {
        const index_t cell = i * heads_ + h;
        const float* const from = output(cell);
        std::transform(from, from + value_dim_, out(i, h).begin(), [](float x) { return static_cast<O>(x); });
        if (log_sum_exps.data) log_sum_exps(i, h) = static_cast<float>(log_sum_exp(cell));
      }
  }

 private:
  static constexpr index_t rows_of_task = 16;
  index_t rows_, heads_, value_dim_;
  std::vector<float> output_;
  std::vector<double> log_sum_exp_;
};

}  // namespace posenc::inline v0_2::detail::distributed
