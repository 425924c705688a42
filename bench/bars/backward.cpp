// SPDX-License-Identifier: MIT
/// \file
/// Bars of the gradient (fused/backward.hpp). Useful operations are two and a half times the forward's: five products of
/// the size of the forward's two, of which causal masks leave half.
#include <chrono>
#include <utility>
#include <vector>

#include "measure.hpp"
#include "peak.hpp"

namespace bars {
namespace {

/// A call with a gradient of its output, and where its own gradients go.
struct gradient_call : call<float> {
  matrix<float> log_sum_exp = matrix<float>(queries, heads),
                d_out = random<float>(queries, heads*head_dim, 4);
  matrix<float> d_q = matrix<float>(queries, heads*head_dim), d_k = matrix<float>(keys, kv_heads*head_dim),
                d_v = matrix<float>(keys, kv_heads*head_dim);

  gradient_call(index_t tokens, index_t head_count, index_t channels)
      : call<float>{.queries = tokens,
                    .keys = tokens,
                    .heads = head_count,
                    .kv_heads = head_count,
                    .head_dim = channels} {}

  template <class E>
  void forward(const E& encoding) {
    posenc::fused::attention_into(posenc::as_heads(q, heads), posenc::as_heads(k, kv_heads),
                                  posenc::as_heads(v, kv_heads), encoding, options(),
                                  posenc::as_heads(out, heads),
                                  {log_sum_exp.data(), queries, heads, heads, 1}, {.memory = &memory});
  }
  template <class E>
  void backward(const E& encoding, const posenc::fused::executor_ref& by = {}) {
    const posenc::backward_sequence<float> sequence{posenc::as_heads(std::as_const(q), heads),
                                                    posenc::as_heads(std::as_const(k), kv_heads),
                                                    posenc::as_heads(std::as_const(v), kv_heads),
                                                    posenc::as_heads(std::as_const(out), heads),
                                                    {log_sum_exp.data(), queries, heads, heads, 1},
                                                    posenc::as_heads(std::as_const(d_out), heads),
                                                    posenc::as_heads(d_q, heads),
                                                    posenc::as_heads(d_k, kv_heads),
                                                    posenc::as_heads(d_v, kv_heads),
                                                    options()};
    posenc::fused::attention_backward_into(sequence, encoding, {.executor = by, .memory = &memory});
  }
  /// Ends the program unless forward and backward give the gradients of the reference in double.
  template <class E>
  void check_gradients(const E& encoding, const char* name) {
    forward(encoding), backward(encoding);
    const auto wide = [](const matrix<float>& m) { return m.cast<double>().eval(); };
    const matrix<double> wide_q = wide(q), wide_k = wide(k), wide_v = wide(v);
    const auto exact =
        posenc::reference::attention_with_log_sum_exp(wide_q, wide_k, wide_v, encoding, options());
    const auto expected = posenc::reference::attention_backward(wide_q, wide_k, wide_v, exact, wide(d_out),
                                                                encoding, options());
    const auto error = [](const matrix<float>& found, const matrix<double>& wanted) {
      return (found.cast<double>() - wanted).norm() / wanted.norm();
    };
    const double worst = (std::max)({error(d_q, expected.q), error(d_k, expected.k), error(d_v, expected.v)});
    if (!(worst <= 1e-5)) {
      std::printf("%s: wrong by %g\n", name, worst);
      std::exit(2);
    }
  }
  [[nodiscard]] double operations() const {
    return 2.5 * 4 * static_cast<double>(heads * head_dim) * static_cast<double>(queries) *
           static_cast<double>(queries + 1) / 2;
  }
};

void share_of_peak(const char* name, gradient_call& c, double aim) {
  const auto rope = rope_of(c.head_dim);
  c.forward(rope);
  c.backward(rope);
  std::vector<double> shares;
  for (int n = 0; n < 9; ++n) {
    const double peak = posenc::bench::fma_peak();
    shares.push_back(c.operations() / seconds_of([&] { c.backward(rope); }, 1) / peak);
  }
  report(name, quartiles_of(std::move(shares)), "of peak", aim, false);
}

/// How many times as fast two threads are, by the wall clock: on a busy machine it says nothing.
void two_threads(const char* name, gradient_call& c, double aim) {
  const auto rope = rope_of(c.head_dim);
  const posenc::fused::thread_pool pool(2);
  const auto seconds = [&](const posenc::fused::executor_ref& by) {
    const auto start = std::chrono::steady_clock::now();
    c.backward(rope, by);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> ratios;
  for (int n = 0; n < 9; ++n) {
    const double one = seconds({}), two = seconds(pool);
    ratios.push_back(one / two);
  }
  report(name, quartiles_of(std::move(ratios)), "x one", aim, false);
}

}  // namespace

void backward() {
  if (!wanted("backward")) return;
  gradient_call small(200, 2, 64);  // the reference takes minutes for the shapes that are timed
  small.check_gradients(rope_of(64), "backward, rope");
  small.check_gradients(t5_of(2), "backward, t5");
  small.check_gradients(posenc::no_encoding(), "backward, none");
  gradient_call wide(2048, 32, 128), narrow(1024, 12, 64);
  share_of_peak("backward-32x128-2048", wide, 0.6);
  share_of_peak("backward-12x64-1024", narrow, 0.5);
  two_threads("backward-two-threads", wide, 1.8);
  const auto rope = rope_of(64);
  const posenc::no_encoding none;
  const auto t5 = t5_of(12);
  report("backward-rope", ratio_of([&] { narrow.backward(rope); }, [&] { narrow.backward(none); }, 15),
         "x none", 1.05);
  report("backward-t5", ratio_of([&] { narrow.backward(t5); }, [&] { narrow.backward(none); }, 15), "x none",
         1.15);
}

}  // namespace bars
