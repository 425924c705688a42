// SPDX-License-Identifier: MIT
/// \file
/// What the name of a key says: whether leaving it unread may change the answer. One list for config.json and GGUF.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace posenc::inline v0_2::detail {

template <std::size_t N>
[[nodiscard]] constexpr bool has_word_of(std::string_view key,
                                         const std::array<std::string_view, N>& words) noexcept {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view one) { return key.find(one) != key.npos; });
}

// clang-format off
/// Names of norms, training, experts and memory that contain a word of those below and change nothing about positions.
inline constexpr auto harmless_words = std::to_array<std::string_view>({
    "norm", "router", "expert", "loss", "chunk_size_feed_forward", "mamba", "kernel", "linear_num", "linear_key_head_dim",
    "linear_value_head_dim", "index_head_dim", "index_n_heads", "mlp_layer_types", "decoder_sparse_step",
    "cross_attention_hidden_size", "add_cross_attention", "activation_sparsity", "shard", "final_logit", "position_id",
    "time_step", "temporal_patch", "initial_context_length", "pooling", "mtp", "qk_bias"});
/// Words for positions, widths, layers and masks.
inline constexpr auto alarming_words = std::to_array<std::string_view>({
    "rope", "rotary", "nope", "qk_", "window", "sliding", "sink", "theta", "alibi", "local_", "global_", "chunk",
    "position", "bidirectional", "causal", "relative_", "cross_attention", "layer_types", "block_type", "pattern",
    "head_dim", "kv_heads", "key_value_heads", "query_groups", "kv_lora_rank", "attn_scal", "attention_scal",
    "attention_multiplier", "softmax_scale", "query_pre_attn", "softcap", "soft_cap", "compress", "sparse",
    "index_topk", "layer_group", "attn_idxs", "attn_layer", "attention_layer", "linear_attn", "interval",
    "temperature", "attn_type", "attention_type", "attention_value", "is_decoder", "kv_channels", "heads_per_layer",
    "radius", "prefix_lm", "multi_query", "context_length",
    "key_multiplier", "attn_logit", "attn_temperature", "attn_factor", "attention."});  // GGUF writes attention.key_length
/// Words for what no attention depends on: the only ones that a key of an unknown model type may have unread.
inline constexpr auto known_elsewhere = std::to_array<std::string_view>({
    "token_i", "vocab", "dropout", "pdrop", "_eps", "epsilon", "_act", "activation", "initializer", "init_std", "label", "dtype", "_name_or_path",
    "architectures", "auto_map", "transformers_version", "library_name", "return_dict", "output_attentions",
    "output_hidden_states", "output_router", "use_cache", "expert", "moe", "router", "mlp", "topk_", "n_group",
    "norm", "intermediate_size", "ffn", "tie_", "chunk_size_feed_forward", "is_encoder_decoder", "bias",
    "problem_type", "task_specific", "finetuning", "pretraining_tp", "quantization", "loss", "residual_multiplier",
    "embedding_multiplier", "logits_scaling", "logit_scale", "lm_head", "scale_emb", "dim_model_base", "scale_depth",
    "routed_scaling", "first_k_dense_replace", "parallel_residual", "torchscript", "gradient_checkpointing",
    "_attn_implementation", "attn_implementation", "flash_attn", "hidden_size", "mamba", "ssm", "conv", "linear_",
    "kernel", "time_step", "mtp", "nextn", "vision", "image", "video", "audio", "projector", "model_type", "version",
    "lora_rank", "pooling", "pooler", "classifier", "sparse_step", "jitter", "swiglu", "unsloth", "rescale_prenorm"});
// clang-format on

/// True for a key whose name speaks of positions, widths, layers or masks, so that leaving it unread may change the
/// answer.
[[nodiscard]] constexpr bool speaks_of_positions(std::string_view key) noexcept {
  return !has_word_of(key, harmless_words) && has_word_of(key, alarming_words);
}

/// True for a key that attention is known not to depend on, whatever the model.
[[nodiscard]] constexpr bool is_beside_attention(std::string_view key) noexcept {
  return !speaks_of_positions(key) && has_word_of(key, known_elsewhere);
}

/// Names of keys for a sentence, of which the first few are kept.
class key_list {
 public:
  void add(std::string name) {
    if (++count_ <= shown) names_.push_back(std::move(name));
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  /// "key a" or "keys a, b and 3 more".
  [[nodiscard]] std::string words() const {
    std::string sentence = count_ == 1 ? "key " : "keys ";
    for (std::size_t n = 0; n < names_.size(); ++n) sentence.append(n == 0 ? "" : ", ").append(names_[n]);
    if (count_ > shown) sentence.append(" and ").append(std::to_string(count_ - shown)).append(" more");
    return sentence;
  }

 private:
  static constexpr std::size_t shown = 8;
  std::vector<std::string> names_;
  std::size_t count_ = 0;
};

}  // namespace posenc::inline v0_2::detail
