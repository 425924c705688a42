// SPDX-License-Identifier: MIT
/// \file
/// --export-tables: a model's cos and sin for another engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <posenc/models/tables.hpp>

#include "arguments.hpp"
#include "view.hpp"

namespace inspect {

/// Writes the tables of every rotation of a model. Where there are several, names begin with the kind of their layers or
/// their number.
/// \throws std::invalid_argument where there is no rotation, no layout or no length
inline void export_tables(const model_view& view, const arguments& asked) {
  using posenc::detail::require;
  require(asked.layout.has_value(),
          "--export-tables: for whom? --layout onnxruntime, flash_attention, vllm or transformers");
  std::vector<const encoding_view*> rotations;
  for (const encoding_view& one : view.encodings)
    if (one.rope) rotations.push_back(&one);
  require(!rotations.empty(), "--export-tables: ", view.title, " has no rotation");
  const std::optional<posenc::position> length = asked.length ? asked.length : view.model.context_length;
  require(length.has_value(), "--export-tables: the file does not say a length, --length N does");
  constexpr posenc::position most = posenc::position{1} << 32;
  require(*length <= most, "--export-tables: ", *length, " positions are more than ", most);

  std::vector<posenc::safetensors_output> tables;
  std::map<std::string, std::string> facts{{"length", std::to_string(*length)}};
  for (std::size_t n = 0; n < rotations.size(); ++n) {
    const posenc::encoding_description& description = rotations[n]->description;
    std::string prefix;
    if (rotations.size() > 1) {
      bool is_told = !description.layer_type.empty();
      for (std::size_t m = 0; m < rotations.size(); ++m)
        is_told &= m == n || rotations[m]->description.layer_type != description.layer_type;
      prefix = is_told ? description.layer_type : std::to_string(n);
      prefix += '.';
    }
    const posenc::rotation by = rotations[n]->rope->lowered();
    for (posenc::safetensors_output& table :
         posenc::rotary_tables(by, static_cast<posenc::index_t>(*length), *asked.layout)) {
      table.name.insert(0, prefix);
      tables.push_back(std::move(table));
    }
    for (const auto& [key, value] : posenc::table_facts(by, *asked.layout)) facts[prefix + key] = value;
    std::string layers;
    for (const posenc::index_t layer : description.layers) {
      if (!layers.empty()) layers += ',';
      layers += std::to_string(layer);
    }
    facts[prefix + "layers"] = layers;
  }
  using enum posenc::code_storage;
  const posenc::code_storage storage = asked.storage.value_or(float32);
  posenc::write_safetensors(*asked.export_tables, tables, facts,
                            storage == float32 ? posenc::safetensors_dtype::f32
                            : storage == half  ? posenc::safetensors_dtype::f16
                                               : posenc::safetensors_dtype::bf16);
  for (const posenc::safetensors_output& table : tables) {
    std::cout << table.name << ":";
    for (const std::uint64_t extent : table.extents) std::cout << ' ' << extent;
    std::cout << '\n';
  }
  std::cout << "written: " << *asked.export_tables << '\n';
}

}  // namespace inspect
