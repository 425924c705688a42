// SPDX-License-Identifier: MIT
/// \file
/// The config.json reader against transformers itself, asked by tests/golden/model_configs.py: for each
/// configuration the layer types, which layers turn, the frequencies (float32 there), magnitudes, softmax
/// scales and windows of every layer.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <posenc/models/huggingface.hpp>

#include "golden.hpp"

namespace transformers_test {

using nlohmann::json;

const posenc::encoding_description& of_layer(const posenc::model_description& model, posenc::index_t layer) {
  for (const auto& encoding : model.encodings)
    for (const posenc::index_t index : encoding.layers)
      if (index == layer) return encoding;
  throw std::runtime_error("no encoding for a layer");
}

void compare(const json& config, const json& expect) {
  const json& types = expect.at("layer_types");
  const posenc::model_description model = posenc::parse_huggingface(config.dump());
  const json& layers = expect.at("layers");
  ASSERT_EQ(static_cast<std::size_t>(model.layers), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    SCOPED_TRACE("layer " + std::to_string(i));
    const auto& encoding = of_layer(model, static_cast<posenc::index_t>(i));
    const json& theirs = layers[i];
    if (!types.empty()) {
      EXPECT_EQ(encoding.layer_type, types[i]);
    }
    if (theirs.empty() && encoding.layer_type == "linear_attention") {
      EXPECT_EQ(encoding.kind(), posenc::encoding_kind::none);
      continue;
    }
    if (theirs.contains("scaling")) {
      EXPECT_NEAR(encoding.softmax_scale.value(), theirs.at("scaling").get<double>(), 1e-15);
    }
    if (theirs.contains("use_rope")) {
      EXPECT_EQ(encoding.kind() == posenc::encoding_kind::rope, theirs.at("use_rope") != 0);
    }
    if (theirs.contains("sliding_window") && encoding.layer_type == "sliding_attention") {
      EXPECT_EQ(encoding.lookback.value_or(-1), theirs.at("sliding_window").get<posenc::position>() - 1);
    }
    if (encoding.kind() != posenc::encoding_kind::rope) continue;
    const json& ladders = expect.at("ladders");
    const json& ladder = ladders.contains("") ? ladders.at("") : ladders.at(encoding.layer_type);
    const auto rope = posenc::make_rope<double>(encoding.rope(), 1);
    EXPECT_NEAR(rope.attention_factor(), ladder.at("attention_factor").get<double>(), 1e-15);
    if (ladder.at("partner").is_number()) {
      const auto& options = encoding.rope().options;
      const auto [first, second] = posenc::channels_of_pair(options.pairing, options.rotary_dim.value(), 0);
      EXPECT_EQ(second - first, ladder.at("partner").get<posenc::index_t>());
    }
    const auto inv_freq = ladder.at("inv_freq").get<std::vector<double>>();
    ASSERT_EQ(rope.inv_freq().size(), inv_freq.size());
    for (std::size_t p = 0; p < inv_freq.size(); ++p)
      EXPECT_NEAR(rope.inv_freq()[p], inv_freq[p], 4e-7 * inv_freq[p]) << "pair " << p;
  }
}

TEST(transformers, every_layer_of_every_model_class) {
  const json cases = golden::cases("model_configs.json");
  EXPECT_GE(cases.size(), 90u);
  for (const json& row : cases) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    EXPECT_NO_THROW(compare(row.at("config"), row.at("expect")));
  }
}

}  // namespace transformers_test
