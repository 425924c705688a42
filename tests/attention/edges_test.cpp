// SPDX-License-Identifier: MIT
/// \file
/// Options at the ends of their range and lists that are empty.
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/attention/reference.hpp>
#include <posenc/masks.hpp>

#include "refusals.hpp"

namespace edges_test {

using posenc::index_t;
using posenc::position;
using posenc::positions;
using matrix = posenc::row_major_matrix<float>;

TEST(edges, queries_over_an_empty_list_of_keys_see_nothing) {
  const matrix q = matrix::Ones(5, 4), k(0, 4);
  std::vector<position> none;
  std::vector<posenc::axis_positions> nowhere;
  nowhere.reserve(4);  // memory without an element
  for (const positions& at : {positions::each(none), positions::on_axes(nowhere)}) {
    const matrix out = posenc::reference::attention(q, k, k, posenc::no_encoding{}, {.key_positions = at});
    EXPECT_EQ(out.rows(), 5);
    EXPECT_TRUE((out.array() == 0).all());
  }
}

TEST(edges, a_first_query_row_beyond_all_rows_is_refused) {
  const matrix q = matrix::Ones(5, 4);
  for (const index_t row : {(std::numeric_limits<index_t>::max)(), (std::numeric_limits<index_t>::min)()})
    EXPECT_REFUSAL(
        posenc::reference::attention(q, q, q, posenc::no_encoding{},
                                     {.visible = posenc::documents({0, 3}), .first_query_row = row}),
        std::invalid_argument, "first_query_row");
}

TEST(edges, a_mask_to_the_last_key_begins_at_the_first_query_row) {
  // Two queries in a cache of five rows of which three are filled.
  const matrix q = matrix::Zero(2, 1), k = matrix::Zero(5, 1), v = matrix::Identity(5, 5);
  const matrix out = posenc::reference::attention(q, k, v, posenc::no_encoding{},
                                                  {.mask = posenc::causal_to_last, .first_query_row = 1});
  matrix expected(2, 5);
  expected << 1.0f / 2, 1.0f / 2, 0, 0, 0, 1.0f / 3, 1.0f / 3, 1.0f / 3, 0, 0;
  EXPECT_LE((out - expected).norm(), 1e-6f);
}

TEST(edges, a_draft_tree_of_the_largest_number_of_drafts_is_refused) {
  const std::vector<std::uint64_t> bits(5, 1);
  EXPECT_REFUSAL(
      posenc::draft_tree(std::span<const std::uint64_t>(bits), (std::numeric_limits<index_t>::max)()),
      std::invalid_argument, "no whole number of rows");
}

}  // namespace edges_test
