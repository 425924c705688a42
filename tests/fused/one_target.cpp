// SPDX-License-Identifier: MIT
/// \file
/// Gives a program's fused calls the kernels of this translation unit's flags, the same that any translation unit with
/// these flags gets. The tests, compiled once with POSENC_FUSED_DISPATCH_ONLY, serve every such program.
#include <posenc/fused/target.hpp>

#include "fused/targets.hpp"

posenc::detail::fused_problem::kernel_table posenc::detail::fused_kernels::dispatched_table() noexcept {
  return HWY_NAMESPACE::table();
}

namespace sweep {
bool one_target() noexcept { return true; }
}  // namespace sweep
