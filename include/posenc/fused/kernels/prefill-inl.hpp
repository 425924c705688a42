// SPDX-License-Identifier: MIT
/// \file
/// Many queries: one task takes a tile of query rows of a few heads that share a KV head, packs them once as
/// columns, and walks over the keys they see. Included once per instruction set.
///
/// Per tile of keys: load and rotate the keys, copy the values into panels, and for each panel of queries S =
/// K·Qᵀ, the softmax, O = keep·O + Pᵀ·V. Panels that see no key of the tile are skipped, and of those on the
/// diagonal only the keys that some query sees are touched.
///
/// Where the queries are few and the heads of a KV head many (a latent cache, drafts over a long cache), heads lie beside
/// one another in the lanes of a panel: stacked. A row of the task is then a column of (head, query), and the keys may be
/// split, as in decode.
#if defined(POSENC_FUSED_PREFILL_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_PREFILL_INL_HPP
#undef POSENC_FUSED_PREFILL_INL_HPP
#else
#define POSENC_FUSED_PREFILL_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/kernels/elements-inl.hpp>
#include <posenc/fused/kernels/finish-inl.hpp>
#include <posenc/fused/kernels/relative-inl.hpp>
#include <posenc/fused/kernels/splits-inl.hpp>
#include <posenc/fused/units/tiles-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Keys of a tile. 128 keep the weights and a panel of values (16 KiB each) in the L1 cache, and the
/// reading and writing of O below 3 % of the multiplications.
inline constexpr index_t prefill_keys = 128;
/// Columns (query rows × heads) of a task: packed queries and output stay in the L2 cache.
inline constexpr index_t prefill_columns = 512;
/// Panels of a head in a task: at least one, of at least one lane.
inline constexpr index_t most_panels = prefill_columns;
/// Channels of a piece of a wide head.
inline constexpr index_t widest_piece = 256;
/// Heads of a task: what rotating a tile of keys costs is shared by so many.
inline constexpr index_t prefill_heads = 4;

/// The scratch of one task, cut into its parts; `floats` is what it takes.
struct prefill_scratch {
  float *queries, *keys, *values, *scores, *output, *largest, *total, *keep;
  float *rows, *block;  ///< queries on their way to columns
  float *elements = nullptr, *element_buffer = nullptr;
  row_bounds* seen;   ///< of each query row, in the run of keys at hand
  position* nearest;  ///< of each query row: nearest_distance, where the bias is linear
  relative_scratch relative{};
  index_t output_stride = 0, floats = 0;

  /// \param multiple of the channels that are kept of an output row
  prefill_scratch(float* memory, const attention_problem& problem, const packed_head& pack, index_t heads,
                  index_t rows_of_head, index_t multiple = 1) {
    const index_t width = panel_width();
    const index_t columns = heads * rows_of_head;
    output_stride = round_up(problem.value_dim, (std::max)(width, multiple));
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
    constexpr auto floats_of = [](std::size_t bytes) { return static_cast<index_t>(bytes / sizeof(float)); };
    seen = reinterpret_cast<row_bounds*>(take(rows_of_head * floats_of(sizeof(row_bounds))));
    nearest = reinterpret_cast<position*>(take(rows_of_head * floats_of(sizeof(position))));
    if (problem.has_elements()) {
      elements = take(prefill_keys * width);
      element_buffer = take(element_buffer_floats());
    }
    if (relative_scratch::is_needed(problem)) {
      const index_t offsets = relative_scratch::offsets(prefill_keys);
      relative.row_stride = relative_scratch::stride_of(problem);
      relative.rows = take(offsets * relative.row_stride);
      relative.by_offset = take(offsets * width);
    }
  }
};

/// The angles of rows of queries or keys, one after the other. Consecutive positions share a base and take the rest from
/// the table of steps, as tiles of keys do.
class row_angles {
 public:
  row_angles(const attention_problem& problem, const key_loader& loader, rotation_side side,
             position growth_origin)
      : problem_(problem),
        loader_(loader),
        positions_(side == rotation_side::query ? problem.queries : problem.keys),
        side_(side),
        growth_origin_(growth_origin),
        by_steps_(loader.table_stride > 0 && problem.rotary->growth_per_token.empty()) {}

  /// Sets `here` to the angles of row `row`; rows up to `end` follow.
  HWY_NOINLINE void move_to(index_t row, index_t end) {
    const index_t ahead = (std::min)(end - row, prefill_keys);
    if (step_ == steps_) {
      steps_ = by_steps_ && positions_.is_run(row, ahead) ? ahead : 1;
      step_ = 0;
      fill(row, steps_ > 1 ? base_ : here);
    }
    if (steps_ > 1) compose();
    ++step_;
  }

  pair_angles here;

 private:
  HWY_INLINE void fill(index_t row, pair_angles& angles) const {
    token_angles(*problem_.rotary, place_of(positions_, row), side_,
                 static_cast<float>(problem_.rotary->attention_factor), growth_origin_, angles.cos,
                 angles.sin);
  }
  HWY_INLINE void compose() {
    const step_angles step = loader_.step(step_);
    for (index_t p = 0; p < problem_.rotary->pairs(); p += lanes()) {
      float_vector c = step.cos(p), s = step.sin(p);
      rotate_pair(c, s, load(base_.cos + p), load(base_.sin + p));
      store(c, here.cos + p), store(s, here.sin + p);
    }
  }

  const attention_problem& problem_;
  const key_loader& loader_;
  const row_positions& positions_;
  rotation_side side_;
  position growth_origin_;
  bool by_steps_;
  pair_angles base_;
  index_t step_ = 0, steps_ = 0;
};

/// One task of the prefill: rows [first_row, first_row + rows) of heads [first_head, first_head + heads) of a
/// KV head.
struct prefill_task {
  const attention_problem& problem;
  const key_loader& loader;
  prefill_scratch scratch;
  index_t kv_head, first_head, heads, first_row, rows, panels;
  row_range tokens;  ///< rows of the tile that are tokens, from first_row
  position growth_origin = 0;
  index_t stacked = 0;  ///< queries of a head where the rows are those of several heads, one after the other
  row_range split{};    ///< the keys that the task is about

  /// Head and query row of a row of the tile.
  [[nodiscard]] index_t head_of(index_t head, index_t row) const {
    return first_head + (stacked > 0 ? (first_row + row) / stacked : head);
  }
  [[nodiscard]] index_t query_of(index_t row) const {
    return stacked > 0 ? (first_row + row) % stacked : first_row + row;
  }

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
    row_angles angles(problem, loader, rotation_side::query, growth_origin);
    // As many rows as a vector has lanes are packed, then transposed to columns.
    for (index_t group = tokens.begin / lanes() * lanes(); group < tokens.end; group += lanes()) {
      const row_range here{(std::max)(group, tokens.begin), (std::min)(group + lanes(), tokens.end)};
      if (here.end - here.begin < lanes()) std::fill_n(scratch.rows, heads * lanes() * stride, 0.0f);
      for (index_t r = here.begin; r < here.end; ++r) {
        const index_t query = query_of(r);
        const position at = problem.queries[query];
        if (problem.rotary && (stacked != 1 || r == tokens.begin))
          angles.move_to(query, stacked > 0 ? query + 1 : first_row + tokens.end);
        for (index_t h = 0; h < heads; ++h) {
          if (r + rows_ahead < tokens.end)
            fetch_to_read(problem.q.row(query_of(r + rows_ahead), head_of(h, r + rows_ahead)),
                          problem.head_dim * bytes_of(problem.q.type));
          load_query(problem, loader, query, head_of(h, r), angles.here,
                     query_factor(problem, head_of(h, r), at),
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

  /// What all heads of a panel share of a tile of keys.
  struct tile_facts {
    bool keys_run, queries_run, finite_values;
  };

  /// One panel against rows `keys` of the tile of keys at hand, its scores at `scores`.
  [[nodiscard]] HWY_INLINE score_panel panel_of(index_t head, index_t panel, index_t first_key,
                                                row_range keys, const tile_facts& facts,
                                                float* scores) const {
    const row_range inside = panel_rows(panel);
    // A panel that begins before the first token has no position for lane 0: element by element there.
    const index_t lane = inside.begin - panel * panel_width();
    const bool whole = lane == 0;
    return {problem,
            scores + lane,
            first_head + head,
            first_row + inside.begin,
            inside.end - inside.begin,
            first_key + keys.begin,
            keys.end - keys.begin,
            facts.keys_run && facts.queries_run && whole,
            facts.keys_run && whole,
            facts.keys_run ? scratch.seen + inside.begin : nullptr,
            scratch.nearest + inside.begin,
            stacked};
  }

  /// What elements add to the scores of a panel, whose first lane is a query at `lane`.
  [[nodiscard]] HWY_INLINE float* elements_at(index_t lane) const { return scratch.elements + lane; }
  /// Looks at a panel's elements before the product: `none` where nothing is seen.
  [[nodiscard]] HWY_INLINE sight look_at_elements(const score_panel& scores, index_t lane) const {
    return problem.has_elements() ? fill_elements(scores, elements_at(lane), scratch.element_buffer)
                                  : sight::all;
  }

  /// Makes q·k of a panel, its scores from `first` on, into scores: relative keys, softcap, bias, mask. Where a softcap
  /// acts and `slopes` is given, it becomes the derivative of the cap.
  HWY_NOINLINE void complete(const score_panel& scores, float* first, const float* queries,
                             sight elements_seen, bool partial, float* slopes = nullptr) const {
    const index_t size = scores.keys * panel_width();
    if (problem.callbacks.relative_key) {
      if (can_multiply_relative_keys(scores))
        multiply_relative_keys(scores, queries, scratch.relative);
      else
        add_relative_keys(scores);
    }
    if (problem.softcap > 0) {
      cap_scores(problem, first, size);
      if (slopes) slopes_of_cap(problem, first, size, slopes);
    }
    if (problem.bias.kind != distance_bias::form::none) add_distance_bias(scores);
    if (elements_seen == sight::some) add_elements(scores, elements_at(scores.scores - first));
    if (partial) mask_scores(scores);
  }

  /// S of one panel, with bias and mask; false where nothing is seen. `keys` are rows of the tile, `queries` the columns
  /// of the panel.
  HWY_NOINLINE bool score(const score_panel& scores, const float* queries, row_range keys, bool partial,
                          float* slopes = nullptr) const {
    const sight elements_seen = look_at_elements(scores, scores.scores - scratch.scores);
    if (elements_seen == sight::none) return false;
    multiply_keys(keys, queries, scratch.scores);
    complete(scores, scratch.scores, queries, elements_seen, partial, slopes);
    return true;
  }

  /// S, softmax and O of one panel.
  HWY_NOINLINE void attend(index_t head, index_t panel, index_t first_key, row_range keys,
                           const tile_facts& facts, bool partial) const {
    const score_panel scores = panel_of(head, panel, first_key, keys, facts, scratch.scores);
    const index_t at = column(head, panel), lane = scores.scores - scratch.scores;
    if (!score(scores, scratch.queries + at * loader.pack.steps, keys, partial)) return;
    softmax_panel(scratch.scores, scores.keys, scratch.largest + at, scratch.total + at, scratch.keep);

    float* const output = scratch.output + at * scratch.output_stride;
    const row_range lanes_used{lane, lane + scores.queries};
    if (facts.finite_values)
      add_values(lanes_used.end, keys, output);
    else
      add_seen_values(lanes_used, keys, scratch.scores, [&](index_t x, index_t c, float sum) {
        float& to_sum = output[x * scratch.output_stride + c];
        to_sum = scratch.keep[x] * to_sum + sum;
      });
    if (problem.callbacks.relative_value) {
      float* const first = output + lane * scratch.output_stride;
      if (scores.run)
        multiply_relative_values(scores, scratch.relative, first, scratch.output_stride);
      else
        add_relative_values(scores, first, scratch.output_stride);
    }
  }

  /// S = K·Qᵀ of a panel. Wide heads in pieces, so that a piece of the queries stays in the L1 cache.
  HWY_INLINE void multiply_keys(row_range keys_of_tile, const float* queries, float* scores) const {
    constexpr float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const index_t width = panel_width(), steps = loader.pack.steps, stride = loader.pack.stride;
    const index_t piece = steps <= widest_piece ? steps : widest_piece;
    for (index_t c = 0; c < steps; c += piece) {
      const product_shape shape{(std::min)(piece, steps - c), stride, 1, width, width};
      for (index_t t = keys_of_tile.begin; t < keys_of_tile.end; t += block_rows)
        product((std::min)(keys_of_tile.end - t, block_rows), shape, scratch.keys + t * stride + c,
                queries + c * width, c > 0 ? ones : nullptr, scores + (t - keys_of_tile.begin) * width);
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

  /// The same without a product of zero: where values are infinite or NaN, a query must not meet
  /// those it does not see. Calls put(query, channel, Σ weight·value); `weights` begin with the first of the keys.
  template <class Put>
  HWY_NOINLINE void add_seen_values(row_range queries, row_range keys, const float* weights,
                                    const Put& put) const {
    const index_t width = panel_width();
    for (index_t x = queries.begin; x < queries.end; ++x)
      for (index_t c = 0; c < problem.value_dim; ++c) {
        float sum = 0;
        for (index_t t = 0; t < keys.end - keys.begin; ++t) {
          const float weight = weights[t * width + x];
          const index_t place = (c / width * prefill_keys + keys.begin + t) * width + c % width;
          if (weight != 0) sum += weight * scratch.values[place];
        }
        put(x, c, sum);
      }
  }

  /// Output rows [query][output_stride] of a panel of a head, as they lie.
  [[nodiscard]] HWY_INLINE const float* output_of(index_t head, index_t panel) const {
    return scratch.output + column(head, panel) * scratch.output_stride;
  }

  /// Calls with(first row, end, address of the output rows of each head) for every panel; `task` has the outputs.
  template <class Task, class With>
  HWY_INLINE void for_each_panel(const Task& task, With&& with) const {
    const float* outputs[prefill_heads];
    for (index_t panel = 0, first = 0; first < rows; ++panel, first += panel_width()) {
      for (index_t h = 0; h < heads; ++h) outputs[h] = task.output_of(h, panel);
      with(first, (std::min)(first + panel_width(), rows), outputs);
    }
  }

  template <class Task>
  HWY_NOINLINE void write_rows(const Task& task) const {
    constexpr index_t rows_ahead = 8;
    for_each_panel(task, [&](index_t first, index_t end, const float* const* outputs) HWY_ATTR {
      for (index_t r = first; r < end; ++r) {
        const bool is_token = r >= tokens.begin && r < tokens.end;
        for (index_t h = 0; h < heads; ++h) {
          const index_t head = head_of(h, r), row = query_of(r);
          if (r + rows_ahead < rows)
            fetch_to_write(problem.out.row(query_of(r + rows_ahead), head_of(h, r + rows_ahead)),
                           problem.value_dim * bytes_of(problem.out.type));
          const index_t at = column(h, 0) + r;
          finish_row(
              problem, head, row,
              {scratch.largest[at], scratch.total[at], outputs[h] + (r - first) * scratch.output_stride,
               is_token, is_token ? bias_left_out(problem, head, scratch.nearest[r]) : 0});
        }
      }
    });
  }

  /// The state of every row of a stack, for merge_partials.
  template <class Task>
  HWY_NOINLINE void write_partials(const Task& task, float* to) const {
    const index_t channels = round_up(problem.value_dim, panel_width());
    for_each_panel(task, [&](index_t first, index_t end, const float* const* outputs) HWY_ATTR {
      for (index_t r = first; r < end; ++r, to += partial_stride(problem)) {
        std::copy_n(outputs[0] + (r - first) * scratch.output_stride, channels, to);
        to[channels] = scratch.largest[r];
        to[channels + 1] = scratch.total[r];
      }
    });
  }

  /// Rows of a run of keys that some query of a panel sees, and those that every query sees by mask and window.
  struct panel_sight {
    row_range some{}, all{};
  };
  /// Sets the bounds of every query in a run of keys.
  HWY_NOINLINE void look_at(const key_run& run) const {
    for (index_t r = tokens.begin; r < tokens.end; ++r)
      scratch.seen[r] = bounds_in(problem, query_of(r), run);
  }
  HWY_INLINE panel_sight sight_of_panel(index_t panel, const key_run& run) const {
    panel_sight result{{run.begin, run.begin}, {run.begin, run.end}};
    const row_range here = panel_rows(panel);
    for (index_t r = here.begin; r < here.end; ++r) {
      const row_bounds& seen = scratch.seen[r];
      result.some = hull_of(result.some, hull_of(seen.base, seen.open));
      result.all = intersection(result.all, seen.base);
    }
    return result;
  }

  /// Keys and values of a tile into scratch; false where a value is infinite or NaN.
  HWY_NOINLINE bool load_tile(index_t first, index_t count) const {
    loader.load_keys(kv_head, first, count, growth_origin, scratch.keys);
    return load_values(problem, kv_head, first, count, prefill_keys, scratch.values);
  }

  /// All keys of one run of consecutive positions; `task` loads tiles, attends to them panel by panel, and ends them.
  template <class Task>
  HWY_NOINLINE void attend_run(Task& task, const key_run& run) const {
    look_at(run);
    panel_sight sights[most_panels];
    row_range whole{run.begin, run.begin};
    for (index_t panel = 0; panel < panels; ++panel) {
      sights[panel] = sight_of_panel(panel, run);
      whole = hull_of(whole, sights[panel].some);
    }
    for (index_t first = whole.begin; first < whole.end;) {
      // Tiles begin where the run does, whoever looks: the bits of a row then do not depend on its neighbours.
      const index_t begin = run.begin + (first - run.begin) / prefill_keys * prefill_keys;
      const index_t count = (std::min)(prefill_keys, run.end - begin);
      const row_range tile{begin, begin + count};
      bool loaded = false, finite_values = true;
      for (index_t panel = 0; panel < panels; ++panel) {
        const row_range seen = intersection(sights[panel].some, tile);
        const row_range here = panel_rows(panel);
        if (is_empty(seen) || is_empty(here)) continue;
        if (!loaded) {
          finite_values = task.load_tile(begin, count);
          loaded = true;
        }
        const bool queries_run =
            stacked == 0 && problem.queries.is_run(first_row + here.begin, here.end - here.begin);
        const tile_facts facts{true, queries_run, finite_values};
        const bool partial = seen.begin < sights[panel].all.begin || seen.end > sights[panel].all.end;
        for (index_t h = 0; h < heads; ++h)
          task.attend(h, panel, begin, {seen.begin - begin, seen.end - begin}, facts, partial);
      }
      if (loaded) task.end_tile();
      first = tile.end;
    }
  }

  /// Keys whose positions are scattered, element by element.
  template <class Task>
  HWY_NOINLINE void attend_scattered(Task& task) const {
    for (index_t first = problem.valid_keys.begin; first < problem.valid_keys.end; first += prefill_keys) {
      const index_t count = (std::min)(prefill_keys, problem.valid_keys.end - first);
      const position_span keys = span_of(problem.keys, first, count);
      bool loaded = false;
      tile_facts facts{false, false, true};
      for (index_t panel = 0; panel < panels; ++panel) {
        const row_range here = panel_rows(panel);
        if (is_empty(here)) continue;
        const position_span queries = span_of(problem.queries, first_row + here.begin, here.end - here.begin);
        const sight seen = sight_of(problem, queries, keys);
        if (seen == sight::none) continue;
        if (!loaded) {
          facts.finite_values = task.load_tile(first, count);
          loaded = true;
        }
        for (index_t h = 0; h < heads; ++h)
          task.attend(h, panel, first, {0, count}, facts, seen == sight::some);
      }
      if (loaded) task.end_tile();
    }
  }

  /// All keys of the task, in order.
  template <class Task>
  HWY_INLINE void attend_keys(Task& task) const {
    if (problem.bias.kind == distance_bias::form::linear)
      for (index_t r = tokens.begin; r < tokens.end; ++r)
        scratch.nearest[r] = nearest_distance(problem, query_of(r));
    if (!problem.runs) attend_scattered(task);
    for (index_t n = 0; n < problem.run_count; ++n) {
      key_run run = problem.runs[n];
      const row_range here = intersection({run.begin, run.end}, split);
      if (is_empty(here)) continue;
      run.first += here.begin - run.begin;
      run.begin = here.begin, run.end = here.end;
      attend_run(task, run);
    }
  }

  /// Everything that panels left for later is done by then.
  HWY_INLINE void end_tile() const {}

  HWY_INLINE void begin() const {
    std::fill_n(scratch.output, heads * panels * panel_width() * scratch.output_stride, 0.0f);
    pack_queries();
  }
  /// All of the task; `to` takes the state of its rows, where their keys are split.
  template <class Task>
  HWY_NOINLINE void run(Task& task, float* to = nullptr) const {
    if (tokens.begin < tokens.end) {
      task.begin();
      attend_keys(task);
    }
    if (to)
      write_partials(task, to);
    else
      write_rows(task);
  }
};

HWY_INLINE prefill_scratch scratch_of(const task_plan& plan, float* memory, const attention_problem& problem,
                                      const packed_head& pack) {
  return prefill_scratch(memory, problem, pack, plan.heads_per_task, plan.rows,
                         plan.pieces > 0 ? block_tile_rows : 1);
}

/// The task of tile `tile` of the queries and chunk `chunk` of the heads, chunks of a KV head side by side.
inline HWY_NOINLINE prefill_task prefill_task_of(const attention_problem& problem, const task_plan& plan,
                                                 const key_loader& loader, float* scratch, index_t tile,
                                                 index_t chunk) {
  const index_t kv_head = chunk / plan.head_chunks, in_group = chunk % plan.head_chunks * plan.heads_per_task;
  const index_t first_row = tile * plan.rows, rows = (std::min)(plan.rows, problem.query_tokens - first_row);
  const row_range tokens{(std::clamp)(problem.valid_queries.begin - first_row, index_t{0}, rows),
                         (std::clamp)(problem.valid_queries.end - first_row, index_t{0}, rows)};
  const bool anchored =
      problem.rotary && problem.keys_are_rotated;  // rotated keys carry the growth from the encoding's origin
  const position origin = anchored
                              ? problem.rotary->growth_origin
                              : (tokens.begin < tokens.end ? problem.queries[first_row + tokens.begin] : 0);
  return {problem,
          loader,
          scratch_of(plan, scratch, problem, loader.pack),
          kv_head,
          kv_head * problem.group + in_group,
          (std::min)(plan.heads_per_task, problem.group - in_group),
          first_row,
          rows,
          plan.rows / panel_width(),
          tokens,
          origin,
          0,
          problem.valid_keys};
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
