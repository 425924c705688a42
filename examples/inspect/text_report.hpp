// SPDX-License-Identifier: MIT
/// \file
/// What posenc-inspect prints for people.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "view.hpp"

namespace inspect {

namespace detail {

[[nodiscard]] inline std::string text(const char* format, double number) {
  char digits[64];
  std::snprintf(digits, sizeof digits, format, number);
  return digits;
}

inline void line(std::ostream& out, const char* name, const std::string& what) {
  char head[32];
  std::snprintf(head, sizeof head, "  %-18s", name);
  out << head << what << '\n';
}

inline void describe_rope(std::ostream& out, const encoding_view& view) {
  const posenc::rope_description& rope = view.description.rope();
  const posenc::index_t width = rope.shape().rotary_dim;
  std::string slice = std::to_string(width) + " of head_dim " + std::to_string(rope.options.head_dim);
  if (width < rope.options.head_dim)
    slice += ", channels " + std::to_string(rope.options.rotary_offset) + " to " +
             std::to_string(rope.options.rotary_offset + width - 1);
  line(out, "rotary width", slice);
  const bool half = rope.options.pairing == posenc::pairing::half_split;
  line(out, "pairing",
       half ? "half_split: channel p with p + " + std::to_string(width / 2)
            : std::string("interleaved: channel 2p with 2p + 1"));
  line(out, "base", text("%.10g", rope.options.base));
  std::string scaling = words(rope.scaling);
  if (!rope.frequency_divisors.empty()) scaling += "; frequencies divided by rope_freqs.weight";
  line(out, "scaling", scaling);
  if (view.length) line(out, "at length", std::to_string(*view.length) + " tokens (--length)");
  line(out, "attention factor",
       text("%.17g", view.rope->attention_factor()) + " on cos and sin of q and of k");
  if (rope.axis_of_pair.empty()) return;
  std::string axes;
  for (const int axis : rope.axis_of_pair) axes += "thwx"[axis];
  line(out, "axis of pair", axes);
}

inline void describe_other(std::ostream& out, const posenc::encoding_description& one) {
  if (const auto* alibi = std::get_if<posenc::alibi_description>(&one.parameters)) {
    const auto made = alibi->make();
    line(out, "slopes",
         std::to_string(made.heads()) + " heads, " + text("%.6g", made.slopes().front()) + " to " +
             text("%.6g", *std::min_element(made.slopes().begin(), made.slopes().end())) +
             (alibi->falcon_head_dim > 0 ? " (bfloat16, divided by sqrt(head_dim))" : ""));
  } else if (const auto* t5 = std::get_if<posenc::t5_description>(&one.parameters)) {
    const posenc::t5_buckets buckets(t5->buckets);
    line(out, "buckets",
         std::to_string(t5->buckets.buckets) +
             (t5->buckets.bidirectional ? ", both directions" : ", causal") + ", saturating at distance " +
             std::to_string(t5->buckets.max_distance) +
             (t5->table_per_layer ? ", a table for each layer" : ", the first layer's table serves all"));
    std::string starts;
    for (const posenc::position threshold : buckets.thresholds()) starts += " " + std::to_string(threshold);
    line(out, "bucket starts at", starts.substr(starts.empty() ? 0 : 1));
  } else if (const auto* learned = std::get_if<posenc::learned_description>(&one.parameters)) {
    line(out, "table",
         std::to_string(learned->rows) + " rows; position p uses row p + " +
             std::to_string(learned->row_offset) + "; positions beyond it have no vector");
  } else if (const auto* waves = std::get_if<posenc::sinusoidal_description>(&one.parameters)) {
    line(out, "sinusoids",
         std::string(posenc::name_of(waves->options.convention)) + " convention, width " +
             std::to_string(waves->options.width) + ", token t at position t + " +
             std::to_string(waves->position_offset));
  }
}

inline void describe_scores(std::ostream& out, const posenc::encoding_description& one) {
  if (one.softmax_scale) line(out, "softmax scale", text("%.17g", *one.softmax_scale));
  if (one.position_scale)
    line(out, "times, at query i",
         "1 + " + text("%.6g", one.position_scale->beta()) + " ln(1 + floor((i + " +
             std::to_string(one.position_scale->first()) + ")/" +
             text("%.10g", one.position_scale->interval()) + "))");
  if (one.softcap != 0) line(out, "softcap", text("%.6g", one.softcap));
  if (one.lookback || one.lookahead)
    line(out, "window",
         "the query, " + std::to_string(one.lookback.value_or(0)) + " tokens before it" +
             (one.lookahead ? " and " + std::to_string(*one.lookahead) + " after it" : ""));
  if (one.chunk) line(out, "window", "the query's own chunk of " + std::to_string(*one.chunk) + " tokens");
  if (!one.causal) line(out, "direction", "both ways");
  if (one.learned_sinks) line(out, "sinks", "one learned logit per head joins each softmax");
}

/// The ladder of one rope, and of others beside it.
inline void ladder(std::ostream& out, const std::vector<const encoding_view*>& views,
                   const std::vector<std::string>& titles) {
  char cell[64];
  for (std::size_t i = 0; i < views.size(); ++i) {
    const double length = trained_length(views[i]->description.rope());
    if (views.size() > 1)
      out << "  [" << i + 1 << "] " << titles[i] << ", turns within " << length << " tokens\n";
    else
      out << "  The ladder, with turns within the trained length of " << length << " tokens:\n";
  }
  out << "  pair";
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views.size() > 1)
      std::snprintf(cell, sizeof cell, "   [%zu] wavelength", i + 1);
    else
      std::snprintf(cell, sizeof cell, "      wavelength");
    out << cell << "       turns    divided by  band     ";
  }
  out << '\n';
  std::size_t rows = 0;
  std::vector<std::vector<posenc::pair_report>> reports;
  for (const encoding_view* view : views) {
    const posenc::rope_description& rope = view->description.rope();
    reports.push_back(
        posenc::ladder_report(plain_ladder(rope), view->rope->inv_freq(), trained_length(rope)));
    rows = (std::max)(rows, reports.back().size());
  }
  for (std::size_t pair = 0; pair < rows; ++pair) {
    std::snprintf(cell, sizeof cell, "  %4zu", pair);
    out << cell;
    for (std::size_t i = 0; i < views.size(); ++i) {
      if (pair >= reports[i].size()) {
        out << std::string(52, ' ');
        continue;
      }
      const posenc::pair_report& row = reports[i][pair];
      if (row.band == posenc::pair_band::still) {
        out << "               -           -             -  still    ";
        continue;
      }
      const double turns = trained_length(views[i]->description.rope()) / row.wavelength;
      std::snprintf(cell, sizeof cell, "%16.6g%12.4g%14.6g  %-9s", row.wavelength, turns, row.divisor,
                    posenc::name_of(row.band));
      out << cell;
    }
    out << '\n';
  }
}

inline void tables(std::ostream& out, const encoding_view& view,
                   const std::vector<posenc::position>& positions) {
  char cell[96];
  for (const posenc::position place : positions) {
    out << "  position " << place << ": pair, cos, sin (without the attention factor)\n";
    for (std::size_t pair = 0; pair < view.rope->inv_freq().size(); ++pair) {
      const auto [cos, sin] = view.rope->angle(static_cast<posenc::index_t>(pair), place);
      std::snprintf(cell, sizeof cell, "  %4zu  %20.17f  %20.17f\n", pair, cos, sin);
      out << cell;
    }
  }
}

}  // namespace detail

namespace detail {

/// What sets an encoding apart from plain causal attention with rotations of whole heads, in a few words each.
[[nodiscard]] inline std::vector<std::string> oddities_of(const encoding_view& view) {
  const posenc::encoding_description& one = view.description;
  if (!one.attends) return {"no attention"};
  std::vector<std::string> said;
  if (!one.beyond.empty()) said.push_back(one.beyond);
  if (one.kind() == posenc::encoding_kind::none) said.emplace_back("no positions");
  if (!one.causal) said.emplace_back("tokens see one another both ways");
  if (one.prefix_lm) said.emplace_back("the tokens of the prompt see one another both ways");
  if (one.learned_sinks) said.emplace_back("a learned sink joins each softmax");
  if (one.softcap != 0) said.push_back("scores are capped at " + text("%.6g", one.softcap));
  if (one.value_dim != 0 && one.value_dim != one.head_dim)
    said.push_back("values of " + std::to_string(one.value_dim) + " channels beside keys of " +
                   std::to_string(one.head_dim));
  if (one.position_scale) said.emplace_back("scores are multiplied by a factor that grows with the position");
  if (one.softmax_scale && one.head_dim > 0 && one.kind() == posenc::encoding_kind::rope) {
    const double usual = 1 / std::sqrt(static_cast<double>(one.head_dim));
    if (std::abs(*one.softmax_scale - usual) > 1e-6 * usual)
      said.push_back("the softmax scale is " + text("%.6g", *one.softmax_scale) +
                     ", not 1/sqrt(head_dim) = " + text("%.6g", usual));
  }
  if (!view.rope) return said;
  const posenc::rope_description& rope = one.rope();
  if (rope.shape().rotary_dim < rope.options.head_dim)
    said.push_back(std::to_string(rope.shape().rotary_dim) + " of " + std::to_string(rope.options.head_dim) +
                   " channels rotate");
  if (rope.turns_backwards) said.emplace_back("it rotates the other way round");
  if (!rope.axis_of_pair.empty()) said.emplace_back("several axes share the pairs");
  if (view.rope->attention_factor() != 1)
    said.push_back("cos and sin are multiplied by " + text("%.6g", view.rope->attention_factor()));
  const double trained = trained_length(rope), reach = static_cast<double>(rope.context_length.value_or(0));
  if (trained > 0 && reach > trained)
    said.push_back("sequences of " + text("%.10g", reach) + " tokens, " + text("%.4g", reach / trained) +
                   " times the trained length of " + text("%.10g", trained));
  return said;
}

/// What a person should know about the file before reading on.
inline void oddities(std::ostream& out, const model_view& view) {
  std::vector<std::string> said = view.model.warnings;
  std::vector<std::pair<std::string, std::string>> of_layers;  // what is said, and of which
  for (const encoding_view& encoding : view.encodings)
    for (std::string& one : oddities_of(encoding)) {
      const std::string layers =
          encoding.description.layer_type + " layers " + ranges(encoding.description.layers);
      const auto found = std::find_if(of_layers.begin(), of_layers.end(),
                                      [&](const auto& other) { return other.first == one; });
      if (found == of_layers.end())
        of_layers.emplace_back(std::move(one), layers);
      else
        found->second += ", " + layers;
    }
  for (const auto& [what, layers] : of_layers) said.push_back(what + " (" + layers + ")");
  constexpr std::size_t most = 40;
  if (said.empty()) out << "\nNothing is odd about this file.\n";
  if (!said.empty()) out << "\nWhat is odd about this file:\n";
  for (std::size_t n = 0; n < (std::min)(said.size(), most); ++n) out << "  - " << said[n] << '\n';
  if (said.size() > most) out << "  - and " << said.size() - most << " more\n";
}

}  // namespace detail

/// Describes one model in a few lines for each encoding, without ladders; what is odd about it comes first.
inline void summary(std::ostream& out, const model_view& view) {
  out << view.title << ": " << (view.model.model_type.empty() ? "a model" : view.model.model_type) << ", "
      << view.model.layers << " layers";
  if (view.model.context_length) out << ", sequences of up to " << *view.model.context_length << " tokens";
  out << '\n';
  detail::oddities(out, view);
  for (const encoding_view& encoding : view.encodings) {
    const posenc::encoding_description& one = encoding.description;
    out << '\n'
        << posenc::name_of(one.kind()) << " on " << one.layer_type << " layers " << ranges(one.layers)
        << '\n';
    if (encoding.rope)
      detail::describe_rope(out, encoding);
    else
      detail::describe_other(out, one);
    detail::describe_scores(out, one);
  }
}

/// Everything: the first view in full, the others beside its ladders, which are printed where they are asked for.
inline void text_report(std::ostream& out, const std::vector<model_view>& views,
                        const std::vector<posenc::position>& positions, bool with_ladders) {
  for (const model_view& view : views) {
    summary(out, view);
    out << '\n';
  }
  if (!with_ladders && positions.empty()) return;
  for (const encoding_view& first : views.front().encodings) {
    if (!first.rope) continue;
    std::vector<const encoding_view*> beside{&first};
    std::vector<std::string> titles{views.front().title};
    for (std::size_t i = 1; i < views.size(); ++i) {
      // The layers of the same name, or else the first that rotate.
      const encoding_view* match = nullptr;
      for (const encoding_view& other : views[i].encodings)
        if (other.rope &&
            (match == nullptr || other.description.layer_type == first.description.layer_type)) {
          const bool named = other.description.layer_type == first.description.layer_type;
          match = &other;
          if (named) break;
        }
      if (match == nullptr) continue;
      beside.push_back(match);
      titles.push_back(views[i].title);
    }
    out << first.description.layer_type << ":\n";
    if (with_ladders) detail::ladder(out, beside, titles);
    for (const encoding_view* view : beside) detail::tables(out, *view, positions);
    out << '\n';
  }
}

}  // namespace inspect
