// SPDX-License-Identifier: MIT
/// \file
/// The command line of posenc-inspect.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <posenc/analysis/code_storage.hpp>
#include <posenc/errors.hpp>
#include <posenc/models/any_model.hpp>
#include <posenc/models/tables.hpp>

namespace inspect {

inline constexpr std::string_view usage = R"(usage: posenc-inspect FILE [options]

Prints the positional encoding of the model that FILE (a config.json or a GGUF file) describes.

  --length N          length of the sequence, for schemes that depend on it
  --positions A,B,…   cos and sin of each pair at these positions
  --scaling SCHEME    a what-if beside today's: none, linear:factor=4, theta:factor=4,
                      dynamic:factor=4[,original=4096], yarn:factor=4[,original=32768],
                      llama3:factor=8,low=1,high=4[,original=8192]; original is the trained length, the
                      context length of FILE where it is left out
  --compare OTHER     another file beside this one. FILE comes first, then FILE under --scaling, then OTHER
  --analyse           collisions, resolution at distance, unseen phases and entropy at --length (or the model's
                      context length) instead; with --plot, --json, --scaling and --compare
  --storage NAME      what cos, sin and biases are stored in for --analyse: float32, bfloat16 (the default), half
  --export-tables OUT.safetensors  writes cos and sin of positions 0 to N - 1 of --length N (or the model's context
                      length) for another engine, in --storage (float32 where it is left out)
  --layout NAME       whose tables: onnxruntime, flash_attention, vllm, transformers
  --plot FILE.svg     draws the ladder and the attention score against distance (needs gnuplot)
  --ladder            the wavelength, turns and band of each pair, a line each
  --json              one JSON object instead of text; numbers with 17 digits
  --pairing NAME      half_split or interleaved, for a model_type that is not known
  --causal, --bidirectional  the same for a file that does not say in which direction its tokens look
  --all-layers-rotate        the same for a file with windows that does not say which layers rotate
  --honour-partial    partial_rotary_factor counts even where the model class ignores it
  --as-llama-cpp      GGUF: where llama.cpp and the model's authors differ, as llama.cpp
  --help, --version

Exit status: 0; 2 when a file is refused. Warnings head the text; with --json, --analyse and --export-tables they go to
standard error.
)";

struct arguments {
  std::string file{};
  std::optional<posenc::position> length{};
  std::vector<posenc::position> positions{};
  std::optional<std::string> scaling{};
  std::optional<std::string> compare{};
  std::optional<std::string> plot{};
  std::optional<std::string> export_tables{};
  std::optional<posenc::table_layout> layout{};
  bool analyse = false;
  std::optional<posenc::code_storage> storage{};  ///< bfloat16 to analyse, float32 to export
  bool json = false;
  bool ladder = false;
  bool help = false;
  bool version = false;
  posenc::huggingface_options huggingface{};
  posenc::gguf_options gguf{};
};

[[nodiscard]] inline posenc::position parse_position(std::string_view digits, std::string_view option) {
  posenc::position value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  posenc::detail::require(error == std::errc{} && end == digits.data() + digits.size() &&
                              value <= posenc::position_limit && value >= -posenc::position_limit,
                          option, ": ", digits, " is not a whole number within ±(2^62 − 1)");
  return value;
}

/// \throws std::invalid_argument when no storage has this name.
[[nodiscard]] inline posenc::code_storage parse_storage(std::string_view name) {
  using enum posenc::code_storage;
  for (const posenc::code_storage storage : {float32, bfloat16, half})
    if (name == posenc::name_of(storage)) return storage;
  posenc::detail::require(false, "--storage: ", name, " is none of float32, bfloat16, half");
  return bfloat16;
}

/// \throws std::invalid_argument when an option is not known or its value missing or malformed.
[[nodiscard]] inline arguments parse(const std::vector<std::string>& words) {
  using posenc::detail::require;
  arguments result;
  bool has_file = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string_view word = words[i];
    if (word.size() < 2 || word.substr(0, 2) != "--") {
      require(!has_file, "one FILE is inspected at a time, ", word, " is a second one (see --compare)");
      result.file = word;
      has_file = true;
      continue;
    }
    std::optional<std::string_view> attached;
    if (const auto equals = word.find('='); equals != std::string_view::npos) {
      attached = word.substr(equals + 1);
      word = word.substr(0, equals);
    }
    const auto value = [&]() -> std::string_view {
      if (attached) return *attached;
      require(i + 1 < words.size(), word, " needs a value");
      return words[++i];
    };
    const bool is_flag = word == "--json" || word == "--help" || word == "--version" || word == "--analyse" ||
                         word == "--honour-partial" || word == "--as-llama-cpp";
    require(!(is_flag && attached), word, " takes no value");
    if (word == "--length") {
      result.length = parse_position(value(), word);
      require(*result.length >= 1, "--length: ", *result.length, " is not positive");
    } else if (word == "--positions") {
      std::string_view list = value();
      while (true) {
        const std::string_view item = list.substr(0, list.find(','));
        result.positions.push_back(parse_position(item, word));
        if (item.size() == list.size()) break;
        list.remove_prefix(item.size() + 1);
      }
    } else if (word == "--scaling") {
      result.scaling = value();
    } else if (word == "--compare") {
      result.compare = value();
    } else if (word == "--export-tables") {
      result.export_tables = value();
    } else if (word == "--layout") {
      result.layout = posenc::table_layout_of(value());
    } else if (word == "--plot") {
      result.plot = value();
    } else if (word == "--pairing") {
      const std::string_view name = value();
      require(name == "half_split" || name == "interleaved", "--pairing: ", name,
              " is neither half_split nor interleaved");
      result.huggingface.pairing =
          name == "half_split" ? posenc::pairing::half_split : posenc::pairing::interleaved;
    } else if (word == "--causal" || word == "--bidirectional") {
      result.huggingface.causal = word == "--causal";
    } else if (word == "--all-layers-rotate") {
      result.huggingface.all_layers_rotate = true;
    } else if (word == "--honour-partial") {
      result.huggingface.always_honour_partial_rotary_factor = true;
    } else if (word == "--as-llama-cpp") {
      result.gguf.as_llama_cpp = true;
    } else if (word == "--analyse") {
      result.analyse = true;
    } else if (word == "--storage") {
      result.storage = parse_storage(value());
    } else if (word == "--ladder") {
      result.ladder = true;
    } else if (word == "--json") {
      result.json = true;
    } else if (word == "--help") {
      result.help = true;
    } else if (word == "--version") {
      result.version = true;
    } else {
      require(false, word, " is not known; --help lists the options");
    }
  }
  require(has_file || result.help || result.version, "no FILE is given; --help lists the options");
  return result;
}

}  // namespace inspect
