// SPDX-License-Identifier: MIT
/// \file
/// Where numbers are as large as they may be: positions, distances, groups of heads.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"

namespace limits_test {

using fused_calls::random_matrix;
using fused_calls::relative_error;
using posenc::index_t;
using posenc::position;
using posenc::position_limit;

constexpr index_t head_dim = 24, keys = 70;

/// A user's bias that never ends, whose distances may be more than there are numbers.
struct endless_bias {
  [[nodiscard]] double bias(int head, position offset) const {
    return std::sin(static_cast<double>(offset % 1000) + head);
  }
};

template <class E>
void check(const char* what, const E& encoding, index_t queries, const posenc::attention_options& options) {
  const auto q = random_matrix<float>(queries, options.heads * head_dim, 1),
             k = random_matrix<float>(keys, options.kv_heads.value_or(options.heads) * head_dim, 2),
             v = random_matrix<float>(keys, options.kv_heads.value_or(options.heads) * head_dim, 3);
  const auto fused = posenc::fused::attention(q, k, v, encoding, options);
  EXPECT_LE(relative_error(fused, posenc::reference::attention(q, k, v, encoding, options)), 1e-6)
      << what << ", " << queries << " queries";
}

/// \param near some key is near every query. Else ALiBi adds a number to every score of which the reference keeps
/// no decimals.
void check_encodings(index_t queries, const posenc::attention_options& options, bool near) {
  check("none", posenc::no_encoding{}, queries, options);
  check("rope", posenc::rope<float>{{.head_dim = head_dim, .pairing = posenc::pairing::interleaved}}, queries,
        options);
  if (near) check("alibi", posenc::alibi<float>{{.heads = 2}}, queries, options);
  check("t5",
        posenc::t5_bias<float>{{.buckets = 8, .max_distance = 20, .bidirectional = true},
                               posenc::bias_table<float>::heads_by_rows(random_matrix<float>(2, 8, 4))},
        queries, options);
  check("an endless bias", endless_bias{}, queries, options);
}

TEST(FusedLimits, PositionsAtEitherEnd) {
  for (const index_t queries : {1, 4, 40}) {
    const position last = position_limit - keys + 1, first = -position_limit;
    for (const position key : {first, position{0}, last})
      for (const position query : {first, position{0}, position_limit - queries + 1}) {
        posenc::attention_options options{.heads = 2,
                                          .query_positions = posenc::positions::from(query),
                                          .key_positions = posenc::positions::from(key)};
        const bool near = query - key < 1000 && key - query < 1000;
        check_encodings(queries, options, near);
        (query < key ? options.window.lookback : options.window.lookahead) = 1000;  // hides nothing
        check_encodings(queries, options, near);
        if (query < key) continue;
        options.mask = posenc::causal;
        check_encodings(queries, options, near);
      }
  }
}

TEST(FusedLimits, PositionsAtBothEndsOfOneCall) {
  for (const index_t queries : {1, 4, 40}) {
    std::vector<position> at_key, at_query;
    for (index_t j = 0; j < keys; ++j) at_key.push_back(j % 2 ? position_limit - j : j - position_limit);
    for (index_t i = 0; i < queries; ++i) at_query.push_back(i % 2 ? i - position_limit : position_limit - i);
    posenc::attention_options options{.heads = 2,
                                      .query_positions = posenc::positions::each(at_query),
                                      .key_positions = posenc::positions::each(at_key)};
    check_encodings(queries, options, true);
    options.mask = posenc::causal;
    check_encodings(queries, options, true);
  }
}

TEST(FusedLimits, TheFarthestQueryAndTheWidestWindow) {
  for (const index_t queries : {2, 10}) {
    std::vector<position> at(static_cast<std::size_t>(queries), position_limit);
    at.back() = -position_limit;
    for (const position key : {position{-1}, position{0}, position_limit - keys + 1})
      for (const bool ahead : {false, true}) {
        posenc::attention_options options{.heads = 2,
                                          .query_positions = posenc::positions::each(at),
                                          .key_positions = posenc::positions::from(key)};
        (ahead ? options.window.lookahead : options.window.lookback) = position_limit;
        check_encodings(queries, options, false);
      }
  }
}

TEST(FusedLimits, AWindowBeyondThePositionsDoesNotLimit) {
  const auto q = random_matrix<float>(2, head_dim, 1), k = random_matrix<float>(keys, head_dim, 2);
  for (const bool ahead : {false, true}) {
    const position near_end = position_limit - keys + 1, far_end = -position_limit;
    posenc::attention_options options{.query_positions = posenc::positions::from(ahead ? far_end : near_end),
                                      .key_positions = posenc::positions::from(ahead ? near_end : far_end)};
    const auto expected = posenc::reference::attention(q, k, k, posenc::no_encoding{}, options);
    (ahead ? options.window.lookahead : options.window.lookback) = position_limit + 1;
    EXPECT_LE(relative_error(posenc::reference::attention(q, k, k, posenc::no_encoding{}, options), expected),
              1e-6);
    EXPECT_LE(relative_error(posenc::fused::attention(q, k, k, posenc::no_encoding{}, options), expected),
              1e-6);
  }
}

TEST(FusedLimits, GroupsOfSixtyFourHeads) {
  const posenc::rope<float> rope{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
  for (const index_t queries : {1, 3, 20})
    for (const index_t kv_heads : {1, 2})
      check("rope", rope, queries, {.heads = 64 * kv_heads, .kv_heads = kv_heads, .mask = posenc::causal});
}

}  // namespace limits_test
