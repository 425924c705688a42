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
#include <posenc/models/families/guard.hpp>
#include <posenc/models/families/huggingface.hpp>
#include <posenc/models/families/nearest.hpp>
#include <posenc/models/json.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2 {

/// Where systems disagree about one config.json.
struct huggingface_options {
  /// The pairing of a model_type that is not known here.
  std::optional<posenc::pairing> pairing{};
  /// Whether tokens of such a model see only what came before (true) or both ways; by default as its file says by
  /// "architectures" or "is_decoder".
  std::optional<bool> causal{};
  /// States that all attention layers of such a model rotate and have no sinks, where some have a window and the file
  /// does not say which of them rotate.
  bool all_layers_rotate = false;
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
  /// A value or the default of the model class, which is said.
  template <class T>
  [[nodiscard]] T or_default(const std::optional<T>& stated, const char* key, T standard) {
    if (!stated) warn(key, " is missing: ", standard, " is the default of ", type_);
    return stated.value_or(standard);
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
  /// something that is not described: said for a model_type that is known. One that is not known is refused for every
  /// key that is not known to be beside the point.
  void report_unread(bool known) {
    key_list left;
    const auto collect = [&](const json_object& object, bool only_alarming) {
      for (const auto& [key, value] : object.raw().items()) {
        const bool counts = only_alarming ? speaks_of_positions(key) : !is_beside_attention(key);
        if (counts && !is_off(value, key) && !object.was_read(key)) left.add(object.name_of_key(key));
      }
    };
    collect(root_, known || text_);
    if (text_) collect(*text_, known);
    if (left.size() == 0) return;
    const std::string names = left.words();
    if (!known)
      refuse("this model_type is not known, and the ", names, left.size() == 1 ? " is" : " are",
             " not read: the description would be a guess. ", nearest_types());
    warn("not read: the ", names);
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
    if (value.is_null()) return true;
    if (value.is_boolean())
      return !value.get<bool>() && key.find("causal") == key.npos && key.find("interleave") == key.npos;
    return (value.is_object() || value.is_array() || value.is_string()) && value.empty();
  }

  std::set<std::string, std::less<>> said_;
};

}  // namespace detail::huggingface
}  // namespace posenc::inline v0_2
