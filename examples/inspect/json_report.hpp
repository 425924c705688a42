// SPDX-License-Identifier: MIT
/// \file
/// posenc-inspect --json. Numbers carry 17 digits, so that a double comes back as it was.
#pragma once

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "view.hpp"

namespace inspect {

/// Writes JSON, one member after the other.
class json_writer {
 public:
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

  json_writer& open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  json_writer& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  json_writer& key(std::string_view name) {
    separate();
    string(name);
    text_ += ": ";
    first_ = true;  // the value follows without a comma
    return *this;
  }
  json_writer& value(std::string_view text) {
    separate();
    string(text);
    return *this;
  }
  json_writer& value(const char* text) { return value(std::string_view(text)); }
  json_writer& value(bool flag) { return literal(flag ? "true" : "false"); }
  json_writer& value(double number) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", number);
    return literal(digits);
  }
  template <class Integer>
  requires std::is_integral_v<Integer> json_writer& value(Integer number) {
    return literal(std::to_string(number));
  }
  template <class Item>
  json_writer& list(std::span<const Item> items) {
    open('[');
    for (const Item& item : items) value(item);
    return close(']');
  }
  template <class Value>
  json_writer& member(std::string_view name, const Value& of) {
    return key(name).value(of);
  }

 private:
  json_writer& literal(std::string_view text) {
    separate();
    text_ += text;
    return *this;
  }
  void separate() {
    if (!first_) text_ += ", ";
    first_ = false;
  }
  void string(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\')
        (text_ += '\\') += c;
      else if (static_cast<unsigned char>(c) < 0x20) {
        char escape[8];
        std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        text_ += escape;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  bool first_ = true;
};

namespace detail {

inline void write_rope(json_writer& out, const encoding_view& view,
                       const std::vector<posenc::position>& positions) {
  const posenc::rope_description& rope = view.description.rope();
  out.member("head_dim", rope.options.head_dim);
  out.member("rotary_dim", rope.shape().rotary_dim);
  out.member("rotary_offset", rope.options.rotary_offset);
  out.member("pairing", posenc::name_of(rope.options.pairing));
  out.member("base", rope.options.base);
  out.member("scaling", words(rope.scaling));
  if (view.length) out.member("length", *view.length);
  out.key("inv_freq").list(view.rope->inv_freq());
  out.member("attention_factor", view.rope->attention_factor());
  if (!rope.axis_of_pair.empty()) out.key("axis_of_pair").list(std::span<const int>(rope.axis_of_pair));
  out.key("tables").open('[');
  for (const posenc::position place : positions) {
    std::vector<double> cosines, sines;
    for (std::size_t pair = 0; pair < view.rope->inv_freq().size(); ++pair) {
      const auto [cos, sin] = view.rope->angle(static_cast<posenc::index_t>(pair), place);
      cosines.push_back(cos);
      sines.push_back(sin);
    }
    out.open('{').member("position", place);
    out.key("cos").list(std::span<const double>(cosines));
    out.key("sin").list(std::span<const double>(sines));
    out.close('}');
  }
  out.close(']');
}

inline void write_parameters(json_writer& out, const encoding_view& view,
                             const std::vector<posenc::position>& positions) {
  const auto& parameters = view.description.parameters;
  if (view.rope) {
    write_rope(out, view, positions);
  } else if (const auto* alibi = std::get_if<posenc::alibi_description>(&parameters)) {
    const auto made = alibi->make();
    out.member("bias_max", alibi->options.bias_max);
    out.key("slopes").list(made.slopes());
  } else if (const auto* t5 = std::get_if<posenc::t5_description>(&parameters)) {
    const posenc::t5_buckets buckets(t5->buckets);
    out.member("num_buckets", t5->buckets.buckets);
    out.member("max_distance", t5->buckets.max_distance);
    out.member("bidirectional", static_cast<const bool&>(t5->buckets.bidirectional));
    out.key("thresholds").list(buckets.thresholds());
    out.member("table_per_layer", t5->table_per_layer);
  } else if (const auto* learned = std::get_if<posenc::learned_description>(&parameters)) {
    out.member("rows", learned->rows);
    out.member("row_offset", learned->row_offset);
    out.member("width", learned->width);
  } else if (const auto* waves = std::get_if<posenc::sinusoidal_description>(&parameters)) {
    out.member("convention", posenc::name_of(waves->options.convention));
    out.member("width", waves->options.width);
    out.member("base", waves->options.base);
    out.member("rows", waves->rows);
    out.member("position_offset", waves->position_offset);
  }
}

inline void write_encoding(json_writer& out, const encoding_view& view,
                           const std::vector<posenc::position>& positions) {
  const posenc::encoding_description& one = view.description;
  out.open('{');
  out.member("kind", posenc::name_of(one.kind()));
  out.key("layers").list(std::span<const posenc::index_t>(one.layers));
  out.member("layer_type", one.layer_type);
  write_parameters(out, view, positions);
  if (one.softmax_scale) out.member("softmax_scale", *one.softmax_scale);
  if (one.softcap != 0) out.member("softcap", one.softcap);
  if (one.position_scale) {
    out.key("position_scale").open('{').member("beta", one.position_scale->beta());
    out.member("interval", one.position_scale->interval()).member("first", one.position_scale->first());
    out.close('}');
  }
  out.member("causal", one.causal);
  if (one.lookback) out.member("lookback", *one.lookback);
  if (one.lookahead) out.member("lookahead", *one.lookahead);
  if (one.chunk) out.member("chunk", *one.chunk);
  if (one.learned_sinks) out.member("learned_sinks", true);
  out.close('}');
}

inline void write_model(json_writer& out, const model_view& view,
                        const std::vector<posenc::position>& positions) {
  out.member("file", view.title);
  out.member("model_type", view.model.model_type);
  out.member("num_layers", view.model.layers);
  if (view.model.context_length) out.member("context_length", *view.model.context_length);
  out.key("encodings").open('[');
  for (const encoding_view& encoding : view.encodings) write_encoding(out, encoding, positions);
  out.close(']');
}

}  // namespace detail

/// The first view is the object itself, the others stand in its "compared_with".
[[nodiscard]] inline std::string json_report(const std::vector<model_view>& views,
                                             const std::vector<posenc::position>& positions) {
  json_writer out;
  out.open('{');
  detail::write_model(out, views.front(), positions);
  if (views.size() > 1) {
    out.key("compared_with").open('[');
    for (std::size_t i = 1; i < views.size(); ++i) {
      out.open('{');
      detail::write_model(out, views[i], positions);
      out.close('}');
    }
    out.close(']');
  }
  out.close('}');
  return out.text() + "\n";
}

}  // namespace inspect
