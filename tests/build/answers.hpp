// SPDX-License-Identifier: MIT
/// \file
/// A handful of answers worked out by hand, checked without any test framework: the same check runs under
/// every set of compiler flags, in the single-header form and in the consumer projects.
#pragma once

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include <posenc/posenc.hpp>

namespace answers {

/// Counts and prints what is wrong.
struct checker {
  int wrong = 0;

  void near_to(const char* what, double got, double expected, double tolerance = 2e-7) {
    if (std::abs(got - expected) <= tolerance) return;
    ++wrong;
    std::printf("%s: got %.9g, expected %.9g\n", what, got, expected);
  }
  void holds(const char* what, bool truth) {
    if (truth) return;
    ++wrong;
    std::printf("%s\n", what);
  }
};

/// A head (1, 0) turns to (cos φ, sin φ). φ = position, as the first pair's frequency is 1 for any base.
inline void check_rope(checker& check) {
  const posenc::rope<float> rope{{.head_dim = 2, .pairing = posenc::pairing::interleaved}};
  std::vector<float> head{1, 0};
  rope.rotate(std::span<float>(head), 1);
  check.near_to("cos 1", head[0], 0.5403023058681398, 6e-8);
  check.near_to("sin 1", head[1], 0.8414709848078965, 6e-8);
  head = {1, 0};
  rope.rotate(std::span<float>(head), 1'000'000);
  check.near_to("cos 1e6", head[0], 0.9367521275331447, 6e-8);
  check.near_to("sin 1e6", head[1], -0.3499935021712930, 6e-8);
}

inline void check_other_encodings(checker& check) {
  const posenc::alibi<float> alibi{{.heads = 8}};
  check.near_to("ALiBi, first head, three back", alibi.bias(0, -3), -1.5, 0);
  check.near_to("ALiBi, last head, one back", alibi.bias(7, -1), -1.0 / 256, 0);

  const posenc::t5_buckets t5({.bidirectional = true});
  check.holds("T5 bucket of 0", t5.bucket(0) == 0);
  check.holds("T5 bucket of −8", t5.bucket(-8) == 8);
  check.holds("T5 bucket of 1", t5.bucket(1) == 17);
  check.holds("T5 bucket of 200", t5.bucket(200) == 31);
}

/// Two keys alike: their weights are what the bias makes of them.
inline void check_attention(checker& check) {
  Eigen::MatrixXf q(2, 2), k(2, 2), v(2, 1);
  q << 1, 2, 3, 4;
  k << 5, 6, 5, 6;
  v << 10, 20;
  const auto slopes = std::vector<double>{0.5};
  const auto alibi = posenc::alibi<float>::from_slopes(slopes);

  const Eigen::MatrixXf causal = posenc::reference::attention(q, k, v, alibi, {.mask = posenc::causal});
  check.near_to("the first token sees itself alone", causal(0, 0), 10, 0);
  const double weight = std::exp(-0.5) / (1 + std::exp(-0.5));
  check.near_to("one step back costs half a nat", causal(1, 0), 10 * weight + 20 * (1 - weight), 2e-6);

  const posenc::no_encoding none;
  const Eigen::MatrixXf mean = posenc::reference::attention(q, k, v, none, {});
  check.near_to("without positions two keys alike weigh the same", mean(1, 0), 15, 2e-6);

  const Eigen::MatrixXf nothing =
      posenc::reference::attention(q, k, v, none, {.valid_keys = posenc::row_range{0, 0}});
  check.holds("a row that sees no key gives 0", nothing(0, 0) == 0 && nothing(1, 0) == 0);
}

#if defined(__cpp_exceptions)
inline void check_refusals(checker& check) {
  bool refused = false;
  try {
    (void)posenc::rope<float>{{.head_dim = 3, .pairing = posenc::pairing::half_split}};
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  check.holds("an odd rotary width is refused", refused);

  const double nan = std::nan("");
  refused = false;
  try {
    (void)posenc::rope<float>{{.head_dim = 4, .base = nan, .pairing = posenc::pairing::half_split}};
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  check.holds("a base that is NaN is refused", refused);
}
#endif

/// How many answers are wrong; each is printed.
inline int wrong() {
  checker check;
  check_rope(check);
  check_other_encodings(check);
  check_attention(check);
#if defined(__cpp_exceptions)
  check_refusals(check);
#endif
  return check.wrong;
}

}  // namespace answers
