// SPDX-License-Identifier: MIT
/// \file
/// What people hit with attention and positions, one test per complaint.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#if defined(__unix__)
#include <sys/mman.h>
#endif

#include <gtest/gtest.h>

#include <posenc/attention/merge.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/attention/self_attention.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/rope.hpp>

namespace traps_test {

using posenc::attention_options;
using posenc::causal;
using posenc::index_t;
using posenc::position;
using posenc::positions;
using posenc::reference::attention;
using posenc::reference::attention_with_log_sum_exp;
using matrix = posenc::row_major_matrix<double>;

matrix numbers(index_t rows, index_t columns, std::uint64_t seed) {
  return posenc::learned_absolute<double>::random({.rows = rows, .width = columns, .stddev = 1, .seed = seed})
      .table();
}

const auto rope_and_alibi =
    posenc::combine(posenc::rope<double>{{.head_dim = 8, .pairing = posenc::pairing::half_split}},
                    posenc::alibi<double>{{.heads = 2}});

double difference(const matrix& a, const matrix& b) { return (a - b).norm() / b.norm(); }

TEST(traps, left_padding_shifts_every_position) {
  // Two rows of padding in front: the tokens keep their positions 0 … 3, the padding is not seen.
  const matrix x = numbers(4, 16, 1);
  matrix padded = numbers(6, 16, 2);
  padded.bottomRows(4) = x;
  const matrix expected = attention(x, x, x, rope_and_alibi, {.heads = 2, .mask = causal});
  const matrix found = attention(padded, padded, padded, rope_and_alibi,
                                 {.heads = 2,
                                  .mask = causal,
                                  .key_positions = positions::from(-2),
                                  .valid_keys = {{2, 6}},
                                  .valid_queries = {{2, 6}}});
  EXPECT_LE(difference(found.bottomRows(4), expected), 1e-15);
  EXPECT_EQ(found.topRows(2), (matrix::Zero(2, 16)));
}

TEST(traps, packed_sequences_do_not_see_each_other) {
  // Two sequences in one call stand farther apart than the window reaches.
  const matrix a = numbers(3, 16, 1), b = numbers(4, 16, 2);
  matrix both(7, 16);
  both << a, b;
  const std::vector<position> where{0, 1, 2, 1'000'000, 1'000'001, 1'000'002, 1'000'003};
  const matrix found = attention(
      both, both, both, rope_and_alibi,
      {.heads = 2, .mask = causal, .window = {.lookback = 999}, .key_positions = positions::each(where)});
  const attention_options alone{.heads = 2, .mask = causal};
  EXPECT_LE(difference(found.topRows(3), attention(a, a, a, rope_and_alibi, alone)), 1e-15);
  EXPECT_LE(difference(found.bottomRows(4), attention(b, b, b, rope_and_alibi, alone)), 1e-14);
}

TEST(traps, a_shared_prefix_is_attended_once_and_merged) {
  const matrix prefix = numbers(5, 16, 1), own = numbers(3, 16, 2);
  matrix whole(8, 16);
  whole << prefix, own;
  const attention_options options{.heads = 2, .mask = causal, .query_positions = positions::from(5)};
  attention_options of_own = options;
  of_own.key_positions = positions::from(5);
  const auto merged =
      posenc::merge<double>({attention_with_log_sum_exp(own, prefix, prefix, rope_and_alibi, options),
                             attention_with_log_sum_exp(own, own, own, rope_and_alibi, of_own)});
  const auto expected = attention_with_log_sum_exp(own, whole, whole, rope_and_alibi, options);
  EXPECT_LE(difference(merged.output, expected.output), 1e-15);
  EXPECT_LE(difference(merged.log_sum_exp, expected.log_sum_exp), 1e-15);
}

TEST(traps, cross_attention_positions_of_both_sides_are_what_the_caller_says) {
  // Moving one side alone must matter, moving both together must not.
  const matrix q = numbers(2, 16, 1), k = numbers(5, 16, 2);
  const auto at = [&](position queries, position keys) {
    return attention(
        q, k, k, rope_and_alibi,
        {.heads = 2, .query_positions = positions::from(queries), .key_positions = positions::from(keys)});
  };
  EXPECT_LE(difference(at(10, 20), at(110, 120)), 1e-14);
  EXPECT_GE(difference(at(10, 20), at(11, 20)), 1e-3);
}

TEST(traps, keys_cached_out_of_order_attend_as_in_order) {
  // A ring buffer of the last four keys, the newest in row 1.
  const matrix k = numbers(6, 16, 1), q = numbers(1, 16, 2);
  matrix ring(4, 16);
  ring << k.row(4), k.row(5), k.row(2), k.row(3);
  const std::vector<position> where{4, 5, 2, 3}, here{5};
  const matrix found = attention(q, ring, ring, rope_and_alibi,
                                 {.heads = 2,
                                  .mask = causal,
                                  .query_positions = positions::each(here),
                                  .key_positions = positions::each(where)});
  const matrix expected =
      attention(q, k, k, rope_and_alibi, {.heads = 2, .mask = causal, .window = {.lookback = 3}});
  EXPECT_LE(difference(found, expected), 1e-15);
}

TEST(traps, an_evicted_block_is_a_change_of_integers) {
  // Keys 2 and 3 leave; the others may keep their positions or close the gap: both are the caller's integers.
  const matrix k = numbers(6, 16, 1), q = numbers(1, 16, 2);
  matrix kept(4, 16);
  kept << k.topRows(2), k.bottomRows(2);
  const std::vector<position> original{0, 1, 4, 5}, here{5};
  const matrix found = attention(
      q, kept, kept, rope_and_alibi,
      {.heads = 2, .query_positions = positions::each(here), .key_positions = positions::each(original)});
  EXPECT_EQ(found, attention(q, kept, kept, rope_and_alibi,
                             {.heads = 2, .key_positions = positions::each(original)}))
      << "by default the query is the last token";
  EXPECT_GE(difference(found, attention(q, kept, kept, rope_and_alibi, {.heads = 2})), 1e-3);
}

TEST(traps, equal_positions_see_each_other_under_a_causal_mask) {
  // Tree drafts: two candidates at one position. Causality is by position, so they see each other unless a
  // bias says otherwise.
  const matrix x = matrix::Zero(3, 1), values = matrix::Identity(3, 3);
  const std::vector<position> where{0, 1, 1};
  const matrix w = attention(x, x, values, posenc::no_encoding{},
                             {.mask = causal, .key_positions = positions::each(where)});
  EXPECT_NEAR(w(1, 2), 1.0 / 3, 1e-15);
  EXPECT_NEAR(w(2, 1), 1.0 / 3, 1e-15);
  EXPECT_EQ(w(0, 1), 0);
}

#if defined(__unix__)
TEST(traps, offsets_beyond_32_bits_reach_the_right_row) {
  // Two tokens 2^31 + 8 elements apart in memory that is reserved, not filled.
  constexpr index_t stride = (index_t{1} << 31) + 8;
  constexpr std::size_t bytes = (static_cast<std::size_t>(stride) + 4) * sizeof(float);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "cannot reserve " << bytes << " bytes";
  const posenc::heads_view<float> far_apart{static_cast<float*>(memory), 2, 1, 4, stride, 4};
  Eigen::MatrixXf packed(2, 4);
  packed << 1, 2, 3, 4, -5, 6, -7, 8;
  for (index_t i = 0; i < 2; ++i)
    for (index_t c = 0; c < 4; ++c) far_apart(i, 0)[static_cast<std::size_t>(c)] = packed(i, c);
  const Eigen::MatrixXf found = attention(far_apart, far_apart, far_apart, posenc::no_encoding{});
  const Eigen::MatrixXf expected = attention(packed, packed, packed, posenc::no_encoding{});
  munmap(memory, bytes);
  EXPECT_EQ(found, expected);
}
#endif

// Doors that would be ignored in silence are refused when compiling. ----------------------------------------

struct only_float {
  void rotate(std::span<float>, position) const {}
  double bias(int, position) const { return 0; }
};
struct only_the_query {
  template <class S>
  void rotate_query(std::span<S>, position) const {}
  double bias(int, position) const { return 0; }
};
struct embeds_float {
  void embed(std::span<float>, position) const {}
};
struct no_door {};
struct not_const {
  double bias(int, position) { return 0; }
};
using good_rope = posenc::rope<double>;
using posenc::combined;
namespace checks = posenc::detail;

static_assert(!checks::lost_rotate<only_float, float> && checks::lost_rotate<only_float, double>);
static_assert(checks::lost_rotate<only_the_query, float>);
static_assert(!checks::lost_rotate<good_rope, Eigen::half> &&
              !checks::lost_rotate<posenc::no_encoding, float>);
static_assert(!checks::lost_embed<embeds_float, float> && checks::lost_embed<embeds_float, Eigen::half>);
static_assert(checks::lost_rotate<combined<only_float, good_rope>, double>);
static_assert(checks::lost_embed<combined<good_rope, embeds_float>, double>);
static_assert(checks::lost_const<combined<not_const, good_rope>, double>);
static_assert(checks::lost_everything<no_door, double>);
static_assert(checks::lost_everything<combined<good_rope, no_door>, double>);
static_assert(!checks::lost_everything<combined<good_rope, posenc::no_encoding>, double>);
static_assert(checks::check_encoding<combined<good_rope, posenc::alibi<float>>, float>());

}  // namespace traps_test
