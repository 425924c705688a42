// SPDX-License-Identifier: MIT
/// \file
/// Real data: queries, keys and values of SmolLM2-135M-Instruct before the rotation, for 200 tokens of a real
/// text, against the attention outputs of Hugging Face transformers (float32).
/// examples/llama/independent/reference.py made the fixture; there the pairing is half_split.
#include <string>

#include <gtest/gtest.h>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/models/safetensors.hpp>
#include <posenc/rope/convert_pairing.hpp>
#include <posenc/rope/scaling.hpp>

#if __has_include(<hwy/highway.h>)
#include <posenc/fused.hpp>
#endif

namespace real_model_test {

using matrix = posenc::row_major_matrix<float>;

constexpr posenc::rope_options smollm2{
    .head_dim = 64, .base = 100'000.0, .pairing = posenc::pairing::half_split};

/// One KV head of one layer with its three query heads.
struct layer_fixture {
  matrix q, k, v, expected;
  posenc::attention_options options{.heads = 3, .kv_heads = 1, .mask = posenc::causal};

  layer_fixture(int layer, const std::string& scaling) {
    const auto file = posenc::read_safetensors(POSENC_GOLDEN_DIR "/real_model/smollm2_attention.safetensors");
    const std::string name = "layer" + std::to_string(layer) + ".";
    q = posenc::read_tensor_matrix(file, name + "q");
    k = posenc::read_tensor_matrix(file, name + "k");
    v = posenc::read_tensor_matrix(file, name + "v");
    expected = posenc::read_tensor_matrix(file, name + scaling);
  }

  /// The largest difference from transformers, relative to the largest number it gives.
  [[nodiscard]] float error(const matrix& output) const {
    return (output - expected).cwiseAbs().maxCoeff() / expected.cwiseAbs().maxCoeff();
  }
};

// transformers sums in float32 and forms angles in float32: at position 199 these are off by 1e-5 of a
// radian.
constexpr float tolerance = 2e-5F;

class RealModel : public testing::TestWithParam<int> {};

TEST_P(RealModel, ReferenceAttentionIsThatOfTransformers) {
  const layer_fixture layer(GetParam(), "plain");
  const posenc::rope<float> rope{smollm2};
  EXPECT_LT(layer.error(posenc::reference::attention(layer.q, layer.k, layer.v, rope, layer.options)),
            tolerance);
}

#if __has_include(<hwy/highway.h>)
TEST_P(RealModel, FusedAttentionIsThatOfTransformers) {
  const layer_fixture layer(GetParam(), "plain");
  const posenc::rope<float> rope{smollm2};
  EXPECT_LT(layer.error(posenc::fused::attention(layer.q, layer.k, layer.v, rope, layer.options)), tolerance);
}
#endif

TEST_P(RealModel, TheWrongPairingIsFarOff) {
  const layer_fixture layer(GetParam(), "plain");
  posenc::rope_options wrong = smollm2;
  wrong.pairing = posenc::pairing::interleaved;
  const posenc::rope<float> rope{wrong};
  EXPECT_GT(layer.error(posenc::reference::attention(layer.q, layer.k, layer.v, rope, layer.options)), 0.05F);
}

INSTANTIATE_TEST_SUITE_P(Layers, RealModel, testing::Values(0, 14, 29),
                         [](const auto& layer) { return "Layer" + std::to_string(layer.param); });

TEST(RealModelScaling, YarnIsThatOfTransformers) {
  const layer_fixture layer(0, "yarn");
  const posenc::rope<float> rope{smollm2, posenc::yarn{.factor = 4.0, .original_context = 8192}};
  EXPECT_LT(layer.error(posenc::reference::attention(layer.q, layer.k, layer.v, rope, layer.options)),
            tolerance);
  // The same unrotated keys serve both scalings; without the scaling the answer is another.
  const posenc::rope<float> plain{smollm2};
  EXPECT_GT(layer.error(posenc::reference::attention(layer.q, layer.k, layer.v, plain, layer.options)),
            100 * tolerance);
}

}  // namespace real_model_test
