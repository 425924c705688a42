// SPDX-License-Identifier: MIT
/// \file
/// safetensors, the weight file of Hugging Face: a length, a JSON header, then the tensors one after the
/// other.
///
///     const posenc::safetensors_file file = posenc::read_safetensors("model.safetensors");  // the header
///     only const auto table = posenc::read_tensor_matrix(file, "embeddings.position_embeddings.weight");
///
///     u64 n (little-endian)   n bytes of JSON: { name: { "dtype", "shape", "data_offsets": [begin, end] } }
///     data
///
/// A file from outside is not trusted: lengths are compared with the size of the file before anything is
/// allocated, and the tensors must fill the data without gap or overlap, as the format demands.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <nlohmann/json.hpp>

#include <posenc/errors.hpp>
#include <posenc/models/gguf.hpp>
#include <posenc/models/json.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// One tensor of a safetensors file, row-major.
struct safetensors_tensor {
  std::string dtype{};                   ///< "F32", "F16", "BF16", "I32", …
  std::vector<std::uint64_t> extents{};  ///< the last one runs fastest in memory
  std::uint64_t elements = 0;
  std::uint64_t file_offset = 0;  ///< from the start of the file, in bytes
  std::uint64_t bytes = 0;
};

/// The header of a safetensors file. A plain value.
struct safetensors_file {
  std::filesystem::path path{};
  std::map<std::string, safetensors_tensor, std::less<>> tensors{};
  std::map<std::string, std::string, std::less<>> metadata{};  ///< "__metadata__"

  /// \throws format_error when there is no tensor of this name.
  [[nodiscard]] const safetensors_tensor& at(std::string_view name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      detail::fail<format_error>("safetensors: ", path.string(), " has no tensor ", name);
    return found->second;
  }
};

namespace detail {

/// Bytes per element of a safetensors type, or 0 if the type is not known.
[[nodiscard]] inline std::uint64_t safetensors_width(std::string_view dtype) noexcept {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
  return 0;
}

/// A count or an offset of the header.
[[nodiscard]] inline std::uint64_t safetensors_count(const nlohmann::json& value, const std::string& name) {
  if (!value.is_number_unsigned()) json_object::wrong(name, value, "a whole number");
  return value.get<std::uint64_t>();
}

/// The list of counts under `key` of the entry of the tensor `name`.
[[nodiscard]] inline std::vector<std::uint64_t> safetensors_counts(const json_object& entry,
                                                                   std::string_view key) {
  const nlohmann::json* list = entry.find(key);
  if (list == nullptr || !list->is_array())
    fail<format_error>("safetensors: key ", entry.name_of_key(key), " is no list");
  std::vector<std::uint64_t> counts;
  for (const nlohmann::json& item : *list) counts.push_back(safetensors_count(item, entry.name_of_key(key)));
  return counts;
}

[[nodiscard]] inline safetensors_tensor read_safetensors_entry(const json_object& entry,
                                                               const std::string& name,
                                                               std::uint64_t data_offset,
                                                               std::uint64_t data_size) {
  safetensors_tensor tensor;
  tensor.dtype = entry.text("dtype").value_or("");
  const std::uint64_t width = safetensors_width(tensor.dtype);
  if (width == 0) fail<format_error>("safetensors: tensor ", name, " has unknown dtype ", tensor.dtype);
  tensor.extents = safetensors_counts(entry, "shape");
  tensor.elements = 1;
  for (const std::uint64_t extent : tensor.extents) {
    if (extent != 0 && tensor.elements > (std::numeric_limits<std::uint64_t>::max)() / width / extent)
      fail<format_error>("safetensors: the shape of tensor ", name, " has more elements than 64 bits count");
    tensor.elements *= extent;
  }
  tensor.bytes = tensor.elements * width;
  const std::vector<std::uint64_t> range = safetensors_counts(entry, "data_offsets");
  if (range.size() != 2 || range[0] > range[1] || range[1] > data_size)
    fail<format_error>("safetensors: key ", entry.name_of_key("data_offsets"), " is not a range within the ",
                       data_size, " bytes of data");
  if (range[1] - range[0] != tensor.bytes)
    fail<format_error>("safetensors: tensor ", name, " takes ", range[1] - range[0],
                       " bytes, its shape needs ", tensor.bytes);
  tensor.file_offset = data_offset + range[0];
  return tensor;
}

/// \throws format_error unless the tensors fill the bytes from `begin` to `end`, each byte once.
inline void check_safetensors_filled(const safetensors_file& file, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, tensor] : file.tensors)
    ranges.emplace_back(tensor.file_offset, tensor.file_offset + tensor.bytes);
  std::sort(ranges.begin(), ranges.end());
  for (const auto& [from, to] : ranges) {
    if (from != begin)
      fail<format_error>("safetensors: a tensor begins at byte offset ", from, ", where ", begin,
                         " is the end of the one before");
    begin = to;
  }
  if (begin != end)
    fail<format_error>("safetensors: the tensors end at byte offset ", begin, ", the file at ", end);
}

template <class Stored, class T>
void convert_stored(const std::vector<std::byte>& bytes, std::vector<T>& values) {
  for (std::size_t n = 0; n < values.size(); ++n) {
    const std::uint64_t raw = little_endian(bytes.data() + n * sizeof(Stored), sizeof(Stored));
    if constexpr (sizeof(Stored) == 4)
      values[n] = static_cast<T>(std::bit_cast<Stored>(static_cast<std::uint32_t>(raw)));
    else
      values[n] = static_cast<T>(Eigen::numext::bit_cast<Stored>(static_cast<std::uint16_t>(raw)));
  }
}

}  // namespace detail

/// Reads the header of a safetensors file. \throws format_error when the file is not what it claims to be.
[[nodiscard]] inline safetensors_file read_safetensors(const std::filesystem::path& path) {
  constexpr std::uint64_t longest = 100'000'000;  // the format's own limit
  detail::file_bytes source{path};
  std::array<std::byte, 8> prefix{};
  if (source.size() < prefix.size() || !source.read(prefix.data(), prefix.size()))
    detail::fail<format_error>("safetensors: ", path.string(), " has ", source.size(),
                               " bytes, too few for a header length");
  const std::uint64_t length = detail::little_endian(prefix.data(), prefix.size());
  if (length > longest || length > source.size() - prefix.size())
    detail::fail<format_error>("safetensors: byte offset 0 claims a header of ", length, " bytes; ",
                               (std::min)(longest, source.size() - prefix.size()), " are possible");
  std::string text(static_cast<std::size_t>(length), '\0');
  if (!source.read(reinterpret_cast<std::byte*>(text.data()), text.size()))
    detail::fail<format_error>("safetensors: the header of ", path.string(), " cannot be read");

  safetensors_file file;
  file.path = path;
  const nlohmann::json root = parse_json(text, "safetensors header");
  const std::uint64_t data_offset = prefix.size() + length;
  for (const auto& [name, value] : detail::json_object(root, "").raw().items()) {
    const detail::json_object entry(value, name);
    if (name == "__metadata__") {
      for (const auto& [key, word] : value.items()) file.metadata.emplace(key, entry.text(key).value_or(""));
    } else {
      file.tensors.emplace(
          name, detail::read_safetensors_entry(entry, name, data_offset, source.size() - data_offset));
    }
  }
  detail::check_safetensors_filled(file, data_offset, source.size());
  return file;
}

/// The data of one tensor of a file, as it lies there. \throws format_error when it cannot be read.
[[nodiscard]] inline std::vector<std::byte> read_tensor_bytes(const safetensors_file& file,
                                                              std::string_view name) {
  const safetensors_tensor& tensor = file.at(name);
  detail::file_bytes source{file.path};
  if (tensor.bytes > source.size() || tensor.file_offset > source.size() - tensor.bytes)
    detail::fail<format_error>("safetensors: tensor ", name, " needs ", tensor.bytes,
                               " bytes at byte offset ", tensor.file_offset, " of a file of ", source.size());
  std::vector<std::byte> data(static_cast<std::size_t>(tensor.bytes));
  source.skip_to(tensor.file_offset);
  if (!source.read(data.data(), data.size()))
    detail::fail<format_error>("safetensors: tensor ", name, " cannot be read");
  return data;
}

/// The values of one tensor: float from F32, F16 and BF16, std::int32_t from I32.
/// \throws format_error when the tensor is missing or of another type.
template <class T>
requires(std::same_as<T, float> || std::same_as<T, std::int32_t>)
    [[nodiscard]] std::vector<T> read_tensor_values(const safetensors_file& file, std::string_view name) {
  const safetensors_tensor& tensor = file.at(name);
  const std::vector<std::byte> bytes = read_tensor_bytes(file, name);
  std::vector<T> values(static_cast<std::size_t>(tensor.elements));
  constexpr bool floating = std::same_as<T, float>;
  if (floating && tensor.dtype == "F32")
    detail::convert_stored<float>(bytes, values);
  else if (floating && tensor.dtype == "F16")
    detail::convert_stored<Eigen::half>(bytes, values);
  else if (floating && tensor.dtype == "BF16")
    detail::convert_stored<Eigen::bfloat16>(bytes, values);
  else if (!floating && tensor.dtype == "I32")
    detail::convert_stored<std::int32_t>(bytes, values);
  else
    detail::fail<format_error>("safetensors: tensor ", name, " has dtype ", tensor.dtype, ", needed is ",
                               floating ? "F32, F16 or BF16" : "I32");
  return values;
}

/// A tensor of two dimensions as a matrix; one of one dimension becomes a row.
/// \throws format_error when the tensor is missing, has other dimensions or is not of floats.
[[nodiscard]] inline row_major_matrix<float> read_tensor_matrix(const safetensors_file& file,
                                                                std::string_view name) {
  const safetensors_tensor& tensor = file.at(name);
  if (tensor.extents.empty() || tensor.extents.size() > 2)
    detail::fail<format_error>("safetensors: tensor ", name, " has ", tensor.extents.size(),
                               " dimensions, a matrix has two");
  const std::vector<float> values = read_tensor_values<float>(file, name);
  const auto rows = static_cast<index_t>(tensor.extents.size() == 2 ? tensor.extents.front() : 1);
  return Eigen::Map<const row_major_matrix<float>>(values.data(), rows,
                                                   static_cast<index_t>(tensor.extents.back()));
}

}  // namespace posenc::inline v0_2
