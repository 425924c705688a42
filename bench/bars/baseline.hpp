// SPDX-License-Identifier: MIT
/// \file
/// The first edition (0.1), compiled from its own headers in baseline.cpp, as plain functions. Its inline namespace
/// differs from ours, so both editions live in one program and are timed by turns.
#pragma once

#include <cstddef>

namespace baseline {

/// Causal attention with RoPE (half_split, base 500,000) over token-major memory; the last query stands on the last key.
/// `own_scratch` makes the call allocate its scratch itself.
void attention(const float* q, const float* k, const float* v, float* out, std::ptrdiff_t queries,
               std::ptrdiff_t keys, std::ptrdiff_t heads, std::ptrdiff_t kv_heads, std::ptrdiff_t head_dim,
               bool own_scratch);
/// The same in bfloat16; the pointers are to 16-bit patterns.
void attention_bfloat16(const unsigned short* q, const unsigned short* k, const unsigned short* v,
                        unsigned short* out, std::ptrdiff_t queries, std::ptrdiff_t keys,
                        std::ptrdiff_t heads, std::ptrdiff_t kv_heads, std::ptrdiff_t head_dim);

}  // namespace baseline
