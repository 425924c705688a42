// SPDX-License-Identifier: MIT
#include <posenc/attention/reference.hpp>

#include "attention.hpp"

namespace posenc_python {

void run_reference(element type, const attention_call& call) {
  with_element(type, [&]<class T>(T) {
    call.with_views<T>([&](const auto& q, const auto& k, const auto& v, const auto& out, const auto& lse) {
      posenc::reference::attention_into(q, k, v, call.by.any, call.options, out, lse);
    });
  });
}

}  // namespace posenc_python
