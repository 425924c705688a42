// SPDX-License-Identifier: MIT
/// \file
/// The fused path computes in float: double matrices are refused with the way out.
// error: fused attention takes queries and outputs of float, Eigen::bfloat16 or Eigen::half
// error: posenc::reference::attention
#define POSENC_FUSED_DISPATCH_ONLY
#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#ifdef POSENC_BAD
using matrix = Eigen::MatrixXd;
#else
using matrix = Eigen::MatrixXf;
#endif

auto f(const matrix& x) { return posenc::fused::attention(x, x, x, posenc::no_encoding{}); }
