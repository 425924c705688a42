// SPDX-License-Identifier: MIT
/// \file
/// What is learned: the next byte of a text. A batch depends on the seed and the step alone, so that a run that resumes
/// sees what an uninterrupted one does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "parameters.hpp"

namespace train {

/// Numbers from 0 to below a bound, the same on every system.
class dice {
 public:
  dice(std::uint64_t seed, std::uint64_t step, std::uint64_t purpose)
      : bits_(seed * 0x9e3779b97f4a7c15u + step * 0xbf58476d1ce4e5b9u + purpose) {}
  template <class T>
  T operator()(T bound) {
    return static_cast<T>(bits_() % static_cast<std::uint64_t>(bound));
  }

 private:
  std::mt19937_64 bits_;
};

/// Token numbers of sequences one after the other; what is wanted after each token, −1 where nothing is.
struct batch {
  std::vector<int> input, wanted;
};

struct task {
  index_t vocabulary;
  /// Makes one sequence, for training or for testing.
  std::function<void(dice&, std::span<int> input, std::span<int> wanted, bool test)> make;

  [[nodiscard]] batch operator()(std::uint64_t seed, int step, index_t sequences, index_t tokens,
                                 bool test) const {
    dice draw(seed, static_cast<std::uint64_t>(step), test ? 2 : 1);
    const auto length = static_cast<std::size_t>(tokens), all = static_cast<std::size_t>(sequences) * length;
    batch made{std::vector<int>(all), std::vector<int>(all, -1)};
    for (std::size_t at = 0; at < all; at += length)
      make(draw, std::span(made.input).subspan(at, length), std::span(made.wanted).subspan(at, length), test);
    return made;
  }
};

/// Sentences of a small grammar: the subject's number decides the verb's, so half of the letters follow from others.
inline std::string made_up_text() {
  constexpr std::array nouns{"the dog", "the man", "the cat", "the bird"}, verbs{"bite", "see", "hear", ""};
  dice draw(7, 0, 0);
  std::string text;
  while (text.size() < 60'000) {
    const bool many = draw(2) == 1;
    text.append(nouns[draw(4u)]).append(many ? "s " : " ").append(verbs[draw(3u)]).append(many ? " " : "s ");
    text.append(nouns[draw(4u)]).append(". ");
  }
  return text;
}
/// The next byte of a text. Bytes that do not occur have no number; the last tenth of the text is for testing.
/// \throws std::invalid_argument where the file is missing or too short
inline task text_task(const std::optional<std::string>& file) {
  std::ifstream in(file.value_or(""), std::ios::binary);
  const std::string text = file ? std::string(std::istreambuf_iterator<char>(in), {}) : made_up_text();
  require(text.size() >= 10'000, "--text: ", *file, " has ", text.size(),
          " bytes, 10000 are too few to learn from");
  std::array<int, 256> numbers;
  numbers.fill(-1);
  int vocabulary = 0;
  std::vector<int> tokens;
  for (const char c : text) {
    int& number = numbers[static_cast<unsigned char>(c)];
    tokens.push_back(number < 0 ? number = vocabulary++ : number);
  }
  return {vocabulary, [tokens](dice& draw, std::span<int> input, std::span<int> wanted, bool test) {
            const auto length = std::ssize(input), all = std::ssize(tokens), cut = all * 9 / 10;
            const auto begin = test ? cut : 0, left = (test ? all - cut : cut) - length;
            require(left > 0, "--tokens: ", length, " of ", left + length, " for this part of the text");
            const auto at = tokens.begin() + begin + draw(left);
            std::copy(at, at + length, input.begin()), std::copy(at + 1, at + length + 1, wanted.begin());
          }};
}

}  // namespace train
