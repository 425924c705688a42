// SPDX-License-Identifier: MIT
/// \file
/// Weights out of a GGUF file, as float.
///
///     const posenc::gguf_file file = posenc::read_gguf("model.gguf");
///     const auto embedding = posenc::read_tensor_matrix("model.gguf", *file.find_tensor("token_embd.weight"));
///
/// | type | block of a row | value |
/// |---|---|---|
/// | F32, F16 | one element | itself |
/// | Q8_0 | half d, 32 × int8 q | d·q |
/// | Q4_1 | half d, half m, 16 bytes: the low halves are q of elements 0…15, the high ones of 16…31 | d·q + m |
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace detail {

[[nodiscard]] inline float half_at(const std::byte* at) noexcept {
  return static_cast<float>(
      Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(little_endian(at, 2))));
}

inline void dequantise_f32(const std::byte* block, float* to) noexcept {
  *to = std::bit_cast<float>(static_cast<std::uint32_t>(little_endian(block, 4)));
}

inline void dequantise_f16(const std::byte* block, float* to) noexcept { *to = half_at(block); }

inline void dequantise_q8_0(const std::byte* block, float* to) noexcept {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) to[i] = d * static_cast<float>(std::to_integer<std::int8_t>(block[2 + i]));
}

inline void dequantise_q4_1(const std::byte* block, float* to) noexcept {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    const auto pair = std::to_integer<unsigned>(block[4 + i]);
    to[i] = d * static_cast<float>(pair & 15) + m;
    to[i + 16] = d * static_cast<float>(pair >> 4) + m;
  }
}

/// What reads one block of a ggml type; null for a type that is not read.
[[nodiscard]] inline auto dequantiser_of(std::uint32_t type) noexcept
    -> void (*)(const std::byte* block, float* to) noexcept {
  switch (type) {
    case 0:
      return dequantise_f32;
    case 1:
      return dequantise_f16;
    case 3:
      return dequantise_q4_1;
    case 8:
      return dequantise_q8_0;
    default:
      return nullptr;
  }
}

}  // namespace detail

/// A tensor as a matrix: the first extent counts the columns, the product of the others the rows.
/// \throws posenc::format_error when the tensor's type is not in the table above or the file is shorter than it was
[[nodiscard]] inline row_major_matrix<float> read_tensor_matrix(const std::filesystem::path& path,
                                                                const gguf_tensor& tensor) {
  const auto block = ggml_block_of(tensor.type);
  const auto dequantise = detail::dequantiser_of(tensor.type);
  if (!dequantise)
    detail::fail<format_error>("GGUF: tensor ", tensor.name, " has type ", block ? block->name : "unknown",
                               "; read as numbers are F32, F16, Q8_0 and Q4_1");
  const std::vector<std::byte> bytes = read_tensor_bytes(path, tensor);
  const auto columns = static_cast<index_t>(tensor.extents.empty() ? 1 : tensor.extents.front());
  row_major_matrix<float> values(columns > 0 ? static_cast<index_t>(tensor.elements) / columns : 0, columns);
  float* to = values.data();
  for (std::size_t at = 0; at < bytes.size(); at += block->bytes, to += block->elements)
    dequantise(bytes.data() + at, to);
  return values;
}

}  // namespace posenc::inline v0_2
