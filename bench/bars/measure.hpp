// SPDX-License-Identifier: MIT
/// \file
/// How bars are measured and printed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

namespace bars {
using posenc::index_t;
using posenc::position;

template <class S>
using matrix = posenc::row_major_matrix<S>;

inline std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line))
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

struct quartiles {
  double low, median, high;
};
inline quartiles quartiles_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 4], values[values.size() / 2], values[values.size() * 3 / 4]};
}

using action = std::function<void()>;

/// Processor time: a machine that is busy with something else lengthens the wall clock's.
inline double seconds_of(const action& run, int times) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  for (int n = 0; n < times; ++n) run();
  return now() - start;
}

/// Time of a over time of b, by turns. A turn lasts about 20 ms, so that the machine is the same for both.
inline quartiles ratio_of(const action& a, const action& b, int pairs = 31) {
  a(), b();
  const double once = (std::max)(seconds_of(b, 1), 1e-7);
  const int times = static_cast<int>(std::clamp(0.02 / once, 1.0, 20'000.0));
  std::vector<double> ratios;
  for (int n = 0; n < pairs; ++n) {
    const bool a_first = n % 2 == 0;
    const double first = seconds_of(a_first ? a : b, times), second = seconds_of(a_first ? b : a, times);
    ratios.push_back(a_first ? first / second : second / first);
  }
  return quartiles_of(std::move(ratios));
}

inline int missed = 0;
inline std::string only;  // a part of the names that are wanted

inline bool wanted(const char* name) { return only.empty() || std::strstr(name, only.c_str()) != nullptr; }

inline void report(const char* name, const quartiles& value, const char* unit, double aim,
                   bool at_most = true) {
  const bool met = at_most ? value.median <= aim : value.median >= aim;
  if (!met) ++missed;
  std::printf("%-46s %8.3f [%.3f %.3f] %-9s %s %.3g  %s\n", name, value.median, value.low, value.high, unit,
              at_most ? "<=" : ">=", aim, met ? "met" : "missed");
  std::fflush(stdout);
}

template <class S>
matrix<S> random(index_t rows, index_t columns, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  return matrix<float>::NullaryExpr(rows, columns, [&] { return normal(bits); }).template cast<S>();
}

/// The tensors of a call and a way to run it into them.
template <class S>
struct call {
  index_t queries, keys, heads, kv_heads, head_dim;
  matrix<S> q = random<S>(queries, heads*head_dim, 1), k = random<S>(keys, kv_heads*head_dim, 2),
            v = random<S>(keys, kv_heads*head_dim, 3);
  matrix<S> out = matrix<S>(queries, heads* head_dim);
  posenc::fused::workspace memory{};

  [[nodiscard]] posenc::attention_options options() const {
    return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .mask = posenc::causal};
  }
  template <class E>
  void run(const E& encoding, const posenc::attention_options& how, bool own_scratch = false) {
    posenc::fused::attention_into(posenc::as_heads(q, heads), posenc::as_heads(k, kv_heads),
                                  posenc::as_heads(v, kv_heads), encoding, how, posenc::as_heads(out, heads),
                                  {}, {.memory = own_scratch ? nullptr : &memory});
  }
  /// Ends the program unless the last rows of `out` are those of the reference in double.
  template <class E>
  void check(const E& encoding, const posenc::attention_options& how, const char* name) {
    run(encoding, how);
    const index_t rows = (std::min)(queries, index_t{2});
    if (!how.visible.empty() && rows < queries) return;  // masks by row are checked by the tests
    posenc::attention_options last = how;
    const position first = keys - rows;
    last.query_positions = posenc::positions::from(first);
    const auto expected = posenc::reference::attention(q.bottomRows(rows).template cast<double>().eval(),
                                                       k.template cast<double>().eval(),
                                                       v.template cast<double>().eval(), encoding, last);
    const double error = (out.bottomRows(rows).template cast<double>() - expected).norm() / expected.norm();
    if (error > (sizeof(S) == 4 ? 1e-5 : 2e-2)) {
      std::printf("%s: wrong by %g\n", name, error);
      std::exit(2);
    }
  }
};

inline posenc::rope<float> rope_of(index_t head_dim) {
  return posenc::rope<float>{
      {.head_dim = head_dim, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
}
inline posenc::t5_bias<float> t5_of(index_t heads) {
  return {{.buckets = 32, .max_distance = 128, .bidirectional = false},
          posenc::bias_table<float>::heads_by_rows(random<float>(heads, 32, 5))};
}

/// Caches as engines keep them (caches.cpp).
void caches();
/// The gradient (backward.cpp).
void backward();
/// Matrix units, and products of floats beside them (units.cpp).
void matrix_units();

}  // namespace bars
