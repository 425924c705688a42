// SPDX-License-Identifier: MIT
/// \file
/// ALiBi against the published slopes, and what users of it have run into.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/attention/reference.hpp>
#include <posenc/encodings/alibi.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace alibi_test {

constexpr double relative_bound = 4 * 0x1p-53;

TEST(alibi, golden_slopes_and_rows) {
  int checked = 0;
  for (const auto& entry : golden::cases("alibi.json")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const posenc::alibi<double> encoding{{.heads = entry["config"]["num_heads"].get<posenc::index_t>(),
                                          .bias_max = entry["config"]["alibi_bias_max"].get<double>()}};
    const auto slopes = entry["expect"]["slopes"].get<std::vector<double>>();
    ASSERT_EQ(encoding.slopes().size(), slopes.size());
    for (std::size_t h = 0; h < slopes.size(); ++h)
      EXPECT_NEAR(encoding.slopes()[h], slopes[h], relative_bound * slopes[h]) << "head " << h;
    if (entry["expect"].contains("bias_row")) {
      const auto& row = entry["expect"]["bias_row"];
      const auto query = row["query"].get<posenc::position>();
      const auto keys = row["keys"].get<std::vector<posenc::position>>();
      for (std::size_t n = 0; n < keys.size(); ++n) {
        const double expected = row["head0"][n].get<double>();
        EXPECT_NEAR(encoding.bias(0, keys[n] - query), expected, relative_bound * std::abs(expected));
      }
    }
    ++checked;
  }
  EXPECT_EQ(checked, 7);
}

TEST(alibi, falcon_golden_effective_slope) {
  const auto entry = golden::find("disagreements.json", "ALiBi in Falcon-RW vs BLOOM");
  const posenc::alibi_options options{.heads = entry["config"]["num_heads"].get<posenc::index_t>()};
  const auto falcon =
      posenc::alibi<double>::falcon(options, entry["config"]["head_dim"].get<posenc::index_t>());
  EXPECT_EQ(falcon.slopes()[0], entry["expect"]["falcon"]["effective_slope_head0"].get<double>());
  EXPECT_EQ(posenc::alibi<double>(options).slopes()[0],
            entry["expect"]["bloom_mpt_paper_ggml"]["effective_slope_head0"].get<double>());
}

// 2^-0.5 = 0.70710678… lies between the bfloat16 neighbours 0.70703125 (0x3f35) and 0.7109375.
TEST(alibi, falcon_rounds_slopes_to_bfloat16_before_the_scale) {
  const auto falcon = posenc::alibi<double>::falcon({.heads = 16}, 64);
  EXPECT_EQ(falcon.slopes()[0], 0.70703125 / 8);
  EXPECT_EQ(falcon.slopes()[1], 0.5 / 8);
}

TEST(alibi, one_head_starts_at_two_to_the_minus_eight_not_at_one_half) {
  EXPECT_EQ(posenc::alibi<float>{{.heads = 1}}.slopes()[0], 0x1p-8);
}

// 6 heads: 4 of the series 2^-2, 2^-4, 2^-6, 2^-8, then 2^-1 and 2^-3 of the series for 8.
TEST(alibi, head_counts_that_are_no_power_of_two_interleave_the_next_series) {
  const std::vector<double> expected{0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8, 0x1p-1, 0x1p-3};
  EXPECT_EQ(posenc::alibi_slopes(6), expected);
}

TEST(alibi, distant_keys_are_lowered_never_raised) {
  const posenc::alibi<double> encoding{{.heads = 8}};
  EXPECT_EQ(encoding.bias(0, 0), 0);
  EXPECT_EQ(encoding.bias(0, -3), -1.5);
  EXPECT_EQ(encoding.bias(0, -4), -2);
  EXPECT_EQ(encoding.bias(7, -256), -1);
}

TEST(alibi, forms_differ_ahead_of_the_query_only) {
  const posenc::alibi<double> symmetric{{.heads = 8}};
  const posenc::alibi<double> causal{{.heads = 8, .form = posenc::alibi_form::causal}};
  EXPECT_EQ(symmetric.bias(1, 6), -1.5);
  EXPECT_EQ(causal.bias(1, 6), 1.5);
  EXPECT_EQ(symmetric.bias(1, -6), causal.bias(1, -6));
}

TEST(alibi, shards_of_a_model_see_their_own_heads) {
  const posenc::alibi<double> whole{{.heads = 12}};
  for (posenc::index_t first = 0; first < 12; first += 4) {
    const posenc::alibi<double> shard{{.heads = 4, .head_offset = first, .total_heads = 12}};
    ASSERT_EQ(shard.heads(), 4);
    for (int h = 0; h < 4; ++h)
      EXPECT_EQ(shard.bias(h, -7), whole.bias(static_cast<int>(first) + h, -7)) << first << " + " << h;
  }
}

// The form slope·j loses its fraction near 2^24 in float32 and changes the log-sum-exp; a distance does
// neither.
TEST(alibi, output_at_huge_positions_equals_output_at_zero) {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(5, 8);
  const posenc::alibi<float> encoding{{.heads = 2}};
  posenc::attention_options options{.heads = 2, .mask = posenc::causal};
  const auto at_zero = posenc::reference::attention_with_log_sum_exp(x, x, x, encoding, options);
  for (const posenc::position start :
       {posenc::position{16'777'217}, posenc::position{1} << 60, posenc::position{-1} << 60}) {
    options.query_positions = options.key_positions = posenc::positions::from(start);
    const auto far_away = posenc::reference::attention_with_log_sum_exp(x, x, x, encoding, options);
    EXPECT_EQ(far_away.output, at_zero.output) << start;
    EXPECT_EQ(far_away.log_sum_exp, at_zero.log_sum_exp) << start;
  }
}

TEST(alibi, own_slopes_are_used_as_they_are) {
  const std::vector<double> slopes{0.3, 0.0};
  const auto encoding = posenc::alibi<double>::from_slopes(slopes);
  EXPECT_EQ(encoding.bias(0, -10), 0.3 * -10);
  EXPECT_EQ(encoding.bias(1, -10), 0);
}

TEST(alibi, bad_descriptions_are_refused) {
  using posenc::alibi;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_REFUSAL(alibi<float>{{.heads = 0}}, std::invalid_argument, "0");
  EXPECT_REFUSAL((alibi<float>{{.heads = 8, .bias_max = 0}}), std::invalid_argument, "bias_max 0");
  EXPECT_REFUSAL((alibi<float>{{.heads = 8, .bias_max = nan}}), std::invalid_argument, "bias_max");
  EXPECT_REFUSAL((alibi<float>{{.heads = 8, .bias_max = infinity}}), std::invalid_argument, "bias_max");
  EXPECT_REFUSAL((alibi<float>{{.heads = 8, .head_offset = 28, .total_heads = 32}}), std::invalid_argument,
                 "28 to 28 + 8 of 32");
  EXPECT_REFUSAL((alibi<float>{{.heads = 8, .head_offset = -1}}), std::invalid_argument, "-1");
  EXPECT_REFUSAL((alibi<float>::falcon({.heads = 8}, 0)), std::invalid_argument, "head_dim 0");
  const std::vector<double> none, with_nan{0.5, nan}, with_infinity{infinity}, negative{0.5, 0.25, -0.125};
  EXPECT_REFUSAL(alibi<float>::from_slopes(none), std::invalid_argument, "no slopes");
  EXPECT_REFUSAL(alibi<float>::from_slopes(with_nan), std::invalid_argument, "of head 1");
  EXPECT_REFUSAL(alibi<float>::from_slopes(with_infinity), std::invalid_argument, "of head 0");
  EXPECT_REFUSAL(alibi<float>::from_slopes(negative), std::invalid_argument, "-0.125 of head 2");
}

TEST(alibi, more_heads_than_slopes_is_refused_not_read_out_of_bounds) {
  const posenc::alibi<float> encoding{{.heads = 4}};
  EXPECT_REFUSAL(encoding.bias(4, -1), std::invalid_argument, "head 4 asked for, made for 4 heads");
  EXPECT_REFUSAL(encoding.bias(-1, -1), std::invalid_argument, "head -1 asked for, made for 4 heads");
  const Eigen::MatrixXf x = Eigen::MatrixXf::Zero(2, 8);
  EXPECT_THROW(static_cast<void>(posenc::reference::attention(x, x, x, encoding, {.heads = 8})),
               std::invalid_argument);
}

}  // namespace alibi_test
