// SPDX-License-Identifier: MIT
/// \file
/// JSON from files that are not trusted: nlohmann/json behind limits, and typed access that names the key.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

namespace detail {

/// Builds a JSON value from the parser's events: refuses nesting deeper and more values than a configuration has any
/// use for, and a key that comes twice, about whose meaning readers disagree.
class json_builder {
 public:
  using json = nlohmann::json;
  static constexpr std::size_t deepest = 64;
  static constexpr std::size_t most_values = 100'000;  // a value takes about 100 bytes of memory

  json_builder(std::string_view what, json& root) : what_(what), root_(root) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(json::number_integer_t value) { return put(value); }
  bool number_unsigned(json::number_unsigned_t value) { return put(value); }
  bool number_float(json::number_float_t value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    auto& members = open_.back()->get_ref<json::object_t&>();
    const auto [place, is_new] = members.try_emplace(std::move(name), nullptr);
    if (!is_new) fail<format_error>(what_, ": key ", place->first, " stands there twice");
    slot_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t offset, const std::string&, const std::exception& error) {
    fail<format_error>(what_, ": not JSON at byte offset ", offset == 0 ? 0 : offset - 1, ": ", error.what());
  }

 private:
  template <class Value>
  bool put(Value&& value) {
    (void)place(json(std::forward<Value>(value)));
    return true;
  }
  json& place(json value) {
    if (++values_ > most_values) fail<format_error>(what_, ": more than ", most_values, " values");
    if (open_.empty()) return root_ = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return *slot_ = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }
  bool open(json container) {
    if (open_.size() >= deepest) fail<format_error>(what_, ": nested deeper than ", deepest, " levels");
    open_.push_back(&place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  json& root_;
  std::vector<json*> open_;
  std::size_t values_ = 0;
  json* slot_ = nullptr;  // of the key that came last
};

}  // namespace detail

/// Parses JSON text that is not trusted.
/// \param what names the text in the sentences of errors
/// \throws format_error with the byte offset or the key when it is no JSON, nests too deep or repeats a key.
[[nodiscard]] inline nlohmann::json parse_json(std::string_view text, std::string_view what = "JSON") {
  nlohmann::json root;
  detail::json_builder builder{what, root};
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    detail::fail<format_error>(what, ": not JSON");
  return root;
}

namespace detail {

/// The text of a small file. \throws format_error when it cannot be read or is larger than a configuration
/// is.
[[nodiscard]] inline std::string read_text(const std::filesystem::path& path) {
  constexpr std::uintmax_t largest = std::uintmax_t{16} << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail<format_error>(path.string(), " is not a file that can be read");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail<format_error>("the size of ", path.string(), " is not known: ", error.message());
  if (size > largest)
    fail<format_error>(path.string(), " has ", size, " bytes, too many for a configuration (", largest, ")");
  std::string text(static_cast<std::size_t>(size), '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), static_cast<std::streamsize>(size)))
    fail<format_error>(path.string(), " cannot be read");
  return text;
}

/// The file that keys are read from, for sentences, and the keys that have been read, with their paths
/// ("rope_scaling.factor").
struct key_log {
  std::string file{};
  std::set<std::string, std::less<>> read{};
};

/// Typed access to the keys of a JSON object; null counts as absent.
class json_object {
 public:
  using json = nlohmann::json;

  /// \param log where the names of keys that are read are noted; nullptr: nowhere
  /// \throws format_error unless `value` is an object.
  json_object(const json& value, std::string path, key_log* log = nullptr)
      : value_(&value), path_(std::move(path)), log_(log) {
    if (!value.is_object()) complain(path_.empty() ? "(the document)" : path_, value, "an object");
  }

  [[nodiscard]] const json& raw() const noexcept { return *value_; }
  /// Whether anybody has asked for a key.
  [[nodiscard]] bool was_read(std::string_view key) const {
    return log_ == nullptr || log_->read.contains(name_of_key(key));
  }
  [[nodiscard]] std::string name_of_key(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }

  /// The value of a key, or nullptr if it is absent or null.
  [[nodiscard]] const json* find(std::string_view key) const {
    note(key);
    const auto found = value_->find(std::string(key));
    return found == value_->end() || found->is_null() ? nullptr : &*found;
  }
  /// True when the key is there, even as null.
  [[nodiscard]] bool mentions(std::string_view key) const {
    note(key);
    return value_->contains(std::string(key));
  }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    return number_of(*found, key);
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    return integer_of(*found, key);
  }
  /// An integer from `least` to `most`. \throws format_error also when it lies outside.
  [[nodiscard]] std::optional<index_t> count(std::string_view key, std::int64_t least,
                                             std::int64_t most) const {
    const auto value = integer(key);
    if (value && (*value < least || *value > most))
      fail<format_error>(where(), "key ", name_of_key(key), " is ", *value, ", not from ", least, " to ",
                         most);
    return value;
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_boolean()) complain(name_of_key(key), *found, "true or false");
    return found->template get<bool>();
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_string()) complain(name_of_key(key), *found, "a string");
    return found->template get<std::string>();
  }
  [[nodiscard]] std::optional<json_object> object(std::string_view key) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    return json_object(*found, name_of_key(key), log_);
  }
  [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key) const {
    return list<double>(key, [&](const json& item) { return number_of(item, key); });
  }
  [[nodiscard]] std::optional<std::vector<index_t>> integers(std::string_view key) const {
    return list<index_t>(key, [&](const json& item) {
      return item.is_boolean() ? index_t{item.template get<bool>()}
                               : static_cast<index_t>(integer_of(item, key));
    });
  }
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key) const {
    return list<std::string>(key, [&](const json& item) {
      if (!item.is_string()) complain(name_of_key(key), item, "a list of strings");
      return item.template get<std::string>();
    });
  }

  /// Refuses the value of a key. \throws format_error
  [[noreturn]] void complain(const std::string& key, const json& value, const char* wanted) const {
    fail<format_error>(where(), "key ", key, " holds ", article(value), ", not ", wanted);
  }

 private:
  [[nodiscard]] static const char* article(const json& value) noexcept {
    if (value.is_null()) return "null";
    if (value.is_object()) return "an object";
    if (value.is_array()) return "a list";
    if (value.is_string()) return "a string";
    return value.is_boolean() ? "a boolean" : "a number";
  }
  [[nodiscard]] double number_of(const json& value, std::string_view key) const {
    if (!value.is_number()) complain(name_of_key(key), value, "a number");
    const double number = value.template get<double>();
    if (!is_finite(number)) complain(name_of_key(key), value, "a finite number");
    return number;
  }
  [[nodiscard]] std::int64_t integer_of(const json& value, std::string_view key) const {
    constexpr double largest = 9007199254740992.0;  // 2^53: what a double still counts
    const double number = number_of(value, key);
    if (number != std::floor(number) || std::abs(number) > largest)
      fail<format_error>(where(), "key ", name_of_key(key), " is ", number,
                         ", not a whole number up to 2^53");
    return static_cast<std::int64_t>(number);
  }
  template <class T, class Convert>
  [[nodiscard]] std::optional<std::vector<T>> list(std::string_view key, const Convert& convert) const {
    const json* found = find(key);
    if (found == nullptr) return std::nullopt;
    if (!found->is_array()) complain(name_of_key(key), *found, "a list");
    std::vector<T> items;
    for (const json& item : *found) items.push_back(convert(item));
    return items;
  }

  [[nodiscard]] std::string where() const {
    return log_ == nullptr || log_->file.empty() ? std::string() : log_->file + ": ";
  }
  void note(std::string_view key) const {
    if (log_ != nullptr) log_->read.insert(name_of_key(key));
  }

  const json* value_;
  std::string path_;
  key_log* log_;
};

}  // namespace detail
}  // namespace posenc::inline v0_2
