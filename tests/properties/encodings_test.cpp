// SPDX-License-Identifier: MIT
/// \file
/// The property battery stamped over encoding × scalar × pairing × positions 0, 1, huge and negative.
#include <posenc/testing.hpp>

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>

namespace {

namespace battery = posenc::testing;
using posenc::index_t;
using posenc::pairing;
using posenc::position;

constexpr index_t heads = 4, head_dim = 8, model_dim = heads * head_dim;

/// What may be called rounding when scalars are stored as S and angles or tables as T.
template <class S, class T = S>
double rounding() {
  if (sizeof(S) == 2) return std::is_same_v<S, Eigen::bfloat16> ? 6e-2 : 8e-3;
  return std::is_same_v<S, float> || std::is_same_v<T, float> ? 3e-6 : 3e-14;
}

posenc::row_major_matrix<double> numbers(index_t rows, index_t columns, std::uint64_t seed) {
  return posenc::learned_absolute<double>::random(
             {.rows = rows, .width = columns, .stddev = 0.5, .seed = seed})
      .table();
}
template <class T>
posenc::row_major_matrix<T> numbers_as(index_t rows, index_t columns, std::uint64_t seed) {
  return numbers(rows, columns, seed).template cast<T>();
}

// The cases: an encoding of table scalar T, and what is true of it.
// ------------------------------------------

constexpr position far_out = position{1} << 40;
const std::vector<position> everywhere{0, 1, 1'000'003, far_out, -4'097, -far_out};

template <class T>
struct no_positions {
  using scalar = T;
  static constexpr const char* name = "no_encoding";
  static constexpr bool sees_order = false, relative = true, rotation = false, tells_all_apart = false;
  std::vector<position> starts = everywhere;
  auto make() const { return posenc::no_encoding{}; }
};

template <class T>
struct learned {
  using scalar = T;
  static constexpr bool sees_order = true, relative = false, rotation = false, tells_all_apart = true;
  std::vector<position> starts{17, 40, 100, 400};
  auto make() const { return posenc::learned_absolute<T>{numbers_as<T>(512, model_dim, 3)}; }
};

template <class T, posenc::sinusoid convention>
struct sinusoidal {
  using scalar = T;
  static constexpr bool sees_order = true, relative = false, rotation = false, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const { return posenc::sinusoidal<T>{{.width = model_dim, .convention = convention}}; }
};

template <class T, posenc::relative_direction direction>
struct clipped {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const {
    const posenc::relative_clip clip{.direction = direction, .left = 17, .right = 9};
    return posenc::relative_bias<T>{
        clip, posenc::bias_table<T>::rows_by_heads(numbers_as<T>(clip.rows(), heads, 5))};
  }
};

template <class T, bool bidirectional>
struct t5 {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false,
                        tells_all_apart = !bidirectional;  // 16 causal distances have a bucket each
  std::vector<position> starts = everywhere;
  auto make() const {
    return posenc::t5_bias<T>{{.buckets = 32, .max_distance = 128, .bidirectional = bidirectional},
                              posenc::bias_table<T>::rows_by_heads(numbers_as<T>(32, heads, 6))};
  }
};

template <class T>
struct shaw {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const {
    const posenc::relative_clip clip{
        .direction = posenc::relative_direction::key_minus_query, .left = 17, .right = 9};
    return posenc::shaw_with_values<T>{clip, numbers_as<T>(clip.rows(), head_dim, 7),
                                       numbers_as<T>(clip.rows(), head_dim, 8)};
  }
};

template <class T>
struct alibi {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const { return posenc::alibi<T>{{.heads = heads}}; }
};

/// RoPE, its scalings, partial widths: everything that turns.
template <class T, pairing layout, class Scaling = posenc::no_scaling, index_t width = head_dim,
          index_t offset = 0>
struct rope {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = true, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  static Scaling scaling() {
    if constexpr (std::is_same_v<Scaling, posenc::no_scaling>)
      return {};
    else if constexpr (std::is_same_v<Scaling, posenc::yarn>)
      return {.factor = 4, .original_context = 64};
    else
      return {.factor = 4};
  }
  auto make() const {
    return posenc::rope<T>{
        {.head_dim = head_dim, .rotary_dim = width, .rotary_offset = offset, .pairing = layout}, scaling()};
  }
  battery::rotary_slice slice() const {
    return {.offset = offset, .width = width, .magnitude = make().attention_factor()};
  }
};

/// Two doors at once.
template <class T>
struct rope_and_alibi {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const {
    return posenc::combine(posenc::rope<T>{{.head_dim = head_dim, .pairing = pairing::half_split}},
                           posenc::alibi<T>{{.heads = heads}});
  }
};

template <class Case>
class every_encoding : public ::testing::Test {
 protected:
  using T = typename Case::scalar;
  Case about;
  decltype(Case{}.make()) encoding = about.make();

  battery::setup setup() const { return {.heads = heads, .head_dim = head_dim, .starts = about.starts}; }

  /// Runs a check in float, double and both 16-bit formats.
  template <class Check>
  void in_all_scalars(const Check& check) {
    check(double{}), check(float{}), check(Eigen::half{}), check(Eigen::bfloat16{});
  }
};

using posenc::relative_direction;
using posenc::sinusoid;
using cases = ::testing::Types<
    no_positions<double>, learned<double>, learned<float>, sinusoidal<double, sinusoid::paper>,
    sinusoidal<float, sinusoid::paper>, sinusoidal<double, sinusoid::marian>,
    sinusoidal<double, sinusoid::tensor2tensor>, sinusoidal<double, sinusoid::whisper>,
    clipped<double, relative_direction::key_minus_query>, clipped<float, relative_direction::query_minus_key>,
    t5<double, true>, t5<float, false>, shaw<double>, shaw<float>, alibi<double>, alibi<float>,
    rope<double, pairing::half_split>, rope<double, pairing::interleaved>, rope<float, pairing::half_split>,
    rope<float, pairing::interleaved>, rope<double, pairing::half_split, posenc::position_interpolation>,
    rope<double, pairing::interleaved, posenc::theta_scaling>,
    rope<double, pairing::half_split, posenc::yarn>,
    rope<double, pairing::interleaved, posenc::no_scaling, 4>,
    rope<float, pairing::half_split, posenc::no_scaling, 4, 4>,
    rope<double, pairing::half_split, posenc::yarn, 4>, rope_and_alibi<double>>;
TYPED_TEST_SUITE(every_encoding, cases);

#define POSENC_EXPECT_WITHIN(result, bound)                                                          \
  do {                                                                                               \
    const battery::check_result found = result;                                                      \
    EXPECT_LE(found.worst_error, bound) << found.where << " (" << sizeof(scalar) << "-byte scalar)"; \
  } while (false)

TYPED_TEST(every_encoding, positions_travel_with_their_tokens) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    POSENC_EXPECT_WITHIN(battery::permutation_equivariance<S>(this->encoding, this->setup()), rounding<S>());
    battery::setup both_ways = this->setup();
    both_ways.mask = posenc::bidirectional;
    POSENC_EXPECT_WITHIN(battery::permutation_equivariance<S>(this->encoding, both_ways), rounding<S>());
  });
}

TYPED_TEST(every_encoding, order_is_seen_or_not) {
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

TYPED_TEST(every_encoding, only_relative_encodings_survive_a_shift) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    const auto shift = battery::relative_shift<S>(this->encoding, this->setup());
    if (TypeParam::relative)
      POSENC_EXPECT_WITHIN(shift, (rounding<S, typename TypeParam::scalar>()));
    else
      EXPECT_GE(shift.worst_error, 1e-2);
  });
}

TYPED_TEST(every_encoding, distances_are_told_apart) {
  const auto collision = battery::told_apart<double>(this->encoding, this->setup());
  if (TypeParam::tells_all_apart)
    EXPECT_LT(collision.worst_error, 1) << collision.where;
  else
    EXPECT_EQ(collision.worst_error, 1);
}

TYPED_TEST(every_encoding, chunks_and_parts_equal_the_whole) {
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

TYPED_TEST(every_encoding, strides_change_no_bit) {
  this->in_all_scalars([&]<class S>(S) {
    using scalar = S;
    POSENC_EXPECT_WITHIN(battery::strided_equals_packed<S>(this->encoding, this->setup()), 0);
  });
}

TYPED_TEST(every_encoding, only_its_own_row_is_written) {
  if constexpr (requires { battery::stays_in_row<float>(this->encoding); })
    this->in_all_scalars([&]<class S>(S) {
      using scalar = S;
      POSENC_EXPECT_WITHIN(battery::stays_in_row<S>(this->encoding, this->setup()), 0);
    });
}

TYPED_TEST(every_encoding, rotations_keep_norms_and_add_up) {
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

TYPED_TEST(every_encoding, derivatives_are_right) {
  using scalar = double;
  battery::setup small = this->setup();
  small.tokens = 2;
  small.starts.resize(2);
  POSENC_EXPECT_WITHIN(battery::gradient(this->encoding, small), 1e-9);
}

TEST(locality, sinusoids_are_local_and_a_fresh_learned_table_is_not) {
  const battery::setup at{.starts = {0, 1, 100, 1'000'003}};
  const posenc::sinusoidal<double> wave{{.width = 64, .convention = sinusoid::paper}};
  EXPECT_LE(battery::locality<double>(wave, 64, at).worst_error, 0.65);
  const auto table =
      posenc::learned_absolute<double>::random({.rows = 256, .width = 64, .stddev = 1, .seed = 1});
  EXPECT_GE(battery::locality<double>(table, 64, {.starts = {0, 100}}).worst_error, 0.95);
}

}  // namespace
