// SPDX-License-Identifier: MIT
/// \file
/// fused::attention_backward against PyTorch, on users' encodings, for any number of threads, and wrongly used.
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/testing.hpp>

#include "backward_cases.hpp"
#include "refusals.hpp"
#include "repetitions.hpp"

namespace fused_test {

using posenc::index_t, posenc::position, posenc::pairing;
using matrix = posenc::row_major_matrix<float>;

TEST(fused_backward, agrees_with_pytorch) {
  for (const nlohmann::json& one : golden::cases("backward.json"))
    backward_cases::with_case(one, [&](const auto& encoding, const posenc::attention_options& options) {
      SCOPED_TRACE(one.at("encoding").get<std::string>() + ", " +
                   one.at("shape").at("name").get<std::string>());
      const auto in = backward_cases::inputs<float>(one.at("shape"));
      const auto forward = posenc::fused::attention_with_log_sum_exp(in.q, in.k, in.v, encoding, options);
      const auto grad =
          posenc::fused::attention_backward(in.q, in.k, in.v, forward, in.d_out, encoding, options);
      backward_cases::expect_gradients(one.at("gradients"), grad, 1e-6, 4);
    });
}

using own_bias = backward_cases::own_bias<float>;
using backward_cases::own_shear;

TEST(fused_backward, fits_the_differences_of_own_and_learned_encodings) {
  const posenc::rope_options halves{.head_dim = 8, .pairing = pairing::half_split};
  const auto check = [](const auto& encoding) {
    const auto found = posenc::testing::backward<float>(
        encoding, {.tokens = 3, .head_dim = 8, .model_dim = 6, .starts = {1, 7}}, posenc::fused_attention{},
        posenc::fused_attention_backward{});
    EXPECT_LE(found.worst_error, 2e-5) << found.where;
  };
  check(own_shear{});
  check(posenc::combine(own_shear{}, posenc::rope<float>{halves}));
  check(posenc::learned_rope<double>{halves});
  check(posenc::combine(posenc::learned_rope<double>{halves}, posenc::alibi<double>{{.heads = 4}}));
  check(posenc::logit_scale::llama4(0.5, 2));
  check(posenc::learned_absolute<double>{backward_cases::numbers<double>(12, 6, 3)});
}

TEST(fused_backward, a_bias_of_both_positions_is_learned_as_in_the_reference) {
  const auto in = backward_cases::inputs<float>(70, 70, 4, 2, 8, 8);
  const posenc::attention_options options{.heads = 4, .kv_heads = 2, .mask = posenc::causal};
  const auto forward = posenc::fused::attention_with_log_sum_exp(in.q, in.k, in.v, own_bias{}, options);
  const auto found =
      posenc::fused::attention_backward(in.q, in.k, in.v, forward, in.d_out, own_bias{}, options);
  const auto wanted =
      posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out, own_bias{}, options);
  EXPECT_LE((found.q - wanted.q).norm(), 1e-6f * wanted.q.norm());
  EXPECT_LE((found.encoding["strength"] - wanted.encoding["strength"]).norm(),
            2e-6f * wanted.encoding["strength"].norm());
}

/// Gradients of all kinds in one memory, to compare bits.
template <class Gradients>
std::vector<float> all_of(const Gradients& g) {
  std::vector<float> all;
  for (const matrix* m : {&g.q, &g.k, &g.v}) all.insert(all.end(), m->data(), m->data() + m->size());
  all.insert(all.end(), g.encoding.values().begin(), g.encoding.values().end());
  all.insert(all.end(), g.sinks.begin(), g.sinks.end());
  all.insert(all.end(), g.head_scales.begin(), g.head_scales.end());
  return all;
}

TEST(fused_backward, bits_do_not_depend_on_threads_or_workspace) {
  const posenc::t5_bias<float> t5{
      {.buckets = 8, .max_distance = 64, .bidirectional = false},
      posenc::bias_table<float>::heads_by_rows(backward_cases::numbers<float>(6, 8, 3))};
  const auto encoding =
      posenc::combine(posenc::rope<float>{{.head_dim = 16, .pairing = pairing::interleaved}}, t5);
  const std::vector<double> sinks{0, 1, -1, 0.5, 2, 0.25};
  for (const index_t kv_heads : {1, 2, 6}) {
    const posenc::attention_options options{
        .heads = 6, .kv_heads = kv_heads, .mask = posenc::causal, .sinks = sinks};
    constexpr index_t tokens = repetitions::few ? 130 : 300;
    const auto in = backward_cases::inputs<float>(tokens, tokens, 6, kv_heads, 16, 24);
    const auto forward = posenc::fused::attention_with_log_sum_exp(in.q, in.k, in.v, encoding, options);
    const auto run = [&](const posenc::fused::execution& how) {
      return all_of(
          posenc::fused::attention_backward(in.q, in.k, in.v, forward, in.d_out, encoding, options, how));
    };
    const std::vector<float> alone = run({});
    for (const index_t workers : {2, 3, 7}) {
      const posenc::fused::thread_pool pool(workers);
      posenc::fused::workspace memory;
      EXPECT_EQ(run({.executor = pool, .memory = &memory}), alone) << workers << " workers";
      EXPECT_EQ(run({.executor = pool, .memory = &memory}), alone) << "memory used again";
    }
    const auto wanted =
        all_of(posenc::reference::attention_backward(in.q, in.k, in.v, forward, in.d_out, encoding, options));
    ASSERT_EQ(alone.size(), wanted.size());
    double apart = 0, norm = 0;
    for (std::size_t n = 0; n < alone.size(); ++n) {
      const double d = static_cast<double>(alone[n]) - static_cast<double>(wanted[n]);
      apart += d * d, norm += static_cast<double>(wanted[n]) * static_cast<double>(wanted[n]);
    }
    EXPECT_LE(std::sqrt(apart), 2e-6 * std::sqrt(norm));
  }
}

TEST(fused_backward, a_batch_is_its_sequences) {
  const posenc::alibi<float> alibi{{.heads = 2}};
  const posenc::attention_options options{.heads = 2, .kv_heads = 1, .mask = posenc::causal};
  struct one {
    backward_cases::tensors<float> in;
    posenc::attention_result<float> forward;
    posenc::attention_gradients<float> alone;
    matrix d_q, d_k, d_v;
  };
  std::vector<one> parts(3);
  std::vector<posenc::backward_sequence<float>> batch;
  Eigen::VectorXd slopes = Eigen::VectorXd::Zero(2);
  for (std::size_t n = 0; n < parts.size(); ++n) {
    one& p = parts[n];
    const auto tokens = static_cast<index_t>(1 + 40 * n);
    p.in = backward_cases::inputs<float>(tokens, tokens, 2, 1, 8, 8, static_cast<std::uint32_t>(n));
    p.forward = posenc::fused::attention_with_log_sum_exp(p.in.q, p.in.k, p.in.v, alibi, options);
    p.alone =
        posenc::fused::attention_backward(p.in.q, p.in.k, p.in.v, p.forward, p.in.d_out, alibi, options);
    slopes += p.alone.encoding["slopes"].cast<double>();
    p.d_q.resize(tokens, 16), p.d_k.resize(tokens, 8), p.d_v.resize(tokens, 8);
    batch.push_back({.q = posenc::as_heads(p.in.q, 2),
                     .k = posenc::as_heads(p.in.k, 1),
                     .v = posenc::as_heads(p.in.v, 1),
                     .out = posenc::as_heads(p.forward.output, 2),
                     .log_sum_exp = {p.forward.log_sum_exp.data(), tokens, 2, 2, 1},
                     .d_out = posenc::as_heads(p.in.d_out, 2),
                     .d_q = posenc::as_heads(p.d_q, 2),
                     .d_k = posenc::as_heads(p.d_k, 1),
                     .d_v = posenc::as_heads(p.d_v, 1),
                     .options = options});
  }
  const std::span<const posenc::backward_sequence<float>> all(batch);
  const auto shared = posenc::fused::attention_backward_batch(all, alibi);
  for (const one& p : parts) {
    EXPECT_EQ(p.d_q, p.alone.q);
    EXPECT_EQ(p.d_k, p.alone.k);
    EXPECT_EQ(p.d_v, p.alone.v);
  }
  EXPECT_NEAR((shared.encoding["slopes"].cast<double>() - slopes).norm(), 0, 1e-5 * slopes.norm());

  const auto refused = [&](const auto& change, const char* sentence) {
    auto wrong = batch;
    change(wrong);
    EXPECT_REFUSAL(posenc::fused::attention_backward_batch(
                       std::span<const posenc::backward_sequence<float>>(wrong), alibi),
                   std::invalid_argument, sentence);
    for (const one& p : parts) ASSERT_EQ(p.d_q, p.alone.q) << "written though refused";
  };
  refused([](auto& b) { b[1].log_sum_exp = {}; }, "log_sum_exp of the forward is missing");
  refused([](auto& b) { b[2].d_out.tokens = 3; }, "d_out is 3 x 2 x 8, needed is 81 x 2 x 8");
  refused([](auto& b) { b[1].d_k = b[2].d_k, b[1].d_k.tokens = 41; }, "overlaps another gradient");
  refused([&](auto& b) { b[0].d_q = posenc::as_heads(parts[1].in.q, 2), b[0].d_q.tokens = 1; },
          "d_q overlaps an input");
  std::vector<float> memory(1 << 16);
  posenc::fused::workspace borrowed(std::as_writable_bytes(std::span<float>(memory)));
  auto in_scratch = batch;
  in_scratch[2].d_k.data = memory.data();
  EXPECT_REFUSAL(
      posenc::fused::attention_backward_batch(std::span<const posenc::backward_sequence<float>>(in_scratch),
                                              alibi, {.memory = &borrowed}),
      std::invalid_argument, "the borrowed workspace overlaps d_k in memory");
}

}  // namespace fused_test
