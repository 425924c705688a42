// SPDX-License-Identifier: MIT
/// \file
/// What this machine can do at best, measured in the run that is compared with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include <posenc/fused/highway.hpp>  // before Highway itself: it settles the targets

#include <hwy/highway.h>

namespace posenc::bench {
namespace hn = hwy::HWY_NAMESPACE;

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Floating-point operations per second of one core: twelve independent chains of fused multiply-adds. They start from
/// different values, or the compiler would see that they are alike and fold them into one.
[[nodiscard, gnu::noinline]] inline double fma_peak() {
  const hn::ScalableTag<float> d;
  using vector = hn::Vec<decltype(d)>;
  constexpr double chains = 12;
  const std::size_t steps = 16'000'000 / hn::Lanes(d);
  const auto start_of = [d](float n) { return hn::Set(d, n); };
  vector c0 = start_of(1), c1 = start_of(2), c2 = start_of(3), c3 = start_of(4), c4 = start_of(5),
         c5 = start_of(6);
  vector c6 = start_of(7), c7 = start_of(8), c8 = start_of(9), c9 = start_of(10), c10 = start_of(11),
         c11 = start_of(12);
  const vector a = hn::Set(d, 0.999f), b = hn::Set(d, 1e-3f);
  double best = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t step = 0; step < steps; ++step) {
      c0 = hn::MulAdd(c0, a, b), c1 = hn::MulAdd(c1, a, b), c2 = hn::MulAdd(c2, a, b),
      c3 = hn::MulAdd(c3, a, b);
      c4 = hn::MulAdd(c4, a, b), c5 = hn::MulAdd(c5, a, b), c6 = hn::MulAdd(c6, a, b),
      c7 = hn::MulAdd(c7, a, b);
      c8 = hn::MulAdd(c8, a, b), c9 = hn::MulAdd(c9, a, b), c10 = hn::MulAdd(c10, a, b),
      c11 = hn::MulAdd(c11, a, b);
    }
    const double rate = 2 * chains * static_cast<double>(steps * hn::Lanes(d)) / seconds_since(start);
    best = rate > best ? rate : best;
  }
  const vector sum = hn::Add(
      hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)),
      hn::Add(hn::Add(hn::Add(c4, c5), hn::Add(c6, c7)), hn::Add(hn::Add(c8, c9), hn::Add(c10, c11))));
  volatile float kept = hn::GetLane(sum);
  static_cast<void>(kept);
  return best;
}

/// Bytes per second at which one core adds up `memory` once, in order: what a plain read of that very memory
/// costs. The same bytes elsewhere can be read faster or slower by a third: it depends on the pages they lie on.
[[nodiscard, gnu::noinline]] inline double read_bandwidth(std::span<const float> memory) {
  const hn::ScalableTag<float> d;
  const std::size_t width = hn::Lanes(d), count = memory.size() / (4 * width) * (4 * width);
  const float* const from = memory.data();
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t n = 0; n < count; n += 4 * width) {
    s0 = hn::Add(s0, hn::LoadU(d, from + n));
    s1 = hn::Add(s1, hn::LoadU(d, from + n + width));
    s2 = hn::Add(s2, hn::LoadU(d, from + n + 2 * width));
    s3 = hn::Add(s3, hn::LoadU(d, from + n + 3 * width));
  }
  const double seconds = seconds_since(start);
  volatile float kept = hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
  static_cast<void>(kept);
  return 4.0 * static_cast<double>(count) / seconds;
}

}  // namespace posenc::bench
