// SPDX-License-Identifier: MIT
/// \file
/// Decode over a cache that several ranks hold: each attends to its part, and the results of all parts meet in one
/// exchange of outputs and log-sum-exps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include <mpi.h>

#include <posenc/attention/options.hpp>
#include <posenc/distributed/agree.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/distributed/cost.hpp>
#include <posenc/distributed/engine.hpp>
#include <posenc/distributed/part.hpp>
#include <posenc/distributed/ring.hpp>
#include <posenc/distributed/state.hpp>

namespace posenc::inline v0_2 {
namespace detail::distributed {

/// Partial results as they are sent: for each row and head the log-sum-exp, a double in the place of two floats, then
/// the output.
class states {
 public:
  explicit states(index_t value_dim) : width_(value_dim + 2) {}
  [[nodiscard]] index_t width() const noexcept { return width_; }

  static void write(float* to, double lse, const float* output, index_t value_dim) {
    std::memcpy(to, &lse, sizeof lse);
    std::copy_n(output, value_dim, to + 2);
  }
  [[nodiscard]] static double log_sum_exp(const float* state) {
    double lse = 0;
    std::memcpy(&lse, state, sizeof lse);
    return lse;
  }

  /// MPI's operation: inout ← in merged with inout, in this order. The width comes from the type.
  static void merge(void* in, void* inout, int* count, MPI_Datatype* type) {
    int bytes = 0;
    MPI_Type_size(*type, &bytes);
    const auto width = static_cast<std::size_t>(bytes) / sizeof(float);
    const float* from = static_cast<const float*>(in);
    float* to = static_cast<float*>(inout);
    for (int n = 0; n < *count; ++n, from += width, to += width) {
      const double lse = fused_calls::merge_row(from + 2, log_sum_exp(from), to + 2, log_sum_exp(to),
                                                std::span<float>(to + 2, width - 2));
      std::memcpy(to, &lse, sizeof lse);
    }
  }

 private:
  index_t width_;
};

/// A datatype or an operation of MPI's that is freed.
template <class Handle>
struct handle {
  Handle value;
  int (*free)(Handle*);
  explicit handle(int (*by)(Handle*)) : value{}, free(by) {}
  handle(const handle&) = delete;
  handle& operator=(const handle&) = delete;
  ~handle() { free(&value); }
};

/// Merges every rank's result for the same queries, on every rank alike.
inline void exchange_results(running_result& result, const mpi::context& ring, mpi::exchange by) {
  const index_t ranks = ring.ranks(), cells = result.cells(), channels = result.value_dim();
  if (ranks == 1 || cells == 0) return;
  const index_t width = states(channels).width();
  std::vector<float> own(static_cast<std::size_t>(cells * width));
  for (index_t cell = 0; cell < cells; ++cell)
    states::write(own.data() + cell * width, result.log_sum_exp(cell), result.output(cell), channels);
  handle<MPI_Datatype> state(MPI_Type_free);
  check(MPI_Type_contiguous(static_cast<int>(width), MPI_FLOAT, &state.value), "MPI_Type_contiguous");
  check(MPI_Type_commit(&state.value), "MPI_Type_commit");
  if (by == mpi::exchange::automatic) by = mpi::cheaper_exchange(ranks);
  const auto count = static_cast<int>(cells);
  const auto take = [&](const float* from, index_t cell) {
    std::copy_n(from + 2, channels, result.output(cell));
    result.log_sum_exp(cell) = states::log_sum_exp(from);
  };
  if (by == mpi::exchange::all_reduce) {
    handle<MPI_Op> merge(MPI_Op_free);
    // Not commutative: MPI keeps the order of the ranks.
    check(MPI_Op_create(&states::merge, 0, &merge.value), "MPI_Op_create");
    std::vector<float> all(own.size());
    check(MPI_Allreduce(own.data(), all.data(), count, state.value, merge.value, ring.communicator()),
          "MPI_Allreduce");
    for (index_t cell = 0; cell < cells; ++cell) take(all.data() + cell * width, cell);
    return;
  }
  std::vector<float> all(own.size() * static_cast<std::size_t>(ranks));
  check(MPI_Allgather(own.data(), count, state.value, all.data(), count, state.value, ring.communicator()),
        "MPI_Allgather");
  for (index_t cell = 0; cell < cells; ++cell) {
    take(all.data() + cell * width, cell);
    for (index_t rank = 1; rank < ranks; ++rank) {
      const float* const from = all.data() + (rank * cells + cell) * width;
      result.merge_cell(cell, from + 2, states::log_sum_exp(from));
    }
  }
}

/// Decode with whatever engine computes the parts.
template <class Q, class K, class V, class O, class E, class Engine>
void divided_decode(const heads_view<const Q>& q, const K& k, const V& v, const E& any_encoding,
                    const attention_options& options, const heads_view<O>& out, const mpi::context& ring,
                    const head_scalars_view<float>& log_sum_exp, mpi::exchange by,
                    const fused::execution& how, const Engine& engine) {
  static_assert(fused_plans::check_storage<Q, K, V, O>());
  check_thread();
  fact_list facts(operation::decode);
  add_call(facts, options, any_encoding);
  facts.number("the number of query tokens", q.tokens);
  facts.number("the number of key tokens", ring.keys().tokens());
  facts.opaque("the split of the keys", digest_of(ring.keys()));
  facts.number("head_dim of v", shape_of_source(v).head_dim);
  facts.number("the exchange", static_cast<int>(by));
  failure own;
  std::optional<running_result> result;
  keep_failure(own, [&] {
    const attention_shape local = shape_of(q, k, v);
    check_rows(local.key_tokens, ring.keys(), ring.rank(), "mpi: k");
    check_output(local, q, k, v, out, log_sum_exp);
    const resolved_options whole = resolve(options, whole_shape(local, q.tokens, ring.keys().tokens()));
    const divided_call call(options, whole);
    const row_range all{0, q.tokens};
    const rows_of_rank queries(std::span<const row_range>(&all, q.tokens > 0 ? 1 : 0), whole.query_positions,
                               whole.valid_queries);
    const rows_of_rank keys(ring.keys().pieces(ring.rank()), whole.key_positions, whole.valid_keys);
    result.emplace(q.tokens, whole.heads, whole.value_dim);
    with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
      using concrete = std::remove_cvref_t<decltype(encoding)>;
      check_encoding_of(encoding, options, whole, fused_calls::types_of<Q, K, V, O>());
      part_attention<Q, concrete, Engine>(call, q, queries, encoding, engine, how, *result)
          .attend(k, v, keys);
    });
    // Every rank's result reaches every rank, so a sink joins that of one.
    if (ring.rank() == 0) result->add_sinks(whole.sinks, queries.valid());
  });
  agree(ring, facts, own);
  exchange_results(*result, ring, by);
  result->write(out, log_sum_exp);
}

}  // namespace detail::distributed

namespace mpi {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// Attention of a few queries, which all ranks have, to the keys and values of ring.keys(), of which each rank has its
/// rows where they lie: any source. Every rank gets the whole output, the same bits on all of them.
///
/// The options are those of the call over the whole cache. ring.queries() does not matter. Agreement and exchange are two
/// collective calls; what is computed before them is not undone where a rank has failed, but nothing is written.
/// \throws as attention_into does
template <class Q, kv_source K, kv_source V, class O, class E>
void decode_into(heads_view<Q> q, const K& k, const V& v, const E& encoding, const attention_options& options,
                 heads_view<O> out, const context& ring, head_scalars_view<float> log_sum_exp = {},
                 const fused::execution& how = {}, exchange by = exchange::automatic) {
  posenc::detail::distributed::divided_decode<std::remove_const_t<Q>>(q, k, v, encoding, options, out, ring,
                                                                      log_sum_exp, by, how, local_engine{});
}

}  // inline namespace
}  // namespace mpi
}  // namespace posenc::inline v0_2
