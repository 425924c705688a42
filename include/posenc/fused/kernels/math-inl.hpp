// SPDX-License-Identifier: MIT
/// \file
/// The three functions that attention needs in vectors, as short as float allows. Included once per
/// instruction set.
///
/// | function | range | largest error |
/// |---|---|---|
/// | exp4_of | x ≤ 0, −∞, NaN | 1.2e-7 relative; exactly 0 below 2^−100, so that no product with a weight is denormal; NaN of NaN |
/// | short_exp4_of | the same | 1.1e-4 relative |
/// | cos_sin_of_phase | every 32-bit phase | 1.2e-7 absolute |
/// | tanh_of | every float | 2.5e-7 relative |
#if defined(POSENC_FUSED_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_MATH_INL_HPP
#undef POSENC_FUSED_MATH_INL_HPP
#else
#define POSENC_FUSED_MATH_INL_HPP
#endif

#include <cstdint>

#include <posenc/fused/storage/load-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

HWY_INLINE float_vector constant(float value) { return hn::Set(float_tag(), value); }

/// 0 for x ≤ 0, −∞ too; NaN for NaN.
HWY_INLINE float_vector zero_unless_nan(float_vector x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  return hn::Max(hn::Zero(float_tag()), x);  // of a NaN and a number, x86 takes the second
#else
  return hn::IfThenElse(hn::Eq(x, x), hn::Zero(float_tag()), x);
#endif
}

/// 4^x for x ≤ 0 (scores carry ½·log2 e, see score_unit): a minimax polynomial of 2x on [−½, ½], the exponent added
/// as an integer. Adding 1.5·2^23 leaves the nearest whole number in the low bits; it is taken off again as an
/// integer, for under -ffast-math the compiler would take it off itself.
template <class Polynomial>
HWY_INLINE float_vector exp4_by(float_vector x, const Polynomial& polynomial) {
  const float_tag d;
  const hn::RebindToSigned<float_tag> whole_tag;
  const auto whole = hn::Sub(hn::BitCast(whole_tag, hn::MulAdd(x, constant(2.0f), constant(12582912.0f))),
                             hn::Set(whole_tag, std::int32_t{0x4b400000}));
  const float_vector p = polynomial(hn::MulSub(x, constant(2.0f), hn::ConvertTo(d, whole)));
  const float_vector power = hn::BitCast(d, hn::Add(hn::BitCast(whole_tag, p), hn::ShiftLeft<23>(whole)));
  return hn::IfThenElse(hn::Ge(x, constant(-50.0f)), power, zero_unless_nan(x));
}
HWY_INLINE float_vector exp4_of(float_vector x) {
  return exp4_by(x, [](float_vector f) HWY_ATTR {
    float_vector p = hn::MulAdd(constant(0.0013276472632f), f, constant(0.00967554134312f));
    p = hn::MulAdd(p, f, constant(0.0555071327186f));
    p = hn::MulAdd(p, f, constant(0.240221197237f));
    p = hn::MulAdd(p, f, constant(0.693146967065f));
    return hn::MulAdd(p, f, constant(1.0f));
  });
}
/// The same for weights that become bfloat16. With AVX-512 two instructions take the exponent apart and put it on: one that
/// scales by powers of two gives 0 for −∞ and far below, and keeps a NaN.
HWY_INLINE float_vector short_exp4_of(float_vector x) {
  const auto polynomial = [](float_vector f) HWY_ATTR {
    float_vector p = hn::MulAdd(constant(0.0550090057f), f, constant(0.242211148f));
    p = hn::MulAdd(p, f, constant(0.69328294f));
    return hn::MulAdd(p, f, constant(1.0f));
  };
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const float_vector twice = hn::Add(x, x), whole = hn::Round(twice);
  return float_vector{_mm512_maskz_scalef_ps(0xffff, polynomial(hn::Sub(twice, whole)).raw, whole.raw)};
#else
  return exp4_by(x, polynomial);
#endif
}

/// cos and sin of phases in 2^−32 of a turn. The nearest quarter turn comes off in integers.
HWY_INLINE void cos_sin_of_phase(hn::Vec<hn::RebindToSigned<float_tag>> phase, float_vector& cosine,
                                 float_vector& sine) {
  const float_tag d;
  const hn::RebindToSigned<float_tag> di;
  const hn::RebindToUnsigned<float_tag> du;
  const auto unsigned_phase = hn::BitCast(du, phase);
  const auto quarter = hn::ShiftRight<30>(hn::Add(unsigned_phase, hn::Set(du, 1u << 29)));
  const auto rest = hn::BitCast(di, hn::Sub(unsigned_phase, hn::ShiftLeft<30>(quarter)));
  const float_vector x = hn::Mul(hn::ConvertTo(d, rest), constant(1.46291807926715968e-9f));  // 2π / 2^32
  const float_vector xx = hn::Mul(x, x);
  float_vector s = hn::MulAdd(constant(-0.000195173283493f), xx, constant(0.00833217841721f));
  s = hn::MulAdd(s, xx, constant(-0.166666549495f));
  s = hn::MulAdd(hn::Mul(s, xx), x, x);
  float_vector c = hn::MulAdd(constant(2.44385531574e-5f), xx, constant(-0.00138873685397f));
  c = hn::MulAdd(c, xx, constant(0.0416666468915f));
  c = hn::MulAdd(hn::Mul(c, xx), xx, hn::MulAdd(constant(-0.5f), xx, constant(1.0f)));
  const auto swap = hn::MaskFromVec(
      hn::BitCast(d, hn::Sub(hn::Zero(di), hn::BitCast(di, hn::And(quarter, hn::Set(du, 1u))))));
  const auto cos_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quarter, hn::Set(du, 1u)), hn::Set(du, 2u)));
  const auto sin_sign = hn::ShiftLeft<30>(hn::And(quarter, hn::Set(du, 2u)));
  cosine = hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, cos_sign));
  sine = hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, sin_sign));
}

/// tanh: a polynomial where the exponential form would cancel.
HWY_INLINE float_vector tanh_of(float_vector x) {
  const float_vector size = hn::Abs(x);
  const float_vector xx = hn::Mul(x, x);
  float_vector p = hn::MulAdd(constant(-0.00571750445833f), xx, constant(0.0206510515527f));
  p = hn::MulAdd(p, xx, constant(-0.0537436632502f));
  p = hn::MulAdd(p, xx, constant(0.133314936856f));
  p = hn::MulAdd(p, xx, constant(-0.33333284041f));
  const float_vector near_zero = hn::MulAdd(hn::Mul(p, xx), size, size);
  const float_vector e = exp4_of(hn::Mul(size, constant(-1.4426950408889634f)));  // e^(−2|x|)
  const float_vector away_from_zero = hn::Div(hn::Sub(constant(1.0f), e), hn::Add(constant(1.0f), e));
  return hn::CopySign(hn::IfThenElse(hn::Lt(size, constant(0.625f)), near_zero, away_from_zero), x);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
