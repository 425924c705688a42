// SPDX-License-Identifier: MIT
/// \file
/// Attention over a batch and its gradient: what the model asks of posenc.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include <posenc/fused.hpp>

#include "positional.hpp"
#include "tape.hpp"

namespace train {

class attention {
  [[nodiscard]] posenc::fused::execution how() { return {.executor = executor_, .memory = &scratch_}; }
  /// The heads of one sequence.
  template <class Matrix>
  [[nodiscard]] auto view(Matrix& m, index_t at, index_t tokens) const {
    return posenc::token_major(m.data() + at * m.cols(), tokens, sizes_.heads, sizes_.head_dim());
  }
  template <class Matrix>
  [[nodiscard]] auto scalars(Matrix& m, index_t at, index_t tokens) const {
    using scalar = std::remove_pointer_t<decltype(m.data())>;
    return posenc::head_scalars_view<scalar>{m.data() + at * m.cols(), tokens, m.cols(), m.cols(), 1};
  }

 public:
  attention(const shape& sizes, encoding learned, const posenc::fused::executor_ref& executor)
      : positions{std::move(learned)}, sizes_(sizes), executor_(executor) {}

  learned_encoding positions;

  /// Rows of x with what the encoding adds to them, sequence by sequence; the same of their gradient.
  value embed(tape& on, const value& x, index_t tokens) {
    matrix embedded = x->value;
    for (index_t at = 0; at < embedded.rows(); at += tokens) {
      matrix sequence = embedded.middleRows(at, tokens);
      posenc::embed_rows(sequence, positions.now, posenc::positions::from(0));
      embedded.middleRows(at, tokens) = sequence;
    }
    return on.make(std::move(embedded), [=, this](const node& to) {
      const matrix& d = to.gradient;
      auto sums = posenc::parameter_list<float>::zeros_like(posenc::parameters_of(positions.now));
      for (index_t at = 0; at < d.rows(); at += tokens)
        posenc::embed_rows_backward(matrix(d.middleRows(at, tokens)), positions.now,
                                    posenc::positions::from(0), sums);
      positions.add_gradient(sums);
      x->grown() += d;
    });
  }

  /// \param q,k,v (batch·tokens) × width
  value attend(tape& on, const value& q, const value& k, const value& v, index_t tokens) {
    matrix out(q->value.rows(), q->value.cols()), log_sum_exp(out.rows(), sizes_.heads);
    on.time(&profile::attention, [&] {
      std::vector<posenc::fused::sequence<float>> batch;
      for (index_t at = 0; at < out.rows(); at += tokens)
        batch.push_back({view(q->value, at, tokens), view(k->value, at, tokens), view(v->value, at, tokens),
                         view(out, at, tokens), scalars(log_sum_exp, at, tokens), options_});
      posenc::fused::attention_batch(batch, positions.now, how());
    });
    return on.make(std::move(out), [=, this, &on, lse = std::move(log_sum_exp)](const node& to) {
      const matrix& d = to.gradient;
      on.time(&profile::attention, [&] {
        std::vector<posenc::backward_sequence<float>> batch;
        for (index_t at = 0; at < d.rows(); at += tokens)
          batch.push_back({view(q->value, at, tokens), view(k->value, at, tokens), view(v->value, at, tokens),
                           view(to.value, at, tokens), scalars(lse, at, tokens), view(d, at, tokens),
                           view(q->grown(), at, tokens), view(k->grown(), at, tokens),
                           view(v->grown(), at, tokens), options_});
        const std::span<const posenc::backward_sequence<float>> all(batch);
        positions.add_gradient(posenc::fused::attention_backward_batch(all, positions.now, how()).encoding);
      });
    });
  }

 private:
  shape sizes_;
  posenc::fused::executor_ref executor_;
  posenc::attention_options options_{.heads = sizes_.heads, .mask = sizes_.mask, .is_embedded = true};
  posenc::fused::workspace scratch_{};
};

}  // namespace train
