// SPDX-License-Identifier: MIT
/// \file
/// The cases of tests/golden/backward.json: inputs, encodings and options, and how results are compared.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/posenc.hpp>

#include "golden.hpp"

namespace backward_cases {
using posenc::index_t, posenc::position;

/// Multiples of 1/64, as tools/make_backward_golden.py makes them.
template <class S>
posenc::row_major_matrix<S> numbers(index_t rows, index_t columns, std::uint32_t seed) {
  posenc::row_major_matrix<S> result(rows, columns);
  for (index_t n = 0; n < result.size(); ++n) {
    const std::uint32_t bits = static_cast<std::uint32_t>(n) * 2654435761u + seed * 40503u + 12345u;
    result.data()[n] = static_cast<S>((static_cast<float>((bits >> 16) % 193u) - 96.0f) / 64.0f);
  }
  return result;
}

template <class S>
struct tensors {
  posenc::row_major_matrix<S> q, k, v, d_out;
};
template <class S>
tensors<S> inputs(index_t queries, index_t keys, index_t heads, index_t kv_heads, index_t head_dim,
                  index_t value_dim, std::uint32_t seed = 1) {
  return {numbers<S>(queries, heads * head_dim, seed), numbers<S>(keys, kv_heads * head_dim, seed + 1),
          numbers<S>(keys, kv_heads * value_dim, seed + 2), numbers<S>(queries, heads * value_dim, seed + 3)};
}
template <class S>
tensors<S> inputs(const nlohmann::json& shape) {
  const auto number = [&](const char* name) { return shape.at(name).get<index_t>(); };
  return inputs<S>(number("queries"), number("keys"), number("heads"), number("kv_heads"), number("head_dim"),
                   number("value_dim"));
}

/// Calls with(encoding, options) for a case of the file; encodings are of double.
template <class With>
void with_case(const nlohmann::json& one, const With& with) {
  const nlohmann::json& shape = one.at("shape");
  const std::string name = one.at("encoding");
  const auto number = [&](const char* key) { return shape.at(key).get<index_t>(); };
  const index_t heads = number("heads"), d = number("head_dim"), e = number("value_dim");
  const bool causal = shape.at("mask") == "causal";
  posenc::attention_options options{.heads = heads, .kv_heads = number("kv_heads")};
  options.mask = causal ? posenc::causal : posenc::bidirectional;
  options.softcap = shape.value("softcap", 0.0);
  std::vector<double> sinks;
  if (shape.contains("sinks"))
    for (index_t h = 0; h < heads; ++h) sinks.push_back(0.25 * static_cast<double>(h) - 0.5);
  options.sinks = sinks;
  if (shape.contains("documents"))
    options.visible = posenc::documents(shape.at("documents").get<std::vector<index_t>>());

  using posenc::pairing;
  const posenc::relative_clip clip{
      .direction = posenc::relative_direction::key_minus_query, .left = 2, .right = 1};
  std::vector<double> slopes;
  for (index_t h = 0; h < heads; ++h) slopes.push_back(std::exp2(-static_cast<double>(h + 1)));
  const auto alibi = posenc::alibi<double>::from_slopes(slopes);
  const posenc::rope_options halves{.head_dim = d, .pairing = pairing::half_split},
      neighbours{.head_dim = d, .pairing = pairing::interleaved};
  if (name == "none") return with(posenc::no_encoding{}, options);
  if (name == "rope") return with(posenc::rope<double>{halves}, options);
  if (name == "rope_interleaved") {
    posenc::frequency_ladder<long double> ladder{posenc::plain_frequencies<long double>(d, 10'000.0),
                                                 0.1 * std::log(4.0) + 1};
    return with(posenc::rope<double>::from_frequencies(neighbours, ladder), options);
  }
  if (name == "xpos") return with(posenc::xpos<double>{{.rope = neighbours}}, options);
  if (name == "alibi") return with(alibi, options);
  if (name == "rope_alibi") return with(posenc::combine(posenc::rope<double>{halves}, alibi), options);
  if (name == "temperature") return with(posenc::logit_scale::ministral(0.25, 2), options);
  if (name == "clipped")
    return with(posenc::relative_bias<double>{clip, posenc::bias_table<double>::heads_by_rows(
                                                        numbers<double>(heads, 4, 5))},
                options);
  if (name == "t5")
    return with(
        posenc::t5_bias<double>{{.buckets = 6, .max_distance = 8, .bidirectional = !causal},
                                posenc::bias_table<double>::heads_by_rows(numbers<double>(heads, 6, 5))},
        options);
  if (name == "shaw")
    return with(posenc::shaw_with_values<double>{clip, numbers<double>(4, d, 5), numbers<double>(4, e, 6)},
                options);
  FAIL() << "no encoding " << name;
}

/// ‖found − wanted‖ ≤ bound·‖wanted‖.
template <class Matrix>
void expect_near(const nlohmann::json& wanted, const Matrix& found, double bound, const std::string& what) {
  ASSERT_EQ(static_cast<std::size_t>(found.size()), wanted.size()) << what;
  double apart = 0, size = 0;
  std::size_t n = 0;
  for (index_t r = 0; r < found.rows(); ++r)
    for (index_t c = 0; c < found.cols(); ++c) {
      const double w = wanted[n++].get<double>(), f = static_cast<double>(found(r, c));
      apart += (f - w) * (f - w), size += w * w;
    }
  EXPECT_LE(std::sqrt(apart), bound * std::sqrt(size)) << what;
}

/// Every gradient of a case. The terms of head_scales cancel: in float sums they may be off by `cancelling` bounds.
template <class Gradients>
void expect_gradients(const nlohmann::json& wanted, const Gradients& found, double bound,
                      double cancelling = 1) {
  expect_near(wanted.at("q"), found.q, bound, "q");
  expect_near(wanted.at("k"), found.k, bound, "k");
  expect_near(wanted.at("v"), found.v, bound, "v");
  std::size_t parameters = 0;
  for (const auto& [name, values] : wanted.items()) {
    if (name == "q" || name == "k" || name == "v") continue;
    if (name == "sinks" || name == "head_scales") {
      const auto& list = name == "sinks" ? found.sinks : found.head_scales;
      expect_near(values,
                  Eigen::Map<const Eigen::Matrix<typename std::decay_t<decltype(list)>::value_type, -1, 1>>(
                      list.data(), static_cast<Eigen::Index>(list.size())),
                  name == "head_scales" ? cancelling * bound : bound, name);
      continue;
    }
    expect_near(values, found.encoding[name], bound, name);
    ++parameters;
  }
  EXPECT_EQ(found.encoding.blocks(), parameters);
}

/// A user's own: a bias of both positions with one learned strength per head.
template <class T>
struct own_bias {
  std::vector<double> strength{0.5, -1, 2, 0.25};
  T bias(int head, position query, position key) const {
    return static_cast<T>(strength[static_cast<std::size_t>(head)] * wave(query, key));
  }
  posenc::parameter_list<double> parameters() const {
    return posenc::parameter_list<double>().add("strength",
                                                Eigen::Map<const Eigen::VectorXd>(strength.data(), 4));
  }
  own_bias with_parameters(const posenc::parameter_list<double>& p) const {
    return {{p.values().begin(), p.values().end()}};
  }
  template <class S>
  void bias_adjoint(int head, position query, position key, const S& d, std::span<S> gradient) const {
    gradient[static_cast<std::size_t>(head)] += S(d * static_cast<S>(wave(query, key)));
  }
  static double wave(position query, position key) {
    return std::sin(0.7 * static_cast<double>(query)) * std::cos(1.3 * static_cast<double>(key));
  }
};
/// A user's rotation that says nothing about itself: a shear, which is no rotation at all, of any width.
struct own_shear {
  template <class S>
  void rotate(std::span<S> head, position p) const {
    const S by = static_cast<S>(0.1 * static_cast<double>(p % 5));
    for (std::size_t c = 1; c < head.size(); ++c) head[c] += S(by * head[c - 1]);
  }
};

}  // namespace backward_cases
