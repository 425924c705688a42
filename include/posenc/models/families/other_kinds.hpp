// SPDX-License-Identifier: MIT
/// \file
/// Model classes of Hugging Face transformers that do not rotate: learned tables, ALiBi, T5's buckets, sinusoids. One
/// row per model_type; facts read off transformers 5.24.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2::detail::huggingface {

/// How positions enter.
enum class other_kind : unsigned char { learned, alibi, mpt, t5, sinusoidal, whisper };

/// Peculiarities of these classes, to be combined.
enum other_trait : std::uint32_t {
  causal_stack = 1u << 0,   ///< a decoder alone; the others are encoders unless "is_decoder" says otherwise
  two_stacks = 1u << 1,     ///< an encoder and a decoder
  decoder_alone = 1u << 2,  ///< keys are named as those of the decoder of an encoder-decoder
  two_reserved = 1u << 3,   ///< the table has two more rows, position p uses row p + 2
  after_padding = 1u << 4,  ///< position p uses row p + pad_token_id + 1
  counts_after_padding =
      1u << 5,                ///< sinusoids of position p + pad_token_id + 1, in fairseq's order of channels
  own_table_width = 1u << 6,  ///< the table is as wide as "embedding_size"
  input_table_width = 1u << 7,  ///< the table is as wide as "input_embedding_size"
  true_width = 1u << 8,         ///< heads divide "true_hidden_size"
  windowed = 1u << 9,           ///< "attention_window", half to each side
  one_kv_head = 1u << 10,       ///< "multi_query", true if absent
  plain_dot = 1u << 11,         ///< σ = 1
  scaled_by_switch = 1u << 12,  ///< scale_attn_weights, scale_attn_by_inverse_layer_idx
  table_per_layer = 1u << 13,   ///< every layer has a bias table of its own
  local_encoder = 1u << 14,     ///< "local_radius" limits the encoder
  alternating = 1u << 15,       ///< "attention_types": [[["global", "local"], 12]] and "window_size"
};

/// A model class that does not rotate. A count of 0 means that config.json has to state it.
struct other_family {
  std::string_view model_type;
  other_kind kind;
  index_t layers = 12;    ///< if absent; of each stack
  index_t heads = 12;     ///< if absent; of each stack
  index_t width = 768;    ///< hidden_size or d_model if absent
  index_t positions = 0;  ///< max_position_embeddings if absent
  std::uint32_t traits = 0;
};

// clang-format off
inline constexpr std::array other_families{
    other_family{"bloom", other_kind::alibi, 2, 8, 64},
    other_family{"mpt", other_kind::mpt, 24, 16, 2048},
    other_family{"t5", other_kind::t5, 6, 8, 512},
    other_family{"mt5", other_kind::t5, 8, 6, 512},
    other_family{"umt5", other_kind::t5, 8, 6, 512, 0, table_per_layer},
    other_family{"longt5", other_kind::t5, 6, 8, 512, 0, local_encoder},
    other_family{"switch_transformers", other_kind::t5, 12, 12, 768},
    other_family{"bert", other_kind::learned, 12, 12, 768, 512},
    other_family{"electra", other_kind::learned, 12, 4, 256, 512, own_table_width},
    other_family{"albert", other_kind::learned, 12, 64, 4096, 512, own_table_width},
    other_family{"distilbert", other_kind::learned, 6, 12, 768, 512},
    other_family{"roberta", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"xlm-roberta", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"camembert", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"xlm-roberta-xl", other_kind::learned, 36, 32, 2560, 514, after_padding},
    other_family{"roberta-prelayernorm", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"xmod", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"data2vec-text", other_kind::learned, 12, 12, 768, 512, after_padding},
    other_family{"longformer", other_kind::learned, 12, 12, 768, 512, after_padding | windowed},
    other_family{"layoutlm", other_kind::learned, 12, 12, 768, 512},
    other_family{"mobilebert", other_kind::learned, 24, 4, 512, 512, true_width},
    other_family{"megatron-bert", other_kind::learned, 24, 16, 1024, 512},
    other_family{"ernie", other_kind::learned, 12, 12, 768, 512},
    other_family{"dpr", other_kind::learned, 12, 12, 768, 512},
    other_family{"markuplm", other_kind::learned, 12, 12, 768, 512},
    other_family{"roc_bert", other_kind::learned, 12, 12, 768, 512},
    other_family{"splinter", other_kind::learned, 12, 12, 768, 512},
    other_family{"rembert", other_kind::learned, 32, 18, 1152, 512, input_table_width},
    other_family{"bert-generation", other_kind::learned, 24, 16, 1024, 512},
    other_family{"squeezebert", other_kind::learned, 12, 12, 768, 512},
    other_family{"clip_text_model", other_kind::learned, 12, 8, 512, 77, causal_stack},
    other_family{"openai-gpt", other_kind::learned, 12, 12, 768, 512, causal_stack},
    other_family{"gpt2", other_kind::learned, 12, 12, 768, 1024, causal_stack | scaled_by_switch},
    other_family{"gpt_bigcode", other_kind::learned, 12, 12, 768, 1024, causal_stack | one_kv_head | scaled_by_switch},
    other_family{"gpt_neo", other_kind::learned, 24, 16, 2048, 2048, causal_stack | plain_dot | alternating},
    other_family{"opt", other_kind::learned, 12, 12, 768, 2048, causal_stack | two_reserved},
    other_family{"biogpt", other_kind::learned, 24, 16, 1024, 1024, causal_stack | two_reserved},
    other_family{"bart", other_kind::learned, 12, 16, 1024, 1024, two_stacks | two_reserved},
    other_family{"mbart", other_kind::learned, 12, 16, 1024, 1024, two_stacks | two_reserved},
    other_family{"mvp", other_kind::learned, 12, 16, 1024, 1024, two_stacks | two_reserved},
    other_family{"plbart", other_kind::learned, 6, 12, 768, 1024, two_stacks | two_reserved},
    other_family{"blenderbot", other_kind::learned, 0, 32, 2560, 128, two_stacks},
    other_family{"blenderbot-small", other_kind::learned, 8, 16, 512, 512, two_stacks},
    other_family{"led", other_kind::learned, 12, 16, 1024, 0, two_stacks | windowed},
    other_family{"trocr", other_kind::learned, 12, 16, 1024, 512, causal_stack | decoder_alone | two_reserved},
    other_family{"whisper", other_kind::whisper, 4, 6, 384},
    other_family{"marian", other_kind::sinusoidal, 12, 16, 1024, 1024, two_stacks},
    other_family{"pegasus", other_kind::sinusoidal, 12, 16, 1024, 1024, two_stacks},
    other_family{"m2m_100", other_kind::sinusoidal, 12, 16, 1024, 1024, two_stacks | counts_after_padding},
    other_family{"nllb-moe", other_kind::sinusoidal, 12, 16, 1024, 1024, two_stacks | counts_after_padding},
    other_family{"fsmt", other_kind::sinusoidal, 12, 16, 1024, 1024, two_stacks | counts_after_padding},
    other_family{"speech_to_text", other_kind::sinusoidal, 12, 4, 256, 0, two_stacks | counts_after_padding},
    other_family{"xglm", other_kind::sinusoidal, 24, 16, 1024, 2048, decoder_alone | counts_after_padding},
};
// clang-format on

/// The family of a model_type; nullptr if it is none of these.
[[nodiscard]] constexpr const other_family* find_other_family(std::string_view model_type) noexcept {
  for (const other_family& one : other_families)
    if (one.model_type == model_type) return &one;
  return nullptr;
}

}  // namespace posenc::inline v0_2::detail::huggingface
