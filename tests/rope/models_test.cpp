// SPDX-License-Identifier: MIT
/// \file
/// The rotation of published models, from their numbers, against golden/rope_models.json. (That the numbers
/// are read from the models' own files is tests/models' matter.)
#include <posenc/encodings/multi_axis_rope.hpp>

#include "rope_golden.hpp"

namespace models_test {

using namespace posenc;
using golden::json;

double base_of(const json& row) {
  const json& config = row.at("config");
  const bool local = row.at("name").get<std::string>().find("[sliding") != std::string::npos;
  for (const char* key : {local ? "rope_local_base_freq" : "rope_theta", "rotary_emb_base"})
    if (config.contains(key)) return config.at(key).get<double>();
  return 10'000;
}

class published_model : public testing::Test {
 protected:
  /// One golden row as an encoding; in the rows with two factor sets the name says which one.
  template <class T>
  static rope<T> encoding_of(const json& row, angle_mode angles = angle_mode::exact) {
    const std::string name = row.at("name").get<std::string>();
    const json& expect = row.at("expect");
    rope_options options{
        .head_dim = expect.at("head_dim").get<index_t>(),
        .rotary_dim = expect.at("rotary_dim").get<index_t>(),
        .rotary_offset = expect.value("rotary_offset", index_t{0}),
        .base = base_of(row),
        .pairing = expect.at("layout") == "half" ? pairing::half_split : pairing::interleaved,
        .angles = angles};
    any_scaling scaling;
    if (name.find("[sliding") == std::string::npos) scaling = golden::scaling_of(row.at("config"));
    return rope<T>{options, scaling, name.find("[long]") == std::string::npos ? 1 : 131'072};
  }
};

TEST_F(published_model, equals_its_golden_row) {
  for (const json& row : golden::cases("rope_models.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const rope<double> encoding = encoding_of<double>(row);
    const json& expect = row.at("expect");
    EXPECT_EQ(golden::head_dim_of(row.at("config")), expect.at("head_dim").get<index_t>());
    golden::expect_frequencies(encoding, expect.at("inv_freq"), base_of(row));
    golden::expect_table(encoding, expect.at("table"));
    EXPECT_NEAR(encoding.attention_factor(), expect.at("attention_factor").get<double>(),
                golden::scale_bound * encoding.attention_factor());
    const any_scaling scaling = golden::scaling_of(row.at("config"));
    const double multiplier = expect.at("logit_scale_multiplier").get<double>();
    if (multiplier != 1) {
      EXPECT_NEAR(deepseek_softmax_multiplier(std::get<yarn>(scaling.scheme)), multiplier,
                  golden::scale_bound * multiplier);
    }
  }
}

TEST_F(published_model, in_float_is_the_rounded_table) {
  for (const json& row : golden::cases("rope_models.json")) {
    const rope<float> encoding = encoding_of<float>(row);
    const json& table = row.at("expect").at("table");
    const auto pairs = table.at("pair_indices").get<std::vector<index_t>>();
    const auto positions = table.at("positions").get<std::vector<position>>();
    for (std::size_t i = 0; i < positions.size(); ++i)
      for (std::size_t j = 0; j < pairs.size(); ++j) {
        const auto [cos, sin] = encoding.angle(pairs[j], positions[i]);
        EXPECT_FLOAT_EQ(cos, static_cast<float>(table.at("cos")[i][j].get<double>()));
        EXPECT_FLOAT_EQ(sin, static_cast<float>(table.at("sin")[i][j].get<double>()));
      }
  }
}

/// float32 frequencies stay as close to the exact ones as the recorded float32 frameworks, give or take their
/// own last bit.
TEST_F(published_model, framework_frequencies_stay_within_float32) {
  for (const json& row : golden::cases("rope_models.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const rope<double> encoding = encoding_of<double>(row, angle_mode::framework_float32);
    const auto& ours = encoding.lowered().framework_frequencies;
    const std::vector<double> exact = golden::numbers(row.at("expect").at("inv_freq"));
    ASSERT_EQ(ours.size(), exact.size());
    for (std::size_t p = 0; p < exact.size(); ++p)
      EXPECT_LE(std::abs(static_cast<double>(ours[p]) - exact[p]), 4e-7 * exact[p]) << "pair " << p;
  }
}

TEST_F(published_model, with_several_axes_deals_out_its_pairs) {
  for (const json& row : golden::cases("rope_models.json")) {
    if (!row.at("expect").contains("mrope_axis_of_pair")) continue;
    const auto sections = row.at("config").at("rope_scaling").at("mrope_section").get<std::vector<index_t>>();
    EXPECT_EQ(
        axes_of_pairs(sections, axis_order::chunked, row.at("expect").at("rotary_dim").get<index_t>() / 2),
        row.at("expect").at("mrope_axis_of_pair").get<std::vector<int>>());
  }
}

}  // namespace models_test
