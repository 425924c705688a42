// SPDX-License-Identifier: MIT
/// \file
/// The program of every consumer project: ../build/answers.hpp, reached by whatever way posenc was found.
#include "../build/answers.hpp"

int main() { return answers::wrong(); }
