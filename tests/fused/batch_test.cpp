// SPDX-License-Identifier: MIT
/// \file
/// Batches that fused attention refuses, before it writes anything.
#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "attention/batch_refusals.hpp"

namespace batch_test {

const auto fused = [](const auto& sequences, const auto& encoding) {
  posenc::fused::attention_batch(sequences, encoding);
};

TEST(fused_batch, wrong_batches_are_refused_before_anything_is_written) {
  batch_refusals::expect_refused(fused);
}
TEST(fused_batch, what_lies_apart_is_accepted) { batch_refusals::expect_accepted(fused); }

}  // namespace batch_test
