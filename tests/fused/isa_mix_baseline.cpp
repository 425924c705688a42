// SPDX-License-Identifier: MIT
/// \file
/// The fused call compiled without any flag.
#include "fused/isa_mix_body.hpp"

namespace isa_mix {
answer of_baseline(const matrix& tokens) {
  return {posenc::fused::attention(tokens, tokens, tokens, encoding(), options),
          posenc::fused::target_name()};
}
}  // namespace isa_mix
