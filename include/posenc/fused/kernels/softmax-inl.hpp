// SPDX-License-Identifier: MIT
/// \file
/// What happens to a panel of scores between the two products: content terms, softcap, bias, mask, and the
/// running softmax. A panel is [key][query], queries on the lanes, so all of it is vertical. Included once
/// per instruction set.
///
/// Scores carry a factor log2 e (base-2 exponentials). A masked score is −∞, its weight an exact zero; the
/// largest score so far begins at the lowest float, so that −∞ minus it stays −∞.
#if defined(POSENC_FUSED_SOFTMAX_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_SOFTMAX_INL_HPP
#undef POSENC_FUSED_SOFTMAX_INL_HPP
#else
#define POSENC_FUSED_SOFTMAX_INL_HPP
#endif

#include <algorithm>
#include <limits>

#include <posenc/detail/floating.hpp>
#include <posenc/fused/kernels/tile-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

inline constexpr float masked_score = -std::numeric_limits<float>::infinity();
inline constexpr float lowest_score = std::numeric_limits<float>::lowest();
inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double ln_2 = 0.69314718055994531;

/// Queries per panel.
HWY_INLINE index_t panel_width() { return 2 * lanes(); }

/// One panel of scores: keys [first_key, first_key + keys) against `queries` query rows of one head.
struct score_panel {
  const attention_problem& problem;
  float* scores;  ///< [keys][panel_width]
  index_t head;
  index_t first_query, queries;
  index_t first_key, keys;
  bool run;  ///< query positions and key positions are consecutive

  /// query − key for lane 0 and key row t.
  [[nodiscard]] HWY_INLINE position distance(index_t t) const {
    return problem.queries[first_query] - problem.keys[first_key + t];
  }

  /// Calls `with(score, query position, key position, query row)` for every element that is a query.
  template <class With>
  HWY_INLINE void for_each(With&& with) const {
    for (index_t t = 0; t < keys; ++t)
      for (index_t x = 0; x < queries; ++x)
        with(scores[t * panel_width() + x], problem.queries[first_query + x], problem.keys[first_key + t],
             first_query + x);
  }
};

inline HWY_NOINLINE void cap_scores(const score_panel& panel) {
  const float_vector cap = constant(static_cast<float>(panel.problem.softcap * log2_e));
  for (index_t n = 0; n < panel.keys * panel_width(); n += lanes())
    store(hn::Mul(tanh_of(load(panel.scores + n)), cap), panel.scores + n);
}

/// ln-free form of a bias by distance, one element: base-2 units.
HWY_INLINE float bias_at(const distance_bias& bias, index_t head, position distance) {
  if (bias.kind == distance_bias::form::linear)
    return static_cast<float>((distance >= 0 ? bias.behind : bias.ahead)[head] *
                              static_cast<double>(distance) * log2_e);
  const position inside = (std::clamp)(distance, bias.first, bias.last);
  return bias.values[head * bias.stride + (inside - bias.first)];
}

/// Consecutive queries see consecutive distances: one unaligned load per vector.
inline HWY_NOINLINE void add_distance_bias(const score_panel& panel) {
  const attention_problem& problem = panel.problem;
  const distance_bias& bias = problem.bias;
  const float_tag d;
  if (!panel.run) {
    panel.for_each([&](float& score, position query, position key, index_t) {
      score += bias_at(bias, panel.head, query - key);
    });
    return;
  }
  const index_t width = panel_width();
  for (index_t t = 0; t < panel.keys; ++t) {
    float* const row = panel.scores + t * width;
    const position first = panel.distance(t);
    if (bias.kind == distance_bias::form::linear) {
      const float behind = static_cast<float>(bias.behind[panel.head] * log2_e);
      const float ahead = static_cast<float>(bias.ahead[panel.head] * log2_e);
      const float_vector start = constant(static_cast<float>(first));
      for (index_t x = 0; x < width; x += lanes()) {
        const float_vector distance = hn::Add(start, hn::Iota(d, static_cast<float>(x)));
        const float_vector slope =
            first >= 0 ? constant(behind)
                       : hn::IfThenElse(hn::Ge(distance, hn::Zero(d)), constant(behind), constant(ahead));
        store(hn::MulAdd(slope, distance, load(row + x)), row + x);
      }
      continue;
    }
    const float* const values = bias.values + panel.head * bias.stride;
    if (first >= bias.first && first + width - 1 <= bias.last) {
      for (index_t x = 0; x < width; x += lanes())
        store(hn::Add(load(row + x), load(values + (first - bias.first) + x)), row + x);
    } else if (first >= bias.last || first + width - 1 <= bias.first) {
      const float_vector end = constant(values[first >= bias.last ? bias.last - bias.first : 0]);
      for (index_t x = 0; x < width; x += lanes()) store(hn::Add(load(row + x), end), row + x);
    } else {
      for (index_t x = 0; x < panel.queries; ++x) row[x] += bias_at(bias, panel.head, first + x);
    }
  }
}

inline HWY_NOINLINE void add_called_bias(const score_panel& panel) {
  const attention_problem& problem = panel.problem;
  panel.for_each([&](float& score, position query, position key, index_t) {
    if (!problem.sees(query, key)) return;
    const float bias = problem.callbacks.bias(problem.callbacks.encoding, panel.head, query, key);
    score = is_minus_infinity(bias) ? masked_score : score + bias * static_cast<float>(log2_e);
  });
}

/// Scores of keys that are not seen become masked_score.
inline HWY_NOINLINE void mask_scores(const score_panel& panel) {
  const attention_problem& problem = panel.problem;
  const float_tag d;
  if (!panel.run) {
    panel.for_each([&](float& score, position query, position key, index_t) {
      if (!problem.sees(query, key)) score = masked_score;
    });
    return;
  }
  const index_t width = panel_width();
  const auto clamped = [width](position lane) {
    return static_cast<float>((std::clamp)(lane, position{-1}, static_cast<position>(width)));
  };
  for (index_t t = 0; t < panel.keys; ++t) {
    const position first = attention_problem::within_limits(panel.distance(t));  // lane x is at first + x
    const float_vector lowest =
        constant(problem.farthest_ahead == attention_problem::no_limit ? -1.0f : clamped(-problem.farthest_ahead - first));
    const float_vector highest =
        constant(problem.farthest_behind == attention_problem::no_limit ? static_cast<float>(width)
                                                           : clamped(problem.farthest_behind - first));
    float* const row = panel.scores + t * width;
    for (index_t x = 0; x < width; x += lanes()) {
      const float_vector lane = hn::Iota(d, static_cast<float>(x));
      const auto seen = hn::And(hn::Ge(lane, lowest), hn::Le(lane, highest));
      store(hn::IfThenElse(seen, load(row + x), constant(masked_score)), row + x);
    }
  }
}

/// Turns scores into weights 2^(s − m) with m the largest score of a query so far; the state of the queries
/// follows. `keep` becomes what everything summed before has to be multiplied by.
inline HWY_NOINLINE void softmax_panel(float* scores, index_t keys, float* largest, float* total,
                                       float* keep) {
  const float_tag d;
  const index_t width = panel_width(), half = lanes();
  const float_vector old0 = load(largest), old1 = load(largest + half);
  float_vector m0 = old0, m1 = old1;
  for (index_t t = 0; t < keys; ++t) {
    // In this order a NaN leaves the largest as it was on x86; its weight is NaN either way.
    m0 = hn::Max(load(scores + t * width), m0);
    m1 = hn::Max(load(scores + t * width + half), m1);
  }
  float_vector sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (index_t t = 0; t < keys; ++t) {
    float* const row = scores + t * width;
    const float_vector w0 = exp2_of(hn::Sub(load(row), m0)), w1 = exp2_of(hn::Sub(load(row + half), m1));
    store(w0, row), store(w1, row + half);
    sum0 = hn::Add(sum0, w0), sum1 = hn::Add(sum1, w1);
  }
  const float_vector keep0 = exp2_of(hn::Sub(old0, m0)), keep1 = exp2_of(hn::Sub(old1, m1));
  store(keep0, keep), store(keep1, keep + half);
  store(hn::MulAdd(load(total), keep0, sum0), total);
  store(hn::MulAdd(load(total + half), keep1, sum1), total + half);
  store(m0, largest), store(m1, largest + half);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
