// SPDX-License-Identifier: MIT
/// \file
/// config.json of models that do not rotate: learned tables, ALiBi, T5's buckets, sinusoids.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <posenc/models/description.hpp>
#include <posenc/models/families/other_kinds.hpp>
#include <posenc/models/huggingface/keys.hpp>

namespace posenc::inline v0_2::detail::huggingface {

/// Reads the kinds of encoding that do not rotate.
class other_kinds : public config_keys {
 protected:
  using config_keys::config_keys;

  /// True when the model is of one of these kinds, and has been described.
  [[nodiscard]] bool read_other_kind() {
    if (type_ == "falcon") return read_falcon();
    const other_family* known = find_other_family(type_);
    if (known == nullptr) return false;
    row_ = *known;
    out_.context_length = context();
    switch (row_.kind) {
      case other_kind::learned:
        read_learned();
        break;
      case other_kind::alibi:
        read_heads_of_row();
        read_alibi(head_width(row_.width, row_.heads), 8, row_.layers);
        break;
      case other_kind::mpt:
        read_mpt();
        break;
      case other_kind::t5:
        read_t5();
        break;
      case other_kind::sinusoidal:
        read_sinusoidal_stacks();
        break;
      case other_kind::whisper:
        read_whisper();
        break;
    }
    return true;
  }

 private:
  [[nodiscard]] bool is(std::uint32_t which) const noexcept { return (row_.traits & which) != 0; }

  void read_heads_of_row() {
    out_.heads = head_count() ? *head_count() : needed_count({"num_attention_heads"}, widest, row_.heads);
    out_.kv_heads = first_count({"num_key_value_heads", "num_kv_heads"}, 1, widest).value_or(out_.heads);
    if (is(one_kv_head) && config().boolean("multi_query").value_or(true)) out_.kv_heads = 1;
  }

  encoding_description& add(decltype(encoding_description::parameters) parameters, std::string layer_type,
                            std::vector<index_t> layers, index_t head_dim, bool causal) {
    encoding_description encoding;
    encoding.parameters = std::move(parameters);
    encoding.layer_type = std::move(layer_type);
    encoding.layers = std::move(layers);
    encoding.softmax_scale = inverse_root(static_cast<double>(head_dim));
    encoding.causal = causal;
    encoding.heads = out_.heads;
    encoding.kv_heads = out_.kv_heads;
    encoding.head_dim = encoding.value_dim = head_dim;
    out_.encodings.push_back(std::move(encoding));
    return out_.encodings.back();
  }

  // ---- ALiBi ------------------------------------------------------------------------------------------------------

  encoding_description& read_alibi(index_t head_dim, double bias_max, index_t layers_if_absent) {
    out_.layers = layer_count(layers_if_absent);
    return add(alibi_description{{.heads = out_.heads, .bias_max = bias_max, .form = alibi_form::causal}, 0},
               "full_attention", all_layers(out_.layers), head_dim, true);
  }

  /// Falcon rotates, or adds ALiBi before the scale.
  [[nodiscard]] bool read_falcon() {
    const bool grouped = config().boolean("new_decoder_architecture").value_or(false);
    const bool single = config().boolean("multi_query").value_or(true);
    falcon_kv_heads_ = grouped ? first_count({"num_kv_heads", "n_head_kv"}, 1, widest) : std::nullopt;
    if (!grouped && single) falcon_kv_heads_ = 1;
    if (!config().boolean("alibi").value_or(false)) return false;
    out_.heads = head_count() ? *head_count() : needed_count({"num_attention_heads"}, widest, 71);
    out_.kv_heads = falcon_kv_heads_.value_or(out_.heads);
    out_.context_length = context();
    const index_t head_dim = head_width(4544, 71);
    std::get<alibi_description>(read_alibi(head_dim, 8, 32).parameters).falcon_head_dim = head_dim;
    return true;
  }

  void read_mpt() {
    const json empty = json::object();
    const json_object attention =
        config().object("attn_config").value_or(json_object(empty, "attn_config", &log_));
    read_heads_of_row();
    if (const auto stated = attention.count("kv_n_heads", 1, widest)) out_.kv_heads = *stated;
    if (attention.text("attn_type").value_or("") == "multiquery_attention") out_.kv_heads = 1;
    const index_t head_dim = head_width(row_.width, row_.heads);
    if (attention.boolean("rope").value_or(false))
      refuse("attn_config.rope is true: which rope implementation and pairing is meant is not guessed");
    if (const auto window = attention.integer("sliding_window_size"); window && *window > 0)
      refuse("attn_config.sliding_window_size ", *window, " is not known of this model class");
    const auto scale = attention.number("softmax_scale");
    if (attention.boolean("alibi").value_or(true)) {
      read_alibi(head_dim, attention.number("alibi_bias_max").value_or(8), row_.layers);
    } else {
      const bool learned = config().boolean("learned_pos_emb").value_or(true);
      out_.layers = layer_count(row_.layers);
      decltype(encoding_description::parameters) parameters{};
      if (learned) parameters = learned_description{needed_context(), 0, model_width().value_or(0)};
      add(std::move(parameters), "full_attention", all_layers(out_.layers), head_dim, true);
    }
    if (scale) out_.encodings.front().softmax_scale = *scale;
    if (attention.boolean("prefix_lm").value_or(false)) out_.encodings.front().prefix_lm = true;
  }

  // ---- T5 ---------------------------------------------------------------------------------------------------------

  void read_t5() {
    out_.heads = needed_count({"num_heads", "num_attention_heads"}, widest, row_.heads);
    out_.kv_heads = out_.heads;
    const index_t encoder_layers = layer_count(row_.layers);
    const index_t decoder_layers =
        first_count({"num_decoder_layers"}, 1, most_layers).value_or(encoder_layers);
    const index_t buckets = first_count({"relative_attention_num_buckets"}, 1, most_buckets).value_or(32);
    const position distance =
        first_count({"relative_attention_max_distance"}, 1, most_positions).value_or(128);
    const index_t head_dim = first_count({"d_kv"}, 1, widest_head).value_or(64);
    const bool both = config().boolean("is_encoder_decoder").value_or(true);
    const bool decoder_only = !both && config().boolean("is_decoder").value_or(false);
    out_.layers = both ? encoder_layers + decoder_layers : decoder_only ? decoder_layers : encoder_layers;
    const auto side = [&](bool bidirectional, index_t layers) -> encoding_description& {
      encoding_description& one =
          add(t5_description{{.buckets = buckets, .max_distance = distance, .bidirectional = bidirectional},
                             out_.heads,
                             is(table_per_layer)},
              bidirectional ? "encoder" : "decoder", all_layers(layers), head_dim, !bidirectional);
      one.softmax_scale = 1;
      return one;
    };
    if (!decoder_only) {
      encoding_description& encoder = side(true, encoder_layers);
      if (is(local_encoder)) {
        const std::string kind = config().text("encoder_attention_type").value_or("local");
        if (kind != "local")
          refuse("encoder_attention_type ", kind,
                 " sums blocks of keys into global ones, which is not described");
        encoder.lookback = encoder.lookahead = first_count({"local_radius"}, 1, most_positions).value_or(127);
      }
    }
    if (both || decoder_only) side(false, decoder_layers);
  }

  // ---- Encoders and decoders with sinusoids -----------------------------------------------------------------------

  /// The keys of one stack.
  struct stack {
    const char* name;
    const char* layers;
    const char* heads;
  };
  static constexpr stack encoder_stack{"encoder", "encoder_layers", "encoder_attention_heads"};
  static constexpr stack decoder_stack{"decoder", "decoder_layers", "decoder_attention_heads"};

  /// Layers of a stack; sets the head counts.
  [[nodiscard]] index_t read_stack(const stack& side) {
    out_.heads = out_.kv_heads =
        stated_or(side.heads, {"num_attention_heads", "attention_heads"}, widest, row_.heads);
    const index_t layers =
        stated_or(side.layers, {"num_hidden_layers", "num_layers"}, most_layers, row_.layers);
    out_.layers += layers;
    return layers;
  }
  [[nodiscard]] index_t stated_or(const char* key, std::initializer_list<const char*> others,
                                  std::int64_t most, index_t if_absent) {
    if (const auto value = config().count(key, 1, most)) return *value;
    if (const auto value = first_count(others, 1, most)) return *value;
    return needed_count({key}, most, if_absent);
  }

  void read_sinusoidal_stacks() {
    const index_t width = needed_count({"d_model", "hidden_size"}, widest, row_.width);
    const bool fairseq = is(counts_after_padding);
    // These classes count positions from padding_idx + 1, XGLM from its own offset of 2.
    const index_t padding = first_count({"pad_token_id"}, 0, most_positions).value_or(1);
    const index_t offset = !fairseq ? 0 : is(decoder_alone) ? 2 : padding + 1;
    const auto side = [&](const stack& which, const char* rows) {
      sinusoidal_description encoding{
          {.width = width, .convention = fairseq ? sinusoid::tensor2tensor : sinusoid::marian}, 0, offset};
      if (fairseq) encoding.options.padding_position = padding;
      encoding.rows = or_default(first_count({rows, "max_position_embeddings"}, 1, most_positions),
                                 "max_position_embeddings", row_.positions);
      const index_t layers = read_stack(which);
      const index_t head_dim = divided(width, out_.heads, "d_model", which.heads);
      add(std::move(encoding), which.name, all_layers(layers), head_dim, which.name == decoder_stack.name);
    };
    if (!is(decoder_alone)) side(encoder_stack, "max_source_positions");
    side(decoder_stack, "max_target_positions");
    if (config().boolean("scale_embedding").value_or(fairseq))
      warn("token embeddings are multiplied by sqrt(d_model) before positions are added (scale_embedding)");
  }

  void read_whisper() {
    const index_t width = needed_count({"d_model"}, widest, row_.width);
    const index_t encoder_layers = read_stack(encoder_stack);
    const index_t frames = needed_count({"max_source_positions"}, most_positions, 1500);
    add(sinusoidal_description{{.width = width, .convention = sinusoid::whisper}, frames, 0}, "encoder",
        all_layers(encoder_layers), divided(width, out_.heads, "d_model", encoder_stack.heads), false);
    const index_t decoder_layers = read_stack(decoder_stack);
    const index_t tokens = needed_count({"max_target_positions"}, most_positions, 448);
    add(learned_description{tokens, 0, width}, "decoder", all_layers(decoder_layers),
        divided(width, out_.heads, "d_model", decoder_stack.heads), true);
    out_.context_length = tokens;
  }

  // ---- Learned tables ---------------------------------------------------------------------------------------------

  [[nodiscard]] index_t needed_context() {
    if (const auto length = context()) return *length;
    return needed_count({"max_position_embeddings"}, most_positions, row_.positions);
  }

  [[nodiscard]] learned_description table_of(index_t positions, index_t width) {
    learned_description table{positions, 0, width};
    if (is(own_table_width)) table.width = first_count({"embedding_size"}, 1, widest).value_or(128);
    if (is(input_table_width)) table.width = first_count({"input_embedding_size"}, 1, widest).value_or(256);
    if (is(two_reserved)) {
      table.row_offset = 2;
      table.rows = positions + 2;
    } else if (is(after_padding)) {
      table.row_offset = first_count({"pad_token_id"}, 0, most_positions).value_or(1) + 1;
      if (table.row_offset >= positions)
        refuse("pad_token_id ", table.row_offset - 1, " leaves no position of max_position_embeddings ",
               positions);
    }
    return table;
  }

  void read_learned() {
    const std::string kind = config().text("position_embedding_type").value_or("absolute");
    if (kind != "absolute") refuse("position_embedding_type ", kind, " is not read here; known is absolute");
    if (!config().boolean("use_learned_position_embeddings").value_or(true))
      refuse("use_learned_position_embeddings false is not read here");
    if (config().boolean("sinusoidal_pos_embds").value_or(false))
      warn("the learned table starts as the paper's sinusoids (sinusoidal_pos_embds)");
    is(two_stacks) ? read_learned_stacks() : read_learned_stack();
  }

  void read_learned_stacks() {
    const index_t width = needed_count({"d_model", "hidden_size"}, widest, row_.width);
    for (const stack& side : {encoder_stack, decoder_stack}) {
      const bool causal = side.name == decoder_stack.name;
      const index_t layers = read_stack(side);
      const index_t positions =
          is(windowed)
              ? needed_count({causal ? "max_decoder_position_embeddings" : "max_encoder_position_embeddings"},
                             most_positions, causal ? 1024 : 16'384)
              : needed_context();
      const index_t head_dim = divided(width, out_.heads, "d_model", side.heads);
      if (is(windowed) && !causal)
        add_windowed(table_of(positions, width), side.name, layers, head_dim, false);
      else
        add(table_of(positions, width), side.name, all_layers(layers), head_dim, causal);
    }
  }

  void read_learned_stack() {
    const index_t positions = needed_context();
    index_t head_dim = 0, width = 0;
    if (is(decoder_alone)) {
      width = needed_count({"d_model", "hidden_size"}, widest, row_.width);
      out_.layers = read_stack(decoder_stack);
      head_dim = divided(width, out_.heads, "d_model", decoder_stack.heads);
    } else {
      read_heads_of_row();
      width = model_width() ? *model_width() : needed_count({"hidden_size"}, widest, row_.width);
      out_.layers = layer_count(row_.layers);
      // MobileBERT's attention lives in a bottleneck.
      const index_t divides =
          is(true_width) ? first_count({"true_hidden_size"}, 1, widest).value_or(128) : width;
      head_dim = divided(divides, out_.heads, is(true_width) ? "true_hidden_size" : "hidden_size",
                         "num_attention_heads");
      if (is(true_width)) (void)config().has("intra_bottleneck_size");
    }
    // Encoders of BERT's kin can be used as decoders.
    const bool causal = is(causal_stack) || config().boolean("is_decoder").value_or(false);
    const learned_description table = table_of(positions, width);
    if (is(windowed)) return add_windowed(table, "full_attention", out_.layers, head_dim, causal);
    if (is(alternating)) return add_alternating(table, head_dim);
    encoding_description& all = add(table, "full_attention", all_layers(out_.layers), head_dim, causal);
    if (is(scaled_by_switch)) {
      if (!config().boolean("scale_attn_weights").value_or(true)) all.softmax_scale = 1;
      if (config().boolean("scale_attn_by_inverse_layer_idx").value_or(false)) {
        const encoding_description like = all;
        out_.encodings.clear();
        for (index_t layer = 0; layer < out_.layers; ++layer) {
          out_.encodings.push_back(like);
          out_.encodings.back().layers = {layer};
          out_.encodings.back().softmax_scale = *like.softmax_scale / static_cast<double>(layer + 1);
        }
      }
    }
  }

  /// Longformer: each layer sees half its window to either side; what the caller marks as global sees everything.
  void add_windowed(const learned_description& table, const char* name, index_t layers, index_t head_dim,
                    bool causal) {
    const json* stated = config().find("attention_window");
    std::vector<index_t> windows(static_cast<std::size_t>(layers), 512);
    if (stated != nullptr && stated->is_array()) {
      windows = *config().integers("attention_window");
      if (static_cast<index_t>(windows.size()) != layers)
        refuse("attention_window lists ", windows.size(), " layers of ", layers);
    } else if (const auto one = config().count("attention_window", 1, most_positions)) {
      windows.assign(windows.size(), *one);
    }
    warn("tokens that the caller marks as global see everything and are seen by all: not described");
    std::vector<index_t> distinct;
    for (index_t layer = 0; layer < layers; ++layer) {
      const index_t window = windows[static_cast<std::size_t>(layer)];
      if (window < 2 || window > most_positions) refuse("attention_window ", window, " means nothing");
      const auto found = std::find(distinct.begin(), distinct.end(), window);
      if (found != distinct.end()) {
        (out_.encodings.end() - (distinct.end() - found))->layers.push_back(layer);
        continue;
      }
      distinct.push_back(window);
      encoding_description& one = add(table, name, {layer}, head_dim, causal);
      one.lookback = window / 2;
      one.lookahead = causal ? 0 : window / 2;
    }
  }

  /// GPT-Neo: layers with and without a window alternately.
  void add_alternating(const learned_description& table, index_t head_dim) {
    std::vector<bool> local;
    (void)config().has("attention_layers");  // the same, written out
    const json* stated = config().find("attention_types");
    const json standard = {{{"global", "local"}, 12}};
    for (const json& group : stated != nullptr ? *stated : standard) {
      if (!group.is_array() || group.size() != 2 || !group[0].is_array() || !group[1].is_number_unsigned())
        refuse("attention_types is no list of [[names], count]");
      const auto repeats = group[1].get<std::uint64_t>();
      for (std::uint64_t n = 0; n < repeats && local.size() <= static_cast<std::size_t>(out_.layers); ++n)
        for (const json& word : group[0]) {
          if (word != "global" && word != "local") refuse("attention_types knows global and local only");
          local.push_back(word == "local");
        }
    }
    if (static_cast<index_t>(local.size()) != out_.layers)
      refuse("attention_types describes other than the ", out_.layers, " layers of num_layers");
    const index_t window = first_count({"window_size"}, 1, most_positions).value_or(256);
    for (const bool which : {false, true}) {
      std::vector<index_t> layers;
      for (index_t i = 0; i < out_.layers; ++i)
        if (local[static_cast<std::size_t>(i)] == which) layers.push_back(i);
      encoding_description& one =
          add(table, which ? "sliding_attention" : "full_attention", std::move(layers), head_dim, true);
      if (which) one.lookback = window - 1;
      if (is(plain_dot)) one.softmax_scale = 1;
    }
  }

  other_family row_{.model_type = "", .kind = other_kind::learned};

 protected:
  std::optional<index_t> falcon_kv_heads_;
};

}  // namespace posenc::inline v0_2::detail::huggingface
