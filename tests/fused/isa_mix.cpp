// SPDX-License-Identifier: MIT
/// \file
/// Translation units compiled for different instruction sets answer right in one program, each with its own
/// kernels, or all with the dispatched ones where the program has them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/attention/reference.hpp>

#include "fused/isa_mix_body.hpp"

namespace {

TEST(FusedIsaMix, EveryTranslationUnitAnswersRight) {
  constexpr auto size = static_cast<std::size_t>(isa_mix::tokens * isa_mix::heads * isa_mix::head_dim);
  std::vector<float> in(size), expected(size);
  for (std::size_t n = 0; n < size; ++n) in[n] = static_cast<float>(std::sin(static_cast<double>(n)));
  const posenc::heads_view<const float> x = isa_mix::view_of(std::span<const float>(in));
  posenc::reference::attention_into(x, x, x, isa_mix::encoding(), isa_mix::options,
                                    isa_mix::view_of(std::span<float>(expected)));
  const auto worst_of = [&](const std::vector<float>& out) {
    float worst = 0;
    for (std::size_t n = 0; n < size; ++n) worst = (std::max)(worst, std::abs(out[n] - expected[n]));
    return worst;
  };
  std::vector<float> out(size);
  const std::string baseline = isa_mix::on_baseline(in, out);
  EXPECT_LT(worst_of(out), 2e-6f);
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2";
  std::fill(out.begin(), out.end(), 0.0f);
  const std::string haswell = isa_mix::on_haswell(in, out);
  EXPECT_LT(worst_of(out), 2e-6f);
  if (&posenc::detail::fused_kernels::dispatched_table != nullptr) {
    EXPECT_EQ(baseline, haswell);
  } else {
    EXPECT_EQ(haswell, "AVX2");
    EXPECT_NE(baseline, haswell);
  }
}

}  // namespace
