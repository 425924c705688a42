// SPDX-License-Identifier: MIT
/// \file
/// Every scaling scheme against golden/rope_schemes.json, the named conventions against
/// golden/disagreements.json, and what each scheme refuses.
#include <posenc/rope/scaling.hpp>

#include "refusals.hpp"
#include "rope_golden.hpp"

namespace scaling_test {

using namespace posenc;
using golden::json;

rope_options options_of(index_t head_dim, double base) {
  return {.head_dim = head_dim, .base = base, .pairing = pairing::half_split};
}

TEST(rope_schemes, equal_the_golden_rows) {
  for (const json& row : golden::cases("rope_schemes.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& config = row.at("config");
    const any_scaling scaling = golden::scaling_of(config);
    rope_options options = options_of(golden::head_dim_of(config), config.at("rope_theta").get<double>());
    if (!std::holds_alternative<proportional>(scaling.scheme) && config.contains("rope_scaling"))
      options.rotary_dim =
          static_cast<index_t>(static_cast<double>(options.head_dim) *
                               config.at("rope_scaling").value("partial_rotary_factor", 1.0));
    std::optional<position> length;
    if (row.at("runtime").contains("seq_len")) length = row.at("runtime").at("seq_len").get<position>();
    const rope<double> encoding{options, scaling, length};
    const json& expect = row.at("expect");
    golden::expect_frequencies(encoding, expect.at("inv_freq"), options.base);
    golden::expect_table(encoding, expect.at("table"));
    EXPECT_NEAR(encoding.attention_factor(), expect.at("attention_factor").get<double>(),
                golden::scale_bound * encoding.attention_factor());
    if (expect.contains("yarn_range")) {
      const auto [low, high] =
          std::get<yarn>(scaling.scheme)
              .ramp(rotary_shape{options.head_dim, encoding.lowered().rotary_dim, options.base});
      EXPECT_NEAR(low, expect.at("yarn_range")[0].get<double>(), 1e-13);
      EXPECT_NEAR(high, expect.at("yarn_range")[1].get<double>(), 1e-13);
    }
  }
}

json disagreement(const std::string& name) { return golden::find("disagreements.json", name); }

template <class Scheme>
double attention_factor_of(const Scheme& scheme, std::optional<position> length = {}) {
  return rope<double>{options_of(64, 10'000), scheme, length}.attention_factor();
}

TEST(rope_conventions, explicit_attention_factor_of_yarn) {
  const json expect = disagreement("yarn explicit attention_factor").at("expect");
  yarn scheme{.factor = 64, .original_context = 4096, .attention_factor = 1};
  EXPECT_EQ(attention_factor_of(scheme), expect.at("transformers").at("attention_factor").get<double>());
  scheme.attention_factor_rule = yarn_attention_factor::ignored;
  EXPECT_NEAR(attention_factor_of(scheme), expect.at("llama.cpp").at("attention_factor").get<double>(),
              1e-15);
  scheme.attention_factor_rule = yarn_attention_factor::multiplies;
  EXPECT_NEAR(
      attention_factor_of(scheme),
      expect.at("jquesnelle_yarn_attn_factor_semantics_multiplies").at("attention_factor").get<double>(),
      1e-15);
  scheme.attention_factor = 0.5;
  EXPECT_NEAR(attention_factor_of(scheme), 0.5 * 1.4158883083359672, 1e-15);
}

TEST(rope_conventions, mscale_pair_of_yarn) {
  const json ministral =
      disagreement("yarn mscale = mscale_all_dim = 1 in a non-MLA model (Ministral-3)").at("expect");
  yarn scheme{.factor = 16, .original_context = 16'384, .mscale = 1, .mscale_all_dim = 1};
  EXPECT_EQ(attention_factor_of(scheme), ministral.at("transformers").at("attention_factor").get<double>());
  scheme.mscale_rule = yarn_mscale::ignored;
  EXPECT_NEAR(attention_factor_of(scheme),
              ministral.at("vllm_generic_yarn_ignoring_mscale").at("attention_factor").get<double>(), 1e-15);

  const json zeros = disagreement("yarn mscale 0 and mscale_all_dim 0").at("expect");
  scheme = {.factor = 40, .original_context = 4096};
  EXPECT_NEAR(attention_factor_of(scheme), zeros.at("transformers").at("attention_factor").get<double>(),
              1e-15);
  scheme.mscale_rule = yarn_mscale::ratio;
  EXPECT_EQ(attention_factor_of(scheme), zeros.at("vllm_deepseek_yarn").at("attention_factor").get<double>());
}

TEST(rope_conventions, truncation_of_yarn) {
  const json expect = disagreement("gpt-oss truncate false").at("expect");
  for (const bool truncate : {false, true}) {
    const yarn scheme{.factor = 32, .original_context = 4096, .truncate = truncate};
    const json& row = expect.at(truncate ? "ggml" : "transformers_and_vllm_after_28244");
    const rope<double> encoding{options_of(64, 150'000), scheme};
    golden::expect_frequencies(encoding, row.at("inv_freq"), 150'000);
    const auto [low, high] = scheme.ramp(rotary_shape{64, 64, 150'000});
    EXPECT_NEAR(low, row.at("range")[0].get<double>(), 1e-13);
    EXPECT_NEAR(high, row.at("range")[1].get<double>(), 1e-13);
  }
}

TEST(rope_conventions, a_beta_of_zero_means_the_default) {
  const yarn zero{.factor = 4, .original_context = 4096, .beta_fast = 0, .beta_slow = 0};
  const yarn plain{.factor = 4, .original_context = 4096};
  const rope<double> a{options_of(64, 10'000), zero}, b{options_of(64, 10'000), plain};
  for (std::size_t p = 0; p < 32; ++p) EXPECT_EQ(a.inv_freq()[p], b.inv_freq()[p]);
}

TEST(rope_conventions, dynamic_ntk) {
  for (const position length : {2048, 4096}) {
    const json expect =
        disagreement("dynamic NTK factor 2 L 2048 seq " + std::to_string(length)).at("expect");
    for (const bool whole : {false, true}) {
      const json& row = expect.at(whole ? "vllm_before_41277" : "transformers");
      const dynamic_ntk scheme{
          .factor = 2,
          .max_context = 2048,
          .rule = whole ? dynamic_ntk_rule::full_extension : dynamic_ntk_rule::sequence_length};
      const rope<double> encoding{options_of(64, 10'000), scheme, length};
      const double last = row.at("inv_freq_last").get<double>();
      EXPECT_NEAR(encoding.inv_freq()[31], last, golden::frequency_bound(10'000) * last);
      const double base = row.at("effective_base").get<double>();
      EXPECT_NEAR(10'000 * std::pow(scheme.stretch(length), 64.0 / 62), base, 8 * golden::unit * base);
    }
  }
  // 2^(ceil(log2 n/L) + 1) − 1 by hand: 1 up to L, 3 up to 2L, 7 up to 4L.
  const dynamic_ntk steps{.factor = 1, .max_context = 2048, .rule = dynamic_ntk_rule::power_of_two_steps};
  EXPECT_EQ(steps.stretch(1), 1);
  EXPECT_EQ(steps.stretch(2048), 1);
  EXPECT_EQ(steps.stretch(2049), 3);
  EXPECT_EQ(steps.stretch(4096), 3);
  EXPECT_EQ(steps.stretch(4097), 7);
}

TEST(rope_conventions, dynamic_ntk_is_the_identity_inside_the_trained_length) {
  const rope<double> plain{options_of(64, 10'000)};
  for (const position length : {1, 100, 2048}) {
    const rope<double> encoding{options_of(64, 10'000), dynamic_ntk{.factor = 4, .max_context = 2048},
                                length};
    for (std::size_t p = 0; p < 32; ++p) EXPECT_EQ(encoding.inv_freq()[p], plain.inv_freq()[p]);
  }
}

longrope example_longrope() {
  longrope scheme{.original_context = 4096, .max_context = 131'072};
  scheme.short_factor.assign(32, 1.0);
  scheme.long_factor.assign(32, 2.0);
  return scheme;
}

TEST(rope_conventions, longrope_selection) {
  const json expect = disagreement("longrope selection at 100 tokens, model limit 131072").at("expect");
  longrope scheme = example_longrope();
  EXPECT_EQ(expect.at("transformers"), "short");
  EXPECT_FALSE(scheme.selects_long(100));
  EXPECT_FALSE(scheme.selects_long(4096));
  EXPECT_TRUE(scheme.selects_long(4097));
  scheme.selection = longrope_selection::context_limit;
  EXPECT_TRUE(scheme.selects_long(100));
  scheme.max_context = 4096;
  EXPECT_FALSE(scheme.selects_long(100'000));
}

TEST(rope_conventions, longrope_factor_precedence) {
  const json expect = disagreement("longrope factor key differs from max/original").at("expect");
  longrope scheme = example_longrope();
  scheme.factor = 4;
  EXPECT_NEAR(attention_factor_of(scheme, 1),
              expect.at("transformers_current").at("attention_factor").get<double>(), 1e-15);
  scheme.stretch = longrope_stretch::ratio_first;
  EXPECT_NEAR(attention_factor_of(scheme, 1),
              expect.at("transformers_older_vllm_llama.cpp").at("attention_factor").get<double>(), 1e-15);
  scheme.long_mscale = 1.25;
  EXPECT_EQ(attention_factor_of(scheme, 5000), 1.25);
  EXPECT_NE(attention_factor_of(scheme, 4096), 1.25);
}

TEST(rope_conventions, llama3_original_context) {
  const json expect = disagreement("llama3 scaling with original 4096 only inside rope_scaling").at("expect");
  for (const double original : {4096.0, 8192.0}) {
    const llama3 scheme{
        .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = original};
    golden::expect_frequencies(
        rope<double>{options_of(128, 500'000), scheme},
        expect.at(original == 4096 ? "transformers_vllm" : "llama.cpp_converter").at("inv_freq"), 500'000);
  }
}

TEST(rope_schemes, llama3_with_equal_band_edges_is_a_step) {
  const llama3 scheme{.factor = 16, .low_freq_factor = 1, .high_freq_factor = 1, .original_context = 8192};
  const rope<double> plain{options_of(128, 500'000)}, scaled{options_of(128, 500'000), scheme};
  for (std::size_t p = 0; p < 64; ++p) {
    const bool slow = 2 * 3.14159265358979323846 / plain.inv_freq()[p] > 8192;
    EXPECT_EQ(scaled.inv_freq()[p], slow ? plain.inv_freq()[p] / 16 : plain.inv_freq()[p]) << "pair " << p;
  }
}

TEST(rope_schemes, theta_scaling_keeps_the_first_pair_and_divides_the_last_by_s) {
  const rope<double> plain{options_of(64, 10'000)},
      scaled{options_of(64, 10'000), theta_scaling{.factor = 8}};
  EXPECT_EQ(scaled.inv_freq()[0], 1);
  EXPECT_NEAR(scaled.inv_freq()[31] * 8, plain.inv_freq()[31], 1e-16 * plain.inv_freq()[31] * 4);
}

TEST(rope_schemes, proportional_leaves_a_hole_in_each_half) {
  const rope<double> encoding{options_of(8, 10'000), proportional{.partial_rotary_factor = 0.5}};
  std::vector<double> head{1, 2, 3, 4, 5, 6, 7, 8};
  encoding.rotate(std::span<double>(head), 5);
  for (const std::size_t still : {2u, 3u, 6u, 7u}) EXPECT_EQ(head[still], static_cast<double>(still + 1));
  for (const std::size_t turned : {0u, 1u, 4u, 5u}) EXPECT_NE(head[turned], static_cast<double>(turned + 1));
}

TEST(rope_schemes, any_scaling_is_the_scheme_inside) {
  const yarn inner{.factor = 4, .original_context = 1024};
  const any_scaling wrapped = inner;
  const rope<float> a{options_of(64, 10'000), inner}, b{options_of(64, 10'000), wrapped};
  EXPECT_TRUE(std::equal(a.inv_freq().begin(), a.inv_freq().end(), b.inv_freq().begin()));
  EXPECT_EQ(a.attention_factor(), b.attention_factor());
  EXPECT_FALSE(depends_on_length(wrapped));
  EXPECT_TRUE(depends_on_length(dynamic_ntk{.factor = 2, .max_context = 2048}));
  EXPECT_TRUE(depends_on_length(example_longrope()));
}

template <class Scheme>
void expect_refused(const Scheme& scheme, const char* words, index_t head_dim = 64,
                    std::optional<position> length = 100, double base = 10'000) {
  EXPECT_REFUSAL((rope<float>{options_of(head_dim, base), scheme, length}), std::invalid_argument, words);
}

TEST(rope_schemes, refuse_what_means_nothing) {
  const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const double factor : {0.0, 0.5, -1.0, infinite, nan}) {
    expect_refused(position_interpolation{.factor = factor}, "factor");
    expect_refused(theta_scaling{.factor = factor}, "factor");
    expect_refused(kexue_ntk{.factor = factor}, "factor");
    expect_refused(dynamic_ntk{.factor = factor, .max_context = 2048}, "factor");
    expect_refused(yarn{.factor = factor, .original_context = 2048}, "factor");
    expect_refused(
        llama3{.factor = factor, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8},
        "factor");
    expect_refused(proportional{.factor = factor}, "factor");
  }
  // Missing numbers.
  expect_refused(position_interpolation{}, "factor");
  expect_refused(yarn{.factor = 4}, "original context");
  expect_refused(dynamic_ntk{.factor = 4}, "context length");
  expect_refused(dynamic_ntk{.factor = 4, .max_context = 2048}, "context_length", 64, std::nullopt);
  expect_refused(llama3{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4}, "original context");
  expect_refused(llama3{.factor = 8, .high_freq_factor = 4, .original_context = 8192}, "low_freq_factor");
  // Numbers that contradict each other.
  expect_refused(llama3{.factor = 8, .low_freq_factor = 4, .high_freq_factor = 1, .original_context = 8192},
                 "high_freq_factor");
  expect_refused(yarn{.factor = 4, .original_context = 1024, .beta_fast = 1, .beta_slow = 32}, "beta_fast");
  expect_refused(yarn{.factor = 4, .original_context = 1024}, "base", 64, 100, 1.0);
  expect_refused(yarn{.factor = 4, .original_context = 1024, .attention_factor = -1}, "attention factor");
  // One pair: the exponent r/(r−2) does not exist.
  expect_refused(theta_scaling{.factor = 4}, "one pair", 2);
  expect_refused(dynamic_ntk{.factor = 4, .max_context = 64}, "one pair", 2);
  // LongRoPE's lists.
  longrope wrong = example_longrope();
  wrong.long_factor.pop_back();
  expect_refused(wrong, "31");
  wrong = example_longrope();
  wrong.short_factor[3] = 0;
  expect_refused(wrong, "factor of 0");
  wrong = example_longrope();
  wrong.max_context.reset();
  expect_refused(wrong, "max_context");
  expect_refused(example_longrope(), "context_length", 64, std::nullopt);
  // Proportional spans the head.
  expect_refused(proportional{.partial_rotary_factor = 1.5}, "[0, 1]");
  EXPECT_THROW(
      (rope<float>{{.head_dim = 64, .rotary_dim = 32, .pairing = pairing::half_split}, proportional{}}),
      std::invalid_argument);
}

}  // namespace scaling_test
