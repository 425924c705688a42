// SPDX-License-Identifier: MIT
/// \file
/// cos and sin of positions 0 … length − 1 as other engines keep them, so that they compute with the very angles of
/// this library: computed exactly, rounded once.
///
///     const auto tables = posenc::rotary_tables(rope.lowered(), 8192, posenc::table_layout::vllm);
///     posenc::write_safetensors("tables.safetensors", tables, posenc::table_facts(rope.lowered(), layout));
///
/// | layout | tensors | pairs |
/// |---|---|---|
/// | onnxruntime | cos_cache, sin_cache: length × pairs | the op's attribute `interleaved` says which channels |
/// | flash_attention | cos, sin: length × pairs | apply_rotary_emb(x, cos, sin, interleaved) |
/// | vllm | cos_sin_cache: length × rotary_dim, cos and then sin | is_neox_style is half_split |
/// | transformers | cos, sin: 1 × length × rotary_dim, a number for each channel | halves twice, or each number twice |
///
/// The attention factor (YaRN's magnitude, LongRoPE's) is multiplied into cos and sin, as all four expect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/models/safetensors.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/version.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Whose tables.
enum class table_layout : unsigned char { onnxruntime, flash_attention, vllm, transformers };

/// The name of a layout, as `--layout` takes it.
[[nodiscard]] constexpr const char* name_of(table_layout layout) noexcept {
  constexpr const char* names[]{"onnxruntime", "flash_attention", "vllm", "transformers"};
  return names[static_cast<std::size_t>(layout)];
}
/// \throws std::invalid_argument when no layout has this name
[[nodiscard]] inline table_layout table_layout_of(std::string_view name) {
  using enum table_layout;
  for (const table_layout layout : {onnxruntime, flash_attention, vllm, transformers})
    if (name == name_of(layout)) return layout;
  detail::require(false, "--layout: ", std::string(name),
                  " is none of onnxruntime, flash_attention, vllm, transformers");
  return onnxruntime;
}

/// The tables of a rotation, for positions 0 … length − 1.
/// \throws std::invalid_argument when the length is not positive or its tables take more than 4 GiB, and where what
/// multiplies cos and sin depends on the side of the score (xPos): no layout has room for that; std::out_of_range for a
/// vision tower, whose tokens have no positions of their own
[[nodiscard]] inline std::vector<safetensors_output> rotary_tables(const rotation& by, index_t length,
                                                                   table_layout layout) {
  detail::require(
      by.growth_per_token.empty(),
      "rotary_tables: xpos multiplies queries and keys by different numbers, which no table holds");
  const index_t pairs = by.pairs(), width = 2 * pairs;
  constexpr index_t most = (index_t{1} << 32) / static_cast<index_t>(sizeof(float)) / 2;
  detail::require(length >= 1, "rotary_tables: a length of ", length, " is not positive");
  detail::require(width > 0 && length <= most / width, "rotary_tables: ", length, " positions of ", width,
                  " channels take more than 4 GiB");
  by.check_token(0);
  const bool is_wide = layout == table_layout::transformers;
  row_major_matrix<float> cos(length, is_wide ? width : pairs), sin(length, is_wide ? width : pairs);
  for (index_t p = 0; p < length; ++p)
    for (index_t pair = 0; pair < pairs; ++pair) {
      const cos_sin<double> at = by.cos_sin_at<double>(pair, p);
      const auto [first, second] =
          is_wide ? channels_of_pair(by.pairing, width, pair) : std::pair{pair, pair};
      cos(p, first) = cos(p, second) = static_cast<float>(at.cos * by.attention_factor);
      sin(p, first) = sin(p, second) = static_cast<float>(at.sin * by.attention_factor);
    }
  const auto rows = static_cast<std::uint64_t>(length), columns = static_cast<std::uint64_t>(cos.cols());
  switch (layout) {
    case table_layout::onnxruntime:
      return {{"cos_cache", {rows, columns}, std::move(cos)}, {"sin_cache", {rows, columns}, std::move(sin)}};
    case table_layout::flash_attention:
      return {{"cos", {rows, columns}, std::move(cos)}, {"sin", {rows, columns}, std::move(sin)}};
    case table_layout::vllm: {
      row_major_matrix<float> both(length, width);
      both << cos, sin;
      return {{"cos_sin_cache", {rows, 2 * columns}, std::move(both)}};
    }
    case table_layout::transformers:
      break;
  }
  return {{"cos", {1, rows, columns}, std::move(cos)}, {"sin", {1, rows, columns}, std::move(sin)}};
}

/// What an engine has to know beside the numbers, for the metadata of the file.
[[nodiscard]] inline std::map<std::string, std::string> table_facts(const rotation& by, table_layout layout) {
  std::string factor(32, '\0');
  factor.resize(
      static_cast<std::size_t>(std::snprintf(factor.data(), factor.size(), "%.17g", by.attention_factor)));
  return {{"made_by",
           "posenc " + std::to_string(POSENC_VERSION_MAJOR) + "." + std::to_string(POSENC_VERSION_MINOR)},
          {"layout", name_of(layout)},
          {"pairing", name_of(by.pairing)},
          {"head_dim", std::to_string(by.head_dim)},
          {"rotary_dim", std::to_string(by.rotary_dim)},
          {"rotary_offset", std::to_string(by.offset)},
          {"attention_factor", factor + ", multiplied into cos and sin"}};
}

}  // namespace posenc::inline v0_2
