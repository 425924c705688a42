// SPDX-License-Identifier: MIT
/// \file
/// A type that opens no door is refused with a sentence that lists the doors.
// error: this type opens no door
// error: embed\(std::span<S> row, position p\)
// error: rotate\(std::span<S> head, position p\)
// error: bias\(int head, position offset\)
// error: scale\(position query\)
#include <posenc/posenc.hpp>

struct my_bias {
#ifdef POSENC_BAD
  float bais(int, posenc::position) const { return 0; }
#else
  float bias(int, posenc::position) const { return 0; }
#endif
};

Eigen::MatrixXf f(const Eigen::MatrixXf& x) { return posenc::reference::attention(x, x, x, my_bias{}, {}); }
