// SPDX-License-Identifier: MIT
/// \file
/// posenc for model files: config.json of Hugging Face transformers and GGUF. Needs nlohmann/json.
///
///     const posenc::model model = posenc::read_model("config.json");      // or a .gguf
///     const posenc::model_layer layer = model.layer(3);
///     Eigen::MatrixXf out = posenc::reference::attention(q, k, v, layer.encoding, layer.options);
///
/// | call | gives |
/// |---|---|
/// | read_model(file) | a model: warnings(), layers(), layer(i) = {encoding, options}, description() |
/// | load_rope<T>(file, {.layer = i}) | the rotation alone |
/// | read_description(file) | plain values, for those who build encodings themselves |
/// | read_gguf, read_safetensors, read_tensor_matrix | tensors: learned tables, weights |
///
/// The contract:
/// - A layer is complete: heads, widths, mask, window, chunk, scale, softcap, whether learned sinks are expected. What
///   the file leaves to the model class is filled in and said in warnings(); nothing is printed.
/// - What is learned (T5's bias, BERT's position vectors) and what depends on the sequence (the length, for LongRoPE
///   and dynamic NTK) is given to layer() in layer_inputs; where it is missing, the sentence says what.
/// - A model type that is not known is refused: which channels pair up is not guessed.
/// - Files are not trusted: whatever is wrong with one gives posenc::format_error or std::invalid_argument.
#pragma once

#include <posenc/models/any_model.hpp>
#include <posenc/models/description.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/models/gguf/layers.hpp>
#include <posenc/models/gguf/tensors.hpp>
#include <posenc/models/huggingface.hpp>
#include <posenc/models/model.hpp>
#include <posenc/models/safetensors.hpp>
#include <posenc/models/what_if.hpp>
