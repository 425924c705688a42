// SPDX-License-Identifier: MIT
/// \file
/// Few queries, many keys: the cache is read once, at the speed of memory. Included once per instruction set.
///
/// Since R(i)ᵀR(j0 + t) = (R(i − j0))ᵀ R(t), the queries are rotated once per block of keys, by phases that
/// move on in integers, and key t of every block is rotated in registers by the same small table of R(t) that
/// stays in the L1 cache. A long sequence is cut into splits of keys, by its shape alone, whose
/// results are merged.
#if defined(POSENC_FUSED_DECODE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_DECODE_INL_HPP
#undef POSENC_FUSED_DECODE_INL_HPP
#else
#define POSENC_FUSED_DECODE_INL_HPP
#endif

#include <algorithm>
#include <cstdint>

#include <posenc/fused/kernels/dot-inl.hpp>
#include <posenc/fused/kernels/elements-inl.hpp>
#include <posenc/fused/kernels/finish-inl.hpp>
#include <posenc/fused/kernels/product-inl.hpp>
#include <posenc/fused/kernels/splits-inl.hpp>
#include <posenc/fused/storage/rows-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Keys of a block: as many as leave a block of keys and values of several heads, and what is on its way of the
/// next one, in the L2 cache.
HWY_INLINE index_t decode_keys(const attention_problem& problem) {
  return problem.k.type == storage::float32 ? 32 : most_listed;
}
/// Queries and rows (queries × heads) of a task.
inline constexpr index_t decode_queries = 8, decode_rows = 32;
/// Bytes of keys and values of a block that may be on their way into the L2 cache.
inline constexpr index_t decode_block_bytes = index_t{512} * 1024;
/// Rows and vectors of values that are added up together: wide rather than high, so that values are read in the
/// order of memory.
inline constexpr index_t value_rows = many_registers ? decode_group : (std::min)(decode_group, index_t{2});
inline constexpr int value_vectors = 4;

/// True when the decode kernel can take the problem; the prefill kernel takes every problem.
HWY_INLINE bool fits_decode(const attention_problem& problem) {
  const encoding_callbacks& callbacks = problem.callbacks;
  return problem.query_tokens <= decode_queries && problem.runs && !callbacks.relative_key &&
         !callbacks.relative_value && !problem.rotates_values();
}

/// How a decode rotates its keys.
enum class key_rotation : unsigned char {
  none,       ///< they are taken as they are
  by_steps,   ///< by one table of R(t) for all blocks, the queries by what is left of it
  by_angles,  ///< by the angles of each key: positions do not split (several axes, float32 angles)
  by_call,    ///< by the encoding's own function, in a copy of the block
};
HWY_INLINE key_rotation key_rotation_of(const attention_problem& problem) {
  if (problem.keys_are_rotated) return key_rotation::none;
  if (problem.callbacks.rotate) return key_rotation::by_call;
  if (!problem.rotary) return key_rotation::none;
  return problem.splits_positions ? key_rotation::by_steps : key_rotation::by_angles;
}

/// KV heads of a task. Where the heads of a token lie side by side, a task reads whole tokens, in the order
/// of memory, as long as a block of them fits the L2 cache.
HWY_INLINE index_t decode_kv_heads(const attention_problem& problem) {
  const index_t bytes_of_key =
      row_bytes(problem.k.type, problem.head_dim) + row_bytes(problem.v.type, problem.value_dim);
  const index_t fit = decode_block_bytes / (decode_keys(problem) * bytes_of_key);
  return problem.token_major ? (std::clamp)(fit, index_t{1}, problem.kv_heads) : 1;
}

HWY_INLINE task_plan plan_decode(const attention_problem& problem) {
  task_plan plan;
  plan.decode = true;
  plan.heads_per_task = (std::min)(
      problem.group, (std::max)(index_t{1}, decode_rows / (std::max)(index_t{1}, problem.query_tokens)));
  plan.head_chunks = (problem.group + plan.heads_per_task - 1) / plan.heads_per_task;
  const index_t kv_heads = decode_kv_heads(problem);
  plan.rows = kv_heads * plan.heads_per_task * problem.query_tokens;
  split_keys(problem, (problem.kv_heads + kv_heads - 1) / kv_heads * plan.head_chunks, decode_keys(problem),
             plan);
  return plan;
}

/// The query rows of a decode task: heads in_group … in_group + count − 1 of each of kv_count KV heads, times the
/// queries. A row has a slot; those of a KV head fill whole groups, unless it has one row only.
struct decode_rows_of_task {
  index_t first_kv, kv_count;
  index_t in_group, count;
  index_t queries, group;
  bool copies_keys = false;  ///< one KV head at a time

  [[nodiscard]] index_t rows_of_kv() const { return count * queries; }
  /// One row for each KV head: the rows of several heads make a group.
  [[nodiscard]] bool has_single_rows() const { return rows_of_kv() == 1 && !copies_keys; }
  [[nodiscard]] index_t slots_of_kv() const {
    return has_single_rows() ? 1 : round_up(rows_of_kv(), decode_group);
  }
  [[nodiscard]] index_t rows() const { return kv_count * rows_of_kv(); }
  [[nodiscard]] index_t slots() const { return round_up(kv_count * slots_of_kv(), decode_group); }
  [[nodiscard]] index_t slot(index_t row) const {
    return row / rows_of_kv() * slots_of_kv() + row % rows_of_kv();
  }
  [[nodiscard]] index_t query_of(index_t slot) const { return slot % slots_of_kv() % queries; }
  [[nodiscard]] index_t head_of(index_t slot) const {
    return (first_kv + slot / slots_of_kv()) * group + in_group + slot % slots_of_kv() / queries;
  }
};

/// The scratch of one decode task.
struct decode_scratch {
  float *queries, *rotated, *sums, *scores, *output, *tail, *largest, *total, *keep;
  std::uint64_t *phases, *block_phases;  ///< of each query; of a block of keys
  pair_angles* angles;                   ///< of each query
  row_bounds* seen;                      ///< of each query, in the run of keys at hand
  position* nearest;                     ///< of each query: nearest_distance, where the bias is linear
  row_list *keys, *values;               ///< of three blocks: the one at hand, the next and the one after
  float* block_scales;                   ///< of the rows of blocks at hand
  float* angles_of_keys =
      nullptr;              ///< of the block at hand, where they rotate by_angles: rows as in a table of R(t)
  float* copies = nullptr;  ///< of the block at hand, where they rotate by_call
  row_list* list_of_copies = nullptr;
  index_t output_stride = 0, floats = 0;

  decode_scratch(float* memory, const attention_problem& problem, const packed_head& pack,
                 const task_plan& plan) {
    const index_t slots =
        decode_kv_heads(problem) * round_up(plan.heads_per_task * problem.query_tokens, decode_group);
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 16) + 16;
      return part;
    };
    output_stride = round_up(problem.value_dim, panel_width());
    phases = reinterpret_cast<std::uint64_t*>(take(2 * decode_queries * (pack.second + lanes())));
    block_phases = reinterpret_cast<std::uint64_t*>(take(2 * pack.pairs));
    queries = take(slots * (pack.stride + lanes()));
    rotated = take(slots * (pack.stride + lanes()));
    angles = reinterpret_cast<pair_angles*>(
        take(decode_queries * static_cast<index_t>(sizeof(pair_angles) / sizeof(float))));
    constexpr auto floats_of = [](std::size_t bytes) { return static_cast<index_t>(bytes / sizeof(float)); };
    seen = reinterpret_cast<row_bounds*>(take(decode_queries * floats_of(sizeof(row_bounds))));
    nearest = reinterpret_cast<position*>(take(decode_queries * floats_of(sizeof(position))));
    keys = reinterpret_cast<row_list*>(take(3 * floats_of(sizeof(row_list))));
    values = reinterpret_cast<row_list*>(take(3 * floats_of(sizeof(row_list))));
    const index_t block = decode_keys(problem);
    block_scales = take(decode_group * (std::max)(block_scale_floats(problem.k, block, problem.head_dim),
                                                  block_scale_floats(problem.v, block, problem.value_dim)));
    if (key_rotation_of(problem) == key_rotation::by_angles)
      angles_of_keys = take(block * step_stride(*problem.rotary));
    if (key_rotation_of(problem) == key_rotation::by_call) {
      copies = take(block * pack.stride + lanes());
      list_of_copies = reinterpret_cast<row_list*>(take(floats_of(sizeof(row_list))));
    }
    sums = take(decode_keys(problem) * lanes());
    scores = take(slots * decode_keys(problem) + lanes());
    output = take(slots * output_stride);
    tail = take(decode_keys(problem) * lanes());
    largest = take(slots), total = take(slots), keep = take(slots);
  }
};

/// One split of the keys.
struct decode_task {
  const attention_problem& problem;
  const key_loader& loader;
  decode_scratch scratch;
  decode_rows_of_task rows;
  row_range keys;
  key_rotation rotates = key_rotation_of(problem);

  [[nodiscard]] index_t query_stride() const { return loader.pack.stride + lanes(); }
  /// Where a slot's rotated query begins; channel c (a whole number of vectors) lies c·decode_group farther: in a
  /// group vector c of all rows side by side, so that one pointer leads through a group.
  [[nodiscard]] float* rotated_row(index_t slot) const {
    return scratch.rotated + slot / decode_group * decode_group * query_stride() +
           slot % decode_group * lanes();
  }
  /// The scores of a slot: score t lies t·decode_group farther.
  [[nodiscard]] float* scores_of(index_t slot) const {
    return scratch.scores + slot / decode_group * decode_group * decode_keys(problem) + slot % decode_group;
  }
  [[nodiscard]] index_t phase_stride() const { return loader.pack.second + lanes(); }
  [[nodiscard]] bool is_token(index_t query) const {
    return query >= problem.valid_queries.begin && query < problem.valid_queries.end;
  }

  /// Packs the queries: as they are where keys rotate by_steps (they rotate block by block then), else rotated for good.
  HWY_NOINLINE void pack_queries() const {
    pair_angles angles;
    // Rows that are padding are multiplied with the others and left out at the end: they must hold numbers.
    if (problem.valid_queries.end - problem.valid_queries.begin < problem.query_tokens)
      std::fill_n(scratch.rotated, rows.slots() * query_stride(), 0.0f);
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i) {
      const position here = problem.queries[i];
      if (problem.rotary && rotates != key_rotation::by_steps) {
        // Keys that rotate here leave their attention factor to the queries.
        const double factor = problem.rotary->attention_factor;
        token_angles(*problem.rotary, place_of(problem.queries, i), rotation_side::query,
                     static_cast<float>(loader.rotary ? factor * factor : factor),
                     problem.rotary->growth_origin, angles.cos, angles.sin);
      }
      if (rotates == key_rotation::by_steps) {
        std::fill_n(angles.cos, round_up(loader.pack.pairs, lanes()), 1.0f);
        std::fill_n(angles.sin, round_up(loader.pack.pairs, lanes()), 0.0f);
      }
      HWY_ALIGN float packed[widest_head + 4 * vector_slack];
      for (index_t row = i; row < rows.rows(); row += problem.query_tokens) {
        const index_t slot = rows.slot(row);
        load_query(problem, loader, i, rows.head_of(slot), angles,
                   query_factor(problem, rows.head_of(slot), here), packed);
        std::copy_n(packed, loader.pack.steps, scratch.queries + slot * query_stride());
        float* const rotated = rotated_row(slot);
        for (index_t c = 0; c < loader.pack.steps; c += lanes())
          store(load(packed + c), rotated + c * decode_group);
      }
    }
  }

  /// What changes from one run of consecutive positions to the next: what every query sees of it, and the phases of
  /// every query relative to the run's key at `first`.
  HWY_NOINLINE void begin_run(const key_run& run, index_t first) const {
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i) {
      scratch.seen[i] = bounds_in(problem, i, run);
      if (rotates != key_rotation::by_steps) continue;
      const position distance = problem.queries[i] - (run.first + (first - run.begin));
      for (index_t p = 0; p < loader.pack.pairs; ++p)
        scratch.phases[i * phase_stride() + p] =
            (loader.rotary->phase_per_token[static_cast<std::size_t>(p)] * distance).hi;
    }
  }

  /// The angles that rotate every query to its place relative to the first key of the block at `first`; its phases
  /// move on to the next.
  HWY_NOINLINE void place_queries(index_t first) const {
    const rotation& rotary = *loader.rotary;
    const index_t pairs = loader.pack.pairs;
    const auto factor = static_cast<float>(rotary.attention_factor * rotary.attention_factor);
    for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i) {
      pair_angles& angles = scratch.angles[i];
      if (rotary.growth_per_token.empty()) {
        std::int32_t top[most_pairs + vector_slack];
        std::uint64_t* const phases = scratch.phases + i * phase_stride();
        for (index_t p = 0; p < pairs; ++p) {
          top[p] = top_bits({phases[p], 0});
          phases[p] -= scratch.block_phases[p];
        }
        std::fill_n(top + pairs, vector_slack, 0);
        angles_of_phases(top, pairs, factor, angles.cos, angles.sin);
      } else {
        token_angles(rotary, {problem.queries[i] - problem.keys[first], nullptr}, rotation_side::query,
                     factor, 0, angles.cos, angles.sin);
      }
    }
  }

  /// Rotates the queries of one KV head, or of a group of them, just before they are multiplied.
  HWY_INLINE void turn_queries_before(index_t kv) const {
    if (!rows.has_single_rows()) return turn_queries(kv);
    if (kv % decode_group != 0) return;
    for (index_t head = kv; head < (std::min)(kv + decode_group, rows.kv_count); ++head) turn_queries(head);
  }
  HWY_NOINLINE void turn_queries(index_t kv) const {
    const index_t pairs = loader.pack.pairs, second = loader.pack.second, rows_of_kv = rows.rows_of_kv();
    for (index_t row = 0; row < rows_of_kv; ++row) {
      const index_t slot = kv * rows.slots_of_kv() + row, query = rows.query_of(slot);
      if (!is_token(query)) continue;
      const float* const from = scratch.queries + slot * query_stride();
      const pair_angles& angles = scratch.angles[query];
      float* const to = rotated_row(slot);
      for (index_t p = 0; p < pairs; p += lanes()) {
        float_vector a = load(from + p), b = load(from + second + p);
        rotate_pair(a, b, load(angles.cos + p), load(angles.sin + p));
        store(a, to + p * decode_group);
        store(b, to + (second + p) * decode_group);
      }
    }
  }

  [[nodiscard]] bool all_see(index_t first, index_t count) const {
    for (index_t query = problem.valid_queries.begin; query < problem.valid_queries.end; ++query) {
      const row_range& base = scratch.seen[query].base;
      if (base.begin > first || base.end < first + count) return false;
    }
    return true;
  }

  /// What a vector of scores takes for each row of a group, from one number per row.
  static HWY_INLINE float_vector of_rows(const float* numbers) {
#if HWY_TARGET == HWY_SCALAR
    return load(numbers);
#else
    return hn::LoadDup128(float_tag(), numbers);
#endif
  }

  /// Over all keys whose scores lie in one vector, for each row: `with` of two, in every place of the row.
  template <class With>
  static HWY_INLINE float_vector over_keys(float_vector scores, With&& with) {
    if (lanes() == decode_group) return scores;
    HWY_ALIGN float parts[vector_slack];
    store(scores, parts);
    float_vector result = of_rows(parts);
    for (index_t n = decode_group; n < lanes(); n += decode_group) result = with(of_rows(parts + n), result);
    return result;
  }

  /// Adds the bias by distance to the scores of the group at `slot`.
  HWY_NOINLINE void add_bias(index_t slot, index_t members, index_t first, index_t count) const {
    const distance_bias& bias = problem.bias;
    const bool is_linear = bias.kind == distance_bias::form::linear;
    float* const scores = scores_of(slot);
    // One slope or one number for all keys of a row, in the usual case that they lie to one side.
    HWY_ALIGN float begin[decode_group] = {}, slope[decode_group] = {};
    position distances[decode_group] = {}, nearest[decode_group] = {};
    bool straight = true;
    for (index_t r = 0; r < members; ++r) {
      const index_t head = rows.head_of(slot + r), query = rows.query_of(slot + r);
      if (!is_token(query)) continue;
      distances[r] = problem.queries[query] - problem.keys[first];
      if (is_linear) {
        nearest[r] = scratch.nearest[query];
        straight &= nearest[r] != 0 || distances[r] < 0 || distances[r] >= count - 1;
        const bool behind = nearest[r] > 0 || (nearest[r] == 0 && distances[r] >= 0);
        slope[r] = static_cast<float>((behind ? bias.behind : bias.ahead)[head] * score_unit);
        begin[r] = static_cast<float>(distances[r] - nearest[r]);
      } else {
        straight &= distances[r] - (count - 1) >= bias.last;
        slope[r] = bias_at(bias, head, bias.last, 0);
        begin[r] = 1;
      }
    }
    if (!straight) {
      for (index_t r = 0; r < members; ++r)
        for (index_t t = 0; t < count; ++t)
          scores[t * decode_group + r] += bias_at(bias, rows.head_of(slot + r), distances[r] - t, nearest[r]);
      return;
    }
    const float_tag d;
    const float step = is_linear ? 1.0f / decode_group : 0.0f;
    for (index_t n = 0; n < count * decode_group; n += lanes()) {
      const float_vector key = hn::Floor(hn::Mul(hn::Iota(d, static_cast<float>(n)), constant(step)));
      store(hn::MulAdd(of_rows(slope), hn::Sub(of_rows(begin), key), load(scores + n)), scores + n);
    }
  }

  /// Adds what is decided score by score to the scores of the group at `slot`.
  HWY_NOINLINE void add_elements_of(index_t slot, index_t members, index_t first, index_t count) const {
    float* const scores = scores_of(slot);
    for (index_t r = 0; r < members; ++r) {
      const index_t head = rows.head_of(slot + r), query = rows.query_of(slot + r);
      if (!is_token(query)) continue;
      for (index_t t = 0; t < count; ++t) {
        if (!holds(scratch.seen[query], first + t)) continue;
        float& score = scores[t * decode_group + r];
        const float added = element_at(problem, head, query, first + t);
        score = is_minus_infinity(added) ? masked_score : score + added * static_cast<float>(score_unit);
      }
    }
  }

  /// True where elements may change a score of the block: trees concern the last keys alone.
  [[nodiscard]] bool elements_reach(index_t first, index_t count) const {
    if (!problem.has_elements()) return false;
    const visibility_parts* const parts = problem.elements;
    return problem.callbacks.bias || parts->mask.given() || parts->bias.given() || parts->where ||
           first + count > problem.key_tokens - parts->drafts;
  }

  /// Softcap, bias and mask of the scores of the group at `slot`, then its weights.
  HWY_NOINLINE void weigh(index_t slot, index_t members, index_t first, index_t count, bool all_seen) const {
    const index_t width = lanes(), size = round_up(count * decode_group, width);
    float* const scores = scores_of(slot);
    if (problem.softcap > 0) cap_scores(problem, scores, size);
    if (problem.bias.kind != distance_bias::form::none) add_bias(slot, members, first, count);
    if (elements_reach(first, count)) add_elements_of(slot, members, first, count);
    for (index_t r = 0; r < members && !all_seen; ++r) {
      const index_t query = rows.query_of(slot + r);
      if (!is_token(query)) continue;
      const row_bounds& seen = scratch.seen[query];
      for (index_t t = 0; t < count; ++t)
        if (!holds(seen, first + t)) scores[t * decode_group + r] = masked_score;
    }
    std::fill(scores + count * decode_group, scores + size, masked_score);

    const auto larger = [](float_vector a, float_vector b) HWY_ATTR { return hn::Max(a, b); };
    const auto add = [](float_vector a, float_vector b) HWY_ATTR { return hn::Add(a, b); };
    const float_vector before = of_rows(scratch.largest + slot);
    float_vector largest = before;
    // In this order a NaN leaves the largest as it was on x86; its weight is NaN either way.
    for (index_t n = 0; n < size; n += width) largest = larger(load(scores + n), largest);
    largest = over_keys(largest, larger);
    float_vector sum = hn::Zero(float_tag());
    for (index_t n = 0; n < size; n += width) {
      const float_vector weight = exp4_of(hn::Sub(load(scores + n), largest));
      store(weight, scores + n);
      sum = hn::Add(sum, weight);
    }
    const float_vector keep = exp4_of(hn::Sub(before, largest));
    const float_vector total = hn::MulAdd(of_rows(scratch.total + slot), keep, over_keys(sum, add));
    store_group(keep, scratch.keep + slot);
    store_group(total, scratch.total + slot);
    store_group(largest, scratch.largest + slot);
  }

  static HWY_INLINE void store_group(float_vector value, float* to) {
    HWY_ALIGN float whole[vector_slack];
    store(value, whole);
    std::copy_n(whole, decode_group, to);
  }

  /// Calls `with(slot, members)` for every group of rows of one KV head.
  template <class With>
  HWY_INLINE void for_each_group(index_t kv, With&& with) const {
    const index_t rows_of_kv = rows.rows_of_kv();
    for (index_t r = 0; r < rows_of_kv; r += decode_group)
      with(kv * rows.slots_of_kv() + r, (std::min)(rows_of_kv - r, decode_group));
  }

  [[nodiscard]] HWY_INLINE key_table angles_of_block() const {
    if (rotates == key_rotation::by_angles) return {scratch.angles_of_keys, step_stride(*loader.rotary)};
    return {loader.table, loader.table_stride};
  }

  /// Scores of the rows of one KV head and `count` keys.
  template <pairing Layout, class Reader>
  HWY_INLINE void score_rows(const Reader& reader, const row_list& next, index_t count, index_t kv) const {
    const key_table table = angles_of_block();
    for_each_group(kv, [&](index_t slot, index_t members) HWY_ATTR {
      float* const scores = scores_of(slot);
      float* const sums = lanes() == decode_group ? scores : scratch.sums;
      dot_rows<Layout>(members, loader, table, reader, count, rotated_row(slot), sums, next);
      add_parts(sums, count, scores);
    });
  }
  /// The same for the keys at hand, and for a group of KV heads that have a row each.
  template <pairing Layout>
  HWY_INLINE void score(const row_walk& keys_at_hand, index_t count, index_t kv) const {
    const bool single = rows.has_single_rows();
    if (single && kv % decode_group != 0) return;
    const index_t heads = single ? (std::min)(decode_group, rows.kv_count - kv) : 1;
    keys_at_hand.with_reader(count, rows.first_kv + kv, heads, problem.head_dim, scratch.block_scales,
                             [&](const auto& reader) HWY_ATTR {
                               if (!single)
                                 return score_rows<Layout>(reader, keys_at_hand.list(1), count, kv);
                               float* const scores = scores_of(kv);
                               float* const sums = lanes() == decode_group ? scores : scratch.sums;
                               dot_some_heads<Layout>(heads, loader, angles_of_block(), reader, count,
                                                      rotated_row(kv), sums, keys_at_hand.list(1));
                               add_parts(sums, count, scores);
                             });
  }

  /// The same with keys that the encoding's own function rotates.
  template <pairing Layout>
  HWY_NOINLINE void score_copies(index_t first, index_t count, index_t kv) const {
    loader.load_keys(rows.first_kv + kv, first, count, 0, scratch.copies);
    row_list& list = *scratch.list_of_copies;
    for (index_t t = 0; t < count; ++t)
      list.rows[t] = reinterpret_cast<const char*>(scratch.copies + t * loader.pack.stride);
    score_rows<Layout>(plain_reader<float>{list, 0, 0}, list, count, kv);
  }

  /// The angles of the keys of a block.
  HWY_NOINLINE void place_keys(index_t first, index_t count) const {
    pair_angles angles;
    for (index_t t = 0; t < count; ++t) {
      token_angles(*loader.rotary, place_of(problem.keys, first + t), rotation_side::key, 1.0f, 0, angles.cos,
                   angles.sin);
      for (index_t p = 0; p < loader.pack.pairs; p += lanes())
        store_step(p, load(angles.cos + p), load(angles.sin + p),
                   scratch.angles_of_keys + t * step_stride(*loader.rotary));
    }
  }

  /// O ← keep·O + weights·V of one KV head over Vectors vectors of columns from c on, the last one in part where Partial.
  template <int Vectors, bool Partial, class Rows>
  HWY_INLINE void add_columns(const Rows& values, index_t count, index_t kv, index_t c) const {
    const index_t rows_of_kv = rows.rows_of_kv(), last = problem.value_dim - c - (Vectors - 1) * lanes();
    const product_shape shape{count, 1, decode_group, 0, scratch.output_stride, last};
    for (index_t r = 0; r < rows_of_kv; r += value_rows) {
      const index_t slot = kv * rows.slots_of_kv() + r;
      rows_product<value_rows, Vectors, Partial>((std::min)(rows_of_kv - r, value_rows), shape,
                                                 scores_of(slot), values, scratch.keep + slot,
                                                 scratch.output + slot * scratch.output_stride + c);
    }
  }

  /// All columns of one KV head.
  template <class Reader>
  HWY_INLINE void add_values(const Reader& reader, const row_list& next, index_t count, index_t kv) const {
    const index_t width = lanes(), end = problem.value_dim;
    const auto from = [&](index_t c) HWY_ATTR { return listed_rows<Reader>{reader, next, c}; };
    index_t c = 0;
    for (; c + value_vectors * width <= end; c += value_vectors * width)
      add_columns<value_vectors, false>(from(c), count, kv, c);
    if constexpr (Reader::loads_parts_fast) {
      if (c + 3 * width < end) return add_columns<4, true>(from(c), count, kv, c);
      if (c + 2 * width < end) return add_columns<3, true>(from(c), count, kv, c);
      if (c + width < end) return add_columns<2, true>(from(c), count, kv, c);
      if (c < end) add_columns<1, true>(from(c), count, kv, c);
    } else {
      if (c + 2 * width <= end) add_columns<2, false>(from(c), count, kv, c), c += 2 * width;
      if (c + width <= end) add_columns<1, false>(from(c), count, kv, c), c += width;
      if (c == end) return;
      for (index_t t = 0; t < count; ++t) store(load_first(reader(t) + c, end - c), scratch.tail + t * width);
      add_columns<1, false>(strided_rows<float>{scratch.tail, width}, count, kv, c);
    }
  }

  /// The same without a product of zero: a weight of zero does not undo a value that is infinite or NaN.
  template <class Reader>
  HWY_NOINLINE void add_seen_values(const Reader& reader, index_t count, index_t kv) const {
    for (index_t r = 0; r < rows.rows_of_kv(); ++r) {
      const index_t slot = kv * rows.slots_of_kv() + r;
      const float* const weights = scores_of(slot);
      for (index_t c = 0; c < problem.value_dim; c += lanes()) {
        float* const to = scratch.output + slot * scratch.output_stride + c;
        float_vector sum = hn::Mul(constant(scratch.keep[slot]), load(to));
        for (index_t t = 0; t < count; ++t)
          if (weights[t * decode_group] != 0)
            sum = hn::MulAdd(constant(weights[t * decode_group]),
                             load_first(reader(t) + c, problem.value_dim - c), sum);
        store(sum, to);
      }
    }
  }

  /// Multiplies the weights of one KV head by the scales of their values, one for each token.
  HWY_NOINLINE void scale_weights(const row_walk& values, index_t count, index_t kv) const {
    const index_t head_bytes = (rows.first_kv + kv) * values.piece().scales.head_bytes;
    const row_list& list = values.list(0);
    for_each_group(kv, [&](index_t slot, index_t members) {
      float* const weights = scores_of(slot);
      for (index_t t = 0; t < count; ++t) {
        const float scale = *reinterpret_cast<const float*>(list.scales[t] + head_bytes);
        for (index_t r = 0; r < members; ++r) weights[t * decode_group + r] *= scale;
      }
    });
  }

  /// Asks for the pages of the kv-th share of the rows `ahead` blocks on. A core hardly goes on while it looks up an
  /// address; it looks up a few together in the time of one.
  HWY_INLINE void fetch_pages_of(const row_walk& walk, index_t ahead, index_t kv) const {
    const index_t block = decode_keys(problem);
    const row_layout& layout = walk.piece().rows;
    const index_t heads_of_page = strides_of_page(layout.head_bytes);
    index_t tokens_of_page = strides_of_page(layout.token_bytes);
    if (layout.page_tokens > 0) tokens_of_page = (std::min)(tokens_of_page, layout.page_tokens);
    for (index_t t = block * kv / rows.kv_count; t < block * (kv + 1) / rows.kv_count; t += tokens_of_page)
      for (index_t head = 0; head < rows.kv_count; head += heads_of_page)
        fetch_page(walk.list(ahead).rows[t] + (rows.first_kv + head) * layout.head_bytes);
  }

  /// All blocks of the split. While a block is multiplied the same place of the next one is prefetched: requests
  /// then come as evenly as they can be answered. Its pages come before: those of values while the keys are
  /// multiplied, those of keys with the values of the block before.
  template <pairing Layout>
  HWY_NOINLINE void walk(bool finite_values) const {
    const index_t block = decode_keys(problem);
    row_walk key_walk(problem.k, block, problem.valid_keys.end, scratch.keys),
        value_walk(problem.v, block, problem.valid_keys.end, scratch.values);
    for (index_t n = 0; n < problem.run_count; ++n) {
      const key_run& run = problem.runs[n];
      row_range part = intersection(keys, {run.begin, run.end});
      while (!is_empty(part)) {
        // Consecutive positions, and keys and values in one piece each.
        const index_t end = (std::min)({part.end, key_walk.begin(part.begin), value_walk.begin(part.begin)});
        begin_run(run, part.begin);
        for (index_t first = part.begin; first < end; first += block) {
          if (first > part.begin) key_walk.move_on(), value_walk.move_on();
          attend_block<Layout>(key_walk, value_walk, first, (std::min)(block, end - first), finite_values);
        }
        part.begin = end;
      }
    }
  }

  template <pairing Layout>
  HWY_INLINE void attend_block(const row_walk& key_walk, const row_walk& value_walk, index_t first,
                               index_t count, bool finite_values) const {
    list_scales(problem.k, first, count, key_walk.list(0));
    list_scales(problem.v, first, count, value_walk.list(0));
    if (rotates == key_rotation::by_steps) place_queries(first);
    if (rotates == key_rotation::by_angles) place_keys(first, count);
    for (index_t kv = 0; kv < rows.kv_count; ++kv) {
      if (rotates == key_rotation::by_steps) turn_queries_before(kv);
      fetch_pages_of(value_walk, 1, kv);
      if (rotates == key_rotation::by_call)
        score_copies<Layout>(first, count, kv);
      else
        score<Layout>(key_walk, count, kv);
    }
    const bool all_seen = all_see(first, count);
    if (rows.has_single_rows()) {
      for (index_t kv = 0; kv < rows.kv_count; kv += decode_group)
        weigh(kv, (std::min)(decode_group, rows.kv_count - kv), first, count, all_seen);
    } else {
      for (index_t kv = 0; kv < rows.kv_count; ++kv)
        for_each_group(kv, [&](index_t slot, index_t members)
                               HWY_ATTR { weigh(slot, members, first, count, all_seen); });
    }
    for (index_t kv = 0; kv < rows.kv_count; ++kv) {
      fetch_pages_of(key_walk, 2, kv);
      if (problem.v.type == storage::int8_by_token) scale_weights(value_walk, count, kv);
      value_walk.with_reader(count, rows.first_kv + kv, 1, problem.value_dim, scratch.block_scales,
                             [&](const auto& reader) HWY_ATTR {
                               if (finite_values)
                                 add_values(reader, value_walk.list(1), count, kv);
                               else
                                 add_seen_values(reader, count, kv);
                             });
    }
  }

  /// Whatever a row should not have met shows in the output as infinite or NaN: then all is done again
  /// with care.
  HWY_NOINLINE void attend() const {
    attend_once(true);
    if (!all_finite(scratch.output, rows.slots() * scratch.output_stride)) attend_once(false);
  }

  HWY_NOINLINE void attend_once(bool finite_values) const {
    std::fill_n(scratch.output, rows.slots() * scratch.output_stride, 0.0f);
    std::fill_n(scratch.largest, rows.slots(), lowest_score);
    std::fill_n(scratch.total, rows.slots(), 0.0f);
    if (keys.begin >= keys.end) return;
    pack_queries();
    if (problem.bias.kind == distance_bias::form::linear)
      for (index_t i = problem.valid_queries.begin; i < problem.valid_queries.end; ++i)
        scratch.nearest[i] = nearest_distance(problem, i);
    if (rotates == key_rotation::by_steps)
      for (index_t p = 0; p < loader.pack.pairs; ++p)
        scratch.block_phases[p] =
            (loader.rotary->phase_per_token[static_cast<std::size_t>(p)] * decode_keys(problem)).hi;
    if (loader.rotary && loader.rotary->pairing == pairing::interleaved)
      walk<pairing::interleaved>(finite_values);
    else
      walk<pairing::half_split>(finite_values);
  }

  /// The state of every row, for merge_partials.
  HWY_NOINLINE void write_partials(float* to) const {
    for (index_t row = 0; row < rows.rows(); ++row, to += partial_stride(problem)) {
      const index_t slot = rows.slot(row);
      std::copy_n(scratch.output + slot * scratch.output_stride, scratch.output_stride, to);
      to[scratch.output_stride] = scratch.largest[slot];
      to[scratch.output_stride + 1] = scratch.total[slot];
    }
  }

  /// The output rows, where the keys were not split.
  HWY_NOINLINE void write_rows() const {
    for (index_t row = 0; row < rows.rows(); ++row) {
      const index_t slot = rows.slot(row), query = rows.query_of(slot), head = rows.head_of(slot);
      finish_row(problem, head, query,
                 {scratch.largest[slot], scratch.total[slot], scratch.output + slot * scratch.output_stride,
                  is_token(query), left_out(problem, head, query)});
    }
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
