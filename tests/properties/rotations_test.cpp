// SPDX-License-Identifier: MIT
/// \file
/// The property battery stamped on RoPE, its scalings, xPos and multi-axis RoPE.
#include "every_encoding.hpp"

#include <cstddef>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/xpos.hpp>
#include <posenc/rope/scaling.hpp>

namespace rotations_test {

using namespace properties;

template <class Scaling>
Scaling scaling_of([[maybe_unused]] index_t pairs) {
  using namespace posenc;
  if constexpr (std::is_same_v<Scaling, no_scaling>)
    return {};
  else if constexpr (std::is_same_v<Scaling, yarn>)
    return {.factor = 4, .original_context = 64};
  else if constexpr (std::is_same_v<Scaling, dynamic_ntk>)
    return {.factor = 4, .max_context = 64};
  else if constexpr (std::is_same_v<Scaling, llama3>)
    return {.factor = 4, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 64};
  else if constexpr (std::is_same_v<Scaling, longrope>)
    return {.short_factor = std::vector<double>(static_cast<std::size_t>(pairs), 1),
            .long_factor = std::vector<double>(static_cast<std::size_t>(pairs), 3),
            .original_context = 64,
            .factor = 4};
  else
    return {.factor = 4};
}

/// RoPE, its scalings, partial widths: everything that turns.
template <class T, pairing layout, class Scaling = posenc::no_scaling, index_t width = head_dim,
          index_t offset = 0>
struct rope {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = true, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const {
    return posenc::rope<T>{
        {.head_dim = head_dim, .rotary_dim = width, .rotary_offset = offset, .pairing = layout},
        scaling_of<Scaling>(width / 2),
        200};
  }
  battery::rotary_slice slice() const {
    return {.offset = offset, .rotary_dim = width, .attention_factor = make().attention_factor()};
  }
};

/// xPos grows and shrinks: no norm. Its growth leaves the range of numbers far from the origin.
template <class T>
struct xpos {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = false, tells_all_apart = true;
  std::vector<position> starts{0, 1, 300, -300};
  auto make() const {
    return posenc::xpos<T>{{.rope = {.head_dim = head_dim, .pairing = pairing::interleaved}}};
  }
};

/// Multi-axis RoPE on text alone is RoPE.
template <class T>
struct multi_axis_text {
  using scalar = T;
  static constexpr bool sees_order = true, relative = true, rotation = true, tells_all_apart = true;
  std::vector<position> starts = everywhere;
  auto make() const {
    return posenc::multi_axis_rope<T>{
        {.head_dim = head_dim, .pairing = pairing::half_split}, {2, 1, 1}, posenc::axis_order::chunked, {}};
  }
  battery::rotary_slice slice() const { return {}; }
};

/// With an image of 4 × 4 patches in front, where a token stands matters.
template <class T>
struct multi_axis_image {
  using scalar = T;
  static constexpr bool sees_order = true, relative = false, rotation = false, tells_all_apart = true;
  std::vector<position> starts{17, 40, 1'000'003};
  auto make() const {
    return posenc::multi_axis_rope<T>{{.head_dim = head_dim, .pairing = pairing::half_split},
                                      {2, 1, 1},
                                      posenc::axis_order::chunked,
                                      posenc::patch_positions(4, 5),
                                      -15};
  }
};

using cases = ::testing::Types<
    rope<double, pairing::half_split>, rope<double, pairing::interleaved>, rope<float, pairing::half_split>,
    rope<float, pairing::interleaved>, rope<double, pairing::half_split, posenc::position_interpolation>,
    rope<double, pairing::interleaved, posenc::theta_scaling>,
    rope<double, pairing::half_split, posenc::yarn>, rope<double, pairing::half_split, posenc::dynamic_ntk>,
    rope<double, pairing::half_split, posenc::llama3>, rope<double, pairing::half_split, posenc::longrope>,
    rope<double, pairing::interleaved, posenc::no_scaling, 4>,
    rope<float, pairing::half_split, posenc::no_scaling, 4, 4>,
    rope<double, pairing::half_split, posenc::yarn, 4>, xpos<double>, multi_axis_text<double>,
    multi_axis_image<double>>;
INSTANTIATE_TYPED_TEST_SUITE_P(rotating, every_encoding, cases);

}  // namespace rotations_test
