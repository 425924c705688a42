// SPDX-License-Identifier: MIT
/// \file
/// A part of a call: some rows of its queries against the keys that one rank holds, as options of a call of its own.
/// Needs no MPI.
///
/// Masks by position need nothing but the positions of the rows. Masks by row say "row" of the whole sequence, so they
/// are moved: a part then has rows of one range of the sequence on either side, and every list and view is shifted by
/// where the ranges begin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/distributed/split.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// Query rows that are computed at a time; what a part gives is kept for so many.
inline constexpr index_t block_rows = 256;

/// Rows [begin, end) of a rank's tensor; row r of them is row r + shift of the sequence where `shift` is given.
struct local_rows {
  row_range rows{};
  std::optional<index_t> shift{};
};

[[nodiscard]] inline row_range intersection(const row_range& a, const row_range& b) noexcept {
  const index_t begin = (std::max)(a.begin, b.begin);
  return {begin, (std::max)(begin, (std::min)(a.end, b.end))};
}
[[nodiscard]] inline row_range moved(const row_range& rows, index_t by) noexcept {
  return {rows.begin + by, rows.end + by};
}
[[nodiscard]] inline bool is_empty(const row_range& rows) noexcept { return rows.begin >= rows.end; }

/// Bytes of an element of a dense mask or bias.
[[nodiscard]] constexpr index_t bytes_of(dense_type type) noexcept {
  return type == dense_type::boolean   ? 1
         : type == dense_type::float32 ? 4
         : type == dense_type::float64 ? 8
                                       : 2;
}

/// The rows that a rank holds, with their positions.
class rows_of_rank {
 public:
  rows_of_rank(std::span<const row_range> pieces, const positions& whole, const row_range& valid)
      : whole_(whole) {
    index_t local = 0;
    for (const row_range& piece : pieces) {
      const index_t shift = piece.begin - local;
      pieces_.push_back({{local, local + piece.end - piece.begin}, shift});
      const row_range tokens = moved(intersection(piece, valid), -shift);
      if (!is_empty(tokens)) valid_.push_back({tokens, shift});
      local = pieces_.back().rows.end;
    }
    count_ = local;
    if (!whole.is_run() || pieces_.size() > 1)
      for (const local_rows& piece : pieces_)
        for (index_t r = piece.rows.begin; r < piece.rows.end; ++r) each_.push_back(whole[r + *piece.shift]);
    if (whole.has_axes())
      for (const local_rows& piece : pieces_)
        for (index_t r = piece.rows.begin; r < piece.rows.end; ++r)
          places_.push_back(*whole.place(r + *piece.shift));
  }

  [[nodiscard]] index_t count() const noexcept { return count_; }
  /// The ranges that it has of the sequence.
  [[nodiscard]] std::span<const local_rows> pieces() const noexcept { return pieces_; }
  /// Those of its rows that are tokens and not padding.
  [[nodiscard]] std::span<const local_rows> valid() const noexcept { return valid_; }
  /// The position of a local row.
  [[nodiscard]] position at(index_t row) const noexcept {
    return each_.empty() ? whole_[row + *pieces_.front().shift] : each_[static_cast<std::size_t>(row)];
  }
  /// Positions of some of its rows.
  [[nodiscard]] positions of(const row_range& rows) const {
    const auto first = static_cast<std::size_t>(rows.begin),
               count = static_cast<std::size_t>(rows.end - rows.begin);
    positions result = each_.empty()
                           ? positions::from(count_ > 0 ? at(rows.begin) : 0)
                           : positions::each(std::span<const position>(each_).subspan(first, count));
    if (whole_.has_axes())
      result = result.with_axes(
          places_.empty() ? no_places() : std::span<const axis_positions>(places_).subspan(first, count));
    return result;
  }
  /// The lowest and the highest position of some rows, which are not empty.
  [[nodiscard]] std::pair<position, position> bounds(const row_range& rows) const {
    if (each_.empty()) return {at(rows.begin), at(rows.end - 1)};
    const auto [low, high] = std::minmax_element(each_.begin() + rows.begin, each_.begin() + rows.end);
    return {*low, *high};
  }

 private:
  [[nodiscard]] static std::span<const axis_positions> no_places() {
    static constexpr axis_positions none{};
    return {&none, std::size_t{0}};
  }

  positions whole_;
  std::vector<local_rows> pieces_{}, valid_{};
  std::vector<position> each_{};  ///< of each row, where they are no run
  std::vector<axis_positions> places_{};
  index_t count_ = 0;
};

/// A call over a whole sequence, of which parts are taken.
class divided_call {
 public:
  divided_call(const attention_options& options, const resolved_options& whole)
      : options_(options), whole_(whole), mask_(options.mask) {
    options_.valid_keys.reset(), options_.valid_queries.reset();
    options_.sinks = {}, options_.needs_sinks = false;
    by_position_ =
        !whole.visible.limits_rows() && !whole.visible.needs_elements() && !whole.visible.has_dense_bias();
    if (by_position_) options_.visible = {};
    // Blocks say which query row is which key row, this mask counts both from 0: where these differ, no list says both.
    asks_each_ = mask_ == causal_from_first && !options.visible.empty() &&
                 !options.visible.parts().blocks.empty() && whole.visible.key_row_of(0) != 0;
    if (asks_each_) options_.mask = bidirectional, options_.window = {}, options_.chunk.reset();
  }

  [[nodiscard]] const resolved_options& whole() const noexcept { return whole_; }
  /// True where positions alone decide what is seen, so that a part may have rows of several ranges.
  [[nodiscard]] bool by_position() const noexcept { return by_position_; }

  /// Query rows of a rank that are tokens, cut into blocks.
  [[nodiscard]] std::vector<local_rows> query_blocks(const rows_of_rank& queries,
                                                     index_t at_most = block_rows) const {
    std::vector<local_rows> blocks;
    const auto pieces = queries.valid();
    if (by_position_ && pieces.size() > 2) {
      const index_t end = pieces.back().rows.end;
      for (index_t begin = pieces.front().rows.begin; begin < end; begin += at_most)
        blocks.push_back({{begin, (std::min)(begin + at_most, end)}, std::nullopt});
      return blocks;
    }
    for (const local_rows& piece : pieces)
      for (index_t begin = piece.rows.begin; begin < piece.rows.end; begin += at_most)
        blocks.push_back({{begin, (std::min)(begin + at_most, piece.rows.end)}, piece.shift});
    return blocks;
  }

  /// Key rows of a rank that take part together.
  [[nodiscard]] std::vector<local_rows> key_groups(const rows_of_rank& keys) const {
    std::vector<local_rows> groups(keys.valid().begin(), keys.valid().end());
    if (by_position_ && groups.size() > 1) {
      // Valid keys are one range of the sequence, so those that a rank has are one range of its rows.
      groups.front().rows.end = groups.back().rows.end;
      groups.front().shift.reset();
      groups.resize(1);
    }
    return groups;
  }

  /// True when no row of the block sees a key of the group.
  [[nodiscard]] bool is_hidden(const rows_of_rank& queries, const local_rows& block, const rows_of_rank& keys,
                               const local_rows& group) const {
    const bool by_distance = hidden_by_position(queries.bounds(block.rows), keys.bounds(group.rows));
    if (by_position_) return by_distance;
    const row_range group_rows = moved(group.rows, *group.shift);
    const auto meets = [&group_rows](const row_range& a, const row_range& b) {
      return !is_empty(intersection(group_rows, intersection(a, b)));
    };
    for (index_t r = block.rows.begin; r < block.rows.end; ++r) {
      const visible_rows seen = whole_.visible.rows(r + *block.shift);
      if (meets(seen.inside, seen.block) || (!by_distance && meets(seen.inside, seen.ordered))) return false;
    }
    return true;
  }

  /// The options of a block of queries against all keys that a rank holds, of which those of the group take part.
  [[nodiscard]] attention_options part(const rows_of_rank& queries, const local_rows& block,
                                       const rows_of_rank& keys, const local_rows& group) const {
    attention_options part = options_;
    part.query_positions = queries.of(block.rows);
    part.key_positions = keys.of({0, keys.count()});
    part.valid_keys = group.rows;
    if (by_position_) return part;
    const index_t first = block.rows.begin + *block.shift, count = block.rows.end - block.rows.begin;
    if (asks_each_) {
      part.first_query_row.reset();
      part.visible = seen_one_by_one(first, count, *group.shift, keys.count());
      return part;
    }
    part.first_query_row =
        (mask_ == causal_from_first ? first : whole_.visible.key_row_of(first)) - *group.shift;
    if (mask_ == causal_from_first) part.mask = causal_to_last;
    if (!options_.visible.empty()) part.visible = visible_part(first, count, *group.shift, keys.count());
    return part;
  }

 private:
  [[nodiscard]] bool hidden_by_position(const std::pair<position, position>& queries,
                                        const std::pair<position, position>& keys) const {
    const key_visibility& visible = whole_.visible;
    const attention_window& window = visible.window();
    if (visible.causal_by_position() && keys.first > queries.second) return true;
    if (window.lookback && queries.first - keys.second > *window.lookback) return true;
    if (window.lookahead && keys.first - queries.second > *window.lookahead) return true;
    if (!visible.chunk()) return false;
    const position chunk = *visible.chunk();
    return chunk_begin(queries.second, chunk) < chunk_begin(keys.first, chunk) ||
           chunk_begin(keys.second, chunk) < chunk_begin(queries.first, chunk);
  }

  /// What `count` query rows from `first` on see of `keys` key rows, where row j of those is row j + shift.
  [[nodiscard]] visibility visible_part(index_t first, index_t count, index_t shift, index_t keys) const {
    const visibility_parts& from = options_.visible.parts();
    visibility_parts to;
    to.blocks_and_window = from.blocks_and_window;
    const auto clamp_key = [&](index_t row) { return (std::clamp)(row - shift, index_t{0}, keys); };
    if (!from.key_documents.empty()) {
      // Rows before the first document see nothing: one more, of no keys, for them.
      to.query_documents.push_back(0), to.key_documents.push_back(0);
      const bool own_lists = !from.query_documents.empty();
      for (std::size_t n = 0; n < from.key_documents.size(); ++n) {
        const index_t query =
            own_lists ? from.query_documents[n] : from.key_documents[n] - whole_.visible.key_row_of(0);
        to.query_documents.push_back((std::clamp)(query - first, index_t{0}, count));
        to.key_documents.push_back(clamp_key(from.key_documents[n]));
      }
    }
    for (const row_range& block : from.blocks) to.blocks.push_back(moved(block, -shift));
    if (!from.ranges.empty())
      for (index_t i = first; i < first + count; ++i) {
        const row_range& range = from.ranges[static_cast<std::size_t>(i)];
        to.ranges.push_back({clamp_key(range.begin), clamp_key((std::min)(range.end, whole_.key_tokens))});
      }
    if (!from.tree.empty()) move_tree(from, first, count, shift, keys, to);
    to.mask = part_of_dense(from.mask, first, count, shift, keys);
    to.bias = part_of_dense(from.bias, first, count, shift, keys);
    if (from.where)
      to.where = [where = from.where, first, shift](index_t head, index_t i, index_t j) {
        return where(head, i + first, j + shift);
      };
    return visibility(std::move(to));
  }

  /// The same, whatever the masks, by asking for every score.
  [[nodiscard]] visibility seen_one_by_one(index_t first, index_t count, index_t shift, index_t keys) const {
    visibility_parts to;
    to.bias = part_of_dense(options_.visible.parts().bias, first, count, shift, keys);
    to.where = [this, first, shift](index_t head, index_t i, index_t j) {
      return whole_.sees(head, i + first, j + shift);
    };
    return visibility(std::move(to));
  }

  [[nodiscard]] static dense_scores_data part_of_dense(const dense_scores_data& whole, index_t first,
                                                       index_t count, index_t shift, index_t keys) {
    dense_scores_data result = whole;
    if (!whole.given()) return result;
    const index_t elements = first * whole.shape.query_stride + shift * whole.shape.key_stride;
    result.shape.data += elements * bytes_of(whole.type);
    result.shape.queries = count, result.shape.keys = keys;
    return result;
  }

  /// The drafts among the keys of a part are its last rows too.
  void move_tree(const visibility_parts& from, index_t first, index_t count, index_t shift, index_t keys,
                 visibility_parts& to) const {
    const index_t first_draft = whole_.key_tokens - from.drafts;
    to.drafts = (std::min)(keys, keys + shift - first_draft);
    if (to.drafts <= 0) {
      to.drafts = 0;
      return;
    }
    to.tree_words = (to.drafts + 63) / 64;
    to.tree.assign(static_cast<std::size_t>(count * to.tree_words), 0);
    for (index_t i = 0; i < count; ++i)
      for (index_t b = 0; b < to.drafts; ++b) {
        const index_t bit = keys - to.drafts + b + shift - first_draft;
        const std::uint64_t word =
            from.tree[static_cast<std::size_t>((first + i) * from.tree_words + bit / 64)];
        to.tree[static_cast<std::size_t>(i * to.tree_words + b / 64)] |= ((word >> (bit % 64)) & 1u)
                                                                         << (b % 64);
      }
  }

  attention_options options_;
  resolved_options whole_;
  attention_mask mask_;
  bool by_position_ = false;
  bool asks_each_ = false;  ///< the mask has no form that can be moved
};

}  // namespace posenc::inline v0_2::detail::distributed
