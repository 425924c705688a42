// SPDX-License-Identifier: MIT
/// \file
/// How far it is, how long it took, how much memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

namespace llama {

/// Says "<what> 42 %" on standard error, on one line that it goes on writing over.
class progress {
 public:
  explicit progress(const char* what) noexcept : what_(what) {}
  void operator()(double share) {
    const int percent = static_cast<int>(100 * share + 1e-6);
    if (percent == shown_) return;
    shown_ = percent;
    std::fprintf(stderr, "\r%s %3d %%%s", what_, percent, percent >= 100 ? "\n" : "");
  }

 private:
  const char* what_;
  int shown_ = -1;
};

class stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The most memory this process has held, in MiB; 0 where the system does not say.
[[nodiscard]] inline double peak_mebibytes() {
#if defined(__unix__) || defined(__APPLE__)
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return static_cast<double>(usage.ru_maxrss) / 1048576;
#else
  return static_cast<double>(usage.ru_maxrss) / 1024;
#endif
#else
  return 0;
#endif
}

}  // namespace llama
