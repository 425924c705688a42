// SPDX-License-Identifier: MIT
/// \file
/// Where tokens stand. Positions are 64-bit token indexes, always explicit, never inferred from a row number:
/// causality, windows, biases and rotations all come from here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <posenc/errors.hpp>

namespace posenc::inline v0_2 {

/// The place of a token in its sequence, in tokens; may be negative. |position| < 2^62, so that differences
/// never overflow.
using position = std::int64_t;

/// Counts and strides, in elements.
using index_t = std::ptrdiff_t;

/// The largest |position| an attention call accepts.
inline constexpr position position_limit = (position{1} << 62) - 1;

/// A place on up to four axes (time, height, width, extra), for encodings whose pairs follow different axes.
using axis_positions = std::array<position, 4>;

/// The positions of the rows of a tensor: a run (first, first+1, …), a ring of the latest, one explicit position per
/// row, or not given. A view: explicit positions stay in the caller's memory.
///
///     options.query_positions = posenc::positions::from(4096);     // 4096, 4097, …
///     options.key_positions = posenc::positions::each(my_vector);  // my_vector[row]
///     options.key_positions = posenc::positions::on_axes(table);   // 0, 1, …; row r stands at table[r] on the axes
///
/// Masks, windows and biases read the position. An encoding of several axes (multi_axis_rope) reads the place on
/// the axes instead; without one, a row stands at its position on every axis, as text does.
class positions {
 public:
  /// Not given: an attention call then puts the keys at 0…n_k−1 and the queries on the last n_q of the keys'
  /// positions.
  constexpr positions() = default;

  /// The run first, first+1, …, as long as the tensor it describes.
  [[nodiscard]] static constexpr positions from(position first) noexcept {
    positions result;
    result.first_ = first;
    result.kind_ = kind::run;
    return result;
  }

  /// Those of a ring buffer of `capacity` rows before token `next` is written: row r holds the latest position below
  /// `next` that is r modulo capacity. While next < capacity only the rows below `next` are tokens; give the call so many.
  ///
  ///     cache.row(n % capacity) = key_of_token(n);
  ///     options.key_positions = posenc::positions::ring(capacity, n + 1);
  /// \throws std::invalid_argument when the capacity is not positive or `next` is negative
  [[nodiscard]] static positions ring(index_t capacity, position next) {
    detail::require(capacity >= 1, "positions::ring: a capacity of ", capacity);
    detail::require(next >= 0, "positions::ring: next is ", next);
    if (next <= capacity) return from(0);
    positions result = from(next - next % capacity - capacity);
    result.split_ = static_cast<index_t>(next % capacity);
    result.capacity_ = capacity;
    if (result.split_ > 0) result.kind_ = kind::ring;
    return result;
  }

  /// One position per row, in any order; repeats are allowed.
  [[nodiscard]] static constexpr positions each(std::span<const position> of_rows) noexcept {
    positions result;
    result.of_rows_ = of_rows;
    result.kind_ = kind::each;
    return result;
  }
  /// The same for a vector, which must outlive the call.
  [[nodiscard]] static positions each(const std::vector<position>& of_rows) noexcept {
    return each(std::span<const position>(of_rows));
  }
  static positions each(std::vector<position>&&) = delete;  // would dangle

  /// The run first, first+1, …, whose row r stands at `places[r]` on the axes: images and videos among text.
  [[nodiscard]] static constexpr positions on_axes(std::span<const axis_positions> places,
                                                   position first = 0) noexcept {
    return from(first).with_axes(places);
  }
  /// The same for a vector, which must outlive the call.
  [[nodiscard]] static positions on_axes(const std::vector<axis_positions>& places,
                                         position first = 0) noexcept {
    return on_axes(std::span<const axis_positions>(places), first);
  }
  static positions on_axes(std::vector<axis_positions>&&, position = 0) = delete;  // would dangle

  /// These positions with a place on the axes for each row.
  [[nodiscard]] constexpr positions with_axes(std::span<const axis_positions> places) const noexcept {
    positions result = *this;
    result.places_ = places;
    return result;
  }

  /// False where the default is meant.
  [[nodiscard]] constexpr bool given() const noexcept { return kind_ != kind::none; }

  /// True when every row has a place on the axes of its own.
  [[nodiscard]] constexpr bool has_axes() const noexcept { return places_.data() != nullptr; }

  /// The places on the axes, one per row; empty where there are none.
  [[nodiscard]] constexpr std::span<const axis_positions> axes() const noexcept { return places_; }
  /// The place of row `row`; null where there are none.
  [[nodiscard]] constexpr const axis_positions* place(index_t row) const noexcept {
    return has_axes() ? &places_[static_cast<std::size_t>(row)] : nullptr;
  }

  /// The last `count` of `rows` rows; of a ring, those written last.
  [[nodiscard]] constexpr positions last(index_t count, index_t rows) const noexcept {
    positions result = *this;
    if (kind_ == kind::ring) result = from(first_ + capacity_ + split_ - count).with_axes(places_);
    if (kind_ == kind::run) result.first_ += rows - count;
    if (kind_ == kind::each) result.of_rows_ = of_rows_.last(static_cast<std::size_t>(count));
    if (has_axes()) result.places_ = places_.last(static_cast<std::size_t>(count));
    return result;
  }

  /// True for a run; resolve() makes a run of explicit positions that happen to be consecutive.
  [[nodiscard]] constexpr bool is_run() const noexcept { return kind_ == kind::run; }

  /// In a ring, the rows before this one were written a round later than the others: row r < ring_split() stands at
  /// (*this)[0] + r, the others at (*this)[0] + r − ring_capacity(). 0 where there is no ring.
  [[nodiscard]] constexpr index_t ring_split() const noexcept { return kind_ == kind::ring ? split_ : 0; }
  /// Rows of the ring, 0 where it is none.
  [[nodiscard]] constexpr index_t ring_capacity() const noexcept { return capacity_; }

  /// The explicit positions; empty for a run and for a ring.
  [[nodiscard]] constexpr std::span<const position> explicit_positions() const noexcept { return of_rows_; }

  /// The position of `row`. Only for positions that are given.
  [[nodiscard]] constexpr position operator[](index_t row) const noexcept {
    if (kind_ == kind::each) return of_rows_[static_cast<std::size_t>(row)];
    return first_ + row + (row < split_ ? capacity_ : 0);
  }

  /// These positions checked against a tensor of `rows` rows; consecutive explicit positions become a run.
  /// \throws std::invalid_argument when the number of explicit positions or places is not `rows` or one is
  /// beyond ±(2^62 − 1).
  [[nodiscard]] positions resolve(index_t rows, const char* what) const {
    if (has_axes()) {
      detail::require(static_cast<index_t>(places_.size()) == rows, what,
                      " positions: places on the axes for ", places_.size(), " of ", rows, " rows");
      for (const axis_positions& place : places_)
        for (const position at : place)
          detail::require(at >= -position_limit && at <= position_limit, what, " position ", at,
                          " on an axis is beyond ±(2^62 − 1)");
    }
    if (kind_ == kind::ring) {
      detail::require(rows == capacity_, what, " positions: a ring of ", capacity_, " rows for ", rows,
                      " rows; once it is full, all of its rows are keys");
      detail::require(first_ <= position_limit - 2 * capacity_, what, " positions of a ring from ", first_,
                      " are beyond ±(2^62 − 1)");
      return *this;
    }
    if (kind_ == kind::run) {
      detail::require(first_ >= -position_limit && first_ <= position_limit - rows + 1, what,
                      " positions start at ", first_, " and have ", rows, " rows: beyond ±(2^62 − 1)");
      return *this;
    }
    const auto count = static_cast<index_t>(of_rows_.size());
    detail::require(count == rows, what, " positions: ", count, " given for ", rows, " rows");
    bool consecutive = count > 0;
    for (index_t row = 0; row < count; ++row) {
      const position here = (*this)[row];
      detail::require(here >= -position_limit && here <= position_limit, what, " position ", here, " of row ",
                      row, " is beyond ±(2^62 − 1)");
      consecutive = consecutive && here == of_rows_[0] + row;
    }
    return consecutive ? from(of_rows_[0]).with_axes(places_) : *this;
  }

 private:
  enum class kind : unsigned char { none, run, ring, each };
  std::span<const position> of_rows_{};
  std::span<const axis_positions> places_{};
  position first_ = 0;
  index_t split_ = 0, capacity_ = 0;  ///< of a ring
  kind kind_ = kind::none;
};

}  // namespace posenc::inline v0_2
