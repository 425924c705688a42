// SPDX-License-Identifier: MIT
/// \file
/// What an encoding makes of positions, as numbers: before anyone trains or runs anything, for every encoding of the library
/// and for your own. docs/analysis.md shows results.
///
///     const posenc::rope<double> rope{{.head_dim = 128, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
///     const posenc::rotation_codes codes(rope, 131'072);
///     posenc::stored_collisions(codes, posenc::code_storage::bfloat16);      // collisions.hpp
///     posenc::closest_codes(codes);                                          // repetition.hpp
///     posenc::resolution_at(codes, 100'000, 100, posenc::code_storage::bfloat16);
///     posenc::coverage_report(codes.phases(), 8192, codes.phases(), 131'072);
///     posenc::attention_entropy(codes, lengths);                             // temperature.hpp
#pragma once

#include <posenc/analysis/code_storage.hpp>
#include <posenc/analysis/codes.hpp>
#include <posenc/analysis/collisions.hpp>
#include <posenc/analysis/coverage.hpp>
#include <posenc/analysis/horizon.hpp>
#include <posenc/analysis/repetition.hpp>
#include <posenc/analysis/resolution.hpp>
#include <posenc/analysis/rope_analysis.hpp>
#include <posenc/analysis/temperature.hpp>
