// SPDX-License-Identifier: MIT
/// \file
/// What has to be looked at score by score: draft trees, dense masks and biases, and functions of both positions.
/// Included once per instruction set.
///
/// A tile of [key][query] floats holds what they add to each score, in nats, −∞ where they hide it. It is filled before
/// the product, so that a tile that is hidden as a whole costs no product.
#if defined(POSENC_FUSED_ELEMENTS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_ELEMENTS_INL_HPP
#undef POSENC_FUSED_ELEMENTS_INL_HPP
#else
#define POSENC_FUSED_ELEMENTS_INL_HPP
#endif

#include <algorithm>

#include <posenc/fused/kernels/softmax-inl.hpp>

HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// lanes() × lanes() floats, transposed: to[c·to_stride + r] = from[r·from_stride + c]. Taking the
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

/// Whether a draft tree lets query row `query` see key row `key`.
HWY_INLINE bool tree_shows(const attention_problem& problem, index_t query, index_t key) {
  const visibility_parts& parts = *problem.elements;
  const index_t draft = key - (problem.key_tokens - parts.drafts);
  if (draft < 0) return true;
  const std::uint64_t word = parts.tree[static_cast<std::size_t>(query * parts.tree_words + draft / 64)];
  return ((word >> (draft % 64)) & 1u) != 0;
}

/// A sum of biases as float. Finite ones stay finite: the lowest double, a common mask, is not −∞.
HWY_INLINE float bias_as_float(double sum) {
  if (is_minus_infinity(sum)) return masked_score;
  return sum < static_cast<double>(lowest_score) ? lowest_score : static_cast<float>(sum);
}

/// What the elements add to one score that everything else leaves visible, in nats; −∞ hides it.
inline HWY_NOINLINE float element_at(const attention_problem& problem, index_t head, index_t query,
                                     index_t key) {
  double sum = 0;
  if (const visibility_parts* const parts = problem.elements) {
    if (!parts->tree.empty() && !tree_shows(problem, query, key)) return masked_score;
    if (parts->mask.given() && parts->mask.at<std::uint8_t>(head, query, key) == 0) return masked_score;
    if (parts->where && !parts->where(head, query, key)) return masked_score;
    if (parts->bias.given()) sum = parts->bias.value(head, query, key);
  }
  if (is_minus_infinity(sum)) return masked_score;
  if (problem.callbacks.bias) {
    const float bias =
        problem.callbacks.bias(problem.callbacks.encoding, head, problem.queries[query], problem.keys[key]);
    if (is_minus_infinity(bias)) return masked_score;
    sum += static_cast<double>(bias);
  }
  return bias_as_float(sum);
}

/// One query row of a dense mask or bias against `count` ≤ lanes() consecutive key rows, as what it adds.
HWY_INLINE void load_dense(const dense_scores_data& dense, index_t head, index_t query, index_t key,
                           index_t count, float* to) {
  if (dense.type == dense_type::float32 && dense.shape.key_stride == 1) {
    store(load_first(&dense.at<float>(head, query, key), count), to);
    return;
  }
  if (dense.type == dense_type::boolean) {
    for (index_t n = 0; n < count; ++n)
      to[n] = dense.at<std::uint8_t>(head, query, key + n) != 0 ? 0.0f : masked_score;
    return;
  }
  for (index_t n = 0; n < count; ++n) {
    to[n] = bias_as_float(dense.value(head, query, key + n));
  }
}

/// Puts a dense mask or bias into the tile, lanes() queries and keys at a time; adds it where `adds`.
inline HWY_NOINLINE void put_dense(const dense_scores_data& dense, const score_panel& panel, bool adds,
                                   float* tile, float* buffer) {
  const index_t n = lanes(), width = panel_width();
  float* const rows = buffer + 2 * n * n;
  float* const columns = rows + n * n;
  const bool in_place = dense.type == dense_type::float32 && dense.shape.key_stride == 1;
  for (index_t x = 0; x < panel.queries; x += n)
    for (index_t t = 0; t < panel.keys; t += n) {
      const index_t queries = (std::min)(n, panel.queries - x), keys = (std::min)(n, panel.keys - t);
      const bool whole = queries == n && keys == n;
      float* const to = tile + t * width + x;
      const float* from = rows;
      index_t from_stride = n;
      if (whole && in_place) {
        from = &dense.at<float>(panel.head, panel.first_query + x, panel.first_key + t);
        from_stride = dense.shape.query_stride;
      } else {
        if (!whole) std::fill_n(rows, n * n, 0.0f);
        for (index_t r = 0; r < queries; ++r)
          load_dense(dense, panel.head, panel.first_query + x + r, panel.first_key + t, keys, rows + r * n);
      }
      if (whole && !adds) {
        transpose_block(from, from_stride, n, to, width, buffer);
        continue;
      }
      transpose_block(from, from_stride, keys, columns, n, buffer);
      for (index_t c = 0; c < keys; ++c)
        for (index_t r = 0; r < queries; ++r) {
          float& sum = to[c * width + r];
          const float one = columns[c * n + r];
          // What a mask hides is hidden whatever the bias there is: −∞ + ∞ would be NaN.
          sum = !adds ? one : is_minus_infinity(one) ? masked_score : one + sum;
        }
    }
}

/// Floats of scratch that fill_elements needs beside the tile.
HWY_INLINE index_t element_buffer_floats() { return 4 * lanes() * lanes() + 2 * vector_slack; }

/// Fills the tile of a panel. `none`: nothing is seen; `all`: there is nothing to add.
inline HWY_NOINLINE sight fill_elements(const score_panel& panel, float* tile, float* buffer) {
  const attention_problem& problem = panel.problem;
  const index_t width = panel_width();
  const visibility_parts* const parts = problem.elements;
  const bool has_dense = parts && (parts->mask.given() || parts->bias.given());
  // Lanes of several heads are looked at one by one too.
  const bool has_function =
      problem.callbacks.bias || (parts && parts->where) || (has_dense && panel.stacked > 0);
  const bool has_tree =
      parts && !parts->tree.empty() && panel.first_key + panel.keys > problem.key_tokens - parts->drafts;
  if (!has_dense && !has_function && !has_tree) return sight::all;
  const bool uses_dense = has_dense && !has_function;
  if (uses_dense && parts->bias.given()) put_dense(parts->bias, panel, false, tile, buffer);
  if (uses_dense && parts->mask.given()) put_dense(parts->mask, panel, parts->bias.given(), tile, buffer);
  if (!uses_dense)
    for (index_t t = 0; t < panel.keys; ++t) std::fill_n(tile + t * width, panel.queries, 0.0f);
  if (has_function || has_tree)
    for (index_t t = 0; t < panel.keys; ++t)
      for (index_t x = 0; x < panel.queries; ++x) {
        float& to = tile[t * width + x];
        const index_t query = panel.query_of(x), key = panel.first_key + t;
        if (!has_function) {
          if (!tree_shows(problem, query, key)) to = masked_score;
          continue;
        }
        // A function is called only where everything else lets the query see the key.
        const bool seen = panel.seen ? holds(panel.seen[x], key) : problem.sees(query, key);
        to = seen ? element_at(problem, panel.head_of(x), query, key) : masked_score;
      }
  bool any = false;
  for (index_t t = 0; t < panel.keys && !any; ++t)
    for (index_t x = 0; x < panel.queries; ++x) any = any || !is_minus_infinity(tile[t * width + x]);
  return any ? sight::some : sight::none;
}

/// Adds the tile to the scores; a hidden score is −∞ whatever it was.
inline HWY_NOINLINE void add_elements(const score_panel& panel, const float* tile) {
  const index_t width = panel_width();
  const hn::RebindToUnsigned<float_tag> bits;
  const auto hidden_bits = hn::Set(bits, 0xff800000u);
  const float_vector unit = constant(static_cast<float>(score_unit));
  for (index_t t = 0; t < panel.keys; ++t) {
    float* const scores = panel.scores + t * width;
    const float* const added = tile + t * width;
    index_t x = 0;
    for (; x + lanes() <= panel.queries; x += lanes()) {
      const float_vector add = load(added + x);
      const auto hidden = hn::Eq(hn::BitCast(bits, add), hidden_bits);
      const float_vector sum = hn::MulAdd(add, unit, load(scores + x));
      store(hn::IfThenElse(hn::RebindMask(float_tag(), hidden), constant(masked_score), sum), scores + x);
    }
    for (; x < panel.queries; ++x)
      scores[x] =
          is_minus_infinity(added[x]) ? masked_score : scores[x] + added[x] * static_cast<float>(score_unit);
  }
}

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
