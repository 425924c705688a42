// SPDX-License-Identifier: MIT
/// \file
/// Bars of posenc::mpi (distributed/mpi.hpp), a program of its own that mpirun starts on two ranks. Times are those of the
/// slower rank, by turns. The bars are wall clock, which says nothing on a machine that does something else: the load is
/// printed beside them, and the same ratios by the processor time of the tasks alone, messages left out.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <vector>

#include <mpi.h>

#include <posenc/distributed/mpi.hpp>

#include "measure.hpp"

namespace {
using namespace bars;
using posenc::mpi::context;
using posenc::mpi::split_kind;

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Runs tasks in the calling thread and adds up the processor time that they take.
struct timed_executor {
  double* seconds;
  [[nodiscard]] index_t workers() const noexcept { return 1; }
  template <class Body>
  void run(index_t tasks, const Body& body) const {
    const double start = processor_seconds();
    for (index_t task = 0; task < tasks; ++task) body(task, index_t{0});
    *seconds += processor_seconds() - start;
  }
};

/// Of a call: wall clock, and processor time of its tasks.
struct times {
  double wall = 0, tasks = 0;
};

/// A causal call of 32/8 heads of 128 channels over `tokens`, of which this rank has its rows.
class ring_call {
 public:
  ring_call(MPI_Comm of, index_t tokens, split_kind kind)
      : ring_(of, tokens, kind),
        c_{.queries = ring_.keys().tokens_of(ring_.rank()),
           .keys = c_rows(),
           .heads = 32,
           .kv_heads = 8,
           .head_dim = 128} {}
  /// Those of the slower rank.
  times operator()() {
    MPI_Barrier(ring_.communicator());
    double tasks = 0;
    const double start = MPI_Wtime();
    posenc::mpi::attention_into(posenc::as_heads(c_.q, c_.heads), posenc::as_heads(c_.k, c_.kv_heads),
                                posenc::as_heads(c_.v, c_.kv_heads), rope_, c_.options(),
                                posenc::as_heads(c_.out, c_.heads), ring_, {},
                                {.executor = timed_executor{&tasks}, .memory = &c_.memory});
    const double own[2] = {MPI_Wtime() - start, tasks};
    double slowest[2] = {};
    MPI_Allreduce(own, slowest, 2, MPI_DOUBLE, MPI_MAX, ring_.communicator());
    return {slowest[0], slowest[1]};
  }

 private:
  [[nodiscard]] index_t c_rows() const { return ring_.keys().tokens_of(ring_.rank()); }
  context ring_;
  call<float> c_;
  posenc::rope<float> rope_ = rope_of(128);
};

double load() {
  double one = 0;
  std::ifstream("/proc/loadavg") >> one;
  return one;
}

}  // namespace

/// usage: mpirun -n 2 ring_bars [TOKENS [ROUNDS]]
int main(int argc, char** argv) {
  int level = 0, rank = 0, ranks = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const index_t tokens = argc > 1 ? std::atol(argv[1]) : 8192;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  {
    ring_call zigzag(MPI_COMM_WORLD, tokens, split_kind::zigzag),
        contiguous(MPI_COMM_WORLD, tokens, split_kind::contiguous);
    std::unique_ptr<ring_call> alone;
    if (rank == 0) alone = std::make_unique<ring_call>(MPI_COMM_SELF, tokens, split_kind::zigzag);
    std::vector<double> speed_up, balance, less_work, less_in_a_row;
    for (int n = 0; n < rounds; ++n) {
      times one = rank == 0 ? (*alone)() : times{};
      // The other rank sleeps meanwhile: a barrier of MPI's spins.
      MPI_Request request;
      int done = 0;
      MPI_Ibcast(&one, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD, &request);
      while (done == 0) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        const timespec moment{0, 2'000'000};
        if (done == 0) nanosleep(&moment, nullptr);
      }
      const times paired = zigzag(), in_a_row = contiguous();
      speed_up.push_back(one.wall / paired.wall), balance.push_back(in_a_row.wall / paired.wall);
      less_work.push_back(one.tasks / paired.tasks), less_in_a_row.push_back(in_a_row.tasks / paired.tasks);
    }
    if (rank == 0) {
      std::printf("# %s, %d ranks, %ld tokens, load %.1f\n", processor().c_str(), ranks,
                  static_cast<long>(tokens), load());
      report("mpi_two_ranks", quartiles_of(speed_up), "x one", 1.7, false);
      report("mpi_zigzag", quartiles_of(balance), "x in a row", 1.25, false);
      report("mpi_two_ranks, tasks' processor time", quartiles_of(less_work), "x one", 1.7, false);
      report("mpi_zigzag, tasks' processor time", quartiles_of(less_in_a_row), "x in a row", 1.25, false);
    }
  }
  MPI_Finalize();
  return 0;
}
