// SPDX-License-Identifier: MIT
/// \file
/// What the examples need to draw by gnuplot.
#pragma once

#include <cstdio>
#include <string>

#include <posenc/errors.hpp>

namespace gnuplot {

/// A gnuplot string in single quotes.
[[nodiscard]] inline std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') result += '\'';
    if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result + "'";
}

/// Runs a script that draws `file`.
/// \throws std::invalid_argument when gnuplot cannot be run or does not like the script.
inline void draw(const std::string& script, const std::string& file) {
  std::FILE* pipe = ::popen("gnuplot", "w");
  const bool wrote = pipe != nullptr && std::fwrite(script.data(), 1, script.size(), pipe) == script.size();
  const int status = pipe != nullptr ? ::pclose(pipe) : -1;
  posenc::detail::require(wrote && status == 0, "--plot: gnuplot could not draw ", file,
                          " (is it installed?)");
}

}  // namespace gnuplot
