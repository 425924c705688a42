// SPDX-License-Identifier: MIT
/// \file
/// Coverage of each pair's circle under schemes whose answers are known.
#include <posenc/analysis/coverage.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <posenc/encodings/rope.hpp>

namespace coverage_test {

using namespace posenc;

const rope_options options{.head_dim = 64, .pairing = pairing::half_split};
const std::vector<phase> plain = rope<double>{options}.lowered().phase_per_token;

template <class Scheme>
std::vector<pair_coverage> stretched(const Scheme& scheme, position trained, position length) {
  return coverage_report(plain, trained, rope<double>{options, scheme}.lowered().phase_per_token, length);
}

TEST(coverage, of_interpolation_by_s_at_s_times_the_length_is_that_of_the_length) {
  for (const position factor : {2, 4, 8}) {
    const auto long_text =
        stretched(position_interpolation{.factor = static_cast<double>(factor)}, 4096, 4096 * factor);
    const auto short_text = coverage_report(plain, 4096, plain, 4096);
    EXPECT_EQ(unseen_pairs(long_text), 0);
    for (std::size_t p = 0; p < plain.size(); ++p) {
      EXPECT_NEAR(long_text[p].used, short_text[p].used, 1e-15) << p;
      EXPECT_EQ(long_text[p].seen, short_text[p].seen) << p;
      EXPECT_EQ(long_text[p].unseen(), 0) << p;
    }
  }
}

TEST(coverage, of_extrapolation_by_hand) {
  // 10000^(−p/32)·4096 < 2π from p = 22.5 on, so 9 pairs of 32 had no full turn.
  const auto report = stretched(no_scaling{}, 4096, 16'384);
  EXPECT_EQ(unseen_pairs(report), 32 - 23);
  const double w = std::pow(10'000.0, -28.0 / 32);
  EXPECT_NEAR(report[28].seen, 4096 * w / (2 * std::numbers::pi), 1e-14);
  EXPECT_NEAR(report[28].used, (std::min)(16'384 * w / (2 * std::numbers::pi), 1.0), 1e-14);
  EXPECT_NEAR(report[28].largest_gap, 1 - 4095 * w / (2 * std::numbers::pi), 1e-14);
  EXPECT_EQ(report[0].seen, 1);
  EXPECT_NEAR(report[0].turns, 16'384 / (2 * std::numbers::pi), 1e-9);
}

TEST(coverage, of_yarn_lies_between_extrapolation_and_interpolation) {
  const auto plainly = stretched(no_scaling{}, 4096, 16'384);
  const auto yarned = stretched(yarn{.factor = 4, .original_context = 4096}, 4096, 16'384);
  const auto interpolated = stretched(position_interpolation{.factor = 4}, 4096, 16'384);
  // The ramp goes from pair 10 (kept) to pair 23 (interpolated).
  for (std::size_t p = 0; p < plain.size(); ++p) {
    EXPECT_LE(yarned[p].turns, plainly[p].turns * (1 + 1e-15)) << p;
    EXPECT_GE(yarned[p].turns, interpolated[p].turns * (1 - 1e-15)) << p;
    EXPECT_EQ(yarned[p].turns<plainly[p].turns*(1 - 1e-12), p> 10) << p;
    EXPECT_EQ(yarned[p].turns > interpolated[p].turns * (1 + 1e-12), p < 23) << p;
  }
  EXPECT_EQ(unseen_pairs(yarned), 0);
  // Theta scaling by the same factor leaves pairs in the middle that reach beyond what they saw.
  EXPECT_GT(unseen_pairs(stretched(theta_scaling{.factor = 4}, 4096, 16'384)), 0);
}

TEST(coverage, largest_gap_equals_that_of_sorted_phases) {
  std::vector<phase> turning{
      phase::from_radians(1),           phase::from_radians(0.013),       phase::from_radians(-0.4),
      phase::from_radians(3.1),         phase::from_radians(2.0),         phase::from_radians(1e-5),
      phase{std::uint64_t{1} << 62, 0}, phase{std::uint64_t{3} << 61, 0}, phase{1, 0}};
  for (const phase& per_token : turning)
    for (const position count : {1, 2, 3, 4, 5, 8, 9, 100, 1000, 4096}) {
      std::vector<std::uint64_t> places;
      for (position p = 0; p < count; ++p) places.push_back((per_token * p).hi);
      std::sort(places.begin(), places.end());
      std::uint64_t widest = std::uint64_t{0} - places.back();  // the last one to the first, across zero
      for (std::size_t n = 1; n < places.size(); ++n) widest = (std::max)(widest, places[n] - places[n - 1]);
      const double expected = count == 1 ? 1 : std::ldexp(static_cast<double>(widest), -64);
      EXPECT_NEAR(largest_phase_gap(per_token, count), expected, 1e-15) << per_token.hi << ", " << count;
    }
  EXPECT_EQ(largest_phase_gap(phase{}, 10), 1);
  EXPECT_THROW((void)largest_phase_gap(phase{}, 0), std::invalid_argument);
}

TEST(coverage, wrong_questions_are_refused) {
  EXPECT_THROW((void)coverage_report(plain, 0, plain, 1), std::invalid_argument);
  EXPECT_THROW((void)coverage_report(plain, 1, std::vector<phase>(3), 1), std::invalid_argument);
}

}  // namespace coverage_test
