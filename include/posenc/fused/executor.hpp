// SPDX-License-Identifier: MIT
/// \file
/// Who runs the tasks of a fused attention problem. Work is cut by the shape of the problem alone, so the bits of a
/// result depend neither on the executor nor on its number of workers.
#pragma once

#include <concepts>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <posenc/positions.hpp>

namespace posenc::inline v0_2::fused {

namespace detail {
struct any_task {
  void operator()(index_t task, index_t worker) const noexcept;
};
}  // namespace detail

/// Something that can run tasks: `workers()` is how many may run at the same time, `run(tasks, body)` callbacks
/// body(task, worker) once for each task in 0 … tasks−1 and returns when all are done. worker lies in
/// 0 … workers()−1, and no two callbacks that overlap in time share one. examples/own_thread_pool.cpp adapts a
/// thread pool.
template <class X>
concept executor = requires(const X& x, index_t tasks, detail::any_task body) {
  { x.workers() } -> std::convertible_to<index_t>;
  x.run(tasks, body);
};

/// Runs every task in the calling thread.
struct serial_executor {
  [[nodiscard]] index_t workers() const noexcept { return 1; }

  template <class Body>
  void run(index_t tasks, const Body& body) const {
    for (index_t task = 0; task < tasks; ++task) body(task, index_t{0});
  }
};

// Code that is compiled with OpenMP and code that is not may meet in one program: their executors are two
// types.
#if defined(_OPENMP)
inline namespace with_openmp {
#else
inline namespace without_openmp {
#endif

/// Runs tasks on OpenMP's threads; compiled without OpenMP, in the calling thread.
class openmp_executor {
 public:
  /// \param threads how many; OpenMP's own choice when 0
  explicit openmp_executor(int threads = 0) noexcept : threads_(threads) {}

  [[nodiscard]] index_t workers() const noexcept {
#if defined(_OPENMP)
    return threads_ > 0 ? threads_ : omp_get_max_threads();
#else
    return 1;
#endif
  }

  template <class Body>
  void run(index_t tasks, const Body& body) const {
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast <int>(workers()))
    for (index_t task = 0; task < tasks; ++task) body(task, static_cast<index_t>(omp_get_thread_num()));
#else
    serial_executor{}.run(tasks, body);
#endif
  }

 private:
  [[maybe_unused]] int threads_;
};

}  // inline namespace

}  // namespace posenc::inline v0_2::fused
