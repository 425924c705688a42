// SPDX-License-Identifier: MIT
/// \file
/// The same numbers in one buffer, in pages, as a ring and in pieces: the same attention.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/calls.hpp"
#include "fused/targets.hpp"

namespace layouts_test {

using namespace cache_rows_test;
using posenc::attention_options;
using posenc::float8_e4m3;
using posenc::positions;
using posenc::fused::kernel;

[[nodiscard]] std::string name_of(const char* target, const call& c) {
  constexpr const char* names[] = {"none", "prefill", "decode", "stacked"};
  return std::string(target) + ", " + names[static_cast<std::size_t>(c.by)];
}

posenc::rope<float> rope_of(index_t head_dim, index_t rotary_dim,
                            posenc::pairing pairing = posenc::pairing::half_split) {
  return posenc::rope<float>{{.head_dim = head_dim, .rotary_dim = rotary_dim, .pairing = pairing}};
}

constexpr index_t head_dim = 24, value_dim = 20, keys = 83;

/// Keys and values of two kinds, plain and in pages of any size.
template <class K, class V>
void check_pages() {
  const auto rope = rope_of(head_dim, 20);
  for (const call& c : calls) {
    const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1);
    const rows<K> k = random_rows<K>(keys, c.kv_heads, head_dim, 2);
    const rows<V> v = random_rows<V>(keys, c.kv_heads, value_dim, 3);
    const auto k_plain = std::as_const(k).view();
    const auto v_plain = std::as_const(v).view();
    const answer reference = reference_answer(q, k_plain, v_plain, rope, c.options());
    for (const index_t of : {1, 7, 16, 256})
      for (const page_order order : {page_order::token_major, page_order::head_major}) {
        if (order == page_order::head_major && of != 7) continue;
        const pages<K> k_pages(k_plain, of, order);
        const pages<V> v_pages(v_plain, of, order);
        const auto reorder = order == page_order::head_major ? posenc::fused::memory_order::head_major
                                                             : posenc::fused::memory_order::token_major;
        const posenc::paged_view<const K> k_paged = k_pages.view();
        const posenc::paged_view<const V> v_paged = v_pages.view();
        if (of == 7) {
          EXPECT_EQ(reference_answer(q, k_paged, v_paged, rope, c.options()), reference);
        }
        sweep::on_every_target([&](const char* target) {
          SCOPED_TRACE(name_of(target, c) + ", pages of " + std::to_string(of));
          const answer plain = fused_answer(q, k_plain, v_plain, rope, c.options(), c.by, {}, reorder);
          EXPECT_LE(distance(plain, reference), 1e-6);
          EXPECT_EQ(fused_answer(q, k_paged, v_paged, rope, c.options(), c.by, {}, reorder), plain);
          if (of == 16) {
            EXPECT_EQ(fused_answer(q, k_paged, v_plain, rope, c.options(), c.by), plain) << "keys";
            EXPECT_EQ(fused_answer(q, k_plain, v_paged, rope, c.options(), c.by), plain) << "values";
          }
        });
      }
  }
}

TEST(cache_layouts, pages_of_float_are_plain_to_the_bit) { check_pages<float, float>(); }
TEST(cache_layouts, pages_of_bfloat16_and_half_are_plain_to_the_bit) {
  check_pages<Eigen::bfloat16, Eigen::half>();
}
TEST(cache_layouts, pages_of_float8_and_bfloat16_are_plain_to_the_bit) {
  check_pages<float8_e4m3, Eigen::bfloat16>();
}
TEST(cache_layouts, pages_of_half_and_float8_are_plain_to_the_bit) {
  check_pages<Eigen::half, float8_e4m3>();
}

TEST(cache_layouts, two_sequences_share_pages) {
  // Sequence 1 forks from sequence 0 after page 1 and goes on in a page of its own; one pool holds both.
  constexpr index_t of = 16, heads = 2, tokens = 43;
  const call c = calls[0];
  const rows<float> q = random_rows<float>(1, c.heads, head_dim, 1),
                    k = random_rows<float>(4 * of, heads, head_dim, 2),
                    v = random_rows<float>(4 * of, heads, value_dim, 3);
  const auto k_pool = posenc::pages_of_pool(k.numbers.data(), 4, of * heads * head_dim);
  const auto v_pool = posenc::pages_of_pool(v.numbers.data(), 4, of * heads * value_dim);
  const std::vector<std::int32_t> tables[] = {{2, 0, 1}, {2, 0, 3}};
  const auto rope = rope_of(head_dim, head_dim);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(target);
    using paged = posenc::paged_view<const float>;
    std::vector<posenc::attention_sequence<float, paged>> batch;
    rows<float> out(2, c.heads, value_dim);
    for (const auto& table : tables)
      batch.push_back({.q = q.view(),
                       .k = {k_pool, table, of, tokens, heads, head_dim},
                       .v = {v_pool, table, of, tokens, heads, value_dim},
                       .out = posenc::token_major(
                           out.numbers.data() + static_cast<index_t>(batch.size()) * c.heads * value_dim, 1,
                           c.heads, value_dim),
                       .options = c.options()});
    posenc::fused::attention_batch(batch, rope);
    for (std::size_t s = 0; s < 2; ++s) {
      std::vector<index_t> order;
      for (index_t t = 0; t < tokens; ++t)
        order.push_back(tables[s][static_cast<std::size_t>(t / of)] * of + t % of);
      const rows<float> own_k = picked(k, order), own_v = picked(v, order);
      const answer own = fused_answer(q, own_k.view(), own_v.view(), rope, c.options(), c.by);
      const auto part = static_cast<std::ptrdiff_t>(own.out.size());
      EXPECT_EQ(std::vector<float>(out.numbers.begin() + static_cast<std::ptrdiff_t>(s) * part,
                                   out.numbers.begin() + static_cast<std::ptrdiff_t>(s + 1) * part),
                own.out);
    }
  });
}

TEST(cache_layouts, a_ring_is_its_tokens_in_order) {
  const auto rope = rope_of(head_dim, head_dim, posenc::pairing::interleaved);
  for (const call& c : calls)
    for (const index_t next : {keys + 1, 2 * keys - 1, 10 * keys + 41, 12 * keys}) {
      // Token n was written to row n % capacity; only the latest of each row is left.
      std::vector<position> of_rows(keys);
      std::vector<index_t> in_order;
      for (position n = 0; n < next; ++n) of_rows[static_cast<std::size_t>(n % keys)] = n;
      for (position n = next - keys; n < next; ++n) in_order.push_back(n % keys);
      const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1),
                        k = random_rows<float>(keys, c.kv_heads, head_dim, 2),
                        v = random_rows<float>(keys, c.kv_heads, value_dim, 3),
                        k_sorted = picked(k, in_order), v_sorted = picked(v, in_order);
      attention_options ring = c.options(), each = c.options(), sorted = c.options();
      ring.key_positions = positions::ring(keys, next);
      each.key_positions = positions::each(of_rows);
      sorted.key_positions = positions::from(next - keys);
      ring.query_positions = each.query_positions = sorted.query_positions =
          positions::from(next - c.queries);
      attention_options by_default = ring;
      by_default.query_positions = {};
      const answer reference = reference_answer(q, k_sorted.view(), v_sorted.view(), rope, sorted);
      EXPECT_LE(distance(reference_answer(q, k.view(), v.view(), rope, ring), reference), 1e-7);
      const pages<float> k_pages(k.view(), 16), v_pages(v.view(), 7);
      const posenc::paged_view<const float> k_paged = k_pages.view(), v_paged = v_pages.view();
      sweep::on_every_target([&](const char* target) {
        SCOPED_TRACE(name_of(target, c) + ", next " + std::to_string(next));
        const answer as_ring = fused_answer(q, k.view(), v.view(), rope, ring, c.by);
        EXPECT_LE(distance(as_ring, reference), 1e-6);
        EXPECT_EQ(fused_answer(q, k.view(), v.view(), rope, each, c.by), as_ring) << "position by position";
        EXPECT_EQ(fused_answer(q, k.view(), v.view(), rope, by_default, c.by), as_ring) << "default queries";
        EXPECT_EQ(fused_answer(q, k_paged, v_paged, rope, ring, c.by), as_ring) << "in pages";
      });
    }
}

TEST(cache_layouts, a_ring_that_is_not_full_is_a_run) {
  const call c = calls[0];
  const auto rope = rope_of(head_dim, head_dim);
  const rows<float> q = random_rows<float>(1, c.heads, head_dim, 1),
                    k = random_rows<float>(31, c.kv_heads, head_dim, 2),
                    v = random_rows<float>(31, c.kv_heads, value_dim, 3);
  attention_options ring = c.options();
  ring.key_positions = positions::ring(keys, 31);
  EXPECT_EQ(fused_answer(q, k.view(), v.view(), rope, ring, c.by),
            fused_answer(q, k.view(), v.view(), rope, c.options(), c.by));
}

TEST(cache_layouts, pieces_are_the_tokens_that_are_left) {
  // Tokens 20 to 39 are evicted, a block of 17 from far away is inserted after token 59.
  const auto rope = rope_of(head_dim, 16);
  std::vector<position> left;
  for (position n = 0; n < 20; ++n) left.push_back(n);
  for (position n = 40; n < 60; ++n) left.push_back(n);
  for (position n = 0; n < 17; ++n) left.push_back(1000 + n);
  for (position n = 60; n < 86; ++n) left.push_back(n);
  ASSERT_EQ(left.size(), static_cast<std::size_t>(keys));
  for (const call& c : calls) {
    const rows<float> q = random_rows<float>(c.queries, c.heads, head_dim, 1),
                      k = random_rows<float>(keys, c.kv_heads, head_dim, 2),
                      v = random_rows<float>(keys, c.kv_heads, value_dim, 3);
    attention_options options = c.options();
    options.key_positions = positions::each(left);
    options.query_positions = positions::from(1020);
    // The same keys, rotated beforehand: no run, no position is left to take for another.
    rows<float> turned = k;
    for (index_t t = 0; t < keys; ++t)
      for (index_t h = 0; h < c.kv_heads; ++h)
        rope.rotate(turned.view()(t, h), left[static_cast<std::size_t>(t)]);
    attention_options rotated = options;
    rotated.keys_are_rotated = true;
    const answer reference = reference_answer(q, std::as_const(turned).view(), v.view(), rope, rotated);
    EXPECT_LE(distance(reference_answer(q, k.view(), v.view(), rope, options), reference), 1e-6);
    const pages<float> k_pages(k.view(), 20), v_pages(v.view(), 20);
    const posenc::paged_view<const float> k_paged = k_pages.view(), v_paged = v_pages.view();
    sweep::on_every_target([&](const char* target) {
      SCOPED_TRACE(name_of(target, c));
      const answer pieces = fused_answer(q, k.view(), v.view(), rope, options, c.by);
      EXPECT_LE(distance(pieces, reference), 1e-6);
      EXPECT_EQ(fused_answer(q, k_paged, v_paged, rope, options, c.by), pieces);
    });
  }
}

TEST(cache_layouts, a_block_taken_out_of_the_table_is_evicted) {
  constexpr index_t of = 16, tokens = 96;
  const call c = calls[0];
  const auto rope = rope_of(head_dim, head_dim);
  const rows<float> q = random_rows<float>(1, c.heads, head_dim, 1),
                    k = random_rows<float>(tokens, c.kv_heads, head_dim, 2),
                    v = random_rows<float>(tokens, c.kv_heads, value_dim, 3);
  pages<float> k_pages(k.view(), of), v_pages(v.view(), of);
  for (pages<float>* side : {&k_pages, &v_pages})
    side->table.erase(side->table.begin() + 2), side->tokens -= of;
  std::vector<position> left;
  std::vector<index_t> order;
  for (index_t n = 0; n < tokens; ++n)
    if (n / of != 2) left.push_back(n), order.push_back(n);
  attention_options options = c.options();
  options.key_positions = positions::each(left);
  const rows<float> k_left = picked(k, order), v_left = picked(v, order);
  const posenc::paged_view<const float> k_paged = k_pages.view(), v_paged = v_pages.view();
  const answer reference = reference_answer(q, k_left.view(), v_left.view(), rope, options);
  EXPECT_EQ(reference_answer(q, k_paged, v_paged, rope, options), reference);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(target);
    EXPECT_LE(distance(fused_answer(q, k_paged, v_paged, rope, options, c.by), reference), 1e-6);
  });
}

TEST(cache_layouts, threads_and_splits_change_no_bit) {
  // Long enough that keys are split and threads wake.
  constexpr index_t many = 2600, wide = 32;
  for (const call& c : {call{kernel::decode, 1, 8, 4}, call{kernel::stacked, 2, 24, 2}}) {
    const auto rope = rope_of(wide, wide);
    const rows<float> q = random_rows<float>(c.queries, c.heads, wide, 1);
    const auto k = random_rows<Eigen::bfloat16>(many, c.kv_heads, wide, 2),
               v = random_rows<Eigen::bfloat16>(many, c.kv_heads, wide, 3);
    attention_options options = c.options();
    options.key_positions = positions::ring(many, 3 * many + 700);
    const pages<Eigen::bfloat16> k_pages(k.view(), 16), v_pages(v.view(), 64);
    const posenc::paged_view<const Eigen::bfloat16> k_paged = k_pages.view(), v_paged = v_pages.view();
    const answer reference = reference_answer(q, k_paged, v_paged, rope, options);
    sweep::on_every_target([&](const char* target) {
      SCOPED_TRACE(name_of(target, c));
      const answer alone = fused_answer(q, k.view(), v.view(), rope, options, c.by);
      EXPECT_LE(distance(alone, reference), 1e-6);
      const fused_calls::backward_executor three{3};
      EXPECT_EQ(fused_answer(q, k_paged, v_paged, rope, options, c.by, {.executor = three}), alone);
    });
  }
}

}  // namespace layouts_test
