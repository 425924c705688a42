// SPDX-License-Identifier: MIT
/// \file
/// What the fused kernels get: one attention call as plain numbers and pointers. Kernels know no encoding types and no
/// options; lower/ makes this of those. A problem is a plain value: a plan keeps it without pointers to tensors and
/// scratch, and each run fills them in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <Eigen/Core>

#include <posenc/attention/options.hpp>
#include <posenc/cache/float8.hpp>
#include <posenc/cache/joined.hpp>
#include <posenc/cache/paged.hpp>
#include <posenc/cache/q8_0.hpp>
#include <posenc/cache/quantised.hpp>
#include <posenc/fused/executor.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

namespace fused {

/// How the numbers of a tensor are stored; they are computed in float. Queries and outputs are of the first three.
enum class storage : unsigned char {
  float32,
  bfloat16,
  float16,
  float8_e4m3,      ///< float8_e4m3 (cache/float8.hpp)
  int8_by_channel,  ///< quantised_keys: of keys alone
  int8_by_token,    ///< quantised_values: of values alone
  q8_0,             ///< q8_0_view
};

}  // namespace fused

namespace detail::fused_problem {
using fused::storage;

template <class S>
inline constexpr bool is_computed =
    std::is_same_v<S, float> || std::is_same_v<S, Eigen::bfloat16> || std::is_same_v<S, Eigen::half>;

/// What a tensor of a scalar, or a source of keys and values, is stored as.
template <class S>
struct storage_type;
template <>
struct storage_type<float> : std::integral_constant<storage, storage::float32> {};
template <>
struct storage_type<Eigen::bfloat16> : std::integral_constant<storage, storage::bfloat16> {};
template <>
struct storage_type<Eigen::half> : std::integral_constant<storage, storage::float16> {};
template <>
struct storage_type<float8_e4m3> : std::integral_constant<storage, storage::float8_e4m3> {};
template <class T>
struct storage_type<heads_view<T>> : storage_type<std::remove_const_t<T>> {};
template <class T>
struct storage_type<paged_view<T>> : storage_type<std::remove_const_t<T>> {};
template <class S>
struct storage_type<joined<S>> : storage_type<S> {};
template <>
struct storage_type<quantised_keys> : std::integral_constant<storage, storage::int8_by_channel> {};
template <>
struct storage_type<quantised_values> : std::integral_constant<storage, storage::int8_by_token> {};
template <>
struct storage_type<q8_0_view> : std::integral_constant<storage, storage::q8_0> {};

template <class S>
inline constexpr storage storage_of = storage_type<S>::value;
template <class S>
concept has_storage = requires {
  storage_type<S>::value;
};

/// Bytes of an element, and the channels that it holds.
[[nodiscard]] constexpr index_t bytes_of(storage type) noexcept {
  switch (type) {
    case storage::float32:
      return 4;
    case storage::bfloat16:
    case storage::float16:
      return 2;
    case storage::q8_0:
      return sizeof(q8_0_block);
    default:
      return 1;
  }
}
[[nodiscard]] constexpr index_t channels_of(storage type) noexcept {
  return type == storage::q8_0 ? q8_0_channels : 1;
}
/// Bytes of so many channels.
[[nodiscard]] constexpr index_t row_bytes(storage type, index_t channels) noexcept {
  return channels / channels_of(type) * bytes_of(type);
}
[[nodiscard]] constexpr const char* name_of(storage type) noexcept {
  switch (type) {
    case storage::float32:
      return "float";
    case storage::bfloat16:
      return "bfloat16";
    case storage::float16:
      return "half";
    case storage::float8_e4m3:
      return "float8_e4m3";
    case storage::int8_by_channel:
      return "quantised_keys";
    case storage::int8_by_token:
      return "quantised_values";
    case storage::q8_0:
      return "q8_0";
  }
  return "";
}

/// |stride|; one less where it is negative, so that it always fits.
[[nodiscard]] constexpr index_t width_of_stride(index_t stride) noexcept {
  return stride < 0 ? -(stride + 1) : stride;
}

/// tokens × heads × channels in foreign memory; strides in elements. Byte is char or const char.
template <class Byte>
struct basic_tensor {
  Byte* data = nullptr;
  storage type = storage::float32;
  index_t token_stride = 0;
  index_t head_stride = 0;
  Byte* const* tokens = nullptr;  ///< where each token lies, in place of data and token_stride

  [[nodiscard]] Byte* row(index_t token, index_t head) const noexcept {
    Byte* const from = tokens ? tokens[token] : data + token * token_stride * bytes_of(type);
    return from + head * head_stride * bytes_of(type);
  }
};
using tensor = basic_tensor<const char>;
using output_tensor = basic_tensor<char>;

/// Where the rows of a cache lie: in one buffer, or in pages. Strides in bytes.
struct row_layout {
  const char* data = nullptr;
  index_t token_bytes = 0, head_bytes = 0;
  const void* pages = nullptr;  ///< addresses of pages, of any pointer type
  const std::int32_t* table = nullptr;
  index_t page_tokens = 0;  ///< 0 where there are no pages

  [[nodiscard]] bool operator==(const row_layout&) const = default;

  [[nodiscard]] const char* page(index_t number) const noexcept {
    const char* at;
    std::memcpy(&at, static_cast<const char*>(pages) + table[number] * static_cast<index_t>(sizeof at),
                sizeof at);
    return at;
  }
  [[nodiscard]] const char* row(index_t token, index_t head) const noexcept {
    if (page_tokens == 0) return data + token * token_bytes + head * head_bytes;
    return page(token / page_tokens) + token % page_tokens * token_bytes + head * head_bytes;
  }

  /// Calls use(n, address of row first + n of head 0) for n < count, with one division in all.
  template <class Use>
  void for_each_row(index_t first, index_t count, Use&& use) const {
    if (page_tokens == 0) {
      for (index_t n = 0; n < count; ++n) use(n, data + (first + n) * token_bytes);
      return;
    }
    index_t number = first / page_tokens, inside = first % page_tokens;
    for (index_t n = 0; n < count; ++number, inside = 0) {
      const char* const begin = page(number);
      for (; inside < page_tokens && n < count; ++inside, ++n) use(n, begin + inside * token_bytes);
    }
  }
};

/// Keys or values: rows in one piece, or in two of the same kind (cache/joined.hpp).
struct cache_tensor {
  struct piece {
    row_layout rows{};
    row_layout scales{};  ///< of int8: floats, one row for each group of tokens

    [[nodiscard]] bool operator==(const piece&) const = default;
  };
  storage type = storage::float32;
  piece own{};
  index_t group_tokens = 1;
  piece before{};
  index_t before_tokens = 0;  ///< rows of `before`, which come first

  [[nodiscard]] const piece& piece_of(index_t token) const noexcept {
    return token < before_tokens ? before : own;
  }
  /// A row of the tensor as a row of its piece.
  [[nodiscard]] index_t row_in_piece(index_t token) const noexcept {
    return token < before_tokens ? token : token - before_tokens;
  }
  [[nodiscard]] const char* row(index_t token, index_t head) const noexcept {
    return piece_of(token).rows.row(row_in_piece(token), head);
  }
  [[nodiscard]] const char* scale_row(index_t token, index_t head) const noexcept {
    return piece_of(token).scales.row(row_in_piece(token) / group_tokens, head);
  }
};

/// The positions of the rows of a tensor: a run from `first`, of whose rows those before `split` stand `lap` later (a
/// ring buffer); or one each. And places on axes where they are given.
struct row_positions {
  position first = 0;
  const position* each = nullptr;
  const axis_positions* places = nullptr;
  index_t split = 0, lap = 0;

  [[nodiscard]] position operator[](index_t row) const noexcept {
    return each ? each[row] : first + row + (row < split ? lap : 0);
  }
  [[nodiscard]] const axis_positions* place(index_t row) const noexcept {
    return places ? places + row : nullptr;
  }

  /// True when `count` rows from `row` on stand on consecutive positions.
  [[nodiscard]] bool is_run(index_t row, index_t count) const noexcept {
    if (!each) return row >= split || row + count <= split;
    for (index_t n = 1; n < count; ++n)
      if (each[row + n] != each[row] + n) return false;
    return true;
  }
};

/// Key rows [begin, end) on consecutive positions.
struct key_run {
  index_t begin = 0, end = 0;
  position first = 0;  ///< position of row `begin`
};

/// The key rows that one query row sees, as far as rows and order decide: [base) under mask and window, [open)
/// whatever the mask.
struct row_bounds {
  row_range base{}, open{};
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
  const float* values = nullptr;  ///< times score_unit already
  index_t stride = 0;
  position first = 0, last = 0;
};

/// What an encoding could not be lowered to: calls back into it, element by element or row by row.
struct encoding_callbacks {
  const void* encoding = nullptr;
  void (*rotate)(const void*, float* head, index_t channels, position, const axis_positions*,
                 rotation_side) = nullptr;
  float (*bias)(const void*, index_t head, position query, position key) = nullptr;
  void (*relative_key)(const void*, index_t head, position offset, float* row, index_t channels) = nullptr;
  void (*relative_value)(const void*, index_t head, position offset, float* row, index_t channels) = nullptr;
  double (*scale)(const void*, index_t head, position query) = nullptr;
};

/// Scores carry a factor ½·log2 e: exponentials are to base 2, and the half keeps every finite bias of float finite.
inline constexpr double score_unit = 0.5 * 1.4426950408889634;

/// One sequence's attention. Everything is validated before.
struct attention_problem {
  tensor q;
  cache_tensor k, v;
  output_tensor out;
  float* log_sum_exp = nullptr;
  index_t lse_token_stride = 0, lse_head_stride = 0;

  index_t query_tokens = 0, key_tokens = 0;
  index_t heads = 1, kv_heads = 1, group = 1;
  index_t head_dim = 0, value_dim = 0;
  /// The heads of a token lie side by side in k and v. Known before the tensors are: tasks are cut by it.
  bool token_major = true;
  double scale = 1, softcap = 0;
  const double* head_scales = nullptr;  ///< in place of scale
  const double* sinks = nullptr;

  row_range valid_queries{}, valid_keys{};
  row_positions queries{}, keys{};
  /// The valid keys as runs of consecutive positions; null where they are scattered, and stand one by one.
  const key_run* runs = nullptr;
  index_t run_count = 0;

  position farthest_behind = no_limit, farthest_ahead = no_limit;  ///< mask by position and window
  position window_behind = no_limit, window_ahead = no_limit;      ///< the window alone, for open rows
  position chunk = 0;                  ///< chunks of so many positions see themselves only; 0 for none
  const row_bounds* bounds = nullptr;  ///< of each query row; null where rows decide nothing
  const visibility_parts* elements =
      nullptr;  ///< tree, dense mask and bias, function; null where there are none

  const rotation* rotary = nullptr;  ///< null where nothing rotates or callbacks.rotate does it
  bool keys_are_rotated = false;     ///< k holds rotated keys; only q rotates
  /// R(j0 + t) = R(j0)·R(t) for all tokens here, so that kernels may split positions as they like.
  bool splits_positions = false;
  distance_bias bias{};
  encoding_callbacks callbacks{};

  fused::arithmetic arithmetic = fused::arithmetic::automatic;  ///< as the call asks
  fused::matrix_unit unit = fused::matrix_unit::automatic;

  static constexpr position no_limit = position{1} << 62;

  /// A distance cut to ±2^62, so that a limit can be added to it.
  [[nodiscard]] static constexpr position within_limits(position distance) noexcept {
    return distance < -no_limit ? -no_limit : distance < no_limit ? distance : no_limit;
  }

  [[nodiscard]] double scale_of(index_t head) const noexcept {
    return head_scales ? head_scales[head] : scale;
  }

  /// Mask, window and chunk by position.
  [[nodiscard]] bool sees_position(position query, position key) const noexcept {
    const position behind = query - key;
    return (farthest_behind == no_limit || behind <= farthest_behind) &&
           (farthest_ahead == no_limit || -behind <= farthest_ahead) &&
           (chunk == 0 || chunk_begin(query, chunk) == chunk_begin(key, chunk));
  }
  [[nodiscard]] bool sees_window(position query, position key) const noexcept {
    const position behind = query - key;
    return (window_behind == no_limit || behind <= window_behind) &&
           (window_ahead == no_limit || -behind <= window_ahead);
  }
  /// All but `elements`.
  [[nodiscard]] bool sees(index_t query_row, index_t key_row) const noexcept {
    const position query = queries[query_row], key = keys[key_row];
    if (!bounds) return sees_position(query, key);
    const row_bounds& b = bounds[query_row];
    if (key_row >= b.open.begin && key_row < b.open.end && sees_window(query, key)) return true;
    return key_row >= b.base.begin && key_row < b.base.end && sees_position(query, key);
  }
  /// True where values rotate like keys and outputs rotate back.
  [[nodiscard]] bool rotates_values() const noexcept { return rotary && rotary->rotates_values; }
  /// True where some score has to be looked at alone.
  [[nodiscard]] bool has_elements() const noexcept {
    return elements != nullptr || callbacks.bias != nullptr;
  }
};

/// How a problem is cut into tasks; a function of its shape alone, so that results do not depend on who runs
/// them.
struct task_plan {
  bool decode = false;
  bool stacked = false;  ///< the heads of a KV head side by side, as columns of a product
  index_t rows = 0;      ///< query rows of a tile, of a task (decode), columns of a task (stacked)
  index_t heads_per_task = 1;
  index_t head_chunks = 1;    ///< tasks the heads of one KV head are spread over
  index_t tiles = 0;          ///< query tiles (prefill) or key splits (decode, stacked)
  index_t split = 0;          ///< keys of a split (decode, stacked)
  row_range keys{};           ///< rows that some query may see (decode, stacked)
  index_t tasks = 0;          ///< of the main phase
  index_t merges = 0;         ///< tasks of the merging phase, 0 when nothing is split
  index_t table_floats = 0;   ///< the table of R(t), at the start of what tasks share
  index_t shared_floats = 0;  ///< scratch shared by the tasks of this problem
  index_t worker_floats = 0;  ///< scratch of each worker
  fused::matrix_unit unit = fused::matrix_unit::none;  ///< what forms the products
  index_t pieces = 0;                                  ///< of each number, where a matrix unit does
};

/// The entry points of one instruction set.
struct kernel_table {
  const char* name;
  task_plan (*plan)(const attention_problem&);
  void (*prepare)(const attention_problem&, const task_plan&, float* shared);
  void (*run)(const attention_problem&, const task_plan&, float* shared, float* scratch, index_t task);
  void (*merge)(const attention_problem&, const task_plan&, float* shared, float* scratch, index_t task);
  /// The same for the gradient of a call; its run and merge take a backward_problem (backward_problem.hpp).
  kernel_table (*backward)();
  bool (*has_unit)(fused::matrix_unit) = nullptr;
};

}  // namespace detail::fused_problem
}  // namespace posenc::inline v0_2
