// SPDX-License-Identifier: MIT
/// \file
/// The definitions that json_once.hpp promises.
#define POSENC_TESTS_JSON template
#include "json_once.hpp"
