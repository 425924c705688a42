// SPDX-License-Identifier: MIT
/// \file
/// Who runs the tasks of a fused attention call. Work is cut by the shape of the call alone, so the bits of a
/// result depend neither on the executor nor on its number of workers.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2::fused {

/// A reference to the function that runs one task; lives as long as the run.
class task_ref {
 public:
  /// Runs one task of a body.
  using function = void (*)(const void* of, index_t task, index_t worker) noexcept;
  /// `of` must outlive the reference.
  task_ref(function run, const void* of) noexcept : run_(run), of_(of) {}
  /// Runs one task.
  void operator()(index_t task, index_t worker) const noexcept { run_(of_, task, worker); }

 private:
  function run_;
  const void* of_;
};

/// Something that can run tasks: `workers()` is how many may run at the same time, `run(tasks, body)` calls
/// body(task, worker) once for each task in 0 … tasks−1 and returns when all are done. worker lies in
/// 0 … workers()−1, and no two tasks that overlap in time share one. examples/own_thread_pool.cpp adapts a
/// thread pool.
template <class X>
concept executor = requires(const X& x, index_t tasks, task_ref body) {
  { x.workers() } -> std::convertible_to<index_t>;
  x.run(tasks, body);
};

/// Runs every task in the calling thread.
struct serial_executor {
  /// The calling thread alone.
  [[nodiscard]] index_t workers() const noexcept { return 1; }

  /// Runs all tasks in the calling thread.
  template <class Body>
  void run(index_t tasks, const Body& body) const {
    for (index_t task = 0; task < tasks; ++task) body(task, index_t{0});
  }
};

/// Any executor. One that is small and trivially copyable (an adapter that points to a pool) is copied; another is
/// referred to and has to outlive this.
class executor_ref {
 public:
  /// Runs every task in the calling thread.
  executor_ref() noexcept : executor_ref(serial_executor{}) {}

  /// Refers to an executor, which must outlive the reference.
  // NOLINTNEXTLINE(google-explicit-constructor): an executor is one
  template <executor X>
  requires(!std::same_as<X, executor_ref>) executor_ref(const X& x)
  noexcept
      : workers_([](const void* of) { return static_cast<index_t>(static_cast<const X*>(of)->workers()); }),
        run_([](const void* of, index_t tasks, const task_ref& body) {
          static_cast<const X*>(of)->run(tasks, body);
        }) {
    if constexpr (is_copied<X>)
      ::new (static_cast<void*>(copy_)) X(x);
    else
      of_ = std::addressof(x);
  }
  template <executor X>
  requires(!std::is_lvalue_reference_v<X> && !std::same_as<std::remove_cv_t<X>, executor_ref> &&
           !(std::is_trivially_copyable_v<X> && sizeof(X) <= 4 * sizeof(void*))) executor_ref(X&&)
  = delete;  // would dangle

  /// Those of the executor.
  [[nodiscard]] index_t workers() const { return workers_(object()); }
  /// Runs all tasks, on the executor.
  void run(index_t tasks, const task_ref& body) const { run_(object(), tasks, body); }

 private:
  template <class X>
  static constexpr bool is_copied = std::is_trivially_copyable_v<X> && sizeof(X) <= 4 * sizeof(void*);

  [[nodiscard]] const void* object() const noexcept { return of_ ? of_ : static_cast<const void*>(copy_); }

  const void* of_ = nullptr;
  alignas(void*) std::byte copy_[4 * sizeof(void*)] = {};
  index_t (*workers_)(const void*);
  void (*run_)(const void*, index_t tasks, const task_ref&);
};

/// Threads that wait for work without spinning. The calling thread takes tasks itself and never waits for a thread that
/// has not begun one, so a machine that is busy with something else costs what it takes and no more. One run at a
/// time; others wait.
///
///     posenc::fused::thread_pool pool(4);
///     posenc::fused::attention(q, k, v, rope, options, {.executor = pool});
class thread_pool {
  struct state;

 public:
  /// \param workers how many run tasks, the calling thread included; the machine's own number when 0
  /// \throws std::system_error when the machine starts no more threads
  explicit thread_pool(index_t workers = 0) : thread_pool(std::make_unique<state>()) {
    // The pool is made: where a thread cannot be started, the destructor ends those that were.
    if (workers <= 0)
      workers = (std::max)(index_t{1}, static_cast<index_t>(std::thread::hardware_concurrency()));
    for (index_t worker = 1; worker < workers; ++worker)
      threads_.emplace_back([s = state_.get(), worker] { s->serve(worker); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stops = true;
    }
    state_->wake.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Threads of the pool and the caller.
  [[nodiscard]] index_t workers() const noexcept { return static_cast<index_t>(threads_.size()) + 1; }

  /// Runs all tasks; returns when the last one has ended.
  template <class Body>
  void run(index_t tasks, const Body& body) const {
    if (tasks <= 1 || threads_.empty()) return serial_executor{}.run(tasks, body);
    state_->run(tasks,
                task_ref([](const void* of, index_t task,
                            index_t worker) noexcept { (*static_cast<const Body*>(of))(task, worker); },
                         &body));
  }

 private:
  explicit thread_pool(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {}

  struct state {
    std::mutex mutex, callers;
    std::condition_variable wake, done;
    const task_ref* body = nullptr;
    std::atomic<index_t> next = 0;
    index_t tasks = 0, busy = 0;
    std::size_t round = 0;
    bool stops = false;

    void take(const task_ref& of, index_t count, index_t worker) noexcept {
      for (index_t task = next++; task < count; task = next++) of(task, worker);
    }
    void run(index_t count, const task_ref& of) {
      const std::lock_guard one_caller(callers);
      {
        const std::lock_guard lock(mutex);
        body = &of, tasks = count, next = 0, ++round;
      }
      wake.notify_all();
      take(of, count, 0);
      std::unique_lock lock(mutex);
      body = nullptr;  // whoever wakes up now has nothing to do
      done.wait(lock, [this] { return busy == 0; });
    }
    void serve(index_t worker) {
      std::size_t seen = 0;
      std::unique_lock lock(mutex);
      while (true) {
        wake.wait(lock, [&] { return stops || (body != nullptr && round != seen); });
        if (stops) return;
        seen = round;
        const task_ref of = *body;
        const index_t count = tasks;
        ++busy;
        lock.unlock();
        take(of, count, worker);
        lock.lock();
        if (--busy == 0) done.notify_one();
      }
    }
  };

  std::unique_ptr<state> state_;
  std::vector<std::thread> threads_;
};

// Code that is compiled with OpenMP and code that is not may meet in one program: their executors are two
// types.
#if defined(_OPENMP)
inline namespace with_openmp {
#else
inline namespace without_openmp {
#endif

/// Runs tasks on OpenMP's threads; compiled without OpenMP, in the calling thread. GCC's OpenMP spins while it waits: on
/// a machine whose cores are busy with something else, set OMP_WAIT_POLICY=passive or take a thread_pool.
class openmp_executor {
 public:
  /// \param threads how many; OpenMP's own choice when 0
  explicit openmp_executor(int threads = 0) noexcept : threads_(threads) {}

  /// What OpenMP would use.
  [[nodiscard]] index_t workers() const noexcept {
#if defined(_OPENMP)
    return threads_ > 0 ? threads_ : omp_get_max_threads();
#else
    return 1;
#endif
  }

  /// Runs all tasks; returns when the last one has ended.
  template <class Body>
  void run(index_t tasks, const Body& body) const {
#if defined(_OPENMP)
    const auto threads = static_cast<int>((std::min)(workers(), tasks));
    if (threads <= 1) return serial_executor{}.run(tasks, body);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (index_t task = 0; task < tasks; ++task) body(task, static_cast<index_t>(omp_get_thread_num()));
#else
    serial_executor{}.run(tasks, body);
#endif
  }

 private:
  [[maybe_unused]] int threads_;
};

}  // inline namespace

/// How accurate the products of prefill and of stacked decode have to be. A permission: a matrix unit (matrix_unit) takes
/// it where it is faster for that, and where there is none, products are float32, which is more accurate. Sums and
/// everything between the products are float in all of them.
///
/// A piece of a number is the nearest bfloat16 of what the pieces before it leave: x = h1 + h2 + h3.
enum class arithmetic : unsigned char {
  automatic,  ///< bfloat16 where q, k, v and the output all are stored so; bfloat16x2 where all are of 16 bits; else float32
  float32,    ///< products of floats: 1e-6 of the output
  bfloat16,   ///< one piece of each number, one product: about twice the rounding of a bfloat16 output
  bfloat16x2,  ///< two pieces, three products: 1e-5 of the output
  bfloat16x3,  ///< three pieces, six products: 1e-6 of the output
};

/// What multiplies pieces of bfloat16. `automatic` chooses by the processor alone, never by a timing, so that the same
/// call gives the same bits tomorrow. The others are for tests and comparisons; one that the machine lacks is refused.
enum class matrix_unit : unsigned char {
  automatic,    ///< the fastest that the processor has, where it pays
  none,         ///< products of floats
  emulated,     ///< to the bit what amx gives, on every machine and slowly
  avx512_bf16,  ///< vdpbf16ps: pays on AMD's Zen 4 and above, for one piece
  amx,          ///< tiles of 16 × 16 (Intel Xeons from Sapphire Rapids on, under Linux)
};

class workspace;

/// How a fused call is executed.
struct execution {
  executor_ref executor{};      ///< who runs the tasks
  workspace* memory = nullptr;  ///< scratch of the caller's; the call makes its own when null
  fused::arithmetic arithmetic = arithmetic::automatic;  ///< what products may be formed in
  matrix_unit unit = matrix_unit::automatic;             ///< what forms them; by name for tests
};

}  // namespace posenc::inline v0_2::fused
