// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --plot: the ladder, and the attention score against distance, drawn by gnuplot.
#pragma once

#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>
#include <vector>

#include <posenc/errors.hpp>

#include "../gnuplot.hpp"
#include "view.hpp"

namespace inspect {

namespace detail {

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

}  // namespace detail

/// Draws every rope of the views into an SVG file.
/// \throws std::invalid_argument when there is no rope or gnuplot cannot be run.
inline void plot(const std::vector<model_view>& views, const std::string& file) {
  using gnuplot::quoted;
  std::string data, ladder_curves, score_curves;
  double longest = 1024;
  int curves = 0;
  for (const model_view& view : views)
    for (const encoding_view& one : view.encodings)
      if (one.rope)
        longest = (std::max)(longest, 2.0 * static_cast<double>(view.model.context_length.value_or(1)));
  longest = (std::min)(longest, 4194304.0);
  for (const model_view& view : views) {
    for (const encoding_view& one : view.encodings) {
      if (!one.rope) continue;
      ++curves;
      const std::string name = "$curve" + std::to_string(curves);
      const std::string title =
          quoted(view.title + (view.encodings.size() > 1 ? ", " + one.description.layer_type : ""));
      char row[96];
      data += name + "_ladder << EOD\n";
      for (std::size_t pair = 0; pair < one.rope->inv_freq().size(); ++pair) {
        const double w = one.rope->inv_freq()[pair];
        if (w > 0) {
          std::snprintf(row, sizeof row, "%zu %.9g\n", pair, 2 * std::numbers::pi / w);
          data += row;
        }
      }
      data += "EOD\n" + name + "_score << EOD\n";
      for (const posenc::position distance : detail::distances(longest)) {
        std::snprintf(row, sizeof row, "%lld %.9g\n", static_cast<long long>(distance),
                      posenc::score_at_distance(*one.rope, distance));
        data += row;
      }
      data += "EOD\n";
      const std::string comma = curves > 1 ? ", " : "";
      ladder_curves += comma + name + "_ladder using 1:2 with lines lw 2 title " + title;
      score_curves += comma + name + "_score using 1:2 with lines lw 1.5 title " + title;
    }
  }
  posenc::detail::require(curves > 0, "--plot: there is no rope to draw");
  const std::string script = "set terminal svg size 900,900 font 'sans,13' background 'white'\nset output " +
                             quoted(file) + "\n" + data +
                             "set multiplot layout 2,1\nset grid\nset key bottom right noenhanced\n"
                             "set title 'The ladder: wavelength of each pair'\nset xlabel 'pair'\n"
                             "set ylabel 'tokens per turn'\nset logscale y\nplot " +
                             ladder_curves +
                             "\nunset logscale y\nset logscale x\nset key top right noenhanced\n"
                             "set title 'Attention score of equal vectors against distance'\n"
                             "set xlabel 'distance in tokens'\nset ylabel 'score per channel'\nplot " +
                             score_curves + "\nunset multiplot\n";
  gnuplot::draw(script, file);
}

}  // namespace inspect
