// SPDX-License-Identifier: MIT
/// \file
/// The property battery stamped on the encodings that do not rotate, and on two doors at once.
#include "every_encoding.hpp"

#include <vector>

#include <gtest/gtest.h>

#include <posenc/encoding.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/logit_scale.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>

namespace encodings_test {

using namespace properties;

// The cases: an encoding of table scalar T, and what is true of it.
// ------------------------------------------

template <class T>
struct no_positions {
  using scalar = T;
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

/// A temperature that grows every fourth token: not relative, since it knows where the query stands.
template <class T>
struct rope_and_temperature {
  using scalar = T;
  static constexpr bool sees_order = true, relative = false, rotation = false, tells_all_apart = true;
  std::vector<position> starts{20, 100, 1'000'003, far_out};
  auto make() const {
    return posenc::combine(posenc::rope<T>{{.head_dim = head_dim, .pairing = pairing::half_split}},
                           posenc::logit_scale::llama4(0.1, 4));
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
    rope_and_alibi<double>, rope_and_temperature<double>>;
INSTANTIATE_TYPED_TEST_SUITE_P(plain, every_encoding, cases);

TEST(locality, sinusoids_are_local_and_a_fresh_learned_table_is_not) {
  const battery::setup at{.starts = {0, 1, 100, 1'000'003}};
  const posenc::sinusoidal<double> wave{{.width = 64, .convention = sinusoid::paper}};
  EXPECT_LE(battery::locality<double>(wave, 64, at).worst_error, 0.65);
  const auto table =
      posenc::learned_absolute<double>::random({.rows = 256, .width = 64, .stddev = 1, .seed = 1});
  EXPECT_GE(battery::locality<double>(table, 64, {.starts = {0, 100}}).worst_error, 0.95);
}

}  // namespace encodings_test
