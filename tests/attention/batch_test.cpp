// SPDX-License-Identifier: MIT
/// \file
/// Several sequences in one call of the reference.
#include <posenc/attention/batch.hpp>

#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/rope_table.hpp>

#include "batch_refusals.hpp"
#include "refusals.hpp"

namespace batch_test {

using posenc::index_t;

const auto reference = [](const auto& sequences, const auto& encoding) {
  posenc::reference::attention_batch(sequences, encoding);
};

TEST(attention_batch, wrong_batches_are_refused_before_anything_is_written) {
  batch_refusals::expect_refused(reference);
}
TEST(attention_batch, what_lies_apart_is_accepted) { batch_refusals::expect_accepted(reference); }

// Sequence 0: one query of 0 on keys of anything takes the mean of the values, Z = 2. Sequence 1: scores 0 and ln 3.
TEST(attention_batch, each_sequence_has_its_own_everything) {
  const std::vector<double> q0{0}, k0{5, -5}, v0{1, 3}, q1{std::log(3.0), 1}, k1{0, 1, 7}, v1{8, 16, 100};
  std::vector<double> out(3, -1), log_sum_exp(3, -1);
  const std::vector<posenc::attention_sequence<double>> batch{
      {.q = posenc::token_major(q0.data(), 1, 1, 1),
       .k = posenc::token_major(k0.data(), 2, 1, 1),
       .v = posenc::token_major(v0.data(), 2, 1, 1),
       .out = posenc::token_major(out.data(), 1, 1, 1),
       .log_sum_exp = {log_sum_exp.data(), 1, 1, 1, 1}},
      {.q = posenc::token_major(q1.data(), 2, 1, 1),
       .k = posenc::token_major(k1.data(), 3, 1, 1),
       .v = posenc::token_major(v1.data(), 3, 1, 1),
       .out = posenc::token_major(out.data() + 1, 2, 1, 1),
       .log_sum_exp = {log_sum_exp.data() + 1, 2, 1, 1, 1},
       .options = {
           .scale = 1, .valid_keys = posenc::row_range{0, 2}, .valid_queries = posenc::row_range{0, 1}}}};
  posenc::reference::attention_batch(std::span(batch), posenc::no_encoding{});
  EXPECT_NEAR(out[0], 2, 1e-15);
  EXPECT_NEAR(log_sum_exp[0], std::log(2.0), 1e-15);
  EXPECT_NEAR(out[1], (8 + 3 * 16) / 4.0, 1e-14);
  EXPECT_NEAR(log_sum_exp[1], std::log(4.0), 1e-15);
  EXPECT_EQ(out[2], 0);
  EXPECT_TRUE(std::isinf(log_sum_exp[2]) && log_sum_exp[2] < 0);
}

TEST(attention_batch, is_its_sequences_one_by_one) {
  const posenc::rope<float> rope{{.head_dim = 6, .pairing = posenc::pairing::interleaved}};
  const std::array<std::array<index_t, 2>, 4> lengths{{{1, 9}, {5, 5}, {0, 3}, {2, 7}}};
  std::vector<Eigen::MatrixXf> q, k, v;
  std::vector<posenc::row_major_matrix<float>> out;
  for (const auto& [queries, keys] : lengths) {
    q.push_back(Eigen::MatrixXf::Random(queries, 24)), k.push_back(Eigen::MatrixXf::Random(keys, 12));
    v.push_back(Eigen::MatrixXf::Random(keys, 10)), out.emplace_back(queries, 20);
  }
  std::vector<posenc::row_major_matrix<float>> rows;
  rows.reserve(3 * q.size());
  std::vector<posenc::attention_sequence<float>> batch;
  const auto row_major = [&](const Eigen::MatrixXf& m, index_t heads) {
    return posenc::as_heads(std::as_const(rows.emplace_back(m)), heads);
  };
  for (std::size_t n = 0; n < q.size(); ++n)
    batch.push_back(
        {.q = row_major(q[n], 4),
         .k = row_major(k[n], 2),
         .v = row_major(v[n], 2),
         .out = posenc::as_heads(out[n], 4),
         .options = {.heads = 4,
                     .kv_heads = 2,
                     .mask = posenc::causal,
                     .key_positions = posenc::positions::from(static_cast<posenc::position>(100 * n))}});
  posenc::reference::attention_batch(std::span<const posenc::attention_sequence<float>>(batch), rope);
  for (std::size_t n = 0; n < q.size(); ++n)
    EXPECT_TRUE(out[n] == posenc::reference::attention(q[n], k[n], v[n], rope, batch[n].options))
        << "sequence " << n;
}

TEST(attention_batch, each_tensor_has_its_own_type) {
  const float query = 1;
  const Eigen::bfloat16 keys[] = {Eigen::bfloat16(0), Eigen::bfloat16(0)};
  const Eigen::half values[] = {Eigen::half(1), Eigen::half(2)};
  double out = 0, log_sum_exp = 0;
  const std::vector<posenc::attention_sequence<float, Eigen::bfloat16, Eigen::half, double>> batch{
      {.q = posenc::token_major(&query, 1, 1, 1),
       .k = posenc::token_major(keys, 2, 1, 1),
       .v = posenc::token_major(values, 2, 1, 1),
       .out = posenc::token_major(&out, 1, 1, 1),
       .log_sum_exp = {&log_sum_exp, 1, 1, 1, 1}}};
  posenc::reference::attention_batch(std::span(batch), posenc::no_encoding{});
  EXPECT_NEAR(out, 1.5, 1e-7);
  EXPECT_NEAR(log_sum_exp, std::log(2.0), 1e-7);
}

/// What only the second sequence finds out while it computes.
TEST(attention_batch, a_position_that_the_encoding_does_not_have_leaves_everything_unwritten) {
  batch_refusals::two_sequences two;
  const std::vector<float> angles(4 * 2);
  const posenc::rope_table<float> table{{.head_dim = 4, .pairing = posenc::pairing::half_split},
                                        posenc::dense_angles(angles.data(), 4, 2),
                                        posenc::dense_angles(angles.data(), 4, 2)};
  two.batch[1].options.key_positions = posenc::positions::from(2);
  EXPECT_REFUSAL(reference(std::span<const batch_refusals::sequence>(two.batch), table), std::out_of_range,
                 "position 4");
  for (const float x : two.memory) ASSERT_EQ(x, 0.5f);
}

TEST(attention_batch, an_encoding_that_embeds_has_to_be_told_for_every_sequence) {
  batch_refusals::two_sequences two;
  const posenc::learned_absolute<float> learned{posenc::row_major_matrix<float>::Zero(8, 4)};
  const std::span<const batch_refusals::sequence> batch(two.batch);
  two.batch[0].options.is_embedded = true;
  EXPECT_REFUSAL(reference(batch, learned), std::invalid_argument, "is_embedded");
  two.batch[1].options.is_embedded = true;
  EXPECT_NO_THROW(reference(batch, learned));
}

}  // namespace batch_test
