// SPDX-License-Identifier: MIT
/// \file
/// Real data of the learned-absolute kind: weights cut from the sentence encoder all-MiniLM-L6-v2 (four of the
/// twelve heads of layer 0), two sentences, the second one padded, and what Hugging Face transformers (float32)
/// makes of them. examples/minilm/independent/reference.py made the fixture; examples/minilm reads it here as it
/// reads the whole model.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/encoding.hpp>
#include <posenc/models/safetensors.hpp>

#include "../../examples/minilm/first_layer.hpp"
#include "../../examples/minilm/wordpiece.hpp"
#include "refusals.hpp"

namespace minilm_test {

using minilm::matrix;
using testing::ElementsAre;

/// One sentence of the fixture.
class MiniLM : public testing::TestWithParam<int> {
 protected:
  MiniLM()
      : file_(posenc::read_safetensors(POSENC_GOLDEN_DIR "/real_model/minilm_first_layer.safetensors")),
        layer_(file_),
        words_(integers("word_rows")),
        length_(integers("length").at(0)) {}

  [[nodiscard]] std::vector<std::int32_t> integers(const std::string& name) const {
    return posenc::read_tensor_values<std::int32_t>(file_, prefix_ + name);
  }
  [[nodiscard]] const posenc::learned_absolute<float>& table() const { return layer_.positions(); }

  /// The embedding layer's largest difference from transformers.
  template <class E>
  [[nodiscard]] float embedding_error(const E& encoding,
                                      const posenc::positions& where = posenc::positions::from(0)) const {
    const matrix expected = posenc::read_tensor_matrix(file_, prefix_ + "embedding");
    return (layer_.embed(words_, encoding, where) - expected).cwiseAbs().maxCoeff();
  }
  /// The attention's largest difference from transformers, over the heads that the fixture has.
  template <class Attention, class E>
  [[nodiscard]] float attention_error(const Attention& attention, const E& encoding,
                                      const posenc::positions& where = posenc::positions::from(0)) const {
    const matrix h = layer_.attend(layer_.embed(words_, encoding, where), encoding, length_, attention);
    const matrix expected = posenc::read_tensor_matrix(file_, prefix_ + "context").leftCols(h.cols());
    return (h - expected).cwiseAbs().maxCoeff();
  }

  const std::string prefix_ = "sentence" + std::to_string(GetParam()) + ".";
  const posenc::safetensors_file file_;
  const minilm::first_layer layer_;
  const std::vector<std::int32_t> words_;
  const posenc::index_t length_;
};

// Both sides sum in float32. Embeddings reach 7.2 (one ulp is 4.8e-7), the attention 1.9.
constexpr float tolerance = 5e-6F;

TEST_P(MiniLM, TheFixtureHoldsWhatIsTested) {
  EXPECT_EQ(layer_.heads(), 4);
  EXPECT_EQ(layer_.width(), 384);
  EXPECT_EQ(words_.size(), 37U);
  EXPECT_EQ(length_, GetParam() == 0 ? 37 : 6);  // the second one: [CLS] dog bites man . [SEP], then padding
}

TEST_P(MiniLM, TheEmbeddingLayerIsThatOfTransformers) { EXPECT_LT(embedding_error(table()), tolerance); }

TEST_P(MiniLM, ReferenceAttentionIsThatOfTransformers) {
  EXPECT_LT(attention_error(minilm::by_reference{}, table()), tolerance);
}

#if defined(MINILM_FUSED)
TEST_P(MiniLM, FusedAttentionIsThatOfTransformers) {
  EXPECT_LT(attention_error(minilm::by_fused_kernels{}, table()), tolerance);
}
#endif

// A test of positions must notice when they are wrong.
TEST_P(MiniLM, PositionsOffByOneAreFarOff) {
  EXPECT_GT(embedding_error(table(), posenc::positions::from(1)), 0.5F);
  EXPECT_GT(attention_error(minilm::by_reference{}, table(), posenc::positions::from(1)), 0.05F);
}

TEST_P(MiniLM, WithoutPositionsItIsFarOff) {
  EXPECT_GT(embedding_error(posenc::no_encoding{}), 0.5F);
  EXPECT_GT(attention_error(minilm::by_reference{}, posenc::no_encoding{}), 0.05F);
}

TEST_P(MiniLM, PaddingWouldMatterIfItWereSeen) {
  const matrix x = layer_.embed(words_, table());
  const matrix masked = layer_.attend(x, table(), length_, minilm::by_reference{});
  const matrix seen = layer_.attend(x, table(), x.rows(), minilm::by_reference{});
  EXPECT_EQ((masked - seen).cwiseAbs().maxCoeff() > 0.05F, length_ < x.rows());
}

TEST_P(MiniLM, APositionBeyondTheTableIsRefused) {
  EXPECT_REFUSAL(layer_.embed(words_, table(), posenc::positions::from(2)), std::out_of_range, "position 38");
}

TEST_P(MiniLM, ATensorOfAnotherShapeOrATokenWithoutARowIsRefused) {
  EXPECT_REFUSAL(minilm::read_columns(file_, "embeddings.LayerNorm.bias", 383), posenc::format_error,
                 "1 x 384, needed are rows of 383");
  const std::int32_t beyond = static_cast<std::int32_t>(layer_.words());
  for (const std::int32_t row : {beyond, -1})
    EXPECT_REFUSAL(layer_.embed(std::vector{row}, table()), std::invalid_argument, std::to_string(row));
}

INSTANTIATE_TEST_SUITE_P(Sentences, MiniLM, testing::Values(0, 1),
                         [](const auto& sentence) { return "Sentence" + std::to_string(sentence.param); });

TEST(WordPiece, TakesTheLongestPieces) {
  const minilm::wordpiece words(
      {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "##a", "dog", ".", "d", "'", "u", "##n"});
  EXPECT_THAT(words.encode("Unaffable\tDOG."), ElementsAre(2, 4, 5, 6, 8, 9, 3));
  EXPECT_THAT(words.encode(""), ElementsAre(2, 3));
  EXPECT_THAT(words.encode(" dog'd \x7f"), ElementsAre(2, 8, 11, 10, 3));
  EXPECT_THAT(words.encode("una"), ElementsAre(2, 4, 7, 3));
  // A word with a part that is no piece is unknown as a whole, also after pieces that were found.
  EXPECT_THAT(words.encode("unaffx dogs dog"), ElementsAre(2, 1, 1, 8, 3));
  EXPECT_EQ(words.encode("u" + std::string(99, 'n')).size(), 101U);  // [CLS], un, 98 times ##n, [SEP]
  EXPECT_THAT(words.encode("u" + std::string(100, 'n')), ElementsAre(2, 1, 3));
  EXPECT_REFUSAL(words.encode("na\xc3\xafve"), std::invalid_argument, "byte 2");
  EXPECT_REFUSAL(minilm::wordpiece({"[UNK]"}), posenc::format_error, "[CLS]");
}

}  // namespace minilm_test
