// SPDX-License-Identifier: MIT
/// \file
/// Reads the golden values that the tests keep in tests/golden.
#pragma once

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include <posenc/views.hpp>

namespace golden {

/// The cases of a golden file: an array of objects, or "cases" beside "about", which says the command that wrote it.
inline nlohmann::json cases(const std::string& file) {
  const std::string path = std::string(POSENC_GOLDEN_DIR) + "/" + file;
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot open " + path);
  nlohmann::json content = nlohmann::json::parse(stream);
  return content.contains("about") && content.contains("cases") ? content.at("cases") : content;
}

/// The case whose name starts with `name`. \throws std::runtime_error when there is none.
inline nlohmann::json find(const std::string& file, const std::string& name) {
  for (const auto& entry : cases(file))
    if (entry.at("name").get<std::string>().rfind(name, 0) == 0) return entry;
  throw std::runtime_error(file + " has no case named " + name);
}

/// An array of equally long arrays of numbers as a matrix.
template <class S>
posenc::row_major_matrix<S> matrix(const nlohmann::json& rows) {
  posenc::row_major_matrix<S> result(static_cast<posenc::index_t>(rows.size()),
                                     static_cast<posenc::index_t>(rows.at(0).size()));
  for (posenc::index_t r = 0; r < result.rows(); ++r)
    for (posenc::index_t c = 0; c < result.cols(); ++c)
      result(r, c) =
          static_cast<S>(rows.at(static_cast<std::size_t>(r)).at(static_cast<std::size_t>(c)).get<double>());
  return result;
}

}  // namespace golden
