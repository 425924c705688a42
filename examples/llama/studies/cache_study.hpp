// SPDX-License-Identifier: MIT
/// \file
/// What a cache of unrotated keys buys: another scaling in mid-sequence, and a context shift, without touching a key.
#pragma once

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string>

#include <posenc/models/what_if.hpp>

#include "../console.hpp"
#include "../generation.hpp"
#include "../model.hpp"

namespace llama {

/// What the evaluation of one token gave.
struct next_token {
  matrix attention;  ///< a row per layer
  matrix logits;
  double seconds = 0;
};

[[nodiscard]] inline next_token evaluate_next(model& m, kv_cache& cache, token next) {
  const stopwatch time;
  matrix logits = m.evaluate({&next, 1}, cache, wanted_logits::last);
  return {m.last_attention(), std::move(logits), time.seconds()};
}

/// The last of the tokens after an evaluation of all, from an empty cache.
[[nodiscard]] inline next_token evaluate_afresh(model& m, std::span<const token> tokens) {
  const stopwatch time;
  kv_cache cache = m.empty_cache();
  (void)prefill(m, tokens.first(tokens.size() - 1), cache);
  next_token result = evaluate_next(m, cache, tokens.back());
  result.seconds = time.seconds();
  return result;
}

/// The attention output of layer `l`, counted from 0: largest difference over largest value.
[[nodiscard]] inline double attention_difference(const next_token& one, const next_token& other, index_t l) {
  return static_cast<double>((one.attention.row(l) - other.attention.row(l)).cwiseAbs().maxCoeff() /
                             other.attention.row(l).cwiseAbs().maxCoeff());
}

[[nodiscard]] inline double logit_difference(const next_token& one, const next_token& other) {
  return static_cast<double>((one.logits - other.logits).cwiseAbs().maxCoeff());
}

inline void print_difference(const char* what, const next_token& from_cache, const next_token& fresh) {
  const index_t layers = fresh.attention.rows();
  std::printf("  %s\n    time                        %.3f s instead of %.3f s\n", what, from_cache.seconds,
              fresh.seconds);
  std::printf("    attention output, relative ");
  for (const index_t l : {index_t{0}, index_t{1}, layers / 2, layers - 1})
    std::printf(" layer %td: %.2g%s", l + 1, attention_difference(from_cache, fresh, l),
                l + 1 < layers ? "," : "");
  std::printf("\n    logits (up to %.0f)          differ by up to %.2g; likeliest token %s\n",
              static_cast<double>(fresh.logits.cwiseAbs().maxCoeff()), logit_difference(from_cache, fresh),
              best_of(from_cache.logits) == best_of(fresh.logits) ? "the same" : "another");
}

/// Both demonstrations on `tokens`, the last of which is the one that is evaluated from the cache.
inline void print_cache_study(model& m, std::span<const token> tokens, std::size_t drop,
                              const std::string& scheme, std::optional<posenc::position> trained) {
  posenc::detail::require(tokens.size() > drop + 1, "cache: ", tokens.size(), " tokens, of which ", drop,
                          " are to be dropped");
  const std::span<const token> before = tokens.first(tokens.size() - 1);
  kv_cache cache = m.empty_cache();
  (void)prefill(m, before, cache);
  const kv_cache filled = cache;
  const next_token unchanged = evaluate_next(m, cache, tokens.back());

  std::printf(
      "%zu tokens in the cache, RoPE as in the file\n\nscaling in mid-sequence: %s from the next token on\n",
      before.size(), scheme.c_str());
  m.use_scaling(posenc::parse_scaling(scheme, trained));
  cache = filled;
  const next_token switched = evaluate_next(m, cache, tokens.back());
  print_difference("from the cache, against a fresh evaluation of all tokens with the new scaling", switched,
                   evaluate_afresh(m, tokens));
  m.use_scaling(std::nullopt);
  cache = filled;
  std::printf("    switched back               logits differ by %.2g from those without the switch\n",
              logit_difference(evaluate_next(m, cache, tokens.back()), unchanged));

  std::printf("\ncontext shift: the oldest %zu tokens go, the others move to the positions from 0 on\n",
              drop);
  cache = filled;
  cache.drop_oldest(static_cast<index_t>(drop));
  kv_cache shifted = cache;
  shifted.renumber();
  const next_token in_place = evaluate_next(m, cache, tokens.back());
  const next_token moved = evaluate_next(m, shifted, tokens.back());
  print_difference("from the cache, against a fresh evaluation of the tokens that are left", moved,
                   evaluate_afresh(m, tokens.subspan(drop)));
  std::printf("    dropped, not moved          logits differ by %.2g from those of the moved\n",
              logit_difference(in_place, moved));

  std::puts(R"(
Why: a key of the first layer is made of its own token alone and kept before the rotation. So the first layer's
answer is that of a fresh evaluation, whatever happened to scaling or positions since. A key of a deeper layer is
made of what its token had gathered from the tokens before it, when it was evaluated: under the old scaling, and
with the dropped tokens still in sight. No treatment of the cache can change that; only a fresh evaluation can. What
the cache itself is answerable for is exact: switching back leaves no trace, and moving all tokens alike changes
nothing but the rounding of the angles, since RoPE sees distances only.)");
}

}  // namespace llama
