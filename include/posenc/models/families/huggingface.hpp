// SPDX-License-Identifier: MIT
/// \file
/// What each rotating model_type of Hugging Face transformers fixes in code and a config.json therefore does not say:
/// pairing, default base and widths, which layers are local, what scales the scores. Facts read off the model classes of
/// transformers 5.24. A new family is one row of `families`, judged by tools/judge_transformers.py;
/// docs/models.md says how.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <posenc/models/families/other_kinds.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2::detail::huggingface {

// ---- Layers -----------------------------------------------------------------------------------------------------------

/// What a layer does, whatever its model calls it.
enum class layer_sort : unsigned char {
  full,        ///< attention to everything the mask allows
  window,      ///< attention within a window
  chunk,       ///< attention within a chunk
  cross,       ///< attention to another sequence
  compressed,  ///< attention to a window and to compressed keys
  none,        ///< no attention: recurrent, convolution, state space, feed-forward alone
};

/// A word for a layer in "layer_types" and its kin.
struct layer_word {
  std::string_view word;
  layer_sort sort;
};
inline constexpr std::array layer_words{
    layer_word{"full_attention", layer_sort::full},
    layer_word{"attention", layer_sort::full},
    layer_word{"global_attention", layer_sort::full},
    layer_word{"global", layer_sort::full},
    layer_word{"full", layer_sort::full},
    layer_word{"indexed_attention", layer_sort::full},
    layer_word{"deepseek_sparse_attention", layer_sort::full},
    layer_word{"hybrid", layer_sort::full},
    layer_word{"parallel_hybrid", layer_sort::full},
    layer_word{"sliding_attention", layer_sort::window},
    layer_word{"sliding_window", layer_sort::window},
    layer_word{"sliding", layer_sort::window},
    layer_word{"local_attention", layer_sort::window},
    layer_word{"local", layer_sort::window},
    layer_word{"chunked_attention", layer_sort::chunk},
    layer_word{"cross_attention", layer_sort::cross},
    layer_word{"compressed_sparse_attention", layer_sort::compressed},
    layer_word{"heavily_compressed_attention", layer_sort::compressed},
    layer_word{"linear_attention", layer_sort::none},
    layer_word{"linear", layer_sort::none},
    layer_word{"kda", layer_sort::none},
    layer_word{"recurrent", layer_sort::none},
    layer_word{"mamba", layer_sort::none},
    layer_word{"mamba2", layer_sort::none},
    layer_word{"conv", layer_sort::none},
    layer_word{"short_conv", layer_sort::none},
    layer_word{"moe", layer_sort::none},
    layer_word{"mlp", layer_sort::none},
};

/// What a word for a layer means; nothing if it is not known.
[[nodiscard]] constexpr std::optional<layer_sort> sort_of(std::string_view word) noexcept {
  for (const layer_word& one : layer_words)
    if (one.word == word) return one.sort;
  return std::nullopt;
}

/// How a model class decides which layers are which when config.json does not list them. "Others" are layers with a
/// window, or without attention (others_recurrent).
enum class layer_rule : unsigned char {
  all_full,                      ///< every layer sees everything
  all_in_window,                 ///< every layer has a window, where "sliding_window" is given
  window_if_used,                ///< the same where "use_sliding_window" is true
  qwen2,                         ///< from layer "max_window_layers" on where "use_sliding_window" is true
  qwen2_moe,                     ///< even layers below "max_window_layers" where "use_sliding_window" is true
  full_ends_period,              ///< others where (i + 1) mod period ≠ 0
  full_starts_period,            ///< others where i mod period ≠ 0
  full_starts_period_but_first,  ///< the same, and layer 0 is an other
  full_first_and_ends_period,    ///< others where (i + 1) mod period ≠ 0, but layer 0 is full
  full_at_offset,                ///< others where i mod "attn_layer_period" ≠ "attn_layer_offset"
  none_attend,                   ///< others throughout
  rope_in_chunks,                ///< llama4: layers that rotate see their chunk, the others everything
  compressed,                    ///< deepseek_v4: two heavily compressed layers, then both kinds alternately
};

/// Where and how config.json lists the layers, other than by words in "layer_types" and "layers_block_type".
enum class list_form : unsigned char {
  none,
  words,               ///< by words alone
  periodic_words,      ///< "block_types": words that repeat
  attention_indices,   ///< "attn_layer_indices", "full_attn_idxs": layers with attention, from 0
  cross_indices,       ///< "cross_attention_layers": layers that look at another sequence, from 0
  scaled_indices,      ///< "rope_scaling_layers": layers to which the rope block applies, from 0
  ones_attend,         ///< "attn_type_list": 1 has attention
  ones_have_windows,   ///< "hybrid_layer_pattern": 1 has a window
  letters,             ///< "hybrid_override_pattern": * has attention
  linear_attn_config,  ///< "linear_attn_config.full_attn_layers": layers with attention, from 1
  compress_ratios,     ///< "compress_ratios": 0 is a window, 4 sparse, 128 heavily compressed
};

// ---- Families ---------------------------------------------------------------------------------------------------------

using traits_t = std::uint64_t;

/// Peculiarities of a model class, to be combined.
enum trait : traits_t {
  honours_partial = traits_t{1} << 0,   ///< partial_rotary_factor counts for the default rope type too
  latent = traits_t{1} << 1,            ///< multi-head latent attention: the tail of the head rotates
  axes_chunked = traits_t{1} << 2,      ///< multi-axis rope in consecutive sections
  axes_interleaved = traits_t{1} << 3,  ///< multi-axis rope whose axes alternate
  phi3_names = traits_t{1} << 4,        ///< "su" and "yarn" mean longrope
  query_scalar = traits_t{1} << 5,      ///< σ = query_pre_attn_scalar^(−1/2), 256 if absent
  unit_scale = traits_t{1} << 6,        ///< σ = 1
  multiplier = traits_t{1} << 7,        ///< σ = attention_multiplier, 1 if absent
  no_rope_list = traits_t{1} << 8,      ///< "no_rope_layers": 0 marks a layer without rotation
  local_only = traits_t{1} << 9,        ///< only local layers rotate
  local_if_window = traits_t{1} << 10,  ///< only local layers rotate, where there is a window
  global_scaling =
      traits_t{1} << 11,  ///< "rope_scaling" is for global layers; local ones have a base of their own
  two_bases =
      traits_t{1} << 12,  ///< global and local layers have bases of their own, "rope_scaling" is for both
  llama4_scale = traits_t{1} << 13,     ///< attn_temperature_tuning on layers without rotation
  ministral_scale = traits_t{1} << 14,  ///< llama_4_scaling_beta
  bidirectional = traits_t{1} << 15,    ///< an encoder; the window reaches both ways
  absolute_width = traits_t{1} << 16,   ///< "rotary_dim" states the rotary width in channels
  alpha = traits_t{1} << 17,            ///< type "dynamic" with "alpha" is a fixed theta scaling
  stated_pairing = traits_t{1} << 18,   ///< "rope_interleave" says which pairing, interleaved if absent
  sinks = traits_t{1} << 19,            ///< one learned logit per head joins each softmax
  mscales = traits_t{1} << 20,          ///< longrope with short_mscale and long_mscale
  softcap = traits_t{1} << 21,          ///< attn_logit_softcapping, 50 if absent
  global_head =
      traits_t{1} << 23,  ///< global layers have heads of global_head_dim, and the last layer is global
  others_recurrent = traits_t{1} << 24,  ///< layers that are not full have no attention
  fixed_base = traits_t{1} << 25,  ///< the base is fixed in code, so that a missing one is nothing to tell
  may_see_both_ways =
      traits_t{1} << 26,  ///< use_bidirectional_attention: true is an encoder, "vision" images
  prefix_if_both_ways = traits_t{1} << 27,  ///< use_bidirectional_attention: true is a prefix-LM
  local_without_rope = traits_t{1} << 28,   ///< windows are for layers that do not rotate
  local_needs_window = traits_t{1} << 29,   ///< without "sliding_window" all layers are full
  tail = traits_t{1} << 30,                 ///< the last qk_rope_head_dim channels of head_dim rotate
  indexed = traits_t{1} << 31,              ///< beyond index_topk tokens an indexer chooses the keys
  nope_by_name = traits_t{1} << 32,         ///< rotates where position_embedding_type is "rope" only
  multiplier_or_root = traits_t{1} << 33,   ///< σ = attention_multiplier, 1/√head_dim if absent
  no_rotation = traits_t{1} << 34,          ///< attention without positions
  two_per_layer = traits_t{1} << 35,        ///< "num_layers" counts pairs of attention layers
  window_sinks = traits_t{1} << 36,         ///< sinks in layers with windows
  window_kv_twice = traits_t{1} << 37,      ///< layers with windows have twice the key/value heads
  own_value_dim = traits_t{1} << 38,        ///< "v_head_dim" outside of latent attention
  wide_heads = traits_t{1} << 39,           ///< heads divide 2·hidden_size, σ = (head_dim/2)^(−1/2)
  rope_if_told = traits_t{1} << 40,         ///< rotates where "use_mem_rope" is true
  axes_by_ernie = traits_t{1} << 41,        ///< multi-axis rope: height and width alternately, then time
  axes_by_hunyuan = traits_t{1} << 42,      ///< axes split channels and not pairs: described for text
  backwards = traits_t{1} << 43,            ///< rotates by −φ
  needs_words = traits_t{1} << 44,  ///< the class's own pattern of layers is in no rule here: files list it
  window_each_side = traits_t{1} << 45,  ///< an encoder whose "sliding_window" counts tokens to either side
  bases_are_switches =
      traits_t{1} << 46,            ///< "layer_rope_theta" says which layers rotate, by one base for all
  lists_bases = traits_t{1} << 47,  ///< files have "layer_rope_theta"
};

/// A model class that rotates. A width or count of 0 means that config.json has to state it.
struct family {
  std::string_view model_type;
  posenc::pairing pairing;
  index_t layers = 32;
  double base = 10'000;
  traits_t traits = 0;
  index_t head_dim = 0;  ///< if absent; else hidden_size / num_attention_heads
  double partial = 1;    ///< partial_rotary_factor if absent
  layer_rule rule = layer_rule::all_full;
  index_t period = 0;
  index_t window = 0;      ///< "sliding_window" if absent; 0: none
  double local_base = 0;   ///< of local layers, with global_scaling or two_bases; 0: that of the global ones
  index_t hidden = 0;      ///< hidden_size if absent
  index_t heads = 0;       ///< num_attention_heads if absent
  index_t kv_heads = 0;    ///< num_key_value_heads if absent; 0: as many as heads
  index_t context = 2048;  ///< max_position_embeddings if absent
  index_t nope_head_dim = 0;  ///< qk_nope_head_dim if absent, with latent
  index_t rope_head_dim = 0;  ///< qk_rope_head_dim if absent, with latent or tail
  index_t value_dim = 0;      ///< v_head_dim if absent, with latent or own_value_dim
  list_form list = list_form::none;
  std::array<index_t, 3> sections{};  ///< mrope_section if absent
  std::string_view block{};           ///< the rope block if there is none, as JSON
};

using enum posenc::pairing;

// clang-format off
inline constexpr std::array families{
    family{.model_type = "llama", .pairing = half_split, .hidden = 4096, .heads = 32},
    family{.model_type = "mistral", .pairing = half_split, .rule = layer_rule::all_in_window, .window = 4096,
           .hidden = 4096, .heads = 32, .kv_heads = 8, .context = 131'072},
    family{.model_type = "mixtral", .pairing = half_split, .base = 1e6, .rule = layer_rule::all_in_window,
           .hidden = 4096, .heads = 32, .kv_heads = 8, .context = 131'072},
    family{.model_type = "ministral", .pairing = half_split, .rule = layer_rule::all_in_window, .window = 4096,
           .hidden = 4096, .heads = 32, .kv_heads = 8, .context = 131'072},
    family{.model_type = "ministral3", .pairing = half_split, .layers = 34, .base = 1e6, .traits = ministral_scale,
           .head_dim = 128, .rule = layer_rule::all_in_window, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 262'144,
           .block = R"({"rope_type":"yarn","factor":16,"original_max_position_embeddings":16384,"mscale":1,"mscale_all_dim":1,"llama_4_scaling_beta":0.1})"},
    family{.model_type = "mistral4", .pairing = interleaved, .layers = 36,
           .traits = latent | ministral_scale | stated_pairing, .hidden = 4096, .heads = 32, .kv_heads = 32,
           .context = 1'048'576, .nope_head_dim = 64, .rope_head_dim = 64, .value_dim = 128,
           .block = R"({"rope_type":"yarn","factor":128,"original_max_position_embeddings":8192,"mscale":1,"mscale_all_dim":1,"llama_4_scaling_beta":0.1})"},
    family{.model_type = "qwen2", .pairing = half_split, .rule = layer_rule::qwen2, .window = 4096, .hidden = 4096,
           .heads = 32, .kv_heads = 32, .context = 32'768},
    family{.model_type = "qwen2_moe", .pairing = half_split, .layers = 24, .rule = layer_rule::qwen2_moe,
           .window = 4096, .hidden = 2048, .heads = 16, .kv_heads = 16, .context = 32'768},
    family{.model_type = "qwen2_vl", .pairing = half_split, .layers = 80, .base = 1e6, .traits = axes_chunked,
           .rule = layer_rule::qwen2, .window = 4096, .hidden = 8192, .heads = 64, .kv_heads = 8, .context = 32'768,
           .sections = {16, 24, 24}},
    family{.model_type = "qwen2_5_vl", .pairing = half_split, .layers = 80, .base = 1e6, .traits = axes_chunked,
           .rule = layer_rule::qwen2, .window = 4096, .hidden = 8192, .heads = 64, .kv_heads = 8, .context = 32'768,
           .sections = {16, 24, 24}},
    family{.model_type = "qwen2_5_omni", .pairing = half_split, .layers = 28, .base = 1e6, .traits = axes_chunked,
           .rule = layer_rule::qwen2, .window = 32'768, .hidden = 3584, .heads = 28, .kv_heads = 4,
           .context = 32'768, .sections = {16, 24, 24}},
    family{.model_type = "qwen3", .pairing = half_split, .head_dim = 128, .rule = layer_rule::qwen2, .window = 4096,
           .hidden = 4096, .heads = 32, .kv_heads = 32, .context = 32'768},
    family{.model_type = "qwen3_moe", .pairing = half_split, .layers = 24, .rule = layer_rule::window_if_used,
           .window = 4096, .hidden = 2048, .heads = 32, .kv_heads = 4, .context = 32'768},
    family{.model_type = "qwen3_vl", .pairing = half_split, .base = 5e5, .traits = axes_interleaved, .head_dim = 128,
           .hidden = 4096, .heads = 32, .kv_heads = 32, .context = 128'000, .sections = {24, 20, 20}},
    family{.model_type = "qwen3_vl_moe", .pairing = half_split, .layers = 24, .base = 5e5,
           .traits = axes_interleaved, .hidden = 2048, .heads = 16, .kv_heads = 16, .context = 128'000,
           .sections = {24, 20, 20}},
    family{.model_type = "qwen3_next", .pairing = half_split, .layers = 48,
           .traits = honours_partial | others_recurrent, .head_dim = 256, .partial = 0.25,
           .rule = layer_rule::full_ends_period, .period = 4, .hidden = 2048, .heads = 16, .kv_heads = 2,
           .context = 32'768},
    family{.model_type = "qwen3_5", .pairing = half_split,
           .traits = honours_partial | axes_interleaved | others_recurrent, .head_dim = 256, .partial = 0.25,
           .rule = layer_rule::full_ends_period, .period = 4, .hidden = 4096, .heads = 16, .kv_heads = 4,
           .context = 32'768, .sections = {11, 11, 10}},
    family{.model_type = "qwen3_5_moe", .pairing = half_split, .layers = 40,
           .traits = honours_partial | axes_interleaved | others_recurrent, .head_dim = 256, .partial = 0.25,
           .rule = layer_rule::full_ends_period, .period = 4, .hidden = 2048, .heads = 16, .kv_heads = 2,
           .context = 32'768, .sections = {11, 11, 10}},
    family{.model_type = "gemma", .pairing = half_split, .layers = 28, .traits = prefix_if_both_ways,
           .head_dim = 256, .hidden = 3072, .heads = 16, .kv_heads = 16, .context = 8192},
    family{.model_type = "gemma2", .pairing = half_split, .layers = 26, .traits = query_scalar | softcap,
           .head_dim = 256, .rule = layer_rule::full_ends_period, .period = 2, .window = 4096, .hidden = 2304,
           .heads = 8, .kv_heads = 4, .context = 8192},
    family{.model_type = "gemma3", .pairing = half_split, .layers = 26, .base = 1e6,
           .traits = query_scalar | global_scaling | may_see_both_ways, .head_dim = 256,
           .rule = layer_rule::full_ends_period, .period = 6, .window = 4096, .local_base = 1e4, .hidden = 2304,
           .heads = 8, .kv_heads = 4, .context = 131'072},
    family{.model_type = "gemma3n", .pairing = half_split, .layers = 35, .base = 1e6,
           .traits = unit_scale | global_scaling, .head_dim = 256, .rule = layer_rule::full_ends_period, .period = 5,
           .window = 512, .local_base = 1e4, .hidden = 2048, .heads = 8, .kv_heads = 2, .context = 32'768},
    family{.model_type = "gemma4", .pairing = half_split, .layers = 30, .base = 1e6,
           .traits = unit_scale | global_scaling | global_head | may_see_both_ways, .head_dim = 256,
           .rule = layer_rule::full_ends_period, .period = 6, .window = 512, .local_base = 1e4, .hidden = 2304,
           .heads = 8, .kv_heads = 4, .context = 131'072,
           .block = R"({"sliding_attention":{"rope_type":"default","rope_theta":10000},"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25,"rope_theta":1000000}})"},
    family{.model_type = "vaultgemma", .pairing = half_split, .layers = 26, .traits = query_scalar | softcap,
           .head_dim = 256, .rule = layer_rule::full_ends_period, .period = 2, .window = 4096, .hidden = 2304,
           .heads = 8, .kv_heads = 4, .context = 8192},
    family{.model_type = "phi", .pairing = half_split, .layers = 24, .traits = honours_partial, .partial = 0.5,
           .hidden = 2048, .heads = 32},
    family{.model_type = "phi3", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .hidden = 3072, .heads = 32, .context = 4096},
    family{.model_type = "phi3_v", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .context = 4096},
    family{.model_type = "phi4_multimodal", .pairing = half_split, .traits = honours_partial | phi3_names,
           .rule = layer_rule::all_in_window, .hidden = 3072, .heads = 32, .kv_heads = 8, .context = 131'072},
    family{.model_type = "phimoe", .pairing = half_split, .base = 1e6, .traits = mscales,
           .rule = layer_rule::all_in_window, .hidden = 4096, .heads = 32, .kv_heads = 8, .context = 131'072},
    family{.model_type = "gpt_neox", .pairing = half_split, .layers = 44, .traits = honours_partial, .partial = 0.25,
           .hidden = 6144, .heads = 64},
    family{.model_type = "gpt_neox_japanese", .pairing = half_split, .traits = honours_partial, .hidden = 2560,
           .heads = 32},
    family{.model_type = "gptj", .pairing = interleaved, .layers = 28, .traits = absolute_width | fixed_base,
           .hidden = 4096, .heads = 16},
    family{.model_type = "codegen", .pairing = interleaved, .layers = 28, .traits = absolute_width | fixed_base,
           .hidden = 4096, .heads = 16},
    family{.model_type = "glm", .pairing = interleaved, .layers = 40, .traits = honours_partial, .head_dim = 128,
           .partial = 0.5, .hidden = 4096, .heads = 32, .kv_heads = 2, .context = 131'072},
    family{.model_type = "glm4", .pairing = interleaved, .layers = 40, .traits = honours_partial, .head_dim = 128,
           .partial = 0.5, .hidden = 4096, .heads = 32, .kv_heads = 2, .context = 131'072},
    family{.model_type = "glm4_moe", .pairing = half_split, .layers = 46, .traits = honours_partial, .partial = 0.5,
           .hidden = 4096, .heads = 96, .kv_heads = 8, .context = 131'072},
    family{.model_type = "glm4_moe_lite", .pairing = interleaved, .layers = 47, .traits = latent | stated_pairing,
           .hidden = 2048, .heads = 20, .kv_heads = 20, .context = 202'752, .nope_head_dim = 192, .rope_head_dim = 64,
           .value_dim = 256},
    family{.model_type = "glm4v", .pairing = interleaved, .layers = 40, .traits = honours_partial | axes_chunked,
           .hidden = 4096, .heads = 32, .kv_heads = 2, .context = 32'768, .sections = {8, 12, 12}},
    family{.model_type = "glm_image", .pairing = half_split, .layers = 40, .traits = honours_partial | axes_chunked,
           .hidden = 4096, .heads = 32, .kv_heads = 2, .context = 131'072, .sections = {8, 12, 12}},
    family{.model_type = "cosmos3_edge", .pairing = half_split, .layers = 28, .base = 1e8, .traits = axes_interleaved,
           .head_dim = 128, .hidden = 2048, .heads = 16, .kv_heads = 8, .context = 131'072, .sections = {24, 20, 20}},
    family{.model_type = "cohere", .pairing = interleaved, .layers = 40, .base = 5e5, .hidden = 8192, .heads = 64,
           .context = 8192},
    family{.model_type = "cohere2", .pairing = interleaved, .layers = 40, .traits = local_only,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .hidden = 8192, .heads = 64,
           .context = 8192},
    family{.model_type = "deepseek", .pairing = half_split, .layers = 28},
    family{.model_type = "deepseek_v2", .pairing = interleaved, .traits = latent, .hidden = 4096, .heads = 32,
           .nope_head_dim = 128, .rope_head_dim = 64, .value_dim = 128},
    family{.model_type = "deepseek_v3", .pairing = interleaved, .layers = 61, .traits = latent | stated_pairing,
           .hidden = 7168, .heads = 128, .kv_heads = 128, .context = 4096, .nope_head_dim = 128, .rope_head_dim = 64,
           .value_dim = 128},
    family{.model_type = "kimi_k2", .pairing = interleaved, .layers = 61, .traits = latent | stated_pairing,
           .hidden = 7168, .heads = 128, .kv_heads = 128, .context = 4096, .nope_head_dim = 128, .rope_head_dim = 64,
           .value_dim = 128},
    family{.model_type = "minicpm3", .pairing = half_split, .layers = 62, .traits = latent, .hidden = 2560,
           .heads = 40, .context = 32'768, .nope_head_dim = 64, .rope_head_dim = 32, .value_dim = 64},
    family{.model_type = "gpt_oss", .pairing = half_split, .layers = 36, .base = 1.5e5, .traits = sinks,
           .head_dim = 64, .rule = layer_rule::full_ends_period, .period = 2, .window = 128, .hidden = 2880,
           .heads = 64, .kv_heads = 8, .context = 131'072,
           .block = R"({"rope_type":"yarn","factor":32,"beta_fast":32,"beta_slow":1,"truncate":false,"original_max_position_embeddings":4096})"},
    family{.model_type = "openai_privacy_filter", .pairing = interleaved, .layers = 8, .base = 1.5e5,
           .traits = bidirectional | window_each_side | sinks, .head_dim = 64, .rule = layer_rule::all_in_window,
           .window = 128, .hidden = 640, .heads = 14, .kv_heads = 2, .context = 131'072,
           .block = R"({"rope_type":"yarn","factor":32,"beta_fast":32,"beta_slow":1,"truncate":false,"original_max_position_embeddings":4096})"},
    family{.model_type = "llama4", .pairing = interleaved, .layers = 48, .base = 5e5,
           .traits = no_rope_list | llama4_scale, .head_dim = 128, .rule = layer_rule::rope_in_chunks, .period = 4,
           .window = 8192, .hidden = 5120, .heads = 40, .kv_heads = 8, .context = 131'072},
    family{.model_type = "smollm3", .pairing = half_split, .layers = 36, .base = 2e6,
           .traits = no_rope_list | local_without_rope, .rule = layer_rule::window_if_used, .period = 4,
           .hidden = 2048, .heads = 16, .kv_heads = 4, .context = 32'768},
    family{.model_type = "modernbert", .pairing = half_split, .layers = 22, .base = 1.6e5,
           .traits = two_bases | bidirectional, .rule = layer_rule::full_starts_period, .period = 3, .window = 128,
           .local_base = 1e4, .hidden = 768, .heads = 12, .context = 8192},
    family{.model_type = "olmo", .pairing = half_split, .hidden = 4096, .heads = 32},
    family{.model_type = "olmo2", .pairing = half_split, .hidden = 4096, .heads = 32},
    family{.model_type = "olmo3", .pairing = half_split, .base = 5e5, .traits = global_scaling,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .hidden = 4096, .heads = 32},
    family{.model_type = "olmoe", .pairing = half_split, .layers = 16, .hidden = 2048, .heads = 16, .context = 4096},
    family{.model_type = "flex_olmo", .pairing = half_split, .base = 5e5, .hidden = 4096, .heads = 32,
           .context = 4096},
    family{.model_type = "starcoder2", .pairing = half_split, .layers = 30, .rule = layer_rule::all_in_window,
           .hidden = 3072, .heads = 24, .kv_heads = 2, .context = 4096},
    family{.model_type = "stablelm", .pairing = half_split, .traits = honours_partial, .partial = 0.25,
           .hidden = 2560, .heads = 32, .kv_heads = 32, .context = 4096},
    family{.model_type = "persimmon", .pairing = half_split, .layers = 36, .traits = honours_partial, .partial = 0.5,
           .hidden = 4096, .heads = 64, .context = 16'384},
    family{.model_type = "nemotron", .pairing = half_split, .traits = honours_partial, .partial = 0.5,
           .hidden = 6144, .heads = 48, .context = 4096},
    family{.model_type = "granite", .pairing = half_split, .traits = multiplier, .hidden = 4096, .heads = 32},
    family{.model_type = "granitemoe", .pairing = half_split, .traits = multiplier, .hidden = 4096, .heads = 32},
    family{.model_type = "granitemoeshared", .pairing = half_split, .traits = multiplier, .hidden = 4096,
           .heads = 32},
    family{.model_type = "apertus", .pairing = half_split, .base = 1.2e7, .hidden = 4096, .heads = 32,
           .context = 65'536,
           .block = R"({"rope_type":"llama3","rope_theta":12000000,"factor":8,"original_max_position_embeddings":8192,"low_freq_factor":1,"high_freq_factor":4})"},
    family{.model_type = "arcee", .pairing = half_split, .hidden = 2560, .heads = 32, .context = 4096},
    family{.model_type = "bitnet", .pairing = half_split, .layers = 30, .base = 5e5, .hidden = 2560, .heads = 20,
           .kv_heads = 5},
    family{.model_type = "seed_oss", .pairing = half_split, .layers = 64, .head_dim = 128, .hidden = 4096,
           .heads = 80, .kv_heads = 8, .context = 524'288},
    family{.model_type = "exaone4", .pairing = half_split, .traits = local_if_window | local_needs_window,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .hidden = 4096, .heads = 32,
           .kv_heads = 32},
    family{.model_type = "ernie4_5", .pairing = interleaved, .layers = 18, .base = 5e5, .head_dim = 128,
           .hidden = 1024, .heads = 16, .kv_heads = 2, .context = 131'072},
    family{.model_type = "ernie4_5_moe", .pairing = interleaved, .layers = 28, .base = 5e5, .hidden = 2560,
           .heads = 20, .kv_heads = 4, .context = 131'072},
    family{.model_type = "helium", .pairing = interleaved, .layers = 24, .base = 1e5, .head_dim = 128,
           .hidden = 2560, .heads = 20, .kv_heads = 20, .context = 4096},
    family{.model_type = "hunyuan_v1_dense", .pairing = half_split, .traits = alpha, .hidden = 4096, .heads = 32},
    family{.model_type = "hunyuan_v1_moe", .pairing = half_split, .traits = alpha, .hidden = 4096, .heads = 32},
    family{.model_type = "minimax_m2", .pairing = half_split, .layers = 62, .base = 5e6,
           .traits = honours_partial | absolute_width, .head_dim = 128, .hidden = 3072, .heads = 48, .kv_heads = 8,
           .context = 196'608},
    family{.model_type = "cwm", .pairing = half_split, .layers = 64, .base = 1e6, .head_dim = 128,
           .rule = layer_rule::full_starts_period, .period = 4, .window = 8192, .hidden = 6144, .heads = 48,
           .kv_heads = 8, .context = 131'072,
           .block = R"({"rope_type":"llama3","rope_theta":1000000,"factor":16,"original_max_position_embeddings":8192,"low_freq_factor":1,"high_freq_factor":4})"},
    family{.model_type = "dots1", .pairing = half_split, .layers = 62, .hidden = 4608, .heads = 32, .kv_heads = 32},
    family{.model_type = "internlm2", .pairing = half_split},
    family{.model_type = "internlm3", .pairing = half_split, .layers = 48, .hidden = 4096, .heads = 32,
           .kv_heads = 2, .context = 32'768},
    family{.model_type = "minicpm", .pairing = half_split},
    family{.model_type = "mllama", .pairing = half_split, .layers = 40, .base = 5e5, .hidden = 4096, .heads = 32,
           .kv_heads = 8, .context = 131'072, .list = list_form::cross_indices},
    family{.model_type = "nomic_bert", .pairing = half_split, .layers = 12, .base = 1000, .traits = bidirectional,
           .hidden = 768, .heads = 12},
    family{.model_type = "jina_embeddings_v3", .pairing = half_split, .layers = 24, .base = 2e4,
           .traits = bidirectional, .hidden = 1024, .heads = 16, .context = 8194},
    family{.model_type = "eurobert", .pairing = half_split, .layers = 12, .traits = bidirectional, .hidden = 768,
           .heads = 12, .context = 8192},
    family{.model_type = "roformer", .pairing = interleaved, .layers = 12, .traits = bidirectional | fixed_base,
           .hidden = 768, .heads = 12, .context = 1536},
    family{.model_type = "falcon", .pairing = half_split, .hidden = 4544, .heads = 71},
    family{.model_type = "afmoe", .pairing = half_split, .traits = local_only, .head_dim = 128,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 1024, .hidden = 2048, .heads = 16,
           .context = 16'384},
    family{.model_type = "apertus1p5", .pairing = half_split, .base = 1.2e7, .hidden = 4096, .heads = 32,
           .context = 65'536,
           .block = R"({"rope_type":"llama3","rope_theta":12000000,"factor":8,"original_max_position_embeddings":8192,"low_freq_factor":1,"high_freq_factor":4})"},
    family{.model_type = "aria", .pairing = half_split, .hidden = 4096, .heads = 32},
    family{.model_type = "bailing_hybrid", .pairing = interleaved, .layers = 42, .base = 6e6,
           .traits = latent | others_recurrent, .rule = layer_rule::full_ends_period, .period = 6, .hidden = 2560,
           .heads = 32, .kv_heads = 32, .context = 262'144, .nope_head_dim = 128, .rope_head_dim = 64, .value_dim = 128},
    family{.model_type = "bamba", .pairing = half_split, .traits = honours_partial | others_recurrent,
           .partial = 0.5, .rule = layer_rule::none_attend, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 262'144, .list = list_form::attention_indices},
    family{.model_type = "csm", .pairing = half_split, .layers = 16, .base = 5e5, .hidden = 2048, .heads = 32,
           .kv_heads = 8},
    family{.model_type = "csm_depth_decoder_model", .pairing = half_split, .layers = 4, .base = 5e5, .hidden = 1024,
           .heads = 8, .kv_heads = 2, .context = 33},
    family{.model_type = "deepseek_v32", .pairing = interleaved, .layers = 61, .traits = latent | indexed,
           .hidden = 7168, .heads = 128, .kv_heads = 128, .context = 163'840, .nope_head_dim = 128, .rope_head_dim = 64,
           .value_dim = 128},
    family{.model_type = "glm_moe_dsa", .pairing = interleaved, .layers = 78, .traits = latent | indexed,
           .hidden = 6144, .heads = 64, .kv_heads = 64, .context = 202'752, .nope_head_dim = 192, .rope_head_dim = 64,
           .value_dim = 256},
    family{.model_type = "deepseek_v4", .pairing = interleaved, .layers = 43, .traits = tail | sinks,
           .head_dim = 512, .rule = layer_rule::compressed, .window = 128, .local_base = 1.6e5, .hidden = 4096,
           .heads = 64, .kv_heads = 1, .context = 1'048'576, .rope_head_dim = 64, .list = list_form::compress_ratios},
    family{.model_type = "diffllama", .pairing = half_split, .layers = 16, .hidden = 2048, .heads = 32},
    family{.model_type = "ernie4_5_vl_moe", .pairing = interleaved, .layers = 28, .base = 5e5,
           .traits = axes_by_ernie, .hidden = 2560, .heads = 20, .kv_heads = 4, .context = 131'072, .sections = {22, 22, 20}},
    family{.model_type = "exaone", .pairing = half_split, .base = 5e5, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 4096},
    family{.model_type = "exaone_moe", .pairing = half_split, .traits = local_if_window | local_needs_window,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .hidden = 4096, .heads = 32,
           .kv_heads = 32},
    family{.model_type = "falcon_h1", .pairing = half_split, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 8192},
    family{.model_type = "glm4v_moe", .pairing = half_split, .layers = 46, .traits = honours_partial | axes_chunked,
           .partial = 0.5, .hidden = 4096, .heads = 96, .kv_heads = 8, .context = 65'536, .sections = {8, 12, 12}},
    family{.model_type = "glm_ocr", .pairing = interleaved, .layers = 16, .traits = honours_partial | axes_chunked,
           .hidden = 1024, .heads = 16, .kv_heads = 8, .context = 131'072, .sections = {8, 12, 12}},
    family{.model_type = "granitemoehybrid", .pairing = half_split,
           .traits = multiplier | others_recurrent | nope_by_name, .rule = layer_rule::none_attend, .hidden = 4096,
           .heads = 32},
    family{.model_type = "granite_swa", .pairing = half_split, .layers = 24, .traits = multiplier | sinks,
           .rule = layer_rule::full_starts_period, .period = 4, .window = 128, .hidden = 2560, .heads = 20,
           .kv_heads = 4, .context = 8192},
    family{.model_type = "granitemoe_swa", .pairing = half_split, .traits = multiplier | sinks,
           .rule = layer_rule::full_starts_period, .period = 4, .window = 128, .hidden = 4096, .heads = 32},
    family{.model_type = "gte", .pairing = half_split, .layers = 12, .base = 1.6e5, .traits = bidirectional,
           .hidden = 768, .heads = 12, .context = 8192},
    family{.model_type = "hunyuan_vl", .pairing = half_split, .traits = alpha | axes_by_hunyuan, .hidden = 4096,
           .heads = 32},
    family{.model_type = "hy_v3", .pairing = half_split, .layers = 80, .base = 11158840, .head_dim = 128,
           .hidden = 4096, .heads = 64, .kv_heads = 8, .context = 131'072},
    family{.model_type = "hyperclovax", .pairing = half_split, .traits = multiplier_or_root, .hidden = 4096,
           .heads = 32},
    family{.model_type = "jais2", .pairing = half_split, .hidden = 3328, .heads = 26, .context = 8192},
    family{.model_type = "jamba", .pairing = half_split, .traits = no_rotation | others_recurrent,
           .rule = layer_rule::full_at_offset, .period = 8, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 262'144},
    family{.model_type = "kimi_linear", .pairing = interleaved, .layers = 27,
           .traits = latent | no_rotation | others_recurrent, .rule = layer_rule::full_starts_period_but_first,
           .period = 4, .hidden = 2304, .heads = 32, .kv_heads = 32, .context = 1'048'576, .nope_head_dim = 128,
           .rope_head_dim = 64, .value_dim = 128, .list = list_form::linear_attn_config},
    family{.model_type = "laguna", .pairing = half_split, .layers = 40, .traits = honours_partial, .head_dim = 128,
           .rule = layer_rule::all_full, .window = 512, .hidden = 2048, .heads = 48, .kv_heads = 8,
           .context = 131'072, .list = list_form::words,
           .block = R"({"full_attention":{"rope_type":"default","rope_theta":500000,"partial_rotary_factor":0.5},"sliding_attention":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":1}})"},
    family{.model_type = "lfm2", .pairing = half_split, .base = 1e6, .traits = others_recurrent, .hidden = 2560,
           .heads = 32, .kv_heads = 8, .context = 128'000, .list = list_form::attention_indices},
    family{.model_type = "lfm2_moe", .pairing = half_split, .base = 1e6, .traits = others_recurrent, .hidden = 2048,
           .heads = 32, .kv_heads = 8, .context = 128'000, .list = list_form::attention_indices},
    family{.model_type = "longcat_flash", .pairing = interleaved, .layers = 28, .base = 1e7,
           .traits = latent | two_per_layer, .hidden = 6144, .heads = 64, .context = 131'072, .nope_head_dim = 128,
           .rope_head_dim = 64, .value_dim = 128},
    family{.model_type = "mellum", .pairing = half_split, .layers = 28, .head_dim = 128, .window = 1024,
           .hidden = 2304, .heads = 32, .kv_heads = 4, .context = 131'072, .list = list_form::words,
           .block = R"({"full_attention":{"rope_type":"default","rope_theta":500000},"sliding_attention":{"rope_type":"default","rope_theta":10000}})"},
    family{.model_type = "mimo_v2_flash", .pairing = half_split, .layers = 48,
           .traits = honours_partial | window_sinks | window_kv_twice | own_value_dim, .head_dim = 192,
           .rule = layer_rule::full_first_and_ends_period, .period = 6, .window = 129, .hidden = 4096, .heads = 64,
           .kv_heads = 4, .context = 131'072, .value_dim = 128, .list = list_form::ones_have_windows,
           .block = R"({"full_attention":{"rope_type":"default","rope_theta":5000000,"partial_rotary_factor":0.334},"sliding_attention":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":0.334}})"},
    family{.model_type = "minimax", .pairing = half_split, .base = 1e6,
           .traits = honours_partial | absolute_width | others_recurrent, .rule = layer_rule::full_starts_period,
           .period = 2, .hidden = 4096, .heads = 32, .kv_heads = 8, .context = 131'072,
           .list = list_form::ones_attend},
    family{.model_type = "minimax_m3_vl", .pairing = half_split, .layers = 60, .base = 5e6,
           .traits = honours_partial, .head_dim = 128, .hidden = 6144, .heads = 64, .kv_heads = 4,
           .context = 524'288, .list = list_form::words},
    family{.model_type = "molmo2", .pairing = half_split, .layers = 36, .head_dim = 128, .hidden = 4096, .heads = 32,
           .kv_heads = 8, .context = 36'864, .list = list_form::scaled_indices},
    family{.model_type = "moshi", .pairing = half_split,
           .hidden = 4096, .heads = 32, .context = 3000},
    family{.model_type = "nanochat", .pairing = half_split, .layers = 12, .traits = backwards, .hidden = 768,
           .heads = 6},
    family{.model_type = "nemotron_h", .pairing = half_split, .layers = 52, .traits = no_rotation | others_recurrent,
           .head_dim = 128, .rule = layer_rule::none_attend, .hidden = 4096, .heads = 32, .kv_heads = 8,
           .context = 4096, .list = list_form::letters},
    family{.model_type = "olmo_hybrid", .pairing = half_split, .traits = others_recurrent,
           .rule = layer_rule::full_ends_period, .period = 4, .hidden = 3840, .heads = 30, .context = 65'536},
    family{.model_type = "paddleocr_vl", .pairing = half_split, .layers = 18, .base = 5e5, .traits = axes_chunked,
           .head_dim = 128, .hidden = 1024, .heads = 16, .kv_heads = 2, .context = 131'072,
           .sections = {16, 24, 24}},
    family{.model_type = "qwen3_omni_moe", .pairing = half_split, .layers = 28, .base = 1e6,
           .traits = axes_interleaved, .hidden = 2048, .heads = 28, .kv_heads = 4, .context = 32'768,
           .sections = {24, 20, 20}},
    family{.model_type = "recurrent_gemma", .pairing = half_split, .layers = 26,
           .traits = honours_partial | others_recurrent, .partial = 0.5, .window = 2048, .hidden = 2560, .heads = 10,
           .context = 8192, .list = list_form::periodic_words},
    family{.model_type = "sarvam_mla", .pairing = interleaved, .traits = latent | stated_pairing, .hidden = 4096,
           .heads = 64, .context = 4096, .nope_head_dim = 128, .rope_head_dim = 64, .value_dim = 128},
    family{.model_type = "sarvam_moe", .pairing = half_split, .layers = 19, .base = 8e6, .traits = honours_partial,
           .head_dim = 64, .hidden = 4096, .heads = 64, .kv_heads = 4, .context = 131'072},
    family{.model_type = "solar_open", .pairing = half_split, .layers = 48, .base = 1e6, .traits = honours_partial,
           .head_dim = 128, .hidden = 4096, .heads = 64, .kv_heads = 8, .context = 131'072},
    family{.model_type = "step3p5", .pairing = half_split, .layers = 45, .traits = honours_partial, .head_dim = 128,
           .hidden = 4096, .heads = 64, .kv_heads = 8, .context = 128'000, .list = list_form::words},
    family{.model_type = "youtu", .pairing = interleaved, .traits = latent | stated_pairing, .hidden = 2048,
           .heads = 16, .kv_heads = 16, .context = 131'072, .nope_head_dim = 128, .rope_head_dim = 64, .value_dim = 128},
    family{.model_type = "zamba2", .pairing = half_split, .layers = 54,
           .traits = others_recurrent | wide_heads | rope_if_told, .rule = layer_rule::none_attend, .hidden = 2560,
           .heads = 32, .context = 4096, .list = list_form::words},
    family{.model_type = "cohere2_moe", .pairing = interleaved, .layers = 40, .traits = local_only, .head_dim = 128,
           .rule = layer_rule::full_ends_period, .period = 4, .window = 4096, .hidden = 8192, .heads = 64,
           .context = 8192},
    family{.model_type = "axk1", .pairing = interleaved, .layers = 61, .traits = latent | stated_pairing,
           .hidden = 7168, .heads = 64, .kv_heads = 64, .context = 32'768, .nope_head_dim = 128, .rope_head_dim = 64,
           .value_dim = 128},
    family{.model_type = "axk2", .pairing = interleaved, .layers = 48, .traits = latent | indexed, .hidden = 2048,
           .heads = 32, .kv_heads = 32, .context = 131'072, .nope_head_dim = 64, .rope_head_dim = 32, .value_dim = 64},
    family{.model_type = "hy_v4", .pairing = half_split, .layers = 34, .traits = latent | indexed | sinks,
           .hidden = 2816, .heads = 32, .context = 262'144, .nope_head_dim = 192, .rope_head_dim = 64, .value_dim = 256},
    family{.model_type = "beam", .pairing = half_split, .layers = 52, .traits = local_only | needs_words,
           .head_dim = 128, .window = 512, .hidden = 5120, .heads = 48, .kv_heads = 8, .context = 8192,
           .list = list_form::words},
    family{.model_type = "glm5_next", .pairing = interleaved, .layers = 45,
           .traits = latent | indexed | no_rotation | others_recurrent, .rule = layer_rule::full_ends_period,
           .period = 4, .hidden = 4096, .heads = 64, .context = 1'048'576, .nope_head_dim = 192, .rope_head_dim = 64,
           .value_dim = 256},
    family{.model_type = "flint", .pairing = half_split, .layers = 49, .traits = local_only | sinks | needs_words,
           .head_dim = 128, .window = 513, .hidden = 2048, .heads = 32, .kv_heads = 4, .context = 262'144,
           .list = list_form::words},
    family{.model_type = "kolibri1", .pairing = half_split, .layers = 50, .traits = local_only, .head_dim = 128,
           .rule = layer_rule::full_ends_period, .period = 5, .window = 513, .hidden = 2560, .heads = 48,
           .kv_heads = 4, .context = 262'144},
    family{.model_type = "lara_mini", .pairing = half_split, .layers = 34, .traits = local_only | needs_words,
           .head_dim = 128, .window = 512, .hidden = 1024, .heads = 16, .kv_heads = 4, .context = 131'072,
           .list = list_form::words},
    family{.model_type = "muse_glimmer", .pairing = half_split, .layers = 52,
           .traits = needs_words | bases_are_switches | lists_bases, .head_dim = 128,
           .window = 2048, .hidden = 6656, .heads = 32, .kv_heads = 2, .context = 131'072, .list = list_form::words},
    family{.model_type = "muse_spark", .pairing = half_split, .layers = 62, .base = 5e5,
           .traits = needs_words | lists_bases,
           .head_dim = 64, .window = 2048, .hidden = 8192, .heads = 128, .kv_heads = 16, .context = 1'048'576,
           .list = list_form::words},
    family{.model_type = "lfm3", .pairing = half_split, .layers = 24, .base = 1e6,
           .traits = others_recurrent | needs_words, .head_dim = 128, .window = 256, .hidden = 2048, .heads = 16,
           .kv_heads = 4, .context = 128'000, .list = list_form::words,
           .block = R"({"sliding_attention":{"rope_type":"default","rope_theta":10000},"full_attention":{"rope_type":"proportional","rope_theta":1000000,"partial_rotary_factor":0.5}})"},
    family{.model_type = "granite_docling", .pairing = half_split, .layers = 28, .traits = multiplier,
           .hidden = 1024, .heads = 16, .kv_heads = 4, .context = 32'768},
    family{.model_type = "iquestcoder", .pairing = half_split, .layers = 80, .head_dim = 128, .hidden = 5120,
           .heads = 40, .kv_heads = 8, .context = 131'072},
    family{.model_type = "higgs_audio_v2", .pairing = half_split, .layers = 28, .base = 5e5, .head_dim = 128,
           .hidden = 3072, .heads = 24, .kv_heads = 8,
           .block = R"({"rope_type":"llama3","rope_theta":500000,"factor":32,"original_max_position_embeddings":1024,"low_freq_factor":0.125,"high_freq_factor":0.5})"},
    family{.model_type = "pocket_tts", .pairing = half_split, .layers = 6, .head_dim = 64, .hidden = 1024,
           .heads = 16, .context = 8192},
    family{.model_type = "gradium_phonon_tts", .pairing = half_split, .layers = 6, .head_dim = 64, .hidden = 768,
           .heads = 12, .context = 8192},
    family{.model_type = "esmc", .pairing = half_split, .layers = 80, .traits = bidirectional, .head_dim = 64,
           .hidden = 2560, .heads = 40},
    family{.model_type = "ultrabert", .pairing = half_split, .layers = 32,
           .traits = bidirectional | window_each_side | needs_words, .head_dim = 128, .window = 128, .hidden = 4096,
           .heads = 32, .context = 32'768, .list = list_form::words,
           .block = R"({"sliding_attention":{"rope_type":"default","rope_theta":10000},"full_attention":{"rope_type":"default","rope_theta":2560000}})"},
    family{.model_type = "modernbert-decoder", .pairing = half_split, .layers = 22, .base = 1.6e5,
           .traits = two_bases, .rule = layer_rule::full_starts_period, .period = 3, .window = 128,
           .local_base = 1e4, .hidden = 768, .heads = 12, .context = 8192},
};
// clang-format on

/// A model_type that is refused by name, because one encoding per layer cannot say what it does.
struct refused_type {
  std::string_view model_type;
  std::string_view reason;
};
inline constexpr std::array refused_types{
    refused_type{
        "mpnet",
        "it adds a learned table to the tokens and a bucketed bias to the scores, and a layer here has "
        "one of them"},
    refused_type{
        "deberta",
        "its scores have terms of content to position and position to content that are not described"},
    refused_type{"deberta-v2",
                 "its scores have terms of content to position and position to content that are not "
                 "described; the rows of its table are deberta_log_buckets"},
    refused_type{"xlnet", "its two streams of attention are not described"},
    refused_type{"transfo-xl", "its relative attention is not described"},
    refused_type{"big_bird", "its blocks of sparse attention are not described"},
    refused_type{"bigbird_pegasus", "its blocks of sparse attention are not described"},
    refused_type{"reformer", "its hashed attention and axial positions are not described"},
    refused_type{"funnel", "its relative attention is not described"},
    refused_type{
        "esm",
        "the encoder of proteins rotates or adds a table by a key that files leave out: build the rope by "
        "hand"},
    refused_type{"clip", "a tower of images and text, no language model: describe its text_config"},
    refused_type{"siglip", "a tower of images and text, no language model: describe its text_config"},
    refused_type{"vit", "a tower of images, no language model"},
    refused_type{"wav2vec2", "an encoder of sound with positions by convolution"},
    refused_type{"hubert", "an encoder of sound with positions by convolution"},
    refused_type{"mamba", "it has no attention and no positions"},
    refused_type{"mamba2", "it has no attention and no positions"},
    refused_type{"rwkv", "it has no attention and no positions"},
    refused_type{"mistral_large4_text", "its frequencies are learned, so that they are in the weights"},
    refused_type{"inkling_text", "its learned relative term is not described"},
    refused_type{"inkling2_text", "its learned relative term is not described"},
    refused_type{"inkling2_loop_text", "its learned relative term is not described"},
    refused_type{"hy_v4_vl_text", "its latent heads rotate by several axes, whose order is not described"},
    refused_type{"hrm_text", "its two stacks of layers run in cycles, which a list of layers does not say"},
    refused_type{"ctrl", "its sinusoids have an order of channels of their own, which is not described"},
    refused_type{"pegasus_x", "its encoder attends in blocks and to global tokens, which is not described"},
    refused_type{"sam3_lite_text_text_model",
                 "the text tower of an image model: its mixers are not described"},
    refused_type{"tipsv2_text_model", "the text tower of an image model: its sinusoids are not described"},
    refused_type{"doge", "its values add a learned mask to the scores"},
    refused_type{"jetmoe", "its experts choose the query heads of a token"},
    refused_type{"layoutlmv3", "its biases by places on a page are not described"},
    refused_type{"musicgen", "its decoder adds sinusoids to sums of codebooks: describe the parts by hand"},
};

// ---- Names ------------------------------------------------------------------------------------------------------------

/// The name under which a model_type stands in the tables, of those that files write in several ways.
[[nodiscard]] constexpr std::string_view canonical_type(std::string_view model_type) noexcept {
  struct alias {
    std::string_view written, meant;
  };
  constexpr std::array aliases{alias{"qwen2_5_omni_thinker", "qwen2_5_omni"},
                               alias{"RefinedWeb", "falcon"},
                               alias{"RefinedWebModel", "falcon"},
                               alias{"qwen3_omni_moe_thinker", "qwen3_omni_moe"},
                               alias{"lfm2_vl", "lfm2"},
                               alias{"longcat", "longcat_flash"},
                               alias{"step3p7", "step3p5"},
                               alias{"mimo_v2", "mimo_v2_flash"},
                               alias{"mimo", "qwen2"}};
  for (const alias& one : aliases)
    if (one.written == model_type) return one.meant;
  return model_type;
}

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

/// Every known model_type.
[[nodiscard]] inline std::vector<std::string_view> known_types() {
  std::vector<std::string_view> names;
  for (const family& one : families) names.push_back(one.model_type);
  for (const other_family& one : other_families) names.push_back(one.model_type);
  return names;
}

}  // namespace posenc::inline v0_2::detail::huggingface
