// SPDX-License-Identifier: MIT
/// \file
/// Batches that every engine refuses before it writes anything.
#pragma once

#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/attention/batch.hpp>
#include <posenc/encoding.hpp>

#include "refusals.hpp"

namespace batch_refusals {

using sequence = posenc::attention_sequence<float>;

/// Two sequences of one head, 2 queries, 3 keys and 4 channels in one buffer, and what may be wrong with them.
struct two_sequences {
  static constexpr posenc::index_t queries = 2, keys = 3, width = 4, floats = 256;
  std::vector<float> memory = std::vector<float>(floats, 0.5f);
  std::vector<sequence> batch{of(0), of(64)};

  /// q, k and v at `at`, `at + 8`, `at + 20`, the output at `at + 32`, the log-sum-exp at `at + 40`.
  sequence of(posenc::index_t at) {
    return {.q = rows(at, queries),
            .k = rows(at + 8, keys),
            .v = rows(at + 20, keys),
            .out = rows(at + 32, queries),
            .log_sum_exp = {memory.data() + at + 40, queries, 1, 1, 1}};
  }
  posenc::heads_view<float> rows(posenc::index_t at, posenc::index_t tokens) {
    return posenc::token_major(memory.data() + at, tokens, 1, width);
  }
};

/// \param attend attend(span of sequences, encoding)
template <class Attend>
void expect_refused(const Attend& attend) {
  const auto refused = [&](const char* words, const auto& spoil) {
    SCOPED_TRACE(words);
    two_sequences two;
    spoil(two);
    EXPECT_REFUSAL(attend(std::span<const sequence>(two.batch), posenc::no_encoding{}), std::invalid_argument,
                   words);
    for (const float x : two.memory) ASSERT_EQ(x, 0.5f);
  };
  for (const int at : {64, 71, 72, 83, 84, 95}) {  // first and last of q, k and v of sequence 1
    const auto first_writes = [at](two_sequences& two) { two.batch[0].out = two.rows(at, 2); };
    refused("the output of sequence 0 overlaps q, k or v of sequence 1", first_writes);
    refused("the output of sequence 0 overlaps q, k or v of sequence 1",
            [at](two_sequences& two) { two.batch[0].log_sum_exp.data = two.memory.data() + at; });
  }
  refused("the output of sequence 1 overlaps q, k or v of sequence 0",
          [](two_sequences& two) { two.batch[1].out = two.rows(24, 2); });
  refused("sequences 0 and 1 write the same memory",
          [](two_sequences& two) { two.batch[1].out = two.rows(39, 2); });
  refused("sequences 0 and 1 write the same memory", [](two_sequences& two) {
    two.batch[1].out = two.rows(32, 2);
    two.batch[0].log_sum_exp = two.batch[1].log_sum_exp = {};
  });
  refused("sequences 0 and 1 write the same memory",
          [](two_sequences& two) { two.batch[1].log_sum_exp = two.batch[0].log_sum_exp; });
  refused("sequences 0 and 1 write the same memory",
          [](two_sequences& two) { two.batch[1].log_sum_exp.data = two.memory.data() + 39; });
  refused("output overlaps q, k or v", [](two_sequences& two) { two.batch[1].out = two.rows(70, 2); });
  refused("softcap -1", [](two_sequences& two) { two.batch[1].options.softcap = -1; });
  refused("heads 2 is no multiple of kv_heads 3",
          [](two_sequences& two) { two.batch[1].options.heads = 2, two.batch[1].options.kv_heads = 3; });
  refused("output is 1 x 1 x 4", [](two_sequences& two) { two.batch[1].out.tokens = 1; });
}

/// Outputs that lie between one another, head by head, are apart.
template <class Attend>
void expect_accepted(const Attend& attend) {
  two_sequences two;
  two.batch[0].out = {two.memory.data() + 128, 2, 1, 4, 8, 4};
  two.batch[1].out = {two.memory.data() + 132, 2, 1, 4, 8, 4};
  EXPECT_NO_THROW(attend(std::span<const sequence>(two.batch), posenc::no_encoding{}));
  EXPECT_NO_THROW(attend(std::span<const sequence>(), posenc::no_encoding{}));
}

}  // namespace batch_refusals
