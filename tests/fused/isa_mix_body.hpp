// SPDX-License-Identifier: MIT
/// \file
/// The call of the mixed program; see isa_mix.hpp.
#pragma once

#include <posenc/encodings/rope.hpp>
#include <posenc/fused/attention.hpp>

#include "fused/isa_mix.hpp"

namespace isa_mix {
inline posenc::rope<float> encoding() {
  return posenc::rope<float>{{.head_dim = 24, .pairing = posenc::pairing::interleaved}};
}
inline constexpr posenc::attention_options options{.heads = 2, .mask = posenc::causal};
}  // namespace isa_mix
