// SPDX-License-Identifier: MIT
/// \file
/// Keys or values in ggml's q8_0 blocks, as llama.cpp keeps them: 32 int8 codes and a half-precision scale, 34 bytes.
///
///     const auto blocks = reinterpret_cast<const posenc::q8_0_block*>(tensor->data);
///     const posenc::q8_0_view k{posenc::token_major(blocks, tokens, kv_heads, head_dim / 32)};
///
/// A number reads as code · scale. Rotation mixes a large channel with its partner, so keys lose less when they are
/// quantised before it.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <posenc/cache/paged.hpp>
#include <posenc/cache/quantised.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Channels of a block.
inline constexpr index_t q8_0_channels = 32;

/// ggml's block_q8_0, byte for byte.
struct q8_0_block {
  Eigen::half scale{};                    ///< what the codes are multiplied by
  std::int8_t codes[q8_0_channels] = {};  ///< the numbers
};
static_assert(sizeof(q8_0_block) == 34 && std::is_trivially_copyable_v<q8_0_block>);

/// Heads of whole blocks: channel c of a head is code c % 32 of its block c / 32, times that block's scale. Strides count
/// blocks. Nothing is owned.
struct q8_0_view {
  cache_rows<const q8_0_block> blocks{};  ///< tokens × kv_heads × head_dim / 32
};

namespace detail {

template <>
struct source_traits<q8_0_view> {
  using scalar = float;
  [[nodiscard]] static source_shape shape(const q8_0_view& source) noexcept {
    return {source.blocks.tokens(), source.blocks.heads(), source.blocks.head_dim() * q8_0_channels};
  }
  static void check(const q8_0_view& source, const char* what) { check_rows(source.blocks, what); }
  template <class Work>
  static void read(const q8_0_view& source, index_t token, index_t head, std::span<Work> to) {
    const std::span<const q8_0_block> row = source.blocks(token, head);
    for (std::size_t c = 0; c < to.size(); ++c) {
      const q8_0_block& block = row[c / q8_0_channels];
      to[c] = Work(static_cast<float>(block.codes[c % q8_0_channels]) * static_cast<float>(block.scale));
    }
  }
  template <class Use>
  static void for_each_part(const q8_0_view& source, Use&& use) {
    for_each_part_of(source.blocks, use);
  }
};

}  // namespace detail

/// Quantises rows as ggml's reference does: scale = (largest |x| of the block) / 127, code = x / scale rounded with halves
/// away from zero, and the scale then rounded to half. A number is off by at most scale/2, and by |x|·2^−11 for the
/// rounding of the scale.
/// \param blocks tokens × heads × head_dim / 32
/// \throws std::invalid_argument when head_dim is no multiple of 32, a number is not finite or a scale is beyond half;
/// nothing is written then
template <class S>
void quantise_q8_0(const heads_view<S>& from, const heads_view<q8_0_block>& blocks) {
  constexpr const char* what = "quantise_q8_0";
  detail::check_to_quantise(from, what);
  detail::require(from.head_dim % q8_0_channels == 0, what, ": heads of ", from.head_dim,
                  " channels are not whole blocks of ", q8_0_channels);
  detail::check_view(blocks, what), detail::check_disjoint_rows(blocks, what);
  detail::require(blocks.tokens == from.tokens && blocks.heads == from.heads &&
                      blocks.head_dim * q8_0_channels == from.head_dim,
                  what, ": from ", from.tokens, " x ", from.heads, " x ", from.head_dim, " to ",
                  blocks.tokens, " x ", blocks.heads, " x ", blocks.head_dim, " blocks");
  detail::require(!detail::overlap(from, blocks), what, ": source and destination overlap");
  constexpr float most = 127 * 65504.0f;
  for (index_t t = 0; t < from.tokens; ++t)
    for (index_t h = 0; h < from.heads; ++h)
      for (const auto& x : from(t, h))
        detail::require(std::abs(static_cast<float>(x)) <= most, what, ": ", static_cast<float>(x),
                        " of token ", t, ", head ", h, " is beyond what a scale in half precision carries (",
                        most, ")");
  for (index_t t = 0; t < from.tokens; ++t)
    for (index_t h = 0; h < from.heads; ++h)
      for (std::size_t b = 0; b < static_cast<std::size_t>(blocks.head_dim); ++b) {
        const auto numbers = from(t, h).subspan(b * q8_0_channels, q8_0_channels);
        float largest = 0;
        for (const auto& x : numbers) largest = (std::max)(largest, std::abs(static_cast<float>(x)));
        const float scale = largest / detail::largest_code, inverse = scale > 0 ? 1 / scale : 0;
        q8_0_block& block = blocks(t, h)[b];
        block.scale = Eigen::half(scale);
        for (std::size_t c = 0; c < q8_0_channels; ++c)
          block.codes[c] =
              static_cast<std::int8_t>((std::clamp)(std::round(static_cast<float>(numbers[c]) * inverse),
                                                    -detail::largest_code, detail::largest_code));
      }
}

/// A growing cache of q8_0 blocks that owns its memory.
class q8_0_cache {
 public:
  /// \throws std::invalid_argument when head_dim is no multiple of 32 or a number is not positive
  q8_0_cache(index_t kv_heads, index_t head_dim)
      : heads_(kv_heads), blocks_of_head_(head_dim / q8_0_channels) {
    detail::check_cache(kv_heads, head_dim, "q8_0_cache");
    detail::require(head_dim % q8_0_channels == 0, "q8_0_cache: heads of ", head_dim,
                    " channels are not whole blocks of ", q8_0_channels);
  }

  /// Adds the rows of new tokens. \throws std::invalid_argument as quantise_q8_0 does; the cache is then as it was
  template <class S>
  void append(const heads_view<S>& rows) {
    detail::check_appended(rows, heads_, blocks_of_head_ * q8_0_channels, "q8_0_cache");
    std::vector<q8_0_block> added(static_cast<std::size_t>(rows.tokens * heads_ * blocks_of_head_));
    quantise_q8_0(rows, token_major(added.data(), rows.tokens, heads_, blocks_of_head_));
    blocks_.insert(blocks_.end(), added.begin(), added.end());
    tokens_ += rows.tokens;
  }

  /// What attention takes; valid until the next append.
  [[nodiscard]] q8_0_view view() const noexcept {
    return {token_major(blocks_.data(), tokens_, heads_, blocks_of_head_)};
  }
  /// Rows so far.
  [[nodiscard]] index_t tokens() const noexcept { return tokens_; }

 private:
  index_t heads_, blocks_of_head_, tokens_ = 0;
  std::vector<q8_0_block> blocks_{};
};

}  // namespace posenc::inline v0_2
