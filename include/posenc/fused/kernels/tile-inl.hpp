// SPDX-License-Identifier: MIT
/// \file
/// Tiles of keys and values, and packed queries. Included once per instruction set.
#if defined(POSENC_FUSED_TILE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_TILE_INL_HPP
#undef POSENC_FUSED_TILE_INL_HPP
#else
#define POSENC_FUSED_TILE_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/storage/rotate-inl.hpp>
#include <posenc/fused/storage/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Rows of keys or values that are on their way while one is loaded: about what the third-level cache needs.
inline constexpr index_t tile_rows_ahead = 16;

/// Prefetches the row that lies tile_rows_ahead rows after row t of a tile.
HWY_INLINE void fetch_tile_row(const cache_tensor& from, index_t first, index_t t, index_t count,
                               index_t head, index_t channels) {
  if (t + tile_rows_ahead < count)
    fetch_to_read(from.row(first + t + tile_rows_ahead, head), row_bytes(from.type, channels));
}

/// A row as floats, zeros up to a whole vector.
template <class Tensor>
HWY_INLINE void widen_row(const Tensor& from, index_t token, index_t head, index_t channels, float* to) {
  with_row(from, token, head, channels, [&](const auto& row) HWY_ATTR { copy_channels(row, channels, to); });
}

/// What a problem does to its keys when it loads them.
struct key_loader {
  const attention_problem& problem;
  const rotation* rotary;  ///< null where keys are taken as they are or a callback rotary them
  packed_head pack;
  const float* table;  ///< R(t), table_stride floats per key
  index_t table_stride;

  [[nodiscard]] HWY_INLINE step_angles step(index_t t) const { return {table + t * table_stride}; }

  /// Keys [row, row + count) of a KV head, rotated, as rows of pack.stride. A run of positions shares one base
  /// angle.
  HWY_NOINLINE void load_keys(index_t kv_head, index_t row, index_t count, position growth_origin,
                              float* tile) const {
    if (!rotary) {
      for (index_t t = 0; t < count; ++t) {
        float* const to = tile + t * pack.stride;
        fetch_tile_row(problem.k, row, t, count, kv_head, problem.head_dim);
        widen_row(problem.k, row + t, kv_head, problem.head_dim, to);
        if (problem.callbacks.rotate && !problem.keys_are_rotated)
          problem.callbacks.rotate(problem.callbacks.encoding, to, problem.head_dim, problem.keys[row + t],
                                   problem.keys.place(row + t), rotation_side::key);
      }
      return;
    }
    pair_angles base;
    const bool shared = problem.splits_positions && problem.keys.is_run(row, count);
    for (index_t t = 0; t < count; ++t) {
      if (t == 0 || !shared)
        token_angles(*rotary, place_of(problem.keys, row + t), rotation_side::key,
                     static_cast<float>(rotary->attention_factor), growth_origin, base.cos, base.sin);
      fetch_tile_row(problem.k, row, t, count, kv_head, problem.head_dim);
      with_row(problem.k, row + t, kv_head, problem.head_dim, [&](const auto& from) HWY_ATTR {
        rotate_row(from, *rotary, pack, problem.head_dim, base, shared ? step(t) : step_angles{},
                   tile + t * pack.stride);
      });
    }
  }
};

/// The exponents of x in place, all ones where it is infinite or NaN. By the bits: under -ffast-math the
/// compiler takes for granted that nothing is.
HWY_INLINE auto exponents_of(float_vector x) {
  const hn::RebindToUnsigned<float_tag> du;
  return hn::And(hn::BitCast(du, x), hn::Set(du, 0x7f800000u));
}

/// The exponent of infinities and NaNs in place, and that of 2^60: products of smaller numbers, and their sums, are far
/// from either end of float.
inline constexpr std::uint32_t no_number = 0x7f800000u, huge_number = 0x5d800000u;

/// True when none of these exponents, or the largest of several, reaches `limit`.
template <class Exponents>
HWY_INLINE bool are_below(std::uint32_t limit, Exponents exponents) {
  const hn::RebindToUnsigned<float_tag> du;
  return hn::AllTrue(du, hn::Lt(exponents, hn::Set(du, limit)));
}

/// False when one of `count` floats, whole vectors of them, is infinite or NaN.
HWY_INLINE bool all_finite(const float* from, index_t count) {
  auto exponents = exponents_of(hn::Zero(float_tag()));
  for (index_t n = 0; n < count; n += lanes()) exponents = hn::Max(exponents, exponents_of(load(from + n)));
  return are_below(no_number, exponents);
}

/// Rotates a value or an output in the order of memory, back where `back`, by angles without a factor.
inline HWY_NOINLINE void rotate_value(const rotation& rotary, const token_place& place, bool back,
                                      float* value) {
  pair_angles angles;
  token_angles(rotary, place, rotation_side::key, 1.0f, 0, angles.cos, angles.sin);
  for (index_t p = 0; p < rotary.pairs(); ++p) {
    const auto [first, second] = channels_of_pair(rotary.pairing, rotary.rotary_dim, p);
    float& a = value[rotary.offset + first];
    float& b = value[rotary.offset + second];
    const float x = a, y = b, cosine = angles.cos[p], sine = back ? -angles.sin[p] : angles.sin[p];
    a = x * cosine - y * sine;
    b = x * sine + y * cosine;
  }
}

/// Values [row, row + count) of a KV head as panels of 2·lanes channels, [panel][key][2·lanes] with
/// `keys_per_panel` keys each, zeros after the last channel. Compact panels, because rows of a cache lie a
/// power of two apart more often than not. False when the exponent of one of them reaches `limit`.
inline HWY_NOINLINE bool load_values(const attention_problem& problem, index_t kv_head, index_t row,
                                     index_t count, index_t keys_per_panel, float* tile,
                                     std::uint32_t limit = no_number) {
  const index_t width = 2 * lanes();
  const bool rotates = problem.rotates_values() && !problem.keys_are_rotated;
  auto exponents = exponents_of(hn::Zero(float_tag()));
  for (index_t t = 0; t < count; ++t) {
    fetch_tile_row(problem.v, row, t, count, kv_head, problem.value_dim);
    const auto put = [&](const auto& from) HWY_ATTR {
      for (index_t c = 0; c < problem.value_dim; c += width) {
        float* const to = tile + (c / width * keys_per_panel + t) * width;
        const float_vector low = load_first(from + c, problem.value_dim - c);
        const float_vector high = problem.value_dim - c > lanes()
                                      ? load_first(from + c + lanes(), problem.value_dim - c - lanes())
                                      : hn::Zero(float_tag());
        store(low, to), store(high, to + lanes());
        exponents = hn::Max(exponents, hn::Max(exponents_of(low), exponents_of(high)));
      }
    };
    if (!rotates) {
      with_row(problem.v, row + t, kv_head, problem.value_dim, put);
      continue;
    }
    HWY_ALIGN float natural[widest_head + vector_slack];
    widen_row(problem.v, row + t, kv_head, problem.value_dim, natural);
    rotate_value(*problem.rotary, place_of(problem.keys, row + t), false, natural);
    put(static_cast<const float*>(natural));
  }
  return are_below(limit, exponents);
}

/// Query row `row` of `head`, rotated to its position and multiplied by `factor`, in the order of packed keys.
inline HWY_NOINLINE void load_query(const attention_problem& problem, const key_loader& keys, index_t row,
                                    index_t head, const pair_angles& angles, float factor, float* to) {
  HWY_ALIGN float natural[widest_head + 2 * vector_slack];
  widen_row(problem.q, row, head, problem.head_dim, natural);
  const rotation* const rotary = problem.rotary;
  if (rotary) {
    if (keys.rotary) {
      rotate_row(static_cast<const float*>(natural), *rotary, keys.pack, problem.head_dim, angles, {}, to);
    } else {
      for (index_t p = 0; p < rotary->pairs(); ++p) {
        const auto [first, second] = channels_of_pair(rotary->pairing, rotary->rotary_dim, p);
        float& a = natural[rotary->offset + first];
        float& b = natural[rotary->offset + second];
        const float x = a, y = b;
        a = x * angles.cos[p] - y * angles.sin[p];
        b = x * angles.sin[p] + y * angles.cos[p];
      }
    }
  } else if (problem.callbacks.rotate) {
    problem.callbacks.rotate(problem.callbacks.encoding, natural, problem.head_dim, problem.queries[row],
                             problem.queries.place(row), rotation_side::query);
  }
  const float* const from = keys.rotary ? to : natural;
  const float_vector f = constant(factor);
  for (index_t c = 0; c < keys.pack.steps; c += lanes()) store(hn::Mul(load(from + c), f), to + c);
}

/// What multiplies q·k of a head: the scale, the encoding's own at this position, and the unit of scores (or what
/// the softcap divides by).
HWY_INLINE float query_factor(const attention_problem& problem, index_t head, position query) {
  double factor = problem.scale_of(head);
  if (problem.callbacks.scale) factor *= problem.callbacks.scale(problem.callbacks.encoding, head, query);
  return static_cast<float>(problem.softcap > 0 ? factor / problem.softcap : factor * score_unit);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
