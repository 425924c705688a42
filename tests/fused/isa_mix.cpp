// SPDX-License-Identifier: MIT
/// \file
/// Translation units compiled for different instruction sets answer right in one program, each with its own
/// kernels, or all with the dispatched ones where the program has them.
#include <string>

#include <gtest/gtest.h>

#include <posenc/posenc.hpp>

#include "fused/isa_mix_body.hpp"

namespace {

isa_mix::matrix tokens() {
  isa_mix::matrix result(70, 48);
  for (posenc::index_t r = 0; r < result.rows(); ++r)
    for (posenc::index_t c = 0; c < result.cols(); ++c)
      result(r, c) = static_cast<float>(std::sin(static_cast<double>(r * 48 + c)));
  return result;
}

TEST(FusedIsaMix, EveryTranslationUnitAnswersRight) {
  const isa_mix::matrix in = tokens();
  const isa_mix::matrix expected =
      posenc::reference::attention(in, in, in, isa_mix::encoding(), isa_mix::options);
  const isa_mix::answer baseline = isa_mix::of_baseline(in);
  EXPECT_LT((baseline.output - expected).norm() / expected.norm(), 1e-6);
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2";
  const isa_mix::answer haswell = isa_mix::of_haswell(in);
  EXPECT_LT((haswell.output - expected).norm() / expected.norm(), 1e-6);
  if (&posenc::detail::fused_kernels::dispatched_table != nullptr) {
    EXPECT_STREQ(baseline.target, haswell.target);
  } else {
    EXPECT_STREQ(haswell.target, "AVX2");
    EXPECT_STRNE(baseline.target, haswell.target);
  }
}

}  // namespace
