// SPDX-License-Identifier: MIT
/// \file
/// Infinities and NaNs in the inputs: they reach the queries that see them, as in the reference, and no other.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"

namespace non_finite_test {

using fused_calls::random_matrix;
using posenc::index_t;
using posenc::position;
using posenc::row_major_matrix;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Equal to a few bits where the reference is finite, and finite nowhere else.
void expect_alike(const row_major_matrix<float>& fused, const row_major_matrix<float>& reference,
                  const std::string& what) {
  for (index_t r = 0; r < reference.rows(); ++r)
    for (index_t c = 0; c < reference.cols(); ++c) {
      const bool finite = std::isfinite(reference(r, c));
      ASSERT_EQ(std::isfinite(fused(r, c)), finite) << what << ", row " << r << ", channel " << c;
      if (finite) {
        ASSERT_NEAR(fused(r, c), reference(r, c), 1e-5f) << what << ", row " << r << ", channel " << c;
      }
    }
}

struct poisoned {
  const char* name;
  float value;
  index_t key;  ///< counted from the last
  bool in_keys;
};

TEST(FusedNonFinite, ReachWhoSeesThemAndNoOther) {
  const posenc::rope<float> rope{{.head_dim = 24, .pairing = posenc::pairing::half_split}};
  for (const index_t queries : {1, 2, 3, 7, 8, 9, 40, 70})
    for (const index_t keys : {70, 140, 300})
      for (const poisoned& poison : {poisoned{"NaN in a value", nan, 0, false},
                                     {"infinity in a value", infinity, 1, false},
                                     {"NaN in a value long past", nan, 60, false},
                                     {"NaN in a key", nan, 1, true},
                                     {"NaN in a key long past", nan, 60, true}})
        for (const bool window : {false, true}) {
          posenc::attention_options options{.heads = 4, .kv_heads = 2, .mask = posenc::causal};
          if (window) options.window.lookback = 30;
          const auto q = random_matrix<float>(queries, 4 * 24, 1);
          auto k = random_matrix<float>(keys, 2 * 24, 2), v = random_matrix<float>(keys, 2 * 24, 3);
          (poison.in_keys ? k : v)(keys - 1 - poison.key, 24 + 5) = poison.value;
          expect_alike(posenc::fused::attention(q, k, v, rope, options),
                       posenc::reference::attention(q, k, v, rope, options),
                       std::string(poison.name) + ", " + std::to_string(queries) + " queries, " +
                           std::to_string(keys) + " keys" + (window ? ", window" : ""));
        }
}

/// Masks every third key.
struct every_third {
  [[nodiscard]] float bias(index_t, position, position key) const { return key % 3 == 0 ? -infinity : 0; }
};

TEST(FusedNonFinite, ABiasOfMinusInfinityHidesThemToo) {
  for (const index_t queries : {1, 40}) {
    const auto q = random_matrix<float>(queries, 16, 1);
    auto k = random_matrix<float>(60, 16, 2), v = random_matrix<float>(60, 16, 3);
    v(30, 3) = nan;
    v(33, 4) = infinity;
    k(36, 5) = nan;
    const posenc::attention_options options{.mask = posenc::causal};
    expect_alike(posenc::fused::attention(q, k, v, every_third{}, options),
                 posenc::reference::attention(q, k, v, every_third{}, options),
                 std::to_string(queries) + " queries");
  }
}

/// Hides the keys three tokens back.
struct three_back {
  [[nodiscard]] float bias(index_t, position offset) const { return offset == -3 ? -infinity : 0; }
};

TEST(FusedNonFinite, ABiasByDistanceHidesValues) {
  for (const float value : {nan, infinity, -infinity})
    for (const index_t queries : {1, 8, 9, 40})
      sweep::on_every_target([&](const char* target) {
        const auto q = random_matrix<float>(queries, 16, 1);
        const auto k = random_matrix<float>(60, 16, 2);
        auto v = random_matrix<float>(60, 16, 3);
        v(56, 3) = value;
        expect_alike(posenc::fused::attention(q, k, v, three_back{}),
                     posenc::reference::attention(q, k, v, three_back{}),
                     std::string(target) + ", " + std::to_string(queries) + " queries");
      });
}

TEST(FusedNonFinite, InSixteenBitsToo) {
  const auto check = []<class S>(S value) {
    for (const index_t queries : {1, 9})
      for (const bool in_keys : {false, true})
        sweep::on_every_target([&](const char* target) {
          const auto q = random_matrix<S>(queries, 16, 1);
          auto k = random_matrix<S>(60, 16, 2), v = random_matrix<S>(60, 16, 3);
          (in_keys ? k : v)(40, 3) = value;
          const posenc::attention_options options{.mask = posenc::causal};
          const row_major_matrix<float> fused =
              posenc::fused::attention(q, k, v, posenc::no_encoding{}, options).template cast<float>();
          const row_major_matrix<float> reference =
              posenc::reference::attention(q, k, v, posenc::no_encoding{}, options).template cast<float>();
          for (index_t r = 0; r < queries; ++r)
            for (index_t c = 0; c < 16; ++c)
              ASSERT_EQ(std::isfinite(fused(r, c)), std::isfinite(reference(r, c)))
                  << target << ", " << queries << " queries, " << (in_keys ? "key" : "value") << ", channel "
                  << c;
        });
  };
  for (const float value : {nan, infinity, -infinity}) {
    check(Eigen::half(value));
    check(Eigen::bfloat16(value));
  }
}

TEST(FusedNonFinite, EveryHalfIsReadAsItself) {
  // A value alone under a weight of one comes out as it went in.
  sweep::on_every_target([](const char* target) {
    const row_major_matrix<Eigen::half> one = row_major_matrix<Eigen::half>::Zero(1, 16);
    row_major_matrix<Eigen::half> v(1, 16);
    for (std::uint32_t bits = 0; bits < 0x10000u; bits += 16) {
      for (std::uint32_t c = 0; c < 16; ++c)
        v(0, static_cast<index_t>(c)) =
            Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(bits + c));
      const row_major_matrix<Eigen::half> out = posenc::fused::attention(one, one, v, posenc::no_encoding{});
      for (index_t c = 0; c < 16; ++c) {
        const auto in_float = static_cast<float>(v(0, c)), out_float = static_cast<float>(out(0, c));
        if (std::isnan(in_float))
          ASSERT_TRUE(std::isnan(out_float)) << target << ", " << bits + static_cast<std::uint32_t>(c);
        else
          ASSERT_EQ(out_float, in_float) << target << ", " << bits + static_cast<std::uint32_t>(c);
      }
    }
  });
}

TEST(FusedNonFinite, EveryNanIsOneWhateverItsBits) {
  for (const std::uint32_t bits :
       {0x7fc00000u, 0x7fc00001u, 0x7fc000ffu, 0x7fffffffu, 0xffc00000u, 0xffffffffu})
    for (const double softcap : {0.0, 20.0})
      for (const index_t queries : {1, 40}) {
        auto q = random_matrix<float>(queries, 16, 1);
        auto k = random_matrix<float>(60, 16, 2);
        const auto v = random_matrix<float>(60, 16, 3);
        k(7, 3) = std::bit_cast<float>(bits);
        const posenc::attention_options options{.softcap = softcap};
        const auto one_key =
            posenc::fused::attention_with_log_sum_exp(q, k, v, posenc::no_encoding{}, options);
        EXPECT_TRUE(one_key.output.array().isNaN().all()) << std::hex << bits;
        EXPECT_TRUE(one_key.log_sum_exp.array().isNaN().all()) << std::hex << bits;
      }
}

TEST(FusedNonFinite, AQueryThatIsNoNumberIsNoRowThatSawNothing) {
  const std::vector<double> sinks{0.5};
  for (const index_t queries : {1, 40})
    for (const bool with_sink : {false, true}) {
      auto q = random_matrix<float>(queries, 16, 1);
      const auto k = random_matrix<float>(60, 16, 2), v = random_matrix<float>(60, 16, 3);
      q(0, 3) = nan;
      posenc::attention_options options{};
      if (with_sink) options.sinks = sinks;
      const auto result = posenc::fused::attention_with_log_sum_exp(q, k, v, posenc::no_encoding{}, options);
      EXPECT_TRUE(result.output.row(0).array().isNaN().all());
      EXPECT_TRUE(std::isnan(result.log_sum_exp(0, 0)));
      EXPECT_TRUE(result.output.bottomRows(queries - 1).array().isFinite().all());
    }
}

TEST(FusedNonFinite, AnInfiniteLogitIsNoNumber) {
  for (const index_t queries : {1, 40}) {
    const row_major_matrix<float> q = row_major_matrix<float>::Constant(queries, 16, 1e30f);
    auto k = random_matrix<float>(60, 16, 2);
    const auto v = random_matrix<float>(60, 16, 3);
    k.row(7).setConstant(1e30f);
    const auto fused = posenc::fused::attention(q, k, v, posenc::no_encoding{});
    for (index_t r = 0; r < queries; ++r) EXPECT_TRUE(std::isnan(fused(r, 0)));
  }
}

}  // namespace non_finite_test
