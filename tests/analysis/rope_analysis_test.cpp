// SPDX-License-Identifier: MIT
/// \file
/// What the analysis says about ladders whose answers are known.
#include <posenc/analysis/rope_analysis.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include <posenc/encodings/rope.hpp>

namespace rope_analysis_test {

using namespace posenc;

const rope_options options{.head_dim = 64, .pairing = pairing::half_split};
const rope<double> plain{options};

TEST(rope_analysis, bands_of_each_scheme) {
  const auto bands = [](const rope<double>& scaled) {
    std::vector<pair_band> result;
    for (const pair_report& pair : ladder_report(plain.inv_freq(), scaled.inv_freq(), 4096))
      result.push_back(pair.band);
    return result;
  };
  EXPECT_EQ(bands(plain), std::vector<pair_band>(32, pair_band::kept));
  EXPECT_EQ(bands(rope<double>{options, position_interpolation{.factor = 4}}),
            std::vector<pair_band>(32, pair_band::stretched));
  const auto yarn_bands = bands(rope<double>{options, yarn{.factor = 4, .original_context = 4096}});
  // r·ln(L0/(2πβ))/(2 ln θ) is 10.5 for β = 32 and 22.5 for β = 1: kept to pair 10, interpolated from 23 on.
  for (std::size_t p = 0; p < 32; ++p) {
    const pair_band expected = p <= 10   ? pair_band::kept
                               : p >= 23 ? pair_band::stretched
                                         : pair_band::blended;
    EXPECT_EQ(yarn_bands[p], expected) << "pair " << p;
  }
  const auto theta_bands = bands(rope<double>{options, theta_scaling{.factor = 4}});
  EXPECT_EQ(theta_bands.front(), pair_band::kept);
  EXPECT_EQ(theta_bands[1], pair_band::blended);
  EXPECT_EQ(theta_bands.back(), pair_band::stretched);
  const auto still = bands(rope<double>{options, proportional{.partial_rotary_factor = 0.5}});
  EXPECT_EQ(still[15], pair_band::kept);
  EXPECT_EQ(still[16], pair_band::still);
  EXPECT_STREQ(name_of(still[16]), "still");
}

TEST(rope_analysis, numbers_of_a_pair) {
  const rope<double> half{options, position_interpolation{.factor = 2}};
  const auto report = ladder_report(plain.inv_freq(), half.inv_freq(), 1000);
  EXPECT_NEAR(report[0].wavelength, 4 * std::numbers::pi, 1e-14);
  EXPECT_NEAR(report[0].turns, 1000 / (2 * std::numbers::pi), 1e-12);
  EXPECT_EQ(report[0].divisor, 2);
  EXPECT_THROW(static_cast<void>(ladder_report(plain.inv_freq(), half.inv_freq().first(3), 1000)),
               std::invalid_argument);
}

TEST(rope_analysis, interpolation_shows_no_new_phase) {
  const auto unseen = [](const rope<double>& scaled) {
    return unseen_pairs(plain.inv_freq(), 4096, scaled.inv_freq(), 16'384);
  };
  EXPECT_EQ(unseen(rope<double>{options, position_interpolation{.factor = 4}}), 0);
  EXPECT_EQ(unseen(rope<double>{options, theta_scaling{.factor = 4}}) > 0, true);
  // Pairs slower than one turn in 4096 tokens: 10000^(−p/32)·4096 < 2π from p = 22.5 on.
  EXPECT_EQ(unseen(plain), 32 - 23);
}

TEST(rope_analysis, scores_by_hand) {
  const rope_options two{.head_dim = 6, .rotary_dim = 4, .pairing = pairing::interleaved};
  const auto encoding = rope<double>::from_frequencies(two, {{1.0L, 0.5L}, 2});
  EXPECT_NEAR(score_at_distance(encoding, 0), (2 * 2 * 4 + 2) / 6.0, 1e-15);
  EXPECT_NEAR(score_at_distance(encoding, 3), (2 * 4 * (std::cos(3.0) + std::cos(1.5)) + 2) / 6, 1e-15);
  EXPECT_EQ(phase_distance(encoding, 0), 0);
  EXPECT_NEAR(phase_distance(encoding, 3), std::sqrt(2 - std::cos(3.0) - std::cos(1.5)), 1e-15);
}

/// Two pairs of 4 and 10 tokens per turn come back together after 20.
TEST(rope_analysis, look_alikes_are_found) {
  const rope_options two{.head_dim = 4, .pairing = pairing::interleaved};
  const long double turn = 2 * std::numbers::pi_v<long double>;
  const auto encoding = rope<double>::from_frequencies(two, {{turn / 4, turn / 10}, 1});
  const look_alike found = closest_look_alike(encoding, 1, 39);
  EXPECT_EQ(found.distance, 20);
  EXPECT_LT(found.phase_distance, 1e-14);
  EXPECT_THROW(static_cast<void>(closest_look_alike(encoding, 5, 4)), std::invalid_argument);
}

}  // namespace rope_analysis_test
