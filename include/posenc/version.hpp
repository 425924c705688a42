// SPDX-License-Identifier: MIT
/// \file
/// The version of posenc; the build system reads the three numbers from here and from nowhere else.
#pragma once

#define POSENC_VERSION_MAJOR 0  ///< Changes break programs.
#define POSENC_VERSION_MINOR 2  ///< Changes add names.
#define POSENC_VERSION_PATCH 0  ///< Changes mend.
