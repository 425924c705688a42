// SPDX-License-Identifier: MIT
/// \file
/// llama: a published language model on posenc's encodings and attention.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/models/gguf.hpp>
#include <posenc/models/what_if.hpp>

#include "model.hpp"
#include "session.hpp"
#include "studies/cache_study.hpp"
#include "studies/compare.hpp"
#include "studies/context_study.hpp"
#include "studies/speed.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace {

using llama::token;

constexpr const char* usage = R"(usage: llama MODEL.gguf COMMAND [options]

  generate "PROMPT"      continues a text with the likeliest tokens
  perplexity FILE        over windows of --context tokens, half a window apart; each token counts once
  logits FILE OUT        float32 logits of every token of FILE, row by row
  compare "PROMPT"       continues along both attention paths; fails where tokens differ, or logits by over 1e-4
  speed                  tokens/s of prefill and decode and attention's share, at contexts 512, 2048 and 8192
  cache FILE             what a cache of unrotated keys buys: another scaling in mid-sequence, a context shift
  context-study FILE     perplexity against context, to 4 times the trained length, RoPE as trained and stretched

  --attention NAME       reference or fused (default: fused where it is built in)
  --rope-scaling SCHEME  none, linear:factor=4, theta:factor=4, dynamic:factor=4, yarn:factor=4,original=8192, …
                         cache: the one that is switched to (default yarn:factor=4)
  --threads N            for matrix products and fused attention (default 1)
  --tokens N             generate, compare, speed: how many (default 50, 200, 32); perplexity, cache: reads no more
                         (default 4096, 1025)
  --ignore-end           generate: goes on after the token that ends a text
  --context N            perplexity: tokens in a window (default 1024); context-study: the trained length;
                         speed: this context only
  --drop N               cache: how many tokens the shift drops (default 256)
  --csv FILE             context-study: results, pass by pass; a file with some is gone on with
  --plot FILE.svg        context-study: draws perplexity against position (needs gnuplot)
)";

struct arguments {
  std::vector<std::string> words{};  ///< what is no option: the model, the command and its arguments
  std::string attention =
#if defined(LLAMA_FUSED)
      "fused";
#else
      "reference";
#endif
  std::optional<std::string> scaling{};
  int threads = 1;
  std::optional<int> tokens{};
  std::optional<int> context{};
  int drop = 256;
  bool ignores_end = false;
  std::string csv = "context_study.csv", plot{};
};

[[nodiscard]] int parse_count(std::string_view option, std::string_view digits) {
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  posenc::detail::require(error == std::errc{} && end == digits.data() + digits.size() && value >= 1, option,
                          ": ", digits, " is not a count");
  return value;
}

[[nodiscard]] arguments parse(const std::vector<std::string>& words) {
  arguments asked;
  for (std::size_t n = 0; n < words.size(); ++n) {
    const std::string& word = words[n];
    if (word.rfind("--", 0) != 0) {
      asked.words.push_back(word);
      continue;
    }
    if (word == "--ignore-end") {
      asked.ignores_end = true;
      continue;
    }
    posenc::detail::require(n + 1 < words.size(), word, " needs a value");
    const std::string& value = words[++n];
    if (word == "--attention")
      asked.attention = value;
    else if (word == "--rope-scaling")
      asked.scaling = value;
    else if (word == "--threads")
      asked.threads = parse_count(word, value);
    else if (word == "--tokens")
      asked.tokens = parse_count(word, value);
    else if (word == "--context")
      asked.context = parse_count(word, value);
    else if (word == "--drop")
      asked.drop = parse_count(word, value);
    else if (word == "--csv")
      asked.csv = value;
    else if (word == "--plot")
      asked.plot = value;
    else
      posenc::detail::fail<std::invalid_argument>("option ", word, " is not known");
  }
  posenc::detail::require(asked.attention == "reference" || asked.attention == "fused",
                          "--attention: ", asked.attention, " is not reference or fused");
  return asked;
}

/// The text of a file without the line ends at its end.
[[nodiscard]] std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) posenc::detail::fail<posenc::format_error>(path, " cannot be read");
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

void report(const llama::model& model, const char* what, std::size_t tokens, double seconds) {
  std::fprintf(stderr,
               "%s: %zu tokens in %.2f s, %.1f tokens/s; attention so far %.2f s; peak memory %.0f MiB\n",
               what, tokens, seconds, static_cast<double>(tokens) / seconds, model.attention_seconds(),
               llama::peak_mebibytes());
}

void generate(llama::model& model, const llama::tokenizer& words, const std::string& prompt, int count,
              bool ignores_end) {
  const std::vector<token> tokens = words.encode(prompt);
  posenc::detail::require(!tokens.empty(), "generate: the prompt is empty");
  llama::kv_cache cache = model.empty_cache();
  const llama::stopwatch prefill_time;
  llama::matrix logits = llama::prefill(model, tokens, cache);
  report(model, "prefill", tokens.size(), prefill_time.seconds());
  const llama::stopwatch decode_time;
  std::size_t generated = 0;
  for (; generated < static_cast<std::size_t>(count); ++generated) {
    const token next = llama::best_of(logits);
    if (!ignores_end && words.is_end(next)) break;
    const std::string text = words.decode(next);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    logits = model.evaluate({&next, 1}, cache, llama::wanted_logits::last);
  }
  std::puts("");
  std::fflush(stdout);
  report(model, "decode", generated, decode_time.seconds());
}

void perplexity(llama::model& model, const std::vector<token>& tokens, std::size_t context) {
  posenc::detail::require(tokens.size() >= 2 && context >= 2, "perplexity: ", tokens.size(),
                          " tokens in windows of ", context, "; two at least");
  const llama::stopwatch time;
  double sum = 0;
  std::size_t scored = 1,
              evaluated = 0;  // tokens before `scored` have been counted; nothing foretells the first
  for (std::size_t begin = 0; scored < tokens.size(); begin += context / 2) {
    const std::size_t end = (std::min)(begin + context, tokens.size());
    const std::vector<double> nats = llama::surprises(model, std::span(tokens).subspan(begin, end - begin));
    evaluated += end - begin;
    for (; scored < end; ++scored) sum += nats[scored - begin - 1];
    std::fprintf(stderr, "tokens 0 to %zu: perplexity %.4f\n", end,
                 std::exp(sum / static_cast<double>(scored - 1)));
  }
  report(model, "evaluated", evaluated, time.seconds());
  std::printf("perplexity %.4f over %zu tokens, windows of %zu\n",
              std::exp(sum / static_cast<double>(scored - 1)), scored - 1, context);
}

void write_logits(llama::model& model, const std::vector<token>& tokens, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  llama::kv_cache cache = model.empty_cache();
  llama::run_in_pieces(model, tokens, cache, llama::wanted_logits::all,
                       [&](std::size_t, const llama::matrix& logits) {
                         out.write(reinterpret_cast<const char*>(logits.data()),
                                   static_cast<std::streamsize>(sizeof(float)) * logits.size());
                       });
  if (!out.flush()) posenc::detail::fail<posenc::format_error>(path, " cannot be written");
}

/// \returns the exit status
int run(const arguments& asked) {
  const std::string &path = asked.words[0], &command = asked.words[1];
  const auto argument = [&](std::size_t n) {
    posenc::detail::require(asked.words.size() > n + 2, command, " needs ", n + 1,
                            " argument(s); see --help");
    return asked.words[n + 2];
  };
  Eigen::setNbThreads(asked.threads);
  const posenc::gguf_file file = posenc::read_gguf(path);
  const llama::tokenizer words(file);
  llama::model model(
      llama::load_weights(path, file, llama::progress("loading")),
      asked.attention == "fused" ? llama::attention_path::fused : llama::attention_path::reference,
      asked.threads);
  const auto trained = model.rope_of_file().context_length;
  const auto text = [&](int most) {
    std::vector<token> tokens = words.encode(read_text(argument(0)));
    tokens.resize((std::min)(tokens.size(), static_cast<std::size_t>(asked.tokens.value_or(most))));
    return tokens;
  };

  if (command == "cache") {
    llama::print_cache_study(model, text(1025), static_cast<std::size_t>(asked.drop),
                             asked.scaling.value_or("yarn:factor=4"), trained);
    return 0;
  }
  if (asked.scaling) model.use_scaling(posenc::parse_scaling(*asked.scaling, trained));
  if (command == "generate") {
    generate(model, words, argument(0), asked.tokens.value_or(50), asked.ignores_end);
  } else if (command == "perplexity") {
    perplexity(model, text(4096), static_cast<std::size_t>(asked.context.value_or(1024)));
  } else if (command == "logits") {
    write_logits(model, words.encode(read_text(argument(0))), argument(1));
  } else if (command == "compare") {
    return llama::compare_paths(model, words.encode(argument(0)), asked.tokens.value_or(200)) ? 0 : 1;
  } else if (command == "speed") {
    std::vector<std::size_t> contexts{512, 2048, 8192};
    if (asked.context) contexts.assign(1, static_cast<std::size_t>(*asked.context));
    llama::print_speed(model, contexts, asked.tokens.value_or(32));
  } else if (command == "context-study") {
    posenc::detail::require(asked.context || trained,
                            "context-study: the file names no trained length; --context does");
    llama::context_study study(static_cast<std::size_t>(asked.context ? *asked.context : *trained),
                               asked.csv);
    study.run(model, words.encode(read_text(argument(0))));
    study.print_table();
    if (!asked.plot.empty()) study.plot(asked.plot);
  } else {
    posenc::detail::fail<std::invalid_argument>("command ", command, " is not known; see --help");
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> line(words + 1, words + count);
    if (line.size() < 2 || line[0] == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
    const arguments asked = parse(line);
    posenc::detail::require(asked.words.size() >= 2, "a model and a command are needed; see --help");
    return run(asked);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama: %s\n", error.what());
    return 2;
  }
}
