// SPDX-License-Identifier: MIT
/// \file
/// Tables of numbers handed in by the caller: checked and copied once, when an encoding is made.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include <posenc/detail/floating.hpp>
#include <posenc/detail/scalar.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2::detail {

/// Only numbers that convert to double are asked; automatic-differentiation scalars pass.
/// \throws std::invalid_argument when the table is empty or holds a NaN or an infinity.
template <class T>
void check_table(const row_major_matrix<T>& table, const char* what) {
  require(table.size() > 0, what, ": an empty table of ", table.rows(), " x ", table.cols());
  if constexpr (std::floating_point<T> || narrow_storage<T>)
    for (index_t row = 0; row < table.rows(); ++row)
      for (index_t column = 0; column < table.cols(); ++column)
        require(is_finite(static_cast<double>(table(row, column))), what, ": row ", row, ", column ", column,
                " of the table is ", static_cast<double>(table(row, column)));
}

/// A copy of row-major memory as rows of `columns` values.
/// \throws std::invalid_argument when the values do not fill whole rows.
template <class T>
[[nodiscard]] row_major_matrix<T> matrix_of(std::span<const T> values, index_t columns, const char* what) {
  const auto count = static_cast<index_t>(values.size());
  require(columns >= 1 && count % columns == 0, what, ": ", count, " values do not fill rows of ", columns);
  row_major_matrix<T> matrix(count / columns, columns);
  for (index_t n = 0; n < count; ++n) matrix(n / columns, n % columns) = values[static_cast<std::size_t>(n)];
  return matrix;
}

/// target += addend for any pair of scalars; 16-bit storage is added in float.
template <class S, class T>
void add_to(S& target, const T& addend) {
  target =
      static_cast<S>(working_t<S>(static_cast<working_t<S>>(target) + static_cast<working_t<S>>(addend)));
}

/// \throws std::invalid_argument when a token's row is not as wide as the encoding.
inline void require_width(std::size_t given, index_t width, const char* what) {
  require(static_cast<index_t>(given) == width, what, ": a row of ", given, " channels, the encoding has ",
          width);
}

}  // namespace posenc::inline v0_2::detail
