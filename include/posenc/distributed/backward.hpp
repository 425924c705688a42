// SPDX-License-Identifier: MIT
/// \file
/// The gradient by ring: queries, outputs and their gradients stay; keys and values go round, and behind them the sums of
/// their gradients, to which each rank adds what its queries say. After P steps the sums are home.
///
/// Everything is summed in float (what encodings learn in double), in the order of the ring, so that a rerun gives the
/// same bits. Keys travel stored as they are and are widened to float where they arrive; sums travel in float.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <mpi.h>

#include <posenc/attention/backward.hpp>
#include <posenc/distributed/agree.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/distributed/engine.hpp>
#include <posenc/distributed/part.hpp>
#include <posenc/distributed/ring.hpp>
#include <posenc/distributed/travel.hpp>
#include <posenc/distributed/wire.hpp>
#include <posenc/fused/backward.hpp>

namespace posenc::inline v0_2 {
namespace detail::distributed {

/// Query rows of a part of the gradient: each part sums over all keys that are here, which fewer rows would not pay for.
inline constexpr index_t backward_rows = 1024;

/// Rows as floats, side by side.
class wide_rows {
 public:
  wide_rows() = default;
  template <class T>
  explicit wide_rows(const heads_view<T>& from)
      : memory_(static_cast<std::size_t>(from.tokens * from.heads * from.head_dim)) {
    view_ = token_major(memory_.data(), from.tokens, from.heads, from.head_dim);
    for (index_t t = 0; t < from.tokens; ++t)
      for (index_t h = 0; h < from.heads; ++h)
        std::transform(from(t, h).begin(), from(t, h).end(), view_(t, h).begin(),
                       [](const auto& x) { return static_cast<float>(x); });
  }
  wide_rows(const wide_rows&) = delete;
  wide_rows& operator=(const wide_rows&) = delete;
  [[nodiscard]] const heads_view<float>& view() const noexcept { return view_; }
  /// Rows [first, first + count).
  [[nodiscard]] heads_view<float> rows(index_t first, index_t count) const noexcept {
    heads_view<float> result = view_;
    result.data += first * view_.token_stride;
    result.tokens = count;
    return result;
  }

 private:
  std::vector<float> memory_{};
  heads_view<float> view_{};
};

/// Room for tokens × heads × head_dim sums.
[[nodiscard]] inline heads_view<float> zeros(std::vector<float>& memory, index_t tokens, index_t heads,
                                             index_t width) {
  memory.assign(static_cast<std::size_t>(tokens * heads * width), 0.0f);
  return token_major(memory.data(), tokens, heads, width);
}
inline void add_rows(const heads_view<float>& from, float* to) {
  const auto count = static_cast<std::size_t>(from.tokens * from.heads * from.head_dim);
  for (std::size_t n = 0; n < count; ++n) to[n] += from.data[n];
}
template <class T>
void narrow(const float* from, const heads_view<T>& to) {
  for (index_t t = 0; t < to.tokens; ++t)
    for (index_t h = 0; h < to.heads; ++h, from += to.head_dim)
      std::transform(from, from + to.head_dim, to(t, h).begin(), [](float x) { return static_cast<T>(x); });
}

/// Adds what a part learned; sinks are those of the whole call (add_sink_gradients).
inline void add_learned(const parameter_gradients<float>& part, parameter_gradients<double>& to) {
  const auto add = [](std::span<const float> from, std::span<double> sums) {
    std::transform(sums.begin(), sums.end(), from.begin(), sums.begin(),
                   [](double sum, float x) { return sum + static_cast<double>(x); });
  };
  add(part.encoding.values(), to.encoding.values()), add(part.head_scales, to.head_scales);
}

/// Sums over all ranks, in their order, on every rank. An all-reduce of MPI's may add in any order; so a piece at a time is
/// gathered and added here.
inline void add_over_ranks(const mpi::context& ring, std::span<double> own) {
  constexpr std::size_t piece = 4096;
  const auto ranks = static_cast<std::size_t>(ring.ranks());
  std::vector<double> all(ranks * (std::min)(piece, own.size()));
  for (std::size_t first = 0; first < own.size(); first += piece) {
    const std::size_t count = (std::min)(piece, own.size() - first);
    check(MPI_Allgather(own.data() + first, static_cast<int>(count), MPI_DOUBLE, all.data(),
                        static_cast<int>(count), MPI_DOUBLE, ring.communicator()),
          "MPI_Allgather");
    for (std::size_t n = 0; n < count; ++n) {
      double sum = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) sum += all[rank * count + n];
      own[first + n] = sum;
    }
  }
}

/// dsink_h −= e^{sink − log_sum_exp_i}·D_i over this rank's rows: once for the call, and not for each part.
template <class Q, class K, class V, class O>
void add_sink_gradients(const backward_sequence<Q, K, V, O>& s, const resolved_options& whole,
                        const rows_of_rank& queries, std::vector<double>& to) {
  for (const local_rows& piece : queries.valid())
    for (index_t i = piece.rows.begin; i < piece.rows.end; ++i)
      for (index_t h = 0; h < whole.heads; ++h) {
        const double sink = whole.sinks[static_cast<std::size_t>(h)];
        const double lse = static_cast<double>(s.log_sum_exp(i, h));
        if (is_minus_infinity(sink) || is_minus_infinity(lse)) continue;
        double d = 0;
        for (std::size_t c = 0; c < static_cast<std::size_t>(s.out.head_dim); ++c)
          d += static_cast<double>(static_cast<float>(s.out(i, h)[c])) *
               static_cast<double>(static_cast<float>(s.d_out(i, h)[c]));
        to[static_cast<std::size_t>(h)] -= std::exp(sink - lse) * d;
      }
}

/// The gradient by ring with whatever engine computes the parts.
template <class Q, class K, class V, class O, class E, class Engine>
[[nodiscard]] parameter_gradients<float> ring_backward(const backward_sequence<Q, K, V, O>& s,
                                                       const E& any_encoding, const mpi::context& ring,
                                                       const fused::execution& how, const Engine& engine) {
  static_assert(fused_backward::check_backward_storage<Q, K, V, O>());
  check_thread();
  const index_t ranks = ring.ranks(), rank = ring.rank();
  const attention_options& options = s.options;
  const wire<heads_view<const K>> k_wire(s.k);
  const wire<heads_view<const V>> v_wire(s.v);
  fact_list facts(operation::backward);
  add_call(facts, options, any_encoding);
  add_tensors<K, V>(facts, ring, k_wire.shape, v_wire.shape, 0);
  failure own;
  std::optional<divided_call> call;
  std::optional<travelling> chunk, sums;
  std::optional<rows_of_rank> queries;
  parameter_gradients<double> learned;
  std::vector<float> d_q;
  const auto cells = [](index_t tokens, const source_shape& shape) {
    return static_cast<std::size_t>(tokens * shape.heads * shape.head_dim);
  };
  keep_failure(own, [&] {
    const attention_shape local = shape_of(s.q, s.k, s.v);
    check_rows(s.q.tokens, ring.queries(), rank, "mpi: q");
    check_rows(s.k.tokens, ring.keys(), rank, "mpi: k");
    check_backward(s);
    check_gradients_apart(std::span<const backward_sequence<Q, K, V, O>>(&s, 1));
    const resolved_options whole =
        resolve(options, whole_shape(local, ring.queries().tokens(), ring.keys().tokens()));
    call.emplace(options, whole);
    fused_backward::reserve_sums(learned, whole.heads, !whole.sinks.empty());
    with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
      fused_backward::check_values_stay(encoding);
      check_encoding_of(encoding, options, whole, fused_calls::types_of<Q, K, V, O>());
      learned.encoding = parameter_list<double>::zeros_like(parameters_of_concrete(encoding));
    });
    std::vector<std::size_t> bytes;
    for (index_t r = 0; r < ranks; ++r) {
      const index_t tokens = ring.keys().tokens_of(r);
      bytes.push_back(to_lines((cells(tokens, k_wire.shape) + cells(tokens, v_wire.shape)) * sizeof(float)));
    }
    chunk.emplace(ring, bytes_of_chunks(ring.keys(), k_wire, v_wire), 1);
    sums.emplace(ring, bytes, 2);
    queries.emplace(ring.queries().pieces(rank), whole.query_positions, whole.valid_queries);
    d_q.assign(static_cast<std::size_t>(s.q.tokens * s.q.heads * s.q.head_dim), 0.0f);
    k_wire.pack(s.k, chunk->here());
    v_wire.pack(s.v, chunk->here() + k_wire.bytes(local.key_tokens));
    std::fill_n(sums->here(), bytes[static_cast<std::size_t>(rank)], std::byte{0});
  });
  agree(ring, facts, own);

  const resolved_options& whole = call->whole();
  const attentive_executor executor(how.executor, *chunk, &*sums);
  fused::workspace scratch;
  std::optional<wide_rows> q, out, d_out;
  keep_failure(own, [&] { q.emplace(s.q), out.emplace(s.out), d_out.emplace(s.d_out); });
  std::vector<float> part_q, part_k, part_v;
  // What queries of this rank say about the keys of `owner`, added to their sums.
  const auto add_part = [&](const auto& encoding, const std::byte* memory, index_t owner,
                            std::vector<float>& to_k, std::vector<float>& to_v) {
    const index_t tokens = ring.keys().tokens_of(owner);
    const rows_of_rank keys(ring.keys().pieces(owner), whole.key_positions, whole.valid_keys);
    const wide_rows k(k_wire.unpack(memory, tokens)), v(v_wire.unpack(memory + k_wire.bytes(tokens), tokens));
    to_k.assign(cells(tokens, k_wire.shape), 0.0f), to_v.assign(cells(tokens, v_wire.shape), 0.0f);
    const auto blocks = call->query_blocks(*queries, backward_rows);
    for (const local_rows& group : call->key_groups(keys))
      for (const local_rows& block : blocks) {
        if (call->is_hidden(*queries, block, keys, group)) continue;
        const index_t first = block.rows.begin, count = block.rows.end - first;
        head_scalars_view<const float> lse = s.log_sum_exp;
        lse.data += first * lse.token_stride;
        lse.tokens = count;
        const backward_sequence<float> part{q->rows(first, count),
                                            k.view(),
                                            v.view(),
                                            out->rows(first, count),
                                            lse,
                                            d_out->rows(first, count),
                                            zeros(part_q, count, s.q.heads, s.q.head_dim),
                                            zeros(part_k, tokens, s.k.heads, s.k.head_dim),
                                            zeros(part_v, tokens, s.v.heads, s.v.head_dim),
                                            call->part(*queries, block, keys, group)};
        const fused::execution here{.executor = executor, .memory = how.memory ? how.memory : &scratch};
        add_learned(engine.backward(part, encoding, here), learned);
        add_rows(part.d_q, d_q.data() + first * s.q.heads * s.q.head_dim);
        add_rows(part.d_k, to_k.data()), add_rows(part.d_v, to_v.data());
      }
  };
  with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
    std::vector<float> d_k, d_v;
    for (index_t step = 0; step < ranks; ++step) {
      const index_t owner = owner_at(rank, step, ranks);
      const std::byte* const memory = chunk->here();
      const bool is_last = step + 1 == ranks;
      if (!is_last) chunk->start(owner);
      keep_failure(own, [&] { add_part(encoding, memory, owner, d_k, d_v); });
      if (!is_last) chunk->finish();
      if (step > 0) sums->finish();
      if (own.of == failure::kind::none) {
        float* const to = reinterpret_cast<float*>(sums->here());
        for (std::size_t n = 0; n < d_k.size(); ++n) to[n] += d_k[n];
        for (std::size_t n = 0; n < d_v.size(); ++n) to[d_k.size() + n] += d_v[n];
      }
      if (ranks > 1) sums->start(owner);
    }
    if (ranks > 1) sums->finish();
  });
  if (!whole.sinks.empty()) add_sink_gradients(s, whole, *queries, learned.sinks);
  agree(ring, facts, own);
  narrow(d_q.data(), s.d_q);
  const float* const from = reinterpret_cast<const float*>(sums->here());
  narrow(from, s.d_k), narrow(from + cells(s.k.tokens, k_wire.shape), s.d_v);
  for (const std::span<double> sums_of_rank :
       {learned.encoding.values(), std::span(learned.sinks), std::span(learned.head_scales)})
    add_over_ranks(ring, sums_of_rank);
  parameter_gradients<float> result;
  fused_backward::narrow(learned, result);
  return result;
}

}  // namespace detail::distributed

namespace mpi {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// fused::attention_backward_into over a sequence that several ranks hold: every rank calls it with its rows of all
/// tensors, output and log-sum-exp those of attention_into. d_k and d_v are this rank's rows, summed over all queries.
///
/// Beside the gradients a rank needs the buffers of attention_into, as many floats twice for the sums on their way, and
/// q, output, d_out and one chunk in float.
/// \return gradients of sinks, scales and the encoding's parameters, summed over all ranks, on every rank alike
/// \throws as attention_into does; nothing is written then
template <class Q, class K, class V, class O, class E>
parameter_gradients<float> attention_backward_into(const backward_sequence<Q, K, V, O>& sequence,
                                                   const E& encoding, const context& ring,
                                                   const fused::execution& how = {}) {
  return posenc::detail::distributed::ring_backward(sequence, encoding, ring, how, local_engine{});
}

}  // inline namespace
}  // namespace mpi
}  // namespace posenc::inline v0_2
