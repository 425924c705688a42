// SPDX-License-Identifier: MIT
/// \file
/// The numbers of an encoding that are learned, and how a gradient comes back to them.
///
/// An encoding that can be learned has two members, and an adjoint for each door that its parameters act through. All
/// are const; G is a std::span over one number per parameter, in the order of `parameters()`, to which an adjoint
/// *adds*. S is the scalar of the gradient.
///
/// | member | meaning |
/// |---|---|
/// | `parameter_list<double> parameters()` | the numbers, as named matrices |
/// | `E with_parameters(const parameter_list<double>&)` | the same encoding with other numbers |
/// | `embed_adjoint(std::span<const S> d_row, position p, G)` | from the gradient of the row |
/// | `rotate_adjoint(std::span<const S> head, std::span<S> d_head, position p, rotation_side, G)` | d_head becomes the gradient of the head before the rotation |
/// | `bias_adjoint(int head, position offset, S d, G)` | from the gradient of the bias |
/// | `bias_adjoint(int head, position query, position key, S d, G)` | where bias reads both positions |
/// | `relative_key_adjoint(int head, position offset, std::span<const S> d_row, G)` | from the gradient of the row |
/// | `relative_value_adjoint(int head, position offset, std::span<const S> d_row, G)` | likewise |
/// | `scale_adjoint(int head, position query, S d, G)` | from the gradient of τ |
///
/// Without them the gradients of q, k and v are right all the same: a rotation goes back by its transpose, which is
/// known where the encoding lowers to a rotation and found from its action on unit vectors where it does not.
/// `rotate_adjoint` spares that, so an encoding without parameters may have it as well.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <Eigen/Core>

#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Named matrices of numbers, one after the other in one row-major memory: the parameters of an encoding, or their
/// gradient.
///
///     grad.encoding["table"]                              // a matrix
///     for (double& x : parameters.values()) x -= …        // all of them
template <class S>
class parameter_list {
 public:
  /// A block that may be written.
  using matrix = Eigen::Map<row_major_matrix<S>>;
  /// A block.
  using const_matrix = Eigen::Map<const row_major_matrix<S>>;

  parameter_list() = default;

  /// Appends a matrix.
  template <class Derived>
  parameter_list& add(std::string name, const Eigen::MatrixBase<Derived>& values) {
    blocks_.push_back({std::move(name), values_.size(), values.rows(), values.cols()});
    values_.resize(values_.size() + static_cast<std::size_t>(values.size()));
    block(blocks_.size() - 1) = values.template cast<S>();
    return *this;
  }
  /// Appends the matrices of another list.
  parameter_list& append(const parameter_list& other) {
    for (std::size_t n = 0; n < other.blocks(); ++n) add(other.name(n), other.block(n));
    return *this;
  }
  /// A list of the same shape, of zeros.
  template <class T>
  [[nodiscard]] static parameter_list zeros_like(const parameter_list<T>& other) {
    parameter_list result;
    for (std::size_t n = 0; n < other.blocks(); ++n)
      result.add(other.name(n), row_major_matrix<S>::Zero(other.block(n).rows(), other.block(n).cols()));
    return result;
  }

  /// How many named blocks there are.
  [[nodiscard]] std::size_t blocks() const noexcept { return blocks_.size(); }
  /// The name of block n.
  [[nodiscard]] const std::string& name(std::size_t n) const { return blocks_[n].name; }
  /// Block n, in the memory of values().
  [[nodiscard]] matrix block(std::size_t n) {
    const block_facts& b = blocks_[n];
    return {values_.data() + b.at, b.rows, b.columns};
  }
  /// Block n, in the memory of values().
  [[nodiscard]] const_matrix block(std::size_t n) const {
    const block_facts& b = blocks_[n];
    return {values_.data() + b.at, b.rows, b.columns};
  }
  /// The matrix of a name, the first of them. \throws std::invalid_argument when there is none
  [[nodiscard]] matrix operator[](std::string_view name) { return block(index_of(name)); }
  /// The block of a name. \throws std::invalid_argument when there is none.
  [[nodiscard]] const_matrix operator[](std::string_view name) const { return block(index_of(name)); }

  /// All numbers.
  [[nodiscard]] std::span<S> values() noexcept { return values_; }
  /// All numbers, block after block.
  [[nodiscard]] std::span<const S> values() const noexcept { return values_; }
  /// How many numbers there are.
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }

 private:
  struct block_facts {
    std::string name;
    std::size_t at = 0;
    index_t rows = 0, columns = 0;
  };
  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    for (std::size_t n = 0; n < blocks_.size(); ++n)
      if (blocks_[n].name == name) return n;
    detail::require(false, "parameters: there is no \"", std::string(name), "\" among ", blocks_.size());
    return 0;
  }

  std::vector<S> values_;
  std::vector<block_facts> blocks_;
};

/// It has parameters: parameters() gives them.
template <class E>
concept has_parameters = requires(const E& e) {
  { e.parameters() } -> std::convertible_to<parameter_list<double>>;
};

namespace detail {

template <class E, class S>
concept has_rotate_adjoint = requires(const E& e, std::span<const S> head, std::span<S> d_head, position p,
                                      rotation_side side, std::span<S> g) {
  e.rotate_adjoint(head, d_head, p, side, g);
};
template <class E, class S>
concept has_embed_adjoint = requires(const E& e, std::span<const S> d_row, position p, std::span<S> g) {
  e.embed_adjoint(d_row, p, g);
};
template <class E, class S>
concept has_bias_adjoint_by_offset = requires(const E& e, position p, S d, std::span<S> g) {
  e.bias_adjoint(0, p, d, g);
};
template <class E, class S>
concept has_bias_adjoint_by_pair = requires(const E& e, position p, S d, std::span<S> g) {
  e.bias_adjoint(0, p, p, d, g);
};
template <class E, class S>
concept has_relative_key_adjoint = requires(const E& e, position p, std::span<const S> d, std::span<S> g) {
  e.relative_key_adjoint(0, p, d, g);
};
template <class E, class S>
concept has_relative_value_adjoint = requires(const E& e, position p, std::span<const S> d, std::span<S> g) {
  e.relative_value_adjoint(0, p, d, g);
};
template <class E, class S>
concept has_scale_adjoint = requires(const E& e, position p, S d, std::span<S> g) {
  e.scale_adjoint(0, p, d, g);
};

template <class E>
inline constexpr bool is_combined = false;
template <class A, class B>
inline constexpr bool is_combined<combined<A, B>> = true;

/// The parameters of an encoding or of the parts of a combination; none where it has none.
template <class E>
[[nodiscard]] parameter_list<double> parameters_of_concrete(const E& encoding) {
  if constexpr (is_combined<E>)
    return parameters_of_concrete(encoding.first).append(parameters_of_concrete(encoding.second));
  else if constexpr (has_parameters<E>)
    return encoding.parameters();
  else
    return {};
}
template <class E>
[[nodiscard]] E encoding_with(const E& encoding, const parameter_list<double>& parameters,
                              std::size_t first_block = 0) {
  if constexpr (is_combined<E>) {
    const std::size_t of_first = parameters_of_concrete(encoding.first).blocks();
    return {encoding_with(encoding.first, parameters, first_block),
            encoding_with(encoding.second, parameters, first_block + of_first)};
  } else if constexpr (has_parameters<E>) {
    const parameter_list<double> own = encoding.parameters();
    parameter_list<double> taken;
    for (std::size_t n = 0; n < own.blocks(); ++n) {
      require(first_block + n < parameters.blocks() &&
                  parameters.block(first_block + n).rows() == own.block(n).rows() &&
                  parameters.block(first_block + n).cols() == own.block(n).cols(),
              "with_parameters: \"", own.name(n), "\" is missing or of another shape than ",
              own.block(n).rows(), " x ", own.block(n).cols());
      taken.add(own.name(n), parameters.block(first_block + n));
    }
    return encoding.with_parameters(taken);
  } else {
    return encoding;
  }
}

/// How many parameters each part of a combination has, counted once: adjoints are called for every score.
template <class E>
struct parameter_counts {
  std::size_t count = 0;
  explicit parameter_counts(const E& encoding) : count(parameters_of_concrete(encoding).size()) {}
};
template <class A, class B>
struct parameter_counts<combined<A, B>> {
  parameter_counts<A> first;
  parameter_counts<B> second;
  std::size_t count = 0;
  explicit parameter_counts(const combined<A, B>& encoding)
      : first(encoding.first), second(encoding.second), count(first.count + second.count) {}
};

/// The encoding's adjoints, for combinations too: what a door's gradient adds to the parameters.
template <class S, class E>
struct adjoint {
  using gradient = std::span<S>;

  static void embed(const E& e, const parameter_counts<E>&, std::span<const S> d, position p, gradient g) {
    if constexpr (has_embed_adjoint<E, S>) e.embed_adjoint(d, p, g);
  }
  static void bias(const E& e, const parameter_counts<E>&, int head, position query, position key, const S& d,
                   gradient g) {
    if constexpr (has_bias_adjoint_by_offset<E, S>)
      e.bias_adjoint(head, key - query, d, g);
    else if constexpr (has_bias_adjoint_by_pair<E, S>)
      e.bias_adjoint(head, query, key, d, g);
  }
  static void relative_key(const E& e, const parameter_counts<E>&, int head, position offset,
                           std::span<const S> d, gradient g) {
    if constexpr (has_relative_key_adjoint<E, S>) e.relative_key_adjoint(head, offset, d, g);
  }
  static void relative_value(const E& e, const parameter_counts<E>&, int head, position offset,
                             std::span<const S> d, gradient g) {
    if constexpr (has_relative_value_adjoint<E, S>) e.relative_value_adjoint(head, offset, d, g);
  }
  static void scale(const E& e, const parameter_counts<E>&, int head, position query, const S& d,
                    gradient g) {
    if constexpr (has_scale_adjoint<E, S>) e.scale_adjoint(head, query, d, g);
  }
};
template <class S, class A, class B>
struct adjoint<S, combined<A, B>> {
  using E = combined<A, B>;
  using gradient = std::span<S>;

  template <class With>
  static void both(const E&, const parameter_counts<E>& n, gradient g, With&& with) {
    with(adjoint<S, A>(), &E::first, n.first, g.first(n.first.count));
    with(adjoint<S, B>(), &E::second, n.second, g.subspan(n.first.count));
  }
  static void embed(const E& e, const parameter_counts<E>& n, std::span<const S> d, position p, gradient g) {
    both(e, n, g,
         [&](auto of, auto part, const auto& count, gradient own) { of.embed(e.*part, count, d, p, own); });
  }
  static void bias(const E& e, const parameter_counts<E>& n, int head, position query, position key,
                   const S& d, gradient g) {
    both(e, n, g, [&](auto of, auto part, const auto& count, gradient own) {
      of.bias(e.*part, count, head, query, key, d, own);
    });
  }
  static void relative_key(const E& e, const parameter_counts<E>& n, int head, position offset,
                           std::span<const S> d, gradient g) {
    both(e, n, g, [&](auto of, auto part, const auto& count, gradient own) {
      of.relative_key(e.*part, count, head, offset, d, own);
    });
  }
  static void relative_value(const E& e, const parameter_counts<E>& n, int head, position offset,
                             std::span<const S> d, gradient g) {
    both(e, n, g, [&](auto of, auto part, const auto& count, gradient own) {
      of.relative_value(e.*part, count, head, offset, d, own);
    });
  }
  /// Scales multiply: each part's τ is the other's factor.
  static void scale(const E& e, const parameter_counts<E>& n, int head, position query, const S& d,
                    gradient g) {
    S of_first = d, of_second = d;
    if constexpr (scales<A> && scales<B>) {
      of_first = S(d * static_cast<S>(scale_of(e.second, head, query)));
      of_second = S(d * static_cast<S>(scale_of(e.first, head, query)));
    }
    adjoint<S, A>::scale(e.first, n.first, head, query, of_first, g.first(n.first.count));
    adjoint<S, B>::scale(e.second, n.second, head, query, of_second, g.subspan(n.first.count));
  }
};

/// Where a row of a tensor stands, on axes where it has places there, and on which side of a score.
struct rotated_row {
  position at = 0;
  const axis_positions* place = nullptr;
  rotation_side side = rotation_side::query;

  rotated_row(const positions& where, index_t row, rotation_side on)
      : rotated_row(where[row], where.place(row), on) {}
  rotated_row(position token, const axis_positions* on_axes, rotation_side on)
      : at(token), place(on_axes), side(on) {}

  template <class E, class S>
  void rotate(const E& encoding, std::span<S> head) const {
    rotate_token(encoding, head, at, place, side == rotation_side::query);
  }
};

/// R(p)ᵀ with what multiplies it kept: from the gradient of a rotated head to that of the head.
template <class S>
void rotate_pairs_back(const rotation& by, std::span<S> d_head, const rotated_row& at) {
  const axis_positions* const place = at.place;
  for (index_t pair = 0; pair < by.pairs(); ++pair) {
    using angle = std::conditional_t<std::floating_point<S>, S, double>;
    cos_sin<angle> by_angle = by.template cos_sin_at<angle>(pair, at.at, place);
    by_angle.sin = -by_angle.sin;
    by.rotate_pair(
        d_head, pair, by_angle,
        static_cast<angle>(place ? by.attention_factor : by.attention_factor_at(pair, at.at, at.side)));
  }
}

/// From the gradient of a rotated head to that of the head, in place, and to the parameters of the rotation.
/// \param head the head before the rotation
template <class S, class E>
void rotate_back(const E& encoding, const parameter_counts<E>& counts, std::span<const S> head,
                 std::span<S> d_head, const rotated_row& at, std::span<S> gradient) {
  if constexpr (is_combined<E>) {
    std::vector<S> between(head.begin(), head.end());
    at.rotate(encoding.first, std::span<S>(between));
    rotate_back<S>(encoding.second, counts.second, between, d_head, at, gradient.subspan(counts.first.count));
    rotate_back<S>(encoding.first, counts.first, head, d_head, at, gradient.first(counts.first.count));
  } else if constexpr (has_rotate_adjoint<E, S>) {
    encoding.rotate_adjoint(head, d_head, at.at, at.side, gradient);
  } else if constexpr (lowers_to_rotation<E>) {
    rotate_pairs_back(encoding.lowered(), d_head, at);
  } else if constexpr (rotates<E, S>) {
    // Rotations are linear: column c of the matrix is what becomes of unit vector c.
    std::vector<S> back(d_head.size(), S(0)), column(d_head.size());
    for (std::size_t c = 0; c < d_head.size(); ++c) {
      for (S& x : column) x = S(0);
      column[c] = S(1);
      at.rotate(encoding, std::span<S>(column));
      for (std::size_t r = 0; r < column.size(); ++r) back[c] += S(column[r] * d_head[r]);
    }
    for (std::size_t c = 0; c < d_head.size(); ++c) d_head[c] = back[c];
  }
}

}  // namespace detail

/// The parameters of an encoding, those of the parts of a combination one after the other; an empty list where nothing
/// is learned.
template <class E>
[[nodiscard]] parameter_list<double> parameters_of(const E& encoding) {
  return detail::with_concrete(encoding, [](const auto& one) { return detail::parameters_of_concrete(one); });
}

/// The same encoding with other numbers: what an optimiser makes after each step.
/// \param parameters of the names and shapes of parameters_of(encoding)
/// \throws std::invalid_argument when the shapes differ, and what the encoding's constructor throws
template <class E>
[[nodiscard]] E with_parameters(const E& encoding, const parameter_list<double>& parameters) {
  return detail::with_concrete(encoding, [&](const auto& one) -> E {
    const std::size_t blocks = detail::parameters_of_concrete(one).blocks();
    detail::require(parameters.blocks() == blocks, "with_parameters: ", parameters.blocks(),
                    " matrices given, the encoding has ", blocks);
    return detail::encoding_with(one, parameters);
  });
}

}  // namespace posenc::inline v0_2
