// SPDX-License-Identifier: MIT
/// \file
/// safetensors, the weight file of Hugging Face: a length, a JSON header, then the tensors one after the
/// other.
///
///     const posenc::safetensors_file file = posenc::read_safetensors("model.safetensors");  // the header only
///     const auto table = posenc::read_tensor_matrix(file, "embeddings.position_embeddings.weight");
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
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <Eigen/Core>
#include <nlohmann/json.hpp>

#include <posenc/errors.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// One tensor of a safetensors file, row-major.
struct safetensors_tensor {
  std::string dtype{};                   ///< "F32", "F16", "BF16", "I32", …
  std::vector<std::uint64_t> extents{};  ///< the last one runs fastest in memory
  std::uint64_t elements = 0;            ///< product of the extents
  std::uint64_t file_offset = 0;         ///< from the start of the file, in bytes
  std::uint64_t bytes = 0;               ///< that it takes
};

/// The header of a safetensors file. A plain value.
struct safetensors_file {
  std::filesystem::path path{};                                      ///< of the file
  std::map<std::string, safetensors_tensor, std::less<>> tensors{};  ///< by name
  std::map<std::string, std::string, std::less<>> metadata{};        ///< "__metadata__"

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

/// Reads the JSON header of a safetensors file event by event, so that memory goes to tensors alone: an object of
/// tensors, each an object of "dtype", "shape" and "data_offsets", and "__metadata__", an object of strings.
class safetensors_header {
 public:
  using json = nlohmann::json;
  static constexpr std::size_t most_tensors = 200'000, most_metadata = 4096, most_extents = 16;

  /// \param data_size bytes of the file after the header, which ends at `data_offset`
  safetensors_header(safetensors_file& file, std::uint64_t data_offset, std::uint64_t data_size)
      : file_(file), data_offset_(data_offset), data_size_(data_size) {}

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(json::number_integer_t) { return scalar("a number that is no count"); }
  bool number_float(json::number_float_t, const std::string&) { return scalar("a number that is no count"); }
  bool binary(json::binary_t&) { return false; }
  bool number_unsigned(json::number_unsigned_t value) {
    if (depth_ != 3) return scalar("a number");
    std::vector<std::uint64_t>& list = field_ == "shape" ? entry_.extents : range_;
    if (list.size() == most_extents)
      fail<format_error>("safetensors: key ", key(), " has more than ", most_extents, " entries");
    list.push_back(value);
    return true;
  }
  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      if (file_.metadata.size() == most_metadata)
        fail<format_error>("safetensors: more than ", most_metadata, " entries of __metadata__");
      file_.metadata.insert_or_assign(field_, std::move(value));
    } else if (depth_ == 2 && field_ == "dtype") {
      entry_.dtype = std::move(value);
    } else {
      return scalar("a string");
    }
    return true;
  }
  bool start_object(std::size_t) {
    if (depth_ >= 2) wrong("an object");
    if (++depth_ == 2) {
      in_metadata_ = name_ == "__metadata__";
      entry_ = {}, range_.clear(), seen_.clear();
    }
    return true;
  }
  bool end_object() {
    if (depth_-- == 2 && !in_metadata_) finish();
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ != 2 || in_metadata_ || (field_ != "shape" && field_ != "data_offsets")) wrong("a list");
    ++depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool key(std::string& name) {
    if (depth_ == 1) {
      const bool twice = name == "__metadata__" ? metadata_seen_ : file_.tensors.contains(name);
      if (twice) fail<format_error>("safetensors header: key ", name, " stands there twice");
      metadata_seen_ = metadata_seen_ || name == "__metadata__";
      name_ = std::move(name);
    } else {
      field_ = std::move(name);
      if (in_metadata_ ? file_.metadata.contains(field_)
                       : std::find(seen_.begin(), seen_.end(), field_) != seen_.end())
        fail<format_error>("safetensors header: key ", key(), " stands there twice");
      if (!in_metadata_ && seen_.size() == most_extents)
        fail<format_error>("safetensors: tensor ", name_, " has more than ", most_extents, " keys");
      if (!in_metadata_) seen_.push_back(field_);
    }
    return true;
  }
  bool parse_error(std::size_t offset, const std::string&, const std::exception& error) {
    fail<format_error>("safetensors header: not JSON at byte offset ", offset == 0 ? 0 : offset - 1, ": ",
                       error.what());
  }

 private:
  [[nodiscard]] std::string key() const { return depth_ == 1 ? name_ : name_ + "." + field_; }
  [[noreturn]] void wrong(const char* found) const {
    const char* wanted = depth_ == 0                                     ? "an object"
                         : depth_ == 1                                   ? "an object"
                         : in_metadata_ || field_ == "dtype"             ? "a string"
                         : field_ == "shape" || field_ == "data_offsets" ? "a list of counts"
                                                                         : "what the format knows";
    fail<format_error>("safetensors: ", depth_ == 0 ? "the header" : "key " + key(), " holds ", found,
                       ", not ", wanted);
  }
  /// A scalar in a place of which the format says nothing is passed over; elsewhere it is refused.
  bool scalar(const char* found) const {
    const bool unknown =
        depth_ == 2 && !in_metadata_ && field_ != "dtype" && field_ != "shape" && field_ != "data_offsets";
    if (!unknown) wrong(found);
    return true;
  }

  void finish() {
    if (file_.tensors.size() == most_tensors)
      fail<format_error>("safetensors: more than ", most_tensors, " tensors");
    const std::uint64_t width = safetensors_width(entry_.dtype);
    if (width == 0) fail<format_error>("safetensors: tensor ", name_, " has unknown dtype ", entry_.dtype);
    if (std::find(seen_.begin(), seen_.end(), "shape") == seen_.end())
      fail<format_error>("safetensors: key ", name_, ".shape is no list");
    // An extent of 0 does not excuse the others: each of them is a number of rows to somebody.
    std::uint64_t product = 1;
    entry_.elements = 1;
    for (const std::uint64_t extent : entry_.extents) {
      if (extent > static_cast<std::uint64_t>(position_limit) / width / product)
        fail<format_error>("safetensors: the shape of tensor ", name_,
                           " has more elements than 64 bits count");
      product *= (std::max)(extent, std::uint64_t{1});
      entry_.elements *= extent;
    }
    entry_.bytes = entry_.elements * width;
    if (range_.size() != 2 || range_[0] > range_[1] || range_[1] > data_size_)
      fail<format_error>("safetensors: key ", name_, ".data_offsets is not a range within the ", data_size_,
                         " bytes of data");
    if (range_[1] - range_[0] != entry_.bytes)
      fail<format_error>("safetensors: tensor ", name_, " takes ", range_[1] - range_[0],
                         " bytes, its shape needs ", entry_.bytes);
    entry_.file_offset = data_offset_ + range_[0];
    file_.tensors.emplace(name_, std::move(entry_));
  }

  safetensors_file& file_;
  std::uint64_t data_offset_, data_size_;
  int depth_ = 0;
  bool in_metadata_ = false, metadata_seen_ = false;
  std::string name_, field_;
  safetensors_tensor entry_;
  std::vector<std::uint64_t> range_;
  std::vector<std::string> seen_;
};

/// The next `count` bytes of a file as letters, of which a buffer's worth is in memory at a time.
class file_letters {
 public:
  file_letters(file_bytes& source, std::uint64_t count) : source_(source), left_(count), buffer_(1 << 16) {
    refill();
  }
  /// What the parser walks through; all iterators of one file share its place.
  struct iterator {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;
    file_letters* letters = nullptr;  // nullptr: the end
    reference operator*() const { return letters->buffer_[letters->at_]; }
    iterator& operator++() {
      if (++letters->at_ == letters->filled_) letters->refill();
      return *this;
    }
    iterator operator++(int) { return ++*this; }
    [[nodiscard]] bool is_end() const { return letters == nullptr || letters->at_ == letters->filled_; }
    friend bool operator==(const iterator& a, const iterator& b) { return a.is_end() == b.is_end(); }
  };
  [[nodiscard]] iterator begin() { return {this}; }
  [[nodiscard]] iterator end() const { return {}; }
  /// False when the file ended early or could not be read.
  [[nodiscard]] bool complete() const noexcept { return complete_; }

 private:
  void refill() {
    at_ = 0;
    filled_ = static_cast<std::size_t>((std::min)(left_, static_cast<std::uint64_t>(buffer_.size())));
    left_ -= filled_;
    if (filled_ > 0 && !source_.read(reinterpret_cast<std::byte*>(buffer_.data()), filled_))
      complete_ = false, filled_ = 0, left_ = 0;
  }

  file_bytes& source_;
  std::uint64_t left_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, filled_ = 0;
  bool complete_ = true;
};

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
  safetensors_file file;
  file.path = path;
  const std::uint64_t data_offset = prefix.size() + length;
  detail::safetensors_header header{file, data_offset, source.size() - data_offset};
  detail::file_letters letters{source, length};
  const bool is_json = nlohmann::json::sax_parse(letters.begin(), letters.end(), &header);
  if (!letters.complete())
    detail::fail<format_error>("safetensors: the header of ", path.string(), " cannot be read");
  if (!is_json) detail::fail<format_error>("safetensors header: not JSON");
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

/// A tensor to be written: its values in the order of memory, whatever the extents.
struct safetensors_output {
  std::string name{};                    ///< of the tensor
  std::vector<std::uint64_t> extents{};  ///< their product is the number of values
  row_major_matrix<float> values{};      ///< row-major, whatever the extents
};

/// How the values of a file are stored.
enum class safetensors_dtype : unsigned char { f32, f16, bf16 };

namespace detail {

/// The file beside `whole` that is written first; removed when it has not been renamed.
struct half_written {
  explicit half_written(const std::filesystem::path& whole) : path(whole.string() + ".part") {}
  half_written(const half_written&) = delete;
  half_written& operator=(const half_written&) = delete;
  ~half_written() {
    std::error_code error;
    std::filesystem::remove(path, error);
  }
  std::filesystem::path path;
};

}  // namespace detail

/// Writes a safetensors file. A file of that name is replaced when all has been written, and stays as it is where that fails.
/// \throws std::invalid_argument when extents and values do not fit, a name comes twice, or the file cannot be written
inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<safetensors_output>& tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              safetensors_dtype dtype = safetensors_dtype::f32) {
  constexpr const char* names[]{"F32", "F16", "BF16"};
  const std::uint64_t width = dtype == safetensors_dtype::f32 ? 4 : 2;
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const safetensors_output& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.extents) elements *= extent;
    detail::require(elements == static_cast<std::uint64_t>(tensor.values.size()),
                    "write_safetensors: ", tensor.name, " has ", tensor.values.size(),
                    " values, its extents ", elements);
    detail::require(!header.contains(tensor.name), "write_safetensors: ", tensor.name, " comes twice");
    header[tensor.name] = {{"dtype", names[static_cast<std::size_t>(dtype)]},
                           {"shape", tensor.extents},
                           {"data_offsets", {at, at + elements * width}}};
    at += elements * width;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data begin on a multiple of 8
  const detail::half_written half{path};
  std::error_code error;
  {
    std::ofstream out(half.path, std::ios::binary);
    const auto write = [&out](std::uint64_t value, std::uint64_t bytes) {
      for (std::uint64_t b = 0; b < bytes; ++b) out.put(static_cast<char>(value >> (8 * b) & 0xff));
    };
    write(text.size(), 8);
    out << text;
    for (const safetensors_output& tensor : tensors)
      for (index_t n = 0; n < tensor.values.size() && out; ++n) {
        const float value = tensor.values.data()[n];
        if (dtype == safetensors_dtype::f32)
          write(std::bit_cast<std::uint32_t>(value), 4);
        else if (dtype == safetensors_dtype::f16)
          write(Eigen::numext::bit_cast<std::uint16_t>(static_cast<Eigen::half>(value)), 2);
        else
          write(Eigen::numext::bit_cast<std::uint16_t>(static_cast<Eigen::bfloat16>(value)), 2);
      }
    out.close();
    detail::require(!out.fail(), "write_safetensors: ", half.path.string(), " cannot be written");
  }
  std::filesystem::rename(half.path, path, error);
  detail::require(!error, "write_safetensors: ", path.string(), " cannot be written");
}

}  // namespace posenc::inline v0_2
