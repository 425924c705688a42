// SPDX-License-Identifier: MIT
/// \file
/// The four doors through which a positional encoding enters attention, as concepts; and combine().
///
/// | door | what it does | const members of the encoding |
/// |---|---|---|
/// | embed | x_i ← x_i + p_i, before the projections | `embed(std::span<S> row, position p)` |
/// | rotate | q_i ← R(i) q_i, k_j ← R(j) k_j | `rotate(std::span<S> head, position p)` |
/// | | where queries and keys differ | `rotate_query`, `rotate_key`, as above |
/// | bias | s_ij ← s_ij + b_h(j − i) | `bias(int head, position offset)` |
/// | | any other b_h(i, j) | `bias(int head, position query, position key)` |
/// | | content: a row for each distance | `relative_key`, `relative_value`, as the first `bias` |
/// | scale | s_ij ← τ_i s_ij | `scale(position query)` |
/// | | a factor of each head | `scale(int head, position query)` |
///
/// An encoding whose pairs follow several axes also has `rotate_on_axes(std::span<S> head, const axis_positions&)`,
/// for calls whose positions::on_axes() say where tokens stand.
///
/// What an encoding says about itself, so that kernels need not call it for every score (all optional, const):
///
/// | member | meaning |
/// |---|---|
/// | `const rotation& lowered()` | rotate is this rotation (rope/rotation.hpp) |
/// | `void check_rotate(index_t head_dim, position p)` | throws what rotate would, so that nothing is written before |
/// | `bias_line linear_bias(int head)` | bias(head, offset) is a straight line to either side |
/// | `position bias_reach()` | from this distance on, to either side, bias(head, offset) no longer changes |
/// | `index_t bias_heads()` | how many query heads the bias is made for; 0 is any |
///
/// combine() keeps all of them where the parts allow it (check_rotate: each part is checked by itself).
///
/// `offset` is key position − query position: negative looks back. A bias is indexed by *query* head and is
/// added after scale and softcap. `relative_key` returns a row r (as wide as a key) that is added to the key
/// inside q·k, before the scale, and meets the query as it was before any rotation; `relative_value` a row
/// added to the value.
///
/// An encoding is a plain value that opens one or more doors; a closed door costs nothing. To write one of
/// your own, write a struct with one of these members: examples/own_encoding.cpp.
#pragma once

#include <algorithm>
#include <concepts>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

struct rotation;

/// A bias that is a straight line to either side of the query: behind·δ for δ = query − key ≥ 0, ahead·δ for δ < 0.
struct bias_line {
  double behind = 0;  ///< slope for keys behind the query and its own
  double ahead = 0;   ///< slope for keys ahead of the query
};

namespace detail {
// E may be const-qualified: the doors are asked of const E, the misspelt-const check asks E.
template <class E, class S>
concept can_embed = requires(E& e, std::span<S> row, position p) {
  e.embed(row, p);
};
template <class E, class S>
concept can_rotate_both = requires(E& e, std::span<S> head, position p) {
  e.rotate(head, p);
};
template <class E, class S>
concept can_rotate_sides = requires(E& e, std::span<S> head, position p) {
  e.rotate_query(head, p);
  e.rotate_key(head, p);
};
template <class E>
concept can_bias_by_offset = requires(E& e, int head, position offset) {
  e.bias(head, offset);
};
template <class E>
concept can_bias_by_pair = requires(E& e, int head, position query, position key) {
  e.bias(head, query, key);
};
template <class E>
concept can_relative_key = requires(E& e, int head, position offset) {
  e.relative_key(head, offset)[0];
};
template <class E>
concept can_relative_value = requires(E& e, int head, position offset) {
  e.relative_value(head, offset)[0];
};
template <class E>
concept can_scale_all = requires(E& e, position query) {
  e.scale(query);
};
template <class E>
concept can_scale_by_head = requires(E& e, int head, position query) {
  e.scale(head, query);
};
template <class E>
concept can_scale = can_scale_all<E> || can_scale_by_head<E>;
template <class E, class S>
concept can_rotate_on_axes = requires(E& e, std::span<S> head, const axis_positions& place) {
  e.rotate_on_axes(head, place);
};
}  // namespace detail

/// Door *embed*: adds a vector to a token's embedding of scalar S.
template <class E, class S>
concept embeds = detail::can_embed<const E, S>;

/// Door *rotate*: query and key heads of scalar S rotate.
template <class E, class S>
concept rotates = detail::can_rotate_both<const E, S> || detail::can_rotate_sides<const E, S>;

/// Door *bias*, translation-invariant form: a function of head and key − query. Fused kernels make one diagonal of
/// it.
template <class E>
concept biases_by_offset = detail::can_bias_by_offset<const E>;

/// Door *bias*, any form that adds a number to the score.
template <class E>
concept biases = biases_by_offset<E> || detail::can_bias_by_pair<const E>;

/// Door *bias*, content form (Shaw's q·r): adds a row to the key inside the dot product.
template <class E>
concept has_relative_key = detail::can_relative_key<const E>;

/// The value side of the content form: adds a row to the value.
template <class E>
concept has_relative_value = detail::can_relative_value<const E>;

/// Door *scale*: a factor on the score that may depend on the query's position and head.
template <class E>
concept scales = detail::can_scale<const E>;

/// Its rotation also takes a place on several axes.
template <class E, class S>
concept rotates_on_axes = detail::can_rotate_on_axes<const E, S>;

/// Its rotation is described by a rotation (rope/rotation.hpp): rope, multi_axis_rope, xpos, or one of your own.
template <class E>
concept lowers_to_rotation = requires(const E& e) {
  { e.lowered() } -> std::convertible_to<const rotation&>;
};

/// It says beforehand what its rotation would throw.
template <class E>
concept checks_rotate = requires(const E& e, index_t head_dim, position p) {
  e.check_rotate(head_dim, p);
};

/// Its bias is a straight line to either side.
template <class E>
concept has_linear_bias = requires(const E& e) {
  { e.linear_bias(0) } -> std::convertible_to<bias_line>;
};

/// Its bias stops changing at a distance.
template <class E>
concept has_bias_reach = requires(const E& e) {
  { e.bias_reach() } -> std::convertible_to<position>;
};

/// It is settled by the length of a sequence alone, attention_options::context_length: at_length(length) is the
/// encoding of such a sequence (rope_by_length).
template <class E>
concept settles_by_length = requires(const E& e, position length) {
  e.at_length(length);
};

/// Its bias is made for a number of heads.
template <class E>
concept has_bias_heads = requires(const E& e) {
  { e.bias_heads() } -> std::convertible_to<index_t>;
};

/// No positional encoding at all: the one type that may leave every door closed.
struct no_encoding {};

/// A type that opens at least one door for scalar S, or no_encoding.
template <class E, class S>
concept encoding_for = std::same_as<E, no_encoding> || embeds<E, S> || rotates<E, S> || biases<E> ||
    has_relative_key<E> || has_relative_value<E> || scales<E>;

template <class A, class B>
struct combined;

namespace detail {

/// True when a door is open on a mutable E but closed on a const E: nearly always a forgotten `const`, which
/// would make the door do nothing, silently.
template <class E, class S>
inline constexpr bool lost_const = (can_embed<E, S> && !can_embed<const E, S>) ||
                                   (can_rotate_both<E, S> && !can_rotate_both<const E, S>) ||
                                   (can_rotate_sides<E, S> && !can_rotate_sides<const E, S>) ||
                                   (can_bias_by_offset<E> && !can_bias_by_offset<const E>) ||
                                   (can_bias_by_pair<E> && !can_bias_by_pair<const E>) ||
                                   (can_relative_key<E> && !can_relative_key<const E>) ||
                                   (can_relative_value<E> && !can_relative_value<const E>) ||
                                   (can_scale<E> && !can_scale<const E>);
template <class A, class B, class S>
inline constexpr bool lost_const<combined<A, B>, S> = lost_const<A, S> || lost_const<B, S>;

/// True when E embeds some scalar but not S (a std::span<float> parameter, say): the door would be ignored.
template <class E, class S>
inline constexpr bool lost_embed = !embeds<E, S> && (embeds<E, float> || embeds<E, double>);
template <class A, class B, class S>
inline constexpr bool lost_embed<combined<A, B>, S> = lost_embed<A, S> || lost_embed<B, S>;

/// True when E rotates some scalar but not S, or one side of the score only: the door would be ignored.
template <class E, class S>
inline constexpr bool lost_rotate =
    !rotates<E, S> && (
                          rotates<E, float> || rotates<E, double> ||
                          requires(const E& e, std::span<S> head, position p) { e.rotate_query(head, p); } ||
                          requires(const E& e, std::span<S> head, position p) { e.rotate_key(head, p); });
template <class A, class B, class S>
inline constexpr bool lost_rotate<combined<A, B>, S> = lost_rotate<A, S> || lost_rotate<B, S>;

/// True when E, or a part of it, opens no door.
template <class E, class S>
inline constexpr bool lost_everything = !encoding_for<E, S> && !lost_embed<E, S>;
template <class A, class B, class S>
inline constexpr bool lost_everything<combined<A, B>, S> = lost_everything<A, S> || lost_everything<B, S>;

/// True when E acts before the projections alone, so that an attention call has nothing to do with it.
template <class E, class S>
inline constexpr bool embeds_only = embeds<E, S> && !rotates<E, S> && !biases<E> && !has_relative_key<E> &&
                                    !has_relative_value<E> && !scales<E>;

/// Refuses an encoding with the door embed alone, unless the call says that it has been through it.
/// \throws std::invalid_argument
template <class E, class S>
void check_embedded(bool is_embedded) {
  if constexpr (embeds_only<E, S>)
    require(is_embedded,
            "attention: this encoding adds to token embeddings and does nothing inside attention: call "
            "embed_rows(x, encoding, positions) before the projections and set is_embedded = true, or use "
            "self_attention");
}

/// The length that a sequence has. \throws std::invalid_argument when it is not given or not positive
[[nodiscard]] inline position checked_length(std::optional<position> context_length) {
  require(context_length.has_value(),
          "attention: this encoding depends on the length of the sequence: set the option context_length");
  require(*context_length >= 1, "attention: context_length ", context_length.value_or(0), " is not positive");
  return *context_length;
}

/// An encoding that is one of several types, decided when the program runs (any_encoding): visit(f) calls f with it.
template <class E>
concept is_visited = requires(const E& e) {
  e.visit([](const auto&) {});
};

/// f(encoding), or f of what an encoding decided at run time is.
template <class E, class F>
decltype(auto) with_concrete(const E& encoding, F&& f) {
  if constexpr (is_visited<E>)
    return encoding.visit(std::forward<F>(f));
  else
    return std::forward<F>(f)(encoding);
}

/// f(encoding) for a sequence of `context_length` tokens: with the encoding itself, or what it settles into.
/// \throws std::invalid_argument where the length is needed and not given
template <class E, class F>
decltype(auto) with_settled(const E& encoding, std::optional<position> context_length, F&& f) {
  return with_concrete(encoding, [&](const auto& one) -> decltype(auto) {
    if constexpr (settles_by_length<std::remove_cvref_t<decltype(one)>>) {
      const auto settled = one.at_length(checked_length(context_length));
      return f(settled);
    } else {
      return f(one);
    }
  });
}

/// Refuses, at compile time and in words, a type that cannot take part.
template <class E, class S>
consteval bool check_encoding() {
  // A door that is not const is named below, and alone.
  static_assert(!lost_everything<E, S> || lost_const<E, S>,
                "posenc: this type opens no door. An encoding has at least one of these const members: "
                "embed(std::span<S> row, position p); "
                "rotate(std::span<S> head, position p), or rotate_query and rotate_key; "
                "bias(int head, position offset) or bias(int head, position query, position key), "
                "relative_key(int head, position offset), relative_value(int head, position offset); "
                "scale(position query) or scale(int head, position query). For no positions at all pass "
                "posenc::no_encoding.");
  static_assert(
      !lost_const<E, S>,
      "posenc: a door of this encoding is not const and would be ignored. Make its member function const.");
  static_assert(
      !lost_rotate<E, S>,
      "posenc: this encoding rotates, but not this scalar on both sides, and would be ignored. Make "
      "rotate (or both rotate_query and rotate_key) templates over the scalar.");
  return true;
}

/// Refuses an encoding that embeds, but not rows of S.
template <class E, class S>
consteval bool check_embedding() {
  static_assert(
      !lost_embed<E, S>,
      "posenc: this encoding embeds, but not rows of this scalar, and would be ignored. Make embed a "
      "template over the scalar.");
  return true;
}

template <class E, class S>
void rotate_query(const E& encoding, std::span<S> head, position p) {
  if constexpr (can_rotate_sides<const E, S>)
    encoding.rotate_query(head, p);
  else if constexpr (can_rotate_both<const E, S>)
    encoding.rotate(head, p);
}

template <class E, class S>
void rotate_key(const E& encoding, std::span<S> head, position p) {
  if constexpr (can_rotate_sides<const E, S>)
    encoding.rotate_key(head, p);
  else if constexpr (can_rotate_both<const E, S>)
    encoding.rotate(head, p);
}

/// Rotates a head of the token at `token`, on the axes where it has a `place` there (else null).
template <class E, class S>
void rotate_token(const E& encoding, std::span<S> head, position token, const axis_positions* place,
                  bool as_query) {
  if constexpr (rotates_on_axes<E, S>)
    if (place) return encoding.rotate_on_axes(head, *place);
  if (as_query)
    rotate_query(encoding, head, token);
  else
    rotate_key(encoding, head, token);
}

/// Rotates a head of row `row` of a tensor that stands at `where`: on the axes where it has places there.
template <class E, class S>
void rotate_row(const E& encoding, std::span<S> head, const positions& where, index_t row, bool as_query) {
  rotate_token(encoding, head, where[row], where.place(row), as_query);
}

/// The rotation of an encoding that rotates values as well; null where there is none.
template <class E>
[[nodiscard]] const rotation* rotation_of_values(const E& encoding) noexcept {
  if constexpr (lowers_to_rotation<E>)
    if (encoding.lowered().rotates_values) return &encoding.lowered();
  return nullptr;
}

/// Refuses places on axes for an encoding that rotates by one position. \throws std::invalid_argument
template <class E, class S>
void check_axes(const positions& queries, const positions& keys) {
  if constexpr (rotates<E, S> && !rotates_on_axes<E, S>)
    require(!queries.has_axes() && !keys.has_axes(),
            "attention: positions::on_axes given, but this encoding rotates by one position (use "
            "multi_axis_rope, or positions without axes)");
}

/// τ of an encoding in either form.
template <scales E>
[[nodiscard]] auto scale_of(const E& encoding, int head, position query) {
  if constexpr (can_scale_by_head<const E>)
    return encoding.scale(head, query);
  else
    return encoding.scale(query);
}

/// The bias of an encoding in either form.
template <biases E>
[[nodiscard]] auto bias_of(const E& encoding, int head, position query, position key) {
  if constexpr (biases_by_offset<E>)
    return encoding.bias(head, key - query);
  else
    return encoding.bias(head, query, key);
}

/// The bias as a number of type Sum. A line is evaluated in Sum, so that a far-away key loses no bits; so are the
/// parts of a combination.
template <class Sum, biases E>
[[nodiscard]] Sum bias_as(const E& encoding, int head, position query, position key) {
  if constexpr (has_linear_bias<E> && std::floating_point<Sum>) {
    const bias_line line = encoding.linear_bias(head);
    const position behind = query - key;
    return static_cast<Sum>(behind >= 0 ? line.behind : line.ahead) * static_cast<Sum>(behind);
  } else {
    return static_cast<Sum>(bias_of(encoding, head, query, key));
  }
}
template <class Sum, class A, class B>
requires(biases<A>&& biases<B>) [[nodiscard]] Sum
    bias_as(const combined<A, B>& encoding, int head, position query, position key) {
  return Sum(bias_as<Sum>(encoding.first, head, query, key) +
             bias_as<Sum>(encoding.second, head, query, key));
}

/// a + b and a·b as values: an expression that refers to temporaries must not leave a function.
template <class A, class B>
struct value_of : std::common_type<A, B> {};
template <class A>
struct value_of<A, A> {
  using type = A;
};
template <class A, class B>
using value_of_t = typename value_of<std::remove_cvref_t<A>, std::remove_cvref_t<B>>::type;
template <class A, class B>
[[nodiscard]] value_of_t<A, B> plus(const A& a, const B& b) {
  return static_cast<value_of_t<A, B>>(a + b);
}
template <class A, class B>
[[nodiscard]] value_of_t<A, B> times(const A& a, const B& b) {
  return static_cast<value_of_t<A, B>>(a * b);
}

}  // namespace detail

/// Two encodings as one: opens the doors of both. Embeddings and biases add, scales multiply, rotations
/// follow one another (first a, then b). Made by combine().
template <class A, class B>
struct combined {
  A first;   ///< the first argument of combine
  B second;  ///< the second argument of combine

  /// Door *embed* of both.
  template <class S>
  requires(embeds<A, S> || embeds<B, S>) void embed(std::span<S> row, position p) const {
    if constexpr (embeds<A, S>) first.embed(row, p);
    if constexpr (embeds<B, S>) second.embed(row, p);
  }

  /// Door *rotate* of both, of a query.
  template <class S>
  requires(rotates<A, S> || rotates<B, S>) void rotate_query(std::span<S> head, position p) const {
    detail::rotate_query(first, head, p);
    detail::rotate_query(second, head, p);
  }

  /// Door *rotate* of both, of a key.
  template <class S>
  requires(rotates<A, S> || rotates<B, S>) void rotate_key(std::span<S> head, position p) const {
    detail::rotate_key(first, head, p);
    detail::rotate_key(second, head, p);
  }

  /// Stays translation-invariant when every bias that takes part is.
  [[nodiscard]] auto bias(int head, position offset) const
      requires((biases<A> || biases<B>)&&(biases_by_offset<A> || !biases<A>)&&(biases_by_offset<B> ||
                                                                               !biases<B>)) {
    if constexpr (biases<A> && biases<B>)
      return detail::plus(first.bias(head, offset), second.bias(head, offset));
    else if constexpr (biases<A>)
      return first.bias(head, offset);
    else
      return second.bias(head, offset);
  }

  /// Door *bias*: the sum.
  [[nodiscard]] auto bias(int head, position query, position key) const requires(biases<A> || biases<B>) {
    if constexpr (biases<A> && biases<B>)
      return detail::plus(detail::bias_of(first, head, query, key),
                          detail::bias_of(second, head, query, key));
    else if constexpr (biases<A>)
      return detail::bias_of(first, head, query, key);
    else
      return detail::bias_of(second, head, query, key);
  }

  /// Door *bias*, content form: the sum of the rows.
  [[nodiscard]] auto relative_key(int head, position offset) const
      requires(has_relative_key<A> || has_relative_key<B>) {
    static_assert(!(has_relative_key<A> && has_relative_key<B>),
                  "posenc: combine takes one relative_key at most");
    if constexpr (has_relative_key<A>)
      return first.relative_key(head, offset);
    else
      return second.relative_key(head, offset);
  }

  /// The value side of it: the sum of the rows.
  [[nodiscard]] auto relative_value(int head, position offset) const
      requires(has_relative_value<A> || has_relative_value<B>) {
    static_assert(!(has_relative_value<A> && has_relative_value<B>),
                  "posenc: combine takes one relative_value at most");
    if constexpr (has_relative_value<A>)
      return first.relative_value(head, offset);
    else
      return second.relative_value(head, offset);
  }

  /// Stays independent of the head when every scale that takes part is.
  [[nodiscard]] auto scale(position query) const
      requires((scales<A> || scales<B>)&&(detail::can_scale_all<const A> ||
                                          !scales<A>)&&(detail::can_scale_all<const B> || !scales<B>)) {
    return scale_of_parts(0, query);
  }
  /// Door *scale*: the product.
  [[nodiscard]] auto scale(int head, position query) const
      requires(detail::can_scale_by_head<const A> || detail::can_scale_by_head<const B>) {
    return scale_of_parts(head, query);
  }

  /// Door *rotate* by places on axes, of the part that rotates by them.
  template <class S>
  requires((rotates_on_axes<A, S> || rotates_on_axes<B, S>)&&(rotates_on_axes<A, S> || !rotates<A, S>)&&(
      rotates_on_axes<B, S> || !rotates<B, S>)) void rotate_on_axes(std::span<S> head,
                                                                    const axis_positions& place) const {
    if constexpr (rotates_on_axes<A, S>) first.rotate_on_axes(head, place);
    if constexpr (rotates_on_axes<B, S>) second.rotate_on_axes(head, place);
  }

  /// The rotation of the one part that rotates.
  [[nodiscard]] const rotation& lowered() const requires((lowers_to_rotation<A> && !rotates<B, float>) ||
                                                         (lowers_to_rotation<B> && !rotates<A, float>)) {
    if constexpr (lowers_to_rotation<A> && !rotates<B, float>)
      return first.lowered();
    else
      return second.lowered();
  }

  /// Lines add up.
  [[nodiscard]] bias_line linear_bias(int head) const
      requires((has_linear_bias<A> || has_linear_bias<B>)&&(has_linear_bias<A> ||
                                                            !biases<A>)&&(has_linear_bias<B> || !biases<B>)) {
    bias_line sum;
    if constexpr (has_linear_bias<A>) add(sum, first.linear_bias(head));
    if constexpr (has_linear_bias<B>) add(sum, second.linear_bias(head));
    return sum;
  }

  /// Both, settled for a sequence of `length` tokens.
  [[nodiscard]] auto at_length(position length) const requires(settles_by_length<A> || settles_by_length<B>) {
    const auto settled = [length](const auto& part) {
      if constexpr (settles_by_length<std::remove_cvref_t<decltype(part)>>)
        return part.at_length(length);
      else
        return part;
    };
    using first_settled = decltype(settled(first));
    using second_settled = decltype(settled(second));
    return combined<first_settled, second_settled>{settled(first), settled(second)};
  }

  /// The farther of both.
  [[nodiscard]] position bias_reach() const
      requires((has_bias_reach<A> || has_bias_reach<B>)&&(has_bias_reach<A> ||
                                                          !biases<A>)&&(has_bias_reach<B> || !biases<B>)) {
    position reach = 0;
    if constexpr (has_bias_reach<A>) reach = (std::max)(reach, position{first.bias_reach()});
    if constexpr (has_bias_reach<B>) reach = (std::max)(reach, position{second.bias_reach()});
    return reach;
  }

  /// Of the part that is made for a number of heads; 0 where none is.
  /// \throws std::invalid_argument when the parts are made for different numbers.
  [[nodiscard]] index_t bias_heads() const requires(has_bias_heads<A> || has_bias_heads<B>) {
    index_t a = 0, b = 0;
    if constexpr (has_bias_heads<A>) a = first.bias_heads();
    if constexpr (has_bias_heads<B>) b = second.bias_heads();
    detail::require(a == 0 || b == 0 || a == b, "combine: biases made for ", a, " heads and for ", b,
                    " heads");
    return (std::max)(a, b);
  }

 private:
  static void add(bias_line& sum, const bias_line& line) {
    sum.behind += line.behind, sum.ahead += line.ahead;
  }

  [[nodiscard]] auto scale_of_parts([[maybe_unused]] int head, position query) const {
    if constexpr (scales<A> && scales<B>)
      return detail::times(detail::scale_of(first, head, query), detail::scale_of(second, head, query));
    else if constexpr (scales<A>)
      return detail::scale_of(first, head, query);
    else
      return detail::scale_of(second, head, query);
  }
};

/// Opens the doors of all encodings given: combine(a, b, c) is combine(a, combine(b, c)).
template <class A, class B>
[[nodiscard]] combined<std::decay_t<A>, std::decay_t<B>> combine(A&& a, B&& b) {
  return {std::forward<A>(a), std::forward<B>(b)};
}
/// Any number of encodings, two at a time.
template <class A, class B, class... Rest>
[[nodiscard]] auto combine(A&& a, B&& b, Rest&&... rest) {
  return posenc::combine(std::forward<A>(a),
                         posenc::combine(std::forward<B>(b), std::forward<Rest>(rest)...));
}

}  // namespace posenc::inline v0_2
