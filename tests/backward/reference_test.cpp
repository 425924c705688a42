// SPDX-License-Identifier: MIT
/// \file
/// reference::attention_backward against numbers worked out by hand, PyTorch's automatic differentiation
/// (tools/make_backward_golden.py) and central differences in long double.
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/attention/backward.hpp>
#include <posenc/attention/merge.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/any_encoding.hpp>
#include <posenc/encodings/learned_rope.hpp>
#include <posenc/encodings/rope_table.hpp>
#include <posenc/testing.hpp>

#include "backward_cases.hpp"
#include "refusals.hpp"

namespace reference_test {

using posenc::index_t, posenc::position, posenc::pairing;
template <class S>
using matrix = posenc::row_major_matrix<S>;

// Worked out by hand
// ------------------------------------------------------------------------------------------------------------------

TEST(backward, rotation_goes_back_by_its_transpose_with_the_magnitude_kept) {
  const posenc::rope<double> yarn{{.head_dim = 2, .pairing = pairing::half_split},
                                  posenc::yarn{.factor = 4, .original_context = 4096}};
  std::vector<double> head{0.3, -2}, d{1, 0}, none;
  const posenc::positions at = posenc::positions::from(1).resolve(1, "query");
  posenc::detail::rotate_back<double>(yarn, posenc::detail::parameter_counts<posenc::rope<double>>(yarn),
                                      head, d, {at, 0, posenc::rotation_side::query}, none);
  EXPECT_NEAR(d[0], 0.61520411, 5e-9);
  EXPECT_NEAR(d[1], -0.95812363, 5e-9);
}

TEST(backward, queries_stand_on_the_last_keys) {
  const matrix<double> q = matrix<double>::Zero(2, 1), k = matrix<double>::Zero(4, 1), d = q.array() + 1;
  const matrix<double> v = matrix<double>::Random(4, 1);
  const posenc::attention_options causal{.mask = posenc::causal};
  const auto forward = posenc::reference::attention_with_log_sum_exp(q, k, v, posenc::no_encoding{}, causal);
  const auto grad = posenc::reference::attention_backward(q, k, v, forward, d, posenc::no_encoding{}, causal);
  const double want[]{1. / 3 + 1. / 4, 1. / 3 + 1. / 4, 1. / 3 + 1. / 4, 1. / 4};
  for (index_t j = 0; j < 4; ++j) EXPECT_NEAR(grad.v(j, 0), want[j], 1e-15);
}

TEST(backward, heads_of_a_group_add_up_in_their_kv_head) {
  const matrix<double> q = Eigen::RowVector2d(1, 2), d = Eigen::RowVector2d(1, 1);
  const matrix<double> k = Eigen::Vector2d(0, 1), v = k;
  const posenc::attention_options options{.heads = 2, .kv_heads = 1, .scale = 1};
  const auto forward = posenc::reference::attention_with_log_sum_exp(q, k, v, posenc::no_encoding{}, options);
  const auto grad =
      posenc::reference::attention_backward(q, k, v, forward, d, posenc::no_encoding{}, options);
  EXPECT_NEAR(grad.k(0, 0), -0.4065991040, 5e-11);
  EXPECT_NEAR(grad.k(1, 0), 0.4065991040, 5e-11);
}

// PyTorch
// ------------------------------------------------------------------------------------------------------------------

template <class S>
void expect_golden(double bound) {
  for (const nlohmann::json& one : golden::cases("backward.json"))
    backward_cases::with_case(one, [&](const auto& encoding, const posenc::attention_options& options) {
      SCOPED_TRACE(one.at("encoding").get<std::string>() + ", " +
                   one.at("shape").at("name").get<std::string>());
      const auto in = backward_cases::inputs<S>(one.at("shape"));
      const auto forward = posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, encoding, options);
      backward_cases::expect_near(one.at("output"), forward.output, bound, "output");
      const auto grad =
          posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out, encoding, options);
      backward_cases::expect_gradients(one.at("gradients"), grad, bound);
    });
}
TEST(backward, double_agrees_with_pytorch) { expect_golden<double>(1e-12); }
TEST(backward, float_agrees_with_pytorch) { expect_golden<float>(1e-6); }
TEST(backward, bfloat16_agrees_within_its_rounding) { expect_golden<Eigen::bfloat16>(3e-2); }

// Central differences
// ------------------------------------------------------------------------------------------------------------------

matrix<double> table(index_t rows, index_t columns, std::uint32_t seed) {
  return backward_cases::numbers<double>(rows, columns, seed) / 4;
}
constexpr posenc::relative_clip clip{
    .direction = posenc::relative_direction::query_minus_key, .left = 3, .right = 2};

using own_encoding = backward_cases::own_bias<double>;
using backward_cases::own_shear;

template <class E>
void expect_differences(const E& encoding, std::vector<position> starts = {0, 5}) {
  for (const posenc::attention_mask mask : {posenc::causal, posenc::bidirectional}) {
    const posenc::testing::setup setup{.tokens = 4,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 4,
                                       .model_dim = 6,
                                       .mask = mask,
                                       .starts = starts};
    const auto found = posenc::testing::backward(encoding, setup);
    EXPECT_LE(found.worst_error, 1e-8) << found.where;
  }
}
const posenc::rope<double> small_rope{{.head_dim = 4, .pairing = pairing::half_split}};

TEST(backward, differences_agree_where_nothing_is_learned) {
  expect_differences(posenc::no_encoding{});
  expect_differences(small_rope);
  expect_differences(posenc::xpos<double>{{.rope = {.head_dim = 4, .pairing = pairing::interleaved}}});
  expect_differences(posenc::sinusoidal<double>{{.width = 6, .convention = posenc::sinusoid::paper}});
  expect_differences(own_shear{});
  expect_differences(posenc::combine(own_shear{}, small_rope));
  const matrix<double> cosines = table(16, 2, 1), sines = table(16, 2, 2);
  expect_differences(posenc::rope_table<double>{{.head_dim = 4, .pairing = pairing::half_split},
                                                posenc::dense_angles(cosines.data(), 16, 2),
                                                posenc::dense_angles(sines.data(), 16, 2)});
}

TEST(backward, differences_agree_for_every_parameter) {
  expect_differences(posenc::learned_absolute<double>{table(16, 6, 1), {.row_offset = 2}});
  expect_differences(posenc::relative_bias<double>{
      clip, posenc::bias_table<double>::rows_by_heads(table(clip.rows(), 4, 2))});
  expect_differences(posenc::t5_bias<double>{{.buckets = 6, .max_distance = 5, .bidirectional = true},
                                             posenc::bias_table<double>::heads_by_rows(table(4, 6, 3))});
  const matrix<double> shared = table(1, 6, 3);
  expect_differences(posenc::t5_bias<double>{{.buckets = 6, .max_distance = 5, .bidirectional = false},
                                             posenc::bias_table<double>::shared({shared.data(), 6})});
  expect_differences(posenc::shaw<double>{clip, table(clip.rows(), 4, 4)});
  expect_differences(
      posenc::shaw_with_values<double>{clip, table(clip.rows(), 4, 4), table(clip.rows(), 4, 5)});
  expect_differences(posenc::alibi<double>{{.heads = 4}});
  expect_differences(posenc::alibi<double>{{.heads = 4, .form = posenc::alibi_form::causal}});
  expect_differences(posenc::logit_scale::llama4(0.5, 2));
  expect_differences(posenc::learned_rope<double>{{.head_dim = 4, .pairing = pairing::interleaved}});
  expect_differences(own_encoding{});
  expect_differences(posenc::combine(small_rope, own_encoding{}, posenc::logit_scale::llama4(0.5, 2),
                                     posenc::logit_scale::ministral(0.3, 3),
                                     posenc::shaw<double>{clip, table(clip.rows(), 4, 4)}));
}

/// Its adjoint lacks the wave.
struct forgets_a_factor : own_encoding {
  forgets_a_factor with_parameters(const posenc::parameter_list<double>& p) const {
    return {own_encoding::with_parameters(p)};
  }
  template <class S>
  void bias_adjoint(int head, position, position, const S& d, std::span<S> gradient) const {
    gradient[static_cast<std::size_t>(head)] += d;
  }
};
TEST(backward, a_wrong_adjoint_is_found) {
  const auto found =
      posenc::testing::backward(forgets_a_factor{}, {.tokens = 4, .head_dim = 4, .starts = {1}});
  EXPECT_GE(found.worst_error, 0.01);
  EXPECT_NE(found.where.find("strength"), std::string::npos) << found.where;
}

// Parts, batches, strides
// ------------------------------------------------------------------------------------------------------------------

TEST(backward, parts_of_the_keys_add_up) {
  const auto in = backward_cases::inputs<double>(6, 6, 2, 2, 4, 4);
  posenc::attention_options options{.heads = 2};
  const posenc::alibi<double> alibi{{.heads = 2}};
  const auto whole = posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, alibi, options);
  const auto want = posenc::reference::attention_backward(in.q, in.k, in.v, whole, in.d_out, alibi, options);
  options.valid_keys = posenc::row_range{0, 2};
  const auto one = posenc::reference::attention_backward(in.q, in.k, in.v, whole, in.d_out, alibi, options);
  options.valid_keys = posenc::row_range{2, 6};
  const auto two = posenc::reference::attention_backward(in.q, in.k, in.v, whole, in.d_out, alibi, options);
  EXPECT_LE((one.q + two.q - want.q).norm(), 1e-14 * want.q.norm());
  EXPECT_LE((one.k + two.k - want.k).norm(), 1e-14 * want.k.norm());
  EXPECT_LE((one.encoding["slopes"] + two.encoding["slopes"] - want.encoding["slopes"]).norm(), 1e-13);
}

TEST(backward, an_encoding_chosen_at_run_time_gives_the_same) {
  const auto in = backward_cases::inputs<float>(5, 5, 2, 2, 4, 4);
  const posenc::attention_options options{.heads = 2};
  const posenc::alibi<float> alibi{{.heads = 2}};
  const posenc::any_encoding<float> any = alibi;
  const auto forward = posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, alibi, options);
  const auto a = posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out, alibi, options);
  const auto b = posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out, any, options);
  EXPECT_EQ(a.q, b.q);
  EXPECT_EQ(a.encoding["slopes"], b.encoding["slopes"]);
}

/// The parts of a call as views, with gradients in [head][token][channel] memory of their own.
struct strided {
  backward_cases::tensors<float> in;
  posenc::attention_result<float> forward;
  std::vector<float> d_q, d_k, d_v;
  posenc::backward_sequence<float> sequence;

  strided(index_t tokens, std::uint32_t seed, const posenc::alibi<float>& alibi)
      : in(backward_cases::inputs<float>(tokens, tokens, 2, 1, 4, 4, seed)),
        d_q(static_cast<std::size_t>(tokens * 8), 7.0f),
        d_k(static_cast<std::size_t>(tokens * 4), 7.0f),
        d_v(d_k) {
    const posenc::attention_options options{.heads = 2, .kv_heads = 1, .mask = posenc::causal};
    forward = posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, alibi, options);
    sequence = {.q = posenc::as_heads(in.q, 2),
                .k = posenc::as_heads(in.k, 1),
                .v = posenc::as_heads(in.v, 1),
                .out = posenc::as_heads(forward.output, 2),
                .log_sum_exp = {forward.log_sum_exp.data(), tokens, 2, 2, 1},
                .d_out = posenc::as_heads(in.d_out, 2),
                .d_q = posenc::head_major(d_q.data(), 2, tokens, 4),
                .d_k = posenc::head_major(d_k.data(), 1, tokens, 4),
                .d_v = posenc::head_major(d_v.data(), 1, tokens, 4),
                .options = options};
  }
};

TEST(backward, a_batch_writes_where_it_is_told_and_sums_parameters) {
  const posenc::alibi<float> alibi{{.heads = 2}};
  strided a(5, 1, alibi), b(3, 11, alibi);
  const auto single = [&](const strided& s) {
    return posenc::reference::attention_backward(s.in.q, s.in.k, s.in.v, s.forward, s.in.d_out, alibi,
                                                 s.sequence.options);
  };
  const auto of_a = single(a), of_b = single(b);
  const std::vector<posenc::backward_sequence<float>> batch{a.sequence, b.sequence};
  const auto both = posenc::reference::attention_backward_batch(
      std::span<const posenc::backward_sequence<float>>(batch), alibi);
  for (index_t h = 0; h < 2; ++h)
    for (index_t i = 0; i < 5; ++i)
      for (index_t c = 0; c < 4; ++c)
        EXPECT_EQ(a.d_q[static_cast<std::size_t>((h * 5 + i) * 4 + c)], of_a.q(i, h * 4 + c));
  for (index_t i = 0; i < 3; ++i)
    for (index_t c = 0; c < 4; ++c) EXPECT_EQ(b.d_k[static_cast<std::size_t>(i * 4 + c)], of_b.k(i, c));
  for (index_t h = 0; h < 2; ++h)
    EXPECT_NEAR(both.encoding["slopes"](h, 0), of_a.encoding["slopes"](h, 0) + of_b.encoding["slopes"](h, 0),
                1e-5);
}

TEST(backward, wrong_use_is_refused_in_words_and_writes_nothing) {
  const posenc::alibi<float> alibi{{.heads = 2}};
  const auto refused = [&](auto change, const char* sentence) {
    strided s(5, 1, alibi);
    change(s);
    EXPECT_REFUSAL(posenc::reference::attention_backward_into(s.sequence, alibi), std::invalid_argument,
                   sentence);
    for (const std::vector<float>* memory : {&s.d_q, &s.d_k, &s.d_v})
      for (const float x : *memory) ASSERT_EQ(x, 7.0f);
  };
  refused([](strided& s) { s.sequence.log_sum_exp = {}; }, "log_sum_exp of the forward is missing");
  refused([](strided& s) { s.sequence.log_sum_exp.tokens = 4; }, "log_sum_exp is 4 x 2, needed is 5 x 2");
  refused([](strided& s) { s.sequence.d_out.tokens = 4; }, "d_out is 4 x 2 x 4, needed is 5 x 2 x 4");
  refused([](strided& s) { s.sequence.out.head_dim = 3; }, "the output is 5 x 2 x 3");
  refused([](strided& s) { s.sequence.d_k.tokens = 6; }, "d_k is 6 x 1 x 4, needed is 5 x 1 x 4");
  refused([](strided& s) { s.sequence.d_v = s.sequence.d_k; }, "d_k overlaps another gradient");
  refused([](strided& s) { s.sequence.d_q = posenc::as_heads(s.in.q, 2); }, "d_q overlaps an input");
  refused([](strided& s) { s.sequence.d_q = posenc::as_heads(s.in.d_out, 2); }, "d_q overlaps an input");
  refused([](strided& s) { s.sequence.options.softcap = -1; }, "softcap");

  strided s(5, 1, alibi);
  posenc::attention_result<float> forward = s.forward;
  forward.log_sum_exp.resize(0, 0);
  EXPECT_REFUSAL(posenc::reference::attention_backward(s.in.q, s.in.k, s.in.v, forward, s.in.d_out, alibi,
                                                       s.sequence.options),
                 std::invalid_argument, "log_sum_exp of the forward is missing");
}

TEST(backward, rows_that_see_nothing_get_nothing) {
  const auto in = backward_cases::inputs<double>(3, 3, 1, 1, 4, 4);
  posenc::attention_options options{.heads = 1, .mask = posenc::causal};
  options.key_positions = posenc::positions::from(2);
  options.query_positions = posenc::positions::from(0);
  const auto forward =
      posenc::reference::attention_with_log_sum_exp(in.q, in.k, in.v, posenc::no_encoding{}, options);
  const auto grad = posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out,
                                                          posenc::no_encoding{}, options);
  EXPECT_EQ(grad.q.norm(), 0);  // the last query sees one key, whose weight is 1 whatever it is
  EXPECT_EQ(grad.v.row(0), in.d_out.row(2));
  EXPECT_EQ(grad.v.bottomRows(2).norm(), 0);
}

}  // namespace reference_test
