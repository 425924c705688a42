// SPDX-License-Identifier: MIT
/// \file
/// What a plan and its problem take of one sequence of a batch.
#pragma once

#include <posenc/attention/batch.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace fused {

/// One sequence of a batch (attention/batch.hpp).
template <class Q, class K = Q, class V = K, class O = Q>
using sequence = attention_sequence<Q, K, V, O>;

}  // namespace fused

namespace detail::fused_calls {
using namespace fused_plans;

template <class Q, class K, class V, class O>
[[nodiscard]] fused::shape types_of() {
  return {.q = storage_of<Q>, .k = storage_of<K>, .v = storage_of<V>, .out = storage_of<O>};
}

/// The order in which a sequence's cache lies.
template <kv_source K, kv_source V>
[[nodiscard]] fused::memory_order order_of(const K& k, const V& v) {
  const auto side_by_side = [](const auto& source) {
    const row_layout rows = cache_of(source).own.rows;
    return width_of_stride(rows.head_bytes) < width_of_stride(rows.token_bytes);
  };
  return side_by_side(k) && side_by_side(v) ? fused::memory_order::token_major
                                            : fused::memory_order::head_major;
}

/// Points a planned problem at the tensors of its sequence.
template <class Q, class K, class V, class O>
void point(attention_problem& problem, const fused::sequence<Q, K, V, O>& s) {
  problem.q = tensor_of(s.q), problem.k = cache_of(s.k), problem.v = cache_of(s.v);
  problem.out = output_of(s.out);
  problem.log_sum_exp = s.log_sum_exp.data;
  problem.lse_token_stride = s.log_sum_exp.token_stride;
  problem.lse_head_stride = s.log_sum_exp.head_stride;
}

}  // namespace detail::fused_calls
}  // namespace posenc::inline v0_2
