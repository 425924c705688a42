// SPDX-License-Identifier: MIT
/// \file
/// An encoding that is settled by the length of a sequence: one value for sequences of different lengths.
#include <array>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "refusals.hpp"

namespace length_test {
using fused_calls::random_matrix;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

posenc::dynamic_ntk ntk() {
  posenc::dynamic_ntk scheme;
  scheme.factor = 2;
  scheme.max_context = 16;
  return scheme;
}
posenc::rope_options options_of_rope() { return {.head_dim = 16, .pairing = posenc::pairing::half_split}; }

TEST(rope_by_length, is_the_rope_of_each_sequence_in_one_batch) {
  const posenc::rope_by_length<float> rope{options_of_rope(), ntk()};
  const auto x = random_matrix<float>(40, 32, 1);
  std::array<row_major_matrix<float>, 2> out{row_major_matrix<float>(10, 32),
                                             row_major_matrix<float>(40, 32)};
  std::vector<posenc::attention_sequence<float>> batch;
  for (std::size_t n = 0; n < 2; ++n) {
    const index_t tokens = out[n].rows();
    const auto rows = posenc::token_major(x.data(), tokens, 2, 16);
    batch.push_back({rows,
                     rows,
                     rows,
                     posenc::as_heads(out[n], 2),
                     {},
                     {.heads = 2, .mask = posenc::causal, .context_length = tokens}});
  }
  for (const bool fused : {false, true}) {
    if (fused)
      posenc::fused::attention_batch(batch, rope);
    else
      posenc::reference::attention_batch(batch, rope);
    for (std::size_t n = 0; n < 2; ++n) {
      const row_major_matrix<float> part = x.topRows(out[n].rows());
      // Settled by hand: 10 tokens are within the trained 16, 40 are beyond.
      const posenc::rope<float> settled{options_of_rope(), ntk(), out[n].rows()};
      const auto expected =
          posenc::reference::attention(part, part, part, settled, {.heads = 2, .mask = posenc::causal});
      EXPECT_LT(fused_calls::relative_error(out[n], expected), 1e-6) << fused << ", sequence " << n;
    }
  }
  EXPECT_NE((posenc::rope<float>{options_of_rope(), ntk(), 40}.inv_freq()[3]),
            (posenc::rope<float>{options_of_rope(), ntk(), 10}.inv_freq()[3]));
}

TEST(rope_by_length, follows_the_length_that_a_plan_is_told) {
  const posenc::rope_by_length<float> rope{options_of_rope(), ntk()};
  const auto both = posenc::combine(rope, posenc::alibi<float>{{.heads = 2}});
  const auto q = random_matrix<float>(1, 32, 1), k = random_matrix<float>(40, 32, 2);
  posenc::attention_options options{.heads = 2, .head_dim = 16, .mask = posenc::causal, .context_length = 12};
  posenc::fused::plan step(both, options, {.queries = 1, .keys = 40});
  for (const position length : {12, 40, 12}) {
    options.context_length = length;
    step.reshape(options, 1, 40);
    row_major_matrix<float> out(1, 32);
    step.run(q, k, k, out);
    const auto settled = posenc::combine(posenc::rope<float>{options_of_rope(), ntk(), length},
                                         posenc::alibi<float>{{.heads = 2}});
    EXPECT_TRUE(out == posenc::fused::attention(q, k, k, settled, options)) << length;
  }
}

TEST(rope_by_length, follows_the_length_that_a_plan_of_the_gradient_is_told) {
  const posenc::rope_by_length<float> rope{options_of_rope(), ntk()};
  const auto x = random_matrix<float>(40, 32, 1), d_out = random_matrix<float>(40, 32, 2);
  posenc::attention_options options{.heads = 2, .head_dim = 16, .mask = posenc::causal, .context_length = 12};
  posenc::fused::backward_plan plan(rope, options, {.queries = 40, .keys = 40});
  for (const position length : {40, 12}) {
    options.context_length = length;
    plan.reshape(options, 40, 40);
    const posenc::rope<float> settled{options_of_rope(), ntk(), length};
    const auto forward = posenc::fused::attention_with_log_sum_exp(x, x, x, settled, options);
    posenc::attention_gradients<float> found;
    plan.run_backward(x, x, x, forward, d_out, found);
    const auto wanted = posenc::fused::attention_backward(x, x, x, forward, d_out, settled, options);
    EXPECT_TRUE(found.q == wanted.q && found.k == wanted.k && found.v == wanted.v) << length;
  }
}

TEST(rope_by_length, needs_the_length) {
  const posenc::rope_by_length<float> rope{options_of_rope(), ntk()};
  const auto x = random_matrix<float>(4, 32, 1);
  EXPECT_REFUSAL(posenc::reference::attention(x, x, x, rope, {.heads = 2}), std::invalid_argument,
                 "set the option context_length");
  EXPECT_REFUSAL(posenc::fused::attention(x, x, x, rope, {.heads = 2, .context_length = 0}),
                 std::invalid_argument, "context_length 0");
}

}  // namespace length_test
