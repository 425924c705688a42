// SPDX-License-Identifier: MIT
/// \file
/// Two translation units of one program include every header; odr_b.cpp is the other.
#include "all_headers.hpp"
#include "answers.hpp"

int wrong_in_b();

int main() { return answers::wrong() + wrong_in_b(); }
