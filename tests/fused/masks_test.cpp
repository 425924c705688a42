// SPDX-License-Identifier: MIT
/// \file
/// Every mask against a plain softmax over a dense mask that the test works out by itself, in the reference and in
/// the fused path, for a few queries (decode) and many (prefill).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"
#include "refusals.hpp"

namespace masks_test {
using fused_calls::random_matrix;
using fused_calls::relative_error;
using posenc::attention_options;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;
using posenc::row_range;

constexpr index_t heads = 4, kv_heads = 2, width = 24;

/// Whether query row i of n_q sees key row j of n_k, and what is added to its score.
using rule = std::function<bool(index_t head, index_t i, index_t j, index_t n_q, index_t n_k)>;
using addition = std::function<double(index_t head, index_t i, index_t j)>;

/// softmax(q·k/√width + added)·v over the keys that `sees` shows, in double.
row_major_matrix<double> by_hand(const row_major_matrix<float>& q, const row_major_matrix<float>& k,
                                 const row_major_matrix<float>& v, const rule& sees, const addition& added) {
  row_major_matrix<double> out = row_major_matrix<double>::Zero(q.rows(), q.cols());
  for (index_t h = 0; h < heads; ++h)
    for (index_t i = 0; i < q.rows(); ++i) {
      const index_t kv = h / (heads / kv_heads);
      std::vector<double> weights(static_cast<std::size_t>(k.rows()));
      double total = 0;
      for (index_t j = 0; j < k.rows(); ++j) {
        if (!sees(h, i, j, q.rows(), k.rows())) continue;
        double score = 0;
        for (index_t c = 0; c < width; ++c)
          score += static_cast<double>(q(i, h * width + c)) * static_cast<double>(k(j, kv * width + c));
        score = score / std::sqrt(double{width}) + (added ? added(h, i, j) : 0);
        weights[static_cast<std::size_t>(j)] = std::exp(score);
        total += weights[static_cast<std::size_t>(j)];
      }
      if (total == 0) continue;
      for (index_t j = 0; j < k.rows(); ++j)
        for (index_t c = 0; c < width; ++c)
          out(i, h * width + c) +=
              weights[static_cast<std::size_t>(j)] / total * static_cast<double>(v(j, kv * width + c));
    }
  return out;
}

struct mask_case {
  const char* name;
  std::function<attention_options(index_t n_q, index_t n_k)> options;
  rule sees;
  addition added{};
};

/// The key row that query row i is.
index_t row_of(index_t i, index_t n_q, index_t n_k) { return i + n_k - n_q; }

std::vector<mask_case> mask_cases() {
  const auto with = [](const std::function<void(attention_options&, index_t, index_t)>& set) {
    return [set](index_t n_q, index_t n_k) {
      attention_options options{.heads = heads, .kv_heads = kv_heads};
      set(options, n_q, n_k);
      return options;
    };
  };
  static std::vector<std::uint8_t> bytes;
  static std::vector<float> floats;
  std::vector<mask_case> all;
  all.push_back(
      {"causal", with([](attention_options& o, index_t, index_t) { o.mask = posenc::causal; }),
       [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) { return j <= row_of(i, n_q, n_k); }});
  all.push_back({"causal from the first key",
                 with([](attention_options& o, index_t, index_t) { o.mask = posenc::causal_from_first; }),
                 [](index_t, index_t i, index_t j, index_t, index_t) { return j <= i; }});
  all.push_back(
      {"causal to the last key, wherever tokens stand", with([](attention_options& o, index_t, index_t) {
         o.mask = posenc::causal_to_last;
         o.query_positions = posenc::positions::from(-5000);
       }),
       [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) { return j <= row_of(i, n_q, n_k); }});
  all.push_back({"a sliding window of 9", with([](attention_options& o, index_t, index_t) {
                   o.mask = posenc::causal;
                   o.window = posenc::sliding_window(9);
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   return j <= row_of(i, n_q, n_k) && j > row_of(i, n_q, n_k) - 9;
                 }});
  all.push_back({"4 behind and 7 ahead", with([](attention_options& o, index_t, index_t) {
                   o.window = posenc::two_sided_window(4, 7);
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   return j >= row_of(i, n_q, n_k) - 4 && j <= row_of(i, n_q, n_k) + 7;
                 }});
  all.push_back({"chunks of 13, positions from -6", with([](attention_options& o, index_t, index_t) {
                   o.mask = posenc::causal;
                   o.chunk = 13;
                   o.key_positions = posenc::positions::from(-6);
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   const auto chunk = [](index_t row) { return (row - 6 + 1300) / 13; };
                   return j <= row_of(i, n_q, n_k) && chunk(j) == chunk(row_of(i, n_q, n_k));
                 }});
  all.push_back({"documents of 10, 30 and the rest", with([](attention_options& o, index_t, index_t) {
                   o.mask = posenc::causal;
                   o.visible = posenc::documents({0, 10, 40});
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   const auto document = [](index_t row) { return row < 10 ? 0 : row < 40 ? 1 : 2; };
                   return j <= row_of(i, n_q, n_k) && document(j) == document(row_of(i, n_q, n_k));
                 }});
  all.push_back({"documents packed differently on both sides",
                 with([](attention_options& o, index_t n_q, index_t) {
                   static std::vector<index_t> starts;
                   starts = {0, (n_q + 1) / 2};
                   const std::vector<index_t> of_keys{0, 20};
                   o.visible = posenc::documents(starts, of_keys);
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t) {
                   return (i >= (n_q + 1) / 2) == (j >= 20);
                 }});
  all.push_back(
      {"prefix-LM", with([](attention_options& o, index_t, index_t) {
         o.mask = posenc::causal;
         o.visible = posenc::prefix_lm(17);
         o.first_query_row = 3;
         o.query_positions = posenc::positions::from(3);
       }),
       [](index_t, index_t i, index_t j, index_t, index_t) { return j <= i + 3 || (i + 3 < 17 && j < 17); }});
  for (const bool kept : {false, true})
    all.push_back({kept ? "images that keep the window" : "images that ignore the window",
                   with([kept](attention_options& o, index_t, index_t) {
                     o.mask = posenc::causal;
                     o.window = posenc::sliding_window(6);
                     o.visible = posenc::blocks({{4, 30}, {60, 90}}, kept ? posenc::block_window::kept
                                                                          : posenc::block_window::ignored);
                     o.first_query_row = 0;
                     o.query_positions = posenc::positions::from(0);
                   }),
                   [kept](index_t, index_t i, index_t j, index_t, index_t) {
                     const auto image = [](index_t row) {
                       return row >= 4 && row < 30 ? 1 : row >= 60 && row < 90 ? 2 : 0;
                     };
                     const bool together = image(i) != 0 && image(i) == image(j);
                     return (j <= i && j > i - 6) || (together && (!kept || j > i - 6));
                   }});
  all.push_back(
      {"a range of rows for each query", with([](attention_options& o, index_t n_q, index_t n_k) {
         std::vector<row_range> ranges;
         for (index_t i = 0; i < n_q; ++i)
           ranges.push_back({(std::min)(n_k, i % 7), (std::min)(n_k, i % 7 + 3 * i)});
         o.visible = posenc::row_ranges(ranges);
       }),
       [](index_t, index_t i, index_t j, index_t, index_t) { return j >= i % 7 && j < i % 7 + 3 * i; }});
  // Drafts 0 … n_q−1 are the last keys; draft d hangs on d/2 − 1, and all of a level share a position.
  all.push_back({"a tree whose drafts share positions",
                 with([](attention_options& o, index_t n_q, index_t n_k) {
                   static std::vector<index_t> parents;
                   static std::vector<position> at_keys, at_queries;
                   parents.clear(), at_keys.clear(), at_queries.clear();
                   for (index_t d = 0; d < n_q; ++d) parents.push_back(d < 2 ? -1 : d / 2 - 1);
                   for (index_t j = 0; j < n_k - n_q; ++j) at_keys.push_back(j);
                   for (index_t d = 0; d < n_q; ++d) {
                     index_t depth = 0;
                     for (index_t p = parents[static_cast<std::size_t>(d)]; p >= 0;
                          p = parents[static_cast<std::size_t>(p)])
                       ++depth;
                     at_queries.push_back(n_k - n_q + depth);
                   }
                   at_keys.insert(at_keys.end(), at_queries.begin(), at_queries.end());
                   o.visible = posenc::draft_tree(std::span<const index_t>(parents));
                   o.key_positions = posenc::positions::each(at_keys);
                   o.query_positions = posenc::positions::each(at_queries);
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   if (j < n_k - n_q) return true;
                   for (index_t d = i; d >= 0; d = d < 2 ? -1 : d / 2 - 1)
                     if (d == j - (n_k - n_q)) return true;
                   return false;
                 }});
  all.push_back({"a dense mask of bytes for each head",
                 with([](attention_options& o, index_t n_q, index_t n_k) {
                   bytes.assign(static_cast<std::size_t>(heads * n_q * n_k), 1);
                   for (index_t n = 0; n < heads * n_q * n_k; ++n)
                     bytes[static_cast<std::size_t>(n)] = (n / n_k * 5 + n % n_k * 3) % 7 < 4 ? 1 : 0;
                   o.visible = posenc::dense_mask(posenc::dense_scores(bytes.data(), heads, n_q, n_k));
                 }),
                 [](index_t h, index_t i, index_t j, index_t n_q, index_t) {
                   return ((h * n_q + i) * 5 + j * 3) % 7 < 4;
                 }});
  all.push_back({"a dense bias for all heads that hides some keys",
                 with([](attention_options& o, index_t n_q, index_t n_k) {
                   floats.resize(static_cast<std::size_t>(n_q * n_k));
                   for (index_t i = 0; i < n_q; ++i)
                     for (index_t j = 0; j < n_k; ++j)
                       floats[static_cast<std::size_t>(i * n_k + j)] =
                           (i + j) % 5 == 0 ? -std::numeric_limits<float>::infinity()
                                            : static_cast<float>((i * 3 + j) % 8) * 0.25f;
                   o.visible = posenc::dense_bias(posenc::dense_scores(floats.data(), 1, n_q, n_k));
                 }),
                 [](index_t, index_t i, index_t j, index_t, index_t) { return (i + j) % 5 != 0; },
                 [](index_t, index_t i, index_t j) { return static_cast<double>((i * 3 + j) % 8) * 0.25; }});
  all.push_back({"one row of dense mask for all queries and heads (strides of 0)",
                 with([](attention_options& o, index_t n_q, index_t n_k) {
                   bytes.assign(static_cast<std::size_t>(n_k), 1);
                   for (index_t j = 0; j < n_k; j += 3) bytes[static_cast<std::size_t>(j)] = 0;
                   o.mask = posenc::causal;
                   o.visible = posenc::dense_mask(
                       posenc::scores_view<const std::uint8_t>{bytes.data(), heads, n_q, n_k, 0, 0, 1});
                 }),
                 [](index_t, index_t i, index_t j, index_t n_q, index_t n_k) {
                   return j % 3 != 0 && j <= row_of(i, n_q, n_k);
                 }});
  all.push_back(
      {"a function, documents and causality at once", with([](attention_options& o, index_t, index_t) {
         o.mask = posenc::causal;
         o.visible = posenc::documents({0, 33}) &
                     posenc::mask_where([](index_t h, index_t i, index_t j) { return (h + i + j) % 3 != 1; });
       }),
       [](index_t h, index_t i, index_t j, index_t n_q, index_t n_k) {
         const index_t row = row_of(i, n_q, n_k);
         return j <= row && (j >= 33) == (row >= 33) && (h + i + j) % 3 != 1;
       }});
  return all;
}

TEST(masks, equal_a_softmax_over_a_dense_mask) {
  for (const index_t queries : {1, 3, 8, 20, 70})
    for (const index_t keys : {70, 71, 300}) {
      const auto q = random_matrix<float>(queries, heads * width, 1),
                 k = random_matrix<float>(keys, kv_heads * width, 2),
                 v = random_matrix<float>(keys, kv_heads * width, 3);
      for (const mask_case& one : mask_cases()) {
        SCOPED_TRACE(std::string(one.name) + ", " + std::to_string(queries) + " x " + std::to_string(keys));
        const attention_options options = one.options(queries, keys);
        const row_major_matrix<double> expected = by_hand(q, k, v, one.sees, one.added);
        const auto exact =
            posenc::reference::attention(q.cast<double>().eval(), k.cast<double>().eval(),
                                         v.cast<double>().eval(), posenc::no_encoding{}, options);
        EXPECT_LT((exact - expected).cwiseAbs().maxCoeff(), 1e-12);
        sweep::on_every_target([&](const char* target) {
          const auto fused = posenc::fused::attention(q, k, v, posenc::no_encoding{}, options);
          EXPECT_LT((fused.cast<double>() - expected).cwiseAbs().maxCoeff(), 2e-6) << target;
        });
      }
    }
}

TEST(masks, scores_of_every_stage_are_those_of_the_formula) {
  const auto q = random_matrix<double>(5, heads * width, 1),
             k = random_matrix<double>(9, kv_heads * width, 2);
  std::vector<float> bias(45, 0.5f);
  const attention_options options{.heads = heads,
                                  .kv_heads = kv_heads,
                                  .mask = posenc::causal,
                                  .visible = posenc::dense_bias(posenc::dense_scores(bias.data(), 1, 5, 9)),
                                  .softcap = 2};
  const auto stage = [&](posenc::score_stage at) {
    std::vector<double> memory(static_cast<std::size_t>(heads * 5 * 9), 7);
    posenc::reference::scores_into(posenc::as_heads(q, heads), posenc::as_heads(k, kv_heads),
                                   posenc::no_encoding{}, options, at,
                                   posenc::dense_scores(memory.data(), heads, 5, 9));
    return memory;
  };
  const auto scaled = stage(posenc::score_stage::scaled), capped = stage(posenc::score_stage::capped),
             biased = stage(posenc::score_stage::biased), weights = stage(posenc::score_stage::weights);
  for (index_t h = 0; h < heads; ++h)
    for (index_t i = 0; i < 5; ++i) {
      double total = 0, sum = 0;
      for (index_t j = 0; j <= i + 4; ++j) {
        double dot = 0;
        for (index_t c = 0; c < width; ++c) dot += q(i, h * width + c) * k(j, h / 2 * width + c);
        total += std::exp(2 * std::tanh(dot / std::sqrt(24.0) / 2) + 0.5);
      }
      for (index_t j = 0; j < 9; ++j) {
        const auto at = static_cast<std::size_t>((h * 5 + i) * 9 + j);
        double dot = 0;
        for (index_t c = 0; c < width; ++c) dot += q(i, h * width + c) * k(j, h / 2 * width + c);
        const double score = dot / std::sqrt(24.0), cap = 2 * std::tanh(score / 2);
        EXPECT_NEAR(scaled[at], score, 1e-12);
        EXPECT_NEAR(capped[at], cap, 1e-12);
        if (j <= i + 4) {
          EXPECT_NEAR(biased[at], cap + 0.5, 1e-12);
          EXPECT_NEAR(weights[at], std::exp(cap + 0.5) / total, 1e-12);
        } else {
          EXPECT_EQ(biased[at], -std::numeric_limits<double>::infinity());
          EXPECT_EQ(weights[at], 0);
        }
        sum += weights[at];
      }
      EXPECT_NEAR(sum, 1, 1e-12);
    }
}

TEST(masks, scores_without_memory_are_refused) {
  const auto q = random_matrix<float>(2, heads * width, 1), k = random_matrix<float>(3, kv_heads * width, 2);
  EXPECT_REFUSAL(posenc::reference::scores_into(posenc::as_heads(q, heads), posenc::as_heads(k, kv_heads),
                                                posenc::no_encoding{}, {.heads = heads, .kv_heads = kv_heads},
                                                posenc::score_stage::weights,
                                                posenc::dense_scores<float>(nullptr, heads, 2, 3)),
                 std::invalid_argument, "no memory behind 4 x 2 x 3");
}

}  // namespace masks_test
