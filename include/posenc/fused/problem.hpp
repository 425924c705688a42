// SPDX-License-Identifier: MIT
/// \file
/// What the fused kernels are given: one attention problem as plain numbers and pointers. Kernels know no
/// encoding types; lowering.hpp rotary encodings into this.
#pragma once

#include <cstddef>
#include <cstdint>

#include <posenc/attention/options.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>

namespace posenc::inline v0_2::detail::fused_problem {

/// How numbers are stored; they are computed in float.
enum class storage : unsigned char { float32, bfloat16, float16 };

[[nodiscard]] constexpr index_t bytes_of(storage type) noexcept { return type == storage::float32 ? 4 : 2; }

/// tokens × heads × channels in foreign memory; strides in elements.
struct tensor {
  const void* data = nullptr;
  storage type = storage::float32;
  index_t token_stride = 0;
  index_t head_stride = 0;

  [[nodiscard]] const char* row(index_t token, index_t head) const noexcept {
    return static_cast<const char*>(data) + (token * token_stride + head * head_stride) * bytes_of(type);
  }
};

/// The same for what is written.
struct output_tensor {
  void* data = nullptr;
  storage type = storage::float32;
  index_t token_stride = 0;
  index_t head_stride = 0;

  [[nodiscard]] char* row(index_t token, index_t head) const noexcept {
    return static_cast<char*>(data) + (token * token_stride + head * head_stride) * bytes_of(type);
  }
};

/// The positions of the rows of a tensor: a run from `first`, or one each.
struct row_positions {
  position first = 0;
  const position* each = nullptr;

  [[nodiscard]] position operator[](index_t row) const noexcept { return each ? each[row] : first + row; }

  /// True when `count` rows from `row` on stand on consecutive positions.
  [[nodiscard]] bool is_run(index_t row, index_t count) const noexcept {
    if (!each) return true;
    for (index_t n = 1; n < count; ++n)
      if (each[row + n] != each[row] + n) return false;
    return true;
  }
};

/// A bias that depends on head and distance δ = query − key alone.
struct distance_bias {
  enum class form : unsigned char {
    none,
    linear,    ///< behind[h]·δ for δ ≥ 0, ahead[h]·δ for δ < 0
    diagonal,  ///< values[h·stride + clamp(δ, first, last) − first]
  };
  form kind = form::none;
  const double* behind = nullptr;
  const double* ahead = nullptr;
  const float* values = nullptr;  ///< times log2 e already
  index_t stride = 0;
  position first = 0, last = 0;
};

/// What an encoding could not be lowered to: callbacks back into it, element by element or row by row.
struct encoding_callbacks {
  const void* encoding = nullptr;
  void (*rotate)(const void*, float* head, index_t channels, position, rotation_side) = nullptr;
  float (*bias)(const void*, index_t head, position query, position key) = nullptr;
  void (*relative_key)(const void*, index_t head, position offset, float* row, index_t channels) = nullptr;
  void (*relative_value)(const void*, index_t head, position offset, float* row, index_t channels) = nullptr;
  double (*scale)(const void*, position query) = nullptr;
};

/// One sequence's attention. Everything is validated before.
struct attention_problem {
  tensor q, k, v;
  output_tensor out;
  float* log_sum_exp = nullptr;
  index_t lse_token_stride = 0, lse_head_stride = 0;

  index_t query_tokens = 0, key_tokens = 0;
  index_t heads = 1, kv_heads = 1, group = 1;
  index_t head_dim = 0, value_dim = 0;
  double scale = 1, softcap = 0;
  const double* sinks = nullptr;

  row_range valid_queries{}, valid_keys{};
  row_positions queries{}, keys{};
  bool keys_ascend = true;  ///< key positions never decrease, so that what a query sees is a range of rows
  position farthest_behind = no_limit, farthest_ahead = no_limit;

  const rotation* rotary = nullptr;  ///< null where nothing rotates or callbacks.rotate does it
  bool keys_are_rotated = false;    ///< k holds rotated keys; only q rotary
  distance_bias bias{};
  encoding_callbacks callbacks{};

  static constexpr position no_limit = position{1} << 62;

  /// A distance cut to ±2^62, so that a limit can be added to it.
  [[nodiscard]] static constexpr position within_limits(position distance) noexcept {
    return distance < -no_limit ? -no_limit : distance < no_limit ? distance : no_limit;
  }

  [[nodiscard]] bool sees(position query, position key) const noexcept {
    const position behind = query - key;
    return (farthest_behind == no_limit || behind <= farthest_behind) &&
           (farthest_ahead == no_limit || -behind <= farthest_ahead);
  }
};

/// How a problem is cut into tasks; a function of its shape alone, so that results do not depend on who runs
/// them.
struct task_plan {
  bool decode = false;
  index_t rows = 0;  ///< query rows of a tile (prefill)
  index_t heads_per_task = 1;
  index_t head_chunks = 1;    ///< tasks the heads of one KV head are spread over
  index_t tiles = 0;          ///< query tiles (prefill) or key splits (decode)
  index_t split = 0;          ///< keys of a split (decode)
  index_t tasks = 0;          ///< of the main phase
  index_t merges = 0;         ///< tasks of the merging phase, 0 when nothing is split
  index_t shared_floats = 0;  ///< scratch shared by the tasks of this problem
  index_t worker_floats = 0;  ///< scratch of each worker
};

/// The entry points of one instruction set.
struct kernel_table {
  const char* name;
  task_plan (*plan)(const attention_problem&);
  void (*prepare)(const attention_problem&, const task_plan&, float* shared);
  void (*run)(const attention_problem&, const task_plan&, float* shared, float* scratch, index_t task);
  void (*merge)(const attention_problem&, const task_plan&, float* shared, float* scratch, index_t task);
};

}  // namespace posenc::inline v0_2::detail::fused_problem
