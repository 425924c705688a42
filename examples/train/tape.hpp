// SPDX-License-Identifier: MIT
/// \file
/// What a transformer has beside attention: products, root-mean-square norm, a gate, cross-entropy. Each function notes
/// on a tape how the gradient of its result goes on to what it was made of; played backwards, the tape is the gradient.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

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

/// A result on its way, and the gradient of the loss by it, which has memory once something has been added to it.
struct node {
  matrix value, gradient{};

  [[nodiscard]] matrix& grown() {
    if (gradient.size() == 0) gradient = matrix::Zero(value.rows(), value.cols());
    return gradient;
  }
};
using value = std::shared_ptr<node>;

class tape {
 public:
  tape(bool learns, profile& times) : learns_(learns), times_(times) {}

  /// \param back adds to the gradients of what the result was made of; it is given the result with its gradient
  template <class Back>
  value make(matrix result, Back&& back) {
    value y = std::make_shared<node>(node{std::move(result)});
    if (!learns_) return y;
    back_.push_back([y, back = std::forward<Back>(back)] { back(*y); });
    return y;
  }
  /// What has been played is forgotten, so that its memory serves what comes.
  void play_backwards() {
    for (; !back_.empty(); back_.pop_back()) back_.back()();
  }
  template <class Work>
  void time(double profile::*what, const Work& work) const {
    times_.time(what, work);
  }

  value add(const value& a, const value& b) {
    return make(a->value + b->value,
                [=](const node& y) { a->grown() += y.gradient, b->grown() += y.gradient; });
  }
  /// x·W
  value product(const value& x, parameter& weight) {
    matrix y;
    time(&profile::products, [&] { y.noalias() = x->value * weight.value; });
    return make(std::move(y), [=, this, &weight](const node& to) {
      time(&profile::products, [&] {
        weight.gradient.noalias() += x->value.transpose() * to.gradient;
        x->grown().noalias() += to.gradient * weight.value.transpose();
      });
    });
  }
  /// Rows divided by their root mean square, times a learned gain. Zhang and Sennrich 2019, arXiv:1910.07467.
  value norm(const value& x, parameter& gain) {
    const Eigen::ArrayXf scale = (x->value.array().square().rowwise().mean() + 1e-5f).rsqrt();
    matrix y = (x->value.array().colwise() * scale).rowwise() * gain.value.row(0).array();
    return make(std::move(y), [=, &gain](const node& to) {
      const auto d = to.gradient.array();
      const auto unit = x->value.array().colwise() * scale;
      gain.gradient.row(0).array() += (d * unit).colwise().sum();
      const matrix d_unit = d.rowwise() * gain.value.row(0).array();
      const Eigen::ArrayXf along = (d_unit.array() * unit).rowwise().mean();
      x->grown().array() += (d_unit.array() - unit.colwise() * along).colwise() * scale;
    });
  }
  /// x·σ(x), element by element.
  value silu(const value& x) {
    return make(x->value.array() / (1 + (-x->value.array()).exp()), [=](const node& to) {
      const auto gate = (1 + (-x->value.array()).exp()).inverse().eval();
      x->grown().array() += to.gradient.array() * gate * (1 + x->value.array() * (1 - gate));
    });
  }
  /// Mean cross-entropy in nats of the tokens wanted, of which those below 0 do not count, under logits x·Wᵀ.
  double cross_entropy(const value& x, parameter& weight, std::span<const int> wanted) {
    matrix d_logits;
    time(&profile::products, [&] { d_logits.noalias() = x->value * weight.value.transpose(); });
    const auto counted = std::ranges::count_if(wanted, [](int token) { return token >= 0; });
    const float share = 1 / static_cast<float>((std::max)(counted, decltype(counted){1}));
    double loss = 0;
    for (index_t i = 0; i < d_logits.rows(); ++i) {
      auto row = d_logits.row(i);
      const int token = wanted[static_cast<std::size_t>(i)];
      const float largest = row.maxCoeff(), own = token < 0 ? 0 : row(token);
      row.array() = (row.array() - largest).exp();
      const float total = row.sum();
      row *= token < 0 ? 0 : share / total;
      if (token < 0) continue;
      loss += std::log(static_cast<double>(total)) + static_cast<double>(largest) - static_cast<double>(own);
      row(token) -= share;
    }
    make({}, [=, this, &weight, d = std::move(d_logits)](const node&) {
      time(&profile::products, [&] {
        x->grown().noalias() += d * weight.value;
        weight.gradient.noalias() += d.transpose() * x->value;
      });
    });
    return loss * static_cast<double>(share);
  }

 private:
  bool learns_;
  profile& times_;
  std::vector<std::function<void()>> back_{};
};

}  // namespace train
