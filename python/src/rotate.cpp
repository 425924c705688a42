// SPDX-License-Identifier: MIT
// Door rotate: whole tensors rotated out of place or in place, and the cos and sin that do it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <posenc/rope/apply.hpp>

#include "encodings.hpp"

namespace posenc_python {
namespace {
using nb::literals::operator""_a;

void rotate_into(const input_array& x, const encoding& by, const output_array& out,
                 const positions_argument& positions, bool keys) {
  const element type = element_of(x, "x");
  posenc::detail::require(element_of(out, "out") == type, "rotate: x and out differ in type");
  with_element(type, [&]<class T>(T) {
    const auto from = heads_of<const T>(x, "x");
    const auto to = heads_of<T>(out, "out");
    const posenc::positions where = positions ? positions_of(positions) : posenc::positions::from(0);
    const nb::gil_scoped_release others_may_run;
    by.any.visit([&]<class E>(const E& one) {
      if constexpr (posenc::rotates<E, T>)
        posenc::rotate_heads(from, to, one, where,
                             keys ? posenc::rotation_side::key : posenc::rotation_side::query);
      else
        posenc::detail::fail<std::invalid_argument>("rotate: ", by.any.name(), " does not rotate");
    });
  });
}

}  // namespace

void bind_rotate(nb::module_& m) {
  m.def("rotate_into", &rotate_into, "x"_a, "encoding"_a, "out"_a, "positions"_a = nb::none(),
        "keys"_a = false);
}

}  // namespace posenc_python
