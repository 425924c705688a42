// SPDX-License-Identifier: MIT
/// \file
/// Dense masks and biases at the ends of their numbers.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"

namespace dense_edges_test {

using fused_calls::random_matrix;
using posenc::index_t;

constexpr index_t keys = 40, head_dim = 16, hidden = 7;

TEST(dense, a_bias_that_is_no_number_where_the_mask_hides_the_key_is_not_met) {
  for (const index_t queries : {2, 40})
    for (const float bias :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const auto q = random_matrix<float>(queries, head_dim, 1), k = random_matrix<float>(keys, head_dim, 2);
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(queries * keys), 1);
      std::vector<float> biases(mask.size(), 0.0f);
      for (index_t i = 0; i < queries; ++i) {
        mask[static_cast<std::size_t>(i * keys + hidden)] = 0;
        biases[static_cast<std::size_t>(i * keys + hidden)] = bias;
      }
      const auto by_mask = posenc::dense_mask(posenc::dense_scores(mask.data(), 1, queries, keys));
      const auto by_bias = posenc::dense_bias(posenc::dense_scores(biases.data(), 1, queries, keys));
      const auto masked = posenc::fused::attention(q, k, k, posenc::no_encoding{}, {.visible = by_mask});
      const auto both =
          posenc::fused::attention(q, k, k, posenc::no_encoding{}, {.visible = by_mask & by_bias});
      EXPECT_TRUE((both.array().isFinite()).all()) << queries << " queries, bias " << bias;
      EXPECT_LE(fused_calls::relative_error(both, masked), 1e-6) << queries << " queries, bias " << bias;
    }
}

TEST(dense, the_lowest_double_on_every_key_is_their_mean) {
  for (const index_t queries : {2, 40}) {
    const auto q = random_matrix<float>(queries, head_dim, 1), k = random_matrix<float>(keys, head_dim, 2);
    const std::vector<double> lowest(static_cast<std::size_t>(queries * keys),
                                     std::numeric_limits<double>::lowest());
    const auto out = posenc::fused::attention(
        q, k, k, posenc::no_encoding{},
        {.visible = posenc::dense_bias(posenc::dense_scores(lowest.data(), 1, queries, keys))});
    for (index_t i = 0; i < queries; ++i)
      EXPECT_LE((out.row(i) - k.colwise().mean()).norm(), 1e-5f) << queries << " queries, row " << i;
  }
}

}  // namespace dense_edges_test
