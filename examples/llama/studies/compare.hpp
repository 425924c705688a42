// SPDX-License-Identifier: MIT
/// \file
/// Does the fused path write what the reference writes, and a cache of another kind what the plain one does?
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <vector>

#include "../console.hpp"
#include "../generation.hpp"
#include "../model.hpp"

namespace llama {

/// Continues a prompt greedily along both paths, each on its own tokens and cache, and compares all logits at every
/// step.
/// \returns whether the tokens are the same and no logit differs by more than 1e-4
[[nodiscard]] inline bool compare_paths(model& m, std::span<const token> prompt, int count) {
  struct side {
    attention_path path;
    kv_cache cache;
    matrix logits{};
  };
  constexpr float most = 1e-4F;
  std::array<side, 2> sides{
      {{attention_path::reference, m.empty_cache()}, {attention_path::fused, m.empty_cache()}}};
  for (side& s : sides) {
    m.use_attention(s.path);
    s.logits = prefill(m, prompt, s.cache);
  }
  progress generated("generating");
  float largest = 0, largest_logit = 0;
  for (int step = 0;; ++step) {
    largest = (std::max)(largest, (sides[0].logits - sides[1].logits).cwiseAbs().maxCoeff());
    largest_logit = (std::max)(largest_logit, sides[0].logits.cwiseAbs().maxCoeff());
    const std::array<token, 2> next{best_of(sides[0].logits), best_of(sides[1].logits)};
    const bool is_same = next[0] == next[1];
    if (step == count || !is_same) {
      std::printf(
          "reference and fused: the same %d tokens%s; largest difference of a logit %.1e (logits up to "
          "%.0f)\n",
          step, is_same ? "" : ", then another", static_cast<double>(largest),
          static_cast<double>(largest_logit));
      return is_same && largest <= most;
    }
    for (std::size_t n = 0; n < 2; ++n) {
      m.use_attention(sides[n].path);
      sides[n].logits = m.evaluate({&next[n], 1}, sides[n].cache, wanted_logits::last);
    }
    generated(static_cast<double>(step + 1) / count);
  }
}

/// Continues a prompt greedily over the plain cache, and evaluates the same tokens over each other kind that the heads
/// fit.
/// \returns whether the paged cache gave the same logits to the bit; q8_0 may differ, which is told
[[nodiscard]] inline bool compare_caches(model& m, std::span<const token> prompt, int count) {
  struct other {
    cache_kind kind;
    kv_cache cache;
    matrix logits{};
    int same = 0;
    float largest = 0;
  };
  m.use_cache(cache_kind::plain);
  kv_cache cache = m.empty_cache();
  matrix logits = prefill(m, prompt, cache);
  std::vector<other> others;
  for (const cache_kind kind : kinds_that_fit(m)) {
    if (kind == cache_kind::plain) continue;
    m.use_cache(kind);
    others.push_back({kind, m.empty_cache()});
    others.back().logits = prefill(m, prompt, others.back().cache);
  }
  for (int step = 0;; ++step) {
    const token next = best_of(logits);
    for (other& o : others) {
      o.same += best_of(o.logits) == next ? 1 : 0;
      o.largest = (std::max)(o.largest, (o.logits - logits).cwiseAbs().maxCoeff());
    }
    if (step + 1 >= count) break;
    logits = m.evaluate({&next, 1}, cache, wanted_logits::last);
    for (other& o : others) o.logits = m.evaluate({&next, 1}, o.cache, wanted_logits::last);
  }
  m.use_cache(cache_kind::plain);
  bool is_same = true;
  for (const other& o : others) {
    std::printf(
        "plain and %s cache: the same best token %d times of %d; largest difference of a logit %.1e\n",
        name_of(o.kind), o.same, count, static_cast<double>(o.largest));
    is_same = is_same && (o.kind != cache_kind::paged || o.largest == 0);
  }
  return is_same;
}

}  // namespace llama
