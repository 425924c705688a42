// SPDX-License-Identifier: MIT
/// \file
/// Turning vectors: golden/rope_apply.json, widths and offsets, what the options refuse.
#include <posenc/encodings/rope.hpp>

#include <numeric>

#include <Eigen/Core>

#include "refusals.hpp"
#include "rope_golden.hpp"

namespace apply_test {

using namespace posenc;
using golden::json;

rope_options options_of(const json& config) {
  rope_options options{.head_dim = config.at("head_dim").get<index_t>(),
                       .base = config.at("rope_theta").get<double>(),
                       .pairing = config.at("layout") == "half" ? pairing::half_split : pairing::interleaved};
  if (config.contains("rotary_dim")) options.rotary_dim = config.at("rotary_dim").get<index_t>();
  options.rotary_offset = config.value("rotary_offset", index_t{0});
  return options;
}

any_scaling scaling_of(json config) {
  if (config.value("rope_type", "") == "proportional")
    config["rope_scaling"] = {{"rope_type", "proportional"},
                              {"partial_rotary_factor", config.at("partial_rotary_factor")}};
  return golden::scaling_of(config);
}

std::vector<double> turned(const rope<double>& encoding, std::vector<double> head, position p) {
  encoding.rotate(std::span<double>(head), p);
  return head;
}

TEST(rope_apply, equals_the_golden_vectors) {
  int rows = 0;
  for (const json& row : golden::cases("rope_apply.json")) {
    const json& config = row.at("config");
    if (!config.contains("layout") || !config.at("layout").is_string() || config.contains("mrope_section") ||
        config.contains("position_h"))
      continue;  // several axes: multi_axis_test.cpp
    SCOPED_TRACE(row.at("name").get<std::string>());
    const rope<double> encoding{options_of(config), scaling_of(config)};
    ++rows;
    if (row.at("expect").contains("dot")) {
      const std::vector<double> q =
          turned(encoding, golden::numbers(row.at("input").at("q")), config.at("q_position").get<position>());
      const std::vector<double> k =
          turned(encoding, golden::numbers(row.at("input").at("k")), config.at("k_position").get<position>());
      EXPECT_NEAR(std::inner_product(q.begin(), q.end(), k.begin(), 0.0),
                  row.at("expect").at("dot").get<double>(), 1e-11);
      continue;
    }
    const position p = config.at("position").get<position>();
    const std::vector<double> out = turned(encoding, golden::numbers(row.at("input")), p);
    const std::vector<double> expected = golden::numbers(row.at("expect").at("output"));
    ASSERT_EQ(out.size(), expected.size());
    // Two products of numbers up to 3 with cos and sin, times m.
    const double bound = 16 * golden::angle_bound(static_cast<double>(p));
    for (std::size_t c = 0; c < out.size(); ++c) EXPECT_NEAR(out[c], expected[c], bound) << "channel " << c;
    if (row.at("expect").contains("attention_factor")) {
      EXPECT_NEAR(encoding.attention_factor(), row.at("expect").at("attention_factor").get<double>(),
                  golden::scale_bound * encoding.attention_factor());
    }
  }
  EXPECT_EQ(rows, 10);
}

/// Worked by hand: one pair at a quarter turn, w = π/2.
TEST(rope_apply, turns_counter_clockwise_in_both_pairings) {
  for (const pairing layout : {pairing::half_split, pairing::interleaved}) {
    const rope_options options{.head_dim = 6, .rotary_dim = 4, .rotary_offset = 1, .pairing = layout};
    const auto encoding =
        rope<double>::from_frequencies(options, {{1.57079632679489661923L, 3.14159265358979323846L}, 2});
    const std::vector<double> out = turned(encoding, {1, 2, 3, 4, 5, 6}, 1);
    // (2, 4) and (3, 5) are the pairs of half_split, (2, 3) and (4, 5) those of interleaved.
    const std::vector<double> expected = layout == pairing::half_split
                                             ? std::vector<double>{1, -8, -6, 4, -10, 6}
                                             : std::vector<double>{1, -6, 4, -8, -10, 6};
    for (std::size_t c = 0; c < 6; ++c) EXPECT_NEAR(out[c], expected[c], 1e-14) << "channel " << c;
  }
}

TEST(rope_apply, a_rotary_width_of_zero_is_a_no_op) {
  const rope<float> encoding{{.head_dim = 5, .rotary_dim = 0, .pairing = pairing::half_split},
                             yarn{.factor = 4, .original_context = 1024}};
  std::vector<float> head{1, 2, 3, 4, 5};
  encoding.rotate(std::span<float>(head), 1234);
  EXPECT_EQ(head, (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(encoding.inv_freq().size(), 0u);
}

TEST(rope_apply, an_odd_head_may_have_an_even_rotary_width) {
  const rope<float> encoding{{.head_dim = 5, .rotary_dim = 4, .pairing = pairing::interleaved}};
  std::vector<float> head{1, 2, 3, 4, 5};
  encoding.rotate(std::span<float>(head), 7);
  EXPECT_EQ(head[4], 5);
  EXPECT_NE(head[3], 4);
}

/// The magnitude is on the rotary channels alone, so that a score carries m² on them and 1 on the tail.
TEST(rope_apply, the_magnitude_leaves_the_tail_alone) {
  const rope<double> encoding{{.head_dim = 8, .rotary_dim = 4, .pairing = pairing::half_split},
                              yarn{.factor = 4, .original_context = 1024, .attention_factor = 2}};
  const std::vector<double> out = turned(encoding, {3, 4, 3, 4, 1, 1, 1, 1}, 99);
  EXPECT_NEAR(std::hypot(std::hypot(out[0], out[1]), std::hypot(out[2], out[3])), 2 * std::hypot(5, 5),
              1e-13);
  for (std::size_t c = 4; c < 8; ++c) EXPECT_EQ(out[c], 1);
}

/// Precision does not fall with the position: exact angles at 2^24 + 1 and far beyond, by long double.
TEST(rope_apply, far_positions_are_as_exact_as_near_ones) {
  const rope<double> encoding{{.head_dim = 2, .pairing = pairing::half_split}};  // w = 1
  for (const position p :
       {position{1} << 24, (position{1} << 24) + 1, position{1'000'003}, position{1} << 40}) {
    const auto [cos, sin] = encoding.angle(0, p);
    EXPECT_NEAR(cos, static_cast<double>(std::cos(static_cast<long double>(p))),
                4 * golden::unit + static_cast<double>(p) * 1e-19);
    EXPECT_NEAR(sin, static_cast<double>(std::sin(static_cast<long double>(p))),
                4 * golden::unit + static_cast<double>(p) * 1e-19);
  }
}

TEST(rope_apply, narrow_storage_is_computed_in_float) {
  const rope<float> encoding{{.head_dim = 4, .pairing = pairing::interleaved}};
  std::vector<Eigen::bfloat16> narrow;
  std::vector<float> wide{1, 2, -3, 0.5f};
  for (const float x : wide) narrow.push_back(Eigen::bfloat16(x));
  encoding.rotate(std::span<Eigen::bfloat16>(narrow), 100'000);
  encoding.rotate(std::span<float>(wide), 100'000);
  for (std::size_t c = 0; c < 4; ++c) EXPECT_EQ(narrow[c], Eigen::bfloat16(wide[c]));
}

void expect_refused(const rope_options& options, const char* words) {
  EXPECT_REFUSAL(rope<float>{options}, std::invalid_argument, words);
}

TEST(rope_options, refuse_what_means_nothing) {
  const auto half = pairing::half_split;
  expect_refused({.pairing = half}, "head_dim 0");
  expect_refused({.head_dim = 5, .pairing = half}, "rotary_dim 5");
  expect_refused({.head_dim = 64, .rotary_dim = 33, .pairing = half}, "33 must be even");
  expect_refused({.head_dim = 64, .rotary_dim = 66, .pairing = half}, "exceeds head_dim 64");
  expect_refused({.head_dim = 64, .rotary_dim = 64, .rotary_offset = 2, .pairing = half}, "offset 2");
  expect_refused({.head_dim = 64, .rotary_dim = -2, .pairing = half}, "-2");
  expect_refused({.head_dim = 64, .rotary_offset = -4, .pairing = half}, "-4");
  for (const double base : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    expect_refused({.head_dim = 64, .base = base, .pairing = half}, "base");
  // Pair 1 would turn by 1e150 radians per token; no digit of its fraction of a turn would be left.
  expect_refused({.head_dim = 4, .base = 1e-300, .pairing = half}, "a frequency of 1e+150 radians per token");
  const auto with_frequency = [&](long double w) {
    return rope<float>::from_frequencies({.head_dim = 2, .pairing = half}, {{w}, 1});
  };
  EXPECT_REFUSAL(with_frequency(0x1.000002p26L), std::invalid_argument, "±67108864");
  EXPECT_REFUSAL(with_frequency(-0x1.000002p26L), std::invalid_argument, "±67108864");
  EXPECT_REFUSAL(with_frequency(std::numeric_limits<long double>::infinity()), std::invalid_argument, "inf");
  EXPECT_REFUSAL(with_frequency(std::numeric_limits<long double>::quiet_NaN()), std::invalid_argument, "nan");
  EXPECT_REFUSAL(rope<float>::from_frequencies({.head_dim = 4, .pairing = half}, {{1.0L}, 1}),
                 std::invalid_argument, "1 frequencies given for 2 pairs");
  const rope<float> encoding{{.head_dim = 4, .pairing = half}};
  std::vector<float> head(6);
  EXPECT_THROW(encoding.rotate(std::span<float>(head), 0), std::invalid_argument);
}

/// What float32 frameworks lose, measured once and recorded: our framework mode is as wrong as they are, the
/// exact mode is not.
TEST(angle_modes, deviate_as_recorded) {
  for (const json& row : golden::cases("float32_deviation.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& config = row.at("config");
    rope_options options{.head_dim = config.at("head_dim").get<index_t>(),
                         .base = config.at("base").get<double>(),
                         .pairing = pairing::half_split,
                         .angles = angle_mode::framework_float32};
    const rope<double> framework{options};
    options.angles = angle_mode::exact;
    const rope<float> exact{options};
    const rope<long double> reference{options};
    const position p = config.at("position").get<position>();
    double worst_framework = 0, worst_exact = 0;
    for (index_t pair = 0; pair < 64; ++pair) {
      const auto truth = reference.angle(pair, p);
      const auto off = [&](const auto& angle) {
        return static_cast<double>((std::max)(std::abs(static_cast<long double>(angle.cos) - truth.cos),
                                              std::abs(static_cast<long double>(angle.sin) - truth.sin)));
      };
      worst_framework = (std::max)(worst_framework, off(framework.angle(pair, p)));
      worst_exact = (std::max)(worst_exact, off(exact.angle(pair, p)));
    }
    const json& measured = row.at("expect").at("max_abs_error_of_cos_or_sin");
    const double correctly_rounded_frequencies =
        measured.at("A2 correctly rounded f32 inv_freq, f32 product").at("at_P").get<double>();
    const double hugging_face =
        measured.at("A HF: f32 inv_freq, f32 product, f32 cos/sin").at("at_P").get<double>();
    EXPECT_LE(worst_framework, 2 * (std::max)(correctly_rounded_frequencies, hugging_face));
    EXPECT_GE(worst_framework, 0.4 * (std::min)(correctly_rounded_frequencies, hugging_face));
    EXPECT_LE(worst_exact, 6e-8);
  }
}

}  // namespace apply_test
