// SPDX-License-Identifier: MIT
/// \file
/// From one pairing to the other: the same model under another order of channels.
///
/// interleaved pairs (2p, 2p+1) and half_split pairs (p, p+r/2) differ by a fixed permutation of the rotary
/// channels of each head. Permuting the rows of W_q and W_k (and their biases), or the vectors themselves,
/// makes one of the other and leaves every score as it was, since q·k is a sum over channels. The converter
/// that writes llama weights into GGUF files does exactly this.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/required.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Which channels of a head change places, and in which direction.
struct pairing_conversion {
  index_t head_dim = 0;                 ///< channels of a head
  std::optional<index_t> rotary_dim{};  ///< all channels from rotary_offset on if not given
  index_t rotary_offset = 0;            ///< the first channel that rotates
  required<pairing> from;               ///< how the channels are paired now
  required<pairing> to;                 ///< how they are to be paired

  /// The permutation of one head: channel c of the result is channel source()[c] of the original. Channels
  /// that do not rotate stay where they are. \throws std::invalid_argument when the widths mean nothing.
  [[nodiscard]] std::vector<index_t> source() const {
    const index_t rotary = rotary_dim.value_or(head_dim - rotary_offset);
    detail::require(head_dim >= 1 && rotary_offset >= 0 && rotary >= 0 && rotary % 2 == 0 &&
                        rotary <= head_dim - rotary_offset,
                    "convert_pairing: an even rotary width within the head is needed, not ", rotary,
                    " channels from ", rotary_offset, " of ", head_dim);
    std::vector<index_t> order(static_cast<std::size_t>(head_dim));
    for (std::size_t c = 0; c < order.size(); ++c) order[c] = static_cast<index_t>(c);
    for (index_t pair = 0; pair < rotary / 2; ++pair) {
      const auto [old_first, old_second] = channels_of_pair(from, rotary, pair);
      const auto [new_first, new_second] = channels_of_pair(to, rotary, pair);
      order[static_cast<std::size_t>(rotary_offset + new_first)] = rotary_offset + old_first;
      order[static_cast<std::size_t>(rotary_offset + new_second)] = rotary_offset + old_second;
    }
    return order;
  }
};

/// Reorders the channels of every head of a tensor (queries, keys, a cache) in place.
/// \throws std::invalid_argument when the heads are not head_dim wide or share memory.
template <class S>
void convert_pairing(heads_view<S> heads, const pairing_conversion& conversion) {
  const std::vector<index_t> source = conversion.source();
  detail::check_view(heads, "convert_pairing");
  detail::check_disjoint_rows(heads, "convert_pairing");
  detail::require(heads.empty() || heads.head_dim == conversion.head_dim, "convert_pairing: heads of ",
                  heads.head_dim, " channels, the conversion is for ", conversion.head_dim);
  std::vector<S> before(source.size());
  for (index_t token = 0; token < heads.tokens; ++token)
    for (index_t head = 0; head < heads.heads; ++head) {
      const std::span<S> channels = heads(token, head);
      std::copy(channels.begin(), channels.end(), before.begin());
      for (std::size_t c = 0; c < source.size(); ++c)
        channels[c] = before[static_cast<std::size_t>(source[c])];
    }
}

/// The same from one tensor into another; they are the same memory or do not overlap.
/// \throws std::invalid_argument when the shapes do not fit or the memory overlaps in part.
template <class S>
void convert_pairing(std::type_identity_t<heads_view<const S>> from, heads_view<S> to,
                     const pairing_conversion& conversion) {
  detail::require(to.empty() || to.head_dim == conversion.head_dim, "convert_pairing: heads of ", to.head_dim,
                  " channels, the conversion is for ", conversion.head_dim);
  detail::copy_heads(from, to, "convert_pairing");
  convert_pairing(to, conversion);
}

/// Reorders the channels of one head in place.
template <class S>
void convert_pairing(std::span<S> head, const pairing_conversion& conversion) {
  convert_pairing(token_major(head.data(), 1, 1, static_cast<index_t>(head.size())), conversion);
}

/// Reorders the rows of projection weights inside each head, in place: heads·head_dim rows by any number of
/// columns, as the frameworks store W_q and W_k; a bias is a matrix of one column. An Eigen::Map reaches
/// foreign memory, whatever its strides.
/// \throws std::invalid_argument when the rows are no multiple of head_dim
template <class Matrix>
requires std::derived_from<std::remove_cvref_t<Matrix>, Eigen::MatrixBase<std::remove_cvref_t<Matrix>>>
void convert_weight_rows(Matrix&& weights, const pairing_conversion& conversion) {
  const std::vector<index_t> source = conversion.source();
  detail::require(weights.rows() % conversion.head_dim == 0, "convert_pairing: ", weights.rows(),
                  " weight rows are no multiple of head_dim ", conversion.head_dim);
  for (index_t first = 0; first < weights.rows(); first += conversion.head_dim) {
    const typename std::remove_cvref_t<Matrix>::PlainObject before =
        weights.middleRows(first, conversion.head_dim);
    for (index_t c = 0; c < conversion.head_dim; ++c)
      weights.row(first + c) = before.row(source[static_cast<std::size_t>(c)]);
  }
}

/// A copy of projection weights with its rows reordered; see convert_weight_rows().
template <class Derived>
[[nodiscard]] typename Derived::PlainObject converted_weight_rows(const Eigen::MatrixBase<Derived>& weights,
                                                                  const pairing_conversion& conversion) {
  typename Derived::PlainObject result = weights;
  convert_weight_rows(result, conversion);
  return result;
}

}  // namespace posenc::inline v0_2
