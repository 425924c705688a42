// SPDX-License-Identifier: MIT
/// \file
/// Every encoding of the library, users' own, and combinations, sized for a generated case.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <posenc/posenc.hpp>

#include "fused/sweep_case.hpp"

namespace sweep {

/// A user's bias by offset, with no end: a diagonal as long as the call.
struct wave_bias {
  [[nodiscard]] double bias(int head, position offset) const {
    return std::sin(0.1 * static_cast<double>(offset % 1000) + head);
  }
};

/// A user's bias that hides every third distance.
struct comb_bias {
  [[nodiscard]] float bias(int head, position offset) const {
    return (offset + head) % 3 == 0 ? -std::numeric_limits<float>::infinity() : 0.5f;
  }
};

/// A user's bias of both positions.
struct pair_bias {
  [[nodiscard]] float bias(int head, position query, position key) const {
    return static_cast<float>((query ^ key) & 3) * 0.5f - static_cast<float>(head) * 0.25f;
  }
};

/// A user's rotation that is no rope: channels change sign with the position.
struct sign_flips {
  template <class S>
  void rotate(std::span<S> head, position p) const {
    for (std::size_t c = 0; c < head.size(); ++c)
      if ((static_cast<std::size_t>(p) >> (c % 8)) & 1u) head[c] = -head[c];
  }
};

template <class T>
posenc::bias_table<T> bias_numbers(index_t rows, index_t heads, std::uint32_t seed) {
  dice draw(seed);
  posenc::row_major_matrix<T> table(heads, rows);
  for (index_t h = 0; h < heads; ++h)
    for (index_t r = 0; r < rows; ++r) table(h, r) = static_cast<T>(draw.number());
  return posenc::bias_table<T>::heads_by_rows(table);
}
template <class T>
posenc::row_major_matrix<T> row_numbers(index_t rows, index_t columns, std::uint32_t seed) {
  dice draw(seed);
  posenc::row_major_matrix<T> table(rows, columns);
  for (index_t r = 0; r < rows; ++r)
    for (index_t c = 0; c < columns; ++c) table(r, c) = static_cast<T>(draw.number() * 0.5f);
  return table;
}

inline posenc::rope_options rope_of(const sweep_case& c) {
  return {.head_dim = c.head_dim,
          .rotary_dim = c.rotary_dim,
          .rotary_offset = c.rotary_offset,
          .pairing = c.pairing};
}

template <class T>
posenc::multi_axis_rope<T> mrope_of(const sweep_case& c) {
  const index_t pairs = c.rotary_dim / 2, rows = pairs / 3, columns = pairs / 4;
  std::vector<posenc::axis_positions> table;
  for (position n = 0; n < 100; ++n) table.push_back({n / 25, n / 5 % 5, n % 5, 0});
  const std::vector<index_t> sections{pairs - rows - columns, rows, columns};
  return {rope_of(c), sections, posenc::axis_order::chunked, table, 20};
}

template <class T>
posenc::shaw_with_values<T> shaw_of(const sweep_case& c) {
  return {{.direction = posenc::relative_direction::key_minus_query, .left = 6, .right = 3},
          row_numbers<T>(10, c.head_dim, 5),
          row_numbers<T>(10, c.value_dim, 6)};
}

/// What a case needs to know of the encoding before it is drawn.
struct kind {
  domain where = domain::anywhere;
  bool rotary = false;
};

inline constexpr kind kinds[] = {
    {},                         // 0 none
    {domain::anywhere, true},   // 1 rope
    {domain::anywhere, true},   // 2 yarn
    {domain::near_zero, true},  // 3 rope with float32 angles
    {domain::near_zero, true},  // 4 xpos
    {domain::anywhere, true},   // 5 multi-axis rope
    {domain::table, true},      // 6 vision rope
    {},                         // 7 alibi
    {},                         // 8 alibi that raises keys ahead
    {},                         // 9 t5
    {},                         // 10 relative bias
    {},                         // 11 shaw
    {domain::natural, false},   // 12 logit scale
    {},                         // 13 user's bias by offset
    {},                         // 14 user's bias that masks
    {},                         // 15 user's bias of both positions
    {},                         // 16 user's rotation
    {domain::anywhere, true},   // 17 rope + alibi
    {domain::natural, true},    // 18 rope + t5 + logit scale
    {},                         // 19 alibi + t5
    {domain::anywhere, true},   // 20 rope twice
    {domain::anywhere, true},   // 21 shaw + rope
    {domain::anywhere, true},   // 22 rope + user's biases
};
inline constexpr auto kind_count = static_cast<index_t>(std::size(kinds));

/// The encoding of a case with tables and angles in T.
template <class T, class Use>
auto with_encoding(const sweep_case& c, Use&& use) {
  const posenc::t5_bucket_options both{.buckets = 32, .max_distance = 128, .bidirectional = true};
  const posenc::t5_bucket_options one{.buckets = 8, .max_distance = 20, .bidirectional = false};
  const auto t5 = [&](const posenc::t5_bucket_options& o) {
    return posenc::t5_bias<T>{o, bias_numbers<T>(o.buckets, c.heads, 3)};
  };
  const posenc::alibi<T> line{{.heads = c.heads}};
  switch (c.encoding) {
    case 1:
      return use(posenc::rope<T>{rope_of(c)});
    case 2:
      return use(posenc::rope<T>{rope_of(c), posenc::yarn{.factor = 4, .original_context = 4096}});
    case 3: {
      posenc::rope_options options = rope_of(c);
      options.angles = posenc::angle_mode::framework_float32;
      return use(posenc::rope<T>{options});
    }
    case 4:
      return use(posenc::xpos<T>{{.rope = rope_of(c), .origin = 10}});
    case 5:
      return use(mrope_of<T>(c));
    case 6:
      if (c.head_dim % 4 == 0)
        return use(posenc::multi_axis_rope<T>::vision(posenc::vision_form::restarting, c.head_dim,
                                                      posenc::patch_positions(16, 16)));
      return use(mrope_of<T>(c));
    case 7:
      return use(line);
    case 8:
      return use(posenc::alibi<T>{{.heads = c.heads, .form = posenc::alibi_form::causal}});
    case 9:
      return use(t5(c.seed % 2 ? both : one));
    case 10:
      return use(posenc::relative_bias<T>{
          {.direction = posenc::relative_direction::query_minus_key, .left = 40, .right = 9},
          bias_numbers<T>(50, c.heads, 4)});
    case 11:
      if (c.seed % 2)
        return use(
            posenc::shaw<T>{{.direction = posenc::relative_direction::key_minus_query, .left = 4, .right = 4},
                            row_numbers<T>(9, c.head_dim, 7)});
      return use(shaw_of<T>(c));
    case 12:
      return use(posenc::logit_scale::llama4());
    case 13:
      return use(wave_bias{});
    case 14:
      return use(comb_bias{});
    case 15:
      return use(pair_bias{});
    case 16:
      return use(sign_flips{});
    case 17:
      return use(posenc::combine(posenc::rope<T>{rope_of(c)}, line));
    case 18:
      return use(
          posenc::combine(posenc::rope<T>{rope_of(c)}, t5(both), posenc::logit_scale::ministral(0.1, 4096)));
    case 19:
      return use(posenc::combine(line, t5(one)));
    case 20:
      return use(posenc::combine(posenc::rope<T>{rope_of(c)}, posenc::rope<T>{rope_of(c)}));
    case 21:
      return use(posenc::combine(shaw_of<T>(c), posenc::rope<T>{rope_of(c)}));
    case 22:
      return use(posenc::combine(posenc::rope<T>{rope_of(c)}, wave_bias{}, pair_bias{}));
    default:
      return use(posenc::no_encoding{});
  }
}

}  // namespace sweep
