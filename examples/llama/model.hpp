// SPDX-License-Identifier: MIT
/// \file
/// A Llama: RMS norms, rotary attention over a cache of unrotated keys, gated feed-forward.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/errors.hpp>
#include <posenc/models/description.hpp>
#include <posenc/rope/scaling.hpp>

#if __has_include(<posenc/fused.hpp>) && __has_include(<hwy/highway.h>)
#include <posenc/fused.hpp>
#define LLAMA_FUSED 1
#endif

#include "cache.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace llama {

/// What a layer of weights makes of each row of x.
[[nodiscard]] inline matrix product(const matrix& x, const matrix& weights) {
  matrix result(x.rows(), weights.rows());
  if (x.rows() == 1)  // Eigen's product with a vector reads the weights once, as fast as memory gives them
    result.row(0).transpose().noalias() = weights * x.row(0).transpose();
  else
    result.noalias() = x * weights.transpose();
  return result;
}

enum class attention_path : unsigned char { reference, fused };
enum class wanted_logits : unsigned char { none, last, all };

class model {
 public:
  model(weights w, attention_path path, int threads) : w_(std::move(w)), threads_(threads), rope_(make({})) {
    use_attention(path);
  }

  [[nodiscard]] const posenc::rope_description& rope_of_file() const {
    return posenc::rope_encoding(w_.positions).rope();
  }
  [[nodiscard]] const weights& parameters() const noexcept { return w_; }

  /// From the next token on; what is cached stays as it is. The file's own scaling when nothing is given.
  void use_scaling(const std::optional<posenc::any_scaling>& scaling) { rope_ = make(scaling); }

  /// From the next token on.
  void use_attention(attention_path path) {
#if !defined(LLAMA_FUSED)
    posenc::detail::require(path == attention_path::reference,
                            "built without Google Highway: --attention reference only");
#endif
    path_ = path;
  }

  /// What caches are made from here on. \throws std::invalid_argument where heads do not fit the kind
  void use_cache(cache_kind kind) {
    (void)kv_rows(kind, w_.kv_heads, w_.width / w_.heads);
    cache_kind_ = kind;
  }

  [[nodiscard]] kv_cache empty_cache() const {
    const std::vector<kv_rows> none(w_.layers.size(), kv_rows(cache_kind_, w_.kv_heads, w_.width / w_.heads));
    return {.k = none, .v = none, .positions = {}};
  }

  /// Runs tokens that follow on those of the cache, and adds them to it.
  /// \returns logits, a row per token wanted
  [[nodiscard]] matrix evaluate(std::span<const token> tokens, kv_cache& cache, wanted_logits wanted) {
    const index_t count = static_cast<index_t>(tokens.size()), before = cache.size();
    matrix x(count, w_.width);
    for (index_t n = 0; n < count; ++n) x.row(n) = w_.embedding.row(tokens[static_cast<std::size_t>(n)]);
    last_attention_.resize(static_cast<index_t>(w_.layers.size()), w_.width);
    cache.reserve(count);
    const posenc::position first = before == 0 ? 0 : cache.positions.back() + 1;
    for (index_t n = 0; n < count; ++n) cache.positions.push_back(first + n);
    std::vector<posenc::position> stands(
        static_cast<std::size_t>(cache.dead_rows));  // of every row in memory
    stands.insert(stands.end(), cache.positions.begin(), cache.positions.end());

    for (std::size_t l = 0; l < w_.layers.size(); ++l) {
      const layer& layer = w_.layers[l];
      const matrix normed = norm(x, layer.attention_norm);
      cache.k[l].append(product(normed, layer.k));
      cache.v[l].append(product(normed, layer.v));
      const matrix attended = attend(product(normed, layer.q), cache, stands, l);
      last_attention_.row(static_cast<index_t>(l)) = attended.bottomRows(1);
      x += product(attended, layer.o);
      const matrix inner = norm(x, layer.feed_forward_norm);
      matrix gate = product(inner, layer.gate);
      gate.array() = gate.array() / (1 + (-gate.array()).exp()) * product(inner, layer.up).array();
      x += product(gate, layer.down);
    }
    if (wanted == wanted_logits::none) return {};
    const matrix& output = w_.output.size() > 0 ? w_.output : w_.embedding;
    const matrix last = norm(wanted == wanted_logits::all ? x : matrix(x.bottomRows(1)), w_.output_norm);
    return product(last, output);
  }

  /// What attention gave for the last token that was evaluated, a row per layer.
  [[nodiscard]] const matrix& last_attention() const noexcept { return last_attention_; }

  /// Seconds spent in attention so far.
  [[nodiscard]] double attention_seconds() const noexcept { return attention_seconds_; }

 private:
  [[nodiscard]] posenc::rope<float> make(const std::optional<posenc::any_scaling>& scaling) const {
    posenc::rope_description description = rope_of_file();
    if (scaling) description.scaling = *scaling;
    return posenc::make_rope<float>(description, description.context_length);
  }

  [[nodiscard]] matrix norm(const matrix& x, const row_vector& weight) const {
    const auto mean_square = x.rowwise().squaredNorm().array() / static_cast<float>(x.cols());
    const Eigen::VectorXf factor = (mean_square + w_.norm_epsilon).rsqrt();
    return factor.asDiagonal() * x * weight.asDiagonal();
  }

  [[nodiscard]] matrix attend(const matrix& q, const kv_cache& cache,
                              const std::vector<posenc::position>& stands, std::size_t l) {
    const auto start = std::chrono::steady_clock::now();
    const posenc::attention_options options{
        .heads = w_.heads,
        .kv_heads = w_.kv_heads,
        .mask = posenc::causal,
        .key_positions = posenc::positions::each(stands),
        .valid_keys = posenc::row_range{cache.dead_rows, cache.dead_rows + cache.size()}};
    const auto queries = posenc::as_heads(q, w_.heads);
    matrix out;
    cache.k[l].with_source([&](const auto& k) {
      cache.v[l].with_source([&](const auto& v) {
        if constexpr (std::is_same_v<decltype(k), decltype(v)>) {  // a cache is of one kind
          if (path_ == attention_path::reference) {
            out = posenc::reference::attention(queries, k, v, rope_, options);
          } else {
#if defined(LLAMA_FUSED)
            // A thousand scores per head take some 25 µs: less is not worth waking threads for.
            const bool is_short = q.rows() * cache.size() < 1024;
            out = posenc::fused::attention(queries, k, v, rope_, options,
                                           posenc::fused::openmp_executor(is_short ? 1 : threads_));
#endif
          }
        }
      });
    });
    attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return out;
  }

  weights w_;
  attention_path path_ = attention_path::reference;
  cache_kind cache_kind_ = cache_kind::plain;
  [[maybe_unused]] int threads_;
  posenc::rope<float> rope_;
  matrix last_attention_;
  double attention_seconds_ = 0;
};

/// The kinds of cache that the heads of a model fit.
[[nodiscard]] inline std::vector<cache_kind> kinds_that_fit(const model& m) {
  std::vector<cache_kind> kinds{cache_kind::plain, cache_kind::paged};
  if (m.parameters().width / m.parameters().heads % posenc::q8_0_channels == 0)
    kinds.push_back(cache_kind::q8_0);
  return kinds;
}

}  // namespace llama
