// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect: what a model file says about positions, for people and (--json) for programs.
#include <csignal>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <posenc/models/any_model.hpp>
#include <posenc/version.hpp>

#include "analysis_plot.hpp"
#include "analysis_report.hpp"
#include "arguments.hpp"
#include "export.hpp"
#include "json_report.hpp"
#include "plot.hpp"
#include "text_report.hpp"
#include "view.hpp"

namespace {

inspect::model_view view_of(const std::string& title, posenc::model_description model,
                            const inspect::arguments& asked) {
  if (asked.json || asked.analyse || asked.export_tables)  // the text has them
    for (const std::string& warning : model.warnings)
      std::cerr << "posenc-inspect: warning: " << title << ": " << warning << '\n';
  return inspect::build(title, std::move(model), asked.length);
}

/// What went wrong, without the library's own name, which this program's holds.
std::string_view sentence_of(const std::exception& error) {
  const std::string_view sentence = error.what(), name = "posenc: ";
  return sentence.starts_with(name) ? sentence.substr(name.size()) : sentence;
}

inspect::model_view load(const std::string& file, const inspect::arguments& asked) {
  try {
    return view_of(file, posenc::read_description(file, asked.huggingface, asked.gguf), asked);
  } catch (const std::exception& error) {
    const std::string_view sentence = sentence_of(error);
    if (sentence.find(std::filesystem::path(file).filename().string()) != sentence.npos) throw;
    throw std::runtime_error(file + ": " + std::string(sentence));
  }
}

/// Reports the analysis of all views in place of the description.
void analyse(const std::vector<inspect::model_view>& views, const inspect::arguments& asked) {
  std::vector<inspect::encoding_analysis> all;
  std::vector<std::optional<posenc::rotation_codes>> codes;
  for (const inspect::model_view& view : views) {
    for (inspect::encoding_analysis& one :
         inspect::analyse(view, asked.length, asked.storage.value_or(posenc::code_storage::bfloat16)))
      all.push_back(std::move(one));
    for (const inspect::encoding_view& one : view.encodings)
      codes.push_back(one.rope ? std::optional(posenc::rotation_codes(*one.rope, 1)) : std::nullopt);
  }
  if (asked.json)
    std::cout << inspect::analysis_json(all);
  else
    inspect::analysis_report(std::cout, all);
  if (!asked.plot) return;
  inspect::analysis_plot(all, codes, *asked.plot);
  (asked.json ? std::cerr : std::cout) << "drawn: " << *asked.plot << '\n';
}

void run(const inspect::arguments& asked) {
  std::vector<inspect::model_view> views{load(asked.file, asked)};
  if (asked.scaling)
    views.push_back(view_of(asked.file + " with " + *asked.scaling,
                            inspect::with_scaling(views.front().model, *asked.scaling), asked));
  if (asked.compare) views.push_back(load(*asked.compare, asked));
  if (asked.export_tables) return inspect::export_tables(views.front(), asked);
  if (asked.analyse) return analyse(views, asked);
  if (asked.json)
    std::cout << inspect::json_report(views, asked.positions);
  else
    inspect::text_report(std::cout, views, asked.positions, asked.ladder);
  if (!asked.plot) return;
  inspect::plot(views, *asked.plot);
  (asked.json ? std::cerr : std::cout) << "drawn: " << *asked.plot << '\n';
}

}  // namespace

int main(int count, char** words) {
  try {
#ifdef SIGPIPE
    std::signal(SIGPIPE, SIG_IGN);  // without gnuplot the pipe to it breaks: that is reported, not fatal
#endif
    const inspect::arguments asked = inspect::parse({words + 1, words + count});
    if (asked.help)
      std::cout << inspect::usage;
    else if (asked.version)
      std::cout << "posenc-inspect " << POSENC_VERSION_MAJOR << '.' << POSENC_VERSION_MINOR << '.'
                << POSENC_VERSION_PATCH << '\n';
    else
      run(asked);
    return 0;
  } catch (const std::exception& error) {
    std::string sentence{sentence_of(error)};
    for (char& c : sentence)
      if (c == '\n' || c == '\r') c = ' ';
    std::cerr << "posenc-inspect: " << sentence << '\n';
    return 2;
  }
}
