// SPDX-License-Identifier: MIT
/// \file
/// The reference attention against hand-worked numbers: positions, masks, order inside a score, views and
/// refusals.
#include <posenc/attention/reference.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/encodings/rope.hpp>

namespace reference_test {

using posenc::attention_options;
using posenc::causal;
using posenc::index_t;
using posenc::no_encoding;
using posenc::position;
using posenc::positions;
using posenc::row_major_matrix;
using posenc::detail::is_minus_infinity;
using posenc::reference::attention;
using posenc::reference::attention_into;
using posenc::reference::attention_with_log_sum_exp;

using matrix = row_major_matrix<double>;
constexpr double ln_2 = 0.69314718055994531, ln_3 = 1.0986122886681098;

/// The weights of one query over keys whose values are the unit vectors: the output is the weights.
template <class E = no_encoding>
matrix weights(const matrix& scores, const attention_options& told = {}, const E& encoding = {}) {
  // q = 1 and k_j = score_j in one channel, scale 1.
  attention_options options = told;
  if (!options.scale) options.scale = 1;
  const matrix q = matrix::Ones(scores.rows(), 1), k = scores.row(0).transpose();
  return attention(q, k, matrix::Identity(k.rows(), k.rows()).eval(), encoding, options);
}
matrix row(std::initializer_list<double> values) {
  matrix result(1, static_cast<index_t>(values.size()));
  index_t c = 0;
  for (const double value : values) result(0, c++) = value;
  return result;
}

TEST(reference_attention, hand_worked_softmax) {
  const matrix w = weights(row({0, ln_3}));
  EXPECT_NEAR(w(0, 0), 0.25, 1e-16);
  EXPECT_NEAR(w(0, 1), 0.75, 1e-16);
}

TEST(reference_attention, scale_is_one_over_root_head_dim_unless_given) {
  // head_dim 4, q·k = 2 ln 3: times 1/2 is ln 3.
  const matrix q = matrix::Constant(1, 4, 0.5),
               k = (matrix(2, 4) << 0, 0, 0, 0, 4 * ln_3, 0, 0, 0).finished();
  EXPECT_NEAR(attention(q, k, matrix::Identity(2, 2).eval(), no_encoding{})(0, 1), 0.75, 1e-15);
  EXPECT_NEAR(attention(q, k, matrix::Identity(2, 2).eval(), no_encoding{}, {.scale = 1})(0, 1), 0.9, 1e-15);
}

struct bias_of_query_head {
  double bias(int head, position) const { return head == 0 ? 0 : 1e300; }
};
struct minus_infinity_ahead {
  double bias(int, position offset) const {
    return offset > 0 ? -std::numeric_limits<double>::infinity() : 0;
  }
};
struct bias_ln_3_behind {
  double bias(int, position offset) const { return offset == -1 ? ln_3 : 0; }
};
struct triples {
  double scale(position) const { return 3; }
};

TEST(reference_attention, order_is_scale_softcap_bias_mask) {
  // Key 0 is one behind the query: its score is c·tanh(σ·s/c) + bias.
  const matrix w = weights(row({5, 0}), {.scale = 2, .softcap = 3}, bias_ln_3_behind{});
  const double capped = 3 * std::tanh(10.0 / 3), e = 3 * std::exp(capped);
  EXPECT_NEAR(w(0, 0), e / (e + 1), 1e-15);
  // The scale door multiplies before the cap.
  const matrix scaled = weights(row({5, 0}), {.scale = 2, .softcap = 3}, triples{});
  const double more = std::exp(3 * std::tanh(10.0));
  EXPECT_NEAR(scaled(0, 0), more / (more + 1), 1e-15);
}

TEST(reference_attention, bias_offset_is_key_minus_query) {
  EXPECT_NEAR(weights(row({0, 0}), {}, bias_ln_3_behind{})(0, 0), 0.75, 1e-15);
}

TEST(reference_attention, a_bias_of_minus_infinity_masks) {
  const matrix q = matrix::Ones(2, 1), k = matrix::Ones(2, 1), v = matrix::Identity(2, 2);
  const matrix out = attention(q, k, v, minus_infinity_ahead{});
  EXPECT_EQ(out, attention(q, k, v, no_encoding{}, {.mask = causal}));
  EXPECT_EQ(out(0, 0), 1);
}

struct double_bias_for_odd_heads {
  double bias(int head, position offset) const { return head % 2 == 1 && offset == -1 ? ln_3 : 0; }
};

TEST(reference_attention, heads_share_kv_heads_consecutively_and_biases_go_by_query_head) {
  // Four query heads, two KV heads: query heads 0, 1 use KV head 0. One query, two keys, equal scores.
  const matrix q = matrix::Zero(1, 4), k = matrix::Zero(2, 2);
  const matrix v = (matrix(2, 2) << 1, 10, 2, 20).finished();
  const matrix out = attention(q, k, v, double_bias_for_odd_heads{}, {.heads = 4, .kv_heads = 2});
  EXPECT_NEAR(out(0, 0), 1.5, 1e-15);
  EXPECT_NEAR(out(0, 1), 1.25, 1e-15);
  EXPECT_NEAR(out(0, 2), 15, 1e-14);
  EXPECT_NEAR(out(0, 3), 12.5, 1e-14);
}

TEST(reference_attention, a_row_that_sees_nothing_is_zero_and_minus_infinity) {
  const matrix x = matrix::Ones(2, 1);
  const auto result = attention_with_log_sum_exp(
      x, x, x, no_encoding{},
      {.mask = causal, .query_positions = positions::from(-1), .key_positions = positions::from(0)});
  EXPECT_EQ(result.output(0, 0), 0);
  EXPECT_TRUE(is_minus_infinity(result.log_sum_exp(0, 0)));
  EXPECT_EQ(result.output(1, 0), 1);
  EXPECT_NEAR(result.log_sum_exp(1, 0), 1, 1e-16);
}

TEST(reference_attention, no_keys_no_queries_one_of_each) {
  const matrix none(0, 1), one = matrix::Constant(1, 1, 5);
  const auto unseen = attention_with_log_sum_exp(one, none, none, no_encoding{}, {});
  EXPECT_EQ(unseen.output(0, 0), 0);
  EXPECT_TRUE(is_minus_infinity(unseen.log_sum_exp(0, 0)));
  EXPECT_EQ(attention(none, one, one, no_encoding{}).rows(), 0);
  EXPECT_EQ(attention(none, none, none, no_encoding{}).rows(), 0);
  EXPECT_EQ(attention(one, one, one, no_encoding{})(0, 0), 5);
}

TEST(reference_attention, logits_of_minus_90000_are_no_mask) {
  const matrix w = weights(row({-90'000, -90'000 + ln_3}));
  EXPECT_NEAR(w(0, 0), 0.25, 1e-11);
  EXPECT_NEAR(w(0, 1), 0.75, 1e-11);
  const Eigen::MatrixXf q = Eigen::MatrixXf::Constant(1, 1, 300), k = Eigen::MatrixXf::Constant(2, 1, -300);
  const auto result = attention_with_log_sum_exp(q, k, Eigen::MatrixXf::Ones(2, 1).eval(), no_encoding{}, {});
  EXPECT_EQ(result.output(0, 0), 1.f);
  EXPECT_FLOAT_EQ(result.log_sum_exp(0, 0), -90'000.f + 0.69314718f);
}

TEST(reference_attention, sinks_take_weight_and_give_nothing) {
  // Scores 0 and ln 2, sink ln 3: weights 1/6, 2/6 and 3/6 lost; Z = 6.
  const std::vector<double> sink{ln_3};
  const matrix w = weights(row({0, ln_2}), {.sinks = sink});
  EXPECT_NEAR(w(0, 0), 1.0 / 6, 1e-16);
  EXPECT_NEAR(w(0, 1), 2.0 / 6, 1e-16);
  const matrix one = matrix::Zero(1, 1), none(0, 1);
  EXPECT_NEAR(attention_with_log_sum_exp(one, one, one, no_encoding{}, {.sinks = sink}).log_sum_exp(0, 0),
              2 * ln_2, 1e-15);
  const auto sink_alone = attention_with_log_sum_exp(one, none, none, no_encoding{}, {.sinks = sink});
  EXPECT_EQ(sink_alone.output(0, 0), 0);
  EXPECT_NEAR(sink_alone.log_sum_exp(0, 0), ln_3, 1e-16);
}

/// Which keys query row `i` sees: scores are equal, so seen keys have equal weights.
std::vector<index_t> seen(const attention_options& options, index_t queries, index_t keys, index_t i) {
  const matrix out = attention(matrix::Zero(queries, 1).eval(), matrix::Zero(keys, 1).eval(),
                               matrix::Identity(keys, keys).eval(), no_encoding{}, options);
  std::vector<index_t> result;
  for (index_t j = 0; j < keys; ++j)
    if (out(i, j) > 0) result.push_back(j);
  return result;
}
using rows = std::vector<index_t>;

TEST(reference_attention, fewer_queries_than_keys_are_the_last_ones) {
  EXPECT_EQ(seen({.mask = causal}, 2, 5, 0), (rows{0, 1, 2, 3}));
  EXPECT_EQ(seen({.mask = causal}, 2, 5, 1), (rows{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen({.mask = causal}, 1, 5, 0), (rows{0, 1, 2, 3, 4}));
  // With keys that start elsewhere, too, and when explicit key positions are given.
  EXPECT_EQ(seen({.mask = causal, .key_positions = positions::from(-100)}, 2, 5, 0), (rows{0, 1, 2, 3}));
  const std::vector<position> spread{3, 9, 27};
  EXPECT_EQ(seen({.mask = causal, .key_positions = positions::each(spread)}, 2, 3, 0), (rows{0, 1}));
}

TEST(reference_attention, more_queries_than_keys_need_positions_or_an_order_by_row) {
  const posenc::attention_options told{.mask = causal, .query_positions = positions::from(-1)};
  EXPECT_EQ(seen(told, 3, 2, 0), (rows{}));
  EXPECT_EQ(seen(told, 3, 2, 1), (rows{0}));
  EXPECT_EQ(seen(told, 3, 2, 2), (rows{0, 1}));
  EXPECT_EQ(seen({.mask = posenc::causal_from_first}, 3, 2, 0), (rows{0}));
  EXPECT_EQ(seen({.mask = posenc::causal_from_first}, 3, 2, 2), (rows{0, 1}));
  EXPECT_EQ(seen({.mask = posenc::causal_to_last}, 3, 2, 0), (rows{}));
  EXPECT_EQ(seen({.mask = posenc::causal_to_last}, 3, 2, 1), (rows{0}));
}

TEST(reference_attention, causality_goes_by_position_not_by_row) {
  const std::vector<position> backwards{7, 5, 3}, query{5};
  EXPECT_EQ(seen({.mask = causal,
                  .query_positions = positions::each(query),
                  .key_positions = positions::each(backwards)},
                 1, 3, 0),
            (rows{1, 2}));
}

TEST(reference_attention, a_lookback_of_two_sees_three_tokens) {
  EXPECT_EQ(seen({.mask = causal, .window = {.lookback = 2}}, 5, 5, 4), (rows{2, 3, 4}));
  EXPECT_EQ(seen({.mask = causal, .window = {.lookback = 2}}, 5, 5, 1), (rows{0, 1}));
  EXPECT_EQ(seen({.mask = causal, .window = {.lookback = 0}}, 5, 5, 3), (rows{3}));
  EXPECT_EQ(seen({.window = {.lookback = 1, .lookahead = 1}}, 5, 5, 2), (rows{1, 2, 3}));
  EXPECT_EQ(seen({.window = {.lookahead = 1}}, 5, 5, 2), (rows{0, 1, 2, 3}));
  EXPECT_EQ(seen({.mask = causal, .window = {.lookback = 5}}, 5, 5, 4), (rows{0, 1, 2, 3, 4}));
  EXPECT_EQ(seen({.mask = causal, .window = {.lookback = posenc::position_limit}}, 5, 5, 4),
            (rows{0, 1, 2, 3, 4}));
}

TEST(reference_attention, padding_is_not_seen_and_does_not_see) {
  EXPECT_EQ(seen({.valid_keys = posenc::row_range{1, 3}}, 4, 4, 0), (rows{1, 2}));
  const matrix x = matrix::Ones(3, 1);
  const auto result = attention_with_log_sum_exp(x, x, x, no_encoding{}, {.valid_queries = {{1, 3}}});
  EXPECT_EQ(result.output(0, 0), 0);
  EXPECT_TRUE(is_minus_infinity(result.log_sum_exp(0, 0)));
  EXPECT_EQ(result.output(1, 0), 1);
  EXPECT_EQ(seen({.valid_keys = posenc::row_range{2, 2}}, 4, 4, 0), (rows{}));
}

TEST(reference_attention, positions_up_to_the_limit_do_not_overflow) {
  const position far = posenc::position_limit;
  const std::vector<position> ends{-far, far};
  EXPECT_EQ(seen({.mask = causal, .key_positions = positions::each(ends)}, 2, 2, 0), (rows{0}));
  EXPECT_EQ(seen({.mask = causal, .key_positions = positions::each(ends)}, 2, 2, 1), (rows{0, 1}));
  EXPECT_EQ(
      seen({.mask = causal, .window = {.lookback = 5}, .key_positions = positions::each(ends)}, 2, 2, 1),
      (rows{1}));
  EXPECT_EQ(seen({.mask = causal, .key_positions = positions::from(far - 1)}, 2, 2, 0), (rows{0}));
  const std::vector<position> beyond{far + 1, 0};
  EXPECT_THROW(static_cast<void>(seen({.key_positions = positions::each(beyond)}, 2, 2, 0)),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(seen({.key_positions = positions::from(far)}, 2, 2, 0)),
               std::invalid_argument);
}

struct rows_by_offset {
  std::vector<std::vector<double>> table;  // offsets −1 and 0
  std::span<const double> relative_key(int, position offset) const {
    return table[static_cast<std::size_t>(offset + 1)];
  }
};
struct value_rows_by_offset {
  std::vector<std::vector<double>> table;
  std::span<const double> relative_value(int, position offset) const {
    return table[static_cast<std::size_t>(offset + 1)];
  }
};

TEST(reference_attention, relative_rows_join_key_and_value) {
  // One query q = (2, 0) on keys of zeros at offsets −1 and 0: scores σ·q·r = (2·ln 3/2)·1 and 0.
  const matrix q = (matrix(1, 2) << 2, 0).finished(), k = matrix::Zero(2, 2), v = matrix::Zero(2, 1);
  const matrix unit = matrix::Identity(2, 2);
  const matrix w = attention(q, k, unit, rows_by_offset{{{ln_3 / 2, 9}, {0, 0}}}, {.scale = 1});
  EXPECT_NEAR(w(0, 0), 0.75, 1e-15);
  const matrix shifted = attention(q, k, v, value_rows_by_offset{{{6}, {2}}});
  EXPECT_NEAR(shifted(0, 0), 4, 1e-15);
  EXPECT_THROW(static_cast<void>(attention(q, k, v, value_rows_by_offset{{{6, 1}, {2, 1}}})),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(attention(q, k, v, rows_by_offset{{{1}, {2}}})), std::invalid_argument);
}

struct quarter_turn_rope {  // turns by a quarter per token
  template <class S>
  void rotate(std::span<S> head, position p) const {
    for (position turn = 0; turn < ((p % 4) + 4) % 4; ++turn) {
      const S a = head[0];
      head[0] = -head[1], head[1] = a;
    }
  }
};

TEST(reference_attention, a_relative_row_meets_the_query_before_it_turns) {
  // The query stands at 1 and would be (0, 1) after its quarter turn; r = (1, 0) meets (1, 0).
  const matrix q = (matrix(1, 2) << 1, 0).finished(), k = matrix::Zero(2, 2);
  const auto both = posenc::combine(quarter_turn_rope{}, rows_by_offset{{{ln_3, 0}, {0, 0}}});
  EXPECT_NEAR(attention(q, k, matrix::Identity(2, 2).eval(), both, {.scale = 1})(0, 0), 0.75, 1e-15);
}

TEST(reference_attention, rotated_score_is_the_hand_worked_cosine) {
  // One pair, base irrelevant, w = 1: q at 5, k at 3 and 5, all (1, 0): scores cos 2 and 1.
  const posenc::rope<double> rope{{.head_dim = 2, .pairing = posenc::pairing::interleaved}};
  const matrix q = (matrix(1, 2) << 1, 0).finished(), k = (matrix(2, 2) << 1, 0, 1, 0).finished();
  const std::vector<position> keys{3, 5};
  const matrix w = attention(q, k, matrix::Identity(2, 2).eval(), rope,
                             {.scale = 1, .key_positions = positions::each(keys)});
  const double cos_2 = -0.41614683654714238700;
  EXPECT_NEAR(w(0, 0), 1 / (1 + std::exp(1 - cos_2)), 1e-15);
}

// Views --------------------------------------------------------------------------------------------------

matrix random_matrix(index_t r, index_t c, unsigned seed) {
  std::srand(seed);
  return matrix::Random(r, c);
}

TEST(views, token_major_head_major_and_matrices_agree_to_the_bit) {
  const index_t n = 5, heads = 4, kv = 2, d = 6;
  const matrix q = random_matrix(n, heads * d, 1), k = random_matrix(n, kv * d, 2),
               v = random_matrix(n, kv * d, 3);
  const posenc::rope<double> rope{{.head_dim = d, .pairing = posenc::pairing::half_split}};
  const attention_options options{.heads = heads, .kv_heads = kv, .mask = causal};
  const matrix expected = attention(q, k, v, rope, options);
  EXPECT_EQ(attention(posenc::token_major(q.data(), n, heads, d), posenc::token_major(k.data(), n, kv, d),
                      posenc::token_major(v.data(), n, kv, d), rope, options),
            expected);
  const auto by_head = [&](const matrix& m, index_t count) {
    std::vector<double> buffer(static_cast<std::size_t>(m.size()));
    const auto view = posenc::head_major(buffer.data(), count, n, d);
    for (index_t i = 0; i < n; ++i)
      for (index_t h = 0; h < count; ++h)
        for (index_t c = 0; c < d; ++c) view(i, h)[static_cast<std::size_t>(c)] = m(i, h * d + c);
    return buffer;
  };
  std::vector<double> q2 = by_head(q, heads), k2 = by_head(k, kv), v2 = by_head(v, kv);
  // Views that may write are views that may read.
  EXPECT_EQ(attention(posenc::head_major(q2.data(), heads, n, d), posenc::head_major(k2.data(), kv, n, d),
                      posenc::head_major(v2.data(), kv, n, d), rope, options),
            expected);
  // Column-major matrices and expressions.
  const Eigen::MatrixXd column_major = q;
  EXPECT_EQ(attention(column_major, k, v, rope, options), expected);
  EXPECT_EQ(attention(2 * column_major - q, k, v, rope, options), expected);
}

TEST(views, a_column_vector_is_a_sequence_of_one_channel) {
  const Eigen::VectorXd k = (Eigen::VectorXd(3) << 0, ln_2, ln_3).finished();
  EXPECT_EQ(posenc::as_heads(k, 1).token_stride, 1);
  EXPECT_EQ(posenc::as_heads(k, 1)(2, 0)[0], ln_3);
  const matrix w =
      attention(Eigen::VectorXd::Ones(1).eval(), k, matrix::Identity(3, 3).eval(), no_encoding{});
  EXPECT_NEAR(w(0, 2), 0.5, 1e-15);
}

TEST(views, a_block_of_a_wider_matrix_is_read_in_place) {
  const matrix wide = random_matrix(4, 10, 4);
  const auto block = wide.middleCols(3, 4);
  EXPECT_EQ(attention(block, block, block, no_encoding{}, {.heads = 2}),
            attention(matrix(block), matrix(block), matrix(block), no_encoding{}, {.heads = 2}));
}

TEST(views, one_fused_buffer_of_q_k_v_and_output_is_used_without_touching_the_gaps) {
  const index_t n = 4, heads = 2, kv = 1, d = 3, stride = 40;
  std::vector<double> buffer(static_cast<std::size_t>(n * stride), 12345);
  const auto at = [&](index_t offset, index_t count) {
    return posenc::heads_view<double>{buffer.data() + offset, n, count, d, stride, d + 1};
  };
  const auto q = at(1, heads), k = at(10, kv), v = at(15, kv), out = at(20, heads);
  const posenc::head_scalars_view<double> lse{buffer.data() + 30, n, heads, stride, 2};
  std::srand(5);
  const matrix numbers = matrix::Random(n, 4 * d);
  for (index_t i = 0; i < n; ++i)
    for (index_t c = 0; c < d; ++c) {
      const auto channel = static_cast<std::size_t>(c);
      q(i, 0)[channel] = numbers(i, c), q(i, 1)[channel] = numbers(i, d + c);
      k(i, 0)[channel] = numbers(i, 2 * d + c), v(i, 0)[channel] = numbers(i, 3 * d + c);
    }
  const std::vector<double> before = buffer;
  const attention_options options{.heads = heads, .kv_heads = kv, .mask = causal};
  attention_into(q, k, v, no_encoding{}, options, out, lse);
  const auto expected = attention_with_log_sum_exp(numbers.leftCols(2 * d), numbers.middleCols(2 * d, d),
                                                   numbers.rightCols(d), no_encoding{}, options);
  for (index_t i = 0; i < n; ++i)
    for (index_t h = 0; h < heads; ++h) {
      for (index_t c = 0; c < d; ++c)
        EXPECT_EQ(out(i, h)[static_cast<std::size_t>(c)], expected.output(i, h * d + c));
      EXPECT_EQ(lse(i, h), expected.log_sum_exp(i, h));
    }
  for (index_t i = 0; i < n; ++i)
    for (index_t c = 0; c < stride; ++c) {
      const index_t in_out = c - 20;
      const bool written = (in_out >= 0 && in_out < 7 && in_out != 3) || c == 30 || c == 32;
      if (!written) {
        EXPECT_EQ(buffer[static_cast<std::size_t>(i * stride + c)],
                  before[static_cast<std::size_t>(i * stride + c)])
            << "token " << i << ", element " << c;
      }
    }
}

// Refusals -----------------------------------------------------------------------------------------------

template <class F>
std::string refusal(const F& f) {
  try {
    static_cast<void>(f());
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "accepted";
}

/// Expects that the call is refused in a sentence with all these words.
#define EXPECT_REFUSED(call, ...)                                                                         \
  do {                                                                                                    \
    const std::string sentence = refusal([&] { return call; });                                           \
    for (const char* word : {__VA_ARGS__}) EXPECT_NE(sentence.find(word), std::string::npos) << sentence; \
  } while (false)

TEST(refusals, name_the_numbers) {
  const matrix x = matrix::Ones(2, 4), narrow = matrix::Ones(2, 3), longer = matrix::Ones(3, 4);
  const no_encoding none;
  const matrix twelve = matrix::Ones(2, 12);
  EXPECT_REFUSED(attention(twelve, twelve, twelve, none, {.heads = 4, .kv_heads = 3}), "heads 4",
                 "kv_heads 3");
  EXPECT_REFUSED(attention(x, x, x, none, {.heads = 0}), "0");
  EXPECT_REFUSED(attention(x, x, x, none, {.heads = -2}), "-2");
  EXPECT_REFUSED(attention(x, x, x, none, {.heads = 3}), "4 columns", "heads = 3");
  EXPECT_REFUSED(attention(x, narrow, narrow, none), "4", "3");
  EXPECT_REFUSED(attention(x, x, longer, none), "k has 2 tokens", "v has 3");
  EXPECT_REFUSED(attention(x, x, x, none, {.scale = std::numeric_limits<double>::quiet_NaN()}), "scale");
  EXPECT_REFUSED(attention(x, x, x, none, {.scale = std::numeric_limits<double>::infinity()}), "scale");
  EXPECT_REFUSED(attention(x, x, x, none, {.softcap = -1}), "softcap -1");
  EXPECT_REFUSED(attention(x, x, x, none, {.softcap = std::numeric_limits<double>::infinity()}), "softcap");
  EXPECT_REFUSED(attention(x, x, x, none, {.window = {.lookback = -1}}), "lookback -1");
  EXPECT_REFUSED(attention(x, x, x, none, {.window = {.lookahead = -3}}), "lookahead -3");
  const std::vector<double> sinks{1, 2}, bad_sink{std::numeric_limits<double>::quiet_NaN()};
  EXPECT_REFUSED(attention(x, x, x, none, {.sinks = sinks}), "2 sinks", "1 heads");
  EXPECT_REFUSED(attention(x, x, x, none, {.sinks = bad_sink}), "sink");
  EXPECT_REFUSED(attention(longer, x, x, none, {.mask = causal}), "3 queries", "query_positions",
                 "causal_from_first");
  const std::vector<position> three{1, 3, 2};
  EXPECT_REFUSED(attention(x, x, x, none, {.key_positions = positions::each(three)}), "3", "2 rows");
  EXPECT_REFUSED(attention(x, x, x, none, {.query_positions = positions::each(three)}), "3", "2 rows");
  EXPECT_REFUSED(attention(longer, x, x, none, {.key_positions = positions::each(std::span(three).first(2))}),
                 "3 queries", "last of 2");
  EXPECT_REFUSED(attention(x, x, x, none, {.valid_keys = posenc::row_range{1, 3}}), "valid_keys [1, 3)",
                 "2 rows");
  EXPECT_REFUSED(attention(x, x, x, none, {.valid_queries = posenc::row_range{2, 1}}), "[2, 1)");
}

TEST(refusals, output_that_does_not_fit_or_overlaps_is_refused_before_writing) {
  std::vector<double> memory(200, 3);
  const auto view = [&](index_t at, index_t tokens = 4, index_t heads = 2, index_t dim = 3) {
    return posenc::token_major(memory.data() + at, tokens, heads, dim);
  };
  const auto into = [&](posenc::heads_view<double> out, posenc::head_scalars_view<double> lse = {}) {
    attention_into(view(0), view(24), view(48), no_encoding{}, {.heads = 2}, out, lse);
    return 0;
  };
  for (const index_t at : {0, 1, 23, 24, 47, 48, 71}) EXPECT_REFUSED(into(view(at)), "overlaps");
  EXPECT_REFUSED(into(view(100, 5)), "5 x 2 x 3", "4 x 2 x 3");
  EXPECT_REFUSED(into(view(100, 4, 2, 4)), "4 x 2 x 4");
  EXPECT_REFUSED(into({memory.data() + 100, 4, 2, 3, 5, 3}), "rows overlap", "token stride 5");
  EXPECT_REFUSED(into({memory.data() + 100, 4, 2, 3, 6, 2}), "rows overlap", "head stride 2");
  EXPECT_REFUSED(into({memory.data() + 100, 4, 2, 3, 0, 3}), "rows overlap");
  EXPECT_REFUSED(into({nullptr, 4, 2, 3, 6, 3}), "no memory");
  EXPECT_REFUSED(into(view(100), {memory.data() + 101, 4, 2, 2, 1}), "log_sum_exp overlaps");
  EXPECT_REFUSED(into(view(100), {memory.data() + 1, 4, 2, 2, 1}), "log_sum_exp overlaps");
  EXPECT_REFUSED(into(view(100), {memory.data() + 150, 4, 2, 1, 1}), "rows overlap");
  EXPECT_REFUSED(into(view(100), {memory.data() + 150, 3, 2, 2, 1}), "3 x 2");
  EXPECT_EQ(memory, std::vector<double>(200, 3));
  EXPECT_NO_THROW(into(view(72)));
}

struct throws_late {
  template <class S>
  void rotate(std::span<S>, position p) const {
    posenc::detail::require_in_range(p < 3, "position ", p);
  }
};

TEST(refusals, an_encoding_that_throws_at_the_last_token_leaves_the_output_alone) {
  std::vector<double> in(4, 1), out(4, 9);
  EXPECT_THROW(
      attention_into(posenc::token_major(in.data(), 4, 1, 1), posenc::token_major(in.data(), 4, 1, 1),
                     posenc::token_major(in.data(), 4, 1, 1), throws_late{}, {},
                     posenc::token_major(out.data(), 4, 1, 1)),
      std::out_of_range);
  EXPECT_EQ(out, std::vector<double>(4, 9));
}

}  // namespace reference_test
