// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --plot: the ladder, and the attention score against distance, drawn by gnuplot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <posenc/errors.hpp>

#include "../gnuplot.hpp"
#include "view.hpp"

namespace inspect {

namespace detail {

/// The name of a model for people: of its file, or of its folder where the file is a config.json.
[[nodiscard]] inline std::string name_of(const std::string& title) {
  const std::size_t end = title.find(" with ");  // of a what-if
  const std::filesystem::path path = title.substr(0, end);
  std::string name = path.stem().string();
  if (name == "config" && path.has_parent_path()) name = path.parent_path().filename().string();
  return name + (end == title.npos ? "" : title.substr(end));
}

/// Distances from 1 to `longest`, evenly spaced on a logarithmic axis.
[[nodiscard]] inline std::vector<posenc::position> distances(double longest) {
  std::vector<posenc::position> result;
  constexpr int steps = 600;
  for (int i = 0; i <= steps; ++i) {
    const auto distance = static_cast<posenc::position>(std::pow(longest, static_cast<double>(i) / steps));
    if (result.empty() || distance > result.back()) result.push_back(distance);
  }
  return result;
}

/// The score from one distance to the next: as it is while every distance is drawn, beyond a thousand tokens the least and
/// the most of it, which swings faster than a line can show.
template <class Rope>
[[nodiscard]] std::pair<double, double> score_between(const Rope& rope, posenc::position from,
                                                      posenc::position to) {
  constexpr posenc::position drawn_one_by_one = 1000, samples = 24;
  const posenc::position step =
      from < drawn_one_by_one ? to - from : (std::max)((to - from) / samples, posenc::position{1});
  double least = posenc::score_at_distance(rope, from), most = least;
  for (posenc::position d = from + step; d < to; d += step) {
    const double score = posenc::score_at_distance(rope, d);
    least = (std::min)(least, score), most = (std::max)(most, score);
  }
  return {least, most};
}

/// Rectangles behind the ladder: what a scaling did to its pairs.
[[nodiscard]] inline std::string bands(const encoding_view& view) {
  const posenc::rope_description& rope = view.description.rope();
  const auto report = posenc::ladder_report(plain_ladder(rope), view.rope->inv_freq(), trained_length(rope));
  const bool is_scaled = std::any_of(report.begin(), report.end(),
                                     [](const auto& row) { return row.band != posenc::pair_band::kept; });
  std::string script;
  for (std::size_t from = 0; is_scaled && from < report.size();) {
    std::size_t to = from;
    while (to < report.size() && report[to].band == report[from].band) ++to;
    const posenc::pair_band band = report[from].band;
    const char* colour = band == posenc::pair_band::kept        ? "#e8f4e8"
                         : band == posenc::pair_band::blended   ? "#fff6d8"
                         : band == posenc::pair_band::stretched ? "#fbe4e0"
                                                                : "#eeeeee";
    const std::string left = std::to_string(from) + " - 0.5", right = std::to_string(to) + " - 0.5";
    script += "set object rectangle from first " + left + ", graph 0 to first " + right +
              ", graph 1 fc rgb '" + colour + "' fs solid noborder behind\nset label '" +
              posenc::name_of(band) + "' at first (" + left + " + " + right +
              ") / 2, graph 0.95 center tc rgb '#707070'\n";
    from = to;
  }
  return script;
}

}  // namespace detail

/// The gnuplot script that draws every kind of rotating layer of the views into an SVG file.
/// \throws std::invalid_argument when there is no rope
[[nodiscard]] inline std::string plot_script(const std::vector<model_view>& views, const std::string& file) {
  struct curve {
    const model_view* view;
    const encoding_view* of;
    double trained;
  };
  std::vector<curve> curves;
  double longest = 1024;
  for (const model_view& view : views) {
    std::set<std::string> kinds;  // one curve for each, though layers of a kind may differ in their masks
    for (const encoding_view& one : view.encodings) {
      if (!one.rope || !kinds.insert(one.description.layer_type).second) continue;
      curves.push_back({&view, &one, trained_length(one.description.rope())});
      longest = (std::max)(longest, 2.0 * static_cast<double>(view.model.context_length.value_or(1)));
    }
  }
  posenc::detail::require(!curves.empty(), "--plot: there is no rope to draw");
  longest = (std::min)(longest, 4194304.0);
  std::string data, ladders, scores, ladder_marks, score_marks;
  std::set<double> marked;
  char row[128];
  for (std::size_t n = 0; n < curves.size(); ++n) {
    const auto& [view, one, trained] = curves[n];
    const std::string name = "$curve" + std::to_string(n + 1), colour = " lc " + std::to_string(n + 1);
    std::string title = view->encodings.size() > 1 ? one->description.layer_type : "";
    if (views.size() > 1) title = detail::name_of(view->title) + (title.empty() ? "" : ", " + title);
    title = title.empty() ? " notitle" : " title " + gnuplot::quoted(title);
    data += name + "_ladder << EOD\n";
    for (std::size_t pair = 0; pair < one->rope->inv_freq().size(); ++pair) {
      const double w = one->rope->inv_freq()[pair];
      if (w > 0) {
        std::snprintf(row, sizeof row, "%zu %.9g\n", pair, 2 * std::numbers::pi / w);
        data += row;
      }
    }
    data += "EOD\n" + name + "_score << EOD\n";
    const std::vector<posenc::position> at = detail::distances(longest);
    for (std::size_t d = 0; d + 1 < at.size(); ++d) {
      const auto [least, most] = detail::score_between(*one->rope, at[d], at[d + 1]);
      std::snprintf(row, sizeof row, "%lld %.9g %.9g\n", static_cast<long long>(at[d]), least, most);
      data += row;
    }
    data += "EOD\n";
    const std::string comma = n > 0 ? ", " : "";
    ladders += comma + name + "_ladder using 1:2 with lines lw 2" + colour + title;
    scores += comma + name + "_score using 1:2:3 with filledcurves fs transparent solid 0.3 noborder" +
              colour + " notitle, " + name + "_score using 1:3 with lines lw 1.5" + colour + title;
    if (trained > 0 && marked.insert(trained).second) {
      std::snprintf(row, sizeof row, "%.10g", trained);
      const std::string length = row, label = gnuplot::quoted("trained length " + length);
      ladder_marks += "set arrow from graph 0, first " + length + " to graph 1, first " + length +
                      " nohead dt 2 lc rgb '#808080'\nset label " + label + " at graph 0.01, first " +
                      length + " offset 0, 0.5 tc rgb '#606060'\n";
      score_marks += "set arrow from first " + length + ", graph 0 to first " + length +
                     ", graph 1 nohead dt 2 lc rgb '#808080'\nset label " + label + " at first " + length +
                     ", graph 0.05 right offset -0.5, 0 tc rgb '#606060'\n";
    }
  }
  std::string names;
  for (const model_view& view : views) names += (names.empty() ? "" : " and ") + detail::name_of(view.title);
  return "set terminal svg size 900,900 font 'sans,13' background 'white' noenhanced\nset output " +
         gnuplot::quoted(file) + "\n" + data + "set multiplot layout 2,1 title " + gnuplot::quoted(names) +
         "\nset grid\nset key bottom right\n" + detail::bands(*curves.front().of) + ladder_marks +
         "set title 'The ladder: wavelength of each pair'\nset xlabel 'pair'\n"
         "set ylabel 'tokens per turn'\nset logscale y\nplot " +
         ladders +
         "\nunset object\nunset label\nunset arrow\nunset logscale y\nset logscale x\nset key top right\n" +
         score_marks +
         "set title 'Attention score of equal vectors against distance; beyond 1000 tokens its least and its "
         "most'\n"
         "set xlabel 'distance in tokens'\nset ylabel 'score per channel'\nplot " +
         scores + "\nunset multiplot\n";
}

/// Draws the views into an SVG file. \throws std::invalid_argument when there is no rope or gnuplot cannot be run.
inline void plot(const std::vector<model_view>& views, const std::string& file) {
  gnuplot::draw(plot_script(views, file), file);
}

}  // namespace inspect
