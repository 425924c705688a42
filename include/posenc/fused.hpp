// SPDX-License-Identifier: MIT
/// \file
/// Attention at the speed of the machine: the functions of attention/reference.hpp again, same arguments,
/// same answer.
///
///     Eigen::MatrixXf out = posenc::fused::attention(q, k, v, rope, options);                      // one call
///     posenc::fused::plan step(rope, options, {.queries = 1, .keys = n}, executor);                // plan once,
///     for (auto& layer : layers) step.run(layer.q, layer.k, layer.v, layer.out);                   // run often
///
/// Queries and keys rotate in registers inside the attention loop: no rotated copy of either is ever
/// written, only a tile at a time, an unrotated cache costs little, and scores exist one tile at a time. Scores and
/// weights themselves are given by reference::scores_into.
///
/// | | |
/// |---|---|
/// | storage | float, Eigen::bfloat16, Eigen::half for each of q, k, v and output; k and v also paged, quantised and float8_e4m3 (cache/source.hpp); arithmetic and log-sum-exp in float |
/// | shapes | head_dim and value_dim 1 … 1024, any number of tokens, any strides; nothing between rows is touched |
/// | encodings | every one: lower/encodings.hpp says what each door comes down to |
/// | masks | every one of masks.hpp; tiles that are hidden are skipped |
/// | error | relative (norm) ≤ 1e-6 of the exact result for float storage at any position, where scores stay within ±16; beyond, a score s loses \|s\|·6e-8, as in any float softmax |
/// | products | of floats; of bfloat16 on a matrix unit where all tensors are of 16 bits and the processor has one that pays, within 2.5 times the rounding of the output; or as execution::arithmetic says (fused/executor.hpp) |
/// | threads | an executor (fused/executor.hpp); the bits of the result do not depend on it |
/// | memory | per worker, bounded by tile sizes; none is allocated when a workspace is handed in (fused/workspace.hpp) |
///
/// The error bound of a bias by distance holds where the bias is a line (ALiBi): it is added relative to the nearest key
/// that the query sees, so keys that are all far away cost no bits.
///
/// Needs the headers of Google Highway. How the instruction set is chosen: fused/target.hpp.
#pragma once

#include <posenc/fused/backward.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/fused/plan.hpp>
#include <posenc/fused/run.hpp>
#include <posenc/fused/target.hpp>
#include <posenc/fused/workspace.hpp>
