// SPDX-License-Identifier: MIT
/// \file
/// Which two channels of a head rotate together. Mixing up the two conventions gives fluent nonsense, so
/// nothing in posenc has a default for it: the pairing comes with the weights.
#pragma once

#include <utility>

#include <posenc/positions.hpp>
#include <posenc/required.hpp>

namespace posenc::inline v0_2 {

/// The two ways in which models pair the `rotary_dim` rotary channels of a head.
enum class pairing : unsigned char {
  half_split,  ///< pair p is (p, p + rotary_dim/2): GPT-NeoX, "rotate_half", Hugging Face llama, mistral, qwen,
               ///< gemma, phi
  interleaved,  ///< pair p is (2p, 2p + 1): GPT-J, GLM, Cohere, Llama-4, DeepSeek, and llama weights inside
                ///< GGUF files
};

/// The name of a pairing as this library writes it.
[[nodiscard]] constexpr const char* name_of(posenc::pairing pairing) noexcept {
  return pairing == posenc::pairing::half_split ? "half_split" : "interleaved";
}

/// The two channels of pair `pair` among `rotary_dim` rotary channels, counted from the first rotary channel.
[[nodiscard]] constexpr std::pair<index_t, index_t> channels_of_pair(posenc::pairing pairing,
                                                                     index_t rotary_dim,
                                                                     index_t pair) noexcept {
  if (pairing == posenc::pairing::half_split) return {pair, pair + rotary_dim / 2};
  return {2 * pair, 2 * pair + 1};
}

}  // namespace posenc::inline v0_2
