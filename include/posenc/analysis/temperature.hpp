// SPDX-License-Identifier: MIT
/// \file
/// The temperature of attention against length: how many keys a query looks at as there are more of them.
///
/// A model of content stands in for a trained head of d channels. The query has the same strength in every pair (channels of
/// ±1), keys are normal random vectors g that agree with it in a part of their length:
///
///     k = affinity·q + √(1 − affinity²)·g,    s = spread/√d·(R q)·(R k) + bias
///
/// so that without an encoding and with affinity 0 scores are normal with the standard deviation `spread` (1 to 4 in trained
/// heads), and their entropy is ln n − spread²/2 until the few largest take over. A rotation then changes nothing but by its
/// attention factor: rotated normal vectors are normal. With an affinity near keys gain what score_at_distance says.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <posenc/analysis/codes.hpp>
#include <posenc/analysis/repetition.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2 {

/// The entropy of softmax(scores), in nats; e^entropy keys with equal weights have the same.
[[nodiscard]] inline double softmax_entropy(std::span<const double> scores) {
  if (scores.empty()) return 0;
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0, weighted = 0;
  for (const double score : scores) {
    const double weight = std::exp(score - largest);
    sum += weight;
    weighted += weight * (score - largest);
  }
  return std::log(sum) - weighted / sum;
}

/// What the queries and keys of a head look like.
struct content_model {
  double spread = 2;       ///< standard deviation of scores without an encoding, > 0
  double affinity = 0.25;  ///< the part of each key that agrees with the query, 0 to 1
  std::uint64_t seed = 1;  ///< of the random keys
};

/// Entropy for one length.
struct entropy_at {
  position length = 0;  ///< in tokens
  double entropy = 0;   ///< nats
  /// As many keys, equally weighted, have this entropy.
  [[nodiscard]] double keys() const noexcept { return std::exp(entropy); }
};

namespace detail {

inline void check_content(const content_model& content, std::span<const position> lengths) {
  require(is_finite(content.spread) && content.spread > 0, "attention_entropy: a spread of ", content.spread);
  require(content.affinity >= 0 && content.affinity <= 1, "attention_entropy: an affinity of ",
          content.affinity, " is not between 0 and 1");
  require(!lengths.empty(), "attention_entropy: no length");
  for (const position length : lengths) require(length >= 1, "attention_entropy: a length of ", length);
}

}  // namespace detail

/// Entropy against length for a rotation whose scores depend on the offset alone: the query stands last, keys at distances
/// 0 … length−1. One random number for each key and 2 ns for each key and pair.
/// \throws std::invalid_argument when the content model or a length means nothing, or as each_offset_distance does.
[[nodiscard]] inline std::vector<entropy_at> attention_entropy(const rotation_codes& codes,
                                                               std::span<const position> lengths,
                                                               const content_model& content = {}) {
  detail::check_content(content, lengths);
  const rotation& by = codes.by();
  const double m2 = by.attention_factor * by.attention_factor, d = static_cast<double>(by.head_dim);
  const double turning = static_cast<double>(by.rotary_dim) / d, agreeing = content.affinity * std::sqrt(d);
  const double apart = std::sqrt(1 - content.affinity * content.affinity);
  // The random part of a score: its rotary channels carry m², the others do not.
  const double random_part = apart * std::sqrt(turning * m2 * m2 + (1 - turning));
  const position longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<double> scores;
  scores.reserve(static_cast<std::size_t>(longest));
  std::mt19937_64 bits(content.seed);
  std::normal_distribution<double> normal;
  each_offset_distance(codes, 0, longest - 1, [&](position, double distance) {
    // |c(Δ) − c(0)|² = 2·m²·(1 − mean cos), so this is m²·(mean cos) over the rotary channels.
    const double agreement = turning * (m2 - distance * distance / 2) + (1 - turning);
    scores.push_back(content.spread * (agreeing * agreement + random_part * normal(bits)));
  });
  std::vector<entropy_at> result;
  for (const position length : lengths)
    result.push_back({length, softmax_entropy(std::span(scores).first(static_cast<std::size_t>(length)))});
  return result;
}

/// The same through the doors rotate, bias and scale of any encoding: head `head`, with whole random vectors. Each length puts
/// the query at length − 1 and the keys before it. O(length·head_dim) for each length.
/// \throws as above.
template <class E>
[[nodiscard]] std::vector<entropy_at> attention_entropy(const E& encoding, index_t head_dim,
                                                        std::span<const position> lengths,
                                                        const content_model& content = {}, int head = 0) {
  detail::check_content(content, lengths);
  detail::require(head_dim >= 1, "attention_entropy: head_dim ", head_dim);
  const auto width = static_cast<std::size_t>(head_dim);
  const double d = static_cast<double>(head_dim), apart = std::sqrt(1 - content.affinity * content.affinity);
  std::vector<entropy_at> result;
  for (const position length : lengths) {
    std::mt19937_64 bits(content.seed);
    std::normal_distribution<double> normal;
    std::vector<double> query(width), turned(width), key(width), scores;
    for (double& channel : query) channel = (bits() >> 63) != 0 ? 1 : -1;
    turned = query;
    detail::rotate_query(encoding, std::span<double>(turned), length - 1);
    double scale = content.spread / std::sqrt(d);
    if constexpr (scales<E>) scale *= static_cast<double>(detail::scale_of(encoding, head, length - 1));
    for (position distance = 0; distance < length; ++distance) {
      for (std::size_t c = 0; c < width; ++c) key[c] = content.affinity * query[c] + apart * normal(bits);
      detail::rotate_key(encoding, std::span<double>(key), length - 1 - distance);
      double score = 0;
      for (std::size_t c = 0; c < width; ++c) score += turned[c] * key[c];
      score *= scale;
      if constexpr (biases<E>)
        score += detail::bias_as<double>(encoding, head, length - 1, length - 1 - distance);
      scores.push_back(score);
    }
    result.push_back({length, softmax_entropy(scores)});
  }
  return result;
}

}  // namespace posenc::inline v0_2
