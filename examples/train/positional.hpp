// SPDX-License-Identifier: MIT
/// \file
/// The encodings that a model can be trained with, by name, and what they learn as one more parameter.
#pragma once

#include <cstddef>
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

/// What an encoding learns, as one row; of no columns where that is nothing.
[[nodiscard]] inline parameter learned_by(const encoding& positions) {
  const auto list = posenc::parameters_of(positions);
  matrix row(1, static_cast<index_t>(list.size()));
  for (std::size_t n = 0; n < list.size(); ++n)
    row(0, static_cast<index_t>(n)) = static_cast<float>(list.values()[n]);
  return {"positions", std::move(row)};
}
/// The encoding with what the row has become.
[[nodiscard]] inline encoding refreshed(const encoding& positions, const parameter& learned) {
  auto list = posenc::parameters_of(positions);
  for (std::size_t n = 0; n < list.size(); ++n)
    list.values()[n] = static_cast<double>(learned.value(0, static_cast<index_t>(n)));
  return posenc::with_parameters(positions, list);
}
inline void add_gradient(parameter& learned, const posenc::parameter_list<float>& sums) {
  for (std::size_t n = 0; n < sums.size(); ++n)
    learned.gradient(0, static_cast<index_t>(n)) += sums.values()[n];
}

/// An encoding by name, with tables to begin from. RoPE's `scaling` is what stretches a trained model.
/// \throws std::invalid_argument for another name
[[nodiscard]] inline encoding make_encoding(const std::string& name, const shape& model, std::uint64_t seed,
                                            const std::string& scaling = "none", double factor = 1) {
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
  if (name == "none") return posenc::no_encoding{};
  if (name == "learned") return posenc::learned_absolute<float>(table(model.tokens, model.width));
  if (name == "sinusoidal")
    return posenc::sinusoidal<float>({.width = model.width, .convention = posenc::sinusoid::paper});
  if (name == "clipped")
    return posenc::relative_bias<float>(
        clip, posenc::bias_table<float>::heads_by_rows(table(model.heads, clip.rows())));
  if (name == "t5")
    return posenc::t5_bias<float>(
        {.buckets = 16, .max_distance = 64, .bidirectional = model.mask != posenc::causal},
        posenc::bias_table<float>::heads_by_rows(table(model.heads, 16)));
  if (name == "shaw") {
    matrix keys = table(clip.rows(), model.head_dim()), values = 0.5f * keys;
    return posenc::shaw_with_values<float>(clip, std::move(keys), std::move(values));
  }
  if (name == "alibi") return posenc::alibi<float>({.heads = model.heads});
  if (name == "xpos") return posenc::xpos<float>({.rope = rope});
  posenc::detail::require(name == "rope", "--encoding: ", name,
                          " is none of none, learned, sinusoidal, clipped, t5, shaw, alibi, rope, xpos");
  if (scaling == "none") return posenc::rope<float>(rope);
  if (scaling == "linear") return posenc::rope<float>(rope, posenc::position_interpolation{factor});
  if (scaling == "theta") return posenc::rope<float>(rope, posenc::theta_scaling{factor});
  posenc::detail::require(scaling == "yarn", "--scaling: ", scaling, " is none of none, linear, theta, yarn");
  return posenc::rope<float>(
      rope, posenc::yarn{.factor = factor, .original_context = static_cast<double>(model.tokens)});
}

}  // namespace train
