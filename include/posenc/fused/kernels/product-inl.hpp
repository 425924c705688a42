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

#include <posenc/fused/storage/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

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
  index_t b_step;  ///< along the common dimension of B, where it is a matrix
  index_t c_row;
  index_t b_last = 0;  ///< columns of the last vector of B, where it is a partial one
};

/// The rows of B along the common dimension, one after the other: those of a matrix in memory. Its columns are
/// contiguous.
template <class T>
struct strided_rows {
  static constexpr bool fetches = false;
  const T* at;
  index_t step;

  HWY_INLINE const T* row() const { return at; }
  HWY_INLINE void advance() { at += step; }
};
/// Rows of a cache from channel `channel` on, wherever they lie (storage/rows-inl.hpp). While one is read, the row that
/// takes its place in the next block is prefetched.
template <class Reader>
struct listed_rows {
  static constexpr bool fetches = true;
  Reader reader;
  const row_list& next;
  index_t channel, n = 0;

  HWY_INLINE auto row() const { return reader(n) + channel; }
  HWY_INLINE index_t ahead() const { return bytes_between(reader.list.rows[n], next.rows[n]); }
  HWY_INLINE void advance() { ++n; }
};

/// C[r][x] = keep[r]·C[r][x] + Σ_t A[r][t]·B[t][x], r < Rows, x < Vectors·lanes. Without `keep`, C is only
/// written. With `Partial`, the last vector of B has b_last columns; those of C after them become sums of zeros. One row
/// of a cache alone has a second set of sums, of every other step: its multiply-adds would wait for one another. Named
/// accumulators rather than arrays: scalable vectors (SVE) cannot be array elements.
template <int Rows, int Vectors, bool Partial, class B>
HWY_NOINLINE void block_product(const product_shape& shape, const float* HWY_RESTRICT a, B b,
                                const float* HWY_RESTRICT keep, float* HWY_RESTRICT c) {
  static_assert(Rows >= 1 && Rows <= 8 && Vectors <= 4 && Rows * Vectors <= 16);
  const float_tag d;
  const index_t width = lanes(), a_row = shape.a_row, c_row = shape.c_row;
  const float_vector zero = hn::Zero(d);

#define POSENC_FOR_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define POSENC_START(r) float_vector c##r##0 = zero, c##r##1 = zero, c##r##2 = zero, c##r##3 = zero;
#define POSENC_LOAD(n)                                               \
  float_vector b##n = zero;                                          \
  if constexpr (Vectors > n) {                                       \
    if constexpr (Partial && n == Vectors - 1)                       \
      b##n = load_first(row + n * width, shape.b_last);              \
    else                                                             \
      b##n = load(row + n * width);                                  \
    if constexpr (B::fetches) fetch_ahead(row, n* width, b.ahead()); \
  }
#define POSENC_ADD_APART(n) \
  if constexpr (Vectors > n) e##n = hn::MulAdd(factor, b##n, e##n);
#define POSENC_ADD(r)                                                     \
  if constexpr (Rows > r) {                                               \
    const float_vector factor = hn::Set(d, a[r * a_row]);                 \
    c##r##0 = hn::MulAdd(factor, b0, c##r##0);                            \
    if constexpr (Vectors > 1) c##r##1 = hn::MulAdd(factor, b1, c##r##1); \
    if constexpr (Vectors > 2) c##r##2 = hn::MulAdd(factor, b2, c##r##2); \
    if constexpr (Vectors > 3) c##r##3 = hn::MulAdd(factor, b3, c##r##3); \
  }
// What was there joins last: a long sum is then made of short ones, and loses fewer bits.
#define POSENC_FINISH(r)    \
  if constexpr (Rows > r) { \
    POSENC_FINISH_ONE(r, 0) \
    POSENC_FINISH_ONE(r, 1) \
    POSENC_FINISH_ONE(r, 2) \
    POSENC_FINISH_ONE(r, 3) \
  }
#define POSENC_FINISH_ONE(r, n)                                                     \
  if constexpr (Vectors > n) {                                                      \
    float* const to = c + r * c_row + n * width;                                    \
    store(keep ? hn::MulAdd(hn::Set(d, keep[r]), load(to), c##r##n) : c##r##n, to); \
  }

  POSENC_FOR_EACH_ROW(POSENC_START)
  // clang-format off
  float_vector e0 = zero, e1 = zero, e2 = zero, e3 = zero;
  for (index_t step = 0; step < shape.steps; ++step) {
    if constexpr (Rows == 1 && B::fetches) {
      const auto row = b.row();
      POSENC_LOAD(0) POSENC_LOAD(1) POSENC_LOAD(2) POSENC_LOAD(3)
      const float_vector factor = hn::Set(d, a[0]);
      POSENC_ADD_APART(0) POSENC_ADD_APART(1) POSENC_ADD_APART(2) POSENC_ADD_APART(3)
      a += shape.a_step;
      b.advance();
      if (++step == shape.steps) break;
    }
    const auto row = b.row();
    POSENC_LOAD(0) POSENC_LOAD(1) POSENC_LOAD(2) POSENC_LOAD(3)
    POSENC_FOR_EACH_ROW(POSENC_ADD)
    a += shape.a_step;
    b.advance();
  }
  // clang-format on
  if constexpr (Rows == 1 && B::fetches)
    c00 = hn::Add(c00, e0), c01 = hn::Add(c01, e1), c02 = hn::Add(c02, e2), c03 = hn::Add(c03, e3);
  POSENC_FOR_EACH_ROW(POSENC_FINISH)

#undef POSENC_FINISH_ONE
#undef POSENC_ADD_APART
#undef POSENC_FINISH
#undef POSENC_ADD
#undef POSENC_LOAD
#undef POSENC_START
#undef POSENC_FOR_EACH_ROW
}

/// block_product with the number of rows known at run time, at most MostRows.
template <index_t MostRows, int Vectors, bool Partial = false, class B>
HWY_INLINE void rows_product(index_t rows, const product_shape& shape, const float* a, const B& b,
                             const float* keep, float* c) {
  const auto run = [&]<int Rows>() HWY_ATTR { block_product<Rows, Vectors, Partial>(shape, a, b, keep, c); };
  if (rows == 1) return run.template operator()<1>();
  if (rows == 2) return run.template operator()<2>();
  if constexpr (MostRows > 2) {
    if (rows == 3) return run.template operator()<3>();
    if (rows == 4) return run.template operator()<4>();
  }
  if constexpr (MostRows > 4) {
    if (rows == 5) return run.template operator()<5>();
    if (rows == 6) return run.template operator()<6>();
  }
  if constexpr (MostRows > 6) {
    if (rows == 7) return run.template operator()<7>();
    if (rows == 8) return run.template operator()<8>();
  }
}

/// A block of at most block_rows rows and two vectors of columns: the shape of all products of the prefill.
HWY_INLINE void product(index_t rows, const product_shape& shape, const float* a, const float* b,
                        const float* keep, float* c) {
  rows_product<block_rows, 2>(rows, shape, a, strided_rows<float>{b, shape.b_step}, keep, c);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
