// SPDX-License-Identifier: MIT
/// \file
/// The accuracy that the fused path promises for float storage: a relative error in norm of at most 1e-6
/// against the reference in double on the same numbers, at every position.
#include <algorithm>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"

namespace accuracy_test {

using fused_calls::random_matrix;
using fused_calls::relative_error;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

constexpr double promised = 1e-6;
constexpr index_t keys = 288, heads = 2;

/// Checks prefill and decode at every position and head_dim. `encoding_of(T{}, head_dim)` has its tables in T.
template <class EncodingOf>
void check_accuracy(const EncodingOf& encoding_of) {
  double worst = 0;
  for (const index_t head_dim : {64, 65, 128})
    for (const position start : {0, 131'072, 1'000'000, -1'000'000})
      for (const index_t queries : {index_t{1}, index_t{4}, index_t{16}, keys}) {
        // The reference takes its time over the longest; one position shows what the others would.
        if (queries == keys && start != 0 && head_dim == 65) continue;
        const posenc::attention_options options{.heads = heads,
                                                .kv_heads = 1,
                                                .mask = posenc::causal,
                                                .key_positions = posenc::positions::from(start)};
        const auto seed = static_cast<unsigned>(head_dim * 1000 + queries);
        const auto q = random_matrix<float>(queries, heads * head_dim, seed),
                   k = random_matrix<float>(keys, head_dim, seed + 1),
                   v = random_matrix<float>(keys, head_dim, seed + 2);
        const row_major_matrix<double> wide_q = q.cast<double>(), wide_k = k.cast<double>(),
                                       wide_v = v.cast<double>();
        const auto expected =
            posenc::reference::attention(wide_q, wide_k, wide_v, encoding_of(double{}, head_dim), options);
        const auto encoding = encoding_of(float{}, head_dim);
        sweep::on_every_target([&](const char* target) {
          const double error = relative_error(posenc::fused::attention(q, k, v, encoding, options), expected);
          EXPECT_LE(error, promised) << target << ", head_dim " << head_dim << ", " << queries
                                     << " queries, keys from " << start;
          worst = (std::max)(worst, error);
        });
      }
  ::testing::Test::RecordProperty("worst_relative_error", std::to_string(worst * 1e6) + "e-6");
}

template <class T>
posenc::rope<T> rope_of(index_t head_dim, posenc::pairing pairing) {
  return posenc::rope<T>{{.head_dim = head_dim, .rotary_dim = head_dim / 2 * 2, .pairing = pairing}};
}

TEST(FusedAccuracy, NoEncoding) {
  check_accuracy([](auto, index_t) { return posenc::no_encoding{}; });
}
TEST(FusedAccuracy, RopeHalfSplit) {
  check_accuracy(
      []<class T>(T, index_t head_dim) { return rope_of<T>(head_dim, posenc::pairing::half_split); });
}
TEST(FusedAccuracy, RopeInterleaved) {
  check_accuracy(
      []<class T>(T, index_t head_dim) { return rope_of<T>(head_dim, posenc::pairing::interleaved); });
}
TEST(FusedAccuracy, Alibi) {
  check_accuracy([]<class T>(T, index_t) { return posenc::alibi<T>{{.heads = heads}}; });
}
TEST(FusedAccuracy, T5) {
  const auto numbers = random_matrix<float>(heads, 32, 9);
  check_accuracy([&]<class T>(T, index_t) {
    const row_major_matrix<T> table = numbers.template cast<T>();
    return posenc::t5_bias<T>{{.buckets = 32, .max_distance = 128, .bidirectional = false},
                              posenc::bias_table<T>::heads_by_rows(table)};
  });
}

}  // namespace accuracy_test
