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
/// Tasks wanted of one call, and the fewest keys that are worth a split.
inline constexpr index_t decode_tasks = 32, decode_split = 1024;
/// Rows that a key meets at once.
inline constexpr index_t decode_group = 4;
/// Rows and vectors of values that are added up together: wide rather than high, so that values are read in the
/// order of memory.
inline constexpr index_t value_rows = many_registers ? 4 : 2;
inline constexpr int value_vectors = 4;

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

/// Sums of neighbouring lanes, first those of `low`, then those of `high`.
HWY_INLINE float_vector fold(float_vector low, float_vector high) {
  float_vector even, odd;
  split_neighbours(low, high, even, odd);
  return hn::Add(even, odd);
}

/// Floats that dot_keys leaves per key: four rows' sums in part, lanes()/4 of each.
HWY_INLINE index_t sums_stride() { return (std::max)(lanes(), decode_group); }

/// q_r · k_t, r < Rows, for `count` keys as they lie in memory, turned by rows 0, 1, … of the table, and packed
/// queries (decode_task::turned_row), into `sums`. One key after the other, in the order of memory; what lies
/// `ahead` bytes behind is asked for meanwhile. Whole vectors first: no branch is left in the loops, and every
/// sum stays in a register.
template <int Rows, pairing Layout, class T>
HWY_NOINLINE void dot_keys(const key_loader& keys, const T* key, index_t count, const float* q, float* sums,
                           index_t ahead) {
  static_assert(Rows >= 1 && Rows <= decode_group);
  const float_tag d;
  const packed_head pack = keys.pack;
  const index_t width = lanes(), pairs = pack.pairs, whole_pairs = pairs / width * width;
  const index_t offset = pairs > 0 ? keys.turns->offset : 0, behind = offset + 2 * pairs;
  const index_t head_dim = keys.call.head_dim;
  const index_t token_stride = keys.call.k.token_stride, stride = sums_stride();
  const float* const q_second = q + pack.second * decode_group;
  const float_vector zero = hn::Zero(d);

#define POSENC_FOR_EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define POSENC_ADD_PAIR(r)                                                     \
  if constexpr (Rows > r) {                                                    \
    s##r = hn::MulAdd(a, load(q + p * decode_group + r * width), s##r);        \
    s##r = hn::MulAdd(b, load(q_second + p * decode_group + r * width), s##r); \
  }
#define POSENC_ADD_REST(r) \
  if constexpr (Rows > r) s##r = hn::MulAdd(x, load(q_row + c * decode_group + r * width), s##r);

// `channels` channels from `from` on that do not turn.
#define POSENC_DO_NOT_TURN(from, to, channels)                  \
  {                                                             \
    const T* const row = key + (from);                          \
    const float* const q_row = q + (to)*decode_group;           \
    const index_t whole = (channels) / width * width;           \
    for (index_t c = 0; c < whole; c += width) {                \
      const float_vector x = load(row + c);                     \
      POSENC_FOR_EACH_ROW(POSENC_ADD_REST)                      \
      fetch_ahead(row, c, ahead);                               \
    }                                                           \
    if (const index_t c = whole; c < (channels)) {              \
      const float_vector x = load_first(row + c, (channels)-c); \
      POSENC_FOR_EACH_ROW(POSENC_ADD_REST)                      \
    }                                                           \
  }

  for (index_t t = 0; t < count; ++t, key += token_stride, sums += stride) {
    const step_angles step = keys.step(t);
    const T* const slice = key + offset;
    float_vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, a, b;
    for (index_t p = 0; p < whole_pairs; p += width) {
      load_whole_pairs<Layout>(slice, pairs, p, a, b);
      float_vector cosine = step.cos(p), sine = step.sin(p);
      keep_in_register(a), keep_in_register(b), keep_in_register(cosine), keep_in_register(sine);
      turn_pair(a, b, cosine, sine);
      POSENC_FOR_EACH_ROW(POSENC_ADD_PAIR)
      fetch_ahead(slice, Layout == pairing::half_split ? p : 2 * p, ahead);
      fetch_ahead(slice, Layout == pairing::half_split ? pairs + p : 2 * p + width, ahead);
    }
    if (const index_t p = whole_pairs; p < pairs) {
      load_pairs(slice, Layout, pairs, p, a, b);
      turn_pair(a, b, step.cos(p), step.sin(p));
      POSENC_FOR_EACH_ROW(POSENC_ADD_PAIR)
    }
    if (offset > 0) POSENC_DO_NOT_TURN(0, pack.before, offset)
    if (behind < head_dim) POSENC_DO_NOT_TURN(behind, pack.behind, head_dim - behind)
#if HWY_TARGET == HWY_SCALAR
    store(s0, sums), store(s1, sums + 1), store(s2, sums + 2), store(s3, sums + 3);
#else
    store(fold(fold(s0, s1), fold(s2, s3)), sums);
#endif
  }

#undef POSENC_DO_NOT_TURN
#undef POSENC_ADD_REST
#undef POSENC_ADD_PAIR
#undef POSENC_FOR_EACH_ROW
}

/// dot_keys for a number of rows known at run time.
template <pairing Layout, class T>
HWY_INLINE void dot_rows(index_t rows, const key_loader& keys, const T* key, index_t count, const float* q,
                         float* sums, index_t ahead) {
  if (rows == 1) return dot_keys<1, Layout>(keys, key, count, q, sums, ahead);
  if (rows == 2) return dot_keys<2, Layout>(keys, key, count, q, sums, ahead);
  if (rows == 3) return dot_keys<3, Layout>(keys, key, count, q, sums, ahead);
  return dot_keys<4, Layout>(keys, key, count, q, sums, ahead);
}

/// The scores of `rows` rows and `count` keys from what dot_keys left in `sums`, which is used up: all parts of a
/// sum are added, then the rows, which lie side by side for each key, are taken apart.
inline HWY_NOINLINE void collect_scores(float* sums, index_t count, index_t rows, float* scores,
                                        index_t scores_stride) {
  const index_t width = lanes();
  index_t vectors = round_up(count, (std::max)(width, index_t{1}));
  std::fill_n(sums + count * sums_stride(), (vectors - count) * sums_stride(), 0.0f);
#if HWY_TARGET == HWY_SCALAR
  for (index_t t = 0; t < vectors; ++t)
    for (index_t r = 0; r < rows; ++r) scores[r * scores_stride + t] = sums[t * decode_group + r];
#else
  for (index_t parts = width / decode_group; parts > 1; parts /= 2) {
    vectors /= 2;
    for (index_t n = 0; n < vectors; ++n)
      store(fold(load(sums + 2 * n * width), load(sums + (2 * n + 1) * width)), sums + n * width);
  }
  for (index_t n = 0; n < vectors; n += decode_group) {
    const float* const four = sums + n * width;
    float_vector even0, odd0, even1, odd1, row0, row1, row2, row3;
    split_neighbours(load(four), load(four + width), even0, odd0);
    split_neighbours(load(four + 2 * width), load(four + 3 * width), even1, odd1);
    split_neighbours(even0, even1, row0, row2);
    split_neighbours(odd0, odd1, row1, row3);
    float* const to = scores + n / decode_group * width;
    store(row0, to);
    if (rows > 1) store(row1, to + scores_stride);
    if (rows > 2) store(row2, to + 2 * scores_stride);
    if (rows > 3) store(row3, to + 3 * scores_stride);
  }
#endif
}

/// The scratch of one decode task.
struct decode_scratch {
  float *queries, *turned, *sums, *scores, *output, *tail, *largest, *total, *keep;
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
    turned = take(decode_kv_heads(call) * round_up(plan.heads_per_task * call.query_tokens, decode_group) *
                  (pack.stride + lanes()));
    sums = take(round_up(decode_keys, lanes()) * sums_stride());
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
  /// Where the turned queries of a KV head begin: groups of decode_group rows, in a group vector c of all rows side
  /// by side, so that one pointer leads through a group.
  [[nodiscard]] float* turned_rows_of_kv(index_t kv) const {
    return scratch.turned + kv * round_up(heads.rows_of_kv(call), decode_group) * query_stride();
  }
  /// Where a row's turned query begins; channel c (a whole number of vectors) lies c·decode_group farther.
  [[nodiscard]] float* turned_row(index_t row) const {
    const index_t kv = row / heads.rows_of_kv(call), r = row % heads.rows_of_kv(call);
    return turned_rows_of_kv(kv) + r / decode_group * decode_group * query_stride() +
           r % decode_group * lanes();
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
    std::fill_n(scratch.turned,
                heads.kv_count * round_up(heads.rows_of_kv(call), decode_group) * query_stride(), 0.0f);
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
          store(load(packed + c), turned + c * decode_group);
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
          store(a, to + p * decode_group);
          store(b, to + (loader.pack.second + p) * decode_group);
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

  /// Scores of the rows of one KV head and `count` keys of the block that begins at `key`.
  template <pairing Layout, class T>
  HWY_INLINE void score(const T* key, index_t count, index_t kv, index_t ahead) const {
    const index_t rows_of_kv = heads.rows_of_kv(call);
    for (index_t r = 0; r < rows_of_kv; r += decode_group) {
      const index_t rows = (std::min)(rows_of_kv - r, decode_group);
      dot_rows<Layout>(rows, loader, key, count, turned_row(kv * rows_of_kv + r), scratch.sums, ahead);
      collect_scores(scratch.sums, count, rows, scratch.scores + (kv * rows_of_kv + r) * scratch.score_stride,
                     scratch.score_stride);
    }
  }

  /// O ← keep·O + weights·V of one KV head over Vectors vectors of columns from c on, of the block at `block`.
  /// Where some query does not see some key, each row meets its own keys alone: a weight of zero does not undo a
  /// value that is no number.
  template <int Vectors, class T>
  HWY_INLINE void add_values(const T* values, index_t stride, index_t block, index_t count, bool all_seen,
                             index_t kv, index_t c, index_t ahead) const {
    const index_t begin = kv * heads.rows_of_kv(call), end = begin + heads.rows_of_kv(call);
    const index_t most = all_seen ? value_rows : 1;
    for (index_t r = begin; r < end; r += most) {
      const row_range seen = all_seen ? row_range{0, count} : seen_by(r % call.query_tokens, block, count);
      const product_shape shape{
          seen.end - seen.begin, scratch.score_stride, 1, stride, scratch.output_stride, ahead};
      rows_product<value_rows, Vectors, true>(
          (std::min)(end - r, most), shape, scratch.scores + r * scratch.score_stride + seen.begin,
          values + seen.begin * stride, scratch.keep + r, scratch.output + r * scratch.output_stride + c);
    }
  }

  /// All columns of one KV head.
  template <class T>
  HWY_INLINE void add_values(const T* values, index_t block, index_t count, bool all_seen, index_t kv,
                             index_t ahead) const {
    const index_t width = lanes(), stride = call.v.token_stride, whole = call.value_dim / width * width;
    index_t c = 0;
    for (; c + value_vectors * width <= whole; c += value_vectors * width)
      add_values<value_vectors>(values + c, stride, block, count, all_seen, kv, c, ahead);
    for (; c + width <= whole; c += width)
      add_values<1>(values + c, stride, block, count, all_seen, kv, c, ahead);
    if (whole == call.value_dim) return;
    for (index_t t = 0; t < count; ++t)
      store(load_first(values + t * stride + whole, call.value_dim - whole), scratch.tail + t * width);
    add_values<1>(static_cast<const float*>(scratch.tail), width, block, count, all_seen, kv, whole, 0);
  }

  /// All blocks of the split. While a block is multiplied the same place of the next one is asked for: requests
  /// then come as evenly as they can be answered.
  template <pairing Layout, class T>
  HWY_NOINLINE void walk(const T* k, const T* v) const {
    for (index_t first = keys.begin; first < keys.end; first += decode_keys) {
      const index_t count = (std::min)(decode_keys, keys.end - first);
      const index_t ahead =
          first + decode_keys < call.valid_keys.end ? decode_keys * static_cast<index_t>(sizeof(T)) : 0;
      const T* const key = k + first * call.k.token_stride;
      const T* const value = v + first * call.v.token_stride;
      if (loader.turns) turn_queries(first);
      for (index_t kv = 0; kv < heads.kv_count; ++kv)
        score<Layout>(key + kv * call.k.head_stride, count, kv, ahead * call.k.token_stride);
      for (index_t r = 0; r < rows(); ++r) weigh(r, first, count);
      const bool all_seen = all_see(first, count);
      for (index_t kv = 0; kv < heads.kv_count; ++kv)
        add_values(value + kv * call.v.head_stride, first, count, all_seen, kv, ahead * call.v.token_stride);
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
