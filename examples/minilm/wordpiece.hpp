// SPDX-License-Identifier: MIT
/// \file
/// Text to tokens as uncased BERT models do it: lower case, cut at spaces and around every punctuation mark,
/// then each word into the longest pieces of the vocabulary (WordPiece). ASCII only; anything else is refused,
/// because it would need the tables of Unicode.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <posenc/errors.hpp>

namespace minilm {

using token = std::int32_t;

class wordpiece {
 public:
  /// \param pieces one per token; those that continue a word begin with ##
  /// \throws posenc::format_error when one of the tokens that stand for no text is missing.
  explicit wordpiece(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    for (std::size_t n = 0; n < pieces_.size(); ++n) ids_.emplace(pieces_[n], static_cast<token>(n));
    unknown_ = id_of("[UNK]"), begin_ = id_of("[CLS]"), end_ = id_of("[SEP]");
  }

  /// Reads a vocab.txt, one piece per line.
  [[nodiscard]] static wordpiece read(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) posenc::detail::fail<posenc::format_error>(path.string(), " cannot be read");
    std::vector<std::string> pieces;
    for (std::string line; std::getline(stream, line);) pieces.push_back(line);
    return wordpiece(std::move(pieces));
  }

  /// [CLS], the tokens of the text, [SEP].
  /// \throws std::invalid_argument when the text is not ASCII.
  [[nodiscard]] std::vector<token> encode(std::string_view text) const {
    std::vector<token> result{begin_};
    std::string word;
    const auto finish_word = [&] {
      append_word(word, result);
      word.clear();
    };
    for (std::size_t n = 0; n < text.size(); ++n) {
      const char c = text[n];
      posenc::detail::require(static_cast<unsigned char>(c) < 0x80, "wordpiece: byte ", n,
                              " of the text is not ASCII");
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        finish_word();
      } else if (c > ' ' && c < 0x7F) {  // control characters are dropped
        const bool is_upper = c >= 'A' && c <= 'Z', is_lower = c >= 'a' && c <= 'z';
        const bool is_punctuation = !is_upper && !is_lower && !(c >= '0' && c <= '9');
        if (is_punctuation) finish_word();
        word += is_upper ? static_cast<char>(c - 'A' + 'a') : c;
        if (is_punctuation) finish_word();
      }
    }
    finish_word();
    result.push_back(end_);
    return result;
  }

  [[nodiscard]] const std::string& piece(token id) const { return pieces_.at(static_cast<std::size_t>(id)); }

 private:
  [[nodiscard]] token id_of(const std::string& piece) const {
    const auto found = ids_.find(piece);
    if (found == ids_.end()) posenc::detail::fail<posenc::format_error>("the vocabulary has no ", piece);
    return found->second;
  }

  /// The longest piece at the start, then the longest that continues it, …; a word that cannot be cut up so, or
  /// of more than 100 characters, is unknown as a whole.
  void append_word(std::string_view word, std::vector<token>& into) const {
    std::vector<token> cut;
    bool known = word.size() <= 100;
    while (known && !word.empty()) {
      std::size_t length = word.size();
      auto found = ids_.end();
      while (length > 0 && found == ids_.end())
        found = ids_.find((cut.empty() ? "" : "##") + std::string(word.substr(0, length--)));
      known = found != ids_.end();
      if (!known) break;
      cut.push_back(found->second);
      word.remove_prefix(length + 1);
    }
    if (!known) cut = {unknown_};
    into.insert(into.end(), cut.begin(), cut.end());
  }

  std::vector<std::string> pieces_;
  std::unordered_map<std::string, token> ids_;
  token unknown_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace minilm
