// SPDX-License-Identifier: MIT
/// \file
/// Two encodings that both add a row to the key cannot be combined: one row would be dropped.
// error: combine takes one relative_key at most
#include <posenc/posenc.hpp>

auto f(const posenc::shaw<float>& shaw, const posenc::alibi<float>& alibi) {
#ifdef POSENC_BAD
  return posenc::combine(shaw, posenc::combine(alibi, shaw)).relative_key(0, 1)[0];
#else
  return posenc::combine(shaw, alibi).relative_key(0, 1)[0];
#endif
}
