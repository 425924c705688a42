// SPDX-License-Identifier: MIT
/// \file
/// A view of const memory as the output is refused in words.
// error: the output of attention must be writable
#define POSENC_FUSED_DISPATCH_ONLY
#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#ifdef POSENC_BAD
using out = const float;
#else
using out = float;
#endif

void f(posenc::heads_view<const float> x, posenc::heads_view<out> to) {
  posenc::fused::attention_into(x, x, x, posenc::no_encoding{}, {}, to);
}
