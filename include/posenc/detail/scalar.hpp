// SPDX-License-Identifier: MIT
/// \file
/// Which scalar arithmetic happens in, given the scalar that is stored.
#pragma once

#include <concepts>
#include <type_traits>

namespace posenc::inline v0_2::detail {

/// A 16-bit storage type such as Eigen::half or Eigen::bfloat16: becomes float by itself, but is no
/// floating-point type of the language. Automatic-differentiation scalars do not convert to float and are
/// therefore no storage type.
template <class S>
concept narrow_storage = !std::floating_point<S> && !std::integral<S> && std::convertible_to<S, float>;

/// What a stored value is computed in: float for 16-bit storage, the scalar itself otherwise.
template <class S>
using working_t = std::conditional_t<narrow_storage<S>, float, S>;

template <class S>
struct sum_type {
  using type = S;
};
template <class S>
requires(narrow_storage<S> || std::same_as<S, float>) struct sum_type<S> {
  using type = double;
};

/// What sums of stored values are formed in: double for float and narrower, the scalar itself otherwise.
template <class S>
using sum_t = typename sum_type<S>::type;

template <class S, class T>
struct product_type {
  using type = S;
};
template <std::floating_point S, std::floating_point T>
struct product_type<S, T> {
  using type = std::common_type_t<S, T>;
};

/// What a stored value times a number T is formed in: the wider of the two, or the scalar itself where it is
/// more than a number (automatic differentiation).
template <class S, class T>
using product_t = typename product_type<working_t<S>, T>::type;

}  // namespace posenc::inline v0_2::detail
