// SPDX-License-Identifier: MIT
/// \file
/// Prefill by ring: queries stay, keys and values go round. Step s computes with the chunk of rank r − s while that of
/// rank r − s − 1 arrives. Liu et al. 2023 (Ring Attention), arXiv:2310.01889.
///
/// Keys travel unrotated and stored as they are, so any encoding, scheme and mask works: positions and masks are data
/// that every rank has. Parts are merged in the order of steps, so that a rerun gives the same bits; another number of
/// ranks gives others, within rounding. Chunks that no query of a rank sees pass through and cost it nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/distributed/agree.hpp>
#include <posenc/distributed/context.hpp>
#include <posenc/distributed/engine.hpp>
#include <posenc/distributed/part.hpp>
#include <posenc/distributed/state.hpp>
#include <posenc/distributed/travel.hpp>
#include <posenc/distributed/wire.hpp>
#include <posenc/encoding.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/sequence.hpp>
#include <posenc/fused/shared_prefix.hpp>
#include <posenc/fused/workspace.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {
namespace detail::distributed {

/// The shape of the whole call that a rank's tensors are parts of.
[[nodiscard]] inline attention_shape whole_shape(attention_shape local, index_t queries, index_t keys) {
  local.query_tokens = queries, local.key_tokens = keys;
  return local;
}
/// \throws std::invalid_argument when a tensor has not the rows that the split gives this rank
inline void check_rows(index_t tokens, const mpi::split& rows, index_t rank, const char* what) {
  require(tokens == rows.tokens_of(rank), what, " has ", tokens, " rows, the split gives this rank ",
          rows.tokens_of(rank), " of ", rows.tokens());
}

/// Bytes of each rank's keys and values on their way.
template <class K, class V>
[[nodiscard]] std::vector<std::size_t> bytes_of_chunks(const mpi::split& keys, const wire<K>& k,
                                                       const wire<V>& v) {
  std::vector<std::size_t> bytes;
  for (index_t rank = 0; rank < keys.ranks(); ++rank)
    bytes.push_back(k.bytes(keys.tokens_of(rank)) + v.bytes(keys.tokens_of(rank)));
  return bytes;
}

/// What of the tensors has to be the same on all ranks.
template <class K, class V>
void add_tensors(fact_list& facts, const mpi::context& ring, const source_shape& k, const source_shape& v,
                 index_t group_tokens) {
  facts.number("the number of query tokens", ring.queries().tokens());
  facts.number("the number of key tokens", ring.keys().tokens());
  facts.opaque("the split of the queries", digest_of(ring.queries()));
  facts.opaque("the split of the keys", digest_of(ring.keys()));
  facts.number("head_dim of k", k.head_dim), facts.number("head_dim of v", v.head_dim);
  facts.number("the heads of k", k.heads);
  facts.number("the storage type of k", static_cast<int>(fused_problem::storage_of<K>));
  facts.number("the storage type of v", static_cast<int>(fused_problem::storage_of<V>));
  facts.number("group_tokens of k", group_tokens);
}

/// Refuses an encoding that does not fit the whole call. \throws std::invalid_argument, std::out_of_range
template <class E>
void check_encoding_of(const E& encoding, const attention_options& options, const resolved_options& whole,
                       const fused::shape& types) {
  static_assert(check_encoding<E, float>());
  check_embedded<E, float>(options.is_embedded);
  (void)fused_plans::lower(whole, types, encoding);
}

/// Attends to the keys of one rank and merges what that gives.
template <class Q, class E, class Engine>
class part_attention {
 public:
  part_attention(const divided_call& call, const heads_view<const Q>& q, const rows_of_rank& queries,
                 const E& encoding, const Engine& engine, const fused::execution& how, running_result& result)
      : call_(call),
        q_(q),
        queries_(queries),
        blocks_(call.query_blocks(queries)),
        encoding_(encoding),
        engine_(engine),
        how_(how),
        part_((std::min)(block_rows, q.tokens), call.whole().heads, call.whole().value_dim),
        result_(result) {}

  template <class K, class V>
  void attend(const K& k, const V& v, const rows_of_rank& keys) {
    const resolved_options& whole = call_.whole();
    for (const local_rows& group : call_.key_groups(keys))
      for (const local_rows& block : blocks_) {
        if (call_.is_hidden(queries_, block, keys, group)) continue;
        const index_t first = block.rows.begin, count = block.rows.end - first;
        heads_view<const Q> rows = q_;
        rows.data += first * q_.token_stride;
        rows.tokens = count;
        fused::execution how = how_;
        if (!how.memory) how.memory = &own_;
        engine_.attention(
            rows, k, v, encoding_, call_.part(queries_, block, keys, group),
            token_major(part_.output.data(), count, whole.heads, whole.value_dim),
            head_scalars_view<float>{part_.log_sum_exp.data(), count, whole.heads, whole.heads, 1}, how);
        result_.merge(part_, first, count, how.executor);
      }
  }

 private:
  const divided_call& call_;
  const heads_view<const Q> q_;
  const rows_of_rank& queries_;
  std::vector<local_rows> blocks_;
  const E& encoding_;
  const Engine& engine_;
  fused::execution how_;
  fused_calls::partial_result part_;
  running_result& result_;
  fused::workspace own_{};
};

/// Prefill by ring with whatever engine computes the parts.
template <class Q, class K, class V, class O, class E, class Engine>
void ring_attention(const heads_view<const Q>& q, const K& k, const V& v, const E& any_encoding,
                    const attention_options& options, const heads_view<O>& out, const mpi::context& ring,
                    const head_scalars_view<float>& log_sum_exp, const fused::execution& how,
                    const Engine& engine) {
  static_assert(fused_plans::check_storage<Q, K, V, O>());
  check_thread();
  const index_t ranks = ring.ranks(), rank = ring.rank();
  const wire<K> k_wire(k);
  const wire<V> v_wire(v);
  fact_list facts(operation::prefill);
  add_call(facts, options, any_encoding);
  add_tensors<K, V>(facts, ring, k_wire.shape, v_wire.shape, k_wire.group_tokens());
  failure own;
  std::optional<divided_call> call;
  std::optional<travelling> chunk;
  std::optional<rows_of_rank> queries;
  std::optional<running_result> result;
  keep_failure(own, [&] {
    const attention_shape local = shape_of(q, k, v);
    check_rows(q.tokens, ring.queries(), rank, "mpi: q");
    check_rows(local.key_tokens, ring.keys(), rank, "mpi: k");
    check_output(local, q, k, v, out, log_sum_exp);
    const resolved_options whole =
        resolve(options, whole_shape(local, ring.queries().tokens(), ring.keys().tokens()));
    call.emplace(options, whole);
    with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
      check_encoding_of(encoding, options, whole, fused_calls::types_of<Q, K, V, O>());
    });
    chunk.emplace(ring, bytes_of_chunks(ring.keys(), k_wire, v_wire), 1);
    queries.emplace(ring.queries().pieces(rank), whole.query_positions, whole.valid_queries);
    result.emplace(q.tokens, whole.heads, whole.value_dim);
    k_wire.pack(k, chunk->here());
    v_wire.pack(v, chunk->here() + k_wire.bytes(local.key_tokens));
  });
  agree(ring, facts, own);

  const resolved_options& whole = call->whole();
  const attentive_executor executor(how.executor, *chunk);
  with_settled(any_encoding, options.context_length, [&](const auto& encoding) {
    using concrete = std::remove_cvref_t<decltype(encoding)>;
    std::optional<part_attention<Q, concrete, Engine>> parts;
    keep_failure(own, [&] {
      parts.emplace(
          *call, q, *queries, encoding, engine,
          fused::execution{.executor = executor, .memory = how.memory, .arithmetic = how.arithmetic},
          *result);
    });
    for (index_t step = 0; step < ranks; ++step) {
      const index_t owner = owner_at(rank, step, ranks), tokens = ring.keys().tokens_of(owner);
      const std::byte* const memory = chunk->here();
      const bool is_last = step + 1 == ranks;
      if (!is_last) chunk->start(owner);
      keep_failure(own, [&] {
        const rows_of_rank keys(ring.keys().pieces(owner), whole.key_positions, whole.valid_keys);
        parts->attend(k_wire.unpack(memory, tokens), v_wire.unpack(memory + k_wire.bytes(tokens), tokens),
                      keys);
      });
      if (!is_last) chunk->finish();
    }
  });
  keep_failure(own, [&] { result->add_sinks(whole.sinks, queries->valid()); });
  agree(ring, facts, own);
  result->write(out, log_sum_exp);
}

}  // namespace detail::distributed

namespace mpi {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// fused::attention_into over a sequence that several ranks hold: every rank calls it with its rows of q, k and v and
/// gets its rows of the output. The options say what they say of the whole sequence, on every rank alike: positions and
/// lists of masks have a place for each of its rows, dense masks and biases an element for each pair.
///
/// Beside the output a rank needs two key/value chunks, its own output in float, and what one block of 256 queries gives.
/// \param k,v any source (cache/source.hpp) but joined; it travels as it is stored
/// \param out this rank's rows, apart from q, k and v; written when all ranks have computed theirs
/// \param log_sum_exp ln Z per token and head, or an empty view
/// \throws the same on every rank: std::invalid_argument where options, lengths, types or versions differ or do not
/// fit; what a rank's own functions threw (std::invalid_argument, std::out_of_range, otherwise std::runtime_error).
/// std::runtime_error with MPI's words, on the ranks that MPI tells, where communication fails
template <class Q, kv_source K, kv_source V, class O, class E>
void attention_into(heads_view<Q> q, const K& k, const V& v, const E& encoding,
                    const attention_options& options, heads_view<O> out, const context& ring,
                    head_scalars_view<float> log_sum_exp = {}, const fused::execution& how = {}) {
  posenc::detail::distributed::ring_attention<std::remove_const_t<Q>>(q, k, v, encoding, options, out, ring,
                                                                      log_sum_exp, how, local_engine{});
}

}  // inline namespace
}  // namespace mpi
}  // namespace posenc::inline v0_2
