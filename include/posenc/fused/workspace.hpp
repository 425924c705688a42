// SPDX-License-Identifier: MIT
/// \file
/// The memory a fused attention call works in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include <posenc/errors.hpp>

namespace posenc::inline v0_2::fused {

/// Scratch memory that calls may share one after another. It grows to what the largest call needs and is then
/// allocated no more; over the caller's own bytes it never allocates, and a call that needs more is refused.
/// Tiles take the same memory whatever the length of the sequences; bias diagonals of user encodings take
/// O(queries + keys) floats per head, masks by row 64 bytes per query. A plan that borrows a workspace keeps what it
/// prepared there: no other call may use it meanwhile.
class workspace {
 public:
  workspace() = default;

  /// Works in `memory`, which stays the caller's. fused::workspace_bytes() says how much a call needs.
  explicit workspace(std::span<std::byte> memory) noexcept : borrowed_(memory), is_borrowed_(true) {}

  /// `bytes` of memory on a cache line, the first `keep` of which are what they were, as far as there were so many.
  /// \throws std::invalid_argument when borrowed memory is too small.
  [[nodiscard]] std::byte* reserve(std::size_t bytes, std::size_t keep = 0) {
    const std::size_t needed = bytes + line;
    if (is_borrowed_) {
      posenc::detail::require(borrowed_.size() >= needed, "fused attention needs a workspace of ", needed,
                              " bytes, got ", borrowed_.size());
      return on_line(borrowed_.data());
    }
    if (size_ < needed) {
      // By half as much again, so that a batch that is planned sequence by sequence copies what it has a few times.
      const std::size_t size = (std::max)(needed, size_ + size_ / 2);
      std::unique_ptr<std::byte[]> larger(
          new std::byte[size]);  // left as it is: what is not used costs nothing
      const std::size_t had =
          owned_ ? size_ - static_cast<std::size_t>(on_line(owned_.get()) - owned_.get()) : 0;
      if (keep > 0 && had > 0)
        std::memcpy(on_line(larger.get()), on_line(owned_.get()), (std::min)(keep, had));
      owned_ = std::move(larger);
      size_ = size;
    }
    return on_line(owned_.get());
  }

  /// True over memory of the caller's.
  [[nodiscard]] bool is_borrowed() const noexcept { return is_borrowed_; }
  /// Memory of the caller's, if it is.
  [[nodiscard]] std::span<const std::byte> borrowed() const noexcept { return borrowed_; }

  static constexpr std::size_t line = 64;  ///< bytes of a line of the cache; scratch begins on one

 private:
  [[nodiscard]] static std::byte* on_line(std::byte* begin) noexcept {
    const auto past_line = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(begin) % line);
    return begin + (past_line == 0 ? 0 : line - past_line);
  }

  std::span<std::byte> borrowed_{};
  std::unique_ptr<std::byte[]> owned_{};
  std::size_t size_ = 0;
  bool is_borrowed_ = false;
};

}  // namespace posenc::inline v0_2::fused
