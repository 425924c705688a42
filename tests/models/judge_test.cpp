// SPDX-License-Identifier: MIT
/// \file
/// The config.json reader against what transformers' own attention classes do (tools/judge_transformers.py): heads,
/// widths, scale, softcap, sinks, masks and rotations of every layer, or a refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <posenc/models.hpp>

#include "golden.hpp"
#include "refusals.hpp"
#include "repetitions.hpp"

namespace judge_test {

using nlohmann::json;
using posenc::encoding_description;
using posenc::encoding_kind;
using posenc::index_t;
using posenc::model_description;

/// The encoding of a layer of one side; nullptr if there is none.
const encoding_description* find(const model_description& model, const std::string& side, index_t layer) {
  const encoding_description* found = nullptr;
  for (const auto& one : model.encodings) {
    const bool is_side = one.layer_type == "encoder" || one.layer_type == "decoder";
    const bool fits = !is_side || side.empty() || one.layer_type == side;
    if (fits && std::find(one.layers.begin(), one.layers.end(), layer) != one.layers.end() &&
        found == nullptr)
      found = &one;
  }
  return found;
}

/// What differs between a description and what the class did, in words; empty if nothing does.
std::string difference(const encoding_description& ours, const json& theirs, bool permutes,
                       const std::vector<double>& factors) {
  std::string said;
  const auto compare = [&](const char* what, double a, double b, double tolerance) {
    if (!(std::abs(a - b) <= tolerance * (std::abs(b) + 1e-30)))
      said += std::string(what) + " " + std::to_string(a) + " and " + std::to_string(b) + "; ";
  };
  if (!ours.attends) return "no attention; ";
  compare("heads", static_cast<double>(ours.heads), theirs.at("heads").get<double>(), 0);
  compare("kv_heads", static_cast<double>(ours.kv_heads), theirs.at("kv_heads").get<double>(), 0);
  compare("head_dim", static_cast<double>(ours.head_dim), theirs.at("head_dim").get<double>(), 0);
  compare("value_dim", static_cast<double>(ours.value_dim), theirs.at("value_dim").get<double>(), 0);
  if (theirs.at("scale").is_number())
    compare("scale", ours.softmax_scale.value_or(0), theirs.at("scale").get<double>(), 1e-6);
  compare("softcap", ours.softcap, theirs.at("softcap").get<double>(), 0);
  if (ours.learned_sinks != theirs.at("sinks").get<bool>()) said += "sinks; ";

  const json& mask = theirs.at("mask");
  if (mask.is_null()) {
    if (ours.causal && theirs.at("no_mask").get<bool>()) said += "causal, where the class has no mask; ";
  } else if (mask.contains("chunk")) {
    if (ours.chunk != mask.at("chunk").get<posenc::position>()) said += "chunk; ";
  } else if (!mask.contains("other")) {
    const auto bound = [](const json& value) {
      return value.is_null() ? std::optional<posenc::position>() : value.get<posenc::position>();
    };
    const auto ahead = ours.causal ? std::optional<posenc::position>(0) : ours.lookahead;
    if (ours.lookback != bound(mask.at("back"))) said += "lookback; ";
    if (ahead != bound(mask.at("ahead"))) said += "lookahead; ";
  }

  const json& turned = theirs.at("rotation");
  const bool rotates = ours.kind() == encoding_kind::rope && *ours.rope().options.rotary_dim > 0;
  if (rotates != !turned.is_null()) return said + (rotates ? "rotates; " : "does not rotate; ");
  if (!rotates) return said;
  const posenc::rope_description& rope = ours.rope();
  const auto made = posenc::make_rope<double>(rope, 40);
  compare("first channel", static_cast<double>(rope.options.rotary_offset), turned.at("first").get<double>(),
          0);
  const bool interleaved = rope.options.pairing == posenc::pairing::interleaved;
  // Classes that take interleaved weights apart hand on halves.
  if (interleaved != (turned.at("pairing") == "interleaved") && !(permutes && interleaved))
    said += "pairing; ";
  // The slowest pairs do not move visibly within 40 tokens, so that the width that was seen may be too small.
  if (*rope.options.rotary_dim < turned.at("channels").get<index_t>()) said += "fewer channels; ";
  const json& pairs = turned.at("pairs");
  const bool same_width = *rope.options.rotary_dim == turned.at("channels").get<index_t>();
  for (std::size_t n = 0; n < pairs.size() && same_width; ++n) {
    const double expected = turned.at("frequencies")[n].get<double>();
    const double w = made.inv_freq()[pairs[n].get<std::size_t>()];
    if (!(std::abs(w - expected) <= 2e-4 * std::abs(expected) + 2e-6))
      said += "pair " + std::to_string(pairs[n].get<int>()) + " turns by " + std::to_string(w) + " and " +
              std::to_string(expected) + "; ";
  }
  if (!factors.empty() && std::none_of(factors.begin(), factors.end(), [&](double f) {
        return std::abs(f - made.attention_factor()) < 1e-5;
      }))
    said += "attention factor; ";
  return said;
}

/// Classes whose scale is not what they hand to the attention function.
bool scales_queries_before(const std::string& type) {
  return type == "opt" || type == "whisper" || type == "openai_privacy_filter";
}

/// What differs between a model and what the class did, in the first layer that does; empty if nothing does.
std::string first_difference(const model_description& model, const json& row, std::size_t& layers) {
  for (const json& group : row.at("layers")) {
    const std::string side = group.at("side").get<std::string>();
    if (side == "cross") continue;
    json theirs = group;
    if (scales_queries_before(row.at("type").get<std::string>())) theirs["scale"] = nullptr;
    for (const json& index : group.at("layers")) {
      const encoding_description* ours = find(model, side, index.get<index_t>());
      const std::string here = ours == nullptr ? "no such layer; "
                                               : difference(*ours, theirs, row.at("permutes").get<bool>(),
                                                            row.at("factors").get<std::vector<double>>());
      if (!here.empty()) return side + " layer " + index.dump() + ": " + here;
      ++layers;
    }
  }
  return "";
}

/// The row of a variant: the configuration with its changes, and what the layers then did.
json variant_of(const json& row, const json& variant) {
  json made = row;
  for (const auto& [key, value] : variant.at("changes").items()) made["config"][key] = value;
  for (const json& key : variant.at("removed")) made["config"].erase(key.get<std::string>());
  made["layers"] = variant.at("layers"), made["factors"] = variant.at("factors");
  return made;
}

/// Configurations of a kind: how many agree, and what is said of the others.
struct verdicts {
  std::size_t configurations = 0, agree = 0, layers = 0;
  std::string refusals{};

  /// \returns whether the configuration was described, and rightly
  bool judge(const json& row, const std::string& name) {
    ++configurations;
    try {
      const model_description model = posenc::parse_huggingface(row.at("config").dump());
      const std::string said = first_difference(model, row, layers);
      EXPECT_EQ(said, "") << name;
      agree += said.empty();
      return said.empty();
    } catch (const std::exception& error) {
      refusals += name + ": " + std::string(error.what()).substr(0, 200) + "\n";
      return false;
    }
  }
};

TEST(judge, descriptions_agree_with_the_classes_of_transformers) {
  const json all = golden::cases("judge.json");
  verdicts types, variants;
  int nth = 0;
  for (const json& row : all.at("cases")) {
    const std::string type = row.at("type").get<std::string>();
    if (!types.judge(row, type)) continue;
    if (repetitions::few && ++nth % 4 != 0) continue;
    for (const json& variant : row.at("variants"))
      variants.judge(variant_of(row, variant), type + ", " + variant.at("name").get<std::string>());
  }
  EXPECT_GE(types.agree, 163u);
  EXPECT_LE(types.configurations - types.agree, 14u) << types.refusals;
  EXPECT_GE(types.agree + variants.agree, repetitions::few ? 300u : 1253u);
  // Each refusal has a reason of its own; none is only that the type is not known.
  EXPECT_THAT(types.refusals, testing::Not(testing::HasSubstr("is not known")));
  // A head_dim of 48 has no room for the sections that these classes fix in code; they cut them off without a word.
  std::istringstream refusals(variants.refusals);
  for (std::string line; std::getline(refusals, line);)
    EXPECT_THAT(line,
                ::testing::MatchesRegex("qwen3_(5|5_moe|vl|vl_moe)_text, head_dim: posenc: multi-axis: .*"));
  RecordProperty("types", std::to_string(types.agree));
  RecordProperty("configurations", std::to_string(types.agree + variants.agree));
  RecordProperty("layers", std::to_string(types.layers + variants.layers));
  RecordProperty("refused", types.refusals);
}

/// The pairing with which a class rotates; nothing where it does not.
std::optional<posenc::pairing> pairing_of(const json& row) {
  for (const json& group : row.at("layers"))
    if (const json& turned = group.at("rotation"); !turned.is_null())
      return turned.at("pairing") == "interleaved" || row.at("permutes").get<bool>()
                 ? posenc::pairing::interleaved
                 : posenc::pairing::half_split;
  return std::nullopt;
}

/// The same files under a name that no row has, with the pairing stated: described as their class computes, or refused.
/// None is described otherwise.
TEST(judge, no_unknown_type_is_described_wrongly_under_a_stated_pairing) {
  const json all = golden::cases("judge.json");
  std::size_t agree = 0, refused = 0, layers = 0;
  int nth = 0;
  for (const json& row : all.at("cases")) {
    const auto judge = [&](const json& judged, const std::string& name) {
      json config = judged.at("config");
      config["model_type"] = "type_of_tomorrow";
      config["architectures"] = {row.at("architecture")};
      try {
        const model_description model = posenc::parse_huggingface(
            config.dump(), {.pairing = pairing_of(row).value_or(posenc::pairing::half_split)});
        EXPECT_EQ(first_difference(model, judged, layers), "") << name;
        EXPECT_THAT(model.warnings.front(),
                    testing::HasSubstr("is not known: described as a causal decoder"));
        ++agree;
      } catch (const std::invalid_argument&) {
        ++refused;
      } catch (const posenc::format_error&) {
        ++refused;
      }
    };
    const std::string type = row.at("type").get<std::string>();
    judge(row, type);
    for (const json& variant : row.at("variants"))
      if (++nth % (repetitions::few ? 16 : 4) == 0)
        judge(variant_of(row, variant), type + ", " + variant.at("name").get<std::string>());
  }
  EXPECT_GE(agree, repetitions::few ? 60u : 190u);
  RecordProperty("agree", std::to_string(agree));
  RecordProperty("refused", std::to_string(refused));
}

/// Encoders whose direction the caller states as well.
TEST(judge, unknown_encoders_are_described_where_the_direction_is_stated) {
  const json all = golden::cases("judge.json");
  std::size_t agree = 0, layers = 0;
  for (const json& row : all.at("cases")) {
    if (!pairing_of(row) || !row.at("architecture").get<std::string>().ends_with("ForMaskedLM")) continue;
    json config = row.at("config");
    config["model_type"] = "type_of_tomorrow";
    posenc::huggingface_options stated{.pairing = pairing_of(row)};
    EXPECT_REFUSAL(posenc::parse_huggingface(config.dump(), stated), std::invalid_argument, "");
    stated.causal = false;
    try {
      const model_description model = posenc::parse_huggingface(config.dump(), stated);
      EXPECT_THAT(model.warnings.front(), testing::HasSubstr("is not known: described as an encoder"));
      EXPECT_EQ(first_difference(model, row, layers), "") << row.at("type");
      ++agree;
    } catch (const std::invalid_argument&) {
    }
  }
  EXPECT_GE(agree, 4u);
}

}  // namespace judge_test
