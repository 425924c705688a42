// SPDX-License-Identifier: MIT
/// \file
/// A column-major matrix has no contiguous heads to look at.
// error: as_heads needs a row-major matrix
#include <posenc/posenc.hpp>

#ifdef POSENC_BAD
using matrix = Eigen::MatrixXf;
#else
using matrix = posenc::row_major_matrix<float>;
#endif

auto f(matrix& q) { return posenc::as_heads(q, 2).token_stride; }
