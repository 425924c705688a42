// SPDX-License-Identifier: MIT
/// \file
/// From a config.json to attention: nineteen layers of eleven models, each read by read_model and run by both engines
/// over what transformers recorded before its own rotation, against what transformers gave to its output projection.
/// golden/make_layer_attention.py says where the numbers come from, and that each part of a layer (mask, window, chunk,
/// rotation, its scheme, softcap, sinks, temperature, bias, scale) changes the output by more than 0.02 if left out.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>
#include <nlohmann/json.hpp>

#include <posenc/fused.hpp>
#include <posenc/models.hpp>
#include <posenc/posenc.hpp>

#include "golden.hpp"

namespace layer_attention_test {

using nlohmann::json;
using posenc::index_t;
using matrix = posenc::row_major_matrix<float>;

const std::string folder = std::string(POSENC_GOLDEN_DIR) + "/layers/";

const json& all_layers() {
  static const json layers = golden::cases("layers/index.json").at("layers");
  return layers;
}

/// A tensor of the file, tokens × everything else.
matrix tensor(const json& of, const std::string& part) {
  static const auto file = posenc::read_safetensors(folder + "layers.safetensors");
  const std::string name = of.at("key").get<std::string>() + "." + part;
  const auto rows = static_cast<index_t>(file.at(name).extents.at(0));
  const std::vector<std::byte> bytes = posenc::read_tensor_bytes(file, name);
  matrix result(rows, static_cast<index_t>(bytes.size() / sizeof(float)) / rows);
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

/// The layer as a user makes it: from the file, with what a file cannot hold.
struct read_layer {
  explicit read_layer(const json& of) {
    const auto model = posenc::read_model(folder + of.at("config").get<std::string>());
    const auto number = of.at("layer").get<index_t>();
    const auto has = of.at("has").get<std::vector<std::string>>();
    const auto needs = [&](const char* what) { return std::find(has.begin(), has.end(), what) != has.end(); };
    posenc::layer_inputs inputs{.length = of.at("tokens").get<posenc::position>()};
    if (needs("bias")) inputs.bias_table = posenc::bias_table<float>::rows_by_heads(tensor(of, "bias"));
    if (of.at("config") != "t5.json")
      layer = model.layer(number, inputs);
    else
      layer =
          model.layer(of.at("stack") == "encoder" ? posenc::model_side::encoder : posenc::model_side::decoder,
                      number, inputs);
    EXPECT_EQ(layer.options.needs_sinks, needs("sinks"));
    if (!needs("sinks")) return;
    const matrix learned = tensor(of, "sinks");
    sinks.assign(learned.data(), learned.data() + learned.size());
    layer.options.sinks = sinks;
  }
  read_layer(const read_layer&) = delete;
  read_layer& operator=(const read_layer&) = delete;

  posenc::model_layer layer{};
  std::vector<double> sinks{};
};

struct layer_number {
  std::size_t n = 0;
  friend std::ostream& operator<<(std::ostream& to, const layer_number& one) {
    return to << all_layers().at(one.n).at("key").get<std::string>();
  }
};
std::vector<layer_number> numbered_layers() {
  std::vector<layer_number> result(all_layers().size());
  for (std::size_t n = 0; n < result.size(); ++n) result[n].n = n;
  return result;
}

class layer_attention : public ::testing::TestWithParam<layer_number> {
 protected:
  const json& about = all_layers().at(GetParam().n);
};

// transformers computes in float32, angles included, over 32 positions at most.
TEST_P(layer_attention, equals_that_of_transformers) {
  const read_layer read(about);
  const matrix q = tensor(about, "q"), k = tensor(about, "k"), v = tensor(about, "v"),
               expected = tensor(about, "out");
  const auto& [encoding, options, type, first] = read.layer;
  const matrix by_reference = posenc::reference::attention(q, k, v, encoding, options),
               by_fused = posenc::fused::attention(q, k, v, encoding, options);
  EXPECT_LE((by_reference - expected).cwiseAbs().maxCoeff(), 2e-5) << type;
  EXPECT_LE((by_fused - expected).cwiseAbs().maxCoeff(), 2e-5) << type;
}

TEST_P(layer_attention, has_the_shape_of_transformers) {
  const read_layer read(about);
  const auto& options = read.layer.options;
  EXPECT_EQ(options.heads, about.at("heads").get<index_t>());
  EXPECT_EQ(options.kv_heads, about.at("kv_heads").get<index_t>());
  EXPECT_EQ(options.head_dim, about.at("head_dim").get<index_t>());
  EXPECT_EQ(options.softcap, about.at("softcap").get<double>());
  const double plain = 1 / std::sqrt(about.at("head_dim").get<double>());
  EXPECT_NEAR(options.scale.value_or(plain), about.at("scale").get<double>(), 1e-12);
}

// Which keys each query sees, whatever the numbers.
TEST_P(layer_attention, sees_what_transformers_sees) {
  const read_layer read(about);
  const matrix q = tensor(about, "q"), k = tensor(about, "k");
  const index_t tokens = q.rows(), heads = read.layer.options.heads;
  std::vector<float> scores(static_cast<std::size_t>(heads * tokens * tokens));
  posenc::reference::scores_into(posenc::as_heads(q, heads),
                                 posenc::as_heads(k, *read.layer.options.kv_heads), posenc::no_encoding{},
                                 read.layer.options, posenc::score_stage::biased,
                                 posenc::dense_scores(scores.data(), heads, tokens, tokens));
  const auto visible = about.at("visible").get<std::vector<std::array<index_t, 2>>>();  // first and last key
  ASSERT_EQ(static_cast<index_t>(visible.size()), tokens);
  for (index_t i = 0; i < tokens; ++i)
    for (index_t j = 0; j < tokens; ++j)
      EXPECT_EQ(std::isfinite(scores[static_cast<std::size_t>(i * tokens + j)]),
                visible[static_cast<std::size_t>(i)][0] <= j && j <= visible[static_cast<std::size_t>(i)][1])
          << "query " << i << ", key " << j;
}

INSTANTIATE_TEST_SUITE_P(all, layer_attention, ::testing::ValuesIn(numbered_layers()), [](const auto& of) {
  std::string name = all_layers().at(of.param.n).at("key").template get<std::string>();
  for (char& letter : name)
    if (letter == '.') letter = '_';
  return name;
});

TEST(layer_attention_cases, hold_every_part) {
  std::map<std::string, int> count;
  for (const json& one : all_layers())
    for (const json& part : one.at("has")) ++count[part.get<std::string>()];
  EXPECT_EQ(all_layers().size(), 19u);
  EXPECT_EQ(count["window"], 6);
  EXPECT_EQ(count["chunk"], 1);        // of Llama-4 alone
  EXPECT_EQ(count["temperature"], 1);  // likewise
  EXPECT_EQ(count["sinks"], 2);
  EXPECT_EQ(count["softcap"], 2);
  EXPECT_EQ(count["bias"], 3);
}

}  // namespace layer_attention_test
