// SPDX-License-Identifier: MIT
/// \file
/// The options of an attention call, shared by the reference and the fused path, and the one place where they are
/// checked.
#pragma once

#include <cmath>
#include <optional>
#include <span>

#include <posenc/attention/visibility.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Options of an attention call. Order inside a score: scale, softcap, bias, mask.
struct attention_options {
  index_t heads = 1;  ///< query heads
  /// Key/value heads; heads is a multiple of it. Query head h uses KV head h / (heads/kv_heads).
  std::optional<index_t> kv_heads{};
  /// Channels of a query and of a key; checked against the tensors where given. A matrix of tokens ×
  /// (heads·head_dim) cannot say how wide a head is, so a wrong number of heads shows here.
  std::optional<index_t> head_dim{};
  std::optional<index_t> value_dim{};  ///< channels of a value, likewise

  attention_mask mask = bidirectional;  ///< causal, by positions or by rows; or none
  attention_window window{};            ///< sliding_window(W), two_sided_window(left, right)
  /// Chunks of so many tokens: a query sees keys of its own chunk only, floor(position / chunk) (Llama-4).
  std::optional<position> chunk{};
  visibility visible{};  ///< documents, blocks, trees, dense masks and biases (masks.hpp)
  /// The key row that query row 0 is, for masks that relate rows (masks.hpp); n_k − n_q if not given.
  std::optional<index_t> first_query_row{};

  std::optional<double> scale{};          ///< σ on q·k; 1/√head_dim if not given (T5 uses 1)
  std::span<const double> head_scales{};  ///< σ of each query head, in place of `scale`
  double softcap = 0;  ///< c: s ← c·tanh(s/c) after the scale; 0 is off (Gemma-2 uses 50)

  /// One logit per query head that joins the softmax without a value (attention sinks of gpt-oss); −∞ is no sink.
  std::span<const double> sinks{};
  /// The model has learned sinks: a call without them is refused rather than wrong.
  bool needs_sinks = false;

  /// How many tokens the sequence has, for encodings that are settled by it (rope_by_length: LongRoPE, dynamic NTK).
  std::optional<position> context_length{};
  bool keys_are_rotated =
      false;  ///< k holds keys that the encoding has rotated already; only the queries rotate
  /// The positions were added to the embeddings (embed_rows): says that an encoding with the door embed alone has
  /// done its work before this call.
  bool is_embedded = false;

  positions query_positions{};  ///< by default the last n_q of the keys' positions
  positions key_positions{};    ///< by default 0 … n_k−1

  /// Rows of k and v that are tokens; the others are padding, unseen. Positions stay as they are: over a buffer with
  /// room to spare the queries stand on its last rows unless query_positions says where they are.
  std::optional<row_range> valid_keys{};
  std::optional<row_range> valid_queries{};  ///< rows of q that are tokens; the others yield 0 and −∞
};

namespace detail {

/// The shapes of an attention call, without its memory.
struct attention_shape {
  index_t query_tokens = 0, key_tokens = 0;
  index_t heads = 1, kv_heads = 1;
  index_t head_dim = 0, value_dim = 0;
};

/// Attention options with every default filled in and every number checked.
struct resolved_options {
  index_t query_tokens = 0, key_tokens = 0;
  index_t heads = 1, kv_heads = 1, group = 1;
  index_t head_dim = 0, value_dim = 0;
  double scale = 1, softcap = 0;
  std::span<const double> head_scales{};
  std::span<const double> sinks{};
  bool keys_are_rotated = false;
  positions query_positions{}, key_positions{};
  row_range valid_keys{}, valid_queries{};
  key_visibility visible{};

  [[nodiscard]] double scale_of(index_t head) const noexcept {
    return head_scales.empty() ? scale : head_scales[static_cast<std::size_t>(head)];
  }
  /// True when query row i of `head` sees key row j; both are tokens.
  [[nodiscard]] bool sees(index_t head, index_t i, index_t j) const {
    return visible.sees(head, i, j, query_positions[i], key_positions[j]);
  }
};

[[nodiscard]] inline row_range checked_range(const std::optional<row_range>& range, index_t rows,
                                             const char* what) {
  if (!range) return {0, rows};
  require(0 <= range->begin && range->begin <= range->end && range->end <= rows, "attention: ", what, " [",
          range->begin, ", ", range->end, ") do not lie in ", rows, " rows");
  return *range;
}

/// The positions of the queries where none are given: the last n_q of the keys' positions.
[[nodiscard]] inline positions default_query_positions(const positions& keys, const attention_shape& shape,
                                                       bool reads_positions) {
  const index_t queries = shape.query_tokens, rows = shape.key_tokens;
  require(queries <= rows || rows == 0 || (!reads_positions && keys.is_run() && !keys.has_axes()),
          "attention: ", queries, " queries cannot stand on the last of ", rows,
          " key positions: give query_positions (or, to count from the first key, mask = causal_from_first)");
  // Without keys there are no rows to take; a run goes on before its first position.
  if (rows == 0 && (!keys.is_run() || keys.has_axes())) return positions::from(-queries);
  return keys.last(queries, rows);
}

inline void check_numbers(const attention_options& options, index_t heads) {
  require(is_finite(options.softcap) && options.softcap >= 0, "attention: softcap ", options.softcap,
          " must be finite and not negative");
  require(options.softcap == 0 || options.softcap >= 1e-30, "attention: softcap ", options.softcap,
          " is too small for float (at least 1e-30, or 0 for none)");
  const attention_window& window = options.window;
  require(!window.lookback || *window.lookback >= 0, "attention: window.lookback ",
          window.lookback.value_or(0), " is negative");
  require(!window.lookahead || *window.lookahead >= 0, "attention: window.lookahead ",
          window.lookahead.value_or(0), " is negative");
  require(!options.chunk || *options.chunk >= 1, "attention: chunk ", options.chunk.value_or(0),
          " is not positive");
  require(options.head_scales.empty() || !options.scale,
          "attention: scale and head_scales are both given; leave one out");
  require(options.head_scales.empty() || static_cast<index_t>(options.head_scales.size()) == heads,
          "attention: ", options.head_scales.size(), " head_scales for ", heads, " heads");
  require(options.sinks.empty() || static_cast<index_t>(options.sinks.size()) == heads,
          "attention: ", options.sinks.size(), " sinks for ", heads, " heads");
  require(!options.needs_sinks || !options.sinks.empty(),
          "attention: this model has learned sinks (needs_sinks): set sinks to the layer's ", heads,
          " logits");
  for (const double sink : options.sinks)
    require(is_finite(sink) || is_minus_infinity(sink), "attention: a sink of ", sink,
            " is neither finite nor -infinity");
}

/// Refuses a scale that float products cannot carry.
inline void check_scale(double scale) {
  require(is_finite(scale), "attention: the scale must be finite, not ", scale);
  require(std::abs(scale) <= 1e30, "attention: the scale ", scale, " is too large (at most 1e30)");
}

/// Checks the shapes of an attention call against its options and fills in the defaults.
/// \throws std::invalid_argument
[[nodiscard]] inline resolved_options resolve(const attention_options& options,
                                              const attention_shape& shape) {
  const index_t heads = options.heads, kv_heads = options.kv_heads.value_or(heads);
  require(heads >= 1 && kv_heads >= 1, "attention: heads ", heads, " and kv_heads ", kv_heads,
          " must be positive");
  require(heads % kv_heads == 0, "attention: heads ", heads, " is no multiple of kv_heads ", kv_heads);
  require(shape.heads == heads, "attention: q has ", shape.heads, " heads, the option heads says ", heads);
  require(shape.kv_heads == kv_heads, "attention: k and v have ", shape.kv_heads,
          " heads, the option kv_heads says ", kv_heads);
  require(shape.query_tokens >= 0 && shape.key_tokens >= 0, "attention: ", shape.query_tokens,
          " queries and ", shape.key_tokens, " keys");
  require(shape.head_dim >= 1 && shape.value_dim >= 1, "attention: head_dim ", shape.head_dim,
          " and value_dim ", shape.value_dim, " must be positive");
  require(!options.head_dim || *options.head_dim == shape.head_dim, "attention: q has heads of ",
          shape.head_dim, " channels, the option head_dim says ", options.head_dim.value_or(0),
          " (is heads = ", heads, " right?)");
  require(!options.value_dim || *options.value_dim == shape.value_dim, "attention: v has heads of ",
          shape.value_dim, " channels, the option value_dim says ", options.value_dim.value_or(0));
  check_numbers(options, heads);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  check_scale(scale);
  for (const double of_head : options.head_scales) check_scale(of_head);
  const bool reads_positions =
      options.mask == causal || options.window.lookback || options.window.lookahead || options.chunk;
  const positions keys = (options.key_positions.given() ? options.key_positions : positions::from(0))
                             .resolve(shape.key_tokens, "key");
  const positions queries =
      (options.query_positions.given() ? options.query_positions
                                       : default_query_positions(keys, shape, reads_positions))
          .resolve(shape.query_tokens, "query");
  require(keys.has_axes() == queries.has_axes() || shape.query_tokens == 0 || shape.key_tokens == 0,
          "attention: places on axes are given for ", keys.has_axes() ? "the keys" : "the queries",
          " alone; give them in query_positions and in key_positions");
  return {.query_tokens = shape.query_tokens,
          .key_tokens = shape.key_tokens,
          .heads = heads,
          .kv_heads = kv_heads,
          .group = heads / kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .scale = scale,
          .softcap = options.softcap,
          .head_scales = options.head_scales,
          .sinks = options.sinks,
          .keys_are_rotated = options.keys_are_rotated,
          .query_positions = queries,
          .key_positions = keys,
          .valid_keys = checked_range(options.valid_keys, shape.key_tokens, "valid_keys"),
          .valid_queries = checked_range(options.valid_queries, shape.query_tokens, "valid_queries"),
          .visible = key_visibility(options.mask, options.window, options.chunk, options.visible,
                                    options.first_query_row, heads, shape.query_tokens, shape.key_tokens)};
}

/// The shapes of the tensors of a call. \throws std::invalid_argument when they do not fit one another.
template <class Q, kv_source K, kv_source V>
[[nodiscard]] attention_shape shape_of(const heads_view<Q>& q, const K& k, const V& v) {
  check_view(q, "q"), source_traits<K>::check(k, "k"), source_traits<V>::check(v, "v");
  const source_shape keys = shape_of_source(k), values = shape_of_source(v);
  require(keys.heads == values.heads, "attention: k has ", keys.heads, " heads, v has ", values.heads);
  require(q.head_dim == keys.head_dim, "attention: head_dim of q ", q.head_dim, " and of k ", keys.head_dim,
          " must be equal (with heads ", q.heads, ", kv_heads ", keys.heads, ")");
  require(keys.tokens == values.tokens, "attention: k has ", keys.tokens, " tokens, v has ", values.tokens);
  return {q.tokens, keys.tokens, q.heads, keys.heads, q.head_dim, values.head_dim};
}
template <class Q, kv_source K, kv_source V>
[[nodiscard]] resolved_options resolve(const attention_options& options, const heads_view<Q>& q, const K& k,
                                       const V& v) {
  return resolve(options, shape_of(q, k, v));
}

/// The matrices of a call, tokens × (heads·head_dim), as heads. \throws std::invalid_argument naming the option heads.
template <class Q, class K, class V>
class attention_matrices {
 public:
  template <class A, class B, class C>
  attention_matrices(const Eigen::MatrixBase<A>& q, const Eigen::MatrixBase<B>& k,
                     const Eigen::MatrixBase<C>& v, const attention_options& options)
      : q_(q), k_(k), v_(v), heads_(options.heads), kv_heads_(options.kv_heads.value_or(options.heads)) {
    require(heads_ >= 1 && kv_heads_ >= 1, "attention: heads ", heads_, " and kv_heads ", kv_heads_,
            " must be positive");
    const auto check = [](const char* name, index_t columns, const char* option, index_t heads,
                          const std::optional<index_t>& head_dim) {
      require(columns % heads == 0, "attention: ", name, " has ", columns,
              " columns, which is no multiple of ", option, " = ", heads);
      require(!head_dim || columns == heads * *head_dim, "attention: ", name, " has ", columns,
              " columns, not ", option, " x width = ", heads, " x ", head_dim.value_or(0), " (is the option ",
              option, " right?)");
    };
    check("q", q.cols(), "heads", heads_, options.head_dim);
    check("k", k.cols(), "kv_heads", kv_heads_, options.head_dim);
    check("v", v.cols(), "kv_heads", kv_heads_, options.value_dim);
  }
  [[nodiscard]] heads_view<const Q> q() const { return q_.heads(heads_); }
  [[nodiscard]] heads_view<const K> k() const { return k_.heads(kv_heads_); }
  [[nodiscard]] heads_view<const V> v() const { return v_.heads(kv_heads_); }

 private:
  readable_matrix<Q> q_;
  readable_matrix<K> k_;
  readable_matrix<V> v_;
  index_t heads_, kv_heads_;
};
template <class A, class B, class C>
attention_matrices(const Eigen::MatrixBase<A>&, const Eigen::MatrixBase<B>&, const Eigen::MatrixBase<C>&,
                   const attention_options&)
    -> attention_matrices<typename A::Scalar, typename B::Scalar, typename C::Scalar>;

/// The memory of a log-sum-exp as rows of one channel, for the overlap checks.
template <class T>
[[nodiscard]] heads_view<T> as_rows(const head_scalars_view<T>& view) noexcept {
  return {view.data, view.tokens, view.heads, 1, view.token_stride, view.head_stride};
}

/// \throws std::invalid_argument when the output does not fit the call or shares memory with an input.
template <class Q, kv_source K, kv_source V, class O, class L>
void check_output(const attention_shape& shape, const heads_view<Q>& q, const K& k, const V& v,
                  const heads_view<O>& out, const head_scalars_view<L>& log_sum_exp) {
  static_assert(!std::is_const_v<O> && !std::is_const_v<L>,
                "posenc: the output of attention must be writable, not a view of const");
  check_view(out, "output");
  require(out.tokens == shape.query_tokens && out.heads == shape.heads && out.head_dim == shape.value_dim,
          "output is ", out.tokens, " x ", out.heads, " x ", out.head_dim, ", needed is ", shape.query_tokens,
          " x ", shape.heads, " x ", shape.value_dim);
  check_disjoint_rows(out, "output");
  require(!overlap(out, q) && !overlaps(out, k) && !overlaps(out, v), "output overlaps q, k or v in memory");
  if (log_sum_exp.data == nullptr) return;
  require(log_sum_exp.tokens == shape.query_tokens && log_sum_exp.heads == shape.heads, "log_sum_exp is ",
          log_sum_exp.tokens, " x ", log_sum_exp.heads, ", needed is ", shape.query_tokens, " x ",
          shape.heads);
  const heads_view<L> rows = as_rows(log_sum_exp);
  check_disjoint_rows(rows, "log_sum_exp");
  require(!overlap(rows, q) && !overlaps(rows, k) && !overlaps(rows, v) && !overlap(rows, out),
          "log_sum_exp overlaps q, k, v or the output in memory");
}

}  // namespace detail
}  // namespace posenc::inline v0_2
