// SPDX-License-Identifier: MIT
/// \file
/// Shaw's relative representations, key side and value side.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace relative_key_test {

using matrix = posenc::row_major_matrix<double>;
using posenc::index_t;
using posenc::relative_direction;

constexpr posenc::relative_clip symmetric(posenc::position reach) {
  return {.direction = relative_direction::key_minus_query, .left = reach, .right = reach};
}

// A single visible key has log-sum-exp equal to its score, which shows the score itself.
TEST(shaw, golden_scores) {
  const auto entry = golden::find("relative.json", "Shaw key-side scores");
  const matrix q = golden::matrix<double>(entry["input"]["q"]),
               k = golden::matrix<double>(entry["input"]["k"]);
  const matrix expected = golden::matrix<double>(entry["expect"]["scores"]);
  const posenc::shaw<double> encoding(symmetric(2), golden::matrix<double>(entry["input"]["aK"]));
  for (index_t i = 0; i < 3; ++i)
    for (index_t j = 0; j < 3; ++j) {
      const matrix query = q.row(i), key = k.row(j);
      const auto result = posenc::reference::attention_with_log_sum_exp(
          query, key, key, encoding,
          {.query_positions = posenc::positions::from(i), .key_positions = posenc::positions::from(j)});
      EXPECT_NEAR(result.log_sum_exp(0, 0), expected(i, j), 4e-15) << i << ", " << j;
    }
}

// q = 2, keys 1 and 3 at distances −1 and 0, a^K(−1) = 0.5, a^K(0) = −1, head_dim 1: scores 3 and 4; values
// 10 and 20, a^V(−1) = 1, a^V(0) = 2: (11 + 22e)/(1 + e).
TEST(shaw, hand_worked_value_side) {
  matrix q(1, 1), k(2, 1), v(2, 1), key_rows(3, 1), value_rows(3, 1);
  q << 2;
  k << 1, 3;
  v << 10, 20;
  key_rows << 0.5, -1, 7;
  value_rows << 1, 2, 9;
  const posenc::shaw_with_values<double> encoding(symmetric(1), key_rows, value_rows);
  const double e = std::exp(1.0);
  EXPECT_NEAR(posenc::reference::attention(q, k, v, encoding)(0, 0), (11 + 22 * e) / (1 + e), 1e-14);
}

TEST(shaw, the_value_door_is_open_only_where_there_are_value_rows) {
  EXPECT_TRUE(posenc::has_relative_key<posenc::shaw<float>>);
  EXPECT_FALSE(posenc::has_relative_value<posenc::shaw<float>>);
  EXPECT_TRUE(posenc::has_relative_key<posenc::shaw_with_values<float>>);
  EXPECT_TRUE(posenc::has_relative_value<posenc::shaw_with_values<float>>);
}

TEST(shaw, asymmetric_clip_of_wav2vec2_bert) {
  matrix rows(73, 1);
  for (index_t n = 0; n < 73; ++n) rows(n, 0) = static_cast<double>(n);
  const posenc::shaw<double> encoding(
      {.direction = relative_direction::key_minus_query, .left = 64, .right = 8}, rows);
  EXPECT_EQ(encoding.relative_key(0, -70)[0], 0);
  EXPECT_EQ(encoding.relative_key(5, -1)[0], 63);
  EXPECT_EQ(encoding.relative_key(0, 0)[0], 64);
  EXPECT_EQ(encoding.relative_key(0, 9)[0], 72);
}

// Together with a rotation the row meets the query as it was before: rotating it as well would give the
// other number. q = k = (1, 0), a^K = (0, 1) everywhere: score = cos(j − i) + 0.
TEST(shaw, meets_the_unrotated_query) {
  matrix x(1, 2), rows(1, 2);
  x << 1, 0;
  rows << 0, 1;
  const posenc::rope<double> rope{{.head_dim = 2, .pairing = posenc::pairing::interleaved}};
  const auto both = posenc::combine(rope, posenc::shaw<double>(symmetric(0), rows));
  const auto result =
      posenc::reference::attention_with_log_sum_exp(x, x, x, both,
                                                    {.scale = 1,
                                                     .query_positions = posenc::positions::from(3),
                                                     .key_positions = posenc::positions::from(1)});
  EXPECT_NEAR(result.log_sum_exp(0, 0), std::cos(2.0), 1e-15);
}

TEST(shaw, bad_descriptions_are_refused) {
  using posenc::shaw;
  using posenc::shaw_with_values;
  const matrix five = matrix::Zero(5, 2);
  EXPECT_REFUSAL(shaw<double>(symmetric(3), five), std::invalid_argument,
                 "5 rows for clips left 3 and right 3");
  EXPECT_REFUSAL(shaw<double>(symmetric(-1), five), std::invalid_argument, "-1");
  EXPECT_REFUSAL(shaw<double>(symmetric(2), matrix(5, 0)), std::invalid_argument, "empty");
  EXPECT_REFUSAL(shaw_with_values<double>(symmetric(2), five, matrix::Zero(4, 2)), std::invalid_argument,
                 "4 rows");
  matrix broken = five;
  broken(4, 1) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_REFUSAL(shaw<double>(symmetric(2), broken), std::invalid_argument, "row 4, column 1");
  EXPECT_REFUSAL(shaw_with_values<double>(symmetric(2), five, broken), std::invalid_argument,
                 "row 4, column 1");
}

TEST(shaw, rows_of_another_width_than_the_head_are_refused) {
  const posenc::shaw<double> narrow(symmetric(1), matrix::Zero(3, 3));
  const posenc::shaw_with_values<double> uneven(symmetric(1), matrix::Zero(3, 4), matrix::Zero(3, 3));
  const matrix x = matrix::Zero(2, 4);
  EXPECT_REFUSAL(posenc::reference::attention(x, x, x, narrow), std::invalid_argument, "3 channels");
  EXPECT_REFUSAL(posenc::reference::attention(x, x, x, uneven), std::invalid_argument, "3 channels");
}

}  // namespace relative_key_test
