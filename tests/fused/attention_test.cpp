// SPDX-License-Identifier: MIT
/// \file
/// The face of the fused path: executors, workspaces, batches, storage types, refusals, and rows that see
/// nothing.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"

namespace attention_test {

using fused_calls::backward_executor;
using fused_calls::random_matrix;
using fused_calls::relative_error;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

posenc::rope<float> rope_of(index_t head_dim) {
  return posenc::rope<float>{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
}

TEST(FusedAttention, NamesItsTarget) { EXPECT_GT(std::strlen(posenc::fused::target_name()), 0u); }

TEST(FusedAttention, BitsDoNotDependOnTheNumberOfThreads) {
  const auto rope = rope_of(64);
  for (const index_t queries : {index_t{1}, index_t{150}}) {
    const posenc::attention_options options{.heads = 6, .kv_heads = 3, .mask = posenc::causal};
    const auto q = random_matrix<float>(queries, 6 * 64, 1), k = random_matrix<float>(5000, 3 * 64, 2),
               v = random_matrix<float>(5000, 3 * 64, 3);
    const row_major_matrix<float> serial = posenc::fused::attention(q, k, v, rope, options);
    for (const index_t threads : {index_t{2}, index_t{7}}) {
      const row_major_matrix<float> parallel =
          posenc::fused::attention(q, k, v, rope, options, backward_executor{threads});
      EXPECT_EQ(std::memcmp(serial.data(), parallel.data(),
                            static_cast<std::size_t>(serial.size()) * sizeof(float)),
                0)
          << queries << " queries, " << threads << " threads";
    }
    EXPECT_TRUE(posenc::fused::attention(q, k, v, rope, options, posenc::fused::openmp_executor(2)) ==
                serial);
  }
}

TEST(FusedAttention, NarrowStorageMatchesTheReferenceOnTheSameNumbers) {
  const auto rope = rope_of(40);
  const auto check = [&]<class S>(S, double bound) {
    for (const index_t queries : {index_t{2}, index_t{70}}) {
      const posenc::attention_options options{.heads = 4, .kv_heads = 2, .mask = posenc::causal};
      const auto q = random_matrix<S>(queries, 160, 1), k = random_matrix<S>(190, 80, 2),
                 v = random_matrix<S>(190, 80, 3);
      const auto fused = posenc::fused::attention(q, k, v, rope, options);
      EXPECT_LT(relative_error(fused, posenc::reference::attention(q, k, v, rope, options)), bound);
    }
  };
  check(Eigen::bfloat16{}, 4e-3);
  check(Eigen::half{}, 5e-4);
}

TEST(FusedAttention, KeysThatAreRotatedAlready) {
  const auto rope = rope_of(32);
  const posenc::attention_options options{.heads = 2, .mask = posenc::causal};
  posenc::attention_options rotated = options;
  rotated.keys_are_rotated = true;
  const auto k = random_matrix<float>(90, 64, 2), v = random_matrix<float>(90, 64, 3);
  row_major_matrix<float> turned = k;
  for (index_t j = 0; j < 90; ++j)
    for (index_t h = 0; h < 2; ++h) rope.rotate(posenc::as_heads(turned, 2)(j, h), j);
  for (const index_t queries : {index_t{1}, index_t{60}}) {
    const auto q = random_matrix<float>(queries, 64, 1);
    const auto expected = posenc::reference::attention(q, k, v, rope, options);
    EXPECT_LT(relative_error(posenc::fused::attention(q, turned, v, rope, rotated), expected), 1e-6);
    EXPECT_LT(relative_error(posenc::reference::attention(q, turned, v, rope, rotated), expected), 1e-6);
  }
}

TEST(FusedAttention, RaggedBatchEqualsItsSequences) {
  const auto rope = rope_of(32);
  const std::array<std::array<index_t, 2>, 4> lengths{{{1, 3000}, {40, 40}, {0, 12}, {3, 70}}};
  std::vector<row_major_matrix<float>> q, k, v, out, alone;
  std::vector<posenc::fused::sequence<float>> batch;
  for (const auto& [n_q, n_k] : lengths) {
    const auto seed = static_cast<unsigned>(n_q * 7 + n_k);
    q.push_back(random_matrix<float>(n_q, 128, seed));
    k.push_back(random_matrix<float>(n_k, 64, seed + 1));
    v.push_back(random_matrix<float>(n_k, 64, seed + 2));
    out.push_back(row_major_matrix<float>::Constant(n_q, 128, 7));
  }
  for (std::size_t s = 0; s < q.size(); ++s) {
    const posenc::attention_options options{
        .heads = 4,
        .kv_heads = 2,
        .mask = posenc::causal,
        .key_positions = posenc::positions::from(static_cast<position>(1000 * s))};
    alone.push_back(posenc::fused::attention(q[s], k[s], v[s], rope, options));
    batch.push_back({posenc::as_heads(q[s], 4),
                     posenc::as_heads(k[s], 2),
                     posenc::as_heads(v[s], 2),
                     posenc::as_heads(out[s], 4),
                     {},
                     options});
  }
  const std::span<const posenc::fused::sequence<float>> sequences(batch);
  std::vector<std::byte> memory(posenc::fused::workspace_bytes(sequences, rope, 2));
  posenc::fused::workspace scratch{std::span<std::byte>(memory)};
  posenc::fused::attention_batch(sequences, rope, {.executor = backward_executor{2}, .memory = &scratch});
  for (std::size_t s = 0; s < out.size(); ++s) EXPECT_TRUE(out[s] == alone[s]) << "sequence " << s;
}

TEST(FusedAttention, TokensAndHeadsInAnyOrderOfMemory) {
  constexpr index_t tokens = 200, kv_heads = 3, width = 24, row = kv_heads * width;
  const auto rope = rope_of(width);
  const auto k = random_matrix<float>(tokens, row, 2), v = random_matrix<float>(tokens, row, 3);
  struct order {
    index_t first;  ///< where token 0 of head 0 begins
    index_t token_stride, head_stride;
  };
  for (const order o : {order{0, row, width},                                       // as the matrix
                        {(tokens - 1) * row, -row, width},                          // tokens backwards
                        {row - width, row, -width},                                 // heads backwards
                        {0, width, tokens * width},                                 // head by head
                        {(kv_heads - 1) * tokens * width, width, -tokens * width},  // the last head first
                        {0, 4 * 4096, 4096 + width}}) {  // heads more than a page apart
    SCOPED_TRACE(std::to_string(o.token_stride) + ", " + std::to_string(o.head_stride));
    std::vector<float> keys(std::size_t{tokens} * 4 * 4096, std::numeric_limits<float>::quiet_NaN()),
        values = keys;
    const auto arrange = [&](const row_major_matrix<float>& from, std::vector<float>& to) {
      const posenc::heads_view<float> view{to.data() + o.first, tokens,       kv_heads, width,
                                           o.token_stride,      o.head_stride};
      for (index_t t = 0; t < tokens; ++t)
        for (index_t h = 0; h < kv_heads; ++h)
          for (index_t c = 0; c < width; ++c)
            view(t, h)[static_cast<std::size_t>(c)] = from(t, h * width + c);
      return view;
    };
    const auto k_view = arrange(k, keys), v_view = arrange(v, values);
    for (const index_t queries : {index_t{1}, index_t{70}}) {
      const posenc::attention_options options{.heads = 6, .kv_heads = kv_heads, .mask = posenc::causal};
      const auto q = random_matrix<float>(queries, 6 * width, 1);
      row_major_matrix<float> out(queries, 6 * width);
      posenc::fused::attention_into(posenc::as_heads(q, 6), k_view, v_view, rope, options,
                                    posenc::as_heads(out, 6));
      EXPECT_TRUE(out == posenc::fused::attention(q, k, v, rope, options)) << queries << " queries";
    }
  }
}

TEST(FusedAttention, AStrideThatNothingUsesMayBeAnyNumber) {
  constexpr index_t tokens = 100, width = 24;
  const auto rope = rope_of(width);
  const auto q = random_matrix<float>(1, width, 1), k = random_matrix<float>(tokens, width, 2),
             v = random_matrix<float>(tokens, width, 3);
  const posenc::attention_options options{.mask = posenc::causal};
  for (const index_t unused : {std::numeric_limits<index_t>::min(), std::numeric_limits<index_t>::max()}) {
    row_major_matrix<float> out(1, width);
    posenc::fused::attention_into(posenc::as_heads(q, 1),
                                  posenc::heads_view<const float>{k.data(), tokens, 1, width, width, unused},
                                  posenc::heads_view<const float>{v.data(), tokens, 1, width, width, unused},
                                  rope, options, posenc::as_heads(out, 1));
    EXPECT_TRUE(out == posenc::fused::attention(q, k, v, rope, options)) << unused;
  }
}

TEST(FusedAttention, RefusesBeforeWriting) {
  const auto rope = rope_of(32);
  const posenc::attention_options options{.heads = 2};
  auto q = random_matrix<float>(5, 64, 1), k = random_matrix<float>(9, 64, 2),
       v = random_matrix<float>(9, 64, 3);
  row_major_matrix<float> out = row_major_matrix<float>::Constant(5, 64, 7);
  std::array<std::byte, 100> too_small{};
  posenc::fused::workspace scratch{std::span<std::byte>(too_small)};
  const auto run = [&](const auto& encoding, const posenc::fused::execution& how) {
    posenc::fused::attention_into(posenc::as_heads(q, 2), posenc::as_heads(k, 2), posenc::as_heads(v, 2),
                                  encoding, options, posenc::as_heads(out, 2), {}, how);
  };
  EXPECT_THROW(run(rope, {.memory = &scratch}), std::invalid_argument);
  EXPECT_THROW(run(rope_of(16), {}), std::invalid_argument);
  EXPECT_THROW(run(posenc::alibi<float>{{.heads = 1}}, {}), std::invalid_argument);
  EXPECT_TRUE((out.array() == 7).all());
  const auto wide = random_matrix<float>(3, 1025, 1);
  EXPECT_THROW(static_cast<void>(posenc::fused::attention(wide, wide, wide, posenc::no_encoding{})),
               std::invalid_argument);
}

TEST(FusedAttention, RowsThatSeeNothingAndEmptyInputs) {
  const auto rope = rope_of(16);
  for (const index_t queries : {index_t{2}, index_t{50}}) {
    const posenc::attention_options options{
        .heads = 1, .mask = posenc::causal, .query_positions = posenc::positions::from(-1)};
    const auto q = random_matrix<float>(queries, 16, 1), k = random_matrix<float>(8, 16, 2),
               v = random_matrix<float>(8, 16, 3);
    const auto result = posenc::fused::attention_with_log_sum_exp(q, k, v, rope, options);
    EXPECT_TRUE((result.output.row(0).array() == 0).all());
    EXPECT_EQ(result.log_sum_exp(0, 0), -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(result.output.row(1) == v.row(0));
    const row_major_matrix<float> none(0, 16);
    EXPECT_TRUE((posenc::fused::attention(q, none, none, rope, options).array() == 0).all());
    EXPECT_EQ(posenc::fused::attention(none, k, v, rope, options).rows(), 0);
  }
}

TEST(FusedAttention, LogitsOfMinusNinetyThousandAreLogits) {
  row_major_matrix<float> q(1, 1), k(3, 1), v(3, 1);
  q << 1;
  k << -90000, -90000, -90001;
  v << 1, 3, 5;
  const posenc::attention_options options{.scale = 1.0};
  const double e = std::exp(-1.0);
  EXPECT_NEAR(posenc::fused::attention(q, k, v, posenc::no_encoding{}, options)(0, 0), (4 + 5 * e) / (2 + e),
              1e-2);
}

TEST(FusedAttention, SoftcapsBeyondFloat) {
  const auto k = random_matrix<float>(40, 16, 2), v = random_matrix<float>(40, 16, 3);
  for (const index_t queries : {1, 2, 8}) {
    const auto q = random_matrix<float>(queries, 16, 1);
    for (const double softcap : {1e30, 1e38, 1e39, 1e300}) {
      const posenc::attention_options options{.softcap = softcap};
      EXPECT_LT(relative_error(posenc::fused::attention(q, k, v, posenc::no_encoding{}, options),
                               posenc::reference::attention(q, k, v, posenc::no_encoding{}, options)),
                1e-6)
          << queries << " queries, softcap " << softcap;
    }
  }
}

}  // namespace attention_test
