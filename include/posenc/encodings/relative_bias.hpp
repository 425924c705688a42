// SPDX-License-Identifier: MIT
/// \file
/// Relative position bias from a clipped table: door *bias*.
///
///     s_ij ← s_ij + b_h[row(j − i)]
///
/// where row() is a relative_clip (encodings/relative_clip.hpp: both directions, asymmetric clips). The
/// clipping is that of Shaw et al. 2018, arXiv:1803.02155; a number per distance instead of a vector, as in
/// Raffel et al. 2020, arXiv:1910.10683. Distances beyond the clip share the outermost rows, so any length
/// has a defined answer. Keys in a cache do not depend on their position.
///
/// Also here: deberta_log_buckets, DeBERTa-v2's map from distances to rows.
///
/// Golden values: tests/golden/relative.json, attention.json.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <posenc/detail/geometric.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/encodings/relative_clip.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// One number per clipped distance, shared or per query head.
///
///     posenc::relative_bias<float> bias{
///         {.direction = posenc::relative_direction::key_minus_query, .left = 3, .right = 3},
///         posenc::bias_table<float>::shared(seven_numbers)};
template <class T>
class relative_bias {
 public:
  /// \throws std::invalid_argument when a clip is negative or the table has other than left + right + 1 rows.
  relative_bias(const relative_clip& clip, bias_table<T> table) : clip_(clip), table_(std::move(table)) {
    detail::check_clip(clip_, table_.rows(), "relative_bias");
  }

  /// Door *bias*; `offset` is key − query whatever the direction of the table.
  /// \throws std::invalid_argument when the table has no such head.
  [[nodiscard]] T bias(int head, position offset) const { return table_(head, clip_.row(offset)); }

  /// How distances are clipped to rows.
  [[nodiscard]] const relative_clip& clip() const noexcept { return clip_; }
  /// The numbers.
  [[nodiscard]] const bias_table<T>& table() const noexcept { return table_; }

  /// The farther clip, from which on the bias stays what it is.
  [[nodiscard]] position bias_reach() const noexcept { return (std::max)(clip_.left, clip_.right); }
  /// What is learned (parameters.hpp): "table", heads × rows, or 1 × rows where heads share it.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add("table", table_.values().template cast<double>());
  }
  /// The same encoding with these numbers.
  [[nodiscard]] relative_bias with_parameters(const parameter_list<double>& p) const {
    return relative_bias(clip_, table_.with_values(p["table"].template cast<T>()));
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *bias* makes of them (parameters.hpp).
  template <class S>
  void bias_adjoint(int head, position offset, const S& d, std::span<S> gradient) const {
    gradient[table_.place(head, clip_.row(offset))] += d;
  }

  /// The heads of the table; 0 where they share one column.
  [[nodiscard]] index_t bias_heads() const noexcept { return table_.heads().value_or(0); }

 private:
  relative_clip clip_;
  bias_table<T> table_;
};

/// DeBERTa-v2's logarithmic buckets (He et al. 2021, arXiv:2006.03654; the log form is its version 2). With
/// δ = query − key, mid = buckets/2 and P = max_positions:
///
///     |δ| ≤ mid:  bucket = δ
///     otherwise:  bucket = sign(δ)·(mid + ⌈ ln(|δ|/mid) / ln((P−1)/mid) · (mid−1) ⌉)
///
/// The ceiling is taken in whole numbers, not through logarithms. Buckets beyond ±`buckets` are clipped to
/// it, as the model's table does to its rows anyway.
class deberta_log_buckets {
 public:
  /// \param buckets position_buckets of the config, even; half the rows of the model's table
  /// \param max_positions max_relative_positions of the config
  /// \throws std::invalid_argument unless buckets is even and ≥ 4 and buckets/2 < max_positions − 1 < 2^32.
  deberta_log_buckets(index_t buckets, position max_positions) : span_(buckets) {
    detail::require(buckets >= 4 && buckets % 2 == 0, "deberta_log_buckets: ", buckets,
                    " buckets; needed is an even number of at least 4");
    const index_t mid = buckets / 2;
    detail::require(max_positions - 1 > mid && max_positions - 1 <= detail::largest_rung,
                    "deberta_log_buckets: max_positions ", max_positions, " for ", buckets, " buckets");
    for (index_t step = 0; step < mid; ++step)
      first_of_bucket_.push_back(detail::geometric_rung(mid, max_positions - 1, step, mid - 1).floor + 1);
  }

  /// The bucket of a key at `offset` = key − query; its sign is that of query − key.
  [[nodiscard]] index_t bucket(position offset) const noexcept {
    const std::uint64_t distance = detail::magnitude_of(offset);
    index_t size = span_;
    if (distance <= static_cast<std::uint64_t>(span_ / 2)) {
      size = static_cast<index_t>(distance);
    } else if (distance < static_cast<std::uint64_t>(first_of_bucket_.back())) {
      const auto above =
          std::upper_bound(first_of_bucket_.begin(), first_of_bucket_.end(), static_cast<position>(distance));
      size = span_ / 2 + static_cast<index_t>(above - first_of_bucket_.begin());
    }
    return offset > 0 ? -size : size;
  }

  /// The row of the model's table of 2·buckets rows: clip(bucket + buckets, 0, 2·buckets − 1).
  [[nodiscard]] index_t row(position offset) const noexcept {
    return (std::min)(bucket(offset) + span_, 2 * span_ - 1);
  }

 private:
  index_t span_;
  std::vector<position> first_of_bucket_;  // [k−1]: the smallest distance of bucket mid + k
};

}  // namespace posenc::inline v0_2
