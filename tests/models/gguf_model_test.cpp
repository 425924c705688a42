// SPDX-License-Identifier: MIT
/// \file
/// From GGUF metadata to encodings, on files written here.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <posenc/models/any_model.hpp>

#include "gguf_bytes.hpp"
#include "refusals.hpp"

namespace gguf_model_test {

using posenc::encoding_kind;
using posenc::model_description;
using posenc_tests::file_of;
using posenc_tests::gguf_bytes;

std::vector<posenc::index_t> layers(std::initializer_list<posenc::index_t> list) { return list; }

TEST(gguf_model, llama_is_interleaved_and_its_rope_freqs_divide) {
  file_of file("llama");
  file.shape(2, 2, 16, 131072).number("rope.freq_base", 500000.0f).integer("rope.dimension_count", 8);
  file.tensors.push_back({"rope_freqs.weight", {1.0f, 2.0f, 4.0f, 8.0f}});
  const model_description model = file.read();
  ASSERT_EQ(model.encodings.size(), 1u);
  const auto& encoding = model.encodings[0];
  EXPECT_EQ(encoding.layers, layers({0, 1}));
  EXPECT_EQ(encoding.rope().options.pairing, posenc::pairing::interleaved);
  EXPECT_EQ(encoding.rope().options.base, 500000.0);
  EXPECT_DOUBLE_EQ(*encoding.softmax_scale, 1 / std::sqrt(8.0));
  const auto rope = posenc::make_rope<double>(encoding.rope());
  EXPECT_EQ(rope.inv_freq()[0], 1);
  EXPECT_NEAR(rope.inv_freq()[3], std::pow(500000.0, -0.75) / 8, 1e-18);
  file.tensors[0].second.pop_back();
  EXPECT_REFUSAL(file.read(), std::invalid_argument, "rope_freqs.weight has 3");
  file.tensors[0].second = {1, 1, 0, 1};
  EXPECT_REFUSAL(file.read(), std::invalid_argument, "divisor");
}

TEST(gguf_model, the_architecture_implies_the_pairing) {
  for (const char* name : {"qwen2", "gemma", "phi2", "gptneox", "falcon"})
    EXPECT_EQ(file_of(name).shape(1, 2, 16, 64).read().encodings[0].rope().options.pairing,
              posenc::pairing::half_split)
        << name;
  for (const char* name : {"llama", "command-r", "glm4", "chatglm", "granite"})
    EXPECT_EQ(file_of(name).shape(1, 2, 16, 64).read().encodings[0].rope().options.pairing,
              posenc::pairing::interleaved)
        << name;
  EXPECT_REFUSAL(file_of("brand-new").shape(1, 2, 16, 64).read(), std::invalid_argument,
                 "nearest in name are ");
}

TEST(gguf_model, defaults_of_the_format) {
  // No scaling type means linear, no factor means 1, no base means 10000.
  const model_description plain = file_of("qwen2").shape(1, 2, 16, 64).read();
  EXPECT_EQ(plain.encodings[0].rope().options.base, 10000.0);
  EXPECT_TRUE(std::holds_alternative<posenc::no_scaling>(plain.encodings[0].rope().scaling.scheme));
  EXPECT_EQ(plain.warnings.size(), 1u);
  const auto factor_of = [](const model_description& model) {
    return std::get<posenc::position_interpolation>(model.encodings[0].rope().scaling.scheme).factor;
  };
  EXPECT_EQ(factor_of(file_of("qwen2").shape(1, 2, 16, 64).number("rope.scaling.factor", 4).read()), 4);
  EXPECT_EQ(factor_of(file_of("qwen2").shape(1, 2, 16, 64).number("rope.scale_linear", 2).read()), 2);
  EXPECT_REFUSAL(file_of("qwen2").shape(1, 2, 16, 64).text("rope.scaling.type", "ntk").read(),
                 std::invalid_argument, "longrope");
}

TEST(gguf_model, yarn_magnitudes) {
  const auto with_yarn = [](const char* architecture, float log_multiplier) {
    file_of file(architecture);
    file.shape(2, 2, 384, 163840).number("rope.freq_base", 10000).text("rope.scaling.type", "yarn");
    file.number("rope.scaling.factor", 40).integer("rope.scaling.original_context_length", 4096);
    file.integer("attention.key_length", 192).integer("rope.dimension_count", 64);
    if (log_multiplier != 0) file.number("rope.scaling.yarn_log_multiplier", log_multiplier);
    return file.read();
  };
  // DeepSeek-V2-Lite: 0.1·0.707 in the file; the golden softmax scale, to the float32 of the file.
  const model_description lite = with_yarn("deepseek2", 0.0707f);
  EXPECT_NEAR(*lite.encodings[0].softmax_scale, 0.1147213867929261, 1e-8);
  EXPECT_EQ(posenc::make_rope<double>(lite.encodings[0].rope()).attention_factor(), 1);
  EXPECT_EQ(lite.encodings[0].rope().options.rotary_offset, 128);
  // Without the multiplier, the formula of the paper.
  const model_description plain = with_yarn("qwen2", 0);
  EXPECT_NEAR(posenc::make_rope<double>(plain.encodings[0].rope()).attention_factor(),
              0.1 * std::log(40.0) + 1, 1e-15);
  // Ministral-3: mscale = mscale_all_dim = 1 cancel.
  EXPECT_NEAR(posenc::make_rope<double>(with_yarn("mistral3", 1).encodings[0].rope()).attention_factor(), 1,
              1e-15);
}

TEST(gguf_model, longrope_sets_lie_in_tensors) {
  file_of file("phi3");
  file.shape(2, 2, 16, 131072).integer("rope.scaling.original_context_length", 4096);
  file.number("rope.scaling.attn_factor", 1.25f);
  file.tensors.push_back({"rope_factors_long.weight", {2, 2, 2, 2}});
  file.tensors.push_back({"rope_factors_short.weight", {1, 1, 1, 1}});
  const auto description = file.read().encodings.at(0).rope();
  EXPECT_EQ(posenc::make_rope<double>(description, 4096).inv_freq()[0], 1);
  EXPECT_EQ(posenc::make_rope<double>(description, 4097).inv_freq()[0], 0.5);
  EXPECT_EQ(posenc::make_rope<double>(description, 1).attention_factor(), 1.25);
  file.tensors.pop_back();
  EXPECT_REFUSAL(file.read(), std::invalid_argument, "rope_factors_short.weight");
}

TEST(gguf_model, local_layers_and_resting_layers) {
  file_of gemma3("gemma3");
  gemma3.shape(12, 2, 16, 131072).number("rope.freq_base", 1e6f).integer("attention.sliding_window", 1024);
  gemma3.text("rope.scaling.type", "linear").number("rope.scaling.factor", 8);
  const model_description model = gemma3.read();
  ASSERT_EQ(model.encodings.size(), 2u);
  EXPECT_EQ(model.encodings[1].layers, layers({5, 11}));
  EXPECT_EQ(model.encodings[0].layer_type, "sliding_attention");
  EXPECT_EQ(model.encodings[0].lookback, 1023);
  EXPECT_EQ(posenc::make_rope<double>(model.encodings[0].rope()).inv_freq()[0], 1);
  EXPECT_EQ(model.encodings[0].rope().options.base, 1e4);
  EXPECT_EQ(posenc::make_rope<double>(model.encodings[1].rope()).inv_freq()[0], 0.125);

  const model_description llama4 =
      file_of("llama4").shape(8, 2, 16, 1000).number("rope.freq_base", 5e5f).read();
  EXPECT_EQ(llama4.encodings.at(1).layers, layers({3, 7}));
  EXPECT_EQ(llama4.encodings[1].kind(), encoding_kind::none);
  EXPECT_TRUE(llama4.encodings[1].position_scale);
  EXPECT_EQ(llama4.encodings[0].chunk, 8192);

  const model_description cohere2 =
      file_of("cohere2").shape(4, 2, 16, 1000).integer("attention.sliding_window", 10).read();
  EXPECT_EQ(cohere2.encodings.at(1).layers, layers({3}));
  EXPECT_EQ(cohere2.encodings[1].kind(), encoding_kind::none);

  const model_description listed = file_of("gemma4")
                                       .shape(3, 2, 16, 1000)
                                       .integer("attention.sliding_window", 10)
                                       .integers("attention.sliding_window_pattern", {1, 0, 1})
                                       .read();
  EXPECT_EQ(listed.encodings.at(0).layers, layers({0, 2}));
  EXPECT_EQ(listed.encodings[0].softmax_scale, 1.0);
}

TEST(gguf_model, gpt_oss_keeps_its_fractional_ramp_unless_asked) {
  file_of file("gpt-oss");
  file.shape(2, 64, 2880, 131072).integer("attention.key_length", 64).number("rope.freq_base", 150000);
  file.text("rope.scaling.type", "yarn").number("rope.scaling.factor", 32);
  file.integer("rope.scaling.original_context_length", 4096).integer("attention.sliding_window", 128);
  EXPECT_FALSE(std::get<posenc::yarn>(file.read().encodings[0].rope().scaling.scheme).truncate);
  EXPECT_TRUE(
      std::get<posenc::yarn>(file.read({.as_llama_cpp = true}).encodings[0].rope().scaling.scheme).truncate);
  EXPECT_TRUE(file.read().encodings[0].learned_sinks);
}

TEST(gguf_model, several_axes) {
  file_of file("qwen3vl");
  file.shape(1, 1, 128, 1000).integers("rope.dimension_sections", {24, 20, 20, 0});
  const auto axes = file.read().encodings[0].rope().axis_of_pair;
  ASSERT_EQ(axes.size(), 64u);
  EXPECT_EQ(axes[61], 0);
  EXPECT_EQ(file.read({.as_llama_cpp = true}).encodings[0].rope().axis_of_pair[61], 3);
}

TEST(gguf_model, kinds_that_do_not_rotate) {
  const model_description bloom = file_of("bloom").shape(2, 8, 512, 2048).read();
  EXPECT_EQ(std::get<posenc::alibi_description>(bloom.encodings[0].parameters).make().slopes()[0], 0.5);
  const model_description mpt =
      file_of("mpt").shape(2, 8, 512, 2048).number("attention.max_alibi_bias", 4).read();
  EXPECT_NEAR(std::get<posenc::alibi_description>(mpt.encodings[0].parameters).make().slopes()[0],
              std::exp2(-0.5), 1e-15);
  const model_description t5 =
      file_of("t5").shape(2, 8, 512, 512).integer("attention.relative_buckets_count", 32).read();
  ASSERT_EQ(t5.encodings.size(), 2u);
  EXPECT_TRUE(std::get<posenc::t5_description>(t5.encodings[0].parameters).buckets.bidirectional);
  EXPECT_EQ(t5.encodings[0].softmax_scale, 1.0);
  const model_description gpt2 = file_of("gpt2").shape(2, 8, 512, 1024).read();
  EXPECT_EQ(std::get<posenc::learned_description>(gpt2.encodings[0].parameters).rows, 1024);
}

TEST(gguf_model, bad_metadata_is_refused_with_the_key) {
  EXPECT_REFUSAL(file_of("llama").read(), std::invalid_argument, "llama.block_count");
  EXPECT_REFUSAL(file_of("llama").text("block_count", "many").read(), posenc::format_error,
                 "llama.block_count");
  EXPECT_REFUSAL(file_of("llama").shape(0, 2, 16, 64).read(), posenc::format_error, "llama.block_count");
  EXPECT_REFUSAL(file_of("llama").shape(1, 2, 16, 64).integer("rope.dimension_count", 7).read(),
                 std::invalid_argument, "7");
  EXPECT_REFUSAL(file_of("llama").shape(1, 2, 16, 64).integer("rope.dimension_count", 10).read(),
                 std::invalid_argument, "10");
  EXPECT_REFUSAL(file_of("llama").shape(1, 2, 16, 64).number("rope.freq_base", -1).read(),
                 std::invalid_argument, "-1");
  EXPECT_REFUSAL(file_of("gemma4")
                     .shape(3, 2, 16, 64)
                     .integer("attention.sliding_window", 10)
                     .integers("attention.sliding_window_pattern", {1})
                     .read(),
                 posenc::format_error, "sliding_window_pattern");
  EXPECT_REFUSAL(posenc::parse_gguf_model(gguf_bytes(3, 0, 0).bytes()), posenc::format_error,
                 "general.architecture");
}

TEST(any_model, the_first_bytes_decide) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const auto gguf = folder / "posenc_any.gguf", json = folder / "posenc_any.json";
  const auto bytes = file_of("qwen2").shape(1, 2, 16, 64).bytes();
  std::ofstream(gguf, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::ofstream(json) << R"({"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2})";
  EXPECT_EQ(posenc::read_description(gguf).model_type, "qwen2");
  EXPECT_EQ(posenc::read_description(json).model_type, "bloom");
  std::filesystem::remove(gguf);
  std::filesystem::remove(json);
  EXPECT_THROW((void)posenc::read_description(json), posenc::format_error);
}

}  // namespace gguf_model_test
