// SPDX-License-Identifier: MIT
/// \file
/// Joined sources, and batches whose sequences share a prefix, against the reference over the same rows in one buffer.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/calls.hpp"
#include "fused/targets.hpp"

namespace shared_prefix_test {

using namespace cache_rows_test;
using posenc::attention_options;

constexpr index_t heads = 6, kv_heads = 2, width = 32, value_width = 24;

template <class S>
using part_of = posenc::joined<heads_view<const S>>;

/// Sequences of lengths of their own, behind a prefix that is one memory for all of them.
template <class S, class O>
struct batch_of_prefix {
  using sequence = posenc::attention_sequence<float, part_of<S>, part_of<S>, O>;

  batch_of_prefix(index_t prefix, const std::vector<index_t>& queries, const std::vector<index_t>& own,
                  const attention_options& options)
      : before_k(random_rows<S>(prefix, kv_heads, width, 1)),
        before_v(random_rows<S>(prefix, kv_heads, value_width, 2)) {
    for (std::size_t n = 0; n < own.size(); ++n) {
      const auto seed = static_cast<unsigned>(10 * n);
      q.push_back(random_rows<float>(queries[n], heads, width, seed + 3));
      k.push_back(random_rows<S>(own[n], kv_heads, width, seed + 4));
      v.push_back(random_rows<S>(own[n], kv_heads, value_width, seed + 5));
      out.emplace_back(queries[n], heads, value_width);
      lse.emplace_back(static_cast<std::size_t>(queries[n] * heads), -1.0f);
    }
    for (std::size_t n = 0; n < own.size(); ++n)
      sequences.push_back({std::as_const(q[n]).view(),
                           {std::as_const(before_k).view(), std::as_const(k[n]).view()},
                           {std::as_const(before_v).view(), std::as_const(v[n]).view()},
                           out[n].view(),
                           {lse[n].data(), queries[n], heads, heads, 1},
                           options});
  }

  /// What each sequence should give.
  template <class E>
  [[nodiscard]] std::vector<posenc::attention_result<float>> expected(const E& encoding) const {
    std::vector<posenc::attention_result<float>> results;
    for (std::size_t n = 0; n < sequences.size(); ++n)
      results.push_back(posenc::reference::attention_with_log_sum_exp(
          sequences[n].q, whole(before_k, k[n]).view(), whole(before_v, v[n]).view(), encoding,
          sequences[n].options));
    return results;
  }
  template <class E>
  [[nodiscard]] double error(const E& encoding) const {
    return error_from(expected(encoding));
  }

  /// Largest relative error (norm) of an output and largest distance of a log-sum-exp, over the sequences.
  [[nodiscard]] double error_from(const std::vector<posenc::attention_result<float>>& results) const {
    double largest = 0;
    for (std::size_t n = 0; n < sequences.size(); ++n) {
      const sequence& s = sequences[n];
      const posenc::attention_result<float>& right = results[n];
      double square = 0, norm = 0;
      for (index_t i = 0; i < s.q.tokens; ++i)
        for (index_t h = 0; h < heads; ++h) {
          const auto row = s.out(i, h);
          for (index_t c = 0; c < value_width; ++c) {
            const auto number = static_cast<double>(right.output(i, h * value_width + c));
            square += std::pow(
                static_cast<double>(static_cast<float>(row[static_cast<std::size_t>(c)])) - number, 2);
            norm += number * number;
          }
          const auto given = static_cast<double>(s.log_sum_exp(i, h)),
                     lse_of_right = static_cast<double>(right.log_sum_exp(i, h));
          largest = (std::max)(largest, given == lse_of_right ? 0 : std::abs(given - lse_of_right) / 4);
        }
      if (norm > 0) largest = (std::max)(largest, std::sqrt(square / norm));
    }
    return largest;
  }

  static rows<S> whole(const rows<S>& before, const rows<S>& after) {
    rows<S> all(before.tokens + after.tokens, before.heads, before.channels);
    std::copy(before.numbers.begin(), before.numbers.end(), all.numbers.begin());
    std::copy(after.numbers.begin(), after.numbers.end(),
              all.numbers.begin() + static_cast<std::ptrdiff_t>(before.numbers.size()));
    return all;
  }

  rows<S> before_k, before_v;
  std::vector<rows<float>> q{};
  std::vector<rows<S>> k{}, v{};
  std::vector<rows<O>> out{};
  std::vector<std::vector<float>> lse{};
  std::vector<sequence> sequences{};
};

posenc::rope<float> rope() {
  return posenc::rope<float>{{.head_dim = width, .pairing = posenc::pairing::half_split}};
}

TEST(shared_prefix, equals_the_reference_over_whole_rows) {
  const std::vector<double> sinks{0.5, -1, 2, 0, -std::numeric_limits<double>::infinity(), 1};
  for (const index_t prefix : {index_t{64}, index_t{300}, index_t{1500}})
    for (int variant = 0; variant < 5; ++variant) {
      SCOPED_TRACE(::testing::Message() << prefix << " shared keys, variant " << variant);
      attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
      if (variant == 1) options.sinks = sinks;
      if (variant == 2) options.window = posenc::sliding_window(100);
      if (variant == 3) options.softcap = 3, options.scale = 0.4;
      if (variant == 4) options.mask = posenc::bidirectional;
      batch_of_prefix<float, float> batch(prefix, {1, 3, 1, 40}, {5, 3, 70, 40}, options);
      const auto on_targets = [&](const auto& encoding) {
        const auto expected = batch.expected(encoding);
        sweep::on_every_target([&](const char* target) {
          posenc::fused::attention_batch(batch.sequences, encoding);
          EXPECT_LT(batch.error_from(expected), 1e-6) << target;
        });
      };
      on_targets(rope());
      if (variant == 0) on_targets(posenc::alibi<float>{{.heads = heads}});
    }
}

TEST(shared_prefix, keeps_16_bit_caches_and_outputs) {
  const attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  batch_of_prefix<Eigen::bfloat16, Eigen::bfloat16> narrow(200, {1, 2}, {9, 30}, options);
  posenc::fused::attention_batch(narrow.sequences, rope());
  EXPECT_LT(narrow.error(rope()), 4e-3);  // the output's own rounding
  batch_of_prefix<Eigen::half, float> mixed(200, {1, 2}, {9, 30}, options);
  posenc::fused::attention_batch(mixed.sequences, rope());
  EXPECT_LT(mixed.error(rope()), 1e-6);
}

TEST(shared_prefix, gives_the_same_bits_on_threads_and_in_borrowed_memory) {
  const attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  batch_of_prefix<float, float> batch(3000, {1, 1, 2}, {50, 20, 2}, options);
  posenc::fused::attention_batch(batch.sequences, rope());
  const auto first = batch.out;
  const std::span<const batch_of_prefix<float, float>::sequence> sequences(batch.sequences);
  std::vector<std::byte> memory(posenc::fused::workspace_bytes(sequences, rope(), 3));
  posenc::fused::workspace borrowed{std::span<std::byte>(memory)};
  const fused_calls::backward_executor threads{3};
  posenc::fused::attention_batch(sequences, rope(), {.executor = threads, .memory = &borrowed});
  for (std::size_t n = 0; n < first.size(); ++n) EXPECT_EQ(batch.out[n].numbers, first[n].numbers) << n;
}

TEST(shared_prefix, leaves_alone_what_does_not_share) {
  attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  batch_of_prefix<float, float> batch(200, {1, 1, 1, 1}, {5, 6, 7, 0}, options);
  batch.sequences[1].options.scale = 0.5;                                  // another scale
  batch.sequences[2].options.key_positions = posenc::positions::from(50);  // elsewhere
  posenc::fused::attention_batch(batch.sequences, rope());
  EXPECT_LT(batch.error(rope()), 1e-6);
  // Rows that are left out, and masks by row, go the whole way.
  batch.sequences[0].options.valid_keys = posenc::row_range{3, 205};
  batch.sequences[0].options.query_positions = batch.sequences[3].options.query_positions =
      posenc::positions::from(204);
  batch.sequences[3].options.visible = posenc::prefix_lm(10);
  posenc::fused::attention_batch(batch.sequences, rope());
  EXPECT_LT(batch.error(rope()), 1e-6);
}

TEST(shared_prefix, the_reference_takes_joined_rows) {
  const attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  batch_of_prefix<float, float> batch(70, {1, 3}, {5, 3}, options);
  posenc::reference::attention_batch(batch.sequences, rope());
  EXPECT_LT(batch.error(rope()), 1e-15);
}

TEST(shared_prefix, refuses_parts_that_do_not_fit_and_writes_nothing) {
  const attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  batch_of_prefix<float, float> batch(100, {1, 1}, {5, 6}, options);
  const auto before = batch.out;
  auto sequences = batch.sequences;
  sequences[1].k.after.head_dim = 16;
  EXPECT_THROW(posenc::fused::attention_batch(sequences, rope()), std::invalid_argument);
  sequences = batch.sequences;
  sequences[1].out = batch.out[0].view();  // two sequences, one output
  EXPECT_THROW(posenc::fused::attention_batch(sequences, rope()), std::invalid_argument);
  for (std::size_t n = 0; n < before.size(); ++n) EXPECT_EQ(batch.out[n].numbers, before[n].numbers);
}

}  // namespace shared_prefix_test
