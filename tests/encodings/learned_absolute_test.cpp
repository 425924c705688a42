// SPDX-License-Identifier: MIT
/// \file
/// Learned tables: reserved rows, positions outside, and the position ids of model families.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/position_ids.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace learned_absolute_test {

using posenc::index_t;
using posenc::position;
using table = posenc::row_major_matrix<float>;

/// Row r holds (10r, 10r + 1).
table numbered(index_t rows) {
  table result(rows, 2);
  for (index_t r = 0; r < rows; ++r)
    result.row(r) << static_cast<float>(10 * r), static_cast<float>(10 * r + 1);
  return result;
}

TEST(learned_absolute, adds_the_row_of_the_position) {
  const posenc::learned_absolute<float> encoding(numbered(4));
  std::vector<float> token{0.5f, -1};
  encoding.embed(std::span<float>(token), 3);
  EXPECT_EQ(token, (std::vector<float>{30.5f, 30}));
  const std::vector<float> memory{1, 2, 3, 4, 5, 6};
  const posenc::learned_absolute<float> copied(memory, 3);
  EXPECT_EQ(copied.rows(), 2);
  EXPECT_EQ(copied.table()(1, 0), 4);
}

TEST(learned_absolute, golden_offset_of_opt_and_bart) {
  const auto entry = golden::find("relative.json", "OPT/BART");
  const auto offset = entry["config"]["offset"].get<index_t>();
  const posenc::learned_absolute<float> encoding(numbered(entry["expect"]["table_rows"].get<index_t>()),
                                                 {.row_offset = offset});
  EXPECT_EQ(encoding.last_position(), entry["config"]["max_position_embeddings"].get<position>() - 1);
  for (std::size_t n = 0; n < entry["expect"]["position"].size(); ++n) {
    std::vector<double> token(2);
    encoding.embed(std::span<double>(token), entry["expect"]["position"][n].get<position>());
    EXPECT_EQ(token[0], 10 * entry["expect"]["row"][n].get<double>());
  }
}

TEST(learned_absolute, golden_position_ids_of_roberta) {
  const auto entry = golden::find("relative.json", "RoBERTa");
  const auto padding = entry["config"]["padding_idx"].get<position>();
  std::vector<bool> is_token;
  for (const auto& id : entry["config"]["input_ids"]) is_token.push_back(id.get<position>() != padding);
  EXPECT_EQ(posenc::roberta_position_ids(is_token, padding),
            entry["expect"]["position_ids"].get<std::vector<position>>());

  const posenc::learned_absolute<float> encoding(numbered(514), {.row_offset = padding + 1});
  EXPECT_EQ(encoding.last_position() + 1, entry["expect"]["usable_positions_of_514"].get<position>());
}

TEST(learned_absolute, position_ids_of_opt_and_bloom_under_left_padding) {
  const std::vector<int> mask{0, 0, 1, 1, 1};
  EXPECT_EQ(posenc::opt_position_ids(mask), (std::vector<position>{-1, -1, 0, 1, 2}));
  EXPECT_EQ(posenc::bloom_position_ids(mask), (std::vector<position>{0, 0, 0, 1, 2}));
}

TEST(learned_absolute, position_minus_one_never_wraps_to_the_last_row) {
  const posenc::learned_absolute<float> encoding(numbered(4));
  std::vector<float> token{7, 8};
  EXPECT_REFUSAL(encoding.embed(std::span<float>(token), -1), std::out_of_range, "position -1");
  EXPECT_EQ(token, (std::vector<float>{7, 8}));
}

TEST(learned_absolute, positions_beyond_the_training_length_are_refused_with_the_numbers) {
  const posenc::learned_absolute<float> encoding(numbered(512));
  std::vector<float> token{7, 8};
  EXPECT_REFUSAL(encoding.embed(std::span<float>(token), 512), std::out_of_range, "position 512");
  EXPECT_REFUSAL(encoding.embed(std::span<float>(token), 512), std::out_of_range, "512 rows");
  for (const position extreme :
       {(std::numeric_limits<position>::min)(), (std::numeric_limits<position>::max)()})
    EXPECT_THROW(encoding.embed(std::span<float>(token), extreme), std::out_of_range) << extreme;
  const posenc::learned_absolute<float> shifted(numbered(514), {.row_offset = 2});
  EXPECT_THROW(shifted.embed(std::span<float>(token), 512), std::out_of_range);
  EXPECT_THROW(shifted.embed(std::span<float>(token), -3), std::out_of_range);
  EXPECT_THROW(shifted.embed(std::span<float>(token), (std::numeric_limits<position>::max)()),
               std::out_of_range);
  EXPECT_EQ(token, (std::vector<float>{7, 8}));
  shifted.embed(std::span<float>(token), -2);  // the first reserved row
  EXPECT_EQ(token, (std::vector<float>{7, 9}));
}

TEST(learned_absolute, random_tables_repeat_with_their_seed) {
  using encoding = posenc::learned_absolute<double>;
  const auto first = encoding::random({.rows = 64, .width = 33, .stddev = 0.5, .seed = 7});
  EXPECT_EQ(first.table(), encoding::random({.rows = 64, .width = 33, .stddev = 0.5, .seed = 7}).table());
  EXPECT_NE(first.table(), encoding::random({.rows = 64, .width = 33, .stddev = 0.5, .seed = 8}).table());
  // 2112 draws: the mean is within 5 standard errors of 0, the deviation within 5 of 0.5.
  const double n = static_cast<double>(first.table().size());
  const double mean = first.table().sum() / n;
  const double deviation = std::sqrt((first.table().array() - mean).square().sum() / n);
  EXPECT_LT(std::abs(mean), 5 * 0.5 / std::sqrt(n));
  EXPECT_LT(std::abs(deviation - 0.5), 5 * 0.5 / std::sqrt(2 * n));
}

TEST(learned_absolute, adds_sixteen_bit_tables_to_any_scalar) {
  const posenc::row_major_matrix<Eigen::bfloat16> half =
      posenc::row_major_matrix<Eigen::bfloat16>::Constant(1, 1, Eigen::bfloat16(1.5f));
  const posenc::learned_absolute<Eigen::bfloat16> encoding(half);
  std::vector<double> wide{0.25};
  encoding.embed(std::span<double>(wide), 0);
  EXPECT_EQ(wide[0], 1.75);
  std::vector<Eigen::bfloat16> narrow{Eigen::bfloat16(0.25f)};
  encoding.embed(std::span<Eigen::bfloat16>(narrow), 0);
  EXPECT_EQ(static_cast<float>(narrow[0]), 1.75f);
}

TEST(learned_absolute, bad_descriptions_are_refused) {
  using encoding = posenc::learned_absolute<float>;
  const std::vector<float> seven(7), none;
  EXPECT_REFUSAL(encoding(seven, 2), std::invalid_argument, "7 values do not fill rows of 2");
  EXPECT_REFUSAL(encoding(seven, 0), std::invalid_argument, "rows of 0");
  EXPECT_REFUSAL(encoding(none, 2), std::invalid_argument, "empty");
  EXPECT_REFUSAL(encoding(numbered(4), {.row_offset = 4}), std::invalid_argument, "row_offset 4");
  EXPECT_REFUSAL(encoding(numbered(4), {.row_offset = -1}), std::invalid_argument, "row_offset -1");
  table broken = numbered(4);
  broken(2, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_REFUSAL(encoding(broken), std::invalid_argument, "row 2, column 1");
  EXPECT_REFUSAL(encoding::random({.rows = 0, .width = 4}), std::invalid_argument, "0 x 4");
  EXPECT_REFUSAL(encoding::random({.rows = 4, .width = -4}), std::invalid_argument, "4 x -4");
  EXPECT_REFUSAL(encoding::random({.rows = 4, .width = 4, .stddev = -1}), std::invalid_argument, "stddev -1");
  const encoding good(numbered(4));
  std::vector<float> token(3);
  EXPECT_REFUSAL(good.embed(std::span<float>(token), 0), std::invalid_argument, "3 channels");
}

}  // namespace learned_absolute_test
