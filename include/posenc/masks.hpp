// SPDX-License-Identifier: MIT
/// \file
/// Which keys a query sees, as data. Every part is optional; a key is seen when all of it agrees:
///
///     seen(h, i, j) =  ( mask ∧ window ∧ chunk  ∨  i and j in one block )
///                      ∧ same document ∧ j in the range of row i ∧ tree ∧ dense mask ∧ where(h, i, j)
///
/// | part | decided by | memory | in other systems |
/// |---|---|---|---|
/// | attention_mask, window, chunk | positions (two masks: rows) | none | is_causal, sliding_window, attention_chunk_size |
/// | documents | rows | one entry per document | cu_seqlens, flex_attention's document mask |
/// | prefix_lm, blocks | rows | one entry per block | prefix-LM, Gemma-3's images |
/// | row_ranges | rows | two entries per query | |
/// | draft_tree | rows | one bit row per query | speculative decoding |
/// | dense_mask, dense_bias | rows | the caller's heads × queries × keys view | attn_mask of ONNX and PyTorch |
/// | mask_where | rows | none; called for every score, so slow | flex_attention's mask_mod |
///
/// Masks by row do not read positions, and rotations do not read rows: drafts of a tree may share positions.
/// Where a mask by row relates queries to keys (documents, blocks, causal_to_last), query row i is key row
/// i + n_k − n_q, unless attention_options::first_query_row says otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Which keys a query may see by order alone.
enum class attention_mask : unsigned char {
  bidirectional,      ///< every key
  causal,             ///< keys whose position is not greater than the query's
  causal_from_first,  ///< query row i sees key rows 0 … i (PyTorch's is_causal; ONNX's without a past)
  /// The last query row sees every key, the one before it one less (flash-attention); where first_query_row is given,
  /// query row i sees key rows 0 … first_query_row + i.
  causal_to_last,
};
using enum attention_mask;

/// Rows [begin, end) of a tensor.
struct row_range {
  index_t begin = 0;  ///< the first row
  index_t end = 0;    ///< one past the last row
};

/// How far a query sees, in tokens. A bound that is not given, or that lies beyond position_limit, does not limit.
struct attention_window {
  std::optional<position> lookback{};   ///< query − key ≤ lookback for the keys that are seen
  std::optional<position> lookahead{};  ///< key − query ≤ lookahead
};

/// The window of Hugging Face's `sliding_window = W`: W tokens, the query itself included, so lookback W − 1. It
/// does not limit keys ahead of the query; the mask does.
/// \throws std::invalid_argument when tokens < 1
[[nodiscard]] inline attention_window sliding_window(position tokens) {
  detail::require(tokens >= 1, "sliding_window: ", tokens,
                  " tokens; a window holds at least the query itself (leave the window out for no limit)");
  return {.lookback = tokens - 1, .lookahead = std::nullopt};
}

/// A window on both sides: `left` tokens behind and `right` tokens ahead, the query itself not counted
/// (flash-attention's window_size, ModernBERT with both = local_attention / 2).
/// \throws std::invalid_argument when one is negative
[[nodiscard]] inline attention_window two_sided_window(position left, position right) {
  detail::require(left >= 0 && right >= 0, "two_sided_window: ", left, " tokens behind and ", right,
                  " ahead must not be negative");
  return {.lookback = left, .lookahead = right};
}

/// One number per head, query row and key row in foreign memory; a stride of 0 repeats it (broadcasting). One
/// head serves all heads.
template <class T>
struct scores_view {
  T* data = nullptr;         ///< element of head 0, query 0 and key 0
  index_t heads = 1;         ///< 1 serves all heads
  index_t queries = 0;       ///< rows
  index_t keys = 0;          ///< columns
  index_t head_stride = 0;   ///< elements from one head to the next
  index_t query_stride = 0;  ///< elements from one query row to the next
  index_t key_stride = 1;    ///< elements from one key row to the next

  /// The element of a head (any head where there is one), a query row and a key row.
  [[nodiscard]] T& operator()(index_t head, index_t query, index_t key) const noexcept {
    return data[(heads == 1 ? 0 : head) * head_stride + query * query_stride + key * key_stride];
  }
};

/// A buffer laid out [heads][queries][keys] without gaps; [queries][keys] where heads is 1.
template <class T>
[[nodiscard]] scores_view<T> dense_scores(T* data, index_t heads, index_t queries, index_t keys) noexcept {
  return {data, heads, queries, keys, queries * keys, keys, 1};
}

/// What blocks do to the window outside them.
enum class block_window : unsigned char {
  ignored,  ///< inside a block every token sees every other (Gemma-3's images)
  kept,     ///< a block lifts causality only: the window still limits
};

namespace detail {

/// The element types of dense masks and biases.
enum class dense_type : unsigned char { none, boolean, float32, float64, bfloat16, float16 };

template <class T>
inline constexpr dense_type dense_type_of =
    std::is_same_v<T, bool> || std::is_same_v<T, std::uint8_t> ? dense_type::boolean
    : std::is_same_v<T, float>                                 ? dense_type::float32
    : std::is_same_v<T, double>                                ? dense_type::float64
    : std::is_same_v<T, Eigen::bfloat16>                       ? dense_type::bfloat16
    : std::is_same_v<T, Eigen::half>                           ? dense_type::float16
                                                               : dense_type::none;

/// A dense mask or bias whatever its element type.
struct dense_scores_data {
  scores_view<const std::byte> shape{};  // strides count elements of `type`
  dense_type type = dense_type::none;

  [[nodiscard]] bool given() const noexcept { return type != dense_type::none; }

  template <class T>
  [[nodiscard]] const T& at(index_t head, index_t query, index_t key) const noexcept {
    return scores_view<const T>{reinterpret_cast<const T*>(shape.data),
                                shape.heads,
                                shape.queries,
                                shape.keys,
                                shape.head_stride,
                                shape.query_stride,
                                shape.key_stride}(head, query, key);
  }
  /// A bias as a number.
  [[nodiscard]] double value(index_t head, index_t query, index_t key) const noexcept {
    switch (type) {
      case dense_type::float64:
        return at<double>(head, query, key);
      case dense_type::bfloat16:
        return static_cast<double>(static_cast<float>(at<Eigen::bfloat16>(head, query, key)));
      case dense_type::float16:
        return static_cast<double>(static_cast<float>(at<Eigen::half>(head, query, key)));
      default:
        return static_cast<double>(at<float>(head, query, key));
    }
  }
};

using mask_function = std::function<bool(index_t head, index_t query_row, index_t key_row)>;

/// The parts of a visibility. An empty list leaves its part out.
struct visibility_parts {
  std::vector<index_t>
      query_documents{};                 ///< query rows where documents begin, ascending; empty: as the keys
  std::vector<index_t> key_documents{};  ///< key rows where documents begin, ascending from 0
  std::vector<row_range> blocks{};       ///< key rows that see one another, ascending and apart
  block_window blocks_and_window = block_window::ignored;
  std::vector<row_range> ranges{};    ///< of each query row
  std::vector<std::uint64_t> tree{};  ///< tree_words words per query row; bit b is key row n_k − drafts + b
  index_t drafts = 0, tree_words = 0;
  dense_scores_data mask{}, bias{};
  mask_function where{};
};

}  // namespace detail

/// What a query may see, beyond mask, window and chunk: any of the functions below, or several joined by `&`. A
/// value; it owns its lists, dense views stay the caller's.
///
///     options.visible = posenc::documents({0, 128, 300}) & posenc::blocks({{10, 26}});
class visibility {
 public:
  /// Everything.
  visibility() = default;
  /// From parts that are checked; the functions below make them.
  explicit visibility(detail::visibility_parts parts)
      : parts_(std::make_shared<const detail::visibility_parts>(std::move(parts))) {}

  /// True when it hides or opens nothing.
  [[nodiscard]] bool empty() const noexcept { return parts_ == nullptr; }
  /// The parts; only where it is not empty.
  [[nodiscard]] const detail::visibility_parts& parts() const noexcept { return *parts_; }

  /// Both. Blocks and ranges join; a part that can be there once only is refused twice.
  /// \throws std::invalid_argument
  [[nodiscard]] friend visibility operator&(const visibility& a, const visibility& b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    detail::visibility_parts both = *a.parts_;
    join(both, *b.parts_);
    return visibility(std::move(both));
  }

 private:
  static void join(detail::visibility_parts& to, const detail::visibility_parts& from) {
    using detail::require;
    if (!from.key_documents.empty()) {
      require(to.key_documents.empty(), "visible: documents given twice");
      to.query_documents = from.query_documents, to.key_documents = from.key_documents;
    }
    if (!from.blocks.empty()) {
      require(to.blocks.empty() || to.blocks_and_window == from.blocks_and_window,
              "visible: blocks that keep the window and blocks that ignore it cannot be joined");
      to.blocks.insert(to.blocks.end(), from.blocks.begin(), from.blocks.end());
      to.blocks_and_window = from.blocks_and_window;
    }
    if (!from.ranges.empty()) {
      require(to.ranges.empty() || to.ranges.size() == from.ranges.size(), "visible: row_ranges of ",
              to.ranges.size(), " and of ", from.ranges.size(), " query rows cannot be joined");
      if (to.ranges.empty()) to.ranges.resize(from.ranges.size(), {0, (std::numeric_limits<index_t>::max)()});
      for (std::size_t n = 0; n < to.ranges.size(); ++n)
        to.ranges[n] = {(std::max)(to.ranges[n].begin, from.ranges[n].begin),
                        (std::min)(to.ranges[n].end, from.ranges[n].end)};
    }
    if (!from.tree.empty()) {
      require(to.tree.empty(), "visible: draft_tree given twice");
      to.tree = from.tree, to.drafts = from.drafts, to.tree_words = from.tree_words;
    }
    if (from.mask.given()) {
      require(!to.mask.given(), "visible: dense_mask given twice");
      to.mask = from.mask;
    }
    if (from.bias.given()) {
      require(!to.bias.given(), "visible: dense_bias given twice");
      to.bias = from.bias;
    }
    if (from.where) {
      if (to.where)
        to.where = [first = to.where, second = from.where](index_t h, index_t i, index_t j) {
          return first(h, i, j) && second(h, i, j);
        };
      else
        to.where = from.where;
    }
  }

  std::shared_ptr<const detail::visibility_parts> parts_{};
};

namespace detail {
inline void check_starts(std::span<const index_t> starts, const char* what) {
  require(!starts.empty() && starts.front() == 0, "documents: the first ", what, " start must be row 0",
          starts.empty() ? ", not an empty list" : "");
  for (std::size_t n = 1; n < starts.size(); ++n)
    require(starts[n] >= starts[n - 1], "documents: ", what, " start ", starts[n], " of document ",
            static_cast<index_t>(n), " lies before that of the one before, ", starts[n - 1]);
}
template <class T>
[[nodiscard]] dense_scores_data dense_data(const scores_view<T>& view) {
  return {{reinterpret_cast<const std::byte*>(view.data), view.heads, view.queries, view.keys,
           view.head_stride, view.query_stride, view.key_stride},
          dense_type_of<std::remove_const_t<T>>};
}
}  // namespace detail

/// Documents packed in one row: a query sees the keys of its own document only.
/// \param starts key rows where documents begin, ascending from 0; the last one ends with the keys. The
/// cumulative lengths that other systems call cu_seqlens serve as they are.
/// \throws std::invalid_argument
[[nodiscard]] inline visibility documents(std::span<const index_t> starts) {
  detail::check_starts(starts, "key");
  detail::visibility_parts parts;
  parts.key_documents.assign(starts.begin(), starts.end());
  return visibility(std::move(parts));
}
/// The same with starts in braces.
[[nodiscard]] inline visibility documents(std::initializer_list<index_t> starts) {
  return documents(std::span<const index_t>(starts.begin(), starts.size()));
}

/// The same where queries and keys are packed differently (cross-attention): document d's queries see document
/// d's keys. \throws std::invalid_argument when the lists differ in length
[[nodiscard]] inline visibility documents(std::span<const index_t> query_starts,
                                          std::span<const index_t> key_starts) {
  detail::check_starts(query_starts, "query"), detail::check_starts(key_starts, "key");
  detail::require(query_starts.size() == key_starts.size(), "documents: ", query_starts.size(),
                  " query starts for ", key_starts.size(), " key starts");
  detail::visibility_parts parts;
  parts.query_documents.assign(query_starts.begin(), query_starts.end());
  parts.key_documents.assign(key_starts.begin(), key_starts.end());
  return visibility(std::move(parts));
}

/// Key rows that see one another in both directions, whatever the mask: an image in a causal text.
/// \param of_keys blocks of key rows, apart from each other
/// \throws std::invalid_argument when a block is no range of rows
[[nodiscard]] inline visibility blocks(std::span<const row_range> of_keys,
                                       block_window window = block_window::ignored) {
  detail::visibility_parts parts;
  parts.blocks.assign(of_keys.begin(), of_keys.end());
  parts.blocks_and_window = window;
  for (const row_range& block : parts.blocks)
    detail::require(0 <= block.begin && block.begin <= block.end, "blocks: rows [", block.begin, ", ",
                    block.end, ") are no range");
  return visibility(std::move(parts));
}
/// The same with ranges in braces.
[[nodiscard]] inline visibility blocks(std::initializer_list<row_range> of_keys,
                                       block_window window = block_window::ignored) {
  return blocks(std::span<const row_range>(of_keys.begin(), of_keys.size()), window);
}

/// The blocks that a list of block numbers per key row means, as Gemma-3's token types give them: neighbours
/// with the same number ≥ 0 are one block, −1 is text.
[[nodiscard]] inline visibility blocks_of_ids(std::span<const index_t> ids,
                                              block_window window = block_window::ignored) {
  std::vector<row_range> found;
  for (std::size_t n = 0; n < ids.size();) {
    std::size_t end = n + 1;
    while (end < ids.size() && ids[end] == ids[n]) ++end;
    if (ids[n] >= 0) found.push_back({static_cast<index_t>(n), static_cast<index_t>(end)});
    n = end;
  }
  return blocks(found, window);
}

/// Prefix-LM: the first `tokens` key rows see one another in both directions; what follows is as the mask says.
/// \throws std::invalid_argument when tokens is negative
[[nodiscard]] inline visibility prefix_lm(index_t tokens) {
  detail::require(tokens >= 0, "prefix_lm: ", tokens, " tokens");
  return blocks({{0, tokens}});
}

/// Key rows [begin, end) that each query row may see. \throws std::invalid_argument when a range is none
[[nodiscard]] inline visibility row_ranges(std::span<const row_range> of_queries) {
  detail::visibility_parts parts;
  parts.ranges.assign(of_queries.begin(), of_queries.end());
  for (const row_range& range : parts.ranges)
    detail::require(range.begin >= 0 && range.begin <= range.end, "row_ranges: rows [", range.begin, ", ",
                    range.end, ") are no range");
  return visibility(std::move(parts));
}

/// Drafts of speculative decoding: the last `drafts` key rows are a tree, everything before them is seen.
/// \param bits of each query row: bit b is set when it sees key row n_k − drafts + b. 64 drafts per word, so
/// (drafts + 63) / 64 words per query row.
/// \throws std::invalid_argument when there are no drafts or the words do not divide among query rows
[[nodiscard]] inline visibility draft_tree(std::span<const std::uint64_t> bits, index_t drafts) {
  detail::require(drafts >= 1, "draft_tree: ", drafts, " drafts");
  const index_t words = (drafts - 1) / 64 + 1;
  detail::require(!bits.empty() && static_cast<index_t>(bits.size()) % words == 0,
                  "draft_tree: ", bits.size(), " words of bits are no whole number of rows of ", words,
                  " for ", drafts, " drafts");
  detail::visibility_parts parts;
  parts.tree.assign(bits.begin(), bits.end());
  parts.drafts = drafts;
  parts.tree_words = words;
  return visibility(std::move(parts));
}

/// The tree that a list of parents describes: draft d sees itself and its ancestors. The queries are the drafts.
/// \param parents of each draft: an earlier draft, or −1 where it follows the text
/// \throws std::invalid_argument when a parent does not come before its child
[[nodiscard]] inline visibility draft_tree(std::span<const index_t> parents) {
  const auto drafts = static_cast<index_t>(parents.size()), words = (drafts + 63) / 64;
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(drafts * words));
  for (index_t d = 0; d < drafts; ++d) {
    const index_t parent = parents[static_cast<std::size_t>(d)];
    detail::require(parent >= -1 && parent < d, "draft_tree: draft ", d, " has parent ", parent,
                    ", which is not an earlier draft or -1");
    const auto row = bits.begin() + d * words;
    if (parent >= 0) std::copy_n(bits.begin() + parent * words, words, row);
    row[d / 64] |= std::uint64_t{1} << (d % 64);
  }
  return draft_tree(std::span<const std::uint64_t>(bits), drafts);
}

/// A mask that the caller holds for every head, query row and key row: true where the key is seen, as in PyTorch
/// and ONNX. T is bool or std::uint8_t.
template <class T>
[[nodiscard]] visibility dense_mask(const scores_view<T>& view) {
  static_assert(detail::dense_type_of<std::remove_const_t<T>> == detail::dense_type::boolean,
                "posenc: dense_mask takes bool or std::uint8_t; numbers to be added are a dense_bias");
  detail::visibility_parts parts;
  parts.mask = detail::dense_data(view);
  return visibility(std::move(parts));
}

/// Numbers that the caller holds for every head, query row and key row, added to the scores after the softcap; −∞
/// hides the key. T is float, double, Eigen::bfloat16 or Eigen::half.
template <class T>
[[nodiscard]] visibility dense_bias(const scores_view<T>& view) {
  constexpr detail::dense_type type = detail::dense_type_of<std::remove_const_t<T>>;
  static_assert(type != detail::dense_type::none && type != detail::dense_type::boolean,
                "posenc: dense_bias takes float, double, Eigen::bfloat16 or Eigen::half");
  detail::visibility_parts parts;
  parts.bias = detail::dense_data(view);
  return visibility(std::move(parts));
}

/// A function of the caller's that says whether query row i of head h sees key row j. It is called for every score
/// that the other parts leave, from any worker: right for anything, and slow.
[[nodiscard]] inline visibility mask_where(
    std::function<bool(index_t head, index_t query_row, index_t key_row)> f) {
  detail::require(static_cast<bool>(f), "mask_where: an empty function");
  detail::visibility_parts parts;
  parts.where = std::move(f);
  return visibility(std::move(parts));
}

}  // namespace posenc::inline v0_2
