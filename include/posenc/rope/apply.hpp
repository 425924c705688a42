// SPDX-License-Identifier: MIT
/// \file
/// Rotating whole tensors, and moving rotated keys that are already in a cache.
///
/// posenc's attention rotates inside the loop and needs neither; these are for engines that keep rotated
/// keys.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/detail/scalar.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace detail {

/// The angles and attention factors of one token, shared by all its heads.
template <class T>
struct token_rotation {
  std::vector<cos_sin<T>> angles;
  std::vector<T> factors;

  void set(const rotation& by, position token, rotation_side side) {
    angles.clear(), factors.clear();
    for (index_t pair = 0; pair < by.pairs(); ++pair) {
      angles.push_back(by.cos_sin_at<T>(pair, token));
      factors.push_back(static_cast<T>(by.attention_factor_at(pair, token, side)));
    }
  }

  template <class S>
  void apply(const rotation& by, std::span<S> head) const noexcept {
    for (index_t pair = 0; pair < by.pairs(); ++pair)
      by.rotate_pair(head, pair, angles[static_cast<std::size_t>(pair)],
                     factors[static_cast<std::size_t>(pair)]);
  }
};

/// What cos and sin are formed in for heads of S: at least float.
template <class S>
using angle_t = std::conditional_t<std::is_floating_point_v<S>, S, float>;

template <class S, class E>
void rotate_checked(heads_view<S> heads, const E& encoding, const positions& where, rotation_side side) {
  if constexpr (lowers_to_rotation<E>) {
    const rotation& by = encoding.lowered();
    token_rotation<angle_t<S>> rotation_of_token;
    for (index_t token = 0; token < heads.tokens; ++token) {
      rotation_of_token.set(by, where[token], side);
      for (index_t head = 0; head < heads.heads; ++head) rotation_of_token.apply(by, heads(token, head));
    }
  } else {
    for (index_t token = 0; token < heads.tokens; ++token)
      for (index_t head = 0; head < heads.heads; ++head) {
        if (side == rotation_side::query)
          rotate_query(encoding, heads(token, head), where[token]);
        else
          rotate_key(encoding, heads(token, head), where[token]);
      }
  }
}

/// Lets an encoding, and each part of a combination, throw what its rotation would.
template <class E>
void check_rotate(const E& encoding, index_t head_dim, position p) {
  if constexpr (checks_rotate<E>) encoding.check_rotate(head_dim, p);
}
template <class A, class B>
void check_rotate(const combined<A, B>& encoding, index_t head_dim, position p) {
  check_rotate(encoding.first, head_dim, p);
  check_rotate(encoding.second, head_dim, p);
}

template <class S, class E>
[[nodiscard]] positions checked_heads(const heads_view<S>& heads, const E& encoding, const positions& where) {
  static_assert(rotates<E, S>, "posenc: rotate_heads needs an encoding that opens door rotate");
  check_view(heads, "rotate_heads");
  check_disjoint_rows(heads, "rotate_heads");
  if constexpr (lowers_to_rotation<E>)
    require(heads.empty() || heads.head_dim == encoding.lowered().head_dim, "rotate_heads: heads of ",
            heads.head_dim, " channels, the encoding rotates heads of ", encoding.lowered().head_dim);
  require(where.given(), "rotate_heads: positions are needed");
  const positions resolved = where.resolve(heads.tokens, "rotate_heads");
  if constexpr (lowers_to_rotation<E>)
    for (index_t token = 0; token < heads.tokens; ++token) encoding.lowered().check_token(resolved[token]);
  if (!heads.empty())
    for (index_t token = 0; token < heads.tokens; ++token)
      check_rotate(encoding, heads.head_dim, resolved[token]);
  return resolved;
}

}  // namespace detail

/// Rotates every head of a tensor in place; channels outside the rotary slice are not touched.
///
///     posenc::rotate_heads(posenc::token_major(k, tokens, kv_heads, 128), rope, posenc::positions::from(0));
///
/// \param side matters to xPos alone
/// \throws std::invalid_argument when the shapes do not fit, std::out_of_range for a position that a table does not hold;
/// nothing is written then
template <class S, class E>
void rotate_heads(heads_view<S> heads, const E& encoding, const positions& where,
                  rotation_side side = rotation_side::key) {
  const positions resolved = detail::checked_heads(heads, encoding, where);
  detail::rotate_checked(heads, encoding, resolved, side);
}

/// Rotates every head of `from` into `to`, the channels outside the rotary slice copied. The two views are the
/// same memory or do not overlap.
/// \throws std::invalid_argument when the shapes do not fit or the memory overlaps in part, std::out_of_range as above
template <class S, class E>
void rotate_heads(std::type_identity_t<heads_view<const S>> from, heads_view<S> to, const E& encoding,
                  const positions& where, rotation_side side = rotation_side::key) {
  const positions resolved = detail::checked_heads(to, encoding, where);
  detail::copy_heads(from, to, "rotate_heads");
  detail::rotate_checked(to, encoding, resolved, side);
}

/// Moves rotated keys in a cache by `offset` tokens, in place (a context shift): the key of position j
/// becomes the key of position j + offset. One more rotation by the offset, whatever the positions were, with
/// attention factor 1: m is in the keys already. Channels that do not rotate are not touched. Shifts add up, to
/// rounding; 16-bit keys lose a little each time (attention over unrotated keys has no such loss: there a
/// shift is a change of integers).
///
/// Under framework_float32 the shift is only as additive as float32 angles are. Keys that were rotated under
/// other frequencies (dynamic NTK or LongRoPE at another length) cannot be moved rightly by anyone.
///
/// \throws std::invalid_argument when the shapes do not fit, or for several axes, where a shift of token
/// indexes is not one rotation.
template <class S, lowers_to_rotation E>
void shift_keys(heads_view<S> keys, const E& encoding, position offset) {
  const rotation& by = encoding.lowered();
  detail::check_view(keys, "shift_keys");
  detail::check_disjoint_rows(keys, "shift_keys");
  detail::require(by.axis_of_pair.empty(), "shift_keys: keys that follow several axes cannot be shifted");
  detail::require(keys.empty() || keys.head_dim == by.head_dim, "shift_keys: heads of ", keys.head_dim,
                  " channels, the encoding rotates heads of ", by.head_dim);
  rotation step = by;
  step.attention_factor = 1;
  step.growth_origin = 0;
  detail::token_rotation<detail::angle_t<S>> rotation_by_offset;
  rotation_by_offset.set(step, offset, rotation_side::key);
  for (index_t token = 0; token < keys.tokens; ++token)
    for (index_t head = 0; head < keys.heads; ++head) rotation_by_offset.apply(step, keys(token, head));
}

}  // namespace posenc::inline v0_2
