// SPDX-License-Identifier: MIT
/// \file
/// Where the door that is not const is the only one, that is what the compiler says, and not that there is none.
// error: a door of this encoding is not const and would be ignored
// no error: this type opens no door
#include <posenc/posenc.hpp>

struct my_encoding {
#ifdef POSENC_BAD
  float bias(int, posenc::position) { return 0; }
#else
  float bias(int, posenc::position) const { return 0; }
#endif
};

Eigen::MatrixXf f(const Eigen::MatrixXf& x) {
  return posenc::reference::attention(x, x, x, my_encoding{}, {});
}
