// SPDX-License-Identifier: MIT
/// \file
/// The distance from which on an encoding tells nothing apart any more: T5's last bucket, the clip of a table, where ALiBi's
/// weights fall below the storage.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include <posenc/analysis/code_storage.hpp>
#include <posenc/analysis/codes.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// The smallest distance from which on all stored codes are the same, up to the end of the codes: everything from there on is
/// one distance. The last position (length − 1) where codes differ to the end.
template <position_codes C>
[[nodiscard]] position saturation_distance(const C& codes, code_storage storage) {
  const position last = codes.length() - 1;
  position from = last;
  for (; from > 0; --from)
    for (index_t component = 0; component < codes.components(); ++component) {
      const code_point end = codes.at(component, last), here = codes.at(component, from - 1);
      if (detail::stored_bits(end[0], storage) != detail::stored_bits(here[0], storage) ||
          detail::stored_bits(end[1], storage) != detail::stored_bits(here[1], storage))
        return from;
    }
  return from;
}

/// Where the weights of one head fade out, for a key that would otherwise score like the key at distance 0: its weight is
/// e^(bias(−Δ) − bias(0)) of that one's.
struct bias_horizon {
  /// The smallest Δ whose weight is below half a unit in the last place of 1: added to the near key's share it vanishes.
  std::optional<position> rounded_away{};
  /// The smallest Δ whose weight is below half of the smallest number of the storage: the weight itself is stored as zero.
  std::optional<position> underflow{};
};

/// The horizon of a bias that falls with distance, found by bisection among distances up to `last`.
///
///     const auto first = posenc::bias_horizon_of(alibi, 0, posenc::code_storage::bfloat16);   // ⌈9·ln 2/m⌉ of a slope m
///
/// Nothing where the weight does not fall that far up to `last`. A bias that rises again is not told from one that falls on.
/// \throws as the encoding's bias does.
template <biases_by_offset E>
[[nodiscard]] bias_horizon bias_horizon_of(const E& encoding, int head, code_storage storage,
                                           position last = position{1} << 40) {
  const auto fall = [&](position distance) {
    return detail::bias_as<double>(encoding, head, distance, 0) -
           detail::bias_as<double>(encoding, head, 0, 0);
  };
  const auto first_below = [&](double log_weight) -> std::optional<position> {
    if (!(fall(last) < log_weight)) return std::nullopt;
    position above = 0, below = last;
    while (below - above > 1) {
      const position middle = above + (below - above) / 2;
      (fall(middle) < log_weight ? below : above) = middle;
    }
    return below;
  };
  const double half = std::log(0.5);
  return {first_below(std::log(rounding_of(storage)) + half),
          first_below(std::log(smallest_of(storage)) + half)};
}

}  // namespace posenc::inline v0_2
