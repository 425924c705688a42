// SPDX-License-Identifier: MIT
/// \file
/// From a model file to a call: the options of a layer against numbers worked out from the published configurations,
/// and its encoding against one built by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <posenc/models.hpp>
#include <posenc/posenc.hpp>

#include "gguf_bytes.hpp"
#include "refusals.hpp"

namespace model_test {

using nlohmann::json;
using posenc::any_encoding;
using posenc::index_t;
using posenc::model;
using posenc::model_layer;
using posenc::model_side;
using posenc::position;
using posenc_tests::file_of;
using matrix = posenc::row_major_matrix<float>;

model published(const std::string& name) {
  return posenc::read_model(std::string(POSENC_SOURCE_DIR) + "/examples/configs/" + name + ".json");
}
model of(const json& config) { return model(posenc::parse_huggingface(config.dump())); }

json small(const std::string& type) {
  return {{"model_type", type},       {"hidden_size", 64},      {"num_attention_heads", 4},
          {"num_key_value_heads", 4}, {"num_hidden_layers", 4}, {"max_position_embeddings", 4096},
          {"rope_theta", 10000.0}};
}

/// Numbers without a pattern, from a linear congruence.
matrix noise(index_t rows, index_t columns, std::uint64_t seed) {
  matrix result(rows, columns);
  for (index_t n = 0; n < result.size(); ++n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    result.data()[n] = static_cast<float>(static_cast<double>(seed >> 40) * 0x1p-23 - 1);
  }
  return result;
}

struct tensors {
  matrix q, k, v;
};
tensors tensors_for(const posenc::attention_options& o, index_t queries, index_t keys) {
  return {noise(queries, o.heads * *o.head_dim, 1), noise(keys, *o.kv_heads * *o.head_dim, 2),
          noise(keys, *o.kv_heads * *o.value_dim, 3)};
}
template <class E>
matrix run(const tensors& t, const E& encoding, const posenc::attention_options& options) {
  return posenc::reference::attention(t.q, t.k, t.v, encoding, options);
}

void expect_shape(const posenc::attention_options& o, index_t heads, index_t kv_heads, index_t head_dim,
                  index_t value_dim) {
  EXPECT_EQ(o.heads, heads);
  EXPECT_EQ(o.kv_heads, kv_heads);
  EXPECT_EQ(o.head_dim, head_dim);
  EXPECT_EQ(o.value_dim, value_dim);
}
void expect_window(const posenc::attention_options& o, std::optional<position> lookback,
                   std::optional<position> lookahead) {
  EXPECT_EQ(o.window.lookback, lookback);
  EXPECT_EQ(o.window.lookahead, lookahead);
}

TEST(model, llama_31) {
  const model llama = published("llama-3.1-8b");
  EXPECT_EQ(llama.layers(), 32);
  const model_layer layer = llama.layer(31);
  expect_shape(layer.options, 32, 8, 128, 128);
  expect_window(layer.options, std::nullopt, std::nullopt);
  EXPECT_EQ(layer.options.mask, posenc::causal);
  EXPECT_DOUBLE_EQ(layer.options.scale.value(), 1 / std::sqrt(128.0));
  EXPECT_EQ(layer.options.softcap, 0);
  EXPECT_FALSE(layer.options.needs_sinks || layer.options.is_embedded || layer.options.chunk);
  EXPECT_STREQ(layer.encoding.name(), "rope");

  const posenc::rope<float> by_hand{
      {.head_dim = 128, .base = 500'000, .pairing = posenc::pairing::half_split},
      posenc::llama3{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192}};
  const tensors t = tensors_for(layer.options, 5, 9);
  const posenc::attention_options plain{.heads = 32, .kv_heads = 8, .mask = posenc::causal};
  EXPECT_EQ(run(t, layer.encoding, layer.options), run(t, by_hand, plain));
  EXPECT_REFUSAL(llama.layer(32), std::out_of_range, "no layer 32 of 32");
  EXPECT_REFUSAL(llama.layer(-1), std::out_of_range, "no layer -1 of 32");
}

TEST(model, gemma_3_without_head_counts_has_those_of_its_class) {
  const model gemma = published("gemma-3-4b");
  EXPECT_EQ(gemma.layers(), 34);
  for (const index_t i : {4, 5}) {  // 5 is the first global layer
    const model_layer layer = gemma.layer(i);
    expect_shape(layer.options, 8, 4, 256, 256);
    EXPECT_DOUBLE_EQ(layer.options.scale.value(), 1.0 / 16);
    expect_window(layer.options, i == 4 ? std::optional<position>(1023) : std::nullopt, std::nullopt);
    const tensors t = tensors_for(layer.options, 3, 3);
    const posenc::rope_options local{.head_dim = 256, .base = 1e4, .pairing = posenc::pairing::half_split};
    posenc::rope_options global = local;
    global.base = 1e6;
    const posenc::rope<float> by_hand =
        i == 4 ? posenc::rope<float>(local)
               : posenc::rope<float>(global, posenc::position_interpolation{.factor = 8});
    EXPECT_EQ(run(t, layer.encoding, layer.options),
              run(t, by_hand, {.heads = 8, .kv_heads = 4, .mask = posenc::causal, .scale = 1.0 / 16}));
  }
  bool heads = false, kv_heads = false;
  for (const std::string& warning : gemma.warnings()) {
    heads = heads || warning == "num_attention_heads is missing: 8 is the default of gemma3_text";
    kv_heads = kv_heads || warning == "num_key_value_heads is missing: 4 is the default of gemma3_text";
  }
  EXPECT_TRUE(heads && kv_heads);
}

TEST(model, head_counts_of_a_class_are_no_guess_where_the_file_says_otherwise) {
  json config = small("gemma3_text");
  config.erase("num_key_value_heads");
  config["num_attention_heads"] = 6;  // 4, the class's, does not divide it
  EXPECT_EQ(of(config).layer(0).options.kv_heads, 6);
  config["num_key_value_heads"] = nullptr;
  config["num_attention_heads"] = 8;
  EXPECT_EQ(of(config).layer(0).options.kv_heads, 8);
  config["num_key_value_heads"] = 3;
  EXPECT_REFUSAL(of(config), std::invalid_argument,
                 "num_attention_heads 8 is no multiple of num_key_value_heads 3");
}

TEST(model, gemma_2_has_a_softcap_and_its_own_scale) {
  json config = small("gemma2");
  config["head_dim"] = 16;
  config["query_pre_attn_scalar"] = 144;
  config["sliding_window"] = 100;
  const model gemma = of(config);
  EXPECT_EQ(gemma.layer(0).options.softcap, 50);
  EXPECT_DOUBLE_EQ(gemma.layer(0).options.scale.value(), 1.0 / 12);
  expect_window(gemma.layer(0).options, 99, std::nullopt);
  expect_window(gemma.layer(1).options, std::nullopt, std::nullopt);
  EXPECT_EQ(gemma.layer(0).type, "sliding_attention");
  EXPECT_EQ(gemma.layer(0).options.window.lookback, posenc::sliding_window(100).lookback);
}

TEST(model, gpt_oss_needs_its_sinks) {
  const model_layer layer = published("gpt-oss-20b").layer(0);
  expect_shape(layer.options, 64, 8, 64, 64);
  expect_window(layer.options, 127, std::nullopt);
  EXPECT_TRUE(layer.options.needs_sinks);
  const tensors t = tensors_for(layer.options, 2, 2);
  EXPECT_REFUSAL(run(t, layer.encoding, layer.options), std::invalid_argument, "learned sinks");
  posenc::attention_options with = layer.options;
  const std::vector<double> sinks(64, 0.5);
  with.sinks = sinks;
  // One visible key of score s and one sink: the output is v·exp(s)/(exp(s) + exp(sink)).
  const matrix out = run(t, layer.encoding, with);
  double s = 0;
  for (index_t c = 0; c < 64; ++c) s += static_cast<double>(t.q(0, c)) * static_cast<double>(t.k(0, c));
  s /= 8;
  // The rotation at position 0 leaves the head alone but for YaRN's attention factor, on q and on k.
  const double m = 0.1 * std::log(32.0) + 1;
  s *= m * m;
  const double share = std::exp(s) / (std::exp(s) + std::exp(0.5));
  EXPECT_NEAR(static_cast<double>(out(0, 0)), static_cast<double>(t.v(0, 0)) * share, 1e-6);
}

TEST(model, llama_4_chunks_and_its_temperature_by_position) {
  const model llama = published("llama-4-scout");
  const model_layer local = llama.layer(0), global = llama.layer(3);
  EXPECT_EQ(local.options.chunk, 8192);
  EXPECT_EQ(local.type, "chunked_attention");
  EXPECT_STREQ(local.encoding.name(), "rope");
  EXPECT_EQ(global.options.chunk, std::nullopt);
  EXPECT_STREQ(global.encoding.name(), "logit_scale");
  const auto* scale = global.encoding.get_if<posenc::logit_scale>();
  ASSERT_NE(scale, nullptr);
  EXPECT_DOUBLE_EQ(scale->scale(8191), 1 + 0.1 * std::log(2.0));
  EXPECT_EQ(scale->scale(8190), 1);
}

TEST(model, ministral_3_rotates_and_scales_by_position) {
  json config = small("ministral3");
  config["head_dim"] = 16;
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"llama_4_scaling_beta", 0.1}};
  config.erase("rope_theta");
  const model_layer layer = of(config).layer(0);
  EXPECT_STREQ(layer.encoding.name(), "combine(rope, logit_scale)");
  tensors t = tensors_for(layer.options, 1, 1);
  posenc::attention_options far = layer.options;
  far.key_positions = far.query_positions = posenc::positions::from(16384);
  const auto lse = [&](const posenc::attention_options& options) {
    return static_cast<double>(
        posenc::reference::attention_with_log_sum_exp(t.q, t.k, t.v, layer.encoding, options)
            .log_sum_exp(0, 0));
  };
  // The same relative position: the score of the later query is 1 + 0.1·ln 2 times as large.
  EXPECT_NEAR(lse(far) / lse(layer.options), 1 + 0.1 * std::log(2.0), 1e-6);
}

TEST(model, longrope_and_dynamic_ntk_want_the_length) {
  json config = small("phi3");
  config["original_max_position_embeddings"] = 1024;
  config["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", json(std::vector<double>(8, 1.0))},
                            {"long_factor", json(std::vector<double>(8, 4.0))}};
  const model phi = of(config);
  EXPECT_REFUSAL(phi.layer(0), std::invalid_argument, "layer_inputs::length");
  const auto slowest = [](const model_layer& layer) {
    return layer.encoding.get_if<posenc::rope<float>>()->inv_freq().back();
  };
  const double w = std::pow(1e4, -14.0 / 16);
  EXPECT_NEAR(slowest(phi.layer(0, {.length = 1024})), w, 1e-12);
  EXPECT_NEAR(slowest(phi.layer(0, {.length = 1025})), w / 4, 1e-12);

  config = small("llama");
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_REFUSAL(of(config).layer(0), std::invalid_argument, "layer_inputs::length");
  // s·n/L − (s − 1) = 3 at n = 2·L, so the base grows by 3^(16/14) and the last frequency falls by 3.
  EXPECT_NEAR(slowest(of(config).layer(0, {.length = 8192})), w / 3, 1e-12);
  EXPECT_NEAR(slowest(of(config).layer(0, {.length = 4096})), w, 1e-12);
}

TEST(model, mistral_windows_count_the_query_itself) {
  json config = small("mistral");
  config["sliding_window"] = 3;
  const model_layer layer = of(config).layer(2);
  expect_window(layer.options, 2, std::nullopt);
  tensors t = tensors_for(layer.options, 5, 5);
  t.v.setZero();
  t.v.row(1).setOnes();
  const matrix out = run(t, layer.encoding, layer.options);
  EXPECT_GT(out(3, 0), 0);  // keys 1, 2, 3
  EXPECT_EQ(out(4, 0), 0);  // keys 2, 3, 4
}

TEST(model, modernbert_sees_both_ways) {
  const json config = {{"model_type", "modernbert"}, {"num_hidden_layers", 4}, {"local_attention", 128}};
  const model bert = of(config);
  expect_window(bert.layer(0).options, std::nullopt, std::nullopt);
  expect_window(bert.layer(1).options, 64, 64);
  EXPECT_EQ(bert.layer(1).options.mask, posenc::bidirectional);
  expect_shape(bert.layer(1).options, 12, 12, 64, 64);
}

TEST(model, t5_takes_its_table_from_the_caller) {
  const model t5 = published("t5-small");
  EXPECT_EQ(t5.layers(model_side::encoder), 6);
  EXPECT_EQ(t5.layers(model_side::decoder), 6);
  EXPECT_EQ(t5.layers(model_side::cross), 6);
  EXPECT_REFUSAL(t5.layers(), std::invalid_argument, "an encoder and a decoder");
  EXPECT_REFUSAL(t5.layer(0), std::invalid_argument, "layer(posenc::model_side::decoder, i)");
  EXPECT_REFUSAL(t5.layer(model_side::encoder, 0), std::invalid_argument, "bias_table, 32 buckets x 8 heads");
  EXPECT_REFUSAL(t5.layer(model_side::decoder, 6), std::out_of_range, "no layer 6 of 6 in the decoder");
  const matrix table = noise(32, 8, 5);
  const posenc::layer_inputs inputs{.bias_table = posenc::bias_table<float>::rows_by_heads(table)};
  const model_layer encoder = t5.layer(model_side::encoder, 5, inputs);
  EXPECT_EQ(encoder.options.mask, posenc::bidirectional);
  EXPECT_EQ(encoder.options.scale, 1.0);
  expect_shape(encoder.options, 8, 8, 64, 64);
  const auto bias = [](const model_layer& layer, position offset) {
    return layer.encoding.get_if<posenc::t5_bias<float>>()->bias(3, offset);
  };
  EXPECT_EQ(bias(encoder, -2), table(2, 3));
  EXPECT_EQ(bias(encoder, 2), table(16 + 2, 3));  // the other half of the buckets is for keys ahead
  const model_layer decoder = t5.layer(model_side::decoder, 0, inputs);
  EXPECT_EQ(decoder.options.mask, posenc::causal);
  EXPECT_EQ(bias(decoder, -15), table(15, 3));
  const model_layer cross = t5.layer(model_side::cross, 0);  // no bias, so no table
  EXPECT_STREQ(cross.encoding.name(), "no_encoding");
  EXPECT_EQ(cross.options.mask, posenc::bidirectional);
  EXPECT_EQ(cross.options.scale, 1.0);
  const auto narrow = posenc::bias_table<float>::rows_by_heads(noise(32, 4, 5));
  EXPECT_REFUSAL(t5.layer(model_side::encoder, 0, {.bias_table = narrow}), std::invalid_argument,
                 "4 heads, the layer 8");
}

TEST(model, learned_positions_are_added_before_the_layers) {
  json config = {{"model_type", "gpt2"}, {"n_embd", 8}, {"n_head", 2}, {"n_layer", 2}, {"n_positions", 5}};
  EXPECT_REFUSAL(of(config).layer(0), std::invalid_argument, "position_table, 5 rows");
  EXPECT_REFUSAL(of(config).layer(0, {.position_table = noise(4, 8, 1)}), std::invalid_argument,
                 "has 4 rows, the model 5");
  EXPECT_REFUSAL(of(config).layer(0, {.position_table = noise(5, 6, 1)}), std::invalid_argument,
                 "has 6 columns, the model 8");
  const matrix table = noise(5, 8, 1);
  const model_layer layer = of(config).layer(1, {.position_table = table});
  EXPECT_TRUE(layer.options.is_embedded);
  EXPECT_STREQ(layer.encoding.name(), "learned_absolute");
  matrix x = matrix::Zero(2, 8);
  posenc::embed_rows(x, layer.encoding, posenc::positions::from(3));
  EXPECT_EQ(x, table.bottomRows(2));
  const tensors t = tensors_for(layer.options, 3, 3);
  EXPECT_EQ(run(t, layer.encoding, layer.options),
            run(t, posenc::no_encoding{}, {.heads = 2, .mask = posenc::causal}));
}

TEST(model, whisper_and_the_fairseq_family) {
  const model whisper = published("whisper-tiny");
  EXPECT_STREQ(whisper.layer(model_side::encoder, 0).encoding.name(), "sinusoidal");
  expect_shape(whisper.layer(model_side::encoder, 3).options, 6, 6, 64, 64);
  EXPECT_EQ(whisper.layer(model_side::decoder, 0, {.position_table = noise(448, 384, 1)}).options.mask,
            posenc::causal);
  const json config = {{"model_type", "m2m_100"},
                       {"d_model", 32},
                       {"encoder_layers", 2},
                       {"decoder_layers", 3},
                       {"encoder_attention_heads", 2},
                       {"decoder_attention_heads", 4},
                       {"max_position_embeddings", 128},
                       {"pad_token_id", 1}};
  const model m2m = of(config);
  EXPECT_EQ(m2m.layers(model_side::decoder), 3);
  expect_shape(m2m.layer(model_side::encoder, 0).options, 2, 2, 16, 16);
  expect_shape(m2m.layer(model_side::decoder, 0).options, 4, 4, 8, 8);
  EXPECT_EQ(m2m.layer(model_side::encoder, 0).first_position, 2);
}

TEST(model, deepseek_values_are_narrower_than_its_keys) {
  const model_layer layer = published("deepseek-v2-lite").layer(0);
  expect_shape(layer.options, 16, 16, 192, 128);
  // M(40, 0.707) = 0.0707·ln 40 + 1, squared.
  const double m = 0.0707 * std::log(40.0) + 1;
  EXPECT_NEAR(layer.options.scale.value(), m * m / std::sqrt(192.0), 1e-15);
  const tensors t = tensors_for(layer.options, 2, 3);
  EXPECT_EQ(run(t, layer.encoding, layer.options).cols(), 16 * 128);
}

TEST(model, several_axes_get_their_places_from_the_call) {
  json config = small("qwen2_vl");
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
  const model_layer layer = of(config).layer(0);
  EXPECT_STREQ(layer.encoding.name(), "multi_axis_rope");
  const tensors t = tensors_for(layer.options, 7, 7);
  const posenc::rope_options options{.head_dim = 16, .base = 1e4, .pairing = posenc::pairing::half_split};
  EXPECT_EQ(run(t, layer.encoding, layer.options),
            run(t, posenc::rope<float>(options), layer.options));  // text
  posenc::axis_position_builder where;
  where.text(2).grid({.rows = 4, .columns = 4}).text(1);
  posenc::attention_options with = layer.options;
  with.key_positions = with.query_positions = posenc::positions::on_axes(where.table());
  const posenc::multi_axis_rope<float> one_sequence{
      options, {2, 3, 3}, posenc::axis_order::chunked, where.table(), where.rope_delta()};
  EXPECT_EQ(run(t, layer.encoding, with), run(t, one_sequence, layer.options));
  EXPECT_NE(run(t, layer.encoding, with), run(t, layer.encoding, layer.options));
}

TEST(model, layers_without_attention_say_so) {
  json config = small("qwen3_next");
  const model next = of(config);
  EXPECT_FALSE(next.attends(0));
  EXPECT_REFUSAL(next.layer(0), std::invalid_argument, "layer 0: no attention (linear_attention)");
  EXPECT_TRUE(next.attends(3));
  EXPECT_STREQ(next.layer(3).encoding.name(), "rope");
}

TEST(model, gguf_layers_with_heads_of_their_own) {
  const model lfm(file_of("lfm2")
                      .shape(3, 8, 64, 4096)
                      .integers("attention.head_count_kv", {0, 4, 2})
                      .number("rope.freq_base", 1e6f)
                      .read());
  EXPECT_FALSE(lfm.attends(0));
  EXPECT_REFUSAL(lfm.layer(0), std::invalid_argument, "no attention");
  expect_shape(lfm.layer(1).options, 8, 4, 8, 8);
  expect_shape(lfm.layer(2).options, 8, 2, 8, 8);
  EXPECT_STREQ(lfm.layer(2).encoding.name(), "rope");
  const model latent(file_of("deepseek2")
                         .shape(2, 4, 64, 4096)
                         .integer("attention.head_count_kv", 1)
                         .integer("attention.key_length_mla", 24)
                         .integer("attention.value_length_mla", 16)
                         .integer("rope.dimension_count", 8)
                         .number("rope.freq_base", 1e4f)
                         .read());
  expect_shape(latent.layer(0).options, 4, 4, 24, 16);
  const model short_list_model(
      file_of("lfm2").shape(2, 8, 64, 4096).integers("attention.head_count_kv", {4, 4, 4}).read());
  expect_shape(short_list_model.layer(1).options, 8, 4, 8, 8);
  EXPECT_REFUSAL(file_of("lfm2").shape(3, 8, 64, 4096).integers("attention.head_count_kv", {4, 4}).read(),
                 posenc::format_error, "lists 2 layers of 3");
}

TEST(any_encoding, runs_as_what_it_holds) {
  const posenc::rope<float> rope{{.head_dim = 16, .pairing = posenc::pairing::interleaved}};
  const posenc::alibi<float> alibi{{.heads = 4}};
  const posenc::shaw<float> shaw{
      {.direction = posenc::relative_direction::key_minus_query, .left = 1, .right = 1}, noise(3, 16, 9)};
  const posenc::attention_options options{.heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16};
  const tensors t = tensors_for(options, 3, 6);
  EXPECT_EQ(run(t, any_encoding<float>(rope), options), run(t, rope, options));
  EXPECT_EQ(run(t, any_encoding<float>(alibi), options), run(t, alibi, options));
  EXPECT_EQ(run(t, any_encoding<float>(shaw), options), run(t, shaw, options));
  EXPECT_EQ(run(t, any_encoding<float>(), options), run(t, posenc::no_encoding{}, options));
  EXPECT_NE(run(t, any_encoding<float>(rope), options), run(t, posenc::no_encoding{}, options));
  EXPECT_STREQ(any_encoding<float>(alibi).name(), "alibi");
  EXPECT_EQ(any_encoding<float>(alibi).get_if<posenc::rope<float>>(), nullptr);
  static_assert(posenc::detail::is_visited<any_encoding<float>> &&
                !posenc::detail::is_visited<posenc::rope<float>>);
}

}  // namespace model_test
