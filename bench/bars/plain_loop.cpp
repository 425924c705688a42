// SPDX-License-Identifier: MIT
/// \file
/// Attention as a plain C program writes it, over keys that were rotated before, compiled with -Ofast: what decode without
/// grouping is held against.
#include <cmath>
#include <cstddef>

namespace bars {
using index_t = std::ptrdiff_t;

void plain_loop(const float* q, const float* k, const float* v, float* out, float* scores, index_t keys,
                index_t of_heads, index_t width);

void plain_loop(const float* q, const float* k, const float* v, float* out, float* scores, index_t keys,
                index_t of_heads, index_t width) {
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  for (index_t h = 0; h < of_heads; ++h) {
    float largest = -1e30f;
    for (index_t t = 0; t < keys; ++t) {
      float sum = 0;
      const float* const key = k + (t * of_heads + h) * width;
      for (index_t c = 0; c < width; ++c) sum += q[h * width + c] * key[c];
      scores[t] = sum * scale;
      largest = scores[t] > largest ? scores[t] : largest;
    }
    float total = 0;
    for (index_t t = 0; t < keys; ++t) {
      scores[t] = std::exp(scores[t] - largest);
      total += scores[t];
    }
    for (index_t c = 0; c < width; ++c) out[h * width + c] = 0;
    for (index_t t = 0; t < keys; ++t) {
      const float weight = scores[t] / total;
      const float* const value = v + (t * of_heads + h) * width;
      for (index_t c = 0; c < width; ++c) out[h * width + c] += weight * value[c];
    }
  }
}

}  // namespace bars
