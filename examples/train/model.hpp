// SPDX-License-Identifier: MIT
/// \file
/// A small transformer: token vectors (tied with the output), layers of norm, attention, norm and gate, one last norm.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "tasks.hpp"

namespace train {

class model {
 public:
  model(const shape& sizes, encoding positions, std::uint64_t seed,
        const posenc::fused::executor_ref& executor)
      : attention_(sizes, std::move(positions), executor),
        tokens_(random("tokens", sizes.vocabulary, sizes.width, seed, 0.05)),
        last_norm_(ones("last_norm", sizes.width)) {
    const index_t d = sizes.width;
    require(d % sizes.heads == 0, "--width: ", d, " channels for ", sizes.heads, " heads");
    const double spread = 1 / std::sqrt(static_cast<double>(d)),
                 narrow = spread / std::sqrt(2.0 * static_cast<double>(sizes.layers));
    for (index_t l = 0; l < sizes.layers; ++l) {
      const std::uint64_t s = seed + 100 * static_cast<std::uint64_t>(l + 1);
      layers_.push_back({ones("norm", d), random("query", d, d, s + 1, spread),
                         random("key", d, d, s + 2, spread), random("value", d, d, s + 3, spread),
                         random("output", d, d, s + 4, narrow), ones("gate norm", d),
                         random("up", d, 4 * d, s + 5, spread), random("down", 4 * d, d, s + 6, narrow / 2)});
    }
  }

  /// All that is learned, in a fixed order.
  [[nodiscard]] std::vector<parameter*> parameters() {
    std::vector<parameter*> all{&tokens_, &last_norm_};
    for (layer& l : layers_)
      for (parameter* p : {&l.norm, &l.query, &l.key, &l.value, &l.output, &l.gate_norm, &l.up, &l.down})
        all.push_back(p);
    if (attention_.positions.row.value.size() > 0) all.push_back(&attention_.positions.row);
    return all;
  }
  /// After the parameters have changed.
  void refresh() { attention_.positions.refresh(); }

  /// Mean loss over sequences of `tokens`; `learn` adds to the gradients.
  double loss(const batch& b, index_t tokens, bool learn) {
    tape on(learn, times_);
    matrix rows(std::ssize(b.input), tokens_.value.cols());
    for (index_t i = 0; i < rows.rows(); ++i)
      rows.row(i) = tokens_.value.row(b.input[static_cast<std::size_t>(i)]);
    value x = on.make(std::move(rows), [&](const node& to) {
      for (index_t i = 0; i < to.gradient.rows(); ++i)
        tokens_.gradient.row(b.input[static_cast<std::size_t>(i)]) += to.gradient.row(i);
    });
    x = attention_.embed(on, x, tokens);
    for (layer& l : layers_) {
      const value seen = on.norm(x, l.norm);
      const value v = on.product(seen, l.value), k = on.product(seen, l.key), q = on.product(seen, l.query);
      x = on.add(x, on.product(attention_.attend(on, q, k, v, tokens), l.output));
      x = on.add(x, on.product(on.silu(on.product(on.norm(x, l.gate_norm), l.up)), l.down));
    }
    const double loss = on.cross_entropy(on.norm(x, last_norm_), tokens_, b.wanted);
    on.play_backwards();
    return loss;
  }

  [[nodiscard]] const profile& times() const { return times_; }

 private:
  struct layer {
    parameter norm, query, key, value, output, gate_norm, up, down;
  };

  [[nodiscard]] static parameter ones(const char* name, index_t d) { return {name, matrix::Ones(1, d)}; }
  [[nodiscard]] static parameter random(const char* name, index_t rows, index_t columns, std::uint64_t seed,
                                        double spread) {
    const posenc::normal_table table{.rows = rows, .width = columns, .stddev = spread, .seed = seed};
    return {name, posenc::learned_absolute<float>::random(table).table()};
  }

  attention attention_;
  parameter tokens_, last_norm_;
  std::vector<layer> layers_{};
  profile times_{};
};

}  // namespace train
