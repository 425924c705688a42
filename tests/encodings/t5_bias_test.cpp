// SPDX-License-Identifier: MIT
/// \file
/// T5's buckets against executed reference code and against the definition in whole numbers.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/t5_bias.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace t5_bias_test {

using posenc::index_t;
using posenc::position;

std::vector<position> thresholds_of(const posenc::t5_bucket_options& options) {
  const posenc::t5_buckets buckets(options);
  return {buckets.thresholds().begin(), buckets.thresholds().end()};
}

TEST(t5_bias, golden_buckets) {
  int checked = 0;
  for (const auto& entry : golden::cases("t5_buckets.json")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const posenc::t5_buckets buckets({.buckets = entry["config"]["num_buckets"].get<index_t>(),
                                      .max_distance = entry["config"]["max_distance"].get<position>(),
                                      .bidirectional = entry["config"]["bidirectional"].get<bool>()});
    const auto expected = entry["expect"]["buckets"].get<std::vector<index_t>>();
    ASSERT_EQ(expected.size(), 401u);
    for (position offset = -200; offset <= 200; ++offset, ++checked)
      EXPECT_EQ(buckets.bucket(offset), expected[static_cast<std::size_t>(offset + 200)]) << offset;
  }
  EXPECT_EQ(checked, 4 * 401);
}

// e = 8, D = 128: the ladder 8·16^(k/8) = 8·√2^k; its even rungs are the powers of two themselves, and the
// odd ones 11.3, 22.6, 45.3, 90.5 round up.
TEST(t5_bias, thresholds_at_powers_of_two_do_not_flip) {
  const std::vector<position> expected{0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  EXPECT_EQ(thresholds_of({.buckets = 32, .max_distance = 128, .bidirectional = true}), expected);
}

// The definition, a^m·e^k ≥ e^m·D^k with m = n − e, in whole numbers: for n ≤ 10 and a, D ≤ 45 they fit.
index_t bucket_by_definition(position a, index_t n, position max_distance) {
  const index_t e = n / 2, m = n - e;
  if (a < e) return a;
  const auto power = [](position base, index_t times) {
    std::int64_t result = 1;
    for (; times > 0; --times) result *= base;
    return result;
  };
  for (index_t k = m - 1; k > 0; --k)
    if (power(a, m) * power(e, k) >= power(e, m) * power(max_distance, k)) return e + k;
  return e;
}

TEST(t5_bias, equals_the_definition_for_every_small_table) {
  for (index_t n = 2; n <= 10; ++n)
    for (position max_distance = n / 2 + 1; max_distance <= 40; ++max_distance) {
      const posenc::t5_buckets buckets({.buckets = n, .max_distance = max_distance, .bidirectional = false});
      for (position a = 0; a <= 45; ++a)
        ASSERT_EQ(buckets.bucket(-a), bucket_by_definition(a, n, max_distance))
            << n << " buckets, max_distance " << max_distance << ", distance " << a;
    }
}

// With D = e·root^e and n = 2e buckets the ladder is e·root^k in whole numbers, where a logarithm or a power
// comes out a hair above or below.
TEST(t5_bias, distances_on_a_rung_open_its_bucket) {
  for (const position e : {5, 6, 7, 8, 9})
    for (const position root : {3, 5, 7, 10, 11}) {
      std::vector<position> ladder;  // e·root^k
      position rung = e;
      for (position k = 0; k < e && rung <= 0xffff'ffff; ++k, rung *= root) ladder.push_back(rung);
      if (rung > 0xffff'ffff) continue;
      const posenc::t5_buckets buckets({.buckets = 2 * e, .max_distance = rung, .bidirectional = false});
      for (position k = 1; k < e; ++k) {
        const position distance = ladder[static_cast<std::size_t>(k)];
        EXPECT_EQ(buckets.bucket(-distance), e + k) << distance << " of " << e << "·" << root << "^k";
        EXPECT_EQ(buckets.bucket(-distance + 1), e + k - 1) << distance << " of " << e << "·" << root << "^k";
      }
    }
}

TEST(t5_bias, distances_far_beyond_the_table_saturate) {
  const posenc::t5_buckets both({.bidirectional = true}), causal({.bidirectional = false});
  for (const position far :
       {position{128}, position{1} << 32, position{1} << 62, (std::numeric_limits<position>::max)()}) {
    EXPECT_EQ(both.bucket(far), 31);
    EXPECT_EQ(both.bucket(-far), 15);
    EXPECT_EQ(causal.bucket(-far), 31);
    EXPECT_EQ(causal.bucket(far), 0);
  }
  EXPECT_EQ(both.bucket((std::numeric_limits<position>::min)()), 15);
}

TEST(t5_bias, huge_tables_neither_overflow_nor_stall) {
  const auto wide = thresholds_of({.buckets = 2048, .max_distance = 0xffff'ffff, .bidirectional = false});
  for (std::size_t b = 1; b < wide.size(); ++b) ASSERT_LE(wide[b - 1], wide[b]);
  EXPECT_EQ(wide[1024], 1024);
  EXPECT_LT(wide.back(), 0xffff'ffff);
  const auto crowded = thresholds_of({.buckets = 4096, .max_distance = 2049, .bidirectional = false});
  EXPECT_EQ(crowded[2048], 2048);
  EXPECT_EQ(crowded[2049], 2049);  // all rungs between 2048 and 2049 round up
  EXPECT_EQ(crowded.back(), 2049);
}

TEST(t5_bias, looks_up_the_table_in_either_layout) {
  // Bucket b of head h holds 100h + b.
  posenc::row_major_matrix<float> by_rows(6, 2);
  for (index_t b = 0; b < 6; ++b)
    for (index_t h = 0; h < 2; ++h) by_rows(b, h) = static_cast<float>(100 * h + b);
  const posenc::row_major_matrix<float> by_heads = by_rows.transpose();
  const posenc::t5_bucket_options options{.buckets = 6, .max_distance = 8, .bidirectional = true};
  using table = posenc::bias_table<float>;
  const std::span<const float> memory(by_rows.data(), 12), turned(by_heads.data(), 12);
  const std::array tables{table::rows_by_heads(by_rows), table::heads_by_rows(by_heads),
                          table::rows_by_heads(memory, 2), table::heads_by_rows(turned, 2)};
  for (const auto& each : tables) {
    const posenc::t5_bias<float> bias(options, each);
    EXPECT_EQ(bias.bias(0, 0), 0);
    EXPECT_EQ(bias.bias(1, -1), 101);  // n = 3, e = 1: distance 1 opens the ladder 1, 2.83
    EXPECT_EQ(bias.bias(1, -2), 101);
    EXPECT_EQ(bias.bias(1, -3), 102);
    EXPECT_EQ(bias.bias(0, 1), 4);  // the upper half is for keys ahead
    EXPECT_EQ(bias.bias(0, 100), 5);
  }
}

// Grouped KV heads: with the table indexed by KV head, heads 1 and 2 would swap their columns.
TEST(t5_bias, is_indexed_by_query_head_not_by_kv_head) {
  const posenc::row_major_matrix<double> zero = posenc::row_major_matrix<double>::Zero(2, 4);
  posenc::row_major_matrix<double> k = posenc::row_major_matrix<double>::Zero(2, 2), v(2, 2);
  v << 1, 1, 0, 0;
  // Head h prefers the key one behind by ln(h + 1): weight (h+1)/(h+2) on value 1.
  posenc::row_major_matrix<double> table = posenc::row_major_matrix<double>::Zero(2, 4);
  for (index_t h = 0; h < 4; ++h) table(1, h) = std::log(static_cast<double>(h + 1));
  const posenc::t5_bias<double> bias({.buckets = 2, .max_distance = 2, .bidirectional = false},
                                     posenc::bias_table<double>::rows_by_heads(table));
  const auto out = posenc::reference::attention(
      zero, k, v, bias, {.heads = 4, .kv_heads = 2, .mask = posenc::causal, .scale = 1});
  for (index_t h = 0; h < 4; ++h)
    EXPECT_NEAR(out(1, h), static_cast<double>(h + 1) / static_cast<double>(h + 2), 1e-15) << h;
}

TEST(t5_bias, decoding_row_by_row_equals_prefill) {
  const Eigen::MatrixXd x = Eigen::MatrixXd::Random(20, 6);
  const Eigen::MatrixXd weights = Eigen::MatrixXd::Random(32, 2);
  const posenc::t5_bias<double> bias({.bidirectional = false},
                                     posenc::bias_table<double>::rows_by_heads(weights));
  const posenc::attention_options options{.heads = 2, .mask = posenc::causal, .scale = 1};
  const auto whole = posenc::reference::attention(x, x, x, bias, options);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const Eigen::MatrixXd query = x.row(i), seen = x.topRows(i + 1);
    const auto row = posenc::reference::attention(query, seen, seen, bias, options);
    EXPECT_EQ(row.row(0), whole.row(i)) << i;
  }
}

TEST(t5_bias, bad_descriptions_are_refused) {
  using posenc::t5_buckets;
  EXPECT_REFUSAL(t5_buckets({.buckets = 31, .bidirectional = true}), std::invalid_argument, "31");
  EXPECT_REFUSAL(t5_buckets({.buckets = 2, .bidirectional = true}), std::invalid_argument, "2");
  EXPECT_REFUSAL(t5_buckets({.buckets = 1, .bidirectional = false}), std::invalid_argument, "1");
  EXPECT_REFUSAL(t5_buckets({.buckets = 0, .bidirectional = false}), std::invalid_argument, "0");
  EXPECT_REFUSAL(t5_buckets({.buckets = -32, .bidirectional = true}), std::invalid_argument, "-32");
  EXPECT_REFUSAL(t5_buckets({.buckets = 32, .max_distance = 16, .bidirectional = false}),
                 std::invalid_argument, "max_distance 16 must exceed 16");
  EXPECT_REFUSAL(t5_buckets({.max_distance = -1, .bidirectional = false}), std::invalid_argument, "-1");
  EXPECT_REFUSAL(t5_buckets({.max_distance = position{1} << 40, .bidirectional = false}),
                 std::invalid_argument, "1099511627776");

  using table = posenc::bias_table<float>;
  using bias = posenc::t5_bias<float>;
  posenc::row_major_matrix<float> weights = posenc::row_major_matrix<float>::Zero(16, 4);
  EXPECT_REFUSAL(bias({.bidirectional = true}, table::rows_by_heads(weights)), std::invalid_argument,
                 "16 rows for 32 buckets");
  EXPECT_REFUSAL(table::heads_by_rows(std::vector<float>(33), 2), std::invalid_argument, "33");
  EXPECT_REFUSAL(table::rows_by_heads(std::vector<float>(33), 2), std::invalid_argument, "33");
  EXPECT_REFUSAL(table::rows_by_heads(std::vector<float>(4), 0), std::invalid_argument, "0");
  EXPECT_REFUSAL(table::shared(std::vector<float>{}), std::invalid_argument, "empty");
  EXPECT_REFUSAL(table::rows_by_heads(posenc::row_major_matrix<float>(0, 4)), std::invalid_argument, "empty");
  weights(3, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_REFUSAL(table::heads_by_rows(weights), std::invalid_argument, "row 3, column 1");
  weights(3, 1) = -std::numeric_limits<float>::infinity();
  EXPECT_REFUSAL(table::heads_by_rows(weights), std::invalid_argument, "row 3, column 1");
}

TEST(t5_bias, a_head_outside_the_table_is_refused) {
  const posenc::t5_bias<float> bias(
      {.bidirectional = true},
      posenc::bias_table<float>::rows_by_heads(posenc::row_major_matrix<float>::Zero(32, 4)));
  EXPECT_REFUSAL(bias.bias(4, 0), std::invalid_argument, "head 4 of 4");
  EXPECT_REFUSAL(bias.bias(-1, 0), std::invalid_argument, "head -1 of 4");
}

}  // namespace t5_bias_test
