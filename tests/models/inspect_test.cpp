// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect: what it prints, as JSON that other programs read and as text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "../../examples/inspect/arguments.hpp"
#include "../../examples/inspect/json_report.hpp"
#include "../../examples/inspect/plot.hpp"
#include "../../examples/inspect/text_report.hpp"
#include "golden.hpp"
#include "refusals.hpp"

namespace inspect_test {

using nlohmann::json;

inspect::model_view view_of(const json& config, std::optional<posenc::position> length = std::nullopt) {
  return inspect::build("config.json", posenc::parse_huggingface(config.dump()), length);
}
json report(const json& config, const std::vector<posenc::position>& positions = {},
            std::optional<posenc::position> length = std::nullopt) {
  return json::parse(inspect::json_report({view_of(config, length)}, positions));
}

TEST(inspect, json_holds_the_golden_values_of_every_model) {
  for (const json& row : golden::cases("rope_models.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& expect = row.at("expect");
    const std::string select = expect.value("select", "");
    const bool is_long = select == "long";
    const auto positions = expect.at("table").at("positions").get<std::vector<posenc::position>>();
    const json all = report(row.at("config"), positions, is_long ? 131072 : 4096);
    json one;
    for (const json& encoding : all.at("encodings"))
      if (one.is_null() || encoding.at("layer_type") == select) one = encoding;
    EXPECT_EQ(one.at("kind"), "rope");
    EXPECT_FALSE(one.at("layers").empty());
    EXPECT_EQ(one.at("head_dim"), expect.at("head_dim"));
    EXPECT_EQ(one.at("rotary_dim"), expect.at("rotary_dim"));
    EXPECT_EQ(one.at("rotary_offset"), expect.value("rotary_offset", 0));
    EXPECT_EQ(one.at("pairing"), expect.at("layout") == "half" ? "half_split" : "interleaved");
    EXPECT_DOUBLE_EQ(one.at("attention_factor").get<double>(), expect.at("attention_factor").get<double>());
    EXPECT_DOUBLE_EQ(one.at("softmax_scale").get<double>(), expect.at("softmax_scale").get<double>());
    if (expect.contains("mrope_axis_of_pair")) {
      EXPECT_EQ(one.at("axis_of_pair"), expect.at("mrope_axis_of_pair"));
    }
    ASSERT_EQ(one.at("inv_freq").size(), expect.at("inv_freq").size());
    for (std::size_t p = 0; p < expect.at("inv_freq").size(); ++p) {
      const double w = expect.at("inv_freq")[p].get<double>();
      EXPECT_NEAR(one.at("inv_freq")[p].get<double>(), w, 0x1p-51 * 15 * w);
    }
    ASSERT_EQ(one.at("tables").size(), positions.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const json& table = one.at("tables")[i];
      EXPECT_EQ(table.at("position"), positions[i]);
      for (std::size_t k = 0; k < expect.at("table").at("pair_indices").size(); ++k) {
        const auto pair = expect.at("table").at("pair_indices")[k].get<std::size_t>();
        const double angle = static_cast<double>(positions[i]) * expect.at("inv_freq")[pair].get<double>();
        EXPECT_NEAR(table.at("cos")[pair].get<double>(), expect.at("table").at("cos")[i][k].get<double>(),
                    0x1p-51 * (1 + angle));
        EXPECT_NEAR(table.at("sin")[pair].get<double>(), expect.at("table").at("sin")[i][k].get<double>(),
                    0x1p-51 * (1 + angle));
      }
    }
  }
}

TEST(inspect, json_of_the_other_kinds) {
  const json bloom = report({{"model_type", "bloom"}, {"hidden_size", 512}, {"n_head", 8}, {"n_layer", 2}});
  EXPECT_EQ(bloom.at("encodings")[0].at("kind"), "alibi");
  EXPECT_EQ(bloom.at("encodings")[0].at("layers"), json({0, 1}));
  EXPECT_EQ(bloom.at("encodings")[0].at("slopes")[7], std::exp2(-8));
  const json t5 = report({{"model_type", "t5"}, {"num_heads", 8}, {"num_layers", 6}});
  const json& encoder = t5.at("encodings")[0];
  EXPECT_EQ(encoder.at("kind"), "t5_bias");
  EXPECT_EQ(encoder.at("num_buckets"), 32);
  EXPECT_EQ(encoder.at("max_distance"), 128);
  EXPECT_EQ(encoder.at("bidirectional"), true);
  EXPECT_EQ(encoder.at("thresholds"), json({0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}));
  EXPECT_EQ(t5.at("encodings")[1].at("bidirectional"), false);
  const json llama4 = report({{"model_type", "llama4_text"}, {"num_hidden_layers", 4}});
  EXPECT_EQ(llama4.at("encodings")[1].at("kind"), "none");
  EXPECT_EQ(llama4.at("encodings")[1].at("layers"), json({3}));
  EXPECT_EQ(llama4.at("encodings")[1].at("position_scale").at("interval"), 8192.0);
  const json opt = report({{"model_type", "opt"},
                           {"hidden_size", 64},
                           {"num_attention_heads", 4},
                           {"num_hidden_layers", 2},
                           {"max_position_embeddings", 100}});
  EXPECT_EQ(opt.at("encodings")[0].at("kind"), "learned_absolute");
  EXPECT_EQ(opt.at("encodings")[0].at("rows"), 102);
  const json marian = report({{"model_type", "marian"},
                              {"d_model", 64},
                              {"encoder_layers", 1},
                              {"decoder_layers", 1},
                              {"encoder_attention_heads", 4},
                              {"decoder_attention_heads", 4},
                              {"max_position_embeddings", 100}});
  EXPECT_EQ(marian.at("encodings")[0].at("kind"), "sinusoidal");
  EXPECT_EQ(marian.at("encodings")[0].at("convention"), "marian");
}

TEST(inspect, json_numbers_come_back_as_they_were) {
  const json config = {{"model_type", "llama"},           {"hidden_size", 4096},
                       {"num_attention_heads", 32},       {"num_hidden_layers", 1},
                       {"max_position_embeddings", 4096}, {"rope_theta", 10000.0}};
  const auto view = view_of(config);
  const json one = report(config, {-7}).at("encodings")[0];
  for (std::size_t p = 0; p < 64; ++p) {
    EXPECT_EQ(one.at("inv_freq")[p].get<double>(), view.encodings[0].rope->inv_freq()[p]);
    EXPECT_EQ(one.at("tables")[0].at("sin")[p].get<double>(),
              view.encodings[0].rope->angle(static_cast<posenc::index_t>(p), -7).sin);
  }
}

TEST(inspect, json_escapes_what_a_file_name_may_hold) {
  inspect::json_writer out;
  out.value("a\"b\\c\nd\te");
  EXPECT_EQ(json::parse(out.text()), "a\"b\\c\nd\te");
}

TEST(inspect, a_what_if_stands_beside_todays_model) {
  const json config = golden::find("rope_models.json", "Llama-3-8B").at("config");
  std::vector<inspect::model_view> views{view_of(config)};
  views.push_back(inspect::build(
      "what if", inspect::with_scaling(views[0].model, "yarn:factor=4,original=32768"), std::nullopt));
  const json all = json::parse(inspect::json_report(views, {}));
  const json& one = all.at("compared_with")[0].at("encodings")[0];
  EXPECT_DOUBLE_EQ(one.at("attention_factor").get<double>(), 0.1 * std::log(4.0) + 1);
  std::ostringstream text;
  inspect::text_report(text, views, {0}, true);
  EXPECT_NE(text.str().find("[2] wavelength"), std::string::npos);
  EXPECT_NE(text.str().find("stretched"), std::string::npos);
}

TEST(inspect, a_what_if_says_which_trained_length_it_took) {
  const auto warnings = [](const char* model, const char* scaling) {
    const auto view = view_of(golden::find("rope_models.json", model).at("config"));
    return inspect::with_scaling(view.model, scaling).warnings;
  };
  // Trained for 8192 tokens, scaled to 131072 by the file itself.
  const auto told = warnings("Llama-3.1-8B", "yarn:factor=4");
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], testing::HasSubstr("131072"));
  EXPECT_THAT(told[0], testing::HasSubstr("original=8192"));
  EXPECT_EQ(warnings("Llama-3.1-8B", "dynamic:factor=4").size(), 1U);
  EXPECT_TRUE(warnings("Llama-3.1-8B", "yarn:factor=4,original=131072").empty());
  EXPECT_TRUE(warnings("Llama-3.1-8B", "linear:factor=4").empty());
  EXPECT_TRUE(warnings("Llama-3-8B", "yarn:factor=4").empty());
}

TEST(inspect, text_shows_bands_and_numbers) {
  std::ostringstream text;
  inspect::text_report(text, {view_of(golden::find("rope_models.json", "Llama-3.1-8B").at("config"))}, {17},
                       true);
  for (const char* part : {"half_split", "500000", "llama3", "factor 8", "kept", "blended", "stretched",
                           "layers 0-31", "position 17", "0.088388347648318"})
    EXPECT_NE(text.str().find(part), std::string::npos) << part;
}

TEST(inspect, what_is_odd_comes_first_and_the_ladder_where_it_is_asked_for) {
  const auto text_of = [](const json& config, bool with_ladder) {
    std::ostringstream text;
    inspect::text_report(text, {view_of(config)}, {}, with_ladder);
    return text.str();
  };
  const json llama = golden::find("rope_models.json", "Llama-3.1-8B").at("config");
  const std::string text = text_of(llama, false), full = text_of(llama, true);
  EXPECT_THAT(text, testing::HasSubstr("What is odd about this file:"));
  EXPECT_THAT(text, testing::HasSubstr("sequences of 131072 tokens, 16 times the trained length of 8192 "
                                       "(full_attention layers 0-31)"));
  EXPECT_LT(text.find("odd about"), text.find("rotary width"));
  EXPECT_EQ(text.find("wavelength"), text.npos);
  EXPECT_NE(full.find("wavelength"), full.npos);
  EXPECT_GT(std::count(full.begin(), full.end(), '\n'), std::count(text.begin(), text.end(), '\n') + 64);
  const json plain = {{"model_type", "llama"},        {"hidden_size", 64},     {"num_attention_heads", 4},
                      {"num_hidden_layers", 2},       {"rope_theta", 10000.0}, {"num_key_value_heads", 4},
                      {"max_position_embeddings", 64}};
  EXPECT_THAT(text_of(plain, false), testing::HasSubstr("Nothing is odd about this file."));
  json odd = plain;
  odd["sliding_windows"] = 3;
  EXPECT_THAT(text_of(odd, false), testing::HasSubstr("  - not read: the key sliding_windows\n"));
  const json gpt_oss = {{"model_type", "gpt_oss"}, {"num_hidden_layers", 2}};
  for (const char* part : {"a learned sink joins each softmax", "cos and sin are multiplied by 1.34657",
                           "sequences of 131072 tokens, 32 times the trained length of 4096"})
    EXPECT_THAT(text_of(gpt_oss, false), testing::HasSubstr(part));
  const json nanochat = {{"model_type", "nanochat"}};
  EXPECT_THAT(text_of(nanochat, false), testing::HasSubstr("it rotates the other way round"));
}

TEST(inspect, the_plot_marks_lengths_and_bands_and_names_models_without_paths) {
  const auto named = [](const char* title, const json& config) {
    return inspect::build(title, posenc::parse_huggingface(config.dump()), std::nullopt);
  };
  const json llama = golden::find("rope_models.json", "Llama-3.1-8B").at("config");
  const std::string one =
      inspect::plot_script({named("some/folder/Llama-3.1-8B/config.json", llama)}, "o.svg");
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_THAT(one, testing::HasSubstr("title 'Llama-3.1-8B'"));
  EXPECT_EQ(one.find("folder"), one.npos);
  EXPECT_EQ(count(one, "'trained length 8192'"), 2u);  // in both plots
  for (const char* band : {"set label 'kept'", "set label 'blended'", "set label 'stretched'"})
    EXPECT_EQ(count(one, band), 1u) << band;
  // Beyond a thousand tokens a row has the least and the most, which differ; before it every distance is there.
  EXPECT_THAT(one, testing::HasSubstr("filledcurves"));
  std::istringstream rows(one.substr(one.find("_score << EOD") + 14));
  double distance = 0, least = 0, most = 0;
  std::size_t near = 0, swinging = 0;
  while (rows >> distance >> least >> most) {
    EXPECT_LE(least, most);
    if (distance < 1000 && least == most) ++near;
    if (distance > 1000 && least < most) ++swinging;
  }
  EXPECT_GT(near, 150u);
  EXPECT_GT(swinging, 200u);
  // A curve for each kind of layer, whatever the layers' masks; files beside one another are named.
  const json gemma = golden::find("rope_models.json", "Gemma-3-4B [sliding").at("config");
  const std::string two = inspect::plot_script({named("a/b.json", gemma), named("a/c.gguf", llama)}, "o.svg");
  EXPECT_THAT(two, testing::HasSubstr("title 'b and c'"));
  for (const char* title : {"'b, sliding_attention'", "'b, full_attention'", "title 'c'"})
    EXPECT_EQ(count(two, title), 2u) << title;
  EXPECT_EQ(two.find("$curve4"), two.npos);
  EXPECT_EQ(count(inspect::plot_script({named("x.json", gemma)}, "o.svg"), "set label 'kept'"), 0u);
}

TEST(inspect, the_score_starts_at_one_and_follows_the_cosines) {
  const auto view = view_of({{"model_type", "llama"},
                             {"head_dim", 4},
                             {"num_hidden_layers", 1},
                             {"max_position_embeddings", 10},
                             {"rope_theta", 100.0}});
  EXPECT_EQ(posenc::score_at_distance(*view.encodings[0].rope, 0), 1);
  EXPECT_NEAR(posenc::score_at_distance(*view.encodings[0].rope, 3), (std::cos(3.0) + std::cos(0.3)) / 2,
              1e-15);
}

TEST(inspect, command_line) {
  const auto asked =
      inspect::parse({"a.json", "--length", "5", "--positions=1,-2,3", "--json", "--compare", "b"});
  EXPECT_EQ(asked.file, "a.json");
  EXPECT_EQ(asked.length, 5);
  EXPECT_EQ(asked.positions, (std::vector<posenc::position>{1, -2, 3}));
  EXPECT_EQ(asked.compare, "b");
  EXPECT_TRUE(asked.json);
  const auto refused = [](std::vector<std::string> words, const char* part) {
    EXPECT_REFUSAL(inspect::parse(words), std::invalid_argument, part);
  };
  refused({}, "FILE");
  refused({"a", "b"}, "second");
  refused({"a", "--length"}, "needs a value");
  refused({"a", "--length", "0"}, "positive");
  refused({"a", "--length", "1e3"}, "1e3");
  refused({"a", "--positions", "1,,2"}, "whole number");
  refused({"a", "--positions", "9223372036854775807"}, "±(2^62 − 1)");
  refused({"a", "--pairing", "neox"}, "neox");
  refused({"a", "--json=1"}, "no value");
  refused({"a", "--frobnicate"}, "--frobnicate");
}

TEST(what_if, schemes_and_their_numbers) {
  EXPECT_TRUE(std::holds_alternative<posenc::no_scaling>(posenc::parse_scaling("none").scheme));
  EXPECT_EQ(std::get<posenc::position_interpolation>(posenc::parse_scaling("linear:factor=4").scheme).factor,
            4);
  EXPECT_EQ(std::get<posenc::theta_scaling>(posenc::parse_scaling("theta:factor=2.5").scheme).factor, 2.5);
  const auto yarn = std::get<posenc::yarn>(
      posenc::parse_scaling("yarn:factor=4,truncate=0,attention_factor=1", 2048).scheme);
  EXPECT_EQ(yarn.original_context, 2048);
  EXPECT_FALSE(yarn.truncate);
  EXPECT_EQ(yarn.attention_factor, 1);
  EXPECT_EQ(
      std::get<posenc::dynamic_ntk>(posenc::parse_scaling("dynamic:factor=2,original=7").scheme).max_context,
      7);
  EXPECT_EQ(std::get<posenc::llama3>(posenc::parse_scaling("llama3:factor=8,low=1,high=4", 8192).scheme)
                .original_context,
            8192);
  EXPECT_REFUSAL(posenc::parse_scaling("yarn:factor=4"), std::invalid_argument, "original");
  EXPECT_REFUSAL(posenc::parse_scaling("linear"), std::invalid_argument, "factor");
  EXPECT_REFUSAL(posenc::parse_scaling("linear:factor=4,beta=2"), std::invalid_argument, "beta");
  EXPECT_REFUSAL(posenc::parse_scaling("linear:factor=4x"), std::invalid_argument, "4x");
  EXPECT_REFUSAL(posenc::parse_scaling("linear:factor=4,factor=5"), std::invalid_argument, "twice");
  EXPECT_REFUSAL(posenc::parse_scaling("linear:=4"), std::invalid_argument, "name=number");
  EXPECT_REFUSAL(posenc::parse_scaling("longrope:factor=4"), std::invalid_argument, "llama3");
}

}  // namespace inspect_test
