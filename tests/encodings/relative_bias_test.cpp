// SPDX-License-Identifier: MIT
/// \file
/// Clipped tables in both directions, and DeBERTa-v2's logarithmic buckets.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/relative_bias.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace relative_bias_test {

using posenc::index_t;
using posenc::position;
using posenc::relative_direction;

std::vector<float> counting(index_t rows) {
  std::vector<float> values;
  for (index_t row = 0; row < rows; ++row) values.push_back(static_cast<float>(row));
  return values;
}

TEST(relative_bias, golden_clipped_tables) {
  for (const char* name : {"clipped table K=1", "clipped table K=4"}) {
    const auto entry = golden::find("relative.json", name);
    const auto reach = entry["config"]["max_distance"].get<position>();
    const posenc::relative_bias<float> bias(
        {.direction = relative_direction::query_minus_key, .left = reach, .right = reach},
        posenc::bias_table<float>::shared(counting(entry["config"]["table_size"].get<index_t>())));
    const auto delta = entry["expect"]["delta"].get<std::vector<position>>();
    const auto row = entry["expect"]["index"].get<std::vector<float>>();
    for (std::size_t n = 0; n < delta.size(); ++n)
      EXPECT_EQ(bias.bias(0, -delta[n]), row[n]) << name << " at " << delta[n];
  }
}

TEST(relative_bias, golden_asymmetric_clip) {
  const auto entry = golden::find("relative.json", "asymmetric clip");
  const posenc::relative_clip clip{.direction = relative_direction::key_minus_query,
                                   .left = entry["config"]["left_max_position_embeddings"].get<position>(),
                                   .right = entry["config"]["right_max_position_embeddings"].get<position>()};
  EXPECT_EQ(clip.rows(), 73);
  const auto delta = entry["expect"]["key_minus_query"].get<std::vector<position>>();
  for (std::size_t n = 0; n < delta.size(); ++n)
    EXPECT_EQ(clip.row(delta[n]), entry["expect"]["index"][n].get<index_t>()) << delta[n];
}

// left and right are sides of the text in either direction: 3 behind and 1 ahead have rows of their own.
TEST(relative_bias, the_direction_turns_the_table_round_and_nothing_else) {
  const posenc::relative_clip forward{
      .direction = relative_direction::key_minus_query, .left = 3, .right = 1};
  const posenc::relative_clip backward{
      .direction = relative_direction::query_minus_key, .left = 3, .right = 1};
  const std::vector<index_t> rows{0, 0, 1, 2, 3, 4, 4};  // keys at −4 … 2
  for (position offset = -4; offset <= 2; ++offset) {
    EXPECT_EQ(forward.row(offset), rows[static_cast<std::size_t>(offset + 4)]) << offset;
    EXPECT_EQ(backward.row(offset), 4 - rows[static_cast<std::size_t>(offset + 4)]) << offset;
  }
}

TEST(relative_bias, deberta_index_stops_one_short_at_the_top) {
  const position span = 4;  // clip(i − j + 4, 0, 7)
  const posenc::relative_clip clip{
      .direction = relative_direction::query_minus_key, .left = span - 1, .right = span};
  EXPECT_EQ(clip.rows(), 2 * span);
  for (position delta = -9; delta <= 9; ++delta)
    EXPECT_EQ(clip.row(-delta), (std::clamp)(delta + span, position{0}, 2 * span - 1)) << delta;
}

TEST(relative_bias, any_distance_has_a_row) {
  const posenc::relative_clip clip{.direction = relative_direction::query_minus_key, .left = 2, .right = 3};
  EXPECT_EQ(clip.row((std::numeric_limits<position>::min)()), 5);
  EXPECT_EQ(clip.row((std::numeric_limits<position>::max)()), 0);
}

// Scores 0: the two keys get weights in proportion e^b. Query at 1, keys at 0 and 1, b(behind) = ln 3.
TEST(relative_bias, hand_worked_attention) {
  const posenc::row_major_matrix<double> zero = posenc::row_major_matrix<double>::Zero(2, 1);
  posenc::row_major_matrix<double> v(2, 1);
  v << 1, 5;
  const std::vector<double> forward{std::log(3.0), 0, 0}, backward{0, 0, std::log(3.0)};
  const auto attend = [&](relative_direction direction, const std::vector<double>& values) {
    const posenc::relative_bias<double> bias({.direction = direction, .left = 1, .right = 1},
                                             posenc::bias_table<double>::shared(values));
    return posenc::reference::attention(zero, zero, v, bias)(1, 0);
  };
  EXPECT_NEAR(attend(relative_direction::key_minus_query, forward), 2, 1e-15);   // (3·1 + 1·5)/4
  EXPECT_NEAR(attend(relative_direction::query_minus_key, backward), 2, 1e-15);  // the same table, turned
  EXPECT_NEAR(attend(relative_direction::query_minus_key, forward), 3, 1e-15);   // read backwards: (1 + 5)/2
}

TEST(relative_bias, shared_tables_serve_every_head_and_others_only_theirs) {
  using table = posenc::bias_table<float>;
  const posenc::relative_clip clip{.direction = relative_direction::key_minus_query, .left = 1, .right = 1};
  const posenc::relative_bias<float> shared(clip, table::shared(counting(3)));
  EXPECT_EQ(shared.bias(1000, -1), 0);
  EXPECT_EQ(shared.bias(0, 1), 2);
  EXPECT_FALSE(shared.table().heads().has_value());
  posenc::row_major_matrix<float> weights(2, 3);
  weights << 1, 2, 3, 4, 5, 6;
  const posenc::relative_bias<float> per_head(clip, table::heads_by_rows(weights));
  EXPECT_EQ(per_head.table().heads(), 2);
  EXPECT_EQ(per_head.bias(0, -1), 1);
  EXPECT_EQ(per_head.bias(1, 0), 5);
  EXPECT_REFUSAL(per_head.bias(2, 0), std::invalid_argument, "head 2 of 2");
}

TEST(relative_bias, stores_sixteen_bit_tables) {
  const std::vector<Eigen::half> values{Eigen::half(0.25f), Eigen::half(-1.5f), Eigen::half(3.0f)};
  const posenc::relative_bias<Eigen::half> bias(
      {.direction = relative_direction::key_minus_query, .left = 1, .right = 1},
      posenc::bias_table<Eigen::half>::shared(values));
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(3, 4);
  const std::vector<float> wide{0.25f, -1.5f, 3.0f};
  const posenc::relative_bias<float> same(
      {.direction = relative_direction::key_minus_query, .left = 1, .right = 1},
      posenc::bias_table<float>::shared(wide));
  EXPECT_EQ(posenc::reference::attention(x, x, x, bias), posenc::reference::attention(x, x, x, same));
}

TEST(relative_bias, bad_descriptions_are_refused) {
  using bias = posenc::relative_bias<float>;
  const auto table = posenc::bias_table<float>::shared(counting(5));
  const auto direction = relative_direction::key_minus_query;
  EXPECT_REFUSAL(bias({.direction = direction, .left = 3, .right = 3}, table), std::invalid_argument,
                 "5 rows for clips left 3 and right 3");
  EXPECT_REFUSAL(bias({.direction = direction, .left = -1, .right = 5}, table), std::invalid_argument, "-1");
  EXPECT_REFUSAL(bias({.direction = direction, .left = 5, .right = -1}, table), std::invalid_argument, "-1");
  const position huge = (std::numeric_limits<position>::max)();
  EXPECT_REFUSAL(bias({.direction = direction, .left = huge, .right = huge}, table), std::invalid_argument,
                 "9223372036854775807");
}

// The golden list goes on counting beyond the model's span of 256 buckets, where the model clips.
TEST(deberta_log_buckets, golden_buckets) {
  const auto entry = golden::find("relative.json", "DeBERTa-v2 log buckets");
  const posenc::deberta_log_buckets buckets(entry["config"]["position_buckets"].get<index_t>(),
                                            entry["config"]["max_relative_positions"].get<position>());
  const auto expected = entry["expect"]["bucket"].get<std::vector<index_t>>();
  ASSERT_EQ(expected.size(), 1201u);
  for (position delta = -600; delta <= 600; ++delta) {
    const index_t bucket =
        (std::clamp)(expected[static_cast<std::size_t>(delta + 600)], index_t{-256}, index_t{256});
    EXPECT_EQ(buckets.bucket(-delta), bucket) << delta;
    EXPECT_EQ(buckets.row(-delta), (std::clamp)(bucket + 256, index_t{0}, index_t{511})) << delta;
  }
}

// mid = 4, P − 1 = 32: the ladder 4·8^(k/3) is 4, 8, 16, 32, and a distance on a rung belongs to the bucket
// it closes.
TEST(deberta_log_buckets, rungs_that_are_whole_numbers_close_their_bucket) {
  const posenc::deberta_log_buckets buckets(8, 33);
  const std::vector<std::pair<position, index_t>> expected{{4, 4},  {5, 5},  {8, 5},  {9, 6},
                                                           {16, 6}, {17, 7}, {32, 7}, {33, 8}};
  for (const auto& [distance, bucket] : expected) {
    EXPECT_EQ(buckets.bucket(-distance), bucket) << distance;
    EXPECT_EQ(buckets.bucket(distance), -bucket) << distance;
  }
  EXPECT_EQ(buckets.bucket((std::numeric_limits<position>::min)()), 8);
  EXPECT_EQ(buckets.row((std::numeric_limits<position>::min)()), 15);
  EXPECT_EQ(buckets.row((std::numeric_limits<position>::max)()), 0);
}

TEST(deberta_log_buckets, bad_descriptions_are_refused) {
  using posenc::deberta_log_buckets;
  EXPECT_REFUSAL(deberta_log_buckets(2, 512), std::invalid_argument, "2 buckets");
  EXPECT_REFUSAL(deberta_log_buckets(7, 512), std::invalid_argument, "7 buckets");
  EXPECT_REFUSAL(deberta_log_buckets(256, 129), std::invalid_argument, "max_positions 129");
  EXPECT_REFUSAL(deberta_log_buckets(256, position{1} << 40), std::invalid_argument, "1099511627776");
}

}  // namespace relative_bias_test
