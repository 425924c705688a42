// SPDX-License-Identifier: MIT
/// \file
/// The memory a fused attention problem works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <posenc/errors.hpp>

namespace posenc::inline v0_2::fused {

/// Scratch memory that callbacks may share one after another. It grows to what the largest problem needs and is then
/// allocated no more; over the caller's own bytes it never allocates, and a problem that needs more is refused.
/// Tiles take the same memory whatever the length of the sequences; bias diagonals of user encodings take
/// O(queries + keys) floats per head.
class workspace {
 public:
  workspace() = default;

  /// Works in `memory`, which stays the caller's. fused::workspace_bytes() says how much a problem needs.
  explicit workspace(std::span<std::byte> memory) noexcept : borrowed_(memory), is_borrowed_(true) {}

  /// `bytes` of memory on a cache line; what it held before is lost.
  /// \throws std::invalid_argument when borrowed memory is too small.
  [[nodiscard]] std::byte* reserve(std::size_t bytes) {
    const std::size_t needed = bytes + line;
    if (is_borrowed_)
      posenc::detail::require(borrowed_.size() >= needed, "fused attention needs a workspace of ", needed,
                              " bytes, got ", borrowed_.size());
    else if (owned_.size() < needed)
      owned_.resize(needed);
    std::byte* const begin = is_borrowed_ ? borrowed_.data() : owned_.data();
    const auto past_line = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(begin) % line);
    return begin + (past_line == 0 ? 0 : line - past_line);
  }

  static constexpr std::size_t line = 64;

 private:
  std::span<std::byte> borrowed_{};
  std::vector<std::byte> owned_{};
  bool is_borrowed_ = false;
};

}  // namespace posenc::inline v0_2::fused
