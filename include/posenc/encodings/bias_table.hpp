// SPDX-License-Identifier: MIT
/// \file
/// A learned table of biases, shared by all heads or with one column per *query* head: what relative_bias and
/// t5_bias look up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include <posenc/detail/table.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// rows × query heads, or rows alone. How the memory is laid out is said by the name of the function that
/// makes the table:
///
///     bias_table<float>::rows_by_heads(weights)        // the weight of nn.Embedding(rows, heads): T5's
///     bias_table<float>::heads_by_rows(weights)
///     bias_table<float>::shared(values)                // one number per row, for every head
template <class T>
class bias_table {
 public:
  /// \throws std::invalid_argument when the table is empty or holds a NaN or an infinity (as do the others).
  [[nodiscard]] static bias_table rows_by_heads(const row_major_matrix<T>& weights) {
    return bias_table(weights.transpose(), false);
  }
  /// The same from memory, row by row.
  [[nodiscard]] static bias_table rows_by_heads(std::span<const T> weights, index_t heads) {
    return rows_by_heads(detail::matrix_of(weights, heads, "bias_table"));
  }

  /// One row of numbers per head, as ggml stores them.
  [[nodiscard]] static bias_table heads_by_rows(row_major_matrix<T> weights) {
    return bias_table(std::move(weights), false);
  }
  /// The same from memory, head by head.
  [[nodiscard]] static bias_table heads_by_rows(std::span<const T> weights, index_t heads) {
    const auto count = static_cast<index_t>(weights.size());
    detail::require(heads >= 1 && count % heads == 0, "bias_table: ", count, " values for ", heads, " heads");
    return heads_by_rows(detail::matrix_of(weights, (std::max)(count / heads, index_t{1}), "bias_table"));
  }

  /// The same numbers for every head.
  [[nodiscard]] static bias_table shared(std::span<const T> values) {
    return bias_table(
        detail::matrix_of(values, (std::max)(static_cast<index_t>(values.size()), index_t{1}), "bias_table"),
        true);
  }

  /// The bias of query head `head` in row `row`; the row is not checked.
  /// \throws std::invalid_argument when the table has no such head.
  [[nodiscard]] const T& operator()(int head, index_t row) const {
    detail::require(head >= 0 && (shared_ || head < by_head_.rows()), "bias_table: head ", head, " of ",
                    by_head_.rows());
    return by_head_(shared_ ? 0 : head, row);
  }

  /// The numbers as heads × rows (1 × rows where they are shared), and a table of the same form with others.
  [[nodiscard]] const row_major_matrix<T>& values() const noexcept { return by_head_; }
  /// The same kind of table with other numbers.
  [[nodiscard]] bias_table with_values(row_major_matrix<T> by_head) const {
    return bias_table(std::move(by_head), shared_);
  }
  /// Where the number of a head and a row lies in values().
  [[nodiscard]] std::size_t place(int head, index_t row) const noexcept {
    return static_cast<std::size_t>((shared_ ? 0 : head) * rows() + row);
  }

  /// Numbers of a head.
  [[nodiscard]] index_t rows() const noexcept { return by_head_.cols(); }
  /// The number of query heads; none when they all share one column.
  [[nodiscard]] std::optional<index_t> heads() const noexcept {
    return shared_ ? std::nullopt : std::optional<index_t>(by_head_.rows());
  }

 private:
  bias_table(row_major_matrix<T> by_head, bool shared) : by_head_(std::move(by_head)), shared_(shared) {
    detail::check_table(by_head_, "bias_table");
  }

  row_major_matrix<T> by_head_;
  bool shared_;
};

}  // namespace posenc::inline v0_2
