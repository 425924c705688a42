// SPDX-License-Identifier: MIT
/// \file
/// What a model's positional encoding is, layer by layer, as plain values: what the readers of model files
/// give back, and what an encoding is made from.
///
///     const posenc::model_description model = posenc::read_huggingface("config.json");
///     for (const posenc::encoding_description& encoding : model.encodings) …   // one per distinct encoding
///     const auto rope = posenc::make_rope<float>(model.encodings[0].rope(), 32'768);
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <posenc/detail/floating.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/logit_scale.hpp>
#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/axes.hpp>
#include <posenc/rope/scaling.hpp>

namespace posenc::inline v0_2 {

/// The kinds of encoding that a model file can describe.
enum class encoding_kind : unsigned char { none, rope, alibi, t5_bias, learned_absolute, sinusoidal };

/// The name of a kind as this library writes it.
[[nodiscard]] constexpr const char* name_of(encoding_kind kind) noexcept {
  switch (kind) {
    case encoding_kind::rope:
      return "rope";
    case encoding_kind::alibi:
      return "alibi";
    case encoding_kind::t5_bias:
      return "t5_bias";
    case encoding_kind::learned_absolute:
      return "learned_absolute";
    case encoding_kind::sinusoidal:
      return "sinusoidal";
    default:
      return "none";
  }
}

/// A RoPE as a model file states it.
struct rope_description {
  rope_options options;   ///< widths, base, pairing, angles
  any_scaling scaling{};  ///< the context extension
  /// Multi-axis RoPE: the axis (0 time, 1 height, 2 width) that each pair follows; empty for one axis. Text
  /// stands at the same place on every axis, where this is RoPE with one axis.
  std::vector<int> axis_of_pair{};
  /// Multi-axis RoPE: how many pairs each axis has ("mrope_section"), and how they are dealt out; empty for
  /// one axis.
  std::vector<index_t> axis_sections{};
  posenc::axis_order axis_order = posenc::axis_order::chunked;  ///< how pairs are dealt out to axes
  bool turns_backwards = false;                                 ///< by −φ (nanochat)
  /// Divides the frequency of each pair, before the scaling: the tensor rope_freqs.weight of GGUF files.
  /// Empty for none.
  std::vector<double> frequency_divisors{};
  /// How long the sequences are for which the model is meant, in tokens ("max_position_embeddings").
  std::optional<position> context_length{};

  /// What a scaling gets to know.
  [[nodiscard]] rotary_shape shape() const {
    return {options.head_dim, detail::checked_rotary_dim(options), options.base};
  }
};

/// ALiBi as a model file states it.
struct alibi_description {
  alibi_options options{};  ///< heads, slopes
  /// Falcon adds the bias before the scale and rounds slopes to bfloat16; then the width of a head, else 0.
  index_t falcon_head_dim = 0;

  /// The encoding.
  template <std::floating_point T = double>
  [[nodiscard]] alibi<T> make() const {
    return falcon_head_dim > 0 ? alibi<T>::falcon(options, falcon_head_dim) : alibi<T>(options);
  }
};

/// T5's relative bias; the table itself is in the weights.
struct t5_description {
  t5_bucket_options buckets;     ///< how distances fall into rows
  index_t heads = 0;             ///< columns of the table
  bool table_per_layer = false;  ///< false: the first layer's table serves all layers; true in UMT5
};

/// A table of learned position vectors; the table itself is in the weights.
struct learned_description {
  index_t rows = 0;        ///< of the table, reserved ones included
  index_t row_offset = 0;  ///< position p uses row p + row_offset (OPT 2, RoBERTa padding_idx + 1)
  index_t width = 0;       ///< channels, 0 if the file does not say
};

/// Sinusoidal position vectors.
struct sinusoidal_description {
  sinusoidal_options options;   ///< width, base, convention
  index_t rows = 0;             ///< how many positions the model makes, 0 if unlimited
  index_t position_offset = 0;  ///< token t stands at position t + position_offset
};

/// One positional encoding and the layers that use it.
struct encoding_description {
  std::variant<std::monostate, rope_description, alibi_description, t5_description, learned_description,
               sinusoidal_description>
      parameters{};  ///< std::monostate: no encoding
  /// What the model calls these layers ("full_attention", "sliding_attention", "chunked_attention",
  /// "linear_attention"), or "encoder" and "decoder" where each has its own.
  std::string layer_type{};
  std::vector<index_t> layers{};  ///< indexes, ascending
  bool attends = true;            ///< false: these layers have no attention (convolutions, recurrences)

  index_t heads = 0;      ///< query heads, 0 if the file does not say
  index_t kv_heads = 0;   ///< 0 if the file does not say
  index_t head_dim = 0;   ///< channels of a query and of a key, 0 if the file does not say
  index_t value_dim = 0;  ///< channels of a value, 0 if the file does not say

  /// σ, what multiplies q·k, every multiplier included (1/√head_dim, DeepSeek's temperature, Gemma's
  /// query_pre_attn_scalar); a rope's attention factor is not in it, it is on cos and sin. Nothing if the
  /// file does not say.
  std::optional<double> softmax_scale{};
  std::optional<logit_scale> position_scale{};  ///< a further factor, by the position of the query
  double softcap = 0;                           ///< c·tanh(s/c) on scaled scores; 0 is off
  bool learned_sinks = false;                   ///< one learned logit per head joins each softmax (gpt-oss)
  bool causal = true;                           ///< a query sees no key ahead of it
  std::optional<position> lookback{};           ///< keys at most this far behind the query are seen
  std::optional<position> lookahead{};          ///< keys at most this far ahead of the query are seen
  std::optional<position> chunk{};  ///< only keys in the query's own chunk of this many tokens are seen
  bool prefix_lm =
      false;  ///< image and prompt see one another both ways: options.visible = prefix_lm(tokens)
  bool image_blocks =
      false;             ///< the tokens of an image see one another both ways: options.visible = blocks(…)
  std::string beyond{};  ///< what the layer does beside this attention; empty for nothing

  /// Which of the alternatives it is.
  [[nodiscard]] encoding_kind kind() const noexcept { return static_cast<encoding_kind>(parameters.index()); }
  /// The parameters of a rope. \throws std::invalid_argument when this is another kind of encoding.
  [[nodiscard]] const rope_description& rope() const {
    const auto* found = std::get_if<rope_description>(&parameters);
    detail::require(found != nullptr, "these layers have ", name_of(kind()), ", not rope");
    return *found;
  }
};

/// What a model file says about positions.
struct model_description {
  std::string model_type{};  ///< "model_type" or "general.architecture"
  index_t layers = 0;        ///< of the decoder where there are two sides
  index_t heads = 0;         ///< query heads, the most that a layer has; 0 if the file does not say
  index_t kv_heads = 0;      ///< likewise
  std::optional<position> context_length{};       ///< the longest sequence that the file says it is made for
  std::vector<encoding_description> encodings{};  ///< distinct ones, in the order of their first layer
  std::vector<std::string> warnings{};            ///< what a person should know, a sentence each
};

/// True when the frequencies depend on the length of the sequence, so that make_rope needs it.
[[nodiscard]] inline bool depends_on_length(const rope_description& description) noexcept {
  return depends_on_length(description.scaling);
}

/// The RoPE of a description. For a multi-axis description this is its rotation of text.
/// \param length of the sequence in tokens, for schemes that depend on it
/// \throws std::invalid_argument when the numbers mean nothing or a length is needed and not given.
template <std::floating_point T>
[[nodiscard]] rope<T> make_rope(const rope_description& description,
                                std::optional<position> length = std::nullopt) {
  rope<T> result{description.options, description.scaling, length};
  if (description.frequency_divisors.empty() && !description.turns_backwards) return result;
  const rotary_shape shape = description.shape();
  auto ladder = description.scaling.template ladder<long double>(shape, length);
  if (description.turns_backwards)
    for (long double& w : ladder.inv_freq) w = -w;
  if (description.frequency_divisors.empty()) return rope<T>::from_frequencies(description.options, ladder);
  detail::require(description.frequency_divisors.size() == static_cast<std::size_t>(shape.pairs()),
                  "rope: ", description.frequency_divisors.size(), " frequency divisors for ", shape.pairs(),
                  " pairs");
  for (std::size_t p = 0; p < ladder.inv_freq.size(); ++p) {
    const double divisor = description.frequency_divisors[p];
    detail::require(detail::is_finite(divisor) && divisor > 0, "rope: a frequency divisor of ", divisor);
    ladder.inv_freq[p] /= static_cast<long double>(divisor);
  }
  return rope<T>::from_frequencies(description.options, ladder);
}

/// The multi-axis RoPE of a description.
/// \param table where each token stands (axis_position_builder)
/// \param rope_delta token n beyond the table stands at n + rope_delta on every axis
/// \throws std::invalid_argument when the description has one axis, else as make_rope does.
template <std::floating_point T>
[[nodiscard]] multi_axis_rope<T> make_multi_axis_rope(const rope_description& description,
                                                      std::vector<axis_positions> table,
                                                      position rope_delta = 0,
                                                      std::optional<position> length = std::nullopt) {
  detail::require(!description.axis_sections.empty(), "rope: the description has one axis");
  detail::require(description.frequency_divisors.empty(),
                  "rope: frequency divisors together with several axes are not known");
  return multi_axis_rope<T>{description.options,
                            std::span<const index_t>(description.axis_sections),
                            description.axis_order,
                            std::move(table),
                            rope_delta,
                            description.scaling,
                            length};
}

namespace detail {

/// Fills in the axes of a description. \throws std::invalid_argument when the sections do not fill the pairs.
inline void set_axes(rope_description& description, std::vector<index_t> sections, axis_order order) {
  description.axis_of_pair = axes_of_pairs(sections, order, description.shape().pairs());
  description.axis_sections = std::move(sections);
  description.axis_order = order;
}

/// Builds each rope once, so that a description that means nothing is refused where the file is read.
inline void check_ropes(const model_description& model) {
  for (const encoding_description& encoding : model.encodings) {
    if (encoding.kind() == encoding_kind::rope)
      (void)make_rope<double>(encoding.rope(), encoding.rope().context_length.value_or(1));
    if (encoding.kind() == encoding_kind::alibi)
      (void)std::get<alibi_description>(encoding.parameters).make();
    if (encoding.kind() == encoding_kind::t5_bias)
      (void)t5_buckets(std::get<t5_description>(encoding.parameters).buckets);
    if (encoding.kind() == encoding_kind::sinusoidal)
      (void)sinusoidal<double>(std::get<sinusoidal_description>(encoding.parameters).options);
    require(!encoding.softmax_scale || is_finite(*encoding.softmax_scale),
            "a softmax scale that is not finite");
  }
}

}  // namespace detail

/// The one rope of a model, or that of a layer.
/// \param layer needed where layers differ
/// \throws std::invalid_argument, naming the encodings, when the model has several and no layer is given, or
/// when that encoding is no rope.
[[nodiscard]] inline const encoding_description& rope_encoding(const model_description& model,
                                                               std::optional<index_t> layer = std::nullopt) {
  if (layer) {
    for (const encoding_description& encoding : model.encodings)
      for (const index_t index : encoding.layers)
        if (index == *layer) return (void)encoding.rope(), encoding;
    detail::fail<std::invalid_argument>(model.model_type, ": no layer ", *layer, " of ", model.layers);
  }
  detail::require(!model.encodings.empty(), model.model_type, ": no positional encoding");
  if (model.encodings.size() > 1) {
    std::string names;
    for (const encoding_description& encoding : model.encodings) {
      names += names.empty() ? "" : ", ";
      names += name_of(encoding.kind());
      names += " (" + encoding.layer_type;
      if (!encoding.layers.empty()) names += ", from layer " + std::to_string(encoding.layers.front());
      names += ")";
    }
    detail::fail<std::invalid_argument>(
        model.model_type, ": layers differ, so say which layer is meant (option layer): ", names);
  }
  return (void)model.encodings.front().rope(), model.encodings.front();
}

}  // namespace posenc::inline v0_2
