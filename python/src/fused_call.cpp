// SPDX-License-Identifier: MIT
#include <posenc/fused/executor.hpp>
#include <posenc/fused/run.hpp>

#include "attention.hpp"

namespace posenc_python {

void run_fused(element type, const attention_call& call) {
  with_element(type, [&]<class T>(T) {
    call.with_views<T>([&](const auto& q, const auto& k, const auto& v, const auto& out, const auto& lse) {
      if (call.threads == 1)
        return posenc::fused::attention_into(q, k, v, call.by.any, call.options, out, lse);
      posenc::fused::thread_pool pool(call.threads);
      posenc::fused::attention_into(q, k, v, call.by.any, call.options, out, lse, {.executor = pool});
    });
  });
}

}  // namespace posenc_python
