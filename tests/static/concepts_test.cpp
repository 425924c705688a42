// SPDX-License-Identifier: MIT
/// \file
/// Which doors each encoding opens, and which it does not: all of it decided by the compiler.
#include <array>
#include <cstdlib>
#include <span>
#include <string_view>
#include <type_traits>

#include <gtest/gtest.h>

#include <posenc/posenc.hpp>

namespace concepts_test {

using posenc::index_t;
using posenc::position;

/// The open doors of E, as a user would name them.
struct doors {
  bool embed = false, rotate = false, bias = false, bias_by_offset = false, relative_key = false,
       relative_value = false, scale = false;
  friend constexpr bool operator==(const doors&, const doors&) = default;
};

template <class E, class S = float>
constexpr doors doors_of = {.embed = posenc::embeds<E, S>,
                            .rotate = posenc::rotates<E, S>,
                            .bias = posenc::biases<E>,
                            .bias_by_offset = posenc::biases_by_offset<E>,
                            .relative_key = posenc::has_relative_key<E>,
                            .relative_value = posenc::has_relative_value<E>,
                            .scale = posenc::scales<E>};

constexpr doors closed{};
constexpr doors embed_only{.embed = true};
constexpr doors rotate_only{.rotate = true};
constexpr doors bias_only{.bias = true, .bias_by_offset = true};

// Every encoding of ours, positive and negative in one line each.
static_assert(doors_of<posenc::no_encoding> == closed);
static_assert(doors_of<posenc::learned_absolute<float>> == embed_only);
static_assert(doors_of<posenc::sinusoidal<float>> == embed_only);
static_assert(doors_of<posenc::relative_bias<float>> == bias_only);
static_assert(doors_of<posenc::t5_bias<float>> == bias_only);
static_assert(doors_of<posenc::alibi<float>> == bias_only);
static_assert(doors_of<posenc::shaw<float>> == doors{.relative_key = true});
static_assert(doors_of<posenc::shaw_with_values<float>> ==
              doors{.relative_key = true, .relative_value = true});
static_assert(doors_of<posenc::rope<float>> == rotate_only);

// The precision of an encoding and the scalar it meets are independent.
static_assert(doors_of<posenc::rope<double>, float> == rotate_only);
static_assert(doors_of<posenc::rope<float>, double> == rotate_only);
static_assert(doors_of<posenc::rope<float>, Eigen::bfloat16> == rotate_only);
static_assert(doors_of<posenc::rope<float>, Eigen::half> == rotate_only);
static_assert(doors_of<posenc::sinusoidal<float>, Eigen::half> == embed_only);

// A user's own.
struct own_embedding {
  void embed(std::span<float> row, position p) const { row[0] += static_cast<float>(p); }
};
struct own_rotation {
  void rotate(std::span<float> head, position) const { head[0] = -head[0]; }
};
struct own_sides {
  void rotate_query(std::span<float> head, position) const { head[0] = -head[0]; }
  void rotate_key(std::span<float> head, position) const { head[0] = -head[0]; }
};
struct own_half_of_sides {
  void rotate_query(std::span<float> head, position) const { head[0] = -head[0]; }
};
struct own_bias {
  float bias(int, position offset) const { return static_cast<float>(-std::abs(offset)); }
};
struct own_pair_bias {
  float bias(int, position query, position key) const { return static_cast<float>(query * key); }
};
struct own_rows {
  std::array<float, 2> relative_key(int, position) const { return {1, 2}; }
};
struct own_scale {
  double scale(position query) const { return 1 + static_cast<double>(query); }
};
struct misspelt {
  float bais(int, position) const { return 0; }
};
struct forgot_const {
  float bias(int, position) { return 0; }
};

static_assert(doors_of<own_embedding> == embed_only);
static_assert(doors_of<own_embedding, double> == closed);
static_assert(doors_of<own_rotation> == rotate_only);
static_assert(doors_of<own_sides> == rotate_only);
static_assert(doors_of<own_half_of_sides> == closed);
static_assert(doors_of<own_bias> == bias_only);
static_assert(doors_of<own_pair_bias> == doors{.bias = true});
static_assert(doors_of<own_rows> == doors{.relative_key = true});
static_assert(doors_of<own_scale> == doors{.scale = true});
static_assert(doors_of<misspelt> == closed);
static_assert(doors_of<forgot_const> == closed);

static_assert(posenc::encoding_for<posenc::no_encoding, float>);
static_assert(posenc::encoding_for<own_bias, float>);
static_assert(!posenc::encoding_for<misspelt, float>);
static_assert(!posenc::encoding_for<forgot_const, float>);
static_assert(!posenc::encoding_for<int, float>);

// combine() opens the doors of both and no other; it stays translation-invariant where both are.
template <class A, class B>
using both = posenc::combined<A, B>;
static_assert(doors_of<both<posenc::no_encoding, posenc::no_encoding>> == closed);
static_assert(doors_of<both<posenc::rope<float>, posenc::no_encoding>> == rotate_only);
static_assert(doors_of<both<posenc::rope<float>, posenc::alibi<float>>> ==
              doors{.rotate = true, .bias = true, .bias_by_offset = true});
static_assert(doors_of<both<posenc::alibi<float>, own_pair_bias>> == doors{.bias = true});
static_assert(doors_of<both<posenc::learned_absolute<float>, own_scale>> ==
              doors{.embed = true, .scale = true});
static_assert(doors_of<both<posenc::shaw<float>, posenc::rope<float>>> ==
              doors{.rotate = true, .relative_key = true});

// Encodings are plain values.
template <class... E>
constexpr bool plain_values = ((std::is_copy_constructible_v<E> && std::is_copy_assignable_v<E> &&
                                std::is_nothrow_move_constructible_v<E>)&&...);
static_assert(plain_values<posenc::no_encoding, posenc::learned_absolute<float>, posenc::sinusoidal<float>,
                           posenc::relative_bias<float>, posenc::t5_bias<float>, posenc::alibi<float>,
                           posenc::shaw<float>, posenc::rope<float>>);

TEST(concepts, hold_at_compile_time) { SUCCEED(); }

}  // namespace concepts_test
