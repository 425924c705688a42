// SPDX-License-Identifier: MIT
/// \file
/// Few queries against a long cache: limited by how fast keys and values come from memory, each of which is
/// read once. Included once per instruction set.
///
/// R(i)ᵀR(j) = R(j − i), so the angle of key j = j0 + t of a block splits: the query is turned once per block
/// by its distance i − j0 to the block, exactly, and key t by R(t) from one small table. What a key's
/// position is costs nothing that grows with it, and an unrotated cache is read as fast as a rotated one.
///
/// The cache is cut into splits by its length alone; each yields Σ w v, Σ w and the largest score, merged in
/// order.
#if defined(POSENC_FUSED_DECODE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_DECODE_INL_HPP
#undef POSENC_FUSED_DECODE_INL_HPP
#else
#define POSENC_FUSED_DECODE_INL_HPP
#endif

#include <algorithm>

#include <hwy/cache_control.h>

#include <posenc/fused/prefill-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE {

/// Query rows up to which a call counts as decode.
inline constexpr index_t decode_rows = 4;
/// Keys of a block: what turning the queries to a block costs is shared by so many.
inline constexpr index_t decode_keys = 256;
/// Keys of a part of a block: its values, asked for while its keys are scored, still lie in the caches when
/// they are needed, also where rows lie a power of two apart and fall into few cache sets.
inline constexpr index_t decode_part = 32;
/// Queries × heads that are multiplied with a key while it is in registers.
inline constexpr index_t decode_columns = 4;
/// How many keys ahead the next ones are asked for.
inline constexpr index_t prefetch_keys = 16;

/// What a split has summed up for one query row and head.
struct partial_layout {
  index_t output_stride;
  [[nodiscard]] index_t floats() const { return output_stride + 16; }  // the output, then largest and total
};

struct decode_scratch {
  float *queries, *sums, *scores, *state, *keep, *tail;
  index_t floats = 0;

  decode_scratch(float* memory, const problem& call, const packed_head& pack, const partial_layout& partial) {
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 64) + 16;
      return part;
    };
    const index_t group_columns = call.query_tokens * call.group;
    queries = take(call.kv_heads * round_up(group_columns, decode_columns) * pack.stride);
    sums = take(decode_part * decode_columns);
    scores = take(group_columns * decode_part);
    state = take(call.query_tokens * call.heads * partial.floats());
    keep = take(group_columns + 8);
    tail = take(decode_part * lanes());
  }
};

/// Asks for a line in the second-level cache. The first level cannot have as many lines on their way as it
/// takes to keep memory busy: asking for it there halved the speed on Zen 4.
HWY_INLINE void prefetch_line(const void* line) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __builtin_prefetch(line, 0, 2);
#else
  hwy::Prefetch(static_cast<const char*>(line));
#endif
}

template <class T>
HWY_INLINE void prefetch_row(const T* row, index_t channels) {
  for (index_t c = 0; c < channels; c += static_cast<index_t>(64 / sizeof(T))) prefetch_line(row + c);
}

#if !HWY_HAVE_SCALABLE && HWY_TARGET != HWY_SCALAR
/// Four floats: the sums over the lanes of four vectors. Sixteen sums for the price of shuffles alone.
template <class D>
HWY_INLINE void store_block_sums(D d, hn::Vec<D> v, float* to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    store_block_sums(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}
#endif

HWY_INLINE void store_sums(float_vector a0, float_vector a1, float_vector a2, float_vector a3, float* to) {
  const float_tag d;
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(hn::SumOfLanes(d, a0));
  to[1] = hn::GetLane(hn::SumOfLanes(d, a1));
  to[2] = hn::GetLane(hn::SumOfLanes(d, a2));
  to[3] = hn::GetLane(hn::SumOfLanes(d, a3));
#else
  const hn::RepartitionToWide<hn::RebindToUnsigned<float_tag>> pairs;
  const auto both = [d](float_vector x, float_vector y) HWY_ATTR {
    return hn::Add(hn::InterleaveLower(d, x, y), hn::InterleaveUpper(d, x, y));
  };
  const auto low = hn::BitCast(pairs, both(a0, a1)), high = hn::BitCast(pairs, both(a2, a3));
  store_block_sums(d,
                   hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                           hn::BitCast(d, hn::InterleaveUpper(pairs, low, high))),
                   to);
#endif
}

/// Keys that are multiplied with the queries at once: a query is loaded once for both.
inline constexpr index_t keys_at_once = 2;

/// Packed queries of up to four columns, a vector of each in turn: one pointer walks over all of them.
HWY_INLINE const float* columns_at(const float* queries, index_t at) { return queries + at * decode_columns; }

/// The running products of two keys with up to four queries.
template <int Columns>
struct key_products {
  float_vector s0, s1, s2, s3, t0, t1, t2, t3;

  // Written out, because an implicit constructor would not be compiled for the target.
  HWY_INLINE key_products() { s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = hn::Zero(float_tag()); }

  HWY_INLINE void add(float_vector j, float_vector k, const float* queries) {
    const float_vector q0 = load(queries);
    s0 = hn::MulAdd(j, q0, s0), t0 = hn::MulAdd(k, q0, t0);
    if constexpr (Columns > 1) {
      const float_vector q1 = load(queries + lanes());
      s1 = hn::MulAdd(j, q1, s1), t1 = hn::MulAdd(k, q1, t1);
    }
    if constexpr (Columns > 2) {
      const float_vector q2 = load(queries + 2 * lanes());
      s2 = hn::MulAdd(j, q2, s2), t2 = hn::MulAdd(k, q2, t2);
    }
    if constexpr (Columns > 3) {
      const float_vector q3 = load(queries + 3 * lanes());
      s3 = hn::MulAdd(j, q3, s3), t3 = hn::MulAdd(k, q3, t3);
    }
  }

  /// Channels that do not turn; queries hold zeros behind their last one, so that the loads alone cut a
  /// vector short.
  template <class T>
  HWY_INLINE void add_channels(const T* first, const T* second, index_t channels, const float* queries) {
    index_t c = 0;
    for (; c + lanes() <= channels; c += lanes())
      add(load(first + c), load(second + c), columns_at(queries, c));
    if (c < channels)
      add(load_first(first + c, channels - c), load_first(second + c, channels - c), columns_at(queries, c));
  }
};

/// Scores of two key rows against `Columns` packed queries, four floats for each key.
template <int Columns, class T>
HWY_INLINE void score_keys(const T* first, const T* second, step_angles first_angles,
                           step_angles second_angles, const rotation* turns, const packed_head& pack,
                           index_t head_dim, const float* queries, float* scores) {
  key_products<Columns> products;
  if (turns) {
    const index_t pairs = pack.pairs,
                  whole = turns->layout == pairing::half_split ? pairs / lanes() * lanes() : 0;
    const T *const x = first + turns->offset, *const y = second + turns->offset;
    const float* const second_queries = columns_at(queries, pack.second);
    const auto turn_and_add = [&](index_t p, float_vector a, float_vector b, float_vector e,
                                  float_vector f) HWY_ATTR {
      const float_vector c = first_angles.cos(p), s = first_angles.sin(p);
      const float_vector g = second_angles.cos(p), h = second_angles.sin(p);
      products.add(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulSub(e, g, hn::Mul(f, h)), columns_at(queries, p));
      products.add(hn::MulAdd(a, s, hn::Mul(b, c)), hn::MulAdd(e, h, hn::Mul(f, g)),
                   columns_at(second_queries, p));
    };
    index_t p = 0;
    for (; p < whole; p += lanes())  // the usual case, without a question per vector
      turn_and_add(p, load(x + p), load(x + pairs + p), load(y + p), load(y + pairs + p));
    for (; p < pairs; p += lanes()) {
      float_vector a, b, e, f;
      load_pairs(x, turns->layout, pairs, p, a, b);
      load_pairs(y, turns->layout, pairs, p, e, f);
      turn_and_add(p, a, b, e, f);
    }
  }
  const index_t before = turns ? turns->offset : 0, behind = turns ? turns->offset + turns->width : 0;
  products.add_channels(first, second, before, columns_at(queries, pack.before));
  products.add_channels(first + behind, second + behind, head_dim - behind, columns_at(queries, pack.behind));
  store_sums(products.s0, products.s1, products.s2, products.s3, scores);
  store_sums(products.t0, products.t1, products.t2, products.t3, scores + decode_columns);
}

/// A part of a block of keys for one KV head.
struct key_part {
  index_t kv_head, first, count;
  index_t left;   ///< keys from `first` to the end of the block
  index_t step;   ///< where it lies in its block
  bool by_table;  ///< keys turn by the step table, queries have been turned to the block
  bool run;       ///< key positions are consecutive
};

/// One split of the cache for all heads of one sequence.
struct decode_task {
  const problem& call;
  const key_loader& loader;
  decode_scratch scratch;
  partial_layout partial;

  [[nodiscard]] index_t column(index_t row, index_t head) const { return head * call.query_tokens + row; }
  /// Packs of four columns that a KV head has.
  [[nodiscard]] index_t chunks() const {
    return (call.query_tokens * call.group + decode_columns - 1) / decode_columns;
  }
  [[nodiscard]] float* output(index_t at) const { return scratch.state + at * partial.floats(); }
  [[nodiscard]] float& largest(index_t at) const { return output(at)[partial.output_stride]; }
  [[nodiscard]] float& total(index_t at) const { return output(at)[partial.output_stride + 1]; }
  [[nodiscard]] bool is_token(index_t row) const {
    return row >= call.valid_queries.begin && row < call.valid_queries.end;
  }

  /// True where queries are turned per block and keys by the step table.
  [[nodiscard]] bool splits_angles(index_t first, index_t count) const {
    return loader.turns && loader.turns->depends_on_offset_only() && call.keys.is_run(first, count);
  }

  /// Turns all queries: to their own position, or to their distance from `anchor`.
  HWY_NOINLINE void pack_queries(bool by_distance, position anchor) const {
    pair_angles angles;
    HWY_ALIGN float packed[widest_head + 6 * vector_slack];
    for (index_t row = 0; row < call.query_tokens; ++row) {
      const position here = call.queries[row];
      if (call.turns) {
        const auto m = static_cast<float>(call.turns->magnitude);
        if (by_distance)
          token_angles(*call.turns, here - anchor, rotation_side::query, m * m, 0, angles.cos, angles.sin);
        else
          token_angles(*call.turns, here, rotation_side::query, m,
                       call.keys_are_rotated ? call.turns->growth_origin : call.queries[0], angles.cos,
                       angles.sin);
      }
      const float factor = query_factor(call, here);
      for (index_t head = 0; head < call.heads; ++head) {
        load_query(call, loader, row, head, angles, factor, packed);
        for (index_t c = loader.pack.steps; c < loader.pack.stride; ++c) packed[c] = 0;
        const index_t in_group = column(row, head % call.group),
                      chunk = head / call.group * chunks() + in_group / decode_columns;
        float* const to = scratch.queries + chunk * decode_columns * loader.pack.stride +
                          in_group % decode_columns * lanes();
        for (index_t c = 0; c < loader.pack.stride; c += lanes())
          store(load(packed + c), to + c * decode_columns);
      }
    }
  }

  /// Scores of a block of keys of one KV head against four columns, [key][4].
  template <int Columns, class T>
  HWY_NOINLINE void score_rows(const T* keys, const T* values, const key_part& part,
                               const float* queries) const {
    HWY_ALIGN float called[keys_at_once][widest_head + vector_slack];
    HWY_ALIGN float own[keys_at_once][2 * (most_pairs + vector_slack)];
    const rotation* const turns = loader.turns;
    const bool calls_back = !turns && call.calls.rotate && !call.keys_are_rotated;
    const index_t stride = call.k.token_stride;
    for (index_t t = 0; t < part.count; t += keys_at_once) {
      const T* rows[keys_at_once];
      step_angles angles[keys_at_once];
      for (index_t n = 0; n < keys_at_once; ++n) {
        const index_t at = (std::min)(t + n, part.count - 1);  // an odd part ends with one key twice
        rows[n] = keys + at * stride;
        angles[n].row = loader.table + (part.step + at) * loader.table_stride;
        if (turns && !part.by_table) {
          pair_angles alone;
          token_angles(*turns, call.keys[part.first + at], rotation_side::key,
                       static_cast<float>(turns->magnitude), call.queries[0], alone.cos, alone.sin);
          interleave_angles(alone, turns->pairs(), own[n]);
          angles[n].row = own[n];
        }
        if (calls_back) {
          copy_channels(rows[n], call.head_dim, called[n]);
          call.calls.rotate(call.calls.encoding, called[n], call.head_dim, call.keys[part.first + at],
                            rotation_side::key);
        }
        prefetch_row(keys + (std::min)(at + prefetch_keys, part.left - 1) * stride, call.head_dim);
        prefetch_row(values + at * call.v.token_stride, call.value_dim);
      }
      float* const to = scratch.sums + t * decode_columns;
      if (calls_back)
        score_keys<Columns, float>(called[0], called[1], {}, {}, nullptr, loader.pack, call.head_dim, queries,
                                   to);
      else
        score_keys<Columns, T>(rows[0], rows[1], angles[0], angles[1], turns, loader.pack, call.head_dim,
                               queries, to);
    }
  }

  /// The same, then one row of scores per column.
  template <int Columns>
  HWY_NOINLINE void score_block(const key_part& part, const float* queries, float* scores) const {
    with_row(call.k, part.first, part.kv_head, [&](const auto* keys) {
      with_row(call.v, part.first, part.kv_head, [&](const auto* values) {
        score_rows<Columns>(keys, reinterpret_cast<decltype(keys)>(values), part, queries);
      });
    });
    const float_tag d;
    for (index_t t = 0; t < part.count; t += lanes()) {
      float_vector c0, c1, c2, c3;
      hn::LoadInterleaved4(d, scratch.sums + t * decode_columns, c0, c1, c2, c3);
      store(c0, scores + t);
      if constexpr (Columns > 1) store(c1, scores + decode_part + t);
      if constexpr (Columns > 2) store(c2, scores + 2 * decode_part + t);
      if constexpr (Columns > 3) store(c3, scores + 3 * decode_part + t);
    }
  }

  HWY_NOINLINE void add_relative_keys(index_t row, index_t head, index_t first, index_t count,
                                      float* scores) const {
    HWY_ALIGN float query[widest_head + vector_slack];
    HWY_ALIGN float relative[widest_head + vector_slack];
    widen_row(call.q, row, head, call.head_dim, query);
    const position here = call.queries[row];
    const float factor = query_factor(call, here);
    for (index_t t = 0; t < count; ++t) {
      const position there = call.keys[first + t];
      if (!call.sees(here, there)) continue;
      call.calls.relative_key(call.calls.encoding, head, there - here, relative, call.head_dim);
      scores[t] += dot_of(query, relative, call.head_dim) * factor;
    }
  }

  /// Softcap, bias and mask of one column, keys along the lanes; [begin, end) is what may be seen.
  HWY_NOINLINE void finish_scores(index_t row, index_t head, index_t first, index_t count, bool run,
                                  float* scores) const {
    const float_tag d;
    const position here = call.queries[row];
    if (call.softcap > 0) {
      const float_vector cap = constant(static_cast<float>(call.softcap * log2_e));
      for (index_t t = 0; t < count; t += lanes()) store(hn::Mul(tanh_of(load(scores + t)), cap), scores + t);
    }
    const distance_bias& bias = call.bias;
    const position distance = here - call.keys[first];
    if (bias.kind == distance_bias::form::linear && run && distance - count >= 0) {
      const float_vector slope = constant(static_cast<float>(bias.behind[head] * log2_e));
      const float_vector start = constant(static_cast<float>(distance));
      for (index_t t = 0; t < count; t += lanes())
        store(hn::MulAdd(slope, hn::Sub(start, hn::Iota(d, static_cast<float>(t))), load(scores + t)),
              scores + t);
    } else if (bias.kind == distance_bias::form::diagonal && run && distance - count > bias.last) {
      const float_vector end = constant(bias_at(bias, head, bias.last));
      for (index_t t = 0; t < count; t += lanes()) store(hn::Add(load(scores + t), end), scores + t);
    } else if (bias.kind != distance_bias::form::none) {
      for (index_t t = 0; t < count; ++t) scores[t] += bias_at(bias, head, here - call.keys[first + t]);
    }
    if (call.calls.bias)
      for (index_t t = 0; t < count; ++t)
        if (call.sees(here, call.keys[first + t]))
          scores[t] =
              (std::max)(scores[t] + call.calls.bias(call.calls.encoding, head, here, call.keys[first + t]) *
                                         static_cast<float>(log2_e),
                         masked_score);
    if (sight_of(call, {here, here, true}, span_of(call.keys, first, count)) != sight::all)
      for (index_t t = 0; t < count; ++t)
        if (!call.sees(here, call.keys[first + t])) scores[t] = masked_score;
  }

  /// Scores of one column into weights; returns what earlier sums have to be multiplied by.
  HWY_NOINLINE float weigh(index_t count, float* scores, index_t at) const {
    const float_tag d;
    for (index_t t = count; t < round_up(count, lanes()); ++t) scores[t] = masked_score;
    float_vector m = constant(largest(at));
    for (index_t t = 0; t < count; t += lanes()) m = hn::Max(m, load(scores + t));
    m = hn::MaxOfLanes(d, m);
    float_vector sum = hn::Zero(d);
    const float_vector lowest = constant(masked_score);
    for (index_t t = 0; t < count; t += lanes()) {
      const float_vector s = load(scores + t);
      const float_vector w = hn::IfThenElseZero(hn::Gt(s, lowest), exp2_of(hn::Sub(s, m)));
      store(w, scores + t);
      sum = hn::Add(sum, w);
    }
    const float keep = hn::GetLane(exp2_of(hn::Sub(constant(largest(at)), m)));
    total(at) = total(at) * keep + hn::GetLane(hn::SumOfLanes(d, sum));
    largest(at) = hn::GetLane(m);
    return keep;
  }

  /// O = keep·O + w·V for the columns of one KV head.
  template <class T>
  HWY_NOINLINE void add_values(const T* values, index_t columns, index_t first_column, index_t count) const {
    const index_t floats = partial.floats(), half = lanes();
    for (index_t c = 0; c < call.value_dim; c += 2 * half) {
      const index_t left = call.value_dim - c;
      for (index_t r = 0; r < columns; r += block_rows) {
        const index_t rows = (std::min)(columns - r, block_rows);
        const float* const weights = scratch.scores + r * decode_part;
        float* const to = output(first_column + r) + c;
        const product_shape shape{count, decode_part, 1, call.v.token_stride, floats};
        if (left >= 2 * half) {
          product(rows, 2, shape, weights, values + c, scratch.keep + r, to);
          continue;
        }
        if (left >= half) product(rows, 1, shape, weights, values + c, scratch.keep + r, to);
        const index_t at = left >= half ? half : 0, rest = left - at;
        if (rest == 0) continue;
        for (index_t t = 0; t < count; ++t)
          store(load_first(values + t * call.v.token_stride + c + at, rest), scratch.tail + t * half);
        product(rows, 1, {count, decode_part, 1, half, floats}, weights,
                static_cast<const float*>(scratch.tail), scratch.keep + r, to + at);
      }
    }
  }

  /// Scores of all columns of one KV head, [column][key].
  HWY_NOINLINE void score_part(const key_part& part) const {
    const index_t columns = call.query_tokens * call.group;
    for (index_t c = 0; c < columns; c += decode_columns) {
      const float* const queries =
          scratch.queries + (part.kv_head * chunks() * decode_columns + c) * loader.pack.stride;
      float* const scores = scratch.scores + c * decode_part;
      switch ((std::min)(columns - c, decode_columns)) {
        case 1:
          score_block<1>(part, queries, scores);
          break;
        case 2:
          score_block<2>(part, queries, scores);
          break;
        case 3:
          score_block<3>(part, queries, scores);
          break;
        default:
          score_block<4>(part, queries, scores);
          break;
      }
    }
  }

  /// Scores, softmax and values of one part of a block for one KV head.
  HWY_NOINLINE void attend(const key_part& part) const {
    const index_t columns = call.query_tokens * call.group, first_column = part.kv_head * columns;
    score_part(part);
    for (index_t c = 0; c < columns; ++c) {
      const index_t head = part.kv_head * call.group + c / call.query_tokens, row = c % call.query_tokens;
      float* const scores = scratch.scores + c * decode_part;
      if (call.calls.relative_key) add_relative_keys(row, head, part.first, part.count, scores);
      finish_scores(row, head, part.first, part.count, part.run, scores);
      scratch.keep[c] = weigh(part.count, scores, first_column + c);
    }
    with_row(call.v, part.first, part.kv_head,
             [&](const auto* values) { add_values(values, columns, first_column, part.count); });
    if (call.calls.relative_value)
      for (index_t c = 0; c < columns; ++c)
        add_relative_values(call, part.kv_head * call.group + c / call.query_tokens,
                            call.queries[c % call.query_tokens], part.first, part.count,
                            scratch.scores + c * decode_part, 1, output(first_column + c));
  }

  HWY_NOINLINE void attend_block(index_t first, index_t count) const {
    const bool by_table = splits_angles(first, count), run = call.keys.is_run(first, count);
    if (by_table) pack_queries(true, call.keys[first]);
    for (index_t kv_head = 0; kv_head < call.kv_heads; ++kv_head)
      for (index_t step = 0; step < count; step += decode_part)
        attend({kv_head, first + step, (std::min)(decode_part, count - step), count - step, step, by_table,
                run});
  }

  /// True when some query sees some key of the block.
  [[nodiscard]] bool sees_block(index_t first, index_t count) const {
    const position_span keys = span_of(call.keys, first, count);
    for (index_t row = call.valid_queries.begin; row < call.valid_queries.end; ++row)
      if (sight_of(call, {call.queries[row], call.queries[row], true}, keys) != sight::none) return true;
    return false;
  }

  HWY_NOINLINE void run(index_t begin, index_t end) const {
    std::fill_n(scratch.state, call.query_tokens * call.heads * partial.floats(), 0.0f);
    for (index_t at = 0; at < call.query_tokens * call.heads; ++at) largest(at) = masked_score;
    bool packed = false;
    for (index_t first = begin; first < end; first += decode_keys) {
      const index_t count = (std::min)(decode_keys, end - first);
      if (!sees_block(first, count)) continue;
      if (splits_angles(first, count)) {
        packed = false;
      } else if (!packed) {
        pack_queries(false, 0);
        packed = true;
      }
      attend_block(first, count);
    }
  }

  /// The sums of all splits of one head, in order, as its output rows.
  HWY_NOINLINE static void merge_head(const problem& call, const partial_layout& partial,
                                      const float* partials, index_t splits, index_t head) {
    HWY_ALIGN float sum[widest_head + 2 * vector_slack];
    const index_t rows = call.query_tokens, of_split = rows * call.heads * partial.floats();
    for (index_t row = 0; row < rows; ++row) {
      const float* const first = partials + (head * rows + row) * partial.floats();
      float m = masked_score;
      for (index_t s = 0; s < splits; ++s) m = (std::max)(m, first[s * of_split + partial.output_stride]);
      float total = 0;
      std::fill_n(sum, partial.output_stride, 0.0f);
      for (index_t s = 0; s < splits; ++s) {
        const float* const part = first + s * of_split;
        if (!(part[partial.output_stride] > masked_score)) continue;
        const float weight = hn::GetLane(exp2_of(constant(part[partial.output_stride] - m)));
        total += weight * part[partial.output_stride + 1];
        for (index_t c = 0; c < partial.output_stride; c += lanes())
          store(hn::MulAdd(constant(weight), load(part + c), load(sum + c)), sum + c);
      }
      prefill_task::finish_row(
          call, head, row, row >= call.valid_queries.begin && row < call.valid_queries.end, m, total, sum);
    }
  }
};

}  // namespace posenc::inline v0_1::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
