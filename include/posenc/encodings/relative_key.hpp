// SPDX-License-Identifier: MIT
/// \file
/// Shaw's relative position representations: door *bias*, content form.
///
///     s_ij = σ·( q_i·k_j + q_i·a^K[row(j − i)] ),    out_i = Σ_j p_ij ( v_j + a^V[row(j − i)] )
///
/// Shaw et al. 2018, arXiv:1803.02155, equations 3 and 4. A learned *vector* per clipped distance
/// (encodings/relative_clip.hpp), shared by all heads, is added to the key; both products share the scale σ.
/// The query that meets a^K is the one before any rotation. The value side is optional and a type of its own,
/// because an open door costs something.
///
/// | who | sides | clip |
/// |---|---|---|
/// | the paper | key and value | key_minus_query, left = right = K |
/// | wav2vec2-BERT "relative_key" | key | key_minus_query, left 64, right 8 |
///
/// Golden values: tests/golden/relative.json, attention.json.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <posenc/detail/table.hpp>
#include <posenc/encodings/relative_clip.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// A vector per clipped distance on the key side.
///
///     posenc::shaw<float> relative{
///         {.direction = posenc::relative_direction::key_minus_query, .left = 64, .right = 8}, key_rows};
template <class T>
class shaw {
 public:
  /// \param key_rows a^K: (left + right + 1) × head_dim
  /// \throws std::invalid_argument when a clip is negative, the table has other than left + right + 1 rows or
  /// is not finite.
  shaw(const relative_clip& clip, row_major_matrix<T> key_rows) : clip_(clip), key_(std::move(key_rows)) {
    check(key_);
  }

  /// Door *bias*, content form: a^K[row(offset)], the same for every head; `offset` is key − query. The span
  /// lives as long as this encoding.
  [[nodiscard]] std::span<const T> relative_key(int /*head*/, position offset) const noexcept {
    return row_of(key_, offset);
  }

  /// How distances are clipped to rows.
  [[nodiscard]] const relative_clip& clip() const noexcept { return clip_; }
  /// Rows × head_dim.
  [[nodiscard]] const row_major_matrix<T>& key_rows() const noexcept { return key_; }

  /// What is learned (parameters.hpp): "key_rows", (left + right + 1) × head_dim.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add("key_rows", key_.template cast<double>());
  }
  /// The same encoding with these numbers.
  [[nodiscard]] shaw with_parameters(const parameter_list<double>& p) const {
    return shaw(clip_, p["key_rows"].template cast<T>());
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of a key row makes of them (parameters.hpp).
  template <class S>
  void relative_key_adjoint(int /*head*/, position offset, std::span<const S> d_row,
                            std::span<S> gradient) const {
    add_to_row(offset, d_row, gradient);
  }

 protected:
  /// Adds a gradient to the row of an offset.
  template <class S>
  void add_to_row(position offset, std::span<const S> d_row, std::span<S> rows) const {
    S* const row = rows.data() + static_cast<std::size_t>(clip_.row(offset)) * d_row.size();
    for (std::size_t c = 0; c < d_row.size(); ++c) row[c] += d_row[c];
  }
  /// \throws std::invalid_argument when the rows do not fit the clip.
  void check(const row_major_matrix<T>& rows) const {
    detail::check_table(rows, "shaw");
    detail::check_clip(clip_, rows.rows(), "shaw");
  }
  /// The row of an offset.
  [[nodiscard]] std::span<const T> row_of(const row_major_matrix<T>& rows, position offset) const noexcept {
    return {rows.data() + clip_.row(offset) * rows.cols(), static_cast<std::size_t>(rows.cols())};
  }

 private:
  relative_clip clip_;
  row_major_matrix<T> key_;
};

/// A vector per clipped distance on the key side and another on the value side.
template <class T>
class shaw_with_values : public shaw<T> {
 public:
  /// \param key_rows a^K: (left + right + 1) × head_dim
  /// \param value_rows a^V: (left + right + 1) × head_dim of the values
  /// \throws std::invalid_argument as shaw does, for either table.
  shaw_with_values(const relative_clip& clip, row_major_matrix<T> key_rows, row_major_matrix<T> value_rows)
      : shaw<T>(clip, std::move(key_rows)), value_(std::move(value_rows)) {
    this->check(value_);
  }

  /// The value side of the door: a^V[row(offset)], the same for every head.
  [[nodiscard]] std::span<const T> relative_value(int /*head*/, position offset) const noexcept {
    return this->row_of(value_, offset);
  }

  /// Rows × head_dim of the values.
  [[nodiscard]] const row_major_matrix<T>& value_rows() const noexcept { return value_; }

  /// What is learned: "key_rows" and "value_rows".
  [[nodiscard]] parameter_list<double> parameters() const {
    return shaw<T>::parameters().add("value_rows", value_.template cast<double>());
  }
  /// The same encoding with these numbers.
  [[nodiscard]] shaw_with_values with_parameters(const parameter_list<double>& p) const {
    return shaw_with_values(this->clip(), p["key_rows"].template cast<T>(),
                            p["value_rows"].template cast<T>());
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of a value row makes of them (parameters.hpp).
  template <class S>
  void relative_value_adjoint(int /*head*/, position offset, std::span<const S> d_row,
                              std::span<S> gradient) const {
    this->add_to_row(offset, d_row, gradient.subspan(static_cast<std::size_t>(this->key_rows().size())));
  }

 private:
  row_major_matrix<T> value_;
};

}  // namespace posenc::inline v0_2
