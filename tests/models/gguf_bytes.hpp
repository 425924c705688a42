// SPDX-License-Identifier: MIT
/// \file
/// Writes GGUF files for the tests, right ones and wrong ones.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <posenc/models/gguf/layers.hpp>

namespace posenc_tests {

class gguf_bytes {
 public:
  gguf_bytes(std::uint32_t version, std::uint64_t tensors, std::uint64_t keys) {
    raw("GGUF").u32(version).u64(tensors).u64(keys);
  }

  gguf_bytes& raw(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  gguf_bytes& bits(std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  gguf_bytes& u8(std::uint8_t value) { return bits(value, 1); }
  gguf_bytes& u32(std::uint32_t value) { return bits(value, 4); }
  gguf_bytes& u64(std::uint64_t value) { return bits(value, 8); }
  gguf_bytes& f32(float value) { return u32(std::bit_cast<std::uint32_t>(value)); }
  gguf_bytes& string(std::string_view text) { return u64(text.size()).raw(text); }

  gguf_bytes& key(std::string_view name, std::uint32_t type) { return string(name).u32(type); }
  gguf_bytes& text_key(std::string_view name, std::string_view text) { return key(name, 8).string(text); }
  gguf_bytes& u32_key(std::string_view name, std::uint32_t value) { return key(name, 4).u32(value); }
  gguf_bytes& f32_key(std::string_view name, float value) { return key(name, 6).f32(value); }
  gguf_bytes& bool_key(std::string_view name, bool value) { return key(name, 7).u8(value ? 1 : 0); }

  gguf_bytes& tensor(std::string_view name, const std::vector<std::uint64_t>& extents, std::uint32_t type,
                     std::uint64_t offset) {
    string(name).u32(static_cast<std::uint32_t>(extents.size()));
    for (const std::uint64_t extent : extents) u64(extent);
    return u32(type).u64(offset);
  }
  gguf_bytes& pad(std::size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) u8(0);
    return *this;
  }

  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A file of one architecture with some keys and F32 tensors of one dimension.
struct file_of {
  explicit file_of(std::string name) : architecture(std::move(name)) {}

  std::string architecture;
  std::vector<std::function<void(gguf_bytes&)>> keys{};
  std::vector<std::pair<std::string, std::vector<float>>> tensors{};

  file_of& integer(const std::string& key, std::uint32_t value) {
    keys.push_back([this, key, value](gguf_bytes& out) { out.u32_key(architecture + "." + key, value); });
    return *this;
  }
  file_of& number(const std::string& key, float value) {
    keys.push_back([this, key, value](gguf_bytes& out) { out.f32_key(architecture + "." + key, value); });
    return *this;
  }
  file_of& boolean(const std::string& key, bool value) {
    keys.push_back([this, key, value](gguf_bytes& out) { out.bool_key(architecture + "." + key, value); });
    return *this;
  }
  file_of& text(const std::string& key, const std::string& value) {
    keys.push_back([this, key, value](gguf_bytes& out) { out.text_key(architecture + "." + key, value); });
    return *this;
  }
  file_of& integers(const std::string& key, const std::vector<std::uint32_t>& values) {
    keys.push_back([this, key, values](gguf_bytes& out) {
      out.key(architecture + "." + key, 9).u32(4).u64(values.size());
      for (const std::uint32_t value : values) out.u32(value);
    });
    return *this;
  }
  file_of& shape(std::uint32_t layers, std::uint32_t heads, std::uint32_t width, std::uint32_t context) {
    return integer("block_count", layers)
        .integer("attention.head_count", heads)
        .integer("embedding_length", width)
        .integer("context_length", context);
  }

  [[nodiscard]] std::vector<std::byte> bytes() const {
    gguf_bytes out(3, tensors.size(), keys.size() + 1);
    out.text_key("general.architecture", architecture);
    for (const auto& key : keys) key(out);
    std::uint64_t offset = 0;
    for (const auto& [name, values] : tensors) {
      out.tensor(name, {values.size()}, 0, offset);
      offset += (values.size() * 4 + 31) / 32 * 32;
    }
    out.pad();
    for (const auto& [name, values] : tensors) {
      for (const float value : values) out.f32(value);
      out.pad();
    }
    return out.bytes();
  }
  [[nodiscard]] posenc::model_description read(const posenc::gguf_options& options = {}) const {
    return posenc::parse_gguf_model(bytes(), options);
  }
};

}  // namespace posenc_tests
