// SPDX-License-Identifier: MIT
/// \file
/// The pairing comes with the weights; a wrong guess is silent, so there is none to fall back on.
// error: required
#include <posenc/posenc.hpp>

#ifdef POSENC_BAD
const posenc::rope_options options{.head_dim = 128};
#else
const posenc::rope_options options{.head_dim = 128, .pairing = posenc::pairing::half_split};
#endif

const posenc::rope<float> rope{options};
