// SPDX-License-Identifier: MIT
/// \file
/// Compiled against the headers of 0.1, which `./run bars` takes from the history of this repository.
#include <posenc/fused/attention.hpp>
#include <posenc/posenc.hpp>

#include "baseline.hpp"

namespace baseline {
namespace {

const posenc::rope<float>& rope_of(std::ptrdiff_t head_dim) {
  static const posenc::rope<float> narrow{
      {.head_dim = 64, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
  static const posenc::rope<float> wide{
      {.head_dim = 128, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
  return head_dim == 64 ? narrow : wide;
}

template <class S>
void run(const S* q, const S* k, const S* v, S* out, std::ptrdiff_t queries, std::ptrdiff_t keys,
         std::ptrdiff_t heads, std::ptrdiff_t kv_heads, std::ptrdiff_t head_dim, bool own_scratch) {
  static posenc::fused::workspace memory;
  posenc::fused::attention_into(
      posenc::token_major(q, queries, heads, head_dim), posenc::token_major(k, keys, kv_heads, head_dim),
      posenc::token_major(v, keys, kv_heads, head_dim), rope_of(head_dim),
      {.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal},
      posenc::token_major(out, queries, heads, head_dim), {}, {.memory = own_scratch ? nullptr : &memory});
}

}  // namespace

void attention(const float* q, const float* k, const float* v, float* out, std::ptrdiff_t queries,
               std::ptrdiff_t keys, std::ptrdiff_t heads, std::ptrdiff_t kv_heads, std::ptrdiff_t head_dim,
               bool own_scratch) {
  run(q, k, v, out, queries, keys, heads, kv_heads, head_dim, own_scratch);
}

void attention_bfloat16(const unsigned short* q, const unsigned short* k, const unsigned short* v,
                        unsigned short* out, std::ptrdiff_t queries, std::ptrdiff_t keys,
                        std::ptrdiff_t heads, std::ptrdiff_t kv_heads, std::ptrdiff_t head_dim) {
  using S = Eigen::bfloat16;
  run(reinterpret_cast<const S*>(q), reinterpret_cast<const S*>(k), reinterpret_cast<const S*>(v),
      reinterpret_cast<S*>(out), queries, keys, heads, kv_heads, head_dim, false);
}

}  // namespace baseline
