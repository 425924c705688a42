// SPDX-License-Identifier: MIT
/// \file
/// Which matrix units this processor has, and where they pay. A function of the processor alone and never of a timing:
/// the same call gives the same bits tomorrow.
#pragma once

#include <cstdint>

#include <posenc/fused/executor.hpp>

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

#if defined(__x86_64__) && defined(__GNUC__)
struct cpuid_words {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};
[[nodiscard]] inline cpuid_words cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
  cpuid_words words;
  asm volatile("cpuid"
               : "=a"(words.a), "=b"(words.b), "=c"(words.c), "=d"(words.d)
               : "a"(leaf), "c"(subleaf));
  return words;
}
/// What the operating system keeps of a thread's registers.
[[nodiscard]] inline std::uint32_t kept_state() noexcept {
  std::uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

[[nodiscard]] inline processor look_at_processor() noexcept {
  constexpr std::uint32_t vectors = 0xe6, tiles = 3u << 17;
  const auto has = [](std::uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; };
  const cpuid_words vendor = cpuid(0), version = cpuid(1);
  if (vendor.a < 7 || !has(version.c, 27)) return {};  // no xgetbv
  const std::uint32_t kept = kept_state(), base_family = (version.a >> 8) & 0xfu;
  const std::uint32_t family = base_family == 0xfu ? base_family + ((version.a >> 20) & 0xffu) : base_family;
  const bool is_amd = vendor.b == 0x68747541u && vendor.d == 0x69746e65u && vendor.c == 0x444d4163u;
  const cpuid_words features = cpuid(7);
  processor found;
#if defined(__linux__)
  found.has_amx = has(features.d, 22) && has(features.d, 24) && (kept & tiles) == tiles;
#endif
  found.has_avx512_bf16 = features.a >= 1 && has(cpuid(7, 1).a, 5) && (kept & vectors) == vectors;
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
#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
  static const bool permitted = [] {
    if (!this_processor().has_amx) return false;
    // arch_prctl(ARCH_REQ_XCOMP_PERM, 18), for which the C library has no function.
    constexpr long arch_prctl = 158, ask_for_permission = 0x1023, tile_data = 18;
    long result = arch_prctl;
    asm volatile("syscall" : "+a"(result) : "D"(ask_for_permission), "S"(tile_data) : "rcx", "r11", "memory");
    return result == 0;
  }();
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
