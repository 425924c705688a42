// SPDX-License-Identifier: MIT
/// \file
/// Sources that describe no memory are refused before anything is written, and no byte outside their rows is touched.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/targets.hpp"
#include "refusals.hpp"

namespace refusals_test {

using namespace cache_rows_test;
using posenc::attention_options;
using posenc::paged_view;
using posenc::q8_0_block;
using posenc::fused::kernel;
using std::invalid_argument;

constexpr index_t heads = 2, kv_heads = 1, head_dim = 32, keys = 10;
const attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};

posenc::rope<float> rope() {
  return posenc::rope<float>{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
}

/// Both engines refuse the call with this sentence, and leave the output as it was.
template <class K, class V>
void expect_refused(const K& k, const V& v, const std::string& words, const attention_options& with = options,
                    float* out_at = nullptr) {
  const rows<float> q = random_rows<float>(1, heads, head_dim, 1);
  std::vector<float> own(static_cast<std::size_t>(heads * head_dim), 7.0f);
  const auto out = posenc::token_major(out_at ? out_at : own.data(), index_t{1}, heads, head_dim);
  EXPECT_REFUSAL((posenc::fused::attention_into(q.view(), k, v, rope(), with, out), 0), invalid_argument,
                 words);
  EXPECT_REFUSAL((posenc::reference::attention_into(q.view(), k, v, rope(), with, out), 0), invalid_argument,
                 words);
  EXPECT_THAT(own, ::testing::Each(7.0f));
}

class pages_are : public ::testing::Test {
 protected:
  static constexpr index_t of = 4;
  rows<float> k_rows = random_rows<float>(keys, kv_heads, head_dim, 2),
              v_rows = random_rows<float>(keys, kv_heads, head_dim, 3);
  pages<float> k_pages{std::as_const(k_rows).view(), of}, v_pages{std::as_const(v_rows).view(), of};
  paged_view<const float> k = k_pages.view(), v = v_pages.view();
};

TEST_F(pages_are, refused_where_the_table_leaves_the_pool) {
  for (const std::int32_t entry :
       {3, -1, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()})
    for (const std::size_t at : {0u, 2u}) {
      pages<float> bad = k_pages;
      bad.table[at] = entry;
      paged_view<const float> view = k;
      view.table = bad.table;
      const std::string words = "entry " + std::to_string(at) + " of the page table is " +
                                std::to_string(entry) + "; there are 3 pages";
      expect_refused(view, v, "k: " + words);
      expect_refused(k, view, "v: " + words);
    }
  // Entries after the last token are not looked at: engines keep tables of a fixed length.
  std::vector<std::int32_t> longer = k_pages.table;
  longer.push_back(-1);
  paged_view<const float> view = k;
  view.table = longer;
  const rows<float> q = random_rows<float>(1, heads, head_dim, 1);
  EXPECT_EQ(fused_answer(q, view, v, rope(), options, kernel::decode),
            fused_answer(q, k, v, rope(), options, kernel::decode));
}

TEST_F(pages_are, refused_where_they_are_too_few_or_nothing) {
  paged_view<const float> view = k;
  view.tokens = 13;
  expect_refused(view, v, "k: 13 tokens in 3 pages of 4");
  view = k, view.tokens = -1;
  expect_refused(view, v, "k: negative shape -1 x 1 x 32");
  for (const index_t tokens : {index_t{0}, index_t{-4}, std::numeric_limits<index_t>::min()}) {
    view = k, view.page_tokens = tokens;
    expect_refused(view, v, "k: pages of " + std::to_string(tokens) + " tokens");
  }
  std::vector<const float*> addresses(k_pages.addresses.begin(), k_pages.addresses.end());
  const std::int32_t last = k_pages.table.back();
  addresses[static_cast<std::size_t>(last)] = nullptr;
  view = k, view.pages = addresses;
  expect_refused(view, v, "k: no memory behind page " + std::to_string(last));
  view = k, view.tokens = 9;
  expect_refused(view, v, "k has 9 tokens, v has 10");
  view = k, view.heads = 2, view.head_dim = head_dim / 2;
  expect_refused(view, v, "k has 2 heads, v has 1");
  view = k, view.tokens = std::numeric_limits<index_t>::max(), view.page_tokens = 1;
  expect_refused(view, v, "tokens in 3 pages of 1");
}

TEST_F(pages_are, refused_where_the_output_lies_in_one) {
  for (pages<float>* side : {&k_pages, &v_pages})
    for (std::vector<float>& page : side->memory) {
      // The last page holds two tokens only; the output may lie after them.
      const bool is_last = page.data() == side->addresses[static_cast<std::size_t>(side->table.back())];
      const std::size_t after = is_last ? 2 * head_dim : 4 * head_dim;
      page.resize(after + heads * head_dim);
      for (std::size_t n = 0; n < side->memory.size(); ++n) side->addresses[n] = side->memory[n].data();
      expect_refused(k, v, "output overlaps q, k or v in memory", options, page.data() + after - 1);
      const rows<float> q = random_rows<float>(1, heads, head_dim, 1);
      EXPECT_NO_THROW(posenc::fused::attention_into(
          q.view(), k, v, rope(), options,
          posenc::token_major(page.data() + after, index_t{1}, heads, head_dim)));
    }
}

TEST_F(pages_are, refused_where_the_workspace_or_another_output_lies_in_one) {
  const rows<float> q = random_rows<float>(1, heads, head_dim, 1);
  rows<float> out(2, heads, head_dim);
  auto& page = v_pages.memory[1];
  std::vector<float> lse(2);
  for (const std::size_t at : {std::size_t{0}, page.size() - 1}) {
    std::span<std::byte> bytes = std::as_writable_bytes(std::span(page).subspan(at));
    posenc::fused::workspace borrowed(bytes);
    EXPECT_REFUSAL((posenc::fused::attention_into(q.view(), k, v, rope(), options, out.view(), {},
                                                  {.memory = &borrowed}),
                    0),
                   invalid_argument, "the borrowed workspace overlaps v in memory");
  }
  using paged = paged_view<const float>;
  const auto first = posenc::token_major(out.numbers.data(), index_t{1}, heads, head_dim);
  page.resize(page.size() + static_cast<std::size_t>(heads * head_dim));
  v_pages.addresses[1] = page.data();
  const std::vector<posenc::attention_sequence<float, paged>> batch{
      {.q = q.view(), .k = k, .v = v, .out = first, .options = options},
      {.q = q.view(),
       .k = k,
       .v = k,
       .out = posenc::token_major(page.data() + 64, index_t{1}, heads, head_dim),
       .options = options}};
  EXPECT_REFUSAL((posenc::fused::attention_batch(batch, rope()), 0), invalid_argument,
                 "the output of sequence 1 overlaps q, k or v of sequence 0");
}

TEST_F(pages_are, read_at_any_stride) {
  // Rows backwards in a page, every other token, heads apart: only what a stride reaches is read.
  std::vector<float> memory(3 * of * 2 * head_dim, std::numeric_limits<float>::quiet_NaN());
  std::vector<const float*> addresses;
  for (index_t n = 0; n < 3; ++n) addresses.push_back(memory.data() + (n + 1) * of * 2 * head_dim - head_dim);
  std::vector<std::int32_t> table{1, 0, 2};
  paged_view<const float> view = k;
  view.pages = addresses, view.table = table, view.token_stride = -2 * head_dim;
  for (index_t t = 0; t < keys; ++t)
    std::copy_n(k_rows.view()(t, 0).begin(), head_dim, const_cast<float*>(view(t, 0).data()));
  const rows<float> q = random_rows<float>(1, heads, head_dim, 1);
  sweep::on_every_target([&](const char* target) {
    SCOPED_TRACE(target);
    EXPECT_EQ(fused_answer(q, view, v, rope(), options, kernel::decode),
              fused_answer(q, k, v, rope(), options, kernel::decode));
  });
}

TEST(quantised_sources, are_refused_where_scales_do_not_fit) {
  const std::vector<std::int8_t> codes(keys * head_dim);
  std::vector<float> scales(keys * head_dim, 1.0f);
  const auto rows_of = [](const auto& of, index_t tokens, index_t of_heads, index_t channels) {
    return posenc::token_major(of.data(), tokens, of_heads, channels);
  };
  const posenc::quantised_keys k{rows_of(codes, keys, kv_heads, head_dim),
                                 rows_of(scales, 3, kv_heads, head_dim), 4};
  const posenc::quantised_values v{rows_of(codes, keys, kv_heads, head_dim),
                                   rows_of(scales, keys, kv_heads, 1)};
  auto bad_k = k;
  bad_k.scales = rows_of(scales, 2, kv_heads, head_dim);
  expect_refused(bad_k, v, "k: the scales are 2 x 1 x 32, needed are 3 x 1 x 32");
  bad_k.scales = rows_of(scales, 3, kv_heads, 1);
  expect_refused(bad_k, v, "k: the scales are 3 x 1 x 1, needed are 3 x 1 x 32");
  bad_k.scales = rows_of(scales, 3, 2, 16);
  expect_refused(bad_k, v, "k: the scales are 3 x 2 x 16, needed are 3 x 1 x 32");
  bad_k.scales = posenc::heads_view<const float>{nullptr, 3, 1, head_dim, head_dim, head_dim};
  expect_refused(bad_k, v, "k: no memory behind 3 x 1 x 32");
  for (const index_t group : {index_t{0}, index_t{-1}, std::numeric_limits<index_t>::min()}) {
    bad_k = k, bad_k.group_tokens = group;
    expect_refused(bad_k, v, "k: groups of " + std::to_string(group) + " tokens");
  }
  bad_k = k,
  bad_k.codes = posenc::heads_view<const std::int8_t>{nullptr, keys, 1, head_dim, head_dim, head_dim};
  expect_refused(bad_k, v, "k: no memory behind 10 x 1 x 32");
  auto bad_v = v;
  bad_v.scales = rows_of(scales, keys - 1, kv_heads, 1);
  expect_refused(k, bad_v, "v: the scales are 9 x 1 x 1, needed are 10 x 1 x 1");
  bad_v.scales = rows_of(scales, keys, kv_heads, head_dim);
  expect_refused(k, bad_v, "v: the scales are 10 x 1 x 32, needed are 10 x 1 x 1");
  std::vector<std::int32_t> table{0, 7};
  std::vector<const float*> addresses{scales.data(), scales.data()};
  bad_v.scales = paged_view<const float>{addresses, table, 5, keys, 1, 1};
  expect_refused(k, bad_v, "v: entry 1 of the page table is 7; there are 2 pages");
  for (const float* of : {scales.data(), scales.data() + 3 * head_dim - 1})
    expect_refused(k, v, "output overlaps q, k or v in memory", options, const_cast<float*>(of));
}

TEST(quantised_sources, are_refused_where_heads_are_no_whole_blocks) {
  rows<float> x = random_rows<float>(3, 1, 48, 1);
  std::vector<q8_0_block> blocks(6);
  EXPECT_REFUSAL((posenc::quantise_q8_0(x.view(), posenc::token_major(blocks.data(), 3, 1, 1)), 0),
                 invalid_argument, "heads of 48 channels are not whole blocks of 32");
  EXPECT_REFUSAL(posenc::q8_0_cache(1, 48), invalid_argument,
                 "heads of 48 channels are not whole blocks of 32");
  const attention_options one{.heads = 1, .mask = posenc::causal};
  const auto plan_of = [&](index_t channels, index_t values) {
    return posenc::fused::plan(posenc::no_encoding{}, one,
                               {.queries = 1,
                                .keys = 3,
                                .head_dim = channels,
                                .value_dim = values,
                                .k = posenc::fused::storage::q8_0,
                                .v = posenc::fused::storage::q8_0});
  };
  EXPECT_NO_THROW(plan_of(64, 32));
  EXPECT_REFUSAL(plan_of(48, 32), invalid_argument, "are not whole blocks of q8_0");
  EXPECT_REFUSAL(plan_of(32, 48), invalid_argument, "are not whole blocks of q8_0");
}

TEST(quantised_sources, are_refused_by_a_plan_for_others) {
  using posenc::fused::storage;
  const auto plan_of = [](storage q, storage k, storage v, storage out) {
    return posenc::fused::plan(rope(), options,
                               {.queries = 1, .keys = keys, .q = q, .k = k, .v = v, .out = out});
  };
  constexpr storage f = storage::float32;
  EXPECT_REFUSAL(plan_of(f, storage::int8_by_token, f, f), invalid_argument,
                 "k is stored as quantised_values and v as float");
  EXPECT_REFUSAL(plan_of(f, f, storage::int8_by_channel, f), invalid_argument,
                 "k is stored as float and v as quantised_keys");
  for (const storage type :
       {storage::q8_0, storage::float8_e4m3, storage::int8_by_token, storage::int8_by_channel}) {
    EXPECT_REFUSAL(plan_of(type, f, f, f), invalid_argument, "q and out are float, bfloat16 or half, not");
    EXPECT_REFUSAL(plan_of(f, f, f, type), invalid_argument, "q and out are float, bfloat16 or half, not");
  }
  posenc::fused::plan plan = plan_of(f, storage::q8_0, storage::q8_0, f);
  const rows<float> q = random_rows<float>(1, heads, head_dim, 1),
                    k = random_rows<float>(keys, 1, head_dim, 1);
  rows<float> out(1, heads, head_dim);
  EXPECT_REFUSAL((plan.run(q.view(), k.view(), k.view(), out.view()), 0), invalid_argument,
                 "k is stored as float, planned for q8_0 (shape.k)");
}

TEST(quantised_sources, are_refused_where_they_would_be_written_over) {
  rows<float> x = random_rows<float>(8, 1, 32, 1);
  rows<std::int8_t> codes(8, 1, 32);
  rows<float> scales(2, 1, 32), of_tokens(8, 1, 1);
  const auto keys_to = [&](const posenc::heads_view<std::int8_t>& c, const posenc::heads_view<float>& s,
                           index_t group = 4) { posenc::quantise_keys(x.view(), c, s, group); };
  keys_to(codes.view(), scales.view());
  EXPECT_REFUSAL((keys_to(codes.view(), scales.view(), 0), 0), invalid_argument, "groups of 0 tokens");
  EXPECT_REFUSAL((keys_to(codes.view(), scales.view(), 3), 0), invalid_argument,
                 "the scales are 2 x 1 x 32, needed are 3 x 1 x 32");
  EXPECT_REFUSAL((keys_to(posenc::token_major(codes.numbers.data(), 7, 1, 32), scales.view()), 0),
                 invalid_argument, "from 8 x 1 x 32 to 7 x 1 x 32");
  EXPECT_REFUSAL(
      (keys_to(posenc::heads_view<std::int8_t>{codes.numbers.data(), 8, 1, 32, 31, 32}, scales.view()), 0),
      invalid_argument, "rows overlap (token stride 31");
  EXPECT_REFUSAL((keys_to(codes.view(), posenc::token_major(x.numbers.data() + 255, 2, 1, 32)), 0),
                 invalid_argument, "the scales overlap keys or codes in memory");
  auto* const in_x = reinterpret_cast<std::int8_t*>(x.numbers.data());
  EXPECT_REFUSAL((keys_to(posenc::token_major(in_x + 1023, 8, 1, 32), scales.view()), 0), invalid_argument,
                 "source and destination overlap");
  EXPECT_REFUSAL((posenc::quantise_values(x.view(), codes.view(), scales.view()), 0), invalid_argument,
                 "the scales are 2 x 1 x 32, needed are 8 x 1 x 1");
  EXPECT_REFUSAL(
      (posenc::quantise_values(x.view(), codes.view(), posenc::token_major(x.numbers.data(), 8, 1, 1)), 0),
      invalid_argument, "the scales overlap values or codes in memory");
  auto* const as_blocks = reinterpret_cast<q8_0_block*>(x.numbers.data());
  EXPECT_REFUSAL((posenc::quantise_q8_0(x.view(), posenc::token_major(as_blocks, 8, 1, 1)), 0),
                 invalid_argument, "source and destination overlap");
  for (const auto& [kv, channels, group] :
       {std::array<index_t, 3>{0, 32, 1}, {1, 0, 1}, {1, 32, 0}, {-1, 32, 1}})
    EXPECT_THROW(posenc::quantised_key_cache(kv, channels, group), invalid_argument);
  EXPECT_THROW(posenc::quantised_value_cache(0, 32), invalid_argument);
  EXPECT_THROW(posenc::q8_0_cache(1, 0), invalid_argument);
  posenc::quantised_key_cache k(2, 16);
  posenc::quantised_value_cache v(2, 16);
  posenc::q8_0_cache q(2, 32);
  EXPECT_REFUSAL((k.append(x.view()), 0), invalid_argument, "rows of 1 x 32 for a cache of 2 x 16");
  EXPECT_REFUSAL((v.append(x.view()), 0), invalid_argument, "rows of 1 x 32 for a cache of 2 x 16");
  EXPECT_REFUSAL((q.append(x.view()), 0), invalid_argument, "rows of 1 x 32 for a cache of 2 x 32");
}

TEST(a_ring, is_refused_where_it_is_not_as_long_as_the_keys) {
  using posenc::positions;
  const rows<float> k = random_rows<float>(keys, kv_heads, head_dim, 2);
  for (const auto& [capacity, next] : {std::pair{keys - 1, 35}, {keys + 1, 35}}) {
    attention_options with = options;
    with.key_positions = positions::ring(capacity, next);
    expect_refused(k.view(), k.view(), "ring", with);
  }
  EXPECT_REFUSAL(positions::ring(0, 1), invalid_argument, "positions::ring: a capacity of 0");
  EXPECT_REFUSAL(positions::ring(-3, 1), invalid_argument, "positions::ring: a capacity of -3");
  EXPECT_REFUSAL(positions::ring(3, -1), invalid_argument, "positions::ring: next is -1");
  attention_options with = options;
  with.key_positions = positions::ring(keys, std::numeric_limits<position>::max());
  expect_refused(k.view(), k.view(), "positions of a ring from", with);
}

/// Pages between memory that may not be touched; their rows end where it begins, or begin where it ends.
template <class S>
class guarded_pages {
 public:
  guarded_pages(posenc::heads_view<const S> from, index_t of, bool at_end)
      : of_(of), tokens_(from.tokens), heads_(from.heads), channels_(from.head_dim) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t count = static_cast<std::size_t>((tokens_ + of - 1) / of),
                      row = static_cast<std::size_t>(heads_ * channels_) * sizeof(S);
    const std::size_t step = (static_cast<std::size_t>(of) * row / page + 1) * page + page;
    bytes_ = count * step + page;
    memory_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    for (std::size_t n = 0; n < count; ++n) {
      auto* const begin = static_cast<std::byte*>(memory_) + page + n * step;
      if (::mprotect(begin, step - page, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      // The last page ends with its last token: no room is left behind it.
      const index_t held = (std::min)(of, tokens_ - static_cast<index_t>(n) * of);
      pages_.push_back(
          reinterpret_cast<S*>(begin + (at_end ? step - page - static_cast<std::size_t>(held) * row : 0)));
      table_.push_back(static_cast<std::int32_t>(n));
    }
    std::swap(pages_[0], pages_[1]), std::swap(table_[0], table_[1]);
    const paged_view<S> to{pages_, table_, of_, tokens_, heads_, channels_};
    for (index_t t = 0; t < tokens_; ++t)
      for (index_t h = 0; h < heads_; ++h) std::copy_n(from(t, h).begin(), channels_, to(t, h).begin());
  }
  ~guarded_pages() { ::munmap(memory_, bytes_); }
  guarded_pages(const guarded_pages&) = delete;
  guarded_pages& operator=(const guarded_pages&) = delete;
  [[nodiscard]] paged_view<const S> view() const {
    return paged_view<S>{pages_, table_, of_, tokens_, heads_, channels_};
  }

 private:
  index_t of_, tokens_, heads_, channels_;
  std::vector<S*> pages_{};
  std::vector<std::int32_t> table_{};
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

struct call {
  kernel by;
  index_t queries, heads, kv_heads;
};
constexpr call calls[] = {
    {kernel::decode, 1, 4, 2}, {kernel::stacked, 2, 24, 2}, {kernel::prefill, 40, 2, 1}};

/// Decode, stacked and prefill over guarded pages; `source(rows)` makes a source of rows.
template <class Check>
void for_each_guarded_call(const Check& check) {
  for (const call& c : calls)
    for (const bool at_end : {true, false})
      for (const index_t channels : {index_t{33}, index_t{64}}) {
        SCOPED_TRACE(std::to_string(c.queries) + " queries, " + std::to_string(channels) + " channels, " +
                     (at_end ? "pages end" : "pages begin"));
        check(c, at_end, channels,
              attention_options{.heads = c.heads, .kv_heads = c.kv_heads, .mask = posenc::causal},
              posenc::rope<float>{{.head_dim = channels,
                                   .rotary_dim = channels == 33 ? 20 : 48,
                                   .pairing = posenc::pairing::half_split}});
      }
}
constexpr index_t guarded_tokens = 75;

template <class S>
void check_guarded() {
  for_each_guarded_call(
      [](const call& c, bool at_end, index_t channels, const auto& with, const auto& encoding) {
        const rows<float> q = random_rows<float>(c.queries, c.heads, channels, 1);
        const rows<S> k = random_rows<S>(guarded_tokens, c.kv_heads, channels, 2),
                      v = random_rows<S>(guarded_tokens, c.kv_heads, channels, 3);
        const guarded_pages<S> k_pages(k.view(), 16, at_end), v_pages(v.view(), 7, at_end);
        sweep::on_every_target([&](const char* target) {
          SCOPED_TRACE(target);
          EXPECT_EQ(fused_answer(q, k_pages.view(), v_pages.view(), encoding, with, c.by),
                    fused_answer(q, k.view(), v.view(), encoding, with, c.by));
        });
      });
}
TEST(guarded_pages_of, float_) { check_guarded<float>(); }
TEST(guarded_pages_of, half) { check_guarded<Eigen::half>(); }
TEST(guarded_pages_of, float8) { check_guarded<posenc::float8_e4m3>(); }

TEST(guarded_pages_of, int8_with_their_scales) {
  for_each_guarded_call([](const call& c, bool at_end, index_t channels, const auto& with,
                           const auto& encoding) {
    constexpr index_t group = 8, groups = (guarded_tokens + group - 1) / group;
    const rows<float> q = random_rows<float>(c.queries, c.heads, channels, 1),
                      x = random_rows<float>(guarded_tokens, c.kv_heads, channels, 2);
    rows<std::int8_t> k(guarded_tokens, c.kv_heads, channels), v = k;
    rows<float> k_scales(groups, c.kv_heads, channels), v_scales(guarded_tokens, c.kv_heads, 1);
    posenc::quantise_keys(x.view(), k.view(), k_scales.view(), group);
    posenc::quantise_values(x.view(), v.view(), v_scales.view());
    const guarded_pages<std::int8_t> k_pages(std::as_const(k).view(), 16, at_end),
        v_pages(std::as_const(v).view(), 7, at_end);
    const guarded_pages<float> k_scale_pages(std::as_const(k_scales).view(), 2, at_end),
        v_scale_pages(std::as_const(v_scales).view(), 7, at_end);
    sweep::on_every_target([&](const char* target) {
      SCOPED_TRACE(target);
      EXPECT_EQ(
          fused_answer(q, posenc::quantised_keys{k_pages.view(), k_scale_pages.view(), group},
                       posenc::quantised_values{v_pages.view(), v_scale_pages.view()}, encoding, with, c.by),
          fused_answer(q, posenc::quantised_keys{k.view(), k_scales.view(), group},
                       posenc::quantised_values{v.view(), v_scales.view()}, encoding, with, c.by));
    });
  });
}

TEST(guarded_pages_of, q8_0) {
  for_each_guarded_call(
      [](const call& c, bool at_end, index_t channels, const auto& with, const auto& encoding) {
        if (channels % 32 != 0) return;
        const rows<float> q = random_rows<float>(c.queries, c.heads, channels, 1),
                          x = random_rows<float>(guarded_tokens, c.kv_heads, channels, 2);
        rows<q8_0_block> blocks(guarded_tokens, c.kv_heads, channels / 32);
        posenc::quantise_q8_0(x.view(), blocks.view());
        const guarded_pages<q8_0_block> k_pages(std::as_const(blocks).view(), 16, at_end),
            v_pages(std::as_const(blocks).view(), 7, at_end);
        const posenc::q8_0_view plain{std::as_const(blocks).view()};
        sweep::on_every_target([&](const char* target) {
          SCOPED_TRACE(target);
          EXPECT_EQ(fused_answer(q, posenc::q8_0_view{k_pages.view()}, posenc::q8_0_view{v_pages.view()},
                                 encoding, with, c.by),
                    fused_answer(q, plain, plain, encoding, with, c.by));
        });
      });
}

}  // namespace refusals_test
