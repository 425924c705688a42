// SPDX-License-Identifier: MIT
/// \file
/// The plain description that every rotary encoding comes down to, and the one place where channels are
/// rotated.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/detail/scalar.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/rope/phase.hpp>

namespace posenc::inline v0_2 {

/// Which of the two vectors of a score a rotation is applied to. Only xPos treats them differently.
enum class rotation_side : unsigned char { query, key };

/// A rotation of channel pairs with all its parameters settled: RoPE under any scaling, multi-axis RoPE and
/// xPos.
///
/// Pair p of a head, (a, b), becomes
///
///     ( a·cos φ − b·sin φ,  a·sin φ + b·cos φ ) · m · exp(±g_p·position)
///
/// with φ = position · 2π·phase_per_token[p], m = `attention_factor` and g_p = `growth_per_token[p]` (+ for queries,
/// − for keys; absent except in xPos). Channels outside [offset, offset + rotary_dim) are left alone, attention_factor
/// included. A plain value: encodings build it, the reference and the fused kernels read it.
struct rotation {
  index_t head_dim = 0;                                   ///< channels of a head
  index_t offset = 0;                                     ///< the first rotary channel
  index_t rotary_dim = 0;                                 ///< rotary channels, even
  posenc::pairing pairing = posenc::pairing::half_split;  ///< which two channels rotate together
  std::vector<phase> phase_per_token{};                   ///< one per pair
  double attention_factor = 1;  ///< on queries and on keys, so the rotated part of a score carries its square

  /// xPos: g_p in nepers per token; empty otherwise. Wide, because the exponent multiplies it by a position.
  std::vector<long double> growth_per_token{};
  /// xPos: the position where the growth is 1.
  position growth_origin = 0;

  /// Float32 compatibility: radians per token, rounded as the frameworks round them; empty in exact mode. The
  /// angle is then the float32 product, so that R(i)ᵀR(j) = R(j−i) holds only as far as float32 does.
  std::vector<float> framework_frequencies{};

  /// Multi-axis: the axis that pair p follows; empty where all pairs follow the token's own position.
  std::vector<int> axis_of_pair{};
  /// Multi-axis: where token t stands on each axis (time, height, width, extra). A token outside the table is
  /// text: it stands at t + `text_shift` on the first three axes and at 0 on the fourth. Attention's
  /// positions stay token indexes; causality and windows never look at the table.
  std::vector<axis_positions> axis_positions_of_token{};
  position text_shift = 0;  ///< what a token outside the table stands at beyond its index
  /// Multi-axis: false in vision towers, where a token outside the table stands nowhere.
  bool text_follows = true;

  /// Keys serve as values (DeepSeek-V4): values rotate like keys and every output rotates back by its query's position, so
  /// that it holds Σ_j w_ij R(j − i) v_j. Without attention_factor. Needs values as wide as keys.
  bool rotates_values = false;

  /// R/2.
  [[nodiscard]] index_t pairs() const noexcept { return rotary_dim / 2; }

  /// True where R(i)ᵀR(j) = R(j−i) to the last bit of the phase, so that a kernel may split positions as it
  /// likes.
  [[nodiscard]] bool depends_on_offset_only() const noexcept {
    return framework_frequencies.empty() && axis_of_pair.empty();
  }

  /// \throws std::out_of_range for a token that stands nowhere.
  void check_token(position token) const {
    const auto patches = static_cast<position>(axis_positions_of_token.size());
    detail::require_in_range(text_follows || (token >= 0 && token < patches), "vision rope: token ", token,
                             " is none of the ", patches, " patches");
  }

  /// The position that pair `pair` sees for token `token`: the token's own, or its place on the pair's axis.
  [[nodiscard]] position position_of(index_t pair, position token) const noexcept {
    if (axis_of_pair.empty()) return token;
    const auto axis = static_cast<std::size_t>(axis_of_pair[static_cast<std::size_t>(pair)]);
    if (token < 0 || token >= static_cast<position>(axis_positions_of_token.size()))
      return axis == 3 ? 0 : token + text_shift;
    return axis_positions_of_token[static_cast<std::size_t>(token)][axis];
  }

  /// cos φ and sin φ of pair `pair` for the token at `token`, attention_factor and growth not included.
  template <std::floating_point T>
  [[nodiscard]] cos_sin<T> cos_sin_at(index_t pair, position token) const noexcept {
    return cos_sin_of_place<T>(pair, position_of(pair, token));
  }

  /// The same for a pair whose axis has come to `place`.
  template <std::floating_point T>
  [[nodiscard]] cos_sin<T> cos_sin_of_place(index_t pair, position place) const noexcept {
    const auto p = static_cast<std::size_t>(pair);
    if (!framework_frequencies.empty()) {
      const float angle = static_cast<float>(place) * framework_frequencies[p];
      const auto [cos, sin] = cos_sin_of<float>(phase::from_radians(static_cast<long double>(angle)));
      return {static_cast<T>(cos), static_cast<T>(sin)};
    }
    return cos_sin_of<T>(phase_per_token[p] * place);
  }

  /// The same for a token that stands at `place` on the axes, or, where that is null, at its position.
  template <std::floating_point T>
  [[nodiscard]] cos_sin<T> cos_sin_at(index_t pair, position token,
                                      const axis_positions* place) const noexcept {
    return place ? cos_sin_of_place<T>(pair, position_of(pair, *place)) : cos_sin_at<T>(pair, token);
  }

  /// What multiplies the rotated pair: the attention_factor, and in xPos the growth of this side at this position.
  [[nodiscard]] double attention_factor_at(index_t pair, position token, rotation_side side) const noexcept {
    if (growth_per_token.empty()) return attention_factor;
    const long double nepers = growth_per_token[static_cast<std::size_t>(pair)] *
                               (static_cast<long double>(token) - static_cast<long double>(growth_origin));
    return attention_factor * static_cast<double>(std::exp(side == rotation_side::query ? nepers : -nepers));
  }

  /// Rotates one pair of a head by an angle and multiplies it by m.
  template <std::floating_point T, class S>
  void rotate_pair(std::span<S> head, index_t pair, const cos_sin<T>& angle, T m) const noexcept {
    using work = detail::working_t<S>;
    using product = detail::product_t<S, T>;
    const auto [first, second] = channels_of_pair(pairing, rotary_dim, pair);
    S& a = head[static_cast<std::size_t>(offset + first)];
    S& b = head[static_cast<std::size_t>(offset + second)];
    const product x = static_cast<product>(static_cast<work>(a)),
                  y = static_cast<product>(static_cast<work>(b));
    // Each product is a value of its own: expression-template scalars need that, and others do not notice.
    const product x_cos = x * angle.cos, y_sin = y * angle.sin, x_sin = x * angle.sin, y_cos = y * angle.cos;
    a = static_cast<S>(static_cast<work>(product(x_cos - y_sin) * m));
    b = static_cast<S>(static_cast<work>(product(x_sin + y_cos) * m));
  }

  /// Rotates the head in place; T is the precision of cos and sin.
  /// \throws std::invalid_argument when the head is not head_dim wide, std::out_of_range for a token that
  /// stands nowhere.
  template <std::floating_point T, class S>
  void apply(std::span<S> head, position token, rotation_side side) const {
    check_head(static_cast<index_t>(head.size()));
    check_token(token);
    for (index_t pair = 0; pair < pairs(); ++pair)
      rotate_pair(head, pair, cos_sin_at<T>(pair, token),
                  static_cast<T>(attention_factor_at(pair, token, side)));
  }

  /// Rotates the head of a token that stands at `place` on the axes, in place.
  /// \throws std::invalid_argument when the head is not head_dim wide
  template <std::floating_point T, class S>
  void apply_on_axes(std::span<S> head, const axis_positions& place) const {
    check_head(static_cast<index_t>(head.size()));
    for (index_t pair = 0; pair < pairs(); ++pair)
      rotate_pair(head, pair, cos_sin_of_place<T>(pair, position_of(pair, place)),
                  static_cast<T>(attention_factor));
  }

  /// Rotates a value to its token, or an output back from its query's, in place; see rotates_values.
  /// \param place on the axes, where the token has one
  template <std::floating_point T, class S>
  void apply_to_value(std::span<S> value, position token, const axis_positions* place, bool back) const {
    check_head(static_cast<index_t>(value.size()));
    for (index_t pair = 0; pair < pairs(); ++pair) {
      cos_sin<T> angle = cos_sin_at<T>(pair, token, place);
      if (back) angle.sin = -angle.sin;
      rotate_pair(value, pair, angle, T(1));
    }
  }

  /// The same for row `row` of a tensor.
  template <class S>
  void apply_to_value(std::span<S> value, const positions& where, index_t row, bool back) const {
    using angle = std::conditional_t<std::floating_point<S>, S, float>;
    apply_to_value<angle>(value, where[row], where.place(row), back);
  }

  /// \throws std::invalid_argument where values of so many channels cannot rotate
  void check_values(index_t value_dim) const {
    detail::require(value_dim == head_dim, "attention: values of ", value_dim,
                    " channels cannot rotate like keys of ", head_dim, " (rotates_values)");
    detail::require(growth_per_token.empty(),
                    "attention: values cannot rotate by a rotation that grows (xPos)");
  }

  /// The position that pair `pair` sees of a place on the axes.
  [[nodiscard]] position position_of(index_t pair, const axis_positions& place) const noexcept {
    return place[static_cast<std::size_t>(
        axis_of_pair.empty() ? 0 : axis_of_pair[static_cast<std::size_t>(pair)])];
  }

 private:
  void check_head(index_t channels) const {
    detail::require(channels == head_dim, "a head of ", channels,
                    " channels given to a rotation of head_dim ", head_dim);
  }
};

}  // namespace posenc::inline v0_2
