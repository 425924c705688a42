// SPDX-License-Identifier: MIT
/// \file
/// The property battery must fail on encodings that are wrong: each mistake below is caught by at least one
/// check, and the correct encoding next to it passes the same check.
#include <posenc/testing.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/encoding.hpp>
#include <posenc/encodings/rope.hpp>

#include "refusals.hpp"

namespace broken_encodings_test {

namespace battery = posenc::testing;
using posenc::index_t;
using posenc::position;

constexpr double tight = 1e-12;   // double arithmetic
constexpr double clearly = 1e-2;  // an error that nobody would call rounding

posenc::rope<double> good_rope() {
  return posenc::rope<double>{{.head_dim = 8, .pairing = posenc::pairing::half_split}};
}
posenc::rope<double> partial_rope() {
  return posenc::rope<double>{{.head_dim = 8, .rotary_dim = 4, .pairing = posenc::pairing::half_split}};
}
const battery::rotary_slice partial_slice{.rotary_dim = 4};

/// Keys turn the wrong way: scores depend on i + j.
struct wrong_sign {
  posenc::rope<double> rope = good_rope();
  template <class S>
  void rotate_query(std::span<S> head, position p) const {
    rope.rotate(head, p);
  }
  template <class S>
  void rotate_key(std::span<S> head, position p) const {
    rope.rotate(head, -p);
  }
};

TEST(battery, names_its_head_dim_where_a_rope_is_wider) {
  const posenc::rope<double> wide{{.head_dim = 64, .pairing = posenc::pairing::half_split}};
  EXPECT_REFUSAL(battery::norm<double>(wide), std::invalid_argument, "head_dim is 8");
  EXPECT_REFUSAL(battery::norm<double>(wide), std::invalid_argument, "heads of 64: set .head_dim");
  EXPECT_REFUSAL(battery::relative_shift<double>(wide), std::invalid_argument, "set .head_dim");
  EXPECT_TRUE(battery::norm<double>(wide, {.head_dim = 64}).within(tight));
}

TEST(broken, wrong_sign_on_the_key_side_fails_relative_shift) {
  EXPECT_LE(battery::relative_shift<double>(good_rope()).worst_error, tight);
  EXPECT_GE(battery::relative_shift<double>(wrong_sign{}).worst_error, clearly);
}

/// The sine of the second channel has the wrong sign: a reflection instead of a rotation.
struct reflection {
  template <class S>
  void rotate(std::span<S> head, position p) const {
    const S c = static_cast<S>(std::cos(static_cast<double>(p))),
            s = static_cast<S>(std::sin(static_cast<double>(p)));
    for (std::size_t pair = 0; pair + 1 < head.size(); pair += 2) {
      const S a = head[pair], b = head[pair + 1];
      head[pair] = a * c + b * s, head[pair + 1] = a * s - b * c;
    }
  }
};

TEST(broken, a_reflection_keeps_norm_and_shift_but_fails_additivity) {
  const battery::setup near_positions{.starts = {0, 1, 5}};
  EXPECT_LE(battery::norm<double>(reflection{}, near_positions).worst_error, tight);
  EXPECT_LE(battery::relative_shift<double>(reflection{}, near_positions).worst_error, tight);
  EXPECT_GE(battery::additivity<double>(reflection{}, near_positions).worst_error, clearly);
  EXPECT_LE(battery::additivity<double>(good_rope(), near_positions).worst_error, tight);
}

/// Counts the rows it has seen instead of looking at the position.
struct row_number {
  std::shared_ptr<position> rows = std::make_shared<position>(0);
  posenc::rope<double> rope = good_rope();
  template <class S>
  void rotate(std::span<S> head, position) const {
    rope.rotate(head, (*rows)++ % 5);
  }
};

/// The same mistake in an attention loop: it forgets the positions it was given.
struct forgets_positions {
  template <class Q, class K, class V, class E>
  auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                  posenc::attention_options options) const {
    options.query_positions = {}, options.key_positions = {};
    return posenc::reference_attention{}(q, k, v, encoding, options);
  }
};

TEST(broken, row_number_instead_of_position_fails_permutation_equivariance) {
  EXPECT_LE(battery::permutation_equivariance<double>(good_rope()).worst_error, tight);
  EXPECT_GE(battery::permutation_equivariance<double>(row_number{}).worst_error, clearly);
  EXPECT_GE(battery::permutation_equivariance<double>(good_rope(), {}, forgets_positions{}).worst_error,
            clearly);
}

/// An attention loop that numbers the queries of each chunk from 0.
struct chunks_start_anew {
  template <class Q, class K, class V, class E>
  auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                  posenc::attention_options options) const {
    options.query_positions = posenc::positions::from(options.key_positions[0]);
    return posenc::reference_attention{}(q, k, v, encoding, options);
  }
};

TEST(broken, chunks_that_start_anew_fail_chunked_equals_whole) {
  EXPECT_LE(battery::chunked_equals_whole<double>(good_rope()).worst_error, tight);
  EXPECT_GE(battery::chunked_equals_whole<double>(good_rope(), {}, chunks_start_anew{}).worst_error, clearly);
}

/// Writes the rotated channels and leaves zeros behind them.
struct tail_dropped {
  posenc::rope<double> rope = partial_rope();
  template <class S>
  void rotate(std::span<S> head, position p) const {
    rope.rotate(head, p);
    std::fill(head.begin() + 4, head.end(), S(0));
  }
};

TEST(broken, an_unrotated_tail_that_is_dropped_fails_norm) {
  EXPECT_LE(battery::norm<double>(partial_rope(), {}, partial_slice).worst_error, tight);
  const auto found = battery::norm<double>(tail_dropped{}, {}, partial_slice);
  EXPECT_GE(found.worst_error, clearly);
  EXPECT_NE(found.where.find("outside the rotary slice"), std::string::npos) << found.where;
}

/// YaRN's magnitude applied to the tail as well.
struct magnitude_everywhere {
  posenc::rope<double> rope = partial_rope();
  template <class S>
  void rotate(std::span<S> head, position p) const {
    rope.rotate(head, p);
    for (S& channel : head) channel = channel * S(1.2);
  }
};

TEST(broken, a_magnitude_on_the_tail_fails_norm) {
  EXPECT_GE(battery::norm<double>(magnitude_everywhere{}, {}, {.rotary_dim = 4, .attention_factor = 1.2})
                .worst_error,
            clearly);
}

/// A learned table that clamps positions beyond its end instead of refusing them.
struct table_clamped {
  index_t rows = 8;
  template <class S>
  void embed(std::span<S> row, position p) const {
    battery::detail::random_numbers random(
        static_cast<std::uint32_t>(std::clamp<position>(p, 0, rows - 1) + 1));
    for (S& channel : row) channel = static_cast<S>(channel + static_cast<S>(random()));
  }
};

TEST(broken, a_clamped_table_is_a_collision) {
  const battery::setup beyond{.starts = {32}};
  EXPECT_LT(battery::told_apart<double>(table_clamped{.rows = 64}, beyond).worst_error, 0.99);
  EXPECT_EQ(battery::told_apart<double>(table_clamped{}, beyond).worst_error, 1);
  EXPECT_LT(battery::told_apart<double>(good_rope(), beyond).worst_error, 0.99);
}

/// slope·j instead of slope·(j − i): softmax does not notice, the log-sum-exp does.
struct absolute_alibi {
  double bias(int, position, position key) const { return 0.25 * static_cast<double>(key); }
};
struct relative_alibi {
  double bias(int, position offset) const { return 0.25 * static_cast<double>(offset); }
};

TEST(broken, slope_times_key_position_fails_relative_shift_through_the_log_sum_exp) {
  EXPECT_LE(battery::relative_shift<double>(relative_alibi{}).worst_error, tight);
  EXPECT_GE(battery::relative_shift<double>(absolute_alibi{}).worst_error, clearly);
}

/// Angles formed in float: fine at 1000, gone at a billion.
struct float_angles {
  template <class S>
  void rotate(std::span<S> head, position p) const {
    const float angle = static_cast<float>(p) * 0.3f;
    const S c = static_cast<S>(std::cos(angle)), s = static_cast<S>(std::sin(angle));
    for (std::size_t pair = 0; pair + 1 < head.size(); pair += 2) {
      const S a = head[pair], b = head[pair + 1];
      head[pair] = a * c - b * s, head[pair + 1] = a * s + b * c;
    }
  }
};

TEST(broken, float_angles_fail_relative_shift_far_out) {
  EXPECT_LE(battery::relative_shift<double>(float_angles{}, {.starts = {0, 16}}).worst_error, 1e-5);
  EXPECT_GE(battery::relative_shift<double>(float_angles{}, {.starts = {0, 1'000'000'000}}).worst_error,
            clearly);
  EXPECT_LE(battery::relative_shift<double>(good_rope(), {.starts = {0, 1'000'000'000}}).worst_error, tight);
}

/// Attention that merges badly: its log-sum-exp is in base 2.
struct base_2_log_sum_exp {
  template <class Q, class K, class V, class E>
  auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                  const posenc::attention_options& options) const {
    auto result = posenc::reference_attention{}(q, k, v, encoding, options);
    result.log_sum_exp *= 1.4426950408889634;
    return result;
  }
};

TEST(broken, log_sum_exp_in_base_2_fails_merging) {
  EXPECT_GE(battery::merged_equals_whole<double>(good_rope(), {}, base_2_log_sum_exp{}).worst_error, clearly);
  EXPECT_LE(battery::merged_equals_whole<double>(good_rope()).worst_error, tight);
}

/// Sinks counted in every part.
struct sinks_always {
  template <class Q, class K, class V, class E>
  auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                  posenc::attention_options options) const {
    static const std::vector<double> sinks{0.5, -1, 2, 0};
    options.sinks = sinks;
    return posenc::reference_attention{}(q, k, v, encoding, options);
  }
};

TEST(broken, sinks_counted_in_every_part_fail_merging) {
  const std::vector<double> sinks{0.5, -1, 2, 0};
  EXPECT_GE(battery::merged_equals_whole<double>(good_rope(), {}, sinks_always{}).worst_error, clearly);
  EXPECT_LE(
      battery::merged_equals_whole<double>(good_rope(), {}, posenc::reference_attention{}, sinks).worst_error,
      tight);
}

/// A rotation that loses its derivatives on the way through a plain number.
struct hides_derivatives {
  posenc::rope<double> rope = good_rope();
  template <class S>
  void rotate(std::span<S> head, position p) const {
    rope.rotate(head, p);
    if constexpr (requires { head[0].value(); }) head[0] = S(head[0].value());
  }
};

TEST(broken, hidden_derivatives_fail_the_gradient_check) {
  const battery::setup small{.tokens = 3, .heads = 2, .kv_heads = 1, .starts = {1}};
  EXPECT_LE(battery::gradient(good_rope(), small).worst_error, 1e-9);
  EXPECT_GE(battery::gradient(hides_derivatives{}, small).worst_error, clearly);
}

TEST(battery, says_where_the_worst_error_was) {
  const auto found = battery::relative_shift<double>(wrong_sign{}, {.starts = {0, 3}});
  EXPECT_NE(found.where.find("moved from 0 to 3"), std::string::npos) << found.where;
  EXPECT_FALSE(found.within(tight));
  EXPECT_TRUE(battery::check_result{}.within(0));
}

struct not_a_number {
  double bias(int, position offset) const { return offset == -2 ? std::nan("") : 0; }
};

TEST(battery, nan_counts_as_the_largest_error) {
  EXPECT_FALSE(battery::permutation_equivariance<double>(not_a_number{}, {.starts = {0}}).within(1e300));
}

}  // namespace broken_encodings_test
