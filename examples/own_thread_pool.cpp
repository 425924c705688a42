// SPDX-License-Identifier: MIT
/// \file
/// Fused attention on a thread pool that you have already: ten lines adapt it, here Eigen's own.
#include <atomic>
#include <cstdio>

#include <unsupported/Eigen/CXX11/ThreadPool>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

struct on_eigen_pool {
  Eigen::ThreadPool& pool;

  [[nodiscard]] posenc::index_t workers() const { return pool.NumThreads(); }

  template <class Body>
  void run(posenc::index_t tasks, const Body& body) const {
    std::atomic<posenc::index_t> next{0};
    Eigen::Barrier done(static_cast<unsigned>(workers()));
    for (posenc::index_t worker = 0; worker < workers(); ++worker)
      pool.Schedule([&, worker] {
        for (posenc::index_t task; (task = next++) < tasks;) body(task, worker);
        done.Notify();
      });
    done.Wait();
  }
};

int main() {
  const posenc::rope<float> rope{{.head_dim = 64, .pairing = posenc::pairing::half_split}};
  const posenc::attention_options options{.heads = 8, .kv_heads = 2, .mask = posenc::causal};
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(300, 512), k = Eigen::MatrixXf::Random(300, 128);
  const Eigen::MatrixXf v = Eigen::MatrixXf::Random(300, 128);

  Eigen::ThreadPool pool(3);
  const Eigen::MatrixXf serial = posenc::fused::attention(q, k, v, rope, options);
  const Eigen::MatrixXf parallel = posenc::fused::attention(q, k, v, rope, options, on_eigen_pool{pool});
  const bool same = serial == parallel;
  std::printf("%s, %d threads: %s\n", posenc::fused::target_name(), pool.NumThreads(),
              same ? "the same bits as one thread" : "different bits");
  return same ? 0 : 1;
}
