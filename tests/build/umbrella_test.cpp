// SPDX-License-Identifier: MIT
/// \file
/// The umbrella header, used as its first comment shows.
#include <gtest/gtest.h>

#include <posenc/posenc.hpp>

namespace umbrella_test {

TEST(umbrella, one_token_sees_itself) {
  const posenc::rope<float> rope{{.head_dim = 4, .pairing = posenc::pairing::half_split}};
  Eigen::MatrixXf q(1, 4), k(1, 4), v(1, 4);
  q << 1, 2, 3, 4;
  k << 4, 3, 2, 1;
  v << 5, 6, 7, 8;
  const Eigen::MatrixXf out = posenc::reference::attention(q, k, v, rope, {.mask = posenc::causal});
  EXPECT_TRUE(out == v) << out;
}

}  // namespace umbrella_test
