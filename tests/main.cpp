// SPDX-License-Identifier: MIT
/// \file
/// main of every test program. Tests run in the root of the project and name their files from there, so that no
/// object but this one depends on where the project lies and a compiler cache serves every checkout.
#include <filesystem>

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  // First of all: InitGoogleTest asks parameterised tests for their cases, which may be in files. Paths of --gtest_output
  // count from where the program was started, which GoogleTest has noted before main.
  std::filesystem::current_path(POSENC_PROJECT_ROOT);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
