// SPDX-License-Identifier: MIT
/// \file
/// The one translation unit of a program that holds the kernels of every instruction set.
#define POSENC_FUSED_IMPLEMENTATION
#include <posenc/fused/dispatch.hpp>
