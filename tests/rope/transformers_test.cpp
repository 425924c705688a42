// SPDX-License-Identifier: MIT
/// \file
/// Cross-check against executed Hugging Face transformers (tests/golden/make_transformers.py wrote
/// transformers.json with the versions it names).
///
/// | compared | worst deviation |
/// |---|---|
/// | framework inv_freq, all rope types and golden models | none in 6044, see below |
/// | exact inv_freq, relative | 7.4e-7 at a YaRN pair where 1 − g cancels, else 4.1e-7 |
/// | attention factor | 2 ulp of double |
/// | rotated vectors up to position 1000, exact angles | 1.3e-5 (their float32 angle) |
/// | rotated vectors up to position 1000, framework angles | 1e-7 |
///
/// The bits are those of torch's portable kernels. Its AVX-512 kernels give 50 of the 6044 frequencies
/// otherwise, because their vector power function is not correctly rounded; for the golden models that is one
/// pair each of CodeLlama, Qwen3, Qwen2.5 and Qwen2-VL (37), Phi-3 (20) and Gemma-3 (111 local, 74 global).
#include <bit>
#include <cstdint>

#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/rope/convert_pairing.hpp>

#include "rope_golden.hpp"

namespace transformers_test {

using namespace posenc;
using golden::json;

std::vector<std::uint32_t> bits_of(const std::string& hex) {
  std::vector<std::uint32_t> bits;
  for (std::size_t at = 0; at < hex.size(); at += 8)
    bits.push_back(static_cast<std::uint32_t>(std::stoul(hex.substr(at, 8), nullptr, 16)));
  return bits;
}

std::optional<position> length_of(const json& row) {
  if (!row.contains("sequence_length")) return std::nullopt;
  return row.at("sequence_length").get<position>();
}

TEST(transformers, frequencies_are_equal_bit_for_bit) {
  double worst = 0, worst_factor = 0;
  std::size_t compared = 0, otherwise = 0;
  const json all = golden::cases("transformers.json");
  for (const json& row : all.at("frequencies")) {
    SCOPED_TRACE(row.at("name").get<std::string>() + " " + row.at("config").dump());
    const json& config = row.at("config");
    const any_scaling scaling = golden::scaling_of(config);
    rope_options options{.head_dim = config.at("head_dim").get<index_t>(),
                         .base = config.at("rope_theta").get<double>(),
                         .pairing = pairing::half_split,
                         .angles = angle_mode::framework_float32};
    if (!std::holds_alternative<proportional>(scaling.scheme) && config.contains("rope_scaling"))
      options.rotary_dim =
          static_cast<index_t>(static_cast<double>(options.head_dim) *
                               config.at("rope_scaling").value("partial_rotary_factor", 1.0));
    const rope<double> encoding{options, scaling, length_of(row)};
    const auto expected = bits_of(row.at("inv_freq_bits").get<std::string>());
    const auto& ours = encoding.lowered().framework_frequencies;
    ASSERT_EQ(ours.size(), expected.size());
    for (std::size_t p = 0; p < ours.size(); ++p) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(ours[p]), expected[p]) << "pair " << p;
      const double theirs = static_cast<double>(std::bit_cast<float>(expected[p]));
      if (theirs != 0) worst = (std::max)(worst, std::abs(encoding.inv_freq()[p] / theirs - 1));
    }
    compared += ours.size();
    otherwise += row.contains("differs") ? row.at("differs").size() : 0;
    const double factor = row.at("attention_factor").get<double>();
    worst_factor = (std::max)(worst_factor, std::abs(encoding.attention_factor() / factor - 1));
  }
  EXPECT_EQ(compared, 6044u);
  EXPECT_EQ(otherwise, 50u);
  EXPECT_LE(worst, 8e-7);
  EXPECT_LE(worst_factor, golden::scale_bound);
  RecordProperty("worst_relative_deviation_of_inv_freq", std::to_string(worst * 1e9) + "e-9");
}

/// The input vector of token `seed` in make_transformers.py.
std::vector<double> input_of(index_t width, index_t seed) {
  std::vector<double> head;
  for (index_t c = 0; c < width; ++c)
    head.push_back(static_cast<double>((7 * c + 3 * seed + c * c) % 17 - 8) / 8);
  return head;
}

std::vector<axis_positions> places_of(const json& list) {
  std::vector<axis_positions> places;
  for (const json& place : list) {
    if (place.size() == 3)
      places.push_back({place[0].get<position>(), place[1].get<position>(), place[2].get<position>(), 0});
    else
      places.push_back({0, place[0].get<position>(), place[1].get<position>(), 0});
  }
  return places;
}

/// Turns `head` as the row says, token `t` of it.
void turn(const json& row, angle_mode angles, std::span<double> head, index_t t) {
  const rope_options options{
      .head_dim = row.at("head_dim").get<index_t>(),
      .rotary_dim = row.value("rotary_dim", row.at("head_dim").get<index_t>()),
      .pairing = row.at("layout") == "half" ? pairing::half_split : pairing::interleaved,
      .angles = angles};
  if (row.contains("vision")) {
    const std::string name = row.at("vision").get<std::string>();
    const vision_form form = name == "alternating"  ? vision_form::alternating
                             : name == "restarting" ? vision_form::restarting
                                                    : vision_form::llama4;
    std::vector<axis_positions> places = places_of(row.at("positions"));
    if (form == vision_form::llama4) places = llama4_patch_positions(3, 3);
    multi_axis_rope<double>::vision(form, options.head_dim, places, 10'000, angles).rotate(head, t);
  } else if (row.contains("mrope_section")) {
    const auto sections = row.at("mrope_section").get<std::vector<index_t>>();
    const axis_order order =
        row.at("mrope_interleaved").get<bool>() ? axis_order::interleaved : axis_order::chunked;
    multi_axis_rope<double>{options, sections, order, places_of(row.at("positions"))}.rotate(head, t);
  } else {
    rope<double>{options, golden::scaling_of(row)}.rotate(
        head, row.at("positions")[static_cast<std::size_t>(t)].get<position>());
  }
}

TEST(transformers, rotated_vectors_are_equal) {
  std::size_t families = 0;
  double worst_exact = 0, worst_framework = 0;
  const json all = golden::cases("transformers.json");
  for (const json& row : all.at("rotated")) {
    const std::string name = row.at("name").get<std::string>();
    SCOPED_TRACE(name);
    ++families;
    const index_t width = row.at("head_dim").get<index_t>();
    for (index_t t = 0; t < static_cast<index_t>(row.at("output").size()); ++t)
      for (const angle_mode angles : {angle_mode::exact, angle_mode::framework_float32}) {
        std::vector<double> head = input_of(width, t);
        turn(row, angles, head, t);
        if (row.contains("output_layout"))
          convert_pairing(std::span<double>(head),
                          {.head_dim = width, .from = pairing::interleaved, .to = pairing::half_split});
        double& worst = angles == angle_mode::exact ? worst_exact : worst_framework;
        for (std::size_t c = 0; c < head.size(); ++c) {
          // GLM-4 rotates what it has interleaved by halves of the wrong kind nowhere: channel by channel
          // equal.
          const double off =
              std::abs(head[c] - row.at("output")[static_cast<std::size_t>(t)][c].get<double>());
          EXPECT_LE(off, angles == angle_mode::exact ? 2e-5 : 2e-7) << "token " << t << " channel " << c;
          worst = (std::max)(worst, off);
        }
      }
  }
  EXPECT_EQ(families, 14u);
  RecordProperty("worst_deviation_of_exact_vectors", std::to_string(worst_exact * 1e6) + "e-6");
  RecordProperty("worst_deviation_of_framework_vectors", std::to_string(worst_framework * 1e9) + "e-9");
}

}  // namespace transformers_test
