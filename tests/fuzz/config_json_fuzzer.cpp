// SPDX-License-Identifier: MIT
/// \file
/// libFuzzer on the config.json reader; CMakeLists.txt says how to build and run it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)posenc_tests::fuzz_config_json(std::as_bytes(std::span(data, size)));
  return 0;
}
