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

#include <posenc/fused/kernels/relative-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Keys of a tile. 128 keep the weights and a panel of values (16 KiB each) in the first-level cache, and the
/// reading and writing of O below 3 % of the multiplications.
inline constexpr index_t prefill_keys = 128;
/// Columns (query rows × heads) of a task: packed queries and output stay in the second-level cache.
inline constexpr index_t prefill_columns = 512;
/// Heads of a task: what turning a tile of keys costs is shared by so many.
inline constexpr index_t prefill_heads = 4;

/// The scratch of one task, cut into its parts; `floats` is what it takes.
struct prefill_scratch {
  float *queries, *keys, *values, *scores, *output, *largest, *total, *keep;
  float *rows, *block;  ///< queries on their way to columns
  relative_scratch relative{};
  index_t output_stride = 0, floats = 0;

  prefill_scratch(float* memory, const attention_problem& problem, const packed_head& pack, index_t heads,
                  index_t rows_of_head) {
    const index_t width = panel_width();
    const index_t columns = heads * rows_of_head;
    output_stride = round_up(problem.value_dim, width);
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
    rows = take(heads * lanes() * pack.stride + 6 * vector_slack);
    block = take(2 * lanes() * lanes());
    if (relative_scratch::is_needed(problem)) {
      const index_t offsets = relative_scratch::offsets(prefill_keys);
      relative.row_stride = relative_scratch::stride_of(problem);
      relative.rows = take(offsets * relative.row_stride);
      relative.by_offset = take(offsets * width);
    }
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
HWY_INLINE sight sight_of(const attention_problem& problem, const position_span& queries, const position_span& keys) {
  const position nearest_ahead = keys.lowest - queries.highest,
                 farthest_ahead = keys.highest - queries.lowest;
  const bool ahead_limited = problem.farthest_ahead != attention_problem::no_limit,
             behind_limited = problem.farthest_behind != attention_problem::no_limit;
  if (ahead_limited && nearest_ahead > problem.farthest_ahead) return sight::none;
  if (behind_limited && -farthest_ahead > problem.farthest_behind) return sight::none;
  if (ahead_limited && farthest_ahead > problem.farthest_ahead) return sight::some;
  if (behind_limited && -nearest_ahead > problem.farthest_behind) return sight::some;
  return sight::all;
}

/// Rows [begin, end) of a run of keys that at least one of the queries sees.
HWY_INLINE row_range seen_rows(const attention_problem& problem, const position_span& queries, const position_span& keys,
                               index_t count) {
  row_range rows{0, count};
  if (!keys.run) return rows;
  // Limits and distances reach to 2^62: one is added at the end.
  if (problem.farthest_ahead != attention_problem::no_limit)
    rows.end = (std::clamp)(attention_problem::within_limits(queries.highest - keys.lowest) + problem.farthest_ahead,
                            position{-1}, position{count - 1}) +
               1;
  if (problem.farthest_behind != attention_problem::no_limit)
    rows.begin = (std::clamp)(attention_problem::within_limits(queries.lowest - keys.lowest) - problem.farthest_behind,
                              position{0}, position{rows.end});
  return rows;
}

/// The angles of query rows, one after the other. Consecutive positions share a base and take the rest from the
/// table of steps, as keys do.
class query_angles {
 public:
  query_angles(const attention_problem& problem, const key_loader& loader, position growth_origin)
      : problem_(problem),
        loader_(loader),
        growth_origin_(growth_origin),
        by_steps_(loader.table_stride > 0 && problem.rotary->growth_per_token.empty()) {}

  /// Sets `here` to the angles of query row `row`; rows up to `end` follow.
  HWY_NOINLINE void move_to(index_t row, index_t end) {
    const index_t ahead = (std::min)(end - row, prefill_keys);
    if (step_ == steps_) {
      steps_ = by_steps_ && problem_.queries.is_run(row, ahead) ? ahead : 1;
      step_ = 0;
      fill(row, steps_ > 1 ? base_ : here);
    }
    if (steps_ > 1) compose();
    ++step_;
  }

  pair_angles here;

 private:
  HWY_INLINE void fill(index_t row, pair_angles& angles) const {
    token_angles(*problem_.rotary, problem_.queries[row], rotation_side::query,
                 static_cast<float>(problem_.rotary->attention_factor), growth_origin_, angles.cos, angles.sin);
  }
  HWY_INLINE void compose() {
    const step_angles step = loader_.step(step_);
    for (index_t p = 0; p < problem_.rotary->pairs(); p += lanes()) {
      float_vector c = step.cos(p), s = step.sin(p);
      turn_pair(c, s, load(base_.cos + p), load(base_.sin + p));
      store(c, here.cos + p), store(s, here.sin + p);
    }
  }

  const attention_problem& problem_;
  const key_loader& loader_;
  position growth_origin_;
  bool by_steps_;
  pair_angles base_;
  index_t step_ = 0, steps_ = 0;
};

/// lanes() × lanes() floats turned about their diagonal: to[c·to_stride + r] = from[r·from_stride + c]. Taking the
/// even elements of all, then the odd ones, moves the last bit of an index to its front; done once for each bit
/// of c, that swaps r and c. `buffer` holds twice the block.
inline HWY_NOINLINE void transpose_block(const float* from, index_t from_stride, index_t columns, float* to,
                                         index_t to_stride, float* buffer) {
  const float* in = from;
  index_t in_stride = from_stride;
#if HWY_TARGET == HWY_SCALAR
  static_cast<void>(buffer);
#else
  const index_t n = lanes();
  float* out = buffer;
  for (index_t bit = 1; bit < n; bit *= 2) {
    for (index_t r = 0; r < n; r += 2) {
      float_vector even, odd;
      split_neighbours(load(in + r * in_stride), load(in + (r + 1) * in_stride), even, odd);
      store(even, out + r / 2 * n), store(odd, out + (n + r) / 2 * n);
    }
    in = out;
    in_stride = n;
    out = out == buffer ? buffer + n * n : buffer;
  }
#endif
  for (index_t c = 0; c < columns; ++c) store(load(in + c * in_stride), to + c * to_stride);
}

/// One task of the prefill: rows [first_row, first_row + rows) of heads [first_head, first_head + heads) of a
/// KV head.
struct prefill_task {
  const attention_problem& problem;
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
    constexpr index_t rows_ahead = 4;
    const index_t width = panel_width(), stride = loader.pack.stride, steps = loader.pack.steps;
    std::fill_n(scratch.queries, heads * panels * width * steps, 0.0f);
    std::fill_n(scratch.largest, heads * panels * width, lowest_score);
    std::fill_n(scratch.total, heads * panels * width, 0.0f);
    query_angles angles(problem, loader, growth_origin);
    // As many rows as a vector has lanes are packed, then turned into columns.
    for (index_t group = tokens.begin / lanes() * lanes(); group < tokens.end; group += lanes()) {
      const row_range here{(std::max)(group, tokens.begin), (std::min)(group + lanes(), tokens.end)};
      if (here.end - here.begin < lanes()) std::fill_n(scratch.rows, heads * lanes() * stride, 0.0f);
      for (index_t r = here.begin; r < here.end; ++r) {
        const position at = problem.queries[first_row + r];
        if (problem.rotary) angles.move_to(first_row + r, first_row + tokens.end);
        const float factor = query_factor(problem, at);
        for (index_t h = 0; h < heads; ++h) {
          if (r + rows_ahead < tokens.end)
            fetch_to_read(problem.q.row(first_row + r + rows_ahead, first_head + h),
                          problem.head_dim * bytes_of(problem.q.type));
          load_query(problem, loader, first_row + r, first_head + h, angles.here, factor,
                     scratch.rows + (h * lanes() + r - group) * stride);
        }
      }
      for (index_t h = 0; h < heads; ++h)
        for (index_t c = 0; c < steps; c += lanes())
          transpose_block(scratch.rows + h * lanes() * stride + c, stride, (std::min)(lanes(), steps - c),
                          scratch.queries + column(h, group / width) * steps + group % width + c * width,
                          width, scratch.block);
    }
  }

  /// S, softmax and O of one panel against one tile of keys that lies in scratch.
  HWY_NOINLINE void attend(index_t head, index_t panel, index_t first_key, row_range seen, bool run,
                           bool partial, bool finite_values) const {
    const index_t width = panel_width(), at = column(head, panel);
    const index_t keys = seen.end - seen.begin;
    const product_shape score_product{loader.pack.steps, loader.pack.stride, 1, width, width};
    const float* const queries = scratch.queries + at * loader.pack.steps;
    for (index_t t = 0; t < keys; t += block_rows)
      product((std::min)(keys - t, block_rows), score_product,
              scratch.keys + (seen.begin + t) * loader.pack.stride, queries, nullptr,
              scratch.scores + t * width);

    const row_range inside = panel_rows(panel);
    // A panel that begins before the first token has no position for lane 0: element by element there.
    const bool whole = inside.begin == panel * width;
    const index_t lane = inside.begin - panel * width;
    const score_panel scores{problem,
                             scratch.scores + (whole ? 0 : lane),
                             first_head + head,
                             first_row + inside.begin,
                             inside.end - inside.begin,
                             first_key + seen.begin,
                             keys,
                             run && whole};
    if (problem.callbacks.relative_key) {
      if (can_multiply_relative_keys(scores))
        multiply_relative_keys(scores, queries, scratch.relative);
      else
        add_relative_keys(scores);
    }
    if (problem.softcap > 0) cap_scores({problem, scratch.scores, 0, 0, 0, 0, keys, false});
    if (problem.bias.kind != distance_bias::form::none) add_distance_bias(scores);
    if (problem.callbacks.bias) add_called_bias(scores);
    if (partial) mask_scores(scores);
    softmax_panel(scratch.scores, keys, scratch.largest + at, scratch.total + at, scratch.keep);

    float* const output = scratch.output + at * scratch.output_stride;
    const row_range lanes_used{lane, inside.end - panel * width};
    if (finite_values)
      add_values(lanes_used.end, seen, output);
    else
      add_seen_values(lanes_used, seen, output);
    if (problem.callbacks.relative_value) {
      float* const first = output + lane * scratch.output_stride;
      if (scores.run)
        multiply_relative_values(scores, scratch.relative, first, scratch.output_stride);
      else
        add_relative_values(scores, first, scratch.output_stride);
    }
  }

  /// O = keep·O + Pᵀ·V of the first `queries` lanes of a panel.
  HWY_INLINE void add_values(index_t queries, row_range keys, float* output) const {
    const index_t width = panel_width();
    const product_shape shape{keys.end - keys.begin, 1, width, width, scratch.output_stride};
    for (index_t c = 0; c < scratch.output_stride; c += width) {
      const float* const values = scratch.values + c * prefill_keys + keys.begin * width;
      for (index_t r = 0; r < queries; r += block_rows)
        product((std::min)(queries - r, block_rows), shape, scratch.scores + r, values, scratch.keep + r,
                output + r * scratch.output_stride + c);
    }
  }

  /// The same without a product of zero: where values are infinite or no numbers, a query must not meet
  /// those it does not see.
  HWY_NOINLINE void add_seen_values(row_range queries, row_range keys, float* output) const {
    const index_t width = panel_width();
    for (index_t x = queries.begin; x < queries.end; ++x)
      for (index_t c = 0; c < problem.value_dim; ++c) {
        float sum = 0;
        for (index_t t = 0; t < keys.end - keys.begin; ++t) {
          const float weight = scratch.scores[t * width + x];
          const index_t place = (c / width * prefill_keys + keys.begin + t) * width + c % width;
          if (weight != 0) sum += weight * scratch.values[place];
        }
        float& to = output[x * scratch.output_stride + c];
        to = scratch.keep[x] * to + sum;
      }
  }

  HWY_NOINLINE void write_rows() const {
    constexpr index_t rows_ahead = 8;
    for (index_t r = 0; r < rows; ++r) {
      for (index_t h = 0; h < heads; ++h) {
        const index_t head = first_head + h, row = first_row + r;
        if (r + rows_ahead < rows)
          fetch_to_write(problem.out.row(row + rows_ahead, head), problem.value_dim * bytes_of(problem.out.type));
        const index_t at = column(h, r / panel_width()) + r % panel_width();
        finish_row(problem, head, row, r >= tokens.begin && r < tokens.end, scratch.largest[at],
                   scratch.total[at], scratch.output + at * scratch.output_stride);
      }
    }
  }

  /// The first tile of keys at or behind `first` that some query sees; the end if there is none.
  HWY_NOINLINE index_t seen_tile(const position_span& queries, index_t first) const {
    const index_t end = problem.valid_keys.end;
    while (first < end &&
           sight_of(problem, queries, span_of(problem.keys, first, (std::min)(prefill_keys, end - first))) ==
               sight::none)
      first += prefill_keys;
    return (std::min)(first, end);
  }

  HWY_NOINLINE void run() const {
    if (tokens.begin < tokens.end) {
      std::fill_n(scratch.output, heads * panels * panel_width() * scratch.output_stride, 0.0f);
      const position_span all = span_of(problem.queries, first_row + tokens.begin, tokens.end - tokens.begin);
      index_t next = seen_tile(all, problem.valid_keys.begin);
      pack_queries();
      while (next < problem.valid_keys.end) {
        const index_t first = next, count = (std::min)(prefill_keys, problem.valid_keys.end - first);
        next = seen_tile(all, first + prefill_keys);
        const position_span keys = span_of(problem.keys, first, count);
        loader.load_keys(kv_head, first, count, growth_origin, scratch.keys);
        const bool finite_values = load_values(problem, kv_head, first, count, prefill_keys, scratch.values);
        for (index_t panel = 0; panel < panels; ++panel) {
          const row_range here = panel_rows(panel);
          if (here.begin >= here.end) continue;
          const position_span queries = span_of(problem.queries, first_row + here.begin, here.end - here.begin);
          const sight seen = sight_of(problem, queries, keys);
          if (seen == sight::none) continue;
          const row_range visible = seen_rows(problem, queries, keys, count);
          if (visible.begin >= visible.end) continue;
          for (index_t h = 0; h < heads; ++h)
            attend(h, panel, first, visible, queries.run && keys.run, seen == sight::some, finite_values);
        }
      }
    }
    write_rows();
  }

  /// Writes one output row, Σ w v / Σ w with the head's sink counted, and its log-sum-exp. A row that saw
  /// nothing is 0 and −∞.
  static HWY_NOINLINE void finish_row(const attention_problem& problem, index_t head, index_t row, bool is_token,
                                      float largest, float total, const float* output) {
    void* const to = problem.out.row(row, head);
    float* const lse = problem.log_sum_exp
                           ? problem.log_sum_exp + row * problem.lse_token_stride + head * problem.lse_head_stride
                           : nullptr;
    // A NaN never becomes the largest score, but it is in the total.
    const bool saw = is_token && (largest > lowest_score || !(total == 0));
    const bool sink = is_token && problem.sinks != nullptr;
    if (!saw && !sink) {
      HWY_ALIGN const float nothing[widest_head + vector_slack] = {};
      store_row(nothing, 0.0f, problem.value_dim, problem.out.type, to);
      if (lse) *lse = minus_infinity<float>();
      return;
    }
    double m = saw ? static_cast<double>(largest) * ln_2 : 0, sum = saw ? static_cast<double>(total) : 0;
    double factor = 1;
    if (sink) {
      const double logit = problem.sinks[head], top = saw ? (std::max)(m, logit) : logit;
      factor = saw ? std::exp(m - top) : 0;
      sum = sum * factor + std::exp(logit - top);
      m = top;
    }
    store_row(output, static_cast<float>(factor / sum), problem.value_dim, problem.out.type, to);
    if (lse) *lse = static_cast<float>(m + std::log(sum));
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
