// SPDX-License-Identifier: MIT
#pragma once

#include <posenc/encodings/any_encoding.hpp>

#include "arrays.hpp"

namespace posenc_python {

/// What every encoding of Python's side is: its subclasses add a constructor each.
struct encoding {
  posenc::any_encoding<float> any{};
};

}  // namespace posenc_python
