// SPDX-License-Identifier: MIT
/// \file
/// The prefill on a matrix unit: the same tasks, tiles, panels and scores as prefill-inl.hpp, both products by blocks of
/// tiles (units/tiles-inl.hpp). Included once per instruction set.
///
///     Sᵀ[key][query]      = K·Qᵀ    A: 32 keys at a time, rotated in float, cut into pieces   B: queries, cut once a task
///     Oᵀ[channel][query] += Vᵀ·P    A: values, transposed once a tile of keys                 B: weights, two keys a word
///
/// Queries stay on the lanes, so nothing is transposed between the products. While the unit multiplies for the panel after
/// and the panel before, the vector unit turns the scores of a panel into weights: two keys after each step of tiles.
/// The largest score of a row is raised only when it grew by more than 8 in powers of two, so O is rescaled rarely; each
/// row decides for itself, and its bits do not depend on its neighbours.
///
/// Numbers that are infinite, NaN or at least 2^60 leave the unit aside for a tile of keys: such keys or queries are
/// multiplied in float, such values one by one where they are seen.
#if defined(POSENC_FUSED_MATRIX_PREFILL_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_MATRIX_PREFILL_INL_HPP
#undef POSENC_FUSED_MATRIX_PREFILL_INL_HPP
#else
#define POSENC_FUSED_MATRIX_PREFILL_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/kernels/prefill-inl.hpp>
#include <posenc/fused/units/amx-inl.hpp>
#include <posenc/fused/units/avx512_bf16-inl.hpp>
#include <posenc/fused/units/emulated-inl.hpp>
#include <posenc/fused/units/machine.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Whether kernels of this instruction set and this processor have a unit.
inline HWY_NOINLINE bool has_unit(fused::matrix_unit unit) {
  using fused::matrix_unit;
  switch (unit) {
    case matrix_unit::automatic:
    case matrix_unit::none:
      return true;
    case matrix_unit::emulated:
      return fits_tiles();
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
    case matrix_unit::avx512_bf16:
      return fused_units::this_processor().has_avx512_bf16;
    case matrix_unit::amx:
      return fused_units::may_use_tiles();
#else
    case matrix_unit::avx512_bf16:
    case matrix_unit::amx:
      return false;
#endif
  }
  return false;
}

/// Pieces of each number that a call lets its products be formed of; 0 for products of floats.
HWY_INLINE index_t pieces_of(const attention_problem& problem) {
  using fused::arithmetic;
  if (problem.callbacks.relative_key || problem.callbacks.relative_value) return 0;
  const storage types[] = {problem.q.type, problem.k.type, problem.v.type, problem.out.type};
  const auto are_all = [&](auto is) { return std::all_of(std::begin(types), std::end(types), is); };
  switch (problem.arithmetic) {
    case arithmetic::automatic:
      if (are_all([](storage type) { return type == storage::bfloat16; })) return 1;
      return are_all([](storage type) { return type == storage::bfloat16 || type == storage::float16; }) ? 2
                                                                                                         : 0;
    case arithmetic::float32:
      return 0;
    case arithmetic::bfloat16:
      return 1;
    case arithmetic::bfloat16x2:
      return 2;
    case arithmetic::bfloat16x3:
      return 3;
  }
  return 0;
}

/// Decides what forms the products of a problem: its storage, what is asked, and the processor; never a timing.
inline HWY_NOINLINE void choose_unit(const attention_problem& problem, task_plan& result) {
  using fused::matrix_unit;
  const index_t pieces = pieces_of(problem);
  matrix_unit unit = problem.unit;
  if (unit == matrix_unit::automatic) {
    unit = matrix_unit::none;
    if (pieces == 1 && fused_units::this_processor().is_fast_at_avx512_bf16 &&
        has_unit(matrix_unit::avx512_bf16))
      unit = matrix_unit::avx512_bf16;
    if (pieces > 0 && has_unit(matrix_unit::amx)) unit = matrix_unit::amx;
  }
  if (pieces == 0 || unit == matrix_unit::none || !has_unit(unit)) return;
  result.unit = unit;
  result.pieces = pieces;
}

/// Columns of a task. Products are so fast that what a tile of keys costs before them has to be shared by more queries than in
/// float; processors with matrix units have the L2 cache for it.
inline constexpr index_t matrix_columns = 2 * prefill_columns;

/// Makes scores of a panel into weights, as operand B of the second product, two keys at a step.
struct weigher {
  const float* scores = nullptr;  ///< [rows][2·lanes()]
  const float* largest = nullptr;
  float* sums = nullptr;  ///< of the weights so far
  std::uint16_t* weights = nullptr;
  index_t rows = 0, next = 0, pieces = 0;

  /// Elements of a piece of the weights.
  static HWY_INLINE index_t piece_size() { return prefill_keys * panel_width(); }
  HWY_INLINE float_vector weight(const float* score, float_vector m) const {
    const float_vector x = hn::Sub(load(score), m);
    return pieces == 1 ? short_exp4_of(x) : exp4_of(x);
  }

  HWY_INLINE void step() {
    if (next >= rows) return;
    const index_t width = panel_width();
    const float* const from = scores + next * width;
    std::uint16_t* const to = weights + next * lanes();
    for (index_t x = 0; x < width; x += lanes()) {
      const float_vector m = load(largest + x);
      const float_vector low = weight(from + x, m), high = weight(from + width + x, m);
      store(hn::Add(load(sums + x), hn::Add(low, high)), sums + x);
      put_words(low, high, pieces, piece_size(), to + x * prefill_keys);
    }
    next += 2;
  }
  HWY_NOINLINE void finish() {
    while (next < rows) step();
  }
};

/// The scratch of a task beside the prefill's.
struct matrix_scratch {
  std::uint16_t *queries, *keys, *values, *weights[2];
  float *scores[2], *sums, *words;
  index_t depth = 0, columns = 0, floats = 0;

  matrix_scratch(float* memory, const prefill_scratch& shared, const packed_head& pack, const task_plan& plan)
      : depth(round_up(pack.steps, tile_depth)), columns(plan.heads_per_task * plan.rows) {
    const index_t width = panel_width(), pieces = plan.pieces;
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 64) + 16;
      return part;
    };
    const auto take_halves = [&](index_t count) {
      return reinterpret_cast<std::uint16_t*>(take(pieces * count / 2));
    };
    queries = take_halves(columns * depth);
    keys = take_halves(prefill_keys * depth);
    values = take_halves(prefill_keys * shared.output_stride);
    for (std::uint16_t*& one : weights) one = take_halves(weigher::piece_size());
    scores[0] = shared.scores, scores[1] = take(prefill_keys * width);
    sums = take(width);
    words = take(tile_rows * lanes());
  }
};

/// A task of the prefill, or of a stack, whose products a matrix unit forms.
struct matrix_task : prefill_task {
  using unit_product = void (*)(const tile_product&, weigher&);

  matrix_scratch own;
  index_t pieces;
  unit_product multiply;

  /// A panel between its two products.
  struct panel_at_work {
    index_t at = 0;    ///< its first column
    row_range keys{};  ///< rows of the tile, whole steps
    index_t slot = 0;  ///< of the scores and weights
  };
  weigher weighs{};                   ///< the scores of `scored`
  panel_at_work scored{}, weighed{};  ///< whose scores are at hand, whose weights are
  bool has_scored = false, has_weighed = false;
  bool huge_queries = false, huge_keys = false;

  static constexpr index_t steps_of_tile = prefill_keys / tile_depth;

  HWY_NOINLINE void begin() {
    prefill_task::begin();
    const index_t steps = loader.pack.steps, depth = own.depth;
    auto exponents = exponents_of(hn::Zero(float_tag()));
    for (index_t n = 0; n < heads * panels * panel_width() * steps; n += lanes())
      exponents = hn::Max(exponents, exponents_of(load(scratch.queries + n)));
    huge_queries = !are_below(huge_number, exponents);
    for (index_t at = 0; at < heads * panels * panel_width(); at += panel_width())
      cut_columns(scratch.queries + at * steps, steps, pieces, own.columns * depth, own.queries + at * depth);
  }

  /// Keys and values of a tile as operands; false where values have to be added one by one.
  HWY_NOINLINE bool load_tile(index_t first, index_t count) {
    huge_keys = huge_queries;
    bool adds_values = true;
    for (index_t t = 0; t < count; t += block_tile_rows) {
      const index_t rows_here = (std::min)(count - t, block_tile_rows);
      if (!huge_keys) {
        loader.load_keys(kv_head, first + t, rows_here, growth_origin, scratch.keys);
        huge_keys = !cut_rows(scratch.keys, loader.pack.stride, rows_here, loader.pack.steps, pieces,
                              prefill_keys * own.depth, huge_number, own.keys + t * own.depth);
      }
      if (adds_values) {
        adds_values =
            load_values(problem, kv_head, first + t, rows_here, block_tile_rows, scratch.values, huge_number);
        cut_values(rows_here, own.values + t / tile_depth * a_tile_size);
      }
    }
    if (huge_keys) loader.load_keys(kv_head, first, count, growth_origin, scratch.keys);
    if (!adds_values) load_values(problem, kv_head, first, count, prefill_keys, scratch.values);
    return adds_values;
  }

  /// The values of one step of keys, transposed: words of two keys, in blocks of lanes() × lanes().
  HWY_NOINLINE void cut_values(index_t rows_here, std::uint16_t* to) const {
    const index_t width = panel_width(), filled = round_up(problem.value_dim, width);
    for (index_t c = 0; c < scratch.output_stride; c += lanes()) {
      float* const from = scratch.values + (c / width * block_tile_rows) * width + c % width;
      std::uint16_t* at = to + c / tile_rows * steps_of_tile * a_tile_size + c % tile_rows * tile_depth;
      for (index_t piece = 0; piece < pieces; ++piece, at += prefill_keys * scratch.output_stride) {
        for (index_t pair = 0; pair < tile_rows; ++pair) {
          const auto cut = [&](index_t row) HWY_ATTR {
            if (row >= rows_here || c >= filled) return nearest_bfloat16(hn::Zero(float_tag()));
            const float_vector x = load(from + row * width);
            const auto rounded = nearest_bfloat16(x);
            if (piece + 1 < pieces) store(rest_of(x, rounded), from + row * width);
            return rounded;
          };
          const auto low = cut(2 * pair);
          store(hn::BitCast(float_tag(), words_of(low, cut(2 * pair + 1))), own.words + pair * lanes());
        }
        for (index_t pair = 0; pair < tile_rows; pair += lanes())
          transpose_block(own.words + pair * lanes(), lanes(), lanes(), reinterpret_cast<float*>(at) + pair,
                          tile_rows, scratch.block);
      }
    }
  }

  /// S of whole steps of keys, while `weighs` goes on.
  HWY_NOINLINE void multiply_scores(index_t at, row_range keys, float* scores) {
    const index_t depth = own.depth, width = panel_width();
    for (index_t t = keys.begin; t < keys.end; t += block_tile_rows)
      multiply({{own.keys + t * depth, tile_rows * depth, prefill_keys * depth},
                {own.queries + at * depth, lanes() * depth, own.columns * depth},
                scores + (t - keys.begin) * width,
                width,
                depth / tile_depth,
                pieces,
                false},
               weighs);
  }
  /// Oᵀ of a panel, while `weighs` goes on.
  HWY_NOINLINE void multiply_values(const panel_at_work& panel) {
    const index_t width = panel_width(), tile_row = steps_of_tile * a_tile_size;
    float* const output = scratch.output + panel.at * scratch.output_stride;
    for (index_t c = 0; c < scratch.output_stride; c += block_tile_rows)
      multiply({{own.values + c / tile_rows * tile_row + panel.keys.begin / tile_depth * a_tile_size,
                 tile_row, prefill_keys * scratch.output_stride},
                {own.weights[panel.slot], prefill_keys * lanes(), weigher::piece_size()},
                output + c * width,
                width,
                (panel.keys.end - panel.keys.begin) / tile_depth,
                pieces,
                true},
               weighs);
  }

  /// One panel: its scores now, its weights and its share of O while panels after it are at work.
  HWY_NOINLINE void attend(index_t head, index_t panel, index_t first_key, row_range keys,
                           const tile_facts& facts, bool partial) {
    const index_t width = panel_width(), at = column(head, panel);
    const row_range whole{keys.begin / tile_depth * tile_depth, round_up(keys.end, tile_depth)};
    const index_t slot = 1 - scored.slot, rows_of_panel = whole.end - whole.begin;
    float* const all = own.scores[slot];
    float* const first = all + (keys.begin - whole.begin) * width;
    const score_panel scores = panel_of(head, panel, first_key, keys, facts, first);
    const sight elements_seen = look_at_elements(scores, scores.scores - first);
    if (elements_seen == sight::none) return;

    const float* const queries = scratch.queries + at * loader.pack.steps;
    if (huge_keys)
      multiply_keys(keys, queries, first);
    else
      multiply_scores(at, whole, all);
    if (has_weighed) multiply_values(weighed);
    end_weights();

    std::fill_n(all, (keys.begin - whole.begin) * width, masked_score);
    std::fill_n(first + scores.keys * width, (whole.end - keys.end) * width, masked_score);
    complete(scores, first, queries, elements_seen, partial);
    raise(all, rows_of_panel, at, facts.finite_values);
    scored = {at, whole, slot}, has_scored = true;
    std::fill_n(own.sums, width, 0.0f);
    weighs = {all, scratch.largest + at, own.sums, own.weights[slot], rows_of_panel, 0, pieces};
    if (facts.finite_values) return;
    weigh_in_place(all);
    has_scored = false;
    const index_t lane = scores.scores - first;
    float* const output = scratch.output + at * scratch.output_stride;
    add_seen_values({lane, lane + scores.queries}, keys, first,
                    [=](index_t x, index_t c, float sum) { output[c * width + x] += sum; });
  }

  /// The weights of `scored` are made, to the last.
  HWY_NOINLINE void end_weights() {
    has_weighed = has_scored;
    if (!has_scored) return;
    weighs.finish();
    add_sums();
    weighed = scored, has_scored = false;
  }
  HWY_INLINE void add_sums() {
    for (index_t x = 0; x < panel_width(); x += lanes()) {
      float* const total = scratch.total + scored.at + x;
      store(hn::Add(load(total), load(own.sums + x)), total);
    }
  }
  /// The weights as floats, in place of the scores.
  HWY_NOINLINE void weigh_in_place(float* scores) {
    const index_t width = panel_width();
    for (index_t x = 0; x < width; x += lanes()) {
      const float_vector m = load(weighs.largest + x);
      float_vector sum = hn::Zero(float_tag());
      for (index_t t = 0; t < weighs.rows; ++t) {
        const float_vector weight = weighs.weight(scores + t * width + x, m);
        store(weight, scores + t * width + x);
        sum = hn::Add(sum, weight);
      }
      store(sum, own.sums + x);
    }
    weighs.next = weighs.rows;
    add_sums();
  }

  /// Raises the largest score of the rows for which it grew much; of huge values, for which it grew at all.
  HWY_NOINLINE void raise(const float* scores, index_t count, index_t at, bool waits) const {
    float* const largest = scratch.largest + at;
    float_vector m0 = load(largest), m1 = load(largest + lanes());
    largest_scores(scores, count, m0, m1);
    const float_vector slack = constant(waits ? 4.0f : 0.0f);  // scores count in powers of four
    raise_lanes(m0, slack, at, 0);
    raise_lanes(m1, slack, at, lanes());
  }
  HWY_INLINE void raise_lanes(float_vector m, float_vector slack, index_t at, index_t x) const {
    const index_t width = panel_width();
    float* const largest = scratch.largest + at + x;
    float* const total = scratch.total + at + x;
    const float_vector old = load(largest);
    const auto grew = hn::Gt(m, hn::Add(old, slack));
    if (hn::AllFalse(float_tag(), grew)) return;
    const float_vector raised = hn::IfThenElse(grew, m, old);
    const float_vector keep = exp4_of(hn::Sub(old, raised));
    store(raised, largest);
    store(hn::Mul(load(total), keep), total);
    float* const output = scratch.output + at * scratch.output_stride + x;
    for (index_t c = 0; c < scratch.output_stride; ++c)
      store(hn::Mul(load(output + c * width), keep), output + c * width);
  }

  HWY_INLINE void end_tile() {
    if (has_weighed) multiply_values(weighed);
    end_weights();
    if (has_weighed) multiply_values(weighed);
    has_weighed = false;
  }

  /// The rows of a panel, transposed back. The values of the last tile are of no use any more.
  [[nodiscard]] HWY_INLINE const float* output_of(index_t head, index_t panel) const {
    const index_t width = panel_width(), stride = scratch.output_stride;
    const float* const from = scratch.output + column(head, panel) * stride;
    float* const to = scratch.values + head * width * stride;
    for (index_t x = 0; x < width; x += lanes())
      for (index_t c = 0; c < stride; c += lanes())
        transpose_block(from + c * width + x, width, lanes(), to + x * stride + c, stride, scratch.block);
    return to;
  }
};
static_assert(prefill_heads * 2 * tile_rows <= prefill_keys, "output_of has room for the rows of all heads");

/// Runs a prefill task on the unit that its plan names.
inline HWY_NOINLINE void run_on_unit(const prefill_task& task, const task_plan& plan, float* memory,
                                     float* to) {
  const matrix_scratch own(memory + task.scratch.floats, task.scratch, task.loader.pack, plan);
  const auto run_by = [&](matrix_task::unit_product multiply) {
    matrix_task work{task, own, plan.pieces, multiply};
    work.run(work, to);
  };
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  if (plan.unit == fused::matrix_unit::amx) {
    const amx_unit::session tiles;
    return run_by(amx_unit::multiply<weigher>);
  }
  if (plan.unit == fused::matrix_unit::avx512_bf16) return run_by(avx512_bf16_unit::multiply<weigher>);
#endif
  run_by(emulated_unit::multiply<weigher>);
}

/// Floats of a worker, for tasks of such a plan.
inline HWY_NOINLINE index_t prefill_floats(const attention_problem& problem, const packed_head& pack,
                                           const task_plan& plan) {
  const prefill_scratch shared = scratch_of(plan, nullptr, problem, pack);
  return shared.floats + (plan.pieces > 0 ? matrix_scratch(nullptr, shared, pack, plan).floats : 0);
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
