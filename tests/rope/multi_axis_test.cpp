// SPDX-License-Identifier: MIT
/// \file
/// Several axes: golden/mrope.json, the multi-axis rows of golden/rope_apply.json, vision towers.
#include <posenc/encodings/multi_axis_rope.hpp>

#include <posenc/attention/reference.hpp>
#include <posenc/encoding.hpp>

#include "refusals.hpp"
#include "rope_golden.hpp"

namespace multi_axis_test {

using namespace posenc;
using golden::json;

static_assert(rotates<multi_axis_rope<float>, float>);
static_assert(!biases<multi_axis_rope<float>>);

axis_positions place_of(const json& list) {
  axis_positions place{};
  for (std::size_t a = 0; a < list.size(); ++a) place[a] = list[a].get<position>();
  return place;
}

template <class T>
std::vector<double> turned(const multi_axis_rope<T>& encoding, const json& input, position token) {
  std::vector<double> head = golden::numbers(input);
  encoding.rotate(std::span<double>(head), token);
  return head;
}

void expect_close(const std::vector<double>& ours, const json& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t c = 0; c < ours.size(); ++c)
    EXPECT_NEAR(ours[c], expected[c].get<double>(), 5e-14) << "channel " << c;
}

TEST(multi_axis_rope, equals_the_golden_vectors) {
  int rows = 0;
  for (const json& row : golden::cases("rope_apply.json")) {
    const json& config = row.at("config");
    SCOPED_TRACE(row.at("name").get<std::string>());
    const index_t d = config.at("head_dim").get<index_t>();
    if (config.contains("mrope_section") || config.contains("sections")) {
      const bool ggml = config.contains("sections");
      const auto sections = config.at(ggml ? "sections" : "mrope_section").get<std::vector<index_t>>();
      const multi_axis_rope<double> encoding{{.head_dim = d, .pairing = pairing::half_split},
                                             sections,
                                             ggml ? axis_order::ggml_interleaved : axis_order::chunked,
                                             {place_of(config.at("position"))}};
      expect_close(turned(encoding, row.at("input"), 0), row.at("expect").at("output"));
      EXPECT_EQ(std::vector<int>(encoding.axis_of_pair().begin(), encoding.axis_of_pair().end()),
                row.at("expect").at("axis_of_pair").get<std::vector<int>>());
      ++rows;
    } else if (config.contains("position_h")) {
      const axis_positions place{0, config.at("position_h").get<position>(),
                                 config.at("position_w").get<position>(), 0};
      const auto encoding = multi_axis_rope<double>::vision(vision_form::alternating, d, {place});
      expect_close(turned(encoding, row.at("input"), 0), row.at("expect").at("output"));
      golden::expect_frequencies(encoding, row.at("expect").at("pair_freq"), 10'000);
      ++rows;
    }
  }
  EXPECT_EQ(rows, 3);
}

TEST(multi_axis_rope, positions_and_axes_equal_the_golden_rows) {
  for (const json& row : golden::cases("mrope.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const json& config = row.at("config");
    const json& expect = row.at("expect");
    if (config.contains("mrope_section")) {
      const auto sections = config.at("mrope_section").get<std::vector<index_t>>();
      const index_t pairs = config.at("pairs").get<index_t>();
      const bool interleaved = config.at("mrope_interleaved").get<bool>();
      EXPECT_EQ(axes_of_pairs(sections, interleaved ? axis_order::interleaved : axis_order::chunked, pairs),
                expect.at("axis_of_pair").get<std::vector<int>>());
      EXPECT_EQ(
          axes_of_pairs(sections, interleaved ? axis_order::ggml_interleaved : axis_order::chunked, pairs),
          expect.at("axis_of_pair_ggml").get<std::vector<int>>());
      continue;
    }
    axis_position_builder where;
    const auto types = config.at("token_types").get<std::vector<int>>();
    const json& grids = config.at("image_grid_thw");
    std::size_t grid = 0;
    for (std::size_t t = 0; t < types.size();) {
      if (types[t] == 0) {
        where.text(1), ++t;
        continue;
      }
      const vision_grid vision{.frames = grids[grid][0].get<index_t>(),
                               .rows = grids[grid][1].get<index_t>(),
                               .columns = grids[grid][2].get<index_t>(),
                               .merge = config.at("spatial_merge_size").get<index_t>()};
      where.grid(vision), ++grid;
      t += static_cast<std::size_t>(vision.tokens());
    }
    ASSERT_EQ(where.table().size(), types.size());
    const char* names[] = {"t", "h", "w"};
    for (std::size_t axis = 0; axis < 3; ++axis)
      for (std::size_t t = 0; t < types.size(); ++t)
        EXPECT_EQ(where.table()[t][axis], expect.at(names[axis])[t].get<position>())
            << names[axis] << " of token " << t;
    EXPECT_EQ(where.rope_delta(), expect.at("rope_delta").get<position>());
    EXPECT_EQ(where.rope_delta() + static_cast<position>(types.size()),
              expect.at("next_decode_position").get<position>());
  }
}

/// Three frames of 2 × 2 patches, not merged, two time steps apart, after four text tokens; by hand.
TEST(multi_axis_rope, text_after_frames_goes_on_by_the_rule_that_is_named) {
  for (const after_vision rule : {after_vision::largest_position, after_vision::grid_extent}) {
    axis_position_builder where(rule);
    where.text(4).grid({.frames = 3, .rows = 2, .columns = 2, .merge = 1, .interval = 2}).text(1);
    ASSERT_EQ(where.table().size(), 17u);
    EXPECT_EQ(where.table()[4], (axis_positions{4, 4, 4, 0}));
    EXPECT_EQ(where.table()[7], (axis_positions{4, 5, 5, 0}));
    EXPECT_EQ(where.table()[8], (axis_positions{6, 4, 4, 0}));
    EXPECT_EQ(where.table()[15], (axis_positions{8, 5, 5, 0}));
    const bool authors = rule == after_vision::largest_position;
    const position next = authors ? 9 : 6;  // after the last frame's 8; 4 + max(2, 2)
    EXPECT_EQ(where.table()[16], (axis_positions{next, next, next, 0}));
    EXPECT_EQ(where.rope_delta(),
              (authors ? 10 : 9) - 17);  // the largest position + 1 is where decoding goes on
  }
}

/// Three frames of 4 × 4 patches merged by 2: 3 frames one step apart end at 2, fifty steps apart at 100.
TEST(multi_axis_rope, text_after_a_long_video_by_either_rule) {
  for (const auto& [interval, authors] : {std::pair{1.0, 3}, std::pair{50.0, 101}}) {
    const vision_grid video{.frames = 3, .rows = 4, .columns = 4, .interval = interval};
    EXPECT_EQ(axis_position_builder().grid(video).text(1).table().back()[0], authors);
    EXPECT_EQ(axis_position_builder(after_vision::grid_extent).grid(video).text(1).table().back()[0], 2);
  }
}

TEST(multi_axis_rope, frame_times_are_those_of_the_ratio) {
  const auto time = [](double interval, index_t frame) {
    axis_position_builder where;
    where.grid({.frames = frame + 1, .rows = 2, .columns = 2, .interval = interval});
    return where.table().back()[0];
  };
  EXPECT_EQ(time(25 * (2.0 / 3), 3), 50);  // 50/3, though 25·(2.0/3)·3 rounds to less than 50
  EXPECT_EQ(time(25 * (2.0 / 3), 2), 33);
  EXPECT_EQ(time(25 * (2 / 29.97), 2997), 5000);  // 5000/2997
  EXPECT_EQ(time(25 * (2 / 29.97), 2996), 4998);  // 4998.33…
  EXPECT_EQ(time(0.1, 30), 3);
  EXPECT_EQ(time(0.1, 29), 2);
  EXPECT_EQ(time(0, 3), 0);
  EXPECT_EQ(time(3.14159265358979, 100), 314);
  EXPECT_EQ(time(2e6, 3), 6'000'000);
  EXPECT_REFUSAL(time(1e300, 1), std::invalid_argument, "stands beyond 2^61");
}

TEST(multi_axis_rope, height_and_width_in_turn_then_time) {
  const std::vector<index_t> sections{2, 2, 1};
  EXPECT_EQ(axes_of_pairs(sections, axis_order::plane_then_time, 5), (std::vector<int>{1, 2, 1, 2, 0}));
  const std::vector<index_t> uneven{2, 1, 1};
  EXPECT_REFUSAL(axes_of_pairs(uneven, axis_order::plane_then_time, 4), std::invalid_argument, "h = w");
}

TEST(multi_axis_rope, equal_axes_are_one_axis_to_the_bit) {
  const rope_options options{.head_dim = 128, .base = 1e6, .pairing = pairing::half_split};
  axis_position_builder text;
  text.text(50);
  const rope<float> one{options};
  for (const axis_order order : {axis_order::chunked, axis_order::interleaved}) {
    const multi_axis_rope<float> several{options, {16, 24, 24}, order, text.table(), text.rope_delta()};
    for (const position token : {0, 7, 49, 50, 100'000}) {  // the last two beyond the table: decode
      std::vector<float> a(128), b;
      for (std::size_t c = 0; c < 128; ++c) a[c] = 0.01f * static_cast<float>(c) - 0.5f;
      b = a;
      one.rotate(std::span<float>(a), token);
      several.rotate(std::span<float>(b), token);
      EXPECT_EQ(a, b) << "token " << token;
    }
  }
}

TEST(multi_axis_rope, decode_goes_on_at_rope_delta) {
  axis_position_builder where;
  where.text(3).grid({.rows = 4, .columns = 6}).text(4);
  const multi_axis_rope<double> encoding{{.head_dim = 16, .pairing = pairing::half_split},
                                         {2, 3, 3},
                                         axis_order::chunked,
                                         where.table(),
                                         where.rope_delta()};
  const rope<double> one{{.head_dim = 16, .pairing = pairing::half_split}};
  for (index_t pair = 0; pair < 8; ++pair) {
    EXPECT_EQ(encoding.position_of(pair, 13), 10);
    EXPECT_EQ(encoding.angle(pair, 13).cos, one.angle(pair, 10).cos);
  }
}

/// The pairs that ggml's IMROPE leaves to the fourth axis do not turn for text.
TEST(multi_axis_rope, leftover_pairs_follow_the_named_convention) {
  const json expect = golden::find("disagreements.json", "interleaved M-RoPE").at("expect");
  const rope_options options{.head_dim = 128, .base = 5e6, .pairing = pairing::half_split};
  for (const bool ggml : {false, true}) {
    const multi_axis_rope<double> encoding{
        options, {24, 20, 20}, ggml ? axis_order::ggml_interleaved : axis_order::interleaved, {}};
    const json& angles = expect.at(ggml ? "ggml" : "transformers_vllm");
    for (const index_t pair : {61, 62})
      EXPECT_NEAR(std::asin(encoding.angle(pair, 32'768).sin),
                  angles.at("angle_" + std::to_string(pair)).get<double>(), 1e-17);
  }
}

/// Qwen towers: the ladder restarts for each axis, so that a square position turns both halves alike.
TEST(vision_rope, restarting_form) {
  const auto encoding =
      multi_axis_rope<double>::vision(vision_form::restarting, 80, {{0, 5, 5, 0}, {0, 3, 9, 0}});
  const rope<double> half{{.head_dim = 40, .pairing = pairing::half_split}};
  for (index_t pair = 0; pair < 20; ++pair) {
    EXPECT_EQ(encoding.inv_freq()[static_cast<std::size_t>(pair)],
              half.inv_freq()[static_cast<std::size_t>(pair)]);
    EXPECT_EQ(encoding.angle(pair, 0).sin, encoding.angle(20 + pair, 0).sin);
    EXPECT_EQ(encoding.angle(pair, 1).sin, half.angle(pair, 3).sin);
    EXPECT_EQ(encoding.angle(20 + pair, 1).sin, half.angle(pair, 9).sin);
  }
  EXPECT_EQ(encoding.lowered().pairing, pairing::half_split);
}

/// Llama-4: columns first, counted from 1, adjacent channels; the class token last and still.
TEST(vision_rope, llama4_form) {
  const auto table = llama4_patch_positions(2, 3);
  ASSERT_EQ(table.size(), 7u);
  EXPECT_EQ(table[0], (axis_positions{0, 1, 1, 0}));
  EXPECT_EQ(table[5], (axis_positions{0, 2, 3, 0}));
  const auto encoding = multi_axis_rope<double>::vision(vision_form::llama4, 8, table);
  EXPECT_NEAR(encoding.angle(0, 5).sin, std::sin(3.0), 1e-15);   // x = column 3, w = 1
  EXPECT_NEAR(encoding.angle(1, 5).sin, std::sin(0.03), 1e-15);  // w = 10000^(−2/4)
  EXPECT_NEAR(encoding.angle(2, 5).sin, std::sin(2.0), 1e-15);   // y = row 2
  std::vector<double> cls{1, 2, 3, 4, 5, 6, 7, 8};
  encoding.rotate(std::span<double>(cls), 6);
  EXPECT_EQ(cls, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(encoding.lowered().pairing, pairing::interleaved);
}

TEST(vision_rope, blocks_of_merged_patches_follow_one_another) {
  const auto table = patch_positions(2, 4, 2);
  const std::vector<axis_positions> expected{{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}, {0, 1, 1, 0},
                                             {0, 0, 2, 0}, {0, 0, 3, 0}, {0, 1, 2, 0}, {0, 1, 3, 0}};
  EXPECT_EQ(table, expected);
}

TEST(vision_rope, a_token_that_is_no_patch_is_refused) {
  const auto encoding = multi_axis_rope<float>::vision(vision_form::alternating, 16, patch_positions(2, 2));
  std::vector<float> head(16);
  EXPECT_THROW(encoding.rotate(std::span<float>(head), 4), std::out_of_range);
  EXPECT_THROW(encoding.rotate(std::span<float>(head), -1), std::out_of_range);
  EXPECT_THROW(static_cast<void>(encoding.angle(0, 4)), std::out_of_range);
}

TEST(multi_axis_rope, refuses_what_means_nothing) {
  const rope_options options{.head_dim = 128, .pairing = pairing::half_split};
  using several = multi_axis_rope<float>;
  EXPECT_THROW((several{options, {16, 24, 25}, axis_order::chunked, {}}), std::invalid_argument);
  EXPECT_THROW((several{options, {16, 24}, axis_order::chunked, {}}), std::invalid_argument);
  EXPECT_THROW((several{options, {64}, axis_order::chunked, {}}), std::invalid_argument);
  EXPECT_THROW((several{options, {80, -8, -8}, axis_order::chunked, {}}), std::invalid_argument);
  EXPECT_THROW((several{options, {32, 32}, axis_order::interleaved, {}}), std::invalid_argument);
  EXPECT_THROW((several{options, {16, 24, 24}, axis_order::chunked, {{position_limit + 1, 0, 0, 0}}}),
               std::invalid_argument);
  EXPECT_THROW(static_cast<void>(several::vision(vision_form::alternating, 18, {})), std::invalid_argument);
  axis_position_builder where;
  EXPECT_THROW(where.grid({.rows = 3, .columns = 4}), std::invalid_argument);
  EXPECT_THROW(where.text(-1), std::invalid_argument);
}

TEST(multi_axis_rope, places_end_where_positions_end) {
  const rope_options options{.head_dim = 4, .pairing = pairing::half_split};
  const auto make = [&](position place, position rope_delta) {
    return multi_axis_rope<float>{options, {1, 1}, axis_order::chunked, {{place, 0, 0, 0}}, rope_delta};
  };
  const position last = (position{1} << 62) - 1;
  EXPECT_NO_THROW(make(last, last));
  EXPECT_NO_THROW(make(-last, -last));
  for (const position beyond : {last + 1, -last - 1}) {
    EXPECT_REFUSAL(make(beyond, 0), std::invalid_argument, "±(2^62 − 1)");
    EXPECT_REFUSAL(make(0, beyond), std::invalid_argument, "±(2^62 − 1)");
  }
}

/// Causality by token index: the image tokens share positions, yet each sees only what came before it.
TEST(multi_axis_rope, attention_stays_causal_by_token) {
  axis_position_builder where;
  where.text(2).grid({.rows = 2, .columns = 2, .merge = 1}).text(1);
  const multi_axis_rope<double> encoding{{.head_dim = 16, .pairing = pairing::half_split},
                                         {2, 3, 3},
                                         axis_order::chunked,
                                         where.table(),
                                         where.rope_delta()};
  const row_major_matrix<double> q = row_major_matrix<double>::Random(7, 16);
  row_major_matrix<double> k = row_major_matrix<double>::Random(7, 16),
                           v = row_major_matrix<double>::Random(7, 16);
  const attention_options options{.mask = causal};
  const auto before = reference::attention(q, k, v, encoding, options);
  k.row(4).setOnes(), v.row(4).setOnes();
  const auto after = reference::attention(q, k, v, encoding, options);
  EXPECT_EQ(before.topRows(4), after.topRows(4));
  EXPECT_NE(before.row(4), after.row(4));
}

}  // namespace multi_axis_test
