// SPDX-License-Identifier: MIT
/// \file
/// Two sources of one kind, one after the other: a prefix that many sequences share, and what each has of its own.
///
///     posenc::joined<posenc::heads_view<const float>> k{prefix_k, own_k};   // rows of prefix_k, then those of own_k
///
/// Sequences of a batch whose keys and values begin with the same memory at the same positions attend to it once, their
/// queries stacked, and the parts are merged: a matrix product where there were many reads (Juravsky et al. 2024,
/// Hydragen, arXiv:2402.05099). fused/shared_prefix.hpp says when.
#pragma once

#include <span>

#include <posenc/cache/source.hpp>
#include <posenc/errors.hpp>

namespace posenc::inline v0_2 {

/// The rows of `before`, then those of `after`: as many heads and channels. S is a source (cache/source.hpp).
template <kv_source S>
struct joined {
  S before{};  ///< the first rows
  S after{};   ///< the rows behind them
};

namespace detail {

template <class S>
inline constexpr bool is_joined = false;
template <class S>
inline constexpr bool is_joined<joined<S>> = true;

template <class S>
struct source_traits<joined<S>> {
  using part = source_traits<S>;
  using scalar = typename part::scalar;
  [[nodiscard]] static source_shape shape(const joined<S>& source) noexcept {
    const source_shape before = part::shape(source.before), after = part::shape(source.after);
    return {before.tokens + after.tokens, after.heads, after.head_dim};
  }
  static void check(const joined<S>& source, const char* what) {
    part::check(source.before, what), part::check(source.after, what);
    const source_shape before = part::shape(source.before), after = part::shape(source.after);
    require(before.heads == after.heads && before.head_dim == after.head_dim, what, ": heads of ",
            before.heads, " x ", before.head_dim, " joined to heads of ", after.heads, " x ", after.head_dim);
  }
  template <class Work>
  static void read(const joined<S>& source, index_t token, index_t head, std::span<Work> to) {
    const index_t split = part::shape(source.before).tokens;
    if (token < split)
      part::read(source.before, token, head, to);
    else
      part::read(source.after, token - split, head, to);
  }
  template <class Use>
  static void for_each_part(const joined<S>& source, Use&& use) {
    part::for_each_part(source.before, use), part::for_each_part(source.after, use);
  }
};

}  // namespace detail
}  // namespace posenc::inline v0_2
