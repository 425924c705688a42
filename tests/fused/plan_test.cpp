// SPDX-License-Identifier: MIT
/// \file
/// Plans: the bits of one-shot calls, no allocation in run, and what a plan says that it decided.
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"
#include "refusals.hpp"
#include "repetitions.hpp"

namespace {
std::atomic<long> allocations = 0;
}

// Every allocation of this program is counted; the sanitizers see malloc and free as usual.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {
using fused_calls::backward_executor;
using fused_calls::random_matrix;
using posenc::attention_options;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

posenc::rope<float> rope_of(index_t head_dim) {
  return posenc::rope<float>{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
}
posenc::t5_bias<float> t5_of(index_t heads) {
  return {{.buckets = 32, .max_distance = 128, .bidirectional = false},
          posenc::bias_table<float>::heads_by_rows(random_matrix<float>(heads, 32, 9))};
}

/// Alike on every side of the query: a line, said by the encoding itself.
struct users_line {
  [[nodiscard]] float bias(int head, position offset) const {
    return -0.01f * static_cast<float>(head + 1) * static_cast<float>(offset < 0 ? -offset : offset);
  }
  [[nodiscard]] posenc::bias_line linear_bias(int head) const {
    return {-0.01 * (head + 1), 0.01 * (head + 1)};
  }
};
struct users_step {
  position reach;
  [[nodiscard]] float bias(int, position offset) const { return offset < -reach ? 0.0f : 1.0f; }
  [[nodiscard]] position bias_reach() const { return reach; }
};
struct users_pairs {
  [[nodiscard]] float bias(int, position query, position key) const {
    return static_cast<float>((query ^ key) & 3);
  }
};
struct temperature_of_head {
  [[nodiscard]] double scale(int head, position query) const {
    return 1 + 0.25 * head + 0.01 * static_cast<double>(query % 5);
  }
};

TEST(plan, gives_the_bits_of_one_shot_calls_in_thirty_layers) {
  sweep::on_every_target([](const char* target) {
    const auto rope = rope_of(64);
    for (const index_t queries : {1, 40}) {
      const attention_options options{.heads = 9, .kv_heads = 3, .mask = posenc::causal};
      posenc::fused::plan step(rope, options, {.queries = queries, .keys = 90});
      for (unsigned layer = 0; layer < (repetitions::few ? 4 : 30); ++layer) {
        const auto q = random_matrix<float>(queries, 9 * 64, layer),
                   k = random_matrix<float>(90, 3 * 64, layer + 100),
                   v = random_matrix<float>(90, 3 * 64, layer + 200);
        row_major_matrix<float> out(queries, 9 * 64);
        step.run(q, k, v, out);
        ASSERT_TRUE(out == posenc::fused::attention(q, k, v, rope, options)) << target << ", layer " << layer;
      }
    }
  });
}

TEST(plan, allocates_nothing_in_run) {
  constexpr index_t keys = repetitions::few ? 900 : 3000;
  const auto q = random_matrix<float>(40, 9 * 64, 1), k = random_matrix<float>(keys, 3 * 64, 2),
             v = random_matrix<float>(keys, 3 * 64, 3);
  row_major_matrix<float> out(40, 9 * 64);
  const auto encoding = posenc::combine(rope_of(64), t5_of(9));
  for (const index_t queries : {index_t{1}, index_t{40}}) {
    const attention_options options{.heads = 9,
                                    .kv_heads = 3,
                                    .mask = posenc::causal,
                                    .visible = posenc::documents({0, 700}) & posenc::prefix_lm(30)};
    posenc::fused::plan step(encoding, options, {.queries = queries, .keys = keys});
    const auto rows = [&](const row_major_matrix<float>& m, index_t count, index_t heads) {
      return posenc::token_major(m.data(), count, heads, 64);
    };
    const long before = allocations;
    for (int layer = 0; layer < 5; ++layer)
      step.run(rows(q, queries, 9), rows(k, keys, 3), rows(v, keys, 3),
               posenc::token_major(out.data(), queries, 9, 64));
    EXPECT_EQ(allocations, before) << queries << " queries";
  }
  const long before = allocations;
  const std::vector<int> counted(3);
  EXPECT_GT(allocations, before) << "the counter works";
}

TEST(plan, says_what_it_decided) {
  using posenc::fused::bias_form, posenc::fused::kernel;
  const attention_options options{.heads = 4, .head_dim = 32, .mask = posenc::causal};
  const auto plan_of = [&](const auto& encoding, index_t queries, index_t keys) {
    return posenc::fused::plan(encoding, options, {.queries = queries, .keys = keys});
  };
  EXPECT_EQ(plan_of(rope_of(32), 1, 500).kernel(), kernel::decode);
  EXPECT_EQ(plan_of(rope_of(32), 100, 500).kernel(), kernel::prefill);
  EXPECT_EQ(plan_of(rope_of(32), 0, 500).kernel(), kernel::none);
  EXPECT_TRUE(plan_of(rope_of(32), 1, 500).rotates_on_load());
  EXPECT_EQ(plan_of(rope_of(32), 1, 500).bias(), bias_form::none);
  EXPECT_EQ(plan_of(posenc::alibi<float>{{.heads = 4}}, 1, 500).bias(), bias_form::linear);
  EXPECT_EQ(plan_of(users_line{}, 1, 500).bias(), bias_form::linear);
  EXPECT_EQ(plan_of(posenc::combine(rope_of(32), users_line{}), 1, 500).bias(), bias_form::linear);
  EXPECT_EQ(plan_of(users_pairs{}, 1, 500).bias(), bias_form::by_element);
  EXPECT_EQ(plan_of(users_pairs{}, 1, 500).kernel(), kernel::decode);
  // The reach of a table survives combination: the diagonal ends where the bias stops changing.
  const index_t reach = t5_of(4).bias_reach();
  EXPECT_EQ(plan_of(t5_of(4), 1, 8192).bias_distances(), reach + 1);
  EXPECT_EQ(plan_of(posenc::combine(rope_of(32), t5_of(4)), 1, 8192).bias_distances(), reach + 1);
  EXPECT_EQ(plan_of(posenc::combine(t5_of(4), users_step{300}), 1, 8192).bias_distances(), 301);
  EXPECT_EQ(plan_of(posenc::combine(users_step{20}, rope_of(32)), 1, 8192).bias_distances(), 21);
  EXPECT_GT(plan_of(rope_of(32), 1, 100'000).tasks(), 1);
  EXPECT_GT(plan_of(rope_of(32), 1, 100'000).merges(), 0);
  EXPECT_EQ(plan_of(rope_of(32), 1, 500).key_runs(), 1);
  EXPECT_LT(plan_of(rope_of(32), 1, 100'000).bytes(), 2 * plan_of(rope_of(32), 1, 50'000).bytes());
  EXPECT_STREQ(plan_of(rope_of(32), 1, 500).target(), posenc::fused::target_name());
}

TEST(plan, finds_runs_in_explicit_positions) {
  // A ring buffer of 64 whose next row is 20, and a cache of which rows 30 to 49 were evicted.
  std::vector<position> ring, evicted, scattered;
  for (position row = 0; row < 64; ++row) ring.push_back(row < 20 ? row + 128 : row + 64);
  for (position row = 0; row < 64; ++row) evicted.push_back(row < 30 ? row : row + 20);
  for (position row = 0; row < 64; ++row) scattered.push_back(row * 2);
  const auto rope = rope_of(32);
  const auto q = random_matrix<float>(1, 64, 1), k = random_matrix<float>(64, 64, 2),
             v = random_matrix<float>(64, 64, 3);
  for (const auto& [where, runs] : {std::pair{&ring, 2}, std::pair{&evicted, 2}, std::pair{&scattered, 0}}) {
    std::vector<position> here{200};
    const attention_options options{.heads = 2,
                                    .mask = posenc::causal,
                                    .query_positions = posenc::positions::each(here),
                                    .key_positions = posenc::positions::each(*where)};
    posenc::fused::plan step(rope, options, {.queries = 1, .keys = 64});
    EXPECT_EQ(step.key_runs(), runs);
    EXPECT_EQ(step.kernel(), runs > 0 ? posenc::fused::kernel::decode : posenc::fused::kernel::prefill);
    row_major_matrix<float> out(1, 64);
    step.run(q, k, v, out);
    EXPECT_LT(fused_calls::relative_error(out, posenc::reference::attention(q, k, v, rope, options)), 1e-6);
  }
}

TEST(plan, decodes_text_and_images_under_several_axes) {
  const posenc::rope_options options_of_rope{.head_dim = 32, .pairing = posenc::pairing::half_split};
  const std::vector<index_t> sections{8, 4, 4};
  std::vector<posenc::axis_positions> image;
  for (position n = 0; n < 12; ++n) image.push_back({0, n / 4, n % 4, 0});
  const posenc::multi_axis_rope<float> without_table{options_of_rope, sections,
                                                     posenc::axis_order::interleaved},
      with_table{options_of_rope, sections, posenc::axis_order::interleaved, image, -8};
  const auto q = random_matrix<float>(1, 64, 1), k = random_matrix<float>(64, 64, 2),
             v = random_matrix<float>(64, 64, 3);
  const auto run = [&](const auto& encoding, position first_key) {
    const attention_options options{
        .heads = 2, .mask = posenc::causal, .key_positions = posenc::positions::from(first_key)};
    posenc::fused::plan step(encoding, options, {.queries = 1, .keys = 64});
    EXPECT_EQ(step.kernel(), posenc::fused::kernel::decode) << first_key;
    row_major_matrix<float> out(1, 64);
    step.run(q, k, v, out);
    EXPECT_LT(fused_calls::relative_error(out, posenc::reference::attention(q, k, v, encoding, options)),
              1e-6);
  };
  run(without_table, 0);
  run(with_table, 12);  // all of it is text
  run(with_table, 3);   // some of it is the image
}

TEST(plan, follows_a_cache_that_grows) {
  const auto encoding = posenc::combine(rope_of(32), t5_of(2));
  const auto q = random_matrix<float>(1, 64, 1), k = random_matrix<float>(200, 64, 2),
             v = random_matrix<float>(200, 64, 3);
  const attention_options options{.heads = 2, .mask = posenc::causal};
  posenc::fused::plan step(encoding, options, {.queries = 1, .keys = 1});
  for (index_t n = 1; n <= 200; ++n) {
    step.reshape(1, n);
    row_major_matrix<float> out(1, 64);
    const row_major_matrix<float> keys = k.topRows(n), values = v.topRows(n);
    step.run(q, keys, values, out);
    ASSERT_TRUE(out == posenc::fused::attention(q, keys, values, encoding, options)) << n << " keys";
  }
}

TEST(plan, keeps_what_it_needs_and_moves) {
  const auto q = random_matrix<float>(3, 64, 1), k = random_matrix<float>(50, 64, 2),
             v = random_matrix<float>(50, 64, 3);
  const attention_options options{.heads = 2, .mask = posenc::causal, .visible = posenc::documents({0, 45})};
  posenc::fused::plan made(posenc::combine(rope_of(32), posenc::alibi<float>{{.heads = 2}}), options,
                           {.queries = 3, .keys = 50}, posenc::fused::serial_executor{});
  posenc::fused::plan moved = std::move(made);
  row_major_matrix<float> out(3, 64);
  moved.run(q, k, v, out);
  EXPECT_TRUE(out == posenc::fused::attention(
                         q, k, v, posenc::combine(rope_of(32), posenc::alibi<float>{{.heads = 2}}), options));
}

TEST(plan, takes_each_tensor_in_its_own_type) {
  const auto rope = rope_of(32);
  const attention_options options{.heads = 2, .mask = posenc::causal};
  const auto q = random_matrix<float>(2, 64, 1);
  const auto k = random_matrix<Eigen::bfloat16>(50, 64, 2);
  const auto v = random_matrix<Eigen::half>(50, 64, 3);
  row_major_matrix<float> out(2, 64);
  posenc::fused::plan step(rope, options,
                           {.queries = 2,
                            .keys = 50,
                            .k = posenc::fused::storage::bfloat16,
                            .v = posenc::fused::storage::float16});
  step.run(q, k, v, out);
  const auto expected = posenc::reference::attention(q, k, v, rope, options);
  EXPECT_LT(fused_calls::relative_error(out, expected), 1e-6);
  EXPECT_REFUSAL(step.run(q, v, k, out), std::invalid_argument, "k is stored as half, planned for bfloat16");
}

TEST(plan, refuses_in_words_what_does_not_fit) {
  const auto rope = rope_of(32);
  const attention_options options{.heads = 2, .mask = posenc::causal};
  EXPECT_REFUSAL((posenc::fused::plan(posenc::no_encoding{}, options, {.queries = 1, .keys = 4})),
                 std::invalid_argument, "head_dim is known neither");
  posenc::fused::plan step(rope, options, {.queries = 1, .keys = 4});
  const auto q = random_matrix<float>(1, 64, 1), k = random_matrix<float>(5, 64, 2);
  row_major_matrix<float> out(1, 64);
  EXPECT_REFUSAL(step.run(q, k, k, out), std::invalid_argument,
                 "5 keys, planned for 1 and 4: call reshape(1, 5) first");
  // Heads and tokens swapped: the lengths are wrong as well, but reshape would not help.
  const auto keys = posenc::as_heads(k, 2);
  EXPECT_REFUSAL(step.run(posenc::token_major(q.data(), 2, 1, 32), keys, keys, posenc::as_heads(out, 2)),
                 std::invalid_argument,
                 "q has 1 heads and k and v 2, planned for options of heads 2 and kv_heads 2");
  EXPECT_REFUSAL(step.run(posenc::as_heads(q, 4), posenc::as_heads(k, 4), posenc::as_heads(k, 4),
                          posenc::as_heads(out, 4)),
                 std::invalid_argument, "q has 4 heads");
  EXPECT_REFUSAL(step.run(posenc::token_major(q.data(), 1, 2, 16), posenc::token_major(k.data(), 4, 2, 16),
                          posenc::token_major(k.data(), 4, 2, 16), posenc::token_major(out.data(), 1, 2, 16)),
                 std::invalid_argument,
                 "head_dim 16 and value_dim 16, planned for 32 and 32 (of the shape, else of the options");
  EXPECT_REFUSAL(
      (posenc::fused::plan(users_step{-1}, {.heads = 2, .head_dim = 8}, {.queries = 1, .keys = 4})),
      std::invalid_argument, "bias_reach() of this encoding is -1");
}

/// A training step's tensors, the forward's results among them.
struct training_step {
  attention_options options{.heads = 6, .kv_heads = 2, .mask = posenc::causal};
  row_major_matrix<float> q, k, v, d_out;
  posenc::attention_result<float> forward{};

  template <class E>
  training_step(const E& encoding, index_t queries, index_t keys, std::span<const double> sinks = {})
      : q(random_matrix<float>(queries, 6 * 32, 1)),
        k(random_matrix<float>(keys, 2 * 32, 2)),
        v(random_matrix<float>(keys, 2 * 24, 3)),
        d_out(random_matrix<float>(queries, 6 * 24, 4)) {
    options.sinks = sinks;
    forward = posenc::fused::attention_with_log_sum_exp(q, k, v, encoding, options);
  }
  [[nodiscard]] posenc::fused::shape shape() const {
    return {.queries = q.rows(), .keys = k.rows(), .head_dim = 32, .value_dim = 24};
  }
  /// Its views, with room for gradients in `to`.
  [[nodiscard]] posenc::backward_sequence<float> views(posenc::attention_gradients<float>& to) const {
    to.q.resize(q.rows(), q.cols()), to.k.resize(k.rows(), k.cols()), to.v.resize(v.rows(), v.cols());
    return {.q = posenc::as_heads(q, 6),
            .k = posenc::as_heads(k, 2),
            .v = posenc::as_heads(v, 2),
            .out = posenc::as_heads(forward.output, 6),
            .log_sum_exp = {forward.log_sum_exp.data(), q.rows(), 6, 6, 1},
            .d_out = posenc::as_heads(d_out, 6),
            .d_q = posenc::as_heads(to.q, 6),
            .d_k = posenc::as_heads(to.k, 2),
            .d_v = posenc::as_heads(to.v, 2)};
  }
};
template <class Gradients>
void expect_same_bits(const Gradients& found, const Gradients& wanted) {
  EXPECT_TRUE(found.q == wanted.q && found.k == wanted.k && found.v == wanted.v);
  EXPECT_EQ(found.sinks, wanted.sinks);
  EXPECT_EQ(found.head_scales, wanted.head_scales);
  ASSERT_EQ(found.encoding.blocks(), wanted.encoding.blocks());
  for (std::size_t n = 0; n < wanted.encoding.blocks(); ++n) {
    EXPECT_EQ(found.encoding.name(n), wanted.encoding.name(n));
    EXPECT_TRUE(found.encoding.block(n) == wanted.encoding.block(n)) << wanted.encoding.name(n);
  }
}

TEST(backward_plan, gives_the_bits_of_one_shot_calls_without_allocations) {
  const auto encoding = posenc::combine(rope_of(32), t5_of(6));
  const std::vector<double> sinks{0, 1, -1, 0.5, 2, 0.25};
  const posenc::fused::thread_pool pool(3);
  const training_step first(encoding, 70, 90, sinks), longer(encoding, 100, 100, sinks);
  const auto wanted_of = [&](const training_step& t) {
    return posenc::fused::attention_backward(t.q, t.k, t.v, t.forward, t.d_out, encoding, t.options);
  };
  posenc::fused::backward_plan made(encoding, first.options, first.shape(), pool);
  posenc::fused::backward_plan plan = std::move(made);
  posenc::attention_gradients<float> found;
  for (const training_step* step : {&first, &longer, &first}) {
    plan.reshape(step->q.rows(), step->k.rows());
    plan.run_backward(step->q, step->k, step->v, step->forward, step->d_out, found);
    expect_same_bits(found, wanted_of(*step));

    const auto views = step->views(found);
    const long before = allocations;
    const posenc::parameter_gradients<float>* learned = nullptr;
    for (int layer = 0; layer < 3; ++layer) learned = &plan.run_backward(views);
    plan.run_backward(step->q, step->k, step->v, step->forward, step->d_out, found);
    EXPECT_EQ(allocations, before);
    EXPECT_TRUE(learned->encoding["table"] == wanted_of(*step).encoding["table"]);
    expect_same_bits(found, wanted_of(*step));
  }
  EXPECT_GT(plan.tasks(), 1);
  EXPECT_GT(plan.bytes(), 0u);
  EXPECT_EQ(plan.bias(), posenc::fused::bias_form::diagonal);
}

TEST(backward_plan, refuses_in_words_what_does_not_fit) {
  const auto rope = rope_of(32);
  const training_step step(rope, 5, 7);
  posenc::fused::backward_plan plan(rope, step.options, step.shape());
  posenc::attention_gradients<float> to;
  const auto views = step.views(to);
  to.q.setConstant(7), to.k.setConstant(7), to.v.setConstant(7);
  const auto refused = [&](const auto& change, const char* sentence) {
    auto wrong = views;
    change(wrong);
    EXPECT_REFUSAL(plan.run_backward(wrong), std::invalid_argument, sentence);
    EXPECT_TRUE((to.q.array() == 7).all() && (to.k.array() == 7).all() && (to.v.array() == 7).all());
  };
  refused([](auto& s) { s.log_sum_exp = {}; }, "log_sum_exp of the forward is missing");
  refused([](auto& s) { s.q.tokens = 4; }, "4 queries and 7 keys, planned for 5 and 7: call reshape(4, 7)");
  refused([](auto& s) { s.k.heads = s.v.heads = 1; }, "q has 6 heads and k and v 1, planned for");
  refused([](auto& s) { s.d_out.tokens = 3; }, "d_out is 3 x 6 x 24, needed is 5 x 6 x 24");
  refused([](auto& s) { s.d_k = s.d_q, s.d_k.tokens = 7, s.d_k.heads = 2; }, "overlaps another gradient");
  const auto halves = random_matrix<Eigen::half>(7, 64, 2);
  row_major_matrix<Eigen::half> d_halves(7, 64);
  EXPECT_REFUSAL(plan.run_backward(posenc::backward_sequence<float, Eigen::half, float>{
                     views.q, posenc::as_heads(halves, 2), views.v, views.out, views.log_sum_exp, views.d_out,
                     views.d_q, posenc::as_heads(d_halves, 2), views.d_v}),
                 std::invalid_argument, "k is stored as half, planned for float");

  EXPECT_THROW(plan.reshape(5, -1), std::invalid_argument);
  EXPECT_REFUSAL(plan.run_backward(views), std::invalid_argument, "the last reshape was refused");
  plan.reshape(5, 7);
  plan.run_backward(views);
  expect_same_bits(to, [&] {
    auto wanted = posenc::fused::attention_backward(step.q, step.k, step.v, step.forward, step.d_out, rope,
                                                    step.options);
    wanted.head_scales = to.head_scales;  // the plan's, not of `to`
    return wanted;
  }());

  std::vector<std::byte> memory(plan.bytes() + 64 + sizeof(float));
  posenc::fused::workspace borrowed{std::span<std::byte>(memory)};
  posenc::fused::backward_plan in_scratch(rope, step.options, step.shape(), {.memory = &borrowed});
  auto wrong = views;
  wrong.d_v.data = reinterpret_cast<float*>(memory.data());
  EXPECT_REFUSAL(in_scratch.run_backward(wrong), std::invalid_argument,
                 "the borrowed workspace overlaps d_v in memory");
}

TEST(backward, refuses_values_that_rotate) {
  const posenc::rope<float> rotates_values{
      {.head_dim = 32, .pairing = posenc::pairing::half_split, .rotates_values = true}};
  const auto x = random_matrix<float>(5, 64, 1);
  const attention_options options{.heads = 2};
  const auto forward = posenc::fused::attention_with_log_sum_exp(x, x, x, rotates_values, options);
  constexpr const char* sentence = "no gradient through values that rotate (rotates_values)";
  EXPECT_REFUSAL((posenc::fused::backward_plan(rotates_values, options, {.queries = 5, .keys = 5})),
                 std::invalid_argument, sentence);
  EXPECT_REFUSAL(
      static_cast<void>(posenc::fused::attention_backward(x, x, x, forward, x, rotates_values, options)),
      std::invalid_argument, sentence);
  EXPECT_REFUSAL(
      static_cast<void>(posenc::reference::attention_backward(x, x, x, forward, x, rotates_values, options)),
      std::invalid_argument, sentence);
}

TEST(batch, refuses_outputs_that_others_read_or_write) {
  const auto rope = rope_of(32);
  auto a = random_matrix<float>(6, 64, 1), b = random_matrix<float>(6, 64, 2),
       out = random_matrix<float>(6, 64, 3);
  const attention_options options{.heads = 2};
  const auto one = [&](row_major_matrix<float>& in, row_major_matrix<float>& to) {
    const auto view = posenc::as_heads(in, 2);
    return posenc::fused::sequence<float>{view, view, view, posenc::as_heads(to, 2), {}, options};
  };
  const row_major_matrix<float> a_before = a, b_before = b, out_before = out;
  const std::array reads_other{one(a, out), one(out, b)}, writes_same{one(a, out), one(b, out)};
  const auto run = [&](const auto& batch) {
    posenc::fused::attention_batch(std::span<const posenc::fused::sequence<float>>(batch), rope);
  };
  EXPECT_REFUSAL(run(reads_other), std::invalid_argument,
                 "output of sequence 0 overlaps q, k or v of sequence 1");
  EXPECT_REFUSAL(run(writes_same), std::invalid_argument, "sequences 0 and 1 write the same memory");
  EXPECT_TRUE(a == a_before && b == b_before && out == out_before);
  posenc::fused::workspace over_k(std::as_writable_bytes(std::span<float>(b.data(), 6 * 64)));
  EXPECT_THROW(
      posenc::fused::attention_into(posenc::as_heads(a, 2), posenc::as_heads(b, 2), posenc::as_heads(b, 2),
                                    rope, options, posenc::as_heads(out, 2), {}, {.memory = &over_k}),
      std::invalid_argument);
  EXPECT_TRUE(b == b_before);
}

TEST(batch, of_many_sequences_allocates_a_few_times) {
  constexpr index_t count = 300, keys = 40;
  const auto encoding = rope_of(64);
  const auto q = random_matrix<float>(count, 64, 1), k = random_matrix<float>(keys, 64, 2);
  row_major_matrix<float> out(count, 64);
  std::vector<posenc::fused::sequence<float>> sequences;
  for (index_t n = 0; n < count; ++n)
    sequences.push_back({posenc::token_major(q.data() + n * 64, 1, 1, 64),
                         posenc::token_major(k.data(), keys, 1, 64),
                         posenc::token_major(k.data(), keys, 1, 64),
                         posenc::token_major(out.data() + n * 64, 1, 1, 64),
                         {},
                         {.mask = posenc::causal}});
  const long before = allocations;
  posenc::fused::attention_batch(sequences, encoding);
  EXPECT_LT(allocations - before, 30);  // one for each sequence would copy the scratch of all before it
}

TEST(batch, a_workspace_for_no_worker_is_refused) {
  const auto x = random_matrix<float>(6, 64, 1);
  row_major_matrix<float> out(6, 64);
  const auto view = posenc::as_heads(x, 2);
  const posenc::fused::sequence<float> one{view, view, view, posenc::as_heads(out, 2), {}, {.heads = 2}};
  const std::span<const posenc::fused::sequence<float>> all(&one, 1);
  EXPECT_REFUSAL(static_cast<void>(posenc::fused::workspace_bytes(all, rope_of(32), 0)),
                 std::invalid_argument, "executor of 0 workers");
  std::vector<std::byte> memory(posenc::fused::workspace_bytes(all, rope_of(32), 1));
  posenc::fused::workspace exact{std::span<std::byte>(memory)};
  posenc::fused::attention_batch(all, rope_of(32), {.memory = &exact});
  EXPECT_TRUE(out == posenc::fused::attention(x, x, x, rope_of(32), {.heads = 2}));
  posenc::fused::workspace small{std::span<std::byte>(memory).first(memory.size() - 64)};
  EXPECT_THROW(posenc::fused::attention_batch(all, rope_of(32), {.memory = &small}), std::invalid_argument);
}

// A plan keeps a reference to an executor that is not small: a temporary is refused where it would dangle.
template <class X>
constexpr bool plans_with = std::is_constructible_v<posenc::fused::plan, const posenc::rope<float>&,
                                                    const attention_options&, const posenc::fused::shape&, X>;
static_assert(plans_with<posenc::fused::thread_pool&> && plans_with<const posenc::fused::thread_pool&>);
static_assert(!plans_with<posenc::fused::thread_pool> && !plans_with<const posenc::fused::thread_pool>);
static_assert(plans_with<posenc::fused::openmp_executor> && plans_with<posenc::fused::serial_executor>);
static_assert(plans_with<posenc::fused::execution> && plans_with<posenc::fused::executor_ref&>);

TEST(executors, give_the_same_bits) {
  const auto rope = rope_of(64);
  const auto q = random_matrix<float>(300, 4 * 64, 1), k = random_matrix<float>(300, 4 * 64, 2),
             v = random_matrix<float>(300, 4 * 64, 3);
  const attention_options options{.heads = 4, .mask = posenc::causal};
  const auto serial = posenc::fused::attention(q, k, v, rope, options);
  const posenc::fused::thread_pool pool(3);
  EXPECT_EQ(pool.workers(), 3);
  for (int round = 0; round < 20; ++round)
    ASSERT_TRUE(posenc::fused::attention(q, k, v, rope, options, pool) == serial);
  EXPECT_TRUE(posenc::fused::attention(q, k, v, rope, options, backward_executor{5}) == serial);
  EXPECT_TRUE(posenc::fused::attention(q, k, v, rope, options, posenc::fused::openmp_executor(3)) == serial);
}

TEST(scale, may_depend_on_the_head) {
  const std::vector<double> scales{0.1, 0.3, 0.2, 0.5};
  for (const index_t queries : {1, 30}) {
    const auto q = random_matrix<float>(queries, 4 * 16, 1), k = random_matrix<float>(40, 2 * 16, 2),
               v = random_matrix<float>(40, 2 * 16, 3);
    const attention_options options{.heads = 4, .kv_heads = 2, .mask = posenc::causal, .head_scales = scales};
    const auto fused = posenc::fused::attention(q, k, v, temperature_of_head{}, options);
    for (index_t h = 0; h < 4; ++h) {  // head by head, each with its own scale, the temperature folded into q
      row_major_matrix<double> q_head = q.middleCols(h * 16, 16).cast<double>();
      for (index_t i = 0; i < queries; ++i)
        q_head.row(i) *=
            1 + 0.25 * static_cast<double>(h) + 0.01 * static_cast<double>((40 - queries + i) % 5);
      const row_major_matrix<double> k_head = k.middleCols(h / 2 * 16, 16).cast<double>(),
                                     v_head = v.middleCols(h / 2 * 16, 16).cast<double>();
      const auto expected = posenc::reference::attention(
          q_head, k_head, v_head, posenc::no_encoding{},
          {.mask = posenc::causal, .scale = scales[static_cast<std::size_t>(h)]});
      EXPECT_LT((fused.middleCols(h * 16, 16).cast<double>() - expected).cwiseAbs().maxCoeff(), 1e-6)
          << "head " << h;
    }
  }
}

TEST(far_bias, of_the_lowest_float_on_every_key_is_the_mean) {
  const float lowest = std::numeric_limits<float>::lowest();
  for (const index_t queries : {1, 20}) {
    const row_major_matrix<float> q = row_major_matrix<float>::Ones(queries, 8),
                                  k = row_major_matrix<float>::Ones(3, 8),
                                  v = (row_major_matrix<float>(3, 8)
                                           << row_major_matrix<float>::Constant(1, 8, 1),
                                       row_major_matrix<float>::Constant(1, 8, 2),
                                       row_major_matrix<float>::Constant(1, 8, 6))
                                          .finished();
    std::vector<float> bias(static_cast<std::size_t>(queries * 3), lowest);
    const attention_options options{.visible =
                                        posenc::dense_bias(posenc::dense_scores(bias.data(), 1, queries, 3))};
    const auto result = posenc::fused::attention_with_log_sum_exp(q, k, v, posenc::no_encoding{}, options);
    EXPECT_NEAR(result.output(0, 0), 3, 1e-6);
    EXPECT_NEAR(result.log_sum_exp(0, 0) / lowest, 1, 1e-6);
  }
}

TEST(far_bias, of_alibi_a_million_tokens_away_loses_no_bits) {
  for (const index_t queries : {1, 40}) {
    const auto q = random_matrix<float>(queries, 2 * 32, 1), k = random_matrix<float>(100, 2 * 32, 2),
               v = random_matrix<float>(100, 2 * 32, 3);
    const std::vector<double> slopes{0.5, 0.001};
    const auto alibi = posenc::alibi<float>::from_slopes(slopes);
    for (const position start : {position{1'000'000}, position{-3'000'000}}) {
      const attention_options options{.heads = 2, .query_positions = posenc::positions::from(start)};
      const auto expected = posenc::reference::attention_with_log_sum_exp(
          q.cast<double>().eval(), k.cast<double>().eval(), v.cast<double>().eval(),
          posenc::alibi<double>::from_slopes(slopes), options);
      const auto fused = posenc::fused::attention_with_log_sum_exp(q, k, v, alibi, options);
      EXPECT_LT(fused_calls::relative_error(fused.output, expected.output), 1e-6)
          << queries << " from " << start;
      EXPECT_LT(fused_calls::relative_error(fused.log_sum_exp, expected.log_sum_exp), 1e-6);
    }
  }
}

TEST(options, that_float_cannot_carry_are_refused) {
  const auto x = random_matrix<float>(2, 8, 1);
  const auto run = [&](const attention_options& options) {
    static_cast<void>(posenc::fused::attention(x, x, x, posenc::no_encoding{}, options));
  };
  EXPECT_REFUSAL(run({.softcap = 1e-40}), std::invalid_argument, "softcap 1e-40 is too small");
  EXPECT_REFUSAL(run({.scale = 3e38}), std::invalid_argument, "scale 3e+38 is too large");
  EXPECT_REFUSAL(run({.needs_sinks = true}), std::invalid_argument, "set sinks to the layer's 1 logits");
  EXPECT_REFUSAL(
      static_cast<void>(posenc::fused::attention(x, x, x, posenc::alibi<float>{{.heads = 8}}, {.heads = 4})),
      std::invalid_argument, "made for 8 heads, the option heads says 4");
  EXPECT_REFUSAL(run({.heads = 4, .head_dim = 8}), std::invalid_argument, "is the option heads right?");
  const posenc::sinusoidal<float> embeds{{.width = 8, .convention = posenc::sinusoid::paper}};
  EXPECT_REFUSAL(static_cast<void>(posenc::fused::attention(x, x, x, embeds)), std::invalid_argument,
                 "embed_rows");
  EXPECT_NO_THROW(static_cast<void>(posenc::fused::attention(x, x, x, embeds, {.is_embedded = true})));
}

TEST(options, no_keys_and_an_empty_list_of_positions_give_zeros) {
  // The list ends where its memory does: the sanitizers see a look at what would be its first entry.
  const std::vector<position> one{7};
  const std::span<const position> none = std::span(one).subspan(1);
  const auto q = random_matrix<float>(3, 16, 1), k = random_matrix<float>(0, 16, 2);
  const attention_options options{.heads = 2,
                                  .mask = posenc::causal,
                                  .query_positions = posenc::positions::from(7),
                                  .key_positions = posenc::positions::each(none)};
  for (const auto& result : {posenc::fused::attention_with_log_sum_exp(q, k, k, rope_of(8), options),
                             posenc::reference::attention_with_log_sum_exp(q, k, k, rope_of(8), options)}) {
    EXPECT_TRUE((result.output.array() == 0).all());
    EXPECT_TRUE((result.log_sum_exp.array() == -std::numeric_limits<float>::infinity()).all());
  }
}

TEST(options, a_sink_of_minus_infinity_is_no_sink) {
  const auto x = random_matrix<float>(4, 8, 1);
  const std::vector<double> none{-std::numeric_limits<double>::infinity()};
  const auto without = posenc::fused::attention_with_log_sum_exp(x, x, x, posenc::no_encoding{}, {});
  const auto with =
      posenc::fused::attention_with_log_sum_exp(x, x, x, posenc::no_encoding{}, {.sinks = none});
  EXPECT_TRUE(with.output == without.output && with.log_sum_exp == without.log_sum_exp);
}

}  // namespace
