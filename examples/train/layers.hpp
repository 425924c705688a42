// SPDX-License-Identifier: MIT
/// \file
/// What a transformer has beside attention, forward and backward: products, root-mean-square norm, a gate, cross-entropy.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>

#include "parameters.hpp"

namespace train {

/// Where the time of a step goes.
struct profile {
  double products = 0, attention = 0;

  template <class Work>
  void time(double profile::*what, const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    this->*what += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

/// y = x·W
inline matrix product(const matrix& x, const parameter& weight, profile& times) {
  matrix y;
  times.time(&profile::products, [&] { y.noalias() = x * weight.value; });
  return y;
}
/// Adds to the gradient of W and to that of x.
inline void product_backward(const matrix& x, parameter& weight, const matrix& d_y, matrix& d_x,
                             profile& times) {
  times.time(&profile::products, [&] {
    weight.gradient.noalias() += x.transpose() * d_y;
    d_x.noalias() += d_y * weight.value.transpose();
  });
}

/// Rows divided by their root mean square, times a learned gain. Zhang and Sennrich 2019, arXiv:1910.07467.
struct norm {
  static constexpr float epsilon = 1e-5f;

  [[nodiscard]] static Eigen::VectorXf inverse(const matrix& x) {
    return (x.array().square().rowwise().mean() + epsilon).rsqrt();
  }
  [[nodiscard]] static matrix forward(const matrix& x, const parameter& gain) {
    return (x.array().colwise() * inverse(x).array()).rowwise() * gain.value.row(0).array();
  }
  static void backward(const matrix& x, parameter& gain, const matrix& d_y, matrix& d_x) {
    const Eigen::ArrayXf scale = inverse(x).array();
    const auto unit = x.array().colwise() * scale;
    gain.gradient.row(0).array() += (d_y.array() * unit).colwise().sum();
    const matrix d_unit = d_y.array().rowwise() * gain.value.row(0).array();
    const Eigen::ArrayXf along = (d_unit.array() * unit).rowwise().mean();
    d_x.array() += (d_unit.array() - unit.colwise() * along).colwise() * scale;
  }
};

/// x·σ(x), element by element.
inline matrix silu(const matrix& x) { return x.array() / (1 + (-x.array()).exp()); }
inline matrix silu_backward(const matrix& x, const matrix& d_y) {
  const auto gate = (1 + (-x.array()).exp()).inverse().eval();
  return d_y.array() * gate * (1 + x.array() * (1 - gate));
}

/// Mean cross-entropy in nats of the tokens wanted, and its gradient in place of the logits. Tokens below 0 do not count.
inline double cross_entropy(matrix& logits, std::span<const int> wanted) {
  index_t counted = 0;
  for (const int token : wanted) counted += token >= 0;
  double loss = 0;
  const float share = 1 / static_cast<float>(counted > 0 ? counted : 1);
  for (index_t i = 0; i < logits.rows(); ++i) {
    auto row = logits.row(i);
    const int token = wanted[static_cast<std::size_t>(i)];
    if (token < 0) {
      row.setZero();
      continue;
    }
    const float largest = row.maxCoeff(), own = row(token);
    row.array() = (row.array() - largest).exp();
    const float total = row.sum();
    loss += std::log(static_cast<double>(total)) + static_cast<double>(largest) - static_cast<double>(own);
    row *= share / total;
    row(token) -= share;
  }
  return loss * static_cast<double>(share);
}

}  // namespace train
