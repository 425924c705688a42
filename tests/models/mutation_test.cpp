// SPDX-License-Identifier: MIT
/// \file
/// Configurations with one key renamed or of another type: the answer stays, or the file is refused, or a warning says
/// what happened. The configurations are those of the judge (tools/judge_transformers.py).
#include <gtest/gtest.h>

#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <posenc/models.hpp>

#include "../../examples/inspect/json_report.hpp"
#include "golden.hpp"

namespace mutation_test {

using nlohmann::json;

/// The description as JSON, without its warnings; nothing where the file is refused.
struct answer {
  std::optional<json> description;
  std::set<std::string> warnings;
};

answer answer_to(const json& config) {
  try {
    posenc::model_description model = posenc::parse_huggingface(config.dump());
    answer result;
    result.warnings = {model.warnings.begin(), model.warnings.end()};
    model.warnings.clear();
    json shapes = json::array();
    for (const auto& one : model.encodings)
      shapes.push_back({one.heads, one.kv_heads, one.head_dim, one.value_dim, one.layers, one.prefix_lm});
    result.description =
        json::parse(inspect::json_report({inspect::build("x", model, posenc::position{5000})}, {}));
    result.description->push_back({"shapes", shapes});
    return result;
  } catch (const posenc::format_error&) {
  } catch (const std::invalid_argument&) {
  }
  return {};
}

bool says_something_new(const answer& before, const answer& after) {
  for (const std::string& one : after.warnings)
    if (!before.warnings.contains(one)) return true;
  return false;
}

TEST(mutation, a_renamed_key_is_missed_and_said) {
  std::size_t tried = 0, changed = 0;
  const json all = golden::cases("judge.json");
  for (const json& row : all.at("cases")) {
    const json config = row.at("config");
    const answer before = answer_to(config);
    if (!before.description) continue;
    for (const auto& [key, value] : config.items()) {
      if (key == "model_type") continue;
      json mutated = config;
      mutated.erase(key);
      mutated[key + "_"] = value;
      const answer after = answer_to(mutated);
      ++tried;
      if (!after.description || *after.description == *before.description) continue;
      ++changed;
      EXPECT_TRUE(says_something_new(before, after)) << row.at("type") << ": " << key << " renamed";
    }
  }
  EXPECT_GT(tried, 1000u);
  EXPECT_GT(changed, 100u);
}

TEST(mutation, a_value_of_another_type_is_refused_or_plays_no_part) {
  std::size_t tried = 0, refused = 0;
  const json all = golden::cases("judge.json");
  for (const json& row : all.at("cases")) {
    const json config = row.at("config");
    const answer before = answer_to(config);
    if (!before.description) continue;
    for (const auto& [key, value] : config.items()) {
      if (key == "model_type") continue;
      // One kind of wrong value for each key, in turn: the types have most keys in common.
      const json kinds[]{json("text"), json({{"x", 1}}), json({1.5, "y"}), json(-3)};
      const json& other = kinds[tried % std::size(kinds)];
      json mutated = config;
      mutated[key] = other;
      const answer after = answer_to(mutated);
      ++tried;
      const bool changed = after.description && *after.description != *before.description;
      if (!after.description) ++refused;
      EXPECT_TRUE(!changed || says_something_new(before, after))
          << row.at("type") << ": " << key << " = " << other.dump();
    }
  }
  EXPECT_GT(tried, 1000u);
  EXPECT_GT(refused, 500u);
}

}  // namespace mutation_test
