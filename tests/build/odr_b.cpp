// SPDX-License-Identifier: MIT
/// \file
/// The second translation unit of odr_a.cpp.
#include "all_headers.hpp"
#include "answers.hpp"

int wrong_in_b();
int wrong_in_b() { return answers::wrong(); }
