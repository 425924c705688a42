// SPDX-License-Identifier: MIT
/// \file
/// fused::attention_backward equals the reference over the generated cases of the forward's sweep, on every instruction
/// set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "fused/sweep.hpp"
#include "fused/targets.hpp"
#include "repetitions.hpp"

namespace sweep_test {

using posenc::index_t, posenc::position;
using sweep::tensor;

std::uint32_t cases() {
  const char* const asked = std::getenv("POSENC_SWEEP_CASES");
  return asked ? static_cast<std::uint32_t>(std::strtoul(asked, nullptr, 10)) : repetitions::few ? 200 : 2100;
}

template <class T>
posenc::backward_sequence<T> sequence_of(const tensor<T>& q, const tensor<T>& k, const tensor<T>& v,
                                         const tensor<T>& out,
                                         const posenc::row_major_matrix<posenc::detail::working_t<T>>& lse,
                                         const tensor<T>& d_out, tensor<T>& d_q, tensor<T>& d_k,
                                         tensor<T>& d_v, const posenc::attention_options& options) {
  return {q.view,     k.view,   v.view,   out.view, {lse.data(), lse.rows(), lse.cols(), lse.cols(), 1},
          d_out.view, d_q.view, d_k.view, d_v.view, options};
}

/// The largest difference of two tensors relative to `size`, NaN as 1e30.
template <class S>
double difference(const tensor<S>& found, const tensor<double>& wanted, double size) {
  double apart = 0, norm = 0;
  for (index_t t = 0; t < found.view.tokens; ++t)
    for (index_t h = 0; h < found.view.heads; ++h)
      for (index_t c = 0; c < found.view.head_dim; ++c) {
        const auto at = static_cast<std::size_t>(c);
        const double w = wanted.view(t, h)[at],
                     f = static_cast<double>(static_cast<float>(found.view(t, h)[at]));
        apart += (f - w) * (f - w), norm += w * w;
      }
  const double error = std::sqrt(apart) / (std::sqrt(norm) + size + 1e-30);
  return std::isfinite(error) ? error : 1e30;
}

/// Runs one case on every target; false where it is too large for a reference in plain loops.
template <class S>
bool run(const sweep::sweep_case& c, double& worst) {
  if (c.queries * c.keys * (c.head_dim + c.value_dim) * c.heads > 1'200'000) return false;
  posenc::attention_options options = c.settled();
  options.keys_are_rotated = c.keys_are_rotated;
  const auto valid_q = options.valid_queries.value_or(posenc::row_range{0, c.queries});
  const auto valid_k = options.valid_keys.value_or(posenc::row_range{0, c.keys});
  const auto nan = static_cast<S>(std::numeric_limits<float>::quiet_NaN());
  const auto pattern = static_cast<S>(-1234.5f);
  tensor<S> q(c.queries, c.heads, c.head_dim, c.layout_q, nan),
      k(c.keys, c.kv_heads, c.head_dim, c.layout_k, nan), v(c.keys, c.kv_heads, c.value_dim, c.layout_v, nan),
      out(c.queries, c.heads, c.value_dim, 0, S(0)),
      d_out(c.queries, c.heads, c.value_dim, c.layout_out, nan);
  sweep::dice draw(c.seed + 77);
  q.fill(draw, valid_q.begin, valid_q.end, c.size), k.fill(draw, valid_k.begin, valid_k.end, c.size);
  v.fill(draw, valid_k.begin, valid_k.end, 1), d_out.fill(draw, valid_q.begin, valid_q.end, 1);
  const auto call = posenc::detail::resolve(options, q.view, k.view, v.view);
  double score_size = 0;
  sweep::with_encoding<float>(c, [&](const auto& encoding) {
    score_size = sweep::score_size(encoding, call, sweep::largest_norm(q.view, valid_q),
                                   sweep::largest_norm(k.view, valid_k));
    if (!c.keys_are_rotated) return;
    for (index_t j = valid_k.begin; j < valid_k.end; ++j)
      for (index_t h = 0; h < c.kv_heads; ++h)
        posenc::detail::rotate_key(encoding, k.view(j, h), call.key_positions[j]);
  });

  const tensor<double> q_wide = sweep::widened(q), k_wide = sweep::widened(k), v_wide = sweep::widened(v),
                       d_wide = sweep::widened(d_out);
  tensor<double> want_q(c.queries, c.heads, c.head_dim, 0, 0.0),
      want_k(c.keys, c.kv_heads, c.head_dim, 0, 0.0), want_v(c.keys, c.kv_heads, c.value_dim, 0, 0.0);
  posenc::attention_result<double> forward;
  posenc::parameter_gradients<double> want;
  sweep::with_encoding<double>(c, [&](const auto& encoding) {
    forward = posenc::reference::attention_with_log_sum_exp(q_wide.view, k_wide.view, v_wide.view, encoding,
                                                            options);
    for (index_t i = 0; i < c.queries; ++i)
      for (index_t h = 0; h < c.heads; ++h)
        for (index_t x = 0; x < c.value_dim; ++x)
          out.view(i, h)[static_cast<std::size_t>(x)] =
              static_cast<S>(static_cast<float>(forward.output(i, h * c.value_dim + x)));
    const tensor<double> out_wide = sweep::widened(out);
    want = posenc::reference::attention_backward_into(
        sequence_of(q_wide, k_wide, v_wide, out_wide, forward.log_sum_exp, d_wide, want_q, want_k, want_v,
                    options),
        encoding);
  });
  double largest_lse = 0;
  for (index_t n = 0; n < forward.log_sum_exp.size(); ++n)
    if (std::isfinite(forward.log_sum_exp.data()[n]))
      largest_lse = (std::max)(largest_lse, std::abs(forward.log_sum_exp.data()[n]));
  // A log-sum-exp is a float. Where a line puts it at millions, no weight can come back from it.
  if (largest_lse > 300) return true;
  const posenc::row_major_matrix<float> log_sum_exp = forward.log_sum_exp.cast<float>();

  const double eps = (12 + (c.encoding == 4 ? 16 : 1) * score_size + 2 * largest_lse) * 0x1p-24;
  const double narrow = sizeof(S) == 2 ? sweep::spacing<S> : 0;
  const double rows = std::sqrt(static_cast<double>((std::max)(c.queries, index_t{1}) * c.heads));
  const double d_size = sweep::largest_norm(d_wide.view, valid_q),
               v_size = sweep::largest_norm(v_wide.view, valid_k),
               q_size = sweep::largest_norm(q_wide.view, valid_q),
               k_size = sweep::largest_norm(k_wide.view, valid_k);
  double sigma = 0;
  for (index_t h = 0; h < c.heads; ++h) sigma = (std::max)(sigma, std::abs(call.scale_of(h)));
  const double d_score = d_size * (v_size + 1) * 0.5;
  sweep::on_every_target([&](const char* target) {
    tensor<S> d_q(c.queries, c.heads, c.head_dim, c.layout_v % 4, pattern),
        d_k(c.keys, c.kv_heads, c.head_dim, c.layout_q % 4, pattern),
        d_v(c.keys, c.kv_heads, c.value_dim, c.layout_k % 4, pattern);
    posenc::parameter_gradients<float> got;
    sweep::with_encoding<float>(c, [&](const auto& encoding) {
      got = posenc::fused::attention_backward_into(
          sequence_of(q, k, v, out, log_sum_exp, d_out, d_q, d_k, d_v, options), encoding);
    });
    const auto see = [&](const char* what, double error, double allowed) {
      worst = (std::max)(worst, error / allowed);
      EXPECT_LE(error, allowed) << target << ": " << what << " of " << c.text();
    };
    see("d_q", difference(d_q, want_q, d_score * sigma * (k_size + 1) * rows), eps + narrow);
    see("d_k", difference(d_k, want_k, d_score * sigma * q_size * rows), eps + narrow);
    see("d_v", difference(d_v, want_v, d_size * rows), eps + narrow);
    const auto compare = [&](const char* what, const auto& found, const auto& wanted, double size) {
      ASSERT_EQ(found.size(), wanted.size());
      double apart = 0, norm = 0;
      for (std::size_t n = 0; n < found.size(); ++n) {
        const double difference = static_cast<double>(found[n]) - wanted[n];
        apart += difference * difference, norm += wanted[n] * wanted[n];
      }
      see(what, std::sqrt(apart) / (std::sqrt(norm) + size + 1e-30), eps);
    };
    const double all = d_score * rows;
    compare("sinks", got.sinks, want.sinks, all);
    compare("head_scales", got.head_scales, want.head_scales, all * q_size * (k_size + 1));
    // What a parameter's gradient is multiplied by: a distance, a query, dO, or what a temperature scales.
    double reach = (std::max)({1.0, q_size, d_size / d_score, q_size * (k_size + 1) * sigma * 30});
    if (c.encoding == 7 || c.encoding == 8 || c.encoding == 17 || c.encoding == 19)
      reach = 2 * static_cast<double>(c.keys + c.queries) + 3000;
    compare("the encoding", got.encoding.values(), want.encoding.values(), all * reach);
    EXPECT_TRUE(d_q.gaps_hold(pattern) && d_k.gaps_hold(pattern) && d_v.gaps_hold(pattern))
        << target << ": wrote between rows of " << c.text();
  });
  return true;
}

template <class S>
void sweep_over(std::uint32_t seed, std::uint32_t count) {
  double worst = 0;
  for (std::uint32_t done = 0; done < count / sweep::thinned && !::testing::Test::HasFailure(); ++seed) {
    const auto encoding = static_cast<index_t>(seed % static_cast<std::uint32_t>(sweep::kind_count));
    done += run<S>(
        sweep::make_case(seed, encoding, sweep::kinds[encoding].where, sweep::kinds[encoding].rotary), worst);
  }
  ::testing::Test::RecordProperty("worst_share_of_bound", std::to_string(worst));
}

TEST(backward_sweep, float_equals_the_reference) { sweep_over<float>(0, cases()); }
TEST(backward_sweep, bfloat16_equals_the_reference) { sweep_over<Eigen::bfloat16>(100'000, cases() / 5); }
TEST(backward_sweep, half_equals_the_reference) { sweep_over<Eigen::half>(200'000, cases() / 5); }

}  // namespace sweep_test
