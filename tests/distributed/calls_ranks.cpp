// SPDX-License-Identifier: MIT
/// \file
/// Calls over several ranks: caches as they are stored, decode, by heads, the gradient, bytes sent, bits of a rerun, and
/// what happens where a rank is wrong.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <mpi.h>

#include <gtest/gtest.h>

#include <posenc/distributed/mpi.hpp>
#include <posenc/fused.hpp>

#include "distributed/ranks.hpp"

namespace {
/// Lines of 64 bytes that this rank sent: PMPI stands before every MPI function.
std::int64_t lines_sent = 0;
}  // namespace

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  lines_sent += count;
  return PMPI_Isend(buffer, count, type, to, tag, comm, request);
}

namespace calls_ranks {
using posenc::index_t;
using posenc::position;
using matrix = posenc::row_major_matrix<float>;
using posenc::mpi::context;
using posenc::mpi::split;
using posenc::mpi::split_kind;

matrix random(index_t rows, index_t columns, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  return matrix::NullaryExpr(rows, columns, [&] { return normal(bits); });
}

/// A call of 6/2 heads of 32 channels over `tokens`, the same on every rank.
struct call {
  index_t tokens, heads = 6, kv_heads = 2, width = 32;
  matrix q = random(tokens, heads*width, 1), k = random(tokens, kv_heads*width, 2),
         v = random(tokens, kv_heads*width, 3);
  posenc::rope<float> rope{{.head_dim = 32, .pairing = posenc::pairing::half_split}};
  posenc::attention_options options{.heads = 6, .kv_heads = 2, .mask = posenc::causal};

  [[nodiscard]] auto q_view() { return posenc::as_heads(q, heads); }
  [[nodiscard]] auto k_view() { return posenc::as_heads(k, kv_heads); }
  [[nodiscard]] auto v_view() { return posenc::as_heads(v, kv_heads); }
};

double difference(const matrix& a, const matrix& b) {
  return a.size() == 0 ? 0 : static_cast<double>((a - b).norm()) / static_cast<double>(b.norm());
}

/// Prefill of this rank's rows, put together again.
template <class K, class V, class E>
matrix ring_of(call& c, const context& ring, const K& own_k, const V& own_v, const E& encoding) {
  const ranks::part_of own_q(c.q_view(), ring.queries(), ring.rank());
  ranks::rows<float> out(own_q.view.tokens, c.heads, c.width);
  posenc::mpi::attention_into(own_q.view, own_k, own_v, encoding, c.options, out.view, ring);
  matrix whole = matrix::Zero(c.tokens, c.heads * c.width);
  ranks::gather(out, ring.queries(), posenc::as_heads(whole, c.heads));
  return whole;
}
matrix ring_of(call& c, const context& ring) {
  const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
      own_v(c.v_view(), ring.keys(), ring.rank());
  return ring_of(c, ring, own_k.view, own_v.view, c.rope);
}

TEST(Ring, EqualsOneProcessForEveryLengthAndSplit) {
  for (const index_t tokens : {0, 1, 2, 3, 13, 601})
    for (const split_kind kind : {split_kind::zigzag, split_kind::contiguous, split_kind::striped}) {
      call c{tokens};
      const context ring(MPI_COMM_WORLD, tokens, kind, 16);
      const matrix expected = posenc::fused::attention(c.q, c.k, c.v, c.rope, c.options);
      EXPECT_LE(difference(ring_of(c, ring), expected), 1e-6) << tokens << " tokens";
    }
}

TEST(Ring, ARerunGivesTheSameBits) {
  call c{601};
  const context ring(MPI_COMM_WORLD, c.tokens);
  const matrix first = ring_of(c, ring);
  for (int n = 0; n < 3; ++n)
    EXPECT_EQ(std::memcmp(ring_of(c, ring).data(), first.data(),
                          sizeof(float) * static_cast<std::size_t>(first.size())),
              0);
  const posenc::fused::thread_pool pool(2);
  const ranks::part_of own_q(c.q_view(), ring.queries(), ring.rank());
  const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
      own_v(c.v_view(), ring.keys(), ring.rank());
  ranks::rows<float> out(own_q.view.tokens, c.heads, c.width);
  posenc::mpi::attention_into(own_q.view, own_k.view, own_v.view, c.rope, c.options, out.view, ring, {},
                              {.executor = pool});
  matrix whole = matrix::Zero(c.tokens, c.heads * c.width);
  ranks::gather(out, ring.queries(), posenc::as_heads(whole, c.heads));
  EXPECT_EQ(std::memcmp(whole.data(), first.data(), sizeof(float) * static_cast<std::size_t>(first.size())),
            0);
}

TEST(Ring, SendsWhatTheModelSays) {
  call c{640};
  const context ring(MPI_COMM_WORLD, c.tokens);
  const std::int64_t before = lines_sent;
  (void)ring_of(c, ring);
  const posenc::mpi::call_shape shape{
      .queries = 640, .keys = 640, .heads = 6, .kv_heads = 2, .head_dim = 32, .value_dim = 32};
  const double model = posenc::mpi::ring_bytes(shape, ring.keys(), ring.rank());
  EXPECT_NEAR(static_cast<double>(lines_sent - before) * 64, model, 0.02 * model);
}

/// Keys and values as rank `rank` stores its rows, and the numbers that all of them stand for.
TEST(Ring, CachesTravelAsTheyAreStored) {
  call c{301};
  const context ring(MPI_COMM_WORLD, c.tokens);
  matrix k8 = c.k, v8 = c.v, k_blocks = c.k;
  posenc::quantised_key_cache keys(c.kv_heads, c.width, 16);
  posenc::quantised_value_cache values(c.kv_heads, c.width);
  posenc::q8_0_cache blocks(c.kv_heads, c.width);
  for (index_t rank = 0; rank < ring.ranks(); ++rank) {
    const ranks::part_of own_k(c.k_view(), ring.keys(), rank), own_v(c.v_view(), ring.keys(), rank);
    posenc::quantised_key_cache its_keys(c.kv_heads, c.width, 16);
    posenc::quantised_value_cache its_values(c.kv_heads, c.width);
    posenc::q8_0_cache its_blocks(c.kv_heads, c.width);
    its_keys.append(own_k.view), its_values.append(own_v.view), its_blocks.append(own_k.view);
    index_t local = 0;
    for (const index_t row : ring.keys().rows(rank)) {
      for (index_t h = 0; h < c.kv_heads; ++h) {
        const auto put = [&](matrix& to, const auto& source) {
          const auto numbers = posenc::detail::row_of<float>(source, local, h);
          std::copy(numbers.begin(), numbers.end(), posenc::as_heads(to, c.kv_heads)(row, h).begin());
        };
        put(k8, its_keys.view()), put(v8, its_values.view()), put(k_blocks, its_blocks.view());
      }
      ++local;
    }
    if (rank == ring.rank()) keys = its_keys, values = its_values, blocks = its_blocks;
  }
  const matrix expected = posenc::fused::attention(c.q, k8, v8, c.rope, c.options);
  EXPECT_LE(difference(ring_of(c, ring, keys.view(), values.view(), c.rope), expected), 1e-6);
  const matrix expected_blocks = posenc::fused::attention(c.q, k_blocks, v8, c.rope, c.options);
  EXPECT_LE(difference(ring_of(c, ring, blocks.view(), values.view(), c.rope), expected_blocks), 1e-6);

  // Pages of 8 tokens in any order.
  const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
      own_v(c.v_view(), ring.keys(), ring.rank());
  const index_t tokens = own_k.view.tokens, pages = (tokens + 7) / 8, row = c.kv_heads * c.width;
  std::vector<float> pool(static_cast<std::size_t>(pages * 8 * row));
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.rbegin(), table.rend(), 0);
  for (index_t t = 0; t < tokens; ++t)
    std::copy_n(own_k.memory.begin() + t * row, row,
                pool.begin() + (table[static_cast<std::size_t>(t / 8)] * 8 + t % 8) * row);
  const auto starts = posenc::pages_of_pool<const float>(pool.data(), pages, 8 * row);
  const posenc::paged_view<const float> paged{starts, table, 8, tokens, c.kv_heads, c.width};
  const matrix plain = ring_of(c, ring);
  EXPECT_EQ(ring_of(c, ring, paged, own_v.view, c.rope), plain);
}

TEST(Decode, EqualsOneProcessHoweverResultsMeet) {
  using posenc::mpi::exchange;
  for (const index_t tokens : {1, 2, 40, 500})
    for (const exchange by : {exchange::automatic, exchange::all_reduce, exchange::all_gather}) {
      call c{tokens};
      const std::vector<double> sinks{0.5, -1, 2, 0, 1, -3};
      c.options.sinks = sinks;
      const matrix q = random(tokens == 1 ? 1 : 2, c.heads * c.width, 9);
      const context ring(MPI_COMM_WORLD, split(0, ranks::count()), split(tokens, ranks::count()));
      const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
          own_v(c.v_view(), ring.keys(), ring.rank());
      matrix out(q.rows(), q.cols()), lse(q.rows(), c.heads);
      posenc::mpi::decode_into(posenc::as_heads(q, c.heads), own_k.view, own_v.view, c.rope, c.options,
                               posenc::as_heads(out, c.heads), ring,
                               {lse.data(), q.rows(), c.heads, c.heads, 1}, {}, by);
      const auto expected = posenc::fused::attention_with_log_sum_exp(q, c.k, c.v, c.rope, c.options);
      EXPECT_LE(difference(out, expected.output), 1e-6);
      EXPECT_LE(difference(lse, expected.log_sum_exp), 1e-6);
      // Every rank has the same bits.
      matrix first = out;
      MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
      EXPECT_EQ(first, out);
    }
}

TEST(Decode, CacheGrowsOnAnyRank) {
  call c{30};
  split rows(0, ranks::count());
  for (index_t n = 0; n < 10; ++n) rows.append(n * 7 % ranks::count(), 3);
  const context ring(MPI_COMM_WORLD, split(0, ranks::count()), rows);
  const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
      own_v(c.v_view(), ring.keys(), ring.rank());
  const matrix q = random(1, c.heads * c.width, 9);
  matrix out(1, q.cols());
  posenc::mpi::decode_into(posenc::as_heads(q, c.heads), own_k.view, own_v.view, c.rope, c.options,
                           posenc::as_heads(out, c.heads), ring);
  EXPECT_LE(difference(out, posenc::fused::attention(q, c.k, c.v, c.rope, c.options)), 1e-6);
}

TEST(ByHeads, EqualsOneProcess) {
  for (const index_t tokens : {0, 1, 13, 301}) {
    call c{tokens};
    c.options.visible =
        posenc::mask_where([](index_t h, index_t i, index_t j) { return (h + i + j) % 3 != 0; });
    const std::vector<double> sinks{0.5, -1, 2, 0, 1, -3}, scales{0.1, 0.2, 0.3, 0.15, 0.25, 0.05};
    c.options.sinks = sinks, c.options.head_scales = scales;
    const posenc::alibi<float> line{{.heads = 6}};
    const auto encoding = posenc::combine(c.rope, line);
    const context ring(MPI_COMM_WORLD, tokens);
    const ranks::part_of own_q(c.q_view(), ring.queries(), ring.rank());
    const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
        own_v(c.v_view(), ring.keys(), ring.rank());
    ranks::rows<float> out(own_q.view.tokens, c.heads, c.width), lse(own_q.view.tokens, c.heads, 1);
    posenc::mpi::attention_by_heads_into(own_q.view, own_k.view, own_v.view, encoding, c.options, out.view,
                                         ring, {lse.memory.data(), own_q.view.tokens, c.heads, c.heads, 1});
    matrix whole = matrix::Zero(tokens, c.heads * c.width), whole_lse = matrix::Zero(tokens, c.heads);
    ranks::gather(out, ring.queries(), posenc::as_heads(whole, c.heads));
    ranks::gather(lse, ring.queries(), posenc::as_heads(whole_lse, c.heads));
    const auto expected = posenc::fused::attention_with_log_sum_exp(c.q, c.k, c.v, encoding, c.options);
    EXPECT_LE(difference(whole, expected.output), 1e-6);
    EXPECT_LE(difference(whole_lse, expected.log_sum_exp), 1e-6);
  }
}

TEST(Backward, EqualsOneProcess) {
  for (const index_t tokens : {1, 13, 301}) {
    call c{tokens};
    const std::vector<double> sinks{0.5, -1, 2, 0, 1, -3};
    c.options.sinks = sinks;
    c.options.visible = posenc::documents({0, tokens / 3});
    const posenc::t5_bias<float> t5{{.buckets = 8, .max_distance = 20, .bidirectional = false},
                                    posenc::bias_table<float>::heads_by_rows(random(6, 8, 5))};
    const auto encoding = posenc::combine(c.rope, t5);
    const auto forward = posenc::fused::attention_with_log_sum_exp(c.q, c.k, c.v, encoding, c.options);
    const matrix d_out = random(tokens, c.heads * c.width, 7);
    const auto expected =
        posenc::fused::attention_backward(c.q, c.k, c.v, forward, d_out, encoding, c.options);

    const context ring(MPI_COMM_WORLD, tokens);
    const split& rows = ring.keys();
    matrix out_rows = forward.output, lse_rows = forward.log_sum_exp, d_rows = d_out;
    const ranks::part_of q(c.q_view(), rows, ring.rank()), k(c.k_view(), rows, ring.rank()),
        v(c.v_view(), rows, ring.rank()), out(posenc::as_heads(out_rows, c.heads), rows, ring.rank()),
        lse(posenc::as_heads(lse_rows, c.heads), rows, ring.rank()),
        d(posenc::as_heads(d_rows, c.heads), rows, ring.rank());
    const index_t local = q.view.tokens;
    ranks::rows<float> d_q(local, c.heads, c.width), d_k(local, c.kv_heads, c.width),
        d_v(local, c.kv_heads, c.width);
    const auto learned = posenc::mpi::attention_backward_into(
        posenc::backward_sequence<float>{q.view,
                                         k.view,
                                         v.view,
                                         out.view,
                                         {lse.memory.data(), local, c.heads, c.heads, 1},
                                         d.view,
                                         d_q.view,
                                         d_k.view,
                                         d_v.view,
                                         c.options},
        encoding, ring);
    matrix got_q = matrix::Zero(tokens, c.q.cols()), got_k = matrix::Zero(tokens, c.k.cols()), got_v = got_k;
    ranks::gather(d_q, rows, posenc::as_heads(got_q, c.heads));
    ranks::gather(d_k, rows, posenc::as_heads(got_k, c.kv_heads));
    ranks::gather(d_v, rows, posenc::as_heads(got_v, c.kv_heads));
    EXPECT_LE((got_q - expected.q).norm(), 1e-6f * (expected.q.norm() + 1));
    EXPECT_LE((got_k - expected.k).norm(), 1e-6f * (expected.k.norm() + 1));
    EXPECT_LE(difference(got_v, expected.v), 1e-6);
    ASSERT_EQ(learned.encoding.size(), expected.encoding.size());
    for (std::size_t n = 0; n < learned.encoding.size(); ++n)
      EXPECT_NEAR(learned.encoding.values()[n], expected.encoding.values()[n], 2e-5f);
    for (std::size_t h = 0; h < 6; ++h) {
      EXPECT_NEAR(learned.sinks[h], expected.sinks[h], 2e-5f);
      EXPECT_NEAR(learned.head_scales[h], expected.head_scales[h], 2e-4f);
    }
  }
}

/// Runs a prefill of 20 tokens with what f makes of the call on the last rank, and gives what every rank throws.
template <class F>
std::string refused(const F& f) {
  call c{20};
  if (ranks::own() == ranks::count() - 1) f(c);
  const context ring(MPI_COMM_WORLD, c.tokens);
  return ranks::same_everywhere(ranks::sentence_of([&] { (void)ring_of(c, ring); }));
}

TEST(Agreement, AMismatchIsTheSameSentenceEverywhere) {
  const std::string last = std::to_string(ranks::count() - 1);
  const auto expect = [&](const std::string& sentence, const std::string& words) {
    if (ranks::count() > 1) {
      EXPECT_EQ(sentence, "posenc: mpi: " + words);
    }
  };
  expect(refused([](call& c) { c.options.softcap = 30; }),
         "softcap is 30 on rank " + last + " and 0 on rank 0");
  expect(refused([](call& c) { c.options.mask = posenc::bidirectional; }),
         "mask is 0 on rank " + last + " and 1 on rank 0");
  expect(refused([](call& c) { c.options.key_positions = posenc::positions::from(5); }),
         "rank " + last + " and rank 0 differ in key_positions");
  expect(refused([](call& c) {
           c.rope =
               posenc::rope<float>{{.head_dim = 32, .base = 5e5, .pairing = posenc::pairing::half_split}};
         }),
         "rank " + last + " and rank 0 differ in the encoding");
  // What one rank finds wrong by itself.
  const std::string wrong = refused([](call& c) { c.options.softcap = -1; });
  EXPECT_EQ(wrong,
            "posenc: mpi: on rank " + last + ": attention: softcap -1 must be finite and not negative");
  // Another number of tokens: the first thing that is different is the number of rows.
  call c{ranks::own() == 0 ? 20 : 24};
  const context uneven(MPI_COMM_WORLD, c.tokens);
  const ranks::part_of own_q(c.q_view(), uneven.queries(), uneven.rank()),
      own_k(c.k_view(), uneven.keys(), uneven.rank()), own_v(c.v_view(), uneven.keys(), uneven.rank());
  ranks::rows<float> out(own_q.view.tokens, c.heads, c.width);
  expect(ranks::same_everywhere(ranks::sentence_of([&] {
           posenc::mpi::attention_into(own_q.view, own_k.view, own_v.view, c.rope, c.options, out.view,
                                       uneven);
         })),
         "the number of query tokens is 24 on rank 1 and 20 on rank 0");
  // Another function.
  call d{20};
  const context ring(MPI_COMM_WORLD, d.tokens);
  const ranks::part_of k(d.k_view(), ring.keys(), ring.rank()), v(d.v_view(), ring.keys(), ring.rank()),
      q(d.q_view(), ring.queries(), ring.rank());
  ranks::rows<float> to(q.view.tokens, d.heads, d.width);
  expect(ranks::same_everywhere(ranks::sentence_of([&] {
           if (ranks::own() == 0)
             posenc::mpi::attention_into(q.view, k.view, v.view, d.rope, d.options, to.view, ring);
           else
             posenc::mpi::attention_by_heads_into(q.view, k.view, v.view, d.rope, d.options, to.view, ring);
         })),
         "the function is attention_by_heads_into on rank 1 and attention_into on rank 0");
}

/// A rotation that fails at one position.
struct failing {
  template <class S>
  void rotate(std::span<S>, position p) const {
    if (p == 7) throw std::out_of_range("no value at 7");
  }
};

TEST(Agreement, AnExceptionInOneRanksTaskReachesAll) {
  call c{20};
  const context ring(MPI_COMM_WORLD, c.tokens, split_kind::contiguous);
  const ranks::part_of own_k(c.k_view(), ring.keys(), ring.rank()),
      own_v(c.v_view(), ring.keys(), ring.rank());
  const ranks::part_of own_q(c.q_view(), ring.queries(), ring.rank());
  ranks::rows<float> out(own_q.view.tokens, c.heads, c.width);
  std::fill(out.memory.begin(), out.memory.end(), 5.0f);
  bool is_out_of_range = false;
  std::string sentence;
  try {
    posenc::mpi::attention_into(own_q.view, own_k.view, own_v.view, failing{}, c.options, out.view, ring);
  } catch (const std::out_of_range& e) {
    is_out_of_range = true, sentence = e.what();
  }
  EXPECT_TRUE(is_out_of_range);
  EXPECT_NE(ranks::same_everywhere(sentence).find("no value at 7"), std::string::npos);
  EXPECT_EQ(out.memory, std::vector<float>(out.memory.size(), 5.0f));
  EXPECT_LE(difference(ring_of(c, ring), posenc::fused::attention(c.q, c.k, c.v, c.rope, c.options)), 1e-6);
}

}  // namespace calls_ranks
