// SPDX-License-Identifier: MIT
/// \file
/// The study's tasks (docs/training_study.md), which show one thing each.
#pragma once

#include <array>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "tasks.hpp"

namespace train {

/// Which of two words comes first? Two of eight letters stand somewhere between others; the last token asks. A model
/// without order knows no better than ln 2.
inline task order_task() {
  enum : int { fillers = 8, first_word = 8, second_word, question, yes, no, vocabulary };
  return {vocabulary, [](dice& draw, std::span<int> input, std::span<int> wanted, bool) {
            const std::size_t places = input.size() - 1;
            for (int& token : input) token = draw(int{fillers});
            const auto first = draw(places), second = (first + 1 + draw(places - 1)) % places;
            input[first] = first_word, input[second] = second_word, input.back() = question;
            wanted.back() = first < second ? yes : no;
          }};
}

/// How does a word go on that was there before? Six different letters stand twice in a row somewhere in the first half
/// of the sequence (early) or in the second (late). All else repeats three fillers, which training continues as well,
/// so that it has something to learn at every place.
inline task copy_task(bool is_late) {
  constexpr int letters = 16, fillers = 6;
  constexpr std::size_t word = 6, period = 3;
  return {letters + fillers, [=](dice& draw, std::span<int> input, std::span<int> wanted, bool test) {
            const std::size_t half = input.size() / 2;
            require(half >= 2 * word, "--tokens: half of ", input.size(), " holds no ", 2 * word);
            for (std::size_t i = 0; i < input.size(); ++i)
              input[i] = i < period ? letters + draw(fillers) : input[i - period];
            const std::size_t first = (is_late ? half : 0) + draw(half - 2 * word + 1), again = first + word;
            std::array<int, letters> deck;
            std::iota(deck.begin(), deck.end(), 0);
            for (std::size_t i = 0; i < word; ++i) {
              std::swap(deck[i], deck[i + draw(deck.size() - i)]);
              input[first + i] = input[again + i] = deck[i];
            }
            for (std::size_t i = period; i + 1 < input.size(); ++i)
              if ((i >= again && i + 1 < again + word) ||
                  (!test && input[i] >= letters && input[i + 1] >= letters))
                wanted[i] = input[i + 1];
          }};
}

/// A task by its name. \throws std::invalid_argument where there is none
inline task study_task(const std::string& name) {
  if (name == "order") return order_task();
  require(name == "early" || name == "late", "--task: ", name, " is none of text, order, early, late");
  return copy_task(name == "late");
}

}  // namespace train
