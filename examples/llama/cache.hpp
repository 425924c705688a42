// SPDX-License-Identifier: MIT
/// \file
/// The cache: keys before the rotation and values of every layer, and where each token stands. Because nothing in
/// here depends on a rotation, positions and scaling may change at any time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <posenc/cache/paged.hpp>
#include <posenc/cache/q8_0.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

#include "weights.hpp"

namespace llama {

/// How a cache lies in memory and what its numbers are.
enum class cache_kind : unsigned char {
  plain,  ///< float, one buffer a layer
  paged,  ///< float, in pages of 16 tokens
  q8_0,   ///< blocks of 32 int8 and a scale: 27 % of the bytes
};

[[nodiscard]] constexpr const char* name_of(cache_kind kind) noexcept {
  return kind == cache_kind::plain ? "plain" : kind == cache_kind::paged ? "paged" : "q8_0";
}
[[nodiscard]] inline cache_kind parse_cache(const std::string& name) {
  for (const cache_kind kind : {cache_kind::plain, cache_kind::paged, cache_kind::q8_0})
    if (name == name_of(kind)) return kind;
  posenc::detail::fail<std::invalid_argument>("--cache: ", name, " is not plain, paged or q8_0");
}

/// Keys or values of one layer, token by token.
class kv_rows {
 public:
  kv_rows(cache_kind kind, index_t heads, index_t head_dim)
      : kind_(kind), heads_(heads), head_dim_(head_dim) {
    posenc::detail::require(kind != cache_kind::q8_0 || head_dim % posenc::q8_0_channels == 0,
                            "--cache q8_0: heads of ", head_dim, " channels are not whole blocks of ",
                            posenc::q8_0_channels);
  }

  void reserve(index_t tokens) {
    if (kind_ == cache_kind::plain) floats_.reserve(static_cast<std::size_t>(tokens * width()));
    if (kind_ == cache_kind::q8_0) blocks_.reserve(static_cast<std::size_t>(tokens * width() / 32));
  }

  void append(const matrix& rows) {
    const index_t first = tokens_;
    tokens_ += rows.rows();
    if (kind_ == cache_kind::plain) {
      floats_.insert(floats_.end(), rows.data(), rows.data() + rows.size());
    } else if (kind_ == cache_kind::paged) {
      for (index_t t = 0; t < rows.rows(); ++t) {
        const index_t inside = (first + t) % page_tokens;
        if (inside == 0) pages_.emplace_back(static_cast<std::size_t>(page_tokens * width()));
        std::copy_n(rows.data() + t * width(), width(), pages_.back().data() + inside * width());
      }
    } else {
      blocks_.resize(static_cast<std::size_t>(tokens_ * width() / 32));
      posenc::quantise_q8_0(
          posenc::as_heads(rows, heads_),
          posenc::token_major(blocks_.data() + first * width() / 32, rows.rows(), heads_, head_dim_ / 32));
    }
  }

  /// Forgets the oldest tokens, in pages as many as fill whole ones.
  /// \returns how many of them stay in memory, before the first token that is left
  index_t drop_oldest(index_t count) {
    if (kind_ == cache_kind::paged) {
      pages_.erase(pages_.begin(), pages_.begin() + count / page_tokens);
      tokens_ -= count / page_tokens * page_tokens;
      return count % page_tokens;
    }
    tokens_ -= count;
    if (kind_ == cache_kind::plain)
      floats_.erase(floats_.begin(), floats_.begin() + count * width());
    else
      blocks_.erase(blocks_.begin(), blocks_.begin() + count * width() / 32);
    return 0;
  }

  /// Calls use(source) with what attention takes.
  template <class Use>
  void with_source(const Use& use) const {
    if (kind_ == cache_kind::paged) {
      std::vector<const float*> addresses;
      for (const auto& page : pages_) addresses.push_back(page.data());
      std::vector<std::int32_t> table(pages_.size());
      std::iota(table.begin(), table.end(), 0);
      use(posenc::paged_view<const float>{addresses, table, page_tokens, tokens_, heads_, head_dim_});
    } else if (kind_ == cache_kind::plain) {
      use(posenc::token_major(floats_.data(), tokens_, heads_, head_dim_));
    } else {
      use(posenc::q8_0_view{posenc::token_major(blocks_.data(), tokens_, heads_, head_dim_ / 32)});
    }
  }

 private:
  static constexpr index_t page_tokens = 16;
  using floats = std::vector<float, Eigen::aligned_allocator<float>>;

  [[nodiscard]] index_t width() const noexcept { return heads_ * head_dim_; }

  cache_kind kind_;
  index_t heads_, head_dim_, tokens_ = 0;
  floats floats_{};
  std::vector<floats> pages_{};
  std::vector<posenc::q8_0_block> blocks_{};
};

struct kv_cache {
  std::vector<kv_rows> k, v;                ///< of every layer
  std::vector<posenc::position> positions;  ///< of every token
  index_t dead_rows = 0;                    ///< rows before the first token, in a page that has tokens yet

  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(positions.size()); }

  /// Makes room for `more` tokens.
  void reserve(index_t more) {
    for_each_side([&](kv_rows& rows) { rows.reserve(size() + more); });
  }

  /// Forgets the oldest tokens; the others keep their positions.
  void drop_oldest(index_t count) {
    posenc::detail::require(count >= 0 && count <= size(), "a cache of ", size(), " tokens cannot drop ",
                            count);
    const index_t rows_to_drop = dead_rows + count;
    for_each_side([&](kv_rows& rows) { dead_rows = rows.drop_oldest(rows_to_drop); });
    positions.erase(positions.begin(), positions.begin() + count);
  }

  /// Context shift, after drop_oldest(): the tokens move to the positions from 0 on. The keys stay as they are.
  void renumber() { std::iota(positions.begin(), positions.end(), posenc::position{0}); }

 private:
  template <class Use>
  void for_each_side(const Use& use) {
    for (std::vector<kv_rows>* side : {&k, &v})
      for (kv_rows& rows : *side) use(rows);
  }
};

}  // namespace llama
