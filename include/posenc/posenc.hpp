// SPDX-License-Identifier: MIT
/// \file
/// posenc: positional encodings for attention, header-only, C++20, Eigen only.
///
/// Attention without positions cannot tell "dog bites man" from "man bites dog". An encoding is a plain value
/// that enters attention through one or more of four doors (encoding.hpp): embed, rotate, bias, scale.
///
///     posenc::rope<float> rope{{.head_dim = 128, .base = 500'000.0, .pairing = posenc::pairing::half_split},
///                              posenc::yarn{.factor = 4.0, .original_context = 32'768}};
///     posenc::attention_options options{.heads = 32, .kv_heads = 8, .mask = posenc::causal};
///     Eigen::MatrixXf out = posenc::reference::attention(q, k, v, rope, options);
///
/// The contract:
/// - q is tokens × (heads·head_dim), row-major; strided views over foreign memory work too (views.hpp).
/// - Positions are explicit 64-bit integers (positions.hpp). By default the keys stand at 0…n_k−1 and the
///   queries are the last n_q of them, so that prefill, chunked prefill and decode are one call.
/// - Angles are exact at any position (rope/phase.hpp); -ffast-math does not change that.
/// - Wrong use throws before anything is written, with the numbers in the sentence (errors.hpp).
/// - A row that sees no key gives 0 and a log-sum-exp of −∞.
///
/// Not included here: posenc/fused.hpp (the fast path; needs Google Highway), posenc/models.hpp (model files; needs
/// nlohmann/json), posenc/analysis.hpp (what an encoding makes of positions), posenc/testing.hpp (property checks
/// for encodings of your own).
#pragma once

#include <posenc/attention/backward.hpp>
#include <posenc/attention/batch.hpp>
#include <posenc/attention/merge.hpp>
#include <posenc/attention/options.hpp>
#include <posenc/attention/reference.hpp>
#include <posenc/attention/self_attention.hpp>
#include <posenc/cache/float8.hpp>
#include <posenc/cache/joined.hpp>
#include <posenc/cache/paged.hpp>
#include <posenc/cache/q8_0.hpp>
#include <posenc/cache/quantised.hpp>
#include <posenc/cache/source.hpp>
#include <posenc/encoding.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/any_encoding.hpp>
#include <posenc/encodings/bias_table.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/learned_rope.hpp>
#include <posenc/encodings/logit_scale.hpp>
#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/encodings/position_ids.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_clip.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/rope_by_length.hpp>
#include <posenc/encodings/rope_table.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>
#include <posenc/encodings/xpos.hpp>
#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/parameters.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/apply.hpp>
#include <posenc/rope/convert_pairing.hpp>
#include <posenc/version.hpp>
#include <posenc/views.hpp>
