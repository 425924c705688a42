// SPDX-License-Identifier: MIT
/// \file
/// The pool where the machine starts no more threads.
#include <cstdlib>
#include <system_error>

#if defined(__linux__)
#include <sys/resource.h>
#endif

#include <gtest/gtest.h>

#include <posenc/fused/executor.hpp>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define POSENC_TEST_HAS_SHADOW_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define POSENC_TEST_HAS_SHADOW_MEMORY 1
#endif
#endif

// Shadow memory does not live with a limit on memory.
#if defined(__linux__) && !defined(POSENC_TEST_HAS_SHADOW_MEMORY)

TEST(thread_pool, throws_where_a_thread_cannot_be_started) {
  const auto make_too_many = [] {
    const rlimit room_for_a_few_stacks{rlim_t{1} << 29, rlim_t{1} << 29};
    setrlimit(RLIMIT_AS, &room_for_a_few_stacks);
    try {
      const posenc::fused::thread_pool pool(10'000);
    } catch (const std::system_error&) {
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(make_too_many(), ::testing::ExitedWithCode(7), "");
}

#endif
