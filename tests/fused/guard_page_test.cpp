// SPDX-License-Identifier: MIT
/// \file
/// No byte outside a row is read or written: every row of q, k, v and the output ends where a page begins
/// that may not be touched, or begins where one ends, and rows that are not valid may not be touched at
/// all.
#include <cstddef>
#include <new>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "fused/calls.hpp"
#include "fused/targets.hpp"

namespace guard_page_test {

using fused_calls::random_matrix;
using posenc::index_t;
using posenc::row_major_matrix;

enum class flush { end, begin };

/// tokens × heads rows, each in a page of its own with a forbidden page on either side.
template <class S>
class guarded_rows {
 public:
  guarded_rows(index_t tokens, index_t heads, index_t head_dim, flush where, posenc::row_range touchable) {
    const auto page = static_cast<index_t>(::sysconf(_SC_PAGESIZE));
    const index_t step = 2 * page / static_cast<index_t>(sizeof(S));
    bytes_ = static_cast<std::size_t>((2 * tokens * heads + 1) * page);
    memory_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    auto* const first = static_cast<std::byte*>(memory_) + page;
    for (index_t row = touchable.begin * heads; row < touchable.end * heads; ++row)
      if (::mprotect(first + 2 * page * row, static_cast<std::size_t>(page), PROT_READ | PROT_WRITE) != 0)
        throw std::bad_alloc();
    view = {reinterpret_cast<S*>(first) + (where == flush::end ? step / 2 - head_dim : 0),
            tokens,
            heads,
            head_dim,
            heads * step,
            step};
  }
  ~guarded_rows() { ::munmap(memory_, bytes_); }
  guarded_rows(const guarded_rows&) = delete;
  guarded_rows& operator=(const guarded_rows&) = delete;

  posenc::heads_view<S> view;

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

template <class S>
void copy_rows(const row_major_matrix<S>& from, const posenc::heads_view<S>& to, posenc::row_range rows) {
  for (index_t t = rows.begin; t < rows.end; ++t)
    for (index_t h = 0; h < to.heads; ++h)
      for (index_t c = 0; c < to.head_dim; ++c)
        to(t, h)[static_cast<std::size_t>(c)] = from(t, h * to.head_dim + c);
}

template <class S, class E>
void check(const E& encoding, index_t queries, index_t head_dim, index_t value_dim, flush where,
           bool keys_are_rotated) {
  constexpr index_t heads = 4, kv_heads = 2, keys = 75;
  const posenc::row_range all_queries{0, queries}, valid_keys{2, 71};
  const posenc::attention_options options{.heads = heads,
                                          .kv_heads = kv_heads,
                                          .mask = posenc::causal,
                                          .keys_are_rotated = keys_are_rotated,
                                          .valid_keys = valid_keys};
  const auto q = random_matrix<S>(queries, heads * head_dim, 1),
             k = random_matrix<S>(keys, kv_heads * head_dim, 2),
             v = random_matrix<S>(keys, kv_heads * value_dim, 3);
  const guarded_rows<S> guarded_q(queries, heads, head_dim, where, all_queries),
      guarded_k(keys, kv_heads, head_dim, where, valid_keys),
      guarded_v(keys, kv_heads, value_dim, where, valid_keys),
      out(queries, heads, value_dim, where, all_queries);
  copy_rows(q, guarded_q.view, all_queries);
  copy_rows(k, guarded_k.view, valid_keys);
  copy_rows(v, guarded_v.view, valid_keys);
  const row_major_matrix<S> expected = posenc::fused::attention(q, k, v, encoding, options);
  posenc::fused::attention_into(guarded_q.view, guarded_k.view, guarded_v.view, encoding, options, out.view);
  for (index_t t = 0; t < queries; ++t)
    for (index_t h = 0; h < heads; ++h)
      for (index_t c = 0; c < value_dim; ++c)
        ASSERT_EQ(out.view(t, h)[static_cast<std::size_t>(c)], expected(t, h * value_dim + c));
}

template <class S>
void check_storage() {
  sweep::on_every_target([](const char* target) {
    for (const index_t head_dim : {1, 2, 7, 33, 65})
      for (const index_t queries : {1, 3, 20})
        for (const flush where : {flush::end, flush::begin}) {
          SCOPED_TRACE(std::string(target) + ", head_dim " + std::to_string(head_dim) + ", queries " +
                       std::to_string(queries) + (where == flush::end ? ", rows end" : ", rows begin"));
          check<S>(posenc::no_encoding{}, queries, head_dim, head_dim % 5 + 1, where, false);
          if (head_dim < 2) continue;
          for (const auto pairing : {posenc::pairing::half_split, posenc::pairing::interleaved}) {
            const posenc::rope<float> rope{
                {.head_dim = head_dim, .rotary_dim = head_dim / 2 * 2, .pairing = pairing}};
            check<S>(rope, queries, head_dim, head_dim, where, false);
            check<S>(rope, queries, head_dim, head_dim + 3, where, true);
          }
        }
  });
}

TEST(FusedGuardPages, Float) { check_storage<float>(); }
TEST(FusedGuardPages, Bfloat16) { check_storage<Eigen::bfloat16>(); }
TEST(FusedGuardPages, Half) { check_storage<Eigen::half>(); }

}  // namespace guard_page_test
