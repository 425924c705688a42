// SPDX-License-Identifier: MIT
/// \file
/// Replays the ring's schedule for more ranks than anyone has at hand, and says where each split, and the way by heads,
/// stops paying.
///
///     ring_schedule --tokens 131072 --bandwidth 12.5e9 --latency 5e-6 --speed 2e12 --plot scaling.svg
///
/// Bandwidth in bytes per second from a rank to the next, latency in seconds, speed in floating-point operations per second
/// of a rank. 32/8 heads of 128 channels, bfloat16, causal.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <posenc/distributed/cost.hpp>

#include "../gnuplot.hpp"

namespace {
using posenc::index_t;
using posenc::mpi::split_kind;

struct arguments {
  index_t tokens = 1 << 17, most_ranks = 4096;
  double bandwidth = 12.5e9, latency = 5e-6, speed = 2e12;
  std::string plot;
};

arguments parse(int argc, char** argv) {
  arguments result;
  for (int n = 1; n < argc; n += 2) {
    const std::string name = argv[n];
    posenc::detail::require(n + 1 < argc, "ring_schedule: ", name, " needs a value");
    const char* const value = argv[n + 1];
    if (name == "--tokens")
      result.tokens = std::atol(value);
    else if (name == "--most-ranks")
      result.most_ranks = std::atol(value);
    else if (name == "--bandwidth")
      result.bandwidth = std::atof(value);
    else if (name == "--latency")
      result.latency = std::atof(value);
    else if (name == "--speed")
      result.speed = std::atof(value);
    else if (name == "--plot")
      result.plot = value;
    else
      posenc::detail::require(false, "ring_schedule: unknown argument ", name,
                              " (--tokens --most-ranks --bandwidth --latency --speed --plot)");
  }
  return result;
}

/// One way to do it, for each number of ranks.
struct line {
  std::string name;
  std::vector<double> seconds{};  ///< 0 where it cannot be done
};

void print(const arguments& given, const std::vector<index_t>& ranks, const std::vector<line>& lines) {
  std::printf("%ld tokens, 32/8 x 128, bfloat16, causal; %.3g B/s, %.3g s, %.3g FLOP/s\n\n%8s",
              static_cast<long>(given.tokens), given.bandwidth, given.latency, given.speed, "ranks");
  for (const line& one : lines) std::printf("  %22s", one.name.c_str());
  std::printf("\n");
  for (std::size_t n = 0; n < ranks.size(); ++n) {
    std::printf("%8ld", static_cast<long>(ranks[n]));
    for (const line& one : lines)
      if (one.seconds[n] > 0)
        std::printf("  %9.4g s, %4.0f %% eff", one.seconds[n],
                    100 * one.seconds[0] / one.seconds[n] / static_cast<double>(ranks[n]));
      else
        std::printf("  %22s", "-");
    std::printf("\n");
  }
  std::printf("\n");
  for (const line& one : lines) {
    index_t last = 1;
    for (std::size_t n = 1; n < ranks.size(); ++n)
      if (one.seconds[n] > 0 && one.seconds[n] <= one.seconds[n - 1] / 1.5) last = ranks[n];
    std::printf("%s: twice the ranks are worth 1.5 times the speed up to %ld ranks\n", one.name.c_str(),
                static_cast<long>(last));
  }
}

void plot(const std::string& file, const std::vector<index_t>& ranks, const std::vector<line>& lines) {
  std::string script = "set terminal svg size 800,500 background '#ffffff'\nset output " +
                       gnuplot::quoted(file) +
                       "\nset logscale xy 2\nset grid\nset key left top\nset xlabel 'ranks'\n"
                       "set ylabel 'times as fast as one rank'\nplot x title 'ideal' lc rgb '#bbbbbb'";
  for (const line& one : lines)
    script += ", '-' using 1:2 with linespoints title " + gnuplot::quoted(one.name);
  script += "\n";
  for (const line& one : lines) {
    for (std::size_t n = 0; n < ranks.size(); ++n)
      if (one.seconds[n] > 0)
        script += std::to_string(ranks[n]) + " " + std::to_string(one.seconds[0] / one.seconds[n]) + "\n";
    script += "e\n";
  }
  gnuplot::draw(script, file);
}

void run(const arguments& given) {
  posenc::mpi::call_shape call{.queries = given.tokens,
                               .keys = given.tokens,
                               .heads = 32,
                               .kv_heads = 8,
                               .head_dim = 128,
                               .value_dim = 128,
                               .query_bytes = 2,
                               .key_bytes = 2,
                               .value_bytes = 2};
  std::vector<index_t> ranks;
  for (index_t n = 1; n <= given.most_ranks; n *= 2) ranks.push_back(n);
  std::vector<line> lines{{"ring, zigzag"}, {"ring, striped"}, {"ring, contiguous"}, {"by heads"}};
  for (const index_t n : ranks) {
    const posenc::mpi::cluster on{n, given.bandwidth, given.latency, given.speed};
    const split_kind kinds[] = {split_kind::zigzag, split_kind::striped, split_kind::contiguous};
    for (std::size_t k = 0; k < 3; ++k) {
      call.split = kinds[k];
      // Stripes short enough that every rank has some, long enough that there are few.
      call.stripe = std::max<index_t>(1, given.tokens / n / 4);
      lines[k].seconds.push_back(posenc::mpi::ring_cost(call, on).seconds);
    }
    const auto heads = posenc::mpi::by_heads_cost(call, on);
    lines[3].seconds.push_back(heads ? heads->seconds : 0);
  }
  print(given, ranks, lines);
  if (!given.plot.empty()) plot(given.plot, ranks, lines);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
