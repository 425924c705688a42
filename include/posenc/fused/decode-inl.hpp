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
/// Queries × heads that are multiplied with a key while it is in registers.
inline constexpr index_t decode_columns = 4;
/// How many keys ahead the next ones are asked for.
inline constexpr index_t prefetch_keys = 4;

/// What a split has summed up for one query row and head.
struct partial_layout {
  index_t output_stride;
  [[nodiscard]] index_t floats() const { return output_stride + 16; }  // the output, then largest and total
};

struct decode_scratch {
  float *queries, *scores, *state, *keep, *tail;
  index_t floats = 0;

  decode_scratch(float* memory, const problem& call, const packed_head& pack, const partial_layout& partial) {
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 64) + 16;
      return part;
    };
    const index_t group_columns = call.query_tokens * call.group;
    queries = take(call.query_tokens * call.heads * pack.stride + lanes());
    scores = take(group_columns * decode_keys);
    state = take(call.query_tokens * call.heads * partial.floats());
    keep = take(group_columns + 8);
    tail = take(decode_keys * lanes());
  }
};

template <class T>
HWY_INLINE void prefetch_row(const T* row, index_t channels) {
  for (index_t c = 0; c < channels; c += static_cast<index_t>(64 / sizeof(T))) hwy::Prefetch(row + c);
}

/// Σ over the lanes of four vectors, stored `stride` apart.
HWY_INLINE void store_sums(float_vector a0, float_vector a1, float_vector a2, float_vector a3, index_t count,
                           float* to, index_t stride) {
  const float_tag d;
  to[0] = hn::GetLane(hn::SumOfLanes(d, a0));
  if (count > 1) to[stride] = hn::GetLane(hn::SumOfLanes(d, a1));
  if (count > 2) to[2 * stride] = hn::GetLane(hn::SumOfLanes(d, a2));
  if (count > 3) to[3 * stride] = hn::GetLane(hn::SumOfLanes(d, a3));
}

/// Scores of one key row against up to four packed queries. `cosines` null: the row is taken as it is.
template <int Columns, class T>
HWY_INLINE void score_key(const T* row, const rotation* turns, const packed_head& pack, index_t head_dim,
                          const float* cosines, const float* sines, const float* queries, float* scores) {
  const float_tag d;
  float_vector s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  const auto add = [&](float_vector k, index_t at) HWY_ATTR {
    s0 = hn::MulAdd(k, load(queries + at), s0);
    if constexpr (Columns > 1) s1 = hn::MulAdd(k, load(queries + pack.stride + at), s1);
    if constexpr (Columns > 2) s2 = hn::MulAdd(k, load(queries + 2 * pack.stride + at), s2);
    if constexpr (Columns > 3) s3 = hn::MulAdd(k, load(queries + 3 * pack.stride + at), s3);
  };
  index_t before = head_dim, behind = head_dim;
  if (turns) {
    for (index_t p = 0; p < pack.pairs; p += lanes()) {
      const float_vector c = load(cosines + p), s = load(sines + p);
      float_vector a, b;
      load_pairs(row + turns->offset, turns->layout, pack.pairs, p, a, b);
      add(hn::MulSub(a, c, hn::Mul(b, s)), p);
      add(hn::MulAdd(a, s, hn::Mul(b, c)), pack.second + p);
    }
    before = turns->offset, behind = turns->offset + turns->width;
  }
  // Queries hold zeros behind their last channel, so a vector that reaches past a slice is cut by its load
  // alone.
  for (index_t c = 0; c < before; c += lanes()) add(load_first(row + c, before - c), pack.rest + c);
  for (index_t c = behind; c < head_dim; c += lanes())
    add(load_first(row + c, head_dim - c), pack.rest + before + c - behind);
  store_sums(s0, s1, s2, s3, Columns, scores, decode_keys);
}

/// One split of the cache for all heads of one sequence.
struct decode_task {
  const problem& call;
  const key_loader& loader;
  decode_scratch scratch;
  partial_layout partial;

  [[nodiscard]] index_t column(index_t row, index_t head) const { return head * call.query_tokens + row; }
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
        float* const to = scratch.queries + column(row, head) * loader.pack.stride;
        load_query(call, loader, row, head, angles, factor, to);
        for (index_t c = loader.pack.steps; c < loader.pack.stride; ++c) to[c] = 0;
      }
    }
  }

  /// Scores of a block of keys of one KV head, four columns at a time.
  template <int Columns>
  HWY_NOINLINE void score_block(index_t kv_head, index_t first, index_t count, bool by_table,
                                const float* queries, float* scores) const {
    pair_angles own;
    HWY_ALIGN float called[widest_head + vector_slack];
    const rotation* const turns = loader.turns;
    const bool calls_back = !turns && call.calls.rotate && !call.keys_are_rotated;
    for (index_t t = 0; t < count; ++t) {
      const float *cosines = loader.step_cos + t * loader.table_stride,
                  *sines = loader.step_sin + t * loader.table_stride;
      if (turns && !by_table) {
        token_angles(*turns, call.keys[first + t], rotation_side::key, static_cast<float>(turns->magnitude),
                     call.queries[0], own.cos, own.sin);
        cosines = own.cos, sines = own.sin;
      }
      if (t + prefetch_keys < count)
        with_row(call.k, first + t + prefetch_keys, kv_head,
                 [&](const auto* row) { prefetch_row(row, call.head_dim); });
      with_row(call.v, first + t, kv_head, [&](const auto* row) { prefetch_row(row, call.value_dim); });
      if (calls_back) {
        widen_row(call.k, first + t, kv_head, call.head_dim, called);
        call.calls.rotate(call.calls.encoding, called, call.head_dim, call.keys[first + t],
                          rotation_side::key);
        score_key<Columns>(static_cast<const float*>(called), nullptr, loader.pack, call.head_dim, nullptr,
                           nullptr, queries, scores + t);
        continue;
      }
      with_row(call.k, first + t, kv_head, [&](const auto* row) HWY_ATTR {
        score_key<Columns>(row, turns, loader.pack, call.head_dim, cosines, sines, queries, scores + t);
      });
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
        const float* const weights = scratch.scores + r * decode_keys;
        float* const to = output(first_column + r) + c;
        const product_shape shape{count, decode_keys, 1, call.v.token_stride, floats};
        if (left >= 2 * half) {
          product(rows, 2, shape, weights, values + c, scratch.keep + r, to);
          continue;
        }
        if (left >= half) product(rows, 1, shape, weights, values + c, scratch.keep + r, to);
        const index_t at = left >= half ? half : 0, rest = left - at;
        if (rest == 0) continue;
        for (index_t t = 0; t < count; ++t)
          store(load_first(values + t * call.v.token_stride + c + at, rest), scratch.tail + t * half);
        product(rows, 1, {count, decode_keys, 1, half, floats}, weights,
                static_cast<const float*>(scratch.tail), scratch.keep + r, to + at);
      }
    }
  }

  HWY_NOINLINE void attend_block(index_t first, index_t count) const {
    const bool by_table = splits_angles(first, count);
    const bool run = call.keys.is_run(first, count);
    if (by_table) pack_queries(true, call.keys[first]);
    const index_t columns = call.query_tokens * call.group;
    for (index_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
      const index_t first_column = kv_head * columns;
      for (index_t c = 0; c < columns; c += decode_columns) {
        const float* const queries = scratch.queries + (first_column + c) * loader.pack.stride;
        float* const scores = scratch.scores + c * decode_keys;
        switch ((std::min)(columns - c, decode_columns)) {
          case 1:
            score_block<1>(kv_head, first, count, by_table, queries, scores);
            break;
          case 2:
            score_block<2>(kv_head, first, count, by_table, queries, scores);
            break;
          case 3:
            score_block<3>(kv_head, first, count, by_table, queries, scores);
            break;
          default:
            score_block<4>(kv_head, first, count, by_table, queries, scores);
            break;
        }
      }
      for (index_t c = 0; c < columns; ++c) {
        const index_t head = kv_head * call.group + c / call.query_tokens, row = c % call.query_tokens;
        float* const scores = scratch.scores + c * decode_keys;
        if (call.calls.relative_key) add_relative_keys(row, head, first, count, scores);
        finish_scores(row, head, first, count, run, scores);
        scratch.keep[c] = weigh(count, scores, first_column + c);
      }
      with_row(call.v, first, kv_head,
               [&](const auto* values) { add_values(values, columns, first_column, count); });
      if (call.calls.relative_value)
        for (index_t c = 0; c < columns; ++c)
          add_relative_values(call, kv_head * call.group + c / call.query_tokens,
                              call.queries[c % call.query_tokens], first, count,
                              scratch.scores + c * decode_keys, 1, output(first_column + c));
    }
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
