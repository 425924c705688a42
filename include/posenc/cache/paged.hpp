// SPDX-License-Identifier: MIT
/// \file
/// Keys or values in pages, as serving engines keep them: pages lie anywhere, hold any number of tokens, and may be
/// shared between sequences. Kwon et al. 2023 (PagedAttention), arXiv:2309.06180.
///
///     std::vector<const float*> pages = ...;      // where each page of the pool begins
///     std::vector<std::int32_t> table = {7, 2};   // this sequence: page 7, then page 2
///     const posenc::paged_view<const float> k{pages, table, 16, tokens, kv_heads, head_dim};
///
/// Evicting a page takes it out of the table and its positions out of key_positions; inserting is the reverse. Neither
/// moves a key: the cache is not rotated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/cache/source.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// tokens × heads × head_dim in pages. Token t lies in page table[t / page_tokens], at place t % page_tokens. Nothing
/// is owned. T may be const.
template <class T>
struct paged_view {
  std::span<T* const> pages{};              ///< where each page of the pool begins
  std::span<const std::int32_t> table{};    ///< the pages of this sequence, in the order of its tokens
  index_t page_tokens = 0;                  ///< tokens that a page holds, any positive number
  index_t tokens = 0;                       ///< at most table.size() · page_tokens
  index_t heads = 1;                        ///< KV heads
  index_t head_dim = 0;                     ///< channels of a head
  index_t token_stride = heads * head_dim;  ///< elements from one token of a page to the next
  index_t head_stride = head_dim;           ///< elements from one head to the next

  /// The channels of one head of one token.
  [[nodiscard]] std::span<T> operator()(index_t token, index_t head) const noexcept {
    T* const page = pages[static_cast<std::size_t>(table[static_cast<std::size_t>(token / page_tokens)])];
    return {page + token % page_tokens * token_stride + head * head_stride,
            static_cast<std::size_t>(head_dim)};
  }

  /// The tokens that page number `n` of the table holds, as a view of their own.
  [[nodiscard]] heads_view<T> page(std::size_t n) const noexcept {
    const index_t first = static_cast<index_t>(n) * page_tokens;
    return {pages[static_cast<std::size_t>(table[n])],
            (std::clamp)(tokens - first, index_t{0}, page_tokens),
            heads,
            head_dim,
            token_stride,
            head_stride};
  }

  /// A view that may only read.
  // NOLINTNEXTLINE(google-explicit-constructor): a view that may write is a view that may read
  operator paged_view<const T>() const noexcept requires(!std::is_const_v<T>) {
    return {pages, table, page_tokens, tokens, heads, head_dim, token_stride, head_stride};
  }
};

/// Pages laid out [heads][page_tokens][head_dim].
template <class T>
[[nodiscard]] paged_view<T> head_major_pages(std::span<T* const> pages, std::span<const std::int32_t> table,
                                             index_t page_tokens, index_t tokens, index_t heads,
                                             index_t head_dim) noexcept {
  return {pages, table, page_tokens, tokens, heads, head_dim, head_dim, page_tokens * head_dim};
}

/// Where the pages of a pool begin that lie one after the other, `page_stride` elements apart.
template <class T>
[[nodiscard]] std::vector<T*> pages_of_pool(T* pool, index_t count, index_t page_stride) {
  std::vector<T*> pages;
  for (index_t n = 0; n < count; ++n) pages.push_back(pool + n * page_stride);
  return pages;
}

namespace detail {

template <class T>
void check_pages(const paged_view<T>& view, const char* what) {
  require(view.tokens >= 0 && view.heads >= 0 && view.head_dim >= 0, what, ": negative shape ", view.tokens,
          " x ", view.heads, " x ", view.head_dim);
  require(view.page_tokens >= 1, what, ": pages of ", view.page_tokens, " tokens");
  const index_t used = view.tokens / view.page_tokens + (view.tokens % view.page_tokens != 0 ? 1 : 0);
  require(used <= static_cast<index_t>(view.table.size()), what, ": ", view.tokens, " tokens in ",
          view.table.size(), " pages of ", view.page_tokens);
  for (index_t n = 0; n < used; ++n) {
    const std::int32_t page = view.table[static_cast<std::size_t>(n)];
    require(page >= 0 && static_cast<std::size_t>(page) < view.pages.size(), what, ": entry ", n,
            " of the page table is ", page, "; there are ", view.pages.size(), " pages");
    require(view.pages[static_cast<std::size_t>(page)] != nullptr || view.heads == 0 || view.head_dim == 0,
            what, ": no memory behind page ", page);
  }
}

template <class T>
struct source_traits<paged_view<T>> {
  using scalar = std::remove_const_t<T>;
  [[nodiscard]] static source_shape shape(const paged_view<T>& source) noexcept {
    return {source.tokens, source.heads, source.head_dim};
  }
  static void check(const paged_view<T>& source, const char* what) { check_pages(source, what); }
  template <class Work>
  static void read(const paged_view<T>& source, index_t token, index_t head, std::span<Work> to) {
    const std::span<T> row = source(token, head);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] = static_cast<Work>(row[c]);
  }
  template <class Use>
  static void for_each_part(const paged_view<T>& source, Use&& use) {
    for (std::size_t n = 0; static_cast<index_t>(n) * source.page_tokens < source.tokens; ++n)
      use(source.page(n));
  }
};
template <class T>
struct source_name<paged_view<T>> {
  using type = paged_view<const T>;
};

}  // namespace detail

/// Rows in one buffer or in pages: what the quantised sources are made of.
template <class T>
struct cache_rows {
  cache_rows() = default;
  /// Rows in one buffer.
  // NOLINTNEXTLINE(google-explicit-constructor): both views are rows
  cache_rows(const heads_view<T>& view) noexcept : block(view) {}
  /// Rows in pages.
  // NOLINTNEXTLINE(google-explicit-constructor)
  cache_rows(const paged_view<T>& view) noexcept : paged(view), in_pages(true) {}
  /// Rows in one buffer, to be read only.
  // NOLINTNEXTLINE(google-explicit-constructor): a view that may write is a view that may read
  cache_rows(const heads_view<std::remove_const_t<T>>& view) noexcept requires(std::is_const_v<T>)
      : block(view) {}
  /// Rows in pages, to be read only.
  // NOLINTNEXTLINE(google-explicit-constructor)
  cache_rows(const paged_view<std::remove_const_t<T>>& view) noexcept requires(std::is_const_v<T>)
      : paged(view), in_pages(true) {}

  /// The channels of a token and head.
  [[nodiscard]] std::span<T> operator()(index_t token, index_t head) const noexcept {
    return in_pages ? paged(token, head) : block(token, head);
  }
  /// Rows.
  [[nodiscard]] index_t tokens() const noexcept { return in_pages ? paged.tokens : block.tokens; }
  /// KV heads.
  [[nodiscard]] index_t heads() const noexcept { return in_pages ? paged.heads : block.heads; }
  /// Channels of a head.
  [[nodiscard]] index_t head_dim() const noexcept { return in_pages ? paged.head_dim : block.head_dim; }

  heads_view<T> block{};  ///< where rows are, unless in_pages
  paged_view<T> paged{};  ///< where rows are, if in_pages
  bool in_pages = false;  ///< which of the two counts
};

namespace detail {

template <class T>
void check_rows(const cache_rows<T>& rows, const char* what) {
  if (rows.in_pages)
    check_pages(rows.paged, what);
  else
    check_view(rows.block, what);
}

template <class T, class Use>
void for_each_part_of(const cache_rows<T>& rows, Use&& use) {
  if (rows.in_pages)
    source_traits<paged_view<T>>::for_each_part(rows.paged, use);
  else
    use(rows.block);
}

}  // namespace detail
}  // namespace posenc::inline v0_2
