// SPDX-License-Identifier: MIT
/// \file
/// Why attention needs positions, told with "dog bites man": all six orders of the words through one
/// self-attention layer under every encoding, then what each encoding makes of distance, and frequencies of each other.
///
///     demo [--plot-dir DIR]     with a directory: also DIR/positions.{tsv,gp}, and .svg and .png by gnuplot
///
/// Ends with an error when a statement it prints does not hold.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <posenc/analysis.hpp>
#include <posenc/attention/self_attention.hpp>
#include <posenc/posenc.hpp>

namespace {

using posenc::index_t;
using posenc::position;
using posenc::positions;
using matrix = posenc::row_major_matrix<double>;

constexpr index_t heads = 2, head_dim = 8, model_dim = heads * head_dim, table_rows = 512, clip = 8;
constexpr std::array<const char*, 3> words{"dog", "bites", "man"};

matrix random_matrix(index_t rows, index_t columns, double deviation, std::uint64_t seed) {
  return posenc::learned_absolute<double>::random(
             {.rows = rows, .width = columns, .stddev = deviation, .seed = seed})
      .table();
}

/// One word embedding per row, and a layer with random weights: no training is needed to see what order does.
const matrix dictionary = random_matrix(3, model_dim, 1, 1);
const posenc::self_attention<double> layer{random_matrix(model_dim, model_dim, 0.25, 2),
                                           random_matrix(model_dim, model_dim, 0.25, 3),
                                           random_matrix(model_dim, model_dim, 0.25, 4)};

/// Calls visit(name, door, encoding) for every encoding of the demo.
template <class Visit>
void for_each_encoding(const Visit& visit) {
  using namespace posenc;
  const relative_clip clipped{.direction = relative_direction::key_minus_query, .left = clip, .right = clip};
  const rope_options turned{.head_dim = head_dim, .pairing = pairing::half_split};
  const auto three_bands = [](index_t rows, std::uint64_t seed) {
    return bias_table<double>::rows_by_heads(random_matrix(rows, heads, 0.8, seed));
  };
  visit("no positions", "-", no_encoding{});
  visit("learned table", "embed",
        learned_absolute<double>::random({.rows = table_rows, .width = model_dim, .stddev = 0.5, .seed = 5}));
  visit("sinusoidal", "embed", sinusoidal<double>{{.width = model_dim, .convention = sinusoid::paper}});
  visit("clipped bias", "bias", relative_bias<double>{clipped, three_bands(clipped.rows(), 6)});
  visit("T5 buckets", "bias",
        t5_bias<double>{{.buckets = 16, .max_distance = 64, .bidirectional = true}, three_bands(16, 7)});
  visit("Shaw q.r", "bias", shaw<double>{clipped, random_matrix(clipped.rows(), head_dim, 0.5, 8)});
  visit("ALiBi", "bias", alibi<double>{{.heads = heads}});
  visit("RoPE", "rotate", rope<double>{turned});
  visit("RoPE, PI x4", "rotate", rope<double>{turned, position_interpolation{.factor = 4}});
  visit("RoPE, theta x4", "rotate", rope<double>{turned, theta_scaling{.factor = 4}});
  visit("RoPE, YaRN x4", "rotate", rope<double>{turned, yarn{.factor = 4, .original_context = 128}});
}

bool all_true = true;

/// Notes a statement of the text that did not hold.
void hold(bool statement, const std::string& what) {
  if (statement) return;
  std::printf("  !! not so: %s\n", what.c_str());
  all_true = false;
}

void say(const char* text) { std::puts(text); }

// The six orders -----------------------------------------------------------------------------------------

using sentence = std::array<index_t, 3>;  // word at each place

std::vector<sentence> six_orders() {
  std::vector<sentence> orders;
  sentence order{0, 1, 2};
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

/// The hidden state of each word in each order.
template <class E>
std::array<std::vector<Eigen::RowVectorXd>, 3> hidden_states(const E& encoding, posenc::attention_mask mask) {
  std::array<std::vector<Eigen::RowVectorXd>, 3> states;
  for (const sentence& order : six_orders()) {
    matrix x(3, model_dim);
    for (index_t place = 0; place < 3; ++place)
      x.row(place) = dictionary.row(order[static_cast<std::size_t>(place)]);
    const matrix h = layer(x, encoding, {.heads = heads, .mask = mask});
    for (index_t place = 0; place < 3; ++place)
      states[static_cast<std::size_t>(order[static_cast<std::size_t>(place)])].emplace_back(h.row(place));
  }
  return states;
}

/// A letter per state, the same letter for states that agree to 12 digits.
std::string letters_of(const std::vector<Eigen::RowVectorXd>& states) {
  std::string letters;
  char next = 'A';
  for (std::size_t n = 0; n < states.size(); ++n) {
    char letter = 0;
    for (std::size_t m = 0; m < n && letter == 0; ++m)
      if ((states[n] - states[m]).norm() <= 1e-12 * states[n].norm()) letter = letters[m];
    letters += letter != 0 ? letter : next++;
  }
  return letters;
}

long distinct(const std::string& letters) {
  return *std::max_element(letters.begin(), letters.end()) - 'A' + 1;
}

/// The largest change of a state between two orders, over its norm.
double largest_change(const std::vector<Eigen::RowVectorXd>& states) {
  double largest = 0;
  for (const auto& a : states)
    for (const auto& b : states) largest = (std::max)(largest, (a - b).norm() / a.norm());
  return largest;
}

void print_orders(posenc::attention_mask mask) {
  const bool is_causal = mask == posenc::causal;
  std::printf("\n  %s\n  hidden state of \"man\" in each order: same letter, same state\n\n",
              is_causal ? "CAUSAL: every word sees itself and the words before it"
                        : "BIDIRECTIONAL: every word sees every word");
  constexpr std::array<const char*, 3> right{"   largest   number of states of", "   change",
                                             "   of \"man\"  dog bites man"};
  for (std::size_t place = 0; place < 3; ++place) {
    std::printf("  %-15s %-7s", place == 2 ? "encoding" : "", place == 2 ? "door" : "");
    for (const sentence& order : six_orders())
      std::printf(" %-6s", words[static_cast<std::size_t>(order[place])]);
    std::puts(right[place]);
  }
  for_each_encoding([&](const char* name, const char* door, const auto& encoding) {
    const auto states = hidden_states(encoding, mask);
    const std::string man = letters_of(states[2]);
    std::printf("  %-15s %-7s", name, door);
    for (const char letter : man) std::printf(" %-6c", letter);
    const double change = 100 * largest_change(states[2]);
    std::printf("  %6.1f %%  %2ld   %2ld   %2ld\n", change < 1e-9 ? 0 : change,
                distinct(letters_of(states[0])), distinct(letters_of(states[1])), distinct(man));
    const bool positionless = std::string_view(door) == "-";
    if (positionless)
      hold(man == (is_causal ? "ABACDD" : "AAAAAA"), "orders without positions");
    else if (std::string_view(name) == "ALiBi" && !is_causal)
      hold(man == "ABCBCA", "ALiBi and its mirror images");
    else
      hold(distinct(man) == (is_causal ? 5 : 6), std::string(name) + " tells the orders apart");
  });
}

void tell_orders() {
  say("1. Attention is a weighted sum over a set, and a set has no order");
  say("");
  say("  The state of a word is a sum of values, weighted by e^(q.k). Swapping two words swaps two terms");
  say("  of the sum: without positions \"dog bites man\" and \"man bites dog\" give every word the same "
      "state.");
  print_orders(posenc::bidirectional);
  say("");
  say("  Without positions all six orders are one. Every encoding tells orders apart, each by another door.");
  say("  ALiBi goes by distance alone, so an order and its mirror image look alike (A B C B C A); under a");
  say("  causal mask nothing lies ahead, and that ambiguity is gone:");
  print_orders(posenc::causal);
  say("");
  say("  A mask shows which words came before, not in which order: without positions \"dog bites man\"");
  say("  and \"bites dog man\" still agree on \"man\" (A). And whatever the encoding, the first word of a");
  say("  sentence sees only itself: \"man\" is the same in \"man dog bites\" and \"man bites dog\", so");
  say("  there are 5 states of 6.");
}

// Distance -----------------------------------------------------------------------------------------------

/// The score of "man" at position i for "dog" at position j in head 0, bias included; nothing where the
/// encoding refuses a position.
template <class E>
std::optional<double> score(const E& encoding, position i, position j) {
  const std::vector<position> man{i}, dog{j};
  matrix query = dictionary.row(2), key = dictionary.row(0);
  try {
    posenc::embed_rows(query, encoding, positions::each(man));
    posenc::embed_rows(key, encoding, positions::each(dog));
  } catch (const std::out_of_range&) {
    return std::nullopt;
  }
  const matrix q = query * layer.query, k = key * layer.key;
  // With a single key the log-sum-exp of the row is the score itself.
  return posenc::reference::attention_with_log_sum_exp(q, k, k, encoding,
                                                       {.heads = heads,
                                                        .is_embedded = true,
                                                        .query_positions = positions::each(man),
                                                        .key_positions = positions::each(dog)})
      .log_sum_exp(0, 0);
}

void print_score(std::optional<double> value) {
  if (value)
    std::printf(" %7.3f", *value);
  else
    std::printf(" %7s", "refused");
}

void tell_distance() {
  say("\n\n2. What should count is how far apart two words are, not where they stand");
  say("");
  say("  The score of \"man\" looking back at \"dog\". Left: \"dog\" stands 2 before \"man\", and both move "
      "by c;");
  say("  an encoding of relative positions does not notice. Right: \"dog\" moves away; that should be "
      "noticed.");
  say("");
  say("                  both words move by c =                  distance =");
  say("  encoding              0      10    1000 1000000   moved      1       3       8      16     200");
  for_each_encoding([&](const char* name, const char* door, const auto& encoding) {
    std::printf("  %-15s", name);
    const double here = score(encoding, 2, 0).value();
    double moved = 0;
    for (const position c : {0, 10, 1'000, 1'000'000}) {
      const auto there = score(encoding, 2 + c, c);
      print_score(there);
      if (there) moved = (std::max)(moved, std::abs(*there - here));
    }
    std::printf("   %s", moved <= 1e-12 ? "no   " : "YES  ");
    for (const position distance : {1, 3, 8, 16, 200}) print_score(score(encoding, 300, 300 - distance));
    std::puts("");
    hold((moved > 1e-12) == (std::string_view(door) == "embed"), std::string(name) + " under a shift");
  });
  say("");
  say("  - embed (learned, sinusoidal): the score depends on where the words stand, and a learned table "
      "ends:");
  std::printf("    position 1000 is refused by a table of %ld rows, not wrapped or clamped.\n",
              static_cast<long>(table_rows));
  std::printf("  - bias tables: relative by construction. Clipped at %ld: distances 8, 16 and 200 are one\n",
              static_cast<long>(clip));
  say("    distance; T5's buckets widen and end at 64; ALiBi falls for ever.");
  say("  - rotate: q and k turn each by its own position, and R(i)'R(j) = R(j-i) leaves the distance alone.");
  say("    PI turns every pair 4 times slower; theta scaling and YaRN keep the fast pairs (near distances)");
  say("    and slow the slow ones; YaRN also sharpens the scores a little.");
}

// Frequencies --------------------------------------------------------------------------------------------

/// The two findings of docs/analysis.md that are most worth knowing, computed here.
void tell_frequencies() {
  using namespace posenc;
  const rope_options options{.head_dim = 128, .pairing = pairing::half_split};
  const rope<double> trained{options};
  constexpr position length = 131'072;
  const collision_report report = stored_collisions(rotation_codes(trained, length), code_storage::bfloat16);
  const collision_counts& counts = report.total();
  say("\n\n3. Frequencies together: what repeats, and what was never seen");
  say("");
  std::printf(
      "  A RoPE of 64 frequencies, cos and sin stored in bfloat16, %ld positions: %.2g pairs of them.\n",
      static_cast<long>(length), counts.pairs());
  std::printf(
      "  - The fastest frequency alone gives %.2g of them the same numbers; with the second %ld are left, "
      "with\n",
      static_cast<double>(counts.alone[0]), static_cast<long>(counts.together[1]));
  std::printf(
      "    the third %ld. Positions do not collide: three frequencies tell all apart, and 61 have other "
      "work.\n",
      static_cast<long>(counts.together[2]));
  hold(counts.alone[0] > 1'000'000 && counts.together[2] == 0, "three frequencies tell all positions apart");
  const auto longer =
      coverage_report(trained.lowered().phase_per_token, 4096, trained.lowered().phase_per_token, 16'384);
  const auto slow = unseen_pairs(longer);
  std::printf(
      "  - Trained on 4096 tokens and used with 16384, %ld of 64 pairs turn to angles they have never been "
      "at: the\n",
      static_cast<long>(slow));
  say("    slow ones, which had not finished their first turn. The fast ones have been everywhere.");
  const rope<double> squeezed{options, position_interpolation{.factor = 4}};
  const auto after =
      coverage_report(trained.lowered().phase_per_token, 4096, squeezed.lowered().phase_per_token, 16'384);
  say("    Position interpolation by 4 leaves none. That is what context extension is about.");
  bool only_the_slowest = true;
  for (std::size_t p = 0; p < longer.size(); ++p)
    only_the_slowest =
        only_the_slowest && longer[p].is_unseen() == (p >= longer.size() - static_cast<std::size_t>(slow));
  hold(slow == 18 && only_the_slowest && unseen_pairs(after) == 0,
       "slow pairs enter new phases, none after PI");
}

// Plot ---------------------------------------------------------------------------------------------------

constexpr const char* script_head = R"gnuplot(# gnuplot positions.gp, or gnuplot -e "kind='svg'" positions.gp
if (!exists('kind')) kind = 'png'
if (kind eq 'png') set terminal pngcairo size 1500,1200 font 'sans,13' background 'white'
if (kind eq 'svg') set terminal svg size 1500,1200 font 'sans,16' background 'white'
set output 'positions.'.kind
set multiplot layout 4,3 rowsfirst margins 0.05,0.985,0.06,0.885 spacing 0.04,0.075 \
  title "\n{/:Bold=20 How much does \"man\" look back at \"dog\"?}\nscore in one attention head with random weights: a flat blue line means that only the distance counts"
set grid lc rgb '#dddddd' lt 1
set border 3 lc rgb '#888888'
set tics nomirror scale 0.5
unset key
set xrange [0:64]
set xtics 16
set yrange [-4:4]
set ytics 2
)gnuplot";

constexpr const char* script_legend = R"gnuplot(
unset title; unset border; unset tics; unset grid
set xrange [0:1]
set yrange [0:1]
set arrow 1 from 0.02,0.72 to 0.14,0.72 nohead lw 4 lc rgb '#1f5fbf'
set label 1 'both words move by x, 2 apart' at 0.18,0.72
set arrow 2 from 0.02,0.50 to 0.14,0.50 nohead lw 2 lc rgb '#e07b00'
set label 2 '"dog" stands x tokens before "man"' at 0.18,0.50
set label 3 'across: x in tokens      up: score' at 0.18,0.28
plot -1 with lines notitle
unset multiplot
)gnuplot";

/// The score over shift and over distance, and a gnuplot script with one small panel per encoding.
void write_plot(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  std::ofstream data(directory / "positions.tsv"), script(directory / "positions.gp");
  script << script_head;
  data << "# score of \"man\" for \"dog\"; one block per encoding: x, both moved by x, x apart\n";
  int panel = 0;
  for_each_encoding([&](const char* name, const char* door, const auto& encoding) {
    data << (panel > 0 ? "\n\n# " : "# ") << name << '\n';
    for (position x = 0; x <= 64; ++x)
      data << x << '\t' << score(encoding, 2 + x, x).value() << '\t' << score(encoding, 300, 300 - x).value()
           << '\n';
    const std::string subtitle = std::string_view(door) == "-" ? "" : std::string("   door: ") + door;
    script << "set title \"{/:Bold " << name << "}" << subtitle << "\" offset 0,-0.6\n"
           << "plot 'positions.tsv' index " << panel << " using 1:2 with lines lw 4 lc rgb '#1f5fbf', \\\n"
           << "  '' index " << panel << " using 1:3 with lines lw 2 lc rgb '#e07b00'\n";
    ++panel;
  });
  script << script_legend;
}

void draw_plot(const std::filesystem::path& directory) {
  const auto runs = [](const std::string& command) {
    return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
  };
  if (!runs("command -v gnuplot")) {
    std::printf("\n  Plot: gnuplot is not installed; data and script are in %s\n",
                directory.string().c_str());
    return;
  }
  std::filesystem::current_path(directory);
  const bool drawn = runs("gnuplot -e \"kind='svg'\" positions.gp") && runs("gnuplot positions.gp");
  hold(drawn, "gnuplot draws positions.gp");
  if (drawn)
    std::printf("\n  Plot: %s, and positions.svg next to it\n",
                (directory / "positions.png").string().c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> told(arguments + 1, arguments + count);
  if (!told.empty() && (told.size() != 2 || told[0] != "--plot-dir")) {
    std::fprintf(stderr, "usage: demo [--plot-dir DIR]\n");
    return 2;
  }
  say("posenc: why attention needs positions, and what each encoding does about it\n");
  tell_orders();
  tell_distance();
  tell_frequencies();
  if (!told.empty()) write_plot(told[1]), draw_plot(told[1]);
  return all_true ? EXIT_SUCCESS : EXIT_FAILURE;
}
