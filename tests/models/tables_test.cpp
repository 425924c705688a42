// SPDX-License-Identifier: MIT
/// \file
/// Tables for other engines: against transformers' own, through ONNX Runtime's operator, and written to a file.
#include <posenc/models/tables.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/xpos.hpp>
#include <posenc/models/any_model.hpp>
#include <posenc/models/huggingface.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace tables_test {

using nlohmann::json;
using posenc::index_t, posenc::position, posenc::table_layout;

std::vector<double> numbers(const json& list) { return list.get<std::vector<double>>(); }

posenc::rotation rotation_of(const posenc::model_description& model) {
  return posenc::make_rope<double>(model.encodings.front().rope(), model.context_length).lowered();
}

TEST(tables, of_transformers_are_those_of_its_classes) {
  const json all = golden::cases("rotary_tables.json");
  for (const json& one : all.at("transformers")) {
    const std::string name = one.at("config").get<std::string>();
    SCOPED_TRACE(name);
    const auto by = rotation_of(posenc::read_huggingface("examples/configs/" + name));
    const auto tables = posenc::rotary_tables(by, 4096, table_layout::transformers);
    ASSERT_EQ(tables.size(), 2u);
    // gpt_oss hands out half of the channels and repeats them later.
    const index_t width = one.at("width").get<index_t>();
    for (std::size_t p = 0; p < one.at("positions").size(); ++p)
      for (std::size_t c = 0; c < one.at("channels").size(); ++c) {
        const index_t row = one.at("positions")[p].get<index_t>(),
                      column = one.at("channels")[c].get<index_t>();
        if (column >= width) continue;
        // Theirs are float32 angles: at position 4095 off by 4095 times half a unit in the last place.
        const double bound = 2e-7 + static_cast<double>(row) * 0x1p-24 * 1.5;
        EXPECT_NEAR(tables[0].values(row, column), one.at("cos")[p][c].get<double>(), bound)
            << row << ", " << column;
        EXPECT_NEAR(tables[1].values(row, column), one.at("sin")[p][c].get<double>(), bound)
            << row << ", " << column;
      }
  }
}

TEST(tables, through_onnxruntime_rotate_as_the_encoding_does) {
  const json all = golden::cases("rotary_tables.json");
  for (const json& one : all.at("onnxruntime")) {
    const auto model = posenc::describe_huggingface(one.at("config"));
    const auto rope = posenc::make_rope<double>(model.encodings.front().rope());
    for (std::size_t n = 0; n < 2; ++n) {
      std::vector<double> x = numbers(one.at("x")[n]);
      const std::vector<double> y = numbers(one.at("y")[n]);
      rope.rotate(std::span<double>(x), one.at("positions")[n].get<position>());
      for (std::size_t c = 0; c < x.size(); ++c) EXPECT_NEAR(x[c], y[c], 2e-6) << "channel " << c;
    }
  }
}

TEST(tables, of_each_layout_hold_the_same_numbers) {
  for (const auto pairing : {posenc::pairing::half_split, posenc::pairing::interleaved}) {
    const posenc::rope<double> rope({.head_dim = 10, .rotary_dim = 6, .pairing = pairing},
                                    posenc::yarn{.factor = 4, .original_context = 16});
    const auto by = rope.lowered();
    ASSERT_GT(by.attention_factor, 1.1);
    const auto ort = posenc::rotary_tables(by, 9, table_layout::onnxruntime),
               flash = posenc::rotary_tables(by, 9, table_layout::flash_attention),
               vllm = posenc::rotary_tables(by, 9, table_layout::vllm),
               wide = posenc::rotary_tables(by, 9, table_layout::transformers);
    EXPECT_EQ(ort[0].name, "cos_cache");
    EXPECT_EQ(ort[1].name, "sin_cache");
    EXPECT_EQ(flash[0].name, "cos");
    EXPECT_EQ(flash[1].name, "sin");
    ASSERT_EQ(vllm.size(), 1u);
    EXPECT_EQ(vllm[0].name, "cos_sin_cache");
    EXPECT_THAT(ort[0].extents, ::testing::ElementsAre(9, 3));
    EXPECT_THAT(vllm[0].extents, ::testing::ElementsAre(9, 6));
    EXPECT_THAT(wide[0].extents, ::testing::ElementsAre(1, 9, 6));
    EXPECT_TRUE(flash[0].values == ort[0].values && flash[1].values == ort[1].values);
    for (index_t p = 0; p < 9; ++p)
      for (index_t pair = 0; pair < 3; ++pair) {
        std::vector<double> unit(10,
                                 0.0);  // a vector along the pair's first channel turns into (m·cos, m·sin)
        const auto [first, second] = posenc::channels_of_pair(pairing, 6, pair);
        unit[static_cast<std::size_t>(first)] = 1;
        rope.rotate(std::span<double>(unit), p);
        const auto cos = static_cast<float>(unit[static_cast<std::size_t>(first)]),
                   sin = static_cast<float>(unit[static_cast<std::size_t>(second)]);
        EXPECT_FLOAT_EQ(ort[0].values(p, pair), cos);
        EXPECT_FLOAT_EQ(ort[1].values(p, pair), sin);
        EXPECT_FLOAT_EQ(vllm[0].values(p, pair), cos);
        EXPECT_FLOAT_EQ(vllm[0].values(p, 3 + pair), sin);
        for (const index_t channel : {first, second}) {
          EXPECT_FLOAT_EQ(wide[0].values(p, channel), cos);
          EXPECT_FLOAT_EQ(wide[1].values(p, channel), sin);
        }
      }
  }
}

/// A file that goes when the test does.
struct scratch_file {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() /
      ("posenc_tables_test_" + std::to_string(std::uintptr_t(this)) + ".safetensors");
  ~scratch_file() { std::filesystem::remove(path); }
};

TEST(tables, come_back_from_a_file) {
  const scratch_file file;
  const auto by = posenc::rope<double>({.head_dim = 8, .pairing = posenc::pairing::half_split}).lowered();
  const auto tables = posenc::rotary_tables(by, 5, table_layout::vllm);
  for (const auto dtype :
       {posenc::safetensors_dtype::f32, posenc::safetensors_dtype::f16, posenc::safetensors_dtype::bf16}) {
    posenc::write_safetensors(file.path, tables, posenc::table_facts(by, table_layout::vllm), dtype);
    const auto read = posenc::read_safetensors(file.path);
    EXPECT_EQ(read.metadata.at("layout"), "vllm");
    EXPECT_EQ(read.metadata.at("pairing"), "half_split");
    EXPECT_EQ(read.metadata.at("rotary_dim"), "8");
    EXPECT_EQ(read.metadata.at("attention_factor"), "1, multiplied into cos and sin");
    const auto& tensor = read.at("cos_sin_cache");
    EXPECT_THAT(tensor.extents, ::testing::ElementsAre(5, 8));
    EXPECT_EQ(tensor.file_offset % 8, 0u);
    const auto values = posenc::read_tensor_values<float>(read, "cos_sin_cache");
    const float rounding = dtype == posenc::safetensors_dtype::f32   ? 0
                           : dtype == posenc::safetensors_dtype::f16 ? 5e-4f
                                                                     : 4e-3f;
    for (std::size_t n = 0; n < values.size(); ++n)
      EXPECT_NEAR(values[n], tables[0].values.data()[n], rounding);
  }
  EXPECT_FALSE(std::filesystem::exists(file.path.string() + ".part"));
}

TEST(tables, that_cannot_be_are_refused) {
  const auto by = posenc::rope<double>({.head_dim = 8, .pairing = posenc::pairing::half_split}).lowered();
  EXPECT_REFUSAL(posenc::rotary_tables(by, 0, table_layout::vllm), std::invalid_argument, "a length of 0");
  EXPECT_REFUSAL(posenc::rotary_tables(by, index_t{1} << 40, table_layout::vllm), std::invalid_argument,
                 "1099511627776 positions of 8 channels take more than 4 GiB");
  const posenc::xpos<double> grows({.rope = {.head_dim = 8, .pairing = posenc::pairing::half_split}});
  EXPECT_REFUSAL(posenc::rotary_tables(grows.lowered(), 4, table_layout::vllm), std::invalid_argument,
                 "xpos");
  EXPECT_REFUSAL(posenc::table_layout_of("vlm"), std::invalid_argument,
                 "--layout: vlm is none of onnxruntime");
  const auto tables = posenc::rotary_tables(by, 4, table_layout::vllm);
  EXPECT_REFUSAL(posenc::write_safetensors("no/such/folder/x", tables), std::invalid_argument,
                 "cannot be written");
  EXPECT_REFUSAL(posenc::write_safetensors("x", std::vector{tables[0], tables[0]}), std::invalid_argument,
                 "cos_sin_cache comes twice");
  auto torn = tables;
  torn[0].extents = {4, 7};
  EXPECT_REFUSAL(posenc::write_safetensors("x", torn), std::invalid_argument,
                 "has 32 values, its extents 28");
}

}  // namespace tables_test
