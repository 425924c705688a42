// SPDX-License-Identifier: MIT
/// \file
/// Several axes: which axis a pair of channels follows, and where the tokens of text, images and videos
/// stand.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2 {

inline constexpr int time_axis = 0;    ///< of axis_positions: frames
inline constexpr int height_axis = 1;  ///< rows of an image
inline constexpr int width_axis = 2;   ///< columns of an image
inline constexpr int extra_axis = 3;   ///< a fourth, where a model has one

/// How the pairs of a multi-axis rotation are dealt out to the axes.
enum class axis_order : unsigned char {
  chunked,      ///< consecutive sections: Qwen2-VL, Qwen2.5-VL; ggml MROPE
  interleaved,  ///< t h w t h w …, what the sections of h and w do not reach goes to t: Qwen3-VL, Qwen3.5
  ggml_interleaved,  ///< the same, but what no section reaches goes to the fourth axis, which is 0 for text,
                     ///< so that those pairs do not rotate: ggml IMROPE
  plane_then_time,   ///< sections of h, w and t: h w h w … as far as both reach, then t: Ernie-4.5-VL
};

/// The axis of each of `pairs` pairs, from the number of pairs of each axis ("mrope_section", counted in
/// pairs; two to four of them). \throws std::invalid_argument when the sections do not add up to the pairs.
[[nodiscard]] inline std::vector<int> axes_of_pairs(std::span<const index_t> sections, axis_order order,
                                                    index_t pairs) {
  detail::require(sections.size() >= 2 && sections.size() <= 4, "multi-axis: ", sections.size(),
                  " sections, not 2 to 4");
  index_t sum = 0;
  for (const index_t section : sections) {
    detail::require(section >= 0 && section <= pairs, "multi-axis: a section of ", section, " pairs of ",
                    pairs);
    sum += section;
  }
  detail::require(sum == pairs, "multi-axis: the sections add up to ", sum, " pairs, the rotary width has ",
                  pairs);
  std::vector<int> axes;
  axes.reserve(static_cast<std::size_t>(pairs));
  if (order == axis_order::chunked) {
    for (std::size_t a = 0; a < sections.size(); ++a)
      axes.insert(axes.end(), static_cast<std::size_t>(sections[a]), static_cast<int>(a));
    return axes;
  }
  if (order == axis_order::plane_then_time) {
    detail::require(sections.size() == 3 && sections[0] == sections[1],
                    "multi-axis: height and width in turn need sections of h, w and t with h = w");
    for (index_t p = 0; p < pairs; ++p)
      axes.push_back(p >= 2 * sections[0] ? time_axis : p % 2 == 0 ? height_axis : width_axis);
    return axes;
  }
  detail::require(sections.size() >= 3, "multi-axis: interleaved axes need sections for t, h and w");
  for (index_t p = 0; p < pairs; ++p) {
    const auto turn_of = static_cast<std::size_t>(p % 3);
    const bool reached = p < 3 * sections[turn_of];
    const int leftover = order == axis_order::ggml_interleaved ? extra_axis : time_axis;
    axes.push_back(reached ? static_cast<int>(turn_of) : leftover);
  }
  return axes;
}

/// A grid of vision patches within a sequence, as "image_grid_thw" and "video_grid_thw" count them: before
/// neighbouring patches are merged into one token.
struct vision_grid {
  index_t frames = 1;   ///< a picture is one frame
  index_t rows = 0;     ///< before merging
  index_t columns = 0;  ///< before merging
  index_t merge = 2;    ///< patches merged along each side ("spatial_merge_size")
  /// Time positions from one frame to the next: 1 in Qwen2-VL and Qwen3-VL, "tokens_per_second" times the
  /// seconds per frame in Qwen2.5-VL videos; frame t stands at ⌊t·interval⌋. Where this is a ratio of whole numbers,
  /// rounded, the ratio counts: 25·(2.0/3) is 50/3, so that frame 3 stands at 50 and not at 49.
  double interval = 1;

  /// Tokens of it, after merging.
  [[nodiscard]] index_t tokens() const noexcept { return frames * (rows / merge) * (columns / merge); }
};

/// Where text goes on after an image or a video.
enum class after_vision : unsigned char {
  /// At the largest position on any axis + 1: the models' authors, vLLM, transformers before 5.
  largest_position,
  /// max(rows, columns)/merge after the grid began, however many frames it has: transformers 5. A long video then
  /// stands later in time than the text that follows it.
  grid_extent,
};

namespace detail {

/// ⌊t·interval⌋, with the interval taken for the simplest ratio of whole numbers that rounds to it, if there is one.
[[nodiscard]] inline position frame_time(index_t t, double interval) {
  const double time = std::floor(static_cast<double>(t) * interval);
  require(time <= 0x1p61, "multi-axis: frame ", t, " at an interval of ", interval, " stands beyond 2^61");
  // Continued fraction: h/k are its convergents.
  std::int64_t h = 1, h_before = 0, k = 0, k_before = 1;
  double rest = interval;
  while (interval < 1e6) {
    const auto whole = static_cast<std::int64_t>(std::floor(rest));
    const std::int64_t h_next = whole * h + h_before, k_next = whole * k + k_before;
    if (k_next > 100'000) break;
    h_before = h, h = h_next, k_before = k, k = k_next;
    if (std::abs(static_cast<double>(h) / static_cast<double>(k) - interval) <= 1e-13 * interval)
      return t / k * h + t % k * h / k;
    rest = 1 / (rest - static_cast<double>(whole));
    if (!(rest < 1e6)) break;
  }
  return static_cast<position>(time);
}

}  // namespace detail

/// Where the tokens of a sequence of text and vision stand (Qwen-VL's rule): text advances by one on all
/// axes; a grid spreads from the current position, frames along t, rows along h, columns along w; after it
/// the text goes on as `after` says.
///
///     posenc::axis_position_builder where;
///     where.text(3).grid({.rows = 4, .columns = 6}).text(4);
///     options.key_positions = options.query_positions = posenc::positions::on_axes(where.table());
class axis_position_builder {
 public:
  axis_position_builder() = default;
  /// Says where text goes on after a picture or a video.
  explicit axis_position_builder(after_vision after) : after_(after) {}

  /// Appends `tokens` tokens of text.
  axis_position_builder& text(index_t tokens) {
    detail::require(tokens >= 0, "multi-axis: ", tokens, " tokens of text");
    for (index_t n = 0; n < tokens; ++n, ++next_) table_.push_back({next_, next_, next_, 0});
    return *this;
  }

  /// Appends an image (one frame) or a video.
  /// \throws std::invalid_argument when the rows or columns are no multiple of merge.
  axis_position_builder& grid(const vision_grid& vision) {
    detail::require(vision.merge >= 1 && vision.frames >= 1 && vision.rows >= 1 && vision.columns >= 1,
                    "multi-axis: a grid of ", vision.frames, " x ", vision.rows, " x ", vision.columns,
                    " patches merged by ", vision.merge);
    detail::require(vision.rows % vision.merge == 0 && vision.columns % vision.merge == 0,
                    "multi-axis: a grid of ", vision.rows, " x ", vision.columns,
                    " patches cannot be merged by ", vision.merge);
    detail::require(detail::is_finite(vision.interval) && vision.interval >= 0, "multi-axis: an interval of ",
                    vision.interval);
    const index_t rows = vision.rows / vision.merge, columns = vision.columns / vision.merge;
    for (index_t t = 0; t < vision.frames; ++t) {
      const position later = detail::frame_time(t, vision.interval);
      for (index_t h = 0; h < rows; ++h)
        for (index_t w = 0; w < columns; ++w) table_.push_back({next_ + later, next_ + h, next_ + w, 0});
    }
    const position extent = (std::max)(rows, columns);
    next_ += after_ == after_vision::grid_extent
                 ? extent
                 : (std::max)(extent, position{detail::frame_time(vision.frames - 1, vision.interval) + 1});
    return *this;
  }

  /// One entry per token so far.
  [[nodiscard]] const std::vector<axis_positions>& table() const noexcept { return table_; }

  /// Largest position + 1 − number of tokens: token n after the table stands at n + rope_delta on all axes, as in the
  /// models' own decoding, whatever the rule for text within the table is.
  [[nodiscard]] position rope_delta() const noexcept {
    position end = 0;
    for (const axis_positions& token : table_)
      end = (std::max)({end, token[0] + 1, token[1] + 1, token[2] + 1});
    return end - static_cast<position>(table_.size());
  }

 private:
  std::vector<axis_positions> table_;
  position next_ = 0;
  after_vision after_ = after_vision::largest_position;
};

/// Positions of the patches of one image for a vision tower, row by row, on the height and width axes.
/// \param merge patches of a merge × merge block follow one another (the Qwen towers); 1 is plain rows
[[nodiscard]] inline std::vector<axis_positions> patch_positions(index_t rows, index_t columns,
                                                                 index_t merge = 1) {
  detail::require(rows >= 0 && columns >= 0 && merge >= 1 && rows % merge == 0 && columns % merge == 0,
                  "multi-axis: an image of ", rows, " x ", columns, " patches in blocks of ", merge);
  std::vector<axis_positions> table;
  for (index_t block_row = 0; block_row < rows; block_row += merge)
    for (index_t block_column = 0; block_column < columns; block_column += merge)
      for (index_t h = block_row; h < block_row + merge; ++h)
        for (index_t w = block_column; w < block_column + merge; ++w) table.push_back({0, h, w, 0});
  return table;
}

}  // namespace posenc::inline v0_2
