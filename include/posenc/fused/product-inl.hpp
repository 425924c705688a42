// SPDX-License-Identifier: MIT
/// \file
/// The one matrix micro-kernel of the fused path: a few rows of C, two vectors wide, stay in registers while
/// the common dimension runs. Both products of attention are this one, neither needs a transpose inside the
/// loop:
///
/// - Sᵀ[key][query] = Σ_c K[key][c]·Qᵀ[c][query]: keys are broadcast, queries lie on the lanes;
/// - O[query][c] = α·O[query][c] + Σ_key Pᵀ[key][query]·V[key][c]: weights are broadcast, channels lie on the
/// lanes.
#if defined(POSENC_FUSED_PRODUCT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_PRODUCT_INL_HPP
#undef POSENC_FUSED_PRODUCT_INL_HPP
#else
#define POSENC_FUSED_PRODUCT_INL_HPP
#endif

#include <posenc/fused/storage-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// Whether the instruction set has 32 vector registers rather than 16; Highway numbers better targets lower.
inline constexpr bool many_registers = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64;

/// Rows of C held in registers. With two vectors each that is 12 accumulators on machines with 16 vector
/// registers and 16 on machines with 32; either reaches 97-98 % of the FMA peak on Zen 4, in 256 and in 512
/// bits.
inline constexpr index_t block_rows = many_registers ? 8 : 6;

/// The matrices of one product, by address and stride.
struct product_shape {
  index_t steps;   ///< length of the common dimension
  index_t a_row;   ///< from one row of A to the next
  index_t a_step;  ///< along the common dimension of A
  index_t b_step;  ///< along the common dimension of B; its columns are contiguous
  index_t c_row;
};

/// Where nothing needs to be fetched ahead: what a product streams is in the caches already.
struct no_fetch {
  HWY_INLINE void next() const {}
};

/// C[r][x] = keep[r]·C[r][x] + Σ_t A[r][t]·B[t][x], r < Rows, x < Vectors·lanes. Without `keep`, C is only
/// written. `ahead` is told of every vector of B. Named accumulators rather than arrays: scalable vectors (SVE) cannot be array elements.
template <int Rows, int Vectors, class B, class Fetch>
HWY_NOINLINE void block_product(const product_shape& shape, const float* HWY_RESTRICT a,
                                const B* HWY_RESTRICT b, const float* HWY_RESTRICT keep,
                                float* HWY_RESTRICT c, Fetch& ahead) {
  static_assert(Rows >= 1 && Rows <= 8 && Vectors >= 1 && Vectors <= 2);
  const float_tag d;
  const index_t width = lanes(), a_row = shape.a_row, c_row = shape.c_row;
  const float_vector zero = hn::Zero(d);
  Fetch fetch = ahead;

#define POSENC_FOR_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define POSENC_START(r) float_vector c##r##0 = zero, c##r##1 = zero;
#define POSENC_ADD(r)                                                     \
  if constexpr (Rows > r) {                                               \
    const float_vector factor = hn::Set(d, a[r * a_row]);                 \
    c##r##0 = hn::MulAdd(factor, b0, c##r##0);                            \
    if constexpr (Vectors > 1) c##r##1 = hn::MulAdd(factor, b1, c##r##1); \
  }
// What was there joins last: a long sum is then made of short ones, and loses fewer bits.
#define POSENC_FINISH(r)                                                                             \
  if constexpr (Rows > r) {                                                                          \
    if (keep) {                                                                                      \
      const float_vector factor = hn::Set(d, keep[r]);                                               \
      c##r##0 = hn::MulAdd(factor, load(c + r * c_row), c##r##0);                                    \
      if constexpr (Vectors > 1) c##r##1 = hn::MulAdd(factor, load(c + r * c_row + width), c##r##1); \
    }                                                                                                \
    store(c##r##0, c + r * c_row);                                                                   \
    if constexpr (Vectors > 1) store(c##r##1, c + r * c_row + width);                                \
  }

  POSENC_FOR_EACH_ROW(POSENC_START)
  for (index_t step = 0; step < shape.steps; ++step) {
    const float_vector b0 = load(b);
    float_vector b1 = zero;
    if constexpr (Vectors > 1) b1 = load(b + width);
    POSENC_FOR_EACH_ROW(POSENC_ADD)
    for (int n = 0; n < Vectors; ++n) fetch.next();
    a += shape.a_step;
    b += shape.b_step;
  }
  POSENC_FOR_EACH_ROW(POSENC_FINISH)
  ahead = fetch;

#undef POSENC_FINISH
#undef POSENC_ADD
#undef POSENC_START
#undef POSENC_FOR_EACH_ROW
}

/// block_product with the number of rows known at run time, at most block_rows.
template <int Vectors, class B, class Fetch>
HWY_INLINE void rows_product(index_t rows, const product_shape& shape, const float* a, const B* b,
                             const float* keep, float* c, Fetch& ahead) {
  switch (rows) {
    case 1:
      return block_product<1, Vectors>(shape, a, b, keep, c, ahead);
    case 2:
      return block_product<2, Vectors>(shape, a, b, keep, c, ahead);
    case 3:
      return block_product<3, Vectors>(shape, a, b, keep, c, ahead);
    case 4:
      return block_product<4, Vectors>(shape, a, b, keep, c, ahead);
    case 5:
      return block_product<5, Vectors>(shape, a, b, keep, c, ahead);
    case 6:
      return block_product<6, Vectors>(shape, a, b, keep, c, ahead);
    default:
      break;
  }
  if constexpr (block_rows > 6) {
    if (rows == 7) return block_product<7, Vectors>(shape, a, b, keep, c, ahead);
    if (rows == 8) return block_product<8, Vectors>(shape, a, b, keep, c, ahead);
  }
}

/// The same for one or two vectors of columns.
template <class B, class Fetch>
HWY_INLINE void product(index_t rows, index_t vectors, const product_shape& shape, const float* a, const B* b,
                        const float* keep, float* c, Fetch& ahead) {
  if (vectors == 1)
    rows_product<1>(rows, shape, a, b, keep, c, ahead);
  else
    rows_product<2>(rows, shape, a, b, keep, c, ahead);
}
template <class B>
HWY_INLINE void product(index_t rows, index_t vectors, const product_shape& shape, const float* a, const B* b,
                        const float* keep, float* c) {
  no_fetch nothing;
  product(rows, vectors, shape, a, b, keep, c, nothing);
}

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
