// SPDX-License-Identifier: MIT
/// \file
/// Who has which rows, and how much each rank has to do. Nothing here needs MPI.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/distributed/cost.hpp>
#include <posenc/distributed/split.hpp>

#include "refusals.hpp"

namespace split_test {
using posenc::index_t;
using posenc::row_range;
using posenc::mpi::split;
using posenc::mpi::split_kind;

std::vector<index_t> rows_of_all(const split& s) {
  std::vector<index_t> all;
  for (index_t rank = 0; rank < s.ranks(); ++rank) {
    const std::vector<index_t> own = s.rows(rank);
    EXPECT_EQ(static_cast<index_t>(own.size()), s.tokens_of(rank));
    EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
    all.insert(all.end(), own.begin(), own.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Split, GivesEveryRowToOneRank) {
  for (const index_t tokens : {0, 1, 2, 3, 7, 8, 97, 640})
    for (const index_t ranks : {1, 2, 3, 4, 7})
      for (const split_kind kind : {split_kind::contiguous, split_kind::zigzag, split_kind::striped}) {
        const split s(tokens, ranks, kind, 5);
        const std::vector<index_t> all = rows_of_all(s);
        ASSERT_EQ(static_cast<index_t>(all.size()), tokens);
        for (index_t row = 0; row < tokens; ++row) ASSERT_EQ(all[static_cast<std::size_t>(row)], row);
      }
}

TEST(Split, ZigzagPairsEarlyAndLateChunks) {
  const split s(16, 4);
  EXPECT_EQ(s.rows(0), (std::vector<index_t>{0, 1, 14, 15}));
  EXPECT_EQ(s.rows(1), (std::vector<index_t>{2, 3, 12, 13}));
  EXPECT_EQ(s.rows(3), (std::vector<index_t>{6, 7, 8, 9}));
  EXPECT_EQ(s.pieces(3).size(), 1u);  // the middle is one range
  EXPECT_EQ(split(7, 3, split_kind::striped, 2).rows(0), (std::vector<index_t>{0, 1, 6}));
  EXPECT_EQ(split(7, 2, split_kind::contiguous).rows(1), (std::vector<index_t>{3, 4, 5, 6}));
}

TEST(Split, GrowsAtItsEnd) {
  split s(0, 2);
  s.append(1, 3), s.append(1, 2), s.append(0, 4), s.append(1, 1);
  EXPECT_EQ(s.tokens(), 10);
  EXPECT_EQ(s.rows(1), (std::vector<index_t>{0, 1, 2, 3, 4, 9}));
  EXPECT_EQ(s.pieces(1).size(), 2u);
}

TEST(Split, RefusesWhatIsNoSplit) {
  using pieces = std::vector<std::vector<row_range>>;
  EXPECT_REFUSAL(split(5, 0), std::invalid_argument, "5 tokens over 0 ranks");
  EXPECT_REFUSAL(split(-1, 2), std::invalid_argument, "-1 tokens over 2 ranks");
  EXPECT_REFUSAL(split(5, 2, split_kind::striped, 0), std::invalid_argument, "stripes of 0 rows");
  EXPECT_REFUSAL(split(pieces{{{0, 2}}, {{3, 5}}}), std::invalid_argument, "row 2 belongs to no rank");
  EXPECT_REFUSAL(split(pieces{{{0, 3}}, {{2, 5}}}), std::invalid_argument, "row 2 belongs to two ranks");
  EXPECT_REFUSAL(split(pieces{{{3, 5}, {0, 3}}}), std::invalid_argument, "[0, 3)");
  split s(4, 2);
  EXPECT_REFUSAL(s.append(2, 1), std::invalid_argument, "rank 2 of 2");
}

TEST(VisiblePairs, AreThoseThatCountingFinds) {
  for (index_t qb = 0; qb < 6; ++qb)
    for (index_t qe = qb; qe < 8; ++qe)
      for (index_t kb = 0; kb < 6; ++kb)
        for (index_t ke = kb; ke < 8; ++ke) {
          double counted = 0;
          for (index_t i = qb; i < qe; ++i)
            for (index_t j = kb; j < ke; ++j) counted += j <= i ? 1 : 0;
          ASSERT_EQ(posenc::mpi::visible_pairs({qb, qe}, {kb, ke}, posenc::causal), counted)
              << qb << " " << qe << " " << kb << " " << ke;
        }
}

posenc::mpi::call_shape llama(index_t tokens) {
  return {.queries = tokens, .keys = tokens, .heads = 32, .kv_heads = 8, .head_dim = 128, .value_dim = 128};
}

TEST(Cost, ContiguousCausalWaitsForItsLastRank) {
  // Without messages that take time: of P ranks the last has 2P − 1 of P² parts, all of them have 1/P of the zigzag.
  auto call = llama(4096);
  const posenc::mpi::cluster fast{.ranks = 4, .bandwidth = 1e30, .latency = 0, .speed = 1e11};
  const double all = 4096.0 * 4097.0 / 2 * 4 * 32 * 128 / 1e11;
  EXPECT_NEAR(posenc::mpi::ring_cost(call, fast).compute, all / 4, 1e-3 * all);
  call.split = split_kind::contiguous;
  EXPECT_NEAR(posenc::mpi::ring_cost(call, fast).compute, all * 7 / 16, 1e-3 * all);
  call.mask = posenc::bidirectional;
  EXPECT_NEAR(posenc::mpi::ring_cost(call, fast).seconds, all / 2, 1e-3 * all);
}

TEST(Cost, SlowMessagesAreWaitedFor) {
  const auto call = llama(4096);
  // A chunk of 1024 tokens is 8 MiB: three of them at 1 MB/s take far longer than computing, and nothing hides them.
  const posenc::mpi::cluster slow{.ranks = 4, .bandwidth = 1e6, .latency = 0.5, .speed = 1e15};
  const double chunk = 1024.0 * 8 * 256 * 4;
  const posenc::mpi::cost ring = posenc::mpi::ring_cost(call, slow);
  EXPECT_NEAR(ring.seconds, 3 * (chunk / 1e6 + 0.5), 1e-3 * ring.seconds);
  EXPECT_EQ(ring.bytes_sent, 3 * chunk);
  EXPECT_EQ(ring.extra_memory, 2 * chunk);
}

TEST(Cost, HeadsPayWhereThereAreManyOfThem) {
  using posenc::mpi::way;
  auto call = llama(8192);
  posenc::mpi::cluster on{.ranks = 8, .bandwidth = 1e9, .latency = 1e-5, .speed = 1e15};
  // Ring: 7 chunks of 1/8 of k and v. By heads: 7/8 of 1/8 of q, k, v and out, here 2.5 times k and v.
  const double kv = 8192.0 * 8 * 256 * 4, q_out = 8192.0 * 32 * 256 * 4;
  EXPECT_EQ(posenc::mpi::ring_cost(call, on).bytes_sent, kv * 7 / 8);
  EXPECT_NEAR(posenc::mpi::by_heads_cost(call, on)->bytes_sent, (kv + q_out) / 8 * 7 / 8, 1);
  EXPECT_EQ(posenc::mpi::cheaper_way(call, on), way::by_heads);
  on.speed = 1e12;  // the ring computes while it sends
  EXPECT_EQ(posenc::mpi::cheaper_way(call, on), way::ring);
  on.speed = 1e15;
  call.kv_heads = 4;  // fewer than ranks
  EXPECT_EQ(posenc::mpi::cheaper_way(call, on), way::ring);
}

TEST(Cost, FewRanksGatherAndManyReduce) {
  using posenc::mpi::exchange;
  EXPECT_EQ(posenc::mpi::cheaper_exchange(2), exchange::all_gather);  // one state either way
  EXPECT_EQ(posenc::mpi::cheaper_exchange(3), exchange::all_gather);
  EXPECT_EQ(posenc::mpi::cheaper_exchange(4), exchange::all_reduce);  // two rounds against three states
  EXPECT_EQ(posenc::mpi::rounds_of_reduce(4096), 12);
}

}  // namespace split_test
