// SPDX-License-Identifier: MIT
/// \file
/// Runs a check on every instruction set the program has kernels for and the machine can run.
#pragma once

#include <posenc/fused.hpp>

#if defined(POSENC_FUSED_DISPATCH_ONLY)
#include <hwy/targets.h>
#endif

namespace sweep {

template <class Check>
void on_every_target(const Check& check) {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
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
