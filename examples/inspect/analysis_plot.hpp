// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --analyse --plot: resolution against distance, coverage by pair, collisions against length.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <posenc/errors.hpp>

#include "../gnuplot.hpp"
#include "analysis.hpp"
#include "plot.hpp"

namespace inspect {

[[nodiscard]] inline std::string gnuplot_number(double value) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  return digits;
}

/// Draws every encoding that has frequencies. `codes_of_curve[n]` are those of all[n], for the curve against distance.
/// \throws std::invalid_argument when there is none or gnuplot cannot be run.
inline void analysis_plot(const std::vector<encoding_analysis>& all,
                          const std::vector<std::optional<posenc::rotation_codes>>& codes_of_curve,
                          const std::string& file) {
  using gnuplot::quoted;
  std::string data, resolution, coverage, collisions, hashes;
  char row[160];
  int curves = 0;
  for (std::size_t n = 0; n < all.size(); ++n) {
    const encoding_analysis& one = all[n];
    if (!one.frequencies || one.frequencies->pairs == 0 || !codes_of_curve[n]) continue;
    ++curves;
    const frequency_analysis& f = *one.frequencies;
    const std::string name = "$curve" + std::to_string(curves), comma = curves > 1 ? ", " : "";
    const std::string title =
        one.title.substr(one.title.find_last_of('/') + 1) +
        (one.layer_type.empty() || one.layer_type == "full_attention" ? "" : ", " + one.layer_type);
    const std::string colour = " lc " + std::to_string(curves);
    data += name + "_resolution << EOD\n";
    posenc::position before = 0;
    for (const posenc::position distance : detail::distances(1048576.0)) {
      if (before > 0 && static_cast<double>(distance) < 1.06 * static_cast<double>(before)) continue;
      before = distance;
      const posenc::position step = (std::max)(posenc::position{1}, distance / 1000);
      const posenc::resolution at = posenc::resolution_at(*codes_of_curve[n], distance, step, one.storage);
      using enum posenc::pair_state;
      std::snprintf(row, sizeof row, "%lld %ld %ld\n", static_cast<long long>(distance),
                    static_cast<long>(at.count(carries)),
                    static_cast<long>(at.count(carries) + at.count(wrapped)));
      data += row;
    }
    data += "EOD\n" + name + "_coverage << EOD\n";
    for (std::size_t p = 0; p < f.coverage.size(); ++p) {
      std::snprintf(row, sizeof row, "%zu %.9g %.9g\n", p, 100 * f.coverage[p].seen,
                    100 * f.coverage[p].used);
      data += row;
    }
    data += "EOD\n" + name + "_collisions << EOD\n";
    for (const posenc::collision_counts& counts : f.collisions.by_length) {
      const auto share = [&](std::uint64_t pairs) {
        return static_cast<double>(pairs) / (std::max)(counts.pairs(), 1.0);
      };
      std::snprintf(row, sizeof row, "%lld %.9g %.9g\n", static_cast<long long>(counts.length),
                    share(counts.alone.back()), share(counts.alone.front()));
      data += row;
    }
    data += "EOD\n";
    data += name + "_hashes << EOD\n";
    const posenc::collision_counts& all_of = f.collisions.total();
    for (std::size_t k = 0; k < all_of.together.size(); ++k) {
      // What is zero is not drawn on a logarithmic axis.
      const auto share = [&](double value) { return value > 0 ? gnuplot_number(value) : std::string("?"); };
      data += std::to_string(k + 1) + " " + share(all_of.chance_together(k)) + " " +
              share(all_of.chance_if_independent(k)) + " " +
              share(static_cast<double>(f.slowest_first.together[k]) / (std::max)(all_of.pairs(), 1.0)) +
              "\n";
    }
    data += "EOD\n";
    hashes += comma + name + "_hashes using 1:4 with lines lw 2" + colour + " title " +
              quoted(title + ": slowest first") + ", " + name + "_hashes using 1:2 with points pt 7 ps 0.8" +
              colour + " title 'fastest first, to the last n that leaves any', " + name +
              "_hashes using 1:3 with lines lw 1 dt 2" + colour + " title 'as independent hashes'";
    resolution += comma + name + "_resolution using 1:2 with lines lw 2" + colour + " title " +
                  quoted(title + ": carry it") + ", " + name + "_resolution using 1:3 with lines lw 1 dt 2" +
                  colour + " title " + quoted("move at all in " + std::string(posenc::name_of(one.storage)));
    coverage += comma + name + "_coverage using 1:2 with lines lw 2" + colour + " title " +
                quoted(title + ": trained") + ", " + name + "_coverage using 1:3 with lines lw 1 dt 2" +
                colour + " title " + quoted("used at " + std::to_string(one.length) + " tokens");
    collisions += comma + name + "_collisions using 1:2 with linespoints lw 2 pt 7 ps 0.4" + colour +
                  " title " + quoted(title + ": slowest pair alone") + ", " + name +
                  "_collisions using 1:3 with lines lw 1 dt 2" + colour + " title 'fastest pair alone'";
  }
  posenc::detail::require(curves > 0, "--plot: there are no frequencies to draw");
  gnuplot::draw(
      "set terminal svg size 900,1600 font 'sans,13' background 'white'\nset output " + quoted(file) + "\n" +
          data +
          "set multiplot layout 4,1\nset grid\nset key below maxcols 2 noenhanced\nset autoscale xfix\n"
          "set title 'Pairs that tell a distance from one a thousandth (at least 1) farther'\n"
          "set xlabel 'distance in tokens'\nset ylabel 'pairs'\nset logscale x\nset yrange [0:*]\nplot " +
          resolution +
          "\nunset logscale x\nset title 'Share of the circle of each pair'\nset xlabel 'pair'\nset ylabel "
          "'%'\n"
          "set yrange [0:105]\nplot " +
          coverage +
          "\nset title 'Share of pairs of positions with equal stored cos and sin'\nset xlabel 'length'\n"
          "set ylabel 'share'\nset logscale xy\nset format y '10^{%L}'\nset yrange [*:*]\nplot " +
          collisions +
          "\nunset logscale x\nset title 'Share of pairs of positions left equal by n frequencies'\nset "
          "xlabel 'n'\n"
          "set yrange [1e-12:1]\nplot " +
          hashes + "\nunset multiplot\n",
      file);
}

}  // namespace inspect
