// SPDX-License-Identifier: MIT
/// \file
/// From a model file to a call: all that a layer does with positions, ready to run.
///
///     const posenc::model model = posenc::read_model("config.json");      // or a .gguf
///     for (const std::string& sentence : model.warnings()) …              // what was odd about the file
///     const posenc::model_layer layer = model.layer(3);
///     Eigen::MatrixXf out = posenc::fused::attention(q, k, v, layer.encoding, layer.options);
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <posenc/attention/options.hpp>
#include <posenc/encoding.hpp>
#include <posenc/encodings/any_encoding.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/models/any_model.hpp>
#include <posenc/models/description.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// The stacks of an encoder-decoder model.
enum class model_side : unsigned char {
  encoder,
  decoder,
  cross,  ///< the decoder's attention to the encoder's output: no positions, no mask
};

/// The name of a side as this library writes it.
[[nodiscard]] constexpr const char* name_of(model_side side) noexcept {
  return side == model_side::encoder ? "encoder" : side == model_side::decoder ? "decoder" : "cross";
}

/// What a layer needs and the configuration of a model does not hold.
struct layer_inputs {
  /// Tokens of the sequence, for rotations that depend on it (LongRoPE, dynamic NTK): decided once per sequence.
  std::optional<position> length{};
  /// The learned bias of T5 and its kin (`relative_attention_bias.weight`), buckets × heads.
  std::optional<posenc::bias_table<float>> bias_table{};
  /// The learned position vectors of BERT, GPT-2 and their kin (`wpe.weight`), rows × width.
  std::optional<row_major_matrix<float>> position_table{};
  angle_mode angles = angle_mode::exact;  ///< exact, or the frameworks' float32
};

/// All that one layer does with positions.
struct model_layer {
  any_encoding<float> encoding{};  ///< what the layer does with positions
  /// Heads, widths, mask, window, chunk, scale, softcap, and whether the call has to bring sinks. Positions, sinks
  /// and padding are the caller's to add.
  attention_options options{};
  std::string type{};  ///< what the model calls the layer: "sliding_attention", "encoder", …
  /// The position of the first token for embed_rows; 0 but in the fairseq family, which counts from padding + 1.
  position first_position = 0;
};

/// What a model file says about positions, and the layers made from it.
class model {
 public:
  /// From plain values, read or made by hand.
  explicit model(model_description description) : description_(std::move(description)) {}

  /// What a person should know about the file, a sentence each: defaults taken from the model class, keys without
  /// effect, contradictions.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return description_.warnings; }

  /// Everything that was read, as plain values.
  [[nodiscard]] const model_description& description() const noexcept { return description_; }

  /// The number of layers. \throws std::invalid_argument for an encoder-decoder model: say which side
  [[nodiscard]] index_t layers() const {
    refuse_two_sides("layers()", "layers(posenc::model_side::decoder)");
    return description_.layers;
  }
  /// The number of layers of one side; 0 where the model has no such side.
  [[nodiscard]] index_t layers(model_side side) const {
    index_t count = 0;
    for (const encoding_description& one : description_.encodings)
      if (is_of(one, side)) count += static_cast<index_t>(one.layers.size());
    return count;
  }

  /// False for a layer without attention: a convolution, a recurrence, a state space.
  /// \throws std::out_of_range when there is no such layer
  [[nodiscard]] bool attends(index_t layer) const { return find(layer).attends; }

  /// Layer `layer` of a decoder-only or encoder-only model, counted from 0.
  /// \throws std::out_of_range when there is no such layer; std::invalid_argument when it has no attention, when
  /// something it needs is not in `inputs`, when the file does not say how many heads it has, or when the model has
  /// two sides
  [[nodiscard]] model_layer layer(index_t layer, const layer_inputs& inputs = {}) const {
    refuse_two_sides("layer(i)", "layer(posenc::model_side::decoder, i)");
    return make(find(layer), layer, inputs);
  }

  /// Layer `layer` of one side of an encoder-decoder model. \throws as above
  [[nodiscard]] model_layer layer(model_side side, index_t layer, const layer_inputs& inputs = {}) const {
    for (const encoding_description& one : description_.encodings)
      if (is_of(one, side) && contains(one, layer)) {
        if (side != model_side::cross) return make(one, layer, inputs);
        encoding_description cross = one;
        cross.parameters = {};
        cross.causal = false;
        cross.layer_type = name_of(side);
        return make(cross, layer, inputs);
      }
    detail::fail<std::out_of_range>(description_.model_type, ": no layer ", layer, " of ", layers(side),
                                    " in the ", name_of(side));
  }

 private:
  [[nodiscard]] static bool contains(const encoding_description& one, index_t layer) {
    return std::binary_search(one.layers.begin(), one.layers.end(), layer);
  }
  [[nodiscard]] bool is_of(const encoding_description& one, model_side side) const {
    if (side == model_side::cross) return has_two_sides() && one.layer_type == "decoder";
    return one.layer_type == name_of(side);
  }
  [[nodiscard]] bool has_two_sides() const {
    bool encoder = false, decoder = false;
    for (const encoding_description& one : description_.encodings) {
      encoder = encoder || one.layer_type == "encoder";
      decoder = decoder || one.layer_type == "decoder";
    }
    return encoder && decoder;
  }
  void refuse_two_sides(const char* call, const char* instead) const {
    detail::require(!has_two_sides(), description_.model_type,
                    ": the model has an encoder and a decoder, so ", call,
                    " does not say which is meant; call ", instead);
  }
  [[nodiscard]] const encoding_description& find(index_t layer) const {
    for (const encoding_description& one : description_.encodings)
      if (contains(one, layer)) return one;
    detail::fail<std::out_of_range>(description_.model_type, ": no layer ", layer, " of ",
                                    description_.layers);
  }

  [[nodiscard]] model_layer make(const encoding_description& one, index_t layer,
                                 const layer_inputs& inputs) const {
    const auto require = [&](bool ok, const auto&... parts) {
      detail::require(ok, description_.model_type, ", layer ", layer, ": ", parts...);
    };
    require(one.attends, "no attention (", one.layer_type, ")");
    require(one.beyond.empty(), "more than one attention call (", one.layer_type, "): ", one.beyond);
    require(one.heads > 0 && one.head_dim > 0,
            "the file does not say how many heads there are and how wide they are");
    const bool embeds =
        one.kind() == encoding_kind::learned_absolute || one.kind() == encoding_kind::sinusoidal;
    model_layer made;
    made.type = one.layer_type;
    made.options.heads = one.heads;
    made.options.kv_heads = one.kv_heads;
    made.options.head_dim = one.head_dim;
    if (one.value_dim > 0) made.options.value_dim = one.value_dim;
    made.options.mask = one.causal ? causal : bidirectional;
    made.options.window = {.lookback = one.lookback, .lookahead = one.lookahead};
    made.options.chunk = one.chunk;
    made.options.scale = one.softmax_scale;
    made.options.softcap = one.softcap;
    made.options.needs_sinks = one.learned_sinks;
    made.options.is_embedded = embeds;
    made.encoding =
        std::visit([&](const auto& parameters) { return encoding_of(parameters, one, inputs, require); },
                   one.parameters);
    if (const auto* sines = std::get_if<sinusoidal_description>(&one.parameters))
      made.first_position = sines->position_offset;
    return made;
  }

  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(std::monostate, const encoding_description& one,
                                                       const layer_inputs&, const Require&) {
    if (one.position_scale) return *one.position_scale;
    return no_encoding{};
  }
  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(rope_description parameters,
                                                       const encoding_description& one,
                                                       const layer_inputs& inputs, const Require& require) {
    require(inputs.length || !depends_on_length(parameters),
            "the rotation depends on the length of the sequence (LongRoPE or dynamic NTK): give "
            "layer_inputs::length, the tokens of the sequence");
    parameters.options.angles = inputs.angles;
    if (!parameters.axis_sections.empty()) {
      require(!one.position_scale, "several axes together with a scale by position are not known");
      return make_multi_axis_rope<float>(parameters, {}, 0, inputs.length);
    }
    rope<float> rotation = make_rope<float>(parameters, inputs.length);
    if (one.position_scale) return combine(std::move(rotation), *one.position_scale);
    return rotation;
  }
  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(const alibi_description& parameters,
                                                       const encoding_description&, const layer_inputs&,
                                                       const Require&) {
    return parameters.make<float>();
  }
  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(const t5_description& parameters,
                                                       const encoding_description& one,
                                                       const layer_inputs& inputs, const Require& require) {
    require(inputs.bias_table.has_value(),
            "the bias is learned and a configuration does not hold it: give "
            "layer_inputs::bias_table, ",
            parameters.buckets.buckets, " buckets x ", one.heads, " heads (relative_attention_bias.weight",
            parameters.table_per_layer ? " of this layer)" : " of the first layer)");
    require(!inputs.bias_table->heads() || *inputs.bias_table->heads() == one.heads,
            "layer_inputs::bias_table has ", inputs.bias_table->heads().value_or(0), " heads, the layer ",
            one.heads);
    return t5_bias<float>(parameters.buckets, *inputs.bias_table);
  }
  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(const learned_description& parameters,
                                                       const encoding_description&,
                                                       const layer_inputs& inputs, const Require& require) {
    require(inputs.position_table.has_value(),
            "the position vectors are learned and a configuration does not hold "
            "them: give layer_inputs::position_table, ",
            parameters.rows, " rows");
    require(inputs.position_table->rows() == parameters.rows, "layer_inputs::position_table has ",
            inputs.position_table->rows(), " rows, the model ", parameters.rows);
    require(parameters.width == 0 || inputs.position_table->cols() == parameters.width,
            "layer_inputs::position_table has ", inputs.position_table->cols(), " columns, the model ",
            parameters.width);
    return learned_absolute<float>(*inputs.position_table, {.row_offset = parameters.row_offset});
  }
  template <class Require>
  [[nodiscard]] static any_encoding<float> encoding_of(const sinusoidal_description& parameters,
                                                       const encoding_description&, const layer_inputs&,
                                                       const Require&) {
    return sinusoidal<float>(parameters.options);
  }

  model_description description_;
};

/// Reads a config.json or a GGUF file, whichever it is.
/// \throws posenc::format_error when the file cannot be read or is not what it claims to be;
/// std::invalid_argument when its model type is not known or its values mean nothing
[[nodiscard]] inline model read_model(const std::filesystem::path& path,
                                      const huggingface_options& huggingface = {},
                                      const gguf_options& gguf = {}) {
  return model(read_description(path, huggingface, gguf));
}

}  // namespace posenc::inline v0_2
