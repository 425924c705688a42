// SPDX-License-Identifier: MIT
/// \file
/// How often tests repeat themselves for other numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

namespace repetitions {

/// True under the run-time checkers, where nothing is optimised and other numbers on the same way through the code find
/// nothing new. POSENC_TESTS_EVERY_FLAG (`./run nightly`) makes it false.
#if defined(POSENC_TESTS_FEWER_NUMBERS)
inline constexpr bool few = true;
#else
inline constexpr bool few = false;
#endif

/// All of the values, or the first `count` where few do.
template <class T>
std::vector<T> first_of_all(std::size_t count, std::initializer_list<T> all) {
  return {all.begin(),
          all.begin() + static_cast<std::ptrdiff_t>(few ? (std::min)(count, all.size()) : all.size())};
}

}  // namespace repetitions
