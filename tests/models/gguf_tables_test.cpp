// SPDX-License-Identifier: MIT
/// \file
/// The rows of GGUF architectures and the keys of the format against gguf-py and llama.cpp (tools/gguf_tables.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include <posenc/models/gguf/layers.hpp>

#include "gguf_bytes.hpp"
#include "golden.hpp"

namespace gguf_tables_test {

using nlohmann::json;
using posenc::pairing;
using posenc_tests::file_of;
namespace gguf = posenc::detail::gguf;

TEST(gguf_tables, every_row_rotates_as_llama_cpp_does) {
  const json tables = golden::cases("gguf_tables.json");
  // These have learned tables or buckets; llama.cpp names a rotation and calls none.
  const std::set<std::string> do_not_rotate{"starcoder", "bert"};
  std::size_t rotating = 0;
  for (const gguf::architecture& row : gguf::architectures) {
    const std::string name(row.name);
    SCOPED_TRACE(name);
    ASSERT_TRUE(tables.at("rope").contains(name));
    const auto words = tables.at("rope").at(name).get<std::set<std::string>>();
    if (do_not_rotate.contains(name)) {
      EXPECT_FALSE(row.pairing.has_value());
      continue;
    }
    EXPECT_EQ(row.pairing.has_value(), !words.contains("none"));
    if (!row.pairing) continue;
    ++rotating;
    // Where a file's sections decide between one axis and several ("norm" or "mrope"), the rows are of the one.
    const bool neox =
        words.contains("neox") || (!words.contains("norm") && words != std::set<std::string>{"none"});
    EXPECT_EQ(*row.pairing, neox ? pairing::half_split : pairing::interleaved);
    EXPECT_EQ((row.traits & gguf::axes_in_turn) != 0, words.contains("imrope"));
  }
  EXPECT_GE(rotating, 90u);
}

TEST(gguf_tables, rows_whose_converters_permute_the_weights_are_interleaved) {
  const json tables = golden::cases("gguf_tables.json");
  // Their converters inherit permute from llama's and have no tensor of the names that it is for.
  const std::set<std::string> never_reached{"cogvlm", "plamo"};
  std::size_t compared = 0;
  for (const json& name : tables.at("permuted")) {
    const gguf::architecture* row = gguf::find_architecture(name.get<std::string>());
    if (row == nullptr || never_reached.contains(name.get<std::string>())) continue;
    EXPECT_EQ(row->pairing, pairing::interleaved) << name;
    ++compared;
  }
  EXPECT_GE(compared, 12u);
}

TEST(gguf_tables, architectures_are_named_as_gguf_py_names_them) {
  const json tables = golden::cases("gguf_tables.json");
  const auto names = tables.at("architectures").get<std::set<std::string>>();
  for (const gguf::architecture& row : gguf::architectures)
    EXPECT_TRUE(names.contains(std::string(row.name))) << row.name;
}

/// A key of gguf-py with a word where a number belongs: a reader that reads it refuses the file, one that does not
/// says so. None is passed over in silence.
TEST(gguf_tables, every_key_of_positions_and_attention_is_read_or_reported) {
  const json tables = golden::cases("gguf_tables.json");
  std::size_t read = 0, reported = 0;
  for (const json& one : tables.at("keys")) {
    const std::string key = one.get<std::string>();
    if (!key.starts_with("rope.") && !key.starts_with("attention.")) continue;
    if (key.find("norm") != key.npos || key.find("lora_rank") != key.npos) continue;
    bool is_read = false, is_reported = true;
    for (const char* name : {"llama", "gemma3", "deepseek2", "llama4", "grok", "t5", "mpt", "granite"}) {
      file_of file(name);
      for (const auto& [needed, value] : std::initializer_list<std::pair<const char*, std::uint32_t>>{
               {"block_count", 8},
               {"embedding_length", 64},
               {"context_length", 64},
               {"attention.head_count", 4},
               {"attention.relative_buckets_count", 8},
               {"attention.sliding_window", 8}})
        if (key != needed) file.integer(needed, value);
      if (key != "rope.scaling.type") file.text("rope.scaling.type", "yarn");
      file.text(key, "a word");
      try {
        const auto model = file.read();
        is_reported =
            is_reported && std::any_of(model.warnings.begin(), model.warnings.end(),
                                       [&](const auto& said) { return said.find(key) != said.npos; });
      } catch (const posenc::format_error&) {
        is_read = true;
      } catch (const std::invalid_argument&) {
        is_read = true;
      }
    }
    EXPECT_TRUE(is_read || is_reported) << key;
    (is_read ? read : reported) += 1;
  }
  EXPECT_GE(read, 25u);
  RecordProperty("read", std::to_string(read));
  RecordProperty("reported", std::to_string(reported));
}

}  // namespace gguf_tables_test
