// SPDX-License-Identifier: MIT
/// \file
/// Which instruction set the fused kernels run on.
///
/// CMake's target posenc::fused brings the kernels of every instruction set: the last two points below, done for you.
/// Without it:
///
/// - By default (CMake: posenc::fused_headers) the kernels are compiled with the flags of the translation unit that
///   includes this; nothing needs to be linked. Translation units with different flags may meet in one program:
///   everything that depends on them is a template over its own `this_isa`.
/// - When one .cpp of the program defines POSENC_FUSED_IMPLEMENTATION and includes posenc/fused/dispatch.hpp,
///   every fused call in the program takes the best instruction set of the machine it runs on. The .cpp has to be
///   linked as an object, since a linker does not pull it out of a static library for a weak reference.
/// - With POSENC_FUSED_DISPATCH_ONLY defined a translation unit compiles no kernels, which saves its compile
///   time; the program then needs that .cpp.
#pragma once

#include <posenc/fused/problem.hpp>

namespace posenc::inline v0_2::detail::fused_kernels {

/// The kernels of the best instruction set, in programs that have them (posenc/fused/dispatch.hpp).
#if defined(POSENC_FUSED_DISPATCH_ONLY)
[[nodiscard]] fused_problem::kernel_table dispatched_table() noexcept;
#elif defined(__GNUC__)
[[nodiscard, gnu::weak]] fused_problem::kernel_table dispatched_table() noexcept;
#endif

}  // namespace posenc::inline v0_2::detail::fused_kernels

#if defined(POSENC_FUSED_DISPATCH_ONLY)

namespace posenc::inline v0_2::detail::fused_kernels {
struct this_isa {
  [[nodiscard]] static fused_problem::kernel_table kernels() noexcept { return dispatched_table(); }
};
}  // namespace posenc::inline v0_2::detail::fused_kernels

#else

#include <posenc/fused/highway.hpp>

#include <posenc/fused/kernels/entry-inl.hpp>

// Nobody should get these kernels without knowing: they are several times slower than those of any recent machine.
#if (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || \
     (defined(HWY_SSE2) && HWY_TARGET == HWY_SSE2)) &&       \
    !defined(POSENC_FUSED_ALLOW_SLOW_TARGET)
#pragma GCC warning \
    "posenc: these flags give the fused kernels no vector instructions worth having. Compile with -march=native (or -march=x86-64-v3), or link the CMake target posenc::fused, whose kernels choose the instruction set when the program runs. -DPOSENC_FUSED_ALLOW_SLOW_TARGET silences this."
#endif

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {
/// Stands for the instruction set of this translation unit in the names of what depends on it.
struct this_isa {
  [[nodiscard]] static kernel_table kernels() noexcept {
#if defined(__GNUC__)
    if (&dispatched_table != nullptr) return dispatched_table();
#endif
    return table();
  }
};
}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace posenc::inline v0_2::detail::fused_kernels {
using HWY_NAMESPACE::this_isa;
}  // namespace posenc::inline v0_2::detail::fused_kernels

#endif
