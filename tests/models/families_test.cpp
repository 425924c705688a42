// SPDX-License-Identifier: MIT
/// \file
/// Twenty families of open weights that are downloaded most: the numbers of one published config.json each (keys that
/// no reader looks at left out), and what attention then is, worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include <posenc/models.hpp>

#include "refusals.hpp"

namespace families_test {

using nlohmann::json;
using posenc::encoding_kind;
using posenc::index_t;

/// A published configuration and what follows from it.
struct published {
  const char* model;
  const char* config;
  index_t layers, heads, kv_heads, head_dim;
  encoding_kind kind = encoding_kind::rope;
  bool causal = true;
  double base = 0;         ///< of the last layer, where it rotates
  index_t rotary_dim = 0;  ///< of the last layer; 0: the whole head
  index_t windowed_layers = 0;
  posenc::position lookback = 0;  ///< of layers with windows
  double scale = 0;               ///< 0: 1/sqrt(head_dim)
  double attention_factor = 1;
};

const std::vector<published>& described() {
  static const std::vector<published> all{
      {"Llama-3.1-8B",
       R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"num_attention_heads":32,
       "num_hidden_layers":32,"num_key_value_heads":8,"max_position_embeddings":131072,"rope_theta":500000.0,"rope_scaling":{
       "factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"}})",
       32, 32, 8, 128, encoding_kind::rope, true, 5e5},
      {"TinyLlama-1.1B",
       R"({"model_type":"llama","hidden_size":2048,"num_attention_heads":32,"num_hidden_layers":22,
       "num_key_value_heads":4,"max_position_embeddings":2048,"rope_scaling":null,"rope_theta":10000.0})",
       22, 32, 4, 64, encoding_kind::rope, true, 1e4},
      {"SmolLM2-135M",
       R"({"model_type":"llama","hidden_size":576,"num_attention_heads":9,"num_hidden_layers":30,
       "num_key_value_heads":3,"max_position_embeddings":8192,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000})",
       30, 9, 3, 64, encoding_kind::rope, true, 1e5},
      {"Qwen2-7B-Instruct",
       R"({"model_type":"qwen2","hidden_size":3584,"num_attention_heads":28,"num_hidden_layers":28,
       "num_key_value_heads":4,"max_position_embeddings":32768,"max_window_layers":28,"rope_theta":1000000.0,
       "sliding_window":131072,"use_sliding_window":false})",
       28, 28, 4, 128, encoding_kind::rope, true, 1e6},
      {"Qwen3-0.6B",
       R"({"model_type":"qwen3","attention_bias":false,"head_dim":128,"hidden_size":1024,"num_attention_heads":16,
       "num_hidden_layers":28,"num_key_value_heads":8,"max_position_embeddings":40960,"max_window_layers":28,"rope_scaling":null,
       "rope_theta":1000000,"sliding_window":null,"use_sliding_window":false})",
       28, 16, 8, 128, encoding_kind::rope, true, 1e6},
      {"Qwen3-30B-A3B",
       R"({"model_type":"qwen3_moe","decoder_sparse_step":1,"head_dim":128,"hidden_size":2048,
       "num_attention_heads":32,"num_hidden_layers":48,"num_key_value_heads":4,"max_position_embeddings":40960,
       "max_window_layers":48,"mlp_only_layers":[],"num_experts":128,"rope_scaling":null,"rope_theta":1000000.0,
       "sliding_window":null,"use_sliding_window":false})",
       48, 32, 4, 128, encoding_kind::rope, true, 1e6},
      {"Qwen2-VL-7B-Instruct",
       R"({"model_type":"qwen2_vl","hidden_size":3584,"num_attention_heads":28,"num_hidden_layers":28,
       "num_key_value_heads":4,"max_position_embeddings":32768,"max_window_layers":28,"rope_theta":1000000.0,
       "sliding_window":32768,"use_sliding_window":false,"rope_scaling":{"type":"mrope","mrope_section":[16,24,24]},
       "vision_config":{"depth":32,"embed_dim":1280,"num_heads":16,"patch_size":14}})",
       28, 28, 4, 128, encoding_kind::rope, true, 1e6},
      {"Mistral-7B-v0.1",
       R"({"model_type":"mistral","hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,
       "num_key_value_heads":8,"max_position_embeddings":32768,"rope_theta":10000.0,"sliding_window":4096})",
       32, 32, 8, 128, encoding_kind::rope, true, 1e4, 0, 32, 4095},
      {"Mixtral-8x7B-v0.1",
       R"({"model_type":"mixtral","hidden_size":4096,"num_attention_heads":32,"num_hidden_layers":32,
       "num_key_value_heads":8,"max_position_embeddings":32768,"rope_theta":1000000.0,"sliding_window":null,
       "num_local_experts":8})",
       32, 32, 8, 128, encoding_kind::rope, true, 1e6},
      {"gemma-2-2b",
       R"({"model_type":"gemma2","attn_logit_softcapping":50.0,"cache_implementation":"hybrid","final_logit_softcapping":30.0,
       "head_dim":256,"hidden_size":2304,"max_position_embeddings":8192,"num_attention_heads":8,"num_hidden_layers":26,
       "num_key_value_heads":4,"query_pre_attn_scalar":256,"rope_theta":10000.0,"sliding_window":4096})",
       26, 8, 4, 256, encoding_kind::rope, true, 1e4, 0, 13, 4095, 1.0 / 16},
      // 34 layers of which each sixth sees everything, base 1e6 stretched by 8; the last layer has a window and base 1e4.
      {"gemma-3-4b-it",
       R"({"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","image_token_index":262144,
       "mm_tokens_per_image":256,"text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,
       "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},
       "vision_config":{"hidden_size":1152,"image_size":896,"num_attention_heads":16,"patch_size":14}})",
       34, 8, 4, 256, encoding_kind::rope, true, 1e4, 0, 29, 1023, 1.0 / 16},
      {"Phi-4-mini-instruct", nullptr, 32, 24, 8, 128, encoding_kind::rope, true, 1e4, 96, 32, 262143, 0,
       std::sqrt(1 + std::log(32.0) / std::log(4096.0))},
      {"phi-2", R"({"model_type":"phi","hidden_size":2560,"num_attention_heads":32,"num_hidden_layers":32,
       "num_key_value_heads":32,"max_position_embeddings":2048,"partial_rotary_factor":0.4,"qk_layernorm":false,
       "rope_scaling":null,"rope_theta":10000.0})",
       32, 32, 32, 80, encoding_kind::rope, true, 1e4, 32},
      // YaRN's 0.1 ln 40 + 1 on the scores, squared, and 1 on cos and sin.
      {"DeepSeek-V3", R"({"model_type":"deepseek_v3","hidden_size":7168,"kv_lora_rank":512,"q_lora_rank":1536,
       "max_position_embeddings":163840,"n_group":8,"n_routed_experts":256,"num_attention_heads":128,"num_hidden_layers":61,
       "num_key_value_heads":128,"num_nextn_predict_layers":1,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
       "rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,
       "original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000})",
       61, 128, 128, 192, encoding_kind::rope, true, 1e4, 64, 0, 0,
       std::pow(0.1 * std::log(40.0) + 1, 2) / std::sqrt(192.0)},
      {"gpt-oss-20b",
       R"({"model_type":"gpt_oss","head_dim":64,"hidden_size":2880,"initial_context_length":4096,
       "max_position_embeddings":131072,"num_attention_heads":64,"num_hidden_layers":24,"num_key_value_heads":8,
       "num_local_experts":32,"rope_theta":150000,"sliding_window":128,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,
       "factor":32.0,"original_max_position_embeddings":4096,"rope_type":"yarn","truncate":false}})",
       24, 64, 8, 64, encoding_kind::rope, true, 1.5e5, 0, 12, 127, 0, 0.1 * std::log(32.0) + 1},
      {"gpt2",
       R"({"model_type":"gpt2","n_ctx":1024,"n_embd":768,"n_head":12,"n_layer":12,"n_positions":1024})", 12,
       12, 12, 64, encoding_kind::learned_absolute},
      {"bert-base-uncased (and all-MiniLM-L6-v2)",
       R"({"model_type":"bert","hidden_size":768,"max_position_embeddings":512,
       "num_attention_heads":12,"num_hidden_layers":12,"position_embedding_type":"absolute","type_vocab_size":2})",
       12, 12, 12, 64, encoding_kind::learned_absolute, false},
      {"xlm-roberta-base", R"({"model_type":"xlm-roberta","hidden_size":768,"max_position_embeddings":514,
       "num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":1,"position_embedding_type":"absolute"})",
       12, 12, 12, 64, encoding_kind::learned_absolute, false},
      {"distilbert-base-uncased",
       R"({"model_type":"distilbert","dim":768,"max_position_embeddings":512,"n_heads":12,
       "n_layers":6,"sinusoidal_pos_embds":false})",
       6, 12, 12, 64, encoding_kind::learned_absolute, false},
      // 22 layers of which each third sees everything, by base 160000; half a window of 128 to either side.
      {"ModernBERT-base",
       R"({"model_type":"modernbert","global_attn_every_n_layers":3,"global_rope_theta":160000.0,
       "hidden_size":768,"local_attention":128,"local_rope_theta":10000.0,"max_position_embeddings":8192,
       "num_attention_heads":12,"num_hidden_layers":22})",
       22, 12, 12, 64, encoding_kind::rope, false, 1.6e5, 0, 14, 64},
      {"opt-125m",
       R"({"model_type":"opt","hidden_size":768,"max_position_embeddings":2048,"num_attention_heads":12,
       "num_hidden_layers":12,"word_embed_proj_dim":768,"do_layer_norm_before":true})",
       12, 12, 12, 64, encoding_kind::learned_absolute},
  };
  return all;
}

/// Phi-4-mini's LongRoPE has 48 factors each; of the short ones all are 1.
json phi4_mini() {
  json config =
      json::parse(R"({"model_type":"phi3","hidden_size":3072,"num_attention_heads":24,"num_hidden_layers":32,
      "num_key_value_heads":8,"max_position_embeddings":131072,"original_max_position_embeddings":4096,
      "partial_rotary_factor":0.75,"rope_theta":10000.0,"sliding_window":262144,"rope_scaling":{"type":"longrope"}})");
  config["rope_scaling"]["short_factor"] = std::vector<double>(48, 1.0);
  config["rope_scaling"]["long_factor"] = std::vector<double>(48, 47.77);
  return config;
}

TEST(families, of_open_weights_are_described) {
  ASSERT_GE(described().size(), 20u);
  for (const published& one : described()) {
    SCOPED_TRACE(one.model);
    const json config = one.config == nullptr ? phi4_mini() : json::parse(one.config);
    const posenc::model_description model = posenc::describe_huggingface(config);
    EXPECT_THAT(model.warnings, testing::Each(testing::Not(testing::HasSubstr("not read"))));
    EXPECT_EQ(model.layers, one.layers);
    index_t layers = 0, windowed = 0;
    for (const auto& encoding : model.encodings) {
      const auto count = static_cast<index_t>(encoding.layers.size());
      layers += count;
      if (encoding.lookback) windowed += count;
      EXPECT_EQ(encoding.heads, one.heads);
      EXPECT_EQ(encoding.kv_heads, one.kv_heads);
      EXPECT_EQ(encoding.head_dim, one.head_dim);
      EXPECT_EQ(encoding.kind(), one.kind);
      EXPECT_EQ(encoding.causal, one.causal);
      const double scale = one.scale == 0 ? 1 / std::sqrt(static_cast<double>(one.head_dim)) : one.scale;
      EXPECT_NEAR(encoding.softmax_scale.value_or(0), scale, 1e-12 * scale);
      if (encoding.lookback) {
        EXPECT_EQ(encoding.lookback, one.lookback);
      }
      if (one.kind != encoding_kind::rope) continue;
      const posenc::rope_description& rope = encoding.rope();
      EXPECT_EQ(*rope.options.rotary_dim, one.rotary_dim == 0 ? one.head_dim : one.rotary_dim);
      if (encoding.layers.back() + 1 == model.layers) {
        EXPECT_EQ(rope.options.base, one.base);
      }
      EXPECT_NEAR(posenc::make_rope<double>(rope, 100).attention_factor(), one.attention_factor, 1e-12);
    }
    EXPECT_EQ(layers, one.layers);
    EXPECT_EQ(windowed, one.windowed_layers);
  }
}

/// Encoders with decoders, and one that is refused: with these the list has twenty-five.
TEST(families, with_two_sides_or_refused) {
  const auto t5 =
      posenc::parse_huggingface(R"({"model_type":"t5","d_ff":2048,"d_kv":64,"d_model":512,"num_heads":8,
      "num_layers":6,"num_decoder_layers":6,"relative_attention_num_buckets":32,"is_encoder_decoder":true})");
  ASSERT_EQ(t5.encodings.size(), 2u);
  EXPECT_EQ(t5.encodings[0].kind(), encoding_kind::t5_bias);
  EXPECT_EQ(t5.encodings[1].softmax_scale, 1);
  const auto whisper =
      posenc::parse_huggingface(R"({"model_type":"whisper","d_model":384,"decoder_attention_heads":6,
      "decoder_layers":4,"encoder_attention_heads":6,"encoder_layers":4,"max_source_positions":1500,
      "max_target_positions":448,"num_hidden_layers":4,"is_encoder_decoder":true})");
  EXPECT_EQ(whisper.encodings.at(0).kind(), encoding_kind::sinusoidal);
  EXPECT_EQ(whisper.encodings.at(1).kind(), encoding_kind::learned_absolute);
  EXPECT_REFUSAL(posenc::parse_huggingface(R"({"model_type":"mpnet","hidden_size":768})"),
                 std::invalid_argument, "a learned table to the tokens and a bucketed bias");
  EXPECT_REFUSAL(posenc::parse_huggingface(R"({"model_type":"clip","projection_dim":512})"),
                 std::invalid_argument, "a tower of images and text");
}

}  // namespace families_test
