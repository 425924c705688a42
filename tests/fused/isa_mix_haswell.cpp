// SPDX-License-Identifier: MIT
/// \file
/// The fused call compiled for machines with AVX2.
#include "fused/isa_mix_body.hpp"

namespace isa_mix {
const char* on_haswell(std::span<const float> in, std::span<float> out) {
  posenc::fused::attention_into(view_of(in), view_of(in), view_of(in), encoding(), options, view_of(out));
  return posenc::fused::target_name();
}
}  // namespace isa_mix
