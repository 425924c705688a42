// SPDX-License-Identifier: MIT
/// \file
/// What all matrix units have in common: how operands lie in memory, and how floats become pieces of bfloat16. Included
/// once per instruction set.
///
/// A unit multiplies blocks of 2 × 2 tiles, 32 rows by 2·lanes() columns, 32 channels a step:
///
///     A: [piece][row tile][step][16 rows][32]              keys as they lie; values transposed
///     B: [piece][column tile][step][16 pairs][lanes()][2]  queries, weights: words of two consecutive channels or keys
///     C: [row][2·lanes()] floats                           scores [key][query]; output [channel][query]
///
/// x = h₁ + h₂ + h₃, each the nearest bfloat16 of what is left. Products of pieces i and j are summed while
/// i + j < pieces: 1, 3 or 6 of them. Rounding is done in integers, so that all instruction sets agree.
#if defined(POSENC_FUSED_TILES_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_TILES_INL_HPP
#undef POSENC_FUSED_TILES_INL_HPP
#else
#define POSENC_FUSED_TILES_INL_HPP
#endif

#include <algorithm>
#include <cstdint>

#include <posenc/fused/kernels/tile-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Rows of a tile of A, and of the common dimension in a step.
inline constexpr index_t tile_rows = 16, tile_depth = 32;
/// Rows of a block.
inline constexpr index_t block_tile_rows = 2 * tile_rows;
/// Elements of a tile of A, and of one of B.
inline constexpr index_t a_tile_size = tile_rows * tile_depth;
HWY_INLINE index_t b_tile_size() { return tile_depth * lanes(); }
/// Whether operands can be laid out: words are transposed in blocks of lanes() × lanes().
HWY_INLINE bool fits_tiles() { return lanes() <= tile_rows; }

/// One operand of a product, by its first tile. Strides in elements.
struct tile_operand {
  const std::uint16_t* at;
  index_t tile;   ///< from a row or column tile to the next
  index_t piece;  ///< from a piece to the next
};

/// C (+)= A·B of one block.
struct tile_product {
  tile_operand a, b;
  float* c;
  index_t c_row;  ///< floats from one row of C to the next
  index_t steps;
  index_t pieces;
  bool adds;  ///< to what C holds
};

/// Calls with(address of A, of B) for each product of pieces, small ones first.
template <class With>
HWY_INLINE void for_each_product(const tile_product& product, With&& with) {
  for (index_t order = product.pieces - 1; order >= 0; --order)
    for (index_t i = 0; i <= order; ++i)
      with(product.a.at + i * product.a.piece, product.b.at + (order - i) * product.b.piece);
}

/// What has no vector work to do beside tile products.
struct nothing_between {
  HWY_INLINE void step() {}
};

/// The nearest bfloat16 in the upper half of each word, halves away from zero; the lower half is of no use. Halves to even
/// would take three instructions more, and no sum here would tell them apart.
HWY_INLINE auto nearest_bfloat16(float_vector x) {
  const hn::RebindToUnsigned<float_tag> du;
  return hn::Add(hn::BitCast(du, x), hn::Set(du, 0x8000u));
}
/// Of rounded words.
template <class Words>
HWY_INLINE auto upper_halves(Words rounded) {
  const hn::RebindToUnsigned<float_tag> du;
  return hn::And(rounded, hn::Set(du, 0xffff0000u));
}
/// What a rounding has left over.
template <class Words>
HWY_INLINE float_vector rest_of(float_vector x, Words rounded) {
  return hn::Sub(x, hn::BitCast(float_tag(), upper_halves(rounded)));
}
template <class Words>
HWY_INLINE auto words_of(Words low, Words high) {
  return hn::Or(hn::ShiftRight<16>(low), upper_halves(high));
}

/// Two rows of a matrix as words of B, all pieces.
HWY_INLINE void put_words(float_vector low, float_vector high, index_t pieces, index_t piece_stride,
                          std::uint16_t* to) {
  const hn::RebindToUnsigned<float_tag> du;
  for (index_t piece = 0;; to += piece_stride) {
    const auto l = nearest_bfloat16(low), h = nearest_bfloat16(high);
    hn::StoreU(words_of(l, h), du, reinterpret_cast<std::uint32_t*>(to));
    if (++piece == pieces) return;
    low = rest_of(low, l), high = rest_of(high, h);
  }
}

/// A panel of columns, [rows][2·lanes()] floats, as B; zeros up to a whole step.
inline HWY_NOINLINE void cut_columns(const float* from, index_t rows, index_t pieces, index_t piece_stride,
                                     std::uint16_t* to) {
  const index_t width = 2 * lanes(), depth = round_up(rows, tile_depth);
  const auto row = [&](index_t r, index_t x)
                       HWY_ATTR { return r < rows ? load(from + r * width + x) : hn::Zero(float_tag()); };
  for (index_t r = 0; r < depth; r += 2)
    for (index_t x = 0; x < width; x += lanes())
      put_words(row(r, x), row(r + 1, x), pieces, piece_stride, to + x * depth + r * lanes());
}

/// Up to 32 rows of floats as A, zeros up to a whole step and after the last row. `steps` of all rows together lie
/// between the tiles. False where a number has an exponent of `limit` or above.
inline HWY_NOINLINE bool cut_rows(const float* from, index_t stride, index_t rows, index_t channels,
                                  index_t pieces, index_t piece_stride, std::uint32_t limit,
                                  std::uint16_t* to) {
  const float_tag d;
  const hn::RebindToSigned<float_tag> words;
  const hn::Rebind<std::int16_t, float_tag> narrow;
  const index_t steps = round_up(channels, tile_depth) / tile_depth;
  auto largest = exponents_of(hn::Zero(d));
  for (index_t r = 0; r < block_tile_rows; ++r) {
    std::uint16_t* const row = to + r / tile_rows * steps * a_tile_size + r % tile_rows * tile_depth;
    for (index_t c = 0; c < steps * tile_depth; c += lanes()) {
      float_vector x =
          r < rows && c < channels ? load_first(from + r * stride + c, channels - c) : hn::Zero(d);
      largest = hn::Max(largest, exponents_of(x));
      std::uint16_t* at = row + c / tile_depth * a_tile_size + c % tile_depth;
      for (index_t piece = 0;; at += piece_stride) {
        const auto rounded = nearest_bfloat16(x);
        hn::StoreU(hn::DemoteTo(narrow, hn::ShiftRight<16>(hn::BitCast(words, rounded))), narrow,
                   reinterpret_cast<std::int16_t*>(at));
        if (++piece == pieces) break;
        x = rest_of(x, rounded);
      }
    }
  }
  return are_below(limit, largest);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
