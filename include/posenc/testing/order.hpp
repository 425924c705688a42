// SPDX-License-Identifier: MIT
/// \file
/// Property checks about the order of tokens and the distance between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include <posenc/testing/world.hpp>

namespace posenc::inline v0_2 {
namespace testing {

namespace detail {

/// Attends to the tokens as they are and in other orders, and compares each token of interest with itself.
/// \param positions_of(order) where the rows stand once they are in that order
/// \param first_of_interest tokens before this one are not compared
/// \param moving how many tokens change places; those after them stay
template <class S, class E, class Attention, class PositionsOf>
void compare_orders(const world<S>& w, const E& encoding, const attention_options& options,
                    const Attention& attention, index_t first_of_interest, index_t moving, std::mt19937& bits,
                    const PositionsOf& positions_of, worst_case& worst) {
  std::vector<index_t> in_place(static_cast<std::size_t>(w.x.rows()));
  std::iota(in_place.begin(), in_place.end(), index_t{0});
  const std::vector<position> here = positions_of(in_place);
  const auto straight = w.attend(w.x, encoding, positions::each(here), options, attention);
  for (auto order : some_orders(moving, bits)) {
    order.insert(order.end(), in_place.begin() + moving, in_place.end());
    const std::vector<position> there = positions_of(order);
    const auto permuted = w.attend(w.reordered(order), encoding, positions::each(there), options, attention);
    for (std::size_t row = 0; row < order.size(); ++row)
      if (order[row] >= first_of_interest)
        worst.see(difference_of_rows(permuted, static_cast<index_t>(row), straight, order[row]), "token ",
                  order[row], " of ", w.x.rows(), " in row ", row, " at position ", there[row],
                  ", after a row with token ", order[row > 0 ? row - 1 : 0]);
  }
}

}  // namespace detail

/// How much the hidden state of a token changes when the tokens change places, bidirectional. Without
/// positions: not at all, since scores depend on content alone and softmax sums over a set.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result permutation_invariance(const E& encoding, const setup& s = {},
                                                  const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  detail::random_numbers random(s.seed + 1);
  attention_options options = world.options;
  options.mask = bidirectional;
  for (const position start : s.starts)
    detail::compare_orders(
        world, encoding, options, attention, 0, s.tokens, random.bits(),
        [&](const std::vector<index_t>& order) { return detail::consecutive(start, order.size()); }, worst);
  return worst.result();
}

/// How much the last token's hidden state changes when the tokens before it change places, under a causal
/// mask. Without positions: not at all, a prefix is a set.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result prefix_permutation_invariance(const E& encoding, const setup& s = {},
                                                         const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  detail::random_numbers random(s.seed + 1);
  attention_options options = world.options;
  options.mask = causal;
  for (const position start : s.starts)
    detail::compare_orders(
        world, encoding, options, attention, s.tokens - 1, s.tokens - 1, random.bits(),
        [&](const std::vector<index_t>& order) { return detail::consecutive(start, order.size()); }, worst);
  return worst.result();
}

/// How much a token's hidden state changes when rows change places and take their positions along. Nothing
/// may change, mask included: only positions count, not rows.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result permutation_equivariance(const E& encoding, const setup& s = {},
                                                    const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  detail::random_numbers random(s.seed + 1);
  for (const position start : s.starts)
    detail::compare_orders(
        world, encoding, world.options, attention, 0, s.tokens, random.bits(),
        [&](const std::vector<index_t>& order) {
          std::vector<position> where = detail::spread_positions(start, s.tokens), moved;
          for (const index_t token : order) moved.push_back(where[static_cast<std::size_t>(token)]);
          return moved;
        },
        worst);
  return worst.result();
}

/// How much hidden states and log-sum-exps change when all tokens move by the same distance, from
/// setup::starts[0] to each other start: R(i)ᵀR(j) = R(j−i), b = b(j−i). The door *embed* does not have this
/// property.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result relative_shift(const E& encoding, const setup& s = {},
                                          const Attention& attention = {}) {
  const detail::world<S> world(s);
  detail::worst_case worst;
  if (s.starts.empty()) return worst.result();
  const auto attend_from = [&](position start) {
    const std::vector<position> where = detail::spread_positions(start, s.tokens);
    return world.attend(world.x, encoding, positions::each(where), world.options, attention);
  };
  const auto here = attend_from(s.starts[0]);
  for (const position start : s.starts) {
    const auto there = attend_from(start);
    for (index_t row = 0; row < s.tokens; ++row)
      worst.see(detail::difference_of_rows(here, row, there, row), "token ", row, " of tokens moved from ",
                s.starts[0], " to ", start);
  }
  return worst.result();
}

/// How alike the two places are that an encoding tells apart worst: 1 means that they coincide (a collision:
/// a clamped table, a period), 0 that they are as different as any two. A query at a start attends to itself
/// and to one other token, which stands 1, 2, … `reach` tokens before it; what comes out must differ from
/// place to place. Encodings that saturate on purpose (clipped tables, T5 buckets) collide beyond their
/// range: keep `reach` inside it. Starts − reach … starts are used.
template <class S, class E, class Attention = reference_attention>
[[nodiscard]] check_result told_apart(const E& encoding, const setup& s = {}, position reach = 16,
                                      const Attention& attention = {}) {
  setup pair = s;
  pair.tokens = 2;
  const detail::world<S> world(pair);
  detail::worst_case worst;
  for (const position start : s.starts) {
    std::vector<attention_result<S>> at;
    for (position distance = 1; distance <= reach; ++distance) {
      const std::vector<position> where{start - distance, start};
      at.push_back(world.attend(world.x, encoding, positions::each(where), world.options, attention));
    }
    double largest = 0;
    for (const auto& a : at)
      for (const auto& b : at) largest = (std::max)(largest, detail::difference_of_rows(a, 1, b, 1));
    for (std::size_t a = 0; a < at.size(); ++a)
      for (std::size_t b = a + 1; b < at.size(); ++b) {
        const double apart = detail::difference_of_rows(at[a], 1, at[b], 1);
        worst.see(largest > 0 ? 1 - apart / largest : 1, "tokens ", a + 1, " and ", b + 1,
                  " before position ", start);
      }
  }
  return worst.result();
}

}  // namespace testing
}  // namespace posenc::inline v0_2
