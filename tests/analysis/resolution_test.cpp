// SPDX-License-Identifier: MIT
/// \file
/// Resolution at distance and horizons, beside values by hand.
#include <posenc/analysis/resolution.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include <posenc/analysis/horizon.hpp>
#include <posenc/analysis/rope_analysis.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/t5_bias.hpp>

namespace resolution_test {

using namespace posenc;

constexpr long double turn = 2 * std::numbers::pi_v<long double>;

TEST(resolution, code_distance_does_not_depend_on_where) {
  const rope<double> turning{{.head_dim = 128, .pairing = pairing::half_split}};
  const rotation_codes codes(turning, 1);
  const double at_home = phase_distance(turning, 100);
  for (const position distance : {0, 10, 1000, 10'000, 100'000})
    EXPECT_NEAR(resolution_at(codes, distance, 100, code_storage::bfloat16).code_distance, at_home, 1e-12)
        << distance;
}

TEST(resolution, states_by_hand) {
  // Periods of 10, 1000 and 10^9 tokens.
  const auto turning = rope<double>::from_frequencies({.head_dim = 6, .pairing = pairing::interleaved},
                                                      {{turn / 10, turn / 1000, turn / 1e9L}, 1});
  const rotation_codes codes(turning, 1);
  using enum pair_state;
  const auto states = [&](position distance, position step) {
    return resolution_at(codes, distance, step, code_storage::bfloat16).pairs;
  };
  EXPECT_EQ(states(4, 1), (std::vector{carries, carries, carries}));
  EXPECT_EQ(states(100, 1), (std::vector{wrapped, carries, carries}));
  // 10 tokens are a whole turn of the first; at 2π·1010/10^9 = 6.3e-6 bfloat16 is spaced 3e-8, the third moves by 6e-8.
  EXPECT_EQ(states(1000, 10), (std::vector{wrapped, wrapped, carries}));
  // One token moves the third by 6e-9, less than half that spacing.
  EXPECT_EQ(states(1000, 1)[2], unmoved);
  const resolution both = resolution_at(codes, 1000, 10, code_storage::float32);
  EXPECT_EQ(both.count(wrapped), 2);
  EXPECT_EQ(both.count(carries), 1);
  EXPECT_NEAR(both.score_change, (0 + std::cos(0.02 * std::numbers::pi) - 1) / 3, 1e-12);
  EXPECT_NEAR(both.stored_distance, both.code_distance, 1e-6);
  EXPECT_THROW((void)resolution_at(codes, -1, 1, code_storage::half), std::invalid_argument);
  EXPECT_THROW((void)resolution_at(codes, 1, 0, code_storage::half), std::invalid_argument);
}

TEST(resolution, score_change_is_that_of_the_score) {
  const rope<double> turning{{.head_dim = 64, .pairing = pairing::half_split},
                             yarn{.factor = 4, .original_context = 512}};
  const rotation_codes codes(turning, 1);
  const resolution at = resolution_at(codes, 10'000, 10, code_storage::float32);
  EXPECT_NEAR(at.score_change, score_at_distance(turning, 10'010) - score_at_distance(turning, 10'000),
              1e-12);
}

TEST(resolution, look_alikes_equal_a_plain_search) {
  const rope<double> turning{{.head_dim = 6, .base = 60.0, .pairing = pairing::half_split}};
  const rotation_codes codes(turning, 700);
  for (const position distance : {0, 10, 350, 699}) {
    std::uint64_t expected = 0;
    const double limit = phase_distance(turning, 2);
    for (position other = 0; other < 700; ++other)
      if (std::abs(other - distance) > 2 && phase_distance(turning, other - distance) <= limit) ++expected;
    EXPECT_EQ(look_alikes(codes, distance, 2), expected) << distance;
    EXPECT_GT(expected, 0u);
  }
  EXPECT_THROW((void)look_alikes(codes, 700, 2), std::invalid_argument);
}

TEST(horizon, of_tables_is_their_last_bucket_and_their_clip) {
  std::vector<double> numbers;
  for (int n = 0; n < 32; ++n) numbers.push_back(0.1 * n);
  const t5_bias<double> t5{{.buckets = 32, .max_distance = 128, .bidirectional = false},
                           bias_table<double>::shared(numbers)};
  EXPECT_EQ(saturation_distance(bias_codes(t5, 1, 2000), code_storage::bfloat16), t5.thresholds().back());
  EXPECT_EQ(t5.thresholds().back(), 113);  // 16·8^(15/16) = 112.4

  numbers.resize(25);
  const relative_clip clip{.direction = relative_direction::key_minus_query, .left = 16, .right = 8};
  const relative_bias<double> clipped{clip, bias_table<double>::shared(numbers)};
  EXPECT_EQ(saturation_distance(bias_codes(clipped, 1, 2000), code_storage::float32), 16);

  row_major_matrix<double> rows(25, 2);
  for (index_t r = 0; r < 25; ++r) rows(r, 0) = 1, rows(r, 1) = static_cast<double>(r);
  EXPECT_EQ(saturation_distance(relative_key_codes(shaw<double>{clip, rows}, 2, 2000), code_storage::half),
            16);

  // A line never ends, and a code of one position ends at once.
  const double slope[] = {0.5};
  EXPECT_EQ(saturation_distance(bias_codes(alibi<double>::from_slopes(slope), 1, 100), code_storage::float32),
            99);
  EXPECT_EQ(saturation_distance(bias_codes(t5, 1, 1), code_storage::float32), 0);
}

TEST(horizon, of_alibi_by_its_slope) {
  const alibi<float> eight{{.heads = 8}};
  for (int head = 0; head < 8; ++head) {
    const double m = eight.slopes()[static_cast<std::size_t>(head)];
    // e^(−mΔ) < 2^−9 and < 2^−134: bfloat16 has 8 bits and the exponents of float.
    const bias_horizon horizon = bias_horizon_of(eight, head, code_storage::bfloat16);
    EXPECT_EQ(horizon.rounded_away, static_cast<position>(std::floor(9 * std::numbers::ln2 / m)) + 1) << head;
    EXPECT_EQ(horizon.underflow, static_cast<position>(std::floor(134 * std::numbers::ln2 / m)) + 1) << head;
  }
  // Slope 1/2: 12.48 and 185.8.
  EXPECT_EQ(bias_horizon_of(eight, 0, code_storage::bfloat16).rounded_away, 13);
  EXPECT_EQ(bias_horizon_of(eight, 0, code_storage::bfloat16).underflow, 186);
  EXPECT_EQ(bias_horizon_of(eight, 0, code_storage::half).underflow, 35);  // 25·ln 2·2 = 34.7
  const double flat[] = {0.0};
  EXPECT_EQ(bias_horizon_of(alibi<double>::from_slopes(flat), 0, code_storage::half).rounded_away,
            std::nullopt);
}

/// A bias of one's own, through its door alone.
struct square_root {
  [[nodiscard]] double bias(int, position offset) const {
    return -std::sqrt(std::abs(static_cast<double>(offset)));
  }
};

TEST(horizon, of_a_bias_of_ones_own) {
  // √Δ > 12·ln 2 = 8.318, Δ > 69.2.
  EXPECT_EQ(bias_horizon_of(square_root{}, 0, code_storage::half).rounded_away, 70);
}

}  // namespace resolution_test
