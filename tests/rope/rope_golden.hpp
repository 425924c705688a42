// SPDX-License-Identifier: MIT
/// \file
/// From the golden files' configs to rope, and the accuracy a double implementation owes them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/encodings/rope.hpp>

#include "golden.hpp"

namespace golden {

using json = nlohmann::json;

inline std::vector<double> numbers(const json& list) { return list.get<std::vector<double>>(); }

inline std::optional<double> number_if(const json& object, const char* key) {
  if (!object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return object.at(key).get<double>();
}

/// Half an ulp of 1, the unit of the bounds.
inline constexpr double unit = std::numeric_limits<double>::epsilon() / 2;

inline double frequency_bound(double base) { return 4 * unit * (1 + std::log(base)); }
inline double angle_bound(double phase) { return 4 * unit * (1 + std::abs(phase)); }
inline constexpr double scale_bound = 4 * unit;

/// The inverse frequencies of an encoding against a golden list.
template <class Encoding>
void expect_frequencies(const Encoding& encoding, const json& expected, double base) {
  const std::vector<double> list = numbers(expected);
  const auto ours = encoding.inv_freq();
  ASSERT_EQ(ours.size(), list.size());
  for (std::size_t p = 0; p < list.size(); ++p)
    EXPECT_LE(std::abs(ours[p] - list[p]), frequency_bound(base) * list[p]) << "pair " << p;
}

/// cos and sin (without magnitude) at the positions of a golden table.
template <class Encoding>
void expect_table(const Encoding& encoding, const json& table) {
  const auto pairs = table.at("pair_indices").get<std::vector<posenc::index_t>>();
  const auto positions = table.at("positions").get<std::vector<posenc::position>>();
  for (std::size_t row = 0; row < positions.size(); ++row)
    for (std::size_t column = 0; column < pairs.size(); ++column) {
      const auto [cos, sin] = encoding.angle(pairs[column], positions[row]);
      const double phase =
          encoding.inv_freq()[static_cast<std::size_t>(pairs[column])] * static_cast<double>(positions[row]);
      EXPECT_LE(std::abs(cos - table.at("cos")[row][column].get<double>()), angle_bound(phase))
          << "pair " << pairs[column] << " at " << positions[row];
      EXPECT_LE(std::abs(sin - table.at("sin")[row][column].get<double>()), angle_bound(phase))
          << "pair " << pairs[column] << " at " << positions[row];
    }
}

/// The rope block of a golden config, its old keys at the top level included, as one of our schemes.
inline posenc::any_scaling scaling_of(const json& config) {
  if (config.value("scheme", "") == "ntk_fixed")
    return posenc::theta_scaling{.factor = config.at("scale").get<double>()};
  if (!config.contains("rope_scaling") || config.at("rope_scaling").is_null()) return {};
  const json& block = config.at("rope_scaling");
  const std::string type = block.value("rope_type", block.value("type", "default"));
  const auto limit = number_if(config, "max_position_embeddings");
  auto original = number_if(config, "original_max_position_embeddings");
  if (!original) original = number_if(block, "original_max_position_embeddings");
  if (!original) original = limit;
  const auto factor = number_if(block, "factor");
  if (type == "linear") return posenc::position_interpolation{.factor = factor.value()};
  if (type == "dynamic") return posenc::dynamic_ntk{.factor = factor.value(), .max_context = limit.value()};
  if (type == "ntk") return posenc::kexue_ntk{.factor = factor.value()};
  if (type == "yarn")
    return posenc::yarn{.factor = factor ? *factor : limit.value() / original.value(),
                        .original_context = original.value(),
                        .beta_fast = block.value("beta_fast", 32.0),
                        .beta_slow = block.value("beta_slow", 1.0),
                        .attention_factor = number_if(block, "attention_factor"),
                        .mscale = block.value("mscale", 0.0),
                        .mscale_all_dim = block.value("mscale_all_dim", 0.0),
                        .truncate = block.value("truncate", true)};
  if (type == "longrope" || type == "su")
    return posenc::longrope{.short_factor = numbers(block.at("short_factor")),
                            .long_factor = numbers(block.at("long_factor")),
                            .original_context = original.value(),
                            .factor = factor,
                            .max_context = limit,
                            .attention_factor = number_if(block, "attention_factor")};
  if (type == "llama3")
    return posenc::llama3{.factor = factor.value(),
                          .low_freq_factor = block.at("low_freq_factor").get<double>(),
                          .high_freq_factor = block.at("high_freq_factor").get<double>(),
                          .original_context = original.value()};
  if (type == "proportional")
    return posenc::proportional{.partial_rotary_factor = block.value("partial_rotary_factor", 1.0),
                                .factor = factor.value_or(1)};
  EXPECT_TRUE(type == "default" || type == "mrope") << type;
  return {};
}

/// head_dim of a golden config.
inline posenc::index_t head_dim_of(const json& config) {
  if (config.contains("head_dim")) return config.at("head_dim").get<posenc::index_t>();
  if (config.contains("qk_rope_head_dim"))
    return config.at("qk_nope_head_dim").get<posenc::index_t>() +
           config.at("qk_rope_head_dim").get<posenc::index_t>();
  const bool gpt2_keys = config.contains("n_embd");
  return config.at(gpt2_keys ? "n_embd" : "hidden_size").get<posenc::index_t>() /
         config.at(gpt2_keys ? "n_head" : "num_attention_heads").get<posenc::index_t>();
}

}  // namespace golden
