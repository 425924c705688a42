// SPDX-License-Identifier: MIT
/// \file
/// What the tests of the fused face share: numbers, an executor, a distance.
#pragma once

#include <random>
#include <thread>
#include <vector>

#include <posenc/posenc.hpp>

namespace fused_calls {

using posenc::index_t;
using posenc::row_major_matrix;

template <class S>
[[nodiscard]] row_major_matrix<S> random_matrix(index_t rows, index_t cols, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  row_major_matrix<S> result(rows, cols);
  for (index_t r = 0; r < rows; ++r)
    for (index_t c = 0; c < cols; ++c) result(r, c) = static_cast<S>(normal(generator));
  return result;
}

template <class A, class B>
[[nodiscard]] double relative_error(const A& fused, const B& reference) {
  const Eigen::MatrixXd a = fused.template cast<double>(), b = reference.template cast<double>();
  return (a - b).norm() / b.norm();
}

/// Hands every task to a thread of its own number, in reverse order: as different from serial as can be.
struct backward_executor {
  index_t count;
  [[nodiscard]] index_t workers() const { return count; }
  template <class Body>
  void run(index_t tasks, const Body& body) const {
    std::vector<std::thread> threads;
    for (index_t worker = 0; worker < count; ++worker)
      threads.emplace_back([&body, worker, tasks, this] {
        for (index_t task = tasks - 1 - worker; task >= 0; task -= count) body(task, worker);
      });
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace fused_calls
