// SPDX-License-Identifier: MIT
/// \file
/// Property checks that look at one door alone: rotations and embeddings.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/encoding.hpp>
#include <posenc/testing/world.hpp>

namespace posenc::inline v0_2 {
namespace testing {

/// The channels of a head that rotate, and the attention factor they are multiplied by; the others must stay as they
/// are.
struct rotary_slice {
  index_t offset = 0;                   ///< of the slice, in channels
  std::optional<index_t> rotary_dim{};  ///< all from offset on if not given
  double attention_factor = 1;          ///< m, YaRN's attention factor
};

namespace detail {

/// The rotary channels of a head, given its slice. \throws std::invalid_argument
[[nodiscard]] inline std::pair<std::size_t, std::size_t> channels_of(const rotary_slice& slice,
                                                                     index_t head_dim) {
  const index_t width = slice.rotary_dim.value_or(head_dim - slice.offset);
  require(slice.offset >= 0 && width >= 0 && slice.offset + width <= head_dim, "testing: a slice of ", width,
          " channels from ", slice.offset, " in a head of ", head_dim);
  return {static_cast<std::size_t>(slice.offset), static_cast<std::size_t>(slice.offset + width)};
}

template <class S, class E>
void rotate_one(const E& encoding, std::vector<S>& head, position p, bool as_query) {
  check_width(encoding, static_cast<index_t>(head.size()));
  if (as_query)
    posenc::detail::rotate_query(encoding, std::span<S>(head), p);
  else
    posenc::detail::rotate_key(encoding, std::span<S>(head), p);
}

template <class S>
[[nodiscard]] std::vector<S> random_head(index_t head_dim, random_numbers& random) {
  std::vector<S> head;
  for (index_t c = 0; c < head_dim; ++c) head.push_back(static_cast<S>(random()));
  return head;
}

}  // namespace detail

/// A rotation keeps the norm of the rotary channels (times the attention factor) and leaves the others as they are,
/// to the bit. Tried at each start and a little after it.
template <class S, class E>
requires rotates<E, S>
[[nodiscard]] check_result norm(const E& encoding, const setup& s = {}, const rotary_slice& slice = {}) {
  const auto [begin, end] = detail::channels_of(slice, s.head_dim);
  detail::random_numbers random(s.seed);
  detail::worst_case worst;
  const auto squares = [begin = begin, end = end](const std::vector<S>& head) {
    long double total = 0;
    for (std::size_t c = begin; c < end; ++c) total += static_cast<long double>(head[c]) * head[c];
    return total;
  };
  for (const position start : s.starts)
    for (const position p : {start, start + 1, start + 7})
      for (const bool as_query : {true, false}) {
        const std::vector<S> before = detail::random_head<S>(s.head_dim, random);
        std::vector<S> after = before;
        detail::rotate_one(encoding, after, p, as_query);
        const char* side = as_query ? "query" : "key";
        if (begin < end)
          worst.see(static_cast<double>(
                        std::abs(std::sqrt(squares(after) / squares(before)) / slice.attention_factor - 1)),
                    "a ", side, " at position ", p);
        for (std::size_t c = 0; c < before.size(); ++c)
          if ((c < begin || c >= end) && !(after[c] == before[c]))
            worst.see((std::max)(1.0, std::abs(static_cast<double>(after[c] - before[c]))), "channel ", c,
                      " of a ", side, " at position ", p, ", which is outside the rotary slice");
      }
  return worst.result();
}

/// Rotating by a and then by b is rotating by a + b, for every pair of starts and small steps. The sums must
/// not exceed ±(2^62 − 1).
template <class S, class E>
requires rotates<E, S>
[[nodiscard]] check_result additivity(const E& encoding, const setup& s = {},
                                      const rotary_slice& slice = {}) {
  const auto [begin, end] = detail::channels_of(slice, s.head_dim);
  detail::random_numbers random(s.seed);
  detail::worst_case worst;
  std::vector<position> steps{1, -3};
  steps.insert(steps.end(), s.starts.begin(), s.starts.end());
  for (const position a : s.starts)
    for (const position b : steps)
      for (const bool as_query : {true, false}) {
        std::vector<S> at_once = detail::random_head<S>(s.head_dim, random), in_steps = at_once;
        detail::rotate_one(encoding, at_once, a + b, as_query);
        detail::rotate_one(encoding, in_steps, a, as_query);
        detail::rotate_one(encoding, in_steps, b, as_query);
        for (std::size_t c = begin; c < end; ++c)
          in_steps[c] = static_cast<S>(in_steps[c] / static_cast<S>(slice.attention_factor));
        worst.see(detail::difference(at_once, in_steps), "a ", as_query ? "query" : "key", " rotated by ", a,
                  " and then by ", b);
      }
  return worst.result();
}

/// Whether near positions get near vectors at the door *embed*: the distance between neighbours over the mean
/// distance between far apart positions (`reach`/2 to `reach`), at its worst over start … start + reach.
/// Well below 1: local (sinusoidal). About 1: a position's neighbours are as strange to it as any other (a
/// learned table before training).
/// \param width channels of a token embedding
template <class S, class E>
requires embeds<E, S>
[[nodiscard]] check_result locality(const E& encoding, index_t width, const setup& s = {},
                                    position reach = 64) {
  detail::worst_case worst;
  for (const position start : s.starts) {
    std::vector<std::vector<S>> at;
    for (position p = start; p <= start + reach; ++p) {
      at.emplace_back(static_cast<std::size_t>(width), S(0));
      encoding.embed(std::span<S>(at.back()), p);
    }
    const auto distance = [&at](std::size_t a, std::size_t b) {
      long double total = 0;
      for (std::size_t c = 0; c < at[a].size(); ++c) {
        const long double apart = static_cast<long double>(at[a][c]) - static_cast<long double>(at[b][c]);
        total += apart * apart;
      }
      return static_cast<double>(std::sqrt(total));
    };
    double distant = 0;
    std::size_t pairs = 0;
    for (std::size_t a = 0; a < at.size(); ++a)
      for (std::size_t b = a + at.size() / 2; b < at.size(); ++b, ++pairs) distant += distance(a, b);
    for (std::size_t a = 0; a + 1 < at.size(); ++a)
      worst.see(distance(a, a + 1) * static_cast<double>(pairs) / distant, "positions ",
                start + static_cast<position>(a), " and ", start + static_cast<position>(a) + 1);
  }
  return worst.result();
}

/// Rotating or embedding a row inside a larger buffer gives the same bits as in a buffer of its own, and
/// touches nothing around it: 0, or 1 where it does not.
template <class S, class E>
requires(rotates<E, S> || embeds<E, S>) [[nodiscard]] check_result
    stays_in_row(const E& encoding, const setup& s = {}) {
  detail::random_numbers random(s.seed);
  detail::worst_case worst;
  const index_t model_dim = s.model_dim > 0 ? s.model_dim : s.heads * s.head_dim;
  const auto look = [&](index_t width, const char* door, position p, const auto& apply) {
    constexpr std::size_t margin = 67;  // wider than any vector register, and odd
    const auto size = static_cast<std::size_t>(width);
    std::vector<S> alone = detail::random_head<S>(width, random);
    const std::vector<S> fence = detail::random_head<S>(width + 2 * static_cast<index_t>(margin), random);
    std::vector<S> among = fence;
    std::copy(alone.begin(), alone.end(), among.begin() + margin);
    apply(std::span<S>(alone));
    apply(std::span<S>(among).subspan(margin, size));
    for (std::size_t c = 0; c < among.size(); ++c) {
      const bool inside = c >= margin && c < margin + size;
      const S& expected = inside ? alone[c - margin] : fence[c];
      if (!(among[c] == expected))
        worst.see(1, door, " at position ", p, ": channel ", static_cast<index_t>(c) - index_t{margin},
                  " of a row of ", width);
    }
  };
  for (const position p : s.starts) {
    if constexpr (rotates<E, S>) {
      look(s.head_dim, "rotate (query)", p,
           [&](std::span<S> row) { posenc::detail::rotate_query(encoding, row, p); });
      look(s.head_dim, "rotate (key)", p,
           [&](std::span<S> row) { posenc::detail::rotate_key(encoding, row, p); });
    }
    if constexpr (embeds<E, S>)
      look(model_dim, "embed", p, [&](std::span<S> row) { encoding.embed(row, p); });
  }
  return worst.result();
}

}  // namespace testing
}  // namespace posenc::inline v0_2
