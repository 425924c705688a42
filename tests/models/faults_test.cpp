// SPDX-License-Identifier: MIT
/// \file
/// What was described wrongly or without a word once, each with its right value, worked out from the model classes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <posenc/models.hpp>

#include "gguf_bytes.hpp"
#include "refusals.hpp"

namespace faults_test {

using nlohmann::json;
using posenc::encoding_description;
using posenc::encoding_kind;
using posenc::index_t;
using posenc::model_description;
using posenc_tests::file_of;

model_description read(const json& config, const posenc::huggingface_options& options = {}) {
  return posenc::parse_huggingface(config.dump(), options);
}
const encoding_description& layer(const model_description& model, index_t index) {
  for (const auto& one : model.encodings)
    for (const index_t i : one.layers)
      if (i == index) return one;
  throw std::runtime_error("no such layer");
}
double frequency(const encoding_description& one, std::size_t pair,
                 std::optional<posenc::position> length = {}) {
  return posenc::make_rope<double>(one.rope(), length).inv_freq()[pair];
}
std::string all_warnings(const model_description& model) {
  std::string all;
  for (const std::string& one : model.warnings) all += one + "\n";
  return all;
}
#define EXPECT_WARNING(model, words) EXPECT_THAT(all_warnings(model), ::testing::HasSubstr(words))

json plain(const std::string& type) {
  return {{"model_type", type},       {"hidden_size", 64},      {"num_attention_heads", 4},
          {"num_key_value_heads", 4}, {"num_hidden_layers", 4}, {"max_position_embeddings", 4096},
          {"rope_theta", 10000.0}};
}

json glm5(const std::string& type) {
  return {{"model_type", type},
          {"rope_interleave", true},
          {"head_dim", 64},
          {"qk_nope_head_dim", 192},
          {"qk_rope_head_dim", 64},
          {"num_attention_heads", 64},
          {"hidden_size", 6144},
          {"num_hidden_layers", 3},
          {"max_position_embeddings", 202752},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
}

TEST(faults, a1_latent_keys_of_an_unknown_type_mean_latent_attention) {
  for (const char* type : {"glm_moe_dsa", "glm_of_tomorrow"}) {
    const model_description model = read(glm5(type));
    const encoding_description& one = model.encodings.at(0);
    EXPECT_EQ(one.head_dim, 256);
    EXPECT_EQ(one.rope().options.rotary_dim, 64);
    EXPECT_EQ(one.rope().options.rotary_offset, 192);
    EXPECT_EQ(one.rope().options.pairing, posenc::pairing::interleaved);
    EXPECT_EQ(one.softmax_scale, 0.0625);
    EXPECT_NEAR(frequency(one, 31), 1.5399265e-6, 1e-13);
  }
  json half_said = glm5("glm_of_tomorrow");
  half_said.erase("qk_nope_head_dim");
  EXPECT_REFUSAL(read(half_said), std::invalid_argument, "needs the key qk_nope_head_dim");
}

TEST(faults, a2_ling_attends_in_the_last_layer_of_each_group) {
  json ling = glm5("bailing_hybrid");
  ling.update({{"num_hidden_layers", 42},
               {"layer_group_size", 6},
               {"partial_rotary_factor", 0.5},
               {"qk_nope_head_dim", 128},
               {"head_dim", 128},
               {"hidden_size", 2560},
               {"num_attention_heads", 32}});
  ling["rope_parameters"]["rope_theta"] = 6e6;
  const model_description model = read(ling);
  std::vector<index_t> attending;
  for (const auto& one : model.encodings)
    if (one.attends) attending.insert(attending.end(), one.layers.begin(), one.layers.end());
  EXPECT_EQ(attending, (std::vector<index_t>{5, 11, 17, 23, 29, 35, 41}));
  const encoding_description& one = layer(model, 5);
  EXPECT_EQ(one.head_dim, 192);
  EXPECT_EQ(one.rope().options.rotary_dim, 64);
  EXPECT_NEAR(*one.softmax_scale, 0.0721688, 1e-7);
  EXPECT_NEAR(frequency(one, 1), 0.61402036, 1e-8);
  ling["model_type"] = "ling_of_tomorrow";
  EXPECT_REFUSAL(read(ling), std::invalid_argument, "layer_group_size");
}

TEST(faults, a3_layer_types_of_an_unknown_type_have_their_window) {
  json config = plain("brand_new");
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["sliding_window"] = 512;
  posenc::huggingface_options stated{.pairing = posenc::pairing::half_split, .causal = true};
  // Cohere2, EXAONE and others write just this and rotate the layers with windows alone; gpt-oss adds sinks.
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "Some classes rotate only one of the two");
  {
    json nested = config;
    nested.erase("rope_theta");
    const json block = {{"rope_type", "default"}, {"rope_theta", 1e4}};
    nested["rope_parameters"] = {{"sliding_attention", block}, {"full_attention", block}};
    EXPECT_EQ(layer(read(nested, stated), 0).lookback, 511);  // a block for each says that each rotates
    nested["rope_parameters"]["full_attention"] = nullptr;
    EXPECT_REFUSAL(read(nested, stated), std::invalid_argument, "rope_parameters.full_attention is null");
  }
  stated.all_layers_rotate = true;
  const model_description model = read(config, stated);
  EXPECT_EQ(layer(model, 0).lookback, 511);
  EXPECT_EQ(layer(model, 1).lookback, std::nullopt);
  config.erase("layer_types");
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "which layers it is for is not said");
  config["use_sliding_window"] = false;
  EXPECT_EQ(layer(read(config, stated), 0).lookback, std::nullopt);
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config.erase("sliding_window");
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "there is no sliding_window");
}

TEST(faults, a4_a_theta_of_zero_is_no_rotation) {
  json config = plain("granite_swa");
  config["layer_rope_theta"] = {5e5, 5e5, 5e5, 0};
  const model_description model = read(config);
  EXPECT_EQ(layer(model, 0).rope().options.base, 5e5);
  EXPECT_EQ(layer(model, 3).kind(), encoding_kind::none);
  EXPECT_TRUE(layer(model, 3).attends);
  config["layer_rope_theta"] = {5e5, 5e5};
  EXPECT_REFUSAL(read(config), std::invalid_argument, "layer_rope_theta lists 2 layers");
}

TEST(faults, a5_one_original_length_beside_the_blocks_counts_for_all) {
  const json yarn = {
      {"rope_type", "yarn"},          {"rope_theta", 5e5},      {"factor", 64.0}, {"beta_fast", 64.0},
      {"partial_rotary_factor", 0.5}, {"attention_factor", 1.0}};
  json config = plain("laguna");
  config.erase("rope_theta");
  config.update({{"head_dim", 128},
                 {"max_position_embeddings", 262144},
                 {"num_hidden_layers", 2},
                 {"layer_types", {"full_attention", "sliding_attention"}}});
  config["rope_parameters"] = {{"full_attention", yarn},
                               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
                               {"original_max_position_embeddings", 4096}};
  const model_description model = read(config);
  const encoding_description& one = layer(model, 0);
  EXPECT_EQ(one.rope().options.rotary_dim, 64);
  EXPECT_NEAR(frequency(one, 12), 0.0027243904, 1e-10);
  EXPECT_NEAR(frequency(one, 16), 2.2097087e-5, 1e-12);
  EXPECT_EQ(posenc::make_rope<double>(one.rope()).attention_factor(), 1);
  EXPECT_EQ(all_warnings(model).find("original_max"), std::string::npos) << all_warnings(model);
}

TEST(faults, a6_deepseek_v4_turns_a_tail_by_one_of_two_ropes) {
  json config = {{"model_type", "deepseek_v4"},
                 {"head_dim", 512},
                 {"qk_rope_head_dim", 64},
                 {"rope_theta", 1e4},
                 {"compress_rope_theta", 160000},
                 {"compress_ratios", {0, 0, 4, 128, 0}},
                 {"num_hidden_layers", 5},
                 {"num_attention_heads", 64},
                 {"num_key_value_heads", 1},
                 {"hidden_size", 4096},
                 {"max_position_embeddings", 1048576},
                 {"sliding_window", 128}};
  config["rope_scaling"] = {{"type", "yarn"},
                            {"factor", 16},
                            {"beta_fast", 32},
                            {"beta_slow", 1},
                            {"original_max_position_embeddings", 65536}};
  const model_description model = read(config);
  for (const index_t i : {0, 2, 3}) {
    const encoding_description& one = layer(model, i);
    EXPECT_EQ(one.head_dim, 512);
    EXPECT_EQ(one.rope().options.rotary_dim, 64);
    EXPECT_EQ(one.rope().options.rotary_offset, 448);
    EXPECT_DOUBLE_EQ(*one.softmax_scale, 1 / std::sqrt(512.0));
    EXPECT_EQ(posenc::make_rope<double>(one.rope()).attention_factor(), 1);
  }
  EXPECT_NEAR(frequency(layer(model, 0), 15), std::pow(1e4, -15.0 / 32), 1e-15);
  EXPECT_NEAR(frequency(layer(model, 2), 15), 0.0036355386, 1e-10);
  const posenc::model whole(model);
  EXPECT_EQ(whole.layer(0).options.window.lookback, 127);
  EXPECT_REFUSAL(whole.layer(2), std::invalid_argument, "compresses");
  config["model_type"] = "deepseek_of_tomorrow";
  EXPECT_REFUSAL(read(config, {.pairing = posenc::pairing::interleaved}), std::invalid_argument, "posenc: ");
}

TEST(faults, a7_images_that_see_both_ways_are_reported) {
  for (const char* type : {"gemma3_text", "gemma4_text"}) {
    json config = plain(type);
    config.erase("rope_theta");
    config["use_bidirectional_attention"] = "vision";
    const model_description model = read(config);
    EXPECT_TRUE(model.encodings.at(0).causal);
    EXPECT_TRUE(model.encodings.at(0).image_blocks);
    EXPECT_WARNING(model, "use_bidirectional_attention is vision");
    config["use_bidirectional_attention"] = true;
    EXPECT_FALSE(read(config).encodings.at(0).causal);
  }
}

TEST(faults, a8_nomic_stretches_its_base_with_the_sequence) {
  json config = {{"model_type", "nomic_bert"},
                 {"n_embd", 768},
                 {"n_head", 12},
                 {"n_layer", 12},
                 {"n_positions", 8192},
                 {"rotary_emb_base", 1000},
                 {"rotary_emb_fraction", 1.0},
                 {"rotary_emb_interleaved", false},
                 {"rotary_scaling_factor", 2},
                 {"max_trained_positions", 2048}};
  const model_description model = read(config);
  const encoding_description& one = model.encodings.at(0);
  EXPECT_NEAR(frequency(one, 31, 4096), 0.000413645920251, 1e-15);
  EXPECT_NEAR(frequency(one, 31, 2048), std::pow(1000.0, -62.0 / 64), 1e-15);
  config["rotary_scaling_factor"] = nullptr;
  EXPECT_NEAR(frequency(read(config).encodings.at(0), 31), std::pow(1000.0, -62.0 / 64), 1e-15);
}

TEST(faults, a9_two_thetas_are_named) {
  json config = plain("llama");
  config["rope_theta"] = 500000;
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000}};
  const model_description model = read(config);
  EXPECT_EQ(model.encodings.at(0).rope().options.base, 10000);
  EXPECT_WARNING(model, "rope_theta is 5e+05 at the top and 10000 in rope_parameters.rope_theta");
}

TEST(faults, a10_warnings_reach_the_caller_of_the_shortest_function) {
  json config = plain("llama");
  config.erase("rope_theta");
  config["rope_scaling"] = {{"type", "linear"},
                            {"rope_type", "yarn"},
                            {"factor", 4.0},
                            {"trunctae", false},
                            {"original_max_position_embeddings", 1024}};
  const auto path = std::filesystem::path(testing::TempDir()) / "posenc_a10.json";
  std::ofstream(path) << config.dump();
  std::vector<std::string> warnings;
  (void)posenc::load_rope<float>(path, {.warnings = &warnings});
  std::string all;
  for (const std::string& one : warnings) all += one + "\n";
  for (const char* words :
       {"rope_scaling.trunctae", "rope_theta is missing: 10000", "rope_type is yarn and type is linear"})
    EXPECT_THAT(all, ::testing::HasSubstr(words));
  EXPECT_EQ(posenc::read_model(path).warnings(), warnings);
  std::filesystem::remove(path);
}

TEST(faults, a11_mobilebert_attends_in_its_bottleneck) {
  const json config = {{"model_type", "mobilebert"}, {"hidden_size", 512},
                       {"true_hidden_size", 128},    {"num_attention_heads", 4},
                       {"num_hidden_layers", 24},    {"max_position_embeddings", 512}};
  EXPECT_NEAR(*read(config).encodings.at(0).softmax_scale, 0.17678, 1e-5);
  EXPECT_EQ(read(config).encodings.at(0).head_dim, 32);
}

TEST(faults, a12_masks_that_files_state) {
  json longformer = {{"model_type", "longformer"}, {"attention_window", 512},
                     {"hidden_size", 768},         {"num_attention_heads", 12},
                     {"num_hidden_layers", 2},     {"max_position_embeddings", 4098}};
  EXPECT_EQ(read(longformer).encodings.at(0).lookback, 256);
  EXPECT_EQ(read(longformer).encodings.at(0).lookahead, 256);
  longformer["attention_window"] = {32, 64};
  EXPECT_EQ(layer(read(longformer), 0).lookback, 16);
  EXPECT_EQ(layer(read(longformer), 1).lookback, 32);

  json longt5 = {
      {"model_type", "longt5"}, {"local_radius", 127}, {"num_layers", 2}, {"num_heads", 4}, {"d_kv", 8}};
  const model_description radius = read(longt5);
  EXPECT_EQ(radius.encodings.at(0).lookback, 127);
  EXPECT_EQ(radius.encodings.at(0).lookahead, 127);
  EXPECT_EQ(radius.encodings.at(1).lookback, std::nullopt);
  longt5["encoder_attention_type"] = "transient-global";
  EXPECT_REFUSAL(read(longt5), std::invalid_argument, "encoder_attention_type transient-global");

  json mllama = plain("mllama_text_model");
  mllama["cross_attention_layers"] = {1, 3};
  const model_description llama = read(mllama);
  EXPECT_EQ(layer(llama, 1).layer_type, "cross_attention");
  EXPECT_EQ(layer(llama, 1).kind(), encoding_kind::none);
  EXPECT_FALSE(layer(llama, 1).causal);
  EXPECT_EQ(layer(llama, 2).kind(), encoding_kind::rope);

  for (const char* type : {"bert", "roberta", "ernie", "megatron-bert", "electra"}) {
    json bert = {{"model_type", type},
                 {"hidden_size", 64},
                 {"num_attention_heads", 4},
                 {"num_hidden_layers", 2},
                 {"max_position_embeddings", 512}};
    EXPECT_FALSE(read(bert).encodings.at(0).causal) << type;
    bert["is_decoder"] = true;
    EXPECT_TRUE(read(bert).encodings.at(0).causal) << type;
  }

  json gemma = plain("gemma");
  gemma["use_bidirectional_attention"] = true;
  const model_description paligemma = read(gemma);
  EXPECT_TRUE(paligemma.encodings.at(0).causal);
  EXPECT_TRUE(paligemma.encodings.at(0).prefix_lm);
  EXPECT_WARNING(paligemma, "posenc::prefix_lm");
}

TEST(faults, a13_heads_of_falcon_and_mpt) {
  const json falcon = {{"model_type", "falcon"}, {"hidden_size", 4544}, {"num_attention_heads", 71},
                       {"num_hidden_layers", 2}, {"multi_query", true}, {"max_position_embeddings", 2048}};
  EXPECT_EQ(read(falcon).encodings.at(0).kv_heads, 1);
  json grouped = falcon;
  grouped.update({{"hidden_size", 8192},
                  {"num_attention_heads", 128},
                  {"new_decoder_architecture", true},
                  {"num_kv_heads", 8}});
  EXPECT_EQ(read(grouped).encodings.at(0).kv_heads, 8);
  json alibi = falcon;
  alibi.update({{"alibi", true}, {"multi_query", false}});
  EXPECT_EQ(read(alibi).encodings.at(0).kv_heads, 71);
  const json mpt = {{"model_type", "mpt"},
                    {"d_model", 64},
                    {"n_heads", 8},
                    {"n_layers", 2},
                    {"attn_config", {{"kv_n_heads", 2}}}};
  EXPECT_EQ(read(mpt).encodings.at(0).kv_heads, 2);
  EXPECT_EQ(read(mpt).encodings.at(0).heads, 8);
}

TEST(faults, a14_gemma_3_has_no_softcap) {
  json config = plain("gemma3_text");
  config.erase("rope_theta");
  config["attn_logit_softcapping"] = 30.0;
  const model_description model = read(config);
  EXPECT_EQ(model.encodings.at(0).softcap, 0);
  EXPECT_WARNING(model, "not read: the key attn_logit_softcapping");
}

TEST(faults, a19_defaults_of_the_class) {
  const json config = {
      {"model_type", "gemma3"},
      {"text_config", {{"model_type", "gemma3_text"}, {"hidden_size", 2560}, {"num_hidden_layers", 34}}}};
  EXPECT_EQ(read(config).heads, 8);
  EXPECT_EQ(read(config).kv_heads, 4);
  const model_description bert = read({{"model_type", "bert"}});
  EXPECT_EQ(bert.heads, 12);
  EXPECT_EQ(bert.layers, 12);
  EXPECT_EQ(bert.encodings.at(0).head_dim, 64);
  EXPECT_WARNING(bert, "num_attention_heads is missing: 12 is the default of bert");
}

TEST(guard, keys_that_nobody_reads_and_that_speak_of_positions) {
  json config = plain("brand_new");
  const posenc::huggingface_options stated{.pairing = posenc::pairing::half_split};
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "whether its tokens see what comes after them");
  config["architectures"] = {"BrandNewForMaskedLM"};
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "whether its tokens see what comes after them");
  config["architectures"] = {"BrandNewForCausalLM"};
  ASSERT_EQ(read(config, stated).warnings.size(), 1u);
  EXPECT_WARNING(read(config, stated), "brand_new is not known: described as a causal decoder");
  // What says nothing about positions does not disturb.
  config.update({{"vocab_size", 32000},
                 {"attention_dropout", 0.0},
                 {"use_qk_norm", true},
                 {"hidden_act", "silu"},
                 {"sparse_thing", nullptr},
                 {"use_local_thing", false}});
  config["local_list"] = json::array();
  EXPECT_EQ(read(config, stated).warnings.size(), 1u);
  for (const char* key :
       {"rope_ratio", "local_attention_span", "attention_sinks", "window_of_layers",
        "full_attention_interval_x", "global_layers", "qk_scaling", "nope_layers", "alibi_bias",
        "chunked_prefix", "partial_window", "kv_channels_x", "compress_every", "attn_logit_softcapping"}) {
    json with = config;
    with[key] = 2;
    EXPECT_REFUSAL(read(with, stated), std::invalid_argument, key);
    with["model_type"] = "llama";
    EXPECT_WARNING(read(with), std::string("not read: the key ") + key);
  }
  // A key that says nothing that is known here may say anything; a known type may have keys of its own.
  for (const char* key :
       {"H_cycles", "num_layers_per_stack", "kv_channels", "softplus_beta", "final_logit_softcapping"}) {
    json with = config;
    with[key] = 2;
    EXPECT_REFUSAL(read(with, stated), std::invalid_argument, key);
    with["model_type"] = "llama";
    EXPECT_TRUE(read(with).warnings.empty()) << key;
  }
  config["is_causal"] = false;  // false is an answer here
  EXPECT_REFUSAL(read(config, stated), std::invalid_argument, "is_causal");
  json many = plain("brand_new");
  many["architectures"] = {"BrandNewForCausalLM"};
  for (int n = 0; n < 20; ++n) many["window_" + std::to_string(n)] = n;
  EXPECT_REFUSAL(read(many, stated), std::invalid_argument, "and 12 more");
}

TEST(guard, keys_beside_the_text_model_count_too) {
  json config = {{"model_type", "new_vision"}, {"text_config", plain("llama")}};
  config["text_config"]["model_type"] = "llama";
  EXPECT_TRUE(read(config).warnings.empty());
  config["sliding_window"] = 7;
  EXPECT_WARNING(read(config), "not read: the key sliding_window");
}

TEST(guard, refusals_name_the_file_and_the_nearest_types) {
  const auto path = std::filesystem::path(testing::TempDir()) / "posenc_guard.json";
  std::ofstream(path) << plain("mistrall").dump();
  EXPECT_REFUSAL(posenc::read_model(path), std::invalid_argument,
                 "posenc_guard.json (mistrall): this model_type is not known");
  EXPECT_REFUSAL(posenc::read_model(path), std::invalid_argument, "nearest in name are mistral, ");
  std::ofstream(path) << "{\"model_type\": 3}";
  EXPECT_REFUSAL(posenc::read_model(path), posenc::format_error, "posenc_guard.json");
  std::filesystem::remove(path);
  EXPECT_REFUSAL(read({{"model_type", "mpnet"}}), std::invalid_argument,
                 "a learned table to the tokens and a bucketed bias");
}

TEST(faults, a15_gguf_baichuan_of_forty_blocks_has_alibi) {
  const auto baichuan = [](std::uint32_t blocks) {
    return file_of("baichuan").shape(blocks, 40, 5120, 4096).number("rope.freq_base", 1e4f).read();
  };
  EXPECT_EQ(baichuan(32).encodings.at(0).kind(), encoding_kind::rope);
  const model_description large = baichuan(40);
  ASSERT_EQ(large.encodings.at(0).kind(), encoding_kind::alibi);
  EXPECT_EQ(std::get<posenc::alibi_description>(large.encodings[0].parameters).options.bias_max, 8);
  EXPECT_TRUE(large.encodings[0].causal);
}

TEST(faults, a15_gguf_granite_says_whether_it_rotates) {
  for (const char* name : {"granite", "granitemoe", "granitehybrid"})
    for (const bool rotates : {false, true}) {
      file_of file(name);
      file.shape(2, 4, 64, 4096).number("rope.freq_base", 1e4f);
      file.boolean("rope.scaling.finetuned", rotates);
      EXPECT_EQ(file.read().encodings.at(0).kind(), rotates ? encoding_kind::rope : encoding_kind::none)
          << name;
    }
  file_of llama("llama");
  llama.shape(2, 4, 64, 4096).number("rope.freq_base", 1e4f);
  llama.boolean("rope.scaling.finetuned", false);
  EXPECT_EQ(llama.read().encodings.at(0).kind(), encoding_kind::rope);
  EXPECT_TRUE(llama.read().warnings.empty());
}

TEST(faults, a15_gguf_grok_caps_its_scores) {
  file_of file("grok");
  file.shape(2, 48, 6144, 8192).number("rope.freq_base", 1e4f);
  EXPECT_EQ(file.read().encodings.at(0).softcap, 30);
  EXPECT_DOUBLE_EQ(*file.read().encodings.at(0).softmax_scale, 1 / std::sqrt(128.0));
  file.number("attn_logit_softcapping", 20);
  EXPECT_EQ(file.read().encodings.at(0).softcap, 20);
}

TEST(faults, a15_gguf_keys_that_nobody_reads_and_lengths_that_are_missing_are_reported) {
  file_of file("llama");
  file.shape(2, 4, 64, 4096).number("rope.freq_base", 1e4f).number("attention.layer_norm_rms_epsilon", 1e-6f);
  EXPECT_TRUE(file.read().warnings.empty()) << all_warnings(file.read());
  file.number("rope.of_tomorrow", 2).integer("attention.sliding_window", 100);
  EXPECT_WARNING(file.read(), "not read: the keys llama.attention.sliding_window, llama.rope.of_tomorrow");
  file_of yarn("llama");
  yarn.shape(2, 4, 64, 4096)
      .number("rope.freq_base", 1e4f)
      .text("rope.scaling.type", "yarn")
      .number("rope.scaling.factor", 4);
  EXPECT_WARNING(yarn.read(),
                 "no key llama.rope.scaling.original_context_length: context_length 4096 is taken for it");
}

TEST(guard, gguf_refusals_name_the_file_and_the_nearest_architectures) {
  const auto path = std::filesystem::path(testing::TempDir()) / "posenc_guard.gguf";
  const auto bytes = file_of("quen2").shape(1, 1, 8, 8).bytes();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  EXPECT_REFUSAL(posenc::read_model(path), std::invalid_argument, "posenc: posenc_guard.gguf: GGUF quen2: ");
  EXPECT_REFUSAL(posenc::read_model(path), std::invalid_argument, "nearest in name are qwen2, ");
  std::filesystem::resize_file(path, 30);
  EXPECT_REFUSAL(posenc::read_model(path), posenc::format_error, "posenc_guard.gguf");
  std::filesystem::remove(path);
}

}  // namespace faults_test
