// SPDX-License-Identifier: MIT
/// \file
/// AVX-512 BF16 as a matrix unit: vdpbf16ps, eight rows of two vectors in registers. Included once per instruction set.
///
/// A lane of vdpbf16ps adds the product of its odd halves to C, then that of its even ones, each by fused multiply-add to
/// nearest, denormals as zeros.
#if defined(POSENC_FUSED_AVX512_BF16_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_AVX512_BF16_INL_HPP
#undef POSENC_FUSED_AVX512_BF16_INL_HPP
#else
#define POSENC_FUSED_AVX512_BF16_INL_HPP
#endif

#include <cstring>

#include <posenc/fused/units/tiles-inl.hpp>

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

struct avx512_bf16_unit {
  static constexpr index_t rows = 8;

  /// The instruction by its name, as the functions of a header would need flags that the kernels are compiled without.
  static HWY_INLINE void add(float_vector& c, float_vector a, float_vector b) {
    asm("{vdpbf16ps %2, %1, %0|vdpbf16ps %0, %1, %2}" : "+v"(c.raw) : "v"(a.raw), "v"(b.raw));
  }

  template <class Between>
  static HWY_NOINLINE void multiply(const tile_product& product, Between& between) {
    const float_tag d;
    const hn::RebindToUnsigned<float_tag> du;
    const auto words = [](const std::uint16_t* at) { return reinterpret_cast<const std::uint32_t*>(at); };
    const auto word_at = [](const std::uint16_t* at) {
      std::uint32_t word;
      std::memcpy(&word, at, sizeof word);
      return word;
    };
    for (index_t first = 0; first < block_tile_rows; first += rows) {
      float* const c = product.c + first * product.c_row;
      float_vector sum[rows][2];
      for (index_t r = 0; r < rows; ++r)
        for (index_t x = 0; x < 2; ++x)
          sum[r][x] = product.adds ? load(c + r * product.c_row + x * lanes()) : hn::Zero(d);
      for_each_product(product, [&](const std::uint16_t* a, const std::uint16_t* b) HWY_ATTR {
        a += first / tile_rows * product.a.tile + first % tile_rows * tile_depth;
        for (index_t s = 0; s < product.steps; ++s, a += a_tile_size, b += b_tile_size())
          for (index_t k = 0; k < tile_depth; k += 2) {
            const float_vector b0 = hn::BitCast(d, hn::LoadU(du, words(b + k * lanes()))),
                               b1 = hn::BitCast(d, hn::LoadU(du, words(b + product.b.tile + k * lanes())));
#pragma GCC unroll 8
            for (index_t r = 0; r < rows; ++r) {
              const float_vector factor = hn::BitCast(d, hn::Set(du, word_at(a + r * tile_depth + k)));
              add(sum[r][0], factor, b0), add(sum[r][1], factor, b1);
            }
          }
      });
      for (index_t r = 0; r < rows; ++r)
        for (index_t x = 0; x < 2; ++x) store(sum[r][x], c + r * product.c_row + x * lanes());
    }
    static_cast<void>(between);  // vector work beside it would wait for the same ports
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
