// SPDX-License-Identifier: MIT
/// \file
/// What this machine can do at best, measured in the run that is compared with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include <hwy/highway.h>

namespace posenc::bench {
namespace hn = hwy::HWY_NAMESPACE;

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Floating-point operations per second of one core: twelve independent chains of fused multiply-adds. The barrier keeps
/// the compiler from seeing that chains are alike and folding them into one.
[[nodiscard, gnu::noinline]] inline double fma_peak() {
  const hn::ScalableTag<float> d;
  using vector = hn::Vec<decltype(d)>;
  constexpr std::size_t chains = 12;
  const std::size_t steps = 4'000'000 / hn::Lanes(d);
  vector c[chains];
  for (std::size_t n = 0; n < chains; ++n) c[n] = hn::Set(d, 1.0f + static_cast<float>(n));
  vector a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
      for (std::size_t n = 0; n < chains; ++n) c[n] = hn::MulAdd(c[n], a, b);
      asm volatile("" : : : "memory");
    }
    const double rate = 2.0 * static_cast<double>(chains * steps * hn::Lanes(d)) / seconds_since(start);
    best = rate > best ? rate : best;
  }
  vector sum = c[0];
  for (std::size_t n = 1; n < chains; ++n) sum = hn::Add(sum, c[n]);
  volatile float kept = hn::GetLane(sum);
  static_cast<void>(kept);
  return best;
}

/// Bytes per second that one core reads from memory: 256 MiB, far beyond any cache, in order.
[[nodiscard, gnu::noinline]] inline double read_bandwidth() {
  static const std::vector<float> memory(std::size_t{64} << 20, 1.0f);
  const hn::ScalableTag<float> d;
  const std::size_t width = hn::Lanes(d);
  double best = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t n = 0; n < memory.size(); n += 4 * width) {
      s0 = hn::Add(s0, hn::LoadU(d, memory.data() + n));
      s1 = hn::Add(s1, hn::LoadU(d, memory.data() + n + width));
      s2 = hn::Add(s2, hn::LoadU(d, memory.data() + n + 2 * width));
      s3 = hn::Add(s3, hn::LoadU(d, memory.data() + n + 3 * width));
    }
    const double rate = 4.0 * static_cast<double>(memory.size()) / seconds_since(start);
    volatile float kept = hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
    static_cast<void>(kept);
    best = rate > best ? rate : best;
  }
  return best;
}

}  // namespace posenc::bench
