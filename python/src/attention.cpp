// SPDX-License-Identifier: MIT
// Attention: Python's keyword arguments become posenc::attention_options.
#include <string_view>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "attention.hpp"

namespace posenc_python {
namespace {
using nb::literals::operator""_a;
using posenc::index_t, posenc::position;

[[nodiscard]] posenc::attention_mask mask_of(std::string_view name) {
  if (name == "bidirectional") return posenc::bidirectional;
  if (name == "causal") return posenc::causal;
  if (name == "causal_from_first") return posenc::causal_from_first;
  if (name == "causal_to_last") return posenc::causal_to_last;
  posenc::detail::fail<std::invalid_argument>(
      "mask is '", name, "', not one of: bidirectional, causal, causal_from_first, causal_to_last");
}

void attention_into(const input_array& q, const input_array& k, const input_array& v, const encoding& by,
                    const output_array& out, const std::optional<log_sum_exp_array>& log_sum_exp,
                    std::string_view engine, std::string_view mask, std::optional<position> lookback,
                    std::optional<position> lookahead, std::optional<position> chunk,
                    std::optional<double> scale, double softcap, const std::vector<double>& sinks,
                    const std::vector<index_t>& documents, const positions_argument& query_positions,
                    const positions_argument& key_positions, bool keys_are_rotated, bool is_embedded,
                    index_t threads) {
  using posenc::detail::require;
  const element type = element_of(q, "q");
  require(element_of(k, "k") == type && element_of(v, "v") == type && element_of(out, "out") == type,
          "attention: q, k, v and out must have one type");
  require(engine == "fused" || engine == "reference", "engine is '", engine,
          "', not one of: fused, reference");
  require(threads >= 0, "threads is ", threads, ", which is negative");
  posenc::attention_options options{.heads = heads_of<const char>(q, "q").heads,
                                    .kv_heads = heads_of<const char>(k, "k").heads,
                                    .mask = mask_of(mask),
                                    .window = {lookback, lookahead},
                                    .chunk = chunk,
                                    .scale = scale,
                                    .softcap = softcap,
                                    .sinks = sinks,
                                    .keys_are_rotated = keys_are_rotated,
                                    .is_embedded = is_embedded,
                                    .query_positions = positions_of(query_positions),
                                    .key_positions = positions_of(key_positions)};
  if (!documents.empty()) options.visible = posenc::documents(documents);
  const attention_call call{q, k, v, by, options, out, log_sum_exp, threads};
  (engine == "fused" ? run_fused : run_reference)(type, call);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention_into", &attention_into, "q"_a, "k"_a, "v"_a, "encoding"_a, "out"_a,
        "log_sum_exp"_a = nb::none(), "engine"_a = "fused", "mask"_a = "bidirectional",
        "lookback"_a = nb::none(), "lookahead"_a = nb::none(), "chunk"_a = nb::none(), "scale"_a = nb::none(),
        "softcap"_a = 0.0, "sinks"_a = std::vector<double>{}, "documents"_a = std::vector<index_t>{},
        "query_positions"_a = nb::none(), "key_positions"_a = nb::none(), "keys_are_rotated"_a = false,
        "is_embedded"_a = false, "threads"_a = 1);
}

}  // namespace posenc_python
