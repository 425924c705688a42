// SPDX-License-Identifier: MIT
/// \file
/// What the fuzzers run, and what the corpus test runs without them: bytes from anywhere are described and
/// reported on, or refused with one of two kinds of error. Anything else that is thrown gets out.
#pragma once

#include <cstddef>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <posenc/models/any_model.hpp>
#include <posenc/models/model.hpp>
#include <posenc/models/tables.hpp>

#include "../../examples/inspect/json_report.hpp"
#include "../../examples/inspect/text_report.hpp"

namespace posenc_tests {

/// Makes the first layers of each side into calls, or has them refused.
inline void make_layers(const posenc::model_description& description) {
  const posenc::model model(description);
  const posenc::layer_inputs inputs{.length = 5000};
  for (posenc::index_t layer = 0; layer < 8; ++layer)
    for (int side = -1; side < 3; ++side) try {
        (void)(side < 0 ? model.layer(layer, inputs)
                        : model.layer(static_cast<posenc::model_side>(side), layer, inputs));
      } catch (const std::invalid_argument&) {
      } catch (const std::out_of_range&) {
      }
}

/// The tables of the first rotations, as every engine keeps them, or refused.
inline void export_tables(const inspect::model_view& view) {
  std::size_t left = 3;
  for (const inspect::encoding_view& one : view.encodings) {
    if (!one.rope) continue;
    --left;
    for (const char* name : {"onnxruntime", "flash_attention", "vllm", "transformers"}) try {
        const posenc::rotation by = one.rope->lowered();
        const posenc::table_layout layout = posenc::table_layout_of(name);
        (void)posenc::rotary_tables(by, 5, layout);
        (void)posenc::table_facts(by, layout);
      } catch (const std::invalid_argument&) {
      }
    if (left == 0) return;
  }
}

/// Builds and prints what a description says. True: nothing was refused.
template <class Describe>
bool describe_and_report(const Describe& describe) {
  try {
    const posenc::model_description description = describe();
    make_layers(description);
    const inspect::model_view view = inspect::build("fuzz", description, posenc::position{5000});
    std::ostringstream text;  // with the warnings
    inspect::text_report(text, {view}, {7}, true);
    export_tables(view);
    return !inspect::json_report({view}, {0, 1'000'003}).empty() &&
           text.str().find(" odd about this file") != std::string::npos;
  } catch (const posenc::format_error&) {
  } catch (const std::invalid_argument&) {
  }
  return false;
}

/// The first byte chooses the options, so that unknown model types are explored too.
inline bool fuzz_config_json(std::span<const std::byte> bytes) {
  posenc::huggingface_options options;
  if (!bytes.empty() && bytes.front() == std::byte{' '})
    options = {.pairing = posenc::pairing::half_split, .causal = true, .all_layers_rotate = true};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return describe_and_report([&] { return posenc::parse_huggingface(text, options); });
}

inline bool fuzz_gguf(std::span<const std::byte> bytes) {
  return describe_and_report([&] { return posenc::parse_gguf_model(bytes); });
}

}  // namespace posenc_tests
