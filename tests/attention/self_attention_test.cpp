// SPDX-License-Identifier: MIT
/// \file
/// The self-attention layer: where the doors act, and hand-worked numbers.
#include <posenc/attention/self_attention.hpp>
#include <posenc/encodings/learned_absolute.hpp>

#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace self_attention_test {

using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;
using posenc::self_attention;

using matrix = row_major_matrix<double>;

/// Adds its position to channel 0.
struct adds_position {
  template <class S>
  void embed(std::span<S> row, position p) const {
    row[0] = static_cast<S>(row[0] + static_cast<S>(p));
  }
};

struct refuses_beyond {
  position limit;
  template <class S>
  void embed(std::span<S>, position p) const {
    posenc::detail::require_in_range(p < limit, "position ", p, " of ", limit);
  }
};

TEST(self_attention, hand_worked_two_tokens) {
  // x = (1, 2); q = x, k = 0, so both weights are 1/2; v = 10 x; W_o = 3: 3·(10 + 20)/2 = 45 in both rows.
  const self_attention<double> layer{matrix::Constant(1, 1, 1), matrix::Constant(1, 1, 0),
                                     matrix::Constant(1, 1, 10), matrix::Constant(1, 1, 3)};
  const matrix x = (matrix(2, 1) << 1, 2).finished();
  const matrix h = layer(x, posenc::no_encoding{});
  EXPECT_DOUBLE_EQ(h(0, 0), 45);
  EXPECT_DOUBLE_EQ(h(1, 0), 45);
  // Causal: the first token sees itself alone.
  EXPECT_DOUBLE_EQ(layer(x, posenc::no_encoding{}, {.mask = posenc::causal})(0, 0), 30);
}

TEST(self_attention, weights_follow_exp_of_scores) {
  // q = 1, k = (0, ln 3), v = (0, 4): weights 1/4 and 3/4.
  const self_attention<double> layer{(matrix(2, 1) << 1, 0).finished(), (matrix(2, 1) << 0, 1).finished(),
                                     (matrix(2, 1) << 0, 4 / 1.0986122886681098).finished()};
  const matrix x = (matrix(2, 2) << 1, 0, 1, 1.0986122886681098).finished();
  EXPECT_NEAR(layer(x, posenc::no_encoding{}, {.scale = 1})(0, 0), 3, 1e-15);
}

TEST(self_attention, embeds_before_the_projections) {
  // Rows (1, 0) at positions 5 and 6 become 6 and 7 in channel 0; v reads channel 0, and weights are equal.
  const self_attention<double> layer{matrix::Zero(2, 1), matrix::Zero(2, 1),
                                     (matrix(2, 1) << 1, 0).finished()};
  const matrix x = (matrix(2, 2) << 1, 0, 1, 0).finished();
  const matrix h = layer(x, adds_position{}, {.key_positions = posenc::positions::from(5)});
  EXPECT_DOUBLE_EQ(h(0, 0), 6.5);
  const std::vector<position> apart{0, 100};
  EXPECT_DOUBLE_EQ(layer(x, adds_position{}, {.key_positions = posenc::positions::each(apart)})(1, 0), 51);
  EXPECT_DOUBLE_EQ(x(1, 0), 1) << "the tokens passed in are not changed";
}

TEST(self_attention, without_output_weights_gives_the_heads_side_by_side) {
  const self_attention<float> layer{row_major_matrix<float>::Identity(4, 4),
                                    row_major_matrix<float>::Identity(4, 2),
                                    row_major_matrix<float>::Identity(4, 2)};
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(3, 4);
  const auto result = layer.attend(x, posenc::no_encoding{}, {.heads = 2, .kv_heads = 1});
  EXPECT_EQ(result.output.cols(), 4);
  EXPECT_EQ(result.log_sum_exp.cols(), 2);
  EXPECT_EQ(layer(x, posenc::no_encoding{}, {.heads = 2, .kv_heads = 1}), result.output);
}

TEST(self_attention, another_attention_function_can_be_passed) {
  const self_attention<double> layer{matrix::Identity(2, 2), matrix::Identity(2, 2), matrix::Identity(2, 2)};
  const matrix x = matrix::Ones(2, 2);
  int calls = 0;
  const auto counted = [&](const auto&... arguments) {
    ++calls;
    return posenc::reference_attention{}(arguments...);
  };
  EXPECT_EQ(layer(x, posenc::no_encoding{}, {}, counted), layer(x, posenc::no_encoding{}));
  EXPECT_EQ(calls, 1);
}

TEST(self_attention, no_tokens_and_one_token) {
  const self_attention<double> layer{matrix::Identity(2, 2), matrix::Identity(2, 2), matrix::Identity(2, 2)};
  EXPECT_EQ(layer(matrix(0, 2), posenc::no_encoding{}).rows(), 0);
  const matrix x = (matrix(1, 2) << 3, -4).finished();
  EXPECT_EQ(layer(x, posenc::no_encoding{}), x) << "one token attends to itself alone";
}

TEST(self_attention, refuses_what_does_not_fit) {
  const self_attention<double> layer{matrix::Identity(2, 2), matrix::Identity(2, 2), matrix::Identity(2, 2),
                                     matrix::Identity(3, 3)};
  const matrix x = matrix::Ones(2, 2);
  EXPECT_THROW(static_cast<void>(layer(matrix::Ones(2, 3).eval(), posenc::no_encoding{})),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(layer(x, posenc::no_encoding{})), std::invalid_argument) << "W_o is 3 x 3";
  EXPECT_THROW(static_cast<void>(
                   layer.attend(x, posenc::no_encoding{}, {.query_positions = posenc::positions::from(1)})),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(layer.attend(x, refuses_beyond{1})), std::out_of_range);
  EXPECT_NO_THROW(static_cast<void>(layer.attend(x, refuses_beyond{2})));
}

TEST(embed_rows, writes_nothing_when_a_later_row_has_no_vector) {
  const auto table =
      posenc::learned_absolute<double>::random({.rows = 4, .width = 3, .stddev = 1, .seed = 1});
  posenc::row_major_matrix<double> x = posenc::row_major_matrix<double>::Constant(5, 3, 7);
  EXPECT_THROW(posenc::embed_rows(x, table, posenc::positions::from(0)), std::out_of_range);
  EXPECT_TRUE((x.array() == 7).all());
  posenc::row_major_matrix<double> fits = x.topRows(4);
  posenc::embed_rows(fits, table, posenc::positions::from(0));
  EXPECT_FALSE((fits.array() == 7).any());
}

}  // namespace self_attention_test
