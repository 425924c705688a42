// SPDX-License-Identifier: MIT
/// \file
/// The gradient of attention. A task walks over tiles of query rows of a few heads that share a KV head, as the prefill
/// does, and over the keys that they see. Included once per instruction set.
///
/// Per panel of queries and tile of keys: S again, P = 4^(S − log-sum-exp), dP = V·dOᵀ, dS = P∘(dP − D), and then
/// dV += P·dO, dK += dS·Q, dQ += dSᵀ·K: five products by the one micro-kernel, none of which transposes anything in the
/// loop. Queries and dO are packed twice, as columns for the first two products and as rows for the others. dK is
/// summed as keys are packed, rotated, and goes back by the transpose once per key at the end; so does dQ per tile.
///
/// Tasks whose sums meet in a KV head have sums of their own, which are added in order: bits do not depend on threads.
#if defined(POSENC_FUSED_BACKWARD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_BACKWARD_INL_HPP
#undef POSENC_FUSED_BACKWARD_INL_HPP
#else
#define POSENC_FUSED_BACKWARD_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <vector>

#include <posenc/fused/backward_problem.hpp>
#include <posenc/fused/kernels/prefill-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// Channels of a tile of queries, columns (query rows × heads) times both widths: packed twice, with dO and dQ, they
/// stay in the L2 cache.
inline constexpr index_t backward_channels = 65'536;
/// Tasks that a call is cut into where its KV heads are fewer.
inline constexpr index_t backward_tasks = 16;
/// Keys of a task of the merging phase.
inline constexpr index_t merge_keys = 256;
/// A log-sum-exp that leaves no weight.
inline constexpr float nothing_seen = 1e30f;

/// Floats from one key to the next in the sums of dK and of dV.
HWY_INLINE index_t key_sum_stride(const packed_head& pack) { return round_up(pack.steps, panel_width()); }
HWY_INLINE index_t value_sum_stride(const attention_problem& problem) {
  return round_up(problem.value_dim, panel_width());
}
/// Floats of the sums that a task makes for a KV head.
HWY_INLINE index_t backward_sum_floats(const attention_problem& problem, const packed_head& pack) {
  return round_up(problem.key_tokens * (key_sum_stride(pack) + value_sum_stride(problem)), 16);
}

/// Where xPos has grown by 1: one place for all tasks, since their sums meet, in the middle to stay in range.
HWY_INLINE position backward_origin(const attention_problem& problem) {
  if (problem.rotary && problem.keys_are_rotated) return problem.rotary->growth_origin;
  const row_range rows = problem.valid_queries;
  if (rows.begin >= rows.end) return 0;
  return problem.queries[rows.begin] + (problem.queries[rows.end - 1] - problem.queries[rows.begin]) / 2;
}

/// Scratch of a task beside the prefill's.
struct backward_scratch {
  float *query_rows, *up_columns, *up_rows, *d_query, *d_scores, *row_sum, *log_sum_exp, *diagonal;
  float* slopes = nullptr;
  float* d_plain = nullptr;  ///< dq of content terms, which meet the query before its rotation
  index_t up_stride = 0, floats = 0;

  backward_scratch(float* memory, const attention_problem& problem, const packed_head& pack,
                   index_t columns) {
    const index_t width = panel_width();
    up_stride = value_sum_stride(problem) + lanes();
    const auto take = [&](index_t count) {
      float* const part = memory ? memory + floats : nullptr;
      floats += round_up(count, 64) + 16;
      return part;
    };
    query_rows = take(columns * pack.stride);
    up_columns = take(columns * problem.value_dim);
    up_rows = take(columns * up_stride);
    d_query = take(columns * key_sum_stride(pack));
    d_scores = take(prefill_keys * width);
    row_sum = take(columns), log_sum_exp = take(columns);
    diagonal = take(prefill_keys + 2 * width);
    if (problem.softcap > 0) slopes = take(prefill_keys * width);
    if (problem.callbacks.relative_key) d_plain = take(columns * round_up(problem.head_dim, lanes()));
  }
};

/// C += A·B for `rows` rows of C and all of its columns, A and C by their strides.
inline HWY_NOINLINE void add_product(index_t rows, index_t columns, const product_shape& shape,
                                     const float* a, const float* b, float* c) {
  constexpr float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
  for (index_t x = 0; x < columns; x += panel_width())
    for (index_t r = 0; r < rows; r += block_rows)
      product((std::min)(rows - r, block_rows), shape, a + r * shape.a_row, b + x, ones,
              c + r * shape.c_row + x);
}

/// A head's gradient back to the order and the frame of memory.
/// \param angles of the row; null where its rotation is none, or the adjoint's to take back
/// \param sum as heads are packed, rotated
/// \param raw the head as it is in memory
inline HWY_NOINLINE void rotate_head_back(const backward_problem& problem, const packed_head& pack,
                                          const pair_angles* angles, const token_place& place,
                                          rotation_side side, const float* sum, const float* raw, float* to,
                                          double* gradient) {
  const bool is_rotated_key = side == rotation_side::key && problem.keys_are_rotated;
  const rotation* const rotary = is_rotated_key ? nullptr : problem.rotary;
  const bool is_packed = problem.rotary != nullptr && !problem.keys_are_rotated;
  if (!is_packed) {
    std::copy_n(sum, problem.head_dim, to);
  } else {
    const index_t behind = rotary->offset + rotary->rotary_dim;
    std::copy_n(sum + pack.before, rotary->offset, to);
    std::copy_n(sum + pack.behind, problem.head_dim - behind, to + behind);
  }
  if (rotary) {
    const index_t pairs = rotary->pairs();
    float* const slice = to + rotary->offset;
    index_t p = 0;
    if (is_packed && angles && rotary->pairing == pairing::half_split)
      for (; p + lanes() <= pairs; p += lanes()) {
        float_vector a = load(sum + p), b = load(sum + pack.second + p);
        rotate_pair(a, b, load(angles->cos + p), hn::Neg(load(angles->sin + p)));
        store(a, slice + p), store(b, slice + pairs + p);
      }
    for (; p < pairs; ++p) {
      const auto [first, second] = channels_of_pair(rotary->pairing, rotary->rotary_dim, p);
      const float a = is_packed ? sum[p] : slice[first], b = is_packed ? sum[pack.second + p] : slice[second];
      slice[first] = angles ? a * angles->cos[p] + b * angles->sin[p] : a;
      slice[second] = angles ? b * angles->cos[p] - a * angles->sin[p] : b;
    }
  }
  if (problem.adjoint.rotate && !is_rotated_key)
    problem.adjoint.rotate(problem.adjoint.of, raw, to, problem.head_dim, place.token, place.axes, side,
                           gradient);
}

/// Gradients of the keys and values of a KV head: sums added in order, `parts` of them `part_stride` apart.
inline HWY_NOINLINE void write_key_gradients(const backward_problem& problem, const key_loader& loader,
                                             index_t kv_head, row_range rows, const float* sums,
                                             index_t parts, index_t part_stride, double* gradient) {
  const packed_head& pack = loader.pack;
  const index_t key_stride = key_sum_stride(pack), value_stride = value_sum_stride(problem);
  const float* const values = sums + problem.key_tokens * key_stride;
  HWY_ALIGN float sum[widest_head + 4 * vector_slack];
  HWY_ALIGN float natural[widest_head + vector_slack];
  HWY_ALIGN float raw[widest_head + vector_slack];
  const auto add_up = [&](const float* from, index_t stride) {
    std::copy_n(from, stride, sum);
    for (index_t part = 1; part < parts; ++part)
      for (index_t c = 0; c < stride; c += lanes())
        store(hn::Add(load(sum + c), load(from + part * part_stride + c)), sum + c);
  };
  row_angles angles(problem, loader, rotation_side::key, backward_origin(problem));
  const bool rotates_back = loader.rotary && !problem.adjoint.rotate;
  for (index_t j = rows.begin; j < rows.end; ++j) {
    add_up(sums + j * key_stride, key_stride);
    if (rotates_back) angles.move_to(j, rows.end);
    if (problem.adjoint.rotate) widen_row(problem.k, j, kv_head, problem.head_dim, raw);
    rotate_head_back(problem, pack, rotates_back ? &angles.here : nullptr, place_of(problem.keys, j),
                     rotation_side::key, sum, raw, natural, gradient);
    store_row(natural, 1.0f, problem.head_dim, problem.d_k.type, problem.d_k.row(j, kv_head));
    add_up(values + j * value_stride, value_stride);
    store_row(sum, 1.0f, problem.value_dim, problem.d_v.type, problem.d_v.row(j, kv_head));
  }
}

/// One tile of queries of a task.
struct backward_task : prefill_task {
  const backward_problem& full;
  backward_scratch own;
  float *d_keys, *d_values;  ///< the task's sums
  double* collected;         ///< the task's sums of parameters

  [[nodiscard]] HWY_INLINE double* collected_of(index_t head) const {
    return collected + full.parameters + head * full.collected_of_head();
  }
  [[nodiscard]] HWY_INLINE index_t plain_stride() const { return round_up(problem.head_dim, lanes()); }
  /// τ·σ
  [[nodiscard]] HWY_INLINE double score_factor(index_t head, position query) const {
    const double sigma = problem.scale_of(head);
    return problem.callbacks.scale ? sigma * problem.callbacks.scale(problem.callbacks.encoding, head, query)
                                   : sigma;
  }

  /// Queries and dO of the tile, as rows and as columns; D and the log-sum-exp of each.
  HWY_NOINLINE void pack() const {
    const index_t width = panel_width(), stride = loader.pack.stride, steps = loader.pack.steps;
    const index_t columns = heads * panels * width;
    if (tokens.begin > 0 || tokens.end < panels * width) {
      std::fill_n(own.query_rows, columns * stride, 0.0f);
      std::fill_n(own.up_rows, columns * own.up_stride, 0.0f);
    }
    std::fill_n(own.d_query, columns * key_sum_stride(loader.pack), 0.0f);
    std::fill_n(own.row_sum, columns, 0.0f);
    std::fill_n(own.log_sum_exp, columns, nothing_seen);
    if (own.d_plain) std::fill_n(own.d_plain, columns * plain_stride(), 0.0f);
    row_angles angles(problem, loader, rotation_side::query, growth_origin);
    HWY_ALIGN float out[widest_head + vector_slack];
    for (index_t r = tokens.begin; r < tokens.end; ++r) {
      const index_t row = first_row + r;
      const position at = problem.queries[row];
      if (problem.rotary) angles.move_to(row, first_row + tokens.end);
      const bool is_linear = problem.bias.kind == distance_bias::form::linear;
      const position nearest = is_linear ? nearest_distance(problem, row) : 0;
      for (index_t h = 0; h < heads; ++h) {
        const index_t head = first_head + h, x = column(h, r / width) + r % width;
        load_query(problem, loader, row, head, angles.here, static_cast<float>(score_factor(head, at)),
                   own.query_rows + x * stride);
        float* const up = own.up_rows + x * own.up_stride;
        widen_row(full.upstream, row, head, problem.value_dim, up);
        widen_row(full.result, row, head, problem.value_dim, out);
        const auto d = static_cast<double>(dot_of(up, out, problem.value_dim));
        own.row_sum[x] = static_cast<float>(d);
        const float lse =
            problem.log_sum_exp[row * problem.lse_token_stride + head * problem.lse_head_stride];
        if (is_minus_infinity(lse)) continue;
        const double left = static_cast<double>(lse) - bias_left_out(problem, head, nearest);
        own.log_sum_exp[x] = static_cast<float>(left * score_unit);
        if (problem.sinks && !is_minus_infinity(problem.sinks[head]))
          collected_of(h)[1] -= std::exp(problem.sinks[head] - static_cast<double>(lse)) * d;
      }
    }
    const index_t value_dim = problem.value_dim;
    for (index_t x = 0; x < columns; x += lanes()) {
      const index_t panel = x / width * width, lane = x % width;
      for (index_t c = 0; c < steps; c += lanes())
        transpose_block(own.query_rows + x * stride + c, stride, (std::min)(lanes(), steps - c),
                        scratch.queries + panel * steps + lane + c * width, width, scratch.block);
      for (index_t c = 0; c < value_dim; c += lanes())
        transpose_block(own.up_rows + x * own.up_stride + c, own.up_stride,
                        (std::min)(lanes(), value_dim - c),
                        own.up_columns + panel * value_dim + lane + c * width, width, scratch.block);
    }
    const float_vector unit =
        constant(static_cast<float>(problem.softcap > 0 ? 1 / problem.softcap : score_unit));
    for (index_t n = 0; n < columns * steps; n += lanes())
      store(hn::Mul(load(scratch.queries + n), unit), scratch.queries + n);
  }

  HWY_NOINLINE bool load_tile(index_t first, index_t count) const {
    loader.load_keys(kv_head, first, count, growth_origin, scratch.keys);
    for (index_t t = 0; t < count; ++t) {
      fetch_tile_row(problem.v, first, t, count, kv_head, problem.value_dim);
      widen_row(problem.v, first + t, kv_head, problem.value_dim, scratch.values + t * scratch.output_stride);
    }
    return true;
  }

  /// P from scores and dS from dP, both in place.
  HWY_INLINE void weigh(index_t count, index_t at) const {
    const index_t width = panel_width();
    for (index_t x = 0; x < width; x += lanes()) {
      const float_vector lse = load(own.log_sum_exp + at + x), d = load(own.row_sum + at + x);
      for (index_t t = 0; t < count; ++t) {
        float* const score = scratch.scores + t * width + x;
        float* const d_score = own.d_scores + t * width + x;
        const float_vector weight = exp4_of(hn::Sub(load(score), lse));
        store(weight, score);
        store(hn::Mul(weight, hn::Sub(load(d_score), d)), d_score);
      }
    }
  }

  HWY_NOINLINE void attend(index_t head, index_t panel, index_t first_key, row_range keys,
                           const tile_facts& facts, bool partial) const {
    const score_panel scores = panel_of(head, panel, first_key, keys, facts, scratch.scores);
    const index_t width = panel_width(), at = column(head, panel), count = scores.keys;
    const index_t lane = scores.scores - scratch.scores, used = lane + scores.queries;
    const float* const tile = scratch.keys + keys.begin * loader.pack.stride;
    if (!score(scores, scratch.queries + at * loader.pack.steps, keys, partial, own.slopes)) return;

    const float* const up_columns = own.up_columns + at * problem.value_dim;
    const product_shape by_channel{problem.value_dim, scratch.output_stride, 1, width, width};
    for (index_t t = 0; t < count; t += block_rows)
      product((std::min)(count - t, block_rows), by_channel,
              scratch.values + (keys.begin + t) * scratch.output_stride, up_columns, nullptr,
              own.d_scores + t * width);
    if (problem.callbacks.relative_value) add_relative_d_weights(scores, at, lane);
    weigh(count, at);
    collect_bias(head, scores, lane);
    if (problem.softcap > 0)
      for (index_t n = 0; n < count * width; n += lanes())
        store(hn::Mul(load(own.d_scores + n), load(own.slopes + n)), own.d_scores + n);

    const index_t key_stride = key_sum_stride(loader.pack), first = scores.first_key;
    add_product(count, scratch.output_stride, {used, width, 1, own.up_stride, scratch.output_stride},
                scratch.scores, own.up_rows + at * own.up_stride, d_values + first * scratch.output_stride);
    add_product(count, key_stride, {used, width, 1, loader.pack.stride, key_stride}, own.d_scores,
                own.query_rows + at * loader.pack.stride, d_keys + first * key_stride);
    add_product(used, key_stride, {count, 1, width, loader.pack.stride, key_stride}, own.d_scores, tile,
                own.d_query + at * key_stride);
    if (problem.callbacks.relative_key) add_relative_gradients(scores, at, lane);
  }

  /// dS by distance.
  HWY_NOINLINE void collect_bias(index_t head, const score_panel& panel, index_t lane) const {
    const distance_bias& bias = problem.bias;
    const index_t width = panel_width();
    double* const sums = collected_of(head) + 2;
    const auto add = [&](position distance, float d) {
      if (bias.kind == distance_bias::form::linear)
        sums[distance >= 0 ? 0 : 1] += static_cast<double>(d) * static_cast<double>(distance);
      else
        sums[(std::clamp)(distance, bias.first, bias.last) - bias.first] += static_cast<double>(d);
    };
    if (bias.kind != distance_bias::form::none && panel.run) {
      // Consecutive queries stand on consecutive distances: an unaligned sum per vector of dS.
      const index_t count = panel.keys + width - 1;
      std::fill_n(own.diagonal, count + lanes(), 0.0f);
      for (index_t t = 0; t < panel.keys; ++t)
        for (index_t x = 0; x < width; x += lanes()) {
          float* const to = own.diagonal + panel.keys - 1 - t + x;
          store(hn::Add(load(to), load(own.d_scores + t * width + x)), to);
        }
      const position lowest = panel.distance(0) - (panel.keys - 1);
      for (index_t n = 0; n < count; ++n) add(lowest + n, own.diagonal[n]);
    } else if (bias.kind != distance_bias::form::none) {
      for_each_gradient(panel, lane,
                        [&](float d, position query, position key, index_t) { add(query - key, d); });
    }
    if (problem.callbacks.bias && full.adjoint.bias)
      for_each_gradient(panel, lane, [&](float d, position query, position key, index_t) {
        full.adjoint.bias(full.adjoint.of, panel.head, query, key, static_cast<double>(d), collected);
      });
  }

  /// Calls with(dS, position of the query, of the key, lane) for every element that has a weight.
  template <class With>
  HWY_INLINE void for_each_gradient(const score_panel& panel, index_t lane, With&& with) const {
    const index_t width = panel_width();
    for (index_t t = 0; t < panel.keys; ++t)
      for (index_t x = 0; x < panel.queries; ++x)
        if (scratch.scores[t * width + lane + x] != 0)
          with(own.d_scores[t * width + lane + x], problem.queries[panel.first_query + x],
               problem.keys[panel.first_key + t], lane + x);
  }

  /// dP += dO·a of the value rows, before scores are weights.
  HWY_NOINLINE void add_relative_d_weights(const score_panel& panel, index_t at, index_t lane) const {
    const index_t width = panel_width(), channels = problem.value_dim;
    HWY_ALIGN float row[widest_head + vector_slack];
    double wide[widest_head];
    for (index_t t = 0; t < panel.keys; ++t)
      for (index_t x = lane; x < lane + panel.queries; ++x) {
        const float weight = std::exp2(2 * (scratch.scores[t * width + x] - own.log_sum_exp[at + x]));
        if (!(weight > 0)) continue;
        const position offset =
            problem.keys[panel.first_key + t] - problem.queries[panel.first_query + x - lane];
        problem.callbacks.relative_value(problem.callbacks.encoding, panel.head, offset, row, channels);
        const float* const up = own.up_rows + (at + x) * own.up_stride;
        own.d_scores[t * width + x] += dot_of(up, row, channels);
        if (!full.adjoint.relative_value) continue;
        for (index_t c = 0; c < channels; ++c)
          wide[c] = static_cast<double>(weight) * static_cast<double>(up[c]);
        full.adjoint.relative_value(full.adjoint.of, panel.head, offset, wide, channels, collected);
      }
  }

  /// dq += dS·r and dr += dS·τσ·q of the key rows.
  HWY_NOINLINE void add_relative_gradients(const score_panel& panel, index_t at, index_t lane) const {
    const index_t channels = problem.head_dim;
    HWY_ALIGN float row[widest_head + vector_slack];
    HWY_ALIGN float query[widest_head + vector_slack];
    double wide[widest_head];
    index_t loaded = -1;
    double factor = 0;
    const index_t width = panel_width();
    for (index_t x = lane; x < lane + panel.queries; ++x)
      for (index_t t = 0; t < panel.keys; ++t) {
        if (scratch.scores[t * width + x] == 0) continue;
        const index_t query_row = panel.first_query + x - lane;
        const position here = problem.queries[query_row], offset = problem.keys[panel.first_key + t] - here;
        if (loaded != x) {
          widen_row(problem.q, query_row, panel.head, channels, query);
          factor = score_factor(panel.head, here);
          loaded = x;
        }
        const float d = own.d_scores[t * width + x];
        problem.callbacks.relative_key(problem.callbacks.encoding, panel.head, offset, row, channels);
        float* const to = own.d_plain + (at + x) * plain_stride();
        for (index_t c = 0; c < channels; ++c) to[c] += d * row[c];
        if (!full.adjoint.relative_key) continue;
        for (index_t c = 0; c < channels; ++c)
          wide[c] = static_cast<double>(d) * factor * static_cast<double>(query[c]);
        full.adjoint.relative_key(full.adjoint.of, panel.head, offset, wide, channels, collected);
      }
  }

  /// dq of the tile, and what scales learn.
  HWY_NOINLINE void write_rows() const {
    const index_t width = panel_width();
    HWY_ALIGN float natural[widest_head + vector_slack] = {};
    HWY_ALIGN float query[widest_head + vector_slack];
    row_angles angles(problem, loader, rotation_side::query, growth_origin);
    const bool rotates_back = problem.rotary && !full.adjoint.rotate;
    for (index_t r = 0; r < rows; ++r) {
      const bool is_token = r >= tokens.begin && r < tokens.end;
      if (rotates_back && is_token) angles.move_to(first_row + r, first_row + tokens.end);
      for (index_t h = 0; h < heads; ++h) {
        const index_t head = first_head + h, row = first_row + r;
        void* const to = full.d_q.row(row, head);
        if (!is_token) {
          std::fill_n(natural, problem.head_dim, 0.0f);
          store_row(natural, 0.0f, problem.head_dim, full.d_q.type, to);
          continue;
        }
        const index_t x = column(h, r / width) + r % width;
        const position here = problem.queries[row];
        widen_row(problem.q, row, head, problem.head_dim, query);
        const double factor = score_factor(head, here), sigma = problem.scale_of(head);
        float* const sum = own.d_query + x * key_sum_stride(loader.pack);
        // The adjoint of a rotation that is learned takes the gradient whole, so its factor comes first.
        const bool is_early = full.adjoint.rotate != nullptr && factor != 0;
        if (is_early)
          for (index_t c = 0; c < loader.pack.steps; ++c) sum[c] *= static_cast<float>(factor);
        std::vector<double> nowhere(
            static_cast<std::size_t>(full.adjoint.rotate && factor == 0 ? full.parameters : 0));
        rotate_head_back(full, loader.pack, rotates_back ? &angles.here : nullptr,
                         place_of(problem.queries, row), rotation_side::query, sum, query, natural,
                         nowhere.empty() ? collected : nowhere.data());
        if (is_early)
          for (index_t c = 0; c < problem.head_dim; ++c) natural[c] /= static_cast<float>(factor);
        if (own.d_plain)
          for (index_t c = 0; c < problem.head_dim; ++c) natural[c] += own.d_plain[x * plain_stride() + c];
        const auto d_factor = static_cast<double>(dot_of(query, natural, problem.head_dim));
        double tau = 1;
        if (problem.callbacks.scale) {
          tau = problem.callbacks.scale(problem.callbacks.encoding, head, here);
          if (full.adjoint.scale)
            full.adjoint.scale(full.adjoint.of, head, here, d_factor * sigma, collected);
        }
        collected_of(h)[0] += d_factor * tau;
        store_row(natural, static_cast<float>(factor), problem.head_dim, full.d_q.type, to);
      }
    }
  }

  HWY_NOINLINE void run() const {
    if (tokens.begin < tokens.end) {
      pack();
      attend_keys(*this);
    }
    write_rows();
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
