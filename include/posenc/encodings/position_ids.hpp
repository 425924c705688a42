// SPDX-License-Identifier: MIT
/// \file
/// Positions as model families derive them from a padding mask, so that padded batches meet the rows they
/// were trained with.
///
/// `is_token` is any range with one entry per token, nonzero for a token and zero for padding
/// (std::vector<bool>, an attention mask of 0 and 1, …).
///
/// | family | the n-th token (n = 0, 1, …) | padding |
/// |---|---|---|
/// | RoBERTa, M2M100, S2T | padding_idx + 1 + n | padding_idx |
/// | OPT | n | −1 |
/// | Bloom | n | 0 |
///
/// These are places in a table (or on ALiBi's ruler). Whether a padding token is *seen* is for
/// attention_options::valid_keys.
///
/// Golden values: tests/golden/relative.json.
#pragma once

#include <ranges>
#include <vector>

#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

namespace detail {
/// Token n, counted from 0, gets first + n; padding gets `padding`.
template <std::ranges::input_range Mask>
[[nodiscard]] std::vector<position> running_positions(const Mask& is_token, position first,
                                                      position padding) {
  std::vector<position> result;
  position next = first;
  for (const auto& entry : is_token) result.push_back(static_cast<bool>(entry) ? next++ : padding);
  return result;
}
}  // namespace detail

/// Position ids of the RoBERTa family: they already contain the reserved rows, so the table takes no
/// row_offset. With padding_idx 1 a table of 514 rows has 512 usable positions.
template <std::ranges::input_range Mask>
[[nodiscard]] std::vector<position> roberta_position_ids(const Mask& is_token, position padding_idx = 1) {
  return detail::running_positions(is_token, padding_idx + 1, padding_idx);
}

/// Position ids of OPT, for a table with row_offset 2: padding stands at −1, which is row 1.
template <std::ranges::input_range Mask>
[[nodiscard]] std::vector<position> opt_position_ids(const Mask& is_token) {
  return detail::running_positions(is_token, 0, -1);
}

/// Positions of Bloom under padding: padding stands at 0.
template <std::ranges::input_range Mask>
[[nodiscard]] std::vector<position> bloom_position_ids(const Mask& is_token) {
  return detail::running_positions(is_token, 0, 0);
}

}  // namespace posenc::inline v0_2
