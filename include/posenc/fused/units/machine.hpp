// SPDX-License-Identifier: MIT
/// \file
/// Which matrix units this processor has, and where they pay. A function of the processor alone and never of a timing:
/// the same call gives the same bits tomorrow.
#pragma once

#include <cstdint>

#include <posenc/fused/executor.hpp>

#if defined(__x86_64__) && defined(__GNUC__)
#define POSENC_HAS_CPUID
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace posenc::inline v0_2::detail::fused_units {

/// What the processor says of itself.
struct processor {
  bool has_amx = false;                 ///< tiles, bfloat16 products, and an operating system that keeps them
  bool has_avx512_bf16 = false;         ///< vdpbf16ps
  bool is_fast_at_avx512_bf16 = false;  ///< it multiplies more than vfmadd does
};

/// Family and model as AMD counts them: 25 (Zen 4 and what it came from) and above multiply bfloat16 at twice the rate
/// of float where they have the instruction. Intel's Xeons multiply it at the rate of float at best.
[[nodiscard]] constexpr bool is_fast_at_avx512_bf16(bool is_amd, unsigned family) noexcept {
  return is_amd && family >= 0x19;
}

#if defined(POSENC_HAS_CPUID)
[[nodiscard]] inline processor look_at_processor() noexcept {
  processor found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
  const bool is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
  __get_cpuid(1, &a, &b, &c, &d);
  const unsigned base_family = (a >> 8) & 0xfu;
  const unsigned family = base_family == 0xfu ? base_family + ((a >> 20) & 0xffu) : base_family;
  const bool has_xgetbv = ((c >> 27) & 1u) != 0;
  unsigned low = 0, high = 0;
  if (has_xgetbv) asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned zmm_state = 0xe6, tile_state = 3u << 17;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  const bool has_tiles = ((d >> 22) & 1u) != 0 && ((d >> 24) & 1u) != 0;
#if defined(__linux__)
  found.has_amx = has_tiles && (low & tile_state) == tile_state;
#endif
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return found;
  found.has_avx512_bf16 = ((a >> 5) & 1u) != 0 && (low & zmm_state) == zmm_state;
  found.is_fast_at_avx512_bf16 = found.has_avx512_bf16 && is_fast_at_avx512_bf16(is_amd, family);
  return found;
}
#else
[[nodiscard]] inline processor look_at_processor() noexcept { return {}; }
#endif

[[nodiscard]] inline const processor& this_processor() noexcept {
  static const processor found = look_at_processor();
  return found;
}

/// Asks Linux, once, to let this process use tiles (feature 18: their data). False where it does not.
[[nodiscard]] inline bool may_use_tiles() noexcept {
#if defined(POSENC_HAS_CPUID) && defined(__linux__)
  constexpr long ask_for_permission = 0x1023, tile_data = 18;
  static const bool permitted =
      this_processor().has_amx && syscall(SYS_arch_prctl, ask_for_permission, tile_data) == 0;
  return permitted;
#else
  return false;
#endif
}

[[nodiscard]] constexpr const char* name_of(fused::matrix_unit unit) noexcept {
  switch (unit) {
    case fused::matrix_unit::automatic:
      return "automatic";
    case fused::matrix_unit::none:
      return "none";
    case fused::matrix_unit::emulated:
      return "emulated";
    case fused::matrix_unit::avx512_bf16:
      return "avx512_bf16";
    case fused::matrix_unit::amx:
      return "amx";
  }
  return "";
}

}  // namespace posenc::inline v0_2::detail::fused_units
