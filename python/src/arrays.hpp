// SPDX-License-Identifier: MIT
// Arrays of Python (NumPy, PyTorch, anything with DLPack) as posenc's views, without copies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/views.hpp>

namespace posenc_python {
namespace nb = nanobind;

using input_array = nb::ndarray<nb::ro, nb::device::cpu>;
using output_array = nb::ndarray<nb::device::cpu>;
using position_array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using positions_argument = std::optional<std::variant<posenc::position, position_array>>;

enum class element { float32, float16, bfloat16 };

/// \throws std::invalid_argument for anything but float32, float16 and bfloat16
template <class Array>
[[nodiscard]] element element_of(const Array& array, const char* what) {
  const auto type = array.dtype();
  using code = nb::dlpack::dtype_code;
  const auto is = [&](code of, int bits) {
    return type.code == static_cast<std::uint8_t>(of) && type.bits == bits && type.lanes == 1;
  };
  if (is(code::Float, 32)) return element::float32;
  if (is(code::Float, 16)) return element::float16;
  // NumPy exports ml_dtypes.bfloat16 by no protocol: posenc/__init__.py hands its bits over as uint16.
  if (is(code::Bfloat, 16) || is(code::UInt, 16)) return element::bfloat16;
  posenc::detail::fail<std::invalid_argument>(what, " must be float32, float16 or bfloat16");
}

/// The array as tokens x heads x head_dim. \throws std::invalid_argument when it is not of that form
template <class T, class Array>
[[nodiscard]] posenc::heads_view<T> heads_of(const Array& array, const char* what) {
  using posenc::detail::require;
  require(array.ndim() == 3, what, " must have the axes tokens, heads, head_dim, not ", array.ndim(),
          " axes");
  require(array.shape(2) <= 1 || array.stride(2) == 1, what,
          ": the channels of a head must be contiguous, not ", array.stride(2), " elements apart");
  const auto size = [&](std::size_t axis) { return static_cast<posenc::index_t>(array.shape(axis)); };
  return {static_cast<T*>(array.data()),
          size(0),
          size(1),
          size(2),
          static_cast<posenc::index_t>(array.stride(0)),
          static_cast<posenc::index_t>(array.stride(1))};
}

/// f(T{}) with the C++ type of an element.
template <class F>
void with_element(element type, F&& f) {
  switch (type) {
    case element::float32:
      return f(float{});
    case element::float16:
      return f(Eigen::half{});
    case element::bfloat16:
      return f(Eigen::bfloat16{});
  }
}

[[nodiscard]] inline posenc::positions positions_of(const positions_argument& given) {
  if (!given) return {};
  if (const auto* first = std::get_if<posenc::position>(&*given)) return posenc::positions::from(*first);
  const auto& each = std::get<position_array>(*given);
  return posenc::positions::each(std::span<const posenc::position>(each.data(), each.size()));
}

void bind_encodings(nb::module_& module);
void bind_rotate(nb::module_& module);
void bind_attention(nb::module_& module);

}  // namespace posenc_python
