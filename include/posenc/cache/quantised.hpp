// SPDX-License-Identifier: MIT
/// \file
/// Keys and values in one byte: int8 with scales. Keys have a scale per channel and group of tokens, because a few of
/// their channels are much larger than the rest; values have one per token, because no channel of theirs is (Liu et al.
/// 2024, KIVI, arXiv:2402.02750). That works before rotation only, which mixes a large channel with its partner: a
/// cache of unrotated keys can do it.
///
///     posenc::quantised_key_cache keys(kv_heads, head_dim);
///     posenc::quantised_value_cache values(kv_heads, head_dim);
///     keys.append(k_of_new_tokens), values.append(v_of_new_tokens);   // as often as there are new tokens
///     posenc::fused::attention_into(q, keys.view(), values.view(), rope, options, out);
///
/// A number x becomes the code round(x / s) with s = (largest |x| under this scale) / 127 and reads as code·s: it is off
/// by at most s/2, and by the rounding of float. The kernels read codes as they are; no wider copy is made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <posenc/cache/paged.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Tokens that share the scales of a key's channels, where nothing else is said.
inline constexpr index_t usual_group_tokens = 64;

/// Keys as int8 codes: channel c of head h of token t is codes(t, h)[c] · scales(t / group_tokens, h)[c]. Only before
/// rotation; nothing is owned. In pages, a page of scales belongs to a page of codes: page_tokens / group_tokens rows.
struct quantised_keys {
  cache_rows<const std::int8_t> codes{};      ///< tokens × kv_heads × head_dim
  cache_rows<const float> scales{};           ///< groups × kv_heads × head_dim, finite
  index_t group_tokens = usual_group_tokens;  ///< tokens that share a scale
};

/// Values as int8 codes: channel c of head h of token t is codes(t, h)[c] · scales(t, h)[0]. Nothing is owned.
struct quantised_values {
  cache_rows<const std::int8_t> codes{};  ///< tokens × kv_heads × value_dim
  cache_rows<const float> scales{};       ///< tokens × kv_heads × 1, finite
};

namespace detail {

[[nodiscard]] inline index_t groups_of(index_t tokens, index_t group_tokens) noexcept {
  return tokens / group_tokens + (tokens % group_tokens != 0 ? 1 : 0);
}

inline void check_scales(const cache_rows<const float>& scales, index_t rows, index_t heads, index_t channels,
                         const char* what) {
  check_rows(scales, what);
  require(scales.tokens() >= rows && scales.heads() == heads && scales.head_dim() == channels, what,
          ": the scales are ", scales.tokens(), " x ", scales.heads(), " x ", scales.head_dim(),
          ", needed are ", rows, " x ", heads, " x ", channels);
}

template <>
struct source_traits<quantised_keys> {
  using scalar = float;
  [[nodiscard]] static source_shape shape(const quantised_keys& source) noexcept {
    return {source.codes.tokens(), source.codes.heads(), source.codes.head_dim()};
  }
  static void check(const quantised_keys& source, const char* what) {
    check_rows(source.codes, what);
    require(source.group_tokens >= 1, what, ": groups of ", source.group_tokens, " tokens");
    check_scales(source.scales, groups_of(source.codes.tokens(), source.group_tokens), source.codes.heads(),
                 source.codes.head_dim(), what);
  }
  template <class Work>
  static void read(const quantised_keys& source, index_t token, index_t head, std::span<Work> to) {
    const std::span<const std::int8_t> codes = source.codes(token, head);
    const std::span<const float> scales = source.scales(token / source.group_tokens, head);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] = Work(static_cast<float>(codes[c]) * scales[c]);
  }
  template <class Use>
  static void for_each_part(const quantised_keys& source, Use&& use) {
    for_each_part_of(source.codes, use), for_each_part_of(source.scales, use);
  }
};

template <>
struct source_traits<quantised_values> {
  using scalar = float;
  [[nodiscard]] static source_shape shape(const quantised_values& source) noexcept {
    return {source.codes.tokens(), source.codes.heads(), source.codes.head_dim()};
  }
  static void check(const quantised_values& source, const char* what) {
    check_rows(source.codes, what);
    check_scales(source.scales, source.codes.tokens(), source.codes.heads(), 1, what);
  }
  template <class Work>
  static void read(const quantised_values& source, index_t token, index_t head, std::span<Work> to) {
    const std::span<const std::int8_t> codes = source.codes(token, head);
    const float scale = source.scales(token, head)[0];
    for (std::size_t c = 0; c < to.size(); ++c) to[c] = Work(static_cast<float>(codes[c]) * scale);
  }
  template <class Use>
  static void for_each_part(const quantised_values& source, Use&& use) {
    for_each_part_of(source.codes, use), for_each_part_of(source.scales, use);
  }
};

/// Largest |x|, which codes of int8 make 127.
inline constexpr float largest_code = 127;

/// The code of x under a scale; 0 where the scale is.
[[nodiscard]] inline std::int8_t code_of(float x, float scale) noexcept {
  return scale > 0
             ? static_cast<std::int8_t>((std::clamp)(std::nearbyint(x / scale), -largest_code, largest_code))
             : std::int8_t{0};
}

/// Rows that are to be quantised: finite, or nothing is written.
template <class S>
void check_to_quantise(const heads_view<S>& from, const char* what) {
  check_view(from, what);
  for (index_t t = 0; t < from.tokens; ++t)
    for (index_t h = 0; h < from.heads; ++h)
      for (index_t c = 0; c < from.head_dim; ++c) {
        const auto x = static_cast<float>(from(t, h)[static_cast<std::size_t>(c)]);
        require(is_finite(x), what, ": channel ", c, " of head ", h, " of token ", t, " is ", x,
                "; only finite numbers can be quantised");
      }
}

template <class A, class B>
void check_same_shape(const heads_view<A>& from, const heads_view<B>& to, const char* what) {
  check_view(to, what), check_disjoint_rows(to, what);
  require(from.tokens == to.tokens && from.heads == to.heads && from.head_dim == to.head_dim, what, ": from ",
          from.tokens, " x ", from.heads, " x ", from.head_dim, " to ", to.tokens, " x ", to.heads, " x ",
          to.head_dim);
  require(!overlap(from, to), what, ": source and destination overlap");
}

}  // namespace detail

/// Quantises keys, one scale per channel and group of tokens; the last group may be short.
/// \param codes tokens × kv_heads × head_dim
/// \param scales groups × kv_heads × head_dim
/// \throws std::invalid_argument also for numbers that are not finite; nothing is written then
template <class S>
void quantise_keys(const heads_view<S>& keys, const heads_view<std::int8_t>& codes,
                   const heads_view<float>& scales, index_t group_tokens = usual_group_tokens) {
  constexpr const char* what = "quantise_keys";
  detail::require(group_tokens >= 1, what, ": groups of ", group_tokens, " tokens");
  detail::check_to_quantise(keys, what);
  detail::check_same_shape(keys, codes, what);
  const index_t groups = detail::groups_of(keys.tokens, group_tokens);
  detail::check_view(scales, what), detail::check_disjoint_rows(scales, what);
  detail::require(scales.tokens == groups && scales.heads == keys.heads && scales.head_dim == keys.head_dim,
                  what, ": the scales are ", scales.tokens, " x ", scales.heads, " x ", scales.head_dim,
                  ", needed are ", groups, " x ", keys.heads, " x ", keys.head_dim);
  detail::require(!detail::overlap(keys, scales) && !detail::overlap(codes, scales), what,
                  ": the scales overlap keys or codes in memory");
  for (index_t g = 0; g < groups; ++g) {
    const index_t first = g * group_tokens, end = (std::min)(first + group_tokens, keys.tokens);
    for (index_t h = 0; h < keys.heads; ++h)
      for (std::size_t c = 0; c < static_cast<std::size_t>(keys.head_dim); ++c) {
        float largest = 0;
        for (index_t t = first; t < end; ++t)
          largest = (std::max)(largest, std::abs(static_cast<float>(keys(t, h)[c])));
        const float scale = largest / detail::largest_code;
        scales(g, h)[c] = scale;
        for (index_t t = first; t < end; ++t)
          codes(t, h)[c] = detail::code_of(static_cast<float>(keys(t, h)[c]), scale);
      }
  }
}

/// Quantises values, one scale per token and head.
/// \param codes tokens × kv_heads × value_dim
/// \param scales tokens × kv_heads × 1
/// \throws std::invalid_argument also for numbers that are not finite; nothing is written then
template <class S>
void quantise_values(const heads_view<S>& values, const heads_view<std::int8_t>& codes,
                     const heads_view<float>& scales) {
  constexpr const char* what = "quantise_values";
  detail::check_to_quantise(values, what);
  detail::check_same_shape(values, codes, what);
  detail::check_view(scales, what), detail::check_disjoint_rows(scales, what);
  detail::require(scales.tokens == values.tokens && scales.heads == values.heads && scales.head_dim == 1,
                  what, ": the scales are ", scales.tokens, " x ", scales.heads, " x ", scales.head_dim,
                  ", needed are ", values.tokens, " x ", values.heads, " x 1");
  detail::require(!detail::overlap(values, scales) && !detail::overlap(codes, scales), what,
                  ": the scales overlap values or codes in memory");
  for (index_t t = 0; t < values.tokens; ++t)
    for (index_t h = 0; h < values.heads; ++h) {
      float largest = 0;
      for (const auto& x : values(t, h)) largest = (std::max)(largest, std::abs(static_cast<float>(x)));
      const float scale = largest / detail::largest_code;
      scales(t, h)[0] = scale;
      for (std::size_t c = 0; c < static_cast<std::size_t>(values.head_dim); ++c)
        codes(t, h)[c] = detail::code_of(static_cast<float>(values(t, h)[c]), scale);
    }
}

namespace detail {

/// The shape of what a cache grows by. \throws std::invalid_argument
template <class S>
void check_appended(const heads_view<S>& rows, index_t heads, index_t channels, const char* what) {
  require(rows.heads == heads && rows.head_dim == channels, what, ": rows of ", rows.heads, " x ",
          rows.head_dim, " for a cache of ", heads, " x ", channels);
}

inline void check_cache(index_t heads, index_t channels, const char* what) {
  require(heads >= 1 && channels >= 1, what, ": ", heads, " heads of ", channels, " channels");
}

}  // namespace detail

/// A growing cache of quantised keys that owns its memory. The group that is not full yet is kept in float as well and
/// quantised anew with each append, so that the error bound holds for every key.
class quantised_key_cache {
 public:
  /// \throws std::invalid_argument when a number is not positive
  quantised_key_cache(index_t kv_heads, index_t head_dim, index_t group_tokens = usual_group_tokens)
      : heads_(kv_heads), channels_(head_dim), group_tokens_(group_tokens) {
    detail::check_cache(kv_heads, head_dim, "quantised_key_cache");
    detail::require(group_tokens >= 1, "quantised_key_cache: groups of ", group_tokens, " tokens");
  }

  /// Adds the keys of new tokens, not rotated.
  /// \throws std::invalid_argument when they do not fit or are not finite; the cache is then as it was
  template <class S>
  void append(const heads_view<S>& keys) {
    detail::check_appended(keys, heads_, channels_, "quantised_key_cache");
    detail::check_to_quantise(keys, "quantised_key_cache");
    const auto row = static_cast<std::size_t>(heads_ * channels_);
    for (index_t t = 0; t < keys.tokens; ++t) {
      if (tokens_ % group_tokens_ == 0) open_.clear();
      for (index_t h = 0; h < heads_; ++h)
        for (const auto& x : keys(t, h)) open_.push_back(static_cast<float>(x));
      ++tokens_;
      if (tokens_ % group_tokens_ != 0 && t + 1 < keys.tokens) continue;
      const index_t group = (tokens_ - 1) / group_tokens_, first = group * group_tokens_;
      codes_.resize(static_cast<std::size_t>(tokens_) * row);
      scales_.resize(static_cast<std::size_t>(group + 1) * row);
      quantise_keys(
          token_major(static_cast<const float*>(open_.data()), tokens_ - first, heads_, channels_),
          token_major(codes_.data() + static_cast<std::size_t>(first) * row, tokens_ - first, heads_,
                      channels_),
          token_major(scales_.data() + static_cast<std::size_t>(group) * row, index_t{1}, heads_, channels_),
          group_tokens_);
    }
  }

  /// What attention takes; valid until the next append.
  [[nodiscard]] quantised_keys view() const noexcept {
    return {token_major(codes_.data(), tokens_, heads_, channels_),
            token_major(scales_.data(), detail::groups_of(tokens_, group_tokens_), heads_, channels_),
            group_tokens_};
  }
  /// Rows so far.
  [[nodiscard]] index_t tokens() const noexcept { return tokens_; }

 private:
  index_t heads_, channels_, group_tokens_, tokens_ = 0;
  std::vector<std::int8_t> codes_{};
  std::vector<float> scales_{}, open_{};
};

/// A growing cache of quantised values that owns its memory.
class quantised_value_cache {
 public:
  /// \throws std::invalid_argument when a number is not positive
  quantised_value_cache(index_t kv_heads, index_t value_dim) : heads_(kv_heads), channels_(value_dim) {
    detail::check_cache(kv_heads, value_dim, "quantised_value_cache");
  }

  /// Adds the values of new tokens.
  /// \throws std::invalid_argument when they do not fit or are not finite; the cache is then as it was
  template <class S>
  void append(const heads_view<S>& values) {
    detail::check_appended(values, heads_, channels_, "quantised_value_cache");
    detail::check_to_quantise(values, "quantised_value_cache");
    const index_t all = tokens_ + values.tokens;
    codes_.resize(static_cast<std::size_t>(all * heads_ * channels_));
    scales_.resize(static_cast<std::size_t>(all * heads_));
    quantise_values(
        values, token_major(codes_.data() + tokens_ * heads_ * channels_, values.tokens, heads_, channels_),
        token_major(scales_.data() + tokens_ * heads_, values.tokens, heads_, index_t{1}));
    tokens_ = all;
  }

  /// What attention takes; valid until the next append.
  [[nodiscard]] quantised_values view() const noexcept {
    return {token_major(codes_.data(), tokens_, heads_, channels_),
            token_major(scales_.data(), tokens_, heads_, index_t{1})};
  }
  /// Rows so far.
  [[nodiscard]] index_t tokens() const noexcept { return tokens_; }

 private:
  index_t heads_, channels_, tokens_ = 0;
  std::vector<std::int8_t> codes_{};
  std::vector<float> scales_{};
};

}  // namespace posenc::inline v0_2
