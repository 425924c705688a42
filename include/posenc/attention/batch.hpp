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
  heads_view<const Q> q;                                  ///< queries
  detail::source_of_t<K> k;                               ///< keys: a view or any source of cache/source.hpp
  detail::source_of_t<V> v;                               ///< values, likewise
  heads_view<O> out;                                      ///< where the output goes
  head_scalars_view<detail::working_t<O>> log_sum_exp{};  ///< empty where it is not wanted
  attention_options options{};                            ///< of this sequence alone
};

namespace detail {

/// Refuses a batch in which one sequence writes what another reads or writes.
template <class Sequence>
void check_apart(std::span<const Sequence> sequences) {
  const auto count = sequences.size();
  if (count < 2) return;
  // In the usual batch outputs lie in order, log-sum-exps too, and both apart from what is read: seen at a glance.
  struct hull : address_range {
    hull() : address_range{~std::uintptr_t{0}, 0} {}
    /// Takes in one more range. True where it lies after all before it, or is empty.
    bool extend(const address_range& one) {
      if (one.begin == one.end) return true;
      const bool is_after = end <= one.begin;
      begin = (std::min)(begin, one.begin), end = (std::max)(end, one.end);
      return is_after;
    }
    [[nodiscard]] bool is_apart(const hull& other) const { return begin >= other.end || other.begin >= end; }
  };
  hull read, outputs, sums;
  bool in_order = true;
  for (const Sequence& s : sequences) {
    const auto read_part = [&read](const auto& part) { read.extend(addresses(part)); };
    read_part(s.q), for_each_part(s.k, read_part), for_each_part(s.v, read_part);
    in_order &= outputs.extend(addresses(s.out));
    in_order &= sums.extend(addresses(as_rows(s.log_sum_exp)));
  }
  if (in_order && read.is_apart(outputs) && read.is_apart(sums) && outputs.is_apart(sums)) return;
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
