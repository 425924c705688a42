// SPDX-License-Identifier: MIT
/// \file
/// Int8 values have a scale per token, which keys cannot have: they are no keys.
// error: quantised_keys are keys, quantised_values are values
#define POSENC_FUSED_DISPATCH_ONLY
#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#ifdef POSENC_BAD
using keys = posenc::quantised_values;
#else
using keys = posenc::quantised_keys;
#endif

void f(posenc::heads_view<const float> q, const keys& k, const posenc::quantised_values& v,
       posenc::heads_view<float> out) {
  posenc::fused::attention_into(q, k, v, posenc::no_encoding{}, {}, out);
}
