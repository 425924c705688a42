// SPDX-License-Identifier: MIT
/// \file
/// The words of a command line: options with a value ("--tokens 20"), flags, and the rest in their order.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <posenc/errors.hpp>

namespace llama {

class arguments {
 public:
  /// \throws std::invalid_argument for an option that is not known or lacks its value
  arguments(const std::vector<std::string>& line, const std::vector<std::string>& options,
            const std::vector<std::string>& flags) {
    const auto among = [](const std::vector<std::string>& known, const std::string& word) {
      return std::find(known.begin(), known.end(), word) != known.end();
    };
    for (std::size_t n = 0; n < line.size(); ++n) {
      if (line[n].rfind("--", 0) != 0) {
        rest_.push_back(line[n]);
      } else if (among(flags, line[n])) {
        values_[line[n]] = "";
      } else {
        posenc::detail::require(among(options, line[n]), "option ", line[n], " is not known; see --help");
        posenc::detail::require(n + 1 < line.size(), line[n], " needs a value");
        values_[line[n]] = line[n + 1];
        ++n;
      }
    }
  }

  /// Word `n` of those that are no options.
  [[nodiscard]] const std::string& word(std::size_t n, const char* what) const {
    posenc::detail::require(n < rest_.size(), what, " is missing; see --help");
    return rest_[n];
  }
  [[nodiscard]] bool has(const std::string& flag) const { return values_.count(flag) > 0; }
  [[nodiscard]] std::optional<std::string> text(const std::string& option) const {
    const auto found = values_.find(option);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  /// A number from 1 on.
  [[nodiscard]] std::optional<int> count(const std::string& option) const {
    const auto digits = text(option);
    if (!digits) return std::nullopt;
    int value = 0;
    const char* const last = digits->data() + digits->size();
    const auto [end, error] = std::from_chars(digits->data(), last, value);
    posenc::detail::require(error == std::errc{} && end == last && value >= 1, option, ": ", *digits,
                            " is not a count");
    return value;
  }

 private:
  std::vector<std::string> rest_;
  std::map<std::string, std::string> values_;
};

}  // namespace llama
