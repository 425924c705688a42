// SPDX-License-Identifier: MIT
/// \file
/// Batches whose sequences share a prefix: the keys and values of each are `joined` (cache/joined.hpp), and those before
/// are the same memory at the same positions. They are attended to once, with the queries of all sequences as rows of
/// one problem, and each sequence's own keys apart; then the two parts are merged by their log-sum-exp.
///
/// Sequences share where their options agree but for positions and lengths, mask by position alone (mask, window,
/// chunk) and leave no row out. Other sequences of the batch are attended to in one piece, with the same result up to
/// rounding. Which it is depends on the batch alone, never on time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <posenc/attention/batch.hpp>
#include <posenc/cache/joined.hpp>
#include <posenc/detail/floating.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/sequence.hpp>

namespace posenc::inline v0_2::detail::fused_calls {

/// Fewer shared keys than this are not worth a merge.
inline constexpr index_t shortest_prefix = 64;

/// What has to agree for two sequences to share, and what they share.
struct prefix_facts {
  cache_tensor k{}, v{};
  const resolved_options* call = nullptr;
  const attention_options* options = nullptr;
  index_t query_head_stride = 0;

  [[nodiscard]] bool can_share() const {
    return k.before_tokens >= shortest_prefix && k.before_tokens == v.before_tokens &&
           call->query_tokens > 0 && call->key_positions.is_run() && !call->key_positions.has_axes() &&
           !call->query_positions.has_axes() && options->visible.empty() && call->valid_keys.begin == 0 &&
           call->valid_keys.end == call->key_tokens && call->valid_queries.begin == 0 &&
           call->valid_queries.end == call->query_tokens &&
           (options->mask == causal || options->mask == bidirectional);
  }
  [[nodiscard]] bool shares_with(const prefix_facts& other) const {
    const attention_options &a = *options, &b = *other.options;
    return k.before == other.k.before && v.before == other.v.before &&
           k.before_tokens == other.k.before_tokens && k.group_tokens == other.k.group_tokens &&
           call->key_positions[0] == other.call->key_positions[0] && call->heads == other.call->heads &&
           call->kv_heads == other.call->kv_heads && call->head_dim == other.call->head_dim &&
           call->value_dim == other.call->value_dim && call->scale == other.call->scale &&
           call->softcap == other.call->softcap &&
           call->head_scales.data() == other.call->head_scales.data() && a.mask == b.mask &&
           a.window.lookback == b.window.lookback && a.window.lookahead == b.window.lookahead &&
           a.chunk == b.chunk && a.keys_are_rotated == b.keys_are_rotated &&
           query_head_stride == other.query_head_stride;
  }
};

/// Sequences that share a prefix, and the query rows of all of them as rows of one tensor.
struct prefix_group {
  std::vector<std::size_t> members{};
  std::vector<position> query_positions{};
  std::vector<const char*> query_rows{};
};

/// The groups of at least two.
[[nodiscard]] inline std::vector<prefix_group> groups_of(std::span<const prefix_facts> facts) {
  std::vector<prefix_group> groups;
  for (std::size_t n = 0; n < facts.size(); ++n) {
    if (!facts[n].can_share()) continue;
    const auto at = std::find_if(groups.begin(), groups.end(), [&](const prefix_group& group) {
      return facts[group.members.front()].shares_with(facts[n]);
    });
    if (at == groups.end())
      groups.push_back({{n}, {}, {}});
    else
      at->members.push_back(n);
  }
  std::erase_if(groups, [](const prefix_group& group) { return group.members.size() < 2; });
  return groups;
}

/// The options of a part of a call: its keys [first, first + count) of the whole, its queries where they stand.
[[nodiscard]] inline resolved_options part_of(const resolved_options& call, index_t first, index_t count,
                                              const positions& queries, index_t query_tokens) {
  resolved_options part = call;
  part.key_tokens = count;
  part.key_positions = positions::from(call.key_positions[0] + first);
  part.valid_keys = {0, count};
  part.query_tokens = query_tokens;
  part.query_positions = queries;
  part.valid_queries = {0, query_tokens};
  return part;
}

/// Results of a part in float: rows of heads × value_dim, and their log-sum-exp.
struct partial_result {
  std::vector<float> output{}, log_sum_exp{};
  index_t heads = 0, value_dim = 0;

  partial_result(index_t rows, index_t of_heads, index_t channels)
      : output(static_cast<std::size_t>(rows * of_heads * channels)),
        log_sum_exp(static_cast<std::size_t>(rows * of_heads)),
        heads(of_heads),
        value_dim(channels) {}

  void take(attention_problem& problem) {
    problem.out = output_of(token_major(output.data(), problem.query_tokens, heads, value_dim));
    problem.log_sum_exp = log_sum_exp.data();
    problem.lse_token_stride = heads;
    problem.lse_head_stride = 1;
  }
  [[nodiscard]] const float* row(index_t token, index_t head) const {
    return output.data() + (token * heads + head) * value_dim;
  }
  [[nodiscard]] float lse(index_t token, index_t head) const {
    return log_sum_exp[static_cast<std::size_t>(token * heads + head)];
  }
};

/// out = (e^a·A + e^b·B) / (e^a + e^b) of one row, and its log-sum-exp. A part that saw nothing has −∞ and no weight.
template <class O>
double merge_row(const float* a, double lse_a, const float* b, double lse_b, std::span<O> out) {
  const double larger = (std::max)(lse_a, lse_b);
  if (is_minus_infinity(lse_a) && is_minus_infinity(lse_b)) {
    std::fill(out.begin(), out.end(), static_cast<O>(0.0f));
    return lse_a;
  }
  const auto weight_of = [&](double lse) { return is_minus_infinity(lse) ? 0.0 : std::exp(lse - larger); };
  const double weight_a = weight_of(lse_a), weight_b = weight_of(lse_b), total = weight_a + weight_b;
  const auto share_a = static_cast<float>(weight_a / total), share_b = static_cast<float>(weight_b / total);
  for (std::size_t c = 0; c < out.size(); ++c)
    out[c] = static_cast<O>((share_a != 0 ? share_a * a[c] : 0.0f) + (share_b != 0 ? share_b * b[c] : 0.0f));
  return larger + std::log(total);
}

/// A batch in which sequences share prefixes, on its way to the kernels: an item for each sequence, of its own keys where
/// it is in a group, and one for each group.
template <class Sequence>
class shared_batch {
 public:
  /// \throws std::invalid_argument, std::out_of_range as the call without sharing does
  explicit shared_batch(std::span<const Sequence> sequences) : sequences_(sequences) {
    calls_.reserve(sequences.size());
    std::vector<prefix_facts> facts;
    for (const Sequence& s : sequences) {
      calls_.push_back(resolve(s.options, s.q, s.k, s.v));
      facts.push_back({cache_of(s.k), cache_of(s.v), &calls_.back(), &s.options, s.q.head_stride});
    }
    groups_ = groups_of(facts);
    own_.resize(sequences.size());
    for (prefix_group& group : groups_)
      for (const std::size_t n : group.members) {
        const Sequence& s = sequences[n];
        const resolved_options& call = calls_[n];
        own_[n].emplace(call.query_tokens, call.heads, call.value_dim);
        for (index_t i = 0; i < call.query_tokens; ++i) {
          group.query_positions.push_back(call.query_positions[i]);
          group.query_rows.push_back(reinterpret_cast<const char*>(s.q.data + i * s.q.token_stride));
        }
      }
    for (const prefix_group& group : groups_) {
      const resolved_options& call = calls_[group.members.front()];
      shared_.emplace_back(static_cast<index_t>(group.query_rows.size()), call.heads, call.value_dim);
    }
  }

  [[nodiscard]] bool shares() const { return !groups_.empty(); }
  [[nodiscard]] std::size_t items() const { return sequences_.size() + groups_.size(); }

  template <class E>
  void plan(builder& making, const E& encoding, fused::shape types) const {
    for (std::size_t n = 0; n < sequences_.size(); ++n) {
      const Sequence& s = sequences_[n];
      const resolved_options& call = calls_[n];
      fused::shape of_item = types;
      of_item.order = order_of(s.k, s.v);
      if (!own_[n]) {
        making.add(call, of_item, encoding);
        continue;
      }
      of_item.out = fused::storage::float32;
      const index_t before = shape_of_source(s.k.before).tokens;
      making.add(part_of(call, before, call.key_tokens - before, call.query_positions, call.query_tokens),
                 of_item, encoding);
    }
    types.out = fused::storage::float32;
    for (const prefix_group& group : groups_) {
      const Sequence& s = sequences_[group.members.front()];
      resolved_options call = calls_[group.members.front()];
      call.sinks = {};
      types.order = order_of(s.k.before, s.v.before);
      making.add(part_of(call, 0, shape_of_source(s.k.before).tokens, positions::each(group.query_positions),
                         static_cast<index_t>(group.query_rows.size())),
                 types, encoding);
    }
  }

  /// Points item `n` at its tensors.
  void point_item(std::size_t n, attention_problem& problem) {
    if (n < sequences_.size()) {
      const Sequence& s = sequences_[n];
      point(problem, s);
      if (!own_[n]) return;
      problem.k = cache_of(s.k.after), problem.v = cache_of(s.v.after);
      own_[n]->take(problem);
      return;
    }
    const prefix_group& group = groups_[n - sequences_.size()];
    const Sequence& s = sequences_[group.members.front()];
    problem.q = tensor_of(s.q);
    problem.q.tokens = group.query_rows.data();
    problem.k = cache_of(s.k.before), problem.v = cache_of(s.v.before);
    shared_[n - sequences_.size()].take(problem);
  }

  /// Merges both parts of every sequence that shares, on the executor.
  void merge(const fused::executor_ref& executor) const {
    struct place {
      std::size_t group, sequence;
      index_t first;  ///< its first row among those of the group
    };
    std::vector<place> places;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      index_t first = 0;
      for (const std::size_t n : groups_[g].members) {
        places.push_back({g, n, first});
        first += calls_[n].query_tokens;
      }
    }
    run_tasks(executor, static_cast<index_t>(places.size()), [&](index_t task, index_t) {
      const place& at = places[static_cast<std::size_t>(task)];
      const Sequence& s = sequences_[at.sequence];
      const partial_result &shared = shared_[at.group], &own = *own_[at.sequence];
      for (index_t i = 0; i < s.q.tokens; ++i)
        for (index_t h = 0; h < s.q.heads; ++h) {
          const double lse = merge_row(shared.row(at.first + i, h), shared.lse(at.first + i, h),
                                       own.row(i, h), own.lse(i, h), s.out(i, h));
          if (s.log_sum_exp.data) s.log_sum_exp(i, h) = static_cast<float>(lse);
        }
    });
  }

 private:
  std::span<const Sequence> sequences_;
  std::vector<resolved_options> calls_{};
  std::vector<prefix_group> groups_{};
  std::vector<std::optional<partial_result>> own_{};  ///< of each sequence that shares
  std::vector<partial_result> shared_{};              ///< of each group
};

}  // namespace posenc::inline v0_2::detail::fused_calls
