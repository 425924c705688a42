// SPDX-License-Identifier: MIT
/// \file
/// The encodings that a model can be trained with, by name, and what they learn as one more parameter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <posenc/encodings/any_encoding.hpp>
#include <posenc/posenc.hpp>

#include "parameters.hpp"

namespace train {

using encoding = posenc::any_encoding<float>;

/// Shape of a model and of a batch.
struct shape {
  index_t vocabulary = 0, width = 96, heads = 4, layers = 2, tokens = 64, batch = 16;
  posenc::attention_mask mask = posenc::causal;

  [[nodiscard]] index_t head_dim() const { return width / heads; }
};

/// The numbers of a list as one row.
template <class S>
[[nodiscard]] Eigen::Map<posenc::row_major_matrix<S>> row_of(posenc::parameter_list<S>& list) {
  return {list.values().data(), 1, static_cast<index_t>(list.size())};
}
/// An encoding, and what it learns as one row, of no columns where that is nothing.
struct learned_encoding {
  encoding now;
  posenc::parameter_list<double> list = posenc::parameters_of(now);
  parameter row{"positions", row_of(list).cast<float>()};

  /// After the row has changed.
  void refresh() {
    if (list.blocks() > 0 && list.name(0) == "slopes")
      row.value = row.value.cwiseMax(0);  // ALiBi has no others
    row_of(list) = row.value.cast<double>();
    now = posenc::with_parameters(now, list);
  }
  void add_gradient(posenc::parameter_list<float> sums) { row.gradient += row_of(sums); }
};

/// An encoding by name, with tables to begin from. RoPE's `scaling` is what stretches a trained model.
/// \throws std::invalid_argument for another name
[[nodiscard]] inline encoding make_encoding(const std::string& name, const shape& model, std::uint64_t seed,
                                            const std::string& scaling, double factor) {
  const auto table = [&](index_t rows, index_t columns) {
    return posenc::learned_absolute<float>::random({.rows = rows, .width = columns, .seed = seed}).table();
  };
  const auto heads_table = [&](index_t rows) {
    return posenc::bias_table<float>::heads_by_rows(table(model.heads, rows));
  };
  const bool is_causal = model.mask == posenc::causal;
  const posenc::relative_clip clip{
      .direction = posenc::relative_direction::key_minus_query, .left = 32, .right = is_causal ? 0 : 32};
  const posenc::rope_options rope{
      .head_dim = model.head_dim(), .base = 10'000.0, .pairing = posenc::pairing::half_split};
  require(scaling == "none" || name == "rope", "--scaling: it stretches rope, not ", name);
  if (name == "none") return posenc::no_encoding{};
  if (name == "learned") return posenc::learned_absolute<float>(table(model.tokens, model.width));
  if (name == "sinusoidal")
    return posenc::sinusoidal<float>({.width = model.width, .convention = posenc::sinusoid::paper});
  if (name == "clipped") return posenc::relative_bias<float>(clip, heads_table(clip.rows()));
  if (name == "t5")
    return posenc::t5_bias<float>({.buckets = 16, .max_distance = 64, .bidirectional = !is_causal},
                                  heads_table(16));
  if (name == "shaw") {
    const matrix keys = table(clip.rows(), model.head_dim());
    return posenc::shaw_with_values<float>(clip, keys, 0.5f * keys);
  }
  if (name == "alibi") return posenc::alibi<float>({.heads = model.heads});
  if (name == "xpos") return posenc::xpos<float>({.rope = rope});
  require(name == "rope", "--encoding: ", name,
          " is none of none, learned, sinusoidal, clipped, t5, shaw, alibi, rope, xpos");
  if (scaling == "none") return posenc::rope<float>(rope);
  if (scaling == "linear") return posenc::rope<float>(rope, posenc::position_interpolation{factor});
  if (scaling == "theta") return posenc::rope<float>(rope, posenc::theta_scaling{factor});
  require(scaling == "yarn", "--scaling: ", scaling, " is none of none, linear, theta, yarn");
  const auto trained = static_cast<double>(model.tokens);
  return posenc::rope<float>(rope, posenc::yarn{.factor = factor, .original_context = trained});
}

}  // namespace train
