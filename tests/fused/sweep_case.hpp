// SPDX-License-Identifier: MIT
/// \file
/// One generated attention call: its shape, positions, options and memory, drawn from a seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/masks.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/views.hpp>

namespace sweep {

using posenc::index_t;
using posenc::position;

/// Draws that are the same on every platform.
class dice {
 public:
  explicit dice(std::uint32_t seed) : bits_(seed) {}
  [[nodiscard]] index_t below(index_t n) {
    return static_cast<index_t>(bits_() % static_cast<std::uint32_t>(n));
  }
  [[nodiscard]] bool one_in(index_t n) { return below(n) == 0; }
  template <class T>
  [[nodiscard]] T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<index_t>(values.size()))];
  }
  /// Mean 0, variance 1.
  [[nodiscard]] float number() {
    float sum = -6;
    for (int n = 0; n < 12; ++n) sum += static_cast<float>(bits_() >> 8) * 0x1p-24f;
    return sum;
  }

 private:
  std::mt19937 bits_;
};

/// Where the positions of an encoding may lie.
enum class domain : unsigned char {
  anywhere,
  near_zero,  ///< xPos: its growth is exponential
  natural,    ///< not negative
  table,      ///< 0 … 255
};

/// tokens × heads × head_dim with gaps around every row. Inputs hold NaN in the gaps, outputs a pattern.
template <class S>
struct tensor {
  std::vector<S> memory;
  posenc::heads_view<S> view;

  tensor(index_t tokens, index_t heads, index_t head_dim, index_t layout, S filler) {
    const index_t gap = layout >= 2 ? 3 : 0, after = layout >= 2 ? 5 : 0;
    const bool head_major = layout == 1 || layout == 3, reversed = layout == 4;
    const index_t inner = head_dim + gap;
    view = {nullptr,
            tokens,
            heads,
            head_dim,
            head_major ? inner : heads * inner + after,
            head_major ? tokens * inner + after : inner};
    const index_t begin = gap;
    const index_t last =
        (std::max)(tokens - 1, index_t{0}) * view.token_stride + (heads - 1) * view.head_stride;
    memory.assign(static_cast<std::size_t>(begin + last + head_dim + after), filler);
    view.data = memory.data() + begin;
    if (reversed && tokens > 0) {
      view.data += (tokens - 1) * view.token_stride;
      view.token_stride = -view.token_stride;
    }
  }

  /// Rows [begin, end) get numbers.
  void fill(dice& draw, index_t begin, index_t end, float size) {
    for (index_t t = begin; t < end; ++t)
      for (index_t h = 0; h < view.heads; ++h)
        for (S& x : view(t, h)) x = static_cast<S>(draw.number() * size);
  }

  /// True when every element outside the rows is still `filler`, bit for bit.
  [[nodiscard]] bool gaps_hold(S filler) const {
    std::vector<S> copy = memory;
    for (index_t t = 0; t < view.tokens; ++t)
      for (index_t h = 0; h < view.heads; ++h) {
        const index_t at = view.data - memory.data() + t * view.token_stride + h * view.head_stride;
        std::fill_n(copy.begin() + at, view.head_dim, filler);
      }
    return std::all_of(copy.begin(), copy.end(), [filler](S x) { return x == filler; });
  }
};

struct sweep_case {
  std::uint32_t seed = 0;
  index_t encoding = 0;
  index_t queries = 0, keys = 0, heads = 1, kv_heads = 1, head_dim = 1, value_dim = 1;
  index_t rotary_dim = 0, rotary_offset = 0;
  posenc::pairing pairing = posenc::pairing::half_split;
  bool keys_are_rotated = false;
  index_t layout_q = 0, layout_k = 0, layout_v = 0, layout_out = 0;
  float size = 1;  ///< of the numbers in q and k
  std::vector<double> sinks{};
  std::vector<double> head_scales{};
  std::vector<position> query_positions{}, key_positions{};
  std::string visible_text{};              ///< what options.visible is
  std::vector<std::uint8_t> dense_mask{};  ///< memory of options.visible
  std::vector<float> dense_bias{};         ///< likewise
  posenc::attention_options options{};     ///< without what points into this struct; see settled()

  /// The options, views of this object's positions and sinks included.
  [[nodiscard]] posenc::attention_options settled() const {
    posenc::attention_options result = options;
    result.sinks = sinks;
    result.head_scales = head_scales;
    if (!query_positions.empty()) result.query_positions = posenc::positions::each(query_positions);
    if (!key_positions.empty()) result.key_positions = posenc::positions::each(key_positions);
    return result;
  }

  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": encoding " << encoding << ", " << queries << " x " << keys
        << " tokens, heads " << heads << "/" << kv_heads << " x " << head_dim << "/" << value_dim
        << ", rotary " << rotary_dim << "@" << rotary_offset
        << (pairing == posenc::pairing::interleaved ? " interleaved" : " split")
        << (keys_are_rotated ? ", keys rotated" : "") << ", mask " << static_cast<int>(options.mask)
        << ", chunk " << options.chunk.value_or(0) << ", visible " << visible_text << ", head scales "
        << head_scales.size() << ", lookback " << options.window.lookback.value_or(-1) << ", lookahead "
        << options.window.lookahead.value_or(-1) << ", softcap " << options.softcap << ", sinks "
        << sinks.size() << ", explicit positions " << query_positions.size() << "/" << key_positions.size();
    if (options.valid_keys)
      out << ", valid keys " << options.valid_keys->begin << "-" << options.valid_keys->end;
    if (options.valid_queries)
      out << ", valid queries " << options.valid_queries->begin << "-" << options.valid_queries->end;
    return out.str();
  }
};

/// The positions of `count` rows from about `start` on: a run, gaps, or any order with repeats.
inline std::vector<position> scattered(dice& draw, index_t count, position start, index_t kind) {
  std::vector<position> result;
  position at = start;
  for (index_t n = 0; n < count; ++n) {
    result.push_back(at);
    at += kind == 0 ? 1 : 1 + draw.below(3) * draw.below(2);
  }
  if (kind == 2)
    for (index_t n = count - 1; n > 0; --n) {
      const auto a = static_cast<std::size_t>(n), b = static_cast<std::size_t>(draw.below(n + 1));
      std::swap(result[a], result[b]);
      if (draw.one_in(8)) result[a] = result[b];
    }
  return result;
}

inline posenc::row_range part_of(dice& draw, index_t rows) {
  const index_t begin = draw.below(rows + 1), end = begin + draw.below(rows - begin + 1);
  return {begin, end};
}

/// Row starts of documents, ascending from 0.
inline std::vector<index_t> document_starts(dice& draw, index_t rows) {
  std::vector<index_t> starts{0};
  while (starts.back() < rows && starts.size() < 7)
    starts.push_back((std::min)(rows, starts.back() + draw.below(90)));
  return starts;
}

/// Masks beyond causal and window, in most cases none, else one or two at once.
inline void add_masks(dice& draw, sweep_case& c) {
  if (draw.one_in(8)) c.options.mask = posenc::causal_from_first;
  if (draw.one_in(8)) c.options.mask = posenc::causal_to_last;
  if (draw.one_in(6)) c.options.chunk = draw.of<position>({1, 3, 16, 50, 128, 1000});
  if (draw.one_in(6))
    for (index_t h = 0; h < c.heads; ++h) c.head_scales.push_back(static_cast<double>(draw.number()) * 0.3);
  if (!c.head_scales.empty()) c.options.scale.reset();
  const auto use = [&c](const char* name, const posenc::visibility& one) {
    c.visible_text += std::string(c.visible_text.empty() ? "" : " & ") + name;
    c.options.visible = c.options.visible & one;
  };
  if (draw.one_in(5)) use("documents", posenc::documents(document_starts(draw, c.keys)));
  if (draw.one_in(5)) {
    std::vector<posenc::row_range> blocks;
    for (index_t at = draw.below(20); at < c.keys; at += draw.below(60) + 1) {
      const index_t end = (std::min)(c.keys, at + draw.below(70));
      blocks.push_back({at, end});
      at = end;
    }
    const auto window = draw.one_in(2) ? posenc::block_window::kept : posenc::block_window::ignored;
    use(window == posenc::block_window::kept ? "blocks in the window" : "blocks",
        posenc::blocks(blocks, window));
  }
  if (draw.one_in(8)) {
    std::vector<posenc::row_range> ranges;
    for (index_t i = 0; i < c.queries; ++i) ranges.push_back(part_of(draw, c.keys));
    if (!ranges.empty()) use("row_ranges", posenc::row_ranges(ranges));
  }
  const auto element = [&] { return c.queries * c.keys > 0; };
  if (draw.one_in(10) && element()) {
    const index_t drafts = (std::min)(c.keys, 1 + draw.below(80)), words = (drafts + 63) / 64;
    std::vector<std::uint64_t> bits;
    for (index_t n = 0; n < c.queries * words; ++n)
      bits.push_back(static_cast<std::uint64_t>(draw.below(1 << 30)) * 0x9e3779b97f4a7c15u);
    use("draft_tree", posenc::draft_tree(std::span<const std::uint64_t>(bits), drafts));
  }
  if (draw.one_in(10) && element()) {
    const index_t heads = draw.one_in(2) ? 1 : c.heads;
    for (index_t n = 0; n < heads * c.queries * c.keys; ++n)
      c.dense_mask.push_back(draw.one_in(3) ? std::uint8_t{0} : std::uint8_t{1});
    use("dense_mask",
        posenc::dense_mask(posenc::dense_scores(c.dense_mask.data(), heads, c.queries, c.keys)));
  }
  if (draw.one_in(10) && element()) {
    const index_t heads = draw.one_in(2) ? 1 : c.heads;
    for (index_t n = 0; n < heads * c.queries * c.keys; ++n)
      c.dense_bias.push_back(draw.one_in(5) ? -std::numeric_limits<float>::infinity() : draw.number());
    use("dense_bias",
        posenc::dense_bias(posenc::dense_scores(c.dense_bias.data(), heads, c.queries, c.keys)));
  }
  if (draw.one_in(16))
    use("mask_where",
        posenc::mask_where([](index_t h, index_t i, index_t j) { return (h + i * 3 + j) % 4 != 0; }));
}

/// The case of a seed for an encoding whose positions lie in `where`.
inline sweep_case make_case(std::uint32_t seed, index_t encoding, domain where, bool rotary) {
  dice draw(seed * 2654435761u + 12345u);
  sweep_case c;
  c.seed = seed;
  c.encoding = encoding;
  c.head_dim = draw.one_in(2)
                   ? draw.of<index_t>({8, 16, 32, 64, 80, 128, 256})
                   : draw.of<index_t>({1,  2,  3,  4,  5,  7,   9,   12,  15,  17,  20,  24,  31,  33,  40,
                                       48, 63, 65, 72, 96, 100, 112, 127, 129, 160, 192, 255, 320, 511, 512});
  if (rotary && c.head_dim < 2) c.head_dim = 6;
  c.value_dim =
      draw.one_in(3) ? draw.of<index_t>({1, 3, 8, 16, 17, 31, 32, 64, 65, 100, 128, 512}) : c.head_dim;
  c.kv_heads = draw.of<index_t>({1, 1, 2, 3});
  c.heads = c.kv_heads * draw.of<index_t>({1, 1, 2, 3, 4, 5, 8});
  c.queries =
      draw.one_in(2)
          ? draw.of<index_t>({1, 1, 2, 3, 4, 5})
          : draw.of<index_t>({0, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 129, 200, 300});
  c.keys = draw.one_in(2) ? draw.of<index_t>({0, 1, 2, 3, 5, 16, 31, 64, 100})
                          : draw.of<index_t>({127, 128, 129, 200, 255, 256, 257, 400, 513, 900});
  // The reference takes a nanosecond a step.
  while (c.queries * c.keys * (c.head_dim + c.value_dim) * c.heads > 4'000'000) {
    if (c.heads > c.kv_heads)
      c.heads = c.kv_heads;
    else if (c.kv_heads > 1)
      c.heads = c.kv_heads = 1;
    else
      (c.queries > c.keys ? c.queries : c.keys) /= 2;
  }
  c.options.heads = c.heads;
  c.options.kv_heads = c.kv_heads;
  if (rotary) {
    c.rotary_dim = c.head_dim / 2 * 2;
    if (draw.one_in(3)) c.rotary_dim = 2 * (1 + draw.below(c.head_dim / 2));
    c.rotary_offset = draw.one_in(3) ? draw.below(c.head_dim - c.rotary_dim + 1) : 0;
    c.keys_are_rotated = draw.one_in(4);
  }
  c.pairing = draw.one_in(2) ? posenc::pairing::half_split : posenc::pairing::interleaved;
  c.layout_q = draw.below(5), c.layout_k = draw.below(5), c.layout_v = draw.below(5),
  c.layout_out = draw.below(4);

  const position start = where == domain::table       ? 0
                         : where == domain::near_zero ? draw.of<position>({0, 1, 64, -200})
                         : where == domain::natural
                             ? draw.of<position>({0, 1, 8000, 131072, 1000000, position{1} << 40})
                             : draw.of<position>({0, 1, 131072, 1000000, position{1} << 40, -4097,
                                                  position{1} << 61, -(position{1} << 61)});
  if (where == domain::table)
    c.queries = (std::min)(c.queries, index_t{200}), c.keys = (std::min)(c.keys, index_t{256});
  if (draw.one_in(2) || where == domain::table)
    c.options.key_positions = posenc::positions::from(start);
  else
    c.key_positions = scattered(draw, c.keys, start, draw.below(3));
  const auto key_at = [&](index_t j) {
    return c.key_positions.empty() ? start + j : c.key_positions[static_cast<std::size_t>(j)];
  };
  const position last_key = c.keys > 0 ? key_at(c.keys - 1) : start;
  position first_query = last_key - c.queries + 1;
  if (draw.one_in(8)) first_query = start - c.queries / 2;  // some rows see nothing
  if (draw.one_in(16)) first_query = start - c.queries;     // no row does, under a causal mask
  if (draw.one_in(8)) first_query = last_key + draw.of<position>({1, 50, 3000});
  if (where == domain::natural || where == domain::table) first_query = (std::max)(first_query, position{0});
  if (where == domain::table) first_query = (std::min)(first_query, 256 - c.queries);
  if (draw.one_in(3) && where != domain::table)
    c.query_positions = scattered(draw, c.queries, first_query, draw.below(3));
  else
    c.options.query_positions = posenc::positions::from(first_query);
  if (c.queries == 0)
    c.query_positions.clear(), c.options.query_positions = posenc::positions::from(first_query);
  if (c.keys == 0) c.key_positions.clear(), c.options.key_positions = posenc::positions::from(start);

  if (!draw.one_in(3)) c.options.mask = posenc::causal;
  if (draw.one_in(4)) c.options.window.lookback = draw.of<position>({0, 1, 7, 15, 16, 60, 130, 1000});
  if (draw.one_in(6)) c.options.window.lookahead = draw.of<position>({0, 1, 5, 33, 300});
  if (draw.one_in(4)) c.options.softcap = draw.of<double>({5.0, 30.0, 50.0});
  if (draw.one_in(4)) c.options.scale = draw.of<double>({1.0, 0.05, 0.0, -0.3});
  if (draw.one_in(5))
    for (index_t h = 0; h < c.heads; ++h) c.sinks.push_back(static_cast<double>(draw.number()) * 3);
  if (draw.one_in(4)) c.options.valid_keys = part_of(draw, c.keys);
  if (draw.one_in(4)) c.options.valid_queries = part_of(draw, c.queries);
  if (draw.one_in(10)) c.size = 3;
  add_masks(draw, c);
  return c;
}

}  // namespace sweep
