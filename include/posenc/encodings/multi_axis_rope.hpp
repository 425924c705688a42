// SPDX-License-Identifier: MIT
/// \file
/// RoPE over several axes: door *rotate*. Each pair of channels follows one axis: time, height or width.
///
///     pair p of a token at (t, h, w) rotates by  place[axis_of_pair[p]]·w_p
///
/// Attention knows tokens by their index in the sequence, so that causality and windows mean what they always
/// mean. Where a token stands on each axis belongs to the call (positions::on_axes), so that one encoding serves
/// all sequences; or it is a table inside the encoding. A token without a place of its own is text: all its axes
/// are equal, and it is rotated exactly as by one-axis rope.
///
/// | family | ladder | axes | pairing |
/// |---|---|---|---|
/// | axis_order::chunked (Qwen2-VL, Qwen2.5-VL) | one | sections t, h, w | half_split |
/// | axis_order::interleaved (Qwen3-VL, Qwen3.5) | one | t h w t h w … | half_split |
/// | axis_order::ggml_interleaved (IMROPE) | one | t h w …, the rest a fourth | half_split |
/// | vision_form::restarting (Qwen-VL, ggml VISION) | one per axis | h, then w | half_split |
/// | vision_form::alternating (Pixtral) | even members, odd members | h, then w | half_split |
/// | vision_form::llama4 | one per axis | w (x), then h (y) | interleaved |
///
/// Golden values: tests/golden/mrope.json, rope_apply.json.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/encodings/rope.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/axes.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2 {

/// The three ways in which vision towers rotate by row and column.
enum class vision_form : unsigned char {
  restarting,   ///< Qwen-VL towers, ggml VISION
  alternating,  ///< Pixtral
  llama4,       ///< Llama-4; its patches stand at row + 1, column + 1 and the class token at 0, see
                ///< llama4_patch_positions
};

/// Where the patches of a Llama-4 vision tower stand: rows × columns patches counted from 1, then the class
/// token, which does not rotate.
[[nodiscard]] inline std::vector<axis_positions> llama4_patch_positions(index_t rows, index_t columns) {
  std::vector<axis_positions> table = patch_positions(rows, columns);
  for (axis_positions& patch : table) ++patch[height_axis], ++patch[width_axis];
  table.push_back({0, 0, 0, 0});
  return table;
}

/// RoPE over several axes. T is the precision of cos and sin.
template <std::floating_point T>
class multi_axis_rope {
 public:
  /// M-RoPE: one ladder whose pairs are dealt out to the axes. Calls say where tokens stand (positions::on_axes);
  /// where they do not, every token is text.
  /// \param sections pairs of each axis (t, h, w; ggml has a fourth); they add up to the pairs
  /// \throws std::invalid_argument when the options, the scaling or the sections mean nothing.
  template <rope_scaling Scaling>
  multi_axis_rope(const rope_options& options, std::span<const index_t> sections, axis_order order,
                  const Scaling& scaling, std::optional<position> context_length = std::nullopt)
      : multi_axis_rope(options, sections, order, std::vector<axis_positions>{}, 0, scaling, context_length) {
  }
  /// The same with sections in braces.
  template <rope_scaling Scaling>
  multi_axis_rope(const rope_options& options, std::initializer_list<index_t> sections, axis_order order,
                  const Scaling& scaling, std::optional<position> context_length = std::nullopt)
      : multi_axis_rope(options, std::span<const index_t>(sections.begin(), sections.size()), order, scaling,
                        context_length) {}
  /// Without a scaling.
  multi_axis_rope(const rope_options& options, std::span<const index_t> sections, axis_order order)
      : multi_axis_rope(options, sections, order, no_scaling{}) {}
  /// Without a scaling, sections in braces.
  multi_axis_rope(const rope_options& options, std::initializer_list<index_t> sections, axis_order order)
      : multi_axis_rope(options, sections, order, no_scaling{}) {}

  /// The same for one sequence, whose places on the axes are part of the encoding.
  /// \param sections as above
  /// \param table where token n stands, axis by axis (axis_position_builder); tokens beyond it are text
  /// \param rope_delta token n beyond the table stands at n + rope_delta on t, h and w
  /// \throws std::invalid_argument when the options, the scaling or the sections mean nothing.
  template <rope_scaling Scaling = no_scaling>
  multi_axis_rope(const rope_options& options, std::span<const index_t> sections, axis_order order,
                  std::vector<axis_positions> table, position rope_delta = 0, const Scaling& scaling = {},
                  std::optional<position> context_length = std::nullopt)
      : one_axis_(options, scaling, context_length), rotation_(one_axis_.lowered()) {
    rotation_.axis_of_pair = axes_of_pairs(sections, order, rotation_.pairs());
    set_table(std::move(table), rope_delta);
  }
  /// The same with sections in braces.
  template <rope_scaling Scaling = no_scaling>
  multi_axis_rope(const rope_options& options, std::initializer_list<index_t> sections, axis_order order,
                  std::vector<axis_positions> table, position rope_delta = 0, const Scaling& scaling = {},
                  std::optional<position> context_length = std::nullopt)
      : multi_axis_rope(options, std::span<const index_t>(sections.begin(), sections.size()), order,
                        std::move(table), rope_delta, scaling, context_length) {}

  /// The 2-D rotation of a vision tower over the whole head.
  /// \param head_dim a multiple of 4
  /// \param table where each patch stands (patch_positions, llama4_patch_positions); other tokens are refused
  /// \throws std::invalid_argument when the width or the base means nothing.
  [[nodiscard]] static multi_axis_rope vision(vision_form form, index_t head_dim,
                                              std::vector<axis_positions> table, double base = 10'000.0,
                                              angle_mode angles = angle_mode::exact) {
    detail::require(head_dim >= 4 && head_dim % 4 == 0, "vision rope: head_dim ", head_dim,
                    " is no multiple of 4");
    const rope_options options{
        .head_dim = head_dim,
        .base = base,
        .pairing = form == vision_form::llama4 ? pairing::interleaved : pairing::half_split,
        .angles = angles};
    multi_axis_rope result{options, form, vision_ladder<long double>(form, head_dim, base)};
    if (angles == angle_mode::framework_float32)
      result.rotation_.framework_frequencies = vision_ladder<float>(form, head_dim, base).inv_freq;
    const auto half = static_cast<std::size_t>(head_dim / 4);
    const bool columns_first = form == vision_form::llama4;
    result.rotation_.axis_of_pair.assign(half, columns_first ? width_axis : height_axis);
    result.rotation_.axis_of_pair.resize(2 * half, columns_first ? height_axis : width_axis);
    result.set_table(std::move(table), 0);
    result.rotation_.text_follows = false;
    return result;
  }

  /// Door *rotate*: rotates the query or key of token `token`, in place.
  /// \throws std::out_of_range for a token outside the table of a vision tower.
  template <class S>
  void rotate(std::span<S> head, position token) const {
    rotation_.template apply<T>(head, token, rotation_side::query);
  }

  /// Rotates the query or key of a token that stands at `place` on the axes, in place (positions::on_axes).
  template <class S>
  void rotate_on_axes(std::span<S> head, const axis_positions& place) const {
    rotation_.template apply_on_axes<T>(head, place);
  }

  /// cos φ and sin φ of one pair for token `token`, without the attention factor.
  [[nodiscard]] cos_sin<T> angle(index_t pair, position token) const {
    rotation_.check_token(token);
    return rotation_.template cos_sin_at<T>(pair, token);
  }

  /// Where a token stands on the axis that pair `pair` follows.
  [[nodiscard]] position position_of(index_t pair, position token) const {
    rotation_.check_token(token);
    return rotation_.position_of(pair, token);
  }

  /// Radians per step of each pair, after scaling.
  [[nodiscard]] std::span<const double> inv_freq() const noexcept { return one_axis_.inv_freq(); }

  /// The axis that each pair follows.
  [[nodiscard]] std::span<const int> axis_of_pair() const noexcept { return rotation_.axis_of_pair; }

  /// m, which multiplies cos and sin of queries and of keys.
  [[nodiscard]] double attention_factor() const noexcept { return rotation_.attention_factor; }

  /// The settled description, for kernels.
  [[nodiscard]] const rotation& lowered() const noexcept { return rotation_; }

 private:
  multi_axis_rope(const rope_options& options, vision_form, const frequency_ladder<long double>& ladder)
      : one_axis_(rope<T>::from_frequencies(options, ladder)), rotation_(one_axis_.lowered()) {}

  /// Half the pairs for one axis, half for the other.
  template <std::floating_point Real>
  [[nodiscard]] static frequency_ladder<Real> vision_ladder(vision_form form, index_t head_dim, double base) {
    const auto half = static_cast<std::size_t>(head_dim / 4);
    std::vector<Real> both(2 * half);
    if (form == vision_form::alternating) {
      const std::vector<Real> whole = plain_frequencies<Real>(head_dim, base);
      for (std::size_t p = 0; p < half; ++p) both[p] = whole[2 * p], both[half + p] = whole[2 * p + 1];
    } else {
      const std::vector<Real> one = plain_frequencies<Real>(head_dim / 2, base);
      for (std::size_t p = 0; p < half; ++p) both[p] = both[half + p] = one[p];
    }
    return {both, 1};
  }

  void set_table(std::vector<axis_positions> table, position rope_delta) {
    for (const axis_positions& token : table)
      for (const position place : token)
        detail::require(place >= -position_limit && place <= position_limit, "multi-axis: position ", place,
                        " is beyond ±(2^62 − 1)");
    detail::require(rope_delta >= -position_limit && rope_delta <= position_limit, "multi-axis: rope_delta ",
                    rope_delta, " is beyond ±(2^62 − 1)");
    rotation_.axis_positions_of_token = std::move(table);
    rotation_.text_shift = rope_delta;
  }

  rope<T> one_axis_;
  rotation rotation_;
};

}  // namespace posenc::inline v0_2
