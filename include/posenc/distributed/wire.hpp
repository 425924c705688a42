// SPDX-License-Identifier: MIT
/// \file
/// Keys and values on their way: the rows of a source side by side, stored as they are, and the source that they are
/// again where they arrive. Needs no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <posenc/cache/joined.hpp>
#include <posenc/cache/paged.hpp>
#include <posenc/cache/q8_0.hpp>
#include <posenc/cache/quantised.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// Messages are whole lines of so many bytes.
inline constexpr std::size_t line_bytes = 64;
[[nodiscard]] constexpr std::size_t to_lines(std::size_t bytes) noexcept {
  return (bytes + line_bytes - 1) / line_bytes * line_bytes;
}

[[nodiscard]] constexpr std::size_t bytes_of_rows(index_t tokens, index_t heads, index_t elements,
                                                  std::size_t size) noexcept {
  return to_lines(static_cast<std::size_t>(tokens * heads * elements) * size);
}

/// Copies tokens × heads × elements of anything that is called with (token, head) for a row.
template <class Rows>
void copy_rows(const Rows& rows, index_t tokens, index_t heads, std::byte* to) {
  for (index_t t = 0; t < tokens; ++t)
    for (index_t h = 0; h < heads; ++h) {
      const auto row = rows(t, h);
      std::memcpy(to, row.data(), row.size_bytes());
      to += row.size_bytes();
    }
}

/// How a source travels: packed is the type that it has then, bytes() what so many of its rows take, pack() writes them,
/// unpack() is the view of such memory. group_tokens() is 0 where rows have no scales in common.
template <class S>
struct wire {
  static_assert(!is_joined<S>,
                "posenc: joined keys and values do not travel; append the second part's rows to the first");
};

template <class T>
struct wire_of_rows {
  using element = std::remove_const_t<T>;
  using packed = heads_view<const element>;
  source_shape shape;

  [[nodiscard]] static index_t group_tokens() noexcept { return 0; }
  [[nodiscard]] std::size_t bytes(index_t tokens) const {
    return bytes_of_rows(tokens, shape.heads, shape.head_dim, sizeof(T));
  }
  template <class S>
  void pack(const S& source, std::byte* to) const {
    copy_rows(source, shape.tokens, shape.heads, to);
  }
  [[nodiscard]] packed unpack(const std::byte* from, index_t tokens) const {
    return token_major(reinterpret_cast<const element*>(from), tokens, shape.heads, shape.head_dim);
  }
};
template <class T>
struct wire<heads_view<T>> : wire_of_rows<T> {
  explicit wire(const heads_view<T>& source) : wire_of_rows<T>{shape_of_source(source)} {}
};
template <class T>
struct wire<paged_view<T>> : wire_of_rows<T> {
  explicit wire(const paged_view<T>& source) : wire_of_rows<T>{shape_of_source(source)} {}
};

template <>
struct wire<q8_0_view> {
  using packed = q8_0_view;
  source_shape shape;
  explicit wire(const q8_0_view& source) : shape(shape_of_source(source)) {}

  [[nodiscard]] static index_t group_tokens() noexcept { return 0; }
  [[nodiscard]] index_t blocks() const noexcept { return shape.head_dim / q8_0_channels; }
  [[nodiscard]] std::size_t bytes(index_t tokens) const {
    return bytes_of_rows(tokens, shape.heads, blocks(), sizeof(q8_0_block));
  }
  void pack(const q8_0_view& source, std::byte* to) const {
    copy_rows(source.blocks, shape.tokens, shape.heads, to);
  }
  [[nodiscard]] packed unpack(const std::byte* from, index_t tokens) const {
    return {token_major(reinterpret_cast<const q8_0_block*>(from), tokens, shape.heads, blocks())};
  }
};

/// int8 codes, then the scales.
template <class S>
struct wire_of_codes {
  using packed = S;
  source_shape shape;
  index_t group;           ///< rows that share scales
  index_t scale_channels;  ///< scales of a row

  [[nodiscard]] std::size_t code_bytes(index_t tokens) const {
    return bytes_of_rows(tokens, shape.heads, shape.head_dim, 1);
  }
  [[nodiscard]] std::size_t bytes(index_t tokens) const {
    return code_bytes(tokens) +
           bytes_of_rows(groups_of(tokens, group), shape.heads, scale_channels, sizeof(float));
  }
  void pack(const S& source, std::byte* to) const {
    copy_rows(source.codes, shape.tokens, shape.heads, to);
    copy_rows(source.scales, groups_of(shape.tokens, group), shape.heads, to + code_bytes(shape.tokens));
  }

 protected:
  [[nodiscard]] heads_view<const std::int8_t> codes(const std::byte* from, index_t tokens) const {
    return token_major(reinterpret_cast<const std::int8_t*>(from), tokens, shape.heads, shape.head_dim);
  }
  [[nodiscard]] heads_view<const float> scales(const std::byte* from, index_t tokens) const {
    return token_major(reinterpret_cast<const float*>(from + code_bytes(tokens)), groups_of(tokens, group),
                       shape.heads, scale_channels);
  }
};
template <>
struct wire<quantised_keys> : wire_of_codes<quantised_keys> {
  explicit wire(const quantised_keys& source)
      : wire_of_codes{shape_of_source(source), source.group_tokens, source.codes.head_dim()} {}
  [[nodiscard]] index_t group_tokens() const noexcept { return group; }
  [[nodiscard]] quantised_keys unpack(const std::byte* from, index_t tokens) const {
    return {codes(from, tokens), scales(from, tokens), group};
  }
};
template <>
struct wire<quantised_values> : wire_of_codes<quantised_values> {
  explicit wire(const quantised_values& source) : wire_of_codes{shape_of_source(source), 1, 1} {}
  [[nodiscard]] static index_t group_tokens() noexcept { return 0; }
  [[nodiscard]] quantised_values unpack(const std::byte* from, index_t tokens) const {
    return {codes(from, tokens), scales(from, tokens)};
  }
};

}  // namespace posenc::inline v0_2::detail::distributed
