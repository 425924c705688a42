// SPDX-License-Identifier: MIT
/// \file
/// xPos against golden/xpos.json; positions where its growth alone would leave the range of floats.
#include <posenc/encodings/xpos.hpp>

#include <numeric>

#include <posenc/attention/reference.hpp>
#include <posenc/encoding.hpp>

#include "rope_golden.hpp"

namespace xpos_test {

using namespace posenc;
using golden::json;

static_assert(rotates<xpos<float>, float>);

TEST(xpos, equals_the_golden_rows) {
  for (const json& row : golden::cases("xpos.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& config = row.at("config");
    const xpos<double> encoding{{.rope = {.head_dim = config.at("head_dim").get<index_t>(),
                                          .base = config.value("base", 10'000.0),
                                          .pairing = pairing::interleaved},
                                 .gamma = config.value("gamma", 0.4),
                                 .scale_base = config.at("scale_base").get<double>()}};
    const json& expect = row.at("expect");
    if (expect.contains("dot")) {
      std::vector<double> q = golden::numbers(row.at("input").at("q"));
      std::vector<double> k = golden::numbers(row.at("input").at("k"));
      encoding.rotate_query(std::span<double>(q), config.at("q_position").get<position>());
      encoding.rotate_key(std::span<double>(k), config.at("k_position").get<position>());
      EXPECT_NEAR(std::inner_product(q.begin(), q.end(), k.begin(), 0.0), expect.at("dot").get<double>(),
                  1e-13);
      continue;
    }
    golden::expect_frequencies(encoding, expect.at("inv_freq"), config.at("base").get<double>());
    const position p = config.at("position").get<position>();
    for (index_t pair = 0; pair < encoding.lowered().pairs(); ++pair) {
      const double q = expect.at("q_scale")[static_cast<std::size_t>(pair)].get<double>();
      const double k = expect.at("k_scale")[static_cast<std::size_t>(pair)].get<double>();
      EXPECT_NEAR(encoding.growth(pair, p, rotation_side::query), q, golden::scale_bound * q)
          << "pair " << pair;
      EXPECT_NEAR(encoding.growth(pair, p, rotation_side::key), k, golden::scale_bound * k)
          << "pair " << pair;
    }
  }
}

TEST(xpos, scores_do_not_depend_on_the_origin) {
  const std::vector<double> q{0.5, -1.25, 2.0, 0.75, -0.375, 1.5, -2.25, 1.0};
  const std::vector<double> k{1.0, 0.5, -0.25, 2.0, -1.5, 0.125, 0.75, -0.5};
  const auto score = [&](position origin, position i, position j) {
    const xpos<double> encoding{{.rope = {.head_dim = 8, .pairing = pairing::interleaved}, .origin = origin}};
    std::vector<double> a = q, b = k;
    encoding.rotate_query(std::span<double>(a), i);
    encoding.rotate_key(std::span<double>(b), j);
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const double golden_score = 3.5662559531809985;  // "xpos dot q@20 k@7"
  for (const position origin : {-100, 0, 7, 1000}) EXPECT_NEAR(score(origin, 20, 7), golden_score, 1e-12);
  // ζ_0^(131072/512) is 5e-140: beyond float32, and a common origin brings it back.
  EXPECT_NEAR(score(131'072, 131'092, 131'079), golden_score, 1e-12);
}

TEST(xpos, works_in_float_far_out_with_an_origin_near_the_tokens) {
  const position far = 1'000'000;
  const xpos<float> encoding{{.rope = {.head_dim = 8, .pairing = pairing::interleaved}, .origin = far}};
  const row_major_matrix<float> q = row_major_matrix<float>::Random(5, 8),
                                k = row_major_matrix<float>::Random(5, 8),
                                v = row_major_matrix<float>::Random(5, 8);
  attention_options options{.mask = causal};
  const xpos<float> near_zero{{.rope = {.head_dim = 8, .pairing = pairing::interleaved}}};
  const auto expected = reference::attention(q, k, v, near_zero, options);
  options.query_positions = options.key_positions = positions::from(far);
  EXPECT_TRUE(reference::attention(q, k, v, encoding, options).isApprox(expected, 1e-5f));
}

TEST(xpos, refuses_what_means_nothing) {
  const rope_options options{.head_dim = 8, .pairing = pairing::interleaved};
  EXPECT_THROW((xpos<float>{{.rope = options, .gamma = 0}}), std::invalid_argument);
  EXPECT_THROW((xpos<float>{{.rope = options, .scale_base = 0}}), std::invalid_argument);
  EXPECT_THROW((xpos<float>{{.rope = options, .scale_base = std::nan("")}}), std::invalid_argument);
}

}  // namespace xpos_test
