// SPDX-License-Identifier: MIT
/// \file
/// Runs a check on every instruction set the program has kernels for and the machine can run.
#pragma once

#include <cstdint>

#include <posenc/fused.hpp>

// Where it is known that all kernels are those of one_target.cpp, Highway's library is not needed.
#if defined(POSENC_FUSED_DISPATCH_ONLY) && !defined(POSENC_TESTS_ONE_TARGET)
#define POSENC_TESTS_EVERY_TARGET
#include <hwy/targets.h>
#endif

namespace sweep {

/// Defined in programs whose kernels are those of one translation unit (one_target.cpp), else null.
[[gnu::weak]] bool one_target() noexcept;

template <class Check>
void on_every_target(const Check& check) {
#if defined(POSENC_TESTS_EVERY_TARGET)
  if (&one_target != nullptr) return check(posenc::fused::target_name());
  const auto choose = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  const auto generated = hwy::SupportedAndGeneratedTargets();
  for (const std::int64_t target : generated) {
    choose(target);
    check(hwy::TargetName(target));
  }
  choose(0);
#else
  check(posenc::fused::target_name());
#endif
}

}  // namespace sweep
