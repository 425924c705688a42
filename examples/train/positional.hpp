// SPDX-License-Identifier: MIT
/// \file
/// Where a model's positions come from: one encoding for all layers, by name, with what it learns.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "parameters.hpp"

namespace train {

/// Shape of a model and of a batch.
struct shape {
  index_t vocabulary = 0, width = 96, heads = 4, layers = 2, tokens = 64, batch = 16;
  posenc::attention_mask mask = posenc::causal;

  [[nodiscard]] index_t head_dim() const { return width / heads; }
};

/// Queries, keys, values, what came of them, and their gradients: (batch·tokens) × width.
struct attention_step {
  matrix q, k, v, out, log_sum_exp;
  matrix d_q, d_k, d_v;
};

/// An encoding whose type only this file knows.
class positional {
 public:
  virtual ~positional() = default;
  /// Adds the positions of `tokens` to every sequence of x, where the encoding does that.
  virtual void embed(matrix& x, index_t tokens) const = 0;
  virtual void embed_backward(const matrix& d_x, index_t tokens) = 0;
  virtual void attend(attention_step& step, const shape& model, index_t tokens,
                      const posenc::fused::execution& how) const = 0;
  virtual void attend_backward(attention_step& step, const matrix& d_out, const shape& model, index_t tokens,
                               const posenc::fused::execution& how) = 0;
  /// What is learned, as one row; nothing where nothing is.
  virtual parameter* learned() = 0;
  /// Makes the encoding anew from what learned() holds.
  virtual void refresh() = 0;
};

template <class E>
class positional_of final : public positional {
 public:
  explicit positional_of(E encoding)
      : encoding_(std::move(encoding)), learned_("positions", as_row(parameters())) {}

  void embed(matrix& x, index_t tokens) const override {
    if constexpr (posenc::embeds<E, float>)
      for (index_t begin = 0; begin < x.rows(); begin += tokens) {
        matrix rows = x.middleRows(begin, tokens);
        posenc::embed_rows(rows, encoding_, posenc::positions::from(0));
        x.middleRows(begin, tokens) = rows;
      }
  }
  void embed_backward(const matrix& d_x, index_t tokens) override {
    if constexpr (posenc::embeds<E, float>) {
      auto sums = posenc::parameter_list<float>::zeros_like(parameters());
      for (index_t begin = 0; begin < d_x.rows(); begin += tokens)
        posenc::embed_rows_backward(matrix(d_x.middleRows(begin, tokens)), encoding_, posenc::positions::from(0), sums);
      add(sums);
    }
  }
  void attend(attention_step& step, const shape& model, index_t tokens,
              const posenc::fused::execution& how) const override {
    std::vector<posenc::fused::sequence<float>> batch;
    for (index_t begin = 0; begin < step.q.rows(); begin += tokens)
      batch.push_back({view(step.q, begin, tokens, model), view(step.k, begin, tokens, model),
                       view(step.v, begin, tokens, model), view(step.out, begin, tokens, model),
                       lse(step, begin, tokens), options(model)});
    posenc::fused::attention_batch(batch, encoding_, how);
  }
  void attend_backward(attention_step& step, const matrix& d_out, const shape& model, index_t tokens,
                       const posenc::fused::execution& how) override {
    std::vector<posenc::backward_sequence<float>> batch;
    const attention_step& given = step;
    for (index_t begin = 0; begin < step.q.rows(); begin += tokens)
      batch.push_back({view(given.q, begin, tokens, model), view(given.k, begin, tokens, model),
                       view(given.v, begin, tokens, model), view(given.out, begin, tokens, model),
                       lse(given, begin, tokens), view(d_out, begin, tokens, model),
                       view(step.d_q, begin, tokens, model), view(step.d_k, begin, tokens, model),
                       view(step.d_v, begin, tokens, model), options(model)});
    const auto sums = posenc::fused::attention_backward_batch(
        std::span<const posenc::backward_sequence<float>>(batch), encoding_, how);
    add(sums.encoding);
  }
  parameter* learned() override { return learned_.value.size() > 0 ? &learned_ : nullptr; }
  void refresh() override {
    if constexpr (is_learned) {
      posenc::parameter_list<double> now = parameters();
      for (std::size_t n = 0; n < now.size(); ++n)
        now.values()[n] = static_cast<double>(learned_.value(0, static_cast<index_t>(n)));
      encoding_ = encoding_.with_parameters(now);
    }
  }

 private:
  static constexpr bool is_learned = requires(const E& e) { e.with_parameters(e.parameters()); };

  [[nodiscard]] posenc::parameter_list<double> parameters() const {
    if constexpr (is_learned)
      return encoding_.parameters();
    else
      return {};
  }
  [[nodiscard]] static matrix as_row(const posenc::parameter_list<double>& list) {
    matrix row(list.size() > 0 ? 1 : 0, static_cast<index_t>(list.size()));
    for (std::size_t n = 0; n < list.size(); ++n)
      row(0, static_cast<index_t>(n)) = static_cast<float>(list.values()[n]);
    return row;
  }
  void add(const posenc::parameter_list<float>& sums) {
    for (std::size_t n = 0; n < sums.size(); ++n)
      learned_.gradient(0, static_cast<index_t>(n)) += sums.values()[n];
  }
  template <class Matrix>
  [[nodiscard]] static auto view(Matrix& m, index_t begin, index_t tokens, const shape& model) {
    return posenc::token_major(m.data() + begin * m.cols(), tokens, model.heads, model.head_dim());
  }
  template <class Step>
  [[nodiscard]] static auto lse(Step& step, index_t begin, index_t tokens) {
    const index_t heads = step.log_sum_exp.cols();
    return posenc::head_scalars_view{step.log_sum_exp.data() + begin * heads, tokens, heads, heads, 1};
  }
  [[nodiscard]] static posenc::attention_options options(const shape& model) {
    return {.heads = model.heads, .mask = model.mask, .is_embedded = posenc::embeds<E, float>};
  }

  E encoding_;
  parameter learned_;
};

inline const std::vector<std::string> encoding_names{"none", "learned", "sinusoidal", "clipped", "t5",
                                                     "shaw", "alibi",   "rope",       "xpos"};

/// An encoding by name, with tables to begin from. RoPE's `scaling` is what stretches a trained model.
/// \throws std::invalid_argument for another name
[[nodiscard]] inline std::unique_ptr<positional> make_positional(const std::string& name, const shape& model,
                                                                 std::uint64_t seed,
                                                                 const std::string& scaling = "none",
                                                                 double factor = 1) {
  const auto of = [](auto encoding) -> std::unique_ptr<positional> {
    return std::make_unique<positional_of<decltype(encoding)>>(std::move(encoding));
  };
  const auto table = [&](index_t rows, index_t columns) {
    return matrix(
        posenc::learned_absolute<float>::random({.rows = rows, .width = columns, .seed = seed}).table());
  };
  const posenc::relative_clip clip{.direction = posenc::relative_direction::key_minus_query,
                                   .left = 32,
                                   .right = model.mask == posenc::causal ? 0 : 32};
  const posenc::rope_options rope{
      .head_dim = model.head_dim(), .base = 10'000.0, .pairing = posenc::pairing::half_split};
  posenc::detail::require(scaling == "none" || name == "rope", "--scaling: it stretches rope, not ", name);
  if (name == "none") return of(posenc::no_encoding{});
  if (name == "learned") return of(posenc::learned_absolute<float>(table(model.tokens, model.width)));
  if (name == "sinusoidal")
    return of(posenc::sinusoidal<float>({.width = model.width, .convention = posenc::sinusoid::paper}));
  if (name == "clipped")
    return of(posenc::relative_bias<float>(
        clip, posenc::bias_table<float>::heads_by_rows(table(model.heads, clip.rows()))));
  if (name == "t5")
    return of(posenc::t5_bias<float>(
        {.buckets = 16, .max_distance = 64, .bidirectional = model.mask != posenc::causal},
        posenc::bias_table<float>::heads_by_rows(table(model.heads, 16))));
  if (name == "shaw") {
    matrix keys = table(clip.rows(), model.head_dim()), values = 0.5f * keys;
    return of(posenc::shaw_with_values<float>(clip, std::move(keys), std::move(values)));
  }
  if (name == "alibi") return of(posenc::alibi<float>({.heads = model.heads}));
  if (name == "xpos") return of(posenc::xpos<float>({.rope = rope}));
  posenc::detail::require(name == "rope", "--encoding: ", name,
                          " is none of none, learned, sinusoidal, clipped, t5, shaw, alibi, rope, xpos");
  if (scaling == "none") return of(posenc::rope<float>(rope));
  if (scaling == "linear") return of(posenc::rope<float>(rope, posenc::position_interpolation{factor}));
  if (scaling == "theta") return of(posenc::rope<float>(rope, posenc::theta_scaling{factor}));
  posenc::detail::require(scaling == "yarn", "--scaling: ", scaling, " is none of none, linear, theta, yarn");
  return of(posenc::rope<float>(
      rope, posenc::yarn{.factor = factor, .original_context = static_cast<double>(model.tokens)}));
}

}  // namespace train
