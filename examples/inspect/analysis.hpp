// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --analyse: what is computed for each encoding of a model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <posenc/analysis.hpp>

#include "view.hpp"

namespace inspect {

/// The frequencies of one encoding, seen at one length.
struct frequency_analysis {
  posenc::index_t pairs = 0;
  double attention_factor = 1;
  bool is_embedding = false;  ///< sinusoidal: added to tokens, not rotating scores
  posenc::position trained = 0;
  std::vector<posenc::pair_coverage> coverage{}, coverage_unscaled{};
  posenc::collision_report collisions{};     ///< the fastest pair first, at powers of two up to the length
  posenc::collision_counts slowest_first{};  ///< `together` alone
  posenc::code_distance closest{}, closest_far{};
  std::optional<posenc::position> repetition{};  ///< of all pairs within `tolerance`
  posenc::position searched = 0;                 ///< to this offset
  std::vector<posenc::resolution> resolutions{};
  std::vector<std::optional<std::uint64_t>>
      look_alikes{};  ///< beside each resolution, where its distance is in the length
  std::vector<posenc::entropy_at> entropy{}, entropy_without_factor{};

  static constexpr double tolerance = 1.0 / 12;        ///< of a turn: 30 degrees
  static constexpr posenc::position far_offset = 256;  ///< from which codes count as far from each other

  /// The number of pairs, in the order given, after which no two positions are left with equal codes; 0 if some always are.
  [[nodiscard]] static std::size_t pairs_needed(const posenc::collision_counts& counts) {
    for (std::size_t n = 0; n < counts.together.size(); ++n)
      if (counts.together[n] == 0) return n + 1;
    return 0;
  }
};

/// One head of ALiBi.
struct head_analysis {
  double slope = 0;
  posenc::bias_horizon horizon{};
};

/// One encoding at one length.
struct encoding_analysis {
  std::string title{};  ///< of its model
  std::string layer_type{};
  posenc::encoding_kind kind = posenc::encoding_kind::none;
  posenc::position length = 0;
  posenc::code_storage storage = posenc::code_storage::bfloat16;
  std::optional<frequency_analysis> frequencies{};
  std::vector<head_analysis> heads{};            ///< ALiBi
  std::optional<posenc::position> saturation{};  ///< T5: from here on all distances are one
  std::optional<posenc::position>
      table_positions{};  ///< learned, or a sinusoidal table: positions that there are
};

/// \param trained the codes' ladder as it was trained, within `trained_length` tokens
[[nodiscard]] inline frequency_analysis analyse_frequencies(const posenc::rotation_codes& codes,
                                                            std::span<const posenc::phase> trained,
                                                            posenc::position trained_length,
                                                            posenc::code_storage storage, bool is_embedding) {
  using posenc::position;
  const position length = codes.length();
  frequency_analysis result;
  result.pairs = codes.components();
  result.attention_factor = codes.by().attention_factor;
  result.is_embedding = is_embedding;
  result.trained = trained_length;
  if (result.pairs == 0) return result;
  result.coverage = posenc::coverage_report(trained, trained_length, codes.phases(), length);
  result.coverage_unscaled = posenc::coverage_report(trained, trained_length, trained, length);

  std::vector<position> lengths;
  for (position one = 256; one < length; one *= 2) lengths.push_back(one);
  lengths.push_back(length);
  result.collisions = posenc::stored_collisions(codes, storage, {.lengths = lengths});
  std::vector<posenc::index_t> slowest_first;
  for (posenc::index_t pair = result.pairs; pair-- > 0;) slowest_first.push_back(pair);
  result.slowest_first =
      posenc::stored_collisions(codes, storage, {.lengths = {}, .order = slowest_first, .alone = false})
          .total();

  if (length > 1) result.closest = posenc::closest_codes(codes);
  if (length > frequency_analysis::far_offset + 1)
    result.closest_far = posenc::closest_codes(codes, frequency_analysis::far_offset);
  double slowest = 1;
  for (const posenc::phase& per_token : codes.phases())
    if (const double turns = posenc::detail::turns_of(per_token); turns > 0)
      slowest = (std::min)(slowest, turns);
  result.searched = static_cast<position>((std::min)(0x1p40, 1e5 / slowest));
  // Where no pair has left the tolerance yet, nothing has come back.
  position departed = 1;
  while (departed < result.searched &&
         posenc::first_near_repetition(codes.phases(), frequency_analysis::tolerance, departed, departed))
    ++departed;
  result.repetition =
      posenc::first_near_repetition(codes.phases(), frequency_analysis::tolerance, departed, result.searched);

  constexpr std::pair<position, position> places[] = {{10, 1},      {1000, 1},     {1000, 10},
                                                      {10'000, 10}, {100'000, 10}, {100'000, 100}};
  for (const auto& [distance, step] : places) {
    result.resolutions.push_back(posenc::resolution_at(codes, distance, step, storage));
    const bool is_inside = distance + step < length;
    result.look_alikes.push_back(is_inside ? std::optional(posenc::look_alikes(codes, distance, step))
                                           : std::nullopt);
  }
  if (is_embedding) return result;
  std::vector<position> entropy_lengths;
  for (position one = 1024; one < length; one *= 2) entropy_lengths.push_back(one);
  entropy_lengths.push_back(length);
  result.entropy = posenc::attention_entropy(codes, entropy_lengths);
  if (result.attention_factor != 1) {
    posenc::rotation without = codes.by();
    without.attention_factor = 1;
    result.entropy_without_factor =
        posenc::attention_entropy(posenc::rotation_codes(without, length), entropy_lengths);
  }
  return result;
}

/// Longer sequences would take gigabytes and minutes.
inline constexpr double longest_analysis = 0x1p26;

/// All encodings of a model at a length: the one asked for, or else the model's context length.
[[nodiscard]] inline std::vector<encoding_analysis> analyse(const model_view& view,
                                                            std::optional<posenc::position> asked,
                                                            posenc::code_storage storage) {
  std::vector<encoding_analysis> result;
  const posenc::position length = asked.value_or(view.model.context_length.value_or(4096));
  posenc::detail::require(length >= 1 && static_cast<double>(length) <= longest_analysis,
                          "--analyse: a length of ", length, " tokens is not between 1 and ",
                          longest_analysis, "; say another with --length");
  for (const encoding_view& one : view.encodings) {
    encoding_analysis here{.title = view.title,
                           .layer_type = one.description.layer_type,
                           .kind = one.description.kind(),
                           .length = length,
                           .storage = storage};
    const auto& parameters = one.description.parameters;
    if (one.rope) {
      const posenc::rope_description& rope = one.description.rope();
      posenc::rope_options exact = rope.options;
      exact.angles = posenc::angle_mode::exact;
      const double stated = trained_length(rope);
      const posenc::position trained =
          stated >= 1 && stated <= longest_analysis ? static_cast<posenc::position>(stated) : length;
      const posenc::rope<double> plain(exact);
      posenc::rotation by = one.rope->lowered();
      by.framework_frequencies.clear();
      here.frequencies = analyse_frequencies(posenc::rotation_codes(std::move(by), length),
                                             plain.lowered().phase_per_token, trained, storage, false);
    } else if (const auto* waves = std::get_if<posenc::sinusoidal_description>(&parameters)) {
      const posenc::sinusoidal<double> made(waves->options);
      if (waves->rows > 0) here.table_positions = waves->rows;
      if (made.pairs() == made.width() / 2)
        here.frequencies =
            analyse_frequencies(posenc::rotation_codes(made, length), made.phases(),
                                waves->rows > 0 ? posenc::position{waves->rows} : length, storage, true);
    } else if (const auto* alibi = std::get_if<posenc::alibi_description>(&parameters)) {
      const auto made = alibi->make();
      for (posenc::index_t head = 0; head < made.heads(); ++head)
        here.heads.push_back({made.slopes()[static_cast<std::size_t>(head)],
                              posenc::bias_horizon_of(made, static_cast<int>(head), storage)});
    } else if (const auto* t5 = std::get_if<posenc::t5_description>(&parameters)) {
      here.saturation = posenc::t5_buckets(t5->buckets).thresholds().back();
    } else if (const auto* learned = std::get_if<posenc::learned_description>(&parameters)) {
      here.table_positions = learned->rows - learned->row_offset;
    }
    result.push_back(std::move(here));
  }
  return result;
}

}  // namespace inspect
