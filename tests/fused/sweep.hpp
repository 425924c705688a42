// SPDX-License-Identifier: MIT
/// \file
/// Runs one generated case through the fused path and the reference in double, and says how far apart they
/// are.
#pragma once

#include <cmath>
#include <cstddef>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <posenc/fused/attention.hpp>
#include <posenc/posenc.hpp>

#include "fused/sweep_case.hpp"
#include "fused/sweep_encodings.hpp"

namespace sweep {

/// Relative distance of neighbouring numbers of a storage type.
template <class S>
inline constexpr double spacing = std::is_same_v<S, float>         ? 0x1p-23
                                  : std::is_same_v<S, Eigen::half> ? 0x1p-10
                                                                   : 0x1p-7;

template <class S>
tensor<double> widened(const tensor<S>& from) {
  tensor<double> result = {from.view.tokens, from.view.heads, from.view.head_dim, 0, 0.0};
  for (index_t t = 0; t < from.view.tokens; ++t)
    for (index_t h = 0; h < from.view.heads; ++h)
      for (index_t x = 0; x < from.view.head_dim; ++x) {
        const auto at = static_cast<std::size_t>(x);
        result.view(t, h)[at] = static_cast<double>(static_cast<float>(from.view(t, h)[at]));
      }
  return result;
}

template <class T>
double largest_norm(const posenc::heads_view<T>& view, const posenc::row_range& rows) {
  double largest = 0;
  for (index_t t = rows.begin; t < rows.end; ++t)
    for (index_t h = 0; h < view.heads; ++h) {
      double sum = 0;
      for (const auto x : view(t, h)) sum += static_cast<double>(x) * static_cast<double>(x);
      largest = (std::max)(largest, std::sqrt(sum));
    }
  return largest;
}

/// How large the terms of a score get: float scores are off by so many roundings.
template <class E>
double score_size(const E& encoding, const posenc::detail::resolved_options& call, double q, double k) {
  double size = q * k * std::abs(call.scale) * 2 + q * std::abs(call.scale);
  if (call.valid_queries.begin >= call.valid_queries.end || call.valid_keys.begin >= call.valid_keys.end)
    return 0;
  if constexpr (posenc::biases<E>) {
    for (const index_t i : {call.valid_queries.begin, call.valid_queries.end - 1})
      for (const index_t j : {call.valid_keys.begin, call.valid_keys.end - 1})
        for (index_t h = 0; h < call.heads; ++h) {
          const auto bias = static_cast<double>(posenc::detail::bias_of(
              encoding, static_cast<int>(h), call.query_positions[i], call.key_positions[j]));
          if (std::isfinite(bias)) size = (std::max)(size, size + std::abs(bias));
        }
  }
  return size;
}

struct verdict {
  double worst = 0;  ///< largest error, in units of what is allowed
  std::string problem{};
};

/// \param S storage; `executor` runs the tasks
template <class S, class X = posenc::fused::serial_executor>
verdict run_case(const sweep_case& c, const X& executor = {}) {
  const S nan = static_cast<S>(std::numeric_limits<float>::quiet_NaN());
  const S pattern = static_cast<S>(-1234.5f);
  dice draw(c.seed + 77);
  const posenc::attention_options options = c.settled();
  const posenc::row_range valid_q = options.valid_queries.value_or(posenc::row_range{0, c.queries});
  const posenc::row_range valid_k = options.valid_keys.value_or(posenc::row_range{0, c.keys});
  tensor<S> q(c.queries, c.heads, c.head_dim, c.layout_q, nan),
      k(c.keys, c.kv_heads, c.head_dim, c.layout_k, nan), v(c.keys, c.kv_heads, c.value_dim, c.layout_v, nan),
      out(c.queries, c.heads, c.value_dim, c.layout_out, pattern);
  q.fill(draw, valid_q.begin, valid_q.end, c.size);
  k.fill(draw, valid_k.begin, valid_k.end, c.size);
  v.fill(draw, valid_k.begin, valid_k.end, 1);

  const tensor<double> q_wide = widened(q), k_wide = widened(k), v_wide = widened(v);
  const posenc::attention_result<double> expected = with_encoding<double>(c, [&](const auto& encoding) {
    return posenc::reference::attention_with_log_sum_exp<double>(q_wide.view, k_wide.view, v_wide.view,
                                                                 encoding, options);
  });

  const auto call = posenc::detail::resolve(options, q.view, k.view, v.view);
  double size = 0;
  posenc::row_major_matrix<float> log_sum_exp =
      posenc::row_major_matrix<float>::Constant(c.queries, c.heads + 1, 7);
  posenc::fused::call_options how;
  how.keys_are_rotated = c.keys_are_rotated;
  with_encoding<float>(c, [&](const auto& encoding) {
    size = score_size(encoding, call, largest_norm(q.view, valid_q), largest_norm(k.view, valid_k));
    if (c.keys_are_rotated)
      for (index_t j = valid_k.begin; j < valid_k.end; ++j)
        for (index_t h = 0; h < c.kv_heads; ++h)
          posenc::detail::rotate_key(encoding, k.view(j, h), call.key_positions[j]);
    posenc::fused::attention_into<S>(q.view, k.view, v.view, encoding, options, out.view,
                                     {log_sum_exp.data(), c.queries, c.heads, c.heads + 1, 1}, how, executor);
  });

  // xPos multiplies what it turns by up to 4 on this domain.
  if (c.encoding == 4) size *= 16;
  double score_error = (4 + size) * 0x1p-23;
  if (c.keys_are_rotated && sizeof(S) == 2) score_error += size * spacing<S>;
  const double value_size =
      largest_norm(v_wide.view, valid_k) / std::sqrt(static_cast<double>(c.value_dim)) * 3 + 3;

  verdict result;
  const auto see = [&](double error, double allowed, index_t i, index_t h, index_t channel, double got,
                       double want) {
    const double share = std::isfinite(error) ? error / allowed : 1e30;
    if (share <= result.worst) return;
    result.worst = share;
    if (share <= 1) return;
    std::ostringstream text;
    text << c.text() << "; row " << i << " head " << h << " channel " << channel << ": " << got
         << ", reference " << want << ", error " << share << " times what is allowed";
    result.problem = text.str();
  };
  for (index_t i = 0; i < c.queries; ++i)
    for (index_t h = 0; h < c.heads; ++h) {
      const double want = expected.log_sum_exp(i, h), got = static_cast<double>(log_sum_exp(i, h));
      if (std::isinf(want))
        see(got == want ? 0 : 1e30, 1, i, h, -1, got, want);
      else
        see(std::abs(got - want), score_error + std::abs(want) * 0x1p-23, i, h, -1, got, want);
      for (index_t x = 0; x < c.value_dim; ++x) {
        const double wanted = expected.output(i, h * c.value_dim + x);
        const double found =
            static_cast<double>(static_cast<float>(out.view(i, h)[static_cast<std::size_t>(x)]));
        if (std::isinf(want) && c.sinks.empty())
          see(found == 0 ? 0 : 1e30, 1, i, h, x, found, wanted);
        else
          see(std::abs(found - wanted),
              score_error * value_size + std::abs(wanted) * spacing<S> * 0.51 + 0x1p-24, i, h, x, found,
              wanted);
      }
    }
  if (!out.gaps_hold(pattern)) result = {1e30, c.text() + ": wrote between the rows of the output"};
  if (!(log_sum_exp.col(c.heads).array() == 7).all())
    result = {1e30, c.text() + ": wrote between the rows of the log-sum-exp"};
  return result;
}

}  // namespace sweep
