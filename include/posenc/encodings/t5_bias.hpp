// SPDX-License-Identifier: MIT
/// \file
/// T5's bucketed relative position bias: door *bias*.
///
///     s_ij ← s_ij + b_h[bucket(j − i)]
///
/// Raffel et al. 2020, arXiv:1910.10683. Near distances have a bucket each, farther ones share buckets that
/// grow geometrically up to D = max_distance, all beyond share the last. With δ = key − query, n = buckets
/// (half of them where both directions are told apart, the upper half for δ > 0), e = ⌊n/2⌋ and a = |δ|
/// (causal: a = max(−δ, 0), so that keys ahead fall into bucket 0):
///
///     a < e:      bucket = a
///     otherwise:  bucket = the largest e + k ≤ n − 1 with a^(n−e)·e^k ≥ e^(n−e)·D^k
///
/// which is e + ⌊ln(a/e)/ln(D/e)·(n−e)⌋ without logarithms: the order of floating-point operations flips
/// buckets at powers of two, whole numbers do not.
///
/// | convention | T5 |
/// |---|---|
/// | direction | key − query |
/// | score scale | 1: T5 has no 1/√head_dim (attention_options::scale) |
/// | layers | the first layer's table serves every layer; one table per layer in UMT5 |
/// | cross-attention | no bias (no_encoding) |
///
/// Golden values: tests/golden/t5_buckets.json.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <posenc/detail/geometric.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>
#include <posenc/required.hpp>

namespace posenc::inline v0_2 {

/// What T5's configuration says about its buckets.
struct t5_bucket_options {
  index_t buckets = 32;          ///< "relative_attention_num_buckets", both directions together
  position max_distance = 128;   ///< "relative_attention_max_distance"
  required<bool> bidirectional;  ///< true in encoders, false in decoders ("is_decoder")
};

/// The map from a distance to T5's bucket.
class t5_buckets {
 public:
  /// \throws std::invalid_argument when bidirectional buckets are odd, a direction has fewer than 2, or
  /// max_distance is not between buckets-per-direction/2 (exclusive) and 2^32 (exclusive).
  explicit t5_buckets(const t5_bucket_options& options) : options_(options) {
    const bool both = options.bidirectional;
    detail::require(!both || options.buckets % 2 == 0, "t5_bias: ", options.buckets,
                    " buckets cannot be split between two directions");
    const index_t n = both ? options.buckets / 2 : options.buckets, exact = n / 2;
    detail::require(exact >= 1, "t5_bias: ", options.buckets, both ? " bidirectional" : " causal",
                    " buckets are too few");
    detail::require(options.max_distance > exact && options.max_distance <= detail::largest_rung,
                    "t5_bias: max_distance ", options.max_distance, " must exceed ", exact,
                    ", the distances with a bucket of their own, and stay below 2^32");
    for (index_t a = 0; a < exact; ++a) thresholds_.push_back(a);
    for (index_t k = 0; k < n - exact; ++k)
      thresholds_.push_back(detail::geometric_rung(exact, options.max_distance, k, n - exact).ceil());
  }

  /// The bucket of a key at `offset` = key − query, 0 … buckets − 1.
  [[nodiscard]] index_t bucket(position offset) const noexcept {
    const auto n = static_cast<index_t>(thresholds_.size());
    if (offset > 0 && !options_.bidirectional) return 0;
    const std::uint64_t distance = detail::magnitude_of(offset);
    index_t one_sided = n - 1;
    if (distance < static_cast<std::uint64_t>(n / 2))
      one_sided = static_cast<index_t>(distance);
    else if (distance < static_cast<std::uint64_t>(thresholds_.back()))
      one_sided = static_cast<index_t>(std::upper_bound(thresholds_.begin(), thresholds_.end(),
                                                        static_cast<position>(distance)) -
                                       thresholds_.begin()) -
                  1;
    return offset > 0 ? n + one_sided : one_sided;
  }

  /// thresholds()[b] is the smallest distance of bucket b, one entry per bucket of one direction. Equal
  /// neighbours mean that a bucket stays empty.
  [[nodiscard]] std::span<const position> thresholds() const noexcept { return thresholds_; }
  /// What they were made from.
  [[nodiscard]] const t5_bucket_options& options() const noexcept { return options_; }

 private:
  t5_bucket_options options_;
  std::vector<position> thresholds_;
};

/// One number per bucket, shared or per query head.
///
///     posenc::t5_bias<float> bias{{.buckets = 32, .max_distance = 128, .bidirectional = true},
///                                 posenc::bias_table<float>::rows_by_heads(weights)};
template <class T>
class t5_bias {
 public:
  /// \throws std::invalid_argument when the options mean nothing or the table has other than `buckets` rows.
  t5_bias(const t5_bucket_options& options, bias_table<T> table)
      : buckets_(options), table_(std::move(table)) {
    detail::require(table_.rows() == options.buckets, "t5_bias: a table of ", table_.rows(), " rows for ",
                    options.buckets, " buckets");
  }

  /// Door *bias*; `offset` is key − query.
  /// \throws std::invalid_argument when the table has no such head.
  [[nodiscard]] T bias(int head, position offset) const { return table_(head, buckets_.bucket(offset)); }

  /// How distances fall into rows.
  [[nodiscard]] const t5_buckets& buckets() const noexcept { return buckets_; }
  /// The first distance of each bucket of one direction.
  [[nodiscard]] std::span<const position> thresholds() const noexcept { return buckets_.thresholds(); }
  /// The numbers.
  [[nodiscard]] const bias_table<T>& table() const noexcept { return table_; }

  /// The distance of the last bucket, from which on the bias stays what it is.
  [[nodiscard]] position bias_reach() const noexcept { return thresholds().back(); }
  /// What is learned (parameters.hpp): "table", heads × rows, or 1 × rows where heads share it.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add("table", table_.values().template cast<double>());
  }
  /// The same encoding with these numbers.
  [[nodiscard]] t5_bias with_parameters(const parameter_list<double>& p) const {
    return t5_bias(buckets_.options(), table_.with_values(p["table"].template cast<T>()));
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *bias* makes of them (parameters.hpp).
  template <class S>
  void bias_adjoint(int head, position offset, const S& d, std::span<S> gradient) const {
    gradient[table_.place(head, buckets_.bucket(offset))] += d;
  }

  /// The heads of the table; 0 where they share one column.
  [[nodiscard]] index_t bias_heads() const noexcept { return table_.heads().value_or(0); }

 private:
  t5_buckets buckets_;
  bias_table<T> table_;
};

}  // namespace posenc::inline v0_2
