// SPDX-License-Identifier: MIT
/// \file
/// Loads and stores of the storage types as float vectors, whole or in part. Included once per instruction
/// set.
#if defined(POSENC_FUSED_LOAD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_LOAD_INL_HPP
#undef POSENC_FUSED_LOAD_INL_HPP
#else
#define POSENC_FUSED_LOAD_INL_HPP
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include <posenc/fused/problem.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace fused_problem;

using float_tag = hn::ScalableTag<float>;
using float_vector = hn::Vec<float_tag>;

/// Floats per vector.
HWY_INLINE index_t lanes() { return static_cast<index_t>(hn::Lanes(float_tag())); }

HWY_INLINE index_t round_up(index_t n, index_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/// The widest head the kernels take; asserted by the face. A latent cache keeps rows of 576.
inline constexpr index_t widest_head = 1024;
/// Floats of the longest vector, for what is written in whole vectors.
inline constexpr index_t vector_slack = HWY_MAX_BYTES / sizeof(float);

/// 16-bit patterns of the two narrow types; they are only ever widened or narrowed.
struct bfloat16_bits {
  std::uint16_t bits;
};
struct float16_bits {
  std::uint16_t bits;
};
struct float8_bits {
  std::uint8_t bits;
};

HWY_INLINE float_vector load(const float* from) { return hn::LoadU(float_tag(), from); }

HWY_INLINE float_vector load(const bfloat16_bits* from) {
  const hn::Rebind<std::uint16_t, float_tag> narrow;
  const hn::Rebind<std::uint32_t, float_tag> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(from)));
  return hn::BitCast(float_tag(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE float_vector load(const float16_bits* from) {
  const hn::Rebind<std::uint16_t, float_tag> narrow;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(from));
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM
  const hn::Rebind<hwy::float16_t, float_tag> half;
  return hn::PromoteTo(float_tag(), hn::BitCast(half, bits));
#else
  // Without an instruction for it Highway takes infinities and NaNs for numbers. The exponent moves from a bias of 15
  // to one of 127; a subnormal gets there by one more and the subtraction of what that adds.
  const hn::Rebind<std::int32_t, float_tag> wide;
  const auto all = hn::PromoteTo(wide, bits);
  const auto size = hn::ShiftLeft<13>(hn::And(all, hn::Set(wide, 0x7fff)));
  const auto moved = hn::Add(size, hn::Set(wide, 112 << 23));
  const float_vector subnormal = hn::Sub(hn::BitCast(float_tag(), hn::Add(moved, hn::Set(wide, 1 << 23))),
                                         hn::BitCast(float_tag(), hn::Set(wide, 113 << 23)));
  const auto is_subnormal = hn::Lt(size, hn::Set(wide, 1 << 23));
  const auto is_special = hn::Gt(size, hn::Set(wide, (31 << 23) - 1));
  const auto finite = hn::IfThenElse(is_subnormal, hn::BitCast(wide, subnormal), moved);
  const auto value = hn::IfThenElse(is_special, hn::Or(size, hn::Set(wide, 0x7f800000)), finite);
  const auto sign = hn::ShiftLeft<16>(hn::And(all, hn::Set(wide, 0x8000)));
  return hn::BitCast(float_tag(), hn::Or(value, sign));
#endif
}

/// Codes of int8 as numbers, not scaled.
HWY_INLINE float_vector load(const std::int8_t* from) {
  const hn::Rebind<std::int8_t, float_tag> narrow;
  const hn::Rebind<std::int32_t, float_tag> wide;
  return hn::ConvertTo(float_tag(), hn::PromoteTo(wide, hn::LoadU(narrow, from)));
}

HWY_INLINE float_vector load(const float8_bits* from) {
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM
  // Seven bits farther up it is a half whose exponent is 8 too small, which subnormals do not mind.
  const hn::Rebind<std::int8_t, float_tag> narrow;
  const hn::Rebind<std::int16_t, float_tag> wide;
  const hn::Rebind<hwy::float16_t, float_tag> half;
  const hn::RebindToUnsigned<float_tag> bits;
  const auto all = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::int8_t*>(&from->bits)));
  const auto moved = hn::And(hn::ShiftLeft<7>(all), hn::Set(wide, static_cast<std::int16_t>(0xbf80)));
  const float_vector value =
      hn::Mul(hn::PromoteTo(float_tag(), hn::BitCast(half, moved)), hn::Set(float_tag(), 256.0f));
  // 480 is what a NaN would be as a number.
  const auto is_nan = hn::Eq(hn::Abs(value), hn::Set(float_tag(), 480.0f));
  return hn::IfThenElse(is_nan, hn::BitCast(float_tag(), hn::Set(bits, 0x7fc00000u)), value);
#else
  const hn::Rebind<std::uint8_t, float_tag> narrow;
  const hn::RebindToUnsigned<float_tag> wide;
  const hn::RebindToSigned<float_tag> whole;
  const auto all = hn::PromoteTo(wide, hn::LoadU(narrow, &from->bits));
  const auto size = hn::And(all, hn::Set(wide, 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(all, hn::Set(wide, 0x80u)));
  // Below the smallest normal number the size itself counts steps of 2^-9.
  const float_vector normal =
      hn::BitCast(float_tag(), hn::Add(hn::ShiftLeft<20>(size), hn::Set(wide, 120u << 23)));
  const float_vector steps =
      hn::Mul(hn::ConvertTo(float_tag(), hn::BitCast(whole, size)), hn::Set(float_tag(), 0x1p-9f));
  const auto is_normal = hn::RebindMask(float_tag(), hn::Gt(hn::BitCast(whole, size), hn::Set(whole, 7)));
  const auto is_nan = hn::RebindMask(float_tag(), hn::Eq(size, hn::Set(wide, 0x7fu)));
  const float_vector number = hn::IfThenElse(is_normal, normal, steps);
  const float_vector value =
      hn::IfThenElse(is_nan, hn::BitCast(float_tag(), hn::Set(wide, 0x7fc00000u)), number);
  return hn::BitCast(float_tag(), hn::Or(hn::BitCast(wide, value), sign));
#endif
}

/// Whether the first elements of a vector are loaded by one instruction, without touching what lies after them.
template <class T>
inline constexpr bool loads_parts = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_TARGET == HWY_SVE
                                    || HWY_TARGET == HWY_SVE2 ||
                                    (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && std::is_same_v<T, float>);

/// The first `count` elements, zeros after them; nothing beyond is read.
template <class T>
HWY_INLINE float_vector load_first(const T* from, index_t count) {
  if (count >= lanes()) return load(from);
  if (HWY_TARGET == HWY_SCALAR) return hn::Zero(float_tag());  // none are left
  const auto some = static_cast<std::size_t>(count);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  if constexpr (std::is_same_v<T, float> && loads_parts<T>) {
    return hn::MaskedLoad(hn::FirstN(float_tag(), some), float_tag(), from);
  } else if constexpr (loads_parts<T>) {
    using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>;
    const hn::Rebind<bits, float_tag> narrow;
    hn::StoreU(hn::MaskedLoad(hn::FirstN(narrow, some), narrow, reinterpret_cast<const bits*>(from)), narrow,
               reinterpret_cast<bits*>(buffer));
    return load(buffer);
  } else {
    std::memcpy(buffer, from, some * sizeof(T));
    return load(buffer);
  }
}

/// Left alone, GCC reads an operand that is used twice from memory twice: where loads are the bottleneck, this
/// keeps it in a register.
HWY_INLINE void keep_in_register([[maybe_unused]] float_vector& value) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  asm("" : "+v"(value.raw));
#endif
}

/// Bytes of a cache line.
inline constexpr index_t line_bytes = 64;

/// Prefetches what lies `distance` bytes after `from` into the L2 cache. That need not be memory of ours:
/// nothing is read.
HWY_INLINE void fetch_ahead(const void* from, index_t distance) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) +
                                                   static_cast<std::uintptr_t>(distance)),
                     0, 2);
#else
  static_cast<void>(from), static_cast<void>(distance);
#endif
}

/// The same for the vector at `channel` of a row that is read in whole vectors; one request per line.
template <class T>
HWY_INLINE void fetch_ahead(const T* row, index_t channel, index_t distance) {
  constexpr auto size = static_cast<index_t>(sizeof(T));
  constexpr bool whole_line = hn::MaxLanes(float_tag()) * sizeof(T) >= std::size_t{line_bytes};
  if (whole_line || channel * size % line_bytes == 0) fetch_ahead(row + channel, distance);
}

/// Prefetches every line of `bytes` bytes that will be read soon. Always inlined: GCC drops callbacks of a function that
/// does nothing but prefetch.
HWY_INLINE void fetch_to_read(const char* from, index_t bytes) {
  for (index_t byte = 0; byte < bytes; byte += line_bytes) fetch_ahead(from, byte);
}

/// The same for what will be written.
HWY_INLINE void fetch_to_write(const char* from, index_t bytes) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  for (index_t byte = 0; byte < bytes; byte += line_bytes) __builtin_prefetch(from + byte, 1);
#else
  static_cast<void>(from), static_cast<void>(bytes);
#endif
}

/// Prefetches a line into the L1 cache, and with it the address of its page.
HWY_INLINE void fetch_page([[maybe_unused]] const char* at) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(at, 0, 3);
#endif
}

/// Bytes of the smallest page.
inline constexpr index_t page_bytes = 4096;

/// How many steps of `stride` bytes a page holds, at least one.
HWY_INLINE index_t strides_of_page(index_t stride) {
  return (std::max)(page_bytes / (std::max)(width_of_stride(stride), index_t{1}), index_t{1});
}

HWY_INLINE void store(float_vector value, float* to) { hn::StoreU(value, float_tag(), to); }

/// Nearest, ties to even; a NaN stays one.
HWY_INLINE std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fff'ffffu) > 0x7f80'0000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

HWY_INLINE std::uint16_t to_float16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fff'ffffu;
  if (magnitude > 0x7f80'0000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x4780'0000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // ≥ 2^16
  if (magnitude < 0x3300'0000u) return static_cast<std::uint16_t>(sign);             // < 2^-25
  const bool subnormal = magnitude < 0x3880'0000u;                                   // < 2^-14
  const std::uint32_t shift = subnormal ? 126u - (magnitude >> 23) : 13u;
  const std::uint32_t fraction = subnormal ? (magnitude & 0x7f'ffffu) | 0x80'0000u : magnitude - 0x3800'0000u;
  const std::uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1u),
                      half = 1u << (shift - 1u);
  return static_cast<std::uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u)));
}

/// factor·row[c] for c < count, into the output's storage type.
HWY_INLINE void store_row(const float* row, float factor, index_t count, storage type, void* to) {
  if (type == storage::float32) {
    const float_vector f = hn::Set(float_tag(), factor);
    float* out = static_cast<float*>(to);
    index_t c = 0;
    for (; c + lanes() <= count; c += lanes()) store(hn::Mul(load(row + c), f), out + c);
    for (; c < count; ++c) out[c] = row[c] * factor;
    return;
  }
  auto* out = static_cast<std::uint16_t*>(to);
  if (type == storage::bfloat16)
    for (index_t c = 0; c < count; ++c) out[c] = to_bfloat16(row[c] * factor);
  else
    for (index_t c = 0; c < count; ++c) out[c] = to_float16(row[c] * factor);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
