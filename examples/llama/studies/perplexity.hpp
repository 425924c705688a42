// SPDX-License-Identifier: MIT
/// \file
/// How well a model predicts a text.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <posenc/errors.hpp>

#include "../console.hpp"
#include "../generation.hpp"
#include "../model.hpp"

namespace llama {

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

/// Over windows of `context` tokens, half a window apart; each token counts once, in the first window that has it.
inline void perplexity(model& m, std::span<const token> tokens, std::size_t context) {
  posenc::detail::require(tokens.size() >= 2 && context >= 2, "perplexity: ", tokens.size(),
                          " tokens in windows of ", context, "; two at least");
  const stopwatch time;
  double sum = 0;
  std::size_t scored = 1,
              evaluated = 0;  // tokens before `scored` have been counted; nothing predicts the first
  for (std::size_t begin = 0; scored < tokens.size(); begin += context / 2) {
    const std::size_t end = (std::min)(begin + context, tokens.size());
    const std::vector<double> nats = surprises(m, tokens.subspan(begin, end - begin));
    evaluated += end - begin;
    for (; scored < end; ++scored) sum += nats[scored - begin - 1];
    std::fprintf(stderr, "tokens 0 to %zu: perplexity %.4f\n", end,
                 std::exp(sum / static_cast<double>(scored - 1)));
  }
  report(m, "evaluated", evaluated, time.seconds());
  std::printf("perplexity %.4f over %zu tokens, windows of %zu\n",
              std::exp(sum / static_cast<double>(scored - 1)), scored - 1, context);
}

/// All logits of all tokens, float32, row by row.
inline void write_logits(model& m, std::span<const token> tokens, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  kv_cache cache = m.empty_cache();
  run_in_pieces(m, tokens, cache, wanted_logits::all, [&](std::size_t, const matrix& logits) {
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(sizeof(float)) * logits.size());
  });
  if (!out.flush()) posenc::detail::fail<posenc::format_error>(path, " cannot be written");
}

}  // namespace llama
