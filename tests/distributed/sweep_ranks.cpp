// SPDX-License-Identifier: MIT
/// \file
/// The ring gives what the reference gives for one process, over the generated cases of the fused path: every encoding,
/// mask, length, group and storage type, however the rows are divided.
#include <cstdint>

#include <gtest/gtest.h>

#include "distributed/ranks.hpp"
#include "fused/sweep.hpp"

namespace sweep_ranks {

template <class S, class K = S, class V = K, class O = S>
void sweep_over(std::uint32_t first, std::uint32_t cases) {
  sweep::for_each_case<S, K, V, O>(first, cases, [&, number = 0u](const auto& prepared) mutable {
    ++number;
    const sweep::verdict found = prepared.run_with(
        [&](const auto& q, const auto& k, const auto& v, const auto& encoding,
            const posenc::attention_options& options, const auto& out, const auto& log_sum_exp) {
          const posenc::mpi::context ring(MPI_COMM_WORLD, ranks::some_split(q.tokens, number),
                                          ranks::some_split(k.tokens, number + number / 4 % 2));
          const ranks::part_of own_q(q, ring.queries(), ring.rank());
          const ranks::part_of own_k(k, ring.keys(), ring.rank()), own_v(v, ring.keys(), ring.rank());
          ranks::rows<O> own_out(own_q.view.tokens, q.heads, v.head_dim);
          ranks::rows<float> own_lse(own_q.view.tokens, q.heads, 1);
          posenc::mpi::attention_into(own_q.view, own_k.view, own_v.view, encoding, options, own_out.view,
                                      ring, {own_lse.memory.data(), own_q.view.tokens, q.heads, q.heads, 1});
          ranks::gather(own_out, ring.queries(), out);
          ranks::gather(own_lse, ring.queries(), posenc::detail::as_rows(log_sum_exp));
        });
    EXPECT_LE(found.worst, 1) << found.problem;
    return true;
  });
}

/// Each number of ranks has cases of its own; more ranks than cores take turns, so they have fewer.
std::uint32_t first_case() { return 1000 * static_cast<std::uint32_t>(ranks::count()); }
std::uint32_t cases() { return ranks::count() > 2 ? 46 : 92; }

TEST(RingSweep, FloatEqualsTheReference) { sweep_over<float>(first_case(), cases()); }
TEST(RingSweep, NarrowTypesEqualTheReference) {
  sweep_over<float, Eigen::bfloat16, Eigen::half, float>(30'000 + first_case(), cases() / 2);
}

}  // namespace sweep_ranks
