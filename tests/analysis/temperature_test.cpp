// SPDX-License-Identifier: MIT
/// \file
/// Entropy of attention beside closed forms.
#include <posenc/analysis/temperature.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/logit_scale.hpp>
#include <posenc/encodings/rope.hpp>

namespace temperature_test {

using namespace posenc;

TEST(temperature, entropy_by_hand) {
  EXPECT_NEAR(softmax_entropy(std::vector<double>(100, 3.0)), std::log(100.0), 1e-13);
  EXPECT_EQ(softmax_entropy(std::vector<double>{7.0}), 0);
  EXPECT_EQ(softmax_entropy({}), 0);
  // Weights 3/4 and 1/4, scores far from zero.
  EXPECT_NEAR(softmax_entropy(std::vector<double>{1000 + std::log(3.0), 1000}),
              -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12);
}

TEST(temperature, of_random_content_is_that_of_normal_scores) {
  // ln n − spread²/2 for normal scores.
  const rope<double> turning{{.head_dim = 64, .pairing = pairing::half_split}};
  const std::vector<position> lengths{4096, 65'536};
  const auto entropies = attention_entropy(rotation_codes(turning, 1), lengths, {.spread = 1, .affinity = 0});
  for (std::size_t l = 0; l < lengths.size(); ++l)
    EXPECT_NEAR(entropies[l].entropy, std::log(static_cast<double>(lengths[l])) - 0.5, 0.06) << lengths[l];
  EXPECT_NEAR(entropies[0].keys(), std::exp(entropies[0].entropy), 1e-9);
}

TEST(temperature, attention_factor_multiplies_the_spread) {
  // m = 0.1·ln 16 + 1 = 1.277: scores spread m² = 1.631 times as far.
  const rope_options options{.head_dim = 64, .pairing = pairing::half_split};
  const yarn with{.factor = 16, .original_context = 4096};
  yarn without = with;
  without.attention_factor = 1;
  const std::vector<position> length{65'536};
  const content_model content{.spread = 1, .affinity = 0};
  const double hot =
      attention_entropy(rotation_codes(rope<double>{options, without}, 1), length, content)[0].entropy;
  const double cold =
      attention_entropy(rotation_codes(rope<double>{options, with}, 1), length, content)[0].entropy;
  const double m4 = std::pow(0.1 * std::log(16.0) + 1, 4);
  EXPECT_NEAR(hot - cold, (m4 - 1) / 2, 0.1);
  EXPECT_GT(hot, cold);
}

TEST(temperature, by_doors_and_by_phases_agree) {
  // Independent random keys, so that they agree as two samples do.
  const rope<double> turning{{.head_dim = 64, .rotary_dim = 48, .pairing = pairing::half_split},
                             yarn{.factor = 8, .original_context = 512}};
  const std::vector<position> lengths{2048, 8192};
  const content_model content{.spread = 1, .affinity = 0.2};
  const auto fast = attention_entropy(rotation_codes(turning, 1), lengths, content);
  const auto door = attention_entropy(turning, 64, lengths, content);
  for (std::size_t l = 0; l < lengths.size(); ++l)
    EXPECT_NEAR(fast[l].entropy, door[l].entropy, 0.12) << lengths[l];
}

TEST(temperature, through_bias_and_scale) {
  // A slope of 1 on hardly any content: weights e^−Δ, whose entropy is ln(e/(e−1)) + 1/(e−1).
  const double slope[] = {1.0};
  const std::vector<position> length{2000};
  const content_model flat{.spread = 1e-9, .affinity = 0};
  const double e = std::exp(1.0);
  EXPECT_NEAR(attention_entropy(alibi<double>::from_slopes(slope), 8, length, flat)[0].entropy,
              std::log(e / (e - 1)) + 1 / (e - 1), 1e-6);
  // A scale τ multiplies the spread: ln n − τ²/2.
  const auto growing = logit_scale::ministral(1, 1000);  // τ = 1 + ln(1 + ⌊1999/1000⌋) = 1.693
  const double tau = 1 + std::log(2.0);
  EXPECT_NEAR(attention_entropy(growing, 64, length, {.spread = 1, .affinity = 0})[0].entropy,
              std::log(2000.0) - tau * tau / 2, 0.15);
}

TEST(temperature, wrong_questions_are_refused) {
  const rotation_codes codes(rope<double>{{.head_dim = 8, .pairing = pairing::half_split}}, 1);
  const std::vector<position> none, zero{0}, one{1};
  EXPECT_THROW((void)attention_entropy(codes, none), std::invalid_argument);
  EXPECT_THROW((void)attention_entropy(codes, zero), std::invalid_argument);
  EXPECT_THROW((void)attention_entropy(codes, one, {.spread = 0}), std::invalid_argument);
  EXPECT_THROW((void)attention_entropy(codes, one, {.affinity = 1.5}), std::invalid_argument);
}

}  // namespace temperature_test
