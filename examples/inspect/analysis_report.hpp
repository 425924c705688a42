// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --analyse: the findings as sentences, then tables; the same as JSON.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "analysis.hpp"
#include "json_report.hpp"

namespace inspect {

namespace detail {

[[nodiscard]] inline std::string number(double value) {
  char digits[48];
  std::snprintf(digits, sizeof digits, "%.3g", value);
  return digits;
}
[[nodiscard]] inline std::string number(posenc::position value) { return std::to_string(value); }
[[nodiscard]] inline std::string percent(double share) { return number(100 * share) + " %"; }

/// "3, 5-9" of the pairs for which `is` holds.
template <class Is>
[[nodiscard]] std::string pairs_where(std::size_t count, const Is& is) {
  std::vector<posenc::index_t> found;
  for (std::size_t p = 0; p < count; ++p)
    if (is(p)) found.push_back(static_cast<posenc::index_t>(p));
  return ranges(found);
}

inline void coverage_findings(std::vector<std::string>& out, const frequency_analysis& f,
                              posenc::position length) {
  const auto unseen = posenc::unseen_pairs(f.coverage), unscaled = posenc::unseen_pairs(f.coverage_unscaled);
  std::string sentence = "at " + number(length) + " tokens, " + std::to_string(unseen) + " of " +
                         std::to_string(f.pairs) + " pairs enter phases never trained (within " +
                         number(f.trained) + " tokens)";
  if (unseen > 0) {
    sentence +=
        ": pairs " + pairs_where(f.coverage.size(), [&](std::size_t p) { return f.coverage[p].is_unseen(); });
    const auto worst = std::max_element(f.coverage.begin(), f.coverage.end(),
                                        [](const auto& a, const auto& b) { return a.unseen() < b.unseen(); });
    sentence += "; pair " + std::to_string(worst - f.coverage.begin()) + " has seen " + percent(worst->seen) +
                " of its circle and uses " + percent(worst->used);
  }
  if (unscaled != unseen) sentence += "; without the scaling it would be " + std::to_string(unscaled);
  out.push_back(sentence + ".");
}

inline void collision_findings(std::vector<std::string>& out, const frequency_analysis& f,
                               const encoding_analysis& at) {
  const posenc::collision_counts& all = f.collisions.total();
  const std::string storage = posenc::name_of(at.storage);
  const std::size_t fast = frequency_analysis::pairs_needed(all),
                    slow = frequency_analysis::pairs_needed(f.slowest_first);
  std::string sentence = std::to_string(all.together.back()) + " of " + number(all.pairs()) +
                         " pairs of positions have equal codes in " + storage;
  if (f.collisions.first)
    sentence +=
        ", the first " + number(f.collisions.first->first) + " and " + number(f.collisions.first->second);
  if (fast > 0)
    sentence += "; the fastest " + std::to_string(fast) +
                (fast == 1 ? " frequency tells" : " frequencies tell") +
                " all apart, the slowest first it takes " + std::to_string(slow);
  out.push_back(sentence + ".");
  const auto most = std::max_element(all.alone.begin(), all.alone.end());
  if (*most > 0)
    out.push_back("alone, pair " + std::to_string(most - all.alone.begin()) + " confuses most: " +
                  percent(static_cast<double>(*most) / all.pairs()) + " of all pairs of positions.");
  if (at.length > 1)
    out.push_back("the nearest codes are " + number(f.closest.second) + " apart in position and " +
                  number(f.closest.distance) +
                  " in code (unrelated codes: " + number(std::sqrt(2.0) * f.attention_factor) + ")" +
                  (f.closest_far.distance > 0
                       ? "; of positions at least " + number(frequency_analysis::far_offset) +
                             " apart, those " + number(f.closest_far.second) + " apart, at " +
                             number(f.closest_far.distance)
                       : "") +
                  ".");
  out.push_back((f.repetition ? "all frequencies first come back to within 30 degrees after " +
                                    number(*f.repetition) + " tokens."
                              : "all frequencies together do not come back to within 30 degrees within " +
                                    number(static_cast<double>(f.searched)) + " tokens."));
}

inline void resolution_findings(std::vector<std::string>& out, const frequency_analysis& f,
                                posenc::code_storage storage) {
  using enum posenc::pair_state;
  for (const posenc::resolution& one : f.resolutions) {
    if (one.step * 1000 != one.distance) continue;  // 10000 against 10010, 100000 against 100100
    out.push_back(number(one.distance) + " against " + number(one.distance + one.step) + ": " +
                  std::to_string(one.count(carries)) + " pairs carry the difference, " +
                  std::to_string(one.count(wrapped)) + " are past their first turn, " +
                  std::to_string(one.count(unmoved)) + " do not move in " + posenc::name_of(storage) +
                  "; the codes are " + number(one.code_distance) + " apart, as at any other place.");
  }
}

inline void entropy_findings(std::vector<std::string>& out, const frequency_analysis& f) {
  if (f.entropy.size() < 2) return;
  const posenc::entropy_at &first = f.entropy.front(), &last = f.entropy.back();
  std::string sentence = "from " + number(first.length) + " to " + number(last.length) +
                         " tokens a head with scores of deviation 2 spreads from " + number(first.keys()) +
                         " to " + number(last.keys()) + " keys";
  if (!f.entropy_without_factor.empty())
    sentence += "; without the attention factor of " + number(f.attention_factor) + " it would be from " +
                number(f.entropy_without_factor.front().keys()) + " to " +
                number(f.entropy_without_factor.back().keys());
  out.push_back(sentence + ".");
}

}  // namespace detail

/// What a person should know, most telling first.
[[nodiscard]] inline std::vector<std::string> findings(const encoding_analysis& at) {
  using detail::number;
  std::vector<std::string> out;
  if (at.frequencies && at.frequencies->pairs > 0) {
    const frequency_analysis& f = *at.frequencies;
    detail::coverage_findings(out, f, at.length);
    detail::collision_findings(out, f, at);
    detail::resolution_findings(out, f, at.storage);
    detail::entropy_findings(out, f);
  }
  if (at.table_positions)
    out.push_back("the table has " + number(*at.table_positions) + " positions; " +
                  (at.length > *at.table_positions ? number(at.length - *at.table_positions) + " of " +
                                                         number(at.length) + " tokens have no vector."
                                                   : std::string("all tokens have a vector.")));
  if (at.saturation) {
    const double n = static_cast<double>(at.length),
                 beyond = (std::max)(n - static_cast<double>(*at.saturation), 0.0);
    out.push_back("from " + number(*at.saturation) + " tokens on all distances are one: " +
                  detail::percent(beyond * (beyond + 1) / (n * (n + 1))) + " of the keys that " +
                  number(at.length) + " tokens look back at.");
  }
  if (!at.heads.empty()) {
    const auto near_sighted = std::count_if(at.heads.begin(), at.heads.end(), [&](const head_analysis& head) {
      return head.horizon.rounded_away && *head.horizon.rounded_away < at.length;
    });
    const auto steepest = std::max_element(at.heads.begin(), at.heads.end(),
                                           [](const auto& a, const auto& b) { return a.slope < b.slope; });
    const auto flattest = std::max_element(at.heads.begin(), at.heads.end(),
                                           [](const auto& a, const auto& b) { return a.slope > b.slope; });
    const auto words_of = [](const std::optional<posenc::position>& d) {
      return d ? number(*d) : std::string("never");
    };
    out.push_back("of " + std::to_string(at.heads.size()) + " heads, " + std::to_string(near_sighted) +
                  " give equal keys beyond their horizon, within " + number(at.length) +
                  " tokens, less weight than " + posenc::name_of(at.storage) + " can add to 1.");
    out.push_back("the steepest head (slope " + number(steepest->slope) + ") sees " +
                  words_of(steepest->horizon.rounded_away) + " tokens, the flattest (slope " +
                  number(flattest->slope) + ") " + words_of(flattest->horizon.rounded_away) +
                  "; their weights become 0 at " + words_of(steepest->horizon.underflow) + " and " +
                  words_of(flattest->horizon.underflow) + ".");
  }
  if (at.kind == posenc::encoding_kind::none) out.push_back("no positions: all distances are one.");
  return out;
}

namespace detail {

inline void coverage_table(std::ostream& out, const std::vector<const encoding_analysis*>& beside) {
  char cell[80];
  std::size_t rows = 0;
  for (const auto* one : beside) rows = (std::max)(rows, one->frequencies->coverage.size());
  out << "\n  coverage: share of the circle seen in training and used; * unseen phases; colliding: share of "
         "pairs of "
         "positions that this\n  pair alone cannot tell apart\n  pair";
  for (std::size_t i = 0; i < beside.size(); ++i) {
    std::snprintf(cell, sizeof cell, "      [%zu] turns     seen     used    colliding", i + 1);
    out << cell;
  }
  out << '\n';
  for (std::size_t p = 0; p < rows; ++p) {
    std::snprintf(cell, sizeof cell, "  %4zu", p);
    out << cell;
    for (const auto* one : beside) {
      const frequency_analysis& f = *one->frequencies;
      if (p >= f.coverage.size()) {
        out << std::string(46, ' ');
        continue;
      }
      const posenc::pair_coverage& pair = f.coverage[p];
      const auto& all = f.collisions.total();
      std::snprintf(cell, sizeof cell, "%16.5g%8.2f%%%8.2f%%%c%12.3g", pair.turns, 100 * pair.seen,
                    100 * pair.used, pair.is_unseen() ? '*' : ' ',
                    static_cast<double>(all.alone[p]) / (std::max)(all.pairs(), 1.0));
      out << cell;
    }
    out << '\n';
  }
}

inline void resolution_table(std::ostream& out, const std::vector<const encoding_analysis*>& beside) {
  using enum posenc::pair_state;
  char cell[96];
  out << "\n  resolution: pairs that carry the difference, are wrapped, do not move when stored; distance of "
         "the codes; look "
         "alikes\n    distance    step";
  for (std::size_t i = 0; i < beside.size(); ++i) {
    std::snprintf(cell, sizeof cell, "   [%zu] carry  wrap unmoved   codes    alike", i + 1);
    out << cell;
  }
  out << '\n';
  for (std::size_t row = 0; row < beside.front()->frequencies->resolutions.size(); ++row) {
    const posenc::resolution& where = beside.front()->frequencies->resolutions[row];
    std::snprintf(cell, sizeof cell, "  %10lld%8lld", static_cast<long long>(where.distance),
                  static_cast<long long>(where.step));
    out << cell;
    for (const auto* one : beside) {
      const posenc::resolution& at = one->frequencies->resolutions[row];
      const auto& alike = one->frequencies->look_alikes[row];
      std::snprintf(cell, sizeof cell, "%12ld%6ld%8ld%8.4f%9s", static_cast<long>(at.count(carries)),
                    static_cast<long>(at.count(wrapped)), static_cast<long>(at.count(unmoved)),
                    at.code_distance, alike ? std::to_string(*alike).c_str() : "-");
      out << cell;
    }
    out << '\n';
  }
}

inline void hash_table(std::ostream& out, const encoding_analysis& one) {
  char cell[96];
  const posenc::collision_counts& all = one.frequencies->collisions.total();
  out << "\n  the hash argument: share of pairs of positions that the fastest n frequencies cannot tell "
         "apart, what independent "
         "hashes\n  would leave, and what the slowest n leave\n     n    fastest    as hashes    slowest\n";
  for (std::size_t n = 1; n <= all.together.size(); n = n < 4 ? n + 1 : 2 * n) {
    const double slow =
        static_cast<double>(one.frequencies->slowest_first.together[n - 1]) / (std::max)(all.pairs(), 1.0);
    std::snprintf(cell, sizeof cell, "  %4zu%11.3g%13.3g%11.3g\n", n, all.chance_together(n - 1),
                  all.chance_if_independent(n - 1), slow);
    out << cell;
  }
}

inline void entropy_table(std::ostream& out, const std::vector<const encoding_analysis*>& beside) {
  char cell[96];
  out << "\n  entropy in nats of a head whose scores have the deviation 2 and whose keys agree with the "
         "query by a quarter; "
         "without the\n  attention factor\n";
  for (std::size_t i = 0; i < beside.size(); ++i) {
    const frequency_analysis& f = *beside[i]->frequencies;
    for (std::size_t n = 0; n < f.entropy.size(); ++n) {
      std::snprintf(cell, sizeof cell, "  [%zu]%10lld tokens%9.3f", i + 1,
                    static_cast<long long>(f.entropy[n].length), f.entropy[n].entropy);
      out << cell;
      if (!f.entropy_without_factor.empty()) {
        std::snprintf(cell, sizeof cell, "%9.3f", f.entropy_without_factor[n].entropy);
        out << cell;
      }
      out << '\n';
    }
  }
}

}  // namespace detail

/// Findings of every encoding, then tables with the frequencies of all side by side.
inline void analysis_report(std::ostream& out, const std::vector<encoding_analysis>& all) {
  for (const encoding_analysis& one : all) {
    out << one.title << ", " << posenc::name_of(one.kind) << " on " << one.layer_type << " layers, "
        << one.length << " tokens, codes stored in " << posenc::name_of(one.storage) << ":\n";
    for (const std::string& sentence : findings(one)) out << "  - " << sentence << '\n';
    out << '\n';
  }
  std::vector<const encoding_analysis*> frequencies, rotating;
  for (const encoding_analysis& one : all) {
    if (!one.frequencies || one.frequencies->pairs == 0) continue;
    frequencies.push_back(&one);
    if (!one.frequencies->entropy.empty()) rotating.push_back(&one);
  }
  if (frequencies.empty()) return;
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    out << "  [" << i + 1 << "] " << frequencies[i]->title << ", " << frequencies[i]->layer_type << '\n';
  detail::resolution_table(out, frequencies);
  detail::hash_table(out, *frequencies.front());
  detail::coverage_table(out, frequencies);
  if (!rotating.empty()) detail::entropy_table(out, rotating);
}

namespace detail {

inline void write_frequencies(json_writer& out, const frequency_analysis& f) {
  out.member("attention_factor", f.attention_factor).member("trained_length", f.trained);
  out.member("unseen_pairs", posenc::unseen_pairs(f.coverage));
  out.member("unseen_pairs_without_scaling", posenc::unseen_pairs(f.coverage_unscaled));
  out.key("coverage").open('[');
  for (const posenc::pair_coverage& pair : f.coverage)
    out.open('{')
        .member("seen", pair.seen)
        .member("used", pair.used)
        .member("turns", pair.turns)
        .member("largest_gap", pair.largest_gap)
        .member("unseen", pair.is_unseen())
        .close('}');
  out.close(']');
  out.key("collisions").open('[');
  for (const posenc::collision_counts& counts : f.collisions.by_length) {
    out.open('{').member("length", counts.length);
    out.key("alone").list(std::span<const std::uint64_t>(counts.alone));
    out.key("together").list(std::span<const std::uint64_t>(counts.together)).close('}');
  }
  out.close(']');
  out.key("together_slowest_first").list(std::span<const std::uint64_t>(f.slowest_first.together));
  if (f.collisions.first)
    out.key("first_collision")
        .open('[')
        .value(f.collisions.first->first)
        .value(f.collisions.first->second)
        .close(']');
  out.key("closest")
      .open('{')
      .member("offset", f.closest.second)
      .member("distance", f.closest.distance)
      .close('}');
  out.key("closest_far").open('{').member("offset", f.closest_far.second);
  out.member("distance", f.closest_far.distance).close('}');
  out.key("near_repetition").open('{').member("tolerance_in_turns", frequency_analysis::tolerance);
  if (f.repetition) out.member("offset", *f.repetition);
  out.member("searched_to", f.searched).close('}');
  out.key("resolution").open('[');
  for (std::size_t row = 0; row < f.resolutions.size(); ++row) {
    using enum posenc::pair_state;
    const posenc::resolution& at = f.resolutions[row];
    out.open('{').member("distance", at.distance).member("step", at.step);
    out.member("carries", at.count(carries))
        .member("wrapped", at.count(wrapped))
        .member("unmoved", at.count(unmoved));
    out.member("code_distance", at.code_distance).member("stored_distance", at.stored_distance);
    out.member("score_change", at.score_change);
    if (f.look_alikes[row]) out.member("look_alikes", *f.look_alikes[row]);
    out.close('}');
  }
  out.close(']');
  out.key("entropy").open('[');
  for (std::size_t n = 0; n < f.entropy.size(); ++n) {
    out.open('{').member("length", f.entropy[n].length).member("nats", f.entropy[n].entropy);
    if (!f.entropy_without_factor.empty())
      out.member("nats_without_attention_factor", f.entropy_without_factor[n].entropy);
    out.close('}');
  }
  out.close(']');
}

}  // namespace detail

/// The findings and all numbers as one JSON object.
[[nodiscard]] inline std::string analysis_json(const std::vector<encoding_analysis>& all) {
  json_writer out;
  out.open('{').key("analysis").open('[');
  for (const encoding_analysis& one : all) {
    out.open('{')
        .member("file", std::string_view(one.title))
        .member("layer_type", std::string_view(one.layer_type));
    out.member("kind", posenc::name_of(one.kind)).member("length", one.length);
    out.member("storage", posenc::name_of(one.storage));
    out.key("findings").open('[');
    for (const std::string& sentence : findings(one)) out.value(std::string_view(sentence));
    out.close(']');
    if (one.frequencies && one.frequencies->pairs > 0) detail::write_frequencies(out, *one.frequencies);
    if (one.saturation) out.member("saturation_distance", *one.saturation);
    if (one.table_positions) out.member("table_positions", *one.table_positions);
    if (!one.heads.empty()) {
      out.key("heads").open('[');
      for (const head_analysis& head : one.heads) {
        out.open('{').member("slope", head.slope);
        if (head.horizon.rounded_away) out.member("rounded_away", *head.horizon.rounded_away);
        if (head.horizon.underflow) out.member("underflow", *head.horizon.underflow);
        out.close('}');
      }
      out.close(']');
    }
    out.close('}');
  }
  out.close(']').close('}');
  return out.text() + "\n";
}

}  // namespace inspect
