// SPDX-License-Identifier: MIT
/// \file
/// How many pairs of positions have equal codes once the codes are stored: by each component alone, and together as one
/// component after the other is added.
///
///     const posenc::rotation_codes codes(rope, 131'072);
///     const auto report = posenc::stored_collisions(codes, posenc::code_storage::bfloat16);
///     report.total().alone[63];       // pairs of positions that the slowest pair alone cannot tell apart
///     report.total().together.back(); // … and that nothing can
///
/// All counts are exact. Positions are put into classes of equal stored numbers, and each further component splits the
/// classes; a position that is alone in its class never comes back. That takes O(length) hash look-ups for each component and
/// no memory for codes.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/analysis/code_storage.hpp>
#include <posenc/analysis/codes.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>

namespace posenc::inline v0_2 {

/// Colliding pairs among the positions 0 … length−1.
struct collision_counts {
  position length = 0;                    ///< positions 0 … length − 1 were compared
  std::vector<std::uint64_t> alone{};     ///< [n]: pairs equal in component order[n]
  std::vector<std::uint64_t> together{};  ///< [n]: pairs equal in components order[0] … order[n]

  /// length·(length − 1)/2.
  [[nodiscard]] double pairs() const noexcept {
    return static_cast<double>(length) * static_cast<double>(length - 1) / 2;
  }
  /// The share of all pairs of positions that components 0 … n cannot tell apart.
  [[nodiscard]] double chance_together(std::size_t n) const noexcept {
    return length < 2 ? 0 : static_cast<double>(together[n]) / pairs();
  }
  /// What that share would be if components were independent hashes: the product of their own shares.
  [[nodiscard]] double chance_if_independent(std::size_t n) const noexcept {
    double product = length < 2 ? 0 : 1;
    for (std::size_t k = 0; k <= n && length >= 2; ++k) product *= static_cast<double>(alone[k]) / pairs();
    return product;
  }
};

/// Collisions for one length or several.
struct collision_report {
  code_storage storage = code_storage::float32;  ///< the type that numbers were rounded to
  std::vector<index_t> order{};                  ///< the components in the order in which they were added
  std::vector<collision_counts> by_length{};     ///< ascending
  /// The first position that has the code of an earlier one, and that one (the smaller first); nothing where all codes differ.
  std::optional<std::pair<position, position>> first{};

  /// The counts of the longest length.
  [[nodiscard]] const collision_counts& total() const { return by_length.back(); }
};

namespace detail {

/// Gives equal keys equal numbers, counted from 0 in the order in which they appear, and counts them.
class class_numbers {
 public:
  /// Forgets all keys and keeps the memory.
  void clear() {
    std::fill(slots_.begin(), slots_.end(), slot{});
    counts_.clear();
  }
  /// The number of a key; it has been seen counts()[number] − 1 times before.
  [[nodiscard]] std::uint32_t number_of(std::uint64_t code, std::uint32_t parent) {
    if (!counts_.empty() && code == last_code_ && parent == last_parent_) return count(last_);
    last_code_ = code, last_parent_ = parent;
    if (2 * (counts_.size() + 1) > slots_.size()) grow();
    slot& found = slot_of(code, parent);
    if (found.number_and_one == 0) {
      counts_.push_back(0);
      found = {code, parent, static_cast<std::uint32_t>(counts_.size())};
    }
    return count(last_ = found.number_and_one - 1);
  }
  [[nodiscard]] const std::vector<std::uint32_t>& counts() const noexcept { return counts_; }

 private:
  struct slot {
    std::uint64_t code = 0;
    std::uint32_t parent = 0;
    std::uint32_t number_and_one = 0;
  };

  std::uint32_t count(std::uint32_t number) noexcept {
    ++counts_[number];
    return number;
  }
  [[nodiscard]] slot& slot_of(std::uint64_t code, std::uint32_t parent) noexcept {
    std::uint64_t mixed = (code ^ (std::uint64_t{parent} * 0x9e37'79b9'7f4a'7c15u)) * 0xff51'afd7'ed55'8ccdu;
    mixed = (mixed ^ (mixed >> 32)) * 0xc4ce'b9fe'1a85'ec53u;
    std::size_t at = static_cast<std::size_t>(mixed >> 32) & (slots_.size() - 1);
    while (slots_[at].number_and_one != 0 && !(slots_[at].code == code && slots_[at].parent == parent))
      at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    std::vector<slot> old((std::max)(std::size_t{64}, 2 * slots_.size()));
    old.swap(slots_);
    for (const slot& one : old)
      if (one.number_and_one != 0) slot_of(one.code, one.parent) = one;
  }

  std::vector<slot> slots_;
  std::vector<std::uint32_t> counts_;
  std::uint64_t last_code_ = 0;
  std::uint32_t last_parent_ = 0, last_ = 0;
};

/// Adds up pairs along ascending positions and notes the sum at each of some lengths.
class pairs_by_length {
 public:
  explicit pairs_by_length(const std::vector<collision_counts>& lengths) : lengths_(lengths) {}
  /// A position joins `others` equal ones. Positions come in ascending order.
  void add(position p, std::uint64_t others) {
    note_up_to(p);
    pairs_ += others;
  }
  [[nodiscard]] std::vector<std::uint64_t> finish() {
    note_up_to((std::numeric_limits<position>::max)());
    return std::move(noted_);
  }

 private:
  void note_up_to(position p) {
    while (noted_.size() < lengths_.size() && lengths_[noted_.size()].length <= p) noted_.push_back(pairs_);
  }

  const std::vector<collision_counts>& lengths_;
  std::vector<std::uint64_t> noted_;
  std::uint64_t pairs_ = 0;
};

/// Calls visit(position, bits) for all positions, ascending, with the stored numbers of one component as 64 bits.
template <position_codes C, class Visit>
void each_stored_code(const C& codes, index_t component, code_storage storage, const Visit& visit) {
  const auto bits_of = [storage](double a, double b) {
    return (std::uint64_t{stored_bits(a, storage)} << 32) | stored_bits(b, storage);
  };
  const auto exact = [&](position p) {
    const code_point at = codes.at(component, p);
    return bits_of(at[0], at[1]);
  };
  const position length = codes.length();
  if constexpr (std::same_as<C, rotation_codes>) {
    if (codes.depends_on_offset_only()) {
      // Complex products from an exact start every `block` positions, off by less than `error`. Where rounding could go either
      // way within that, the number is computed exactly, so that the bits are those of codes.at().
      constexpr position block = 128;
      const double m = codes.by().attention_factor, error = 1e-13 * m;
      const phase per_token = codes.phases()[static_cast<std::size_t>(component)];
      const auto [step_cos, step_sin] = cos_sin_of<double>(per_token);
      for (position start = 0; start < length; start += block) {
        auto [c, s] = cos_sin_of<double>(per_token * start);
        c *= m, s *= m;
        for (position p = start; p < (std::min)(length, start + block); ++p) {
          const std::uint64_t low = bits_of(c - error, s - error), high = bits_of(c + error, s + error);
          visit(p, low == high ? low : exact(p));
          const double next = c * step_cos - s * step_sin;
          s = s * step_cos + c * step_sin;
          c = next;
        }
      }
      return;
    }
  }
  for (position p = 0; p < length; ++p) visit(p, exact(p));
}

}  // namespace detail

/// What to count.
struct collision_options {
  std::vector<position> lengths{};  ///< ascending, at most the codes' length; that alone if empty
  std::vector<index_t> order{};     ///< of the components; 0, 1, … if empty (the fastest pair first)
  bool alone = true;  ///< also by each component alone; false is faster and leaves `alone` empty
};

/// Counts equal stored codes.
/// \throws std::invalid_argument when there are more than 2^31 positions, or a length or a component is none of the codes'.
template <position_codes C>
[[nodiscard]] collision_report stored_collisions(const C& codes, code_storage storage,
                                                 const collision_options& options = {}) {
  const position length = codes.length();
  const index_t components = codes.components();
  detail::require(length <= (position{1} << 31), "stored_collisions: ", length,
                  " positions are more than 2^31");
  collision_report report{.storage = storage, .order = options.order};
  if (report.order.empty()) {
    report.order.resize(static_cast<std::size_t>(components));
    std::iota(report.order.begin(), report.order.end(), index_t{0});
  }
  for (const index_t component : report.order)
    detail::require(component >= 0 && component < components, "stored_collisions: component ", component,
                    " of ", components);
  for (const position one : options.lengths.empty() ? std::vector<position>{length} : options.lengths) {
    detail::require(one >= 1 && one <= length, "stored_collisions: length ", one, " of codes for ", length);
    detail::require(report.by_length.empty() || report.by_length.back().length < one,
                    "stored_collisions: lengths must ascend, ", one, " does not");
    report.by_length.push_back({.length = one});
  }

  const auto positions_count = static_cast<std::size_t>(length);
  std::vector<std::uint32_t> class_of(positions_count, 0);  // under the components so far
  std::vector<std::uint32_t> undecided(positions_count);    // positions that share their class
  std::iota(undecided.begin(), undecided.end(), std::uint32_t{0});
  std::vector<std::uint64_t> code(positions_count);
  detail::class_numbers own, joint;
  for (const index_t component : report.order) {
    if (!options.alone && undecided.empty()) {
      for (collision_counts& counts : report.by_length) counts.together.push_back(0);
      continue;
    }
    own.clear(), joint.clear();
    detail::pairs_by_length alone(report.by_length), together(report.by_length);
    detail::each_stored_code(codes, component, storage, [&](position p, std::uint64_t bits) {
      code[static_cast<std::size_t>(p)] = bits;
      if (options.alone) alone.add(p, own.counts()[own.number_of(bits, 0)] - 1);
    });
    for (const std::uint32_t n : undecided) {
      class_of[n] = joint.number_of(code[n], class_of[n]);
      together.add(static_cast<position>(n), joint.counts()[class_of[n]] - 1);
    }
    std::erase_if(undecided, [&](std::uint32_t n) { return joint.counts()[class_of[n]] == 1; });
    const auto alone_by_length = alone.finish(), together_by_length = together.finish();
    for (std::size_t l = 0; l < report.by_length.size(); ++l) {
      if (options.alone) report.by_length[l].alone.push_back(alone_by_length[l]);
      report.by_length[l].together.push_back(together_by_length[l]);
    }
  }

  std::vector<std::int64_t> first_of_class;
  for (const std::uint32_t n : undecided) {
    if (class_of[n] >= first_of_class.size()) first_of_class.resize(std::size_t{class_of[n]} + 1, -1);
    std::int64_t& first = first_of_class[class_of[n]];
    if (first >= 0) {
      report.first = {first, static_cast<position>(n)};
      break;
    }
    first = n;
  }
  return report;
}

}  // namespace posenc::inline v0_2
