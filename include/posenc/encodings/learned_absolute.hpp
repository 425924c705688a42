// SPDX-License-Identifier: MIT
/// \file
/// Learned absolute position embedding: door *embed*.
///
///     x_i ← x_i + W[i + row_offset]
///
/// Gehring et al. 2017, arXiv:1705.03122; the position table of BERT (arXiv:1810.04805) and GPT-2. There is a
/// row for each position of the training length and nothing beyond: a position outside the table throws, it
/// never wraps around and is never clamped.
///
/// | family | row_offset | rows |
/// |---|---|---|
/// | BERT, GPT-2 | 0 | max_position_embeddings |
/// | OPT, BART | 2 | max_position_embeddings + 2 |
/// | RoBERTa | padding_idx + 1, or 0 with roberta_position_ids() | max_position_embeddings, 514 for 512 |
///
/// Golden values: tests/golden/relative.json.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

#include <posenc/detail/floating.hpp>
#include <posenc/detail/table.hpp>
#include <posenc/errors.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/phase.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// How positions find their row.
struct learned_absolute_options {
  index_t row_offset = 0;  ///< rows that the family reserves before position 0
};

/// A table to start training from: independent normal numbers.
struct normal_table {
  index_t rows = 0;        ///< positions
  index_t width = 0;       ///< channels of a row
  double stddev = 0.02;    ///< BERT's and GPT-2's initializer_range
  std::uint64_t seed = 0;  ///< of the generator
};

/// One learned vector per position. T is the scalar of the table; rows of any scalar can be added to.
///
///     posenc::learned_absolute<float> wpe{gpt2_weights};                       // rows × width, row-major
///     posenc::learned_absolute<float> opt{opt_weights, {.row_offset = 2}};
///     auto fresh = posenc::learned_absolute<float>::random({.rows = 512, .width = 64, .seed = 7});
template <class T>
class learned_absolute {
 public:
  /// \param table rows × width; move it in to avoid the copy.
  /// \throws std::invalid_argument when the table is empty or not finite, or the offset leaves no row.
  explicit learned_absolute(row_major_matrix<T> table, const learned_absolute_options& options = {})
      : table_(std::move(table)), row_offset_(options.row_offset) {
    detail::check_table(table_, "learned_absolute");
    detail::require(row_offset_ >= 0 && row_offset_ < rows(), "learned_absolute: row_offset ", row_offset_,
                    " in a table of ", rows(), " rows");
  }

  /// A copy of row-major memory with rows of `width` channels.
  learned_absolute(std::span<const T> values, index_t width, const learned_absolute_options& options = {})
      : learned_absolute(detail::matrix_of(values, width, "learned_absolute"), options) {}

  /// Normal numbers of mean 0, the same on every system for the same seed up to the rounding of log: the
  /// 64-bit Mersenne twister of the C++ standard, taken in pairs (a, b) in row-major order through
  /// Box–Muller, √(−2 ln((⌊a/2^11⌋+1)/2^53)) · (cos, sin)(2π·b/2^64), each giving two neighbours.
  /// \throws std::invalid_argument when rows or width is not positive or stddev negative or not finite.
  [[nodiscard]] static learned_absolute random(const normal_table& init,
                                               const learned_absolute_options& options = {}) {
    detail::require(init.rows >= 1 && init.width >= 1, "learned_absolute: a random table of ", init.rows,
                    " x ", init.width);
    detail::require(detail::is_finite(init.stddev) && init.stddev >= 0, "learned_absolute: stddev ",
                    init.stddev, " must be finite and not negative");
    std::mt19937_64 bits(init.seed);
    row_major_matrix<T> table(init.rows, init.width);
    for (index_t n = 0; n < table.size(); n += 2) {
      const double uniform = (static_cast<double>(bits() >> 11) + 1) * 0x1p-53;
      const double radius = init.stddev * std::sqrt(-2 * std::log(uniform));
      const cos_sin<double> direction = cos_sin_of<double>(phase{bits(), 0});
      table.data()[n] = static_cast<T>(radius * direction.cos);
      if (n + 1 < table.size()) table.data()[n + 1] = static_cast<T>(radius * direction.sin);
    }
    return learned_absolute(std::move(table), options);
  }

  /// Door *embed*: adds the position's row to a token's row.
  /// \throws std::out_of_range when the table has no row for `p`, std::invalid_argument when the widths
  /// differ; the token's row is then as it was.
  template <class S>
  void embed(std::span<S> token, position p) const {
    detail::require_width(token.size(), width(), "learned_absolute");
    detail::require_in_range(p >= first_position() && p <= last_position(), "learned_absolute: position ", p,
                             " is outside the table: ", rows(), " rows, row_offset ", row_offset_,
                             ", positions ", first_position(), " to ", last_position());
    for (index_t c = 0; c < width(); ++c)
      detail::add_to(token[static_cast<std::size_t>(c)], table_(p + row_offset_, c));
  }

  /// Rows × width.
  [[nodiscard]] const row_major_matrix<T>& table() const noexcept { return table_; }

  /// What is learned (parameters.hpp): "table", rows × width.
  [[nodiscard]] parameter_list<double> parameters() const {
    return parameter_list<double>().add("table", table_.template cast<double>());
  }
  /// The same encoding with these numbers.
  [[nodiscard]] learned_absolute with_parameters(const parameter_list<double>& p) const {
    return learned_absolute(p["table"].template cast<T>(), {.row_offset = row_offset_});
  }
  /// Adds to `gradient`, one number per parameter, what the gradient of door *embed* makes of them (parameters.hpp).
  template <class S>
  void embed_adjoint(std::span<const S> d_row, position p, std::span<S> gradient) const {
    const auto first = static_cast<std::size_t>((p + row_offset_) * width());
    for (std::size_t c = 0; c < d_row.size(); ++c) gradient[first + c] += d_row[c];
  }

  /// Positions that have a row, the offset included.
  [[nodiscard]] index_t rows() const noexcept { return table_.rows(); }
  /// Channels of a row.
  [[nodiscard]] index_t width() const noexcept { return table_.cols(); }
  /// Position p uses row p + row_offset.
  [[nodiscard]] index_t row_offset() const noexcept { return row_offset_; }

  /// The position of row 0: −row_offset. Families with an offset keep padding rows there.
  [[nodiscard]] position first_position() const noexcept { return -row_offset_; }
  /// The position of the last row: rows − row_offset − 1.
  [[nodiscard]] position last_position() const noexcept { return rows() - row_offset_ - 1; }

 private:
  row_major_matrix<T> table_;
  index_t row_offset_;
};

}  // namespace posenc::inline v0_2
