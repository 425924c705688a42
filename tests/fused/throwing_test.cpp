// SPDX-License-Identifier: MIT
/// \file
/// Encodings that throw: before anything is written where that can be known, and never through a thread of an
/// executor.
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"

namespace throwing_test {

using fused_calls::random_matrix;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

constexpr position bad_position = 61;

struct throwing_scale {
  [[nodiscard]] double scale(position query) const {
    if (query == bad_position) throw std::domain_error("scale");
    return 1;
  }
};
struct throwing_rotation {
  template <class S>
  void rotate(std::span<S>, position p) const {
    if (p == bad_position) throw std::domain_error("rotate");
  }
};
struct throwing_bias {
  [[nodiscard]] float bias(int, position query, position key) const {
    if (query == bad_position && key == 40) throw std::domain_error("bias");
    return 0;
  }
};
struct throwing_diagonal {
  [[nodiscard]] float bias(int, position offset) const {
    if (offset == -bad_position) throw std::domain_error("diagonal");
    return 0;
  }
};
struct throwing_rows {
  [[nodiscard]] std::vector<float> relative_key(int, position offset) const {
    if (offset == -bad_position) throw std::domain_error("rows");
    return std::vector<float>(head_dim, 0.0f);
  }
  static constexpr std::size_t head_dim = 16;
};

/// Every executor with its own call of `check(executor)`.
template <class Check>
void under_every_executor(const Check& check) {
  check(posenc::fused::serial_executor{});
  check(posenc::fused::openmp_executor(3));
  check(fused_calls::backward_executor{3});
}

/// A call of two heads over keys 0 … 69, its queries the last of them.
struct call {
  index_t queries;
  posenc::attention_options options{.heads = 2, .mask = posenc::causal};
  row_major_matrix<float> q = random_matrix<float>(queries, 32, 1), k = random_matrix<float>(70, 32, 2),
                          v = random_matrix<float>(70, 32, 3);
  row_major_matrix<float> out = row_major_matrix<float>::Constant(queries, 32, 7);

  template <class E, class X>
  void run(const E& encoding, const X& executor) {
    posenc::fused::attention_into(posenc::as_heads(q, 2), posenc::as_heads(k, 2), posenc::as_heads(v, 2),
                                  encoding, options, posenc::as_heads(out, 2), {}, {.executor = executor});
  }
  [[nodiscard]] bool untouched() const { return (out.array() == 7).all(); }
};

TEST(FusedThrowing, WhatCanBeKnownIsRefusedBeforeWriting) {
  const posenc::rope<float> narrow{{.head_dim = 8, .pairing = posenc::pairing::half_split}},
      fitting{{.head_dim = 16, .pairing = posenc::pairing::half_split}};
  const auto vision = posenc::multi_axis_rope<float>::vision(posenc::vision_form::restarting, 16,
                                                             posenc::patch_positions(8, 8));  // tokens 0 … 63
  const posenc::t5_bias<float> one_head{
      {.buckets = 8, .max_distance = 20, .bidirectional = false},
      posenc::bias_table<float>::heads_by_rows(row_major_matrix<float>::Zero(1, 8))};
  under_every_executor([&](const auto& executor) {
    for (const index_t queries : {1, 4, 64}) {
      call c{queries};
      if (queries == 1) c.options.query_positions = posenc::positions::from(bad_position);
      EXPECT_THROW(c.run(throwing_diagonal{}, executor), std::domain_error);
      EXPECT_THROW(c.run(posenc::combine(fitting, narrow), executor), std::invalid_argument);
      EXPECT_THROW(c.run(posenc::combine(fitting, vision), executor), std::out_of_range);
      EXPECT_THROW(c.run(posenc::combine(one_head, throwing_bias{}), executor), std::invalid_argument);
      c.options.query_positions = posenc::positions::from(bad_position + 1 - queries);
      EXPECT_THROW(c.run(throwing_scale{}, executor), std::domain_error);
      EXPECT_THROW(c.run(posenc::combine(fitting, throwing_scale{}), executor), std::domain_error);
      c.options.query_positions = posenc::positions::from(-1);
      EXPECT_THROW(c.run(posenc::logit_scale::llama4(), executor), std::out_of_range);
      EXPECT_TRUE(c.untouched()) << queries << " queries";
    }
  });
}

TEST(FusedThrowing, TheReferenceRefusesTheSameScale) {
  const call c{4};
  posenc::attention_options options = c.options;
  options.query_positions = posenc::positions::from(-1);  // a row that sees no key
  EXPECT_THROW(
      static_cast<void>(posenc::reference::attention(c.q, c.k, c.v, posenc::logit_scale::llama4(), options)),
      std::out_of_range);
}

TEST(FusedThrowing, ARowThatIsPaddingIsNotAsked) {
  call c{4};
  c.options.query_positions = posenc::positions::from(-1);
  c.options.valid_queries = posenc::row_range{1, 4};
  c.run(posenc::logit_scale::llama4(), posenc::fused::serial_executor{});
  EXPECT_TRUE((c.out.row(0).array() == 0).all());
  EXPECT_FALSE(c.untouched());
}

TEST(FusedThrowing, WhatThrowsInsideTheLoopReachesTheCaller) {
  under_every_executor([](const auto& executor) {
    for (const index_t queries : {1, 4, 64}) {
      call c{queries};
      c.options.query_positions = posenc::positions::from(bad_position + 1 - queries);
      EXPECT_THROW(c.run(throwing_rotation{}, executor), std::domain_error);
      EXPECT_THROW(c.run(throwing_bias{}, executor), std::domain_error);
      EXPECT_THROW(c.run(throwing_rows{}, executor), std::domain_error);
      // The same memory serves the next call.
      c.run(posenc::no_encoding{}, executor);
      EXPECT_TRUE(c.out == posenc::fused::attention(c.q, c.k, c.v, posenc::no_encoding{}, c.options));
    }
  });
}

}  // namespace throwing_test
