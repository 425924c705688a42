// SPDX-License-Identifier: MIT
/// \file
/// Scores of a few rows against keys as they lie in memory. Included once per instruction set.
#if defined(POSENC_FUSED_DOT_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_DOT_INL_HPP
#undef POSENC_FUSED_DOT_INL_HPP
#else
#define POSENC_FUSED_DOT_INL_HPP
#endif

#include <algorithm>
#include <array>

#include <posenc/fused/kernels/tile-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Rows that a key meets at once. Their scores lie side by side, so that a vector holds a few keys' scores of
/// every row, and what follows is done for all rows together.
inline constexpr index_t decode_group = HWY_TARGET == HWY_SCALAR ? 1 : 4;

/// Sums of neighbouring lanes, first those of `low`, then those of `high`.
HWY_INLINE float_vector fold(float_vector low, float_vector high) {
  float_vector even, odd;
  split_neighbours(low, high, even, odd);
  return hn::Add(even, odd);
}

/// The angles of the keys of a block, `stride` floats each.
struct key_table {
  const float* angles;
  index_t stride;

  [[nodiscard]] HWY_INLINE step_angles step(index_t t) const { return {angles + t * stride}; }
};

/// How a key's channels are walked through: pairs from `offset` on, the others before it and from `behind` on.
struct key_parts {
  packed_head pack;
  index_t width, pairs, whole_pairs, offset, behind, head_dim;
};
HWY_INLINE key_parts parts_of_key(const key_loader& keys) {
  const index_t width = lanes(), pairs = keys.pack.pairs, offset = pairs > 0 ? keys.rotary->offset : 0;
  return {keys.pack, width, pairs, pairs / width * width, offset, offset + 2 * pairs, keys.problem.head_dim};
}

/// Prefetches both vectors of the pairs from p on.
template <pairing Layout, class Row>
HWY_INLINE void fetch_pairs_ahead(const Row& slice, const key_parts& of, index_t p, index_t ahead) {
  fetch_ahead(slice, Layout == pairing::half_split ? p : 2 * p, ahead);
  fetch_ahead(slice, Layout == pairing::half_split ? of.pairs + p : 2 * p + of.width, ahead);
}

/// q_r · k_t, r < Rows, for `count` keys as they lie in memory, rotated by rows 0, 1, … of the table, and packed
/// queries (decode_task::rotated_row): a vector per key into `sums`, lanes()/decode_group parts of each row's sum.
/// One key after the other, in the order of memory; the row that takes its place in the next block (`next`) is
/// prefetched meanwhile. Whole vectors first: no branch is left in the loops, and every sum stays in a register.
template <int Rows, pairing Layout, class Reader>
HWY_NOINLINE void dot_keys(const key_loader& keys, const key_table& table, const Reader& reader,
                           index_t count, const float* q, float* sums, const row_list& next) {
  static_assert(Rows >= 1 && Rows <= decode_group);
  const key_parts parts = parts_of_key(keys);
  const auto& [pack, width, pairs, whole_pairs, offset, behind, head_dim] = parts;
  const float* const q_second = q + pack.second * decode_group;
  const float_vector zero = hn::Zero(float_tag());

#define POSENC_FOR_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define POSENC_ADD_PAIR(r)                                                     \
  if constexpr (Rows > r) {                                                    \
    s##r = hn::MulAdd(a, load(q + p * decode_group + r * width), s##r);        \
    s##r = hn::MulAdd(b, load(q_second + p * decode_group + r * width), s##r); \
  }
#define POSENC_ADD_REST(r) \
  if constexpr (Rows > r) s##r = hn::MulAdd(x, load(q_row + c * decode_group + r * width), s##r);

// `channels` channels from `from` on that do not rotate.
#define POSENC_ADD_PLAIN_CHANNELS(from, to, channels)           \
  {                                                             \
    const auto row = key + (from);                              \
    const float* const q_row = q + (to)*decode_group;           \
    const index_t whole = (channels) / width * width;           \
    for (index_t c = 0; c < whole; c += width) {                \
      const float_vector x = load(row + c);                     \
      POSENC_FOR_EACH_ROW(POSENC_ADD_REST)                      \
      fetch_ahead(row, c, ahead);                               \
    }                                                           \
    if (const index_t c = whole; c < (channels)) {              \
      const float_vector x = load_first(row + c, (channels)-c); \
      POSENC_FOR_EACH_ROW(POSENC_ADD_REST)                      \
    }                                                           \
  }

  for (index_t t = 0; t < count; ++t, sums += width) {
    const step_angles step = table.step(t);
    const auto key = reader(t);
    const auto slice = key + offset;
    const index_t ahead = bytes_between(reader.list.rows[t], next.rows[t]);
    float_vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, a, b;
    for (index_t p = 0; p < whole_pairs; p += width) {
      load_whole_pairs<Layout>(slice, pairs, p, a, b);
      float_vector cosine = step.cos(p), sine = step.sin(p);
      keep_in_register(a), keep_in_register(b), keep_in_register(cosine), keep_in_register(sine);
      rotate_pair(a, b, cosine, sine);
      POSENC_FOR_EACH_ROW(POSENC_ADD_PAIR)
      fetch_pairs_ahead<Layout>(slice, parts, p, ahead);
    }
    if (const index_t p = whole_pairs; p < pairs) {
      load_pairs(slice, Layout, pairs, p, a, b);
      rotate_pair(a, b, step.cos(p), step.sin(p));
      POSENC_FOR_EACH_ROW(POSENC_ADD_PAIR)
    }
    if (offset > 0) POSENC_ADD_PLAIN_CHANNELS(0, pack.before, offset)
    if (behind < head_dim) POSENC_ADD_PLAIN_CHANNELS(behind, pack.behind, head_dim - behind)
    if constexpr (decode_group == 1)
      store(s0, sums);
    else
      store(fold(fold(s0, s1), fold(s2, s3)), sums);
  }

#undef POSENC_ADD_PLAIN_CHANNELS
#undef POSENC_ADD_REST
#undef POSENC_ADD_PAIR
#undef POSENC_FOR_EACH_ROW
}

/// The same for one row of each of `Heads` KV heads, whose keys share a token's angles: row r is the query of head r of
/// the reader. A vector then holds a few keys' scores of every head.
template <int Heads, pairing Layout, class Reader>
HWY_NOINLINE void dot_heads(const key_loader& keys, const key_table& table, const Reader& reader,
                            index_t count, const float* q, float* sums, const row_list& next) {
  static_assert(Heads >= 1 && Heads <= decode_group);
  const key_parts parts = parts_of_key(keys);
  const auto& [pack, width, pairs, whole_pairs, offset, behind, head_dim] = parts;
  const float* const q_second = q + pack.second * decode_group;
  const float_vector zero = hn::Zero(float_tag());
  const Reader reader0 = reader, reader1 = reader.of_head(Heads > 1 ? 1 : 0),
               reader2 = reader.of_head(Heads > 2 ? 2 : 0), reader3 = reader.of_head(Heads > 3 ? 3 : 0);

#define POSENC_FOR_EACH_HEAD(DO) DO(0) DO(1) DO(2) DO(3)
#define POSENC_ADD_PAIRS(r, LOAD)                                              \
  if constexpr (Heads > r) {                                                   \
    const auto slice = reader##r(t) + offset;                                  \
    float_vector a, b;                                                         \
    LOAD;                                                                      \
    rotate_pair(a, b, cosine, sine);                                           \
    s##r = hn::MulAdd(a, load(q + p * decode_group + r * width), s##r);        \
    s##r = hn::MulAdd(b, load(q_second + p * decode_group + r * width), s##r); \
    fetch_pairs_ahead<Layout>(slice, parts, p, ahead);                         \
  }
#define POSENC_ADD_WHOLE(r) POSENC_ADD_PAIRS(r, (load_whole_pairs<Layout>(slice, pairs, p, a, b)))
#define POSENC_ADD_LAST(r) POSENC_ADD_PAIRS(r, (load_pairs(slice, Layout, pairs, p, a, b)))
#define POSENC_ADD_REST(r)                                                                                  \
  if constexpr (Heads > r) {                                                                                \
    const auto row = reader##r(t) + from;                                                                   \
    s##r = hn::MulAdd(load_first(row + c, channels - c), load(q_row + c * decode_group + r * width), s##r); \
    fetch_ahead(row, c, ahead);                                                                             \
  }

  for (index_t t = 0; t < count; ++t, sums += width) {
    const step_angles step = table.step(t);
    const index_t ahead = bytes_between(reader.list.rows[t], next.rows[t]);
    float_vector s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    for (index_t p = 0; p < whole_pairs; p += width) {
      float_vector cosine = step.cos(p), sine = step.sin(p);
      keep_in_register(cosine), keep_in_register(sine);
      POSENC_FOR_EACH_HEAD(POSENC_ADD_WHOLE)
    }
    if (const index_t p = whole_pairs; p < pairs) {
      const float_vector cosine = step.cos(p), sine = step.sin(p);
      POSENC_FOR_EACH_HEAD(POSENC_ADD_LAST)
    }
    // Channels that do not rotate, before and after those that do.
    for (const auto& [from, to, channels] :
         {std::array{index_t{0}, pack.before, offset}, std::array{behind, pack.behind, head_dim - behind}}) {
      const float* const q_row = q + to * decode_group;
      for (index_t c = 0; c < channels; c += width) {
        POSENC_FOR_EACH_HEAD(POSENC_ADD_REST)
      }
    }
    if constexpr (decode_group == 1)
      store(s0, sums);
    else
      store(fold(fold(s0, s1), fold(s2, s3)), sums);
  }

#undef POSENC_ADD_REST
#undef POSENC_ADD_LAST
#undef POSENC_ADD_WHOLE
#undef POSENC_ADD_PAIRS
#undef POSENC_FOR_EACH_HEAD
}

/// dot_heads for a number of heads known at run time.
template <pairing Layout, class Reader>
HWY_INLINE void dot_some_heads(index_t heads, const key_loader& keys, const key_table& table,
                               const Reader& reader, index_t count, const float* q, float* sums,
                               const row_list& next) {
  if constexpr (decode_group > 1) {
    if (heads == 4) return dot_heads<4, Layout>(keys, table, reader, count, q, sums, next);
    if (heads == 3) return dot_heads<3, Layout>(keys, table, reader, count, q, sums, next);
    if (heads == 2) return dot_heads<2, Layout>(keys, table, reader, count, q, sums, next);
  }
  return dot_heads<1, Layout>(keys, table, reader, count, q, sums, next);
}

/// dot_keys for a number of rows known at run time.
template <pairing Layout, class Reader>
HWY_INLINE void dot_rows(index_t rows, const key_loader& keys, const key_table& table, const Reader& reader,
                         index_t count, const float* q, float* sums, const row_list& next) {
  if (rows == 1) return dot_keys<1, Layout>(keys, table, reader, count, q, sums, next);
  if constexpr (decode_group > 1) {
    if (rows == 2) return dot_keys<2, Layout>(keys, table, reader, count, q, sums, next);
    if (rows == 3) return dot_keys<3, Layout>(keys, table, reader, count, q, sums, next);
    return dot_keys<4, Layout>(keys, table, reader, count, q, sums, next);
  }
}

/// Adds up what dot_keys left of `count` keys in `sums`, which is used up: scores [key][decode_group].
inline HWY_NOINLINE void add_parts(float* sums, index_t count, float* scores) {
  const index_t width = lanes(), at_once = width / decode_group;
  if (at_once <= 1) return;  // sums and scores are the same
  index_t vectors = round_up(count, at_once);
  std::fill_n(sums + count * width, (vectors - count) * width, 0.0f);
  for (index_t parts = at_once; parts > 1; parts /= 2) {
    vectors /= 2;
    float* const to = parts == 2 ? scores : sums;
    for (index_t n = 0; n < vectors; ++n)
      store(fold(load(sums + 2 * n * width), load(sums + (2 * n + 1) * width)), to + n * width);
  }
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
