// SPDX-License-Identifier: MIT
/// \file
/// What all commands do with a model: run long texts in pieces, score them, and say how it goes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

#include "model.hpp"

namespace llama {

/// Says "<what> 42 %" on standard error, on one line that it goes on writing over.
class progress {
 public:
  explicit progress(const char* what) noexcept : what_(what) {}
  void operator()(double share) {
    const int percent = static_cast<int>(100 * share + 1e-6);
    if (percent == shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\r%s %3d %%%s", what_, percent, percent >= 100 ? "\n" : "");
  }

 private:
  const char* what_;
  int shown_ = -1;
};

class stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The most memory this process has held, in MiB; 0 where the system does not say.
[[nodiscard]] inline double peak_mebibytes() {
#if defined(__unix__) || defined(__APPLE__)
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return static_cast<double>(usage.ru_maxrss) / 1048576;
#else
  return static_cast<double>(usage.ru_maxrss) / 1024;
#endif
#else
  return 0;
#endif
}

/// Runs tokens in pieces and hands on the logits of each: use(first row's index among the tokens, logits).
template <class Use>
void run_in_pieces(model& m, std::span<const token> tokens, kv_cache& cache, wanted_logits wanted,
                   const Use& use) {
  constexpr std::size_t piece = 256;
  cache.reserve(static_cast<index_t>(tokens.size()));
  progress evaluated("evaluating");
  for (std::size_t n = 0; n < tokens.size(); n += piece) {
    const std::size_t count = (std::min)(piece, tokens.size() - n);
    use(n, m.evaluate(tokens.subspan(n, count), cache, wanted));
    evaluated(static_cast<double>(n + count) / static_cast<double>(tokens.size()));
  }
}

/// The logits of the token after the last one.
[[nodiscard]] inline matrix prefill(model& m, std::span<const token> tokens, kv_cache& cache) {
  matrix last;
  run_in_pieces(m, tokens, cache, wanted_logits::last,
                [&](std::size_t, const matrix& logits) { last = logits; });
  return last;
}

[[nodiscard]] inline token best_of(const matrix& logits) {
  Eigen::Index best = 0;
  logits.row(logits.rows() - 1).maxCoeff(&best);
  return static_cast<token>(best);
}

/// −ln p of each token but the first, given all before it.
[[nodiscard]] inline std::vector<double> surprises(model& m, std::span<const token> tokens) {
  std::vector<double> result;
  kv_cache cache = m.empty_cache();
  run_in_pieces(m, tokens, cache, wanted_logits::all, [&](std::size_t first, const matrix& logits) {
    for (index_t row = 0; row < logits.rows(); ++row) {
      const std::size_t next = first + static_cast<std::size_t>(row) + 1;
      if (next == tokens.size()) break;
      const double largest = static_cast<double>(logits.row(row).maxCoeff());
      const double total = (logits.row(row).cast<double>().array() - largest).exp().sum();
      result.push_back(largest + std::log(total) - static_cast<double>(logits(row, tokens[next])));
    }
  });
  return result;
}

}  // namespace llama
