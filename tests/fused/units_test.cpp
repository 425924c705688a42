// SPDX-License-Identifier: MIT
/// \file
/// Products of pieces of bfloat16 on a matrix unit: what each arithmetic promises, what plans choose and refuse, and that
/// all else holds as it does for products of floats. The emulated unit runs on every instruction set.
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"
#include "repetitions.hpp"

namespace units_test {

using Eigen::bfloat16;
using Eigen::half;
using fused_calls::random_matrix;
using fused_calls::relative_error;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;
using posenc::fused::arithmetic;
using posenc::fused::execution;
using posenc::fused::matrix_unit;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Calls with(unit) for every unit of an instruction set and this machine.
template <class With>
void on_every_unit(const With& with) {
  sweep::on_every_target([&](const char* target) {
    const auto kernels = posenc::detail::fused_kernels::this_isa::kernels();
    for (const matrix_unit unit : {matrix_unit::emulated, matrix_unit::avx512_bf16, matrix_unit::amx})
      if (kernels.has_unit(unit))
        with(unit, std::string(target) + ", " + posenc::detail::fused_units::name_of(unit));
  });
}

template <class T>
posenc::rope<T> rope_of(index_t head_dim) {
  return posenc::rope<T>{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
}

/// One causal call far out, and its answer in double.
template <class S>
struct call {
  index_t head_dim = 32, tokens = 70;  // the emulation is slow in an unoptimised build
  posenc::attention_options options;
  row_major_matrix<S> q, k, v;
  row_major_matrix<double> expected;

  explicit call(position start) : options{.heads = 2, .kv_heads = 1, .mask = posenc::causal} {
    options.key_positions = posenc::positions::from(start);
    q = random_matrix<S>(tokens, 2 * head_dim, 1), k = random_matrix<S>(tokens, head_dim, 2);
    v = random_matrix<S>(tokens, head_dim, 3);
    const auto widened = [](const row_major_matrix<S>& m) {
      return row_major_matrix<double>(m.template cast<float>().template cast<double>());
    };
    expected =
        posenc::reference::attention(widened(q), widened(k), widened(v), rope_of<double>(head_dim), options);
  }
  [[nodiscard]] row_major_matrix<S> run(const execution& how) const {
    return posenc::fused::attention(q, k, v, rope_of<float>(head_dim), options, how);
  }
  [[nodiscard]] double error(const execution& how) const { return relative_error(run(how), expected); }
  /// What rounding the right answer to the storage of the output costs.
  [[nodiscard]] double rounding() const {
    return relative_error(row_major_matrix<S>(expected.template cast<S>()), expected);
  }
};

TEST(MatrixUnits, KeepWhatTheirArithmeticPromisesAtEveryPosition) {
  for (const position start : repetitions::first_of_all<position>(1, {1'000'000, 131'072, 0})) {
    const call<float> in_float(start);
    const call<bfloat16> in_bfloat16(start);
    const call<half> in_half(start);
    on_every_unit([&](matrix_unit unit, const std::string& where) {
      const std::string what = where + ", from " + std::to_string(start);
      EXPECT_LE(in_float.error({.arithmetic = arithmetic::bfloat16x3, .unit = unit}), 1e-6) << what;
      const double of_two = in_float.error({.arithmetic = arithmetic::bfloat16x2, .unit = unit});
      EXPECT_LE(of_two, 1e-5) << what;
      EXPECT_LE(in_bfloat16.error({.unit = unit}), 2.5 * in_bfloat16.rounding()) << what;
      EXPECT_LE(in_half.error({.unit = unit}), 2.5 * in_half.rounding()) << what;
      // Fewer pieces are less exact: the unit, and no product of floats, gave what is above.
      EXPECT_GE(of_two, 2e-6) << what;
      EXPECT_GE(in_float.error({.arithmetic = arithmetic::bfloat16, .unit = unit}), 1e-3) << what;
    });
  }
}

TEST(MatrixUnits, FloatStorageIsMultipliedInFloatUnlessAskedOtherwise) {
  const call<float> one(0);
  for (const matrix_unit unit : {matrix_unit::automatic, matrix_unit::emulated, matrix_unit::none})
    EXPECT_EQ(one.run({.unit = unit}), one.run({.arithmetic = arithmetic::float32}));
  EXPECT_NE(one.run({.arithmetic = arithmetic::bfloat16x3, .unit = matrix_unit::emulated}),
            one.run({.arithmetic = arithmetic::float32}));
}

TEST(MatrixUnits, EveryNumberOfThreadsGivesTheSameBits) {
  const call<bfloat16> one(7);
  on_every_unit([&](matrix_unit unit, const std::string& where) {
    const fused_calls::backward_executor three{3};
    EXPECT_EQ(one.run({.executor = three, .unit = unit}), one.run({.unit = unit})) << where;
  });
}

TEST(MatrixUnits, TheBitsOfARowDoNotDependOnItsNeighbours) {
  // Other queries and heads see other keys and grow at other times; row 40 of head 1 sees the same.
  const call<float> one(0);
  for (const arithmetic how : {arithmetic::bfloat16, arithmetic::bfloat16x2}) {
    auto q = random_matrix<float>(one.tokens, 2 * one.head_dim, 99);
    q *= 30.0f;
    q.block(40, one.head_dim, 1, one.head_dim) = one.q.block(40, one.head_dim, 1, one.head_dim);
    const execution by{.arithmetic = how, .unit = matrix_unit::emulated};
    const auto other =
        posenc::fused::attention(q, one.k, one.v, rope_of<float>(one.head_dim), one.options, by);
    EXPECT_EQ(other.block(40, one.head_dim, 1, one.head_dim),
              one.run(by).block(40, one.head_dim, 1, one.head_dim));
  }
}

TEST(MatrixUnits, ScoresThatGrowTileAfterTileAreRescaled) {
  // Every tile of keys is larger than the one before, by little, by enough to be raised, and by far.
  for (const float growth : repetitions::first_of_all<float>(1, {3.0f, 0.5f, 40.0f})) {
    const index_t keys = 300, queries = 20, channels = 32;
    const row_major_matrix<float> q = row_major_matrix<float>::Constant(queries, channels, 1.0f);
    row_major_matrix<float> k(keys, channels);
    for (index_t t = 0; t < keys; ++t)
      k.row(t).setConstant(growth * static_cast<float>(t / 100) / 5.65685425f);  // of a score of growth
    const auto v = random_matrix<float>(keys, channels, 5);
    const auto wanted = posenc::reference::attention_with_log_sum_exp(
        row_major_matrix<double>(q.cast<double>()), row_major_matrix<double>(k.cast<double>()),
        row_major_matrix<double>(v.cast<double>()), posenc::no_encoding{}, {});
    on_every_unit([&](matrix_unit unit, const std::string& where) {
      const auto found = posenc::fused::attention_with_log_sum_exp(
          q, k, v, posenc::no_encoding{}, {}, {.arithmetic = arithmetic::bfloat16x3, .unit = unit});
      EXPECT_LE(relative_error(found.output, wanted.output), 3e-6) << where << ", " << growth;
      EXPECT_LE(relative_error(found.log_sum_exp, wanted.log_sum_exp), 1e-6) << where << ", " << growth;
    });
  }
}

TEST(MatrixUnits, NumbersThatAreNoneReachWhoSeesThemAndNoOther) {
  for (const index_t tokens : repetitions::first_of_all<index_t>(1, {70, 140}))
    for (const float value : repetitions::first_of_all<float>(2, {nan, 1e30f, infinity}))
      for (const int tensor : {0, 1, 2}) {
        auto q = random_matrix<float>(tokens, 2 * 24, 1), k = random_matrix<float>(tokens, 24, 2),
             v = random_matrix<float>(tokens, 24, 3);
        (tensor == 0 ? q : tensor == 1 ? k : v)(tokens - 20, 5) = value;
        const posenc::attention_options options{.heads = 2, .kv_heads = 1, .mask = posenc::causal};
        const auto encoding = rope_of<float>(24);
        const auto wanted = posenc::reference::attention(q, k, v, encoding, options);
        on_every_unit([&](matrix_unit unit, const std::string& where) {
          const auto found = posenc::fused::attention(q, k, v, encoding, options,
                                                      {.arithmetic = arithmetic::bfloat16x2, .unit = unit});
          for (index_t r = 0; r < tokens; ++r)
            for (index_t c = 0; c < 2 * 24; ++c) {
              ASSERT_EQ(std::isfinite(found(r, c)), std::isfinite(wanted(r, c)))
                  << where << ", " << value << " in tensor " << tensor << ", row " << r << ", channel " << c;
              if (std::isfinite(wanted(r, c))) {
                ASSERT_NEAR(found(r, c), wanted(r, c), 5e-5f * std::max(1.0f, std::abs(wanted(r, c))))
                    << where << ", " << value << " in tensor " << tensor << ", row " << r << ", channel "
                    << c;
              }
            }
        });
      }
}

posenc::fused::plan plan_of(const posenc::attention_options& options, const posenc::fused::shape& shape,
                            const execution& how) {
  return posenc::fused::plan(rope_of<float>(64), options, shape, how);
}
constexpr posenc::fused::storage f32 = posenc::fused::storage::float32,
                                 b16 = posenc::fused::storage::bfloat16,
                                 f16 = posenc::fused::storage::float16;

TEST(MatrixUnits, APlanTellsWhatItChose) {
  const auto chosen = [](posenc::fused::storage q, posenc::fused::storage cache, arithmetic asked) {
    const auto plan =
        plan_of({.heads = 2}, {.queries = 64, .keys = 64, .q = q, .k = cache, .v = cache, .out = q},
                {.arithmetic = asked, .unit = matrix_unit::emulated});
    EXPECT_EQ(plan.unit() == matrix_unit::none, plan.arithmetic() == arithmetic::float32);
    return plan.arithmetic();
  };
  EXPECT_EQ(chosen(b16, b16, arithmetic::automatic), arithmetic::bfloat16);
  EXPECT_EQ(chosen(f16, b16, arithmetic::automatic), arithmetic::bfloat16x2);
  EXPECT_EQ(chosen(f32, b16, arithmetic::automatic), arithmetic::float32);
  EXPECT_EQ(chosen(f32, f32, arithmetic::automatic), arithmetic::float32);
  EXPECT_EQ(chosen(b16, b16, arithmetic::float32), arithmetic::float32);
  EXPECT_EQ(chosen(f32, f32, arithmetic::bfloat16), arithmetic::bfloat16);
  EXPECT_EQ(chosen(b16, b16, arithmetic::bfloat16x3), arithmetic::bfloat16x3);
}

TEST(MatrixUnits, FewQueriesAndRelativeRowsAreMultipliedInFloat) {
  const execution how{.arithmetic = arithmetic::bfloat16, .unit = matrix_unit::emulated};
  const auto decode = plan_of({.heads = 2}, {.queries = 1, .keys = 64}, how);
  EXPECT_EQ(decode.kernel(), posenc::fused::kernel::decode);
  EXPECT_EQ(decode.arithmetic(), arithmetic::float32);
  const auto rows = random_matrix<float>(9, 64, 3);
  const posenc::shaw<float> shaw{
      {.direction = posenc::relative_direction::key_minus_query, .left = 4, .right = 4}, rows};
  const posenc::fused::plan relative(shaw, {.heads = 2}, {.queries = 64, .keys = 64, .head_dim = 64}, how);
  EXPECT_EQ(relative.unit(), matrix_unit::none);
}

TEST(MatrixUnits, HeadsOfALatentCacheSideBySideTakeAUnitToo) {
  const index_t heads = 40, keys = 2100, head_dim = 32, value_dim = 16;
  const auto q = random_matrix<float>(1, heads * head_dim, 1), k = random_matrix<float>(keys, head_dim, 2),
             v = random_matrix<float>(keys, value_dim, 3);
  const posenc::attention_options options{
      .heads = heads, .kv_heads = 1, .head_dim = head_dim, .value_dim = value_dim};
  const auto wanted = posenc::reference::attention(
      row_major_matrix<double>(q.cast<double>()), row_major_matrix<double>(k.cast<double>()),
      row_major_matrix<double>(v.cast<double>()), posenc::no_encoding{}, options);
  on_every_unit([&](matrix_unit unit, const std::string& where) {
    const execution how{.arithmetic = arithmetic::bfloat16x2, .unit = unit};
    const posenc::fused::plan plan(posenc::no_encoding{}, options,
                                   {.queries = 1, .keys = keys, .head_dim = head_dim, .value_dim = value_dim},
                                   how);
    EXPECT_EQ(plan.kernel(), posenc::fused::kernel::stacked) << where;
    EXPECT_EQ(plan.unit(), unit);
    EXPECT_GT(plan.merges(), 0);
    EXPECT_LE(relative_error(posenc::fused::attention(q, k, v, posenc::no_encoding{}, options, how), wanted),
              1e-5)
        << where;
  });
}

TEST(MatrixUnits, AUnitThatTheMachineLacksIsRefusedByName) {
  const auto kernels = posenc::detail::fused_kernels::this_isa::kernels();
  for (const matrix_unit unit : {matrix_unit::avx512_bf16, matrix_unit::amx}) {
    if (kernels.has_unit(unit)) continue;
    const call<bfloat16> one(0);
    row_major_matrix<bfloat16> out;
    EXPECT_THAT([&] { out = one.run({.unit = unit}); },
                ::testing::ThrowsMessage<std::invalid_argument>(
                    ::testing::StartsWith(std::string("posenc: fused attention: no matrix_unit::") +
                                          posenc::detail::fused_units::name_of(unit))));
  }
}

TEST(MatrixUnits, AWorkspaceOfTheBytesThatAreToldIsEnough) {
  const call<float> one(0);
  const execution how{.arithmetic = arithmetic::bfloat16x3, .unit = matrix_unit::emulated};
  row_major_matrix<float> out(one.tokens, 2 * one.head_dim);
  using sequence = posenc::fused::sequence<float, float, float, float>;
  const sequence sequences[] = {{posenc::token_major(one.q.data(), one.tokens, 2, one.head_dim),
                                 posenc::token_major(one.k.data(), one.tokens, 1, one.head_dim),
                                 posenc::token_major(one.v.data(), one.tokens, 1, one.head_dim),
                                 posenc::token_major(out.data(), one.tokens, 2, one.head_dim),
                                 {},
                                 one.options}};
  const auto encoding = rope_of<float>(one.head_dim);
  const std::span<const sequence> batch(sequences);
  const std::size_t bytes = posenc::fused::workspace_bytes(batch, encoding, 1, how.arithmetic, how.unit);
  EXPECT_GT(bytes, posenc::fused::workspace_bytes(batch, encoding, 1));
  std::vector<std::byte> memory(bytes);
  posenc::fused::workspace borrowed(memory);
  posenc::fused::attention_batch(batch, encoding,
                                 {.memory = &borrowed, .arithmetic = how.arithmetic, .unit = how.unit});
  EXPECT_EQ(out, one.run(how));
}

}  // namespace units_test
