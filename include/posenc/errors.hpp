// SPDX-License-Identifier: MIT
/// \file
/// How posenc refuses: one cold function per kind of error, called before anything is written, with the
/// numbers in the sentence.
///
/// - `std::invalid_argument`: a description that means nothing (odd rotary width, base ≤ 0, a missing
/// factor);
/// - `std::out_of_range`: a position that the encoding has no value for;
/// - `posenc::format_error`: a file from outside that is not what it claims to be.
///
/// Where exceptions are switched off (`-fno-exceptions`) the sentence goes to standard error and the program
/// aborts.
#pragma once

#if !defined(_MSVC_LANG) && __cplusplus < 202002L
#error "posenc needs C++20: compile with -std=c++20 or later"
#endif

#include <charconv>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace posenc::inline v0_2 {

/// A file from outside (config.json, GGUF, safetensors) that cannot be read; the sentence names the key or
/// the byte offset.
class format_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

inline void append(std::string& sentence, std::string_view text) { sentence.append(text); }

template <class Number>
requires(std::integral<Number> || std::floating_point<Number>) void append(std::string& sentence,
                                                                           Number number) {
  if constexpr (std::same_as<Number, bool>) {
    sentence.append(number ? "true" : "false");
  } else {
    char digits[64];
    const auto written = std::to_chars(digits, digits + sizeof digits, number);
    sentence.append(digits, written.ptr);
  }
}

template <class... Parts>
[[nodiscard]] std::string sentence_of(const Parts&... parts) {
  std::string sentence = "posenc: ";
  (append(sentence, parts), ...);
  return sentence;
}

template <class Error>
[[noreturn, gnu::cold, gnu::noinline]] void raise(const std::string& sentence) {
#if defined(__cpp_exceptions)
  throw Error(sentence);
#else
  std::fputs(sentence.c_str(), stderr);
  std::fputc('\n', stderr);
  std::abort();
#endif
}

template <class Error, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  raise<Error>(sentence_of(parts...));
}

/// Throws std::invalid_argument with the parts joined into a sentence unless `ok`.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail<std::invalid_argument>(parts...);
}

/// Throws std::out_of_range with the parts joined into a sentence unless `ok`.
template <class... Parts>
void require_in_range(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail<std::out_of_range>(parts...);
}

}  // namespace detail
}  // namespace posenc::inline v0_2
