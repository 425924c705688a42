// SPDX-License-Identifier: MIT
/// \file
/// The GGUF reader on files written byte by byte here: right ones, and every way of being wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <posenc/models/gguf/file.hpp>

#include "gguf_bytes.hpp"

namespace gguf_test {

using posenc_tests::gguf_bytes;

gguf_bytes small_file(std::uint32_t version = 3) {
  gguf_bytes file(version, 2, 9);
  file.text_key("general.architecture", "llama");
  file.u32_key("llama.block_count", 2);
  file.f32_key("llama.rope.freq_base", 500000.0f);
  file.bool_key("tokenizer.ggml.add_bos_token", true);
  file.key("a.i8", 1).u8(0xff);
  file.key("a.u64", 10).u64(0xffff'ffff'ffff'ffffu);
  file.key("a.f64", 12).u64(std::bit_cast<std::uint64_t>(0.1));
  file.key("a.strings", 9).u32(8).u64(3).string("one").string("").string("three");
  file.key("a.i16s", 9).u32(3).u64(3).bits(1, 2).bits(0xffff, 2).bits(300, 2);
  file.tensor("rope_freqs.weight", {4}, 0, 0);
  file.tensor("token_embd.weight", {32, 3}, 8, 32);
  file.pad();
  for (int i = 0; i < 4; ++i) file.f32(static_cast<float>(i) + 0.5f);
  file.pad();
  for (int i = 0; i < 3 * 34; ++i) file.u8(static_cast<std::uint8_t>(i));
  return file;
}

std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    (void)posenc::parse_gguf(bytes);
  } catch (const posenc::format_error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(gguf, reads_keys_of_every_type_in_versions_2_and_3) {
  for (const std::uint32_t version : {2u, 3u}) {
    const posenc::gguf_file file = posenc::parse_gguf(small_file(version).bytes());
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.text("general.architecture"), "llama");
    EXPECT_EQ(file.integer("llama.block_count"), 2);
    EXPECT_EQ(file.number("llama.block_count"), 2.0);
    EXPECT_EQ(file.number("llama.rope.freq_base"), 500000.0);
    EXPECT_EQ(file.boolean("tokenizer.ggml.add_bos_token"), true);
    EXPECT_EQ(file.integer("a.i8"), -1);
    EXPECT_EQ(file.number("a.u64"), 18446744073709551616.0);
    EXPECT_EQ(file.number("a.f64"), 0.1);
    ASSERT_NE(file.texts("a.strings"), nullptr);
    EXPECT_EQ(*file.texts("a.strings"), (std::vector<std::string>{"one", "", "three"}));
    EXPECT_EQ(file.integers("a.i16s"), (std::vector<std::int64_t>{1, -1, 300}));
    EXPECT_EQ(file.integers("llama.block_count"), (std::vector<std::int64_t>{2}));
    EXPECT_EQ(file.integer("absent"), std::nullopt);
    EXPECT_EQ(file.texts("absent"), nullptr);
  }
}

TEST(gguf, finds_the_data_of_tensors) {
  const auto bytes = small_file().bytes();
  const posenc::gguf_file file = posenc::parse_gguf(bytes);
  EXPECT_EQ(file.data_offset % 32, 0u);
  ASSERT_EQ(file.tensors.size(), 2u);
  const posenc::gguf_tensor* table = file.find_tensor("token_embd.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->extents, (std::vector<std::uint64_t>{32, 3}));
  EXPECT_EQ(table->elements, 96u);
  EXPECT_EQ(table->bytes, 3u * 34u);
  EXPECT_EQ(table->file_offset, file.data_offset + 32);
  EXPECT_EQ(table->file_offset + *table->bytes, bytes.size());
  EXPECT_EQ(file.find_tensor("absent"), nullptr);
}

TEST(gguf, reads_from_a_file_what_it_reads_from_memory) {
  const auto bytes = small_file().bytes();
  const auto path = std::filesystem::path(testing::TempDir()) / "posenc_small.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const posenc::gguf_file file = posenc::read_gguf(path);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  const auto data = posenc::read_tensor_bytes(path, *file.find_tensor("rope_freqs.weight"));
  ASSERT_EQ(data.size(), 16u);
  float second = 0;
  std::memcpy(&second, data.data() + 4, 4);
  EXPECT_EQ(second, 1.5f);
  // A file that shrinks after its header was read is refused when the data is asked for.
  std::filesystem::resize_file(path, file.data_offset + 8);
  EXPECT_THROW((void)posenc::read_tensor_bytes(path, file.tensors[0]), posenc::format_error);
  std::filesystem::remove(path);
  EXPECT_THROW((void)posenc::read_gguf(path), posenc::format_error);
  EXPECT_THROW((void)posenc::read_gguf(testing::TempDir()), posenc::format_error);
}

TEST(gguf, a_file_cut_anywhere_is_refused) {
  const auto bytes = small_file().bytes();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_NE(refusal(cut), "accepted") << length;
  }
}

TEST(gguf, a_file_with_any_byte_changed_is_read_or_refused) {
  const auto bytes = small_file().bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      auto changed = bytes;
      changed[i] = static_cast<std::byte>(value);
      (void)refusal(changed);
    }
  }
}

TEST(gguf, the_beginning_of_a_file_is_enough_when_the_length_is_given) {
  const auto bytes = small_file().bytes();
  const posenc::gguf_file whole = posenc::parse_gguf(bytes);
  const auto head = std::span(bytes).first(static_cast<std::size_t>(whole.data_offset));
  EXPECT_THROW((void)posenc::parse_gguf(head), posenc::format_error);
  EXPECT_EQ(posenc::parse_gguf(head, bytes.size()).tensors.size(), 2u);
}

struct bad_file {
  const char* what;
  gguf_bytes file;
  const char* said;  // a part of the sentence
};

TEST(gguf, each_kind_of_bad_file_is_refused_with_the_place) {
  const std::uint64_t huge = 0xffff'ffff'ffff'fff0u;
  gguf_bytes deep(3, 0, 1);
  deep.key("deep", 9);
  for (int i = 0; i < 100; ++i) deep.u32(9).u64(1);
  deep.u32(0).u64(0);
  gguf_bytes no_power = gguf_bytes(3, 0, 1).u32_key("general.alignment", 24);
  const std::vector<bad_file> files{
      {"another magic", gguf_bytes(3, 0, 0), ""},
      {"version 1", gguf_bytes(1, 0, 0), "version 1"},
      {"big-endian", gguf_bytes(0x03000000, 0, 0), "big-endian"},
      {"huge key count", gguf_bytes(3, 0, huge), "byte offset 24"},
      {"huge tensor count", gguf_bytes(3, huge, 0), "tensors"},
      {"huge key length", gguf_bytes(3, 0, 1).u64(huge).raw("abcdefgh"), "claims"},
      {"key over the limit", gguf_bytes(3, 0, 1).u64(65536).raw(std::string(65536 + 16, 'k')), "65535"},
      {"empty key", gguf_bytes(3, 0, 1).key("", 4).u32(1).u64(0), "empty key"},
      {"huge string", gguf_bytes(3, 0, 1).key("k", 8).u64(huge).raw("abc"), "claims"},
      {"huge string array", gguf_bytes(3, 0, 1).key("k", 9).u32(8).u64(huge), "strings"},
      {"huge number array", gguf_bytes(3, 0, 1).key("k", 9).u32(10).u64(huge / 8), "numbers"},
      {"huge nested array", gguf_bytes(3, 0, 1).key("k", 9).u32(9).u64(huge), "arrays"},
      {"unknown value type", gguf_bytes(3, 0, 1).key("k", 13).u64(0), "value type 13"},
      {"unknown element type", gguf_bytes(3, 0, 1).key("k", 9).u32(77).u64(0), "value type 77"},
      {"a bool of 2", gguf_bytes(3, 0, 1).key("k", 7).u8(2).u64(0), "bool of 2"},
      {"nested arrays", deep, "deeper"},
      {"a key twice", gguf_bytes(3, 0, 2).u32_key("k", 1).u32_key("k", 2), "second time"},
      {"alignment no power of two", no_power, "24"},
      {"alignment of the wrong type", gguf_bytes(3, 0, 1).text_key("general.alignment", "32"), "string"},
      {"too many dimensions", gguf_bytes(3, 1, 0).tensor("t", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0),
       "dimensions"},
      {"too many elements", gguf_bytes(3, 1, 0).tensor("t", {huge, huge}, 0, 0), "too many"},
      {"an offset off the alignment", gguf_bytes(3, 1, 0).tensor("t", {1}, 0, 8).pad().u64(0).u64(0),
       "alignment"},
      {"data beyond the end", gguf_bytes(3, 1, 0).tensor("t", {9}, 0, 0).pad().u64(0).u64(0), "needs 36"},
      {"an offset beyond the end", gguf_bytes(3, 1, 0).tensor("t", {1}, 0, huge - 16).pad().u64(0),
       "needs 4"},
      {"unknown type beyond the end", gguf_bytes(3, 1, 0).tensor("t", {1}, 999, huge - 16).pad().u64(0),
       "needs"},
      {"rows that are no whole blocks", gguf_bytes(3, 1, 0).tensor("t", {33}, 8, 0).pad().u64(0), "multiple"},
      {"a tensor twice", gguf_bytes(3, 2, 0).tensor("t", {0}, 0, 0).tensor("t", {0}, 0, 0).pad(),
       "two tensors"},
  };
  for (const bad_file& bad : files) {
    auto bytes = bad.file.bytes();
    if (std::string(bad.what) == "another magic") bytes[0] = std::byte{'X'};
    const std::string said = refusal(bytes);
    EXPECT_NE(said, "accepted") << bad.what;
    EXPECT_NE(said.find(bad.said), std::string::npos) << bad.what << ": " << said;
    EXPECT_EQ(said.rfind("posenc: GGUF: ", 0), 0u) << bad.what << ": " << said;
  }
}

TEST(gguf, a_value_of_the_wrong_type_is_refused_with_its_key) {
  const posenc::gguf_file file = posenc::parse_gguf(small_file().bytes());
  const auto sentence = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const posenc::format_error& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto says = [&](const std::function<void()>& call, const char* key) {
    const std::string said = sentence(call);
    EXPECT_NE(said.find(key), std::string::npos) << said;
  };
  says([&] { (void)file.integer("general.architecture"); }, "general.architecture");
  says([&] { (void)file.integer("a.u64"); }, "a.u64");
  says([&] { (void)file.number("a.strings"); }, "a.strings");
  says([&] { (void)file.boolean("a.i8"); }, "a.i8");
  says([&] { (void)file.text("a.f64"); }, "a.f64");
  says([&] { (void)file.integers("a.strings"); }, "a.strings");
  says([&] { (void)file.texts("a.i16s"); }, "a.i16s");
  says([&] { (void)file.texts("a.i8"); }, "a.i8");
}

}  // namespace gguf_test
