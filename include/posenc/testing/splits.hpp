// SPDX-License-Identifier: MIT
/// \file
/// Property checks that cut the work up or lay the memory out differently: the answer must not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <posenc/attention/merge.hpp>
#include <posenc/testing/world.hpp>

namespace posenc::inline v0_2 {
namespace testing {

/// Causal attention in chunks of every size from one token (decode) up, each chunk of queries against all
/// keys so far, with the default positions of the queries, against one call for all.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result chunked_equals_whole(const E& encoding, const setup& s = {},
                                                const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  for (const position start : s.starts) {
    attention_options options = world.options;
    options.mask = causal;
    options.key_positions = positions::from(start);
    const auto made = world.project(encoding, options.key_positions);
    const auto whole = attention(made.q, made.k, made.v, encoding, options);
    for (index_t size = 1; size <= s.tokens; ++size)
      for (index_t begin = 0; begin < s.tokens; begin += size) {
        const index_t end = (std::min)(begin + size, s.tokens);
        const row_major_matrix<S> queries = made.q.middleRows(begin, end - begin), keys = made.k.topRows(end),
                                  values = made.v.topRows(end);
        const auto chunk = attention(queries, keys, values, encoding, options);
        for (index_t row = begin; row < end; ++row)
          worst.see(detail::difference_of_rows(chunk, row - begin, whole, row), "token ", row,
                    " in a chunk of ", end - begin, ", positions from ", start);
      }
  }
  return worst.result();
}

/// Attention over every split of the keys into two parts, one of them possibly empty, and into single keys,
/// merged, against one call for all.
/// \param sinks one logit per head, or none: they must count once
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result merged_equals_whole(const E& encoding, const setup& s = {},
                                               const Attention& attention = {},
                                               std::span<const double> sinks = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  for (const position start : s.starts) {
    const std::vector<position> where = detail::spread_positions(start, s.tokens);
    const auto made = world.project(encoding, positions::each(where));
    const auto over_keys = [&](index_t begin, index_t end, bool with_sinks) {
      attention_options options = world.options;
      options.query_positions = positions::each(where);
      options.key_positions = positions::each(std::span<const position>(where).subspan(
          static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
      if (with_sinks) options.sinks = sinks;
      const row_major_matrix<S> keys = made.k.middleRows(begin, end - begin),
                                values = made.v.middleRows(begin, end - begin);
      return attention(made.q, keys, values, encoding, options);
    };
    const attention_result<S> whole = over_keys(0, s.tokens, true);
    const auto compare = [&](const std::vector<attention_result<S>>& parts, index_t cut) {
      const attention_result<S> merged = merge(parts);
      for (index_t row = 0; row < s.tokens; ++row)
        worst.see(detail::difference_of_rows(merged, row, whole, row), "token ", row, " with keys in ",
                  parts.size(), " parts, the first of ", cut, ", positions from ", start);
    };
    for (index_t cut = 0; cut <= s.tokens; ++cut)
      compare({over_keys(0, cut, true), over_keys(cut, s.tokens, false)}, cut);
    std::vector<attention_result<S>> single;
    for (index_t key = 0; key < s.tokens; ++key) single.push_back(over_keys(key, key + 1, key == 0));
    compare(single, 1);
  }
  return worst.result();
}

/// The same attention from [heads][tokens][dim] buffers and from one fused buffer of q, k and v with gaps,
/// against packed matrices. Attention is called with views here.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result strided_equals_packed(const E& encoding, const setup& s = {},
                                                 const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  const index_t n = s.tokens, d = s.head_dim, gap = 3;
  const index_t all_heads = s.heads + 2 * s.kv_heads, row = all_heads * (d + gap) + gap;
  for (const position start : s.starts) {
    attention_options options = world.options;
    options.key_positions = positions::from(start);
    const auto made = world.project(encoding, options.key_positions);
    const auto packed = attention(made.q, made.k, made.v, encoding, options);

    const auto compare = [&](std::vector<S>& memory, const heads_view<S>& to_q, const heads_view<S>& to_k,
                             const heads_view<S>& to_v, const char* layout) {
      const auto fill = [](const row_major_matrix<S>& from, const heads_view<S>& to) {
        const auto packed_view = as_heads(from, to.heads);
        for (index_t i = 0; i < to.tokens; ++i)
          for (index_t head = 0; head < to.heads; ++head)
            std::copy_n(packed_view(i, head).begin(), to.head_dim, to(i, head).begin());
      };
      fill(made.q, to_q), fill(made.k, to_k), fill(made.v, to_v);
      const std::vector<S> before = memory;
      const heads_view<const S> from_q = to_q, from_k = to_k, from_v = to_v;
      const auto strided = attention(from_q, from_k, from_v, encoding, options);
      for (index_t i = 0; i < n; ++i)
        worst.see(detail::difference_of_rows(strided, i, packed, i), "token ", i, " from ", layout,
                  ", positions from ", start);
      if (!(memory == before)) worst.see(1, "input memory changed, ", layout);
    };

    std::vector<S> fused(static_cast<std::size_t>(n * row), S(7));
    const auto slice = [&](index_t first_head, index_t heads) {
      return heads_view<S>{fused.data() + gap + first_head * (d + gap), n, heads, d, row, d + gap};
    };
    compare(fused, slice(0, s.heads), slice(s.heads, s.kv_heads), slice(s.heads + s.kv_heads, s.kv_heads),
            "one fused buffer");

    std::vector<S> by_head(static_cast<std::size_t>(n * d * all_heads), S(7));
    compare(by_head, head_major(by_head.data(), s.heads, n, d),
            head_major(by_head.data() + s.heads * n * d, s.kv_heads, n, d),
            head_major(by_head.data() + (s.heads + s.kv_heads) * n * d, s.kv_heads, n, d),
            "[heads][tokens][dim]");
  }
  return worst.result();
}

}  // namespace testing
}  // namespace posenc::inline v0_2
