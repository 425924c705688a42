// SPDX-License-Identifier: MIT
/// \file
/// A config.json or a GGUF file, whichever it is.
#pragma once

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <posenc/models/description.hpp>
#include <posenc/models/gguf/layers.hpp>
#include <posenc/models/huggingface.hpp>

namespace posenc::inline v0_2 {

/// True when a file begins as GGUF files do. False also when it cannot be read.
[[nodiscard]] inline bool is_gguf(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;  // opening a pipe would wait for a writer
  std::array<char, 4> magic{};
  std::ifstream stream(path, std::ios::binary);
  return stream.read(magic.data(), magic.size()) && std::memcmp(magic.data(), "GGUF", magic.size()) == 0;
}

/// What a model file says about positions, as plain values; its first bytes decide how it is read.
/// \throws as read_gguf_model and read_huggingface do.
[[nodiscard]] inline model_description read_description(const std::filesystem::path& path,
                                                        const huggingface_options& huggingface = {},
                                                        const gguf_options& gguf = {}) {
  return is_gguf(path) ? read_gguf_model(path, gguf) : read_huggingface(path, huggingface);
}

}  // namespace posenc::inline v0_2
