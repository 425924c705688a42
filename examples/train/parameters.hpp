// SPDX-License-Identifier: MIT
/// \file
/// What a model learns: matrices with their gradients, Adam, and files that training resumes from.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/views.hpp>

namespace train {

using matrix = posenc::row_major_matrix<float>;
using posenc::index_t;
using posenc::detail::require;

/// A matrix that is learned. `mean` and `square` are Adam's running means of the gradient and of its square.
struct parameter {
  std::string name;
  matrix value, gradient = matrix::Zero(value.rows(), value.cols()), mean = gradient, square = gradient;
};

/// Kingma and Ba 2015, arXiv:1412.6980, with gradients cut to a norm, a linear warm-up and a cosine down to a tenth.
struct adam {
  double rate = 3e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, largest_norm = 1;
  int warm_up = 50;

  /// Learning rate of step `step` of `steps`.
  [[nodiscard]] double rate_at(int step, int steps) const {
    if (step < warm_up) return rate * (step + 1) / warm_up;
    const double done = static_cast<double>(step - warm_up) / (std::max)(1, steps - warm_up);
    return rate * (0.55 + 0.45 * std::cos(3.14159265358979 * (std::min)(done, 1.0)));
  }
  void update(const std::vector<parameter*>& all, int step, int steps) const {
    double norm = 0;
    for (const parameter* p : all) norm += static_cast<double>(p->gradient.squaredNorm());
    const auto shrink = static_cast<float>((std::min)(1.0, largest_norm / (std::sqrt(norm) + 1e-12)));
    const double first = 1 - std::pow(beta1, step + 1), second = 1 - std::pow(beta2, step + 1);
    const auto b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2);
    const auto rate_now = static_cast<float>(rate_at(step, steps) * std::sqrt(second) / first);
    const auto smallest = static_cast<float>(epsilon * std::sqrt(second));
    for (parameter* p : all) {
      const auto g = p->gradient.array() * shrink;
      p->mean.array() = b1 * p->mean.array() + (1 - b1) * g;
      p->square.array() = b2 * p->square.array() + (1 - b2) * g * g;
      p->value.array() -= rate_now * p->mean.array() / (p->square.array().sqrt() + smallest);
      p->gradient.setZero();
    }
  }
};

/// A checkpoint: the step, then every parameter with what Adam keeps. Resuming from it gives the bits of a run that was
/// not interrupted, since batches depend on the seed and the step alone.
inline void save(const std::string& file, const std::vector<parameter*>& all, std::int64_t step) {
  const std::string half = file + ".part";  // an interrupted write leaves the old checkpoint
  std::ofstream out(half, std::ios::binary);
  const auto put = [&out](const auto* numbers, index_t count) {
    out.write(reinterpret_cast<const char*>(numbers), count * static_cast<index_t>(sizeof *numbers));
  };
  put("posenctr", 8), put(&step, 1);
  for (const parameter* p : all) {
    const std::int64_t shape[] = {p->value.rows(), p->value.cols()};
    put(shape, 2);
    for (const matrix* m : {&p->value, &p->mean, &p->square}) put(m->data(), m->size());
  }
  out.close();
  require(out && std::rename(half.c_str(), file.c_str()) == 0, "--checkpoint: ", file, " cannot be written");
}
/// \returns the step to go on with. \throws std::invalid_argument when the file is of another model
inline int load(const std::string& file, const std::vector<parameter*>& all) {
  std::ifstream in(file, std::ios::binary);
  const auto get = [&in](auto* numbers, index_t count) {
    in.read(reinterpret_cast<char*>(numbers), count * static_cast<index_t>(sizeof *numbers));
  };
  std::string magic(8, ' ');
  std::int64_t step = 0, shape[2]{};
  get(magic.data(), 8), get(&step, 1);
  require(in && magic == "posenctr", "--resume: ", file, " is no checkpoint of this program");
  for (parameter* p : all) {
    get(shape, 2);
    require(in && shape[0] == p->value.rows() && shape[1] == p->value.cols(), "--resume: ", file, ": ",
            p->name, " is ", shape[0], " x ", shape[1], ", not ", p->value.rows(), " x ", p->value.cols());
    for (matrix* m : {&p->value, &p->mean, &p->square}) get(m->data(), m->size());
  }
  require(in && in.peek() == EOF, "--resume: ", file, " is shorter or longer than this model's checkpoints");
  return static_cast<int>(step);
}

}  // namespace train
