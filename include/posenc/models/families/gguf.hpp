// SPDX-License-Identifier: MIT
/// \file
/// What each architecture of GGUF files fixes in code. Facts read off llama.cpp (2026-11) and gguf 0.19.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <posenc/positions.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2::detail::gguf {

/// Peculiarities of an architecture, to be combined.
enum trait : std::uint32_t {
  encoder = 1u << 0,           ///< sees both ways unless "attention.causal" says otherwise
  window_both_ways = 1u << 1,  ///< the window reaches half its tokens to either side
  window_unused = 1u << 2,     ///< llama.cpp does not use the window that these files may state
  chunks =
      1u << 3,  ///< llama4: layers that rotate see their chunk of 8192, each fourth sees all and does not
  full_starts = 1u << 4,         ///< the first layer of a period is full, not the last
  recurrent_but_last = 1u << 5,  ///< the last of each "full_attention_interval" has attention
  local_only = 1u << 6,          ///< only local layers rotate
  local_if_window = 1u << 7,     ///< only local layers rotate, where there is a window
  no_rope_ends = 1u << 8,        ///< each fourth layer does not rotate
  rotates_by_key = 1u << 9,      ///< "rope.scaling.finetuned" says whether it rotates
  learned_sinks = 1u << 10,      ///< one learned logit per head joins each softmax
  ramp_not_rounded = 1u << 11,   ///< the ends of YaRN's ramp, by the authors
  ministral_scale = 1u << 12,    ///< "attention.temperature_scale" by position on all layers
  unit_scale = 1u << 13,         ///< σ = 1
  output_scale = 1u << 14,       ///< σ = "attention.output_scale"
  latent = 1u << 15,             ///< the tail of a head rotates
  log_multiplier =
      1u << 16,  ///< "rope.scaling.yarn_log_multiplier" is 0.1·mscale_all_dim and scales the softmax
  global_scaling = 1u << 17,      ///< scalings are for global layers
  local_base = 1u << 18,          ///< local layers rotate by a base of 10000
  axes_in_turn = 1u << 19,        ///< multi-axis rope whose axes alternate
  alibi = 1u << 20,               ///< bias_max 8 if absent
  alibi_large = 1u << 21,         ///< ALiBi of bias_max 8 in place of rotation in the model of `large_layers`
  buckets = 1u << 22,             ///< T5's bias
  no_decoder = 1u << 23,          ///< the encoder of T5 alone
  no_attention = 1u << 24,        ///< recurrent throughout
  positions_if_given = 1u << 25,  ///< no positions where the file has neither a table nor a bias
};

/// One architecture. The pairing is that of the weights in the file; none: it does not rotate.
struct architecture {
  std::string_view name;
  std::optional<posenc::pairing> pairing;
  std::uint32_t traits = 0;
  index_t window = 0;  ///< "attention.sliding_window" if absent; 0: none
  index_t period = 0;  ///< every so many layers one is global; 0: all local where there is a window
  double softcap = 0;  ///< "attn_logit_softcapping" if absent, for architectures that have one
  index_t large_layers =
      0;  ///< layers of the size that differs (Gemma of 27 B: σ by embedding_length; Baichuan of 13 B)
};

// clang-format off
inline constexpr std::array architectures{
    architecture{.name = "llama", .pairing = pairing::interleaved, .traits = window_unused},
    architecture{.name = "llada", .pairing = pairing::interleaved},
    architecture{.name = "llama4", .pairing = pairing::interleaved, .traits = chunks, .window = 8192, .period = 4},
    architecture{.name = "deci", .pairing = pairing::interleaved},
    architecture{.name = "baichuan", .pairing = pairing::interleaved, .traits = alibi_large, .large_layers = 40},
    architecture{.name = "internlm2", .pairing = pairing::interleaved},
    architecture{.name = "minicpm", .pairing = pairing::interleaved},
    architecture{.name = "xverse", .pairing = pairing::interleaved},
    architecture{.name = "command-r", .pairing = pairing::interleaved},
    architecture{.name = "cohere2", .pairing = pairing::interleaved, .traits = local_only, .period = 4},
    architecture{.name = "olmo", .pairing = pairing::interleaved},
    architecture{.name = "arctic", .pairing = pairing::interleaved},
    architecture{.name = "deepseek", .pairing = pairing::interleaved},
    architecture{.name = "deepseek2", .pairing = pairing::interleaved,
                .traits = ministral_scale | latent | log_multiplier},
    architecture{.name = "deepseek2-ocr", .pairing = pairing::interleaved},
    architecture{.name = "plm", .pairing = pairing::interleaved, .traits = latent},
    architecture{.name = "chatglm", .pairing = pairing::interleaved},
    architecture{.name = "glm4", .pairing = pairing::interleaved},
    architecture{.name = "granite", .pairing = pairing::interleaved, .traits = rotates_by_key},
    architecture{.name = "granitemoe", .pairing = pairing::interleaved, .traits = rotates_by_key},
    architecture{.name = "granitehybrid", .pairing = pairing::interleaved, .traits = rotates_by_key},
    architecture{.name = "chameleon", .pairing = pairing::interleaved},
    architecture{.name = "bailingmoe", .pairing = pairing::interleaved},
    architecture{.name = "neo-bert", .pairing = pairing::interleaved, .traits = encoder},
    architecture{.name = "smollm3", .pairing = pairing::interleaved, .traits = no_rope_ends},
    architecture{.name = "arcee", .pairing = pairing::interleaved},
    architecture{.name = "ernie4_5", .pairing = pairing::interleaved},
    architecture{.name = "ernie4_5-moe", .pairing = pairing::interleaved},
    architecture{.name = "mistral3", .pairing = pairing::interleaved, .traits = window_unused | ministral_scale},
    architecture{.name = "mistral4", .pairing = pairing::interleaved,
                .traits = ministral_scale | latent | log_multiplier},
    architecture{.name = "llama-embed", .pairing = pairing::interleaved},
    architecture{.name = "maincoder", .pairing = pairing::interleaved},
    architecture{.name = "falcon", .pairing = pairing::half_split},
    architecture{.name = "falcon-h1", .pairing = pairing::half_split},
    architecture{.name = "grok", .pairing = pairing::half_split, .traits = output_scale, .softcap = 30},
    architecture{.name = "dbrx", .pairing = pairing::half_split},
    architecture{.name = "jina-bert-v3", .pairing = pairing::half_split, .traits = encoder},
    architecture{.name = "modern-bert", .pairing = pairing::half_split,
                .traits = encoder | window_both_ways | full_starts | global_scaling | local_base, .period = 3},
    architecture{.name = "nomic-bert", .pairing = pairing::half_split, .traits = encoder},
    architecture{.name = "nomic-bert-moe", .pairing = pairing::half_split, .traits = encoder},
    architecture{.name = "eurobert", .pairing = pairing::half_split, .traits = encoder},
    architecture{.name = "stablelm", .pairing = pairing::half_split},
    architecture{.name = "bitnet", .pairing = pairing::half_split},
    architecture{.name = "qwen", .pairing = pairing::half_split},
    architecture{.name = "qwen2", .pairing = pairing::half_split, .traits = window_unused},
    architecture{.name = "dream", .pairing = pairing::half_split},
    architecture{.name = "qwen2moe", .pairing = pairing::half_split, .traits = window_unused},
    architecture{.name = "qwen3", .pairing = pairing::half_split},
    architecture{.name = "qwen3moe", .pairing = pairing::half_split},
    architecture{.name = "llada-moe", .pairing = pairing::half_split},
    architecture{.name = "rnd1", .pairing = pairing::half_split},
    architecture{.name = "olmo2", .pairing = pairing::half_split, .traits = global_scaling, .period = 4},
    architecture{.name = "olmoe", .pairing = pairing::half_split},
    architecture{.name = "phi2", .pairing = pairing::half_split},
    architecture{.name = "phi3", .pairing = pairing::half_split, .traits = window_unused},
    architecture{.name = "phimoe", .pairing = pairing::half_split},
    architecture{.name = "plamo", .pairing = pairing::half_split},
    architecture{.name = "plamo2", .pairing = pairing::half_split},
    architecture{.name = "plamo3", .pairing = pairing::half_split},
    architecture{.name = "gemma", .pairing = pairing::half_split},
    architecture{.name = "gemma2", .pairing = pairing::half_split, .window = 4096, .period = 2, .softcap = 50,
                .large_layers = 46},
    architecture{.name = "gemma3", .pairing = pairing::half_split, .traits = global_scaling | local_base,
                .period = 6, .large_layers = 62},
    architecture{.name = "gemma3n", .pairing = pairing::half_split,
                .traits = unit_scale | global_scaling | local_base},
    architecture{.name = "gemma4", .pairing = pairing::half_split,
                .traits = unit_scale | global_scaling | local_base},
    architecture{.name = "gemma-embedding", .pairing = pairing::half_split,
                .traits = encoder | window_both_ways | global_scaling | local_base, .period = 6},
    architecture{.name = "starcoder2", .pairing = pairing::half_split},
    architecture{.name = "openelm", .pairing = pairing::half_split},
    architecture{.name = "gptneox", .pairing = pairing::half_split},
    architecture{.name = "codeshell", .pairing = pairing::half_split},
    architecture{.name = "orion", .pairing = pairing::half_split},
    architecture{.name = "nemotron", .pairing = pairing::half_split},
    architecture{.name = "exaone", .pairing = pairing::half_split},
    architecture{.name = "exaone4", .pairing = pairing::half_split, .traits = local_if_window, .window = 4096,
                .period = 4},
    architecture{.name = "minicpm3", .pairing = pairing::half_split, .traits = latent},
    architecture{.name = "bailingmoe2", .pairing = pairing::half_split},
    architecture{.name = "dots1", .pairing = pairing::half_split},
    architecture{.name = "hunyuan-moe", .pairing = pairing::half_split},
    architecture{.name = "gpt-oss", .pairing = pairing::half_split,
                .traits = learned_sinks | ramp_not_rounded, .period = 2},
    architecture{.name = "hunyuan-dense", .pairing = pairing::half_split},
    architecture{.name = "lfm2", .pairing = pairing::half_split},
    architecture{.name = "lfm2moe", .pairing = pairing::half_split},
    architecture{.name = "glm4moe", .pairing = pairing::half_split},
    architecture{.name = "seed_oss", .pairing = pairing::half_split},
    architecture{.name = "grovemoe", .pairing = pairing::half_split},
    architecture{.name = "apertus", .pairing = pairing::half_split},
    architecture{.name = "minimax-m2", .pairing = pairing::half_split},
    architecture{.name = "cogvlm", .pairing = pairing::half_split},
    architecture{.name = "pangu-embedded", .pairing = pairing::half_split},
    architecture{.name = "qwen3next", .pairing = pairing::half_split, .traits = recurrent_but_last},
    architecture{.name = "qwen2vl", .pairing = pairing::half_split},
    architecture{.name = "paddleocr", .pairing = pairing::half_split},
    architecture{.name = "qwen3vl", .pairing = pairing::half_split, .traits = axes_in_turn},
    architecture{.name = "qwen3vlmoe", .pairing = pairing::half_split, .traits = axes_in_turn},
    architecture{.name = "qwen35", .pairing = pairing::half_split, .traits = recurrent_but_last | axes_in_turn},
    architecture{.name = "qwen35moe", .pairing = pairing::half_split, .traits = recurrent_but_last | axes_in_turn},
    architecture{.name = "jais2", .pairing = pairing::half_split},
    architecture{.name = "bloom", .pairing = std::nullopt, .traits = alibi},
    architecture{.name = "mpt", .pairing = std::nullopt, .traits = positions_if_given},
    architecture{.name = "refact", .pairing = std::nullopt, .traits = alibi},
    architecture{.name = "jina-bert-v2", .pairing = std::nullopt, .traits = encoder | alibi},
    architecture{.name = "jais", .pairing = std::nullopt, .traits = positions_if_given},
    architecture{.name = "t5", .pairing = std::nullopt, .traits = buckets},
    architecture{.name = "t5encoder", .pairing = std::nullopt, .traits = buckets | no_decoder},
    architecture{.name = "gpt2", .pairing = std::nullopt},
    architecture{.name = "starcoder", .pairing = std::nullopt},
    architecture{.name = "bert", .pairing = std::nullopt, .traits = encoder},
    architecture{.name = "mamba", .pairing = std::nullopt, .traits = no_attention},
    architecture{.name = "mamba2", .pairing = std::nullopt, .traits = no_attention},
    architecture{.name = "rwkv6", .pairing = std::nullopt, .traits = no_attention},
};
// clang-format on

/// The row of an architecture; nullptr if there is none.
[[nodiscard]] constexpr const architecture* find_architecture(std::string_view name) noexcept {
  for (const architecture& one : architectures)
    if (one.name == name) return &one;
  return nullptr;
}

/// Every known architecture.
[[nodiscard]] inline std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const architecture& one : architectures) names.push_back(one.name);
  return names;
}

}  // namespace posenc::inline v0_2::detail::gguf
