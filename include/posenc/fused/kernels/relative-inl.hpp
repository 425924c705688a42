// SPDX-License-Identifier: MIT
/// \file
/// Shaw's relative rows (q·r on the key side, Σ w r on the value side) of a panel. Included once per instruction
/// set.
///
/// Where queries and keys stand on consecutive positions, a panel of W queries against T keys meets only
/// T + W − 1 offsets: their rows are evaluated once, both sums are matrix products with them, and what belongs
/// to key t and query x stands at offset t + W − 1 − x. Elsewhere it goes row by row.
#if defined(POSENC_FUSED_RELATIVE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_RELATIVE_INL_HPP
#undef POSENC_FUSED_RELATIVE_INL_HPP
#else
#define POSENC_FUSED_RELATIVE_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/kernels/product-inl.hpp>
#include <posenc/fused/kernels/softmax-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

using relative_call = void (*)(const void*, index_t head, position offset, float* row, index_t channels);

/// What one panel's relative rows need of scratch.
struct relative_scratch {
  float *rows = nullptr, *by_offset = nullptr;
  index_t row_stride = 0;

  static HWY_INLINE bool is_needed(const attention_problem& problem) {
    return problem.callbacks.relative_key || problem.callbacks.relative_value;
  }
  /// Offsets that a panel of `keys` keys meets.
  static HWY_INLINE index_t offsets(index_t keys) { return keys + panel_width() - 1; }
  static HWY_INLINE index_t stride_of(const attention_problem& problem) {
    return round_up((std::max)(problem.head_dim, problem.value_dim), panel_width());
  }
};

/// True where q·r of the packed queries is q·r of the queries as they are.
HWY_INLINE bool can_multiply_relative_keys(const score_panel& panel) {
  return panel.run && !panel.problem.rotary && !panel.problem.callbacks.rotate;
}

/// False where no query sees a key at this offset.
HWY_INLINE bool may_see(const attention_problem& problem, position offset) {
  if (problem.bounds) return true;
  return (problem.farthest_behind == attention_problem::no_limit || -offset <= problem.farthest_behind) &&
         (problem.farthest_ahead == attention_problem::no_limit || offset <= problem.farthest_ahead);
}

/// Rows of all offsets of a panel; zeros where no query sees a key at that offset.
inline HWY_NOINLINE void fill_relative_rows(const score_panel& panel, relative_call row_of, index_t channels,
                                            const relative_scratch& scratch) {
  const attention_problem& problem = panel.problem;
  const index_t count = relative_scratch::offsets(panel.keys);
  const position lowest = -panel.distance(0) - (panel_width() - 1);
  for (index_t o = 0; o < count; ++o) {
    float* const row = scratch.rows + o * scratch.row_stride;
    std::fill_n(row, scratch.row_stride, 0.0f);
    if (o >= panel_width() - panel.queries && may_see(problem, lowest + o))
      row_of(problem.callbacks.encoding, panel.head, lowest + o, row, channels);
  }
}

/// scores += Q·Rᵀ, moved from offsets to keys. `queries` are packed.
inline HWY_NOINLINE void multiply_relative_keys(const score_panel& panel, const float* queries,
                                                const relative_scratch& scratch) {
  const attention_problem& problem = panel.problem;
  const index_t width = panel_width(), count = relative_scratch::offsets(panel.keys);
  fill_relative_rows(panel, problem.callbacks.relative_key, problem.head_dim, scratch);
  const product_shape shape{problem.head_dim, scratch.row_stride, 1, width, width};
  for (index_t o = 0; o < count; o += block_rows)
    product((std::min)(count - o, block_rows), shape, scratch.rows + o * scratch.row_stride, queries, nullptr,
            scratch.by_offset + o * width);
  for (index_t t = 0; t < panel.keys; ++t)
    for (index_t x = 0; x < width; ++x)
      panel.scores[t * width + x] += scratch.by_offset[(t + width - 1 - x) * width + x];
}

/// output += P·R, weights moved from keys to offsets.
inline HWY_NOINLINE void multiply_relative_values(const score_panel& panel, const relative_scratch& scratch,
                                                  float* output, index_t output_stride) {
  const attention_problem& problem = panel.problem;
  const index_t width = panel_width(), count = relative_scratch::offsets(panel.keys);
  fill_relative_rows(panel, problem.callbacks.relative_value, problem.value_dim, scratch);
  std::fill_n(scratch.by_offset, count * width, 0.0f);
  for (index_t t = 0; t < panel.keys; ++t)
    for (index_t x = 0; x < panel.queries; ++x)
      scratch.by_offset[(t + width - 1 - x) * width + x] = panel.scores[t * width + x];
  constexpr float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
  const product_shape shape{count, 1, width, scratch.row_stride, output_stride};
  for (index_t c = 0; c < problem.value_dim; c += width)
    for (index_t x = 0; x < panel.queries; x += block_rows)
      product((std::min)(panel.queries - x, block_rows), shape, scratch.by_offset + x, scratch.rows + c, ones,
              output + x * output_stride + c);
}

/// Σ_c a_c·b_c; `a` holds zeros after its last channel.
HWY_INLINE float dot_of(const float* a, const float* b, index_t channels) {
  float_vector sum = hn::Zero(float_tag());
  for (index_t c = 0; c < channels; c += lanes())
    sum = hn::MulAdd(load(a + c), load_first(b + c, channels - c), sum);
  return hn::GetLane(hn::SumOfLanes(float_tag(), sum));
}

/// q·r row by row: the query as it is in memory against the row of the distance.
inline HWY_NOINLINE void add_relative_keys(const score_panel& panel) {
  const attention_problem& problem = panel.problem;
  HWY_ALIGN float query[widest_head + vector_slack];
  HWY_ALIGN float relative[widest_head + vector_slack];
  for (index_t x = 0; x < panel.queries; ++x) {
    const index_t row = panel.first_query + x;
    const position here = problem.queries[row];
    widen_row(problem.q, row, panel.head, problem.head_dim, query);
    const float factor = query_factor(problem, panel.head, here);
    for (index_t t = 0; t < panel.keys; ++t) {
      const position there = problem.keys[panel.first_key + t];
      if (!problem.sees(row, panel.first_key + t)) continue;
      problem.callbacks.relative_key(problem.callbacks.encoding, panel.head, there - here, relative,
                                     problem.head_dim);
      panel.scores[t * panel_width() + x] += dot_of(query, relative, problem.head_dim) * factor;
    }
  }
}

/// Σ w r row by row, summed on its own before it joins `output`.
inline HWY_NOINLINE void add_relative_values(const score_panel& panel, float* output, index_t output_stride) {
  const attention_problem& problem = panel.problem;
  HWY_ALIGN float relative[widest_head + vector_slack];
  HWY_ALIGN float sum[widest_head + vector_slack];
  for (index_t x = 0; x < panel.queries; ++x) {
    const position here = problem.queries[panel.first_query + x];
    std::fill_n(sum, problem.value_dim, 0.0f);
    for (index_t t = 0; t < panel.keys; ++t) {
      const float weight = panel.scores[t * panel_width() + x];
      if (weight == 0) continue;
      problem.callbacks.relative_value(problem.callbacks.encoding, panel.head,
                                       problem.keys[panel.first_key + t] - here, relative, problem.value_dim);
      for (index_t c = 0; c < problem.value_dim; ++c) sum[c] += weight * relative[c];
    }
    for (index_t c = 0; c < problem.value_dim; ++c) output[x * output_stride + c] += sum[c];
  }
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
