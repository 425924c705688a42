// SPDX-License-Identifier: MIT
/// \file
/// What attention takes as keys and values: rows of channels by token and head, wherever an engine keeps them and
/// however it stores them.
///
/// | source | rows lie | numbers are |
/// |---|---|---|
/// | heads_view (views.hpp) | in one buffer, any strides | any scalar |
/// | paged_view (cache/paged.hpp) | in pages, anywhere | any scalar |
/// | quantised_keys (cache/quantised.hpp) | either | int8, one scale per channel and group of tokens |
/// | quantised_values (cache/quantised.hpp) | either | int8, one scale per token |
/// | q8_0_view (cache/q8_0.hpp) | either | ggml's blocks of 32 int8 and a scale |
/// | joined (cache/joined.hpp) | in two of the above, one after the other | those of the two |
///
/// A ring buffer is any of these with key_positions = positions::ring(capacity, next). Keys and values may differ in
/// kind. Both engines read all of them; docs/caches.md says what each costs.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {
namespace detail {

struct source_shape {
  index_t tokens = 0, heads = 1, head_dim = 0;
};

/// How attention reads a source. A specialisation has
/// - scalar: what its numbers are computed in before rounding,
/// - shape(source): tokens, heads, channels,
/// - check(source, what): throws where the source describes no memory,
/// - read(source, token, head, to): one row as numbers,
/// - for_each_part(source, use): its memory as heads_views, to see what overlaps.
template <class Source>
struct source_traits;

template <class T>
struct source_traits<heads_view<T>> {
  using scalar = std::remove_const_t<T>;
  [[nodiscard]] static source_shape shape(const heads_view<T>& source) noexcept {
    return {source.tokens, source.heads, source.head_dim};
  }
  static void check(const heads_view<T>& source, const char* what) { check_view(source, what); }
  template <class Work>
  static void read(const heads_view<T>& source, index_t token, index_t head, std::span<Work> to) {
    const std::span<T> row = source(token, head);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] = static_cast<Work>(row[c]);
  }
  template <class Use>
  static void for_each_part(const heads_view<T>& source, Use&& use) {
    use(source);
  }
};

}  // namespace detail

/// A type that attention takes as keys or values.
template <class S>
concept kv_source = requires {
  typename detail::source_traits<S>::scalar;
};

namespace detail {

template <class S>
using source_scalar_t = typename source_traits<S>::scalar;

/// Keys and values are named by a scalar where they lie in one buffer (attention_sequence<float>), else by their source.
template <class P>
struct source_of {
  using type = heads_view<const P>;
};
template <kv_source P>
struct source_of<P> {
  using type = P;
};
template <class P>
using source_of_t = typename source_of<P>::type;

/// The reverse: the name of a source.
template <class S>
struct source_name {
  using type = S;
};
template <class T>
struct source_name<heads_view<T>> {
  using type = std::remove_const_t<T>;
};
template <class S>
using source_name_t = typename source_name<S>::type;

template <class S>
[[nodiscard]] source_shape shape_of_source(const S& source) noexcept {
  return source_traits<S>::shape(source);
}

/// Calls use(view) for each part of a source's memory.
template <class S, class Use>
void for_each_part(const S& source, Use&& use) {
  source_traits<S>::for_each_part(source, use);
}

/// One row of a source as numbers.
template <class Work, class S>
[[nodiscard]] std::vector<Work> row_of(const S& source, index_t token, index_t head) {
  std::vector<Work> row(static_cast<std::size_t>(shape_of_source(source).head_dim));
  source_traits<S>::read(source, token, head, std::span<Work>(row));
  return row;
}

/// True when a view that is written to shares memory with a source.
template <class T, class S>
[[nodiscard]] bool overlaps(const heads_view<T>& view, const S& source) {
  bool any = false;
  for_each_part(source, [&](const auto& part) { any = any || overlap(view, part); });
  return any;
}

}  // namespace detail
}  // namespace posenc::inline v0_2
