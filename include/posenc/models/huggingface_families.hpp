// SPDX-License-Identifier: MIT
/// \file
/// What each model_type of Hugging Face transformers fixes in code and a config.json therefore does not say:
/// pairing, default base and widths, which layers are local, what scales the scores. Facts read off the model
/// classes of transformers 5.24.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <posenc/positions.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2::detail::huggingface {

/// How a model class decides which layers are local when config.json has no "layer_types".
enum class layer_rule : unsigned char {
  all_full,            ///< no windows at all
  all_in_window,       ///< every layer, where "sliding_window" is given
  window_if_used,      ///< the same where "use_sliding_window" is true
  qwen2,               ///< from layer "max_window_layers" on where "use_sliding_window" is true
  qwen2_moe,           ///< even layers below "max_window_layers" where "use_sliding_window" is true
  full_ends_period,    ///< the last of each period is global: local where (i + 1) mod period ≠ 0
  full_starts_period,  ///< the first of each period is global: local where i mod period ≠ 0
  rope_in_chunks,      ///< llama4: layers that rotate see their chunk, the others everything
  linear_then_full,    ///< the last of each period has attention, the others are recurrent
};

/// Peculiarities of a model class, to be combined.
enum trait : unsigned {
  honours_partial = 1u << 0,   ///< partial_rotary_factor counts for the default rope type too
  latent = 1u << 1,            ///< multi-head latent attention: the tail of the head turns
  axes_chunked = 1u << 2,      ///< multi-axis rope in consecutive sections
  axes_interleaved = 1u << 3,  ///< multi-axis rope with the axes taking turns
  phi3_names = 1u << 4,        ///< "su" and "yarn" mean longrope
  query_scalar = 1u << 5,      ///< σ = query_pre_attn_scalar^(−1/2), 256 if absent
  unit_scale = 1u << 6,        ///< σ = 1
  multiplier = 1u << 7,        ///< σ = attention_multiplier, 1 if absent
  no_rope_list = 1u << 8,      ///< "no_rope_layers": 0 marks a layer without rotation
  local_only = 1u << 9,        ///< only local layers turn
  local_if_window = 1u << 10,  ///< only local layers turn, where there is a window
  global_scaling = 1u << 11,   ///< "rope_scaling" is for global layers; local ones have a base of their own
  two_bases = 1u << 12,     ///< global and local layers have bases of their own, "rope_scaling" is for both
  llama4_scale = 1u << 13,  ///< attn_temperature_tuning on layers without rotation
  ministral_scale = 1u << 14,   ///< llama_4_scaling_beta
  bidirectional = 1u << 15,     ///< an encoder; the window reaches both ways
  absolute_width = 1u << 16,    ///< "rotary_dim" states the rotary width in channels
  alpha = 1u << 17,             ///< type "dynamic" with "alpha" is a fixed theta scaling
  stated_pairing = 1u << 18,    ///< "rope_interleave" says which pairing, interleaved if absent
  sinks = 1u << 19,             ///< one learned logit per head joins each softmax
  mscales = 1u << 20,           ///< longrope with short_mscale and long_mscale
  softcap = 1u << 21,           ///< attn_logit_softcapping, 50 if absent
  softcap_if_given = 1u << 22,  ///< attn_logit_softcapping
  global_head = 1u << 23,       ///< global layers have heads of global_head_dim, and the last layer is global
};

/// A model class that rotates. A width or count of 0 means that config.json has to state it.
struct family {
  std::string_view model_type;
  posenc::pairing pairing;
  index_t layers = 32;
  double base = 10'000;
  unsigned traits = 0;
  index_t head_dim = 0;  ///< if absent; else hidden_size / num_attention_heads
  double partial = 1;    ///< partial_rotary_factor if absent
  layer_rule rule = layer_rule::all_full;
  index_t period = 0;
  index_t window = 0;      ///< "sliding_window" if absent; 0: none
  double local_base = 0;   ///< of local layers, with global_scaling or two_bases; 0: that of the global ones
  index_t hidden = 0;      ///< hidden_size if absent
  index_t heads = 0;       ///< num_attention_heads if absent
  index_t context = 2048;  ///< max_position_embeddings if absent
  index_t still = 0;       ///< qk_nope_head_dim if absent, with latent
  index_t turning = 0;     ///< qk_rope_head_dim if absent, with latent
};

inline constexpr auto half = pairing::half_split;
inline constexpr auto turns = pairing::interleaved;

// clang-format off
inline constexpr std::array families{
    family{.model_type = "llama", .pairing = half_split, .hidden = 4096, .heads = 32},
    family{.model_type = "mistral", .pairing = half_split, .rule = layer_rule::all_in_window, .window = 4096,
           .hidden = 4096, .heads = 32, .context = 131'072},
    family{.model_type = "mixtral", .pairing = half_split, .base = 1e6, .rule = layer_rule::all_in_window,
           .hidden = 4096, .heads = 32, .context = 131'072},
    family{.model_type = "ministral", .pairing = half_split, .rule = layer_rule::all_in_window,
           .window = 4096, .hidden = 4096, .heads = 32, .context = 131'072},
    family{.model_type = "ministral3", .pairing = half_split, .layers = 34, .base = 1e6,
           .traits = ministral_scale, .head_dim = 128, .rule = layer_rule::all_in_window,
           .context = 262'144},
    family{.model_type = "mistral4", .pairing = interleaved, .layers = 36,
           .traits = latent | ministral_scale | stated_pairing, .context = 1'048'576, .still = 64, .turning = 64},
    family{.model_type = "qwen2", .pairing = half_split, .rule = layer_rule::qwen2, .window = 4096,
           .hidden = 4096, .heads = 32, .context = 32'768},
    family{.model_type = "qwen2_moe", .pairing = half_split, .layers = 24, .rule = layer_rule::qwen2_moe,
           .window = 4096, .context = 32'768},
    family{.model_type = "qwen2_vl", .pairing = half_split, .layers = 80, .base = 1e6,
           .traits = axes_chunked, .rule = layer_rule::qwen2, .window = 4096, .context = 32'768},
    family{.model_type = "qwen2_5_vl", .pairing = half_split, .layers = 80, .base = 1e6,
           .traits = axes_chunked, .rule = layer_rule::qwen2, .window = 4096, .context = 32'768},
    family{.model_type = "qwen2_5_omni", .pairing = half_split, .layers = 28, .base = 1e6,
           .traits = axes_chunked, .rule = layer_rule::qwen2, .window = 32'768, .context = 32'768},
    family{.model_type = "qwen3", .pairing = half_split, .head_dim = 128, .rule = layer_rule::qwen2,
           .window = 4096, .context = 32'768},
    family{.model_type = "qwen3_moe", .pairing = half_split, .layers = 24,
           .rule = layer_rule::window_if_used, .window = 4096, .context = 32'768},
    family{.model_type = "qwen3_vl", .pairing = half_split, .base = 5e5, .traits = axes_interleaved,
           .head_dim = 128, .context = 128'000},
    family{.model_type = "qwen3_vl_moe", .pairing = half_split, .layers = 24, .base = 5e5,
           .traits = axes_interleaved, .context = 128'000},
    family{.model_type = "qwen3_next", .pairing = half_split, .layers = 48, .traits = honours_partial,
           .head_dim = 256, .partial = 0.25, .rule = layer_rule::linear_then_full, .period = 4,
           .context = 32'768},
    family{.model_type = "qwen3_5", .pairing = half_split, .traits = honours_partial | axes_interleaved,
           .head_dim = 256, .partial = 0.25, .rule = layer_rule::linear_then_full, .period = 4,
           .context = 32'768},
    family{.model_type = "qwen3_5_moe", .pairing = half_split, .layers = 40,
           .traits = honours_partial | axes_interleaved, .head_dim = 256, .partial = 0.25,
           .rule = layer_rule::linear_then_full, .period = 4, .context = 32'768},
    family{.model_type = "gemma", .pairing = half_split, .layers = 28, .head_dim = 256, .context = 8192},
    family{.model_type = "gemma2", .pairing = half_split, .layers = 26, .traits = query_scalar | softcap,
           .head_dim = 256, .rule = layer_rule::full_ends_period, .period = 2, .window = 4096,
           .context = 8192},
    family{.model_type = "gemma3", .pairing = half_split, .layers = 26, .base = 1e6,
           .traits = query_scalar | global_scaling | softcap_if_given, .head_dim = 256,
           .rule = layer_rule::full_ends_period, .period = 6, .window = 4096, .local_base = 1e4,
           .context = 131'072},
    family{.model_type = "gemma3n", .pairing = half_split, .layers = 35, .base = 1e6,
           .traits = unit_scale | global_scaling, .head_dim = 256, .rule = layer_rule::full_ends_period,
           .period = 5, .window = 512, .local_base = 1e4, .context = 32'768},
    family{.model_type = "gemma4", .pairing = half_split, .layers = 30, .base = 1e6,
           .traits = unit_scale | global_scaling | global_head, .head_dim = 256,
           .rule = layer_rule::full_ends_period, .period = 6, .window = 512, .local_base = 1e4,
           .context = 131'072},
    family{.model_type = "vaultgemma", .pairing = half_split, .layers = 26, .traits = query_scalar | softcap,
           .head_dim = 256, .rule = layer_rule::full_ends_period, .period = 2, .window = 4096,
           .context = 8192},
    family{.model_type = "phi", .pairing = half_split, .layers = 24, .traits = honours_partial,
           .partial = 0.5},
    family{.model_type = "phi3", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .context = 4096},
    family{.model_type = "phi3_v", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .context = 4096},
    family{.model_type = "phi4_multimodal", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .context = 131'072},
    family{.model_type = "phimoe", .pairing = half_split, .base = 1e6, .traits = mscales,
           .rule = layer_rule::all_in_window, .context = 4096},
    family{.model_type = "gpt_neox", .pairing = half_split, .layers = 44, .traits = honours_partial,
           .partial = 0.25, .hidden = 6144, .heads = 64},
    family{.model_type = "gpt_neox_japanese", .pairing = half_split, .traits = honours_partial},
    family{.model_type = "gptj", .pairing = interleaved, .layers = 28, .traits = absolute_width},
    family{.model_type = "codegen", .pairing = interleaved, .layers = 28, .traits = absolute_width},
    family{.model_type = "glm", .pairing = interleaved, .layers = 40, .traits = honours_partial,
           .head_dim = 128, .partial = 0.5, .context = 131'072},
    family{.model_type = "glm4", .pairing = interleaved, .layers = 40, .traits = honours_partial,
           .head_dim = 128, .partial = 0.5, .context = 131'072},
    family{.model_type = "glm4_moe", .pairing = half_split, .layers = 46, .traits = honours_partial,
           .partial = 0.5, .context = 131'072},
    family{.model_type = "glm4_moe_lite", .pairing = interleaved, .layers = 47,
           .traits = latent | stated_pairing, .context = 202'752, .still = 192, .turning = 64},
    family{.model_type = "glm4v", .pairing = interleaved, .layers = 40,
           .traits = honours_partial | axes_chunked, .context = 32'768},
    family{.model_type = "cohere", .pairing = interleaved, .layers = 40, .base = 5e5, .context = 8192},
    family{.model_type = "cohere2", .pairing = interleaved, .layers = 40, .traits = local_only,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .context = 8192},
    family{.model_type = "deepseek", .pairing = half_split, .layers = 28},
    family{.model_type = "deepseek_v2", .pairing = interleaved, .traits = latent, .still = 128, .turning = 64},
    family{.model_type = "deepseek_v3", .pairing = interleaved, .layers = 61,
           .traits = latent | stated_pairing, .context = 4096, .still = 128, .turning = 64},
    family{.model_type = "kimi_k2", .pairing = interleaved, .layers = 61, .traits = latent | stated_pairing,
           .context = 4096, .still = 128, .turning = 64},
    family{.model_type = "minicpm3", .pairing = half_split, .layers = 62, .traits = latent, .still = 64, .turning = 32},
    family{.model_type = "gpt_oss", .pairing = half_split, .layers = 36, .base = 1.5e5, .traits = sinks,
           .head_dim = 64, .rule = layer_rule::full_ends_period, .period = 2, .window = 128,
           .context = 131'072},
    family{.model_type = "llama4", .pairing = interleaved, .layers = 48, .base = 5e5,
           .traits = no_rope_list | llama4_scale, .head_dim = 128, .rule = layer_rule::rope_in_chunks,
           .period = 4, .window = 8192, .context = 131'072},
    family{.model_type = "smollm3", .pairing = half_split, .layers = 36, .base = 2e6, .traits = no_rope_list,
           .rule = layer_rule::window_if_used, .period = 4, .context = 32'768},
    family{.model_type = "modernbert", .pairing = half_split, .layers = 22, .base = 1.6e5,
           .traits = two_bases | bidirectional, .rule = layer_rule::full_starts_period, .period = 3,
           .window = 128, .local_base = 1e4, .hidden = 768, .heads = 12, .context = 8192},
    family{.model_type = "olmo", .pairing = half_split},
    family{.model_type = "olmo2", .pairing = half_split},
    family{.model_type = "olmo3", .pairing = half_split, .base = 5e5, .traits = global_scaling,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096},
    family{.model_type = "olmoe", .pairing = half_split, .layers = 16, .context = 4096},
    family{.model_type = "flex_olmo", .pairing = half_split, .base = 5e5, .context = 4096},
    family{.model_type = "starcoder2", .pairing = half_split, .layers = 30,
           .rule = layer_rule::all_in_window, .context = 4096},
    family{.model_type = "stablelm", .pairing = half_split, .traits = honours_partial, .partial = 0.25,
           .context = 4096},
    family{.model_type = "persimmon", .pairing = half_split, .layers = 36, .traits = honours_partial,
           .partial = 0.5, .context = 16'384},
    family{.model_type = "nemotron", .pairing = half_split, .traits = honours_partial, .partial = 0.5,
           .context = 4096},
    family{.model_type = "granite", .pairing = half_split, .traits = multiplier},
    family{.model_type = "granitemoe", .pairing = half_split, .traits = multiplier},
    family{.model_type = "granitemoeshared", .pairing = half_split, .traits = multiplier},
    family{.model_type = "apertus", .pairing = half_split, .base = 1.2e7, .context = 65'536},
    family{.model_type = "arcee", .pairing = half_split, .context = 4096},
    family{.model_type = "bitnet", .pairing = half_split, .layers = 30, .base = 5e5},
    family{.model_type = "seed_oss", .pairing = half_split, .layers = 64, .head_dim = 128,
           .context = 524'288},
    family{.model_type = "exaone4", .pairing = half_split, .traits = local_if_window,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096},
    family{.model_type = "ernie4_5", .pairing = interleaved, .layers = 18, .base = 5e5, .head_dim = 128,
           .context = 131'072},
    family{.model_type = "ernie4_5_moe", .pairing = interleaved, .layers = 28, .base = 5e5,
           .context = 131'072},
    family{.model_type = "helium", .pairing = interleaved, .layers = 24, .base = 1e5, .head_dim = 128,
           .context = 4096},
    family{.model_type = "hunyuan_v1_dense", .pairing = half_split, .traits = alpha},
    family{.model_type = "hunyuan_v1_moe", .pairing = half_split, .traits = alpha},
    family{.model_type = "minimax_m2", .pairing = half_split, .layers = 62, .base = 5e6,
           .traits = honours_partial | absolute_width, .head_dim = 128, .context = 196'608},
    family{.model_type = "cwm", .pairing = half_split, .layers = 64, .base = 1e6, .head_dim = 128,
           .rule = layer_rule::full_starts_period, .period = 4, .window = 8192, .context = 131'072},
    family{.model_type = "dots1", .pairing = half_split, .layers = 62},
    family{.model_type = "internlm2", .pairing = half_split},
    family{.model_type = "internlm3", .pairing = half_split},
    family{.model_type = "minicpm", .pairing = half_split},
    family{.model_type = "mllama", .pairing = half_split, .layers = 40, .base = 5e5, .context = 131'072},
    family{.model_type = "nomic_bert", .pairing = half_split, .layers = 12, .base = 1000,
           .traits = bidirectional},
    family{.model_type = "jina_embeddings_v3", .pairing = half_split, .layers = 24, .base = 2e4,
           .traits = bidirectional, .context = 8194},
    family{.model_type = "eurobert", .pairing = half_split, .layers = 12, .traits = bidirectional,
           .context = 8192},
    family{.model_type = "roformer", .pairing = interleaved, .layers = 12, .traits = bidirectional,
           .context = 1536},
    family{.model_type = "falcon", .pairing = half_split, .hidden = 4544, .heads = 71},
};
// clang-format on

/// The model_types read here that do not rotate, or not always (falcon).
inline constexpr std::array<std::string_view, 40> other_types{"falcon",
                                                              "bloom",
                                                              "mpt",
                                                              "t5",
                                                              "mt5",
                                                              "umt5",
                                                              "longt5",
                                                              "switch_transformers",
                                                              "bert",
                                                              "electra",
                                                              "albert",
                                                              "distilbert",
                                                              "roberta",
                                                              "xlm-roberta",
                                                              "camembert",
                                                              "xlm-roberta-xl",
                                                              "roberta-prelayernorm",
                                                              "data2vec-text",
                                                              "longformer",
                                                              "layoutlm",
                                                              "mobilebert",
                                                              "megatron-bert",
                                                              "ernie",
                                                              "openai-gpt",
                                                              "gpt2",
                                                              "gpt_bigcode",
                                                              "opt",
                                                              "biogpt",
                                                              "bart",
                                                              "mbart",
                                                              "plbart",
                                                              "blenderbot",
                                                              "blenderbot-small",
                                                              "whisper",
                                                              "marian",
                                                              "pegasus",
                                                              "m2m_100",
                                                              "fsmt",
                                                              "xglm",
                                                              "speech_to_text"};

/// The family of a model_type, with or without the "_text" that nested configurations add; nullptr if
/// unknown.
[[nodiscard]] constexpr const family* find_family(std::string_view model_type) noexcept {
  for (const std::string_view suffix : {"", "_text", "_text_model"}) {
    if (!model_type.ends_with(suffix)) continue;
    const std::string_view stem = model_type.substr(0, model_type.size() - suffix.size());
    for (const family& one : families)
      if (one.model_type == stem) return &one;
  }
  return nullptr;
}

/// Every known model_type, for the sentence that refuses another.
[[nodiscard]] inline std::string known_types() {
  std::string names;
  for (const family& one : families) names.append(names.empty() ? "" : ", ").append(one.model_type);
  for (const std::string_view one : other_types)
    if (one != "falcon") names.append(", ").append(one);
  return names;
}

}  // namespace posenc::inline v0_2::detail::huggingface
