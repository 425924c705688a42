// SPDX-License-Identifier: MIT
/// \file
/// llama: a published language model on posenc's encodings and attention. The command line.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/models/what_if.hpp>

#include "arguments.hpp"
#include "console.hpp"
#include "generation.hpp"
#include "model.hpp"
#include "studies/cache_study.hpp"
#include "studies/compare.hpp"
#include "studies/context_study.hpp"
#include "studies/perplexity.hpp"
#include "studies/speed.hpp"
#include "tokenizer.hpp"
#include "weights.hpp"

namespace {

using llama::token;

constexpr const char* usage = R"(usage: llama MODEL.gguf COMMAND [options]

  generate "PROMPT"      continues a text with the likeliest tokens
  perplexity FILE        over windows of --context tokens, half a window apart; each token counts once
  logits FILE OUT        float32 logits of every token of FILE, row by row
  compare "PROMPT"       continues along both attention paths; fails where tokens differ, or logits by over 1e-4; then
                         over the paged cache, which may change nothing, and the q8_0 cache, whose difference it tells
  speed                  tokens/s of prefill and decode and attention's share, at contexts 512, 2048 and 8192
  cache FILE             what a cache of unrotated keys buys: another scaling in mid-sequence, a context shift
  context-study FILE     perplexity against context, to 4 times the trained length, RoPE as trained and stretched

  --attention NAME       reference or fused (default: fused where it is built in)
  --cache KIND           plain, paged or q8_0 (default: plain; speed: all that the heads fit)
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

/// The text of a file without the line ends at its end.
[[nodiscard]] std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) posenc::detail::fail<posenc::format_error>(path, " cannot be read");
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

[[nodiscard]] llama::attention_path attention_asked(const llama::arguments& asked) {
#if defined(LLAMA_FUSED)
  const std::string name = asked.text("--attention").value_or("fused");
#else
  const std::string name = asked.text("--attention").value_or("reference");
#endif
  posenc::detail::require(name == "reference" || name == "fused", "--attention: ", name,
                          " is not reference or fused");
  return name == "fused" ? llama::attention_path::fused : llama::attention_path::reference;
}

/// \returns the exit status
[[nodiscard]] int run(const llama::arguments& asked) {
  const std::string &path = asked.word(0, "the model"), &command = asked.word(1, "the command");
  const llama::attention_path attention = attention_asked(asked);
  const int threads = asked.count("--threads").value_or(1);
  Eigen::setNbThreads(threads);
  const posenc::gguf_file file = posenc::read_gguf(path);
  const llama::tokenizer words(file);
  llama::model model(llama::load_weights(path, file, llama::progress("loading")), attention, threads);

  const auto kind = asked.text("--cache");
  if (kind) model.use_cache(llama::parse_cache(*kind));

  const auto trained = model.rope_of_file().context_length;
  const auto scaling = asked.text("--rope-scaling");
  if (scaling && command != "cache") model.use_scaling(posenc::parse_scaling(*scaling, trained));
  const auto tokens_asked = [&](int otherwise) { return asked.count("--tokens").value_or(otherwise); };
  const auto size = [](int count) { return static_cast<std::size_t>(count); };
  const auto prompt = [&] { return words.encode(asked.word(2, "the prompt")); };
  const auto whole_text = [&] { return words.encode(read_text(asked.word(2, "the file"))); };
  const auto text = [&](int most) {
    std::vector<token> tokens = whole_text();
    tokens.resize((std::min)(tokens.size(), size(tokens_asked(most))));
    return tokens;
  };

  if (command == "generate") {
    llama::generate(model, words, prompt(), tokens_asked(50), asked.has("--ignore-end"));
  } else if (command == "perplexity") {
    llama::perplexity(model, text(4096), size(asked.count("--context").value_or(1024)));
  } else if (command == "logits") {
    llama::write_logits(model, whole_text(), asked.word(3, "the file to write"));
  } else if (command == "compare") {
    const bool paths_agree = llama::compare_paths(model, prompt(), tokens_asked(200));
    return llama::compare_caches(model, prompt(), tokens_asked(200)) && paths_agree ? 0 : 1;
  } else if (command == "speed") {
    std::vector<std::size_t> contexts{512, 2048, 8192};
    if (const auto only = asked.count("--context")) contexts.assign(1, size(*only));
    std::vector<llama::cache_kind> kinds = llama::kinds_that_fit(model);
    if (kind) kinds.assign(1, llama::parse_cache(*kind));
    llama::print_speed(model, contexts, tokens_asked(32), kinds);
  } else if (command == "cache") {
    llama::print_cache_study(model, text(1025), size(asked.count("--drop").value_or(256)),
                             scaling.value_or("yarn:factor=4"), trained);
  } else if (command == "context-study") {
    const auto context = asked.count("--context");
    posenc::detail::require(context || trained, "the file names no trained length; --context does");
    llama::context_study study(context ? size(*context) : static_cast<std::size_t>(*trained),
                               asked.text("--csv").value_or("context_study.csv"));
    study.run(model, whole_text());
    study.print_tables();
    if (const auto plot = asked.text("--plot")) study.plot(*plot);
  } else {
    posenc::detail::fail<std::invalid_argument>("command ", command, " is not known; see --help");
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    const std::vector<std::string> line(words + 1, words + count);
    if (line.empty() || line[0] == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
    return run({line,
                {"--attention", "--cache", "--rope-scaling", "--threads", "--tokens", "--context", "--drop",
                 "--csv", "--plot"},
                {"--ignore-end"}});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama: %s\n", error.what());
    return 2;
  }
}
