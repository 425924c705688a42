// SPDX-License-Identifier: MIT
/// \file
/// Hugging Face config.json → the positional encoding of every layer.
///
///     auto rope  = posenc::load_rope<float>("config.json");                      // all layers alike
///     auto local = posenc::load_rope<float>("config.json", {.layer = 0});        // layers differ: say which
///     const posenc::model_description model = posenc::read_huggingface("config.json");   // everything
///
/// Reads the old style (rope_theta, rope_scaling with "type" or "rope_type") and the new one
/// (rope_parameters, also nested by layer type), and knows what the model classes fix in code
/// (families/huggingface.hpp). Where several keys say the same thing:
///
/// | question | answer |
/// |---|---|
/// | rope_scaling and rope_parameters | rope_scaling |
/// | rope_type and type | rope_type |
/// | rope_theta inside and outside the block | inside |
/// | partial_rotary_factor inside and outside | outside |
/// | original_max_position_embeddings inside and outside | outside; inside where the block is nested by layer |
/// | head_dim or hidden_size / num_attention_heads | head_dim |
///
/// null counts as absent. Unknown keys of the rope block, defaults taken from the model class and overruled
/// values are reported in model_description::warnings; nothing is printed. A model_type that is not known is
/// refused: which channels pair up is not guessed, the caller may state it. A key that nothing reads and whose name
/// speaks of positions, widths, layers or masks is a warning for a known model_type and a refusal for another.
///
/// The parts: huggingface/keys.hpp, other_kinds.hpp, rope_block.hpp, layers.hpp; the rows: families/.
#pragma once

#include <concepts>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/models/description.hpp>
#include <posenc/models/huggingface/layers.hpp>
#include <posenc/models/json.hpp>

namespace posenc::inline v0_2 {

/// What a parsed config.json says about positions.
/// \throws format_error with the key when a value has the wrong type; std::invalid_argument when the values
/// mean nothing, contradict each other, or belong to a model whose pairing is not known.
[[nodiscard]] inline model_description describe_huggingface(const nlohmann::json& config,
                                                            const huggingface_options& options = {},
                                                            std::string_view what = "config.json") {
  return detail::huggingface::reader(config, options, what).read();
}

/// The same from the text of a config.json, which is not trusted.
/// \param what names the text in errors
/// \throws format_error also when it is no JSON, with the byte offset.
[[nodiscard]] inline model_description parse_huggingface(std::string_view text,
                                                         const huggingface_options& options = {},
                                                         std::string_view what = "config.json") {
  const nlohmann::json config = parse_json(text, what);
  return describe_huggingface(config, options, what);
}

/// The same from a file. \throws format_error also when the file cannot be read.
[[nodiscard]] inline model_description read_huggingface(const std::filesystem::path& path,
                                                        const huggingface_options& options = {}) {
  return parse_huggingface(detail::read_text(path), options, path.filename().string());
}

/// Which of a model's ropes is wanted.
struct load_rope_options {
  std::optional<index_t> layer{};         ///< needed where layers differ
  std::optional<position> length{};       ///< of the sequence, for schemes that depend on it
  angle_mode angles = angle_mode::exact;  ///< exact, or the frameworks' float32
  huggingface_options reading{};          ///< what the reader is told beside the file
  /// Where the sentences go that the file deserves (model_description::warnings); nullptr drops them.
  std::vector<std::string>* warnings = nullptr;
};

/// The RoPE of a config.json, ready to use. The pairing, the widths and the scaling are in it; the softmax
/// scale and the windows are not (they belong to attention_options): read_huggingface has them.
/// \throws format_error, std::invalid_argument: see read_huggingface; also when layers differ and none is chosen,
/// or the model does not rotate.
template <std::floating_point T>
[[nodiscard]] rope<T> load_rope(const std::filesystem::path& path, const load_rope_options& options = {}) {
  const model_description model = read_huggingface(path, options.reading);
  if (options.warnings != nullptr)
    options.warnings->insert(options.warnings->end(), model.warnings.begin(), model.warnings.end());
  rope_description description = rope_encoding(model, options.layer).rope();
  description.options.angles = options.angles;
  return make_rope<T>(description, options.length);
}

}  // namespace posenc::inline v0_2
