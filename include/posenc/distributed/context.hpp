// SPDX-License-Identifier: MIT
/// \file
/// Who takes part in calls over several ranks, and which rows of the sequence each has.
#pragma once

#include <string>
#include <utility>

#include <mpi.h>

#include <posenc/distributed/split.hpp>
#include <posenc/errors.hpp>

namespace posenc::inline v0_2 {
namespace detail::distributed {

/// \throws std::runtime_error with MPI's own words
inline void check(int code, const char* function) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
  raise<std::runtime_error>(
      sentence_of("mpi: ", function, " failed: ", std::string_view(words, static_cast<std::size_t>(length))));
}

}  // namespace detail::distributed

namespace mpi {

/// A group of ranks with a communicator of its own and the split of a sequence. Making one is a collective call; so is
/// the end of one, as of every MPI communicator, and MPI must not be finalised before it. Calls with it are made by all
/// ranks in the same order, by the thread that initialised MPI unless that is MPI_THREAD_SERIALIZED or more.
///
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     posenc::mpi::context ring(MPI_COMM_WORLD, tokens);             // zigzag
///     // q, k, v and out hold the rows ring.keys().rows(ring.rank())
class context {
 public:
  /// The same split for queries and keys.
  /// \throws std::invalid_argument when MPI runs without MPI_THREAD_FUNNELED, or tokens < 0
  context(MPI_Comm of, index_t tokens, split_kind kind = split_kind::zigzag, index_t stripe = usual_stripe)
      : context(of, split(tokens, ranks_of(of), kind, stripe)) {}
  /// The same rows of queries and of keys.
  context(MPI_Comm of, const split& rows) : context(of, rows, rows) {}
  /// Queries and keys divided each in a way of its own: a chunk of queries over a longer cache.
  /// \throws std::invalid_argument when a split is not for so many ranks
  context(MPI_Comm of, split queries, split keys) : queries_(std::move(queries)), keys_(std::move(keys)) {
    using posenc::detail::distributed::check;
    ranks_ = ranks_of(of);
    posenc::detail::require(queries_.ranks() == ranks_ && keys_.ranks() == ranks_, "mpi: splits over ",
                            queries_.ranks(), " and ", keys_.ranks(), " ranks for a communicator of ",
                            ranks_);
    check(MPI_Comm_dup(of, &communicator_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    int rank = 0;
    MPI_Comm_rank(communicator_, &rank);
    rank_ = rank;
    MPI_Type_contiguous(64, MPI_BYTE, &line_);
    check(MPI_Type_commit(&line_), "MPI_Type_commit");
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;
  ~context() {
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (is_over || communicator_ == MPI_COMM_NULL) return;
    MPI_Type_free(&line_);
    MPI_Comm_free(&communicator_);
  }

  /// This process's number in the communicator.
  [[nodiscard]] index_t rank() const noexcept { return rank_; }
  /// Processes of the communicator.
  [[nodiscard]] index_t ranks() const noexcept { return ranks_; }
  /// Which rows of q and of the output each rank has.
  [[nodiscard]] const split& queries() const noexcept { return queries_; }
  /// Which rows of k and v each rank has.
  [[nodiscard]] const split& keys() const noexcept { return keys_; }
  /// The keys of a cache that has grown (split::append), of the same ranks; on every rank alike.
  /// \throws std::invalid_argument when it is not for so many ranks
  void set_keys(split keys) {
    posenc::detail::require(keys.ranks() == ranks_, "mpi: a split over ", keys.ranks(),
                            " ranks for a communicator of ", ranks_);
    keys_ = std::move(keys);
  }
  /// The duplicate that calls send by.
  [[nodiscard]] MPI_Comm communicator() const noexcept { return communicator_; }
  /// 64 bytes, of which messages are made: a count of bytes may not fit an int.
  [[nodiscard]] MPI_Datatype line() const noexcept { return line_; }

 private:
  [[nodiscard]] static index_t ranks_of(MPI_Comm of) {
    int is_there = 0, is_over = 0, level = 0, ranks = 0;
    MPI_Initialized(&is_there), MPI_Finalized(&is_over);
    posenc::detail::require(is_there != 0 && is_over == 0, "mpi: MPI ",
                            is_over != 0 ? "is finalised" : "is not initialised");
    MPI_Query_thread(&level);
    posenc::detail::require(level >= MPI_THREAD_FUNNELED,
                            "mpi: MPI runs with MPI_THREAD_SINGLE: initialise it by MPI_Init_thread with "
                            "MPI_THREAD_FUNNELED");
    posenc::detail::distributed::check(MPI_Comm_size(of, &ranks), "MPI_Comm_size");
    return ranks;
  }

  split queries_, keys_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Datatype line_ = MPI_DATATYPE_NULL;
  index_t rank_ = 0, ranks_ = 1;
};

}  // namespace mpi
}  // namespace posenc::inline v0_2
