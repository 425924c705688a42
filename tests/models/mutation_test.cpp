// SPDX-License-Identifier: MIT
/// \file
/// Model files with one key removed, doubled, renamed or of another type: the answer stays or is right all the same, the
/// file is refused, or a warning says what happened. config.json over the judge's configurations
/// (tools/judge_transformers.py) and those of tests/golden/model_configs.py, GGUF over every architecture.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <posenc/models.hpp>

#include "gguf_bytes.hpp"
#include "golden.hpp"
#include "refusals.hpp"

namespace mutation_test {

using nlohmann::json;
using posenc::model_description;
using posenc_tests::file_of;
using posenc_tests::gguf_bytes;

/// What a file is read as, in one string, and its warnings; nothing where it is refused.
struct answer {
  std::optional<std::string> description{};
  std::set<std::string> warnings{};
};

template <class T>
void put(std::string& out, const T& value) {
  if constexpr (requires { value.has_value(); }) {
    out += "|";
    if (value) put(out, *value);
  } else if constexpr (requires { value.begin(); }) {
    out += "|" + std::to_string(value.size());
    for (const auto& one : value) put(out, one);
  } else {
    out += "|" + std::to_string(value);
  }
}

std::string words_of(const model_description& model) {
  std::string out;
  put(out, model.layers), put(out, model.heads), put(out, model.kv_heads), put(out, model.context_length);
  for (const auto& one : model.encodings) {
    out += "\n" + one.layer_type;
    put(out, static_cast<int>(one.parameters.index()));
    put(out, one.layers), put(out, one.heads), put(out, one.kv_heads), put(out, one.head_dim);
    put(out, one.value_dim), put(out, one.softmax_scale), put(out, one.softcap), put(out, one.lookback);
    put(out, one.lookahead), put(out, one.chunk), put(out, one.attends), put(out, one.causal);
    put(out, one.learned_sinks), put(out, one.prefix_lm), put(out, one.image_blocks);
    put(out, one.position_scale.has_value());
    if (one.position_scale) put(out, one.position_scale->beta()), put(out, one.position_scale->interval());
    if (one.kind() == posenc::encoding_kind::rope) {
      const posenc::rope_description& rope = one.rope();
      const auto made = posenc::make_rope<double>(rope, posenc::position{5000});
      put(out, rope.options.rotary_dim), put(out, rope.options.rotary_offset), put(out, rope.axis_of_pair);
      put(out, rope.options.pairing == posenc::pairing::half_split), put(out, rope.turns_backwards);
      out += "|" + std::to_string(made.attention_factor());
      for (const double w : made.inv_freq()) out.append(reinterpret_cast<const char*>(&w), sizeof w);
    } else if (const auto* table = std::get_if<posenc::learned_description>(&one.parameters)) {
      put(out, table->rows), put(out, table->row_offset), put(out, table->width);
    } else if (const auto* t5 = std::get_if<posenc::t5_description>(&one.parameters)) {
      put(out, t5->buckets.buckets), put(out, t5->buckets.max_distance), put(out, t5->buckets.bidirectional);
    } else if (const auto* alibi = std::get_if<posenc::alibi_description>(&one.parameters)) {
      put(out, alibi->options.heads), put(out, alibi->options.bias_max), put(out, alibi->falcon_head_dim);
    } else if (const auto* waves = std::get_if<posenc::sinusoidal_description>(&one.parameters)) {
      put(out, waves->options.width), put(out, waves->rows), put(out, waves->position_offset);
    }
  }
  return out;
}

answer answer_to(const std::function<model_description()>& read) {
  try {
    const model_description model = read();
    return {words_of(model), {model.warnings.begin(), model.warnings.end()}};
  } catch (const posenc::format_error&) {
  } catch (const std::invalid_argument&) {
  }
  return {};
}
answer answer_to(const json& config) {
  return answer_to([&] { return posenc::describe_huggingface(config); });
}

bool says_something_new(const answer& before, const answer& after) {
  for (const std::string& one : after.warnings)
    if (!before.warnings.contains(one)) return true;
  return false;
}

/// Counts what becomes of mutated files.
struct tally {
  std::size_t tried = 0, refused = 0, changed = 0, silent = 0;
  std::map<std::string, std::string> silent_keys{};

  void judge(const answer& before, const answer& after, const std::string& key, const std::string& where) {
    ++tried;
    if (!after.description) return void(++refused);
    if (*after.description == *before.description) return;
    ++changed;
    if (says_something_new(before, after)) return;
    ++silent;
    silent_keys[key] += where + " ";
  }
  void record(const std::string& name) const {
    testing::Test::RecordProperty(name, std::to_string(tried) + " tried, " + std::to_string(refused) +
                                            " refused, " + std::to_string(changed) + " changed");
  }
};

/// Every configuration of both golden files that is described.
void for_each_config(const std::function<void(const std::string&, const json&, const answer&)>& f) {
  const json judged = golden::cases("judge.json"), others = golden::cases("model_configs.json");
  const auto visit = [&](const json& name, const json& config) {
    if (const answer before = answer_to(config); before.description)
      f(name.get<std::string>(), config, before);
  };
  for (const json& row : judged.at("cases")) visit(row.at("type"), row.at("config"));
  for (const json& row : others) visit(row.at("name"), row.at("config"));
}

/// Keys that a class reads where they are, and whose absence has a meaning of its own in every class here: the file
/// without the key is another file, rightly read.
const std::map<std::string, const char*>& optional_keys() {
  static const std::map<std::string, const char*> keys{
      {"num_key_value_heads", "as many as query heads, where the class has no number of its own"},
      {"head_dim", "hidden_size / num_attention_heads, where the class has no width of its own"},
      {"rope_scaling", "no scaling"},
      {"partial_rotary_factor", "1, where the class has no share of its own"},
      {"rotary_dim", "as partial_rotary_factor says"},
      {"layer_types", "the class's rule"},
      {"sliding_window_pattern", "the class's rule"},
      {"global_attn_every_n_layers", "the class's rule"},
      {"use_sliding_window", "false"},
      {"use_bidirectional_attention", "false"},
      {"sliding_window", "modernbert-decoder: half of local_attention"},
      {"num_attention_heads_per_layer", "num_attention_heads in each"},
      {"attention_multiplier", "hyperclovax: 1 / sqrt(head_dim)"},
      {"original_max_position_embeddings", "that of the rope block"}};
  return keys;
}

TEST(mutation, a_removed_key_has_a_default_that_is_said_or_a_meaning) {
  tally all;
  for_each_config([&](const std::string& name, const json& config, const answer& before) {
    for (const auto& [key, value] : config.items()) {
      json mutated = config;
      mutated.erase(key);
      all.judge(before, answer_to(mutated), key, name);
    }
  });
  for (const auto& [key, where] : all.silent_keys)
    EXPECT_TRUE(optional_keys().contains(key)) << key << ": " << where;
  EXPECT_GT(all.tried, 2000u);
  EXPECT_GT(all.changed, 500u);
  EXPECT_LT(all.silent, 110u);
  all.record("removed");
}

TEST(mutation, a_renamed_key_is_missed_and_said) {
  tally all;
  for_each_config([&](const std::string& name, const json& config, const answer& before) {
    for (const auto& [key, value] : config.items()) {
      if (key == "model_type") continue;
      json mutated = config;
      mutated.erase(key);
      mutated[key + "_"] = value;
      all.judge(before, answer_to(mutated), key, name);
    }
  });
  for (const auto& [key, where] : all.silent_keys) ADD_FAILURE() << key << " renamed in " << where;
  EXPECT_GT(all.tried, 2000u);
  EXPECT_GT(all.changed, 500u);
  all.record("renamed");
}

TEST(mutation, a_value_of_another_type_is_refused_or_plays_no_part) {
  tally all;
  for_each_config([&](const std::string& name, const json& config, const answer& before) {
    for (const auto& [key, value] : config.items()) {
      if (key == "model_type") continue;
      // One kind of wrong value for each key, in turn: the types have most keys in common.
      const json kinds[]{json("text"), json({{"x", 1}}), json({1.5, "y"}), json(-3)};
      json mutated = config;
      mutated[key] = kinds[all.tried % std::size(kinds)];
      all.judge(before, answer_to(mutated), key, name);
    }
  });
  for (const auto& [key, where] : all.silent_keys) ADD_FAILURE() << key << " of another type in " << where;
  EXPECT_GT(all.tried, 2000u);
  EXPECT_GT(all.refused, 1000u);
  all.record("another type");
}

TEST(mutation, a_doubled_key_is_refused) {
  std::size_t tried = 0;
  for_each_config([&](const std::string&, const json& config, const answer&) {
    const std::string text = config.dump();
    for (const auto& [key, value] : config.items()) {
      const std::string twice = text.substr(0, text.size() - 1) + ",\"" + key + "\":" + value.dump() + "}";
      EXPECT_REFUSAL(posenc::parse_huggingface(twice), posenc::format_error,
                     "key " + key + " stands there twice");
      ++tried;
    }
  });
  EXPECT_GT(tried, 2000u);
}

// ---- GGUF -------------------------------------------------------------------------------------------------------------

/// A key of a GGUF file and how it is written.
struct gguf_key {
  std::string name;
  std::function<void(gguf_bytes&, const std::string&)> write;
};
gguf_key integer(const char* name, std::uint32_t value) {
  return {name, [value](gguf_bytes& out, const std::string& key) { out.u32_key(key, value); }};
}
gguf_key number(const char* name, float value) {
  return {name, [value](gguf_bytes& out, const std::string& key) { out.f32_key(key, value); }};
}

/// What a file of this architecture has, all at once: a reader takes what concerns it.
std::vector<gguf_key> keys_of(const posenc::detail::gguf::architecture& row) {
  std::vector<gguf_key> keys{integer("block_count", 6),
                             integer("embedding_length", 96),
                             integer("context_length", 4096),
                             integer("attention.head_count", 4),
                             integer("attention.head_count_kv", 2),
                             integer("attention.key_length", 32),
                             integer("attention.value_length", 32)};
  if (row.pairing) {
    keys.push_back(number("rope.freq_base", 5e5f));
    keys.push_back(integer("rope.dimension_count", 16));
    keys.push_back(
        {"rope.scaling.type", [](gguf_bytes& out, const std::string& key) { out.text_key(key, "yarn"); }});
    keys.push_back(number("rope.scaling.factor", 4));
    keys.push_back(integer("rope.scaling.original_context_length", 1024));
    keys.push_back(integer("attention.sliding_window", 512));
    keys.push_back(number("attention.temperature_scale", 0.2f));
  } else {
    keys.push_back(number("attention.max_alibi_bias", 4));
    keys.push_back(integer("attention.relative_buckets_count", 16));
  }
  keys.push_back(number("attention.scale", 0.25f));
  return keys;
}

/// \param skipped written as another name, another type, twice or not at all, as `how` says
answer gguf_answer(std::string_view architecture, const std::vector<gguf_key>& keys, std::size_t changed,
                   std::string_view how) {
  const bool removed = how == "removed", doubled = how == "doubled";
  gguf_bytes out(3, 0, keys.size() + 1 + (doubled ? 1 : 0) - (removed ? 1 : 0));
  out.text_key("general.architecture", architecture);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const std::string name = std::string(architecture) + "." + keys[n].name;
    if (n != changed) {
      keys[n].write(out, name);
    } else if (how == "another type") {
      keys[n].name == "rope.scaling.type" ? out.u32_key(name, 7) : out.text_key(name, "seven");
    } else if (!removed) {
      keys[n].write(out, how == "renamed" ? name + "_" : name);
      if (doubled) keys[n].write(out, name);
    }
  }
  out.pad();
  return answer_to([&] { return posenc::parse_gguf_model(out.bytes()); });
}

/// Keys that a GGUF file need not have; the format says what their absence means.
const std::set<std::string>& optional_in_gguf() {
  static const std::set<std::string> keys{"attention.head_count",     // of kinds without attention: not said
                                          "attention.head_count_kv",  // as many as attention.head_count
                                          "attention.key_length",  // embedding_length / attention.head_count
                                          "attention.value_length",       // the same
                                          "attention.scale",              // 1 / sqrt(key_length)
                                          "attention.sliding_window",     // none, or that of the architecture
                                          "attention.max_alibi_bias",     // none, or that of the architecture
                                          "attention.temperature_scale",  // none, or 0.1 of llama4
                                          "context_length",        // of kinds without rotation: not said
                                          "rope.dimension_count",  // key_length
                                          "rope.scaling.type",     // linear
                                          "rope.scaling.factor"};  // 1
  return keys;
}

TEST(mutation, gguf_keys_removed_doubled_renamed_or_of_another_type) {
  constexpr std::size_t none = ~std::size_t{0};
  std::map<std::string_view, tally> all;
  std::size_t architectures = 0;
  for (const auto& row : posenc::detail::gguf::architectures) {
    const std::vector<gguf_key> keys = keys_of(row);
    const answer before = gguf_answer(row.name, keys, none, "");
    ASSERT_TRUE(before.description) << row.name;
    ++architectures;
    for (const std::string_view how : {"removed", "doubled", "renamed", "another type"})
      for (std::size_t n = 0; n < keys.size(); ++n)
        all[how].judge(before, gguf_answer(row.name, keys, n, how), keys[n].name, std::string(row.name));
  }
  EXPECT_GE(architectures, 109u);
  EXPECT_EQ(all["doubled"].refused, all["doubled"].tried);
  EXPECT_EQ(all["another type"].silent, 0u);
  for (const auto& [key, where] : all["renamed"].silent_keys) ADD_FAILURE() << key << " renamed in " << where;
  for (const auto& [key, where] : all["removed"].silent_keys)
    EXPECT_TRUE(optional_in_gguf().contains(key)) << key << ": " << where;
  for (const auto& [how, one] : all) one.record(std::string("gguf ") + std::string(how));
}

}  // namespace mutation_test
