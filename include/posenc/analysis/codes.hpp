// SPDX-License-Identifier: MIT
/// \file
/// The code of a position: the numbers by which attention can know it.
///
/// A code has components, and a component is one or two numbers: cos and sin of one frequency, the bias of one head, one
/// channel of an embedding. Two positions collide where all components are equal.
///
/// | what | components | made by |
/// |---|---|---|
/// | a rotation (rope, xpos, one of your own with lowered()) | m·(cos, sin) of each pair | rotation_codes |
/// | sinusoidal | (cos, sin) of each pair | rotation_codes |
/// | any encoding with door embed | each channel of embed() on zeros | embedded_codes |
/// | any encoding with door rotate | each channel of a head of ones, rotated | rotated_codes |
/// | any encoding with a bias by offset | the bias of each head for a key so far behind | bias_codes |
/// | any encoding with relative_key | each channel of the row of a key so far behind | relative_key_codes |
/// | any encoding with a scale | the scale | scale_codes |
///
/// rotation_codes keeps integer phases and computes each number when it is needed: any length, exact. The others go through
/// the doors of the encoding, so that they serve a user's own, and keep length × components doubles in memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <posenc/encoding.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// One component of the code of one position; the second number is 0 where a component has one.
using code_point = std::array<double, 2>;

/// Codes of the positions (or distances) 0 … length−1. To analyse codes of another kind, write a type with these members.
template <class C>
concept position_codes = requires(const C& codes, index_t component, position p) {
  { codes.components() } -> std::convertible_to<index_t>;
  { codes.length() } -> std::convertible_to<position>;
  { codes.at(component, p) } -> std::convertible_to<code_point>;
};

/// The codes of a rotation: what the score of a query at `position` and a key at 0 has been rotated by.
class rotation_codes {
 public:
  /// \throws std::invalid_argument when the length is not positive.
  rotation_codes(rotation by, position length) : by_(std::move(by)), length_(length) {
    detail::require(length >= 1, "rotation_codes: a length of ", length);
  }

  /// Of an encoding with lowered(): rope, xpos, multi_axis_rope, or one of your own.
  template <lowers_to_rotation E>
  rotation_codes(const E& encoding, position length) : rotation_codes(rotation(encoding.lowered()), length) {}

  /// Of a sinusoidal embedding. \throws std::invalid_argument also where a sine has no cosine (an odd width): use
  /// embedded_codes.
  template <std::floating_point T>
  rotation_codes(const sinusoidal<T>& encoding, position length)
      : rotation_codes(rotation_of(encoding), length) {}

  /// One per pair of channels.
  [[nodiscard]] index_t components() const noexcept { return by_.pairs(); }
  /// The positions are 0 … length − 1.
  [[nodiscard]] position length() const noexcept { return length_; }

  /// m·(cos φ, sin φ) of a pair.
  [[nodiscard]] code_point at(index_t pair, position p) const noexcept {
    const auto [cos, sin] = by_.cos_sin_at<double>(pair, p);
    const double m = by_.attention_factor_at(pair, p, rotation_side::query);
    return {m * cos, m * sin};
  }

  /// True where the distance of two codes depends on the distance of the positions alone.
  [[nodiscard]] bool depends_on_offset_only() const noexcept {
    return by_.depends_on_offset_only() && by_.growth_per_token.empty();
  }

  /// The fraction of a turn that each pair makes per token.
  [[nodiscard]] std::span<const phase> phases() const noexcept { return by_.phase_per_token; }
  /// The rotation whose codes these are.
  [[nodiscard]] const rotation& by() const noexcept { return by_; }

 private:
  template <std::floating_point T>
  [[nodiscard]] static rotation rotation_of(const sinusoidal<T>& encoding) {
    const index_t pairs = encoding.pairs();
    detail::require(pairs == encoding.width() / 2, "rotation_codes: sinusoidal of width ", encoding.width(),
                    " has a sine without a cosine; use embedded_codes");
    rotation result;
    result.head_dim = encoding.width(), result.rotary_dim = 2 * pairs;
    result.phase_per_token.assign(encoding.phases().begin(), encoding.phases().end());
    return result;
  }

  rotation by_;
  position length_;
};

/// Codes that were read through the doors of an encoding: length × components.
class code_table {
 public:
  /// \throws std::invalid_argument when there is no position.
  explicit code_table(row_major_matrix<double> values) : values_(std::move(values)) {
    detail::require(values_.rows() >= 1, "code_table: a length of ", values_.rows());
  }

  /// Numbers per position.
  [[nodiscard]] index_t components() const noexcept { return values_.cols(); }
  /// The positions are 0 … length − 1.
  [[nodiscard]] position length() const noexcept { return values_.rows(); }
  /// The number of one position as a code, whose second half is 0.
  [[nodiscard]] code_point at(index_t component, position p) const noexcept {
    return {values_(p, component), 0};
  }
  /// Length × components.
  [[nodiscard]] const row_major_matrix<double>& values() const noexcept { return values_; }

 private:
  row_major_matrix<double> values_;
};

namespace detail {
template <class Fill>
[[nodiscard]] code_table table_of(const char* what, position length, index_t components, const Fill& fill) {
  require(length >= 1 && components >= 1, what, ": codes of ", length, " positions with ", components,
          " components");
  row_major_matrix<double> values = row_major_matrix<double>::Zero(length, components);
  for (position p = 0; p < length; ++p)
    fill(std::span<double>(values.data() + p * components, static_cast<std::size_t>(components)), p);
  return code_table(std::move(values));
}
}  // namespace detail

/// Through the door embed: what is added to a token at positions 0 … length−1.
template <class E>
requires embeds<E, double>
[[nodiscard]] code_table embedded_codes(const E& encoding, index_t width, position length) {
  return detail::table_of("embedded_codes", length, width,
                          [&](std::span<double> row, position p) { encoding.embed(row, p); });
}

/// Through the door rotate: a query head of ones at positions 0 … length−1. A pair contributes (cos φ − sin φ,
/// cos φ + sin φ)·m, so that codes are √2 times as far apart as those of rotation_codes.
template <class E>
requires rotates<E, double>
[[nodiscard]] code_table rotated_codes(const E& encoding, index_t head_dim, position length) {
  return detail::table_of("rotated_codes", length, head_dim, [&](std::span<double> head, position p) {
    for (double& channel : head) channel = 1;
    detail::rotate_query(encoding, head, p);
  });
}

/// Through the door bias: the bias of each head for a key 0 … length−1 behind the query.
template <biases_by_offset E>
[[nodiscard]] code_table bias_codes(const E& encoding, index_t heads, position length) {
  return detail::table_of("bias_codes", length, heads, [&](std::span<double> row, position distance) {
    for (std::size_t h = 0; h < row.size(); ++h)
      row[h] = static_cast<double>(encoding.bias(static_cast<int>(h), -distance));
  });
}

/// Through the door relative_key: the row of head `head` for a key 0 … length−1 behind the query.
template <has_relative_key E>
[[nodiscard]] code_table relative_key_codes(const E& encoding, index_t head_dim, position length,
                                            int head = 0) {
  return detail::table_of("relative_key_codes", length, head_dim,
                          [&](std::span<double> row, position distance) {
                            const auto& from = encoding.relative_key(head, -distance);
                            for (std::size_t c = 0; c < row.size(); ++c)
                              row[c] = static_cast<double>(from[c]);
                          });
}

/// Through the door scale: the factor of each head for a query at 0 … length−1.
template <scales E>
[[nodiscard]] code_table scale_codes(const E& encoding, index_t heads, position length) {
  return detail::table_of("scale_codes", length, heads, [&](std::span<double> row, position query) {
    for (std::size_t h = 0; h < row.size(); ++h)
      row[h] = static_cast<double>(detail::scale_of(encoding, static_cast<int>(h), query));
  });
}

static_assert(position_codes<rotation_codes> && position_codes<code_table>);

}  // namespace posenc::inline v0_2
