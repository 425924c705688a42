// SPDX-License-Identifier: MIT
/// \file
/// A ragged batch: several sequences, each with its own lengths, positions, masks and memory, in one call of
/// reference::attention_batch or fused::attention_batch.
///
///     const std::vector<posenc::attention_sequence<float>> batch{
///         {.q = q0, .k = k0, .v = v0, .out = out0, .options = options0},
///         {.q = q1, .k = k1, .v = v1, .out = out1, .options = options1}};
///     posenc::reference::attention_batch(batch, rope);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <posenc/attention/options.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/detail/scalar.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// One sequence of a batch. K and V are the scalar of a buffer or the type of a source (cache/source.hpp):
/// attention_sequence<float, Eigen::bfloat16>, attention_sequence<float, paged_view<const float>>.
template <class Q, class K = Q, class V = K, class O = Q>
struct attention_sequence {
  heads_view<const Q> q;
  detail::source_of_t<K> k;
  detail::source_of_t<V> v;
  heads_view<O> out;
  head_scalars_view<detail::working_t<O>> log_sum_exp{};  ///< empty where it is not wanted
  attention_options options{};
};

namespace detail {

/// Refuses a batch in which one sequence writes what another reads or writes.
template <class Sequence>
void check_apart(std::span<const Sequence> sequences) {
  const auto count = sequences.size();
  if (count < 2) return;
  // The usual batch lies in order, and its outputs apart from everything that is read: seen at a glance.
  address_range read{~std::uintptr_t{0}, 0}, written{~std::uintptr_t{0}, 0};
  const auto join = [](address_range& all, const address_range& one) {
    if (one.begin == one.end) return;
    all.begin = (std::min)(all.begin, one.begin), all.end = (std::max)(all.end, one.end);
  };
  bool in_order = true;
  for (std::size_t n = 0; n < count; ++n) {
    const Sequence& s = sequences[n];
    const auto join_read = [&](const auto& part) { join(read, addresses(part)); };
    join_read(s.q), for_each_part(s.k, join_read), for_each_part(s.v, join_read);
    const address_range out = addresses(s.out);
    in_order = in_order && (written.end <= out.begin || out.begin == out.end || n == 0) &&
               s.log_sum_exp.data == nullptr;
    join(written, out);
  }
  if (in_order && (read.begin >= written.end || written.begin >= read.end)) return;
  for (std::size_t n = 0; n < count; ++n)
    for (std::size_t m = 0; m < count; ++m) {
      if (n == m) continue;
      const Sequence &a = sequences[n], &b = sequences[m];
      const auto lse = as_rows(a.log_sum_exp);
      require(!overlap(a.out, b.q) && !overlaps(a.out, b.k) && !overlaps(a.out, b.v) && !overlap(lse, b.q) &&
                  !overlaps(lse, b.k) && !overlaps(lse, b.v),
              "attention_batch: the output of sequence ", n, " overlaps q, k or v of sequence ", m,
              " in memory");
      require(m < n || (!overlap(a.out, b.out) && !overlap(lse, b.out) &&
                        !overlap(a.out, as_rows(b.log_sum_exp)) && !overlap(lse, as_rows(b.log_sum_exp))),
              "attention_batch: sequences ", n, " and ", m, " write the same memory");
    }
}

}  // namespace detail
}  // namespace posenc::inline v0_2
