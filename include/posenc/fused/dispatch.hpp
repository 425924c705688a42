// SPDX-License-Identifier: MIT
/// \file
/// The fused kernels of every instruction set, the best one chosen when the program runs. One .cpp of the
/// program says
///
///     #define POSENC_FUSED_IMPLEMENTATION
///     #include <posenc/fused/dispatch.hpp>
///
/// and is linked with Highway's library (CMake: posenc::fused_dispatch). Every fused call of the program then
/// takes these kernels, whatever flags its own translation unit has; fused::target_name() names them. Before
/// the first call, hwy::SetSupportedTargetsForTest or Highway's own means may narrow the choice.
///
/// Include it before <posenc/fused.hpp>, which may otherwise have compiled one of the targets already.
#pragma once

#if defined(POSENC_FUSED_IMPLEMENTATION)

#if defined(POSENC_FUSED_ENTRY_INL_HPP)
#error "posenc: include <posenc/fused/dispatch.hpp> before <posenc/fused.hpp>, best in a .cpp of its own"
#endif

#include <posenc/fused/highway.hpp>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE <posenc/fused/kernels/entry-inl.hpp>
#include <hwy/foreach_target.h>

#include <posenc/fused/kernels/entry-inl.hpp>

namespace posenc::inline v0_2::detail::fused_kernels {
HWY_EXPORT(table);

[[nodiscard]] fused_problem::kernel_table dispatched_table() noexcept;
fused_problem::kernel_table dispatched_table() noexcept { return HWY_DYNAMIC_DISPATCH(table)(); }
}  // namespace posenc::inline v0_2::detail::fused_kernels

#undef HWY_TARGET_INCLUDE

#endif
