// SPDX-License-Identifier: MIT
/// \file
/// GGUF, the model file of ggml and llama.cpp: header, metadata and tensor table, versions 2 and 3.
///
///     const posenc::gguf_file file = posenc::read_gguf("model.gguf");  // reads up to the tensor data, no more
///     const auto name = file.text("general.architecture");             // optional<string>
///     const auto base = file.number(*name + ".rope.freq_base");        // optional<double>
///     const std::vector<std::byte> weights =
///         posenc::read_tensor_bytes("model.gguf", *file.find_tensor("output.weight"));
///
/// A file from outside is not trusted: every length is compared with what is left of the file before anything
/// is allocated or read, nesting is limited, and whatever does not hold gives posenc::format_error with the
/// byte offset. Layout (all numbers little-endian):
///
///     "GGUF"  u32 version  u64 tensors  u64 keys
///     keys    × { string key, u32 type, value }            string = u64 length, bytes
///     tensors × { string name, u32 dimensions, u64 extent × dimensions, u32 type, u64 offset }
///     padding to general.alignment (32 unless given), tensor data
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// The types of metadata values, with the numbers the format gives them.
enum class gguf_type : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// The name of a metadata type as the format's documentation writes it, or "unknown".
[[nodiscard]] constexpr const char* name_of(gguf_type type) noexcept {
  constexpr std::array names{"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                             "bool",  "string", "array",  "uint64", "int64",  "float64"};
  const auto index = static_cast<std::size_t>(type);
  return index < names.size() ? names[index] : "unknown";
}

/// An array of metadata values, all of one type. Numbers stay as the bytes of the file, so that a big array
/// costs no more memory than it has bytes.
struct gguf_array {
  gguf_type element = gguf_type::u8;   ///< type of the elements
  std::vector<std::byte> numbers{};    ///< elements of a number type, little-endian, one after the other
  std::vector<std::string> strings{};  ///< elements of type string
  std::vector<gguf_array> arrays{};    ///< elements of type array

  /// Elements.
  [[nodiscard]] std::size_t size() const noexcept;
  /// Element `index` if this is an array of integers or booleans (all of which fit), else nothing.
  [[nodiscard]] std::optional<std::int64_t> integer(std::size_t index) const noexcept;
  /// Element `index` if this is an array of numbers of any type, else nothing.
  [[nodiscard]] std::optional<double> number(std::size_t index) const noexcept;
};

/// One metadata value. Integers of every width are kept as std::int64_t or, from uint64 only, std::uint64_t.
struct gguf_value {
  gguf_type type = gguf_type::u8;  ///< as the file says
  std::variant<std::int64_t, std::uint64_t, double, bool, std::string, gguf_array>
      value{};  ///< integers widened to 64 bits, floats to double
};

/// How ggml stores a type of tensor element: `bytes` bytes for every `elements` elements of a row.
struct ggml_block {
  const char* name = "";       ///< as ggml writes it
  std::uint32_t elements = 1;  ///< numbers of a block
  std::uint32_t bytes = 0;     ///< that a block takes
};

/// What is known of the element type with this number, or nothing: types come and go with ggml's versions.
[[nodiscard]] inline std::optional<ggml_block> ggml_block_of(std::uint32_t type) noexcept;

/// One row of the tensor table.
struct gguf_tensor {
  std::string name{};                    ///< as the file says
  std::vector<std::uint64_t> extents{};  ///< the first one runs fastest in memory
  std::uint32_t type = 0;                ///< ggml's number: 0 is F32, 1 is F16; see ggml_block_of
  std::uint64_t offset = 0;              ///< from the start of the tensor data, in bytes
  std::uint64_t file_offset = 0;         ///< from the start of the file, in bytes
  std::uint64_t elements = 0;            ///< product of the extents
  std::optional<std::uint64_t>
      bytes{};  ///< how long the data is; nothing for a type this library does not know
};

/// The part of a GGUF file before the tensor data. A plain value.
class gguf_file {
 public:
  std::uint32_t version = 0;           ///< of the format
  std::uint64_t alignment = 32;        ///< of the tensors, in bytes
  std::uint64_t data_offset = 0;       ///< where the tensor data begins, in bytes from the start of the file
  std::uint64_t file_size = 0;         ///< in bytes
  std::vector<gguf_tensor> tensors{};  ///< in the order of the file
  std::map<std::string, gguf_value, std::less<>> metadata{};  ///< keys and values

  /// The value of a key, or nullptr.
  [[nodiscard]] const gguf_value* find(std::string_view key) const noexcept {
    const auto found = metadata.find(key);
    return found == metadata.end() ? nullptr : &found->second;
  }

  /// The tensor of this name, or nullptr.
  [[nodiscard]] const gguf_tensor* find_tensor(std::string_view name) const noexcept {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    return found == tensors.end() ? nullptr : &*found;
  }

  // The accessors below give nothing for a key that is absent.
  /// \throws format_error with the key when its value is no integer, or lies outside the range of int64.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  /// A float or an integer. \throws format_error with the key when its value is not a number.
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  /// \throws format_error with the key when its value is no boolean.
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  /// A string. \throws format_error with the key when its value is no string.
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  /// The integers (or booleans) of an array, or a single one. \throws format_error with the key otherwise.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  /// The strings of an array, in place. nullptr if absent. \throws format_error with the key otherwise.
  [[nodiscard]] const std::vector<std::string>* texts(std::string_view key) const;
};

namespace detail {

[[noreturn, gnu::cold]] inline void wrong_type(std::string_view key, gguf_type found, const char* wanted) {
  fail<format_error>("GGUF: key ", key, " holds a value of type ", name_of(found), ", not ", wanted);
}

/// The bytes that a value of a number type takes; 0 for strings, arrays and unknown types.
[[nodiscard]] constexpr std::size_t width_of(gguf_type type) noexcept {
  constexpr std::array<std::uint8_t, 13> widths{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const auto index = static_cast<std::size_t>(type);
  return index < widths.size() ? widths[index] : 0;
}

[[nodiscard]] inline std::uint64_t little_endian(const std::byte* bytes, std::size_t width) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

/// A number type's value from its bytes.
[[nodiscard]] inline decltype(gguf_value::value) number_from(gguf_type type,
                                                             const std::byte* bytes) noexcept {
  const std::uint64_t raw = little_endian(bytes, width_of(type));
  switch (type) {
    case gguf_type::f32:
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(raw)));
    case gguf_type::f64:
      return std::bit_cast<double>(raw);
    case gguf_type::boolean:
      return raw != 0;
    case gguf_type::i8:
      return static_cast<std::int64_t>(static_cast<std::int8_t>(raw));
    case gguf_type::i16:
      return static_cast<std::int64_t>(static_cast<std::int16_t>(raw));
    case gguf_type::i32:
      return static_cast<std::int64_t>(static_cast<std::int32_t>(raw));
    case gguf_type::i64:
      return std::bit_cast<std::int64_t>(raw);
    case gguf_type::u64:
      return raw;
    default:
      return static_cast<std::int64_t>(raw);
  }
}

[[nodiscard]] inline std::optional<std::int64_t> as_integer(
    const decltype(gguf_value::value)& value) noexcept {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&value)) {
    if (*number <= static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)()))
      return static_cast<std::int64_t>(*number);
  }
  return std::nullopt;
}

[[nodiscard]] inline std::optional<double> as_number(const decltype(gguf_value::value)& value) noexcept {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return static_cast<double>(*number);
  return std::nullopt;
}

/// Bytes that come one after the other from memory, with the offset for the error sentences.
class memory_bytes {
 public:
  explicit memory_bytes(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] bool read(std::byte* into, std::size_t count) noexcept {
    if (count > 0) std::memcpy(into, bytes_.data() + offset_, count);
    offset_ += count;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
};

/// The same from a file, which is read no further than asked.
class file_bytes {
 public:
  /// \throws format_error when there is no such regular file or it cannot be opened.
  explicit file_bytes(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error))
      fail<format_error>(path.string(), " is not a file that can be read");
    size_ = std::filesystem::file_size(path, error);
    if (error) fail<format_error>("the size of ", path.string(), " is not known: ", error.message());
    stream_.open(path, std::ios::binary);
    if (!stream_) fail<format_error>(path.string(), " cannot be opened");
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] bool read(std::byte* into, std::size_t count) {
    stream_.read(reinterpret_cast<char*>(into), static_cast<std::streamsize>(count));
    return static_cast<std::size_t>(stream_.gcount()) == count;
  }
  void skip_to(std::uint64_t offset) { stream_.seekg(static_cast<std::streamoff>(offset)); }

 private:
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

/// f(), whose sentences of refusal get the name of the file.
template <class F>
[[nodiscard]] auto naming_the_file(const std::filesystem::path& path, const F& f) {
#if defined(__cpp_exceptions)
  const auto named = [&](std::string_view sentence) {
    constexpr std::string_view start = "posenc: ";
    const std::string file = path.filename().string();
    if (sentence.find(file) != sentence.npos) return std::string(sentence);
    return std::string(start) + file + ": " +
           std::string(sentence.substr(sentence.starts_with(start) ? start.size() : 0));
  };
  try {
    return f();
  } catch (const format_error& error) {
    throw format_error(named(error.what()));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(named(error.what()));
  }
#else
  return f();
#endif
}

/// Reads the header of a GGUF file from a source of bytes.
template <class Source>
class gguf_parser {
 public:
  gguf_parser(Source& source, std::uint64_t file_size) : source_(source), readable_(source.size()) {
    file_.file_size = file_size;
  }

  [[nodiscard]] gguf_file parse() {
    std::array<std::byte, 4> magic{};
    read(magic.data(), magic.size(), "the magic number");
    if (std::memcmp(magic.data(), "GGUF", 4) != 0)
      fail<format_error>("GGUF: the file does not begin with the letters GGUF (byte offset 0)");
    file_.version = u32("the version");
    if (file_.version != 2 && file_.version != 3) {
      fail<format_error>("GGUF: version ", file_.version, " at byte offset 4; known are 2 and 3",
                         (file_.version & 0xffffu) == 0 ? " (a big-endian file?)" : "");
    }
    const std::uint64_t tensor_count = u64("the tensor count");
    const std::uint64_t key_count = u64("the key count");
    // A key takes at least a length, one byte, a type and a value of one byte; a tensor a length, one byte,
    // a dimension count, a type and an offset.
    fits(key_count, 8 + 1 + 4 + 1, "metadata keys");
    at_most(key_count, most_keys, "metadata keys");
    limit_ = offset_ + most_section_bytes;
    for (std::uint64_t i = 0; i < key_count; ++i) read_key();
    read_alignment();
    limit_ = offset_ + most_section_bytes;
    fits(tensor_count, 8 + 1 + 4 + 4 + 8, "tensors");
    at_most(tensor_count, most_tensors, "tensors");
    for (std::uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    place_tensors();
    return std::move(file_);
  }

 private:
  static constexpr std::uint64_t longest_name = 65'535;  // the format's own limit for keys
  static constexpr int deepest_array = 4;
  static constexpr std::uint32_t most_dimensions = 8;
  // A sparse file of a few kilobytes on disk can claim any number of empty strings, each of which takes more memory
  // than bytes. Published files stay below a third of these: Gemma-3 has 780,000 strings in 20 MB of metadata.
  static constexpr std::uint64_t most_keys = 1 << 16, most_tensors = 1 << 18, most_strings = 1 << 21,
                                 most_arrays = 1 << 12, most_section_bytes = 1 << 26;

  [[nodiscard]] std::uint64_t left() const noexcept { return readable_ - offset_; }

  void read(std::byte* into, std::size_t count, const char* what) {
    if (count > left())
      fail<format_error>("GGUF: the file ends within ", what, ": ", count,
                         " bytes are needed at byte offset ", offset_, ", ", left(), " are left");
    within_limit(count, what);
    if (!source_.read(into, count)) fail<format_error>("GGUF: reading fails at byte offset ", offset_);
    offset_ += count;
  }

  /// \throws format_error when `count` things of at least `least_bytes` each cannot be in the rest of the
  /// file.
  void fits(std::uint64_t count, std::uint64_t least_bytes, const char* what) const {
    if (count > left() / least_bytes)
      fail<format_error>("GGUF: ", count, " ", what, " cannot be in the ", left(),
                         " bytes after byte offset ", offset_);
  }

  /// \throws format_error when there are more things than any model has.
  void at_most(std::uint64_t count, std::uint64_t most, const char* what) const {
    if (count > most)
      fail<format_error>("GGUF: ", count, " ", what, " at byte offset ", offset_, "; at most ", most,
                         " are read");
  }
  /// \throws format_error when `count` bytes lead beyond what a header is allowed to take.
  void within_limit(std::uint64_t count, const char* what) const {
    if (count > limit_ - offset_)
      fail<format_error>("GGUF: ", what, " of ", count, " bytes at byte offset ", offset_,
                         ": metadata and tensor table may take ", most_section_bytes, " bytes each");
  }

  [[nodiscard]] std::uint32_t u32(const char* what) { return static_cast<std::uint32_t>(bits(4, what)); }
  [[nodiscard]] std::uint64_t u64(const char* what) { return bits(8, what); }
  [[nodiscard]] std::uint64_t bits(std::size_t width, const char* what) {
    std::array<std::byte, 8> bytes{};
    read(bytes.data(), width, what);
    return little_endian(bytes.data(), width);
  }

  [[nodiscard]] std::string string(const char* what, std::uint64_t longest) {
    const std::uint64_t start = offset_, length = u64(what);
    if (length > longest || length > left())
      fail<format_error>("GGUF: ", what, " at byte offset ", start, " claims ", length, " bytes; ",
                         (std::min)(longest, left()), " are possible");
    within_limit(length, what);
    std::string text(static_cast<std::size_t>(length), '\0');
    read(reinterpret_cast<std::byte*>(text.data()), text.size(), what);
    return text;
  }
  [[nodiscard]] std::string string(const char* what) {
    return string(what, (std::numeric_limits<std::uint64_t>::max)());
  }

  [[nodiscard]] gguf_type type() {
    const std::uint64_t start = offset_;
    const std::uint32_t number = u32("a value type");
    if (number > static_cast<std::uint32_t>(gguf_type::f64))
      fail<format_error>("GGUF: unknown value type ", number, " at byte offset ", start,
                         "; known are 0 to 12");
    return static_cast<gguf_type>(number);
  }

  [[nodiscard]] decltype(gguf_value::value) number(gguf_type of_type) {
    std::array<std::byte, 8> bytes{};
    read(bytes.data(), width_of(of_type), "a number");
    check_boolean(of_type, bytes[0]);
    return number_from(of_type, bytes.data());
  }

  void check_boolean(gguf_type of_type, std::byte byte) const {
    if (of_type == gguf_type::boolean && std::to_integer<int>(byte) > 1)
      fail<format_error>("GGUF: a bool of ", std::to_integer<int>(byte), " before byte offset ", offset_);
  }

  [[nodiscard]] gguf_array array(int depth) {
    if (depth > deepest_array)
      fail<format_error>("GGUF: arrays within arrays, deeper than ", deepest_array, ", at byte offset ",
                         offset_);
    gguf_array result;
    result.element = type();
    const std::uint64_t count = u64("an array length");
    if (result.element == gguf_type::string) {
      fits(count, 8, "strings");
      at_most(strings_ += count, most_strings, "strings");
      result.strings.reserve(static_cast<std::size_t>(count));
      for (std::uint64_t i = 0; i < count; ++i) result.strings.push_back(string("a string"));
    } else if (result.element == gguf_type::array) {
      fits(count, 12, "arrays");
      at_most(arrays_ += count, most_arrays, "arrays in arrays");
      for (std::uint64_t i = 0; i < count; ++i) result.arrays.push_back(array(depth + 1));
    } else {
      const std::size_t width = width_of(result.element);
      fits(count, width, "numbers");
      within_limit(count * width, "an array");
      result.numbers.resize(static_cast<std::size_t>(count) * width);
      read(result.numbers.data(), result.numbers.size(), "an array");
      for (const std::byte byte : result.numbers) {
        if (result.element != gguf_type::boolean) break;
        check_boolean(result.element, byte);
      }
    }
    return result;
  }

  void read_key() {
    const std::uint64_t start = offset_;
    std::string key = string("a key", longest_name);
    if (key.empty()) fail<format_error>("GGUF: an empty key at byte offset ", start);
    gguf_value value{type(), {}};
    if (value.type == gguf_type::string)
      value.value = string("a string");
    else if (value.type == gguf_type::array)
      value.value = array(1);
    else
      value.value = number(value.type);
    const auto [place, is_new] = file_.metadata.try_emplace(std::move(key), std::move(value));
    if (!is_new) fail<format_error>("GGUF: key ", place->first, " a second time at byte offset ", start);
  }

  void read_alignment() {
    const auto given = file_.integer("general.alignment");
    if (!given) return;
    if (*given < 1 || *given > (std::int64_t{1} << 31) ||
        !std::has_single_bit(static_cast<std::uint64_t>(*given)))
      fail<format_error>("GGUF: general.alignment ", *given, " is no power of two up to 2^31");
    file_.alignment = static_cast<std::uint64_t>(*given);
  }

  void read_tensor() {
    const std::uint64_t start = offset_;
    gguf_tensor tensor;
    tensor.name = string("a tensor name", longest_name);
    const std::uint32_t dimensions = u32("a dimension count");
    if (dimensions > most_dimensions)
      fail<format_error>("GGUF: tensor ", tensor.name, " at byte offset ", start, " has ", dimensions,
                         " dimensions, more than ", most_dimensions);
    tensor.elements = 1;
    std::uint64_t product = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const std::uint64_t extent = u64("an extent");
      // An extent of 0 does not excuse the others: each of them is a number of rows to somebody.
      if (extent > static_cast<std::uint64_t>(position_limit) / product)
        fail<format_error>("GGUF: tensor ", tensor.name, " at byte offset ", start, " has too many elements");
      product *= (std::max)(extent, std::uint64_t{1});
      tensor.elements *= extent;
      tensor.extents.push_back(extent);
    }
    tensor.type = u32("a tensor type");
    tensor.offset = u64("a tensor offset");
    tensor_starts_.push_back(start);
    file_.tensors.push_back(std::move(tensor));
  }

  /// Finds where the data of each tensor lies and checks that it lies within the file.
  void place_tensors() {
    const std::uint64_t mask = file_.alignment - 1;
    file_.data_offset = (offset_ + mask) & ~mask;
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < file_.tensors.size(); ++i) {
      gguf_tensor& tensor = file_.tensors[i];
      names.push_back(tensor.name);
      const auto refuse = [&](const auto&... parts) {
        fail<format_error>("GGUF: tensor ", tensor.name, " (byte offset ", tensor_starts_[i], ") ", parts...);
      };
      if ((tensor.offset & mask) != 0)
        refuse("has its data at ", tensor.offset, ", no multiple of the alignment ", file_.alignment);
      const auto block = ggml_block_of(tensor.type);
      if (block) {
        const std::uint64_t row = tensor.extents.empty() ? 1 : tensor.extents[0];
        if (row % block->elements != 0)
          refuse("has rows of ", row, " elements, no multiple of the ", block->elements, " of ", block->name);
        const std::uint64_t blocks = tensor.elements / block->elements;
        if (blocks > file_.file_size / block->bytes)
          refuse("has ", tensor.elements, " elements of ", block->name, ", more than the file holds");
        tensor.bytes = blocks * block->bytes;
      }
      const std::uint64_t needed = tensor.bytes.value_or(0);
      const std::uint64_t available =
          file_.file_size > file_.data_offset ? file_.file_size - file_.data_offset : 0;
      if (needed > available || tensor.offset > available - needed)
        refuse("needs ", needed, " bytes of data at ", tensor.offset, ", the file has ", available);
      tensor.file_offset = file_.data_offset + tensor.offset;
    }
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) fail<format_error>("GGUF: two tensors of the name ", *twice);
  }

  Source& source_;
  std::uint64_t readable_;
  std::uint64_t offset_ = 0, limit_ = most_section_bytes, strings_ = 0, arrays_ = 0;
  gguf_file file_;
  std::vector<std::uint64_t> tensor_starts_;
};

}  // namespace detail

/// Reads the header of a GGUF file that lies in memory, whole or at least up to its tensor data.
/// \param file_size how long the whole file is, where `bytes` is only its beginning
/// \throws format_error with the byte offset when the bytes are no GGUF file of version 2 or 3, or when its
/// tensors reach beyond its end.
[[nodiscard]] inline gguf_file parse_gguf(std::span<const std::byte> bytes,
                                          std::optional<std::uint64_t> file_size = std::nullopt) {
  detail::memory_bytes source{bytes};
  return detail::gguf_parser{source, file_size.value_or(bytes.size())}.parse();
}

/// Reads the header of a GGUF file; the tensor data is not touched.
/// \throws format_error when the file cannot be read or is not what it claims to be.
[[nodiscard]] inline gguf_file read_gguf(const std::filesystem::path& path) {
  return detail::naming_the_file(path, [&] {
    detail::file_bytes source{path};
    return detail::gguf_parser{source, source.size()}.parse();
  });
}

/// The data of one tensor of the file at `path`, as it lies there.
/// \throws format_error when the tensor's type is not known or the file is shorter than it was.
[[nodiscard]] inline std::vector<std::byte> read_tensor_bytes(const std::filesystem::path& path,
                                                              const gguf_tensor& tensor) {
  if (!tensor.bytes)
    detail::fail<format_error>("GGUF: tensor ", tensor.name, " has element type ", tensor.type,
                               ", which is not known here");
  detail::file_bytes source{path};
  const std::uint64_t size = source.size();
  if (*tensor.bytes > size || tensor.file_offset > size - *tensor.bytes)
    detail::fail<format_error>("GGUF: tensor ", tensor.name, " needs ", *tensor.bytes,
                               " bytes at byte offset ", tensor.file_offset, " of a file of ", size);
  std::vector<std::byte> data(static_cast<std::size_t>(*tensor.bytes));
  source.skip_to(tensor.file_offset);
  if (!source.read(data.data(), data.size()))
    detail::fail<format_error>("GGUF: reading fails within tensor ", tensor.name);
  return data;
}

[[nodiscard]] inline std::optional<ggml_block> ggml_block_of(std::uint32_t type) noexcept {
  switch (type) {
    case 0:
      return ggml_block{"F32", 1, 4};
    case 1:
      return ggml_block{"F16", 1, 2};
    case 2:
      return ggml_block{"Q4_0", 32, 18};
    case 3:
      return ggml_block{"Q4_1", 32, 20};
    case 6:
      return ggml_block{"Q5_0", 32, 22};
    case 7:
      return ggml_block{"Q5_1", 32, 24};
    case 8:
      return ggml_block{"Q8_0", 32, 34};
    case 9:
      return ggml_block{"Q8_1", 32, 36};
    case 10:
      return ggml_block{"Q2_K", 256, 84};
    case 11:
      return ggml_block{"Q3_K", 256, 110};
    case 12:
      return ggml_block{"Q4_K", 256, 144};
    case 13:
      return ggml_block{"Q5_K", 256, 176};
    case 14:
      return ggml_block{"Q6_K", 256, 210};
    case 15:
      return ggml_block{"Q8_K", 256, 292};
    case 16:
      return ggml_block{"IQ2_XXS", 256, 66};
    case 17:
      return ggml_block{"IQ2_XS", 256, 74};
    case 18:
      return ggml_block{"IQ3_XXS", 256, 98};
    case 19:
      return ggml_block{"IQ1_S", 256, 50};
    case 20:
      return ggml_block{"IQ4_NL", 32, 18};
    case 21:
      return ggml_block{"IQ3_S", 256, 110};
    case 22:
      return ggml_block{"IQ2_S", 256, 82};
    case 23:
      return ggml_block{"IQ4_XS", 256, 136};
    case 24:
      return ggml_block{"I8", 1, 1};
    case 25:
      return ggml_block{"I16", 1, 2};
    case 26:
      return ggml_block{"I32", 1, 4};
    case 27:
      return ggml_block{"I64", 1, 8};
    case 28:
      return ggml_block{"F64", 1, 8};
    case 29:
      return ggml_block{"IQ1_M", 256, 56};
    case 30:
      return ggml_block{"BF16", 1, 2};
    case 34:
      return ggml_block{"TQ1_0", 256, 54};
    case 35:
      return ggml_block{"TQ2_0", 256, 66};
    case 39:
      return ggml_block{"MXFP4", 32, 17};
    default:
      return std::nullopt;
  }
}

inline std::size_t gguf_array::size() const noexcept {
  if (element == gguf_type::string) return strings.size();
  if (element == gguf_type::array) return arrays.size();
  const std::size_t width = detail::width_of(element);
  return width == 0 ? 0 : numbers.size() / width;
}

inline std::optional<std::int64_t> gguf_array::integer(std::size_t index) const noexcept {
  const std::size_t width = detail::width_of(element);
  if (width == 0 || index >= size()) return std::nullopt;
  const auto value = detail::number_from(element, numbers.data() + index * width);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return detail::as_integer(value);
}

inline std::optional<double> gguf_array::number(std::size_t index) const noexcept {
  const std::size_t width = detail::width_of(element);
  if (width == 0 || index >= size()) return std::nullopt;
  return detail::as_number(detail::number_from(element, numbers.data() + index * width));
}

inline std::optional<std::int64_t> gguf_file::integer(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto value = detail::as_integer(found->value);
  if (!value) detail::wrong_type(key, found->type, "an integer that fits 63 bits");
  return value;
}

inline std::optional<double> gguf_file::number(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto value = detail::as_number(found->value);
  if (!value) detail::wrong_type(key, found->type, "a number");
  return value;
}

inline std::optional<bool> gguf_file::boolean(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return std::nullopt;
  const bool* value = std::get_if<bool>(&found->value);
  if (value == nullptr) detail::wrong_type(key, found->type, "bool");
  return *value;
}

inline std::optional<std::string> gguf_file::text(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return std::nullopt;
  const std::string* value = std::get_if<std::string>(&found->value);
  if (value == nullptr) detail::wrong_type(key, found->type, "string");
  return *value;
}

inline std::optional<std::vector<std::int64_t>> gguf_file::integers(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return std::nullopt;
  const auto* list = std::get_if<gguf_array>(&found->value);
  if (list == nullptr) return std::vector<std::int64_t>{*integer(key)};
  std::vector<std::int64_t> values;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto value = list->integer(i);
    if (!value) detail::wrong_type(key, list->element, "integers (in its array)");
    values.push_back(*value);
  }
  return values;
}

inline const std::vector<std::string>* gguf_file::texts(std::string_view key) const {
  const gguf_value* found = find(key);
  if (found == nullptr) return nullptr;
  const auto* list = std::get_if<gguf_array>(&found->value);
  if (list == nullptr || list->element != gguf_type::string)
    detail::wrong_type(key, list == nullptr ? found->type : list->element, "an array of strings");
  return &list->strings;
}

}  // namespace posenc::inline v0_2
