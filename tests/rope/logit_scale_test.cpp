// SPDX-License-Identifier: MIT
/// \file
/// Position-dependent logit scale and DeepSeek's softmax multiplier against golden/logit_scale.json.
#include <posenc/encodings/logit_scale.hpp>

#include <posenc/encoding.hpp>

#include "rope_golden.hpp"

namespace logit_scale_test {

using namespace posenc;
using golden::json;

static_assert(scales<logit_scale>);
static_assert(!rotates<logit_scale, float> && !biases<logit_scale>);

TEST(logit_scale, equals_the_golden_rows) {
  for (const json& row : golden::cases("logit_scale.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& config = row.at("config");
    const json& expect = row.at("expect");
    if (config.contains("floor_scale")) {
      const logit_scale encoding =
          logit_scale::llama4(config.at("attn_scale").get<double>(), config.at("floor_scale").get<double>());
      EXPECT_NEAR(encoding.scale(config.at("position").get<position>()), expect.at("q_scale").get<double>(),
                  golden::scale_bound * expect.at("q_scale").get<double>());
      continue;
    }
    const yarn scaling{.factor = config.at("factor").get<double>(),
                       .original_context = 4096,
                       .mscale = config.at("mscale").get<double>(),
                       .mscale_all_dim = config.at("mscale_all_dim").get<double>()};
    const rope<double> encoding{{.head_dim = 64, .pairing = pairing::interleaved}, scaling};
    EXPECT_NEAR(encoding.attention_factor(), expect.at("attention_factor").get<double>(),
                golden::scale_bound * encoding.attention_factor());
    const double multiplier = expect.at("logit_scale_multiplier").get<double>();
    EXPECT_NEAR(deepseek_softmax_multiplier(scaling), multiplier, golden::scale_bound * multiplier);
  }
}

/// Ministral counts from 0: the step comes one token later than in Llama-4.
TEST(logit_scale, ministral_steps_at_the_original_context) {
  const logit_scale encoding = logit_scale::ministral(0.1, 16'384);
  EXPECT_EQ(encoding.scale(16'383), 1);
  EXPECT_NEAR(encoding.scale(16'384), 1.0693147180559945, 5e-16);
  EXPECT_NEAR(encoding.scale(32'768), 1.109861228866811, 5e-16);
}

/// The softmax scale of DeepSeek-V2-Lite, golden/disagreements.json "MLA logit scale".
TEST(logit_scale, deepseek_softmax_scale) {
  const yarn scaling{.factor = 40, .original_context = 4096, .mscale = 0.707, .mscale_all_dim = 0.707};
  const json expect = golden::find("disagreements.json", "MLA logit scale").at("expect");
  const double plain = 1 / std::sqrt(192.0);
  EXPECT_NEAR(plain * deepseek_softmax_multiplier(scaling),
              expect.at("transformers_after_47435_vllm_llama.cpp_deepseek_original")
                  .at("softmax_scale")
                  .get<double>(),
              1e-16);
  EXPECT_NEAR(plain, expect.at("transformers_before_47435").at("softmax_scale").get<double>(), 1e-16);
}

TEST(logit_scale, refuses_what_means_nothing) {
  EXPECT_THROW(static_cast<void>(logit_scale::llama4(0.1, 0)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(logit_scale::llama4(-0.1, 8192)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(logit_scale::ministral(std::nan(""), 8192)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(logit_scale::llama4().scale(-1)), std::out_of_range);
}

}  // namespace logit_scale_test
