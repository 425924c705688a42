// SPDX-License-Identifier: MIT
/// \file
/// Hugging Face config.json → the positional encoding of every layer.
///
///     auto rope  = posenc::load_rope<float>("config.json");                      // all layers alike
///     auto local = posenc::load_rope<float>("config.json", {.layer = 0});        // layers differ: say which
///     const posenc::model_description model = posenc::read_huggingface("config.json");   // everything
///
/// Reads the old style (rope_theta, rope_scaling with "type" or "rope_type") and the new one
/// (rope_parameters, also nested by layer type), and knows what the model classes fix in code
/// (huggingface_families.hpp). Where several keys say the same thing:
///
/// | question | answer |
/// |---|---|
/// | rope_scaling and rope_parameters | rope_scaling |
/// | rope_type and type | rope_type |
/// | rope_theta inside and outside the block | inside |
/// | partial_rotary_factor inside and outside | outside |
/// | original_max_position_embeddings inside and outside | outside; inside where the block is nested by layer |
/// | head_dim or hidden_size / num_attention_heads | head_dim |
///
/// null counts as absent. Unknown keys of the rope block, defaults taken from the model class and overruled
/// values are reported in model_description::warnings; nothing is printed. A model_type that is not known is
/// refused: which channels pair up is not guessed, the caller may state it.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/errors.hpp>
#include <posenc/models/description.hpp>
#include <posenc/models/huggingface_families.hpp>
#include <posenc/models/json.hpp>
#include <posenc/rope/axes.hpp>
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

/// Reads one configuration.
class reader {
 public:
  using json = nlohmann::json;

  reader(const json& document, const huggingface_options& options) : root_(document, ""), options_(options) {}

  [[nodiscard]] model_description read() {
    enter_text_model();
    out_.model_type = type_;
    if (!read_other_kind()) read_rotary();
    drop_empty();
    check_ropes(out_);
    return std::move(out_);
  }

 private:
  static constexpr std::int64_t most_layers = 10'000, widest = 1 << 18, widest_head = 1 << 14,
                                most_buckets = 4096, most_positions = std::int64_t{1} << 40;
  static constexpr const char* how_to_state_the_pairing =
      "state which channels pair up, which is not guessed (huggingface_options::pairing; --pairing "
      "half_split or "
      "interleaved), or use a model_type that is known: ";

  [[nodiscard]] const json_object& config() const noexcept { return text_ ? *text_ : root_; }
  template <class... Parts>
  void warn(const Parts&... parts) {
    std::string sentence;
    (append(sentence, parts), ...);
    if (std::find(out_.warnings.begin(), out_.warnings.end(), sentence) == out_.warnings.end())
      out_.warnings.push_back(std::move(sentence));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<std::invalid_argument>(type_.empty() ? "config.json" : type_, ": ", parts...);
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
    if (type_ == "qwen2_5_omni_thinker") type_ = "qwen2_5_omni";
    if (type_ == "RefinedWeb" || type_ == "RefinedWebModel") type_ = "falcon";
    if (type_.empty() && !options_.pairing)
      refuse("there is no model_type: ", how_to_state_the_pairing, known_types());
  }

  // ---- Numbers that every kind needs --------------------------------------------------------------------

  /// The first of several keys that is there.
  [[nodiscard]] std::optional<index_t> first_count(std::initializer_list<const char*> keys,
                                                   std::int64_t least, std::int64_t most) const {
    for (const char* key : keys)
      if (const auto value = config().count(key, least, most)) return value;
    return std::nullopt;
  }
  [[nodiscard]] index_t needed_count(std::initializer_list<const char*> keys, std::int64_t most,
                                     index_t if_absent = 0) {
    if (const auto value = first_count(keys, 1, most)) return *value;
    if (if_absent == 0) refuse("needs the key ", *keys.begin());
    warn(*keys.begin(), " is missing: ", if_absent, " is the default of ", type_);
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
                        "max_sequence_length"},
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
    if (width % heads != 0)
      refuse("hidden_size ", width, " is no multiple of num_attention_heads ", heads,
             " and there is no head_dim");
    if (width / heads > widest_head) refuse("heads of ", width / heads, " channels, more than ", widest_head);
    return width / heads;
  }
  [[nodiscard]] static double inverse_root(double x) { return 1 / std::sqrt(x); }

  void drop_empty() {
    std::erase_if(out_.encodings, [](const encoding_description& one) { return one.layers.empty(); });
  }

  // ---- Encodings other than RoPE ------------------------------------------------------------------------

  /// True when the model is of one of the kinds that do not rotate, and has been described.
  [[nodiscard]] bool read_other_kind() {
    const bool listed = std::find(other_types.begin(), other_types.end(), type_) != other_types.end();
    if (!listed) return false;
    out_.heads = head_count().value_or(0);
    out_.kv_heads = first_count({"num_key_value_heads", "num_kv_heads"}, 1, widest).value_or(out_.heads);
    out_.context_length = context();
    if (type_ == "falcon") {
      if (!config().boolean("alibi").value_or(false)) return false;
      read_falcon_alibi();
    } else if (type_ == "bloom") {
      read_alibi(head_width(), 8, 70);
    } else if (type_ == "mpt") {
      read_mpt();
    } else if (is_one_of({"t5", "mt5", "umt5", "longt5", "switch_transformers"})) {
      read_t5();
    } else if (is_one_of({"marian", "pegasus", "m2m_100", "fsmt", "xglm", "speech_to_text"})) {
      read_sinusoidal_sequence_model();
    } else if (type_ == "whisper") {
      read_whisper();
    } else {
      read_learned();
    }
    return true;
  }

  [[nodiscard]] bool is_one_of(std::initializer_list<std::string_view> types) const {
    return std::find(types.begin(), types.end(), type_) != types.end();
  }

  encoding_description& add(decltype(encoding_description::parameters) parameters, std::string layer_type,
                            std::vector<index_t> layers, std::optional<double> softmax_scale, bool causal) {
    encoding_description encoding;
    encoding.parameters = std::move(parameters);
    encoding.layer_type = std::move(layer_type);
    encoding.layers = std::move(layers);
    encoding.softmax_scale = softmax_scale;
    encoding.causal = causal;
    out_.encodings.push_back(std::move(encoding));
    return out_.encodings.back();
  }

  void read_alibi(index_t head_dim, double bias_max, index_t layers_if_absent) {
    if (out_.heads == 0) refuse("needs the key num_attention_heads");
    out_.layers = layer_count(layers_if_absent);
    add(alibi_description{{.heads = out_.heads, .bias_max = bias_max, .form = alibi_form::causal}, 0},
        "full_attention", all_layers(out_.layers), inverse_root(static_cast<double>(head_dim)), true);
  }

  void read_falcon_alibi() {
    const index_t head_dim = head_width();
    read_alibi(head_dim, 8, 32);
    std::get<alibi_description>(out_.encodings.front().parameters).falcon_head_dim = head_dim;
  }

  void read_mpt() {
    const json empty = json::object();
    const json_object attention = config().object("attn_config").value_or(json_object(empty, "attn_config"));
    const index_t head_dim = head_width();
    if (attention.boolean("rope").value_or(false))
      refuse("attn_config.rope is true: which rope implementation and pairing is meant is not guessed");
    const auto scale = attention.number("softmax_scale");
    if (attention.boolean("alibi").value_or(true)) {
      read_alibi(head_dim, attention.number("alibi_bias_max").value_or(8), 24);
    } else {
      const bool learned = config().boolean("learned_pos_emb").value_or(true);
      out_.layers = layer_count(24);
      decltype(encoding_description::parameters) parameters{};
      if (learned) parameters = learned_description{needed_context(), 0, model_width().value_or(0)};
      add(std::move(parameters), "full_attention", all_layers(out_.layers),
          inverse_root(static_cast<double>(head_dim)), true);
    }
    if (scale) out_.encodings.front().softmax_scale = *scale;
  }

  [[nodiscard]] index_t needed_context() {
    if (const auto length = context()) return *length;
    refuse("needs the key max_position_embeddings");
  }

  void read_t5() {
    out_.heads = needed_count({"num_heads", "num_attention_heads"}, widest);
    out_.kv_heads = out_.heads;
    const index_t encoder_layers = layer_count(type_ == "t5" || type_ == "longt5" ? 6 : 8);
    const index_t decoder_layers =
        first_count({"num_decoder_layers"}, 1, most_layers).value_or(encoder_layers);
    const index_t buckets = first_count({"relative_attention_num_buckets"}, 1, most_buckets).value_or(32);
    const position distance =
        first_count({"relative_attention_max_distance"}, 1, most_positions).value_or(128);
    const bool both = config().boolean("is_encoder_decoder").value_or(true);
    const bool decoder_only = !both && config().boolean("is_decoder").value_or(false);
    out_.layers = both ? encoder_layers + decoder_layers : decoder_only ? decoder_layers : encoder_layers;
    const auto side = [&](bool bidirectional, index_t layers) {
      add(t5_description{{.buckets = buckets, .max_distance = distance, .bidirectional = bidirectional},
                         out_.heads,
                         type_ == "umt5"},
          bidirectional ? "encoder" : "decoder", all_layers(layers), 1.0, !bidirectional);
    };
    if (!decoder_only) side(true, encoder_layers);
    if (both || decoder_only) side(false, decoder_layers);
  }

  void read_sinusoidal_sequence_model() {
    const index_t width = needed_count({"d_model", "hidden_size"}, widest);
    const bool tensor2tensor = type_ != "marian" && type_ != "pegasus";
    const sinusoid convention = tensor2tensor ? sinusoid::tensor2tensor : sinusoid::marian;
    // These classes count positions from padding_idx + 1, XGLM from its own offset of 2.
    const index_t padding = first_count({"pad_token_id"}, 0, most_positions).value_or(1);
    const index_t offset = !tensor2tensor ? 0 : type_ == "xglm" ? 2 : padding + 1;
    const bool speech = type_ == "speech_to_text";
    const auto side = [&](const char* name, const char* layers, const char* heads, const char* rows) {
      sinusoidal_description encoding{{.width = width, .convention = convention}, 0, offset};
      if (tensor2tensor) encoding.options.padding_position = padding;
      encoding.rows = first_count({rows, "max_position_embeddings"}, 1, most_positions).value_or(0);
      const index_t head_count =
          first_count({heads, "num_attention_heads", "attention_heads"}, 1, widest).value_or(0);
      out_.heads = head_count;
      std::optional<double> scale;
      if (head_count > 0) scale = inverse_root(static_cast<double>(width) / static_cast<double>(head_count));
      const index_t count =
          first_count({layers, "num_hidden_layers", "num_layers"}, 1, most_layers).value_or(0);
      if (count == 0) refuse("needs the key ", layers);
      out_.layers += count;
      add(std::move(encoding), name, all_layers(count), scale, std::string_view(name) == "decoder");
    };
    if (type_ != "xglm")
      side("encoder", "encoder_layers", "encoder_attention_heads",
           speech ? "max_source_positions" : "max_position_embeddings");
    side("decoder", "decoder_layers", "decoder_attention_heads",
         speech ? "max_target_positions" : "max_position_embeddings");
    out_.kv_heads = out_.heads;
    if (config().boolean("scale_embedding").value_or(tensor2tensor))
      warn("token embeddings are multiplied by sqrt(d_model) before positions are added (scale_embedding)");
  }

  void read_whisper() {
    const index_t width = needed_count({"d_model"}, widest);
    const auto scale = [&](const char* heads) {
      const index_t count = needed_count({heads}, widest);
      out_.heads = out_.kv_heads = count;
      return inverse_root(static_cast<double>(width) / static_cast<double>(count));
    };
    const index_t encoder_layers = needed_count({"encoder_layers"}, most_layers);
    const index_t decoder_layers = needed_count({"decoder_layers"}, most_layers);
    out_.layers = encoder_layers + decoder_layers;
    const index_t frames = needed_count({"max_source_positions"}, most_positions, 1500);
    add(sinusoidal_description{{.width = width, .convention = sinusoid::whisper}, frames, 0}, "encoder",
        all_layers(encoder_layers), scale("encoder_attention_heads"), false);
    const index_t tokens = needed_count({"max_target_positions"}, most_positions, 448);
    add(learned_description{tokens, 0, width}, "decoder", all_layers(decoder_layers),
        scale("decoder_attention_heads"), true);
    out_.context_length = tokens;
  }

  void read_learned() {
    const std::string kind = config().text("position_embedding_type").value_or("absolute");
    if (kind != "absolute") refuse("position_embedding_type ", kind, " is not read here; known is absolute");
    const bool encoder_decoder = is_one_of({"bart", "mbart", "plbart", "blenderbot", "blenderbot-small"});
    const index_t positions = needed_context();
    const index_t table_width = is_one_of({"electra", "albert"})
                                    ? first_count({"embedding_size"}, 1, widest).value_or(128)
                                    : model_width().value_or(0);
    if (is_one_of({"distilbert"}) && config().boolean("sinusoidal_pos_embds").value_or(false))
      warn("the learned table starts as the paper's sinusoids (sinusoidal_pos_embds)");
    learned_description table{positions, 0, table_width};
    if (is_one_of({"opt", "biogpt", "bart", "mbart", "plbart"})) {
      table.row_offset = 2;
      table.rows = positions + 2;
    } else if (is_one_of({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm",
                          "data2vec-text", "longformer"})) {
      table.row_offset = first_count({"pad_token_id"}, 0, most_positions).value_or(1) + 1;
      if (table.row_offset >= positions)
        refuse("pad_token_id ", table.row_offset - 1, " leaves no position of max_position_embeddings ",
               positions);
    }
    if (encoder_decoder) {
      for (const bool decoder : {false, true}) {
        const index_t layers = needed_count({decoder ? "decoder_layers" : "encoder_layers"}, most_layers);
        const index_t heads =
            needed_count({decoder ? "decoder_attention_heads" : "encoder_attention_heads"}, widest);
        out_.heads = out_.kv_heads = heads;
        out_.layers += layers;
        add(table, decoder ? "decoder" : "encoder", all_layers(layers),
            inverse_root(static_cast<double>(needed_count({"d_model"}, widest)) / static_cast<double>(heads)),
            decoder);
      }
      return;
    }
    const bool causal = is_one_of({"opt", "biogpt", "gpt2", "gpt_bigcode", "openai-gpt"});
    out_.layers = layer_count(12);
    std::optional<double> scale;
    if (model_width() && head_count()) scale = inverse_root(static_cast<double>(head_width()));
    if (is_one_of({"gpt2", "gpt_bigcode"})) {
      if (!config().boolean("scale_attn_weights").value_or(true)) scale = 1.0;
      if (type_ == "gpt2" && config().boolean("scale_attn_by_inverse_layer_idx").value_or(false) && scale) {
        for (index_t layer = 0; layer < out_.layers; ++layer)
          add(table, "full_attention", {layer}, *scale / static_cast<double>(layer + 1), true);
        return;
      }
    }
    add(table, "full_attention", all_layers(out_.layers), scale, causal);
  }

  // ---- RoPE ---------------------------------------------------------------------------------------------

  [[nodiscard]] bool has_trait(unsigned which) const noexcept { return (family_.traits & which) != 0; }

  void read_rotary() {
    if (const family* known = find_family(type_)) {
      family_ = *known;
    } else {
      adopt_unknown_family();
    }
    if (has_trait(stated_pairing) && !config().boolean("rope_interleave").value_or(true))
      family_.layout = half;
    if (const auto interleaved = config().boolean("rotary_emb_interleaved"))
      family_.layout = *interleaved ? turns : half;
    read_block();
    out_.heads = head_count().value_or(family_.heads);
    out_.kv_heads = first_count({"num_key_value_heads", "num_kv_heads"}, 1, widest).value_or(out_.heads);
    out_.context_length = context();
    if (!out_.context_length) out_.context_length = family_.context;
    out_.layers = layer_count(family_.layers);
    read_layers();
  }

  /// A model_type that is not in the table: the caller, or a key that can mean nothing else, states the
  /// pairing.
  void adopt_unknown_family() {
    std::optional<pairing> layout = options_.pairing;
    for (const char* key : {"rope_interleave", "rope_interleaved", "rotary_emb_interleaved"})
      if (const auto interleaved = config().boolean(key); interleaved && !layout)
        layout = *interleaved ? turns : half;
    if (!layout) refuse("this model_type is not known: ", how_to_state_the_pairing, known_types());
    for (const char* key : {"rope_scaling", "rope_parameters"})
      if (config().has(key) && !config().find(key)->is_object())
        json_object::wrong(key, *config().find(key), "an object");
    family_ = {.model_type = "",
               .layout = *layout,
               .layers = 0,
               .base = 0,
               .traits = honours_partial | absolute_width,
               .context = 0};
    if (!context()) refuse("needs the key max_position_embeddings");
    unknown_ = true;
  }

  /// Finds the rope block and whether it is nested by layer type.
  void read_block() {
    const auto usable = [&](const char* key) -> const json* {
      const json* found = config().find(key);
      if (found == nullptr) return nullptr;
      if (!found->is_object()) json_object::wrong(key, *found, "an object");
      return found->empty() ? nullptr : found;
    };
    const json* scaling = usable("rope_scaling");
    const json* parameters = usable("rope_parameters");
    if (scaling != nullptr && parameters != nullptr && *scaling != *parameters)
      warn("rope_scaling and rope_parameters are both given: rope_scaling is used");
    block_name_ = scaling != nullptr ? "rope_scaling" : "rope_parameters";
    const json* chosen = scaling != nullptr ? scaling : parameters;
    if (chosen != nullptr) {
      block_ = *chosen;
    } else if (const json standard = block_of_class(); !standard.empty()) {
      block_ = standard;
      warn("there is no rope block: the one that ", type_, " has by default is used");
    }
    for (const auto& [key, value] : block_.items())
      if (is_layer_type(key) && (value.is_object() || value.is_null())) nested_ = true;
    if (!nested_) return;
    for (const auto& [key, value] : block_.items())
      if (!is_layer_type(key)) warn("unknown key ", block_name_, ".", key, " beside layer types");
  }

  [[nodiscard]] json block_of_class() const {
    if (type_ == "gpt_oss")
      return {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
              {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
    if (type_ == "ministral3")
      return {{"rope_type", "yarn"}, {"factor", 16.0},        {"original_max_position_embeddings", 16'384},
              {"mscale", 1.0},       {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.1}};
    if (type_ == "mistral4")
      return {{"rope_type", "yarn"}, {"factor", 128.0},       {"original_max_position_embeddings", 8192},
              {"mscale", 1.0},       {"mscale_all_dim", 1.0}, {"llama_4_scaling_beta", 0.1}};
    if (type_ == "apertus")
      return {{"rope_type", "llama3"},  {"rope_theta", 1.2e7},
              {"factor", 8.0},          {"original_max_position_embeddings", 8192},
              {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
    if (type_ == "cwm")
      return {{"rope_type", "llama3"},  {"rope_theta", 1e6},
              {"factor", 16.0},         {"original_max_position_embeddings", 8192},
              {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
    if (family_.model_type == "gemma4")
      return {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
              {"full_attention",
               {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}}};
    return json::object();
  }

  [[nodiscard]] static bool is_layer_type(std::string_view name) {
    return name == "full_attention" || name == "sliding_attention" || name == "chunked_attention" ||
           name == "linear_attention";
  }

  // ---- Layers -------------------------------------------------------------------------------------------

  /// What distinguishes one layer's encoding from another's.
  struct layer_kind {
    std::string type;
    bool rotates = true;
    bool windowed = false;
    bool operator<(const layer_kind& other) const {
      return std::tie(type, rotates, windowed) < std::tie(other.type, other.rotates, other.windowed);
    }
  };

  void read_layers() {
    window_ = sliding_window();
    const std::vector<std::string> types = layer_types();
    const std::vector<bool> rotates = rotating_layers(types);
    std::map<layer_kind, std::size_t> places;
    for (index_t layer = 0; layer < out_.layers; ++layer) {
      const auto i = static_cast<std::size_t>(layer);
      const bool local = types[i] == "sliding_attention" || types[i] == "chunked_attention";
      const layer_kind kind{types[i], rotates[i], local && window_ > 0};
      const auto [place, is_new] = places.try_emplace(kind, out_.encodings.size());
      if (is_new) describe(kind);
      out_.encodings[place->second].layers.push_back(layer);
    }
  }

  [[nodiscard]] index_t sliding_window() const {
    const bool given = config().mentions("sliding_window");
    const index_t stated =
        first_count({"sliding_window"}, 0, most_positions).value_or(given ? 0 : family_.window);
    switch (family_.rule) {
      case layer_rule::all_full:
      case layer_rule::linear_then_full:
        return 0;
      case layer_rule::qwen2:
      case layer_rule::qwen2_moe:
      case layer_rule::window_if_used:
        return config().boolean("use_sliding_window").value_or(false) ? stated : 0;
      case layer_rule::full_starts_period:
        if (!has_trait(two_bases)) return stated;
        return first_count({"local_attention"}, 1, most_positions).value_or(family_.window) / 2;
      case layer_rule::rope_in_chunks:
        if (!config().mentions("attention_chunk_size")) return family_.window;
        return first_count({"attention_chunk_size"}, 1, most_positions).value_or(0);
      default:
        return stated;
    }
  }

  [[nodiscard]] index_t period() const {
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
                            "full_attention_interval"}) {
      const json* found = config().find(key);
      if (found == nullptr) continue;
      // EXAONE writes "LLLG" for a period of 4.
      if (found->is_string() && !found->template get<std::string>().empty())
        return static_cast<index_t>(found->template get<std::string>().size());
      return config().count(key, 1, most_layers).value_or(family_.period);
    }
    return family_.period;
  }

  /// The type of each layer: as config.json lists them, or as the model class works them out.
  [[nodiscard]] std::vector<std::string> layer_types() {
    const auto count = static_cast<std::size_t>(out_.layers);
    if (const auto listed = config().texts("layer_types")) {
      if (listed->size() != count)
        refuse("layer_types lists ", listed->size(), " layers, num_hidden_layers is ", count);
      for (const std::string& one : *listed)
        if (!is_layer_type(one))
          refuse("layer_types has ", one,
                 "; known are full_attention, sliding_attention, chunked_attention, linear_attention");
      return *listed;
    }
    const index_t every = (std::max)(period(), index_t{1});
    const index_t first_windowed = first_count({"max_window_layers"}, 0, most_layers).value_or(28);
    std::vector<std::string> types;
    for (index_t i = 0; i < out_.layers; ++i) {
      bool local = false;
      switch (family_.rule) {
        case layer_rule::all_full:
          break;
        case layer_rule::all_in_window:
          local = window_ > 0;
          break;
        case layer_rule::window_if_used:
          local = window_ > 0;
          break;
        case layer_rule::qwen2:
          local = window_ > 0 && i >= first_windowed;
          break;
        case layer_rule::qwen2_moe:
          local = window_ > 0 && i % 2 == 0 && i < first_windowed;
          break;
        case layer_rule::full_ends_period:
        case layer_rule::linear_then_full:
          local = (i + 1) % every != 0;
          break;
        case layer_rule::full_starts_period:
          local = i % every != 0;
          break;
        case layer_rule::rope_in_chunks:
          local = window_ > 0 && turns_by_list(i);
          break;
      }
      if (has_trait(global_head) && i + 1 == out_.layers) local = false;
      if (family_.model_type == "smollm3") local = local && !turns_by_list(i);
      if (family_.model_type == "exaone4" && window_ == 0) local = false;
      types.emplace_back(!local                                         ? "full_attention"
                         : family_.rule == layer_rule::linear_then_full ? "linear_attention"
                         : family_.rule == layer_rule::rope_in_chunks   ? "chunked_attention"
                                                                        : "sliding_attention");
    }
    return types;
  }

  /// Whether layer `i` turns by no_rope_layers, whose name is its opposite: 1 marks a layer with rope.
  [[nodiscard]] bool turns_by_list(index_t i) {
    if (!has_trait(no_rope_list)) return true;
    const auto listed = config().integers("no_rope_layers");
    if (listed && !listed->empty()) {
      if (listed->size() != static_cast<std::size_t>(out_.layers))
        refuse("no_rope_layers lists ", listed->size(), " layers, num_hidden_layers is ", out_.layers);
      return (*listed)[static_cast<std::size_t>(i)] != 0;
    }
    const index_t every = first_count({"no_rope_layer_interval"}, 1, most_layers).value_or(family_.period);
    return (i + 1) % every != 0;
  }

  [[nodiscard]] std::vector<bool> rotating_layers(const std::vector<std::string>& types) {
    std::vector<bool> rotates;
    for (index_t i = 0; i < out_.layers; ++i) {
      const std::string& type = types[static_cast<std::size_t>(i)];
      bool turns_here = type != "linear_attention" && turns_by_list(i);
      if (has_trait(local_only)) turns_here = type == "sliding_attention";
      if (has_trait(local_if_window) && window_ > 0) turns_here = type == "sliding_attention";
      if (nested_ && block_.contains(type) && block_[type].is_null()) turns_here = false;
      rotates.push_back(turns_here);
    }
    return rotates;
  }

  void describe(const layer_kind& kind) {
    encoding_description encoding;
    encoding.layer_type = kind.type;
    encoding.causal = !is_bidirectional();
    encoding.learned_sinks = has_trait(sinks);
    if (kind.windowed) {
      if (kind.type == "chunked_attention") {
        encoding.chunk = window_;
      } else if (has_trait(two_bases)) {
        encoding.lookback = encoding.lookahead = window_;  // half of local_attention, both ways
      } else if (encoding.causal) {
        encoding.lookback = window_ - 1;  // sliding_window counts the query's own token
      } else {
        encoding.lookback = encoding.lookahead = window_ / 2;
      }
    }
    if (has_trait(softcap) || has_trait(softcap_if_given)) {
      const double standard = has_trait(softcap) && !config().mentions("attn_logit_softcapping") ? 50 : 0;
      encoding.softcap = config().number("attn_logit_softcapping").value_or(standard);
    }
    const index_t head_dim = head_dim_of(kind.type);
    encoding.softmax_scale = plain_softmax_scale(head_dim);
    if (kind.rotates) describe_rope(kind.type, head_dim, encoding);
    if (has_trait(llama4_scale) && !kind.rotates) {
      const json* tuning = config().find("attn_temperature_tuning");
      bool on = true;
      if (tuning != nullptr)
        on = tuning->is_boolean() ? tuning->template get<bool>()
                                  : config().integer("attn_temperature_tuning").value_or(0) != 0;
      if (on)
        encoding.position_scale = logit_scale::llama4(config().number("attn_scale").value_or(0.1),
                                                      config().number("floor_scale").value_or(8192));
    }
    out_.encodings.push_back(std::move(encoding));
  }

  [[nodiscard]] bool is_bidirectional() const {
    if (has_trait(bidirectional)) return true;
    const json* flag = config().find("use_bidirectional_attention");
    if (flag == nullptr) return false;
    return flag->is_boolean() ? flag->template get<bool>()
                              : config().text("use_bidirectional_attention") == "all";
  }

  [[nodiscard]] index_t head_dim_of(const std::string& layer_type) {
    if (has_trait(latent))
      return needed_count({"qk_nope_head_dim"}, widest_head, family_.still) +
             needed_count({"qk_rope_head_dim"}, widest_head, family_.turning);
    if (has_trait(global_head) && layer_type == "full_attention")
      return first_count({"global_head_dim"}, 1, widest_head).value_or(512);
    if (const auto stated = first_count({"head_dim"}, 1, widest_head)) return *stated;
    if (family_.head_dim > 0 && !config().mentions("head_dim")) return family_.head_dim;
    return head_width(family_.hidden, family_.heads);
  }

  [[nodiscard]] double plain_softmax_scale(index_t head_dim) const {
    if (has_trait(unit_scale)) return 1;
    if (has_trait(multiplier)) return config().number("attention_multiplier").value_or(1);
    if (has_trait(query_scalar)) {
      const double scalar = config().number("query_pre_attn_scalar").value_or(256);
      if (!(scalar > 0)) refuse("query_pre_attn_scalar ", scalar, " is not positive");
      return inverse_root(scalar);
    }
    return inverse_root(static_cast<double>(head_dim));
  }

  // ---- One rope -----------------------------------------------------------------------------------------

  /// The rope block of a layer type; nothing if there is none.
  [[nodiscard]] std::optional<json_object> entry_of(const std::string& layer_type) {
    if (!nested_) {
      // Gemma-3's old style: rope_scaling is for the global layers.
      if (block_.empty() || (has_trait(global_scaling) && layer_type == "sliding_attention"))
        return std::nullopt;
      return json_object(block_, block_name_);
    }
    const auto found = block_.find(layer_type);
    if (found != block_.end()) return json_object(*found, block_name_ + "." + layer_type);
    if (has_trait(global_scaling | two_bases)) return std::nullopt;
    refuse(block_name_, " is nested by layer type and has no ", layer_type);
  }

  [[nodiscard]] double base_of(const std::string& layer_type, const std::optional<json_object>& entry) {
    if (entry)
      if (const auto inner = entry->number("rope_theta")) return *inner;
    const bool local = layer_type == "sliding_attention";
    double standard = family_.base;
    std::vector<const char*> keys{"rope_theta", "rotary_emb_base"};
    if (has_trait(two_bases)) {
      keys = {local ? "local_rope_theta" : "global_rope_theta"};
      if (local) standard = family_.local_base;
    } else if (has_trait(global_scaling) && family_.local_base > 0 && local) {
      keys = {"rope_local_base_freq"};
      standard = family_.local_base;
    }
    std::optional<double> stated;
    for (const char* key : keys) {
      const auto value = config().number(key);
      if (value && stated && *value != *stated)
        refuse(keys.front(), " is ", *stated, " and ", key, " is ", *value, ": which one is meant?");
      if (value) stated = value;
    }
    if (stated) return *stated;
    if (unknown_) refuse("there is no rope_theta, and defaults differ by model");
    if (type_ != "gptj" && type_ != "codegen" && type_ != "roformer")
      warn(keys.front(), " is missing: ", standard, " is the default of ", type_);
    return standard;
  }

  [[nodiscard]] double partial_of(const std::optional<json_object>& entry) {
    std::optional<double> outer = config().number("partial_rotary_factor"), inner;
    if (entry) inner = entry->number("partial_rotary_factor");
    if (outer && inner && *outer != *inner)
      warn("partial_rotary_factor is ", *outer, " at the top and ", *inner, " in the rope block: ", *outer,
           " is used");
    double share = outer ? *outer : inner.value_or(family_.partial);
    if (!outer && !inner)
      for (const char* key :
           {"rotary_pct", "rope_pct", "rope_percent", "rotary_percentage", "rotary_emb_fraction"})
        if (const auto alias = config().number(key)) share = *alias;
    if (!(share >= 0 && share <= 1)) refuse("partial_rotary_factor ", share, " is not from 0 to 1");
    return share;
  }

  /// The name of the scaling, aliases resolved.
  [[nodiscard]] std::string scaling_type(const std::optional<json_object>& entry) {
    if (!entry) return "default";
    const auto now = entry->text("rope_type"), before = entry->text("type");
    const auto resolved = [&](const std::string& name) -> std::string {
      if (name == "mrope" && (has_trait(axes_chunked | axes_interleaved) || unknown_)) return "default";
      // Phi-3's class renames "yarn": its files mean LongRoPE by it.
      if (name == "su" || (name == "yarn" && has_trait(phi3_names))) return "longrope";
      return name;
    };
    if (now && before && resolved(*now) != resolved(*before))
      warn("rope_type is ", *now, " and type is ", *before, ": rope_type is used");
    return resolved(now ? *now : before.value_or("default"));
  }

  void describe_rope(const std::string& layer_type, index_t head_dim, encoding_description& encoding) {
    const std::optional<json_object> entry = entry_of(layer_type);
    const std::string type = scaling_type(entry);
    const double share = partial_of(entry);
    rope_description rope{
        .options = {.head_dim = head_dim, .base = base_of(layer_type, entry), .pairing = family_.layout}};
    rope.context_length = out_.context_length;
    if (has_trait(latent)) {
      rope.options.rotary_dim = needed_count({"qk_rope_head_dim"}, widest_head, family_.turning);
      rope.options.rotary_offset = head_dim - *rope.options.rotary_dim;
    } else if (const auto width = first_count({"rotary_dim"}, 0, widest);
               width && has_trait(absolute_width)) {
      rope.options.rotary_dim = *width;
    } else if (family_.layout == turns && has_trait(absolute_width) && !unknown_) {
      rope.options.rotary_dim = config().mentions("rotary_dim") ? head_dim : 64;
    } else if (type == "proportional") {
      rope.options.rotary_dim = head_dim;
    } else {
      const bool honoured =
          type != "default" || has_trait(honours_partial) || options_.always_honour_partial_rotary_factor;
      if (share != 1 && !honoured)
        warn("partial_rotary_factor ", share, " is ignored, as ", type_, " does for the default rope type");
      // Truncated like the frameworks do.
      rope.options.rotary_dim =
          honoured ? static_cast<index_t>(static_cast<double>(head_dim) * share) : head_dim;
    }
    if (*rope.options.rotary_dim % 2 != 0)
      refuse("the rotary width ", *rope.options.rotary_dim, " (head_dim ", head_dim,
             ", partial_rotary_factor ", share, ") is odd");
    if (type != "default") rope.scaling = scaling_of(type, *entry, share);
    read_axes(entry, rope);
    if (entry) {
      report_unknown_keys(type, *entry);
      if (has_trait(latent)) apply_latent_temperature(type, *entry, encoding);
      if (has_trait(ministral_scale))
        if (const auto beta = entry->number("llama_4_scaling_beta"); beta && *beta != 0)
          encoding.position_scale = logit_scale::ministral(*beta, original_context(*entry));
    }
    encoding.parameters = std::move(rope);
  }

  /// DeepSeek: σ·M(s, mscale_all_dim)², on the whole score.
  void apply_latent_temperature(const std::string& type, const json_object& entry,
                                encoding_description& encoding) {
    const double all_dim = entry.number("mscale_all_dim").value_or(0);
    if (type == "default" || all_dim == 0) return;
    const auto factor = entry.number("factor");
    if (!factor) refuse(entry.name_of_key("factor"), " is needed for mscale_all_dim");
    encoding.softmax_scale = *encoding.softmax_scale *
                             deepseek_softmax_multiplier(yarn{.factor = *factor, .mscale_all_dim = all_dim});
  }

  void read_axes(const std::optional<json_object>& entry, rope_description& rope) {
    const bool chunked = has_trait(axes_chunked), taking_turns = has_trait(axes_interleaved);
    std::optional<std::vector<index_t>> sections;
    if (entry) sections = entry->integers("mrope_section");
    if (!chunked && !taking_turns && !(unknown_ && sections)) {
      if (sections) warn("mrope_section has no effect: ", type_, " has one axis");
      return;
    }
    if (!sections) {
      sections = taking_turns                    ? family_.partial < 1 ? std::vector<index_t>{11, 11, 10}
                                                                       : std::vector<index_t>{24, 20, 20}
                                    : family_.model_type == "glm4v" ? std::vector<index_t>{8, 12, 12}
                                                 : std::vector<index_t>{16, 24, 24};
      warn("mrope_section is missing: the default of ", type_, " is used");
    }
    const bool interleaved = taking_turns || (entry && entry->boolean("mrope_interleaved").value_or(false));
    set_axes(rope, std::move(*sections), interleaved ? axis_order::interleaved : axis_order::chunked);
  }

  [[nodiscard]] double needed(const json_object& entry, const char* key, const std::string& type) const {
    if (const auto value = entry.number(key)) return *value;
    refuse(entry.name_of_key(key), " is missing, which rope type ", type, " needs");
  }

  [[nodiscard]] double original_context(const json_object& entry) {
    const auto outer = config().number("original_max_position_embeddings");
    const auto inner = entry.number("original_max_position_embeddings");
    if (outer && inner && *outer != *inner)
      warn("original_max_position_embeddings is ", *outer, " at the top and ", *inner,
           " in the rope block: ", nested_ ? *inner : *outer, " is used");
    if (inner && (nested_ || !outer)) return *inner;
    if (outer) return *outer;
    if (has_trait(phi3_names) && !unknown_) {
      warn("original_max_position_embeddings is missing: 4096 is the default of ", type_);
      return 4096;
    }
    warn("original_max_position_embeddings is missing: max_position_embeddings ", *out_.context_length,
         " is taken for it");
    return static_cast<double>(*out_.context_length);
  }

  [[nodiscard]] any_scaling scaling_of(const std::string& type, const json_object& entry, double share) {
    const double context = static_cast<double>(*out_.context_length);
    if (type == "linear") return position_interpolation{.factor = needed(entry, "factor", type)};
    if (type == "dynamic") {
      if (const auto stretch = entry.number("alpha"); stretch && *stretch != 0 && has_trait(alpha))
        return theta_scaling{.factor = *stretch};
      return dynamic_ntk{.factor = needed(entry, "factor", type), .max_context = context};
    }
    if (type == "yarn") return yarn_of(entry, context);
    if (type == "longrope") return longrope_of(entry, context);
    if (type == "llama3")
      return llama3{.factor = needed(entry, "factor", type),
                    .low_freq_factor = needed(entry, "low_freq_factor", type),
                    .high_freq_factor = needed(entry, "high_freq_factor", type),
                    .original_context = original_context(entry)};
    if (type == "proportional")
      return proportional{.partial_rotary_factor = share, .factor = entry.number("factor").value_or(1)};
    refuse("rope type ", type,
           " is not known; known are default, linear, dynamic, yarn, longrope (su), llama3, "
           "proportional and, for several axes, mrope");
  }

  [[nodiscard]] yarn yarn_of(const json_object& entry, double context) {
    yarn scheme;
    scheme.original_context = original_context(entry);
    // An explicit null asks for the ratio of the two lengths.
    scheme.factor = entry.mentions("factor") && !entry.has("factor") ? context / scheme.original_context
                                                                     : needed(entry, "factor", "yarn");
    scheme.attention_factor = entry.number("attention_factor");
    // 0 stands for the default, as in transformers.
    if (const auto beta = entry.number("beta_fast"); beta && *beta != 0) scheme.beta_fast = *beta;
    if (const auto beta = entry.number("beta_slow"); beta && *beta != 0) scheme.beta_slow = *beta;
    scheme.mscale = entry.number("mscale").value_or(0);
    scheme.mscale_all_dim = entry.number("mscale_all_dim").value_or(0);
    scheme.truncate = entry.boolean("truncate").value_or(true);
    if (nested_ && options_.ignore_nested_truncate) scheme.truncate = true;
    return scheme;
  }

  [[nodiscard]] longrope longrope_of(const json_object& entry, double context) {
    longrope scheme;
    for (const auto& [key, list] :
         {std::pair{"short_factor", &scheme.short_factor}, std::pair{"long_factor", &scheme.long_factor}}) {
      auto factors = entry.numbers(key);
      if (!factors) refuse(entry.name_of_key(key), " is missing, which rope type longrope needs");
      *list = std::move(*factors);
    }
    scheme.original_context = original_context(entry);
    scheme.factor = entry.number("factor");
    scheme.max_context = context;
    scheme.attention_factor = entry.number("attention_factor");
    if (has_trait(mscales)) {
      scheme.short_mscale = entry.number("short_mscale");
      scheme.long_mscale = entry.number("long_mscale");
    }
    return scheme;
  }

  void report_unknown_keys(const std::string& type, const json_object& entry) {
    std::vector<std::string_view> known{"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    const auto knows = [&](std::initializer_list<std::string_view> keys) {
      known.insert(known.end(), keys.begin(), keys.end());
    };
    if (type != "default") knows({"factor"});
    if (type == "dynamic" && has_trait(alpha))
      knows({"alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"});
    if (type == "yarn")
      knows({"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
             "mscale_all_dim", "truncate"});
    if (type == "longrope")
      knows({"short_factor", "long_factor", "original_max_position_embeddings", "attention_factor"});
    if (type == "longrope" && has_trait(mscales)) knows({"short_mscale", "long_mscale"});
    if (type == "llama3") knows({"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
    if (has_trait(axes_chunked | axes_interleaved) || unknown_) knows({"mrope_section", "mrope_interleaved"});
    if (has_trait(ministral_scale))
      knows({"llama_4_scaling_beta", "max_position_embeddings", "original_max_position_embeddings"});
    for (const auto& [key, value] : entry.raw().items())
      if (std::find(known.begin(), known.end(), key) == known.end() && key != "mrope_section")
        warn("unknown key ", entry.name_of_key(key), " for rope type ", type, ": it has no effect");
  }

  json_object root_;
  std::optional<json_object> text_;
  huggingface_options options_;
  std::string type_;
  family family_{.model_type = "", .layout = half};
  bool unknown_ = false;
  json block_ = json::object();
  std::string block_name_;
  bool nested_ = false;
  index_t window_ = 0;
  model_description out_;
};

}  // namespace detail::huggingface

/// What a parsed config.json says about positions.
/// \throws format_error with the key when a value has the wrong type; std::invalid_argument when the values
/// mean nothing, contradict each other, or belong to a model whose pairing is not known.
[[nodiscard]] inline model_description describe_huggingface(const nlohmann::json& config,
                                                            const huggingface_options& options = {}) {
  return detail::huggingface::reader(config, options).read();
}

/// The same from the text of a config.json, which is not trusted. \param what names the text in errors
/// \throws format_error also when it is no JSON, with the byte offset.
[[nodiscard]] inline model_description parse_huggingface(std::string_view text,
                                                         const huggingface_options& options = {},
                                                         std::string_view what = "config.json") {
  const nlohmann::json config = parse_json(text, what);
  return describe_huggingface(config, options);
}

/// The same from a file. \throws format_error also when the file cannot be read.
[[nodiscard]] inline model_description read_huggingface(const std::filesystem::path& path,
                                                        const huggingface_options& options = {}) {
  return parse_huggingface(detail::read_text(path), options, path.filename().string());
}

/// Which of a model's ropes is wanted.
struct load_rope_options {
  std::optional<index_t> layer{};    ///< needed where layers differ
  std::optional<position> length{};  ///< of the sequence, for schemes that depend on it
  angle_mode angles = angle_mode::exact;
  huggingface_options reading{};
};

/// The RoPE of a config.json, ready to use. The pairing, the widths and the scaling are in it; the softmax
/// scale and the windows are not (they belong to attention_options): read_huggingface has them. \throws
/// format_error, std::invalid_argument: see read_huggingface; also when layers differ and none is chosen, or
/// the model does not rotate.
template <std::floating_point T>
[[nodiscard]] rope<T> load_rope(const std::filesystem::path& path, const load_rope_options& options = {}) {
  const model_description model = read_huggingface(path, options.reading);
  rope_description description = rope_encoding(model, options.layer).rope();
  description.options.angles = options.angles;
  return make_rope<T>(description, options.length);
}

}  // namespace posenc::inline v0_2
