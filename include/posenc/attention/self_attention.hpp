// SPDX-License-Identifier: MIT
/// \file
/// One self-attention layer, so that encodings at the door *embed* take part too: they act before the
/// projections.
///
///     x̃_i = x_i + p_i,   q = x̃·W_q,   k = x̃·W_k,   v = x̃·W_v,   h = attention(q, k, v)·W_o
///
/// Vaswani et al. 2017, arXiv:1706.03762. No layer norm, residual or MLP.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// reference::attention_with_log_sum_exp as a function object: the attention that is used where none is
/// passed.
struct reference_attention {
  /// Reference::attention of the same arguments.
  template <class Q, class K, class V, class E>
  [[nodiscard]] auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                                const attention_options& options) const {
    return reference::attention_with_log_sum_exp(q, k, v, encoding, options);
  }
};

/// Adds the positions to a matrix of tokens × model_dim, in place; does nothing for an encoding without the
/// door *embed*.
/// \param where one position per row
/// \throws std::out_of_range when the encoding has no vector for a position; nothing is written then
template <class S, class E>
void embed_rows(row_major_matrix<S>& x, const E& encoding, const positions& where) {
  const positions rows = where.resolve(x.rows(), "token");
  detail::with_concrete(encoding, [&](const auto& one) {
    using concrete = std::remove_cvref_t<decltype(one)>;
    static_assert(detail::check_encoding<concrete, detail::working_t<S>>() &&
                  detail::check_embedding<concrete, S>());
    if constexpr (embeds<concrete, S>) {
      row_major_matrix<S> embedded = x;  // so that a position without a vector leaves x as it was
      for (index_t i = 0; i < x.rows(); ++i)
        one.embed(std::span<S>(embedded.row(i).data(), static_cast<std::size_t>(x.cols())), rows[i]);
      x = std::move(embedded);
    }
  });
}

/// The weights of the layer. x·W: the transpose of what torch.nn.Linear stores.
///
///     posenc::self_attention<float> layer{w_q, w_k, w_v};
///     Eigen::MatrixXf h = layer(x, rope, {.heads = 4, .mask = posenc::causal});
template <class S>
struct self_attention {
  row_major_matrix<S> query;                    ///< W_q: model_dim × (heads·head_dim)
  row_major_matrix<S> key;                      ///< W_k: model_dim × (kv_heads·head_dim)
  row_major_matrix<S> value;                    ///< W_v: model_dim × (kv_heads·value_dim)
  std::optional<row_major_matrix<S>> output{};  ///< W_o: (heads·value_dim) × anything; none leaves it out

  /// The hidden states, tokens × (columns of W_o, or heads·value_dim).
  /// \param x token embeddings, tokens × model_dim, of scalar S
  /// \param options the tokens stand at options.key_positions (0…n−1 if not given); the queries are the same
  /// tokens, so query_positions must not be given
  /// \param attention what does the attention; called like reference_attention, for instance with fused
  /// kernels inside
  /// \throws std::invalid_argument, std::out_of_range
  template <class X, class E, class Attention = reference_attention>
  [[nodiscard]] row_major_matrix<S> operator()(const Eigen::MatrixBase<X>& x, const E& encoding,
                                               const attention_options& options = {},
                                               const Attention& attention = {}) const {
    const index_t kv_heads = options.kv_heads.value_or(options.heads);
    const index_t channels = kv_heads > 0 ? value.cols() / kv_heads * options.heads : 0;
    detail::require(!output || output->rows() == channels, "self_attention: W_o has ",
                    output ? output->rows() : 0, " rows for ", channels, " channels");
    attention_result<S> attended = attend(x, encoding, options, attention);
    if (!output) return std::move(attended.output);
    return attended.output * *output;
  }

  /// The same before W_o, with the log-sum-exp of every row.
  template <class X, class E, class Attention = reference_attention>
  [[nodiscard]] attention_result<S> attend(const Eigen::MatrixBase<X>& x, const E& encoding,
                                           const attention_options& options = {},
                                           const Attention& attention = {}) const {
    detail::require(x.cols() == query.rows() && x.cols() == key.rows() && x.cols() == value.rows(),
                    "self_attention: tokens of ", x.cols(), " channels meet weights of ", query.rows(), ", ",
                    key.rows(), " and ", value.rows(), " rows");
    detail::require(!options.query_positions.given(),
                    "self_attention: queries are the same tokens as keys; give key_positions only");
    attention_options told = options;
    told.is_embedded = true;
    if (!told.key_positions.given()) told.key_positions = positions::from(0);
    told.query_positions = told.key_positions;
    row_major_matrix<S> embedded = x;
    embed_rows(embedded, encoding, told.key_positions);
    const row_major_matrix<S> q = embedded * query, k = embedded * key, v = embedded * value;
    return attention(q, k, v, encoding, told);
  }
};

}  // namespace posenc::inline v0_2
