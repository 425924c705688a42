// SPDX-License-Identifier: MIT
/// \file
/// How the rows of one long sequence are divided among ranks. Needs no MPI.
///
/// | split | rank r of P has | causal work of the ranks |
/// |---|---|---|
/// | contiguous | rows n·r/P … n·(r + 1)/P | 1 : 3 : 5 : … |
/// | zigzag | chunks r and 2P − 1 − r of 2P | equal |
/// | striped | every P-th stripe of so many rows | equal up to a stripe |
///
/// Zigzag: Zhu 2024, ring-flash-attention. Striped: Brandon et al. 2023, arXiv:2311.09431.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/masks.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

namespace mpi {

/// The splits that have a name.
enum class split_kind : unsigned char { contiguous, zigzag, striped };

/// Rows of a stripe where nothing else is said: long enough for kernels to take its keys as a run.
inline constexpr index_t usual_stripe = 64;

/// Which rows of a sequence each rank has: for each rank, ranges in ascending order. A rank's tensors hold these rows
/// one after the other.
class split {
 public:
  /// \throws std::invalid_argument when there are no ranks, tokens < 0 or stripe < 1
  split(index_t tokens, index_t ranks, split_kind kind = split_kind::zigzag, index_t stripe = usual_stripe) {
    detail::require(tokens >= 0 && ranks >= 1, "split: ", tokens, " tokens over ", ranks, " ranks");
    detail::require(stripe >= 1, "split: stripes of ", stripe, " rows");
    of_ranks_.resize(static_cast<std::size_t>(ranks));
    if (kind == split_kind::striped) {
      for (index_t begin = 0, n = 0; begin < tokens; begin += stripe, ++n)
        add(n % ranks, (std::min)(stripe, tokens - begin));
      return;
    }
    const index_t chunks = kind == split_kind::zigzag ? 2 * ranks : ranks;
    // Without the product tokens · n, which may be too large.
    const auto start = [&](index_t n) { return tokens / chunks * n + (tokens % chunks) * n / chunks; };
    for (index_t n = 0; n < chunks; ++n) add(n < ranks ? n : chunks - 1 - n, start(n + 1) - start(n));
  }

  /// Any split: of each rank the ranges that it has. Together they are rows 0 … n−1, each once.
  /// \throws std::invalid_argument when they are not
  explicit split(std::vector<std::vector<row_range>> of_ranks) : of_ranks_(std::move(of_ranks)) {
    detail::require(!of_ranks_.empty(), "split: no ranks");
    std::vector<row_range> all;
    for (const auto& pieces : of_ranks_)
      for (std::size_t n = 0; n < pieces.size(); ++n) {
        detail::require(pieces[n].begin < pieces[n].end && (n == 0 || pieces[n - 1].end <= pieces[n].begin),
                        "split: rows [", pieces[n].begin, ", ", pieces[n].end,
                        ") are no range, or not after the range before");
        all.push_back(pieces[n]);
      }
    std::sort(all.begin(), all.end(),
              [](const row_range& a, const row_range& b) { return a.begin < b.begin; });
    for (const row_range& piece : all) {
      detail::require(piece.begin == tokens_, "split: row ", (std::min)(piece.begin, tokens_),
                      piece.begin > tokens_ ? " belongs to no rank" : " belongs to two ranks");
      tokens_ = piece.end;
    }
  }

  /// Gives `count` rows after the last one to a rank: how a cache grows. \throws std::invalid_argument
  void append(index_t rank, index_t count) {
    detail::require(rank >= 0 && rank < ranks() && count >= 0, "split: ", count, " rows for rank ", rank,
                    " of ", ranks());
    add(rank, count);
  }

  /// Rows of the whole sequence.
  [[nodiscard]] index_t tokens() const noexcept { return tokens_; }
  /// Processes that it is divided among.
  [[nodiscard]] index_t ranks() const noexcept { return static_cast<index_t>(of_ranks_.size()); }
  /// The ranges of a rank.
  [[nodiscard]] std::span<const row_range> pieces(index_t rank) const noexcept {
    return of_ranks_[static_cast<std::size_t>(rank)];
  }
  /// How many rows a rank has.
  [[nodiscard]] index_t tokens_of(index_t rank) const noexcept {
    index_t sum = 0;
    for (const row_range& piece : pieces(rank)) sum += piece.end - piece.begin;
    return sum;
  }
  /// The rows of a rank, one by one: row_of[local row] is the row of the sequence.
  [[nodiscard]] std::vector<index_t> rows(index_t rank) const {
    std::vector<index_t> result;
    for (const row_range& piece : pieces(rank))
      for (index_t row = piece.begin; row < piece.end; ++row) result.push_back(row);
    return result;
  }

 private:
  void add(index_t rank, index_t count) {
    if (count == 0) return;
    auto& pieces = of_ranks_[static_cast<std::size_t>(rank)];
    if (!pieces.empty() && pieces.back().end == tokens_)
      pieces.back().end += count;
    else
      pieces.push_back({tokens_, tokens_ + count});
    tokens_ += count;
  }

  std::vector<std::vector<row_range>> of_ranks_{};
  index_t tokens_ = 0;
};

}  // namespace mpi
}  // namespace posenc::inline v0_2
