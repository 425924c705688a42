// SPDX-License-Identifier: MIT
/// \file
/// What the tests of caches share: the same rows laid out in pages and as a ring, and calls of both engines.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

namespace cache_rows_test {

using posenc::heads_view;
using posenc::index_t;
using posenc::position;

/// tokens × heads × channels that own their memory.
template <class S>
struct rows {
  rows(index_t tokens_, index_t heads_, index_t channels_)
      : tokens(tokens_),
        heads(heads_),
        channels(channels_),
        numbers(static_cast<std::size_t>(tokens_ * heads_ * channels_)) {}
  [[nodiscard]] heads_view<const S> view() const {
    return posenc::token_major(numbers.data(), tokens, heads, channels);
  }
  [[nodiscard]] heads_view<S> view() { return posenc::token_major(numbers.data(), tokens, heads, channels); }

  index_t tokens, heads, channels;
  std::vector<S> numbers;
};

template <class S>
[[nodiscard]] rows<S> random_rows(index_t tokens, index_t heads, index_t channels, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  rows<S> result(tokens, heads, channels);
  for (S& x : result.numbers) x = static_cast<S>(normal(generator));
  return result;
}

/// The rows `order[0]`, `order[1]`, … of others.
template <class S>
[[nodiscard]] rows<S> picked(const rows<S>& from, const std::vector<index_t>& order) {
  rows<S> result(static_cast<index_t>(order.size()), from.heads, from.channels);
  const index_t width = from.heads * from.channels;
  for (index_t t = 0; t < result.tokens; ++t)
    std::copy_n(from.numbers.begin() + order[static_cast<std::size_t>(t)] * width, width,
                result.numbers.begin() + t * width);
  return result;
}

enum class page_order { token_major, head_major };

/// Rows in pages, each of which lies in memory of its own; the table is shuffled.
template <class S>
struct pages {
  pages(heads_view<const S> from, index_t page_tokens, page_order order = page_order::token_major)
      : of(page_tokens), by(order), tokens(from.tokens), heads(from.heads), channels(from.head_dim) {
    const index_t count = (tokens + of - 1) / of;
    table.resize(static_cast<std::size_t>(count));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(static_cast<unsigned>(count)));
    for (index_t n = 0; n < count; ++n) {
      memory.emplace_back(static_cast<std::size_t>(of * heads * channels));
      addresses.push_back(memory.back().data());
    }
    const posenc::paged_view<S> to = view();
    for (index_t t = 0; t < tokens; ++t)
      for (index_t h = 0; h < heads; ++h) std::copy_n(from(t, h).begin(), channels, to(t, h).begin());
  }
  [[nodiscard]] posenc::paged_view<S> view() const {
    return by == page_order::head_major
               ? posenc::head_major_pages(std::span<S* const>(addresses), table, of, tokens, heads, channels)
               : posenc::paged_view<S>{addresses, table, of, tokens, heads, channels};
  }

  index_t of;
  page_order by;
  index_t tokens, heads, channels;
  std::vector<std::int32_t> table{};
  std::vector<std::vector<S>> memory{};
  std::vector<S*> addresses{};
};

/// Output and log-sum-exp of a call.
struct answer {
  std::vector<float> out{}, log_sum_exp{};
  bool operator==(const answer&) const = default;
};

/// Through a plan, whose kernel has to be the one that the test means.
template <class K, class V, class E>
[[nodiscard]] answer fused_answer(
    const rows<float>& q, const K& k, const V& v, const E& encoding, const posenc::attention_options& options,
    posenc::fused::kernel kernel, const posenc::fused::execution& how = {},
    posenc::fused::memory_order order = posenc::fused::memory_order::token_major) {
  namespace detail = posenc::detail;
  const index_t value_dim = detail::shape_of_source(v).head_dim;
  posenc::fused::plan plan(encoding, options,
                           {.queries = q.tokens,
                            .keys = detail::shape_of_source(k).tokens,
                            .head_dim = q.channels,
                            .value_dim = value_dim,
                            .k = detail::fused_problem::storage_of<K>,
                            .v = detail::fused_problem::storage_of<V>,
                            .order = order},
                           how);
  // Where a vector is one number, a panel is two queries, and a stack begins elsewhere.
  if (plan.target() != std::string("SCALAR")) {
    EXPECT_EQ(plan.kernel(), kernel);
  }
  answer result{std::vector<float>(static_cast<std::size_t>(q.tokens * q.heads * value_dim)),
                std::vector<float>(static_cast<std::size_t>(q.tokens * q.heads))};
  plan.run(q.view(), k, v, posenc::token_major(result.out.data(), q.tokens, q.heads, value_dim),
           {result.log_sum_exp.data(), q.tokens, q.heads, q.heads, 1});
  return result;
}

template <class K, class V, class E>
[[nodiscard]] answer reference_answer(const rows<float>& q, const K& k, const V& v, const E& encoding,
                                      const posenc::attention_options& options) {
  const auto all = posenc::reference::attention_with_log_sum_exp(q.view(), k, v, encoding, options);
  return {{all.output.data(), all.output.data() + all.output.size()},
          {all.log_sum_exp.data(), all.log_sum_exp.data() + all.log_sum_exp.size()}};
}

/// |a − b| / |b| of outputs and of log-sum-exps, the larger of the two.
[[nodiscard]] inline double distance(const answer& a, const answer& b) {
  const auto of = [](const std::vector<float>& x, const std::vector<float>& y) {
    EXPECT_EQ(x.size(), y.size());
    double apart = 0, norm = 0;
    for (std::size_t n = 0; n < y.size(); ++n) {
      const double d = static_cast<double>(x[n]) - static_cast<double>(y[n]);
      apart += d * d, norm += static_cast<double>(y[n]) * static_cast<double>(y[n]);
    }
    return std::sqrt(apart / norm);
  };
  return (std::max)(of(a.out, b.out), of(a.log_sum_exp, b.log_sum_exp));
}

/// Few enough columns, or enough of them, for the kernel on every instruction set.
struct call {
  posenc::fused::kernel by;
  index_t queries, heads, kv_heads;

  [[nodiscard]] posenc::attention_options options() const {
    return {.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  }
};
inline constexpr call calls[] = {{posenc::fused::kernel::decode, 1, 4, 2},
                                 {posenc::fused::kernel::stacked, 2, 24, 2},
                                 {posenc::fused::kernel::prefill, 40, 2, 1}};

}  // namespace cache_rows_test
