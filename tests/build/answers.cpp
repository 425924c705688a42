// SPDX-License-Identifier: MIT
/// \file
/// Compiled under each set of flags that users bring.
#include "answers.hpp"

int main() { return answers::wrong(); }
