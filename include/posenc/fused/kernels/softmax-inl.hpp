// SPDX-License-Identifier: MIT
/// \file
/// What happens to a panel of scores between the two products: content terms, softcap, bias, mask, and the
/// running softmax. A panel is [key][query], queries on the lanes, so all of it is vertical. Included once
/// per instruction set.
///
/// Scores carry score_unit. A masked score is −∞, its weight an exact zero; the largest score so far begins at the
/// lowest float, so that −∞ minus it stays −∞.
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
#include <posenc/fused/kernels/visible-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

inline constexpr float masked_score = -std::numeric_limits<float>::infinity();
inline constexpr float lowest_score = std::numeric_limits<float>::lowest();
/// Queries per panel.
HWY_INLINE index_t panel_width() { return 2 * lanes(); }

/// One panel of scores: keys [first_key, first_key + keys) against `queries` query rows of one head; or, where
/// `stacked` > 0, against so many columns of heads that have `stacked` query rows each, from column first_query on.
struct score_panel {
  const attention_problem& problem;
  float* scores;  ///< [keys][panel_width]
  index_t head;
  index_t first_query, queries;
  index_t first_key, keys;
  bool run;       ///< query positions and key positions are consecutive, and lane 0 is a query
  bool keys_run;  ///< key positions are consecutive, and lane 0 is a query
  const row_bounds* seen = nullptr;   ///< of each query in this run of keys; null where keys are scattered
  const position* nearest = nullptr;  ///< of each query: nearest_distance, where the bias is linear
  index_t stacked = 0;

  /// Head and query row of lane x.
  [[nodiscard]] HWY_INLINE index_t head_of(index_t x) const {
    return stacked > 0 ? head + (first_query + x) / stacked : head;
  }
  [[nodiscard]] HWY_INLINE index_t query_of(index_t x) const {
    return stacked > 0 ? (first_query + x) % stacked : first_query + x;
  }

  /// query − key for lane 0 and key row t.
  [[nodiscard]] HWY_INLINE position distance(index_t t) const {
    return problem.queries[first_query] - problem.keys[first_key + t];
  }

  /// Calls `with(score, query row, key row, x)` for every element that is a query, x its place in the panel.
  template <class With>
  HWY_INLINE void for_each(With&& with) const {
    for (index_t t = 0; t < keys; ++t)
      for (index_t x = 0; x < queries; ++x)
        with(scores[t * panel_width() + x], query_of(x), first_key + t, x);
  }
};

inline HWY_NOINLINE void cap_scores(const attention_problem& problem, float* scores, index_t count) {
  const float_vector cap = constant(static_cast<float>(problem.softcap * score_unit));
  for (index_t n = 0; n < count; n += lanes()) store(hn::Mul(tanh_of(load(scores + n)), cap), scores + n);
}

/// 1 − tanh² of capped scores: what the cap multiplies a gradient by.
inline HWY_NOINLINE void slopes_of_cap(const attention_problem& problem, const float* scores, index_t count,
                                       float* slopes) {
  const float_vector one = constant(1.0f);
  const float_vector inverse = constant(static_cast<float>(1 / (problem.softcap * score_unit)));
  for (index_t n = 0; n < count; n += lanes()) {
    const float_vector t = hn::Mul(load(scores + n), inverse);
    store(hn::NegMulAdd(t, t, one), slopes + n);
  }
}

/// A bias by distance, one element, in units of scores. A linear one is relative to that of the nearest key.
HWY_INLINE float bias_at(const distance_bias& bias, index_t head, position distance, position nearest) {
  if (bias.kind == distance_bias::form::linear) {
    const bool behind = nearest > 0 || (nearest == 0 && distance >= 0);
    return static_cast<float>((behind ? bias.behind : bias.ahead)[head] *
                              static_cast<double>(distance - nearest) * score_unit);
  }
  const position inside = (std::clamp)(distance, bias.first, bias.last);
  return bias.values[head * bias.stride + (inside - bias.first)];
}

/// Adds a linear bias where keys are a run: query x stands start[x] from the first key, less its nearest distance.
inline HWY_NOINLINE void add_linear_bias(const score_panel& panel) {
  const distance_bias& bias = panel.problem.bias;
  const index_t width = panel_width();
  HWY_ALIGN float start[2 * vector_slack] = {}, later[2 * vector_slack] = {}, earlier[2 * vector_slack] = {};
  bool one_sided = true;
  for (index_t x = 0; x < panel.queries; ++x) {
    const position nearest = panel.nearest[x];
    const position distance = panel.problem.queries[panel.query_of(x)] - panel.problem.keys[panel.first_key];
    const auto behind = static_cast<float>(bias.behind[panel.head_of(x)] * score_unit),
               ahead = static_cast<float>(bias.ahead[panel.head_of(x)] * score_unit);
    start[x] = static_cast<float>(distance - nearest);
    // To which line an element belongs: to one for all where the nearest key lies to one side.
    later[x] = nearest < 0 ? ahead : behind;
    earlier[x] = nearest > 0 ? behind : ahead;
    one_sided = one_sided && (nearest != 0 || distance >= panel.keys - 1);
  }
  const float_tag d;
  for (index_t x = 0; x < width; x += lanes()) {
    const float_vector from = load(start + x), slope = load(later + x), other = load(earlier + x);
    for (index_t t = 0; t < panel.keys; ++t) {
      float* const score = panel.scores + t * width + x;
      const float_vector distance = hn::Sub(from, constant(static_cast<float>(t)));
      const float_vector line =
          one_sided ? slope : hn::IfThenElse(hn::Ge(distance, hn::Zero(d)), slope, other);
      store(hn::MulAdd(line, distance, load(score)), score);
    }
  }
}

/// Consecutive queries see consecutive distances: one unaligned load per vector.
inline HWY_NOINLINE void add_distance_bias(const score_panel& panel) {
  const distance_bias& bias = panel.problem.bias;
  const bool is_linear = bias.kind == distance_bias::form::linear;
  if (is_linear && panel.keys_run) return add_linear_bias(panel);
  if (!panel.run) {
    panel.for_each([&](float& score, index_t query, index_t key, index_t x) {
      score += bias_at(bias, panel.head_of(x), panel.problem.queries[query] - panel.problem.keys[key],
                       is_linear ? panel.nearest[x] : 0);
    });
    return;
  }
  const index_t width = panel_width();
  const float* const values = bias.values + panel.head * bias.stride;
  for (index_t t = 0; t < panel.keys; ++t) {
    float* const row = panel.scores + t * width;
    const position first = panel.distance(t);
    if (first >= bias.first && first + width - 1 <= bias.last) {
      for (index_t x = 0; x < width; x += lanes())
        store(hn::Add(load(row + x), load(values + (first - bias.first) + x)), row + x);
    } else if (first >= bias.last || first + width - 1 <= bias.first) {
      const float_vector end = constant(values[first >= bias.last ? bias.last - bias.first : 0]);
      for (index_t x = 0; x < width; x += lanes()) store(hn::Add(load(row + x), end), row + x);
    } else {
      for (index_t x = 0; x < panel.queries; ++x) row[x] += bias_at(bias, panel.head, first + x, 0);
    }
  }
}

/// Scores of keys that are not seen become masked_score.
inline HWY_NOINLINE void mask_scores(const score_panel& panel) {
  if (!panel.keys_run || !panel.seen) {
    panel.for_each([&](float& score, index_t query, index_t key, index_t x) {
      const bool sees = panel.seen ? holds(panel.seen[x], key) : panel.problem.sees(query, key);
      if (!sees) score = masked_score;
    });
    return;
  }
  // The two ranges of every query, as rows of the panel.
  HWY_ALIGN float base_begin[2 * vector_slack] = {}, base_end[2 * vector_slack] = {},
                                 open_begin[2 * vector_slack] = {}, open_end[2 * vector_slack] = {};
  const auto row_of = [&](index_t key) {
    return static_cast<float>((std::clamp)(key - panel.first_key, index_t{0}, panel.keys));
  };
  bool has_open = false;
  for (index_t x = 0; x < panel.queries; ++x) {
    const row_bounds& seen = panel.seen[x];
    base_begin[x] = row_of(seen.base.begin), base_end[x] = row_of(seen.base.end);
    open_begin[x] = row_of(seen.open.begin), open_end[x] = row_of(seen.open.end);
    has_open = has_open || open_begin[x] < open_end[x];
  }
  const index_t width = panel_width();
  for (index_t x = 0; x < width; x += lanes()) {
    const float_vector first = load(base_begin + x), end = load(base_end + x);
    for (index_t t = 0; t < panel.keys; ++t) {
      float* const score = panel.scores + t * width + x;
      const float_vector row = constant(static_cast<float>(t));
      auto seen = hn::And(hn::Ge(row, first), hn::Lt(row, end));
      if (has_open)
        seen = hn::Or(seen, hn::And(hn::Ge(row, load(open_begin + x)), hn::Lt(row, load(open_end + x))));
      store(hn::IfThenElse(seen, load(score), constant(masked_score)), score);
    }
  }
}

/// The largest score of each query of a panel, or `m` where that is larger. Four at a time: alone, each would wait for the one
/// before. A NaN leaves the largest as it was on x86, in this order; its weight is NaN either way.
HWY_INLINE void largest_scores(const float* scores, index_t keys, float_vector& m0, float_vector& m1) {
  const index_t width = panel_width(), half = lanes();
  float_vector n0 = m0, n1 = m1;
  index_t t = 0;
  for (; t + 2 <= keys; t += 2) {
    const float* const row = scores + t * width;
    m0 = hn::Max(load(row), m0), m1 = hn::Max(load(row + half), m1);
    n0 = hn::Max(load(row + width), n0), n1 = hn::Max(load(row + width + half), n1);
  }
  if (t < keys) m0 = hn::Max(load(scores + t * width), m0), m1 = hn::Max(load(scores + t * width + half), m1);
  m0 = hn::Max(n0, m0), m1 = hn::Max(n1, m1);
}

/// Makes scores into weights 4^(s − m) with m the largest score of a query so far; the state of the queries
/// follows. `keep` becomes what everything summed before has to be multiplied by.
inline HWY_NOINLINE void softmax_panel(float* scores, index_t keys, float* largest, float* total,
                                       float* keep) {
  const float_tag d;
  const index_t width = panel_width(), half = lanes();
  const float_vector old0 = load(largest), old1 = load(largest + half);
  float_vector m0 = old0, m1 = old1;
  largest_scores(scores, keys, m0, m1);
  float_vector sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  for (index_t t = 0; t < keys; ++t) {
    float* const row = scores + t * width;
    const float_vector w0 = exp4_of(hn::Sub(load(row), m0)), w1 = exp4_of(hn::Sub(load(row + half), m1));
    store(w0, row), store(w1, row + half);
    sum0 = hn::Add(sum0, w0), sum1 = hn::Add(sum1, w1);
  }
  const float_vector keep0 = exp4_of(hn::Sub(old0, m0)), keep1 = exp4_of(hn::Sub(old1, m1));
  store(keep0, keep), store(keep1, keep + half);
  store(hn::MulAdd(load(total), keep0, sum0), total);
  store(hn::MulAdd(load(total + half), keep1, sum1), total + half);
  store(m0, largest), store(m1, largest + half);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
