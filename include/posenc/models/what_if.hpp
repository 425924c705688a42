// SPDX-License-Identifier: MIT
/// \file
/// Context-extension schemes written on a command line: "yarn:factor=4,original=32768".
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/scaling.hpp>

namespace posenc::inline v0_2 {

namespace detail {

/// The numbers of "name=1,other=2", each of which has to be read.
class what_if_numbers {
 public:
  what_if_numbers(std::string_view scheme, std::string_view list) : scheme_(scheme) {
    while (!list.empty()) {
      const std::string_view item = list.substr(0, list.find(','));
      list.remove_prefix((std::min)(item.size() + 1, list.size()));
      const std::size_t equals = item.find('=');
      require(equals != std::string_view::npos && equals > 0, "scaling ", scheme_, ": ", item,
              " is not of the form name=number");
      const std::string_view digits = item.substr(equals + 1);
      double value = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      require(error == std::errc{} && end == digits.data() + digits.size() && !digits.empty(), "scaling ",
              scheme_, ": ", digits, " is not a number");
      require(numbers_.emplace(std::string(item.substr(0, equals)), value).second, "scaling ", scheme_, ": ",
              item.substr(0, equals), " is given twice");
    }
  }

  [[nodiscard]] std::optional<double> take(const std::string& name) {
    known_ += (known_.empty() ? "" : ", ") + name;
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) return std::nullopt;
    const double value = found->second;
    numbers_.erase(found);
    return value;
  }
  [[nodiscard]] double needed(const std::string& name) {
    const auto value = take(name);
    require(value.has_value(), "scaling ", scheme_, " needs ", name);
    return *value;
  }
  /// \throws std::invalid_argument when a number was given that nothing reads.
  void done() const {
    require(numbers_.empty(), "scaling ", scheme_, " does not know ", numbers_.begin()->first, "; it knows ",
            known_.empty() ? "no numbers" : known_);
  }

 private:
  std::string_view scheme_;
  std::map<std::string, double> numbers_;
  std::string known_;
};

}  // namespace detail

/// A scaling from its name and numbers:
///
///     none
///     linear:factor=4
///     theta:factor=4                                     theta_scaling, fixed NTK
///     dynamic:factor=4[,original=4096]
///     yarn:factor=4[,original=4096][,attention_factor=1][,beta_fast=32][,beta_slow=1][,truncate=0]
///     llama3:factor=8,low=1,high=4[,original=8192]
///
/// \param trained_context stands for `original` where that is left out
/// \throws std::invalid_argument when the name or a number is not known, missing or malformed. Whether the
/// numbers make sense is for the scheme to say.
[[nodiscard]] inline any_scaling parse_scaling(std::string_view text,
                                               std::optional<position> trained_context = std::nullopt) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  detail::what_if_numbers numbers(name, colon == std::string_view::npos ? "" : text.substr(colon + 1));
  const auto original = [&] {
    const auto stated = numbers.take("original");
    if (stated) return *stated;
    detail::require(trained_context.has_value(), "scaling ", name, " needs original, the trained length");
    return static_cast<double>(*trained_context);
  };
  any_scaling result;
  if (name == "linear") {
    result = position_interpolation{.factor = numbers.needed("factor")};
  } else if (name == "theta") {
    result = theta_scaling{.factor = numbers.needed("factor")};
  } else if (name == "dynamic") {
    dynamic_ntk scheme;
    scheme.factor = numbers.needed("factor");
    scheme.max_context = original();
    result = scheme;
  } else if (name == "yarn") {
    yarn scheme;
    scheme.factor = numbers.needed("factor");
    scheme.original_context = original();
    scheme.attention_factor = numbers.take("attention_factor");
    scheme.beta_fast = numbers.take("beta_fast").value_or(scheme.beta_fast);
    scheme.beta_slow = numbers.take("beta_slow").value_or(scheme.beta_slow);
    scheme.truncate = numbers.take("truncate").value_or(1) != 0;
    result = scheme;
  } else if (name == "llama3") {
    llama3 scheme;
    scheme.factor = numbers.needed("factor");
    scheme.low_freq_factor = numbers.needed("low");
    scheme.high_freq_factor = numbers.needed("high");
    scheme.original_context = original();
    result = scheme;
  } else {
    detail::require(name == "none", "scaling ", name,
                    " is not known; known are none, linear, theta, dynamic, yarn, llama3");
  }
  numbers.done();
  return result;
}

}  // namespace posenc::inline v0_2
