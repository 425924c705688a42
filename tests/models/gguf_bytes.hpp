// SPDX-License-Identifier: MIT
/// \file
/// Writes GGUF files for the tests, right ones and wrong ones.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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

}  // namespace posenc_tests
