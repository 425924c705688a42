// SPDX-License-Identifier: MIT
/// \file
/// Prefill by heads: an all-to-all gives each rank all rows of some heads, it attends to everything, and a second one
/// brings its rows of the output back. Jacobs et al. 2023 (DeepSpeed Ulysses), arXiv:2309.14509.
///
/// The arguments and the answer are those of attention_into. A rank takes KV heads rank·n/P … (rank + 1)·n/P, with their
/// query heads; where there are fewer than ranks, some have nothing to compute. cheaper_way (cost.hpp) says when it pays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include <mpi.h>

#include <posenc/attention/options.hpp>
#include <posenc/distributed/agree.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/distributed/engine.hpp>
#include <posenc/distributed/ring.hpp>
#include <posenc/distributed/some_heads.hpp>

namespace posenc::inline v0_2 {
namespace detail::distributed {

/// The heads of a rank: those of KV heads n·rank/P … n·(rank + 1)/P, `group` to each.
[[nodiscard]] constexpr row_range heads_of(index_t rank, index_t ranks, index_t kv_heads,
                                           index_t group) noexcept {
  return {kv_heads * rank / ranks * group, kv_heads * (rank + 1) / ranks * group};
}

/// Bytes from every rank for every rank. Counts are lines, so that an int holds them.
class all_to_all {
 public:
  /// sent(r) and received(r): bytes for rank r and from it.
  template <class Sent, class Received>
  all_to_all(const mpi::context& ring, const Sent& sent, const Received& received) : ring_(ring) {
    send_.begin_at(ring.ranks(), sent), receive_.begin_at(ring.ranks(), received);
  }
  [[nodiscard]] std::byte* to(index_t rank) { return send_.at(rank); }
  [[nodiscard]] std::byte* from(index_t rank) { return receive_.at(rank); }
  void run() {
    check(MPI_Alltoallv(send_.memory.data(), send_.lines.data(), send_.first.data(), ring_.line(),
                        receive_.memory.data(), receive_.lines.data(), receive_.first.data(), ring_.line(),
                        ring_.communicator()),
          "MPI_Alltoallv");
  }

 private:
  struct side {
    std::vector<std::byte> memory{};
    std::vector<int> lines{}, first{};

    template <class Bytes>
    void begin_at(index_t ranks, const Bytes& bytes) {
      std::size_t all = 0;
      for (index_t r = 0; r < ranks; ++r) {
        const std::size_t count = to_lines(bytes(r)) / line_bytes;
        first.push_back(static_cast<int>(all)), lines.push_back(static_cast<int>(count));
        all += count;
      }
      require(all <= static_cast<std::size_t>((std::numeric_limits<int>::max)()),
              "mpi: an all-to-all of more than 2^31 lines of 64 bytes");
      memory.resize(all * line_bytes);
    }
    [[nodiscard]] std::byte* at(index_t rank) {
      return memory.data() + static_cast<std::size_t>(first[static_cast<std::size_t>(rank)]) * line_bytes;
    }
  };

  const mpi::context& ring_;
  side send_{}, receive_{};
};

/// All rows of this rank's heads, made from this rank's rows of all heads, or given back as such.
template <class T>
class head_exchange {
 public:
  head_exchange(const mpi::context& ring, const mpi::split& rows, index_t kv_heads, index_t group,
                index_t width)
      : ring_(ring),
        rows_(rows),
        kv_heads_(kv_heads),
        group_(group),
        width_(width),
        own_count_(count(heads_of(ring.rank()))),
        memory_(static_cast<std::size_t>(rows.tokens() * own_count_ * width)) {}

  /// tokens × heads of this rank × width.
  [[nodiscard]] heads_view<T> view() noexcept {
    return token_major(memory_.data(), rows_.tokens(), own_count_, width_);
  }

  void take(const heads_view<const T>& own) {
    all_to_all moving(ring_, bytes_of_rows(), bytes_of_heads());
    for (index_t r = 0; r < ring_.ranks(); ++r)
      for_each_own(own, r, moving.to(r), [&](const T* row, T* sent) { std::copy_n(row, width_, sent); });
    moving.run();
    for (index_t r = 0; r < ring_.ranks(); ++r)
      for_each_row_of(r, moving.from(r), [&](T* row, const T* sent) { std::copy_n(sent, width_, row); });
  }
  void give(const heads_view<T>& own) {
    all_to_all moving(ring_, bytes_of_heads(), bytes_of_rows());
    for (index_t r = 0; r < ring_.ranks(); ++r)
      for_each_row_of(r, moving.to(r), [&](const T* row, T* sent) { std::copy_n(row, width_, sent); });
    moving.run();
    for (index_t r = 0; r < ring_.ranks(); ++r)
      for_each_own(own, r, moving.from(r), [&](T* row, const T* sent) { std::copy_n(sent, width_, row); });
  }

 private:
  [[nodiscard]] static index_t count(const row_range& range) noexcept { return range.end - range.begin; }
  [[nodiscard]] row_range heads_of(index_t rank) const noexcept {
    return distributed::heads_of(rank, ring_.ranks(), kv_heads_, group_);
  }
  /// use(row, place in the message) for this rank's rows of the heads of rank r, and for rank r's rows of this rank's heads.
  template <class View, class Use>
  void for_each_own(const View& own, index_t r, std::byte* message, const Use& use) const {
    T* at = reinterpret_cast<T*>(message);
    const row_range heads = heads_of(r);
    for (index_t t = 0; t < own.tokens; ++t)
      for (index_t h = heads.begin; h < heads.end; ++h, at += width_) use(own(t, h).data(), at);
  }
  template <class Use>
  void for_each_row_of(index_t r, std::byte* message, const Use& use) {
    T* at = reinterpret_cast<T*>(message);
    for (const index_t row : rows_.rows(r))
      for (index_t h = 0; h < own_count_; ++h, at += width_) use(view()(row, h).data(), at);
  }
  [[nodiscard]] auto bytes_of_rows() const {
    return [this](index_t r) {
      return static_cast<std::size_t>(rows_.tokens_of(ring_.rank()) * count(heads_of(r)) * width_) *
             sizeof(T);
    };
  }
  [[nodiscard]] auto bytes_of_heads() const {
    return [this](index_t r) {
      return static_cast<std::size_t>(rows_.tokens_of(r) * own_count_ * width_) * sizeof(T);
    };
  }

  const mpi::context& ring_;
  const mpi::split& rows_;
  index_t kv_heads_, group_, width_, own_count_;
  std::vector<T> memory_;
};

/// The options of the heads [first, first + count) of a call, `group` of which share a KV head.
[[nodiscard]] inline attention_options options_of_heads(const attention_options& options,
                                                        const row_range& heads, index_t group) {
  attention_options result = options;
  const index_t first = heads.begin, count = heads.end - heads.begin;
  result.heads = count, result.kv_heads = count / group;
  const auto of = [&](std::span<const double> all) {
    return all.empty() ? all : all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  };
  result.sinks = of(options.sinks), result.head_scales = of(options.head_scales);
  if (options.visible.empty()) return result;
  visibility_parts parts = options.visible.parts();
  for (dense_scores_data* dense : {&parts.mask, &parts.bias})
    if (dense->given() && dense->shape.heads > 1) {
      dense->shape.data += first * dense->shape.head_stride * bytes_of(dense->type);
      dense->shape.heads = count;
    }
  if (parts.where)
    parts.where = [where = parts.where, first](index_t h, index_t i, index_t j) {
      return where(h + first, i, j);
    };
  result.visible = visibility(std::move(parts));
  return result;
}

/// Prefill by heads with whatever engine computes.
template <class Q, class K, class V, class O, class E, class Engine>
void attention_by_heads(const heads_view<const Q>& q, const heads_view<const K>& k,
                        const heads_view<const V>& v, const E& any_encoding, const attention_options& options,
                        const heads_view<O>& out, const mpi::context& ring,
                        const head_scalars_view<float>& log_sum_exp, const fused::execution& how,
                        const Engine& engine) {
  static_assert(fused_plans::check_storage<Q, K, V, O>());
  check_thread();
  fact_list facts(operation::by_heads);
  add_call(facts, options, any_encoding);
  add_tensors<K, V>(facts, ring, shape_of_source(k), shape_of_source(v), 0);
  facts.number("the storage type of q", static_cast<int>(fused_problem::storage_of<Q>));
  facts.number("the storage type of the output", static_cast<int>(fused_problem::storage_of<O>));
  failure own;
  std::optional<head_exchange<Q>> all_q;
  std::optional<head_exchange<K>> all_k;
  std::optional<head_exchange<V>> all_v;
  std::optional<head_exchange<O>> all_out;
  std::optional<head_exchange<float>> all_lse;
  row_range heads{};
  index_t group = 1;
  keep_failure(own, [&] {
    const attention_shape local = shape_of(q, k, v);
    check_rows(q.tokens, ring.queries(), ring.rank(), "mpi: q");
    check_rows(k.tokens, ring.keys(), ring.rank(), "mpi: k");
    check_output(local, q, k, v, out, log_sum_exp);
    const resolved_options whole =
        resolve(options, whole_shape(local, ring.queries().tokens(), ring.keys().tokens()));
    with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
      check_encoding_of(encoding, options, whole, fused_calls::types_of<Q, K, V, O>());
    });
    group = whole.group;
    heads = heads_of(ring.rank(), ring.ranks(), whole.kv_heads, group);
    all_q.emplace(ring, ring.queries(), whole.kv_heads, group, whole.head_dim);
    all_k.emplace(ring, ring.keys(), whole.kv_heads, 1, whole.head_dim);
    all_v.emplace(ring, ring.keys(), whole.kv_heads, 1, whole.value_dim);
    all_out.emplace(ring, ring.queries(), whole.kv_heads, group, whole.value_dim);
    all_lse.emplace(ring, ring.queries(), whole.kv_heads, group, 1);
  });
  agree(ring, facts, own);
  all_q->take(q), all_k->take(k), all_v->take(v);
  keep_failure(own, [&] {
    if (is_empty(heads)) return;
    const attention_options some = options_of_heads(options, heads, group);
    const heads_view<float> rows = all_lse->view();
    const head_scalars_view<float> lse{rows.data, rows.tokens, rows.heads, rows.token_stride,
                                       rows.head_stride};
    with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
      using concrete = std::remove_cvref_t<decltype(encoding)>;
      const auto call = [&](const auto& of_heads) {
        engine.attention(all_q->view(), all_k->view(), all_v->view(), of_heads, some, all_out->view(), lse,
                         how);
      };
      if constexpr (std::is_same_v<concrete, no_encoding> || embeds_only<concrete, float>)
        call(encoding);
      else
        call(some_heads<concrete>(encoding, heads.begin, heads.end - heads.begin));
    });
  });
  agree(ring, facts, own);
  all_out->give(out);
  // Sent whether it is wanted or not: a rank without rows cannot say.
  all_lse->give(log_sum_exp.data ? as_rows(log_sum_exp) : heads_view<float>{});
}

}  // namespace detail::distributed

namespace mpi {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// attention_into (ring.hpp) by heads. k and v are views of float, Eigen::bfloat16 or Eigen::half. A rank holds q, k, v and
/// the output of its heads for the whole sequence, and what it sends and receives of each.
/// \throws as attention_into does
template <class Q, class K, class V, class O, class E>
void attention_by_heads_into(heads_view<Q> q, heads_view<K> k, heads_view<V> v, const E& encoding,
                             const attention_options& options, heads_view<O> out, const context& ring,
                             head_scalars_view<float> log_sum_exp = {}, const fused::execution& how = {}) {
  posenc::detail::distributed::attention_by_heads<std::remove_const_t<Q>, std::remove_const_t<K>,
                                                  std::remove_const_t<V>>(
      q, k, v, encoding, options, out, ring, log_sum_exp, how, local_engine{});
}

}  // inline namespace
}  // namespace mpi
}  // namespace posenc::inline v0_2
