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

/// Each case by a unit and a number of pieces in turn. The emulation runs on every instruction set.
template <class S, class K = S, class V = K, class O = S>
void sweep_units(std::uint32_t first, std::uint32_t count) {
  using posenc::fused::matrix_unit;
  int pieces = 0, failures = 0;
  sweep::for_each_case<S, K, V, O>(first, count, [&](const sweep::prepared_case<S, K, V, O>& prepared) {
    pieces = pieces % 3 + 1;
    sweep::on_every_target([&](const char* target) {
      const auto kernels = posenc::detail::fused_kernels::this_isa::kernels();
      for (const matrix_unit unit : {matrix_unit::emulated, matrix_unit::avx512_bf16, matrix_unit::amx}) {
        if (!kernels.has_unit(unit)) continue;
        const sweep::verdict found = prepared.run(unit, pieces);
        if (found.worst > 1) ++failures;
        EXPECT_LE(found.worst, 1) << target << ", " << posenc::detail::fused_units::name_of(unit) << ", "
                                  << pieces << " pieces: " << found.problem;
      }
    });
    return failures < 12;
  });
}

TEST(FusedSweep, MatrixUnitsEqualTheReference) {
  sweep_units<float>(60'000, cases() / 24);
  sweep_units<Eigen::bfloat16>(70'000, cases() / 48);
  sweep_units<float, Eigen::half, Eigen::bfloat16, float>(80'000, cases() / 48);
}

TEST(FusedSweep, RunsOnTheTargetsItShould) {
  std::string targets;
  sweep::on_every_target([&](const char* target) {
    // A matrix unit that pays is told beside the instruction set: "AVX3_DL+AMX".
    const std::string name = posenc::fused::target_name();
    EXPECT_EQ(name.substr(0, name.find('+')), std::string(target).substr(0, std::string(target).find('+')));
    targets += std::string(targets.empty() ? "" : " ") + target;
  });
  if (const char* const expected = std::getenv("POSENC_EXPECTED_TARGET")) {
    EXPECT_EQ(targets, expected);
  }
  ::testing::Test::RecordProperty("targets", targets);
}

}  // namespace sweep_test
