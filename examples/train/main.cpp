// SPDX-License-Identifier: MIT
/// \file
/// Trains a small transformer with each encoding of the library: what it learns, and how far beyond its length.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "../llama/arguments.hpp"
#include "../llama/console.hpp"
#include "model.hpp"
#include "study_tasks.hpp"

namespace {

constexpr const char* usage = R"(usage: train [OPTION VALUE]...

  --encoding NAME   none, learned, sinusoidal, clipped, t5, shaw, alibi, rope, xpos    (rope)
  --task NAME       text: the next byte; or order, early, late, which docs/training_study.md explains    (text)
  --text FILE       a text of 10,000 bytes or more; without it sentences that the program makes up
  --steps N, --batch N, --tokens N, --width N, --heads N, --layers N, --seed N, --threads N
  --length N        tokens of a sequence in this run, where it is not the trained length --tokens
  --scaling NAME --factor N    stretches rope: linear, theta, yarn
  --checkpoint FILE written at the end and every 100 steps; --resume FILE goes on from one
  --stop N          ends after step N of --steps, as an interruption would
  --csv FILE        appends a line per measured loss
  flags: --bidirectional (not for text), --profile, --quiet

The loss is in nats per token, on text that was not trained on, at 1, 2, 4 and 8 times the trained length; "-" where the
encoding has no such position.
)";

/// Loss on 32 sequences that are not trained on; negative where the encoding has no such positions.
double test_loss(train::model& model, const train::task& task, std::uint64_t seed, posenc::index_t tokens) {
  double sum = 0;
  try {
    for (int n = 0; n < 4; ++n) sum += model.loss(task(seed, n, 8, tokens, true), tokens, false);
  } catch (const std::out_of_range&) {  // a learned table ends
    return -1;
  }
  return sum / 4;
}

void run(const llama::arguments& line) {
  const auto count = [&](const char* option, int otherwise) {
    return line.count(option).value_or(otherwise);
  };
  const auto word = [&](const char* option, const char* otherwise) {
    return line.text(option).value_or(otherwise);
  };
  const std::string task_name = word("--task", "text"), name = word("--encoding", "rope"),
                    scaling = word("--scaling", "none");
  const bool is_text = task_name == "text", sees_both = line.has("--bidirectional");
  const train::task task = is_text ? train::text_task(line.text("--text")) : train::study_task(task_name);
  train::require(!is_text || !sees_both, "--bidirectional: a text's next byte would be seen");
  const train::shape sizes{.vocabulary = task.vocabulary,
                           .width = count("--width", 96),
                           .heads = count("--heads", 4),
                           .layers = count("--layers", 2),
                           .tokens = count("--tokens", 64),
                           .mask = sees_both ? posenc::bidirectional : posenc::causal};
  const int steps = count("--steps", 300), stop = (std::min)(count("--stop", steps), steps),
            seed_number = count("--seed", 1), batch = count("--batch", 16);
  const auto seed = static_cast<std::uint64_t>(seed_number);
  const posenc::index_t length = count("--length", static_cast<int>(sizes.tokens));
  const posenc::fused::thread_pool pool(count("--threads", 2));
  train::model model(sizes, train::make_encoding(name, sizes, seed + 1, scaling, count("--factor", 1)), seed,
                     pool);
  const auto parameters = model.parameters();
  int step = 0;
  if (const auto from = line.text("--resume")) step = train::load(*from, parameters), model.refresh();
  const int first = step;

  const llama::stopwatch watch;
  double mean = 0;
  while (step < stop) {
    const double loss = model.loss(task(seed, step, batch, length, false), length, true);
    train::adam().update(parameters, step, steps);
    model.refresh();
    mean = step == first ? loss : 0.9 * mean + 0.1 * loss;
    ++step;
    const double seconds = watch.seconds(), done = step - first;
    if (!line.has("--quiet"))
      std::fprintf(stderr, "\r%s: step %d of %d, loss %.3f, %.0f tokens/s, %.0f s left   %s", name.c_str(),
                   step, stop, mean, done * static_cast<double>(batch * length) / seconds,
                   seconds / done * (stop - step), step == stop ? "\n" : "");
    const auto file = line.text("--checkpoint");
    if (file && (step % 100 == 0 || step == stop)) train::save(*file, parameters, step);
  }
  const double seconds = watch.seconds(), products = 100 * model.times().products / seconds,
               attention = 100 * model.times().attention / seconds;
  if (line.has("--profile") && step > first)
    std::printf("of %.1f s: products %.0f %%, attention %.0f %%, all else %.0f %%\n", seconds, products,
                attention, 100 - products - attention);

  std::ofstream csv;
  if (const auto file = line.text("--csv")) csv.open(*file, std::ios::app);
  train::require(csv.good(), "--csv: the file cannot be written");
  std::printf("%s, seed %d, %d steps: test loss", name.c_str(), seed_number, step);
  for (int times = 1; times <= (is_text ? 8 : 1); times *= 2) {
    const int tokens = times * static_cast<int>(sizes.tokens);
    const double loss = test_loss(model, task, seed, tokens);
    loss < 0 ? std::printf("  x%d -", times) : std::printf("  x%d %.4f", times, loss);
    if (csv.is_open())
      csv << task_name << ',' << name << ',' << scaling << ',' << (sees_both ? "bidirectional" : "causal")
          << ',' << seed << ',' << step << ',' << tokens << ',' << loss << '\n';
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) try {
#if defined(__GLIBC__)
  // Matrices come and go in every step: their pages are kept, rather than given back and cleared anew.
  mallopt(M_TRIM_THRESHOLD, 1 << 30), mallopt(M_MMAP_THRESHOLD, 1 << 25);
#endif
  const llama::arguments line({argv + 1, argv + argc},
                              {"--encoding", "--task", "--text", "--steps", "--batch", "--tokens", "--width",
                               "--heads", "--layers", "--seed", "--threads", "--length", "--scaling",
                               "--factor", "--checkpoint", "--resume", "--stop", "--csv"},
                              {"--bidirectional", "--profile", "--quiet", "--help"});
  line.has("--help") ? static_cast<void>(std::fputs(usage, stdout)) : run(line);
} catch (const std::exception& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 1;
}
