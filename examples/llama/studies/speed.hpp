// SPDX-License-Identifier: MIT
/// \file
/// Tokens per second, and how much of the time is attention's.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include "../console.hpp"
#include "../generation.hpp"
#include "../model.hpp"

namespace llama {

/// Prefill of each context length, then decode of `count` tokens behind it, over caches of each kind.
inline void print_speed(model& m, std::span<const std::size_t> contexts, int count,
                        std::span<const cache_kind> kinds) {
  std::printf("%8s  %5s  %22s  %22s\n%8s  %5s  %12s %9s  %12s %9s\n", "", "", "prefill", "decode", "context",
              "cache", "tokens/s", "attention", "tokens/s", "attention");
  const auto speed_of = [&](std::size_t context, cache_kind kind) {
    m.use_cache(kind);
    // Which tokens they are does not matter to the time.
    std::vector<token> tokens(context + static_cast<std::size_t>(count));
    const std::size_t vocabulary = static_cast<std::size_t>(m.parameters().embedding.rows());
    for (std::size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<token>(n * 7919 % vocabulary);
    kv_cache cache = m.empty_cache();

    const auto measure = [&m](std::size_t evaluated, const auto& work) {
      const double attention_before = m.attention_seconds();
      const stopwatch time;
      work();
      const double seconds = time.seconds();
      std::printf("  %12.1f %7.1f %%", static_cast<double>(evaluated) / seconds,
                  100 * (m.attention_seconds() - attention_before) / seconds);
      std::fflush(stdout);
    };
    std::printf("%8zu  %5s", context, name_of(kind));
    measure(context, [&] { (void)prefill(m, std::span(tokens).first(context), cache); });
    measure(tokens.size() - context, [&] {
      for (std::size_t n = context; n < tokens.size(); ++n)
        (void)m.evaluate({&tokens[n], 1}, cache, wanted_logits::last);
    });
    std::puts("");
  };
  for (const std::size_t context : contexts)
    for (const cache_kind kind : kinds) speed_of(context, kind);
  std::printf("peak memory %.0f MiB\n", peak_mebibytes());
}

}  // namespace llama
