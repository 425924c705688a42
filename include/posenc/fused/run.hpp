// SPDX-License-Identifier: MIT
/// \file
/// One-shot calls: the functions of attention/reference.hpp again, same arguments, same answer. Each is a plan and one
/// run.
///
///     Eigen::MatrixXf out = posenc::fused::attention(q, k, v, rope, options);
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <posenc/attention/batch.hpp>
#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/sequence.hpp>
#include <posenc/fused/shared_prefix.hpp>
#include <posenc/fused/workspace.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace detail::fused_calls {

/// The encoding of each sequence of a batch: the same for all, or what it settles into for each one's length.
template <class E>
class encodings_of_batch {
 public:
  template <class Sequence>
  encodings_of_batch(const E& encoding, std::span<const Sequence>) : encoding_(encoding) {}
  [[nodiscard]] const E& operator[](std::size_t) const { return encoding_; }

 private:
  const E& encoding_;
};
template <settles_by_length E>
class encodings_of_batch<E> {
 public:
  template <class Sequence>
  encodings_of_batch(const E& encoding, std::span<const Sequence> sequences) {
    settled_.reserve(sequences.size());
    for (const Sequence& s : sequences)
      settled_.push_back(encoding.at_length(checked_length(s.options.context_length)));
  }
  [[nodiscard]] const auto& operator[](std::size_t n) const { return settled_[n]; }

 private:
  std::vector<decltype(std::declval<const E&>().at_length(1))> settled_;
};

/// Plans a batch in a workspace, its tensors checked.
template <class Q, class K, class V, class O, class E>
void plan_batch(builder& making, std::span<const fused::sequence<Q, K, V, O>> sequences,
                const encodings_of_batch<E>& encodings, index_t workers) {
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const auto& s = sequences[n];
    const auto& encoding = encodings[n];
    using settled = std::remove_cvref_t<decltype(encoding)>;
    static_assert(check_encoding<settled, float>());
    check_embedded<settled, float>(s.options.is_embedded);
    const attention_shape shape = shape_of(s.q, s.k, s.v);
    fused::shape types = types_of<Q, K, V, O>();
    types.order = order_of(s.k, s.v);
    making.add(resolve(s.options, shape), types, encoding);
    check_output(shape, s.q, s.k, s.v, s.out, s.log_sum_exp);
  }
  check_apart(sequences);
  making.finish(workers);
}

/// A batch whose sequences share prefixes, checked and run. False where none do.
template <class Q, class K, class V, class O, class E>
[[nodiscard]] bool run_shared(const kernel_table& kernels,
                              std::span<const fused::sequence<Q, K, V, O>> sequences, const E& encoding,
                              const fused::execution& how, fused::workspace& scratch) {
  static_assert(check_encoding<E, float>());
  shared_batch<fused::sequence<Q, K, V, O>> batch(sequences);
  if (!batch.shares()) return false;
  for (const auto& s : sequences) {
    check_embedded<E, float>(s.options.is_embedded);
    check_output(shape_of(s.q, s.k, s.v), s.q, s.k, s.v, s.out, s.log_sum_exp);
  }
  check_apart(sequences);
  builder making(scratch, kernels, batch.items(), how.arithmetic, how.unit);
  batch.plan(making, encoding, types_of<Q, K, V, O>());
  making.finish(static_cast<index_t>(how.executor.workers()));
  const std::span<item> items(making.items(), batch.items());
  for (std::size_t n = 0; n < items.size(); ++n) {
    making.prepare(n, encoding);
    items[n].problem = items[n].bound(making.memory());
    batch.point_item(n, items[n].problem);
  }
  fused_plans::run(kernels, making.where(), items, making.memory(), how.executor,
                   [items](std::size_t n) -> const attention_problem& { return items[n].problem; });
  batch.merge(how.executor);
  return true;
}

/// A batch: checked first, all of it, then run.
template <class Q, class K, class V, class O, class E>
void run_batch(const kernel_table& kernels, std::span<const fused::sequence<Q, K, V, O>> sequences,
               const E& encoding, const fused::execution& how) {
  static_assert(check_storage<Q, K, V, O>());
  for (const auto& s : sequences) {  // before anything is written into scratch
    (void)shape_of(s.q, s.k, s.v);
    check_view(s.out, "output");
    check_scratch(how.memory, s.q, "q"), check_scratch(how.memory, s.k, "k"),
        check_scratch(how.memory, s.v, "v");
    check_scratch(how.memory, s.out, "the output"),
        check_scratch(how.memory, as_rows(s.log_sum_exp), "log_sum_exp");
  }
  fused::workspace own;
  fused::workspace& scratch = how.memory ? *how.memory : own;
  if constexpr (is_joined<K> && is_joined<V> && !settles_by_length<E>)
    if (run_shared(kernels, sequences, encoding, how, scratch)) return;
  builder making(scratch, kernels, sequences.size(), how.arithmetic, how.unit);
  const encodings_of_batch<E> encodings(encoding, sequences);
  plan_batch(making, sequences, encodings, static_cast<index_t>(how.executor.workers()));
  if (making.where().tasks == 0) return;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    making.prepare(n, encodings[n]);
    item& one = making.items()[n];
    one.problem = one.bound(making.memory());
    point(one.problem, sequences[n]);
  }
  const std::span<const item> items(making.items(), sequences.size());
  fused_plans::run(kernels, making.where(), items, making.memory(), how.executor,
                   [items](std::size_t n) -> const attention_problem& { return items[n].problem; });
}

template <class Q, kv_source K, kv_source V, class E>
[[nodiscard]] attention_result<Q> result_of(const kernel_table& kernels, heads_view<const Q> q, const K& k,
                                            const V& v, const E& encoding, const attention_options& options,
                                            const fused::execution& how) {
  using sequence = fused::sequence<Q, source_name_t<K>, source_name_t<V>, Q>;
  static_assert(check_storage<Q, K, V, Q>());
  attention_result<Q> result;
  const index_t heads = q.heads, value_dim = shape_of_source(v).head_dim;
  require(q.tokens >= 0 && heads >= 0 && value_dim >= 0, "attention: negative shapes");
  result.output.resize(q.tokens, heads * value_dim);
  result.log_sum_exp.resize(q.tokens, heads);
  const sequence one{q,
                     k,
                     v,
                     token_major(result.output.data(), q.tokens, heads, value_dim),
                     {result.log_sum_exp.data(), q.tokens, heads, heads, 1},
                     options};
  with_concrete(encoding, [&](const auto& concrete) {
    run_batch(kernels, std::span<const sequence>(&one, 1), concrete, how);
  });
  return result;
}

}  // namespace detail::fused_calls

namespace fused {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// Several sequences of different lengths and positions in one call, all with the same encoding. Every
/// sequence is checked before any output is written. \throws std::invalid_argument, std::out_of_range
template <class Q, class K, class V, class O, class E>
void attention_batch(std::span<const sequence<Q, K, V, O>> sequences, const E& encoding,
                     const execution& how = {}) {
  posenc::detail::with_concrete(encoding, [&](const auto& one) {
    posenc::detail::fused_calls::run_batch(posenc::detail::fused_kernels::this_isa::kernels(), sequences, one,
                                           how);
  });
}

/// The same for a vector.
template <class Q, class K, class V, class O, class E>
void attention_batch(const std::vector<sequence<Q, K, V, O>>& sequences, const E& encoding,
                     const execution& how = {}) {
  fused::attention_batch(std::span<const sequence<Q, K, V, O>>(sequences), encoding, how);
}

/// Attention over strided views into the caller's memory, keys and values from any source (cache/source.hpp), each of a
/// type of its own. Nothing is written when it throws, unless it is one of the encoding's own functions that kernels
/// call (lower/encodings.hpp) that throws: then the output is partly written.
/// \param out tokens × heads × value_dim, apart from q, k and v
/// \param log_sum_exp ln Z per token and head, or an empty view
/// \throws std::invalid_argument, std::out_of_range
template <class Q, kv_source K, kv_source V, class O, class E>
void attention_into(heads_view<Q> q, const K& k, const V& v, const E& encoding,
                    const attention_options& options, heads_view<O> out,
                    head_scalars_view<float> log_sum_exp = {}, const execution& how = {}) {
  using one_sequence = sequence<std::remove_const_t<Q>, posenc::detail::source_name_t<K>,
                                posenc::detail::source_name_t<V>, std::remove_const_t<O>>;
  static_assert(posenc::detail::fused_plans::check_storage<std::remove_const_t<Q>, K, V, O>());
  const one_sequence one{q, k, v, out, log_sum_exp, options};
  fused::attention_batch(std::span<const one_sequence>(&one, 1), encoding, how);
}

/// Bytes that a workspace over the caller's own memory needs for this batch, an executor of so many workers, and this
/// arithmetic. \throws std::invalid_argument, std::out_of_range as the call would
template <class Q, class K, class V, class O, class E>
[[nodiscard]] std::size_t workspace_bytes(std::span<const sequence<Q, K, V, O>> sequences, const E& encoding,
                                          index_t workers = 1,
                                          fused::arithmetic arithmetic = fused::arithmetic::automatic,
                                          matrix_unit unit = matrix_unit::automatic) {
  return posenc::detail::with_concrete(encoding, [&](const auto& one) {
    workspace own;
    using concrete = std::remove_cvref_t<decltype(one)>;
    if constexpr (posenc::detail::is_joined<K> && posenc::detail::is_joined<V> &&
                  !settles_by_length<concrete>) {
      const posenc::detail::fused_calls::shared_batch<sequence<Q, K, V, O>> batch(sequences);
      if (batch.shares()) {
        posenc::detail::fused_plans::builder making(own, posenc::detail::fused_kernels::this_isa::kernels(),
                                                    batch.items(), arithmetic, unit);
        batch.plan(making, one, posenc::detail::fused_calls::types_of<Q, K, V, O>());
        making.finish(workers);
        return making.where().bytes + workspace::line;
      }
    }
    posenc::detail::fused_plans::builder making(own, posenc::detail::fused_kernels::this_isa::kernels(),
                                                sequences.size(), arithmetic, unit);
    posenc::detail::fused_calls::plan_batch(
        making, sequences,
        posenc::detail::fused_calls::encodings_of_batch<std::remove_cvref_t<decltype(one)>>(one, sequences),
        workers);
    return making.where().bytes + workspace::line;
  });
}

/// Attention over strided views or other sources of keys and values, with its log-sum-exp. The result has the type of q.
template <class Q, kv_source K, kv_source V, class E>
[[nodiscard]] attention_result<std::remove_const_t<Q>> attention_with_log_sum_exp(
    heads_view<Q> q, const K& k, const V& v, const E& encoding, const attention_options& options,
    const execution& how = {}) {
  using scalar = std::remove_const_t<Q>;
  return posenc::detail::fused_calls::result_of<scalar>(posenc::detail::fused_kernels::this_isa::kernels(),
                                                        heads_view<const scalar>(q), k, v, encoding, options,
                                                        how);
}

/// Attention over matrices of tokens × (heads·head_dim), with its log-sum-exp. Column-major matrices and
/// expressions are copied into row-major order first.
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention_with_log_sum_exp(const Eigen::MatrixBase<Q>& q, const Eigen::MatrixBase<K>& k,
                                              const Eigen::MatrixBase<V>& v, const E& encoding,
                                              const attention_options& options, const execution& how = {}) {
  const posenc::detail::attention_matrices m(q, k, v, options);
  return fused::attention_with_log_sum_exp(m.q(), m.k(), m.v(), encoding, options, how);
}

/// Attention over matrices or views: the output, tokens × (heads·value_dim), row-major.
template <class Q, class K, class V, class E>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, const E& encoding,
                             const attention_options& options = {}, const execution& how = {}) {
  return fused::attention_with_log_sum_exp(q, k, v, encoding, options, how).output;
}
/// The same with an executor alone.
template <class Q, class K, class V, class E, executor X>
[[nodiscard]] auto attention(const Q& q, const K& k, const V& v, const E& encoding,
                             const attention_options& options, const X& by) {
  return fused::attention(q, k, v, encoding, options, execution{.executor = by});
}

}  // inline namespace
}  // namespace fused

/// fused::attention_with_log_sum_exp as a function object, to hand to self_attention and to the property checks.
struct fused_attention {
  fused::execution how{};  ///< on which threads, in which memory

  /// Fused::attention of the same arguments.
  template <class Q, class K, class V, class E>
  [[nodiscard]] auto operator()(const Q& q, const K& k, const V& v, const E& encoding,
                                const attention_options& options) const {
    return fused::attention_with_log_sum_exp(q, k, v, encoding, options, how);
  }
};

}  // namespace posenc::inline v0_2
