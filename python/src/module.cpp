// SPDX-License-Identifier: MIT
// The module posenc._core; posenc/__init__.py is what users see.
#include <string>

#include <nanobind/stl/string.h>

#include <posenc/version.hpp>

#include "arrays.hpp"

NB_MODULE(_core, module) {
  module.doc() = "The C++ side of posenc.";
  module.attr("version") = std::to_string(POSENC_VERSION_MAJOR) + "." + std::to_string(POSENC_VERSION_MINOR) +
                           "." + std::to_string(POSENC_VERSION_PATCH);
  posenc_python::bind_encodings(module);
  posenc_python::bind_rotate(module);
  posenc_python::bind_attention(module);
}
