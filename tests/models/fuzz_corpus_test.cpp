// SPDX-License-Identifier: MIT
/// \file
/// Every file of the corpus: those whose name begins with "good" are read, the others are refused, with
/// format_error or invalid_argument and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/targets.hpp"

namespace fuzz_corpus_test {

std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

template <class Target>
void run_folder(const char* folder, std::ptrdiff_t least_files, const Target& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(POSENC_SOURCE_DIR) + "/tests/fuzz/corpus/" + folder))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  EXPECT_GE(static_cast<std::ptrdiff_t>(files.size()), least_files);
  for (const auto& file : files) {
    SCOPED_TRACE(file.filename().string());
    const bool good = file.filename().string().rfind("good", 0) == 0;
    bool read = !good;
    EXPECT_NO_THROW(read = target(bytes_of(file)));
    EXPECT_EQ(read, good);
  }
}

TEST(corpus, config_json) {
  run_folder("config_json", 40, [](const auto& bytes) { return posenc_tests::fuzz_config_json(bytes); });
}

TEST(corpus, gguf) {
  run_folder("gguf", 25, [](const auto& bytes) { return posenc_tests::fuzz_gguf(bytes); });
}

}  // namespace fuzz_corpus_test
