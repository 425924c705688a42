// SPDX-License-Identifier: MIT
/// \file
/// A serving engine at random: sequences grow, lose pages and their last tokens, move, fork with shared pages, change
/// their RoPE and are quantised. Beside each stands a naive list of tokens, and attention over both is compared after
/// every operation.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "cache/rows.hpp"
#include "fused/targets.hpp"

namespace engine_test {

using namespace cache_rows_test;
using posenc::paged_view;
using posenc::q8_0_block;

constexpr int operations = 1000;
constexpr index_t heads = 4, kv_heads = 2, head_dim = 32, page_tokens = 4, group_tokens = 7;

/// How a cache is kept from some operation on.
enum class kept_as { floats, q8_0, int8 };

/// RoPE with another base or interpolated: f_p = base^(−2p/d) / factor.
struct scheme {
  double base = 10000, factor = 1;
  [[nodiscard]] posenc::rope<float> rope() const {
    return posenc::rope<float>{{.head_dim = head_dim, .base = base, .pairing = posenc::pairing::half_split},
                               posenc::position_interpolation{.factor = factor}};
  }
};

// --- The naive model: a list of tokens.

struct token {
  position at;
  std::vector<float> k, v;  ///< kv_heads × head_dim, as they were appended
};
struct model {
  std::vector<token> tokens;
  kept_as kept = kept_as::floats;
  scheme by;
};

/// What q8_0 keeps of a row.
std::vector<float> through_q8_0(std::vector<float> row) {
  for (std::size_t b = 0; b < row.size(); b += 32) {
    float largest = 0;
    for (std::size_t c = b; c < b + 32; ++c) largest = (std::max)(largest, std::abs(row[c]));
    const float scale = largest / 127;
    for (std::size_t c = b; c < b + 32; ++c)
      row[c] = std::round(row[c] * (scale > 0 ? 1 / scale : 0)) * static_cast<float>(Eigen::half(scale));
  }
  return row;
}
/// What a code keeps of a number, the largest of its group given.
float through_int8(float x, float largest) {
  const float scale = largest / 127;
  return scale > 0 ? std::nearbyint(x / scale) * scale : 0.0f;
}

/// Keys or values as numbers, token by token.
std::vector<std::vector<float>> numbers_of(const model& m, std::vector<float> token::*side) {
  std::vector<std::vector<float>> result;
  for (const token& t : m.tokens) result.push_back(m.kept == kept_as::q8_0 ? through_q8_0(t.*side) : t.*side);
  if (m.kept != kept_as::int8) return result;
  const bool is_key = side == &token::k;
  for (std::size_t t = 0; t < result.size(); ++t)
    for (std::size_t c = 0; c < result[t].size(); ++c) {
      float largest = 0;
      if (is_key) {
        const std::size_t first = t / group_tokens * group_tokens;
        for (std::size_t u = first; u < (std::min)(first + group_tokens, result.size()); ++u)
          largest = (std::max)(largest, std::abs((m.tokens[u].*side)[c]));
      } else {
        const std::size_t head = c / head_dim * head_dim;
        for (std::size_t d = head; d < head + head_dim; ++d)
          largest = (std::max)(largest, std::abs((m.tokens[t].*side)[d]));
      }
      result[t][c] = through_int8((m.tokens[t].*side)[c], largest);
    }
  return result;
}

void rotate(std::vector<double>& head, position at, const scheme& by) {
  for (std::size_t p = 0; p < head_dim / 2; ++p) {
    const double angle =
        static_cast<double>(at) * std::pow(by.base, -2.0 * static_cast<double>(p) / head_dim) / by.factor;
    const double a = head[p], b = head[p + head_dim / 2];
    head[p] = a * std::cos(angle) - b * std::sin(angle);
    head[p + head_dim / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
}

/// Causal attention of queries that stand on the last tokens.
std::vector<float> naive_attention(const model& m, const rows<float>& q) {
  const auto k = numbers_of(m, &token::k), v = numbers_of(m, &token::v);
  const std::size_t count = m.tokens.size();
  const auto head_of = [](const std::vector<float>& row, index_t h) {
    return std::vector<double>(row.begin() + h * head_dim, row.begin() + (h + 1) * head_dim);
  };
  std::vector<std::vector<double>> keys;  // by head, then token
  for (index_t h = 0; h < kv_heads; ++h)
    for (std::size_t j = 0; j < count; ++j) {
      keys.push_back(head_of(k[j], h));
      rotate(keys.back(), m.tokens[j].at, m.by);
    }
  std::vector<float> out;
  for (index_t i = 0; i < q.tokens; ++i)
    for (index_t h = 0; h < heads; ++h) {
      const auto row = q.view()(i, h);
      std::vector<double> query(row.begin(), row.end()), sum(head_dim);
      const position here = m.tokens[count - static_cast<std::size_t>(q.tokens - i)].at;
      rotate(query, here, m.by);
      double total = 0;
      for (std::size_t j = 0; j < count; ++j) {
        if (m.tokens[j].at > here) continue;
        const std::vector<double>& key = keys[static_cast<std::size_t>(h / 2) * count + j];
        double score = 0;
        for (std::size_t c = 0; c < head_dim; ++c) score += query[c] * key[c];
        const double weight = std::exp(score / std::sqrt(double{head_dim}));
        total += weight;
        for (std::size_t c = 0; c < head_dim; ++c)
          sum[c] += weight * static_cast<double>(v[j][static_cast<std::size_t>(h / 2) * head_dim + c]);
      }
      for (const double x : sum) out.push_back(static_cast<float>(x / total));
    }
  return out;
}

// --- The engine: pages with counts of their users.

template <class T>
class pool {
 public:
  static constexpr index_t channels = std::is_same_v<T, float> ? head_dim : head_dim / 32;

  [[nodiscard]] std::int32_t take() {
    const auto unused = std::find(users_.begin(), users_.end(), 0);
    const auto n = static_cast<std::size_t>(unused - users_.begin());
    if (unused == users_.end()) {
      users_.push_back(0);
      memory_.push_back(std::make_unique<T[]>(static_cast<std::size_t>(page_tokens * kv_heads * channels)));
      pages_.push_back(memory_.back().get());
    }
    users_[n] = 1;
    return static_cast<std::int32_t>(n);
  }
  void share(std::int32_t n) { ++users_[static_cast<std::size_t>(n)]; }
  void release(std::int32_t n) { --users_[static_cast<std::size_t>(n)]; }
  /// The page, or a copy of it where others use it too.
  [[nodiscard]] std::int32_t own(std::int32_t n) {
    if (users_[static_cast<std::size_t>(n)] == 1) return n;
    const std::int32_t copy = take();
    std::copy_n(pages_[static_cast<std::size_t>(n)], page_tokens * kv_heads * channels,
                pages_[static_cast<std::size_t>(copy)]);
    release(n);
    return copy;
  }
  [[nodiscard]] paged_view<T> view(const std::vector<std::int32_t>& table, index_t tokens) const {
    return {pages_, table, page_tokens, tokens, kv_heads, channels};
  }
  [[nodiscard]] int in_use() const {
    return static_cast<int>(users_.size() -
                            static_cast<std::size_t>(std::count(users_.begin(), users_.end(), 0)));
  }
  [[nodiscard]] bool has_shared() const {
    return std::any_of(users_.begin(), users_.end(), [](int n) { return n > 1; });
  }

 private:
  std::vector<std::unique_ptr<T[]>> memory_;
  std::vector<T*> pages_;
  std::vector<int> users_;
};

void write_row(posenc::heads_view<const float> row, const posenc::heads_view<float>& to) {
  for (index_t h = 0; h < kv_heads; ++h) std::copy_n(row(0, h).begin(), head_dim, to(0, h).begin());
}
void write_row(posenc::heads_view<const float> row, const posenc::heads_view<q8_0_block>& to) {
  posenc::quantise_q8_0(row, to);
}

/// One sequence: its page tables, or int8 caches, and the model of the same.
struct sequence {
  std::vector<std::int32_t> k_pages, v_pages;
  std::optional<posenc::quantised_key_cache> k_int8;
  std::optional<posenc::quantised_value_cache> v_int8;
  model naive;

  [[nodiscard]] index_t tokens() const { return static_cast<index_t>(naive.tokens.size()); }
};

class engine {
 public:
  explicit engine(unsigned seed) : random_(seed), sequences_(1) {
    sequences_.reserve(4);
    append(sequences_[0], 5);
  }

  void run(int count) {
    for (int n = 0; n < count; ++n) {
      sequence& s = sequences_[below(sequences_.size())];
      const std::string did = operate(s);
      SCOPED_TRACE("operation " + std::to_string(n) + ": " + did);
      compare(s);
      if (::testing::Test::HasFatalFailure()) return;
      shared_ = shared_ || floats_.has_shared(), shared_blocks_ = shared_blocks_ || blocks_.has_shared();
    }
    EXPECT_TRUE(shared_ && shared_blocks_) << "no pages were shared";
    EXPECT_THAT(compared_, ::testing::Each(::testing::Ge(count / 20)))
        << "a kind of cache was hardly compared";
    for (sequence& s : sequences_) clear(s);
    EXPECT_EQ(floats_.in_use() + blocks_.in_use(), 0) << "pages are lost";
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }

  /// Calls use(pool) with the pool that a sequence's pages lie in.
  template <class Use>
  void with_pool(const sequence& s, const Use& use) {
    s.naive.kept == kept_as::q8_0 ? use(blocks_) : use(floats_);
  }

  [[nodiscard]] std::string operate(sequence& s) {
    switch (below(14)) {
      case 0:
        return evict_page(s);
      case 1: {
        const index_t count = static_cast<index_t>(below(6));
        forget_last(s, (std::min)(count, s.tokens() - 3));
        return "forget " + std::to_string(count);
      }
      case 2: {
        const position by = static_cast<position>(below(4001)) - 2000;
        for (token& t : s.naive.tokens) t.at += by;
        return "shift by " + std::to_string(by);
      }
      case 3: {
        position next = 0;
        for (token& t : s.naive.tokens) t.at = next++;
        return "close the gaps";
      }
      case 4:
        return fork(s);
      case 5:
        s.naive.by = {.base = below(2) ? 10000.0 : 500000.0, .factor = below(2) ? 1.0 : 4.0};
        return "another RoPE";
      case 6:
        if (s.naive.kept == kept_as::floats) return quantise(s);
        [[fallthrough]];
      case 7: {
        clear(s);
        append(s, static_cast<index_t>(below(30)) + 3);
        return "begin anew";
      }
      default: {
        const index_t count = static_cast<index_t>(below(5)) + 1;
        if (s.tokens() > 70) {
          forget_last(s, 40);
          return "forget 40";
        }
        append(s, count);
        return "append " + std::to_string(count);
      }
    }
  }

  template <class T>
  static void append_to(pool<T>& to, std::vector<std::int32_t>& table, index_t at, const rows<float>& more) {
    for (index_t t = 0; t < more.tokens; ++t) {
      if ((at + t) % page_tokens == 0)
        table.push_back(to.take());
      else
        table.back() = to.own(table.back());
      const paged_view<T> view = to.view(table, at + t + 1);
      posenc::heads_view<T> row = view.page(table.size() - 1);
      row.data += (at + t) % page_tokens * row.token_stride, row.tokens = 1;
      write_row(posenc::token_major(more.numbers.data() + t * kv_heads * head_dim, 1, kv_heads, head_dim),
                row);
    }
  }

  void append(sequence& s, index_t count) {
    const rows<float> k = random_rows<float>(count, kv_heads, head_dim, static_cast<unsigned>(random_())),
                      v = random_rows<float>(count, kv_heads, head_dim, static_cast<unsigned>(random_()));
    append_kept(s, k, v);
    for (index_t t = 0; t < count; ++t) {
      const auto part = [&](const rows<float>& of) {
        const auto at = of.numbers.begin() + t * kv_heads * head_dim;
        return std::vector<float>(at, at + kv_heads * head_dim);
      };
      s.naive.tokens.push_back({s.naive.tokens.empty() ? 0 : s.naive.tokens.back().at + 1, part(k), part(v)});
    }
  }
  void append_kept(sequence& s, const rows<float>& k, const rows<float>& v) {
    if (s.naive.kept == kept_as::int8) return s.k_int8->append(k.view()), s.v_int8->append(v.view());
    with_pool(s, [&](auto& from) {
      append_to(from, s.k_pages, s.tokens(), k), append_to(from, s.v_pages, s.tokens(), v);
    });
  }

  /// Takes a full page out of the tables; no key moves.
  [[nodiscard]] std::string evict_page(sequence& s) {
    const std::size_t full = static_cast<std::size_t>(s.tokens() / page_tokens);
    if (s.naive.kept == kept_as::int8 || full < 2) return "nothing to evict";
    const std::size_t n = below(full - 1);
    with_pool(s, [&](auto& from) {
      for (auto* table : {&s.k_pages, &s.v_pages}) {
        from.release((*table)[n]);
        table->erase(table->begin() + static_cast<std::ptrdiff_t>(n));
      }
    });
    const auto first = s.naive.tokens.begin() + static_cast<std::ptrdiff_t>(n) * page_tokens;
    s.naive.tokens.erase(first, first + page_tokens);
    return "evict page " + std::to_string(n);
  }

  void forget_last(sequence& s, index_t count) {
    if (count <= 0 || s.naive.kept == kept_as::int8) return;
    s.naive.tokens.resize(static_cast<std::size_t>(s.tokens() - count));
    const auto left = static_cast<std::size_t>((s.tokens() + page_tokens - 1) / page_tokens);
    with_pool(s, [&](auto& from) {
      for (auto* table : {&s.k_pages, &s.v_pages})
        for (; table->size() > left; table->pop_back()) from.release(table->back());
    });
  }

  void clear(sequence& s) {
    with_pool(s, [&](auto& from) {
      for (const auto* table : {&s.k_pages, &s.v_pages})
        for (const std::int32_t page : *table) from.release(page);
    });
    s = {};
  }

  /// A new sequence goes on from this one in the same pages; the fifth takes the place of another.
  [[nodiscard]] std::string fork(sequence& s) {
    const sequence copy = s;
    with_pool(copy, [&](auto& from) {
      for (const auto* table : {&copy.k_pages, &copy.v_pages})
        for (const std::int32_t page : *table) from.share(page);
    });
    if (sequences_.size() < 4) {
      sequences_.push_back(copy);
      return "fork";
    }
    sequence& other = sequences_[below(4)];
    clear(other);
    other = copy;
    return "fork in place of another";
  }

  [[nodiscard]] std::string quantise(sequence& s) {
    const std::vector<token> all = s.naive.tokens;
    const scheme by = s.naive.by;
    clear(s);
    s.naive.by = by;
    s.naive.kept = below(2) ? kept_as::int8 : kept_as::q8_0;
    if (s.naive.kept == kept_as::int8)
      s.k_int8.emplace(kv_heads, head_dim, group_tokens), s.v_int8.emplace(kv_heads, head_dim);
    for (const token& t : all) {
      rows<float> k(1, kv_heads, head_dim), v = k;
      k.numbers = t.k, v.numbers = t.v;
      append_kept(s, k, v);
      s.naive.tokens.push_back(t);
    }
    return s.naive.kept == kept_as::int8 ? "quantise to int8" : "quantise to q8_0";
  }

  void compare(const sequence& s) {
    ++compared_[static_cast<std::size_t>(s.naive.kept)];
    std::vector<position> at;
    for (const token& t : s.naive.tokens) at.push_back(t.at);
    const posenc::attention_options options{.heads = heads,
                                            .kv_heads = kv_heads,
                                            .mask = posenc::causal,
                                            .key_positions = posenc::positions::each(at)};
    const rows<float> q = random_rows<float>(static_cast<index_t>(below(3)) + 1, heads, head_dim,
                                             static_cast<unsigned>(random_()));
    const answer expected{naive_attention(s.naive, q), {1.0f}};
    const posenc::rope<float> rope = s.naive.by.rope();
    const auto against = [&](const auto& k, const auto& v) {
      const auto check = [&](const auto& out) {
        ASSERT_LE(distance({{out.data(), out.data() + out.size()}, {1.0f}}, expected), 1e-6);
      };
      check(posenc::reference::attention(q.view(), k, v, rope, options));
      sweep::on_every_target([&](const char* target) {
        SCOPED_TRACE(target);
        check(posenc::fused::attention(q.view(), k, v, rope, options));
      });
    };
    switch (s.naive.kept) {
      case kept_as::int8:
        return against(s.k_int8->view(), s.v_int8->view());
      case kept_as::q8_0:
        return against(posenc::q8_0_view{blocks_.view(s.k_pages, s.tokens())},
                       posenc::q8_0_view{blocks_.view(s.v_pages, s.tokens())});
      case kept_as::floats:
        return against(paged_view<const float>(floats_.view(s.k_pages, s.tokens())),
                       paged_view<const float>(floats_.view(s.v_pages, s.tokens())));
    }
  }

  std::mt19937 random_;
  pool<float> floats_;
  pool<q8_0_block> blocks_;
  std::vector<sequence> sequences_;
  bool shared_ = false, shared_blocks_ = false;
  std::array<int, 3> compared_{};  ///< operations on caches of each kind
};

TEST(cache_engine, a_thousand_random_operations_keep_to_a_list_of_tokens) { engine(12).run(operations); }

}  // namespace engine_test
