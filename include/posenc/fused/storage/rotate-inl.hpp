// SPDX-License-Identifier: MIT
/// \file
/// Rotating channels in registers. Included once per instruction set.
///
/// A tile of keys at consecutive positions j0 + t is rotated by R(j0 + t) = R(j0)·R(t): R(j0) costs one
/// vectorised sine per pair and tile, R(t) comes from a small table shared by all tiles. No table grows with
/// the context, and the phase of j0 is exact (rope/phase.hpp) at any position.
///
/// Where keys rotate on load, the tile holds a head as [first channels of the pairs | second channels | the
/// rest] whatever the pairing: a dot product does not mind the order as long as queries are packed alike.
#if defined(POSENC_FUSED_ROTATE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_ROTATE_INL_HPP
#undef POSENC_FUSED_ROTATE_INL_HPP
#else
#define POSENC_FUSED_ROTATE_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <posenc/fused/kernels/math-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

inline constexpr index_t most_pairs = widest_head / 2;

/// cos and sin of each pair, what multiplies them included. Written in whole vectors, hence the slack.
struct pair_angles {
  float cos[most_pairs + vector_slack];
  float sin[most_pairs + vector_slack];
};

/// Angles from one phase per pair, the top 32 bits of a turn, rounded.
HWY_INLINE void angles_of_phases(const std::int32_t* phases, index_t pairs, float factor, float* cosines,
                                 float* sines) {
  const hn::RebindToSigned<float_tag> whole;
  for (index_t p = 0; p < pairs; p += lanes()) {
    float_vector c, s;
    cos_sin_of_phase(hn::LoadU(whole, phases + p), c, s);
    store(hn::Mul(c, constant(factor)), cosines + p);
    store(hn::Mul(s, constant(factor)), sines + p);
  }
}

HWY_INLINE std::int32_t top_bits(phase at) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>((at.hi + (std::uint64_t{1} << 31)) >> 32));
}

/// Where a token stands: at a position, or on axes.
struct token_place {
  position token = 0;
  const axis_positions* axes = nullptr;

  [[nodiscard]] HWY_INLINE position of_pair(const rotation& rotary, index_t pair) const {
    return axes ? rotary.position_of(pair, *axes) : rotary.position_of(pair, token);
  }
};
HWY_INLINE token_place place_of(const row_positions& positions, index_t row) {
  return {positions[row], positions.place(row)};
}

/// Below this |position| a product of it and 64 bits of a phase is off by 2^-33 of a turn at most, and one of it and a
/// float frequency is reduced in double.
inline constexpr position near_position = position{1} << 30;

/// The phases of the float32 angles position·frequency, as frameworks round them. Turns are taken off in double: the
/// product with 1/2π in two parts, exact to 2^-50 of a turn.
inline HWY_NOINLINE void framework_phases(const rotation& rotary, const token_place& place,
                                          std::int32_t* phases) {
  constexpr double turns_of_radian = 0.15915494309189535, rest_of_turns = -9.839338337591243e-18;
  for (index_t p = 0; p < rotary.pairs(); ++p) {
    const float angle = static_cast<float>(place.of_pair(rotary, p)) *
                        rotary.framework_frequencies[static_cast<std::size_t>(p)];
    const auto x = static_cast<double>(angle);
    const double whole = std::nearbyint(x * turns_of_radian);
    const double turns = std::fma(x, turns_of_radian, -whole) + x * rest_of_turns;
    phases[p] = static_cast<std::int32_t>(
        static_cast<std::uint32_t>(static_cast<std::int64_t>(std::nearbyint(turns * 0x1p32))));
  }
}

/// True where no pair of a token stands beyond near_position.
HWY_INLINE bool is_near(const rotation& rotary, const token_place& place) {
  const auto is_small = [](position at) { return at > -near_position && at < near_position; };
  if (place.axes) return std::all_of(place.axes->begin(), place.axes->end(), is_small);
  return is_small(place.token) && is_small(place.token + rotary.text_shift);
}

/// The angles of a token. `factor` multiplies cos and sin; the growth of xPos is that of this side between its origin
/// and the token.
inline HWY_NOINLINE void token_angles(const rotation& rotary, const token_place& place, rotation_side side,
                                      float factor, position growth_origin, float* cosines, float* sines) {
  const position token = place.token;
  const index_t pairs = rotary.pairs();
  const bool by_framework = !rotary.framework_frequencies.empty();
  std::int32_t phases[most_pairs + vector_slack];
  if (by_framework && !is_near(rotary, place)) {
    for (index_t p = 0; p < pairs; ++p) {
      const cos_sin<float> angle = rotary.cos_sin_of_place<float>(p, place.of_pair(rotary, p));
      cosines[p] = angle.cos * factor;
      sines[p] = angle.sin * factor;
    }
    for (index_t p = pairs; p < round_up(pairs, lanes()); ++p) cosines[p] = sines[p] = 0;
  } else {
    if (by_framework) {
      framework_phases(rotary, place, phases);
    } else if (!rotary.axis_of_pair.empty() && is_near(rotary, place)) {
      for (index_t p = 0; p < pairs; ++p)
        phases[p] = top_bits({rotary.phase_per_token[static_cast<std::size_t>(p)].hi *
                                  static_cast<std::uint64_t>(place.of_pair(rotary, p)),
                              0});
    } else {
      for (index_t p = 0; p < pairs; ++p)
        phases[p] = top_bits(rotary.phase_per_token[static_cast<std::size_t>(p)] * place.of_pair(rotary, p));
    }
    std::memset(phases + pairs, 0, sizeof(std::int32_t) * vector_slack);
    angles_of_phases(phases, pairs, factor, cosines, sines);
  }
  if (rotary.growth_per_token.empty()) return;
  const double distance =
      static_cast<double>(side == rotation_side::query ? token - growth_origin : growth_origin - token);
  for (index_t p = 0; p < pairs; ++p) {
    const auto growth = static_cast<float>(
        std::exp(static_cast<double>(rotary.growth_per_token[static_cast<std::size_t>(p)]) * distance));
    cosines[p] *= growth;
    sines[p] *= growth;
  }
}

/// Angles of one key inside a block: the cosines of a vector of pairs, their sines, those of the next vector.
struct step_angles {
  const float* row = nullptr;
  [[nodiscard]] HWY_INLINE float_vector cos(index_t pair) const { return load(row + 2 * pair); }
  [[nodiscard]] HWY_INLINE float_vector sin(index_t pair) const { return load(row + 2 * pair + lanes()); }
};

/// Floats from one row of a table of such angles to the next.
HWY_INLINE index_t step_stride(const rotation& rotary) { return 2 * round_up(rotary.pairs(), lanes()); }

HWY_INLINE void store_step(index_t pair, float_vector cosine, float_vector sine, float* row) {
  store(cosine, row + 2 * pair);
  store(sine, row + 2 * pair + lanes());
}

/// (x, y) rotated by the angle of that cosine and sine. The cosine and sine of an angle are such a pair too:
/// rotating them adds the angles.
HWY_INLINE void rotate_pair(float_vector& x, float_vector& y, float_vector cosine, float_vector sine) {
  const float_vector first = hn::MulSub(x, cosine, hn::Mul(y, sine));
  y = hn::MulAdd(x, sine, hn::Mul(y, cosine));
  x = first;
}

/// R(t) for t = 0 … rows−1, growth of a key included, `stride` floats per key. Made from R(8a)·R(b): two short runs of
/// sines instead of one long one. Their phases are sums of 64-bit fractions of a turn, off by 2^−57 at most.
inline HWY_NOINLINE void fill_step_table(const rotation& rotary, index_t rows, index_t stride, float* table) {
  constexpr index_t fine = 8;
  const index_t pairs = rotary.pairs();
  const bool grows = !rotary.growth_per_token.empty();
  pair_angles angles;
  std::uint64_t at[most_pairs], each[most_pairs];
  std::int32_t top[most_pairs + vector_slack];
  std::fill_n(top + pairs, vector_slack, 0);
  for (index_t p = 0; p < pairs; ++p) {
    at[p] = 0;
    each[p] = rotary.phase_per_token[static_cast<std::size_t>(p)].hi;
  }
  for (index_t t = 0; t < rows; t += t < fine ? 1 : fine) {
    if (grows) {
      token_angles(rotary, {t, nullptr}, rotation_side::key, 1.0f, 0, angles.cos, angles.sin);
    } else {
      if (t == fine)  // from here on `fine` tokens a step
        for (index_t p = 0; p < pairs; ++p)
          each[p] = (rotary.phase_per_token[static_cast<std::size_t>(p)] * fine).hi;
      for (index_t p = 0; p < pairs; ++p) {
        top[p] =
            static_cast<std::int32_t>(static_cast<std::uint32_t>((at[p] + (std::uint64_t{1} << 31)) >> 32));
        at[p] += each[p];
      }
      angles_of_phases(top, pairs, 1.0f, angles.cos, angles.sin);
    }
    for (index_t p = 0; p < pairs; p += lanes())
      store_step(p, load(angles.cos + p), load(angles.sin + p), table + t * stride);
  }
  for (index_t t = fine; t < rows; ++t) {
    const index_t b = t % fine;
    if (b == 0) continue;
    const step_angles begin{table + (t - b) * stride}, rest{table + b * stride};
    for (index_t p = 0; p < pairs; p += lanes()) {
      float_vector c = rest.cos(p), s = rest.sin(p);
      rotate_pair(c, s, begin.cos(p), begin.sin(p));
      store_step(p, c, s, table + t * stride);
    }
  }
}

/// The first and the second of every two neighbours in low and high.
HWY_INLINE void split_neighbours(float_vector low, float_vector high, float_vector& a, float_vector& b) {
#if HWY_TARGET == HWY_SCALAR
  a = low, b = high;
#else
  a = hn::ConcatEven(float_tag(), high, low);
  b = hn::ConcatOdd(float_tag(), high, low);
#endif
}

/// (a, b) of `lanes()` pairs from pair p on, all of them in the row.
template <pairing Layout, class Row>
HWY_INLINE void load_whole_pairs(const Row& row, index_t pairs, index_t p, float_vector& a, float_vector& b) {
  if constexpr (Layout == pairing::half_split)
    a = load(row + p), b = load(row + pairs + p);
  else
    split_neighbours(load(row + 2 * p), load(row + 2 * p + lanes()), a, b);
}

/// The same with zeros after the last pair.
template <class Row>
HWY_INLINE void load_pairs(const Row& row, posenc::pairing pairing, index_t pairs, index_t p, float_vector& a,
                           float_vector& b) {
  if (pairing == posenc::pairing::half_split) {
    a = load_first(row + p, pairs - p);
    b = load_first(row + pairs + p, pairs - p);
    return;
  }
  const index_t count = 2 * (pairs - p), width = lanes();
  split_neighbours(load_first(row + 2 * p, count),
                   count > width ? load_first(row + 2 * p + width, count - width) : hn::Zero(float_tag()), a,
                   b);
}

/// Where a packed head keeps its parts. Each begins on a whole vector, so that whole vectors can be read and
/// written; the gaps are zeros and add nothing to a product.
struct packed_head {
  index_t pairs = 0;   ///< rotating pairs; 0 where the head is copied as it is
  index_t second = 0;  ///< where the second channels of the pairs begin
  index_t before = 0;  ///< where the channels before the rotary slice begin
  index_t behind = 0;  ///< where those after it begin
  index_t steps = 0;   ///< length of a product over the packed head
  index_t stride = 0;  ///< from one packed head to the next: steps in whole vectors and one more to spare
};

HWY_INLINE packed_head packing_of(const rotation* rotary, index_t head_dim) {
  packed_head pack;
  if (rotary) {
    pack.pairs = rotary->pairs();
    pack.second = round_up(pack.pairs, lanes());
    pack.before = 2 * pack.second;
    pack.behind = pack.before + round_up(rotary->offset, lanes());
    head_dim -= rotary->offset + rotary->rotary_dim;
  }
  pack.steps = pack.behind + head_dim;
  pack.stride = round_up(pack.steps, lanes()) + lanes();
  return pack;
}

/// Copies `count` channels in whole vectors, zeros after them.
template <class Row>
HWY_INLINE void copy_channels(const Row& from, index_t count, float* to) {
  for (index_t c = 0; c < count; c += lanes()) store(load_first(from + c, count - c), to + c);
}

/// A key row rotated into packed order by the angles base·step (no step: base alone).
template <class Row>
HWY_INLINE void rotate_row(const Row& row, const rotation& rotary, const packed_head& pack, index_t head_dim,
                           const pair_angles& base, const step_angles& step, float* to) {
  const auto slice = row + rotary.offset;
  for (index_t p = 0; p < pack.pairs; p += lanes()) {
    float_vector c = load(base.cos + p), s = load(base.sin + p);
    if (step.row) {
      float_vector step_c = step.cos(p), step_s = step.sin(p);
      rotate_pair(step_c, step_s, c, s);
      c = step_c, s = step_s;
    }
    float_vector a, b;
    load_pairs(slice, rotary.pairing, pack.pairs, p, a, b);
    rotate_pair(a, b, c, s);
    store(a, to + p);
    store(b, to + pack.second + p);
  }
  const index_t behind = rotary.offset + rotary.rotary_dim;
  copy_channels(row, rotary.offset, to + pack.before);
  copy_channels(row + behind, head_dim - behind, to + pack.behind);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
