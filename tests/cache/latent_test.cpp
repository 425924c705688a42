// SPDX-License-Identifier: MIT
/// \file
/// Latent heads (MLA): one cached row per token is key and value of all heads. And values that carry positions.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/calls.hpp"
#include "fused/targets.hpp"
#include "refusals.hpp"

namespace latent_test {

using namespace cache_rows_test;
using posenc::attention_options;
using posenc::axis_positions;
using posenc::positions;
using posenc::fused::kernel;

/// Turns the pair (a, b) by an angle.
void turn(double& a, double& b, double angle) {
  const double x = a, y = b;
  a = x * std::cos(angle) - y * std::sin(angle);
  b = x * std::sin(angle) + y * std::cos(angle);
}

/// DeepSeek's latent attention with small heads: what a model computes where nothing is absorbed.
struct latent_model {
  static constexpr index_t latent = 512, rotary = 64, width = latent + rotary, nope = 16, value = 16;
  index_t heads;
  std::vector<float> w_uk, w_uv;  ///< heads × nope × latent; heads × value × latent
  double scale = 1 / std::sqrt(static_cast<double>(nope + rotary));

  explicit latent_model(index_t of_heads) : heads(of_heads) {
    w_uk = random_rows<float>(heads, nope, latent, 21).numbers;
    w_uv = random_rows<float>(heads, value, latent, 22).numbers;
    for (std::vector<float>* w : {&w_uk, &w_uv})
      for (float& x : *w) x *= 0.04f;
  }

  [[nodiscard]] static const float* row(const std::vector<float>& w, index_t head, index_t rows, index_t r) {
    return w.data() + (head * rows + r) * latent;
  }
  [[nodiscard]] static double dot(const float* a, const float* b, index_t count) {
    double sum = 0;
    for (index_t c = 0; c < count; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
  }
  static void rotate(std::vector<double>& x, position at) {  // interleaved pairs
    for (index_t p = 0; p < rotary / 2; ++p)
      turn(x[static_cast<std::size_t>(2 * p)], x[static_cast<std::size_t>(2 * p + 1)],
           static_cast<double>(at) * std::pow(10000.0, -2.0 * static_cast<double>(p) / rotary));
  }

  /// W_UK^T·q_nope beside q_rope: the query of absorbed attention.
  [[nodiscard]] rows<float> absorbed(const rows<float>& q) const {
    rows<float> result(q.tokens, heads, width);
    for (index_t i = 0; i < q.tokens; ++i)
      for (index_t h = 0; h < heads; ++h) {
        const float* const from = q.view()(i, h).data();
        float* const to = result.view()(i, h).data();
        for (index_t c = 0; c < latent; ++c) {
          double sum = 0;
          for (index_t n = 0; n < nope; ++n)
            sum += static_cast<double>(row(w_uk, h, nope, n)[c]) * static_cast<double>(from[n]);
          to[c] = static_cast<float>(sum);
        }
        std::copy_n(from + nope, rotary, to + latent);
      }
    return result;
  }

  /// Softmax over keys of k = (W_UK·c, R(j)·k_rope) with values W_UV·c; queries stand on the last keys.
  [[nodiscard]] std::vector<float> attention(const rows<float>& q, const rows<float>& cache) const {
    std::vector<std::vector<double>> rope_keys;
    for (index_t j = 0; j < cache.tokens; ++j) {
      const float* const at = cache.view()(j, 0).data() + latent;
      rope_keys.emplace_back(at, at + rotary);
      rotate(rope_keys.back(), j);
    }
    std::vector<float> out;
    for (index_t i = 0; i < q.tokens; ++i)
      for (index_t h = 0; h < heads; ++h) {
        const float* const from = q.view()(i, h).data();
        std::vector<double> rope_query(from + nope, from + nope + rotary);
        const index_t here = cache.tokens - q.tokens + i;
        rotate(rope_query, here);
        double total = 0;
        std::vector<double> sum(value);
        for (index_t j = 0; j <= here; ++j) {
          const float* const c = cache.view()(j, 0).data();
          double score = 0;
          for (index_t n = 0; n < nope; ++n)
            score += static_cast<double>(from[n]) * dot(row(w_uk, h, nope, n), c, latent);
          for (std::size_t n = 0; n < rope_query.size(); ++n)
            score += rope_query[n] * rope_keys[static_cast<std::size_t>(j)][n];
          const double weight = std::exp(scale * score);
          total += weight;
          for (index_t n = 0; n < value; ++n)
            sum[static_cast<std::size_t>(n)] += weight * dot(row(w_uv, h, value, n), c, latent);
        }
        for (const double x : sum) out.push_back(static_cast<float>(x / total));
      }
    return out;
  }

  /// W_UV times what absorbed attention gave.
  [[nodiscard]] std::vector<float> values_of(const std::vector<float>& latents) const {
    std::vector<float> out;
    for (std::size_t n = 0; n * latent < latents.size(); ++n)
      for (index_t r = 0; r < value; ++r)
        out.push_back(static_cast<float>(dot(row(w_uv, static_cast<index_t>(n) % heads, value, r),
                                             latents.data() + n * static_cast<std::size_t>(latent), latent)));
    return out;
  }

  [[nodiscard]] static posenc::rope<float> rope() {
    return posenc::rope<float>{{.head_dim = width,
                                .rotary_dim = rotary,
                                .rotary_offset = latent,
                                .pairing = posenc::pairing::interleaved}};
  }
  [[nodiscard]] attention_options options() const {
    return {.heads = heads, .kv_heads = 1, .mask = posenc::causal, .scale = scale};
  }
};

double distance_of(const std::vector<float>& a, const std::vector<float>& b) {
  return distance({a, {1.0f}}, {b, {1.0f}});
}

struct call {
  kernel by;
  index_t queries, heads;
};
constexpr call calls[] = {{kernel::decode, 1, 4}, {kernel::stacked, 3, 24}, {kernel::prefill, 34, 2}};
constexpr index_t keys = 45;

/// The absorbed form over a cache of any kind against the model over the numbers that the cache holds.
template <class K, class V>
void expect_latent(const call& c, const K& k, const V& v, const rows<float>& cache) {
  const latent_model model(c.heads);
  const rows<float> q = random_rows<float>(c.queries, c.heads, latent_model::nope + latent_model::rotary, 1),
                    absorbed = model.absorbed(q);
  const std::vector<float> expected = model.attention(q, cache);
  EXPECT_LE(distance_of(
                model.values_of(reference_answer(absorbed, k, v, latent_model::rope(), model.options()).out),
                expected),
            1e-6);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(std::string(target) + ", " + std::to_string(c.heads) + " heads");
    const answer fused = fused_answer(absorbed, k, v, latent_model::rope(), model.options(), c.by);
    EXPECT_LE(distance_of(model.values_of(fused.out), expected), 1e-6);
  });
}

TEST(latent_heads, absorbed_are_what_they_are_unabsorbed) {
  const rows<float> cache = random_rows<float>(keys, 1, latent_model::width, 2);
  for (const call& c : calls) {
    // Values are the first channels of the same rows.
    auto v = cache.view();
    v.head_dim = latent_model::latent;
    expect_latent(c, cache.view(), v, cache);
  }
}

TEST(latent_heads, in_pages_and_in_other_kinds) {
  const call c = calls[1];
  const rows<float> numbers = random_rows<float>(keys, 1, latent_model::width, 2);
  {
    const pages<float> of(numbers.view(), 16);
    const posenc::paged_view<const float> k = of.view();
    auto v = k;
    v.head_dim = latent_model::latent;
    expect_latent(c, k, v, numbers);
  }
  {
    rows<Eigen::bfloat16> narrow(keys, 1, latent_model::width);
    rows<float> cache = numbers;
    for (std::size_t n = 0; n < cache.numbers.size(); ++n) {
      narrow.numbers[n] = Eigen::bfloat16(numbers.numbers[n]);
      cache.numbers[n] = static_cast<float>(narrow.numbers[n]);
    }
    auto v = std::as_const(narrow).view();
    v.head_dim = latent_model::latent;
    expect_latent(c, std::as_const(narrow).view(), v, cache);
  }
  {
    posenc::q8_0_cache blocks(1, latent_model::width);
    blocks.append(numbers.view());
    const posenc::q8_0_view k = blocks.view();
    posenc::q8_0_view v = k;
    v.blocks.block.head_dim = latent_model::latent / 32;
    rows<float> cache = numbers;
    for (std::size_t n = 0; n < cache.numbers.size(); ++n) {
      const posenc::q8_0_block& block = k.blocks.block.data[n / 32];
      cache.numbers[n] = static_cast<float>(block.codes[n % 32]) * static_cast<float>(block.scale);
    }
    expect_latent(c, k, v, cache);
  }
}

TEST(latent_heads, of_a_whole_model_do_not_depend_on_threads) {
  // 128 heads on one row; 24 with long splits.
  for (const auto& [heads, queries, tokens] :
       {std::array<index_t, 3>{128, 1, 300}, {24, 1, 2300}, {128, 2, 70}}) {
    const latent_model model(heads);
    const rows<float> cache = random_rows<float>(tokens, 1, latent_model::width, 2),
                      q = random_rows<float>(queries, heads, latent_model::width, 3);
    auto v = cache.view();
    v.head_dim = latent_model::latent;
    attention_options options = model.options();
    options.scale = 0.05;
    const fused_calls::backward_executor three{3};
    const answer alone = fused_answer(q, cache.view(), v, latent_model::rope(), options, kernel::stacked);
    EXPECT_EQ(
        fused_answer(q, cache.view(), v, latent_model::rope(), options, kernel::stacked, {.executor = three}),
        alone);
    // Each head alone, which is decode: another kernel.
    attention_options one = options;
    one.heads = 1;
    for (const index_t h : {index_t{0}, heads / 2, heads - 1}) {
      rows<float> q_of_head(queries, 1, latent_model::width);
      std::vector<float> out_of_head;
      for (index_t i = 0; i < queries; ++i) {
        std::copy_n(q.view()(i, h).begin(), latent_model::width, q_of_head.view()(i, 0).begin());
        const auto at = alone.out.begin() + (i * heads + h) * latent_model::latent;
        out_of_head.insert(out_of_head.end(), at, at + latent_model::latent);
      }
      EXPECT_LE(
          distance_of(fused_answer(q_of_head, cache.view(), v, latent_model::rope(), one, kernel::decode).out,
                      out_of_head),
          1e-6);
    }
  }
}

TEST(latent_heads, wider_than_1024_are_refused) {
  const attention_options options{.heads = 1};
  const auto plan_of = [&](index_t head_dim, index_t value_dim) {
    return posenc::fused::plan(posenc::no_encoding{}, options,
                               {.queries = 1, .keys = 1, .head_dim = head_dim, .value_dim = value_dim});
  };
  EXPECT_NO_THROW(plan_of(1024, 1024));
  EXPECT_REFUSAL(plan_of(1025, 8), std::invalid_argument,
                 "head_dim 1025 and value_dim 8 must not exceed 1024");
  EXPECT_REFUSAL(plan_of(8, 1025), std::invalid_argument,
                 "head_dim 8 and value_dim 1025 must not exceed 1024");
}

/// Values that turn: Σ_j w_ij R(j − i) v_j in double, each pair by its own axis.
struct turning_oracle {
  index_t head_dim, rotary_dim, offset;
  std::vector<int> axis_of_pair{};  ///< empty: by position

  void rotate(std::vector<double>& x, const axis_positions& place, double way) const {
    for (index_t p = 0; p < rotary_dim / 2; ++p) {
      const std::size_t a = static_cast<std::size_t>(offset + p),
                        b = a + static_cast<std::size_t>(rotary_dim / 2);
      const auto axis =
          axis_of_pair.empty() ? 0u : static_cast<std::size_t>(axis_of_pair[static_cast<std::size_t>(p)]);
      turn(x[a], x[b],
           way * static_cast<double>(place[axis]) *
               std::pow(10000.0, -2.0 * static_cast<double>(p) / static_cast<double>(rotary_dim)));
    }
  }

  /// \param places of the keys; the queries stand on the last of them, causally
  [[nodiscard]] std::vector<float> attention(const rows<float>& q, const rows<float>& k, const rows<float>& v,
                                             const std::vector<axis_positions>& places) const {
    const auto turned = [&](const rows<float>& from, index_t t, index_t h, index_t at) {
      const auto row = from.view()(t, h);
      std::vector<double> x(row.begin(), row.end());
      rotate(x, places[static_cast<std::size_t>(at)], 1);
      return x;
    };
    std::vector<float> out;
    for (index_t i = 0; i < q.tokens; ++i)
      for (index_t h = 0; h < q.heads; ++h) {
        const index_t here = k.tokens - q.tokens + i, kv_head = h / (q.heads / k.heads);
        const std::vector<double> query = turned(q, i, h, here);
        std::vector<double> sum(static_cast<std::size_t>(head_dim));
        double total = 0;
        for (index_t j = 0; j <= here; ++j) {
          const std::vector<double> key = turned(k, j, kv_head, j), value = turned(v, j, kv_head, j);
          double score = 0;
          for (std::size_t c = 0; c < key.size(); ++c) score += query[c] * key[c];
          const double weight = std::exp(score / std::sqrt(static_cast<double>(head_dim)));
          total += weight;
          for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weight * value[c];
        }
        rotate(sum, places[static_cast<std::size_t>(here)], -1);
        for (const double x : sum) out.push_back(static_cast<float>(x / total));
      }
    return out;
  }
};

TEST(turning_values, give_the_numbers_of_the_probe) {
  const posenc::rope<float> rope{
      {.head_dim = 2, .pairing = posenc::pairing::half_split, .rotates_values = true}};
  rows<float> q(1, 1, 2), k(2, 1, 2), v(2, 1, 2);
  v.numbers = {1, 0, 1, 0};
  const attention_options options{
      .heads = 1, .query_positions = positions::from(3), .key_positions = positions::from(2)};
  const auto expect = [](const std::vector<float>& out) {
    EXPECT_NEAR(out[0], 0.77015115, 1e-7);
    EXPECT_NEAR(out[1], -0.42073549, 1e-7);
  };
  expect(reference_answer(q, std::as_const(k).view(), std::as_const(v).view(), rope, options).out);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(target);
    const auto out = posenc::fused::attention(std::as_const(q).view(), std::as_const(k).view(),
                                              std::as_const(v).view(), rope, options);
    expect({out(0, 0), out(0, 1)});
  });
}

/// Queries of every number, grouped heads, both engines.
template <class E>
void expect_turning(const turning_oracle& oracle, const E& rope, const std::vector<axis_positions>& places,
                    bool on_axes) {
  const auto tokens = static_cast<index_t>(places.size());
  for (const auto& [queries, heads, kv_heads] : {std::array<index_t, 3>{1, 4, 2}, {2, 24, 2}, {34, 2, 1}}) {
    const rows<float> q = random_rows<float>(queries, heads, oracle.head_dim, 1),
                      k = random_rows<float>(tokens, kv_heads, oracle.head_dim, 2),
                      v = random_rows<float>(tokens, kv_heads, oracle.head_dim, 3);
    attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
    if (on_axes) options.key_positions = positions::on_axes(places);
    const std::vector<float> expected = oracle.attention(q, k, v, places);
    EXPECT_LE(distance_of(reference_answer(q, k.view(), v.view(), rope, options).out, expected), 1e-6);
    // Rotated keys come with rotated values; outputs still turn back.
    rows<float> turned_k = k, turned_v = v;
    attention_options rotated = options;
    rotated.keys_are_rotated = true;
    for (rows<float>* side : {&turned_k, &turned_v})
      for (index_t t = 0; t < tokens; ++t)
        for (index_t h = 0; h < kv_heads; ++h) {
          const auto row = side->view()(t, h);
          std::vector<double> x(row.begin(), row.end());
          oracle.rotate(x, places[static_cast<std::size_t>(t)], 1);
          for (std::size_t c = 0; c < x.size(); ++c) row[c] = static_cast<float>(x[c]);
        }
    const auto pages_of = pages<float>(v.view(), 7);
    const posenc::paged_view<const float> v_paged = pages_of.view();
    const auto run = [&](const auto& keys_at, const auto& values_at, const attention_options& with) {
      const auto out = posenc::fused::attention(q.view(), keys_at, values_at, rope, with);
      return std::vector<float>(out.data(), out.data() + out.size());
    };
    sweep::on_every_target([&](const char* target) {
      SCOPED_TRACE(std::string(target) + ", " + std::to_string(q.tokens) + " queries");
      EXPECT_LE(distance_of(run(k.view(), v.view(), options), expected), 1e-6);
      EXPECT_LE(distance_of(run(k.view(), v_paged, options), expected), 1e-6);
      EXPECT_LE(
          distance_of(run(std::as_const(turned_k).view(), std::as_const(turned_v).view(), rotated), expected),
          1e-6);
    });
  }
}

TEST(turning_values, of_grouped_heads_are_those_of_a_double_oracle) {
  std::vector<axis_positions> places;
  for (position n = 0; n < 45; ++n) places.push_back({n, n, n, 0});
  for (const auto& [head_dim, rotary_dim, offset] : {std::array<index_t, 3>{32, 32, 0}, {40, 20, 7}})
    expect_turning({.head_dim = head_dim, .rotary_dim = rotary_dim, .offset = offset},
                   posenc::rope<float>{{.head_dim = head_dim,
                                        .rotary_dim = rotary_dim,
                                        .rotary_offset = offset,
                                        .pairing = posenc::pairing::half_split,
                                        .rotates_values = true}},
                   places, false);
}

TEST(turning_values, follow_axes) {
  std::vector<axis_positions> places;
  for (position n = 0; n < 45; ++n) places.push_back({n / 9, n % 9 / 3, n % 3, 0});
  std::vector<int> axes(8, 0);
  axes.resize(12, 1), axes.resize(16, 2);
  expect_turning({.head_dim = 32, .rotary_dim = 32, .offset = 0, .axis_of_pair = axes},
                 posenc::multi_axis_rope<float>(
                     {.head_dim = 32, .pairing = posenc::pairing::half_split, .rotates_values = true},
                     {8, 4, 4}, posenc::axis_order::chunked),
                 places, true);
}

TEST(turning_values, are_refused_where_they_cannot_turn) {
  const rows<float> q = random_rows<float>(1, 1, 8, 1), k = random_rows<float>(3, 1, 8, 2),
                    v = random_rows<float>(3, 1, 6, 3);
  const posenc::rope_options turning{
      .head_dim = 8, .pairing = posenc::pairing::half_split, .rotates_values = true};
  const attention_options options{.heads = 1};
  const posenc::rope<float> rope(turning);
  const char* const widths = "values of 6 channels cannot rotate like keys of 8 (rotates_values)";
  EXPECT_REFUSAL(posenc::fused::attention(q.view(), k.view(), v.view(), rope, options), std::invalid_argument,
                 widths);
  EXPECT_REFUSAL(posenc::reference::attention(q.view(), k.view(), v.view(), rope, options),
                 std::invalid_argument, widths);
  const posenc::xpos<float> grows{{.rope = turning}};
  const char* const growth = "values cannot rotate by a rotation that grows (xPos)";
  EXPECT_REFUSAL(posenc::fused::attention(q.view(), k.view(), k.view(), grows, options),
                 std::invalid_argument, growth);
  EXPECT_REFUSAL(posenc::reference::attention(q.view(), k.view(), k.view(), grows, options),
                 std::invalid_argument, growth);
}

}  // namespace latent_test
