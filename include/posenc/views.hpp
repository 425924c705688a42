// SPDX-License-Identifier: MIT
/// \file
/// Strided views over memory that someone else owns: the shape every attention call takes, whatever engine
/// the buffers come from.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// A row-major matrix, the form in which posenc takes and returns tokens × (heads·head_dim).
template <class S>
using row_major_matrix = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// tokens × heads × head_dim over foreign memory; the channels of one head are contiguous, everything else is
/// strided. Bytes between the heads are never read or written. T may be const.
template <class T>
struct heads_view {
  T* data = nullptr;         ///< element of token 0, head 0 and channel 0
  index_t tokens = 0;        ///< rows
  index_t heads = 1;         ///< heads of a row
  index_t head_dim = 0;      ///< channels of a head, contiguous
  index_t token_stride = 0;  ///< elements from one token to the next
  index_t head_stride = 0;   ///< elements from one head to the next

  /// The channels of one head of one token.
  [[nodiscard]] std::span<T> operator()(index_t token, index_t head) const noexcept {
    return {data + token * token_stride + head * head_stride, static_cast<std::size_t>(head_dim)};
  }

  /// True when there is no element.
  [[nodiscard]] bool empty() const noexcept { return tokens == 0 || heads == 0 || head_dim == 0; }

  /// A view that may only read.
  // NOLINTNEXTLINE(google-explicit-constructor): a view that may write is a view that may read
  operator heads_view<const T>() const noexcept requires(!std::is_const_v<T>) {
    return {data, tokens, heads, head_dim, token_stride, head_stride};
  }
};

/// One number per token and head (log-sum-exp) over foreign memory.
template <class T>
struct head_scalars_view {
  T* data = nullptr;         ///< element of token 0 and head 0
  index_t tokens = 0;        ///< rows
  index_t heads = 1;         ///< numbers of a row
  index_t token_stride = 0;  ///< elements from row to row
  index_t head_stride = 1;   ///< elements from head to head

  /// The number of a token and head.
  [[nodiscard]] T& operator()(index_t token, index_t head) const noexcept {
    return data[token * token_stride + head * head_stride];
  }

  /// A view that may only read.
  // NOLINTNEXTLINE(google-explicit-constructor): a view that may write is a view that may read
  operator head_scalars_view<const T>() const noexcept requires(!std::is_const_v<T>) {
    return {data, tokens, heads, token_stride, head_stride};
  }
};

/// A buffer laid out [tokens][heads][head_dim] without gaps.
template <class T>
[[nodiscard]] heads_view<T> token_major(T* data, index_t tokens, index_t heads, index_t head_dim) noexcept {
  return {data, tokens, heads, head_dim, heads * head_dim, head_dim};
}

/// A buffer laid out [heads][tokens][head_dim] without gaps.
template <class T>
[[nodiscard]] heads_view<T> head_major(T* data, index_t heads, index_t tokens, index_t head_dim) noexcept {
  return {data, tokens, heads, head_dim, head_dim, tokens * head_dim};
}

/// A row-major matrix of tokens × (heads·head_dim) seen as heads. Rows may be strided (a block of a wider
/// matrix). \throws std::invalid_argument when the columns are not a multiple of heads.
template <class Matrix>
[[nodiscard]] auto as_heads(Matrix& matrix, index_t heads) {
  static_assert(Matrix::IsRowMajor || Matrix::IsVectorAtCompileTime,
                "posenc: as_heads needs a row-major matrix");
  using element = std::remove_pointer_t<decltype(matrix.data())>;
  detail::require(heads >= 1 && matrix.cols() % heads == 0, "a matrix of ", matrix.cols(),
                  " columns cannot hold ", heads, " heads");
  // A column vector is stored along its rows: its outer stride says nothing about them.
  detail::require(matrix.cols() <= 1 || matrix.colStride() == 1,
                  "as_heads needs contiguous channels, not a stride of ", matrix.colStride());
  const index_t head_dim = matrix.cols() / heads;
  return heads_view<element>{matrix.data(), matrix.rows(), heads, head_dim, matrix.rowStride(), head_dim};
}

/// A matrix argument made readable as heads: row-major memory is used in place, anything else is copied once.
template <class S>
class readable_matrix {
 public:
  /// Keeps the expression, evaluated if it must be.
  template <class Derived>
  explicit readable_matrix(const Eigen::MatrixBase<Derived>& matrix) : rows_(matrix.derived()) {}
  /// The matrix as `count` heads.
  [[nodiscard]] heads_view<const S> heads(index_t count) const { return as_heads(rows_, count); }

 private:
  Eigen::Ref<const row_major_matrix<S>, 0, Eigen::OuterStride<>> rows_;
};

namespace detail {

/// The first and one-past-last address a view touches.
struct address_range {
  std::uintptr_t begin = 0, end = 0;
};

/// \throws std::invalid_argument when the shape or the pointer of a view means nothing.
template <class T>
void check_view(const heads_view<T>& view, const char* what) {
  require(view.tokens >= 0 && view.heads >= 0 && view.head_dim >= 0, what, ": negative shape ", view.tokens,
          " x ", view.heads, " x ", view.head_dim);
  require(view.empty() || view.data != nullptr, what, ": no memory behind ", view.tokens, " x ", view.heads,
          " x ", view.head_dim);
}

/// \throws std::invalid_argument when two heads of a view that is written to share memory.
template <class T>
void check_disjoint_rows(const heads_view<T>& view, const char* what) {
  if (view.empty()) return;
  const bool token_is_outer = view.token_stride >= view.head_stride;
  const index_t outer_count = token_is_outer ? view.tokens : view.heads;
  const index_t inner_count = token_is_outer ? view.heads : view.tokens;
  const index_t outer = token_is_outer ? view.token_stride : view.head_stride;
  const index_t inner = token_is_outer ? view.head_stride : view.token_stride;
  const bool inner_ok = inner_count == 1 || inner >= view.head_dim;
  const index_t inner_extent = inner_count == 1 ? view.head_dim : (inner_count - 1) * inner + view.head_dim;
  require(inner_ok && (outer_count == 1 || outer >= inner_extent), what, ": rows overlap (token stride ",
          view.token_stride, ", head stride ", view.head_stride, ", head_dim ", view.head_dim, ", ",
          view.tokens, " tokens, ", view.heads, " heads)");
}

template <class T>
[[nodiscard]] address_range addresses(const heads_view<T>& view) noexcept {
  if (view.empty()) return {};
  index_t lowest = 0, highest = view.head_dim;
  for (const index_t reach : {(view.tokens - 1) * view.token_stride, (view.heads - 1) * view.head_stride})
    (reach < 0 ? lowest : highest) += reach;
  const auto base = reinterpret_cast<std::uintptr_t>(view.data);
  const auto size = static_cast<index_t>(sizeof(T));
  return {base + static_cast<std::uintptr_t>(lowest * size),
          base + static_cast<std::uintptr_t>(highest * size)};
}

/// True when two views touch a common byte; columns of one wide buffer with equal token strides are kept
/// apart.
template <class A, class B>
[[nodiscard]] bool overlap(const heads_view<A>& a, const heads_view<B>& b) noexcept {
  const address_range x = addresses(a), y = addresses(b);
  if (x.begin >= y.end || y.begin >= x.end) return false;
  const auto row_bytes = [](const auto& view) {
    return ((view.heads - 1) * view.head_stride + view.head_dim) * static_cast<index_t>(sizeof(*view.data));
  };
  const index_t period = a.token_stride * static_cast<index_t>(sizeof(A));
  const bool columns_of_one_buffer = a.head_stride >= 0 && b.head_stride >= 0 && period > 0 &&
                                     period == b.token_stride * static_cast<index_t>(sizeof(B)) &&
                                     row_bytes(a) <= period && row_bytes(b) <= period;
  if (!columns_of_one_buffer) return true;
  const auto distance = static_cast<index_t>(reinterpret_cast<std::uintptr_t>(b.data) -
                                             reinterpret_cast<std::uintptr_t>(a.data));
  const index_t b_begins = ((distance % period) + period) % period;
  return b_begins < row_bytes(a) || b_begins + row_bytes(b) > period;
}

/// Copies heads from one view to another of the same shape; nothing happens where both are the same memory.
/// \throws std::invalid_argument when the shapes differ or the memory overlaps in part.
template <class T>
void copy_heads(const heads_view<const T>& from, const heads_view<T>& to, const char* what) {
  check_view(from, what), check_view(to, what), check_disjoint_rows(to, what);
  require(from.tokens == to.tokens && from.heads == to.heads && from.head_dim == to.head_dim, what, ": from ",
          from.tokens, " x ", from.heads, " x ", from.head_dim, " to ", to.tokens, " x ", to.heads, " x ",
          to.head_dim);
  if (from.data == to.data && from.token_stride == to.token_stride && from.head_stride == to.head_stride)
    return;
  require(!overlap(from, to), what, ": source and destination overlap in part");
  for (index_t token = 0; token < to.tokens; ++token)
    for (index_t head = 0; head < to.heads; ++head) {
      const std::span<const T> source = from(token, head);
      std::copy(source.begin(), source.end(), to(token, head).begin());
    }
}

}  // namespace detail
}  // namespace posenc::inline v0_2
