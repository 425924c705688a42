// SPDX-License-Identifier: MIT
/// \file
/// Property check: derivatives through the encoding.
#pragma once

#include <cmath>
#include <cstddef>

#include <Eigen/Core>
#include <unsupported/Eigen/AutoDiff>

#include <posenc/testing/world.hpp>

namespace posenc::inline v0_2 {
namespace testing {

/// d(Σ c·hidden)/dx for every channel of every token, by automatic differentiation in double and by central
/// differences in long double, of the layer with this encoding. The encoding must take both scalars.
/// The error is relative to the largest derivative; differences alone are good to about 1e-10.
template <class E>
[[nodiscard]] check_result gradient(const E& encoding, const setup& s = {}) {
  using dual = Eigen::AutoDiffScalar<Eigen::Matrix<double, 1, 1>>;
  const detail::world<double> world(s);
  detail::random_numbers random(s.seed + 1);
  const row_major_matrix<double> weights = random.matrix<double>(s.tokens, s.heads * s.head_dim);

  const auto layer_of = [&]<class T>(T) {
    return self_attention<T>{world.layer.query.template cast<T>(), world.layer.key.template cast<T>(),
                             world.layer.value.template cast<T>()};
  };
  const auto loss = [&]<class T>(const self_attention<T>& layer, const row_major_matrix<T>& x,
                                 position start) {
    attention_options options = world.options;
    options.key_positions = positions::from(start);
    const row_major_matrix<T> hidden = layer(x, encoding, options);
    T total(0);
    for (index_t i = 0; i < hidden.rows(); ++i)
      for (index_t c = 0; c < hidden.cols(); ++c) total += T(hidden(i, c) * static_cast<T>(weights(i, c)));
    return total;
  };
  const self_attention<dual> dual_layer = layer_of(dual{});
  const self_attention<long double> wide_layer = layer_of(0.0L);

  detail::worst_case worst;
  for (const position start : s.starts) {
    row_major_matrix<double> by_rule(world.x.rows(), world.x.cols()), by_difference = by_rule;
    for (index_t i = 0; i < world.x.rows(); ++i)
      for (index_t c = 0; c < world.x.cols(); ++c) {
        row_major_matrix<dual> x = world.x.template cast<dual>();
        x(i, c).derivatives()[0] = 1;
        by_rule(i, c) = loss(dual_layer, x, start).derivatives()[0];

        constexpr long double step = 0x1p-17L;
        row_major_matrix<long double> wide = world.x.template cast<long double>();
        const long double middle = wide(i, c);
        wide(i, c) = middle + step;
        const long double above = loss(wide_layer, wide, start);
        wide(i, c) = middle - step;
        const long double below = loss(wide_layer, wide, start);
        by_difference(i, c) = static_cast<double>((above - below) / (2 * step));
      }
    const double largest = by_difference.cwiseAbs().maxCoeff();
    for (index_t i = 0; i < world.x.rows(); ++i)
      for (index_t c = 0; c < world.x.cols(); ++c)
        worst.see(std::abs(by_rule(i, c) - by_difference(i, c)) / largest, "d/dx of channel ", c,
                  " of token ", i, ", positions from ", start);
  }
  return worst.result();
}

}  // namespace testing
}  // namespace posenc::inline v0_2
