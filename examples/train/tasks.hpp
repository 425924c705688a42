// SPDX-License-Identifier: MIT
/// \file
/// What is learned: the next byte of a text, or a task that shows one thing. A batch depends on the seed and the step
/// alone, so that a run that resumes sees what an uninterrupted one does.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "parameters.hpp"

namespace train {

/// Token numbers of sequences one after the other; what is wanted after each token, −1 where nothing is.
struct batch {
  std::vector<int> input, wanted;
};

/// Numbers from 0 to below `bound`, the same on every system.
class dice {
 public:
  dice(std::uint64_t seed, std::uint64_t step, std::uint64_t purpose)
      : bits_(seed * 0x9e3779b97f4a7c15u + step * 0xbf58476d1ce4e5b9u + purpose) {}
  int operator()(std::size_t bound) { return static_cast<int>(bits_() % bound); }

 private:
  std::mt19937_64 bits_;
};

/// The next byte of a text. Bytes that do not occur have no number; the last tenth of the text is for testing.
class text_task {
 public:
  explicit text_task(const std::string& text) {
    numbers_.fill(-1);
    for (const char c : text)
      if (int& number = numbers_[static_cast<unsigned char>(c)]; number < 0) number = vocabulary_++;
    for (const char c : text) tokens_.push_back(numbers_[static_cast<unsigned char>(c)]);
  }
  /// \throws std::invalid_argument when the file cannot be read or is shorter than 10,000 bytes
  [[nodiscard]] static text_task of_file(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    posenc::detail::require(text.size() >= 10'000, "--text: ", file, " has ", text.size(),
                            " bytes, 10000 are too few to learn from");
    return text_task(text);
  }
  /// Sentences of a small grammar: the subject's number decides the verb's, so half of the letters follow from others.
  [[nodiscard]] static text_task made_up() {
    constexpr std::array nouns{"dog", "man", "cat", "bird"};
    constexpr std::array verbs{"bite", "see", "hear"};
    dice draw(7, 0, 0);
    std::string text;
    while (text.size() < 60'000) {
      const bool many = draw(2) == 1;
      text += std::string("the ") + nouns[static_cast<std::size_t>(draw(nouns.size()))] + (many ? "s " : " ");
      text += std::string(verbs[static_cast<std::size_t>(draw(verbs.size()))]) + (many ? " " : "s ");
      text += std::string("the ") + nouns[static_cast<std::size_t>(draw(nouns.size()))] + ". ";
    }
    return text_task(text);
  }

  [[nodiscard]] index_t vocabulary() const { return vocabulary_; }
  [[nodiscard]] batch make(std::uint64_t seed, std::uint64_t step, index_t sequences, index_t tokens,
                           bool test) const {
    dice draw(seed, step, test ? 2 : 1);
    const std::size_t length = static_cast<std::size_t>(tokens), cut = tokens_.size() * 9 / 10;
    const std::size_t begin = test ? cut : 0, end = test ? tokens_.size() : cut;
    posenc::detail::require(end - begin > length, "--tokens: ", tokens, " tokens, of ", end - begin,
                            " in the text's part");
    batch made;
    for (index_t s = 0; s < sequences; ++s) {
      const auto at = tokens_.begin() + static_cast<std::ptrdiff_t>(begin) + draw(end - begin - length);
      made.input.insert(made.input.end(), at, at + tokens);
      made.wanted.insert(made.wanted.end(), at + 1, at + tokens + 1);
    }
    return made;
  }

 private:
  std::array<int, 256> numbers_{};
  int vocabulary_ = 0;
  std::vector<int> tokens_;
};

/// Which of two words comes first? Two of eight letters stand somewhere between others; the last token asks. A model
/// without order knows no better than ln 2.
struct order_task {
  [[nodiscard]] static index_t vocabulary() { return 13; }  // 8 fillers, two words, the question, two answers
  [[nodiscard]] static batch make(std::uint64_t seed, std::uint64_t step, index_t sequences, index_t tokens,
                                  bool test) {
    dice draw(seed, step, test ? 2 : 1);
    batch made;
    for (index_t s = 0; s < sequences; ++s) {
      std::vector<int> row(static_cast<std::size_t>(tokens));
      for (int& token : row) token = draw(8);
      const auto places = static_cast<std::size_t>(tokens - 1);
      const int first = draw(places), second = (first + 1 + draw(places - 1)) % static_cast<int>(places);
      row[static_cast<std::size_t>(first)] = 8, row[static_cast<std::size_t>(second)] = 9;
      row.back() = 10;
      made.input.insert(made.input.end(), row.begin(), row.end());
      made.wanted.insert(made.wanted.end(), places, -1);
      made.wanted.push_back(first < second ? 11 : 12);
    }
    return made;
  }
};

/// What came after this key? Three pairs of a key and a value, then one of the keys again: half a sequence, which in
/// training begins in the first quarter and in testing in the middle. Which value is whose is told by order alone, and
/// what was learned at some positions has to hold at others.
struct recall_task {
  static constexpr int keys = 8, values = 8, fillers = 4, pairs = 3;
  [[nodiscard]] static index_t vocabulary() { return keys + values + fillers; }
  [[nodiscard]] static batch make(std::uint64_t seed, std::uint64_t step, index_t sequences, index_t tokens,
                                  bool test) {
    dice draw(seed, step, test ? 2 : 1);
    const auto length = static_cast<std::size_t>(tokens), half = length / 2, slot = half / pairs;
    batch made;
    for (index_t s = 0; s < sequences; ++s) {
      std::vector<int> row(length), wanted(length, -1);
      for (int& token : row) token = keys + values + draw(fillers);
      const std::size_t begin = test ? half : static_cast<std::size_t>(draw(length / 4)),
                        end = begin + half - 1;
      const int asked = draw(pairs), first = draw(keys);
      for (int n = 0; n < pairs; ++n) {
        const std::size_t at =
            begin + static_cast<std::size_t>(n) * slot + static_cast<std::size_t>(draw(slot - 1));
        row[at] = (first + n) % keys, row[at + 1] = keys + draw(values);
        if (n == asked) row[end] = row[at], wanted[end] = row[at + 1];
      }
      made.input.insert(made.input.end(), row.begin(), row.end());
      made.wanted.insert(made.wanted.end(), wanted.begin(), wanted.end());
    }
    return made;
  }
};

}  // namespace train
