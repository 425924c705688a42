// SPDX-License-Identifier: MIT
/// \file
/// Puts attention over parts of the keys together: split a long context over threads, devices or calls,
/// attend to each part, merge.
///
///     L = ln Σ_p e^{L_p},   out = Σ_p e^{L_p − L}·out_p       (L_p the natural log-sum-exp of part p)
///
/// The parts must hold disjoint sets of keys, for the same queries. An empty part (output 0, log-sum-exp −∞)
/// changes nothing, to the bit; if all are empty, so is the result. Merging is associative and commutative up
/// to rounding; the weights are formed in double for float and narrower scalars.
///
/// Attention sinks count once: give attention_options::sinks to the call of exactly one part, whichever,
/// even where a row sees no key of it: its log-sum-exp is then the sink itself.
///
/// The idea of carrying (maximum, sum) through a split softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include <posenc/attention/reference.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/detail/scalar.hpp>
#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// A view of what an attention call over some of the keys gave: tokens × heads × value_dim and ln Z per token
/// and head.
template <class S>
struct attention_part {
  heads_view<const S> output;                                 ///< what attention to some of the keys gave
  head_scalars_view<const detail::working_t<S>> log_sum_exp;  ///< natural logarithms, tokens × heads
};

namespace detail {

template <class S>
[[nodiscard]] attention_part<S> part_of(const attention_result<S>& result) {
  const index_t heads = result.log_sum_exp.cols();
  require(result.output.rows() == result.log_sum_exp.rows(), "merge: an output of ", result.output.rows(),
          " rows with a log_sum_exp of ", result.log_sum_exp.rows());
  return {as_heads(result.output, heads),
          {result.log_sum_exp.data(), result.log_sum_exp.rows(), heads, heads, 1}};
}

template <class A, class B>
[[nodiscard]] bool same_memory(const heads_view<A>& a, const heads_view<B>& b) noexcept {
  return static_cast<const void*>(a.data) == static_cast<const void*>(b.data) && sizeof(A) == sizeof(B) &&
         a.token_stride == b.token_stride && a.head_stride == b.head_stride;
}

/// Refuses parts that do not fit the output, and an output that half overlaps a part.
template <class S, class L>
void check_merge(std::span<const attention_part<S>> parts, const heads_view<S>& out,
                 const head_scalars_view<L>& log_sum_exp) {
  const bool wants_log_sum_exp = log_sum_exp.data != nullptr;
  const auto lse_rows = as_rows(log_sum_exp);
  check_view(out, "merge: output");
  check_disjoint_rows(out, "merge: output");
  if (wants_log_sum_exp) {
    require(log_sum_exp.tokens == out.tokens && log_sum_exp.heads == out.heads, "merge: log_sum_exp is ",
            log_sum_exp.tokens, " x ", log_sum_exp.heads, ", needed is ", out.tokens, " x ", out.heads);
    check_disjoint_rows(lse_rows, "merge: log_sum_exp");
    require(!overlap(lse_rows, out), "merge: log_sum_exp overlaps the output in memory");
  }
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const attention_part<S>& part = parts[n];
    const auto part_lse = as_rows(part.log_sum_exp);
    check_view(part.output, "merge: a part's output"), check_view(part_lse, "merge: a part's log_sum_exp");
    require(part.output.tokens == out.tokens && part.output.heads == out.heads &&
                part.output.head_dim == out.head_dim,
            "merge: part ", n, " is ", part.output.tokens, " x ", part.output.heads, " x ",
            part.output.head_dim, ", the output ", out.tokens, " x ", out.heads, " x ", out.head_dim);
    require(part_lse.tokens == out.tokens && part_lse.heads == out.heads, "merge: the log_sum_exp of part ",
            n, " is ", part_lse.tokens, " x ", part_lse.heads, ", needed is ", out.tokens, " x ", out.heads);
    require(same_memory(out, part.output) || !overlap(out, part.output), "merge: the output overlaps part ",
            n, " without being the same rows");
    require(!overlap(out, part_lse), "merge: the output overlaps the log_sum_exp of part ", n);
    if (!wants_log_sum_exp) continue;
    require(same_memory(lse_rows, part_lse) || !overlap(lse_rows, part_lse),
            "merge: log_sum_exp overlaps that of part ", n, " without being the same numbers");
    require(!overlap(lse_rows, part.output), "merge: log_sum_exp overlaps part ", n);
  }
}

}  // namespace detail

/// Merges parts into the caller's memory. The output may be one of the parts itself (the same rows), so that
/// a running result can be updated in place. No parts at all give 0 and −∞.
/// \param out tokens × heads × value_dim
/// \param log_sum_exp ln Z of the whole per token and head, or an empty view
/// \throws std::invalid_argument when shapes differ or the output half overlaps a part; nothing is written
template <class S>
void merge_into(std::type_identity_t<std::span<const attention_part<S>>> parts, heads_view<S> out,
                std::type_identity_t<head_scalars_view<detail::working_t<S>>> log_sum_exp = {}) {
  using work = detail::working_t<S>;
  using sum = detail::sum_t<S>;
  using std::exp, std::log;
  detail::check_merge<S>(parts, out, log_sum_exp);
  std::vector<std::size_t> seeing;  // parts in which the row sees a key
  std::vector<sum> weights(parts.size());
  for (index_t i = 0; i < out.tokens; ++i)
    for (index_t head = 0; head < out.heads; ++head) {
      // −∞ must not meet arithmetic: under -ffast-math ∞ − ∞ is anything.
      seeing.clear();
      for (std::size_t n = 0; n < parts.size(); ++n)
        if (!detail::is_minus_infinity(parts[n].log_sum_exp(i, head))) seeing.push_back(n);
      if (seeing.empty()) {
        std::fill_n(out(i, head).begin(), out.head_dim, S(0));
        if (log_sum_exp.data) log_sum_exp(i, head) = detail::minus_infinity<work>();
        continue;
      }
      sum largest = static_cast<sum>(parts[seeing[0]].log_sum_exp(i, head));
      for (const std::size_t n : seeing)
        if (const sum lse = static_cast<sum>(parts[n].log_sum_exp(i, head)); lse > largest) largest = lse;
      sum total(0);
      for (const std::size_t n : seeing) {
        weights[n] = exp(sum(static_cast<sum>(parts[n].log_sum_exp(i, head)) - largest));
        total += weights[n];
      }
      for (std::size_t c = 0; c < static_cast<std::size_t>(out.head_dim); ++c) {
        sum value(0);
        for (const std::size_t n : seeing)
          value += sum(weights[n] * static_cast<sum>(parts[n].output(i, head)[c]));
        out(i, head)[c] = static_cast<S>(sum(value / total));
      }
      if (log_sum_exp.data) log_sum_exp(i, head) = static_cast<work>(sum(largest + sum(log(total))));
    }
}

/// Merges the results of attention over disjoint parts of the keys.
///
///     auto whole = posenc::merge<float>({first_half, second_half});
///
/// \throws std::invalid_argument when there is no part or their shapes differ
template <class S>
[[nodiscard]] attention_result<S> merge(std::span<const attention_result<S>> parts) {
  detail::require(!parts.empty(), "merge: no parts, so no shape for the result");
  std::vector<attention_part<S>> views;
  views.reserve(parts.size());
  for (const attention_result<S>& part : parts) views.push_back(detail::part_of(part));
  attention_result<S> result{
      row_major_matrix<S>(parts[0].output.rows(), parts[0].output.cols()),
      row_major_matrix<detail::working_t<S>>(parts[0].log_sum_exp.rows(), parts[0].log_sum_exp.cols())};
  const index_t heads = result.log_sum_exp.cols();
  merge_into<S>(views, as_heads(result.output, heads),
                {result.log_sum_exp.data(), result.log_sum_exp.rows(), heads, heads, 1});
  return result;
}
/// The same for a list in braces.
template <class S>
[[nodiscard]] attention_result<S> merge(std::initializer_list<attention_result<S>> parts) {
  return merge(std::span<const attention_result<S>>(parts.begin(), parts.size()));
}
/// The same for a vector.
template <class S>
[[nodiscard]] attention_result<S> merge(const std::vector<attention_result<S>>& parts) {
  return merge(std::span<const attention_result<S>>(parts));
}

}  // namespace posenc::inline v0_2
