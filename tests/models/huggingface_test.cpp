// SPDX-License-Identifier: MIT
/// \file
/// The config.json reader: every golden model, the precedence of keys, and per-model facts worked out by hand
/// from the published model classes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <posenc/models/huggingface.hpp>

#include "golden.hpp"

namespace huggingface_test {

using nlohmann::json;
using posenc::encoding_kind;
using posenc::model_description;

model_description read(const json& config, const posenc::huggingface_options& options = {}) {
  return posenc::parse_huggingface(config.dump(), options);
}

const posenc::encoding_description& of_type(const model_description& model, const std::string& layer_type) {
  for (const auto& encoding : model.encodings)
    if (encoding.layer_type == layer_type) return encoding;
  throw std::runtime_error("no layers of type " + layer_type);
}

template <class Error>
std::string refusal(const json& config) {
  try {
    (void)read(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

bool warns_of(const model_description& model, const std::string& part) {
  for (const std::string& warning : model.warnings)
    if (warning.find(part) != std::string::npos) return true;
  return false;
}

std::vector<posenc::index_t> layers(std::initializer_list<posenc::index_t> list) { return list; }

json llama() {
  return {{"model_type", "llama"},           {"hidden_size", 4096},
          {"num_attention_heads", 32},       {"num_hidden_layers", 4},
          {"max_position_embeddings", 8192}, {"rope_theta", 500000.0}};
}

// Bounds of the specification: 4·2^-53·(1 + ln θ) on frequencies, 4·2^-53·(1 + φ) on cos and sin.
constexpr double unit = 0x1p-51;

TEST(huggingface, golden_models) {
  for (const json& row : golden::cases("rope_models.json")) {
    const json& expect = row.at("expect");
    SCOPED_TRACE(row.at("name").get<std::string>());
    const model_description model = read(row.at("config"));
    const std::string select = row.value("select", expect.value("select", ""));
    const bool by_length = select == "short" || select == "long";
    const auto& encoding =
        select.empty() || by_length ? of_type(model, model.encodings[0].layer_type) : of_type(model, select);
    const posenc::rope_description& description = encoding.rope();
    EXPECT_EQ(description.options.head_dim, expect.at("head_dim").get<int>());
    EXPECT_EQ(description.options.rotary_dim.value(), expect.at("rotary_dim").get<int>());
    EXPECT_EQ(description.options.rotary_offset, expect.value("rotary_offset", 0));
    const bool half = expect.at("layout") == "half";
    EXPECT_EQ(description.options.pairing, half ? posenc::pairing::half_split : posenc::pairing::interleaved);
    const double scale = expect.at("softmax_scale").get<double>();
    EXPECT_NEAR(encoding.softmax_scale.value(), scale, unit * scale);
    if (expect.contains("mrope_axis_of_pair"))
      EXPECT_EQ(description.axis_of_pair, expect.at("mrope_axis_of_pair").get<std::vector<int>>());
    else
      EXPECT_TRUE(description.axis_of_pair.empty());

    std::optional<posenc::position> length;
    if (by_length) length = select == "short" ? 4096 : 4097;
    const auto rope = posenc::make_rope<double>(description, length);
    const double factor = expect.at("attention_factor").get<double>();
    EXPECT_NEAR(rope.attention_factor(), factor, unit * factor);
    const auto inv_freq = expect.at("inv_freq").get<std::vector<double>>();
    ASSERT_EQ(rope.inv_freq().size(), inv_freq.size());
    const double bound = unit * (1 + std::log(description.options.base));
    for (std::size_t p = 0; p < inv_freq.size(); ++p)
      EXPECT_NEAR(rope.inv_freq()[p], inv_freq[p], bound * inv_freq[p]) << "pair " << p;

    const json& table = expect.at("table");
    for (std::size_t i = 0; i < table.at("positions").size(); ++i) {
      const auto place = table.at("positions")[i].get<posenc::position>();
      for (std::size_t k = 0; k < table.at("pair_indices").size(); ++k) {
        const auto pair = table.at("pair_indices")[k].get<posenc::index_t>();
        const double angle = static_cast<double>(place) * inv_freq[static_cast<std::size_t>(pair)];
        const auto [cos, sin] = rope.angle(pair, place);
        EXPECT_NEAR(cos, table.at("cos")[i][k].get<double>(), unit * (1 + angle));
        EXPECT_NEAR(sin, table.at("sin")[i][k].get<double>(), unit * (1 + angle));
      }
    }
  }
}

TEST(huggingface, old_and_new_style_say_the_same) {
  json old_style = llama(), new_style = llama();
  old_style["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  new_style.erase("rope_theta");
  new_style["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500000.0}};
  for (const json& config : {old_style, new_style}) {
    const model_description model = read(config);
    ASSERT_EQ(model.encodings.size(), 1u);
    EXPECT_EQ(model.encodings[0].layers, layers({0, 1, 2, 3}));
    const auto rope = posenc::make_rope<double>(model.encodings[0].rope());
    EXPECT_DOUBLE_EQ(rope.inv_freq()[0], 0.25);
    EXPECT_NEAR(rope.inv_freq()[32], 0.25 / std::sqrt(500000.0), 1e-18);
  }
}

TEST(huggingface, null_counts_as_absent) {
  json config = llama();
  config["rope_scaling"] = nullptr;
  config["head_dim"] = nullptr;
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read(config).encodings[0].rope().options.head_dim, 128);
}

TEST(huggingface, precedence_of_keys_that_say_the_same) {
  json config = llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1000.0}};
  EXPECT_EQ(read(config).encodings[0].rope().options.base, 1000.0);  // inner theta wins

  config["rope_scaling"] = {{"rope_type", "linear"}, {"type", "dynamic"}, {"factor", 2.0}};
  const model_description both = read(config);  // rope_scaling wins, and in it rope_type
  EXPECT_TRUE(
      std::holds_alternative<posenc::position_interpolation>(both.encodings[0].rope().scaling.scheme));
  EXPECT_EQ(both.encodings[0].rope().options.base, 500000.0);
  EXPECT_TRUE(warns_of(both, "rope_scaling is used"));
  EXPECT_TRUE(warns_of(both, "rope_type is used"));

  json yarn = llama();
  yarn["original_max_position_embeddings"] = 2048;
  yarn["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(std::get<posenc::yarn>(read(yarn).encodings[0].rope().scaling.scheme).original_context, 2048);
  yarn.erase("original_max_position_embeddings");
  EXPECT_EQ(std::get<posenc::yarn>(read(yarn).encodings[0].rope().scaling.scheme).original_context, 4096);
  yarn["rope_scaling"].erase("original_max_position_embeddings");
  const model_description fallen_back = read(yarn);
  EXPECT_EQ(std::get<posenc::yarn>(fallen_back.encodings[0].rope().scaling.scheme).original_context, 8192);
  EXPECT_TRUE(warns_of(fallen_back, "original_max_position_embeddings"));

  json partial = llama();
  partial["partial_rotary_factor"] = 0.5;
  partial["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read(partial).encodings[0].rope().options.rotary_dim, 64);  // the top level wins
}

TEST(huggingface, yarn_zero_betas_mscale_and_null_factor) {
  json config = llama();
  config["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", nullptr},
                            {"beta_fast", 0},
                            {"beta_slow", 0},
                            {"mscale", 0},
                            {"mscale_all_dim", 0},
                            {"original_max_position_embeddings", 2048}};
  const auto scheme = std::get<posenc::yarn>(read(config).encodings[0].rope().scaling.scheme);
  EXPECT_EQ(scheme.factor, 4);  // null: 8192 / 2048
  EXPECT_EQ(scheme.beta_fast, 32);
  EXPECT_EQ(scheme.beta_slow, 1);
  EXPECT_NEAR(posenc::make_rope<double>(read(config).encodings[0].rope()).attention_factor(),
              0.1 * std::log(4.0) + 1, 1e-15);
  config["rope_scaling"]["attention_factor"] = 1.0;
  EXPECT_EQ(posenc::make_rope<double>(read(config).encodings[0].rope()).attention_factor(), 1);
}

TEST(huggingface, partial_rotary_factor_on_llama_counts_for_every_type_but_default) {
  json config = llama();
  config["partial_rotary_factor"] = 0.5;
  const model_description ignored = read(config);
  EXPECT_EQ(ignored.encodings[0].rope().options.rotary_dim, 128);
  EXPECT_TRUE(warns_of(ignored, "partial_rotary_factor"));
  EXPECT_EQ(
      read(config, {.always_honour_partial_rotary_factor = true}).encodings[0].rope().options.rotary_dim, 64);
}

TEST(huggingface, nested_blocks_and_their_truncate) {
  json config = {{"model_type", "gpt_oss"}, {"hidden_size", 2880},    {"num_attention_heads", 64},
                 {"head_dim", 64},          {"num_hidden_layers", 4}, {"max_position_embeddings", 131072},
                 {"sliding_window", 128}};
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 32.0},
                     {"truncate", false},
                     {"rope_theta", 150000.0},
                     {"original_max_position_embeddings", 4096}};
  config["rope_parameters"] = {{"full_attention", yarn}, {"sliding_attention", {{"rope_type", "default"}}}};
  const model_description model = read(config);
  ASSERT_EQ(model.encodings.size(), 2u);
  EXPECT_EQ(of_type(model, "sliding_attention").layers, layers({0, 2}));
  EXPECT_EQ(of_type(model, "sliding_attention").lookback, 127);
  EXPECT_EQ(of_type(model, "full_attention").lookback, std::nullopt);
  EXPECT_TRUE(model.encodings[0].learned_sinks);
  const auto scheme_of = [](const model_description& m) {
    return std::get<posenc::yarn>(of_type(m, "full_attention").rope().scaling.scheme);
  };
  EXPECT_FALSE(scheme_of(model).truncate);
  EXPECT_TRUE(scheme_of(read(config, {.ignore_nested_truncate = true})).truncate);
  config["rope_parameters"].erase("sliding_attention");
  EXPECT_NE(refusal<std::invalid_argument>(config).find("sliding_attention"), std::string::npos);
  config.erase("rope_parameters");
  EXPECT_FALSE(scheme_of(read(config)).truncate);  // the class's own default block
  EXPECT_EQ(of_type(read(config), "full_attention").rope().options.base, 150000.0);
}

TEST(huggingface, gemma3_as_published_with_its_omissions) {
  const json config = {{"model_type", "gemma3"},
                       {"text_config",
                        {{"model_type", "gemma3_text"},
                         {"hidden_size", 2560},
                         {"num_hidden_layers", 34},
                         {"sliding_window", 1024},
                         {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}}},
                       {"vision_config", {{"hidden_size", 1152}}}};
  const model_description model = read(config);
  EXPECT_EQ(model.model_type, "gemma3_text");
  const auto& global = of_type(model, "full_attention");
  const auto& local = of_type(model, "sliding_attention");
  EXPECT_EQ(global.layers, layers({5, 11, 17, 23, 29}));
  EXPECT_EQ(local.layers.size(), 29u);
  EXPECT_EQ(global.rope().options.base, 1e6);
  EXPECT_EQ(local.rope().options.base, 1e4);
  EXPECT_EQ(local.lookback, 1023);
  EXPECT_EQ(global.rope().options.head_dim, 256);
  EXPECT_DOUBLE_EQ(*global.softmax_scale, 1.0 / 16);
  EXPECT_DOUBLE_EQ(posenc::make_rope<double>(global.rope()).inv_freq()[0], 0.125);
  EXPECT_DOUBLE_EQ(posenc::make_rope<double>(local.rope()).inv_freq()[0], 1);
  json large = config;
  large["text_config"]["query_pre_attn_scalar"] = 168;
  large["text_config"]["head_dim"] = 128;
  EXPECT_DOUBLE_EQ(*read(large).encodings[0].softmax_scale, 1 / std::sqrt(168.0));
}

TEST(huggingface, gemma4_global_layers_have_wide_heads_and_standing_pairs) {
  const json config = {{"model_type", "gemma4_text"},
                       {"hidden_size", 2304},
                       {"num_attention_heads", 8},
                       {"num_hidden_layers", 8}};
  const model_description model = read(config);
  const auto& global = of_type(model, "full_attention");
  EXPECT_EQ(global.layers, layers({5, 7}));  // the last layer is always global
  EXPECT_EQ(global.rope().options.head_dim, 512);
  EXPECT_EQ(global.softmax_scale, 1.0);
  const auto rope = posenc::make_rope<double>(global.rope());
  ASSERT_EQ(rope.inv_freq().size(), 256u);
  EXPECT_NEAR(rope.inv_freq()[63], std::pow(1e6, -126.0 / 512), 1e-15);
  EXPECT_EQ(rope.inv_freq()[64], 0);
  EXPECT_EQ(of_type(model, "sliding_attention").rope().options.head_dim, 256);
  EXPECT_EQ(of_type(model, "sliding_attention").rope().options.base, 1e4);
}

TEST(huggingface, gemma2_alternates_and_caps_scores) {
  const json config = {{"model_type", "gemma2"},          {"hidden_size", 4608},
                       {"num_attention_heads", 32},       {"head_dim", 128},
                       {"num_hidden_layers", 4},          {"query_pre_attn_scalar", 144},
                       {"max_position_embeddings", 8192}, {"rope_theta", 10000.0},
                       {"sliding_window", 4096}};
  const model_description model = read(config);
  EXPECT_EQ(of_type(model, "sliding_attention").layers, layers({0, 2}));
  EXPECT_EQ(of_type(model, "full_attention").layers, layers({1, 3}));
  EXPECT_EQ(model.encodings[0].softcap, 50);
  EXPECT_DOUBLE_EQ(*model.encodings[0].softmax_scale, 1.0 / 12);
}

TEST(huggingface, llama4_rests_every_fourth_layer_and_warms_it_up) {
  json config = {{"model_type", "llama4"},
                 {"text_config",
                  {{"model_type", "llama4_text"},
                   {"hidden_size", 5120},
                   {"num_attention_heads", 40},
                   {"head_dim", 128},
                   {"num_hidden_layers", 8},
                   {"max_position_embeddings", 10485760},
                   {"rope_theta", 500000.0},
                   {"attention_chunk_size", 8192},
                   {"no_rope_layers", json::array()},
                   {"attn_temperature_tuning", 4}}}};
  const model_description model = read(config);
  const auto& turning = of_type(model, "chunked_attention");
  const auto& resting = of_type(model, "full_attention");
  EXPECT_EQ(resting.layers, layers({3, 7}));
  EXPECT_EQ(resting.kind(), encoding_kind::none);
  EXPECT_EQ(turning.kind(), encoding_kind::rope);
  EXPECT_EQ(turning.chunk, 8192);
  EXPECT_EQ(turning.rope().options.pairing, posenc::pairing::interleaved);
  EXPECT_FALSE(turning.position_scale);
  // 1 + 0.1·ln(1 + ⌊(8191 + 1)/8192⌋) = 1 + 0.1·ln 2
  EXPECT_DOUBLE_EQ(resting.position_scale.value().scale(8191), 1 + 0.1 * std::log(2.0));
  EXPECT_EQ(resting.position_scale.value().scale(8190), 1);
  config["text_config"]["no_rope_layers"] = {0, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(of_type(read(config), "full_attention").layers, layers({0}));
  config["text_config"]["attn_temperature_tuning"] = false;
  EXPECT_FALSE(of_type(read(config), "full_attention").position_scale);
}

TEST(huggingface, ministral3_scales_queries_by_position_on_all_layers) {
  const json config = {{"model_type", "mistral3"},
                       {"text_config",
                        {{"model_type", "ministral3"},
                         {"hidden_size", 4096},
                         {"num_attention_heads", 32},
                         {"num_key_value_heads", 8},
                         {"head_dim", 128},
                         {"num_hidden_layers", 2},
                         {"max_position_embeddings", 262144},
                         {"rope_parameters",
                          {{"type", "yarn"},
                           {"rope_type", "yarn"},
                           {"rope_theta", 1e6},
                           {"factor", 16.0},
                           {"original_max_position_embeddings", 16384},
                           {"beta_fast", 32.0},
                           {"beta_slow", 1.0},
                           {"mscale", 1.0},
                           {"mscale_all_dim", 1.0},
                           {"llama_4_scaling_beta", 0.1}}}}}};
  const model_description model = read(config);
  ASSERT_EQ(model.encodings.size(), 1u);
  EXPECT_TRUE(model.warnings.empty()) << model.warnings[0];
  EXPECT_EQ(model.encodings[0].position_scale.value().scale(16383), 1);
  EXPECT_DOUBLE_EQ(model.encodings[0].position_scale.value().scale(16384), 1 + 0.1 * std::log(2.0));
  EXPECT_EQ(posenc::make_rope<double>(model.encodings[0].rope()).attention_factor(), 1);
  // mscale_all_dim is DeepSeek's: it does not touch the softmax scale here.
  EXPECT_DOUBLE_EQ(*model.encodings[0].softmax_scale, 1 / std::sqrt(128.0));
}

TEST(huggingface, deepseek_v3_turns_the_tail_and_warms_the_softmax) {
  json config = {{"model_type", "deepseek_v3"},
                 {"hidden_size", 7168},
                 {"num_attention_heads", 128},
                 {"num_hidden_layers", 61},
                 {"qk_nope_head_dim", 128},
                 {"qk_rope_head_dim", 64},
                 {"max_position_embeddings", 163840},
                 {"rope_theta", 10000},
                 {"rope_scaling",
                  {{"type", "yarn"},
                   {"factor", 40},
                   {"original_max_position_embeddings", 4096},
                   {"beta_fast", 32},
                   {"beta_slow", 1},
                   {"mscale", 1.0},
                   {"mscale_all_dim", 1.0}}}};
  const model_description model = read(config);
  const auto& encoding = model.encodings.at(0);
  EXPECT_EQ(encoding.rope().options.rotary_offset, 128);
  EXPECT_EQ(encoding.rope().options.head_dim, 192);
  EXPECT_EQ(encoding.rope().options.pairing, posenc::pairing::interleaved);
  EXPECT_NEAR(*encoding.softmax_scale, 1.8738542070926266 / std::sqrt(192.0), 1e-15);
  EXPECT_EQ(posenc::make_rope<double>(encoding.rope()).attention_factor(), 1);
  config["rope_interleave"] = false;
  EXPECT_EQ(read(config).encodings[0].rope().options.pairing, posenc::pairing::half_split);
}

TEST(huggingface, phi3_longrope_under_all_its_names) {
  json config = {{"model_type", "phi3"},
                 {"hidden_size", 96},
                 {"num_attention_heads", 2},
                 {"num_hidden_layers", 2},
                 {"max_position_embeddings", 131072},
                 {"rope_theta", 10000.0},
                 {"original_max_position_embeddings", 4096},
                 {"partial_rotary_factor", 0.75}};
  const std::vector<double> ones(18, 1.0), twos(18, 2.0);
  for (const char* name : {"su", "longrope", "yarn"}) {
    config["rope_scaling"] = {{"type", name}, {"short_factor", ones}, {"long_factor", twos}};
    const auto description = read(config).encodings.at(0).rope();
    EXPECT_EQ(description.options.rotary_dim, 36);
    EXPECT_TRUE(depends_on_length(description));
    EXPECT_THROW((void)posenc::make_rope<double>(description), std::invalid_argument);
    EXPECT_EQ(posenc::make_rope<double>(description, 4096).inv_freq()[0], 1);
    EXPECT_EQ(posenc::make_rope<double>(description, 4097).inv_freq()[0], 0.5);
    EXPECT_NEAR(posenc::make_rope<double>(description, 1).attention_factor(), 1.1902380714238083, 1e-15);
  }
  config["rope_scaling"]["long_factor"].push_back(1.0);
  EXPECT_NE(refusal<std::invalid_argument>(config).find("18"), std::string::npos);
  config["rope_scaling"].erase("long_factor");
  EXPECT_NE(refusal<std::invalid_argument>(config).find("long_factor"), std::string::npos);
}

TEST(huggingface, windows_and_layer_patterns_of_model_classes) {
  json qwen2 = {{"model_type", "qwen2"},          {"hidden_size", 64},
                {"num_attention_heads", 1},       {"num_hidden_layers", 6},
                {"max_position_embeddings", 100}, {"rope_theta", 1e6},
                {"sliding_window", 10},           {"max_window_layers", 4}};
  EXPECT_EQ(read(qwen2).encodings.size(), 1u);  // use_sliding_window is false by default
  qwen2["use_sliding_window"] = true;
  EXPECT_EQ(of_type(read(qwen2), "sliding_attention").layers, layers({4, 5}));
  EXPECT_EQ(of_type(read(qwen2), "sliding_attention").lookback, 9);

  json cohere2 = {{"model_type", "cohere2"},
                  {"hidden_size", 64},
                  {"num_attention_heads", 1},
                  {"num_hidden_layers", 8},
                  {"max_position_embeddings", 100},
                  {"rope_theta", 50000.0},
                  {"sliding_window", 10}};
  EXPECT_EQ(of_type(read(cohere2), "full_attention").layers, layers({3, 7}));
  EXPECT_EQ(of_type(read(cohere2), "full_attention").kind(), encoding_kind::none);
  EXPECT_EQ(of_type(read(cohere2), "sliding_attention").rope().options.pairing, posenc::pairing::interleaved);

  json modernbert = {{"model_type", "modernbert"},      {"hidden_size", 768},
                     {"num_attention_heads", 12},       {"num_hidden_layers", 7},
                     {"max_position_embeddings", 8192}, {"local_attention", 128},
                     {"global_attn_every_n_layers", 3}, {"global_rope_theta", 160000.0},
                     {"local_rope_theta", 10000.0}};
  const model_description encoder = read(modernbert);
  EXPECT_EQ(of_type(encoder, "full_attention").layers, layers({0, 3, 6}));
  EXPECT_EQ(of_type(encoder, "full_attention").rope().options.base, 160000.0);
  EXPECT_EQ(of_type(encoder, "sliding_attention").rope().options.base, 10000.0);
  EXPECT_EQ(of_type(encoder, "sliding_attention").lookback, 64);
  EXPECT_EQ(of_type(encoder, "sliding_attention").lookahead, 64);
  EXPECT_FALSE(encoder.encodings[0].causal);

  json smollm3 = {{"model_type", "smollm3"},
                  {"hidden_size", 64},
                  {"num_attention_heads", 1},
                  {"num_hidden_layers", 8},
                  {"max_position_embeddings", 100}};
  const model_description resting = read(smollm3);
  ASSERT_EQ(resting.encodings.size(), 2u);
  EXPECT_EQ(resting.encodings[1].layers, layers({3, 7}));
  EXPECT_EQ(resting.encodings[1].kind(), encoding_kind::none);
  EXPECT_EQ(resting.encodings[0].rope().options.base, 2e6);

  json qwen3_next = {{"model_type", "qwen3_next"},        {"hidden_size", 2048},
                     {"num_attention_heads", 16},         {"num_hidden_layers", 8},
                     {"max_position_embeddings", 262144}, {"rope_theta", 1e7}};
  const model_description hybrid = read(qwen3_next);
  EXPECT_EQ(of_type(hybrid, "linear_attention").kind(), encoding_kind::none);
  EXPECT_EQ(of_type(hybrid, "full_attention").layers, layers({3, 7}));
  EXPECT_EQ(of_type(hybrid, "full_attention").rope().options.rotary_dim, 64);

  json listed = llama();
  listed["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_NE(refusal<std::invalid_argument>(listed).find("layer_types"), std::string::npos);
}

TEST(huggingface, several_axes) {
  json config = {{"model_type", "qwen3_vl_text"},
                 {"hidden_size", 4096},
                 {"num_attention_heads", 32},
                 {"head_dim", 128},
                 {"num_hidden_layers", 2},
                 {"max_position_embeddings", 262144},
                 {"rope_theta", 5e6},
                 {"rope_scaling",
                  {{"rope_type", "default"}, {"mrope_section", {24, 20, 20}}, {"mrope_interleaved", true}}}};
  const auto axes = read(config).encodings.at(0).rope().axis_of_pair;
  ASSERT_EQ(axes.size(), 64u);
  EXPECT_EQ(std::vector<int>(axes.begin(), axes.begin() + 4), (std::vector<int>{0, 1, 2, 0}));
  EXPECT_EQ(std::vector<int>(axes.begin() + 57, axes.end()), (std::vector<int>{0, 1, 2, 0, 0, 0, 0}));
  config["rope_scaling"]["mrope_section"] = {24, 20, 19};
  EXPECT_NE(refusal<std::invalid_argument>(config).find("63"), std::string::npos);

  // Qwen2-VL in its old flat form: the sections hide under type "default" or "mrope".
  json flat = {{"model_type", "qwen2_vl"},
               {"hidden_size", 3584},
               {"num_attention_heads", 28},
               {"num_hidden_layers", 2},
               {"max_position_embeddings", 32768},
               {"rope_theta", 1e6},
               {"rope_scaling", {{"type", "default"}, {"mrope_section", {16, 24, 24}}}}};
  EXPECT_EQ(read(flat).encodings.at(0).rope().axis_of_pair[16], 1);
  EXPECT_EQ(read(flat).encodings.at(0).rope().axis_of_pair[40], 2);
}

TEST(huggingface, equal_axes_turn_like_one_axis) {
  const json config = {{"model_type", "qwen3_vl_text"},
                       {"hidden_size", 4096},
                       {"num_attention_heads", 32},
                       {"num_hidden_layers", 1},
                       {"max_position_embeddings", 262144},
                       {"rope_theta", 5e6},
                       {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", {24, 20, 20}}}}};
  const auto description = read(config).encodings.at(0).rope();
  const auto one = posenc::make_rope<float>(description);
  const auto several = posenc::make_multi_axis_rope<float>(description, {{5, 5, 5, 0}, {9, 7, 8, 0}}, 3);
  for (posenc::index_t pair = 0; pair < 64; ++pair) {
    EXPECT_EQ(several.angle(pair, 0).cos, one.angle(pair, 5).cos);
    EXPECT_EQ(several.angle(pair, 100).sin, one.angle(pair, 103).sin);
  }
  EXPECT_EQ(several.angle(0, 1).cos, one.angle(0, 9).cos);
  EXPECT_EQ(several.angle(1, 1).cos, one.angle(1, 7).cos);
  EXPECT_EQ(several.angle(2, 1).cos, one.angle(2, 8).cos);
  const auto flat = read(llama()).encodings[0].rope();
  EXPECT_THROW((void)posenc::make_multi_axis_rope<float>(flat, {}), std::invalid_argument);
}

TEST(huggingface, kinds_that_do_not_rotate) {
  const auto alibi_slopes = [](const json& config) {
    const model_description model = read(config);
    EXPECT_EQ(model.encodings.at(0).kind(), encoding_kind::alibi);
    const auto made = std::get<posenc::alibi_description>(model.encodings[0].parameters).make();
    return std::vector<double>(made.slopes().begin(), made.slopes().end());
  };
  json bloom = {{"model_type", "bloom"}, {"hidden_size", 512}, {"n_head", 8}, {"n_layer", 3}};
  EXPECT_EQ(alibi_slopes(bloom)[0], 0.5);
  EXPECT_DOUBLE_EQ(*read(bloom).encodings[0].softmax_scale, 0.125);
  json falcon = {{"model_type", "falcon"},
                 {"hidden_size", 512},
                 {"num_attention_heads", 8},
                 {"num_hidden_layers", 2},
                 {"alibi", true}};
  EXPECT_EQ(alibi_slopes(falcon)[0], 0.0625);  // 0.5/√64
  falcon["alibi"] = false;
  EXPECT_EQ(read(falcon).encodings.at(0).rope().options.pairing, posenc::pairing::half_split);
  json mpt = {{"model_type", "mpt"},
              {"d_model", 512},
              {"n_heads", 8},
              {"n_layers", 2},
              {"max_seq_len", 2048},
              {"attn_config", {{"alibi", true}, {"alibi_bias_max", 4}, {"softmax_scale", 0.3}}}};
  EXPECT_NEAR(alibi_slopes(mpt)[0], std::exp2(-0.5), 1e-15);
  EXPECT_EQ(read(mpt).encodings[0].softmax_scale, 0.3);

  json t5 = {{"model_type", "t5"}, {"d_model", 512},  {"d_kv", 64},
             {"num_heads", 8},     {"num_layers", 6}, {"relative_attention_num_buckets", 32}};
  const model_description both = read(t5);
  ASSERT_EQ(both.encodings.size(), 2u);
  const auto& encoder = std::get<posenc::t5_description>(of_type(both, "encoder").parameters);
  const auto& decoder = std::get<posenc::t5_description>(of_type(both, "decoder").parameters);
  EXPECT_TRUE(encoder.buckets.bidirectional);
  EXPECT_FALSE(decoder.buckets.bidirectional);
  EXPECT_EQ(encoder.buckets.max_distance, 128);
  EXPECT_EQ(both.encodings[0].softmax_scale, 1.0);
  t5["relative_attention_num_buckets"] = 31;
  EXPECT_NE(refusal<std::invalid_argument>(t5), "accepted");

  const auto learned = [](const json& config) {
    const model_description model = read(config);
    EXPECT_EQ(model.encodings.at(0).kind(), encoding_kind::learned_absolute);
    return std::get<posenc::learned_description>(model.encodings[0].parameters);
  };
  json bert = {{"model_type", "bert"},
               {"hidden_size", 768},
               {"num_attention_heads", 12},
               {"num_hidden_layers", 12},
               {"max_position_embeddings", 512}};
  EXPECT_EQ(learned(bert).rows, 512);
  EXPECT_EQ(learned(bert).row_offset, 0);
  bert["position_embedding_type"] = "relative_key";
  EXPECT_NE(refusal<std::invalid_argument>(bert).find("relative_key"), std::string::npos);
  json roberta = {{"model_type", "roberta"},        {"hidden_size", 768},
                  {"num_attention_heads", 12},      {"num_hidden_layers", 12},
                  {"max_position_embeddings", 514}, {"pad_token_id", 1}};
  EXPECT_EQ(learned(roberta).rows, 514);
  EXPECT_EQ(learned(roberta).row_offset, 2);
  json opt = {{"model_type", "opt"},
              {"hidden_size", 768},
              {"num_attention_heads", 12},
              {"num_hidden_layers", 12},
              {"max_position_embeddings", 2048}};
  EXPECT_EQ(learned(opt).rows, 2050);
  EXPECT_EQ(learned(opt).row_offset, 2);
  json gpt2 = {
      {"model_type", "gpt2"}, {"n_embd", 768}, {"n_head", 12}, {"n_layer", 2}, {"n_positions", 1024}};
  EXPECT_EQ(learned(gpt2).rows, 1024);
  gpt2["scale_attn_by_inverse_layer_idx"] = true;
  EXPECT_DOUBLE_EQ(*read(gpt2).encodings.at(1).softmax_scale, 0.0625);  // 1/√64/2

  json whisper = {{"model_type", "whisper"},      {"d_model", 384},
                  {"encoder_layers", 4},          {"decoder_layers", 4},
                  {"encoder_attention_heads", 6}, {"decoder_attention_heads", 6},
                  {"max_source_positions", 1500}, {"max_target_positions", 448}};
  const model_description speech = read(whisper);
  EXPECT_EQ(of_type(speech, "encoder").kind(), encoding_kind::sinusoidal);
  EXPECT_EQ(of_type(speech, "decoder").kind(), encoding_kind::learned_absolute);
  json marian = {{"model_type", "marian"},
                 {"d_model", 512},
                 {"encoder_layers", 6},
                 {"decoder_layers", 6},
                 {"encoder_attention_heads", 8},
                 {"decoder_attention_heads", 8},
                 {"max_position_embeddings", 512},
                 {"scale_embedding", true}};
  const model_description translator = read(marian);
  const auto& waves = std::get<posenc::sinusoidal_description>(translator.encodings.at(0).parameters);
  EXPECT_EQ(waves.options.convention, posenc::sinusoid::marian);
  EXPECT_EQ(waves.options.width, 512);
  EXPECT_TRUE(warns_of(translator, "scale_embedding"));
}

TEST(huggingface, unknown_models_are_refused_unless_the_pairing_is_stated) {
  json config = llama();
  config["model_type"] = "qwen3_nex";
  const std::string said = refusal<std::invalid_argument>(config);
  EXPECT_NE(said.find("config.json (qwen3_nex)"), std::string::npos);
  EXPECT_NE(said.find("nearest in name are qwen3_next, "), std::string::npos) << said;
  EXPECT_LT(said.find("--pairing"), said.find("qwen3_next"));  // the way out that always works comes first
  config["architectures"] = {"Qwen3NexForCausalLM"};
  const auto description = read(config, {.pairing = posenc::pairing::interleaved}).encodings.at(0).rope();
  EXPECT_EQ(description.options.pairing, posenc::pairing::interleaved);
  EXPECT_EQ(description.options.base, 500000.0);
  config["rope_interleaved"] = false;
  EXPECT_EQ(read(config).encodings.at(0).rope().options.pairing, posenc::pairing::half_split);
  config.erase("rope_theta");
  EXPECT_NE(refusal<std::invalid_argument>(config).find("rope_theta"), std::string::npos);
  json nameless = llama();
  nameless.erase("model_type");
  EXPECT_NE(refusal<std::invalid_argument>(nameless).find("model_type"), std::string::npos);
}

TEST(huggingface, names_that_mean_something_in_one_class_only) {
  json config = llama();
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  EXPECT_NE(refusal<std::invalid_argument>(config).find("mrope"), std::string::npos);
  config["model_type"] = "qwen2_vl";
  config["num_key_value_heads"] = 8;
  config["rope_scaling"]["rope_type"] = "default";  // both names, as Qwen2.5-VL's files have them
  EXPECT_TRUE(read(config).warnings.empty());
  // Phi-3 means LongRoPE by "yarn", so that a YaRN block on it lacks the lists.
  config = llama();
  config["model_type"] = "phi3";
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_NE(refusal<std::invalid_argument>(config).find("short_factor"), std::string::npos);
  config = llama();
  config["model_type"] = "nomic_bert";
  config["rotary_emb_interleaved"] = true;
  EXPECT_EQ(read(config).encodings[0].rope().options.pairing, posenc::pairing::interleaved);
}

TEST(huggingface, unknown_keys_and_defaults_are_reported) {
  json config = llama();
  config.erase("rope_theta");
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"beta_fats", 3}};
  const model_description model = read(config);
  EXPECT_TRUE(warns_of(model, "rope_scaling.beta_fats"));
  EXPECT_TRUE(warns_of(model, "rope_theta is missing: 10000"));
  EXPECT_TRUE(read(llama()).warnings.empty());
}

TEST(huggingface, missing_and_meaningless_numbers_are_refused) {
  const auto with = [](const json& scaling) {
    json config = llama();
    config["rope_scaling"] = scaling;
    return refusal<std::invalid_argument>(config);
  };
  EXPECT_NE(with({{"type", "linear"}}).find("rope_scaling.factor"), std::string::npos);
  EXPECT_NE(with({{"type", "dynamic"}}).find("rope_scaling.factor"), std::string::npos);
  EXPECT_NE(with({{"type", "yarn"}}).find("rope_scaling.factor"), std::string::npos);
  EXPECT_NE(with({{"type", "llama3"}, {"factor", 8.0}}).find("low_freq_factor"), std::string::npos);
  EXPECT_NE(with({{"type", "linear"}, {"factor", 0.5}}).find("0.5"), std::string::npos);
  EXPECT_NE(with({{"type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 1.0}}),
            "accepted");
  const std::string unknown = with({{"type", "ntk-by-parts"}, {"factor", 2.0}});
  for (const char* known : {"linear", "dynamic", "yarn", "longrope", "llama3", "proportional"})
    EXPECT_NE(unknown.find(known), std::string::npos);

  json config = llama();
  config["rotary_emb_base"] = 10000.0;
  EXPECT_NE(refusal<std::invalid_argument>(config).find("which one"), std::string::npos);
  config = llama();
  config["hidden_size"] = 4097;
  EXPECT_NE(refusal<std::invalid_argument>(config).find("4097"), std::string::npos);
  config = llama();
  config["rope_theta"] = -1;
  EXPECT_NE(refusal<std::invalid_argument>(config).find("-1"), std::string::npos);
  config = llama();
  config["head_dim"] = 65;
  EXPECT_NE(refusal<std::invalid_argument>(config).find("65"), std::string::npos);
}

TEST(huggingface, wrong_types_are_refused_with_the_key) {
  const auto with = [](const char* key, const json& value) {
    json config = llama();
    config[key] = value;
    return refusal<posenc::format_error>(config);
  };
  EXPECT_NE(with("rope_theta", "big").find("rope_theta"), std::string::npos);
  EXPECT_NE(with("hidden_size", 4096.5).find("hidden_size"), std::string::npos);
  EXPECT_NE(with("hidden_size", -4096).find("hidden_size"), std::string::npos);
  EXPECT_NE(with("num_hidden_layers", 1e15).find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(with("num_attention_heads", json::array()).find("num_attention_heads"), std::string::npos);
  EXPECT_NE(with("rope_scaling", "yarn").find("rope_scaling"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", 5}}).find("rope_scaling.rope_type"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", "linear"}, {"factor", "2"}}).find("rope_scaling.factor"),
            std::string::npos);
  EXPECT_NE(
      with("rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, "x"}}}).find("short_factor"),
      std::string::npos);
  EXPECT_NE(with("layer_types", "full_attention").find("layer_types"), std::string::npos);
  EXPECT_NE(with("text_config", 3).find("text_config"), std::string::npos);
}

TEST(huggingface, text_that_is_no_configuration_is_refused) {
  const auto said = [](const std::string& text) -> std::string {
    try {
      (void)posenc::parse_huggingface(text);
    } catch (const posenc::format_error& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string whole = llama().dump();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(said(whole.substr(0, length)).find("byte offset"), std::string::npos) << length;
  EXPECT_NE(said("[1, 2]").find("object"), std::string::npos);
  EXPECT_NE(said(R"({"a": 1, "b": {"c": 1, "c": 2}})").find("c stands there twice"), std::string::npos);
  EXPECT_NE(said(R"({"rope_theta": 1e999})").find("byte offset"), std::string::npos);
  EXPECT_NE(said(std::string(100'000, '[')).find("deeper"), std::string::npos);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_NE(said(deep).find("deeper"), std::string::npos);
  EXPECT_NE(said("{\"a\": \"\xff\"}").find("byte offset"), std::string::npos);
}

TEST(huggingface, load_rope_from_a_file) {
  const auto path = std::filesystem::path(testing::TempDir()) / "posenc_config.json";
  const auto write = [&](const json& config) { std::ofstream(path) << config; };
  write(llama());
  const auto rope = posenc::load_rope<float>(path);
  EXPECT_EQ(rope.lowered().head_dim, 128);
  EXPECT_EQ(rope.lowered().pairing, posenc::pairing::half_split);
  const json gemma3 = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 6}};
  write(gemma3);
  try {
    (void)posenc::load_rope<float>(path);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("sliding_attention"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("full_attention"), std::string::npos);
  }
  EXPECT_NEAR(posenc::load_rope<float>(path, {.layer = 5}).inv_freq()[64], 1e-3, 1e-15);
  EXPECT_NEAR(posenc::load_rope<float>(path, {.layer = 0}).inv_freq()[64], 1e-2, 1e-15);
  EXPECT_THROW((void)posenc::load_rope<float>(path, {.layer = 6}), std::invalid_argument);
  write({{"model_type", "bloom"}, {"hidden_size", 512}, {"n_head", 8}, {"n_layer", 3}});
  EXPECT_THROW((void)posenc::load_rope<float>(path), std::invalid_argument);
  std::filesystem::remove(path);
  EXPECT_THROW((void)posenc::load_rope<float>(path), posenc::format_error);
}

}  // namespace huggingface_test
