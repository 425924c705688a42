// SPDX-License-Identifier: MIT
/// \file
/// Names that operating systems' and other libraries' headers define as macros, defined after everything that
/// is not ours and before everything that is.
#include <bits/stdc++.h>
#include "foreign_headers.hpp"

#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define small char
#define near
#define far
#define I (something that is no expression)
#define OPTIONAL
#define IN
#define OUT
#define None 0L
#define Status int
#define Success 0
#define Bool int
#define True 1
#define False 0
#define ERROR 0
#define DELETE 0
#define interface struct
#define PI 3.14159
#define B0 0
#define major(x) hostile major macro
#define minor(x) hostile minor macro
#define unix 1
#define linux 1

#include "all_headers.hpp"
#include "answers.hpp"

int main() { return answers::wrong(); }
