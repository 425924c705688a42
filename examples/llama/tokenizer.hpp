// SPDX-License-Identifier: MIT
/// \file
/// Text to tokens and back with the vocabulary in a GGUF file: byte-level BPE as GPT-2 does it, with
/// SmolLM2's extra cut around every digit.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/models/gguf/file.hpp>

namespace llama {

using token = std::int32_t;

/// Appends a code point below 2^11 in UTF-8; the byte alphabet needs no more.
inline void append_utf8(std::string& text, unsigned code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else {
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// What GPT-2's regular expression asks of a character.
enum class character : unsigned char { letter, digit, space, other };

class tokenizer {
 public:
  /// \throws posenc::format_error when the file has another kind of tokenizer.
  explicit tokenizer(const posenc::gguf_file& file) {
    const auto kind = file.text("tokenizer.ggml.model").value_or("none");
    const auto cut = file.text("tokenizer.ggml.pre").value_or("none");
    const std::vector<std::string>* tokens = file.texts("tokenizer.ggml.tokens");
    const std::vector<std::string>* merges = file.texts("tokenizer.ggml.merges");
    if (kind != "gpt2" || cut != "smollm" || tokens == nullptr || merges == nullptr)
      posenc::detail::fail<posenc::format_error>("this example knows gpt2 vocabularies cut as smollm, not ",
                                                 kind, " cut as ", cut);
    tokens_ = *tokens;
    for (std::size_t n = 0; n < tokens_.size(); ++n) ids_.emplace(tokens_[n], static_cast<token>(n));
    for (std::size_t n = 0; n < merges->size(); ++n) ranks_.emplace((*merges)[n], n);
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"})
      if (const auto id = file.integer(key)) ends_.push_back(static_cast<token>(*id));
    if (const auto found = ids_.find("<|endoftext|>"); found != ids_.end()) ends_.push_back(found->second);
    // Printable bytes stand for themselves, the others for the code points from 256 on.
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      append_utf8(letter_of_[byte], printable ? byte : next++);
      byte_of_.emplace(letter_of_[byte], static_cast<char>(byte));
    }
  }

  [[nodiscard]] std::vector<token> encode(std::string_view text) const {
    std::vector<token> result;
    while (!text.empty()) {
      // Each digit is cut out first; the regular expression then sees only what lies between digits.
      std::size_t end = 0;
      while (end < text.size() && kind_at(text, end) != character::digit) end += length_at(text, end);
      if (end == 0) end = length_at(text, 0);
      for (std::string_view rest = text.substr(0, end); !rest.empty();) {
        const std::size_t word = word_length(rest);
        append_word(rest.substr(0, word), result);
        rest.remove_prefix(word);
      }
      text.remove_prefix(end);
    }
    return result;
  }

  /// Is this the token that ends a text, or a turn in a conversation?
  [[nodiscard]] bool is_end(token id) const noexcept {
    return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
  }

  [[nodiscard]] std::string decode(token id) const {
    std::string bytes;
    const std::string& letters = tokens_.at(static_cast<std::size_t>(id));
    for (std::size_t n = 0; n < letters.size(); n += length_at(letters, n)) {
      const auto found = byte_of_.find(letters.substr(n, length_at(letters, n)));
      if (found != byte_of_.end()) bytes += found->second;
    }
    return bytes;
  }

 private:
  [[nodiscard]] static std::size_t length_at(std::string_view text, std::size_t n) noexcept {
    const auto lead = static_cast<unsigned char>(text[n]);
    const std::size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return (std::min)(length, text.size() - n);
  }

  /// Beyond ASCII a character is a letter unless it stands in a block of punctuation, symbols or spaces:
  /// right for the scripts of Europe and East Asia, short of the full tables of Unicode.
  [[nodiscard]] static character kind_at(std::string_view text, std::size_t n) noexcept {
    const auto lead = static_cast<unsigned char>(text[n]);
    if (lead >= '0' && lead <= '9') return character::digit;
    if (lead == ' ' || (lead >= '\t' && lead <= '\r')) return character::space;
    if (lead < 0x80) {
      const bool is_letter = (lead >= 'a' && lead <= 'z') || (lead >= 'A' && lead <= 'Z');
      return is_letter ? character::letter : character::other;
    }
    const std::size_t length = length_at(text, n);
    unsigned code = length == 2 ? lead & 0x1Fu : length == 3 ? lead & 0x0Fu : lead & 0x07u;
    for (std::size_t i = 1; i < length; ++i)
      code = code << 6 | (static_cast<unsigned char>(text[n + i]) & 0x3Fu);
    if (code == 0x85 || code == 0xA0 || (code >= 0x2000 && code <= 0x200A) || code == 0x3000 ||
        code == 0x202F)
      return character::space;
    const bool symbol = (code < 0xC0 && code != 0xAA && code != 0xB5 && code != 0xBA) || code == 0xD7 ||
                        code == 0xF7 || (code >= 0x2010 && code <= 0x2BFF) ||
                        (code >= 0x3001 && code <= 0x303F) || (code >= 0xFF01 && code <= 0xFF20) ||
                        code >= 0x1F000;
    return symbol ? character::other : character::letter;
  }

  /// How many bytes of `text` the first match of GPT-2's regular expression takes:
  /// 's|'t|'re|'ve|'m|'ll|'d| ?letters| ?digits| ?others|spaces(?!non-space)|spaces
  [[nodiscard]] static std::size_t word_length(std::string_view text) noexcept {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(0, ending.size()) == ending) return ending.size();
    const std::size_t start = text[0] == ' ' && text.size() > 1 ? 1 : 0;
    const character kind = kind_at(text, start);
    if (kind != character::space) {
      std::size_t end = start;
      while (end < text.size() && kind_at(text, end) == kind) end += length_at(text, end);
      return end;
    }
    std::size_t end = 0, last = 0;
    while (end < text.size() && kind_at(text, end) == character::space)
      last = end, end += length_at(text, end);
    return end == text.size() || last == 0 ? end : last;  // the last space belongs to the word after it
  }

  /// Merges the pair that the vocabulary merged first, until there is none.
  void append_word(std::string_view word, std::vector<token>& into) const {
    std::vector<std::string> parts;
    for (const char c : word) parts.push_back(letter_of_[static_cast<unsigned char>(c)]);
    while (parts.size() > 1) {
      std::size_t best = 0, best_rank = (std::numeric_limits<std::size_t>::max)();
      for (std::size_t n = 0; n + 1 < parts.size(); ++n) {
        const auto found = ranks_.find(parts[n] + ' ' + parts[n + 1]);
        if (found != ranks_.end() && found->second < best_rank) best = n, best_rank = found->second;
      }
      if (best_rank == (std::numeric_limits<std::size_t>::max)()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    for (const std::string& part : parts) {
      const auto found = ids_.find(part);
      if (found == ids_.end()) posenc::detail::fail<posenc::format_error>("no token for ", part);
      into.push_back(found->second);
    }
  }

  std::vector<std::string> tokens_;
  std::vector<token> ends_;
  std::unordered_map<std::string, token> ids_;
  std::unordered_map<std::string, std::size_t> ranks_;
  std::array<std::string, 256> letter_of_;
  std::unordered_map<std::string, char> byte_of_;
};

}  // namespace llama
