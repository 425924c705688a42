// SPDX-License-Identifier: MIT
/// \file
/// The matrix unit that every machine has: to the bit what AMX's tdpbf16ps gives. Included once per instruction set.
///
/// Of a row of A and a column of B: the sum of even and the sum of odd products, by fused multiply-add in the order of
/// their words; both sums added; that added to C. Denormal operands and results count as zeros, results are rounded to
/// nearest, ties to even. Without an instruction for it, a fused multiply-add rounds twice where the product is denormal.
#if defined(POSENC_FUSED_EMULATED_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_EMULATED_INL_HPP
#undef POSENC_FUSED_EMULATED_INL_HPP
#else
#define POSENC_FUSED_EMULATED_INL_HPP
#endif

#include <cstring>

#include <posenc/fused/units/tiles-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

struct emulated_unit {
  /// A denormal becomes a zero of its sign.
  static HWY_INLINE float_vector flush(float_vector x) {
    const float_tag d;
    const hn::RebindToUnsigned<float_tag> du;
    const auto bits = hn::BitCast(du, x);
    const auto is_tiny = hn::Eq(hn::And(bits, hn::Set(du, 0x7f800000u)), hn::Zero(du));
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    return hn::BitCast(d, hn::IfThenElse(is_tiny, sign, bits));
  }

  template <class Between>
  static HWY_NOINLINE void multiply(const tile_product& product, Between& between) {
    const float_tag d;
    const hn::RebindToUnsigned<float_tag> du;
    const index_t width = 2 * lanes();
    if (!product.adds)
      for (index_t r = 0; r < block_tile_rows; ++r)
        for (index_t x = 0; x < width; x += lanes()) store(hn::Zero(d), product.c + r * product.c_row + x);
    for_each_product(product, [&](const std::uint16_t* a, const std::uint16_t* b) HWY_ATTR {
      for (index_t s = 0; s < product.steps; ++s, between.step())
        for (index_t r = 0; r < block_tile_rows; ++r) {
          const std::uint16_t* const row =
              a + r / tile_rows * product.a.tile + s * a_tile_size + r % tile_rows * tile_depth;
          for (index_t x = 0; x < width; x += lanes()) {
            const std::uint16_t* const words = b + x / lanes() * product.b.tile + s * b_tile_size();
            float_vector even = hn::Zero(d), odd = hn::Zero(d);
            for (index_t k = 0; k < tile_depth; k += 2) {
              const auto both = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(words + k * lanes()));
              const auto factor = [&](index_t n) HWY_ATTR {
                std::uint16_t half;
                std::memcpy(&half, row + n, sizeof half);  // operands are written as words, too
                return flush(hn::BitCast(d, hn::Set(du, std::uint32_t{half} << 16)));
              };
              even = flush(hn::MulAdd(factor(k), flush(hn::BitCast(d, hn::ShiftLeft<16>(both))), even));
              odd = flush(hn::MulAdd(factor(k + 1), flush(hn::BitCast(d, upper_halves(both))), odd));
            }
            float* const to = product.c + r * product.c_row + x;
            store(flush(hn::Add(flush(load(to)), flush(hn::Add(even, odd)))), to);
          }
        }
    });
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
