// SPDX-License-Identifier: MIT
/// \file
/// Names like a given one, for sentences that refuse it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace posenc::inline v0_2::detail {

/// Insertions, deletions and changes of letters between two names (Levenshtein).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = (std::min)({row[j] + 1, row[j - 1] + 1, changed});
    }
  }
  return row[b.size()];
}

/// The `count` of `known` that are nearest to `name`, nearest first; the name is cut to what a name can be.
[[nodiscard]] inline std::vector<std::string_view> nearest_names(std::string_view name,
                                                                 const std::vector<std::string_view>& known,
                                                                 std::size_t count) {
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (const std::string_view one : known) ranked.emplace_back(edit_distance(name.substr(0, 64), one), one);
  count = (std::min)(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count), ranked.end());
  std::vector<std::string_view> names;
  for (std::size_t n = 0; n < count; ++n) names.push_back(ranked[n].second);
  return names;
}

}  // namespace posenc::inline v0_2::detail
