// SPDX-License-Identifier: MIT
/// \file
/// Turning channels in registers. Included once per instruction set.
///
/// A tile of keys at consecutive positions j0 + t is turned by R(j0 + t) = R(j0)·R(t): R(j0) costs one
/// vectorised sine per pair and tile, R(t) comes from a small table shared by all tiles. No table grows with
/// the context, and the phase of j0 is exact (rope/phase.hpp) at any position.
///
/// Where keys turn on load, the tile holds a head as [first channels of the pairs | second channels | the
/// rest] whatever the pairing: a dot product does not mind the order as long as queries are packed alike.
#if defined(POSENC_FUSED_ROTATE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_ROTATE_INL_HPP
#undef POSENC_FUSED_ROTATE_INL_HPP
#else
#define POSENC_FUSED_ROTATE_INL_HPP
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include <posenc/fused/math-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// The widest head the kernels take; asserted by the face.
inline constexpr index_t widest_head = 512;
inline constexpr index_t most_pairs = widest_head / 2;
inline constexpr index_t vector_slack = HWY_MAX_BYTES / sizeof(float);

/// cos and sin of each pair, what multiplies them included. Written in whole vectors, hence the slack.
struct pair_angles {
  float cos[most_pairs + vector_slack];
  float sin[most_pairs + vector_slack];
};

/// Angles from one phase per pair, the top 32 bits of a turn, rounded.
HWY_INLINE void angles_of_phases(const std::int32_t* phases, index_t pairs, float magnitude, float* cosines,
                                 float* sines) {
  const hn::RebindToSigned<float_tag> whole;
  for (index_t p = 0; p < pairs; p += lanes()) {
    float_vector c, s;
    cos_sin_of_phase(hn::LoadU(whole, phases + p), c, s);
    store(hn::Mul(c, constant(magnitude)), cosines + p);
    store(hn::Mul(s, constant(magnitude)), sines + p);
  }
}

HWY_INLINE std::int32_t top_bits(turn phase) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>((phase.hi + (std::uint64_t{1} << 31)) >> 32));
}

/// The angles of the token at `token`, relative to `origin` where the rotation allows it. `magnitude`
/// multiplies cos and sin; the growth of xPos is that of this side between origin and token.
inline HWY_NOINLINE void token_angles(const rotation& turns, position token, rotation_side side,
                                      float magnitude, position growth_origin, float* cosines, float* sines) {
  const index_t pairs = turns.pairs();
  if (turns.framework_frequencies.empty()) {
    std::int32_t phases[most_pairs + vector_slack];
    for (index_t p = 0; p < pairs; ++p)
      phases[p] = top_bits(turns.turns_per_token[static_cast<std::size_t>(p)] * turns.position_of(p, token));
    std::memset(phases + pairs, 0, sizeof(std::int32_t) * vector_slack);
    angles_of_phases(phases, pairs, magnitude, cosines, sines);
  } else {
    for (index_t p = 0; p < pairs; ++p) {
      const cos_sin<float> angle = turns.cos_sin_at<float>(p, token);
      cosines[p] = angle.cos * magnitude;
      sines[p] = angle.sin * magnitude;
    }
    for (index_t p = pairs; p < round_up(pairs, lanes()); ++p) cosines[p] = sines[p] = 0;
  }
  if (turns.growth_per_token.empty()) return;
  const double distance =
      static_cast<double>(side == rotation_side::query ? token - growth_origin : growth_origin - token);
  for (index_t p = 0; p < pairs; ++p) {
    const auto growth = static_cast<float>(
        std::exp(static_cast<double>(turns.growth_per_token[static_cast<std::size_t>(p)]) * distance));
    cosines[p] *= growth;
    sines[p] *= growth;
  }
}

/// R(t) for t = 0 … rows−1 as rows of `stride` cosines and as many sines behind them, growth of a key
/// included. Made from R(16a)·R(b): two short runs of sines instead of one long one.
inline HWY_NOINLINE void fill_step_table(const rotation& turns, index_t rows, index_t stride, float* table) {
  constexpr index_t fine = 16;
  float* const cosines = table;
  float* const sines = table + rows * stride;
  for (index_t t = 0; t < rows; ++t)
    if (t < fine || t % fine == 0)
      token_angles(turns, t, rotation_side::key, 1.0f, 0, cosines + t * stride, sines + t * stride);
  for (index_t t = fine; t < rows; ++t) {
    const index_t b = t % fine, a = t - b;
    if (b == 0) continue;
    for (index_t p = 0; p < turns.pairs(); p += lanes()) {
      const float_vector ca = load(cosines + a * stride + p), sa = load(sines + a * stride + p);
      const float_vector cb = load(cosines + b * stride + p), sb = load(sines + b * stride + p);
      store(hn::MulSub(ca, cb, hn::Mul(sa, sb)), cosines + t * stride + p);
      store(hn::MulAdd(sa, cb, hn::Mul(ca, sb)), sines + t * stride + p);
    }
  }
}

/// (a, b) of `lanes()` pairs from pair p on, in either pairing.
template <class T>
HWY_INLINE void load_pairs(const T* row, pairing layout, index_t pairs, index_t p, float_vector& a,
                           float_vector& b) {
  if (layout == pairing::half_split) {
    a = load_first(row + p, pairs - p);
    b = load_first(row + pairs + p, pairs - p);
    return;
  }
#if HWY_TARGET == HWY_SCALAR
  a = load(row + 2 * p);
  b = load(row + 2 * p + 1);
#else
  const index_t count = 2 * (pairs - p), width = lanes();
  const float_vector low = load_first(row + 2 * p, count);
  const float_vector high =
      count > width ? load_first(row + 2 * p + width, count - width) : hn::Zero(float_tag());
  a = hn::ConcatEven(float_tag(), high, low);
  b = hn::ConcatOdd(float_tag(), high, low);
#endif
}

/// Where a packed head keeps its parts. Each begins on a whole vector, so that whole vectors can be written;
/// the gaps are zeros and add nothing to a product.
struct packed_head {
  index_t pairs = 0;   ///< turning pairs; 0 where the head is copied as it is
  index_t second = 0;  ///< where the second channels of the pairs begin
  index_t rest = 0;    ///< where the channels that do not turn begin
  index_t steps = 0;   ///< length of a product over the packed head
  index_t stride =
      0;  ///< from one packed head to the next, with room for a whole vector behind the last channel
};

HWY_INLINE packed_head packing_of(const rotation* turns, index_t head_dim) {
  packed_head pack;
  if (turns) {
    pack.pairs = turns->pairs();
    pack.second = round_up(pack.pairs, lanes());
    pack.rest = 2 * pack.second;
    head_dim -= turns->width;
  }
  pack.steps = pack.rest + head_dim;
  pack.stride = round_up(pack.steps, lanes()) + lanes();
  return pack;
}

/// Copies `count` channels in whole vectors, zeros behind them.
template <class T>
HWY_INLINE void copy_channels(const T* from, index_t count, float* to) {
  for (index_t c = 0; c < count; c += lanes()) store(load_first(from + c, count - c), to + c);
}

/// Copies the channels that do not turn: those before and behind the rotary slice, closed up.
template <class T>
HWY_INLINE void copy_rest(const T* row, const rotation& turns, index_t head_dim, float* to) {
  const index_t behind = turns.offset + turns.width;
  if (behind < head_dim) copy_channels(row + behind, head_dim - behind, to + turns.offset);
  if (turns.offset == 0) return;
  // The slice before may end inside a vector that already holds channels from behind: element by element
  // there.
  for (index_t c = 0; c < turns.offset; ++c) {
    float_vector one = load_first(row + c, 1);
    to[c] = hn::GetLane(one);
  }
}

/// A key row turned into packed order by the angles base·step (step null: base alone).
template <class T>
HWY_INLINE void rotate_row(const T* row, const rotation& turns, const packed_head& pack, index_t head_dim,
                           const pair_angles& base, const float* step_cos, const float* step_sin, float* to) {
  const T* const slice = row + turns.offset;
  for (index_t p = 0; p < pack.pairs; p += lanes()) {
    float_vector c = load(base.cos + p), s = load(base.sin + p);
    if (step_cos) {
      const float_vector ct = load(step_cos + p), st = load(step_sin + p);
      const float_vector turned = hn::MulSub(c, ct, hn::Mul(s, st));
      s = hn::MulAdd(s, ct, hn::Mul(c, st));
      c = turned;
    }
    float_vector a, b;
    load_pairs(slice, turns.layout, pack.pairs, p, a, b);
    store(hn::MulSub(a, c, hn::Mul(b, s)), to + p);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), to + pack.second + p);
  }
  if (turns.width < head_dim) copy_rest(row, turns, head_dim, to + pack.rest);
}

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
