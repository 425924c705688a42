// SPDX-License-Identifier: MIT
/// \file
/// Rows of keys and values in the kinds that a cache can hold. Included once per instruction set.
///
/// A row is what `row + channel`, load and load_first take: an address of plain numbers, or codes with their scales.
/// Nothing else in the kernels knows how a cache is stored.
#if defined(POSENC_FUSED_ROWS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_ROWS_INL_HPP
#undef POSENC_FUSED_ROWS_INL_HPP
#else
#define POSENC_FUSED_ROWS_INL_HPP
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <posenc/fused/storage/load-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// int8 with a scale for each channel.
struct scaled_by_channel {
  const std::int8_t* codes;
  const float* scales;

  HWY_INLINE scaled_by_channel operator+(index_t channel) const {
    return {codes + channel, scales + channel};
  }
};
HWY_INLINE float_vector load(const scaled_by_channel& from) {
  return hn::Mul(load(from.codes), load(from.scales));
}
HWY_INLINE float_vector load_first(const scaled_by_channel& from, index_t count) {
  return hn::Mul(load_first(from.codes, count), load_first(from.scales, count));
}

/// int8 with one scale.
struct scaled_by_token {
  const std::int8_t* codes;
  float scale;

  HWY_INLINE scaled_by_token operator+(index_t channel) const { return {codes + channel, scale}; }
};
HWY_INLINE float_vector load(const scaled_by_token& from) {
  return hn::Mul(load(from.codes), hn::Set(float_tag(), from.scale));
}
HWY_INLINE float_vector load_first(const scaled_by_token& from, index_t count) {
  return hn::Mul(load_first(from.codes, count), hn::Set(float_tag(), from.scale));
}

/// ggml's blocks of 32 codes, whose scales were made floats before.
struct scaled_by_block {
  const q8_0_block* blocks;
  const float* scales;  ///< of each block
  index_t channel = 0;

  HWY_INLINE scaled_by_block operator+(index_t channels) const {
    return {blocks, scales, channel + channels};
  }
};
/// A vector that lies in more than one block, or ends before its last lane.
inline HWY_NOINLINE float_vector load_of_blocks(const scaled_by_block& from, index_t count) {
  HWY_ALIGN float numbers[HWY_MAX_BYTES / sizeof(float)] = {};
  for (index_t n = 0; n < count; ++n) {
    const index_t channel = from.channel + n, block = channel / q8_0_channels;
    numbers[n] = static_cast<float>(from.blocks[block].codes[channel % q8_0_channels]) * from.scales[block];
  }
  return load(static_cast<const float*>(numbers));
}
HWY_INLINE float_vector load(const scaled_by_block& from) {
  // Unsigned, as divisions are shifts then.
  constexpr auto size = static_cast<std::size_t>(q8_0_channels);
  const auto channel = static_cast<std::size_t>(from.channel), block = channel / size;
  if (channel % size + static_cast<std::size_t>(lanes()) > size) return load_of_blocks(from, lanes());
  const auto* const codes = reinterpret_cast<const std::int8_t*>(from.blocks) + offsetof(q8_0_block, codes);
  return hn::Mul(load(codes + channel + block * (sizeof(q8_0_block) - size)),
                 hn::Set(float_tag(), from.scales[block]));
}
HWY_INLINE float_vector load_first(const scaled_by_block& from, index_t count) {
  return count >= lanes() ? load(from) : load_of_blocks(from, count);
}
/// The scales of a row's blocks, in whole vectors.
HWY_INLINE void read_scales(const q8_0_block* blocks, index_t count, float* scales) {
  HWY_ALIGN float16_bits halves[HWY_MAX_BYTES / sizeof(float)] = {};
  for (index_t b = 0; b < count; b += lanes()) {
    const index_t some = (std::min)(lanes(), count - b);
    for (index_t n = 0; n < some; ++n) std::memcpy(halves + n, &blocks[b + n].scale, sizeof(float16_bits));
    store(load(halves), scales + b);
  }
}

/// Prefetches what lies `distance` bytes after the vector at `channel` of a row that is read in whole vectors; one request
/// per line.
HWY_INLINE void fetch_ahead(const scaled_by_channel& row, index_t channel, index_t distance) {
  fetch_ahead(row.codes, channel, distance);
}
HWY_INLINE void fetch_ahead(const scaled_by_block& row, index_t channel, index_t distance) {
  const index_t at = row.channel + channel;
  if (at % q8_0_channels == 0)
    fetch_ahead(static_cast<const void*>(row.blocks + at / q8_0_channels), distance);
}

/// Calls `with` with the row's address in its own type.
template <class With>
HWY_INLINE void with_row(const tensor& from, index_t token, index_t head, index_t, With&& with) {
  const char* const at = from.row(token, head);
  switch (from.type) {
    case storage::bfloat16:
      return with(reinterpret_cast<const bfloat16_bits*>(at));
    case storage::float16:
      return with(reinterpret_cast<const float16_bits*>(at));
    default:
      return with(reinterpret_cast<const float*>(at));
  }
}

/// The addresses of a block of rows, for head 0.
inline constexpr index_t most_listed = 64;
struct row_list {
  const char* rows[most_listed];
  const char* scales[most_listed];  ///< where they are scaled by groups or tokens
};

/// From one address to another, which may lie in different buffers.
HWY_INLINE index_t bytes_between(const char* from, const char* to) {
  return static_cast<index_t>(reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from));
}

/// Lists rows [first, first + count).
HWY_INLINE void list_rows(const row_layout& from, index_t first, index_t count, row_list& list) {
  from.for_each_row(first, count, [&](index_t n, const char* at) { list.rows[n] = at; });
}
/// Lists the scales of rows [first, first + count), which lie in one piece.
inline HWY_NOINLINE void list_scales(const cache_tensor& from, index_t first, index_t count, row_list& list) {
  const row_layout& scales = from.piece_of(first).scales;
  first = from.row_in_piece(first);
  if (from.type == storage::int8_by_token)
    return scales.for_each_row(first, count, [&](index_t n, const char* at) { list.scales[n] = at; });
  if (from.type != storage::int8_by_channel) return;
  for (index_t n = 0; n < count;) {
    const index_t group = (first + n) / from.group_tokens;
    const char* const at = scales.row(group, 0);
    for (const index_t end = (std::min)(count, (group + 1) * from.group_tokens - first); n < end; ++n)
      list.scales[n] = at;
  }
}

/// The listed rows of one head: `reader(n)` is row n; of_head(h) reads the head that lies h further.
template <class T>
struct plain_reader {
  static constexpr bool loads_parts_fast = loads_parts<T>;
  const row_list& list;
  index_t at, head_bytes;

  HWY_INLINE const T* operator()(index_t n) const { return reinterpret_cast<const T*>(list.rows[n] + at); }
  HWY_INLINE plain_reader of_head(index_t h) const { return {list, at + h * head_bytes, head_bytes}; }
};
struct channel_reader {
  static constexpr bool loads_parts_fast = loads_parts<std::int8_t>;
  const row_list& list;
  index_t at, head_bytes, scales_at, scale_bytes;

  HWY_INLINE scaled_by_channel operator()(index_t n) const {
    return {reinterpret_cast<const std::int8_t*>(list.rows[n] + at),
            reinterpret_cast<const float*>(list.scales[n] + scales_at)};
  }
  HWY_INLINE channel_reader of_head(index_t h) const {
    return {list, at + h * head_bytes, head_bytes, scales_at + h * scale_bytes, scale_bytes};
  }
};
struct block_reader {
  static constexpr bool loads_parts_fast = false;
  const row_list& list;
  index_t at, head_bytes;
  const float* scales;  ///< of the blocks of each row, row by row, head by head
  index_t scale_stride, head_scales;

  HWY_INLINE scaled_by_block operator()(index_t n) const {
    return {reinterpret_cast<const q8_0_block*>(list.rows[n] + at), scales + n * scale_stride};
  }
  HWY_INLINE block_reader of_head(index_t h) const {
    return {list, at + h * head_bytes, head_bytes, scales + h * head_scales, scale_stride, head_scales};
  }
};
/// Floats of scratch that with_reader needs for so many rows of blocks.
HWY_INLINE index_t block_scale_floats(const cache_tensor& from, index_t rows, index_t channels) {
  return from.type == storage::q8_0 ? rows * channels / q8_0_channels + vector_slack : 0;
}
/// The scales of listed rows of blocks, row by row.
inline HWY_NOINLINE void list_block_scales(const row_list& list, index_t head_bytes, index_t rows,
                                           index_t blocks, float* scales) {
  HWY_ALIGN float16_bits halves[HWY_MAX_BYTES / sizeof(float)] = {};
  const auto* row = reinterpret_cast<const q8_0_block*>(list.rows[0] + head_bytes);
  for (index_t n = 0, filled = 0, block = 0, t = 0; n < rows * blocks; ++n) {
    std::memcpy(halves + filled++, &row[block].scale, sizeof(float16_bits));
    if (++block == blocks && ++t < rows)
      block = 0, row = reinterpret_cast<const q8_0_block*>(list.rows[t] + head_bytes);
    if (filled < lanes() && n + 1 < rows * blocks) continue;
    store(load(halves), scales + n + 1 - filled);
    filled = 0;
  }
}

/// The rows of a tensor block by block: the lists of the block at hand, of the next one and of the one after.
class row_walk {
 public:
  /// \param lists three of them
  row_walk(const cache_tensor& of, index_t block, index_t end, row_list* lists)
      : of_(of), block_(block), end_of_rows_(end), lists_(lists) {}

  /// Begins at row `first`. Returns the row at which the piece ends that it lies in; the walk does too.
  HWY_NOINLINE index_t begin(index_t first) {
    piece_ = &of_.piece_of(first);
    end_ = first < of_.before_tokens ? (std::min)(of_.before_tokens, end_of_rows_) : end_of_rows_;
    offset_ = first - of_.row_in_piece(first);
    at_ = 0;
    next_ = first;
    std::fill_n(lists_[2].rows, block_, piece_->rows.row(first - offset_, 0));
    for (index_t n = 0; n < 3; ++n) list_block(lists_[(n + 2) % 3], lists_[n]);
    return end_;
  }
  /// Goes on to the next block.
  HWY_INLINE void move_on() {
    at_ = (at_ + 1) % 3;
    list_block(list(1), list(2));
  }

  /// `ahead` blocks after the one at hand.
  [[nodiscard]] HWY_INLINE row_list& list(index_t ahead) const { return lists_[(at_ + ahead) % 3]; }
  [[nodiscard]] HWY_INLINE const cache_tensor::piece& piece() const { return *piece_; }

  /// Calls `with` with a reader of the first `count` rows at hand, of head `head` and `heads` − 1 more. The scales of
  /// int8_by_token are left out: they belong to weights. \param scratch block_scale_floats for each head
  template <class With>
  HWY_INLINE void with_reader(index_t count, index_t head, index_t heads, index_t channels, float* scratch,
                              With&& with) const {
    const row_list& rows = list(0);
    const index_t step = piece_->rows.head_bytes, at = head * step;
    switch (of_.type) {
      case storage::float32:
        return with(plain_reader<float>{rows, at, step});
      case storage::bfloat16:
        return with(plain_reader<bfloat16_bits>{rows, at, step});
      case storage::float16:
        return with(plain_reader<float16_bits>{rows, at, step});
      case storage::float8_e4m3:
        return with(plain_reader<float8_bits>{rows, at, step});
      case storage::int8_by_token:
        return with(plain_reader<std::int8_t>{rows, at, step});
      case storage::int8_by_channel: {
        const index_t scale_step = piece_->scales.head_bytes;
        return with(channel_reader{rows, at, step, head * scale_step, scale_step});
      }
      case storage::q8_0: {
        const index_t blocks = channels / q8_0_channels, floats = block_scale_floats(of_, count, channels);
        for (index_t h = 0; h < heads; ++h)
          list_block_scales(rows, at + h * step, count, blocks, scratch + h * floats);
        return with(block_reader{rows, at, step, scratch, blocks, floats});
      }
    }
  }

 private:
  /// Lists the next block. Where a row is not there, the one of the list `before` stays: asking for it again costs
  /// nothing.
  HWY_INLINE void list_block(const row_list& before, row_list& list) {
    const index_t count = (std::clamp)(end_ - next_, index_t{0}, block_);
    if (count > 0) list_rows(piece_->rows, next_ - offset_, count, list);
    for (index_t n = count; n < block_; ++n) list.rows[n] = before.rows[n];
    next_ += block_;
  }

  const cache_tensor& of_;
  index_t block_, end_of_rows_;
  row_list* lists_;
  const cache_tensor::piece* piece_ = nullptr;
  index_t at_ = 0, next_ = 0, end_ = 0, offset_ = 0;
};

/// Calls `with` with one row of a cache, scales and all.
template <class With>
HWY_INLINE void with_row(const cache_tensor& from, index_t token, index_t head, index_t channels,
                         With&& with) {
  const char* const at = from.row(token, head);
  const auto scales = [&] { return reinterpret_cast<const float*>(from.scale_row(token, head)); };
  switch (from.type) {
    case storage::float32:
      return with(reinterpret_cast<const float*>(at));
    case storage::bfloat16:
      return with(reinterpret_cast<const bfloat16_bits*>(at));
    case storage::float16:
      return with(reinterpret_cast<const float16_bits*>(at));
    case storage::float8_e4m3:
      return with(reinterpret_cast<const float8_bits*>(at));
    case storage::int8_by_channel:
      return with(scaled_by_channel{reinterpret_cast<const std::int8_t*>(at), scales()});
    case storage::int8_by_token:
      return with(scaled_by_token{reinterpret_cast<const std::int8_t*>(at), *scales()});
    case storage::q8_0: {
      HWY_ALIGN float block_scales[widest_head / q8_0_channels + vector_slack];
      const auto* const blocks = reinterpret_cast<const q8_0_block*>(at);
      read_scales(blocks, channels / q8_0_channels, block_scales);
      return with(scaled_by_block{blocks, block_scales});
    }
  }
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
