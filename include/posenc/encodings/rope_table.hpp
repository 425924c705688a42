// SPDX-License-Identifier: MIT
/// \file
/// RoPE whose cos and sin are tables of the caller: door *rotate*.
///
///     (a, b) → ( a·cos[i][p] − b·sin[i][p],  a·sin[i][p] + b·cos[i][p] )        pair p at position i
///
/// The position of a token is its row of the tables. ONNX's RotaryEmbedding and many engines hold such tables.
/// Where the base is known, rope (encodings/rope.hpp) needs no table and is right at any position.
///
/// | who | tables |
/// |---|---|
/// | ONNX RotaryEmbedding, ONNX Runtime | cos and sin of rows × pairs |
/// | vLLM's cos_sin_cache | rows of [cos \| sin]: both views have row_stride 2·pairs |
/// | transformers, half_split | the pairs twice in a row: row_stride 2·pairs, the first half is read |
/// | transformers, interleaved | every value twice: row_stride 2·pairs, pair_stride 2 |
///
/// The numbers are taken as they are: an attention factor in them acts, and cos² + sin² need not be 1. Every pair of a
/// row may have any angle, so kernels cannot replace R(i)ᵀR(j) by R(j − i): fused attention calls `rotate` row by row,
/// which is slower than rope. To rotate once and keep the result: rotate_heads (rope/apply.hpp).
#pragma once

#include <optional>
#include <span>

#include <posenc/detail/scalar.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/required.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2 {

/// cos or sin of every row and pair, in foreign memory that has to outlive the encoding.
template <class T>
struct angle_table {
  const T* data = nullptr;  ///< element of row 0 and pair 0
  index_t rows = 0;         ///< positions
  index_t pairs = 0;        ///< columns
  index_t row_stride = 0;   ///< elements from one row to the next
  index_t pair_stride = 1;  ///< elements from one pair to the next

  /// The angle's cos or sin of a row and pair.
  [[nodiscard]] const T& operator()(index_t row, index_t pair) const noexcept {
    return data[row * row_stride + pair * pair_stride];
  }
};

/// A table of rows × pairs without gaps.
template <class T>
[[nodiscard]] angle_table<T> dense_angles(const T* data, index_t rows, index_t pairs) noexcept {
  return {data, rows, pairs, pairs, 1};
}

/// Which channels rotate by the tables.
struct rope_table_options {
  index_t head_dim = 0;  ///< channels of a head
  /// Channels that rotate, even; all from rotary_offset on if not given.
  std::optional<index_t> rotary_dim{};
  index_t rotary_offset = 0;          ///< the first channel that rotates
  required<posenc::pairing> pairing;  ///< which channels pair up; there is no default, as in rope_options
};

/// A rotation by tables. T is float, double, Eigen::half or Eigen::bfloat16; heads of any scalar can be rotated.
///
///     const posenc::rope_table<float> table{{.head_dim = 128, .pairing = posenc::pairing::half_split},
///                                           posenc::dense_angles(cos, rows, 64), posenc::dense_angles(sin, rows, 64)};
template <class T>
class rope_table {
 public:
  /// \param cos,sin rows × rotary_dim/2
  /// \throws std::invalid_argument when the widths do not fit one another or a table has no memory.
  rope_table(const rope_table_options& options, const angle_table<T>& cos, const angle_table<T>& sin)
      : cos_(cos), sin_(sin) {
    using detail::require;
    const index_t d = options.head_dim, offset = options.rotary_offset;
    require(d >= 1, "rope_table: head_dim ", d, " is not positive");
    require(offset >= 0 && offset <= d, "rope_table: rotary_offset ", offset, " lies outside head_dim ", d);
    const index_t r = options.rotary_dim.value_or(d - offset);
    require(r >= 0 && r % 2 == 0, "rope_table: rotary_dim ", r, " must be even and not negative (head_dim ",
            d, ")");
    require(r <= d - offset, "rope_table: rotary_dim ", r, " at offset ", offset, " exceeds head_dim ", d);
    require(cos.rows == sin.rows, "rope_table: cos has ", cos.rows, " rows, sin has ", sin.rows);
    check(cos, r, "cos"), check(sin, r, "sin");
    shape_ = {.head_dim = d, .offset = offset, .rotary_dim = r, .pairing = options.pairing};
  }

  /// Door *rotate*: rotates a query or key of head_dim channels by row `p` of the tables, in place.
  /// \throws std::invalid_argument when the head is not head_dim wide, std::out_of_range when there is no row p;
  /// nothing is written then
  template <class S>
  void rotate(std::span<S> head, position p) const {
    check_rotate(static_cast<index_t>(head.size()), p);
    for (index_t pair = 0; pair < shape_.pairs(); ++pair)
      shape_.rotate_pair(head, pair,
                         cos_sin<work>{static_cast<work>(cos_(p, pair)), static_cast<work>(sin_(p, pair))},
                         work(1));
  }

  /// From the gradient of a rotated head to that of the head (parameters.hpp): the transpose of what rotate does.
  template <class S>
  void rotate_adjoint(std::span<const S> /*head*/, std::span<S> d_head, position p, rotation_side,
                      std::span<S>) const {
    check_rotate(static_cast<index_t>(d_head.size()), p);
    for (index_t pair = 0; pair < shape_.pairs(); ++pair)
      shape_.rotate_pair(d_head, pair,
                         cos_sin<work>{static_cast<work>(cos_(p, pair)), -static_cast<work>(sin_(p, pair))},
                         work(1));
  }

  /// Throws what rotate would, without a head.
  void check_rotate(index_t head_dim, position p) const {
    detail::require(head_dim == shape_.head_dim, "rope_table: a head of ", head_dim,
                    " channels, head_dim is ", shape_.head_dim);
    detail::require_in_range(p >= 0 && p < cos_.rows, "rope_table: position ", p, " lies outside the ",
                             cos_.rows, " rows of the tables");
  }

  /// Rows of the tables: positions 0 … rows − 1 can be rotated.
  [[nodiscard]] index_t rows() const noexcept { return cos_.rows; }

 private:
  using work = detail::working_t<T>;

  static void check(const angle_table<T>& table, index_t rotary_dim, const char* name) {
    using detail::require;
    require(table.rows >= 0 && table.pairs >= 0, "rope_table: ", name, " is ", table.rows, " x ",
            table.pairs);
    require(2 * table.pairs == rotary_dim, "rope_table: ", name, " has ", table.pairs,
            " pairs per row, needed is rotary_dim / 2 = ", rotary_dim / 2);
    require(table.rows <= 1 || table.pairs == 0 || table.row_stride != 0, "rope_table: ", name,
            " has row_stride 0");
    require(table.pairs <= 1 || table.pair_stride != 0, "rope_table: ", name, " has pair_stride 0");
    require(table.data != nullptr || table.rows == 0 || table.pairs == 0, "rope_table: ", name,
            " has no memory");
  }

  angle_table<T> cos_, sin_;
  rotation shape_;  // which channels pair up; its angles are not used
};

}  // namespace posenc::inline v0_2
