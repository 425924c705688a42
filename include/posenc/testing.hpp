// SPDX-License-Identifier: MIT
/// \file
/// The property battery: what a positional encoding should and should not do, as functions that measure it.
/// No test framework inside; point it at an encoding of your own:
///
///     auto shift = posenc::testing::relative_shift<float>(my_encoding, {.head_dim = 64});
///     if (!shift.within(1e-5)) std::puts(shift.where.c_str());
///     // "token 3 of tokens moved from 0 to 1000003"
///
/// Every check returns the worst error and where it was. S is the scalar that attention runs in.
///
/// | check | who passes it | what it catches |
/// |---|---|---|
/// | permutation_invariance | no_encoding, and nothing else | (a measure: far from 0 means that order is seen) |
/// | prefix_permutation_invariance | no_encoding under a causal mask | the same |
/// | permutation_equivariance | every encoding | row numbers used instead of positions, hidden state |
/// | relative_shift | rotate, bias: yes; embed: no | a wrong sign on one side, slope·j instead of slope·(j−i) |
/// | told_apart | every encoding within its range | clamped tables, too coarse positions |
/// | norm | rotations (not xPos) | a dropped or scaled tail, an attention factor applied twice |
/// | additivity | rotations | angles that are not position times frequency |
/// | locality | sinusoidal yes, a fresh learned table no | (a measure) |
/// | stays_in_row | every encoding | writes beyond the row |
/// | chunked_equals_whole | every encoding | positions that start anew in each chunk |
/// | merged_equals_whole | every encoding | log-sum-exps that do not fit, sinks counted twice |
/// | strided_equals_packed | every attention function | a stride ignored, bytes between rows touched |
/// | gradient | every encoding that takes automatic-differentiation scalars | values that hide from derivatives |
/// | backward | every encoding | adjoints of an encoding, or a backward, that do not fit the forward |
///
/// Properties do not catch everything: both pairings of RoPE pass all of them. Compare with known values too.
#pragma once

#include <posenc/testing/doors.hpp>
#include <posenc/testing/gradient.hpp>
#include <posenc/testing/order.hpp>
#include <posenc/testing/splits.hpp>
#include <posenc/testing/world.hpp>
