// SPDX-License-Identifier: MIT
/// \file
/// The four sinusoidal conventions that ship, and the linear map that shifts them.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>

#include <posenc/encodings/position_ids.hpp>
#include <posenc/encodings/sinusoidal.hpp>

#include "golden.hpp"
#include "refusals.hpp"

namespace sinusoidal_test {

using posenc::index_t;
using posenc::position;
using posenc::sinusoid;

constexpr sinusoid all_conventions[] = {sinusoid::paper, sinusoid::marian, sinusoid::tensor2tensor,
                                        sinusoid::whisper};

template <class T>
std::vector<T> encoded(const posenc::sinusoidal<T>& encoding, position p) {
  std::vector<T> token(static_cast<std::size_t>(encoding.width()));
  encoding.embed(std::span<T>(token), p);
  return token;
}

void expect_row(const std::vector<double>& row, const std::vector<double>& expected) {
  ASSERT_EQ(row.size(), expected.size());
  for (std::size_t c = 0; c < row.size(); ++c) EXPECT_NEAR(row[c], expected[c], 1e-15) << "channel " << c;
}

sinusoid convention_of(const std::string& layout) {
  if (layout.rfind("interleaved", 0) == 0) return sinusoid::paper;
  return layout.find("-2i/d") != std::string::npos ? sinusoid::marian : sinusoid::tensor2tensor;
}

TEST(sinusoidal, golden_rows) {
  int checked = 0;
  for (const auto& entry : golden::cases("sinusoidal.json")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto& config = entry["config"];
    const posenc::sinusoidal<double> encoding{
        {.width = config["d_model"].get<index_t>(),
         .base = config["base"].get<double>(),
         .convention = convention_of(config["layout"].get<std::string>())}};
    const auto expected = entry["expect"]["values"].get<std::vector<double>>();
    std::vector<double> row;
    double farthest = 0;  // the largest angle of the row bounds the error: 4·2^-53·(1 + angle)
    if (config.contains("shift")) {
      const auto from = config["from"].get<position>(), shift = config["shift"].get<position>();
      const auto before = encoded(encoding, from);
      const Eigen::VectorXd after =
          encoding.shift_matrix(shift) *
          Eigen::Map<const Eigen::VectorXd>(before.data(), static_cast<Eigen::Index>(before.size()));
      row.assign(after.begin(), after.end());
      farthest = static_cast<double>(from + shift);
    } else {
      const auto at = config["position"].get<position>();
      row = encoded(encoding, at);
      farthest = static_cast<double>(at);
    }
    ASSERT_EQ(row.size(), expected.size());
    for (std::size_t c = 0; c < row.size(); ++c)
      EXPECT_NEAR(row[c], expected[c], 4 * 0x1p-53 * (1 + farthest)) << "channel " << c;
    ++checked;
  }
  EXPECT_EQ(checked, 20);
}

TEST(sinusoidal, golden_rows_hold_far_tighter_because_angles_are_exact) {
  for (const auto& entry : golden::cases("sinusoidal.json")) {
    const auto& config = entry["config"];
    if (!config.contains("position")) continue;
    const posenc::sinusoidal<double> encoding{
        {.width = config["d_model"].get<index_t>(),
         .base = config["base"].get<double>(),
         .convention = convention_of(config["layout"].get<std::string>())}};
    const auto row = encoded(encoding, config["position"].get<position>());
    for (std::size_t c = 0; c < row.size(); ++c)
      EXPECT_NEAR(row[c], entry["expect"]["values"][c].get<double>(), 4 * 0x1p-53)
          << entry.at("name") << ", channel " << c;
  }
}

// d = 8: the second timescale is 10000^(-2/8) = 0.1 or 10000^(-1/3).
TEST(sinusoidal, second_frequency_tells_the_conventions_apart) {
  for (const sinusoid convention : all_conventions) {
    const posenc::sinusoidal<double> encoding{{.width = 8, .convention = convention}};
    const bool by_width = convention == sinusoid::paper || convention == sinusoid::marian;
    EXPECT_DOUBLE_EQ(encoding.inv_freq()[1], by_width ? 0.1 : 0.046415888336127788924)
        << posenc::name_of(convention);
    EXPECT_EQ(encoding.inv_freq()[0], 1);
  }
}

TEST(sinusoidal, fairseq_is_tensor2tensor) {
  EXPECT_EQ(sinusoid::fairseq, sinusoid::tensor2tensor);
  const posenc::sinusoidal<double> whisper{{.width = 6, .convention = sinusoid::whisper}};
  const posenc::sinusoidal<double> t2t{{.width = 6, .convention = sinusoid::tensor2tensor}};
  EXPECT_EQ(encoded(whisper, 77), encoded(t2t, 77));
}

// d = 5, position 2: w = 1, 10000^(-2/5), 10000^(-4/5).
TEST(sinusoidal, odd_widths_end_on_a_sine_or_on_zero) {
  const double w1 = std::pow(10000.0, -0.4), w2 = std::pow(10000.0, -0.8);
  expect_row(encoded(posenc::sinusoidal<double>{{.width = 5, .convention = sinusoid::paper}}, 2),
             {std::sin(2.0), std::cos(2.0), std::sin(2 * w1), std::cos(2 * w1), std::sin(2 * w2)});
  expect_row(encoded(posenc::sinusoidal<double>{{.width = 5, .convention = sinusoid::marian}}, 2),
             {std::sin(2.0), std::sin(2 * w1), std::sin(2 * w2), std::cos(2.0), std::cos(2 * w1)});
  // h = 2: w = 1 and 1/10000
  expect_row(encoded(posenc::sinusoidal<double>{{.width = 5, .convention = sinusoid::tensor2tensor}}, 2),
             {std::sin(2.0), std::sin(2e-4), std::cos(2.0), std::cos(2e-4), 0});
}

TEST(sinusoidal, widths_one_and_two_are_defined_or_refused) {
  const auto make = [](index_t width, sinusoid convention) {
    return posenc::sinusoidal<double>{{.width = width, .convention = convention}};
  };
  expect_row(encoded(make(1, sinusoid::paper), 3), {std::sin(3.0)});
  expect_row(encoded(make(1, sinusoid::marian), 3), {std::sin(3.0)});
  expect_row(encoded(make(2, sinusoid::paper), 3), {std::sin(3.0), std::cos(3.0)});
  for (const sinusoid convention : {sinusoid::tensor2tensor, sinusoid::whisper})
    EXPECT_REFUSAL(make(2, convention), std::invalid_argument, "not 2");
  EXPECT_REFUSAL(make(3, sinusoid::tensor2tensor), std::invalid_argument, "not 3");
  EXPECT_REFUSAL(make(5, sinusoid::whisper), std::invalid_argument, "even width, not 5");
  for (const sinusoid convention : all_conventions) {
    EXPECT_REFUSAL(make(0, convention), std::invalid_argument, "width 0");
    EXPECT_REFUSAL(make(-8, convention), std::invalid_argument, "width -8");
  }
}

TEST(sinusoidal, there_is_no_hidden_scale) {
  for (const sinusoid convention : all_conventions) {
    const posenc::sinusoidal<double> encoding{{.width = 512, .convention = convention}};
    double squares = 0;
    for (const double value : encoded(encoding, 1234)) squares += value * value;
    EXPECT_NEAR(squares, 256, 1e-12) << posenc::name_of(convention);
  }
}

// sin and cos of 2^24 + 1 radians by 60-digit arithmetic: a float32 position is no longer exact there.
TEST(sinusoidal, stays_exact_where_float_positions_are_not) {
  const posenc::sinusoidal<double> encoding{{.width = 2, .convention = sinusoid::paper}};
  EXPECT_NEAR(encoded(encoding, 16777217)[0], 0.10583256734754363973, 1e-11);
  EXPECT_NEAR(encoded(encoding, 16777217)[1], 0.99438396391365223977, 1e-11);
  EXPECT_NEAR(encoded(encoding, -16777217)[0], -0.10583256734754363973, 1e-11);
  EXPECT_NEAR(encoded(encoding, -16777217)[1], 0.99438396391365223977, 1e-11);
}

TEST(sinusoidal, shift_matrix_moves_every_position_alike) {
  for (const sinusoid convention : all_conventions)
    for (const index_t width : {index_t{4}, index_t{7}, index_t{8}, index_t{62}}) {
      const bool by_width = convention == sinusoid::paper || convention == sinusoid::marian;
      if (width % 2 == 1 && convention != sinusoid::tensor2tensor) continue;
      const posenc::sinusoidal<double> encoding{{.width = width, .base = 500.0, .convention = convention}};
      SCOPED_TRACE(std::string(posenc::name_of(convention)) + (by_width ? " by width " : " by half ") +
                   std::to_string(width));
      for (const position k : {position{0}, position{1}, position{-7}, position{100'003}}) {
        const auto shift = encoding.shift_matrix(k);
        for (const position i : {position{0}, position{1}, position{-12}, position{1'000'000}}) {
          const Eigen::VectorXd moved = shift * encoding.table(i, 1).row(0).transpose();
          EXPECT_LT((moved - encoding.table(i + k, 1).row(0).transpose()).cwiseAbs().maxCoeff(), 1e-13)
              << i << " + " << k;
        }
        EXPECT_LT((shift * encoding.shift_matrix(-k) - Eigen::MatrixXd::Identity(width, width)).norm(),
                  1e-13);
        EXPECT_LT((shift * shift.transpose() - Eigen::MatrixXd::Identity(width, width)).norm(), 1e-13);
      }
    }
}

TEST(sinusoidal, a_sine_without_a_cosine_cannot_be_shifted) {
  for (const sinusoid convention : {sinusoid::paper, sinusoid::marian}) {
    const posenc::sinusoidal<double> encoding{{.width = 7, .convention = convention}};
    EXPECT_REFUSAL(encoding.shift_matrix(1), std::invalid_argument, "odd width 7");
  }
}

TEST(sinusoidal, padding_of_m2m100_gets_zeros_and_tokens_start_after_it) {
  const posenc::sinusoidal<double> encoding{
      {.width = 6, .convention = sinusoid::fairseq, .padding_position = 1}};
  const auto ids = posenc::roberta_position_ids(std::vector<int>{1, 1, 0});
  EXPECT_EQ(ids, (std::vector<position>{2, 3, 1}));
  EXPECT_EQ(encoded(encoding, ids[2]), std::vector<double>(6, 0.0));
  EXPECT_NEAR(encoded(encoding, ids[0])[0], std::sin(2.0), 1e-15);
  EXPECT_EQ(encoding.table(0, 3).row(1).norm(), 0);
}

TEST(sinusoidal, adds_to_what_is_there_in_any_scalar) {
  const posenc::sinusoidal<float> encoding{{.width = 2, .convention = sinusoid::paper}};
  std::vector<float> token{1, 2};
  encoding.embed(std::span<float>(token), 0);
  EXPECT_EQ(token, (std::vector<float>{1, 3}));
  std::vector<Eigen::half> half{Eigen::half(1.0f), Eigen::half(2.0f)};
  encoding.embed(std::span<Eigen::half>(half), 0);
  EXPECT_EQ(static_cast<float>(half[1]), 3);
}

TEST(sinusoidal, bad_descriptions_are_refused) {
  const auto with_base = [](double base) {
    return posenc::sinusoidal<float>{{.width = 8, .base = base, .convention = sinusoid::paper}};
  };
  EXPECT_REFUSAL(with_base(0), std::invalid_argument, "base 0");
  EXPECT_REFUSAL(with_base(-10'000), std::invalid_argument, "base -10000");
  EXPECT_REFUSAL(with_base(std::numeric_limits<double>::quiet_NaN()), std::invalid_argument, "base");
  EXPECT_REFUSAL(with_base(std::numeric_limits<double>::infinity()), std::invalid_argument, "base");
  EXPECT_REFUSAL(with_base(1e-300), std::invalid_argument, "sinusoidal: a frequency of");
  EXPECT_REFUSAL(with_base(100).table(0, -1), std::invalid_argument, "-1 rows");
  std::vector<float> token(7);
  EXPECT_REFUSAL(with_base(100).embed(std::span<float>(token), 0), std::invalid_argument, "7 channels");
}

}  // namespace sinusoidal_test
