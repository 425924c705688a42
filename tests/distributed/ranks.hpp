// SPDX-License-Identifier: MIT
/// \file
/// What tests of several ranks share: the rows of this rank, and the whole again from all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <mpi.h>

#include <gtest/gtest.h>

#include <posenc/distributed/ring.hpp>
#include <posenc/posenc.hpp>

namespace ranks {
using posenc::index_t;
using posenc::position;

[[nodiscard]] inline int count() {
  int n = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
[[nodiscard]] inline int own() {
  int n = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &n);
  return n;
}

/// Rows of a tensor side by side.
template <class S>
struct rows {
  std::vector<S> memory;
  posenc::heads_view<S> view;

  rows(index_t tokens, index_t heads, index_t head_dim)
      : memory(static_cast<std::size_t>(tokens * heads * head_dim)),
        view(posenc::token_major(memory.data(), tokens, heads, head_dim)) {}
  rows(const rows&) = delete;
  rows& operator=(const rows&) = delete;
};

/// The rows of a whole tensor that a split gives to a rank.
template <class S>
class part_of : public rows<std::remove_const_t<S>> {
 public:
  part_of(const posenc::heads_view<S>& whole, const posenc::mpi::split& split, index_t rank)
      : rows<std::remove_const_t<S>>(split.tokens_of(rank), whole.heads, whole.head_dim) {
    index_t local = 0;
    for (const index_t row : split.rows(rank)) {
      for (index_t h = 0; h < whole.heads; ++h)
        std::copy_n(whole(row, h).begin(), whole.head_dim, this->view(local, h).begin());
      ++local;
    }
  }
};

/// Every rank's rows put where they belong in the whole, on every rank.
template <class S>
void gather(const rows<S>& own_rows, const posenc::mpi::split& split, const posenc::heads_view<S>& whole) {
  for (index_t rank = 0; rank < split.ranks(); ++rank) {
    std::vector<S> memory = own_rows.memory;
    memory.resize(static_cast<std::size_t>(split.tokens_of(rank) * whole.heads * whole.head_dim));
    MPI_Bcast(memory.data(), static_cast<int>(memory.size() * sizeof(S)), MPI_BYTE, static_cast<int>(rank),
              MPI_COMM_WORLD);
    const S* from = memory.data();
    for (const index_t row : split.rows(rank))
      for (index_t h = 0; h < whole.heads; ++h, from += whole.head_dim)
        std::copy_n(from, whole.head_dim, whole(row, h).begin());
  }
}

/// Splits of different kinds, one for each number.
[[nodiscard]] inline posenc::mpi::split some_split(index_t tokens, unsigned number) {
  using posenc::mpi::split_kind;
  switch (number % 4) {
    case 0:
      return {tokens, count(), split_kind::zigzag};
    case 1:
      return {tokens, count(), split_kind::contiguous};
    case 2:
      return {tokens, count(), split_kind::striped, 1 + static_cast<index_t>(number / 4 % 40)};
    default: {  // everything with the last rank but two rows
      posenc::mpi::split uneven(0, count());
      uneven.append(0, (std::min)(tokens, index_t{2}));
      uneven.append(count() - 1, tokens - (std::min)(tokens, index_t{2}));
      return uneven;
    }
  }
}

/// What f throws, or an empty string.
template <class F>
[[nodiscard]] std::string sentence_of(const F& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}
/// Expects the same sentence on every rank and gives it.
[[nodiscard]] inline std::string same_everywhere(const std::string& sentence) {
  char first[512] = {};
  std::copy_n(sentence.data(), (std::min)(sentence.size(), sizeof first - 1), first);
  MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
  EXPECT_EQ(sentence, first);
  return sentence;
}

}  // namespace ranks
