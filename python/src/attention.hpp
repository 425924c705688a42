// SPDX-License-Identifier: MIT
#pragma once

#include <posenc/attention/options.hpp>

#include "encodings.hpp"

namespace posenc_python {

using log_sum_exp_array = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

/// A call whose arguments are C++ values: what runs without Python's lock.
struct attention_call {
  const input_array& q;
  const input_array& k;
  const input_array& v;
  const encoding& by;
  const posenc::attention_options& options;
  const output_array& out;
  const std::optional<log_sum_exp_array>& log_sum_exp;
  posenc::index_t threads;

  [[nodiscard]] posenc::head_scalars_view<float> log_sum_exp_view() const {
    if (!log_sum_exp) return {};
    const auto& a = *log_sum_exp;
    const auto size = [&](std::size_t axis) { return static_cast<posenc::index_t>(a.shape(axis)); };
    return {a.data(), size(0), size(1), static_cast<posenc::index_t>(a.stride(0)),
            static_cast<posenc::index_t>(a.stride(1))};
  }
  template <class T, class F>
  void with_views(F&& f) const {
    const auto queries = heads_of<const T>(q, "q"), keys = heads_of<const T>(k, "k"),
               values = heads_of<const T>(v, "v");
    const auto output = heads_of<T>(out, "out");
    const nb::gil_scoped_release others_may_run;
    f(queries, keys, values, output, log_sum_exp_view());
  }
};

void run_fused(element type, const attention_call& call);
void run_reference(element type, const attention_call& call);

}  // namespace posenc_python
