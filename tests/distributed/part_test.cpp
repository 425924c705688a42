// SPDX-License-Identifier: MIT
/// \file
/// Parts of a call see what the whole says, and a part that sees nothing is known as such. Nothing here needs MPI.
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/distributed/part.hpp>

namespace part_test {
using namespace posenc::detail::distributed;
using posenc::index_t;
using posenc::mpi::split;
using posenc::mpi::split_kind;

/// Compares each pair of rows of each part of 24 queries on 24 keys over three ranks; gives how many parts are left out.
int hidden_parts(const posenc::attention_options& options, split_kind kind) {
  const index_t tokens = 24, ranks = 3;
  const split rows(tokens, ranks, kind, 2);
  const posenc::detail::resolved_options whole =
      posenc::detail::resolve(options, {tokens, tokens, 1, 1, 8, 8});
  const divided_call call(options, whole);
  int hidden = 0;
  for (index_t rank = 0; rank < ranks; ++rank)
    for (index_t owner = 0; owner < ranks; ++owner) {
      const rows_of_rank queries(rows.pieces(rank), whole.query_positions, whole.valid_queries);
      const rows_of_rank keys(rows.pieces(owner), whole.key_positions, whole.valid_keys);
      const std::vector<index_t> q = rows.rows(rank), k = rows.rows(owner);
      for (const local_rows& group : call.key_groups(keys))
        for (const local_rows& block : call.query_blocks(queries)) {
          const posenc::detail::resolved_options part =
              posenc::detail::resolve(call.part(queries, block, keys, group),
                                      {block.rows.end - block.rows.begin, keys.count(), 1, 1, 8, 8});
          bool any = false;
          for (index_t i = block.rows.begin; i < block.rows.end; ++i)
            for (index_t j = group.rows.begin; j < group.rows.end; ++j) {
              const bool seen = whole.sees(0, q[static_cast<std::size_t>(i)], k[static_cast<std::size_t>(j)]);
              EXPECT_EQ(part.sees(0, i - block.rows.begin, j), seen)
                  << rank << " " << owner << " " << i << " " << j;
              any = any || seen;
            }
          const bool is_hidden = call.is_hidden(queries, block, keys, group);
          EXPECT_FALSE(is_hidden && any);
          hidden += is_hidden ? 1 : 0;
        }
    }
  return hidden;
}

TEST(Parts, HiddenOnesAreLeftOut) {
  posenc::attention_options causal{.mask = posenc::causal};
  EXPECT_EQ(hidden_parts(causal, split_kind::contiguous), 3);  // of nine, those after the queries
  causal.window = posenc::sliding_window(2);
  EXPECT_EQ(hidden_parts(causal, split_kind::contiguous), 4);  // and rank 0's keys for rank 2
  EXPECT_EQ(hidden_parts({.mask = posenc::bidirectional}, split_kind::zigzag), 0);
  // Documents that end with the ranks: each sees its own.
  EXPECT_EQ(hidden_parts({.visible = posenc::documents({0, 8, 16})}, split_kind::contiguous), 6);
}

TEST(Parts, SeeWhatTheWholeSays) {
  const std::vector<posenc::row_range> ranges(24, {3, 17});
  const std::vector<std::uint64_t> tree(24, 0x2d);
  for (const split_kind kind : {split_kind::contiguous, split_kind::zigzag, split_kind::striped})
    for (const auto mask :
         {posenc::bidirectional, posenc::causal, posenc::causal_from_first, posenc::causal_to_last})
      for (const auto& visible :
           {posenc::visibility(), posenc::documents({0, 5, 5, 20}), posenc::blocks({{2, 9}, {11, 23}}),
            posenc::row_ranges(ranges), posenc::draft_tree(std::span<const std::uint64_t>(tree), 6)})
        for (const index_t first : {0, 3, -2}) {
          hidden_parts({.mask = mask, .visible = visible, .first_query_row = first}, kind);
          hidden_parts({.mask = mask, .chunk = 7, .visible = visible, .valid_keys = posenc::row_range{4, 21}},
                       kind);
        }
}

}  // namespace part_test
