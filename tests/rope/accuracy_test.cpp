// SPDX-License-Identifier: MIT
/// \file
/// cos and sin of RoPE against 80-digit values (tests/golden/rope_accuracy.json, made by rope_accuracy.py).
/// Built a second time with -ffast-math, where the same bounds must hold.
#include <posenc/encodings/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <golden.hpp>

namespace accuracy_test {

using posenc::index_t;
using posenc::position;

struct golden_case {
  double base;
  position at;
  std::vector<double> cos, sin;
};

std::vector<golden_case> golden_cases() {
  std::vector<golden_case> cases;
  for (const auto& entry : golden::cases("rope_accuracy.json")) {
    cases.push_back({entry.at("base"), entry.at("position"), entry.at("cos").get<std::vector<double>>(),
                     entry.at("sin").get<std::vector<double>>()});
    if (entry.at("position") == 0) continue;
    cases.push_back(cases.back());
    cases.back().at = -cases.back().at;
    for (double& sine : cases.back().sin) sine = -sine;
  }
  return cases;
}

/// The distance of a float from the exact value, in units of the last place of a float of that size.
double ulps(float value, double exact) {
  if (static_cast<double>(value) == exact) return 0;
  const double unit = std::ldexp(1.0, (std::max)(std::ilogb(exact), -126) - 23);
  return std::abs(static_cast<double>(value) - exact) / unit;
}

template <class T>
posenc::rope<T> rope_of(double base, posenc::pairing layout) {
  return posenc::rope<T>{{.head_dim = 128, .base = base, .pairing = layout}};
}

TEST(accuracy, cos_and_sin_are_within_one_ulp_of_float_for_every_pair) {
  double worst = 0;
  std::string where;
  std::size_t values = 0;
  for (const golden_case& exact : golden_cases()) {
    if (std::abs(exact.at) > position{1} << 26) continue;
    const auto rope = rope_of<float>(exact.base, posenc::pairing::half_split);
    ASSERT_EQ(exact.cos.size(), 64u);
    for (std::size_t pair = 0; pair < exact.cos.size(); ++pair) {
      const auto [cos, sin] = rope.angle(static_cast<index_t>(pair), exact.at);
      const double error = (std::max)(ulps(cos, exact.cos[pair]), ulps(sin, exact.sin[pair]));
      values += 2;
      if (error <= worst) continue;
      worst = error;
      where = "pair " + std::to_string(pair) + " at " + std::to_string(exact.at) + ", base " +
              std::to_string(exact.base);
    }
  }
  EXPECT_LE(worst, 1) << where;
  EXPECT_EQ(values, 3u * 13u * 64u * 2u);
  RecordProperty("worst_ulps", std::to_string(worst));
}

/// A frequency above a radian per token costs the positions that it multiplies: |p|·w counts.
TEST(accuracy, large_frequencies_are_exact_up_to_their_limit) {
  const posenc::rope_options options{.head_dim = 4, .pairing = posenc::pairing::half_split};
  const auto rope = posenc::rope<float>::from_frequencies(options, {{0x1p26L, -5000.25L}, 1});
  const auto limit = rope.angle(0, 1), other = rope.angle(1, -1);
  EXPECT_LE(ulps(limit.cos, -0.90717203905228062979), 1);  // by mpmath, 60 digits
  EXPECT_LE(ulps(limit.sin, 0.4207598977584810517), 1);
  EXPECT_LE(ulps(other.cos, 0.39428694855620513524), 1);
  EXPECT_LE(ulps(other.sin, -0.91898737869365564276), 1);
}

TEST(accuracy, doubles_are_within_the_stated_bound_of_position_times_2_to_minus_63) {
  // rope/phase.hpp: the phase is off by |p|·w·2^-63 at most, cos and sin by 2 ulp of double on top. The
  // frequency itself carries the rounding of pow and of its exponent in long double: 16 of its ulps cover it.
  for (const golden_case& exact : golden_cases()) {
    const auto rope = rope_of<double>(exact.base, posenc::pairing::half_split);
    for (std::size_t pair = 0; pair < exact.cos.size(); ++pair) {
      const auto [cos, sin] = rope.angle(static_cast<index_t>(pair), exact.at);
      const double phase = std::abs(static_cast<double>(exact.at)) * rope.inv_freq()[pair];
      const double bound = 4 * 0x1p-53 + 16 * phase * 0x1p-63;
      EXPECT_NEAR(cos, exact.cos[pair], bound) << "pair " << pair << " at " << exact.at;
      EXPECT_NEAR(sin, exact.sin[pair], bound) << "pair " << pair << " at " << exact.at;
    }
  }
}

TEST(accuracy, a_rotated_unit_vector_is_the_golden_cosine_and_sine_in_both_pairings) {
  for (const posenc::pairing layout : {posenc::pairing::half_split, posenc::pairing::interleaved})
    for (const golden_case& exact : golden_cases()) {
      if (std::abs(exact.at) > position{1} << 26) continue;
      const auto rope = rope_of<float>(exact.base, layout);
      std::vector<float> head(128, 0.f);
      for (std::size_t pair = 0; pair < 64; ++pair)
        head[layout == posenc::pairing::half_split ? pair : 2 * pair] = 1;
      rope.rotate(std::span<float>(head), exact.at);
      for (std::size_t pair = 0; pair < 64; ++pair) {
        const bool halves = layout == posenc::pairing::half_split;
        EXPECT_LE(ulps(head[halves ? pair : 2 * pair], exact.cos[pair]), 1);
        EXPECT_LE(ulps(head[halves ? pair + 64 : 2 * pair + 1], exact.sin[pair]), 1);
      }
    }
}

TEST(accuracy, framework_tables_drift_as_the_frameworks_do) {
  // SPEC's measurement for float32 angles at one million, base 1e4, is 5.2e-2; the exact mode has no such
  // error.
  const posenc::rope<float> theirs{{.head_dim = 128,
                                    .base = 10'000,
                                    .pairing = posenc::pairing::half_split,
                                    .angles = posenc::angle_mode::framework_float32}};
  double worst = 0;
  for (const golden_case& exact : golden_cases())
    if (exact.base == 10'000 && exact.at == 1'048'575)
      for (std::size_t pair = 0; pair < 64; ++pair)
        worst = (std::max)(
            worst, std::abs(static_cast<double>(theirs.angle(static_cast<index_t>(pair), exact.at).cos) -
                            exact.cos[pair]));
  EXPECT_GT(worst, 1e-2);
  EXPECT_LT(worst, 2e-1);
}

}  // namespace accuracy_test
