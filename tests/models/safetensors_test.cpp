// SPDX-License-Identifier: MIT
/// \file
/// The safetensors reader on files written by hand, right ones and wrong ones.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <posenc/models/safetensors.hpp>

#include "refusals.hpp"

namespace safetensors_test {

using posenc::format_error;
using testing::ElementsAre;

class Safetensors : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path written(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  /// A file with this header and this data.
  std::filesystem::path file(const std::string& header, const std::string& data = {}) {
    std::string prefix(8, '\0');
    for (std::size_t n = 0; n < 8; ++n) prefix[n] = static_cast<char>((header.size() >> (8 * n)) & 0xff);
    return written(prefix + header + data);
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".safetensors");
};

const std::string one_and_minus_two{"\x00\x00\x80\x3f\x00\x00\x00\xc0", 8};

TEST_F(Safetensors, ReadsEachTypeItClaims) {
  const std::string data = one_and_minus_two + std::string("\x00\x3c\x00\xc0", 4) +  // half 1, −2
                           std::string("\x80\x3f\x00\xc0", 4) +                      // bfloat16 1, −2
                           std::string("\x07\x00\x00\x00", 4);
  const auto read = posenc::read_safetensors(
      file(R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"source":"hand"},)"
           R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
           R"("c":{"dtype":"BF16","shape":[1,2],"data_offsets":[12,16]},)"
           R"("d":{"dtype":"I32","shape":[],"data_offsets":[16,20]}})",
           data));
  EXPECT_EQ(read.metadata.at("source"), "hand");
  for (const char* name : {"a", "b", "c"})
    EXPECT_THAT(posenc::read_tensor_values<float>(read, name), ElementsAre(1.0F, -2.0F)) << name;
  EXPECT_THAT(posenc::read_tensor_values<std::int32_t>(read, "d"), ElementsAre(7));
  EXPECT_EQ(posenc::read_tensor_matrix(read, "a").rows(), 2);
  EXPECT_EQ(posenc::read_tensor_matrix(read, "b").rows(), 1);
  EXPECT_EQ(posenc::read_tensor_matrix(read, "c").cols(), 2);
  EXPECT_REFUSAL(posenc::read_tensor_matrix(read, "d"), format_error, "0 dimensions");
  EXPECT_REFUSAL(posenc::read_tensor_values<float>(read, "d"), format_error, "I32");
  EXPECT_REFUSAL(posenc::read_tensor_values<float>(read, "e"), format_error, "no tensor e");
}

TEST_F(Safetensors, RefusesLengthsBeyondTheFile) {
  EXPECT_REFUSAL(posenc::read_safetensors(written("short")), format_error, "5 bytes");
  EXPECT_REFUSAL(posenc::read_safetensors(written(std::string(8, '\xff'))), format_error,
                 "18446744073709551615");
  EXPECT_REFUSAL(posenc::read_safetensors(file("[]")), format_error, "an object");
  EXPECT_REFUSAL(
      posenc::read_safetensors(file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234")),
      format_error, "4 bytes of data");
}

TEST_F(Safetensors, RefusesEntriesThatDoNotHold) {
  const auto entry = [&](const std::string& fields) {
    return file(R"({"a":{)" + fields + "}}", one_and_minus_two);
  };
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])")),
                 format_error, "F33");
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])")),
                 format_error, "12");
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])")),
                 format_error, "a.shape");
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])")),
                 format_error, "a.data_offsets");
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F32","shape":[2])")), format_error,
                 "a.data_offsets");
  EXPECT_REFUSAL(posenc::read_safetensors(
                     entry(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])")),
                 format_error, "64 bits");
  EXPECT_REFUSAL(posenc::read_safetensors(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])")),
                 format_error, "the tensors end at");
  EXPECT_REFUSAL(posenc::read_safetensors(file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                                               one_and_minus_two)),
                 format_error, "the end of the one before");
}

TEST(safetensors, nothing_is_left_of_a_file_that_could_not_be_written) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "posenc_not_a_file.safetensors";
  std::filesystem::create_directories(folder / "inside");  // cannot be replaced by a file
  EXPECT_REFUSAL(posenc::write_safetensors(folder, {{"a", {1}, posenc::row_major_matrix<float>::Ones(1, 1)}}),
                 std::invalid_argument, "cannot be written");
  EXPECT_FALSE(std::filesystem::exists(folder.string() + ".part"));
  std::filesystem::remove_all(folder);
}

}  // namespace safetensors_test
