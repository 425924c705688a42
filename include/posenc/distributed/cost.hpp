// SPDX-License-Identifier: MIT
/// \file
/// What calls over several ranks cost, by the model of docs/distributed.md, and which way is cheaper. Needs no MPI.
///
/// A message of b bytes takes latency + b / bandwidth, sent and received at the same time; a rank computes at `speed`.
/// Computing hides sending: a step of the ring takes the longer of the two.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

#include <posenc/distributed/split.hpp>
#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2::mpi {

/// Ranks and what is between them.
struct cluster {
  index_t ranks = 1;     ///< processes
  double bandwidth = 0;  ///< bytes per second from a rank to the next, while it receives as many
  double latency = 0;    ///< seconds until a message begins to arrive
  double speed = 0;      ///< floating-point operations per second of a rank
};

/// What is attended to, all ranks together.
struct call_shape {
  index_t queries = 0;                    ///< query rows
  index_t keys = 0;                       ///< key rows
  index_t heads = 1;                      ///< query heads
  index_t kv_heads = 1;                   ///< key/value heads
  index_t head_dim = 0;                   ///< channels of a query and of a key
  index_t value_dim = 0;                  ///< channels of a value
  attention_mask mask = causal;           ///< causal or bidirectional
  split_kind split = split_kind::zigzag;  ///< how rows are divided
  index_t stripe = usual_stripe;          ///< rows of a stripe, where they are divided in stripes
  double query_bytes = 4;                 ///< of a number of q and of the output
  double key_bytes = 4;                   ///< of a number of k, scales included
  double value_bytes = 4;                 ///< of a number of v
};

/// Times in seconds and bytes, of the rank that has most of them.
struct cost {
  double seconds = 0;       ///< from first to last
  double compute = 0;       ///< of which a rank computes
  double exposed = 0;       ///< and waits for messages
  double bytes_sent = 0;    ///< by a rank
  double extra_memory = 0;  ///< bytes of buffers for messages
};

/// Pairs of a query row and a key row that see each other, rows of one range each.
[[nodiscard]] constexpr double visible_pairs(const row_range& queries, const row_range& keys,
                                             attention_mask mask) noexcept {
  const auto rows = [](index_t n) { return static_cast<double>((std::max)(n, index_t{0})); };
  const double all = rows(queries.end - queries.begin) * rows(keys.end - keys.begin);
  if (mask == bidirectional || all == 0) return all;
  // Σ over queries i of the keys in [begin, min(end, i + 1)).
  const index_t first = (std::max)(queries.begin, keys.begin), whole = (std::max)(first, keys.end);
  const double ramp = rows((std::min)(queries.end, whole) - first);
  return ramp * rows(first - keys.begin) + ramp * (ramp + 1) / 2 +
         rows(queries.end - (std::max)(queries.begin, keys.end)) * rows(keys.end - keys.begin);
}

/// Bytes of a token's key and value.
[[nodiscard]] constexpr double bytes_of_token(const call_shape& call) noexcept {
  return static_cast<double>(call.kv_heads) * (static_cast<double>(call.head_dim) * call.key_bytes +
                                               static_cast<double>(call.value_dim) * call.value_bytes);
}
/// Floating-point operations of a pair of rows, all heads.
[[nodiscard]] constexpr double operations_of_pair(const call_shape& call) noexcept {
  return 2.0 * static_cast<double>(call.heads) * static_cast<double>(call.head_dim + call.value_dim);
}

/// Bytes that a rank sends for a prefill by ring: every chunk but that of the rank after it.
[[nodiscard]] inline double ring_bytes(const call_shape& call, const split& keys, index_t rank) {
  const index_t next = (rank + 1) % keys.ranks();
  if (keys.ranks() == 1) return 0;
  return bytes_of_token(call) * static_cast<double>(keys.tokens() - keys.tokens_of(next));
}

/// Prefill by ring, replayed step by step as ring.hpp does it: a rank sends and receives while it computes, and begins
/// the next step when all three are done. \throws std::invalid_argument
[[nodiscard]] inline cost ring_cost(const call_shape& call, const cluster& on) {
  const auto ranks = static_cast<std::size_t>(on.ranks);
  detail::require(on.speed > 0 && (on.ranks == 1 || on.bandwidth > 0), "ring_cost: speed ", on.speed,
                  " and bandwidth ", on.bandwidth, " must be positive");
  const split queries(call.queries, on.ranks, call.split, call.stripe),
      keys(call.keys, on.ranks, call.split, call.stripe);
  const index_t behind = call.keys - call.queries;  // query rows are the last of the keys
  std::vector<double> begin(ranks, 0.0), sent(ranks, 0.0), computed(ranks, 0.0);
  for (index_t step = 0; step < on.ranks; ++step) {
    const bool sends = step + 1 < on.ranks;
    const auto owner = [&](index_t r) { return (r - step + on.ranks) % on.ranks; };
    const auto at = [&](index_t r) { return static_cast<std::size_t>((r + on.ranks) % on.ranks); };
    for (index_t r = 0; r < on.ranks && sends; ++r)
      sent[at(r)] = (std::max)(begin[at(r)], begin[at(r + 1)]) + on.latency +
                    bytes_of_token(call) * static_cast<double>(keys.tokens_of(owner(r))) / on.bandwidth;
    for (index_t r = 0; r < on.ranks; ++r) {
      double pairs = 0;
      for (const row_range& q : queries.pieces(r))
        for (const row_range& k : keys.pieces(owner(r)))
          pairs += visible_pairs({q.begin + behind, q.end + behind}, k, call.mask);
      const double work = pairs * operations_of_pair(call) / on.speed;
      computed[at(r)] += work;
      begin[at(r)] += work;
      if (sends) begin[at(r)] = (std::max)({begin[at(r)], sent[at(r)], sent[at(r - 1)]});
    }
  }
  cost result;
  for (std::size_t r = 0; r < ranks; ++r) {
    result.seconds = (std::max)(result.seconds, begin[r]);
    result.compute = (std::max)(result.compute, computed[r]);
    result.bytes_sent = (std::max)(result.bytes_sent, ring_bytes(call, keys, static_cast<index_t>(r)));
    result.extra_memory =
        (std::max)(result.extra_memory,
                   2 * bytes_of_token(call) * static_cast<double>(keys.tokens_of(static_cast<index_t>(r))));
  }
  result.exposed = result.seconds - result.compute;
  return result;
}

/// Prefill by heads: all-to-all of q, k and v, attention of some heads to everything, all-to-all of the output. Empty
/// where there are fewer KV heads than ranks. \throws std::invalid_argument
[[nodiscard]] inline std::optional<cost> by_heads_cost(const call_shape& call, const cluster& on) {
  detail::require(on.speed > 0 && (on.ranks == 1 || on.bandwidth > 0), "by_heads_cost: speed ", on.speed,
                  " and bandwidth ", on.bandwidth, " must be positive");
  if (call.kv_heads < on.ranks) return std::nullopt;
  const double ranks = static_cast<double>(on.ranks);
  const double share =
      std::ceil(static_cast<double>(call.kv_heads) / ranks) / static_cast<double>(call.kv_heads);
  const double pairs = visible_pairs({call.keys - call.queries, call.keys}, {0, call.keys}, call.mask);
  const double q = static_cast<double>(call.queries) * static_cast<double>(call.heads) * call.query_bytes;
  // Of what a rank holds it keeps one part in so many.
  const double there =
      (q * static_cast<double>(call.head_dim) + static_cast<double>(call.keys) * bytes_of_token(call)) /
      ranks;
  const double back = q * static_cast<double>(call.value_dim) * share;
  cost result;
  result.compute = pairs * operations_of_pair(call) * share / on.speed;
  if (on.ranks > 1) {
    result.bytes_sent = (there + back) * (ranks - 1) / ranks;
    result.exposed = 2 * (ranks - 1) * on.latency + result.bytes_sent / on.bandwidth;
  }
  result.extra_memory = there * (1 + ranks * share) + back;
  result.seconds = result.compute + result.exposed;
  return result;
}

/// The ways to a prefill.
enum class way : unsigned char { ring, by_heads };

/// The cheaper way for a call. \throws std::invalid_argument
[[nodiscard]] inline way cheaper_way(const call_shape& call, const cluster& on) {
  const std::optional<cost> heads = by_heads_cost(call, on);
  return heads && heads->seconds < ring_cost(call, on).seconds ? way::by_heads : way::ring;
}

/// How partial results of decode become one.
enum class exchange : unsigned char {
  automatic,   ///< the one in which a rank sends less
  all_reduce,  ///< ⌈log₂ P⌉ times a state
  all_gather,  ///< P − 1 times a state
};

/// Bytes of a query row's partial results: output and log-sum-exp of each head.
[[nodiscard]] constexpr double bytes_of_state(const call_shape& call) noexcept {
  return static_cast<double>(call.heads) * (4.0 * static_cast<double>(call.value_dim) + 8.0);
}
/// Rounds of an all-reduce that doubles what is summed each time.
[[nodiscard]] constexpr index_t rounds_of_reduce(index_t ranks) noexcept {
  index_t rounds = 0;
  while ((index_t{1} << rounds) < ranks) ++rounds;
  return rounds;
}
/// What `automatic` stands for.
[[nodiscard]] constexpr exchange cheaper_exchange(index_t ranks) noexcept {
  return ranks - 1 <= rounds_of_reduce(ranks) ? exchange::all_gather : exchange::all_reduce;
}

/// A decode step: each rank reads its keys, then partial results meet. `read_bandwidth` is that of a rank's memory.
[[nodiscard]] inline cost decode_cost(const call_shape& call, const cluster& on, double read_bandwidth) {
  detail::require(read_bandwidth > 0 && (on.ranks == 1 || on.bandwidth > 0), "decode_cost: bandwidths ",
                  read_bandwidth, " and ", on.bandwidth, " must be positive");
  cost result;
  const double most_keys = std::ceil(static_cast<double>(call.keys) / static_cast<double>(on.ranks));
  result.compute = most_keys * bytes_of_token(call) / read_bandwidth;
  const double state = static_cast<double>(call.queries) * bytes_of_state(call);
  const auto rounds = static_cast<double>(rounds_of_reduce(on.ranks));
  const bool gathers = cheaper_exchange(on.ranks) == exchange::all_gather;
  result.bytes_sent = on.ranks > 1 ? state * (gathers ? static_cast<double>(on.ranks - 1) : rounds) : 0;
  result.exposed = on.ranks > 1 ? rounds * on.latency + result.bytes_sent / on.bandwidth : 0;
  result.extra_memory = state * (gathers ? static_cast<double>(on.ranks) : 2.0);
  result.seconds = result.compute + result.exposed;
  return result;
}

}  // namespace posenc::inline v0_2::mpi
