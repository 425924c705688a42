// SPDX-License-Identifier: MIT
/// \file
/// Files made to be expensive: each is answered or refused in little time and little memory beyond its own size.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <sys/stat.h>

#include <posenc/models.hpp>

#include "gguf_bytes.hpp"
#include "refusals.hpp"

namespace hostile_test {

using nlohmann::json;
using posenc::format_error;
using posenc_tests::gguf_bytes;

/// Bytes that "VmHWM" of this process, the most it ever held, rises while f runs; 0 where the system does not tell.
std::size_t peak_growth(const std::function<void()>& f) {
  const auto kilobytes = [](const std::string& field) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.rfind(field + ":", 0) == 0) return std::stoul(line.substr(field.size() + 1));
    return 0ul;
  };
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts from now
  const std::size_t before = kilobytes("VmRSS");
  f();
  const std::size_t peak = kilobytes("VmHWM");
  return peak > before ? (peak - before) * 1024 : 0;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif
#else
constexpr bool is_sanitized = false;
#endif
constexpr bool counts_memory = !is_sanitized;  // the sanitizer's own memory is counted too

// A build that is not optimised takes eight times as long.
#if defined(__OPTIMIZE__)
constexpr int many = 128'000;
#else
constexpr int many = 16'000;
#endif

/// Runs f, which may take little memory beyond the file's and little time of the processor; what this replaces took from
/// 24 seconds to for ever.
void cheap(std::size_t file_bytes, const std::function<void()>& f) {
  const std::clock_t start = std::clock();
  const std::size_t grown = peak_growth(f);
  const std::chrono::duration<double> took(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  EXPECT_LT(took.count(), is_sanitized ? 120 : 12);
  if (counts_memory) {
    EXPECT_LT(grown, file_bytes + (std::size_t{64} << 20));
  }
  testing::Test::RecordProperty("milliseconds", std::to_string(took.count() * 1e3));
  testing::Test::RecordProperty("megabytes", std::to_string(grown >> 20));
}

class Hostile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path written(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  /// These bytes followed by zeros up to `size`, which take no room on the disk.
  std::filesystem::path sparse(const std::vector<std::byte>& start, std::uintmax_t size) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(start.data()), static_cast<std::streamsize>(start.size()));
    std::filesystem::resize_file(path_, size);
    return path_;
  }
  std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".bin");
};

json llama() {
  return {{"model_type", "llama"},         {"hidden_size", 64},
          {"num_attention_heads", 4},      {"num_hidden_layers", 4},
          {"max_position_embeddings", 64}, {"rope_theta", 10000.0}};
}

TEST_F(Hostile, ManyUnknownKeys) {
  json config = llama();
  json& block = config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  for (int n = 0; n < many; ++n) block[std::to_string(n)] = 0;
  const std::string text = config.dump();
  cheap(text.size(), [&] {
    const auto model = posenc::parse_huggingface(text);
    EXPECT_EQ(model.warnings.size(), 1u);
    EXPECT_NE(model.warnings.at(0).find("and " + std::to_string(many - 8) + " more"), std::string::npos)
        << model.warnings.at(0);
  });
}

TEST_F(Hostile, ManyKeysForTheGuard) {
  json config = llama();
  for (int n = 0; n < many; ++n) config["window_" + std::to_string(n)] = n;
  const std::string text = config.dump();
  cheap(text.size(), [&] { EXPECT_LE(posenc::parse_huggingface(text).warnings.size(), 2u); });
}

TEST_F(Hostile, TenThousandLayersWithLists) {
  json config = llama();
  config["model_type"] = "smollm3";
  config["num_hidden_layers"] = 10'000;
  config["no_rope_layers"] = json(std::vector<int>(10'000, 1));
  config["layer_types"] = json(std::vector<std::string>(10'000, "full_attention"));
  const std::string text = config.dump();
  cheap(text.size(), [&] { EXPECT_EQ(posenc::parse_huggingface(text).encodings.size(), 1u); });
}

TEST_F(Hostile, TenThousandLayersThatAllDiffer) {
  json config = llama();
  config["model_type"] = "granite_swa";
  config["num_hidden_layers"] = 10'000;
  json& bases = config["layer_rope_theta"] = json::array();
  for (int n = 0; n < 10'000; ++n) bases.push_back(10'000 + n);
  const std::string text = config.dump();
  cheap(text.size(), [&] { EXPECT_GE(posenc::parse_huggingface(text).encodings.size(), 10'000u); });
}

TEST_F(Hostile, SixteenMegabytesOfEmptyObjects) {
  std::string text = "{\"model_type\":\"llama\",\"x\":[{}";
  while (text.size() < (std::size_t{16} << 20) - 16) text += ",{}";
  text += "]}";
  cheap(text.size(),
        [&] { EXPECT_REFUSAL(posenc::parse_huggingface(text), format_error, "more than 200000 values"); });
}

TEST_F(Hostile, SafetensorsShapeOfNothingTimesEverything) {
  for (const char* shape :
       {"[0,9223372036854775808]", "[9223372036854775808,0]", "[0,4611686018427387904,4]"}) {
    const std::string header =
        std::string(R"({"a":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,0]}})";
    std::string prefix(8, '\0');
    prefix[0] = static_cast<char>(header.size());
    EXPECT_REFUSAL(posenc::read_safetensors(written(prefix + header)), format_error, "64 bits");
  }
}

TEST_F(Hostile, GgufExtentsOfNothingTimesEverything) {
  const auto bytes = gguf_bytes(3, 1, 0).tensor("t", {0, std::uint64_t{1} << 63}, 0, 0).pad().bytes();
  EXPECT_REFUSAL(posenc::parse_gguf(bytes), format_error, "too many elements");
}

TEST_F(Hostile, GgufSevenHundredMegabytesOfEmptyThings) {
  constexpr std::uintmax_t size = std::uintmax_t{700} << 20;
  const std::uint64_t strings = (size - 200) / 8, arrays = (size - 200) / 12;
  cheap(0, [&] {
    EXPECT_REFUSAL(
        posenc::read_gguf(sparse(gguf_bytes(3, 0, 1).key("k", 9).u32(8).u64(strings).bytes(), size)),
        format_error, "strings at byte offset");
  });
  cheap(0, [&] {
    EXPECT_REFUSAL(
        posenc::read_gguf(sparse(gguf_bytes(3, 0, 1).key("k", 9).u32(9).u64(arrays).bytes(), size)),
        format_error, "arrays in arrays");
  });
  cheap(0, [&] {  // as many as are allowed, and then some more
    EXPECT_REFUSAL(
        posenc::read_gguf(sparse(gguf_bytes(3, 0, 1).key("k", 9).u32(8).u64(1 << 21).bytes(), 1 << 23)),
        format_error, "strings");
  });
  cheap(0, [&] {
    EXPECT_REFUSAL(posenc::read_gguf(sparse(gguf_bytes(3, 0, 1).key("k", 8).u64(size - 100).bytes(), size)),
                   format_error, "may take");
  });
  cheap(0, [&] {
    EXPECT_REFUSAL(
        posenc::read_gguf(sparse(gguf_bytes(3, 0, 1).key("k", 9).u32(0).u64(size - 100).bytes(), size)),
        format_error, "may take");
  });
  cheap(0, [&] {
    EXPECT_REFUSAL(posenc::read_gguf(sparse(gguf_bytes(3, size / 30, 0).bytes(), size)), format_error,
                   "tensors");
  });
  cheap(0, [&] {
    EXPECT_REFUSAL(posenc::read_gguf(sparse(gguf_bytes(3, 0, size / 30).bytes(), size)), format_error,
                   "metadata keys");
  });
}

TEST_F(Hostile, APipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_REFUSAL(posenc::read_model(path_), format_error, "not a file");
  EXPECT_REFUSAL(posenc::read_gguf(path_), format_error, "not a file");
  EXPECT_REFUSAL(posenc::read_safetensors(path_), format_error, "not a file");
  EXPECT_FALSE(posenc::is_gguf(path_));
  EXPECT_REFUSAL(posenc::read_model(testing::TempDir()), format_error, "not a file");
}

TEST_F(Hostile, SafetensorsHeaderOfNinetyNineMegabytes) {
  constexpr std::size_t size = 99'000'000;
  const auto file = [&](const std::string& start, const std::string& repeated, const std::string& end) {
    std::string header = start;
    header.reserve(size + 64);
    while (header.size() + repeated.size() + end.size() < size) header += repeated;
    header += end;
    std::string prefix(8, '\0');
    for (std::size_t n = 0; n < 8; ++n) prefix[n] = static_cast<char>((header.size() >> (8 * n)) & 0xff);
    return written(prefix + header);
  };
  const auto refused = [&](const std::filesystem::path& path, const char* words) {
    cheap(size, [&] { EXPECT_REFUSAL(posenc::read_safetensors(path), format_error, words); });
  };
  refused(file("[{}", ",{}", "]"), "not an object");
  refused(file("{\"a\":[{}", ",{}", "]}"), "key a holds a list");
  refused(file("{\"a\":{\"dtype\":\"F32\",\"shape\":[0", ",0", "]}}"), "a.shape has more than");
  refused(file("{\"a\":{\"x\":[{}", ",{}", "]}}"), "key a.x holds a list");
}

}  // namespace hostile_test
