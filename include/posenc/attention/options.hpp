// SPDX-License-Identifier: MIT
/// \file
/// What an attention call can be told, shared by the reference and the fused path, and the one place it is
/// checked.
#pragma once

#include <cmath>
#include <optional>
#include <span>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_1 {

/// Which keys a query may see, by position.
enum class attention_mask : unsigned char {
  bidirectional,  ///< every key
  causal,         ///< keys whose position is not greater than the query's
};
using enum attention_mask;

/// Rows [begin, end) of a tensor.
struct row_range {
  index_t begin = 0;
  index_t end = 0;
};

/// Options of an attention call. Order inside a score: scale, softcap, bias, mask.
struct attention_options {
  index_t heads = 1;                  ///< query heads
  std::optional<index_t> kv_heads{};  ///< key/value heads; heads is a multiple of it; query head h uses KV
                                      ///< head h / (heads/kv_heads)
  attention_mask mask = bidirectional;
  std::optional<double> scale{};  ///< σ on q·k; 1/√head_dim if not given (T5 uses 1)
  double softcap = 0;             ///< c: s ← c·tanh(s/c) after the scale; 0 is off (Gemma-2 uses 50)

  /// The farthest key behind the query that is still seen: query − key ≤ lookback. A window of "W tokens
  /// including the query itself" (Hugging Face sliding_window) is lookback = W − 1.
  std::optional<position> lookback{};
  /// The farthest key ahead of the query that is still seen: key − query ≤ lookahead (ModernBERT's two-sided
  /// windows).
  std::optional<position> lookahead{};

  /// One logit per query head that takes part in the softmax without a value (attention sinks of gpt-oss).
  std::span<const double> sinks{};

  positions query_positions{};  ///< by default the last n_q of the keys' positions
  positions key_positions{};    ///< by default 0 … n_k−1

  std::optional<row_range>
      valid_keys{};  ///< rows of k and v that are tokens; the others are padding, and unseen
  std::optional<row_range> valid_queries{};  ///< rows of q that are tokens; the others yield 0 and −∞
};

namespace detail {

/// Attention options with every default filled in and every number checked.
struct resolved_options {
  index_t query_tokens = 0, key_tokens = 0;
  index_t heads = 1, kv_heads = 1, group = 1;
  index_t head_dim = 0, value_dim = 0;
  double scale = 1, softcap = 0;
  bool causal = false;
  std::optional<position> lookback{}, lookahead{};
  std::span<const double> sinks{};
  positions query_positions{}, key_positions{};
  row_range valid_keys{}, valid_queries{};

  /// True when the query at position `query` may see the key at position `key`.
  [[nodiscard]] bool sees(position query, position key) const noexcept {
    if (causal && key > query) return false;
    if (lookback && query - key > *lookback) return false;
    if (lookahead && key - query > *lookahead) return false;
    return true;
  }
};

[[nodiscard]] inline row_range checked_range(const std::optional<row_range>& range, index_t rows,
                                             const char* what) {
  if (!range) return {0, rows};
  require(0 <= range->begin && range->begin <= range->end && range->end <= rows, what, ": rows [",
          range->begin, ", ", range->end, ") of ", rows);
  return *range;
}

/// The positions of the queries: as given, or the last n_q of the keys' positions.
[[nodiscard]] inline positions default_query_positions(const positions& keys, index_t query_tokens,
                                                       index_t key_tokens) {
  if (keys.is_run()) return positions::from(keys[0] + key_tokens - query_tokens);
  require(query_tokens <= key_tokens, query_tokens, " queries cannot stand on the last of ", key_tokens,
          " explicit key positions: give query_positions");
  return positions::each(keys.explicit_positions().last(static_cast<std::size_t>(query_tokens)));
}

/// Checks the shapes of an attention call against its options and fills in the defaults.
/// \throws std::invalid_argument
template <class Q, class K, class V>
[[nodiscard]] resolved_options resolve(const attention_options& options, const heads_view<Q>& q,
                                       const heads_view<K>& k, const heads_view<V>& v) {
  check_view(q, "q"), check_view(k, "k"), check_view(v, "v");
  const index_t heads = options.heads, kv_heads = options.kv_heads.value_or(heads);
  require(heads >= 1 && kv_heads >= 1, "attention: heads ", heads, " and kv_heads ", kv_heads,
          " must be positive");
  require(heads % kv_heads == 0, "attention: heads ", heads, " is no multiple of kv_heads ", kv_heads);
  require(q.heads == heads, "attention: q has ", q.heads, " heads, the options say ", heads);
  require(k.heads == kv_heads && v.heads == kv_heads, "attention: k and v have ", k.heads, " and ", v.heads,
          " heads, the options say kv_heads ", kv_heads);
  require(q.head_dim >= 1 && q.head_dim == k.head_dim, "attention: head_dim of q ", q.head_dim, " and of k ",
          k.head_dim, " must be equal and positive (with heads ", heads, ", kv_heads ", kv_heads, ")");
  require(v.head_dim >= 1, "attention: head_dim of v ", v.head_dim, " is not positive");
  require(k.tokens == v.tokens, "attention: k has ", k.tokens, " tokens, v has ", v.tokens);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.head_dim)));
  require(is_finite(scale), "attention: the scale must be finite, not ", scale);
  require(is_finite(options.softcap) && options.softcap >= 0, "attention: softcap ", options.softcap,
          " must be finite and not negative");
  require(!options.lookback || *options.lookback >= 0, "attention: lookback ", options.lookback.value_or(0),
          " is negative");
  require(!options.lookahead || *options.lookahead >= 0, "attention: lookahead ",
          options.lookahead.value_or(0), " is negative");
  require(options.sinks.empty() || static_cast<index_t>(options.sinks.size()) == heads,
          "attention: ", options.sinks.size(), " sinks for ", heads, " heads");
  for (const double sink : options.sinks) require(is_finite(sink), "attention: a sink of ", sink);
  const positions keys =
      (options.key_positions.given() ? options.key_positions : positions::from(0)).resolve(k.tokens, "key");
  const positions queries =
      (options.query_positions.given() ? options.query_positions
                                       : default_query_positions(keys, q.tokens, k.tokens))
          .resolve(q.tokens, "query");
  return {.query_tokens = q.tokens,
          .key_tokens = k.tokens,
          .heads = heads,
          .kv_heads = kv_heads,
          .group = heads / kv_heads,
          .head_dim = q.head_dim,
          .value_dim = v.head_dim,
          .scale = scale,
          .softcap = options.softcap,
          .causal = options.mask == causal,
          .lookback = options.lookback,
          .lookahead = options.lookahead,
          .sinks = options.sinks,
          .query_positions = queries,
          .key_positions = keys,
          .valid_keys = checked_range(options.valid_keys, k.tokens, "valid_keys"),
          .valid_queries = checked_range(options.valid_queries, q.tokens, "valid_queries")};
}

/// \throws std::invalid_argument when the output does not fit the call or shares memory with an input.
template <class Q, class K, class V, class O, class L>
void check_output(const resolved_options& call, const heads_view<Q>& q, const heads_view<K>& k,
                  const heads_view<V>& v, const heads_view<O>& out, const head_scalars_view<L>& log_sum_exp) {
  check_view(out, "output");
  require(out.tokens == call.query_tokens && out.heads == call.heads && out.head_dim == call.value_dim,
          "output is ", out.tokens, " x ", out.heads, " x ", out.head_dim, ", needed is ", call.query_tokens,
          " x ", call.heads, " x ", call.value_dim);
  check_disjoint_rows(out, "output");
  require(!overlap(out, q) && !overlap(out, k) && !overlap(out, v), "output overlaps q, k or v in memory");
  if (log_sum_exp.data == nullptr) return;
  require(log_sum_exp.tokens == call.query_tokens && log_sum_exp.heads == call.heads, "log_sum_exp is ",
          log_sum_exp.tokens, " x ", log_sum_exp.heads, ", needed is ", call.query_tokens, " x ", call.heads);
  const heads_view<L> as_rows{log_sum_exp.data,         log_sum_exp.tokens,     log_sum_exp.heads, 1,
                              log_sum_exp.token_stride, log_sum_exp.head_stride};
  check_disjoint_rows(as_rows, "log_sum_exp");
  require(!overlap(as_rows, q) && !overlap(as_rows, k) && !overlap(as_rows, v) && !overlap(as_rows, out),
          "log_sum_exp overlaps q, k, v or the output in memory");
}

}  // namespace detail
}  // namespace posenc::inline v0_1
