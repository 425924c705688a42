// SPDX-License-Identifier: MIT
/// \file
/// Reads the golden values that the tests keep in tests/golden.
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace golden {

/// The cases of a golden file, an array of objects.
inline nlohmann::json cases(const std::string& file) {
  const std::string path = std::string(POSENC_GOLDEN_DIR) + "/" + file;
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(stream);
}

/// The case whose name starts with `name`. \throws std::runtime_error when there is none.
inline nlohmann::json find(const std::string& file, const std::string& name) {
  for (const auto& entry : cases(file))
    if (entry.at("name").get<std::string>().rfind(name, 0) == 0) return entry;
  throw std::runtime_error(file + " has no case named " + name);
}

}  // namespace golden
