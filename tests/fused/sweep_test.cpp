// SPDX-License-Identifier: MIT
/// \file
/// The fused path equals the reference over generated cases: encoding × pairing × widths × head_dim × lengths
/// × groups × masks × windows × softcap × sinks × padding × strides × storage × keys rotated or not ×
/// positions. Compiled for the flags of the build, and again with others and with all targets dispatched.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "fused/sweep.hpp"
#include "fused/targets.hpp"

namespace sweep_test {

/// As many as the environment says, where a machine is slow or patient; else as many as the build says.
std::uint32_t cases() {
  const char* const asked = std::getenv("POSENC_SWEEP_CASES");
  return asked ? static_cast<std::uint32_t>(std::strtoul(asked, nullptr, 10)) : POSENC_SWEEP_CASES;
}

template <class S, class K = S, class V = K, class O = S>
void sweep_over(std::uint32_t first, std::uint32_t count) {
  double worst = 0;
  int failures = 0;
  sweep::for_each_case<S, K, V, O>(first, count, [&](const sweep::prepared_case<S, K, V, O>& prepared) {
    sweep::on_every_target([&](const char* target) {
      const sweep::verdict found = prepared.run();
      worst = (std::max)(worst, found.worst);
      if (found.worst > 1) ++failures;
      EXPECT_LE(found.worst, 1) << target << ": " << found.problem;
    });
    return failures < 12;
  });
  ::testing::Test::RecordProperty("worst_share_of_bound", std::to_string(worst));
}

TEST(FusedSweep, FloatEqualsTheReference) { sweep_over<float>(0, cases()); }
TEST(FusedSweep, Bfloat16EqualsTheReference) { sweep_over<Eigen::bfloat16>(10'000, cases() / 3); }
TEST(FusedSweep, HalfEqualsTheReference) { sweep_over<Eigen::half>(20'000, cases() / 3); }

using half = Eigen::half;
using bfloat16 = Eigen::bfloat16;
TEST(FusedSweep, FloatQueriesOverABfloat16CacheEqualTheReference) {
  sweep_over<float, bfloat16, bfloat16, float>(30'000, cases() / 6);
}
TEST(FusedSweep, EveryTensorOfItsOwnTypeEqualsTheReference) {
  sweep_over<bfloat16, float, half, float>(40'000, cases() / 12);
  sweep_over<float, half, float, bfloat16>(50'000, cases() / 12);
}

TEST(FusedSweep, RunsOnTheTargetsItShould) {
  std::string targets;
  sweep::on_every_target([&](const char* target) {
    EXPECT_STREQ(target, posenc::fused::target_name());
    targets += std::string(targets.empty() ? "" : " ") + target;
  });
  if (const char* const expected = std::getenv("POSENC_EXPECTED_TARGET")) {
    EXPECT_EQ(targets, expected);
  }
  ::testing::Test::RecordProperty("targets", targets);
}

}  // namespace sweep_test
