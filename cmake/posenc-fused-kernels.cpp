// SPDX-License-Identifier: MIT
// The fused kernels of every instruction set, compiled once for all users of the CMake target posenc::fused.
#define POSENC_FUSED_IMPLEMENTATION
#include <posenc/fused/dispatch.hpp>
