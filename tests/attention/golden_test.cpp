// SPDX-License-Identifier: MIT
/// \file
/// Reference attention under each kind of encoding against golden outputs of 60-digit arithmetic.
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/posenc.hpp>

#include "golden.hpp"

namespace golden_test {

using posenc::index_t;
using posenc::position;
using posenc::relative_direction;

template <class S>
using matrix = posenc::row_major_matrix<S>;

/// The rows of `tokens` in the order given: row n of the result is row order[n].
template <class S>
matrix<S> reordered(const matrix<S>& tokens, const std::vector<index_t>& order) {
  matrix<S> result(tokens.rows(), tokens.cols());
  for (std::size_t n = 0; n < order.size(); ++n) result.row(static_cast<index_t>(n)) = tokens.row(order[n]);
  return result;
}

template <class S>
struct inputs {
  explicit inputs(const nlohmann::json& entry)
      : q(golden::matrix<S>(entry["input"]["q"])),
        k(golden::matrix<S>(entry["input"]["k"])),
        v(golden::matrix<S>(entry["input"]["v"])),
        expected(golden::matrix<S>(entry["expect"]["output"])) {
    options.mask = entry["config"]["causal"].get<bool>() ? posenc::causal : posenc::bidirectional;
  }
  matrix<S> q, k, v, expected;
  posenc::attention_options options;
};

/// Inputs and golden outputs are of order 1: absolute bounds of a few units in the last place.
template <class S>
constexpr double bound = std::is_same_v<S, float> ? 5e-7 : 2e-15;

template <class S>
class attention_golden : public testing::Test {
 protected:
  template <class E>
  static void check(const inputs<S>& in, const E& encoding) {
    const matrix<S> out = posenc::reference::attention(in.q, in.k, in.v, encoding, in.options);
    ASSERT_EQ(out.rows(), in.expected.rows());
    ASSERT_EQ(out.cols(), in.expected.cols());
    for (index_t r = 0; r < out.rows(); ++r)
      for (index_t c = 0; c < out.cols(); ++c)
        EXPECT_NEAR(static_cast<double>(out(r, c)), static_cast<double>(in.expected(r, c)), bound<S>)
            << "row " << r << ", channel " << c;
  }

  static nlohmann::json entry(const std::string& name) { return golden::find("attention.json", name); }
};

using scalars = testing::Types<float, double, long double>;
TYPED_TEST_SUITE(attention_golden, scalars);

TYPED_TEST(attention_golden, without_positions_tokens_are_a_set) {
  const auto entry = this->entry("no position, bidirectional");
  inputs<TypeParam> in(entry);
  this->check(in, posenc::no_encoding{});
  const auto order = entry["config"]["permutation"].template get<std::vector<index_t>>();
  in.q = reordered(in.q, order), in.k = reordered(in.k, order), in.v = reordered(in.v, order);
  in.expected = reordered(in.expected, order);
  this->check(in, posenc::no_encoding{});
}

TYPED_TEST(attention_golden, without_positions_but_causal_the_prefix_is_a_set) {
  const auto entry = this->entry("no position, causal");
  inputs<TypeParam> in(entry);
  this->check(in, posenc::no_encoding{});
  const auto order = entry["config"]["prefix_permutation"].template get<std::vector<index_t>>();
  in.q = reordered(in.q, order), in.k = reordered(in.k, order), in.v = reordered(in.v, order);
  const matrix<TypeParam> out =
      posenc::reference::attention(in.q, in.k, in.v, posenc::no_encoding{}, in.options);
  const index_t last = out.rows() - 1;
  for (index_t c = 0; c < out.cols(); ++c)
    EXPECT_NEAR(static_cast<double>(out(last, c)), static_cast<double>(in.expected(last, c)),
                bound<TypeParam>);
  EXPECT_GT((out - in.expected).topRows(last).norm(), TypeParam(0.1)) << "earlier rows do change";
}

TYPED_TEST(attention_golden, rope) {
  const auto entry = this->entry("rope half");
  const inputs<TypeParam> in(entry);
  this->check(in, posenc::rope<TypeParam>{{.head_dim = in.q.cols(),
                                           .base = entry["config"]["rope_theta"].template get<double>(),
                                           .pairing = posenc::pairing::half_split}});
}

// The file's head is the first of two, with slope 2^-4: a shard of one head.
TYPED_TEST(attention_golden, alibi) {
  const auto entry = this->entry("alibi head 0 of 2");
  inputs<TypeParam> in(entry);
  const auto heads = entry["config"]["num_heads"].template get<index_t>();
  const posenc::alibi<TypeParam> encoding{{.heads = 1, .total_heads = heads}};
  EXPECT_EQ(encoding.slopes()[0], entry["expect"]["slope"].template get<double>());
  this->check(in, encoding);
}

TYPED_TEST(attention_golden, clipped_relative_bias) {
  const auto entry = this->entry("clipped relative bias");
  const inputs<TypeParam> in(entry);
  std::vector<TypeParam> table;
  for (const auto& value : entry["config"]["table"])
    table.push_back(static_cast<TypeParam>(value.template get<double>()));
  const auto reach = entry["config"]["max_distance"].template get<position>();
  const auto shared = posenc::bias_table<TypeParam>::shared(table);
  this->check(in,
              posenc::relative_bias<TypeParam>(
                  {.direction = relative_direction::query_minus_key, .left = reach, .right = reach}, shared));
}

TYPED_TEST(attention_golden, shaw) {
  const auto entry = this->entry("shaw key side");
  const inputs<TypeParam> in(entry);
  const auto reach = entry["config"]["max_distance"].template get<position>();
  const posenc::relative_clip clip{
      .direction = relative_direction::key_minus_query, .left = reach, .right = reach};
  const auto rows = golden::matrix<TypeParam>(entry["config"]["aK"]);
  this->check(in, posenc::shaw<TypeParam>(clip, rows));
  const matrix<TypeParam> zero = matrix<TypeParam>::Zero(rows.rows(), in.v.cols());
  this->check(in, posenc::shaw_with_values<TypeParam>(clip, rows, zero));
}

}  // namespace golden_test
