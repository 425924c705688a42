// SPDX-License-Identifier: MIT
/// \file
/// Many queries: one task takes a tile of query rows of a few heads that share a KV head, packs them once as
/// columns, and walks over the keys they see. Included once per instruction set.
///
/// Per tile of keys: load and turn the keys, copy the values into panels, and for each panel of queries S =
/// K·Qᵀ, the softmax, O = keep·O + Pᵀ·V. Panels that see no key of the tile are skipped, and of those on the
/// diagonal only the keys that some query sees are touched.
#if defined(POSENC_FUSED_PREFILL_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_PREFILL_INL_HPP
#undef POSENC_FUSED_PREFILL_INL_HPP
#else
#define POSENC_FUSED_PREFILL_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/panel-inl.hpp>
#include <posenc/fused/product-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// Keys of a tile. 128 keep the weights and a panel of values (16 KiB each) in the first-level cache, and the
/// reading and writing of O below 3 % of the multiplications.
inline constexpr index_t prefill_keys = 128;
/// Columns (query rows × heads) of a task: packed queries and output stay in the second-level cache.
inline constexpr index_t prefill_columns = 256;
/// Heads of a task: what turning a tile of keys costs is shared by so many.
inline constexpr index_t prefill_heads = 4;

/// The scratch of one task, cut into its parts; begin_of_end is what it takes in floats.
struct prefill_scratch {
  float *queries, *keys, *values, *scores, *output, *largest, *total, *keep;
  index_t output_stride = 0, floats = 0;

  prefill_scratch(float* memory, const packed_head& pack, index_t value_dim, index_t columns) {
    const index_t width = panel_width();
    output_stride = round_up(value_dim, width);
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 64) +
                16;  // apart by a line, so that no two parts lie a power of two from each other
      return part;
    };
    queries = take(columns * pack.steps);
    keys = take(prefill_keys * pack.stride + lanes());
    values = take(prefill_keys * output_stride);
    scores = take(prefill_keys * width);
    output = take(columns * output_stride);
    largest = take(columns), total = take(columns), keep = take(width);
  }
};

/// What a range of rows spans.
struct position_span {
  position lowest = 0, highest = 0;
  bool run = false;
};

HWY_INLINE position_span span_of(const row_positions& positions, index_t first, index_t count) {
  if (positions.is_run(first, count)) return {positions[first], positions[first] + count - 1, true};
  position_span span{positions[first], positions[first], false};
  for (index_t n = 1; n < count; ++n) {
    span.lowest = (std::min)(span.lowest, positions[first + n]);
    span.highest = (std::max)(span.highest, positions[first + n]);
  }
  return span;
}

enum class sight : unsigned char { none, some, all };

/// What queries in `queries` see of keys in `keys`, judged by the ends of both.
HWY_INLINE sight sight_of(const problem& call, const position_span& queries, const position_span& keys) {
  const position nearest_ahead = keys.lowest - queries.highest,
                 farthest_ahead = keys.highest - queries.lowest;
  const bool ahead_limited = call.farthest_ahead != problem::no_limit,
             behind_limited = call.farthest_behind != problem::no_limit;
  if (ahead_limited && nearest_ahead > call.farthest_ahead) return sight::none;
  if (behind_limited && -farthest_ahead > call.farthest_behind) return sight::none;
  if (ahead_limited && farthest_ahead > call.farthest_ahead) return sight::some;
  if (behind_limited && -nearest_ahead > call.farthest_behind) return sight::some;
  return sight::all;
}

/// Rows [begin, end) of a run of keys that at least one of the queries sees.
HWY_INLINE row_range seen_rows(const problem& call, const position_span& queries, const position_span& keys,
                               index_t count) {
  row_range rows{0, count};
  if (!keys.run) return rows;
  if (call.farthest_ahead != problem::no_limit)
    rows.end =
        (std::clamp)(queries.highest + call.farthest_ahead - keys.lowest + 1, position{0}, position{count});
  if (call.farthest_behind != problem::no_limit)
    rows.begin =
        (std::clamp)(queries.lowest - call.farthest_behind - keys.lowest, position{0}, position{rows.end});
  return rows;
}

/// One task of the prefill: rows [first_row, first_row + rows) of heads [first_head, first_head + heads) of a
/// KV head.
struct prefill_task {
  const problem& call;
  const key_loader& loader;
  prefill_scratch scratch;
  index_t kv_head, first_head, heads, first_row, rows, panels;
  row_range tokens;  ///< rows of the tile that are tokens, from first_row
  position growth_origin = 0;

  [[nodiscard]] index_t column(index_t head, index_t panel) const {
    return (head * panels + panel) * panel_width();
  }
  [[nodiscard]] row_range panel_rows(index_t panel) const {
    const index_t begin = panel * panel_width();
    return {(std::max)(begin, tokens.begin), (std::min)(begin + panel_width(), tokens.end)};
  }

  HWY_NOINLINE void pack_queries() const {
    const index_t width = panel_width();
    std::fill_n(scratch.queries, heads * panels * width * loader.pack.steps, 0.0f);
    std::fill_n(scratch.largest, heads * panels * width, masked_score);
    std::fill_n(scratch.total, heads * panels * width, 0.0f);
    HWY_ALIGN float packed[widest_head + 6 * vector_slack];
    pair_angles angles;
    for (index_t r = tokens.begin; r < tokens.end; ++r) {
      const position here = call.queries[first_row + r];
      if (call.turns)
        token_angles(*call.turns, here, rotation_side::query, static_cast<float>(call.turns->magnitude),
                     growth_origin, angles.cos, angles.sin);
      const float factor = query_factor(call, here);
      for (index_t h = 0; h < heads; ++h) {
        load_query(call, loader, first_row + r, first_head + h, angles, factor, packed);
        float* to = scratch.queries + column(h, r / width) * loader.pack.steps + r % width;
        for (index_t c = 0; c < loader.pack.steps; ++c, to += width) *to = packed[c];
      }
    }
  }

  /// S, softmax and O of one panel against one tile of keys that lies in scratch.
  HWY_NOINLINE void attend(index_t head, index_t panel, index_t first_key, row_range seen, bool run,
                           bool partial) const {
    const index_t width = panel_width(), at = column(head, panel);
    const index_t keys = seen.end - seen.begin;
    const product_shape score_product{loader.pack.steps, loader.pack.stride, 1, width, width};
    const float* const queries = scratch.queries + at * loader.pack.steps;
    for (index_t t = 0; t < keys; t += block_rows)
      product((std::min)(keys - t, block_rows), 2, score_product,
              scratch.keys + (seen.begin + t) * loader.pack.stride, queries, nullptr,
              scratch.scores + t * width);

    const row_range inside = panel_rows(panel);
    // A panel that begins before the first token has no position for lane 0: element by element there.
    const bool whole = inside.begin == panel * width;
    const index_t lane = inside.begin - panel * width;
    const score_panel scores{call,
                             scratch.scores + (whole ? 0 : lane),
                             first_head + head,
                             first_row + inside.begin,
                             inside.end - inside.begin,
                             first_key + seen.begin,
                             keys,
                             run && whole,
                             partial};
    if (call.calls.relative_key) add_relative_keys(scores);
    if (call.softcap > 0) cap_scores({call, scratch.scores, 0, 0, 0, 0, keys, false, false});
    if (call.bias.kind != distance_bias::form::none) add_distance_bias(scores);
    if (call.calls.bias) add_called_bias(scores);
    if (partial) mask_scores(scores);
    if (partial || call.calls.bias)
      softmax_panel<true>(scratch.scores, keys, scratch.largest + at, scratch.total + at, scratch.keep);
    else
      softmax_panel<false>(scratch.scores, keys, scratch.largest + at, scratch.total + at, scratch.keep);

    const product_shape value_product{keys, 1, width, width, scratch.output_stride};
    float* const output = scratch.output + at * scratch.output_stride;
    const index_t used = inside.end - panel * width;
    for (index_t c = 0; c < scratch.output_stride; c += width) {
      const float* const values = scratch.values + c * prefill_keys + seen.begin * width;
      for (index_t r = 0; r < used; r += block_rows)
        product((std::min)(used - r, block_rows), 2, value_product, scratch.scores + r, values,
                scratch.keep + r, output + r * scratch.output_stride + c);
    }
    if (call.calls.relative_value) add_panel_relative_values(scores, output);
  }

  HWY_NOINLINE void add_panel_relative_values(const score_panel& weights, float* output) const {
    const index_t lane = weights.first_query - first_row - panel_of(weights) * panel_width();
    for (index_t x = 0; x < weights.queries; ++x)
      add_relative_values(call, weights.head, call.queries[weights.first_query + x], weights.first_key,
                          weights.keys, scratch.scores + lane + x, panel_width(),
                          output + (lane + x) * scratch.output_stride);
  }
  [[nodiscard]] index_t panel_of(const score_panel& scores) const {
    return (scores.first_query - first_row) / panel_width();
  }

  HWY_NOINLINE void write_rows() const {
    for (index_t r = 0; r < rows; ++r)
      for (index_t h = 0; h < heads; ++h) {
        const index_t head = first_head + h, row = first_row + r;
        const index_t at = column(h, r / panel_width()) + r % panel_width();
        finish_row(call, head, row, r >= tokens.begin && r < tokens.end, scratch.largest[at],
                   scratch.total[at], scratch.output + at * scratch.output_stride);
      }
  }

  HWY_NOINLINE void run() const {
    if (tokens.begin < tokens.end) {
      std::fill_n(scratch.output, heads * panels * panel_width() * scratch.output_stride, 0.0f);
      pack_queries();
      const position_span all = span_of(call.queries, first_row + tokens.begin, tokens.end - tokens.begin);
      for (index_t first = call.valid_keys.begin; first < call.valid_keys.end; first += prefill_keys) {
        const index_t count = (std::min)(prefill_keys, call.valid_keys.end - first);
        const position_span keys = span_of(call.keys, first, count);
        if (sight_of(call, all, keys) == sight::none) continue;
        loader.load_keys(kv_head, first, count, growth_origin, scratch.keys);
        load_values(call, kv_head, first, count, prefill_keys, scratch.values);
        for (index_t panel = 0; panel < panels; ++panel) {
          const row_range here = panel_rows(panel);
          if (here.begin >= here.end) continue;
          const position_span queries = span_of(call.queries, first_row + here.begin, here.end - here.begin);
          const sight seen = sight_of(call, queries, keys);
          if (seen == sight::none) continue;
          const row_range visible = seen_rows(call, queries, keys, count);
          if (visible.begin >= visible.end) continue;
          for (index_t h = 0; h < heads; ++h)
            attend(h, panel, first, visible, queries.run && keys.run, seen == sight::some);
        }
      }
    }
    write_rows();
  }

  /// Writes one output row, Σ w v / Σ w with the head's sink counted, and its log-sum-exp. A row that saw
  /// nothing is 0 and −∞.
  static HWY_NOINLINE void finish_row(const problem& call, index_t head, index_t row, bool is_token,
                                      float largest, float total, const float* output) {
    const index_t size = call.out.type == storage::float32 ? 4 : 2;
    void* const to = static_cast<char*>(call.out.data) +
                     (row * call.out.token_stride + head * call.out.head_stride) * size;
    float* const lse = call.log_sum_exp
                           ? call.log_sum_exp + row * call.lse_token_stride + head * call.lse_head_stride
                           : nullptr;
    const bool saw = is_token && largest > masked_score;
    const bool sink = is_token && call.sinks != nullptr;
    if (!saw && !sink) {
      HWY_ALIGN const float nothing[widest_head + vector_slack] = {};
      store_row(nothing, 0.0f, call.value_dim, call.out.type, to);
      if (lse) *lse = minus_infinity<float>();
      return;
    }
    double m = saw ? static_cast<double>(largest) * ln_2 : 0, sum = saw ? static_cast<double>(total) : 0;
    double factor = 1;
    if (sink) {
      const double logit = call.sinks[head], top = saw ? (std::max)(m, logit) : logit;
      factor = saw ? std::exp(m - top) : 0;
      sum = sum * factor + std::exp(logit - top);
      m = top;
    }
    store_row(output, static_cast<float>(factor / sum), call.value_dim, call.out.type, to);
    if (lse) *lse = static_cast<float>(m + std::log(sum));
  }
};

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
