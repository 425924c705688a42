// SPDX-License-Identifier: MIT
/// \file
/// What the translation units of the mixed program share. Numbers travel as spans: Eigen aligns and frees its
/// matrices by the flags of a translation unit, so they must not travel between differently compiled ones.
#pragma once

#include <span>

namespace isa_mix {
inline constexpr long tokens = 70, heads = 2, head_dim = 24;

/// Attention of `in` (tokens × heads × head_dim) with itself; returns the name of the target that computed
/// it.
const char* on_baseline(std::span<const float> in, std::span<float> out);
const char* on_haswell(std::span<const float> in, std::span<float> out);
}  // namespace isa_mix
