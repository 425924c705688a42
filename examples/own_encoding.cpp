// SPDX-License-Identifier: MIT
/// \file
/// An encoding of your own: a struct with one door, in attention and through the property checks.
#include <cmath>
#include <cstdio>

#include <posenc/posenc.hpp>
#include <posenc/testing.hpp>

/// Door bias: every head likes the token three before the query and forgets slowly. offset = key − query.
struct three_back {
  double bias(int head, posenc::position offset) const {
    const auto distance = static_cast<double>(offset < 0 ? -offset : offset);
    return (offset == -3 ? 2.0 : 0.0) - 0.1 * (head + 1) * std::log1p(distance);
  }
};

int main() {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(6, 32), k = Eigen::MatrixXf::Random(6, 32);
  const Eigen::MatrixXf v = Eigen::MatrixXf::Random(6, 32);
  const posenc::attention_options options{.heads = 4, .mask = posenc::causal};
  const Eigen::MatrixXf out = posenc::reference::attention(q, k, v, three_back{}, options);

  // Two encodings at once: rotate and bias.
  const posenc::rope<float> rope{{.head_dim = 8, .pairing = posenc::pairing::half_split}};
  const auto both = posenc::combine(rope, three_back{});
  const Eigen::MatrixXf turned = posenc::reference::attention(q, k, v, both, options);
  std::printf("the last token moved by %.3f\n", static_cast<double>((turned - out).row(5).norm()));

  const auto shift = posenc::testing::relative_shift<float>(both);
  const auto chunks = posenc::testing::chunked_equals_whole<float>(both);
  const auto collision = posenc::testing::told_apart<float>(three_back{});
  std::printf("shift %g  chunks %g  likeness of two distances %g: %s\n", shift.worst_error,
              chunks.worst_error, collision.worst_error, collision.where.c_str());
  return shift.within(1e-5) && chunks.within(1e-5) && collision.worst_error < 1 ? 0 : 1;
}
