// SPDX-License-Identifier: MIT
/// \file
/// What posenc-inspect shows of a model: its description with each rope built for one length.
#pragma once

#include <iomanip>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <posenc/analysis/rope_analysis.hpp>
#include <posenc/models/any_model.hpp>
#include <posenc/models/what_if.hpp>

namespace inspect {

/// One encoding; the rope is built where there is one.
struct encoding_view {
  posenc::encoding_description description{};
  std::optional<posenc::rope<double>> rope{};
  std::optional<posenc::position> length{};  ///< that the frequencies are for, where they depend on it
};

struct model_view {
  std::string title{};
  posenc::model_description model{};
  std::vector<encoding_view> encodings{};
};

/// The length that a scheme needs when none is asked for: within what the model was trained with.
[[nodiscard]] inline posenc::position usual_length(const posenc::rope_description& rope) {
  if (const auto* scheme = std::get_if<posenc::longrope>(&rope.scaling.scheme))
    return static_cast<posenc::position>(scheme->original_context);
  return rope.context_length.value_or(1);
}

[[nodiscard]] inline model_view build(std::string title, posenc::model_description model,
                                      std::optional<posenc::position> length) {
  model_view view{std::move(title), std::move(model), {}};
  for (const auto& description : view.model.encodings) {
    encoding_view one{description, std::nullopt, std::nullopt};
    if (description.kind() == posenc::encoding_kind::rope) {
      const posenc::rope_description& rope = description.rope();
      if (depends_on_length(rope)) one.length = length ? *length : usual_length(rope);
      one.rope = posenc::make_rope<double>(rope, one.length);
    }
    view.encodings.push_back(std::move(one));
  }
  return view;
}

/// The trained length that a scheme starts from, in tokens; nothing for schemes without one.
[[nodiscard]] inline std::optional<double> original_length(const posenc::any_scaling& scaling) {
  return std::visit(
      [](const auto& scheme) -> std::optional<double> {
        if constexpr (requires { scheme.original_context; })
          return scheme.original_context;
        else if constexpr (requires { scheme.max_context; })
          return scheme.max_context;
        else
          return std::nullopt;
      },
      scaling.scheme);
}

/// The length within which the plain frequencies were trained, in tokens, or 0 if the file does not say.
[[nodiscard]] inline double trained_length(const posenc::rope_description& rope) {
  return original_length(rope.scaling).value_or(static_cast<double>(rope.context_length.value_or(0)));
}

/// The same model with another scaling on every rope. Its warnings are about the scaling alone.
[[nodiscard]] inline posenc::model_description with_scaling(posenc::model_description model,
                                                            const std::string& what_if) {
  bool any = false;
  model.warnings.clear();
  for (auto& encoding : model.encodings) {
    auto* rope = std::get_if<posenc::rope_description>(&encoding.parameters);
    if (rope == nullptr) continue;
    const double trained = trained_length(*rope);
    rope->scaling = posenc::parse_scaling(what_if, rope->context_length);
    rope->frequency_divisors.clear();
    any = true;
    const auto original = original_length(rope->scaling);
    const bool is_stated = what_if.find("original=") != std::string::npos;
    if (!original || is_stated || *original == trained || !model.warnings.empty()) continue;
    std::ostringstream sentence;
    sentence << std::setprecision(17) << "original is taken to be the context length, " << *original
             << ", which the scaling of the file itself reaches from " << trained
             << "; to scale the trained frequencies say original=" << trained;
    model.warnings.push_back(sentence.str());
  }
  posenc::detail::require(any, model.model_type, ": there is no rope that --scaling could change");
  return model;
}

/// A scaling in words: name and numbers.
[[nodiscard]] inline std::string words(const posenc::any_scaling& scaling) {
  std::ostringstream out;
  const auto optional = [&](const char* name, const std::optional<double>& value) {
    if (value) out << ", " << name << ' ' << *value;
  };
  struct writer {
    std::ostringstream& out;
    decltype(optional)& also;
    void operator()(const posenc::no_scaling&) { out << "none"; }
    void operator()(const posenc::position_interpolation& s) {
      out << "linear (position interpolation): factor " << s.factor;
    }
    void operator()(const posenc::dynamic_ntk& s) {
      out << "dynamic NTK: factor " << s.factor << ", unchanged up to " << s.max_context << " tokens";
    }
    void operator()(const posenc::theta_scaling& s) {
      out << "theta scaling (fixed NTK): factor " << s.factor;
    }
    void operator()(const posenc::kexue_ntk& s) { out << "ntk (vLLM): factor " << s.factor; }
    void operator()(const posenc::yarn& s) {
      out << "YaRN: factor " << s.factor << ", original length " << s.original_context << ", beta_fast "
          << s.beta_fast << ", beta_slow " << s.beta_slow << (s.truncate ? "" : ", ramp not rounded");
      also("attention_factor", s.attention_factor);
      if (s.mscale != 0 || s.mscale_all_dim != 0)
        out << ", mscale " << s.mscale << ", mscale_all_dim " << s.mscale_all_dim;
    }
    void operator()(const posenc::longrope& s) {
      out << "LongRoPE: original length " << s.original_context << ", " << s.short_factor.size()
          << " factors each for short and long sequences";
      also("factor", s.factor), also("attention_factor", s.attention_factor);
    }
    void operator()(const posenc::llama3& s) {
      out << "llama3: factor " << s.factor << ", low_freq_factor " << s.low_freq_factor
          << ", high_freq_factor " << s.high_freq_factor << ", original length " << s.original_context;
    }
    void operator()(const posenc::proportional& s) {
      out << "proportional: the first " << s.partial_rotary_factor << " of the pairs turn";
      if (s.factor != 1) out << ", factor " << s.factor;
    }
  };
  std::visit(writer{out, optional}, scaling.scheme);
  return out.str();
}

/// The frequencies without scaling, in radians per token.
[[nodiscard]] inline std::vector<double> plain_ladder(const posenc::rope_description& rope) {
  return posenc::no_scaling{}.ladder<double>(rope.shape(), std::nullopt).inv_freq;
}

/// "0-4, 6, 8-10"
[[nodiscard]] inline std::string ranges(const std::vector<posenc::index_t>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size();) {
    std::size_t end = i;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(layers[i]);
    if (end > i) text.append("-").append(std::to_string(layers[end]));
    i = end + 1;
  }
  return text;
}

}  // namespace inspect
