// SPDX-License-Identifier: MIT
/// \file
/// The fused path equals the reference over generated cases: encoding × pairing × widths × head_dim × lengths
/// × groups × masks × windows × softcap × sinks × padding × strides × storage × keys rotated or not ×
/// positions.
#include <gtest/gtest.h>

#include "fused/sweep.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t thinned = 8;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr std::uint32_t thinned = 8;
#else
constexpr std::uint32_t thinned = 1;
#endif
#else
constexpr std::uint32_t thinned = 1;
#endif

template <class S>
void sweep_over(std::uint32_t first, std::uint32_t count) {
  double worst = 0;
  int failures = 0;
  for (std::uint32_t seed = first; seed < first + count / thinned; ++seed) {
    const auto encoding = static_cast<sweep::index_t>(seed % static_cast<std::uint32_t>(sweep::kind_count));
    const sweep::kind& about = sweep::kinds[encoding];
    const sweep::sweep_case c = sweep::make_case(seed, encoding, about.where, about.rotary);
    SCOPED_TRACE(c.text());
    const sweep::verdict found = sweep::run_case<S>(c);
    worst = (std::max)(worst, found.worst);
    EXPECT_LE(found.worst, 1) << found.problem;
    if (found.worst > 1 && ++failures == 12) break;
  }
  ::testing::Test::RecordProperty("worst_share_of_bound", std::to_string(worst));
}

TEST(FusedSweep, FloatEqualsTheReference) { sweep_over<float>(0, 2400); }
TEST(FusedSweep, Bfloat16EqualsTheReference) { sweep_over<Eigen::bfloat16>(10'000, 800); }
TEST(FusedSweep, HalfEqualsTheReference) { sweep_over<Eigen::half>(20'000, 800); }

}  // namespace
