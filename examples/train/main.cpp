// SPDX-License-Identifier: MIT
/// \file
/// Trains a small transformer with each encoding of the library: what it learns, and how far beyond its length.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../llama/arguments.hpp"
#include "../llama/console.hpp"
#include "model.hpp"
#include "tasks.hpp"

namespace {

constexpr const char* usage = R"(usage: train [OPTION VALUE]...

  --encoding NAME   none, learned, sinusoidal, clipped, t5, shaw, alibi, rope, xpos    (rope)
  --task NAME       text: the next byte; order: which of two words is first; recall: what followed this key  (text)
  --text FILE       a text of 10,000 bytes or more; without it sentences that the program makes up
  --steps N, --batch N, --tokens N, --width N, --heads N, --layers N, --seed N, --threads N
  --length N        tokens of a sequence in this run, where it is not the trained length --tokens
  --scaling NAME --factor N    stretches rope: linear, theta, yarn
  --checkpoint FILE written at the end and every 100 steps; --resume FILE goes on from one
  --stop N          ends after step N of --steps, as an interruption would
  --csv FILE        appends a line per measured loss
  flags: --bidirectional (order, recall), --profile, --quiet

The loss is in nats per token, on text that was not trained on, at 1, 2, 4 and 8 times the trained length; "-" where the
encoding has no such position.
)";

/// Makes a batch: seed, step, sequences, tokens, whether it is for testing.
using maker =
    std::function<train::batch(std::uint64_t, std::uint64_t, posenc::index_t, posenc::index_t, bool)>;

struct chosen_task {
  posenc::index_t vocabulary;
  maker make;
};

chosen_task choose(const std::string& name, const std::optional<std::string>& file) {
  if (name == "order") return {train::order_task::vocabulary(), train::order_task::make};
  if (name == "recall") return {train::recall_task::vocabulary(), train::recall_task::make};
  posenc::detail::require(name == "text", "--task: ", name, " is none of text, order, recall");
  const auto text = file ? train::text_task::of_file(*file) : train::text_task::made_up();
  return {text.vocabulary(), [text](auto... what) { return text.make(what...); }};
}

/// Loss on 32 sequences that are not trained on; negative where the encoding has no such positions.
double test_loss(train::model& model, const maker& make, std::uint64_t seed, posenc::index_t tokens) {
  double sum = 0;
  try {
    for (std::uint64_t n = 0; n < 4; ++n) {
      const train::batch b = make(seed, n, 8, tokens, true);
      sum += model.loss(b.input, b.wanted, tokens, false);
    }
  } catch (const std::out_of_range&) {  // a learned table ends
    return -1;
  }
  return sum / 4;
}

int run(const llama::arguments& line) {
  const auto count = [&](const char* option, int otherwise) {
    return line.count(option).value_or(otherwise);
  };
  const std::string task_name = line.text("--task").value_or("text");
  const bool is_text = task_name == "text";
  const chosen_task task = choose(task_name, line.text("--text"));
  train::shape sizes{.vocabulary = task.vocabulary,
                     .width = count("--width", 96),
                     .heads = count("--heads", 4),
                     .layers = count("--layers", 2),
                     .tokens = count("--tokens", 64),
                     .batch = count("--batch", 16)};
  if (line.has("--bidirectional")) {
    posenc::detail::require(!is_text, "--bidirectional: a text's next byte would be seen");
    sizes.mask = posenc::bidirectional;
  }
  const int steps = count("--steps", 300), stop = (std::min)(count("--stop", steps), steps);
  const auto seed = static_cast<std::uint64_t>(count("--seed", 1));
  const posenc::index_t length = count("--length", static_cast<int>(sizes.tokens));
  const std::string encoding = line.text("--encoding").value_or("rope"),
                    scaling = line.text("--scaling").value_or("none");
  const posenc::fused::thread_pool pool(count("--threads", 2));
  train::model model(sizes, encoding, seed, pool, scaling, count("--factor", 1));
  const auto parameters = model.parameters();
  int step = 0;
  if (const auto from = line.text("--resume")) {
    step = static_cast<int>(train::load(*from, parameters));
    model.refresh();
  }
  const auto keep = [&](int done) {
    if (const auto file = line.text("--checkpoint")) train::save(*file, parameters, done);
  };

  const train::adam optimizer;
  const int first = step;
  const llama::stopwatch watch;
  double mean = 0;
  for (; step < stop; ++step) {
    const train::batch b = task.make(seed, static_cast<std::uint64_t>(step), sizes.batch, length, false);
    const double loss = model.loss(b.input, b.wanted, length, true);
    optimizer.update(parameters, step, steps);
    model.refresh();
    mean = step == first ? loss : 0.9 * mean + 0.1 * loss;
    const double seconds = watch.seconds(), done = step + 1 - first;
    if (!line.has("--quiet"))
      std::fprintf(stderr, "\r%s: step %d of %d, loss %.3f, %.0f tokens/s, %.0f s left   ", encoding.c_str(),
                   step + 1, stop, mean, done * static_cast<double>(sizes.batch * length) / seconds,
                   seconds / done * (stop - step - 1));
    if ((step + 1) % 100 == 0 && step + 1 < stop) keep(step + 1);
  }
  if (!line.has("--quiet")) std::fputc('\n', stderr);
  keep(step);
  const double seconds = watch.seconds();
  if (line.has("--profile") && step > first) {
    const train::profile& t = model.times();
    std::printf("of %.1f s: products %.0f %%, attention %.0f %%, all else %.0f %%\n", seconds,
                100 * t.products / seconds, 100 * t.attention / seconds,
                100 * (1 - (t.products + t.attention) / seconds));
  }

  std::FILE* csv = nullptr;
  if (const auto file = line.text("--csv")) {
    csv = std::fopen(file->c_str(), "a");
    posenc::detail::require(csv != nullptr, "--csv: ", *file, " cannot be written");
  }
  std::printf("%s, seed %d, %d steps: test loss", encoding.c_str(), static_cast<int>(seed), step);
  const posenc::index_t lengths = is_text ? 8 : 1;
  for (posenc::index_t times = 1; times <= lengths; times *= 2) {
    const double loss = test_loss(model, task.make, seed, times * sizes.tokens);
    loss < 0 ? std::printf("  x%d -", static_cast<int>(times))
             : std::printf("  x%d %.4f", static_cast<int>(times), loss);
    if (csv)
      std::fprintf(csv, "%s,%s,%s,%s,%d,%d,%d,%.6f\n", task_name.c_str(), encoding.c_str(), scaling.c_str(),
                   line.has("--bidirectional") ? "bidirectional" : "causal", static_cast<int>(seed), step,
                   static_cast<int>(times * sizes.tokens), loss);
  }
  std::printf("\n");
  if (csv) std::fclose(csv);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const llama::arguments line(words,
                                {"--encoding", "--task", "--text", "--steps", "--batch", "--tokens",
                                 "--width", "--heads", "--layers", "--seed", "--threads", "--length",
                                 "--scaling", "--factor", "--checkpoint", "--resume", "--stop", "--csv"},
                                {"--bidirectional", "--profile", "--quiet", "--help"});
    if (line.has("--help")) {
      std::fputs(usage, stdout);
      return 0;
    }
    return run(line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 1;
  }
}
