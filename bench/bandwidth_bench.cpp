// SPDX-License-Identifier: MIT
/// \file
/// What positions cost in memory traffic and in time, against length; docs/analysis.md says what came out.
///
///     bandwidth_bench [--plot FILE.svg] [Google Benchmark's options]
///
/// The naive ways beside the library's, on causal float attention of 4 heads × 64:
///
/// | variant | positions |
/// |---|---|
/// | fused.none, fused.rope, fused.alibi, fused.t5 | none; in registers; a line; one diagonal per head |
/// | fused.shaw-64, fused.shaw-all | q·r from a table of 65 rows, of as many rows as tokens |
/// | fused.matrix | a bias of both positions, read from an n × n matrix for each head, called for each score |
/// | eigen.none | attention by Eigen's matrix products: the baseline of the next two |
/// | eigen.matrix | an n × n matrix of biases for each head, added to the scores |
/// | eigen.rows | q·r as it is written: for each query the rows of all its distances |
///
/// and one token of 32 heads × 64 in bfloat16 against 131,072 keys, where the rows of all distances are as long as the cache of
/// keys (decode-*). Results are compared with the double reference before they are timed; repetitions are interleaved,
/// and times are those of the one thread's processor, so that neighbours on the machine count little. The bytes are counted, not measured: those of position data that the loops of a variant load.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include <benchmark/benchmark.h>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "../examples/gnuplot.hpp"

namespace {
using posenc::index_t;
using posenc::position;
using matrix = posenc::row_major_matrix<float>;

constexpr index_t heads = 4, head_dim = 64;
constexpr index_t lengths[] = {777, 1024, 2048, 4096, 8192};

posenc::attention_options options() { return {.heads = heads, .kv_heads = heads, .mask = posenc::causal}; }

float noise(std::uint64_t n) {
  n = (n + 1) * 0x9e37'79b9'7f4a'7c15u;
  n = (n ^ (n >> 31)) * 0xff51'afd7'ed55'8ccdu;
  return static_cast<float>(n >> 40) * 0x1p-23f - 1;
}

/// The tensors of one length, and the position data of the variants, made when first needed.
struct tensors {
  index_t n;
  matrix q, k, v;
  std::vector<matrix> bias;  ///< n × n for each head
  matrix rows;               ///< n × head_dim: row r is for a key n − 1 − r behind

  static tensors& of(index_t n) {
    static std::map<index_t, std::unique_ptr<tensors>>
        made;  // kept, because variants of all lengths take turns
    auto& entry = made[n];
    if (!entry) entry = std::make_unique<tensors>(n);
    return *entry;
  }
  explicit tensors(index_t count) : n(count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto draw = [&](index_t r, index_t c) {
      return matrix(matrix::NullaryExpr(r, c, [&] { return normal(random); }));
    };
    q = draw(n, heads * head_dim), k = draw(n, heads * head_dim), v = draw(n, heads * head_dim);
    rows = draw(n, head_dim) * 0.1f;
  }
  const std::vector<matrix>& biases() {
    if (bias.empty())
      for (index_t h = 0; h < heads; ++h) {
        bias.emplace_back(n, n);
        for (index_t i = 0; i < n * n; ++i)
          bias.back().data()[i] = noise(static_cast<std::uint64_t>(h * n * n + i));
      }
    return bias;
  }
};

/// An n × n matrix of biases for each head, through the door of both positions.
struct matrix_bias {
  const std::vector<matrix>* values;
  [[nodiscard]] float bias(int head, position query, position key) const {
    return (*values)[static_cast<std::size_t>(head)](query, key);
  }
};

template <class T>
posenc::t5_bias<T> t5() {
  posenc::row_major_matrix<T> table(32, heads);
  for (index_t i = 0; i < table.size(); ++i)
    table.data()[i] = static_cast<T>(noise(static_cast<std::uint64_t>(i)));
  return {{.buckets = 32, .max_distance = 128, .bidirectional = false},
          posenc::bias_table<T>::rows_by_heads(table)};
}

template <class T>
posenc::rope<T> rope() {
  return posenc::rope<T>{{.head_dim = head_dim, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
}

/// Shaw's keys with the last `left` + 1 of the rows.
template <class T>
posenc::shaw<T> shaw(const tensors& t, index_t left) {
  return {{.direction = posenc::relative_direction::key_minus_query, .left = left, .right = 0},
          posenc::row_major_matrix<T>(t.rows.bottomRows(left + 1).template cast<T>())};
}

template <class E>
void fused(const tensors& t, const E& encoding, matrix& out) {
  static posenc::fused::workspace memory;
  posenc::fused::attention_into(posenc::as_heads(t.q, heads), posenc::as_heads(t.k, heads),
                                posenc::as_heads(t.v, heads), encoding, options(),
                                posenc::as_heads(out, heads), {}, {.memory = &memory});
}

/// Attention by Eigen's products; add(head, scores) adds positions to unscaled scores.
template <class Add>
void eigen(const tensors& t, matrix& out, const Add& add) {
  static matrix scores;
  scores.resize(t.n, t.n);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (index_t h = 0; h < heads; ++h) {
    scores.noalias() =
        t.q.middleCols(h * head_dim, head_dim) * t.k.middleCols(h * head_dim, head_dim).transpose();
    add(h, scores);
    for (index_t i = 0; i < t.n; ++i) {
      auto row = scores.row(i).head(i + 1);
      row = ((row.array() - row.maxCoeff()) * scale).exp();
      row /= row.sum();
      scores.row(i).tail(t.n - i - 1).setZero();
    }
    out.middleCols(h * head_dim, head_dim).noalias() = scores * t.v.middleCols(h * head_dim, head_dim);
  }
}

/// The relative error of the last two query rows.
template <class E>
double error_of(const tensors& t, const E& encoding, const matrix& out) {
  const auto wide = [](const auto& part) {
    return posenc::row_major_matrix<double>(part.template cast<double>());
  };
  const posenc::row_major_matrix<double> expected =
      posenc::reference::attention(wide(t.q.bottomRows(2)), wide(t.k), wide(t.v), encoding, options());
  return (wide(out.bottomRows(2)) - expected).norm() / expected.norm();
}

struct variant {
  const char* name;
  const char* baseline;
  std::function<void(tensors&, matrix&)> run;
  std::function<double(tensors&, const matrix&)> error;
  std::function<double(double n)> bytes;  ///< of position data that the loops load
};

constexpr double float_bytes = 4, all_heads = static_cast<double>(heads),
                 width = static_cast<double>(head_dim);

std::vector<variant> variants() {
  const auto none = [](double) { return 0.0; };
  const auto diagonal = [](double n) { return float_bytes * all_heads * n; };
  const auto half_matrix = [](double n) { return float_bytes * all_heads * n * (n + 1) / 2; };
  return {
      {"fused.none", "fused.none", [](tensors& t, matrix& out) { fused(t, posenc::no_encoding{}, out); },
       [](tensors& t, const matrix& out) { return error_of(t, posenc::no_encoding{}, out); }, none},
      {"fused.rope", "fused.none",
       [](tensors& t, matrix& out) {
         static const posenc::rope<float> made = rope<float>();
         fused(t, made, out);
       },
       [](tensors& t, const matrix& out) { return error_of(t, rope<double>(), out); }, none},
      {"fused.alibi", "fused.none",
       [](tensors& t, matrix& out) { fused(t, posenc::alibi<float>{{.heads = heads}}, out); },
       [](tensors& t, const matrix& out) {
         return error_of(t, posenc::alibi<double>{{.heads = heads}}, out);
       },
       none},
      {"fused.t5", "fused.none",
       [](tensors& t, matrix& out) {
         static const posenc::t5_bias<float> made = t5<float>();
         fused(t, made, out);
       },
       [](tensors& t, const matrix& out) { return error_of(t, t5<double>(), out); }, diagonal},
      {"fused.shaw-64", "fused.none", [](tensors& t, matrix& out) { fused(t, shaw<float>(t, 64), out); },
       [](tensors& t, const matrix& out) { return error_of(t, shaw<double>(t, 64), out); },
       [](double) { return float_bytes * width * 65; }},
      {"fused.shaw-all", "fused.none",
       [](tensors& t, matrix& out) { fused(t, shaw<float>(t, t.n - 1), out); },
       [](tensors& t, const matrix& out) { return error_of(t, shaw<double>(t, t.n - 1), out); },
       [](double n) { return float_bytes * width * n; }},
      {"fused.matrix", "fused.none", [](tensors& t, matrix& out) { fused(t, matrix_bias{&t.biases()}, out); },
       [](tensors& t, const matrix& out) { return error_of(t, matrix_bias{&t.biases()}, out); }, half_matrix},
      {"eigen.none", "eigen.none", [](tensors& t, matrix& out) { eigen(t, out, [](index_t, matrix&) {}); },
       [](tensors& t, const matrix& out) { return error_of(t, posenc::no_encoding{}, out); }, none},
      {"eigen.matrix", "eigen.none",
       [](tensors& t, matrix& out) {
         const float unscaled = std::sqrt(static_cast<float>(head_dim));
         const std::vector<matrix>& bias = t.biases();
         eigen(t, out,
               [&](index_t h, matrix& scores) { scores += unscaled * bias[static_cast<std::size_t>(h)]; });
       },
       [](tensors& t, const matrix& out) { return error_of(t, matrix_bias{&t.biases()}, out); },
       [](double n) { return float_bytes * all_heads * n * n; }},
      {"eigen.rows", "eigen.none",
       [](tensors& t, matrix& out) {
         eigen(t, out, [&](index_t h, matrix& scores) {
           // Query i stands at i: its keys 0 … i have the last i + 1 rows.
           for (index_t i = 0; i < t.n; ++i)
             scores.row(i).head(i + 1).noalias() +=
                 t.q.row(i).segment(h * head_dim, head_dim) * t.rows.bottomRows(i + 1).transpose();
         });
       },
       [](tensors& t, const matrix& out) { return error_of(t, shaw<double>(t, t.n - 1), out); },
       [](double n) { return float_bytes * all_heads * width * n * (n + 1) / 2; }},
  };
}

/// One token against 131,072 keys of 32 heads × 64, and a row of 2048 for each distance.
namespace decode {
using Eigen::bfloat16;
constexpr index_t keys = 131'072, token_heads = 32, row = token_heads * head_dim;

struct cache {
  posenc::row_major_matrix<bfloat16> q{1, row}, k{keys, row}, v{keys, row}, rows{keys, row};
  static const cache& get() {
    static const cache made;
    return made;
  }
  cache() {
    std::uint64_t n = 0;
    for (auto* part : {&q, &k, &v, &rows})
      for (index_t i = 0; i < part->size(); ++i) part->data()[i] = bfloat16(noise(n++));
  }
};

template <class E>
void fused(benchmark::State& state, const E& encoding) {
  const cache& c = cache::get();
  posenc::row_major_matrix<bfloat16> out(1, row);
  posenc::fused::workspace memory;
  const posenc::attention_options as_asked{
      .heads = token_heads, .kv_heads = token_heads, .mask = posenc::causal};
  for (auto _ : state) {
    posenc::fused::attention_into(posenc::as_heads(c.q, token_heads), posenc::as_heads(c.k, token_heads),
                                  posenc::as_heads(c.v, token_heads), encoding, as_asked,
                                  posenc::as_heads(out, token_heads), {}, {.memory = &memory});
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
}

/// What relative vectors add to that: q·r of each head for all distances, each row read once.
void rows(benchmark::State& state) {
  const cache& c = cache::get();
  matrix scores(keys, token_heads);
  const matrix q = c.q.cast<float>();
  for (auto _ : state) {
    for (index_t distance = 0; distance < keys; ++distance) {
      const auto* from = reinterpret_cast<const std::uint16_t*>(c.rows.data()) + distance * row;
      for (index_t h = 0; h < token_heads; ++h) {
        float lanes[16] = {};  // a sum that the compiler may vectorise as it stands
        for (index_t first = 0; first < head_dim; first += 16)
          for (index_t lane = 0; lane < 16; ++lane) {
            const std::uint32_t bits = std::uint32_t{from[h * head_dim + first + lane]} << 16;
            float value;
            std::memcpy(&value, &bits, sizeof value);
            lanes[lane] += value * q(0, h * head_dim + first + lane);
          }
        float sum = 0;
        for (const float lane : lanes) sum += lane;
        scores(distance, h) = sum;
      }
    }
    benchmark::DoNotOptimize(scores.data());
    benchmark::ClobberMemory();
  }
  for (const index_t distance : {index_t{0}, index_t{77'777}, keys - 1})
    for (const index_t h : {index_t{0}, token_heads - 1}) {
      const double expected = c.q.middleCols(h * head_dim, head_dim)
                                  .cast<double>()
                                  .row(0)
                                  .dot(c.rows.row(distance).segment(h * head_dim, head_dim).cast<double>());
      if (!(std::abs(static_cast<double>(scores(distance, h)) - expected) <= 1e-4))
        state.SkipWithError("wrong result");
    }
}

/// The rows read and nothing else: what no way of using them can be faster than.
void plain_read(benchmark::State& state) {
  const cache& c = cache::get();
  for (auto _ : state) {
    std::uint64_t sums[8] = {};
    const auto* words = reinterpret_cast<const char*>(c.rows.data());
    const std::size_t bytes = static_cast<std::size_t>(c.rows.size()) * sizeof(bfloat16);
    for (std::size_t at = 0; at < bytes; at += sizeof sums) {
      std::uint64_t part[8];
      std::memcpy(part, words + at, sizeof part);
      for (int lane = 0; lane < 8; ++lane) sums[lane] ^= part[lane];
    }
    benchmark::DoNotOptimize(sums);
  }
}
}  // namespace decode

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Collects times, and says at the end what positions cost.
class cost_reporter : public benchmark::ConsoleReporter {
 public:
  cost_reporter() : ConsoleReporter(isatty(STDOUT_FILENO) != 0 ? OO_ColorTabular : OO_Tabular) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs)
      if (!run.error_occurred && run.run_type == Run::RT_Iteration)
        seconds_[run.run_name.function_name].push_back(run.cpu_accumulated_time /
                                                       static_cast<double>(run.iterations));
  }
  void Finalize() override {
    ConsoleReporter::Finalize();
    std::printf(
        "\nthe article's table: 131072 offsets x 2048 x 2 bytes = %.1f GiB; read for each of 131072 tokens "
        "%.0f GiB,\n"
        "written as well %.0f GiB; as a matrix product that reads it once for 256 queries %.0f GiB\n",
        std::ldexp(1, 29 - 30), std::ldexp(1, 46 - 30), std::ldexp(1, 47 - 30), std::ldexp(1, 46 - 8 - 30));
    std::printf(
        "\nmedian of the repetitions; x: the time over that of the same attention without positions; added: "
        "the time that\n"
        "positions add, over that of the fused attention without positions\n");
    for (const auto& [name, times] : seconds_)
      std::printf("  %-24s %10.3f ms  x %.3f  added %7.3f  positions %10.2f MB\n", name.c_str(),
                  1e3 * median(times), cost(name), added(name), bytes(name) * 1e-6);
  }

  /// The time of a benchmark over that of its baseline; 0 where one is missing.
  [[nodiscard]] double cost(const std::string& name) const {
    const double base = time_of(baseline_of(name));
    return base > 0 ? time_of(name) / base : 0;
  }
  /// The time that positions add to the baseline, over that of the fused attention without positions. The rows of a decode
  /// step are all addition.
  [[nodiscard]] double added(const std::string& name) const {
    const std::string length = name.substr((std::min)(name.find('|'), name.size()));
    const bool is_step = name.starts_with("decode");
    const double fused_time = time_of((is_step ? "decode.none" : "fused.none") + length);
    const double without = name.starts_with("decode.rows") ? 0 : time_of(baseline_of(name));
    return fused_time > 0 ? (time_of(name) - without) / fused_time : 0;
  }
  [[nodiscard]] static double bytes(const std::string& name) {
    const std::size_t bar = name.find('|');
    for (const variant& one : all())
      if (name.substr(0, bar) == one.name) return one.bytes(std::stod(name.substr(bar + 1)));
    return name.starts_with("decode.rows") ? 2.0 * static_cast<double>(decode::keys * decode::row) : 0;
  }
  static const std::vector<variant>& all() {
    static const std::vector<variant> made = variants();
    return made;
  }

  /// Time over that of the baseline against length, one curve for each variant.
  void plot(const std::string& file) const {
    std::string data, curves;
    for (const variant& one : all()) {
      if (std::string(one.name) == one.baseline) continue;
      std::string points;
      for (const index_t n : lengths)
        if (const std::string run = std::string(one.name) + "|" + std::to_string(n); time_of(run) > 0)
          points += std::to_string(n) + " " + std::to_string(cost(run)) + "\n";
      if (points.empty()) continue;
      std::string name = one.name;
      std::replace(name.begin(), name.end(), '.', '_'), std::replace(name.begin(), name.end(), '-', '_');
      data += "$" + name + " << EOD\n" + points + "EOD\n";
      curves += (curves.empty() ? "" : ", ") + ("$" + name) +
                " using 1:2 with linespoints lw 2 pt 7 ps 0.6 title " + gnuplot::quoted(one.name);
    }
    posenc::detail::require(!curves.empty(), "--plot: nothing was measured");
    gnuplot::draw(
        "set terminal svg size 900,560 font 'sans,13' background 'white'\nset output " +
            gnuplot::quoted(file) + "\n" + data +
            "set grid\nset key outside right noenhanced\nset logscale xy\nset xtics (777, 1024, 2048, 4096, "
            "8192)\n"
            "set ytics (1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50)\nset xlabel 'tokens'\n"
            "set ylabel 'time over that of the same attention without positions'\n"
            "set title 'What positions cost: causal attention, 4 heads of 64, float, one thread'\nplot " +
            curves + "\n",
        file);
  }

 private:
  [[nodiscard]] double time_of(const std::string& name) const {
    const auto found = seconds_.find(name);
    return found == seconds_.end() ? 0 : median(found->second);
  }
  [[nodiscard]] static std::string baseline_of(const std::string& name) {
    const std::size_t bar = (std::min)(name.find('|'), name.size());
    for (const variant& one : all())
      if (name.substr(0, bar) == one.name) return one.baseline + name.substr(bar);
    return "decode.none" + name.substr(bar);
  }

  std::map<std::string, std::vector<double>> seconds_;
};

void run(benchmark::State& state, const variant& v, index_t n) {
  tensors& t = tensors::of(n);
  matrix out(n, heads * head_dim);
  v.run(t, out);
  if (const double error = v.error(t, out); !(error <= 1e-5)) {
    state.SkipWithError(("wrong result: relative error " + std::to_string(error)).c_str());
    return;
  }
  for (auto _ : state) {
    v.run(t, out);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
}

void add_decode(const char* name, const std::function<void(benchmark::State&)>& f) {
  benchmark::RegisterBenchmark(("decode." + std::string(name) + "|131072").c_str(), f)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string plot;
  for (std::size_t i = 1; i + 1 < arguments.size(); ++i)
    if (std::string(arguments[i]) == "--plot") {
      plot = arguments[i + 1];
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                      arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
      break;
    }
  std::string repetitions = "--benchmark_repetitions=5", shortly = "--benchmark_min_time=0.02",
              interleave = "--benchmark_enable_random_interleaving=true";
  // First, so that the same flags on the command line win.
  arguments.insert(arguments.begin() + 1, {repetitions.data(), shortly.data(), interleave.data()});
  int count = static_cast<int>(arguments.size());
  for (const index_t n : lengths)
    for (const variant& v : cost_reporter::all())
      benchmark::RegisterBenchmark((std::string(v.name) + "|" + std::to_string(n)).c_str(),
                                   [&v, n](benchmark::State& state) { run(state, v, n); })
          ->Unit(benchmark::kMillisecond);
  add_decode("none", [](benchmark::State& state) { decode::fused(state, posenc::no_encoding{}); });
  add_decode("rope", [](benchmark::State& state) { decode::fused(state, rope<float>()); });
  add_decode("alibi", [](benchmark::State& state) {
    decode::fused(state, posenc::alibi<float>{{.heads = decode::token_heads}});
  });
  add_decode("rows", decode::rows);
  add_decode("rows-read", decode::plain_read);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  cost_reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  if (!plot.empty()) reporter.plot(plot);
  return 0;
}
