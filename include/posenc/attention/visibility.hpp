// SPDX-License-Identifier: MIT
/// \file
/// What a query sees, settled: the formula of masks.hpp with every default filled in and every list checked.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2::detail {

/// The multiple of `chunk` at or before a position.
[[nodiscard]] constexpr position chunk_begin(position at, position chunk) noexcept {
  const position rest = at % chunk;
  return at - (rest < 0 ? rest + chunk : rest);
}

/// The key rows that bound what one query row sees, decided by rows alone.
struct visible_rows {
  row_range inside{};   ///< nothing outside is seen: documents and row ranges
  row_range ordered{};  ///< what a mask by row leaves; the mask by position comes on top
  row_range block{};    ///< rows of the query's block, seen whatever the mask; empty for none
};

/// Mask, window, chunk and visibility of a call.
class key_visibility {
 public:
  key_visibility() = default;

  /// \throws std::invalid_argument when a part does not fit the call
  key_visibility(attention_mask mask, const attention_window& window, std::optional<position> chunk,
                 const visibility& visible, std::optional<index_t> first_query_row, index_t heads,
                 index_t query_tokens, index_t key_tokens)
      : mask_(mask),
        window_(window),
        chunk_(chunk),
        visible_(visible),
        first_query_row_(first_query_row.value_or(key_tokens - query_tokens)),
        query_tokens_(query_tokens),
        key_tokens_(key_tokens) {
    require(first_query_row_ >= -position_limit && first_query_row_ <= position_limit,
            "attention: first_query_row ", first_query_row_, " is beyond ±(2^62 − 1)");
    // Kernels know no limit beyond that of positions.
    for (std::optional<position>* const bound : {&window_.lookback, &window_.lookahead})
      if (*bound && **bound > position_limit) bound->reset();
    if (!visible_.empty()) check_parts(heads);
  }

  [[nodiscard]] bool causal_by_position() const noexcept { return mask_ == causal; }
  [[nodiscard]] const attention_window& window() const noexcept { return window_; }
  [[nodiscard]] const std::optional<position>& chunk() const noexcept { return chunk_; }
  /// The parts beyond mask, window and chunk; null where there are none.
  [[nodiscard]] const visibility_parts* parts() const noexcept {
    return visible_.empty() ? nullptr : &visible_.parts();
  }
  [[nodiscard]] bool blocks_keep_window() const noexcept {
    return !visible_.empty() && visible_.parts().blocks_and_window == block_window::kept;
  }
  /// True when rows() says anything: a mask by row, documents, ranges or blocks.
  [[nodiscard]] bool limits_rows() const noexcept {
    if (mask_ == causal_from_first || mask_ == causal_to_last) return true;
    return !visible_.empty() && (!visible_.parts().key_documents.empty() ||
                                 !visible_.parts().ranges.empty() || !visible_.parts().blocks.empty());
  }
  /// True when some score has to be looked at alone: a tree, a dense mask or bias, a function.
  [[nodiscard]] bool needs_elements() const noexcept {
    if (visible_.empty()) return false;
    const visibility_parts& p = visible_.parts();
    return !p.tree.empty() || p.mask.given() || p.bias.given() || p.where;
  }

  /// The key row that query row i is.
  [[nodiscard]] index_t key_row_of(index_t i) const noexcept { return first_query_row_ + i; }

  /// The rows that bound query row i.
  [[nodiscard]] visible_rows rows(index_t i) const noexcept {
    visible_rows result{{0, key_tokens_}, {0, key_tokens_}, {}};
    if (mask_ == causal_from_first) result.ordered.end = (std::min)(i + 1, key_tokens_);
    if (mask_ == causal_to_last)
      result.ordered.end = (std::clamp)(key_row_of(i) + 1, index_t{0}, key_tokens_);
    if (visible_.empty()) return result;
    const visibility_parts& p = visible_.parts();
    if (!p.key_documents.empty()) result.inside = document_of(i);
    if (!p.ranges.empty()) {
      const row_range& range = p.ranges[static_cast<std::size_t>(i)];
      result.inside = {(std::max)(result.inside.begin, range.begin),
                       (std::min)(result.inside.end, range.end)};
    }
    if (!p.blocks.empty()) {
      const index_t row = key_row_of(i);
      const auto after = std::upper_bound(p.blocks.begin(), p.blocks.end(), row,
                                          [](index_t r, const row_range& block) { return r < block.begin; });
      if (after != p.blocks.begin() && row < std::prev(after)->end) result.block = *std::prev(after);
    }
    return result;
  }

  /// Mask by position, window and chunk.
  [[nodiscard]] bool sees_by_position(position query, position key) const noexcept {
    if (mask_ == causal && key > query) return false;
    if (chunk_ && chunk_begin(query, *chunk_) != chunk_begin(key, *chunk_)) return false;
    return sees_in_window(query, key);
  }
  [[nodiscard]] bool sees_in_window(position query, position key) const noexcept {
    return !(window_.lookback && query - key > *window_.lookback) &&
           !(window_.lookahead && key - query > *window_.lookahead);
  }

  /// Tree, dense mask and function: what has to be asked score by score.
  [[nodiscard]] bool sees_element(index_t head, index_t i, index_t j) const {
    if (visible_.empty()) return true;
    const visibility_parts& p = visible_.parts();
    if (!p.tree.empty()) {
      const index_t draft = j - (key_tokens_ - p.drafts);
      if (draft >= 0) {
        const std::uint64_t word = p.tree[static_cast<std::size_t>(i * p.tree_words + draft / 64)];
        if (((word >> (draft % 64)) & 1u) == 0) return false;
      }
    }
    if (p.mask.given() && p.mask.at<std::uint8_t>(head, i, j) == 0) return false;
    return !p.where || p.where(head, i, j);
  }

  /// The whole formula but the dense bias.
  [[nodiscard]] bool sees(index_t head, index_t i, index_t j, position query, position key) const {
    const visible_rows r = rows(i);
    if (j < r.inside.begin || j >= r.inside.end) return false;
    const bool in_block = j >= r.block.begin && j < r.block.end;
    const bool open = in_block && (!blocks_keep_window() || sees_in_window(query, key));
    if (!open && (j < r.ordered.begin || j >= r.ordered.end || !sees_by_position(query, key))) return false;
    return sees_element(head, i, j);
  }

  /// The dense bias of a score, 0 where there is none.
  [[nodiscard]] double bias(index_t head, index_t i, index_t j) const noexcept {
    return has_dense_bias() ? visible_.parts().bias.value(head, i, j) : 0;
  }
  [[nodiscard]] bool has_dense_bias() const noexcept {
    return !visible_.empty() && visible_.parts().bias.given();
  }

 private:
  [[nodiscard]] row_range document_of(index_t i) const noexcept {
    const visibility_parts& p = visible_.parts();
    const bool own_lists = !p.query_documents.empty();
    const std::vector<index_t>& starts = own_lists ? p.query_documents : p.key_documents;
    const index_t row = own_lists ? i : key_row_of(i);
    const auto after = std::upper_bound(starts.begin(), starts.end(), row);
    if (after == starts.begin()) return {};
    const auto document = static_cast<std::size_t>(after - starts.begin()) - 1;
    const index_t end = document + 1 < p.key_documents.size() ? p.key_documents[document + 1] : key_tokens_;
    return {p.key_documents[document], (std::max)(end, p.key_documents[document])};
  }

  void check_parts(index_t heads) {
    const visibility_parts& p = visible_.parts();
    for (const index_t start : p.key_documents)
      require(start <= key_tokens_, "documents: a start at key row ", start, " of ", key_tokens_);
    for (const index_t start : p.query_documents)
      require(start <= query_tokens_, "documents: a start at query row ", start, " of ", query_tokens_);
    require(p.ranges.empty() || static_cast<index_t>(p.ranges.size()) == query_tokens_,
            "row_ranges: ", p.ranges.size(), " ranges for ", query_tokens_, " query rows");
    for (std::size_t n = 1; n < p.blocks.size(); ++n)
      require(p.blocks[n].begin >= p.blocks[n - 1].end, "blocks: [", p.blocks[n].begin, ", ", p.blocks[n].end,
              ") overlaps or precedes [", p.blocks[n - 1].begin, ", ", p.blocks[n - 1].end, ")");
    if (!p.tree.empty()) {
      require(static_cast<index_t>(p.tree.size()) == query_tokens_ * p.tree_words, "draft_tree: bits for ",
              static_cast<index_t>(p.tree.size()) / p.tree_words, " query rows, the call has ",
              query_tokens_);
      require(p.drafts <= key_tokens_, "draft_tree: ", p.drafts, " drafts among ", key_tokens_, " keys");
    }
    check_dense(p.mask, heads, "dense_mask");
    check_dense(p.bias, heads, "dense_bias");
  }
  void check_dense(const dense_scores_data& dense, index_t heads, const char* what) const {
    if (!dense.given()) return;
    const auto& s = dense.shape;
    require((s.heads == 1 || s.heads == heads) && s.queries == query_tokens_ && s.keys == key_tokens_, what,
            ": ", s.heads, " x ", s.queries, " x ", s.keys, " given, needed is ", heads, " (or 1) x ",
            query_tokens_, " x ", key_tokens_);
    require(s.data != nullptr || s.queries == 0 || s.keys == 0, what, ": no memory");
  }

  attention_mask mask_ = bidirectional;
  attention_window window_{};
  std::optional<position> chunk_{};
  visibility visible_{};
  index_t first_query_row_ = 0, query_tokens_ = 0, key_tokens_ = 0;
};

}  // namespace posenc::inline v0_2::detail
