// SPDX-License-Identifier: MIT
/// \file
/// Text out of a model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <posenc/errors.hpp>

#include "console.hpp"
#include "model.hpp"
#include "tokenizer.hpp"

namespace llama {

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

/// What a command did in how much time, on standard error.
inline void report(const model& m, const char* what, std::size_t tokens, double seconds) {
  std::fprintf(
      stderr, "%s: %zu tokens in %.2f s, %.1f tokens/s; attention so far %.2f s; peak memory %.0f MiB\n",
      what, tokens, seconds, static_cast<double>(tokens) / seconds, m.attention_seconds(), peak_mebibytes());
}

/// Writes the likeliest continuation of a prompt, up to the token that ends a text.
/// \param count tokens at most
/// \param ignores_end goes on after such a token
inline void generate(model& m, const tokenizer& words, std::span<const token> tokens, int count,
                     bool ignores_end) {
  posenc::detail::require(!tokens.empty(), "generate: the prompt is empty");
  kv_cache cache = m.empty_cache();
  const stopwatch prefill_time;
  matrix logits = prefill(m, tokens, cache);
  report(m, "prefill", tokens.size(), prefill_time.seconds());
  const stopwatch decode_time;
  std::size_t generated = 0;
  for (; generated < static_cast<std::size_t>(count); ++generated) {
    const token next = best_of(logits);
    if (!ignores_end && words.is_end(next)) break;
    const std::string text = words.decode(next);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    logits = m.evaluate({&next, 1}, cache, wanted_logits::last);
  }
  std::puts("");
  std::fflush(stdout);
  report(m, "decode", generated, decode_time.seconds());
}

}  // namespace llama
