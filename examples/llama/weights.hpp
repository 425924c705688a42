// SPDX-License-Identifier: MIT
/// \file
/// The weights of a Llama from a GGUF file, dequantised to float on load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/models/gguf/layers.hpp>
#include <posenc/models/gguf/tensors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace llama {

using posenc::index_t;
using matrix = posenc::row_major_matrix<float>;
using row_vector = Eigen::Matrix<float, 1, Eigen::Dynamic>;

/// A number of the file that must be a count within reason for a model.
[[nodiscard]] inline index_t count_of(const posenc::gguf_file& file, const std::string& key) {
  const auto value = file.integer(key);
  if (!value || *value < 1 || *value > 10'000'000)
    posenc::detail::fail<posenc::format_error>("GGUF: key ", key, " is missing or no sensible count");
  return static_cast<index_t>(*value);
}

/// One transformer block. Matrices are outputs × inputs, as the file has them.
struct layer {
  row_vector attention_norm, feed_forward_norm;
  matrix q, k, v, o, gate, up, down;
};

struct weights {
  index_t width = 0, heads = 0, kv_heads = 0, hidden = 0;
  float norm_epsilon = 0;
  posenc::model_description positions;  ///< what the file says about positions
  matrix embedding, output;             ///< output is empty where the embedding serves as both
  row_vector output_norm;
  std::vector<layer> layers;
};

/// \param loaded called with the share that is loaded
/// \throws posenc::format_error, std::invalid_argument
[[nodiscard]] inline weights load_weights(const std::filesystem::path& path, const posenc::gguf_file& file,
                                          const std::function<void(double)>& loaded) {
  weights w;
  w.positions = posenc::read_gguf_model(path);
  w.width = count_of(file, "llama.embedding_length");
  w.heads = count_of(file, "llama.attention.head_count");
  w.kv_heads = file.find("llama.attention.head_count_kv") != nullptr
                   ? count_of(file, "llama.attention.head_count_kv")
                   : w.heads;
  w.hidden = count_of(file, "llama.feed_forward_length");
  w.norm_epsilon = static_cast<float>(file.number("llama.attention.layer_norm_rms_epsilon").value_or(1e-5));
  posenc::detail::require(w.width % w.heads == 0 && w.heads % w.kv_heads == 0, "a width of ", w.width,
                          " for ", w.heads, " heads and ", w.kv_heads, " KV heads");
  const index_t head_dim = w.width / w.heads, kv_width = head_dim * w.kv_heads;

  double read = 0;
  const auto tensor = [&](const std::string& name, index_t rows, index_t cols) {
    const posenc::gguf_tensor* found = file.find_tensor(name);
    if (found == nullptr || found->elements != static_cast<std::uint64_t>(rows * cols) ||
        found->extents.front() != static_cast<std::uint64_t>(cols))
      posenc::detail::fail<posenc::format_error>("tensor ", name, " is missing or not ", rows, " x ", cols);
    loaded(read += 1 / static_cast<double>(file.tensors.size()));
    return posenc::read_tensor_matrix(path, *found);
  };
  const std::vector<std::string>* words = file.texts("tokenizer.ggml.tokens");
  if (words == nullptr) posenc::detail::fail<posenc::format_error>("GGUF: there is no vocabulary");
  const auto vocabulary = static_cast<index_t>(words->size());
  w.embedding = tensor("token_embd.weight", vocabulary, w.width);
  if (file.find_tensor("output.weight") != nullptr) w.output = tensor("output.weight", vocabulary, w.width);
  w.output_norm = tensor("output_norm.weight", 1, w.width);
  for (index_t n = 0; n < count_of(file, "llama.block_count"); ++n) {
    const std::string block = "blk." + std::to_string(n) + ".";
    w.layers.push_back({.attention_norm = tensor(block + "attn_norm.weight", 1, w.width),
                        .feed_forward_norm = tensor(block + "ffn_norm.weight", 1, w.width),
                        .q = tensor(block + "attn_q.weight", w.width, w.width),
                        .k = tensor(block + "attn_k.weight", kv_width, w.width),
                        .v = tensor(block + "attn_v.weight", kv_width, w.width),
                        .o = tensor(block + "attn_output.weight", w.width, w.width),
                        .gate = tensor(block + "ffn_gate.weight", w.hidden, w.width),
                        .up = tensor(block + "ffn_up.weight", w.hidden, w.width),
                        .down = tensor(block + "ffn_down.weight", w.width, w.hidden)});
  }
  return w;
}

}  // namespace llama
