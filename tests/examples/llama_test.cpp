// SPDX-License-Identifier: MIT
/// \file
/// examples/llama on a model of two small layers, against Hugging Face transformers and tokenizers on the same file.
/// examples/llama/independent/make_tiny.py made the file and what is expected; tests/golden/tiny_llama holds both.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <posenc/models/gguf/file.hpp>
#include <posenc/models/safetensors.hpp>
#include <posenc/models/what_if.hpp>

#include "../../examples/llama/generation.hpp"
#include "../../examples/llama/model.hpp"
#include "../../examples/llama/studies/cache_study.hpp"
#include "../../examples/llama/studies/compare.hpp"
#include "../../examples/llama/studies/context_study.hpp"
#include "../../examples/llama/studies/perplexity.hpp"
#include "../../examples/llama/tokenizer.hpp"
#include "../../examples/llama/weights.hpp"
#include "refusals.hpp"

namespace llama_test {

using llama::attention_path;
using llama::kv_cache;
using llama::matrix;
using llama::token;
using llama::wanted_logits;

const std::string folder = POSENC_GOLDEN_DIR "/tiny_llama/";
const std::string file_name = folder + "tiny_llama.gguf";
constexpr posenc::position trained = 64;

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

const nlohmann::json& expected() {
  static const nlohmann::json facts = nlohmann::json::parse(contents(folder + "tiny_llama.json"));
  return facts;
}

std::vector<token> expected_tokens() { return expected()["tokens"].get<std::vector<token>>(); }

const llama::tokenizer& words() {
  static const llama::tokenizer result{posenc::read_gguf(file_name)};
  return result;
}

std::vector<token> prompt() {
  return words().encode(contents(POSENC_SOURCE_DIR "/examples/llama/independent/prompt.txt"));
}

llama::model make_model(attention_path path = attention_path::reference) {
  return {llama::load_weights(file_name, posenc::read_gguf(file_name), [](double) {}), path, 1};
}

/// Logits of all tokens, evaluated `piece` at a time.
matrix logits_of(llama::model& model, const std::vector<token>& tokens, std::size_t piece) {
  matrix all(static_cast<Eigen::Index>(tokens.size()), model.parameters().embedding.rows());
  kv_cache cache = model.empty_cache();
  for (std::size_t n = 0; n < tokens.size(); n += piece) {
    const std::size_t count = (std::min)(piece, tokens.size() - n);
    all.middleRows(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(count)) =
        model.evaluate(std::span(tokens).subspan(n, count), cache, wanted_logits::all);
  }
  return all;
}

TEST(LlamaTokenizer, CutsTextsAsTheModelsAuthorsDo) {
  for (const auto& [_, text] : expected()["texts"].items())
    EXPECT_EQ(words().encode(text["text"].get<std::string>()), text["tokens"].get<std::vector<token>>())
        << text["text"];
  const std::vector<token> start = expected_tokens();
  std::vector<token> found = prompt();
  found.resize(start.size());
  EXPECT_EQ(found, start);
}

TEST(LlamaTokenizer, GivesTheTextBack) {
  for (const auto& [_, text] : expected()["texts"].items()) {
    std::string back;
    for (const token id : text["tokens"].get<std::vector<token>>()) back += words().decode(id);
    EXPECT_EQ(back, text["text"].get<std::string>());
  }
}

TEST(LlamaTokenizer, KnowsTheTokensThatEndAText) {
  EXPECT_TRUE(words().is_end(2));   // <|im_end|>, eos_token_id of the file
  EXPECT_TRUE(words().is_end(0));   // <|endoftext|>
  EXPECT_FALSE(words().is_end(1));  // <|im_start|>
  EXPECT_FALSE(words().is_end(70));
}

TEST(LlamaTokenizer, AFileOfAnotherKindIsRefused) {
  posenc::gguf_file file = posenc::read_gguf(file_name);
  file.metadata.find("tokenizer.ggml.pre")->second.value = std::string("qwen2");
  EXPECT_REFUSAL(llama::tokenizer{file}, posenc::format_error, "cut as qwen2");
}

TEST(LlamaWeights, AFileThatLacksATensorIsRefused) {
  posenc::gguf_file file = posenc::read_gguf(file_name);
  std::erase_if(file.tensors, [](const auto& tensor) { return tensor.name == "blk.1.ffn_up.weight"; });
  EXPECT_REFUSAL(llama::load_weights(file_name, file, [](double) {}), posenc::format_error,
                 "blk.1.ffn_up.weight is missing or not 96 x 64");
}

struct way {
  attention_path path;
  std::string scaling;
  std::size_t piece;  ///< tokens evaluated at a time: all, some, one after the other

  friend void PrintTo(const way& w, std::ostream* out) {
    *out << (w.path == attention_path::fused ? "fused" : "reference") << ", " << w.scaling << ", pieces of "
         << w.piece;
  }
};

class LlamaLogits : public testing::TestWithParam<way> {};

TEST_P(LlamaLogits, AreThoseOfTransformers) {
  llama::model model = make_model(GetParam().path);
  model.use_scaling(posenc::parse_scaling(GetParam().scaling, trained));
  const auto stored = posenc::read_safetensors(folder + "tiny_llama_logits.safetensors");
  const matrix theirs = posenc::read_tensor_matrix(stored, GetParam().scaling);
  const matrix ours = logits_of(model, expected_tokens(), GetParam().piece);
  float largest = 0;
  for (Eigen::Index row = 0; row < theirs.rows(); ++row)
    largest = (std::max)(largest, (ours.row(7 + 16 * row) - theirs.row(row)).cwiseAbs().maxCoeff());
  // Logits reach 12. Both sides sum in float32, and transformers' angles are float32, off by 1e-5 at position 160;
  // 5e-5 was measured.
  EXPECT_LT(largest, 1e-4F);
  // The fixture can tell one scaling from another.
  const matrix plain = posenc::read_tensor_matrix(stored, "none");
  if (GetParam().scaling != "none") {
    EXPECT_GT((plain - theirs).cwiseAbs().maxCoeff(), 1.0F);
  }
}

std::vector<way> ways() {
  std::vector<way> result;
  std::vector<attention_path> paths{attention_path::reference};
#if defined(LLAMA_FUSED)
  paths.push_back(attention_path::fused);
#endif
  for (const attention_path path : paths)
    for (const char* scaling : {"none", "linear:factor=4", "yarn:factor=4,original=64"})
      for (const std::size_t piece : {1U, 33U, 1000U}) result.push_back({path, scaling, piece});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Ways, LlamaLogits, testing::ValuesIn(ways()), [](const auto& one) {
  const way& w = one.param;
  return (w.path == attention_path::fused ? "fused_" : "reference_") +
         w.scaling.substr(0, w.scaling.find(':')) + "_" + std::to_string(w.piece);
});

TEST(Llama, GeneratesWhatTransformersGenerate) {
  llama::model model = make_model();
  std::vector<token> start = expected_tokens();
  start.resize(40);
  kv_cache cache = model.empty_cache();
  matrix logits = llama::prefill(model, start, cache);
  std::vector<token> generated;
  while (generated.size() < expected()["generated"].size()) {
    generated.push_back(llama::best_of(logits));
    logits = model.evaluate({&generated.back(), 1}, cache, wanted_logits::last);
  }
  EXPECT_EQ(generated, expected()["generated"].get<std::vector<token>>());
}

TEST(Llama, IsAsSurprisedAsTransformers) {
  llama::model model = make_model();
  for (const auto& [scaling, mean] : expected()["nats"].items()) {
    model.use_scaling(posenc::parse_scaling(scaling, trained));
    const std::vector<double> nats = llama::surprises(model, expected_tokens());
    ASSERT_EQ(nats.size(), expected_tokens().size() - 1);
    EXPECT_NEAR(std::accumulate(nats.begin(), nats.end(), 0.0) / static_cast<double>(nats.size()),
                mean.get<double>(), 1e-5)
        << scaling;
  }
}

#if defined(LLAMA_FUSED)
TEST(Llama, FusedWritesWhatTheReferenceWrites) {
  llama::model model = make_model();
  EXPECT_TRUE(llama::compare_paths(model, prompt(), 50));
}
#endif

// The cache of unrotated keys ------------------------------------------------------------------------------

struct LlamaCache : testing::Test {
  std::vector<token> tokens = expected_tokens();
  llama::model model = make_model();
  kv_cache cache = model.empty_cache();

  void SetUp() override { (void)llama::prefill(model, std::span(tokens).first(tokens.size() - 1), cache); }

  [[nodiscard]] llama::next_token next(kv_cache from) {
    return llama::evaluate_next(model, from, tokens.back());
  }
};

TEST_F(LlamaCache, ScalingSwitchedInMidSequenceIsExactInTheFirstLayer) {
  const llama::next_token before = next(cache);
  model.use_scaling(posenc::parse_scaling("yarn:factor=4", trained));
  const llama::next_token switched = next(cache), fresh = llama::evaluate_afresh(model, tokens);
  EXPECT_EQ(llama::attention_difference(switched, fresh, 0), 0);
  EXPECT_GT(llama::attention_difference(switched, before, 0), 1e-3);  // the switch did something
  // Keys of the second layer know what was attended to under the old scaling.
  EXPECT_GT(llama::attention_difference(switched, fresh, 1), 1e-3);
  model.use_scaling(std::nullopt);
  EXPECT_EQ(llama::logit_difference(next(cache), before), 0);
}

TEST_F(LlamaCache, ContextShiftIsExactInTheFirstLayer) {
  const llama::next_token before = next(cache);
  kv_cache shifted = cache;
  shifted.drop_oldest(50);
  const llama::next_token in_place = next(shifted);
  shifted.renumber();
  EXPECT_EQ(shifted.positions.front(), 0);
  EXPECT_EQ(shifted.size(), cache.size() - 50);
  const llama::next_token moved = next(shifted);
  const llama::next_token fresh = llama::evaluate_afresh(model, std::span(tokens).subspan(50));
  EXPECT_EQ(llama::attention_difference(moved, fresh, 0), 0);
  EXPECT_GT(llama::attention_difference(moved, before, 0), 1e-3);
  EXPECT_GT(llama::attention_difference(moved, fresh, 1), 1e-3);
  EXPECT_LT(llama::logit_difference(moved, in_place), 1e-4);
  EXPECT_REFUSAL(shifted.drop_oldest(shifted.size() + 1), std::invalid_argument, "cannot drop 110");
}

/// The same weights as two query heads of 32 channels on one KV head, which blocks of q8_0 fit.
llama::model model_of_wide_heads() {
  llama::weights w = llama::load_weights(file_name, posenc::read_gguf(file_name), [](double) {});
  w.heads = 2, w.kv_heads = 1;
  posenc::rope_description description = posenc::rope_encoding(w.positions).rope();
  description.options.head_dim = 32;
  description.options.rotary_dim.reset();
  w.positions.encodings.front().parameters = description;
  return {std::move(w), attention_path::reference, 1};
}

TEST(LlamaCaches, PagedIsPlainToTheBit) {
  llama::model model = make_model(), paged = make_model();
  paged.use_cache(llama::cache_kind::paged);
  for (const std::size_t piece : {1U, 33U})
    EXPECT_EQ(logits_of(paged, expected_tokens(), piece), logits_of(model, expected_tokens(), piece));
  // 50 tokens are three pages and two rows of the fourth; then 30 more, and another scaling.
  std::vector<matrix> logits;
  for (llama::model* m : {&model, &paged}) {
    const std::vector<token> tokens = expected_tokens();
    kv_cache cache = m->empty_cache();
    (void)llama::prefill(*m, tokens, cache);
    for (const llama::index_t count : {50, 30}) {
      cache.drop_oldest(count);
      (void)m->evaluate({&tokens[3], 1}, cache, wanted_logits::last);
    }
    cache.renumber();
    m->use_scaling(posenc::parse_scaling("yarn:factor=4", trained));
    EXPECT_EQ(cache.size(), static_cast<llama::index_t>(tokens.size()) - 78);
    logits.push_back(m->evaluate({&tokens[4], 1}, cache, wanted_logits::last));
  }
  EXPECT_EQ(logits[1], logits[0]);
}

TEST(LlamaCaches, Q8_0ComesClose) {
  llama::model model = model_of_wide_heads();
  const matrix plain = logits_of(model, expected_tokens(), 20);
  model.use_cache(llama::cache_kind::q8_0);
  const matrix q8_0 = logits_of(model, expected_tokens(), 20);
  // A number is off by up to 1/254 of the largest of its block, and scores of random weights reach the tens: some
  // hundredths. Rows or scales that are mixed up differ by about 1.
  const float difference = (q8_0 - plain).norm() / plain.norm();
  EXPECT_LT(difference, 0.1F);
  EXPECT_GT(difference, 1e-4F);
  EXPECT_TRUE(llama::compare_caches(model, prompt(), 10));
  EXPECT_EQ(llama::kinds_that_fit(make_model()).size(), 2U);
  EXPECT_REFUSAL(make_model().use_cache(llama::cache_kind::q8_0), std::invalid_argument,
                 "heads of 16 channels are not whole blocks of 32");
  EXPECT_REFUSAL(llama::parse_cache("Q8"), std::invalid_argument, "--cache: Q8 is not plain, paged or q8_0");
}

// Perplexity against context -------------------------------------------------------------------------------

TEST(LlamaContextStudy, PassesAreKeptAndNotRunAgain) {
  const auto csv = std::filesystem::path(testing::TempDir()) / "llama_context_study.csv";
  std::filesystem::remove(csv);
  llama::model model = make_model();
  const std::vector<token> text = prompt();
  llama::context_study(trained, csv).run(model, text);
  const std::string first = contents(csv);
  // 7 schemes at 64 tokens and at 128, 4 at 256; buckets of 8 tokens; a heading.
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1 + 7 * 8 + 7 * 16 + 4 * 32);

  // A pass that lost its last row is run anew, the others are not.
  std::filesystem::resize_file(csv, first.rfind("yarn:factor=2,128,120,"));
  llama::context_study(trained, csv).run(model, text);
  const std::string cut = first.substr(0, first.rfind("yarn:factor=2,128,120,"));
  const std::string anew = first.substr(first.rfind("yarn:factor=2,128,0,"));
  EXPECT_EQ(contents(csv), cut + anew);
  llama::context_study(trained, csv).run(model, text);
  EXPECT_EQ(contents(csv), cut + anew);

  // The mean over a whole pass is what surprises() says of the same tokens.
  model.use_scaling(posenc::parse_scaling("linear:factor=4"));
  const std::vector<double> nats = llama::surprises(model, std::span(text).subspan(192, 64));
  double sum = 0;
  std::istringstream lines(first);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("linear:factor=4,64,", 0) == 0)
      sum +=
          std::stod(line.substr(line.rfind(',') + 1)) * (line.rfind("linear:factor=4,64,0,", 0) == 0 ? 7 : 8);
  EXPECT_NEAR(sum, std::accumulate(nats.begin(), nats.end(), 0.0), 1e-4);
  std::filesystem::remove(csv);
}

TEST(LlamaContextStudy, ATextThatIsTooShortIsRefused) {
  llama::model model = make_model();
  llama::context_study study(trained, "unused.csv");
  EXPECT_REFUSAL((study.run(model, expected_tokens()), 0), std::invalid_argument, "160 tokens");
}

}  // namespace llama_test
