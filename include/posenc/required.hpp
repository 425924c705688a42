// SPDX-License-Identifier: MIT
/// \file
/// Options without a default, for conventions that nobody can guess.
#pragma once

#include <concepts>
#include <utility>

namespace posenc::inline v0_2 {

/// A value without a default: leaving it out of a designated initialiser does not compile.
template <class T>
class required {
 public:
  /// From a value.
  template <class U>
  requires std::convertible_to<U, T>
  constexpr required(U&& value)
      : value_(std::forward<U>(value)) {}  // NOLINT(google-explicit-constructor): stands for T
  /// The value.
  constexpr operator const T&() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  T value_;
};

}  // namespace posenc::inline v0_2
