// SPDX-License-Identifier: MIT
/// \file
/// The fused attention beside its baselines, shapes of real models; bench/README.md says how to read it.
///
/// Every variant's result is checked against the double reference (the last query rows) before it is timed. Repetitions
/// of all variants are interleaved, peak and bandwidth are measured in the same run, and the ratios are printed at the end.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
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

#include "peak.hpp"

namespace {
using posenc::index_t;

struct shape {
  const char* name;
  index_t queries, keys, heads, kv_heads, head_dim;

  [[nodiscard]] bool decode() const { return queries == 1; }
  /// Multiplications and additions of both products over the pairs that a causal mask leaves.
  [[nodiscard]] double useful_flops() const {
    const double first = static_cast<double>(keys - queries), n = static_cast<double>(queries);
    return 4.0 * (n * first + n * (n + 1) / 2) * static_cast<double>(heads * head_dim);
  }
  [[nodiscard]] double cache_bytes(std::size_t size) const {
    return 2.0 * static_cast<double>(keys * kv_heads * head_dim) * static_cast<double>(size);
  }
};

constexpr shape shapes[] = {
    {"prefill-32/8x128-512", 512, 512, 32, 8, 128},    {"prefill-32/8x128-2048", 2048, 2048, 32, 8, 128},
    {"prefill-32/8x128-4096", 4096, 4096, 32, 8, 128}, {"prefill-12x64-1024", 1024, 1024, 12, 12, 64},
    {"prefill-9/3x64-1024", 1024, 1024, 9, 3, 64},     {"prefill-16/8x256-1024", 1024, 1024, 16, 8, 256},
    {"prefill-5x80-777", 777, 777, 5, 5, 80},          {"decode-32/8x128-4096", 1, 4096, 32, 8, 128},
    {"decode-32/8x128-32768", 1, 32768, 32, 8, 128},
};

template <class S>
using matrix = posenc::row_major_matrix<S>;

/// One shape's tensors, made when first needed and shared by all variants.
template <class S>
struct tensors {
  matrix<S> q, k, v;

  static const tensors& of(const shape& s) {
    static std::map<std::string, std::unique_ptr<tensors>> made;
    if (made.size() > 1 && !made.contains(s.name)) made.clear();
    auto& entry = made[s.name];
    if (!entry) {
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      const auto draw = [&](index_t rows, index_t columns) {
        return matrix<S>(
            matrix<float>::NullaryExpr(rows, columns, [&] { return normal(random); }).template cast<S>());
      };
      entry = std::make_unique<tensors>(draw(s.queries, s.heads * s.head_dim),
                                        draw(s.keys, s.kv_heads * s.head_dim),
                                        draw(s.keys, s.kv_heads * s.head_dim));
    }
    return *entry;
  }
  tensors(matrix<S> q_, matrix<S> k_, matrix<S> v_) : q(std::move(q_)), k(std::move(k_)), v(std::move(v_)) {}
};

posenc::attention_options options_of(const shape& s) {
  return {.heads = s.heads, .kv_heads = s.kv_heads, .mask = posenc::causal};
}

template <class T>
posenc::rope<T> rope_of(const shape& s) {
  return posenc::rope<T>{{.head_dim = s.head_dim, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
}

template <class T>
posenc::t5_bias<T> t5_of(const shape& s) {
  matrix<T> table(32, s.heads);
  for (index_t b = 0; b < 32; ++b)
    for (index_t h = 0; h < s.heads; ++h)
      table(b, h) = static_cast<T>(0.01 * static_cast<double>((b * 7 + h * 3) % 100));
  return {{.buckets = 32, .max_distance = 128, .bidirectional = false},
          posenc::bias_table<T>::rows_by_heads(table)};
}

/// The worst difference to the double reference over the last query rows.
template <class S, class E>
double worst_error(const shape& s, const E& exact, const matrix<S>& out) {
  const tensors<S>& t = tensors<S>::of(s);
  const index_t rows = std::min<index_t>(s.queries, 3);
  const matrix<double> q = t.q.bottomRows(rows).template cast<double>();
  const matrix<double> expected =
      posenc::reference::attention(q, matrix<double>(t.k.template cast<double>()),
                                   matrix<double>(t.v.template cast<double>()), exact, options_of(s));
  return (out.bottomRows(rows).template cast<double>() - expected).norm() / expected.norm();
}

/// Softmax attention by Eigen's matrix products, one head at a time over rotated copies: what is usually written by hand.
void eigen_attention(const shape& s, const matrix<float>& q, const matrix<float>& k, const matrix<float>& v,
                     matrix<float>& out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const index_t group = s.heads / s.kv_heads;
  matrix<float> scores(s.queries, s.keys);
  for (index_t h = 0; h < s.heads; ++h) {
    const auto keys = k.middleCols(h / group * s.head_dim, s.head_dim);
    scores.noalias() = q.middleCols(h * s.head_dim, s.head_dim) * keys.transpose();
    for (index_t i = 0; i < s.queries; ++i) {
      const index_t seen = s.keys - s.queries + i + 1;
      auto row = scores.row(i).head(seen);
      row = ((row.array() - row.maxCoeff()) * scale).exp();
      row /= row.sum();
      scores.row(i).tail(s.keys - seen).setZero();
    }
    out.middleCols(h * s.head_dim, s.head_dim).noalias() =
        scores * v.middleCols(h / group * s.head_dim, s.head_dim);
  }
}

/// A variant: fills `out`; `extra_bytes` is what it holds beside q, k, v and output.
template <class S>
struct variant {
  const char* name;
  std::function<void(const shape&, matrix<S>&, int threads)> run;
  std::function<double(const shape&, const matrix<S>&)> error;
  std::function<double(const shape&)> extra_bytes;
};

template <class S, class E>
void fused(const shape& s, const matrix<S>& q, const matrix<S>& k, const E& encoding, matrix<S>& out,
           int threads, bool rotated = false) {
  static posenc::fused::workspace memory;
  const tensors<S>& t = tensors<S>::of(s);
  posenc::attention_options options = options_of(s);
  options.keys_are_rotated = rotated;
  posenc::fused::execution how{.memory = &memory};
  if (threads > 1) how.executor = posenc::fused::openmp_executor{threads};
  posenc::fused::attention_into(posenc::as_heads(q, s.heads), posenc::as_heads(k, s.kv_heads),
                                posenc::as_heads(t.v, s.kv_heads), encoding, options,
                                posenc::as_heads(out, s.heads), {}, how);
}

template <class S>
std::vector<variant<S>> variants() {
  const auto nothing = [](const shape&) { return 0.0; };
  const auto with_rope = [](const shape& s, const matrix<S>& out) {
    return worst_error<S>(s, rope_of<double>(s), out);
  };
  const auto rotated_copies = [](const shape& s) {
    return static_cast<double>((s.queries * s.heads + s.keys * s.kv_heads) * s.head_dim) * sizeof(S);
  };
  std::vector<variant<S>> all = {
      {"none",
       [](const shape& s, matrix<S>& out, int threads) {
         const auto& t = tensors<S>::of(s);
         fused<S>(s, t.q, t.k, posenc::no_encoding{}, out, threads);
       },
       [](const shape& s, const matrix<S>& out) { return worst_error<S>(s, posenc::no_encoding{}, out); },
       nothing},
      {"rope",
       [](const shape& s, matrix<S>& out, int threads) {
         static std::map<std::string, posenc::rope<float>> made;
         const auto& t = tensors<S>::of(s);
         fused<S>(s, t.q, t.k, made.try_emplace(s.name, rope_of<float>(s)).first->second, out, threads);
       },
       with_rope, nothing},
      {"alibi",
       [](const shape& s, matrix<S>& out, int threads) {
         const auto& t = tensors<S>::of(s);
         fused<S>(s, t.q, t.k, posenc::alibi<float>{{.heads = s.heads}}, out, threads);
       },
       [](const shape& s, const matrix<S>& out) {
         return worst_error<S>(s, posenc::alibi<double>{{.heads = s.heads}}, out);
       },
       nothing},
      {"t5",
       [](const shape& s, matrix<S>& out, int threads) {
         static std::map<std::string, posenc::t5_bias<float>> made;
         const auto& t = tensors<S>::of(s);
         fused<S>(s, t.q, t.k, made.try_emplace(s.name, t5_of<float>(s)).first->second, out, threads);
       },
       [](const shape& s, const matrix<S>& out) { return worst_error<S>(s, t5_of<double>(s), out); },
       nothing},
      {"rotate-into-a-copy",
       [](const shape& s, matrix<S>& out, int threads) {
         static matrix<S> q, k;
         const auto& t = tensors<S>::of(s);
         q.resizeLike(t.q), k.resizeLike(t.k);
         const posenc::rope<float> rope = rope_of<float>(s);
         posenc::rotate_heads(posenc::as_heads(t.q, s.heads), posenc::as_heads(q, s.heads), rope,
                              posenc::positions::from(s.keys - s.queries));
         posenc::rotate_heads(posenc::as_heads(t.k, s.kv_heads), posenc::as_heads(k, s.kv_heads), rope,
                              posenc::positions::from(0));
         fused<S>(s, q, k, posenc::no_encoding{}, out, threads);
       },
       with_rope, rotated_copies},
      {"rotated-cache",
       [](const shape& s, matrix<S>& out, int threads) {
         static std::map<std::string, matrix<S>> caches;
         const auto& t = tensors<S>::of(s);
         const posenc::rope<float> rope = rope_of<float>(s);
         if (!caches.contains(s.name)) {
           caches.clear();
           matrix<S> k = t.k;
           posenc::rotate_heads(posenc::as_heads(k, s.kv_heads), rope, posenc::positions::from(0));
           caches.emplace(s.name, std::move(k));
         }
         fused<S>(s, t.q, caches.at(s.name), rope, out, threads, true);
       },
       with_rope, nothing},
  };
  if constexpr (std::same_as<S, float>)
    all.push_back({"eigen",
                   [](const shape& s, matrix<float>& out, int) {
                     static matrix<float> q, k;
                     const auto& t = tensors<float>::of(s);
                     q = t.q, k = t.k;
                     const posenc::rope<float> rope = rope_of<float>(s);
                     posenc::rotate_heads(posenc::as_heads(q, s.heads), rope,
                                          posenc::positions::from(s.keys - s.queries));
                     posenc::rotate_heads(posenc::as_heads(k, s.kv_heads), rope, posenc::positions::from(0));
                     eigen_attention(s, q, k, t.v, out);
                   },
                   with_rope,
                   [rotated_copies](const shape& s) {
                     return rotated_copies(s) + 4.0 * static_cast<double>(s.queries * s.keys);
                   }});
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The best peak measured so far in this run, and how fast a plain read of a shape's own cache was each time.
struct machine {
  double flops = 0;
  std::map<std::string, std::vector<double>> reads;

  void measure_peak() { flops = std::max(flops, posenc::bench::fma_peak()); }

  template <class S>
  void measure_reads(const shape& s) {
    const tensors<S>& t = tensors<S>::of(s);
    for (const matrix<S>* part : {&t.k, &t.v})
      reads[key(s.name, sizeof(S))].push_back(posenc::bench::read_bandwidth(
          {reinterpret_cast<const float*>(part->data()),
           static_cast<std::size_t>(part->size()) * sizeof(S) / sizeof(float)}));
  }
  [[nodiscard]] double bytes(const std::string& name, std::size_t size) const {
    const auto found = reads.find(key(name, size));
    return found == reads.end() ? 0 : median(found->second);
  }
  static std::string key(const std::string& name, std::size_t size) {
    return name + "/" + std::to_string(size);
  }
};
machine& this_machine() {
  static machine measured;
  return measured;
}

template <class S>
void run(benchmark::State& state, const shape& s, const variant<S>& v, int threads) {
  matrix<S> out(s.queries, s.heads * s.head_dim);
  v.run(s, out, threads);
  const double allowed = sizeof(S) == 4 ? 2e-6 : 2e-2;
  if (const double error = v.error(s, out); !(error <= allowed)) {
    state.SkipWithError(("wrong result: relative error " + std::to_string(error)).c_str());
    return;
  }
  if (s.decode()) this_machine().measure_reads<S>(s);
  for (auto _ : state) {
    v.run(s, out, threads);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const double work = s.decode() ? s.cache_bytes(sizeof(S)) : s.useful_flops();
  state.counters[s.decode() ? "GB/s" : "GFLOP/s"] =
      benchmark::Counter(work * 1e-9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["extra_MiB"] = v.extra_bytes(s) / 1048576;
}

/// The usual table, and behind it what is worth comparing: shares of the machine and ratios between variants.
class ratio_reporter : public benchmark::ConsoleReporter {
 public:
  ratio_reporter() : ConsoleReporter(isatty(STDOUT_FILENO) != 0 ? OO_ColorTabular : OO_Tabular) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs)
      if (!run.error_occurred && run.run_type == Run::RT_Iteration)
        seconds_[run.run_name.function_name + run.run_name.args].push_back(
            run.real_accumulated_time / static_cast<double>(run.iterations));
  }
  void Finalize() override {
    ConsoleReporter::Finalize();
    this_machine().measure_peak();
    std::printf("\nFMA peak of one core %.1f GFLOP/s, kernels for %s\n", this_machine().flops * 1e-9,
                posenc::fused::target_name());
    for (const auto& [name, rates] : this_machine().reads)
      std::printf("read bandwidth of one core over the cache of %s bytes: median %.1f GB/s, best %.1f\n",
                  name.c_str(), median(rates) * 1e-9, *std::max_element(rates.begin(), rates.end()) * 1e-9);
    std::printf(
        "median of the repetitions; share: of the peak (prefill) or of the median read bandwidth over the "
        "same "
        "cache (decode); time against rope = 1\n");
    for (const auto& [name, times] : seconds_) {
      const auto parts = split(name);
      if (parts.size() != 4) continue;
      const shape* s = nullptr;
      for (const shape& candidate : shapes)
        if (parts[0] == candidate.name) s = &candidate;
      if (!s) continue;
      const std::size_t size = parts[1] == "float" ? 4 : 2;
      const double work = s->decode() ? s->cache_bytes(size) : s->useful_flops();
      const double best = s->decode() ? this_machine().bytes(parts[0], size) : this_machine().flops;
      const auto rope = seconds_.find(parts[0] + "|" + parts[1] + "|rope|" + parts[3]);
      const double middle = median(times);
      std::printf("  %-24s %-9s %-20s %s thread%s  %7.1f %s  %5.1f %%  spread %4.1f %%", parts[0].c_str(),
                  parts[1].c_str(), parts[2].c_str(), parts[3].c_str(), parts[3] == "1" ? " " : "s",
                  work / middle * 1e-9, s->decode() ? "GB/s   " : "GFLOP/s", 100 * work / middle / best,
                  100 *
                      (*std::max_element(times.begin(), times.end()) -
                       *std::min_element(times.begin(), times.end())) /
                      middle);
      if (rope != seconds_.end()) std::printf("  x %.3f", middle / median(rope->second));
      std::printf("\n");
    }
  }

 private:
  static std::vector<std::string> split(const std::string& name) {
    std::vector<std::string> parts{""};
    for (const char c : name)
      if (c == '|')
        parts.emplace_back();
      else
        parts.back() += c;
    return parts;
  }
  std::map<std::string, std::vector<double>> seconds_;
};

template <class S>
void add_all(const char* storage) {
  static const std::vector<variant<S>> all = variants<S>();
  for (const shape& s : shapes)
    for (const variant<S>& v : all)
      for (const int threads : {1, 2}) {
        const bool single = std::string(v.name) == "eigen";
        if (threads > 1 && single) continue;
        const std::string name =
            std::string(s.name) + "|" + storage + "|" + v.name + "|" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(), [&s, &v, threads](benchmark::State& state) { run<S>(state, s, v, threads); })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
}

/// The reference, where it is not too slow to wait for.
void reference_small(benchmark::State& state) {
  const shape& s = shapes[6];
  const auto& t = tensors<float>::of(s);
  for (auto _ : state)
    benchmark::DoNotOptimize(posenc::reference::attention(t.q, t.k, t.v, rope_of<float>(s), options_of(s)));
}
BENCHMARK(reference_small)
    ->Name("prefill-5x80-777|float|reference|1")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string repetitions = "--benchmark_repetitions=5",
              interleave = "--benchmark_enable_random_interleaving=true",
              shortly = "--benchmark_min_time=0.05";
  // First, so that the same flags on the command line win.
  arguments.insert(arguments.begin() + 1, {repetitions.data(), interleave.data(), shortly.data()});
  int count = static_cast<int>(arguments.size());
  add_all<float>("float");
  add_all<Eigen::bfloat16>("bfloat16");
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  this_machine().measure_peak();
  ratio_reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
