// SPDX-License-Identifier: MIT
/// \file
/// minilm: the first layers of a published sentence encoder, whose positions are a learned table.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <posenc/encoding.hpp>
#include <posenc/errors.hpp>
#include <posenc/models/safetensors.hpp>

#include "first_layer.hpp"
#include "wordpiece.hpp"

namespace {

using minilm::matrix, minilm::token;

constexpr const char* usage = R"(usage: minilm MODEL_FOLDER COMMAND [ARGUMENT...]

  compare EXPECTED     what Hugging Face transformers computed for two sentences, and how far off this is
  order "A" "B"        two sentences of the same words: how far apart the hidden states of each word are in
                       the two, without the position table and with it
  tokens "TEXT"...     the tokens of each text
)";

/// What stands between a folder and hidden states.
struct model {
  explicit model(const std::filesystem::path& folder)
      : words(minilm::wordpiece::read(folder / "vocab.txt")),
        file(posenc::read_safetensors(folder / "model.safetensors")),
        layer(file),
        output(file, minilm::first_layer::attention + "output.dense", layer.heads() * minilm::head_dim) {}

  minilm::wordpiece words;
  posenc::safetensors_file file;
  minilm::first_layer layer;
  minilm::linear output;  ///< W_o
};

[[nodiscard]] double largest(const matrix& difference) { return difference.cwiseAbs().maxCoeff(); }

/// One row per sentence and attention path: largest absolute differences.
void compare(const model& all, const std::filesystem::path& path) {
  const posenc::safetensors_file expected = posenc::read_safetensors(path);
  std::printf("largest differences from %s\n\n%-10s %-10s %-14s %-16s %-16s\n",
              expected.metadata.at("source").c_str(), "sentence", "attention", "embedding", "before W_o",
              "after W_o");
  for (int n = 0; n < 2; ++n) {
    const std::string name = "sentence" + std::to_string(n) + ".";
    std::vector<token> tokens = all.words.encode(expected.metadata.at(name + "text"));
    const auto length = static_cast<posenc::index_t>(tokens.size());
    const auto theirs = posenc::read_tensor_values<token>(expected, name + "tokens");
    tokens.resize(theirs.size());  // [PAD] is token 0
    posenc::detail::require(tokens == theirs, "sentence ", n, " is cut into other tokens");

    const auto& positions = all.layer.positions();
    const matrix x = all.layer.embed(tokens, positions);
    const auto print = [&](const char* attention, const matrix& h) {
      const auto off = [&](const char* what, const matrix& ours) {
        const matrix given = minilm::read_columns(expected, name + what, ours.cols());
        posenc::detail::require(given.rows() == ours.rows(), name, what, " has ", given.rows(), " rows for ",
                                ours.rows(), " tokens");
        return largest(ours - given);
      };
      std::printf("%-10d %-10s %-14.1e %-16.1e %-16.1e\n", n, attention, off("embedding", x),
                  off("context", h), off("projected", all.output(h)));
    };
    const matrix reference = all.layer.attend(x, positions, length, minilm::by_reference{});
    print("reference", reference);
#if defined(MINILM_FUSED)
    const matrix fused = all.layer.attend(x, positions, length, minilm::by_fused_kernels{});
    print("fused", fused);
    std::printf("%-10d %-25s %-16.1e\n", n, "fused - reference", largest(fused - reference));
#endif
  }
}

/// Where the tokens of `a` stand in `b`; a token that stands there several times is taken in order.
[[nodiscard]] std::vector<std::size_t> matching(const std::vector<token>& a, const std::vector<token>& b) {
  std::vector<std::size_t> places;
  for (const token wanted : a) {
    std::size_t n = 0;
    while (n < b.size() && (b[n] != wanted || std::find(places.begin(), places.end(), n) != places.end()))
      ++n;
    posenc::detail::require(n < b.size() && a.size() == b.size(), "order: the words are not the same");
    places.push_back(n);
  }
  return places;
}

/// The hidden states of every word in two orders of the same words, without positions and with them.
void order(const model& all, const std::string& first, const std::string& second) {
  const std::vector<token> a = all.words.encode(first), b = all.words.encode(second);
  const std::vector<std::size_t> place = matching(a, b);
  const auto states = [&](const std::vector<token>& tokens, const auto& encoding) {
    const auto length = static_cast<posenc::index_t>(tokens.size());
    return all.layer.attend(all.layer.embed(tokens, encoding), encoding, length, minilm::best_attention{});
  };
  const matrix bag_a = states(a, posenc::no_encoding{}), bag_b = states(b, posenc::no_encoding{});
  const matrix text_a = states(a, all.layer.positions()), text_b = states(b, all.layer.positions());
  std::printf("\"%s\" and \"%s\": |h - h'| / |h| of each word\n\n%-14s %-20s %-20s\n", first.c_str(),
              second.c_str(), "word", "without positions", "with the table");
  for (std::size_t n = 0; n < a.size(); ++n) {
    const auto i = static_cast<posenc::index_t>(n), j = static_cast<posenc::index_t>(place[n]);
    const auto apart = [&](const matrix& x, const matrix& y) {
      return static_cast<double>((x.row(i) - y.row(j)).norm() / x.row(i).norm());
    };
    std::printf("%-14s %-20.1e %-20.3f\n", all.words.piece(a[n]).c_str(), apart(bag_a, bag_b),
                apart(text_a, text_b));
  }
}

void run(const std::vector<std::string>& line) {
  const model all(line[0]);
  const std::string& command = line[1];
  if (command == "compare" && line.size() == 3) {
    compare(all, line[2]);
  } else if (command == "order" && line.size() == 4) {
    order(all, line[2], line[3]);
  } else if (command == "tokens") {
    for (std::size_t n = 2; n < line.size(); ++n) {
      const char* space = "";
      for (const token id : all.words.encode(line[n])) std::printf("%s%d", space, id), space = " ";
      std::puts("");
    }
  } else {
    posenc::detail::fail<std::invalid_argument>("command ", command, " with ", line.size() - 2,
                                                " argument(s); see --help");
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> line(words + 1, words + count);
    if (line.size() < 2) {
      std::fputs(usage, stdout);
      return 0;
    }
    run(line);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "minilm: %s\n", error.what());
    return 2;
  }
}
