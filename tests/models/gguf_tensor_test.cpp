// SPDX-License-Identifier: MIT
/// \file
/// Weights out of GGUF files: every block layout by hand. Whole models are compared with the gguf package's
/// numbers in tests/examples.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/models/gguf/tensors.hpp>

#include "gguf_bytes.hpp"
#include "refusals.hpp"

namespace gguf_tensor_test {

using matrix = posenc::row_major_matrix<float>;
using posenc_tests::gguf_bytes;

/// A file of one tensor "t", whose data `fill` appends.
template <class Fill>
class one_tensor {
 public:
  one_tensor(const std::vector<std::uint64_t>& extents, std::uint32_t type, const Fill& fill)
      : path_(std::filesystem::path(testing::TempDir()) /
              (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".gguf")) {
    gguf_bytes bytes(3, 1, 0);
    bytes.tensor("t", extents, type, 0).pad();
    fill(bytes);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.bytes().data()),
               static_cast<std::streamsize>(bytes.bytes().size()));
  }
  ~one_tensor() { std::filesystem::remove(path_); }
  one_tensor(const one_tensor&) = delete;
  one_tensor& operator=(const one_tensor&) = delete;

  [[nodiscard]] matrix read() const {
    return posenc::read_tensor_matrix(path_, *posenc::read_gguf(path_).find_tensor("t"));
  }

 private:
  std::filesystem::path path_;
};

TEST(gguf_tensor, reads_f32_row_by_row) {
  const one_tensor file({3, 2}, 0, [](gguf_bytes& to) {
    for (const float value : {1.5F, -2.0F, 0.0F, 1e-40F, 3e38F, -0.25F}) to.f32(value);
  });
  EXPECT_EQ(file.read(), (matrix(2, 3) << 1.5F, -2.0F, 0.0F, 1e-40F, 3e38F, -0.25F).finished());
}

TEST(gguf_tensor, reads_f16) {
  // 1, −2, the largest finite number, the smallest subnormal one.
  const one_tensor file({4}, 1, [](gguf_bytes& to) {
    for (const std::uint64_t half : {0x3C00U, 0xC000U, 0x7BFFU, 0x0001U}) to.bits(half, 2);
  });
  EXPECT_EQ(file.read(), (matrix(1, 4) << 1.0F, -2.0F, 65504.0F, 5.9604645e-8F).finished());
}

TEST(gguf_tensor, reads_q8_0_by_its_scale) {
  const one_tensor file({32, 2}, 8, [](gguf_bytes& to) {
    for (const std::uint64_t d : {0x3800U, 0xBC00U}) {  // 0.5 and −1
      to.bits(d, 2);
      for (int i = 0; i < 32; ++i) to.u8(static_cast<std::uint8_t>(i == 31 ? -128 : i - 16));
    }
  });
  const matrix values = file.read();
  ASSERT_EQ(values.rows(), 2);
  ASSERT_EQ(values.cols(), 32);
  for (int i = 0; i < 32; ++i) {
    const float q = i == 31 ? -128.0F : static_cast<float>(i - 16);
    EXPECT_EQ(values(0, i), 0.5F * q) << i;
    EXPECT_EQ(values(1, i), -q) << i;
  }
}

TEST(gguf_tensor, reads_q4_1_low_halves_before_high_ones) {
  const one_tensor file({32}, 3, [](gguf_bytes& to) {
    to.bits(0x4000, 2).bits(0xC400, 2);  // d = 2, m = −4
    for (unsigned i = 0; i < 16; ++i) to.u8(static_cast<std::uint8_t>(i | (15 - i) << 4));
  });
  const matrix values = file.read();
  ASSERT_EQ(values.size(), 32);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values(0, i), 2.0F * static_cast<float>(i) - 4.0F) << i;
    EXPECT_EQ(values(0, i + 16), 2.0F * static_cast<float>(15 - i) - 4.0F) << i;
  }
}

TEST(gguf_tensor, three_extents_and_no_elements) {
  const one_tensor cube({2, 3, 2}, 0, [](gguf_bytes& to) {
    for (int n = 0; n < 12; ++n) to.f32(static_cast<float>(n));
  });
  const matrix values = cube.read();
  ASSERT_EQ(values.rows(), 6);
  EXPECT_EQ(values(5, 1), 11.0F);
}

TEST(gguf_tensor, an_empty_tensor_is_an_empty_matrix) {
  const one_tensor none({0, 5}, 0, [](gguf_bytes&) {});
  EXPECT_EQ(none.read().size(), 0);
}

TEST(gguf_tensor, a_type_that_is_not_read_is_named) {
  const one_tensor file({256}, 12, [](gguf_bytes& to) {
    for (int n = 0; n < 144; ++n) to.u8(0);
  });
  EXPECT_REFUSAL(file.read(), posenc::format_error, "tensor t has type Q4_K; read as numbers are F32");
}

}  // namespace gguf_tensor_test
