// SPDX-License-Identifier: MIT
/// \file
/// Few queries, many keys: the cache is read once, at the speed of memory. Included once per instruction set.
///
/// Since R(i)ᵀR(j0 + t) = (R(i − j0))ᵀ R(t), the queries are turned once per block of keys, by phases that
/// move on in integers, and key t of every block is turned in registers by the same small table of R(t) that
/// stays in the first-level cache. A long sequence is cut into splits of keys, by its shape alone, whose
/// results are merged.
#if defined(POSENC_FUSED_DECODE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_DECODE_INL_HPP
#undef POSENC_FUSED_DECODE_INL_HPP
#else
#define POSENC_FUSED_DECODE_INL_HPP
#endif

#include <algorithm>
#include <cstdint>

#include <posenc/fused/prefill-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// Keys of a block; at most prefill_keys, whose table of R(t) is used.
inline constexpr index_t decode_keys = 32;
/// Queries and rows (queries × heads) of a task.
inline constexpr index_t decode_queries = 8, decode_rows = 32;
/// Floats of keys and values of a block that may be on their way into the second-level cache.
inline constexpr index_t decode_block_floats = index_t{128} * 1024;
/// Requests for the next keys that go with the softmax of a row, where nothing else is read.
inline constexpr index_t decode_requests = 8;
/// Tasks wanted of one call, and the fewest keys that are worth a split.
inline constexpr index_t decode_tasks = 32, decode_split = 1024;
/// Rows whose products with a block of four keys stay in registers.
inline constexpr index_t dot_rows = many_registers ? 4 : 2;

/// Rows of keys that some query of the call may see.
HWY_INLINE row_range decode_range(const problem& call) {
  const index_t first = call.valid_queries.begin, count = call.valid_queries.end - first;
  if (count <= 0) return {call.valid_keys.begin, call.valid_keys.begin};
  const row_range seen = seen_rows(call, span_of(call.queries, first, count),
                                   span_of(call.keys, 0, call.key_tokens), call.key_tokens);
  const index_t begin = (std::max)(seen.begin, call.valid_keys.begin);
  return {begin, (std::max)(begin, (std::min)(seen.end, call.valid_keys.end))};
}

/// True when the decode kernel can take the call; the prefill kernel takes every call.
HWY_INLINE bool fits_decode(const problem& call) {
  const callbacks& calls = call.calls;
  return call.query_tokens <= decode_queries && call.keys.is_run(0, call.key_tokens) && !calls.bias &&
         !calls.relative_key && !calls.relative_value && !calls.rotate &&
         (!call.turns || call.keys_are_rotated || call.turns->depends_on_offset_only());
}

/// Floats of one row's partial result: its output, padded, then largest and total.
HWY_INLINE index_t partial_stride(const problem& call) {
  return round_up(call.value_dim, panel_width()) + panel_width();
}

/// KV heads of a task. Where the heads of a token lie side by side, a task reads whole tokens, in the order
/// of memory, as long as a block of them fits the second-level cache.
HWY_INLINE index_t decode_kv_heads(const problem& call) {
  const bool token_major =
      call.k.head_stride < call.k.token_stride && call.v.head_stride < call.v.token_stride;
  const index_t fit = decode_block_floats / (decode_keys * (call.head_dim + call.value_dim));
  return token_major ? (std::clamp)(fit, index_t{1}, call.kv_heads) : 1;
}

HWY_INLINE task_plan plan_decode(const problem& call) {
  task_plan plan;
  plan.decode = true;
  plan.heads_per_task =
      (std::min)(call.group, (std::max)(index_t{1}, decode_rows / (std::max)(index_t{1}, call.query_tokens)));
  plan.head_chunks = (call.group + plan.heads_per_task - 1) / plan.heads_per_task;
  const index_t kv_heads = decode_kv_heads(call);
  plan.rows = kv_heads * plan.heads_per_task * call.query_tokens;
  const row_range range = decode_range(call);
  const index_t keys = range.end - range.begin;
  const index_t groups = (call.kv_heads + kv_heads - 1) / kv_heads * plan.head_chunks;
  const index_t splits = (std::clamp)(keys / decode_split, index_t{1}, (decode_tasks + groups - 1) / groups);
  plan.split = round_up((std::max)(index_t{1}, (keys + splits - 1) / splits), decode_keys);
  plan.tiles = (std::max)(index_t{1}, (keys + plan.split - 1) / plan.split);
  plan.tasks = groups * plan.tiles;
  plan.merges = plan.tiles > 1 ? groups : 0;
  return plan;
}

/// Σ over the lanes of a, b, c and d, in that order, to `to`; a whole vector is written.
HWY_INLINE void store_sums_of_lanes(float_vector a, float_vector b, float_vector c, float_vector d,
                                    float* to) {
#if HWY_TARGET == HWY_SCALAR
  store(a, to), store(b, to + 1), store(c, to + 2), store(d, to + 3);
#else
  const float_tag tag;
  const auto fold = [](float_vector low, float_vector high) HWY_ATTR {
    return hn::Add(hn::ConcatEven(float_tag(), high, low), hn::ConcatOdd(float_tag(), high, low));
  };
  float_vector sums = fold(fold(a, b), fold(c, d));
  for (std::size_t left = hn::Lanes(tag) / 4; left > 1; left /= 2) sums = fold(sums, sums);
  store(sums, to);
#endif
}

/// scores[r][0…3] = q_r · k_0…3 for a group of packed queries (decode_task::turned_row) and keys as they lie
/// in memory, turned by rows `step` … step+3 of the table. Whole vectors first: no branch is left in the
/// loops, and every sum stays in a register.
template <int Rows, pairing Layout, class T>
HWY_NOINLINE void dot_four_keys(const key_loader& keys, const T* const* key, index_t step, const float* q,
                                float* scores, index_t scores_stride, block_fetch& ahead) {
  const float_tag d;
  const packed_head pack = keys.pack;
  const index_t width = lanes(), pairs = pack.pairs, whole_pairs = pairs / width * width;
  const index_t offset = pairs > 0 ? keys.turns->offset : 0, behind = offset + 2 * pairs;
  const step_angles first_step = keys.step(step);
  const T *const key0 = key[0], *const key1 = key[1], *const key2 = key[2], *const key3 = key[3];
  const float *const q_first = q, *const q_second = q + pack.second * dot_rows;
  const float_vector zero = hn::Zero(d);
  block_fetch fetch = ahead;

#define POSENC_FOR_EACH_ROW(DO, k) DO(k, 0) DO(k, 1) DO(k, 2) DO(k, 3)
#define POSENC_FOR_EACH_KEY(DO) DO(0) DO(1) DO(2) DO(3)
#define POSENC_START(k) float_vector s##k##0 = zero, s##k##1 = zero, s##k##2 = zero, s##k##3 = zero;
#define POSENC_ADD_PAIR(k, r)                                                    \
  if constexpr (Rows > r) {                                                      \
    s##k##r = hn::MulAdd(a, load(q_first + p * dot_rows + r * width), s##k##r);  \
    s##k##r = hn::MulAdd(b, load(q_second + p * dot_rows + r * width), s##k##r); \
  }
#define POSENC_TURN(k)                                   \
  {                                                      \
    const step_angles at = first_step.later_in_group(k); \
    turn_pair(a, b, at.cos(p), at.sin(p));               \
    POSENC_FOR_EACH_ROW(POSENC_ADD_PAIR, k)              \
    fetch.next(), fetch.next();                          \
  }
#define POSENC_TURN_WHOLE(k)                                   \
  {                                                            \
    float_vector a, b;                                         \
    load_whole_pairs<Layout>(key##k + offset, pairs, p, a, b); \
    POSENC_TURN(k)                                             \
  }
#define POSENC_TURN_PART(k)                              \
  {                                                      \
    float_vector a, b;                                   \
    load_pairs(key##k + offset, Layout, pairs, p, a, b); \
    POSENC_TURN(k)                                       \
  }
#define POSENC_ADD_REST(k, r) \
  if constexpr (Rows > r) s##k##r = hn::MulAdd(x, load(q + (to + c) * dot_rows + r * width), s##k##r);
#define POSENC_REST_WHOLE(k)                        \
  {                                                 \
    const float_vector x = load(key##k + from + c); \
    POSENC_FOR_EACH_ROW(POSENC_ADD_REST, k)         \
    fetch.next();                                   \
  }
#define POSENC_REST_PART(k)                                          \
  {                                                                  \
    const float_vector x = load_first(key##k + from + c, count - c); \
    POSENC_FOR_EACH_ROW(POSENC_ADD_REST, k)                          \
  }
#define POSENC_FINISH(r) \
  if constexpr (Rows > r) store_sums_of_lanes(s0##r, s1##r, s2##r, s3##r, scores + r * scores_stride);

  POSENC_FOR_EACH_KEY(POSENC_START)
  for (index_t p = 0; p < whole_pairs; p += width) {
    POSENC_FOR_EACH_KEY(POSENC_TURN_WHOLE)
  }
  if (const index_t p = whole_pairs; p < pairs) {
    POSENC_FOR_EACH_KEY(POSENC_TURN_PART)
  }
  // The channels that do not turn: those before the rotary slice, then those behind it.
  for (int side = 0; side < 2; ++side) {
    const index_t from = side == 0 ? 0 : behind, to = side == 0 ? pack.before : pack.behind;
    const index_t count = side == 0 ? offset : keys.call.head_dim - behind, whole = count / width * width;
    for (index_t c = 0; c < whole; c += width) {
      POSENC_FOR_EACH_KEY(POSENC_REST_WHOLE)
    }
    if (const index_t c = whole; c < count) {
      POSENC_FOR_EACH_KEY(POSENC_REST_PART)
    }
  }
  ahead = fetch;
  POSENC_FINISH(0) POSENC_FINISH(1) POSENC_FINISH(2) POSENC_FINISH(3)

#undef POSENC_FINISH
#undef POSENC_REST_PART
#undef POSENC_REST_WHOLE
#undef POSENC_ADD_REST
#undef POSENC_TURN_PART
#undef POSENC_TURN_WHOLE
#undef POSENC_TURN
#undef POSENC_ADD_PAIR
#undef POSENC_START
#undef POSENC_FOR_EACH_KEY
#undef POSENC_FOR_EACH_ROW
}

/// dot_four_keys for any number of rows, group after group.
template <pairing Layout, class T>
HWY_INLINE void dot_rows_of(const key_loader& keys, const T* const* key, index_t step, index_t rows,
                            const float* q, index_t q_stride, float* scores, index_t scores_stride,
                            block_fetch& ahead) {
  block_fetch nothing;
  for (index_t r = 0; r < rows; r += dot_rows) {
    // The first rows read the keys from the second level, the others find them in the first.
    block_fetch& fetch = r == 0 ? ahead : nothing;
    const float* const from = q + r * q_stride;
    float* const to = scores + r * scores_stride;
    const index_t count = (std::min)(rows - r, dot_rows);
    if (count == 1) dot_four_keys<1, Layout>(keys, key, step, from, to, scores_stride, fetch);
    if (count == 2) dot_four_keys<2, Layout>(keys, key, step, from, to, scores_stride, fetch);
    if constexpr (dot_rows > 2) {
      if (count == 3) dot_four_keys<3, Layout>(keys, key, step, from, to, scores_stride, fetch);
      if (count == 4) dot_four_keys<4, Layout>(keys, key, step, from, to, scores_stride, fetch);
    }
  }
}

/// The scratch of one decode task.
struct decode_scratch {
  float *queries, *turned, *scores, *output, *tail, *largest, *total, *keep;
  std::uint64_t* phases;
  index_t output_stride = 0, score_stride = 0, floats = 0;

  decode_scratch(float* memory, const problem& call, const packed_head& pack, const task_plan& plan) {
    const index_t rows = plan.rows;
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 16) + 16;
      return part;
    };
    output_stride = round_up(call.value_dim, panel_width());
    score_stride = decode_keys + 2 * lanes();
    phases = reinterpret_cast<std::uint64_t*>(take(2 * decode_queries * (pack.second + lanes())));
    queries = take(rows * (pack.stride + lanes()));
    turned = take(decode_kv_heads(call) * round_up(plan.heads_per_task * call.query_tokens, dot_rows) *
                  (pack.stride + lanes()));
    scores = take(rows * score_stride);
    output = take(rows * output_stride);
    tail = take(decode_keys * lanes());
    largest = take(rows), total = take(rows), keep = take(rows);
  }
};

/// The query heads of a decode task: `count` of each of `kv_count` KV heads.
struct decode_heads {
  index_t first_kv, kv_count;
  index_t in_group, count;

  [[nodiscard]] index_t rows_of_kv(const problem& call) const { return count * call.query_tokens; }
  [[nodiscard]] index_t rows(const problem& call) const { return kv_count * rows_of_kv(call); }
  /// Row (kv·count + h)·queries + i is query i of this head.
  [[nodiscard]] index_t head_of(const problem& call, index_t row) const {
    const index_t head = row / call.query_tokens;
    return (first_kv + head / count) * call.group + in_group + head % count;
  }
};

/// One split of the keys.
struct decode_task {
  const problem& call;
  const key_loader& loader;
  decode_scratch scratch;
  decode_heads heads;
  row_range keys;

  [[nodiscard]] index_t rows() const { return heads.rows(call); }
  [[nodiscard]] index_t query_stride() const { return loader.pack.stride + lanes(); }
  /// Where the turned queries of a KV head begin: groups of dot_rows rows, in a group vector c of all rows side
  /// by side, so that one pointer leads through a group.
  [[nodiscard]] float* turned_rows_of_kv(index_t kv) const {
    return scratch.turned + kv * round_up(heads.rows_of_kv(call), dot_rows) * query_stride();
  }
  /// Where a row's turned query begins; channel c (a whole number of vectors) lies c·dot_rows farther.
  [[nodiscard]] float* turned_row(index_t row) const {
    const index_t kv = row / heads.rows_of_kv(call), r = row % heads.rows_of_kv(call);
    return turned_rows_of_kv(kv) + r / dot_rows * dot_rows * query_stride() + r % dot_rows * lanes();
  }
  [[nodiscard]] index_t phase_stride() const { return loader.pack.second + lanes(); }
  [[nodiscard]] bool is_token(index_t query) const {
    return query >= call.valid_queries.begin && query < call.valid_queries.end;
  }

  /// Packs the queries: as they are where keys turn on load (they turn block by block then), else turned for
  /// good.
  HWY_NOINLINE void pack_queries() const {
    pair_angles angles;
    std::fill_n(scratch.queries, rows() * query_stride(), 0.0f);
    std::fill_n(scratch.turned, heads.kv_count * round_up(heads.rows_of_kv(call), dot_rows) * query_stride(),
                0.0f);
    for (index_t i = call.valid_queries.begin; i < call.valid_queries.end; ++i) {
      const position here = call.queries[i];
      if (call.turns && !loader.turns)
        token_angles(*call.turns, here, rotation_side::query, static_cast<float>(call.turns->magnitude),
                     call.turns->growth_origin, angles.cos, angles.sin);
      if (loader.turns) {
        std::fill_n(angles.cos, round_up(loader.pack.pairs, lanes()), 1.0f);
        std::fill_n(angles.sin, round_up(loader.pack.pairs, lanes()), 0.0f);
        for (index_t p = 0; p < loader.pack.pairs; ++p)
          scratch.phases[i * phase_stride() + p] =
              (loader.turns->turns_per_token[static_cast<std::size_t>(p)] * (here - call.keys[keys.begin]))
                  .hi;
      }
      const float factor = query_factor(call, here);
      HWY_ALIGN float packed[widest_head + 4 * vector_slack];
      for (index_t row = i; row < rows(); row += call.query_tokens) {
        load_query(call, loader, i, heads.head_of(call, row), angles, factor, packed);
        std::copy_n(packed, loader.pack.steps, scratch.queries + row * query_stride());
        float* const turned = turned_row(row);
        for (index_t c = 0; c < loader.pack.steps; c += lanes())
          store(load(packed + c), turned + c * dot_rows);
      }
    }
  }

  /// Turns every query to its place relative to the first key of the block at `first`, and its phases on to
  /// the next.
  HWY_NOINLINE void turn_queries(index_t first) const {
    const rotation& turns = *loader.turns;
    const index_t pairs = loader.pack.pairs;
    const auto magnitude = static_cast<float>(turns.magnitude * turns.magnitude);
    pair_angles angles;
    for (index_t i = call.valid_queries.begin; i < call.valid_queries.end; ++i) {
      if (turns.growth_per_token.empty()) {
        std::int32_t top[most_pairs + vector_slack];
        std::uint64_t* const phases = scratch.phases + i * phase_stride();
        for (index_t p = 0; p < pairs; ++p) {
          top[p] = top_bits({phases[p], 0});
          phases[p] -= block_phases[p];
        }
        std::fill_n(top + pairs, vector_slack, 0);
        angles_of_phases(top, pairs, magnitude, angles.cos, angles.sin);
      } else {
        token_angles(turns, call.queries[i] - call.keys[first], rotation_side::query, magnitude, 0,
                     angles.cos, angles.sin);
      }
      for (index_t row = i; row < rows(); row += call.query_tokens) {
        const float* const from = scratch.queries + row * query_stride();
        float* const to = turned_row(row);
        for (index_t p = 0; p < pairs; p += lanes()) {
          float_vector a = load(from + p), b = load(from + loader.pack.second + p);
          turn_pair(a, b, load(angles.cos + p), load(angles.sin + p));
          store(a, to + p * dot_rows);
          store(b, to + (loader.pack.second + p) * dot_rows);
        }
      }
    }
  }

  /// Keys of the block at `first` that a query sees.
  HWY_INLINE row_range seen_by(index_t query, index_t first, index_t count) const {
    const position distance = problem::within_limits(call.queries[query] - call.keys[first]);
    row_range seen{0, count};
    if (call.farthest_ahead != problem::no_limit)
      seen.end = (std::clamp)(distance + call.farthest_ahead + 1, position{0}, position{count});
    if (call.farthest_behind != problem::no_limit)
      seen.begin = (std::clamp)(distance - call.farthest_behind, position{0}, position{seen.end});
    return seen;
  }
  [[nodiscard]] HWY_INLINE bool all_see(index_t first, index_t count) const {
    for (index_t query = 0; query < call.query_tokens; ++query) {
      const row_range seen = seen_by(query, first, count);
      if (seen.begin > 0 || seen.end < count) return false;
    }
    return true;
  }

  /// Softcap, bias and mask of one row of scores, then its weights.
  HWY_NOINLINE void weigh(index_t row, index_t first, index_t count) const {
    const float_tag d;
    const index_t query = row % call.query_tokens, head = heads.head_of(call, row), width = lanes();
    float* const scores = scratch.scores + row * scratch.score_stride;
    const position distance = call.queries[query] - call.keys[first];
    if (call.softcap > 0) {
      const float_vector cap = constant(static_cast<float>(call.softcap * log2_e));
      for (index_t t = 0; t < count; t += width) store(hn::Mul(tanh_of(load(scores + t)), cap), scores + t);
    }
    const distance_bias& bias = call.bias;
    if (bias.kind == distance_bias::form::linear && (distance < 0 || distance >= count - 1)) {
      const auto slope = static_cast<float>((distance < 0 ? bias.ahead : bias.behind)[head] * log2_e);
      const float_vector start = constant(static_cast<float>(distance));
      for (index_t t = 0; t < count; t += width)
        store(
            hn::MulAdd(constant(slope), hn::Sub(start, hn::Iota(d, static_cast<float>(t))), load(scores + t)),
            scores + t);
    } else if (bias.kind == distance_bias::form::diagonal && distance - (count - 1) >= bias.last) {
      const float_vector end = constant(bias_at(bias, head, bias.last));
      for (index_t t = 0; t < count; t += width) store(hn::Add(load(scores + t), end), scores + t);
    } else if (bias.kind != distance_bias::form::none) {
      for (index_t t = 0; t < count; ++t) scores[t] += bias_at(bias, head, distance - t);
    }
    const row_range seen = seen_by(query, first, count);
    std::fill_n(scores, seen.begin, masked_score);
    std::fill_n(scores + seen.end, round_up(count, width) - seen.end, masked_score);

    float_vector largest = constant(scratch.largest[row]);
    for (index_t t = 0; t < count; t += width) largest = hn::Max(load(scores + t), largest);
    largest = hn::MaxOfLanes(d, largest);
    float_vector sum = hn::Zero(d);
    for (index_t t = 0; t < count; t += width) {
      const float_vector weight = exp2_of(hn::Sub(load(scores + t), largest));
      store(weight, scores + t);
      sum = hn::Add(sum, weight);
    }
    const float keep = hn::GetLane(exp2_of(hn::Sub(constant(scratch.largest[row]), largest)));
    scratch.keep[row] = keep;
    scratch.total[row] = scratch.total[row] * keep + hn::GetLane(hn::SumOfLanes(d, sum));
    scratch.largest[row] = hn::GetLane(largest);
  }

  /// O ← keep·O + weights·V of one KV head over columns [c, c + vectors·lanes) of the block at `first`. Where
  /// some query does not see some key, each row meets its own keys alone: a weight of zero does not undo a value
  /// that is no number.
  template <class T, class Fetch>
  HWY_INLINE void add_values(const T* values, index_t stride, index_t block, index_t count, bool all_seen,
                             index_t kv, index_t c, index_t vectors, Fetch& ahead) const {
    const index_t begin = kv * heads.rows_of_kv(call), end = begin + heads.rows_of_kv(call);
    const auto some_rows = [&](index_t r, index_t most, row_range seen, auto& fetch) HWY_ATTR {
      const product_shape shape{seen.end - seen.begin, scratch.score_stride, 1, stride,
                                scratch.output_stride};
      product((std::min)(end - r, most), vectors, shape,
              scratch.scores + r * scratch.score_stride + seen.begin, values + seen.begin * stride,
              scratch.keep + r, scratch.output + r * scratch.output_stride + c, fetch);
    };
    no_fetch nothing;
    if (!all_seen) {
      for (index_t r = begin; r < end; ++r)
        some_rows(r, 1, seen_by(r % call.query_tokens, block, count), nothing);
      return;
    }
    some_rows(begin, block_rows, {0, count}, ahead);
    for (index_t r = begin + block_rows; r < end; r += block_rows)
      some_rows(r, block_rows, {0, count}, nothing);
  }

  /// All blocks of the split. While keys are multiplied the values of the
  /// block are asked for, and while values are added up the next keys are.
  template <pairing Layout, class T>
  HWY_NOINLINE void walk(const T* k, const T* v) const {
    const index_t width = lanes(), whole = call.value_dim / width * width,
                  rows_of_kv = heads.rows_of_kv(call);
    for (index_t first = keys.begin; first < keys.end; first += decode_keys) {
      const index_t count = (std::min)(decode_keys, keys.end - first);
      block_fetch values_ahead(call.v, {first, first + count}, heads.first_kv, heads.kv_count,
                               call.value_dim);
      if (loader.turns) turn_queries(first);
      for (index_t t = 0; t < count; t += 4) {
        for (index_t kv = 0; kv < heads.kv_count; ++kv) {
          const T* four[4];
          for (index_t n = 0; n < 4; ++n)
            four[n] =
                k + (first + (std::min)(t + n, count - 1)) * call.k.token_stride + kv * call.k.head_stride;
          const index_t row = kv * rows_of_kv;
          dot_rows_of<Layout>(loader, four, t, rows_of_kv, turned_rows_of_kv(kv), query_stride(),
                              scratch.scores + row * scratch.score_stride + t, scratch.score_stride,
                              values_ahead);
        }
      }
      values_ahead.rest();
      const row_range next{first + count, (std::min)(first + count + decode_keys, keys.end)};
      block_fetch keys_ahead(call.k, next, heads.first_kv, heads.kv_count, call.head_dim);
      for (index_t r = 0; r < rows(); ++r) {
        weigh(r, first, count);
        keys_ahead.some(decode_requests);
      }
      const bool all_seen = all_see(first, count);
      for (index_t kv = 0; kv < heads.kv_count; ++kv) {
        const T* const values = v + first * call.v.token_stride + kv * call.v.head_stride;
        for (index_t c = 0; c < whole; c += 2 * width)
          add_values(values + c, call.v.token_stride, first, count, all_seen, kv, c,
                     whole - c > width ? 2 : 1, keys_ahead);
        if (whole < call.value_dim) {
          for (index_t t = 0; t < count; ++t)
            store(load_first(values + t * call.v.token_stride + whole, call.value_dim - whole),
                  scratch.tail + t * width);
          add_values(static_cast<const float*>(scratch.tail), width, first, count, all_seen, kv, whole, 1,
                     keys_ahead);
        }
      }
      keys_ahead.rest();
    }
  }

  HWY_NOINLINE void attend() const {
    std::fill_n(scratch.output, rows() * scratch.output_stride, 0.0f);
    std::fill_n(scratch.largest, rows(), lowest_score);
    std::fill_n(scratch.total, rows(), 0.0f);
    if (keys.begin >= keys.end) return;
    pack_queries();
    if (loader.turns)
      for (index_t p = 0; p < loader.pack.pairs; ++p)
        block_phases[p] = (loader.turns->turns_per_token[static_cast<std::size_t>(p)] * decode_keys).hi;
    with_row(call.k, 0, heads.first_kv, [&]<class T>(const T* k) {
      const T* const v = static_cast<const T*>(call.v.data) + heads.first_kv * call.v.head_stride;
      if (loader.turns && loader.turns->layout == pairing::interleaved)
        walk<pairing::interleaved>(k, v);
      else
        walk<pairing::half_split>(k, v);
    });
  }

  /// The state of every row, for merge_partials.
  HWY_NOINLINE void write_partials(float* to) const {
    for (index_t r = 0; r < rows(); ++r, to += partial_stride(call)) {
      std::copy_n(scratch.output + r * scratch.output_stride, scratch.output_stride, to);
      to[scratch.output_stride] = scratch.largest[r];
      to[scratch.output_stride + 1] = scratch.total[r];
    }
  }

  /// The output rows, where the keys were not split.
  HWY_NOINLINE void write_rows() const {
    for (index_t r = 0; r < rows(); ++r) {
      const index_t query = r % call.query_tokens;
      prefill_task::finish_row(call, heads.head_of(call, r), query, is_token(query), scratch.largest[r],
                               scratch.total[r], scratch.output + r * scratch.output_stride);
    }
  }

  mutable std::uint64_t block_phases[most_pairs] = {};  ///< phase of decode_keys tokens
};

/// Adds up the partial results of the splits, in their order, in place of the first, and writes the output
/// rows.
inline HWY_NOINLINE void merge_partials(const problem& call, const decode_heads& heads, index_t splits,
                                        index_t split_floats, float* partials) {
  const index_t stride = partial_stride(call), state = round_up(call.value_dim, panel_width());
  for (index_t r = 0; r < heads.rows(call); ++r) {
    float* const sum = partials + r * stride;
    for (index_t split = 1; split < splits; ++split) {
      const float* const next = partials + split * split_floats + r * stride;
      const float largest = (std::max)(sum[state], next[state]);
      const float_vector keep = exp2_of(constant(sum[state] - largest)),
                         add = exp2_of(constant(next[state] - largest));
      for (index_t c = 0; c < state; c += lanes())
        store(hn::MulAdd(load(sum + c), keep, hn::Mul(load(next + c), add)), sum + c);
      sum[state + 1] = sum[state + 1] * hn::GetLane(keep) + next[state + 1] * hn::GetLane(add);
      sum[state] = largest;
    }
    const index_t query = r % call.query_tokens;
    const bool is_token = query >= call.valid_queries.begin && query < call.valid_queries.end;
    prefill_task::finish_row(call, heads.head_of(call, r), query, is_token, sum[state], sum[state + 1], sum);
  }
}

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
