// SPDX-License-Identifier: MIT
/// \file
/// Plans that are reshaped to other options, and plans whose reshape is refused halfway: they never run with what the
/// other left in the scratch.
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "refusals.hpp"

namespace reshape_test {

using fused_calls::random_matrix;
using posenc::attention_options;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

constexpr index_t head_dim = 16, heads = 2;

const posenc::rope<float> rope{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};

/// Expects the bits of a one-shot call.
template <class E>
void expect_runs(posenc::fused::plan& plan, const E& encoding, const attention_options& options,
                 index_t queries, index_t keys, const char* what) {
  const auto q = random_matrix<float>(queries, heads * head_dim, 1),
             k = random_matrix<float>(keys, heads * head_dim, 2),
             v = random_matrix<float>(keys, heads * head_dim, 3);
  row_major_matrix<float> out(queries, heads * head_dim);
  plan.run(q, k, v, out);
  EXPECT_TRUE(out == posenc::fused::attention(q, k, v, encoding, options)) << what;
}

/// A temperature that has no value from position 100 on.
struct short_temperature {
  [[nodiscard]] double scale(position query) const {
    if (query >= 100) throw std::domain_error("no temperature");
    return 1;
  }
};

bool bias_is_there = true;

/// A bias whose values may be missing for a while.
struct missing_bias {
  [[nodiscard]] float bias(int, position offset) const {
    if (!bias_is_there) throw std::domain_error("no bias");
    return offset < -5 ? -1.0f : 0.0f;
  }
};

TEST(reshape, from_rotated_keys_to_unrotated_ones) {
  attention_options rotated{.heads = heads, .mask = posenc::causal}, unrotated = rotated;
  rotated.keys_are_rotated = true;
  for (const index_t queries : {1, 16}) {
    posenc::fused::plan plan(rope, rotated, {.queries = queries, .keys = 64});
    expect_runs(plan, rope, rotated, queries, 64, "as planned");
    plan.reshape(unrotated, queries, 64);
    expect_runs(plan, rope, unrotated, queries, 64, "unrotated");
    plan.reshape(rotated, queries, 64);
    expect_runs(plan, rope, rotated, queries, 64, "rotated again");
  }
}

TEST(reshape, from_an_image_to_text) {
  const posenc::multi_axis_rope<float> mrope{
      {.head_dim = head_dim, .pairing = posenc::pairing::half_split}, {4, 2, 2}, posenc::axis_order::chunked};
  const std::vector<posenc::axis_positions> places(16, {1, 2, 3, 0});
  attention_options text{.heads = heads}, image = text;
  image.query_positions = image.key_positions = posenc::positions::on_axes(places);
  posenc::fused::plan plan(mrope, image, {.queries = 16, .keys = 16});
  expect_runs(plan, mrope, image, 16, 16, "image");
  plan.reshape(text, 16, 16);
  expect_runs(plan, mrope, text, 16, 16, "text");
}

TEST(reshape, refused_after_it_wrote_into_scratch_leaves_nothing_behind) {
  const auto encoding = posenc::combine(rope, short_temperature{});
  const attention_options by_position{.heads = heads, .mask = posenc::causal},
      by_row{
          .heads = heads, .mask = posenc::causal_from_first, .query_positions = posenc::positions::from(0)};
  for (const index_t queries : {200, 100'000}) {  // in the memory it has, and in larger memory
    posenc::fused::plan plan(encoding, by_position, {.queries = 16, .keys = 64});
    EXPECT_THROW(plan.reshape(by_row, queries, 64), std::exception);
    EXPECT_EQ(plan.kernel(), posenc::fused::kernel::prefill);  // as it was
    const auto q = random_matrix<float>(16, heads * head_dim, 1), k = random_matrix<float>(64, 32, 2);
    row_major_matrix<float> out(16, heads * head_dim);
    EXPECT_REFUSAL((plan.run(q, k, k, out), 0), std::invalid_argument, "the last reshape was refused");
    plan.reshape(16, 64);  // under the options that it was planned for, not the refused ones
    expect_runs(plan, encoding, by_position, 16, 64, "back");
  }
}

TEST(reshape, refused_in_the_bias_can_be_tried_again) {
  const auto encoding = posenc::combine(rope, missing_bias{});
  const attention_options options{.heads = heads, .mask = posenc::causal};
  posenc::fused::plan plan(encoding, options, {.queries = 16, .keys = 64});
  const attention_options by_row{.heads = heads, .mask = posenc::causal_from_first};
  bias_is_there = false;
  EXPECT_THROW(plan.reshape(by_row, 48, 128), std::domain_error);
  bias_is_there = true;
  plan.reshape(by_row, 48, 128);
  expect_runs(plan, encoding, by_row, 48, 128, "tried again");
}

}  // namespace reshape_test
