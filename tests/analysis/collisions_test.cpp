// SPDX-License-Identifier: MIT
/// \file
/// Collisions beside counts by hand and by comparing every pair of rounded vectors.
#include <posenc/analysis/collisions.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <numbers>
#include <vector>

#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/xpos.hpp>

namespace collisions_test {

using namespace posenc;

constexpr long double turn = 2 * std::numbers::pi_v<long double>;

/// A rope with these wavelengths, in tokens per turn.
rope<double> waves(const std::vector<long double>& tokens) {
  frequency_ladder<long double> ladder;
  for (const long double one : tokens) ladder.inv_freq.push_back(turn / one);
  return rope<double>::from_frequencies(
      {.head_dim = 2 * static_cast<index_t>(tokens.size()), .pairing = pairing::interleaved}, ladder);
}

/// Rounded to 16 bits by integer arithmetic on the bits of the float: to nearest, ties to even.
float bfloat16_by_hand(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff'0000u);
}

/// Pairs of positions with equal vectors in components [first, last), by comparing every pair.
template <class C>
std::uint64_t equal_pairs(const C& codes, position length, index_t first, index_t last) {
  const auto count = static_cast<std::size_t>(length);
  std::vector<std::vector<float>> columns;
  for (index_t k = first; k < last; ++k)
    for (const std::size_t part : {0u, 1u}) {
      std::vector<float> column;
      for (position p = 0; p < length; ++p) column.push_back(bfloat16_by_hand(codes.at(k, p)[part]) + 0.0f);
      columns.push_back(std::move(column));
    }
  // The first two columns as one number, so that most pairs are told apart by one comparison.
  std::vector<std::uint32_t> two(count);
  for (std::size_t i = 0; i < count; ++i)
    two[i] = (std::bit_cast<std::uint32_t>(columns[0][i]) & 0xffff'0000u) |
             (std::bit_cast<std::uint32_t>(columns[1][i]) >> 16);
  std::uint64_t equal = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const std::uint32_t own = two[j];
    for (std::size_t i = 0; i < j; ++i) {
      if (two[i] != own) continue;
      bool all = true;
      for (std::size_t c = 2; all && c < columns.size(); ++c) all = columns[c][i] == columns[c][j];
      equal += all ? 1 : 0;
    }
  }
  return equal;
}

/// Codes of one's own: position modulo each number.
struct remainders {
  std::vector<position> moduli;
  position count;
  [[nodiscard]] index_t components() const { return static_cast<index_t>(moduli.size()); }
  [[nodiscard]] position length() const { return count; }
  [[nodiscard]] code_point at(index_t k, position p) const {
    return {static_cast<double>(p % moduli[static_cast<std::size_t>(k)]), 0};
  }
};

TEST(collisions, of_one_frequency_by_hand) {
  // Four tokens per turn: positions 0 … 9 fall into classes of 3, 3, 2, 2.
  const rotation_codes codes(waves({4}), 10);
  const collision_report report =
      stored_collisions(codes, code_storage::bfloat16, {.lengths = {1, 4, 5, 8, 10}});
  std::vector<std::uint64_t> alone;
  for (const collision_counts& counts : report.by_length) alone.push_back(counts.alone[0]);
  EXPECT_EQ(alone, (std::vector<std::uint64_t>{0, 0, 1, 4, 3 + 3 + 1 + 1}));
  EXPECT_EQ(report.total().pairs(), 45);
  EXPECT_DOUBLE_EQ(report.total().chance_together(0), 8.0 / 45);
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(*report.first, (std::pair<position, position>{0, 4}));
}

TEST(collisions, of_w_and_half_of_it_are_those_of_the_slower) {
  const rotation_codes both(waves({4, 8}), 40), slow(waves({8}), 40);
  const collision_report together = stored_collisions(both, code_storage::float32);
  const collision_report alone = stored_collisions(slow, code_storage::float32);
  // Five rounds of eight positions: 8 classes of 5.
  EXPECT_EQ(together.total().together, (std::vector<std::uint64_t>{4 * (10 * 9 / 2), 8 * (5 * 4 / 2)}));
  EXPECT_EQ(together.total().together[1], alone.total().together[0]);
  EXPECT_EQ(*together.first, (std::pair<position, position>{0, 8}));
}

TEST(collisions, of_coprime_periods_multiply_as_the_hash_argument_says) {
  // Periods 7 and 9 repeat together after 63: 630 positions are 10 rounds.
  const collision_counts counts = stored_collisions(remainders{{7, 9}, 630}, code_storage::float32).total();
  EXPECT_EQ(counts.alone, (std::vector<std::uint64_t>{7 * (90 * 89 / 2), 9 * (70 * 69 / 2)}));
  EXPECT_EQ(counts.together[1], 63u * (10 * 9 / 2));
  EXPECT_NEAR(counts.chance_if_independent(1) / counts.chance_together(1), 1, 0.15);
}

/// The codes of another start.
struct from_position {
  rotation_codes codes;
  position start;
  [[nodiscard]] index_t components() const { return codes.components(); }
  [[nodiscard]] position length() const { return codes.length(); }
  [[nodiscard]] code_point at(index_t k, position p) const { return codes.at(k, start + p); }
};

TEST(collisions, slow_frequency_is_one_local_collision_but_near_its_zeros) {
  // 2^20 tokens per turn. An eighth of a turn on, cos and sin move by 4.2e-6 per token and bfloat16 is spaced 3.9e-3 there:
  // 64 neighbours are one or two values of each.
  const rotation_codes slow(waves({1 << 20}), 64);
  const from_position eighth{slow, 1 << 17};
  const std::uint64_t colliding = stored_collisions(eighth, code_storage::bfloat16).total().alone[0];
  EXPECT_EQ(colliding, equal_pairs(eighth, 64, 0, 1));
  EXPECT_GT(colliding, 64u * 63 / 2 * 4 / 10);
  // At the start sin is near 0, where floating point is as fine as ever: no two are equal.
  EXPECT_EQ(stored_collisions(slow, code_storage::bfloat16).total().alone[0], 0u);
  // A pair that does not turn is one collision.
  const auto resting =
      rope<double>::from_frequencies({.head_dim = 2, .pairing = pairing::interleaved}, {{0}, 1});
  EXPECT_EQ(stored_collisions(rotation_codes(resting, 64), code_storage::bfloat16).total().alone[0],
            64u * 63 / 2);
}

TEST(collisions, equal_a_brute_force_count_in_bfloat16) {
  const rope_options narrow{.head_dim = 8, .base = 500'000.0, .pairing = pairing::half_split};
  const rope<double> narrow_rope{narrow};
  for (const position length : {2, 3, 1000, 5000}) {
    const rotation_codes codes(narrow_rope, length);
    const collision_counts counts = stored_collisions(codes, code_storage::bfloat16).total();
    for (index_t k = 0; k < 4; ++k) {
      EXPECT_EQ(counts.alone[static_cast<std::size_t>(k)], equal_pairs(codes, length, k, k + 1))
          << length << ", " << k;
      EXPECT_EQ(counts.together[static_cast<std::size_t>(k)], equal_pairs(codes, length, 0, k + 1))
          << length << ", " << k;
    }
  }
}

TEST(collisions, equal_a_brute_force_count_at_65536) {
  const rope_options narrow{.head_dim = 8, .base = 500'000.0, .pairing = pairing::half_split};
  const rotation_codes codes(rope<double>{narrow}, 65'536);
  // From the slowest, so that many collide.
  const collision_counts counts =
      stored_collisions(codes, code_storage::bfloat16, {.lengths = {}, .order = {3, 2}}).total();
  EXPECT_EQ(counts.together[1], equal_pairs(codes, 65'536, 2, 4));
  EXPECT_GT(counts.together[1], 10'000u);
}

TEST(collisions, equal_a_brute_force_count_for_scaled_and_other_encodings) {
  const rope_options options{.head_dim = 16, .pairing = pairing::half_split};
  const rotation_codes stretched(rope<double>{options, yarn{.factor = 32, .original_context = 256}}, 3000);
  EXPECT_NE(stretched.by().attention_factor, 1);
  const rotation_codes fading(xpos<double>{{.rope = options}}, 3000);
  const rotation_codes framework(
      rope<double>{{.head_dim = 16, .pairing = pairing::half_split, .angles = angle_mode::framework_float32}},
      3000);
  for (const rotation_codes* codes : {&stretched, &fading, &framework})
    for (const index_t k : {index_t{6}, index_t{7}})
      EXPECT_EQ(stored_collisions(*codes, code_storage::bfloat16, {.lengths = {}, .order = {k}})
                    .total()
                    .together[0],
                equal_pairs(*codes, 3000, k, k + 1));
}

/// The quick way to stored numbers gives the bits of the exact one, in every storage and with a factor.
TEST(collisions, quick_codes_have_the_bits_of_exact_ones) {
  const rope<double> stretched{{.head_dim = 32, .pairing = pairing::half_split},
                               yarn{.factor = 4, .original_context = 512}};
  const rotation_codes codes(stretched, 20'000);
  for (const code_storage storage : {code_storage::float32, code_storage::bfloat16, code_storage::half})
    for (const index_t pair : {index_t{0}, index_t{7}, index_t{15}}) {
      position different = 0;
      detail::each_stored_code(codes, pair, storage, [&](position p, std::uint64_t bits) {
        const auto [a, b] = codes.at(pair, p);
        const std::uint64_t exact =
            (std::uint64_t{detail::stored_bits(a, storage)} << 32) | detail::stored_bits(b, storage);
        if (bits != exact) ++different;
      });
      EXPECT_EQ(different, 0) << name_of(storage) << ", pair " << pair;
    }
}

TEST(collisions, zero_and_negative_zero_are_equal) {
  struct sign_only {
    [[nodiscard]] index_t components() const { return 1; }
    [[nodiscard]] position length() const { return 4; }
    [[nodiscard]] code_point at(index_t, position p) const { return {p % 2 == 0 ? 0.0 : -0.0, 0}; }
  };
  EXPECT_EQ(stored_collisions(sign_only{}, code_storage::half).total().alone[0], 6u);
}

TEST(collisions, several_lengths_in_one_pass_are_those_of_separate_passes) {
  const rope<double> short_waves = waves({64, 1024});
  const std::vector<position> lengths{1, 2, 100, 1777, 4000};
  const auto at_once =
      stored_collisions(rotation_codes(short_waves, 4000), code_storage::bfloat16, {.lengths = lengths});
  for (std::size_t l = 0; l < lengths.size(); ++l) {
    const auto apart =
        stored_collisions(rotation_codes(short_waves, lengths[l]), code_storage::bfloat16).total();
    EXPECT_EQ(at_once.by_length[l].alone, apart.alone);
    EXPECT_EQ(at_once.by_length[l].together, apart.together);
  }
  EXPECT_GT(at_once.total().together[1], 0u);
}

/// Through its door, an encoding of one's own: ten rooms, and the seat does not count.
struct rooms {
  template <class S>
  void embed(std::span<S> row, position p) const {
    row[0] += static_cast<S>(p / 10);
  }
};

TEST(collisions, through_the_doors) {
  const code_table own = embedded_codes(rooms{}, 3, 100);
  const collision_report report = stored_collisions(own, code_storage::bfloat16);
  EXPECT_EQ(report.total().together, std::vector<std::uint64_t>(3, 10u * (10 * 9 / 2)));
  EXPECT_EQ(*report.first, (std::pair<position, position>{0, 1}));

  // A learned table of 8 random rows in 16 channels: nothing collides.
  const auto learned = learned_absolute<float>::random({.rows = 8, .width = 16, .seed = 3});
  EXPECT_EQ(stored_collisions(embedded_codes(learned, 16, 8), code_storage::bfloat16).total().together.back(),
            0u);

  // ALiBi's bias −d/256 in bfloat16: exact up to 2^8 steps, then two, then four to a number.
  const double slope[] = {1.0 / 256};
  const auto line = alibi<double>::from_slopes(slope);
  const code_table biases = bias_codes(line, 1, 1024);
  const collision_counts counts =
      stored_collisions(biases, code_storage::bfloat16, {.lengths = {257, 1024}}).total();
  EXPECT_EQ(counts.together[0], equal_pairs(biases, 1024, 0, 1));
  EXPECT_EQ(stored_collisions(biases, code_storage::bfloat16, {.lengths = {257}}).total().together[0], 0u);
  EXPECT_GT(counts.together[0], 0u);
}

TEST(collisions, sinusoidal_by_its_door_and_by_its_phases) {
  const sinusoidal<double> waves_of_width{{.width = 6, .base = 50.0, .convention = sinusoid::paper}};
  const auto by_phase =
      stored_collisions(rotation_codes(waves_of_width, 2000), code_storage::bfloat16).total();
  const auto by_door =
      stored_collisions(embedded_codes(waves_of_width, 6, 2000), code_storage::bfloat16).total();
  EXPECT_EQ(by_phase.together[0], by_door.together[1]);
  EXPECT_EQ(by_phase.together.back(), by_door.together.back());
  EXPECT_GT(by_phase.together[0], 0u);
  EXPECT_THROW(rotation_codes(sinusoidal<double>{{.width = 7, .convention = sinusoid::paper}}, 10),
               std::invalid_argument);
}

TEST(collisions, together_alone_is_the_same_count) {
  const rotation_codes codes(rope<double>{{.head_dim = 16, .pairing = pairing::half_split}}, 3000);
  const std::vector<index_t> slowest_first{7, 6, 5, 4, 3, 2, 1, 0};
  const collision_options both{.lengths = {500, 3000}, .order = slowest_first};
  const collision_options together{.lengths = {500, 3000}, .order = slowest_first, .alone = false};
  const auto counts = stored_collisions(codes, code_storage::bfloat16, both);
  const auto faster = stored_collisions(codes, code_storage::bfloat16, together);
  for (const std::size_t l : {0u, 1u}) {
    EXPECT_EQ(faster.by_length[l].together, counts.by_length[l].together);
    EXPECT_TRUE(faster.by_length[l].alone.empty());
  }
  EXPECT_GT(counts.total().together[1], 0u);
  EXPECT_EQ(counts.total().together[7], 0u);
}

TEST(collisions, wrong_questions_are_refused) {
  const rotation_codes codes(waves({4}), 10);
  EXPECT_THROW(rotation_codes(waves({4}), 0), std::invalid_argument);
  EXPECT_THROW((void)stored_collisions(codes, code_storage::half, {.lengths = {11}}), std::invalid_argument);
  EXPECT_THROW((void)stored_collisions(codes, code_storage::half, {.lengths = {5, 5}}),
               std::invalid_argument);
  EXPECT_THROW((void)stored_collisions(codes, code_storage::half, {.lengths = {}, .order = {1}}),
               std::invalid_argument);
}

TEST(code_storage, rounds_and_counts_as_the_formats_do) {
  EXPECT_EQ(stored(257, code_storage::bfloat16), bfloat16_by_hand(257));
  EXPECT_EQ(stored(257, code_storage::bfloat16), 256);
  EXPECT_EQ(stored(259, code_storage::bfloat16), 260);
  EXPECT_EQ(stored(2049, code_storage::half), 2048);
  EXPECT_EQ(stored(16'777'217, code_storage::float32), 16'777'216);
  EXPECT_EQ(exact_positions(code_storage::bfloat16), 256);
  EXPECT_EQ(exact_positions(code_storage::half), 2048);
  EXPECT_EQ(exact_positions(code_storage::float32), 16'777'216);
  EXPECT_EQ(stored(1 + rounding_of(code_storage::half), code_storage::half), 1);
  EXPECT_GT(stored(1 + 1.001 * rounding_of(code_storage::half), code_storage::half), 1);
  for (const code_storage storage : {code_storage::float32, code_storage::bfloat16, code_storage::half}) {
    EXPECT_EQ(static_cast<double>(stored(smallest_of(storage), storage)), smallest_of(storage))
        << name_of(storage);
    EXPECT_EQ(stored(smallest_of(storage) / 2, storage), 0) << name_of(storage);
  }
}

}  // namespace collisions_test
