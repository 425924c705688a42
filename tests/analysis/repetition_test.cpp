// SPDX-License-Identifier: MIT
/// \file
/// Near repetitions and distances beside periods that are known and beside plain search.
#include <posenc/analysis/repetition.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <random>
#include <vector>

#include <posenc/analysis/rope_analysis.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/xpos.hpp>

namespace repetition_test {

using namespace posenc;

constexpr long double turn = 2 * std::numbers::pi_v<long double>;

std::vector<phase> periods(const std::vector<long double>& tokens) {
  std::vector<phase> result;
  for (const long double one : tokens) result.push_back(phase::from_radians(turn / one));
  return result;
}

TEST(repetition, of_w_and_half_of_it_is_the_larger_period) {
  EXPECT_EQ(first_near_repetition(periods({1000, 2000}), 1e-9, 1, 1'000'000), 2000);
  // The article's w, w/2, w/4: the third only doubles the period.
  EXPECT_EQ(first_near_repetition(periods({1000, 2000, 4000}), 1e-9, 1, 1'000'000), 4000);
  // Coprime periods multiply.
  EXPECT_EQ(first_near_repetition(periods({997, 1009}), 1e-9, 1, 100'000'000), 997 * 1009);
  EXPECT_EQ(first_near_repetition(periods({997, 1009}), 1e-9, 1, 997 * 1009 - 1), std::nullopt);
  EXPECT_EQ(first_near_repetition(periods({997, 1009}), 1e-9, 997 * 1009 + 1, 3'000'000), 2 * 997 * 1009);
}

TEST(repetition, equals_a_plain_search) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> radians(-3.2, 3.2), small(0.0005, 0.05);
  for (int round = 0; round < 40; ++round) {
    std::vector<phase> ladder{phase::from_radians(radians(random)), phase::from_radians(radians(random) / 7),
                              phase::from_radians(small(random))};
    const double tolerance = round % 2 == 0 ? 0.05 : 0.2;
    std::optional<position> expected;
    for (position offset = 1; offset <= 20'000 && !expected; ++offset) {
      bool all = true;
      for (const phase& per_token : ladder) {
        const double at = std::ldexp(static_cast<double>((per_token * offset).hi), -64);
        all = all && std::min(at, 1 - at) <= tolerance;
      }
      if (all) expected = offset;
    }
    EXPECT_EQ(first_near_repetition(ladder, tolerance, 1, 20'000), expected) << round;
  }
}

TEST(repetition, a_pair_that_does_not_turn_is_always_there) {
  EXPECT_EQ(first_near_repetition(std::vector<phase>{phase{}}, 0.01, 7, 9), 7);
  EXPECT_EQ(first_near_repetition({}, 0.01, 7, 9), 7);
  EXPECT_EQ(first_near_repetition({}, 0.01, 9, 7), std::nullopt);
  EXPECT_THROW((void)first_near_repetition({}, 0.5, 1, 2), std::invalid_argument);
  EXPECT_THROW((void)first_near_repetition({}, 0, 1, 2), std::invalid_argument);
  EXPECT_THROW((void)first_near_repetition({}, 0.1, -1, 2), std::invalid_argument);
}

TEST(repetition, far_offsets_of_a_real_ladder_take_a_moment) {
  // All 64 pairs of Llama's base within a twelfth of a turn: not once in 10^12 tokens, and not by looking at each.
  const rope<double> llama{{.head_dim = 128, .base = 500'000.0, .pairing = pairing::half_split}};
  EXPECT_EQ(first_near_repetition(llama.lowered().phase_per_token, 1.0 / 12, 1, 1'000'000'000'000),
            std::nullopt);
}

TEST(repetition, distances_of_sinusoidal_and_rope_of_one_ladder_are_the_same) {
  const sinusoidal<double> waves{{.width = 64, .convention = sinusoid::paper}};
  const rope<double> turning{{.head_dim = 64, .pairing = pairing::half_split}};
  const rotation_codes a(waves, 5000), b(turning, 5000);
  for (const position p : {0, 17, 1234})
    for (const position offset : {1, 2, 100, 3000})
      EXPECT_EQ(distance_between(a, p, p + offset), distance_between(b, p, p + offset));
  const code_distance first = closest_codes(a, 50), second = closest_codes(b, 50);
  EXPECT_EQ(first.second, second.second);
  EXPECT_EQ(first.distance, second.distance);
  // And through the doors: both channels of a pair are components there, hence the 2.
  const code_table door = embedded_codes(waves, 64, 200);
  EXPECT_NEAR(std::sqrt(2.0) * distance_between(door, 3, 150), distance_between(b, 3, 150), 1e-14);
  const code_table ones = rotated_codes(turning, 64, 200);
  EXPECT_NEAR(distance_between(ones, 3, 150), distance_between(b, 3, 150), 1e-14);
}

TEST(repetition, offset_distances_are_those_of_the_exact_angles) {
  const rope<double> turning{{.head_dim = 32, .base = 500.0, .pairing = pairing::half_split},
                             yarn{.factor = 4, .original_context = 512}};
  const double m = turning.attention_factor();
  each_offset_distance(rotation_codes(turning, 1000), 990'000, 990'700,
                       [&](position offset, double distance) {
                         EXPECT_NEAR(distance, m * phase_distance(turning, offset), 1e-12);
                       });
}

TEST(repetition, closest_codes_are_those_of_all_pairs) {
  const rope<double> turning{{.head_dim = 4, .base = 30.0, .pairing = pairing::half_split}};
  const rotation_codes codes(turning, 300);
  const code_distance by_offset = closest_codes(codes), by_pairs = closest_codes_of_all(codes);
  EXPECT_EQ(by_offset.second - by_offset.first, by_pairs.second - by_pairs.first);
  EXPECT_NEAR(by_offset.distance, by_pairs.distance, 1e-12);
  EXPECT_THROW((void)closest_codes(codes, 300), std::invalid_argument);
  const xpos<double> fading{{.rope = {.head_dim = 4, .pairing = pairing::half_split}}};
  EXPECT_THROW((void)closest_codes(rotation_codes(fading, 300)), std::invalid_argument);
  EXPECT_GT(closest_codes_of_all(rotation_codes(fading, 30)).distance, 0);
}

}  // namespace repetition_test
