// SPDX-License-Identifier: MIT
/// \file
/// Perplexity against context length, for RoPE as trained and for the schemes that stretch it.
///
/// Every pass ends at the same token of the text and differs in how many tokens before it the model sees (1×,
/// 2×, 4× the trained length) and in the scheme. What is compared is the perplexity of the last tokens, the
/// same in every pass: a scheme that works makes it fall as the context grows. The longest passes also
/// give the perplexity at each position.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <posenc/errors.hpp>
#include <posenc/models/what_if.hpp>

#include "../../gnuplot.hpp"
#include "../model.hpp"
#include "perplexity.hpp"

namespace llama {

class context_study {
 public:
  /// \param csv results go here pass by pass; passes that are there already are not run again
  context_study(std::size_t trained, std::string csv) : trained_(trained), csv_(std::move(csv)) {
    posenc::detail::require(trained_ >= buckets_per_trained, "context-study: a trained length of ", trained_);
    std::ifstream stream(csv_);
    for (std::string line; std::getline(stream, line);) {
      std::array<char, 64> name{};
      std::size_t context = 0, from = 0;
      double nats = 0;
      if (std::sscanf(line.c_str(), "%63[^,],%zu,%zu,%lf", name.data(), &context, &from, &nats) != 4)
        continue;
      std::vector<double>& means = nats_[{name.data(), context}];
      if (from == 0) means.clear();  // a pass that was cut off and run anew
      means.push_back(nats);
    }
  }

  [[nodiscard]] std::size_t tokens_needed() const noexcept { return 4 * trained_; }

  void run(model& m, std::span<const token> tokens) {
    posenc::detail::require(tokens.size() >= tokens_needed(), "context-study: the text has ", tokens.size(),
                            " tokens; 4 times the trained length are ", tokens_needed());
    const std::span<const token> text = tokens.first(tokens_needed());
    // The cheap passes first.
    for (const std::size_t stretch : {1U, 4U, 2U})
      for (const scheme& s : schemes)
        if (stretch <= s.reach) add(m, s.name, text.last(stretch * trained_));
  }

  /// Two tables with a row for each scheme and a column for each context length.
  void print_tables() const {
    std::printf("perplexity of the last %zu tokens of the text, which end a context of\n", 2 * bucket());
    print_table([&](const scheme& s, std::size_t length) { return perplexity_before(s, length, length); });
    std::printf("\nin one pass over %zu tokens: perplexity of the %zu tokens before\n", 4 * trained_,
                2 * bucket());
    print_table(
        [&](const scheme& s, std::size_t length) { return perplexity_before(s, 4 * trained_, length); });
  }

  /// Perplexity at each position of the longest passes, as an SVG file.
  void plot(const std::string& svg) const {
    std::string data, curves;
    for (const scheme& s : schemes) {
      const auto found = nats_.find({s.name, 4 * trained_});
      if (found == nats_.end()) continue;
      const std::string name = "$pass" + std::to_string(data.size());
      data += name + " << EOD\n";
      for (std::size_t n = 0; n < found->second.size(); ++n)
        data += std::to_string((n + 1) * bucket()) + ' ' + std::to_string(std::exp(found->second[n])) + '\n';
      data += "EOD\n";
      curves += (curves.empty() ? "" : ", ") + name + " using 1:2 with linespoints lw 2 pt 7 ps 0.4 title " +
                gnuplot::quoted(s.title);
    }
    posenc::detail::require(!curves.empty(), "context-study: no pass to draw");
    const std::string trained = std::to_string(trained_);
    gnuplot::draw("set terminal svg size 900,520 font 'sans,14' background 'white'\nset output " +
                      gnuplot::quoted(svg) + '\n' + data +
                      "set grid lc rgb '#dddddd' lt 1\nset key tmargin center horizontal maxcols 2 Left "
                      "reverse noenhanced samplen 3\nset logscale y\n"
                      "set xlabel 'position in the text (tokens)'\nset ylabel 'perplexity'\nset xrange [0:" +
                      std::to_string(4 * trained_) + "]\nset xtics " + trained + "\nset arrow from " +
                      trained + ", graph 0 to " + trained +
                      ", graph 1 nohead dt 2 lc rgb '#888888'\nset label 'trained length' at " + trained +
                      ", graph 0.95 offset 1,0 textcolor rgb '#666666'\nplot " + curves + '\n',
                  svg);
  }

 private:
  static constexpr std::size_t buckets_per_trained = 8;
  struct scheme {
    const char* name;   ///< as posenc::parse_scaling takes it
    std::size_t reach;  ///< up to how many times the trained length it is tried
    const char* title;
  };
  static constexpr std::array<scheme, 7> schemes{{{"none", 4, "as trained"},
                                                  {"linear:factor=4", 4, "position interpolation, factor 4"},
                                                  {"theta:factor=4", 4, "theta scaling (NTK), factor 4"},
                                                  {"yarn:factor=4", 4, "YaRN, factor 4"},
                                                  {"linear:factor=2", 2, "position interpolation, factor 2"},
                                                  {"theta:factor=2", 2, "theta scaling (NTK), factor 2"},
                                                  {"yarn:factor=2", 2, "YaRN, factor 2"}}};

  [[nodiscard]] std::size_t bucket() const noexcept { return trained_ / buckets_per_trained; }

  /// Perplexity of the tokens of two buckets before position `end` in the pass over `context` tokens, if there is one.
  [[nodiscard]] std::optional<double> perplexity_before(const scheme& s, std::size_t context,
                                                        std::size_t end) const {
    const auto found = nats_.find({s.name, context});
    if (found == nats_.end()) return std::nullopt;
    const std::size_t n = end / bucket();
    return std::exp((found->second.at(n - 1) + found->second.at(n - 2)) / 2);
  }

  template <class Cell>
  void print_table(const Cell& cell) const {
    std::printf("%-16s", "");
    for (const std::size_t stretch : {1U, 2U, 4U}) std::printf("%10zu", stretch * trained_);
    for (const scheme& s : schemes) {
      if (!cell(s, trained_)) continue;
      std::printf("\n%-16s", s.name);
      for (const std::size_t stretch : {1U, 2U, 4U}) {
        const auto value = cell(s, stretch * trained_);
        value ? std::printf("%10.2f", *value) : std::printf("%10s", "-");
      }
    }
    std::puts("");
  }

  /// One pass, unless it is there already.
  void add(model& m, const std::string& name, std::span<const token> text) {
    std::vector<double>& means = nats_[{name, text.size()}];
    if (means.size() == text.size() / bucket()) return;
    std::fprintf(stderr, "%s, %zu tokens\n", name.c_str(), text.size());
    m.use_scaling(posenc::parse_scaling(name, static_cast<posenc::position>(trained_)));
    const std::vector<double> nats = surprises(m, text);
    means.clear();
    std::ofstream out(csv_, std::ios::app);
    if (out.tellp() == 0) out << "scheme,context,from,nats\n";
    out.precision(9);
    for (std::size_t from = 0; from < text.size(); from += bucket()) {
      // nats[n] is of token n + 1.
      double sum = 0;
      for (std::size_t n = (std::max)(from, std::size_t{1}); n < from + bucket(); ++n) sum += nats[n - 1];
      means.push_back(sum / static_cast<double>(from == 0 ? bucket() - 1 : bucket()));
      out << name << ',' << text.size() << ',' << from << ',' << means.back() << '\n';
    }
    if (!out.flush()) posenc::detail::fail<posenc::format_error>(csv_, " cannot be written");
  }

  std::size_t trained_;
  std::string csv_;
  std::map<std::pair<std::string, std::size_t>, std::vector<double>> nats_;  ///< means, bucket by bucket
};

}  // namespace llama
