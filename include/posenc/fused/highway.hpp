// SPDX-License-Identifier: MIT
/// \file
/// Google Highway, so that it compiles whatever the flags are.
///
/// Highway 1.0.3 leaves AVX3_DL out of its targets and then stops with "best baseline should be included in
/// dynamic targets" where the flags (-march=native on a recent machine) promise it. Wanting that target
/// helps; elsewhere it is not wanted, since it would be compiled beside AVX3 for nothing.
#pragma once

#if defined(__AVX512VNNI__) && !defined(HWY_WANT_AVX3_DL) && !defined(HWY_HIGHWAY_INCLUDED)
#define HWY_WANT_AVX3_DL
#endif

// Highway counts a machine as AVX2 only with AES, which -march=x86-64-v3 and -march=haswell leave out.
// Nothing here encrypts.
#if defined(__AVX2__) && !defined(__AES__) && !defined(HWY_DISABLE_PCLMUL_AES) && \
    !defined(HWY_HIGHWAY_INCLUDED)
#define HWY_DISABLE_PCLMUL_AES
#endif

#include <hwy/base.h>
#include <hwy/detect_targets.h>
