// SPDX-License-Identifier: MIT
/// \file
/// main of every test program. Tests run in the root of the project and name their files from there, so that no
/// object but this one depends on where the project lies and a compiler cache serves every checkout.
#include <cstdlib>

#include <unistd.h>

#include <gtest/gtest.h>

namespace {
// Before any other object is made: lists of cases are read from files when the program starts.
[[gnu::constructor(101)]] void go_to_the_root() {
  if (chdir(POSENC_PROJECT_ROOT) != 0) std::abort();
}
}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
