// SPDX-License-Identifier: MIT
/// \file
/// A door that is not const would be ignored, silently: refused, beside an open one too.
// error: a door of this encoding is not const and would be ignored
#include <posenc/posenc.hpp>

struct my_encoding {
  double scale(posenc::position) const { return 1; }
#ifdef POSENC_BAD
  float bias(int, posenc::position) { return 0; }
#else
  float bias(int, posenc::position) const { return 0; }
#endif
};

Eigen::MatrixXf f(const Eigen::MatrixXf& x) {
  return posenc::reference::attention(x, x, x, my_encoding{}, {});
}
