// SPDX-License-Identifier: MIT
/// \file
/// The property battery as one suite of typed tests, to be stamped on cases: encoding × scalar × pairing ×
/// positions 0, 1, huge and negative.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/testing.hpp>

#include "repetitions.hpp"

namespace properties {

namespace battery = posenc::testing;
using posenc::index_t;
using posenc::pairing;
using posenc::position;

inline constexpr index_t heads = 4, head_dim = 8, model_dim = heads * head_dim;

/// What may be called rounding when scalars are stored as S and angles or tables as T.
template <class S, class T = S>
[[nodiscard]] double rounding() {
  if (sizeof(S) == 2) return std::is_same_v<S, Eigen::bfloat16> ? 6e-2 : 8e-3;
  return std::is_same_v<S, float> || std::is_same_v<T, float> ? 3e-6 : 3e-14;
}

[[nodiscard]] inline posenc::row_major_matrix<double> numbers(index_t rows, index_t columns,
                                                              std::uint64_t seed) {
  return posenc::learned_absolute<double>::random(
             {.rows = rows, .width = columns, .stddev = 0.5, .seed = seed})
      .table();
}
template <class T>
posenc::row_major_matrix<T> numbers_as(index_t rows, index_t columns, std::uint64_t seed) {
  return numbers(rows, columns, seed).template cast<T>();
}

/// A start near the limit of positions.
inline constexpr position far_out = position{1} << 61;
inline const std::vector<position> everywhere{0, 1, 1'000'003, far_out, -4'097, -far_out};

/// A case has a `scalar` (of tables and angles), make() for the encoding, the `starts` to be tried, and what
/// is true of it:
///
/// | member | meaning |
/// |---|---|
/// | sees_order | permuting tokens changes something |
/// | relative | moving all tokens changes nothing |
/// | rotation | norm and additivity hold for slice() |
/// | tells_all_apart | distances 1 to 16 all differ |
template <class Case>
class every_encoding : public ::testing::Test {
 protected:
  using T = typename Case::scalar;
  Case about;
  decltype(Case{}.make()) encoding = about.make();

  battery::setup setup() const {
    battery::setup made{.heads = heads, .head_dim = head_dim, .starts = about.starts};
    if (repetitions::few) made.starts = {about.starts.front(), about.starts.back()};
    return made;
  }

  /// Runs a check in double, in float and in one 16-bit format: half for tables of float, bfloat16 for tables
  /// of double, so that each encoding meets both without compiling everything twice.
  template <class Check>
  void in_all_scalars(const Check& check) {
    using narrow [[maybe_unused]] =
        std::conditional_t<std::is_same_v<T, float>, Eigen::half, Eigen::bfloat16>;
    check(float{});
    if constexpr (!repetitions::few) check(double{}), check(narrow{});
  }
};

TYPED_TEST_SUITE_P(every_encoding);

#define POSENC_EXPECT_WITHIN(result, bound)                                                          \
  do {                                                                                               \
    const battery::check_result found = result;                                                      \
    EXPECT_LE(found.worst_error, bound) << found.where << " (" << sizeof(scalar) << "-byte scalar)"; \
  } while (false)

TYPED_TEST_P(every_encoding, positions_travel_with_their_tokens) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    POSENC_EXPECT_WITHIN(battery::permutation_equivariance<S>(this->encoding, this->setup()), rounding<S>());
    battery::setup both_ways = this->setup();
    both_ways.mask = posenc::bidirectional;
    POSENC_EXPECT_WITHIN(battery::permutation_equivariance<S>(this->encoding, both_ways), rounding<S>());
  });
}

TYPED_TEST_P(every_encoding, order_is_seen_or_not) {
  using scalar = double;
  const auto whole = battery::permutation_invariance<double>(this->encoding, this->setup());
  const auto prefix = battery::prefix_permutation_invariance<double>(this->encoding, this->setup());
  if (TypeParam::sees_order) {
    EXPECT_GE(whole.worst_error, 1e-2);
    EXPECT_GE(prefix.worst_error, 1e-2);
  } else {
    POSENC_EXPECT_WITHIN(whole, rounding<double>());
    POSENC_EXPECT_WITHIN(prefix, rounding<double>());
  }
}

TYPED_TEST_P(every_encoding, only_relative_encodings_survive_a_shift) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    const auto shift = battery::relative_shift<S>(this->encoding, this->setup());
    if (TypeParam::relative)
      POSENC_EXPECT_WITHIN(shift, (rounding<S, typename TypeParam::scalar>()));
    else
      EXPECT_GE(shift.worst_error, 1e-2);
  });
}

TYPED_TEST_P(every_encoding, distances_are_told_apart) {
  const auto collision = battery::told_apart<double>(this->encoding, this->setup());
  if (TypeParam::tells_all_apart)
    EXPECT_LT(collision.worst_error, 1) << collision.where;
  else
    EXPECT_EQ(collision.worst_error, 1);
}

TYPED_TEST_P(every_encoding, chunks_and_parts_equal_the_whole) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    POSENC_EXPECT_WITHIN(battery::chunked_equals_whole<S>(this->encoding, this->setup()), rounding<S>());
    POSENC_EXPECT_WITHIN(battery::merged_equals_whole<S>(this->encoding, this->setup()), rounding<S>());
    const std::vector<double> sinks{0.5, -1, 3, 0};
    POSENC_EXPECT_WITHIN(
        battery::merged_equals_whole<S>(this->encoding, this->setup(), posenc::reference_attention{}, sinks),
        rounding<S>());
  });
}

TYPED_TEST_P(every_encoding, strides_change_no_bit) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    POSENC_EXPECT_WITHIN(battery::strided_equals_packed<S>(this->encoding, this->setup()), 0);
  });
}

TYPED_TEST_P(every_encoding, only_its_own_row_is_written) {
  if constexpr (requires { battery::stays_in_row<float>(this->encoding); })
    this->in_all_scalars([&]<class S>(S) {
      using scalar = S;
      POSENC_EXPECT_WITHIN(battery::stays_in_row<S>(this->encoding, this->setup()), 0);
    });
}

TYPED_TEST_P(every_encoding, rotations_keep_norms_and_add_up) {
  if constexpr (TypeParam::rotation) {
    using scalar = double;
    const double bound = rounding<double, typename TypeParam::scalar>();
    POSENC_EXPECT_WITHIN(battery::norm<double>(this->encoding, this->setup(), this->about.slice()), bound);
    POSENC_EXPECT_WITHIN(battery::additivity<double>(this->encoding, this->setup(), this->about.slice()),
                         bound);
    POSENC_EXPECT_WITHIN(battery::norm<float>(this->encoding, this->setup(), this->about.slice()),
                         rounding<float>());
    POSENC_EXPECT_WITHIN(battery::additivity<float>(this->encoding, this->setup(), this->about.slice()),
                         rounding<float>());
  }
}

TYPED_TEST_P(every_encoding, derivatives_are_right) {
  if constexpr (std::is_same_v<typename TypeParam::scalar, double>) {
    using scalar = double;
    battery::setup two_tokens = this->setup();
    two_tokens.tokens = 2;
    two_tokens.starts.resize(2);
    POSENC_EXPECT_WITHIN(battery::gradient(this->encoding, two_tokens), 1e-9);
  }
}

REGISTER_TYPED_TEST_SUITE_P(every_encoding, positions_travel_with_their_tokens, order_is_seen_or_not,
                            only_relative_encodings_survive_a_shift, distances_are_told_apart,
                            chunks_and_parts_equal_the_whole, strides_change_no_bit,
                            only_its_own_row_is_written, rotations_keep_norms_and_add_up,
                            derivatives_are_right);

}  // namespace properties
