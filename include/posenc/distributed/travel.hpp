// SPDX-License-Identifier: MIT
/// \file
/// What goes round the ring: a chunk of bytes that each rank hands to the next while it works on it, in two buffers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

#include <posenc/distributed/context.hpp>
#include <posenc/distributed/wire.hpp>
#include <posenc/fused/executor.hpp>

namespace posenc::inline v0_2::detail::distributed {

/// The rank whose chunk `rank` holds at a step: its own first, then those of the ranks before it, one by one.
[[nodiscard]] constexpr index_t owner_at(index_t rank, index_t step, index_t ranks) noexcept {
  return (rank - step % ranks + ranks) % ranks;
}

/// Chunks of different sizes on their way round. Two buffers, each as large as the largest chunk.
class travelling {
 public:
  /// \param bytes of each rank's chunk, whole lines
  travelling(const mpi::context& ring, std::vector<std::size_t> bytes, int tag)
      : ring_(ring), bytes_(std::move(bytes)), tag_(tag) {
    const std::size_t largest = *std::max_element(bytes_.begin(), bytes_.end());
    for (auto& buffer : buffers_) buffer.reset(new std::byte[largest]);
    requests_.fill(MPI_REQUEST_NULL);
  }
  travelling(const travelling&) = delete;
  travelling& operator=(const travelling&) = delete;
  ~travelling() {
    // Where MPI has failed: the buffers must outlive what was begun.
    for (MPI_Request& request : requests_)
      if (request != MPI_REQUEST_NULL) MPI_Cancel(&request), MPI_Request_free(&request);
  }

  /// The chunk that is here, to be filled before the first start.
  [[nodiscard]] std::byte* here() noexcept { return buffers_[now_].get(); }

  /// Begins to send the chunk of `owner`, which is here, to the next rank and to take that of the rank before.
  void start(index_t owner) {
    const index_t ranks = ring_.ranks(), coming = owner_at(owner, 1, ranks);
    const auto begin = [&](index_t of, auto&& call, std::byte* memory, index_t peer, MPI_Request& request) {
      const std::size_t bytes = bytes_[static_cast<std::size_t>(of)];
      if (bytes > 0)
        call(memory, static_cast<int>(bytes / line_bytes), ring_.line(), static_cast<int>(peer), tag_,
             ring_.communicator(), &request);
    };
    begin(
        coming, [](auto... a) { check(MPI_Irecv(a...), "MPI_Irecv"); }, buffers_[1 - now_].get(),
        owner_at(ring_.rank(), 1, ranks), requests_[0]);
    begin(
        owner, [](auto... a) { check(MPI_Isend(a...), "MPI_Isend"); }, buffers_[now_].get(),
        (ring_.rank() + 1) % ranks, requests_[1]);
  }

  /// Lets MPI go on with what was begun. What fails is reported by finish().
  void poke() noexcept {
    int done = 0;
    if (failed_ == MPI_SUCCESS) failed_ = MPI_Testall(2, requests_.data(), &done, MPI_STATUSES_IGNORE);
  }

  /// Waits for what was begun; the chunk of the rank before is here then.
  void finish() {
    check(failed_, "MPI_Testall");
    check(MPI_Waitall(2, requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    now_ = 1 - now_;
  }

 private:
  const mpi::context& ring_;
  std::vector<std::size_t> bytes_;
  int tag_;
  std::array<std::unique_ptr<std::byte[]>, 2> buffers_{};
  std::array<MPI_Request, 2> requests_{};
  std::size_t now_ = 0;
  int failed_ = MPI_SUCCESS;
};

/// An executor that lets MPI go on after each task that the calling thread runs: libraries move large messages only
/// while they are called.
class attentive_executor {
 public:
  attentive_executor(const fused::executor_ref& inner, travelling& chunk, travelling* other = nullptr)
      : inner_(inner), chunk_(chunk), other_(other), caller_(std::this_thread::get_id()) {}

  [[nodiscard]] index_t workers() const { return inner_.workers(); }
  template <class Body>
  void run(index_t tasks, const Body& body) const {
    struct both {
      const Body& body;
      const attentive_executor& self;
    };
    const both all{body, *this};
    inner_.run(tasks, fused::task_ref(
                          [](const void* of, index_t task, index_t worker) noexcept {
                            const auto& one = *static_cast<const both*>(of);
                            one.body(task, worker);
                            if (std::this_thread::get_id() != one.self.caller_) return;
                            one.self.chunk_.poke();
                            if (one.self.other_) one.self.other_->poke();
                          },
                          &all));
  }

 private:
  const fused::executor_ref& inner_;
  travelling& chunk_;
  travelling* other_;
  std::thread::id caller_;
};

}  // namespace posenc::inline v0_2::detail::distributed
