// SPDX-License-Identifier: MIT
/// \file
/// The call of the mixed program; see isa_mix.hpp.
#pragma once

#include <posenc/encodings/rope.hpp>
#include <posenc/fused.hpp>

#include "fused/isa_mix.hpp"

namespace isa_mix {
inline posenc::rope<float> encoding() {
  return posenc::rope<float>{{.head_dim = head_dim, .pairing = posenc::pairing::interleaved}};
}
inline const posenc::attention_options options{.heads = heads, .mask = posenc::causal};

template <class T>
posenc::heads_view<T> view_of(std::span<T> memory) {
  return posenc::token_major(memory.data(), tokens, heads, head_dim);
}
}  // namespace isa_mix
