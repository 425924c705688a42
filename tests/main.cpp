// SPDX-License-Identifier: MIT
/// \file
/// main of every test program. Tests run in the root of the project and name their files from there, so that no
/// object but this one depends on where the project lies and a compiler cache serves every checkout.
#include <filesystem>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);  // notes the folder that --gtest_output counts from
  std::filesystem::current_path(POSENC_PROJECT_ROOT);
  return RUN_ALL_TESTS();
}
