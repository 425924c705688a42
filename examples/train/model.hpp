// SPDX-License-Identifier: MIT
/// \file
/// A small transformer: token vectors (tied with the output), layers of norm, attention, norm and gate, one last norm.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <posenc/fused.hpp>

#include "layers.hpp"
#include "positional.hpp"

namespace train {

class model {
 public:
  model(const shape& sizes, const std::string& name, std::uint64_t seed,
        const posenc::fused::executor_ref& executor, const std::string& scaling = "none", double factor = 1)
      : sizes_(sizes),
        executor_(executor),
        positions_(make_encoding(name, sizes, seed + 1, scaling, factor)),
        learned_(learned_by(positions_)),
        tokens_("tokens", random(sizes.vocabulary, sizes.width, seed, 0.05)),
        last_norm_("last_norm", matrix::Ones(1, sizes.width)) {
    posenc::detail::require(sizes.width % sizes.heads == 0, "--width: ", sizes.width, " channels for ",
                            sizes.heads, " heads");
    const index_t d = sizes.width;
    const double spread = 1 / std::sqrt(static_cast<double>(d));
    for (index_t l = 0; l < sizes.layers; ++l) {
      const std::uint64_t s = seed + 100 * static_cast<std::uint64_t>(l + 1);
      const auto weight = [&](const char* part, index_t rows, index_t columns, std::uint64_t n, double size) {
        return parameter("layer " + std::to_string(l) + " " + part, random(rows, columns, s + n, size));
      };
      const double narrow = spread / std::sqrt(2.0 * static_cast<double>(sizes.layers));
      layers_.push_back({parameter("norm", matrix::Ones(1, d)), weight("query", d, d, 1, spread),
                         weight("key", d, d, 2, spread), weight("value", d, d, 3, spread),
                         weight("output", d, d, 4, narrow), parameter("gate norm", matrix::Ones(1, d)),
                         weight("up", d, 4 * d, 5, spread), weight("down", 4 * d, d, 6, narrow / 2)});
    }
  }

  /// All that is learned, in a fixed order.
  [[nodiscard]] std::vector<parameter*> parameters() {
    std::vector<parameter*> all{&tokens_, &last_norm_};
    for (layer& l : layers_)
      for (parameter* p : {&l.norm, &l.query, &l.key, &l.value, &l.output, &l.gate_norm, &l.up, &l.down})
        all.push_back(p);
    if (learned_.value.size() > 0) all.push_back(&learned_);
    return all;
  }
  /// After the parameters have changed.
  void refresh() { positions_ = refreshed(positions_, learned_); }

  /// Mean loss over sequences of `tokens`; `learn` adds to the gradients.
  /// \param input, wanted token numbers, sequence by sequence; what is wanted counts where it is ≥ 0
  double loss(std::span<const int> input, std::span<const int> wanted, index_t tokens, bool learn) {
    const auto rows = static_cast<index_t>(input.size());
    matrix x(rows, sizes_.width);
    for (index_t i = 0; i < rows; ++i) x.row(i) = tokens_.value.row(input[static_cast<std::size_t>(i)]);
    for (index_t begin = 0; begin < rows; begin += tokens) {
      matrix sequence = x.middleRows(begin, tokens);
      posenc::embed_rows(sequence, positions_, posenc::positions::from(0));
      x.middleRows(begin, tokens) = sequence;
    }
    std::vector<kept> memory(layers_.size());
    for (std::size_t l = 0; l < layers_.size(); ++l) forward(layers_[l], x, memory[l], tokens);
    const matrix hidden = norm::forward(x, last_norm_);
    matrix logits(rows, sizes_.vocabulary);
    times_.time(&profile::products, [&] { logits.noalias() = hidden * tokens_.value.transpose(); });
    const double loss = cross_entropy(logits, wanted);
    if (!learn) return loss;

    matrix d_hidden = matrix::Zero(rows, sizes_.width), d_x = d_hidden;
    times_.time(&profile::products, [&] {
      d_hidden.noalias() = logits * tokens_.value;
      tokens_.gradient.noalias() += logits.transpose() * hidden;
    });
    norm::backward(x, last_norm_, d_hidden, d_x);
    for (std::size_t l = layers_.size(); l-- > 0;) backward(layers_[l], memory[l], d_x, tokens);
    auto sums = posenc::parameter_list<float>::zeros_like(posenc::parameters_of(positions_));
    for (index_t begin = 0; begin < rows; begin += tokens)
      posenc::embed_rows_backward(matrix(d_x.middleRows(begin, tokens)), positions_,
                                  posenc::positions::from(0), sums);
    add_gradient(learned_, sums);
    for (index_t i = 0; i < rows; ++i) tokens_.gradient.row(input[static_cast<std::size_t>(i)]) += d_x.row(i);
    return loss;
  }

  [[nodiscard]] const profile& times() const { return times_; }

 private:
  struct layer {
    parameter norm, query, key, value, output, gate_norm, up, down;
  };
  /// Queries, keys, values, what came of them, and their gradients: (batch·tokens) × width.
  struct attention_step {
    matrix q, k, v, out, log_sum_exp, d_q, d_k, d_v;
  };
  /// What a layer keeps for its backward.
  struct kept {
    matrix x, normed, middle, gate_normed, wide, gated;
    attention_step attention;
  };

  [[nodiscard]] static matrix random(index_t rows, index_t columns, std::uint64_t seed, double spread) {
    return posenc::learned_absolute<float>::random(
               {.rows = rows, .width = columns, .stddev = spread, .seed = seed})
        .table();
  }
  [[nodiscard]] posenc::fused::execution how() { return {.executor = executor_, .memory = &scratch_}; }
  /// The heads of one sequence.
  template <class Matrix>
  [[nodiscard]] auto view(Matrix& m, index_t begin, index_t tokens) const {
    return posenc::token_major(m.data() + begin * m.cols(), tokens, sizes_.heads, sizes_.head_dim());
  }
  template <class Matrix>
  [[nodiscard]] auto scalars(Matrix& m, index_t begin, index_t tokens) const {
    using scalar = std::remove_reference_t<decltype(*m.data())>;
    return posenc::head_scalars_view<scalar>{m.data() + begin * m.cols(), tokens, m.cols(), m.cols(), 1};
  }

  void attend(attention_step& a, index_t tokens) {
    std::vector<posenc::fused::sequence<float>> batch;
    for (index_t at = 0; at < a.q.rows(); at += tokens)
      batch.push_back({view(a.q, at, tokens), view(a.k, at, tokens), view(a.v, at, tokens),
                       view(a.out, at, tokens), scalars(a.log_sum_exp, at, tokens), options_});
    posenc::fused::attention_batch(batch, positions_, how());
  }
  void attend_backward(attention_step& a, const matrix& d_out, index_t tokens) {
    std::vector<posenc::backward_sequence<float>> batch;
    for (index_t at = 0; at < a.q.rows(); at += tokens)
      batch.push_back({view(std::as_const(a.q), at, tokens), view(std::as_const(a.k), at, tokens),
                       view(std::as_const(a.v), at, tokens), view(std::as_const(a.out), at, tokens),
                       scalars(std::as_const(a.log_sum_exp), at, tokens), view(d_out, at, tokens),
                       view(a.d_q, at, tokens), view(a.d_k, at, tokens), view(a.d_v, at, tokens), options_});
    const std::span<const posenc::backward_sequence<float>> all(batch);
    add_gradient(learned_, posenc::fused::attention_backward_batch(all, positions_, how()).encoding);
  }

  void forward(layer& l, matrix& x, kept& m, index_t tokens) {
    m.x = x;
    m.normed = norm::forward(x, l.norm);
    attention_step& a = m.attention;
    a.q = product(m.normed, l.query, times_), a.k = product(m.normed, l.key, times_),
    a.v = product(m.normed, l.value, times_);
    a.out.resize(x.rows(), x.cols()), a.log_sum_exp.resize(x.rows(), sizes_.heads);
    times_.time(&profile::attention, [&] { attend(a, tokens); });
    x += product(a.out, l.output, times_);
    m.middle = x;
    m.gate_normed = norm::forward(x, l.gate_norm);
    m.wide = product(m.gate_normed, l.up, times_);
    m.gated = silu(m.wide);
    x += product(m.gated, l.down, times_);
  }

  /// d_x becomes the gradient of what the layer was given.
  void backward(layer& l, kept& m, matrix& d_x, index_t tokens) {
    matrix d_gated = matrix::Zero(m.gated.rows(), m.gated.cols());
    product_backward(m.gated, l.down, d_x, d_gated, times_);
    matrix d_normed = matrix::Zero(d_x.rows(), d_x.cols());
    product_backward(m.gate_normed, l.up, silu_backward(m.wide, d_gated), d_normed, times_);
    norm::backward(m.middle, l.gate_norm, d_normed, d_x);
    attention_step& a = m.attention;
    matrix d_out = matrix::Zero(d_x.rows(), d_x.cols());
    product_backward(a.out, l.output, d_x, d_out, times_);
    for (matrix* d : {&a.d_q, &a.d_k, &a.d_v}) d->resize(d_x.rows(), d_x.cols());
    times_.time(&profile::attention, [&] { attend_backward(a, d_out, tokens); });
    d_normed.setZero();
    product_backward(m.normed, l.query, a.d_q, d_normed, times_);
    product_backward(m.normed, l.key, a.d_k, d_normed, times_);
    product_backward(m.normed, l.value, a.d_v, d_normed, times_);
    norm::backward(m.x, l.norm, d_normed, d_x);
  }

  shape sizes_;
  posenc::fused::executor_ref executor_;
  posenc::attention_options options_{.heads = sizes_.heads, .mask = sizes_.mask, .is_embedded = true};
  posenc::fused::workspace scratch_{};
  encoding positions_;
  parameter learned_;
  parameter tokens_, last_norm_;
  std::vector<layer> layers_;
  profile times_{};
};

}  // namespace train
