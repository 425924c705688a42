// SPDX-License-Identifier: MIT
/// \file
/// Fused attention that rotates by the caller's tables: the encoding's own function, called by the kernels.
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "calls.hpp"
#include "refusals.hpp"

namespace rope_table_test {

using namespace fused_calls;
using posenc::pairing;
using posenc::position;
using posenc::positions;

constexpr index_t rows = 300, head_dim = 24, rotary_dim = 16, pairs = rotary_dim / 2;

/// Cos and sin on circles of several radii, in one buffer of rows [cos | sin].
std::vector<float> tables() {
  std::vector<float> both(rows * rotary_dim);
  for (index_t p = 0; p < rows; ++p)
    for (index_t i = 0; i < pairs; ++i) {
      const double angle = 0.37 * static_cast<double>(p * (i + 1)),
                   radius = 0.8 + 0.1 * static_cast<double>(i % 4);
      both[static_cast<std::size_t>(p * rotary_dim + i)] = static_cast<float>(radius * std::cos(angle));
      both[static_cast<std::size_t>(p * rotary_dim + pairs + i)] =
          static_cast<float>(radius * std::sin(angle));
    }
  return both;
}

posenc::rope_table<float> encoding_over(const std::vector<float>& both) {
  return {
      {.head_dim = head_dim, .rotary_dim = rotary_dim, .rotary_offset = 4, .pairing = pairing::interleaved},
      {both.data(), rows, pairs, rotary_dim},
      {both.data() + pairs, rows, pairs, rotary_dim}};
}

template <class S>
void expect_reference(index_t queries, index_t keys, double bound) {
  const std::vector<float> both = tables();
  const auto encoding = encoding_over(both);
  const auto q = random_matrix<S>(queries, 4 * head_dim, 1), k = random_matrix<S>(keys, 2 * head_dim, 2),
             v = random_matrix<S>(keys, 2 * head_dim, 3);
  const posenc::attention_options options{.heads = 4, .kv_heads = 2, .mask = posenc::causal};
  const auto fused = posenc::fused::attention(q, k, v, encoding, options);
  const auto reference = posenc::reference::attention(q, k, v, encoding, options);
  EXPECT_LE(relative_error(fused, reference), bound) << queries << " queries, " << keys << " keys";
}

TEST(fused_rope_table, agrees_with_the_reference) {
  for (const auto& [queries, keys] : {std::pair<index_t, index_t>{1, 300}, {3, 77}, {130, 130}, {64, 300}}) {
    expect_reference<float>(queries, keys, 1e-6);
    expect_reference<Eigen::bfloat16>(queries, keys, 4e-3);
    expect_reference<Eigen::half>(queries, keys, 5e-4);
  }
}

TEST(fused_rope_table, a_position_outside_is_refused_before_anything_is_written) {
  const std::vector<float> both = tables();
  const auto encoding = encoding_over(both);
  for (const index_t queries : {1, 100}) {
    const auto q = random_matrix<float>(queries, head_dim, 1), k = random_matrix<float>(200, head_dim, 2);
    row_major_matrix<float> out = row_major_matrix<float>::Constant(queries, head_dim, 7);
    const auto attend = [&](const posenc::attention_options& options, const auto& with) {
      posenc::fused::attention_into(posenc::as_heads(q, 1), posenc::as_heads(k, 1), posenc::as_heads(k, 1),
                                    with, options, posenc::as_heads(out, 1));
    };
    EXPECT_REFUSAL(attend({.key_positions = positions::from(101)}, encoding), std::out_of_range,
                   "position 300 lies outside the 300 rows");
    EXPECT_REFUSAL(attend({.query_positions = positions::from(-1)}, encoding), std::out_of_range,
                   "position -1");
    EXPECT_REFUSAL(attend({.query_positions = positions::from(-1)},
                          posenc::combine(encoding, posenc::alibi<float>{{.heads = 1}})),
                   std::out_of_range, "position -1");
    EXPECT_TRUE((out.array() == 7).all());
    // Keys that were rotated before, and rows that are padding, need no row in the tables.
    EXPECT_NO_THROW(attend({.keys_are_rotated = true,
                            .query_positions = positions::from(0),
                            .key_positions = positions::from(101)},
                           encoding));
    EXPECT_NO_THROW(attend({.query_positions = positions::from(0),
                            .key_positions = positions::from(101),
                            .valid_keys = posenc::row_range{0, 199}},
                           encoding));
  }
}

}  // namespace rope_table_test
