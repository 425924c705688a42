// SPDX-License-Identifier: MIT
/// \file
/// The keys of one config.json: which object holds the language model, counts under their many names, warnings and
/// refusals, and the guard against keys that nobody read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/errors.hpp>
#include <posenc/models/description.hpp>
#include <posenc/models/families/huggingface.hpp>
#include <posenc/models/families/nearest.hpp>
#include <posenc/models/json.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2 {

/// Where systems disagree about one config.json.
struct huggingface_options {
  /// The pairing of a model_type that is not known here.
  std::optional<posenc::pairing> pairing{};
  /// Many transformers classes (llama among them) ignore partial_rotary_factor for the default rope type and
  /// honour it for every other; vLLM always honours it. The default follows the model class.
  bool always_honour_partial_rotary_factor = false;
  /// transformers ignores "truncate" of YaRN in a block that is nested by layer type; the default honours it.
  bool ignore_nested_truncate = false;
};

namespace detail::huggingface {

/// What every part of the reader needs. The parts are classes in a row, each built on the one before: config_keys,
/// other_kinds, rope_blocks, layers.
class config_keys {
 public:
  using json = nlohmann::json;

  config_keys(const json& document, const huggingface_options& options, std::string_view file)
      : log_{.file = std::string(file)}, root_(document, "", &log_), options_(options) {}
  config_keys(const config_keys&) = delete;
  config_keys& operator=(const config_keys&) = delete;

 protected:
  ~config_keys() = default;

  static constexpr std::int64_t most_layers = 10'000, widest = 1 << 18, widest_head = 1 << 14,
                                most_buckets = 4096, most_positions = std::int64_t{1} << 40;
  static constexpr std::size_t most_warnings = 100;
  static constexpr const char* how_to_state_the_pairing =
      "state which channels pair up, which is not guessed (huggingface_options::pairing; --pairing "
      "half_split or "
      "interleaved), or use a model_type that is known";

  [[nodiscard]] const json_object& config() const noexcept { return text_ ? *text_ : root_; }

  /// Adds a sentence to the warnings, once, and none beyond a hundred.
  template <class... Parts>
  void warn(const Parts&... parts) {
    std::string sentence;
    (append(sentence, parts), ...);
    if (said_.size() < most_warnings && said_.insert(sentence).second)
      out_.warnings.push_back(std::move(sentence));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    const std::string about = type_.empty() ? log_.file : log_.file + " (" + type_ + ")";
    fail<std::invalid_argument>(about, ": ", parts...);
  }

  /// Multi-modal models keep the language model in an object of its own.
  void enter_text_model() {
    type_ = root_.text("model_type").value_or("");
    for (const char* key : {"text_config", "llm_config", "language_config", "thinker_config"}) {
      while (config().has(key)) {
        text_ = config().object(key);
        const std::string inner = text_->text("model_type").value_or("");
        if (!inner.empty()) type_ = inner;
      }
      if (text_ && std::string_view(key) == "thinker_config" && text_->has("text_config")) {
        text_ = text_->object("text_config");
        type_ = text_->text("model_type").value_or(type_);
      }
    }
    type_ = canonical_type(type_);
    if (type_.empty() && !options_.pairing) refuse("there is no model_type: ", how_to_state_the_pairing);
  }

  // ---- Numbers that every kind needs ------------------------------------------------------------------------------

  /// The first of several keys that is there.
  template <class Names>
  [[nodiscard]] std::optional<index_t> first_count(const Names& names, std::int64_t least,
                                                   std::int64_t most) const {
    for (const auto& key : names)
      if (const auto value = config().count(key, least, most)) return value;
    return std::nullopt;
  }
  [[nodiscard]] std::optional<index_t> first_count(std::initializer_list<const char*> names,
                                                   std::int64_t least, std::int64_t most) const {
    return first_count<std::initializer_list<const char*>>(names, least, most);
  }
  [[nodiscard]] index_t needed_count(std::initializer_list<const char*> names, std::int64_t most,
                                     index_t if_absent = 0) {
    if (const auto value = first_count(names, 1, most)) return *value;
    if (if_absent == 0) refuse("needs the key ", *names.begin());
    warn(*names.begin(), " is missing: ", if_absent, " is the default of ", type_);
    return if_absent;
  }
  [[nodiscard]] index_t layer_count(index_t if_absent) {
    return needed_count({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, most_layers, if_absent);
  }
  [[nodiscard]] std::optional<index_t> head_count() const {
    return first_count({"num_attention_heads", "n_head", "n_heads", "num_heads"}, 1, widest);
  }
  [[nodiscard]] std::optional<index_t> model_width() const {
    return first_count({"hidden_size", "n_embd", "d_model", "n_embed", "dim"}, 1, widest);
  }
  [[nodiscard]] std::optional<index_t> context() const {
    return first_count({"max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx",
                        "max_sequence_length", "model_max_length", "max_trained_positions"},
                       1, most_positions);
  }
  [[nodiscard]] static std::vector<index_t> all_layers(index_t count) {
    std::vector<index_t> layers(static_cast<std::size_t>(count));
    for (index_t i = 0; i < count; ++i) layers[static_cast<std::size_t>(i)] = i;
    return layers;
  }
  /// hidden_size / num_attention_heads. \throws std::invalid_argument when it is no whole number.
  [[nodiscard]] index_t head_width(index_t if_no_width = 0, index_t if_no_heads = 0) {
    const index_t width = model_width() ? *model_width() : needed_count({"hidden_size"}, widest, if_no_width);
    const index_t heads =
        head_count() ? *head_count() : needed_count({"num_attention_heads"}, widest, if_no_heads);
    return divided(width, heads, "hidden_size", "num_attention_heads");
  }
  /// width / heads. \throws std::invalid_argument when it is no whole number.
  [[nodiscard]] index_t divided(index_t width, index_t heads, const char* name_of_width,
                                const char* name_of_heads) const {
    if (width % heads != 0)
      refuse(name_of_width, " ", width, " is no multiple of ", name_of_heads, " ", heads,
             " and there is no head_dim");
    if (width / heads > widest_head) refuse("heads of ", width / heads, " channels, more than ", widest_head);
    return width / heads;
  }
  [[nodiscard]] static double inverse_root(double x) { return 1 / std::sqrt(x); }

  void drop_empty() {
    std::erase_if(out_.encodings, [](const encoding_description& one) { return one.layers.empty(); });
  }

  // ---- The guard --------------------------------------------------------------------------------------------------

  /// A key that nobody read and whose name speaks of positions, widths, layers or masks means that the model does
  /// something that is not described: refused for a model_type that is not known, said for one that is.
  void report_unread(bool known) {
    std::vector<std::string> left;
    const auto collect = [&](const json_object& object) {
      for (const std::string& key : object.unread())
        if (speaks_of_positions(key) && !is_off(object.raw().at(key), key))
          left.push_back(object.name_of_key(key));
    };
    collect(root_);
    if (text_) collect(*text_);
    if (left.empty()) return;
    constexpr std::size_t shown = 8;
    std::string names;
    for (std::size_t n = 0; n < (std::min)(left.size(), shown); ++n)
      names.append(n == 0 ? "" : ", ").append(left[n]);
    if (left.size() > shown)
      names.append(" and ").append(std::to_string(left.size() - shown)).append(" more");
    const char* which = left.size() == 1 ? "key " : "keys ";
    if (!known)
      refuse("this model_type is not known, and the ", which, names, left.size() == 1 ? " speaks" : " speak",
             " of positions in a way that is not read: the description would "
             "be a guess. ",
             nearest_types());
    warn("not read: the ", which, names);
  }

  /// "The known model types with the nearest names are …".
  [[nodiscard]] std::string nearest_types() const {
    std::string sentence = "The known model types nearest in name are ";
    for (const std::string_view one : nearest_names(type_, known_types(), 3))
      sentence.append(one).append(", ");
    sentence.resize(sentence.size() - 2);
    return sentence + " (docs/models.md has them all)";
  }

  key_log log_;
  json_object root_;
  std::optional<json_object> text_;
  huggingface_options options_;
  std::string type_;
  model_description out_;

 private:
  [[nodiscard]] static bool is_off(const json& value, std::string_view key) {
    if (value.is_boolean())
      return !value.get<bool>() && key.find("causal") == key.npos && key.find("interleave") == key.npos;
    return (value.is_object() || value.is_array() || value.is_string()) && value.empty();
  }

  std::set<std::string, std::less<>> said_;
};

}  // namespace detail::huggingface
}  // namespace posenc::inline v0_2
