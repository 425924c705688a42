// SPDX-License-Identifier: MIT
/// \file
/// Property checks: derivatives through the encoding, and its backward.
#pragma once

#include <cmath>
#include <cstddef>

#include <Eigen/Core>
#include <unsupported/Eigen/AutoDiff>

#include <posenc/attention/backward.hpp>
#include <posenc/parameters.hpp>
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

/// The gradients that a backward gives, by every channel of every token and by the parameters of the encoding
/// (parameters.hpp), against central differences in long double of the layer with this encoding. S is the scalar of the
/// backward. Of many parameters some are checked, those that take part and are evenly spread. Relative to the largest
/// derivative of either kind; differences are good to about 1e-9.
/// \param attention,backward_by what is checked: called like reference_attention and reference_attention_backward
template <class S = double, class E, class Attention = reference_attention,
          class Backward = reference_attention_backward>
[[nodiscard]] check_result backward(const E& encoding, const setup& s = {}, const Attention& attention = {},
                                    const Backward& backward_by = {}) {
  const detail::world<S> world(s);
  detail::random_numbers random(s.seed + 1);
  const row_major_matrix<S> weights = random.matrix<S>(s.tokens, s.heads * s.head_dim);
  const self_attention<long double> wide_layer{world.layer.query.template cast<long double>(),
                                               world.layer.key.template cast<long double>(),
                                               world.layer.value.template cast<long double>()};
  constexpr double step = 0x1p-17;
  detail::worst_case worst;
  for (const position start : s.starts) {
    attention_options options = world.options;
    options.key_positions = positions::from(start);
    const auto loss = [&](const E& with, const row_major_matrix<long double>& x) {
      const row_major_matrix<long double> hidden = wide_layer(x, with, options);
      return hidden.cwiseProduct(weights.template cast<long double>()).sum();
    };
    const auto found =
        self_attention_backward(world.layer, world.x, weights, encoding, options, attention, backward_by);
    const row_major_matrix<long double> x = world.x.template cast<long double>();

    row_major_matrix<double> by_difference(x.rows(), x.cols());
    for (index_t n = 0; n < x.size(); ++n) {
      row_major_matrix<long double> moved = x;
      moved.data()[n] += static_cast<long double>(step);
      const long double above = loss(encoding, moved);
      moved.data()[n] -= static_cast<long double>(2 * step);
      by_difference.data()[n] = static_cast<double>((above - loss(encoding, moved)) / (2 * step));
    }
    const double largest = by_difference.cwiseAbs().maxCoeff();
    for (index_t n = 0; n < x.size(); ++n)
      worst.see(std::abs(static_cast<double>(found.x.data()[n]) - by_difference.data()[n]) / largest,
                "d/dx of channel ", n % x.cols(), " of token ", n / x.cols(), ", positions from ", start);

    const parameter_list<double> parameters = parameters_of(encoding);
    if constexpr (requires { with_parameters(encoding, parameters); }) {
      const auto numbers = found.encoding.values();
      detail::require(numbers.size() == parameters.size(), "testing: ", numbers.size(), " gradients for ",
                      parameters.size(), " parameters");
      std::vector<std::size_t> chosen;
      const std::size_t stride = parameters.size() / 32 + 1;
      for (std::size_t n = 0; n < numbers.size(); ++n)
        if (n % stride == 0 || (numbers[n] != 0 && chosen.size() < 64)) chosen.push_back(n);
      std::vector<double> slopes;
      double steepest = 0;
      for (const std::size_t n : chosen) {
        parameter_list<double> moved = parameters;
        const double middle = moved.values()[n], up = middle + step, down = middle - step;
        moved.values()[n] = up;
        const long double above = loss(with_parameters(encoding, moved), x);
        moved.values()[n] = down;
        const long double below = loss(with_parameters(encoding, moved), x);
        slopes.push_back(static_cast<double>((above - below) / (static_cast<long double>(up) - down)));
        steepest = (std::max)(steepest, std::abs(slopes.back()));
      }
      for (std::size_t c = 0; c < chosen.size(); ++c) {
        std::size_t block = 0, before = 0;
        while (before + static_cast<std::size_t>(parameters.block(block).size()) <= chosen[c])
          before += static_cast<std::size_t>(parameters.block(block++).size());
        const double error = std::abs(static_cast<double>(numbers[chosen[c]]) - slopes[c]);
        worst.see(error == 0 ? 0 : error / steepest, "d/d(", parameters.name(block), ") of number ",
                  chosen[c] - before, ", positions from ", start);
      }
    }
  }
  return worst.result();
}

}  // namespace testing
}  // namespace posenc::inline v0_2
