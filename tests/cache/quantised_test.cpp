// SPDX-License-Identifier: MIT
/// \file
/// Caches of one byte a number: codes and scales, what they lose, and attention over them.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/calls.hpp"
#include "fused/targets.hpp"
#include "golden.hpp"
#include "json_once.hpp"
#include "refusals.hpp"

namespace quantised_test {

using namespace cache_rows_test;
using posenc::attention_options;
using posenc::float8_e4m3;
using posenc::q8_0_block;
using posenc::fused::kernel;

/// Int8 codes with the scales of keys (a row for each group) or of values (a row for each token).
struct coded {
  rows<std::int8_t> codes;
  rows<float> scales;
};
coded coded_keys(const rows<float>& k, index_t group) {
  coded result{{k.tokens, k.heads, k.channels}, {(k.tokens + group - 1) / group, k.heads, k.channels}};
  posenc::quantise_keys(k.view(), result.codes.view(), result.scales.view(), group);
  return result;
}
coded coded_values(const rows<float>& v) {
  coded result{{v.tokens, v.heads, v.channels}, {v.tokens, v.heads, 1}};
  posenc::quantise_values(v.view(), result.codes.view(), result.scales.view());
  return result;
}
std::vector<q8_0_block> blocks_of(const rows<float>& x) {
  std::vector<q8_0_block> result(x.numbers.size() / 32);
  posenc::quantise_q8_0(x.view(), posenc::token_major(result.data(), x.tokens, x.heads, x.channels / 32));
  return result;
}

/// What codes stand for, by the definition.
rows<float> numbers_of_keys(const coded& from, index_t group) {
  rows<float> result(from.codes.tokens, from.codes.heads, from.codes.channels);
  const auto width = static_cast<std::size_t>(result.heads * result.channels);
  for (std::size_t n = 0; n < result.numbers.size(); ++n) {
    const std::size_t token = n / width;
    result.numbers[n] = static_cast<float>(from.codes.numbers[n]) *
                        from.scales.numbers[token / static_cast<std::size_t>(group) * width + n % width];
  }
  return result;
}
rows<float> numbers_of_values(const coded& from) {
  rows<float> result(from.codes.tokens, from.codes.heads, from.codes.channels);
  for (std::size_t n = 0; n < result.numbers.size(); ++n)
    result.numbers[n] = static_cast<float>(from.codes.numbers[n]) *
                        from.scales.numbers[n / static_cast<std::size_t>(result.channels)];
  return result;
}
rows<float> numbers_of_blocks(const std::vector<q8_0_block>& from, index_t tokens, index_t heads,
                              index_t channels) {
  rows<float> result(tokens, heads, channels);
  for (std::size_t n = 0; n < result.numbers.size(); ++n)
    result.numbers[n] =
        static_cast<float>(from[n / 32].codes[n % 32]) * static_cast<float>(from[n / 32].scale);
  return result;
}

/// Both engines over a source against the reference over its numbers.
template <class K, class V, class E>
void expect_attention(const call& c, index_t head_dim, const K& k, const V& v, const rows<float>& k_numbers,
                      const rows<float>& v_numbers, const E& rope, const attention_options& options) {
  const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1);
  const answer expected = reference_answer(q, k_numbers.view(), v_numbers.view(), rope, options);
  EXPECT_EQ(reference_answer(q, k, v, rope, options), expected);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(target);
    EXPECT_LE(distance(fused_answer(q, k, v, rope, options, c.by), expected), 1e-6);
  });
}

std::string described(const call& c, index_t head_dim, index_t rotary_dim) {
  return std::to_string(c.queries) + " queries, head_dim " + std::to_string(head_dim) + ", rotary_dim " +
         std::to_string(rotary_dim);
}

TEST(cache_quantised, int8_attention_is_attention_over_its_numbers) {
  constexpr index_t keys = 83;
  for (const auto& [head_dim, rotary_dim, offset] :
       {std::array<index_t, 3>{33, 16, 0}, {40, 20, 20}, {80, 48, 0}})
    for (const call& c : calls)
      for (const index_t group : {1, 7, 64}) {
        SCOPED_TRACE(described(c, head_dim, rotary_dim) + ", groups of " + std::to_string(group));
        const posenc::rope<float> rope{
            {.head_dim = head_dim,
             .rotary_dim = rotary_dim,
             .rotary_offset = offset,
             .pairing = group == 7 ? posenc::pairing::interleaved : posenc::pairing::half_split}};
        const coded k = coded_keys(random_rows<float>(keys, c.kv_heads, head_dim, 2), group),
                    v = coded_values(random_rows<float>(keys, c.kv_heads, 21, 3));
        const posenc::quantised_keys k_view{k.codes.view(), k.scales.view(), group};
        const posenc::quantised_values v_view{v.codes.view(), v.scales.view()};
        expect_attention(c, head_dim, k_view, v_view, numbers_of_keys(k, group), numbers_of_values(v), rope,
                         c.options());
      }
}

TEST(cache_quantised, int8_in_pages_is_int8_in_one_buffer) {
  constexpr index_t keys = 83, group = 7, head_dim = 40;
  const posenc::rope<float> rope{
      {.head_dim = head_dim, .rotary_dim = 20, .pairing = posenc::pairing::half_split}};
  for (const call& c : calls) {
    const coded k = coded_keys(random_rows<float>(keys, c.kv_heads, head_dim, 2), group),
                v = coded_values(random_rows<float>(keys, c.kv_heads, head_dim, 3));
    // A page holds two groups; its scales two rows.
    const pages<std::int8_t> k_codes(k.codes.view(), 2 * group),
        v_codes(v.codes.view(), 16, page_order::head_major);
    const pages<float> k_scales(k.scales.view(), 2), v_scales(v.scales.view(), 16);
    const posenc::quantised_keys plain_k{k.codes.view(), k.scales.view(), group},
        paged_k{k_codes.view(), k_scales.view(), group};
    const posenc::quantised_values plain_v{v.codes.view(), v.scales.view()},
        paged_v{v_codes.view(), v_scales.view()};
    const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1);
    attention_options options = c.options();
    options.key_positions = posenc::positions::ring(keys, 300);
    options.query_positions = posenc::positions::from(300 - c.queries);
    EXPECT_EQ(reference_answer(q, paged_k, paged_v, rope, options),
              reference_answer(q, plain_k, plain_v, rope, options));
    sweep::on_every_target([&](const char* target) {
      SCOPED_TRACE(target);
      EXPECT_EQ(fused_answer(q, paged_k, paged_v, rope, options, c.by),
                fused_answer(q, plain_k, plain_v, rope, options, c.by));
    });
  }
}

TEST(cache_quantised, q8_0_attention_is_attention_over_its_numbers) {
  constexpr index_t keys = 83;
  struct slice {
    index_t head_dim, rotary_dim, offset;
  };
  // Slices that begin or end inside a block, and halves of pairs that do.
  for (const slice& s : {slice{32, 16, 0}, slice{64, 20, 44}, slice{96, 48, 10}, slice{128, 128, 0}})
    for (const call& c : calls)
      for (const auto pairing : {posenc::pairing::half_split, posenc::pairing::interleaved}) {
        SCOPED_TRACE(described(c, s.head_dim, s.rotary_dim));
        const posenc::rope<float> rope{{.head_dim = s.head_dim,
                                        .rotary_dim = s.rotary_dim,
                                        .rotary_offset = s.offset,
                                        .pairing = pairing}};
        const auto k = blocks_of(random_rows<float>(keys, c.kv_heads, s.head_dim, 2)),
                   v = blocks_of(random_rows<float>(keys, c.kv_heads, 64, 3));
        const index_t blocks = s.head_dim / 32;
        expect_attention(c, s.head_dim,
                         posenc::q8_0_view{posenc::token_major(k.data(), keys, c.kv_heads, blocks)},
                         posenc::q8_0_view{posenc::token_major(v.data(), keys, c.kv_heads, index_t{2})},
                         numbers_of_blocks(k, keys, c.kv_heads, s.head_dim),
                         numbers_of_blocks(v, keys, c.kv_heads, 64), rope, c.options());
      }
}

TEST(cache_quantised, kinds_of_keys_and_values_mix) {
  constexpr index_t keys = 83, head_dim = 64;
  const posenc::rope<float> rope{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
  for (const call& c : calls) {
    const auto k_blocks = blocks_of(random_rows<float>(keys, c.kv_heads, head_dim, 2));
    const coded v = coded_values(random_rows<float>(keys, c.kv_heads, head_dim, 3)),
                k = coded_keys(random_rows<float>(keys, c.kv_heads, head_dim, 4), 64);
    const auto v_half = random_rows<Eigen::half>(keys, c.kv_heads, head_dim, 5);
    rows<float> v_numbers(keys, c.kv_heads, head_dim);
    for (std::size_t n = 0; n < v_numbers.numbers.size(); ++n)
      v_numbers.numbers[n] = static_cast<float>(v_half.numbers[n]);
    // q8_0 in pages of ten tokens.
    const pages<q8_0_block> k_pages(posenc::token_major(k_blocks.data(), keys, c.kv_heads, index_t{2}), 10);
    expect_attention(c, head_dim, posenc::q8_0_view{posenc::paged_view<const q8_0_block>(k_pages.view())},
                     posenc::quantised_values{v.codes.view(), v.scales.view()},
                     numbers_of_blocks(k_blocks, keys, c.kv_heads, head_dim), numbers_of_values(v), rope,
                     c.options());
    expect_attention(c, head_dim, posenc::quantised_keys{k.codes.view(), k.scales.view(), 64},
                     std::as_const(v_half).view(), numbers_of_keys(k, 64), v_numbers, rope, c.options());
  }
}

TEST(cache_quantised, a_long_cache_in_splits_and_threads) {
  constexpr index_t keys = 2600, head_dim = 32;
  const posenc::rope<float> rope{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
  for (const call& c : {call{kernel::decode, 1, 8, 4}, call{kernel::stacked, 2, 24, 2}}) {
    const coded k = coded_keys(random_rows<float>(keys, c.kv_heads, head_dim, 2), 64),
                v = coded_values(random_rows<float>(keys, c.kv_heads, head_dim, 3));
    const posenc::quantised_keys k_view{k.codes.view(), k.scales.view(), 64};
    const posenc::quantised_values v_view{v.codes.view(), v.scales.view()};
    expect_attention(c, head_dim, k_view, v_view, numbers_of_keys(k, 64), numbers_of_values(v), rope,
                     c.options());
    const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1);
    const fused_calls::backward_executor three{3};
    EXPECT_EQ(fused_answer(q, k_view, v_view, rope, c.options(), c.by, {.executor = three}),
              fused_answer(q, k_view, v_view, rope, c.options(), c.by));
  }
}

/// |x − code·scale| is at most half a scale, and what float's last digits make of it.
void expect_within_half_a_scale(float x, float read, float scale) {
  const double rounding = 127 * static_cast<double>(std::numeric_limits<float>::denorm_min()) + 1e-6 * scale;
  EXPECT_LE(std::abs(static_cast<double>(x) - static_cast<double>(read)), 0.5 * scale + rounding)
      << x << " reads as " << read;
}

TEST(cache_quantised, a_number_is_off_by_half_a_scale_at_most) {
  constexpr index_t tokens = 20, heads = 2, channels = 9, group = 8;
  for (const float size : {1.0f, 2e38f, 1e-37f, 1e-42f, 1e-45f}) {
    rows<float> x = random_rows<float>(tokens, heads, channels, 11);
    for (float& n : x.numbers) n = (std::fmod(n, 1.5f)) * size;
    for (index_t t = 0; t < tokens; ++t) x.view()(t, 1)[3] = 0;  // a channel of zeros
    const coded k = coded_keys(x, group), v = coded_values(x);
    const rows<float> as_keys = numbers_of_keys(k, group), as_values = numbers_of_values(v);
    for (index_t t = 0; t < tokens; ++t)
      for (index_t h = 0; h < heads; ++h) {
        float largest = 0;
        for (std::size_t c = 0; c < channels; ++c) {
          largest = (std::max)(largest, std::abs(x.view()(t, h)[c]));
          float of_channel = 0;
          for (index_t u = t / group * group; u < (std::min)(tokens, (t / group + 1) * group); ++u)
            of_channel = (std::max)(of_channel, std::abs(x.view()(u, h)[c]));
          const float scale = k.scales.view()(t / group, h)[c];
          EXPECT_EQ(scale, of_channel / 127);
          expect_within_half_a_scale(x.view()(t, h)[c], as_keys.view()(t, h)[c], scale);
          expect_within_half_a_scale(x.view()(t, h)[c], as_values.view()(t, h)[c], v.scales.view()(t, h)[0]);
        }
        EXPECT_EQ(v.scales.view()(t, h)[0], largest / 127);
        EXPECT_EQ(as_keys.view()(t, 1)[3], 0.0f);
        EXPECT_EQ(k.scales.view()(t / group, 1)[3], 0.0f);
      }
  }
}

TEST(cache_quantised, q8_0_is_off_by_half_a_scale_and_the_rounding_of_the_scale) {
  const rows<float> x = random_rows<float>(7, 3, 64, 12);
  const auto blocks = blocks_of(x);
  const rows<float> read = numbers_of_blocks(blocks, 7, 3, 64);
  for (std::size_t n = 0; n < x.numbers.size(); ++n)
    EXPECT_LE(std::abs(x.numbers[n] - read.numbers[n]),
              0.5001f * static_cast<float>(blocks[n / 32].scale) + std::abs(x.numbers[n]) * 0x1p-11f);
}

TEST(cache_quantised, q8_0_blocks_are_those_of_gguf) {
  const auto golden_case = golden::find("quantised.json", "q8_0");
  for (const auto& one : golden_case.at("blocks")) {
    rows<float> x(1, 1, 32);
    for (std::size_t c = 0; c < 32; ++c)
      x.numbers[c] = std::bit_cast<float>(one.at("x").at(c).get<std::uint32_t>());
    const auto blocks = blocks_of(x);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(blocks.data());
    std::string hex;
    for (std::size_t n = 0; n < sizeof(q8_0_block); ++n)
      for (const unsigned digit : {bytes[n] / 16u, bytes[n] % 16u}) hex += "0123456789abcdef"[digit];
    EXPECT_EQ(hex, one.at("block").get<std::string>());
  }
}

TEST(cache_quantised, float8_is_that_of_torch) {
  const auto known = golden::find("quantised.json", "float8_e4m3");
  for (unsigned pattern = 0; pattern < 256; ++pattern) {
    const auto bits = known.at("of_patterns").at(pattern).get<std::uint32_t>();
    const float ours = float8_e4m3::of_bits(static_cast<std::uint8_t>(pattern));
    if (const auto expected = std::bit_cast<float>(bits); expected != expected) {
      EXPECT_TRUE(ours != ours) << pattern;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(ours), bits) << pattern;
    }
  }
  const auto& numbers = known.at("numbers");
  const auto& codes = known.at("codes");
  ASSERT_GT(numbers.size(), 700u);
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    const auto x = std::bit_cast<float>(numbers.at(n).get<std::uint32_t>());
    EXPECT_EQ(int{float8_e4m3(x).bits}, codes.at(n).get<int>()) << x;
  }
  static_assert(float(float8_e4m3(449.0f)) == 448.0f && float8_e4m3(-0.0f).bits == 0x80);
}

TEST(cache_quantised, what_is_not_finite_is_refused_and_nothing_written) {
  constexpr index_t tokens = 5, heads = 2, channels = 32;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    rows<float> x = random_rows<float>(tokens, heads, channels, 1);
    x.view()(4, 1)[31] = bad;  // the last number
    coded to{{tokens, heads, channels}, {1, heads, channels}},
        values{{tokens, heads, channels}, {tokens, heads, 1}};
    for (coded* one : {&to, &values}) {
      std::fill(one->codes.numbers.begin(), one->codes.numbers.end(), std::int8_t{77});
      std::fill(one->scales.numbers.begin(), one->scales.numbers.end(), 7.0f);
    }
    std::vector<q8_0_block> blocks(static_cast<std::size_t>(tokens * heads));
    for (q8_0_block& block : blocks) block.codes[3] = 77;
    const char* const sentence = "channel 31 of head 1 of token 4 is";
    EXPECT_REFUSAL((posenc::quantise_keys(x.view(), to.codes.view(), to.scales.view()), 0),
                   std::invalid_argument, sentence);
    EXPECT_REFUSAL((posenc::quantise_values(x.view(), values.codes.view(), values.scales.view()), 0),
                   std::invalid_argument, sentence);
    EXPECT_REFUSAL(
        (posenc::quantise_q8_0(x.view(), posenc::token_major(blocks.data(), tokens, heads, index_t{1})), 0),
        std::invalid_argument, sentence);
    for (const coded* one : {&to, &values}) {
      EXPECT_THAT(one->codes.numbers, ::testing::Each(77));
      EXPECT_THAT(one->scales.numbers, ::testing::Each(7.0f));
    }
    for (const q8_0_block& block : blocks) EXPECT_TRUE(block.codes[3] == 77 && block.codes[4] == 0);

    posenc::quantised_key_cache k(heads, channels, 3);
    posenc::quantised_value_cache v(heads, channels);
    posenc::q8_0_cache q(heads, channels);
    EXPECT_REFUSAL((k.append(x.view()), 0), std::invalid_argument, sentence);
    EXPECT_REFUSAL((v.append(x.view()), 0), std::invalid_argument, sentence);
    EXPECT_REFUSAL((q.append(x.view()), 0), std::invalid_argument, sentence);
    EXPECT_EQ(k.tokens() + v.tokens() + q.tokens(), 0);
  }
}

TEST(cache_quantised, a_scale_beyond_half_is_refused) {
  rows<float> x(1, 1, 32);
  x.numbers[5] = 127 * 65504.0f;
  EXPECT_EQ(static_cast<float>(blocks_of(x)[0].scale), 65504.0f);
  x.numbers[5] *= 1.0001f;
  EXPECT_REFUSAL(blocks_of(x), std::invalid_argument, "beyond what a scale in half precision carries");
}

TEST(cache_quantised, appending_is_quantising_at_once) {
  constexpr index_t tokens = 41, heads = 2, channels = 32, group = 7;
  const rows<float> x = random_rows<float>(tokens, heads, channels, 6);
  posenc::quantised_key_cache k(heads, channels, group);
  posenc::quantised_value_cache v(heads, channels);
  posenc::q8_0_cache q(heads, channels);
  index_t done = 0;
  for (const index_t more : {1, 5, 1, 0, 16, 1, 17}) {
    const auto part = posenc::token_major(x.numbers.data() + done * heads * channels, more, heads, channels);
    k.append(part), v.append(part), q.append(part);
    done += more;
    rows<float> so_far(done, heads, channels);
    std::copy_n(x.numbers.begin(), so_far.numbers.size(), so_far.numbers.begin());
    const coded k_once = coded_keys(so_far, group), v_once = coded_values(so_far);
    const auto q_once = blocks_of(so_far);
    const auto same = [](const auto& view, const auto& expected) {
      EXPECT_EQ(view.tokens(), expected.tokens);
      for (index_t t = 0; t < expected.tokens; ++t)
        for (index_t h = 0; h < heads; ++h)
          for (std::size_t c = 0; c < static_cast<std::size_t>(expected.channels); ++c)
            ASSERT_EQ(view(t, h)[c], expected.view()(t, h)[c]) << "token " << t << ", channel " << c;
    };
    same(k.view().codes, k_once.codes), same(k.view().scales, k_once.scales);
    same(v.view().codes, v_once.codes), same(v.view().scales, v_once.scales);
    ASSERT_EQ(q.tokens(), done);
    EXPECT_EQ(std::memcmp(q.view().blocks.block.data, q_once.data(), q_once.size() * sizeof(q8_0_block)), 0);
  }
  ASSERT_EQ(done, tokens);
}

/// Keys of which a few channels are 64 times as large as the rest; every number is exact in float.
rows<float> keys_of_probe() {
  rows<float> k(16, 1, 32);
  for (int t = 0; t < 16; ++t)
    for (int c = 0; c < 32; ++c) {
      const float x = static_cast<float>((t * 37 + c * 101 + t * c * 7) % 255 - 127) / 128;
      k.numbers[static_cast<std::size_t>(t * 32 + c)] = c == 3 || c == 10 ? 64 * x : x;
    }
  return k;
}
/// The most by which a channel that is not large is off.
float loss(const rows<float>& read) {
  const rows<float> k = keys_of_probe();
  float most = 0;
  for (std::size_t n = 0; n < k.numbers.size(); ++n)
    if (n % 32 != 3 && n % 32 != 10) most = (std::max)(most, std::abs(k.numbers[n] - read.numbers[n]));
  return most;
}

TEST(cache_quantised, keys_lose_least_by_channel_and_before_rotation) {
  const rows<float> k = keys_of_probe();
  const float by_channel = loss(numbers_of_keys(coded_keys(k, 16), 16)),
              by_token = loss(numbers_of_values(coded_values(k)));
  const posenc::rope<double> rope{{.head_dim = 32, .pairing = posenc::pairing::half_split}};
  const auto turned = [&](rows<float> x, int way) {
    for (index_t t = 0; t < 16; ++t) rope.rotate(x.view()(t, 0), way * t);
    return x;
  };
  const float after = loss(turned(numbers_of_keys(coded_keys(turned(k, 1), 16), 16), -1)),
              after_by_token = loss(turned(numbers_of_values(coded_values(turned(k, 1))), -1));
  // The same in NumPy, in double.
  EXPECT_NEAR(by_channel, 0.0038755, 1e-5);
  EXPECT_NEAR(by_token, 0.25, 1e-4);
  EXPECT_NEAR(after, 0.213868, 1e-3);
  EXPECT_NEAR(after_by_token, 0.273337, 1e-3);
}

}  // namespace quantised_test
