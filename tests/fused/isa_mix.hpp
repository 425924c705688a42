// SPDX-License-Identifier: MIT
/// \file
/// What the translation units of the mixed program share: the same call, compiled for each of them.
#pragma once

#include <posenc/views.hpp>

namespace isa_mix {
using matrix = posenc::row_major_matrix<float>;

/// Attention and the name of the target that computed it.
struct answer {
  matrix output;
  const char* target;
};
answer of_baseline(const matrix& tokens);
answer of_haswell(const matrix& tokens);
}  // namespace isa_mix
