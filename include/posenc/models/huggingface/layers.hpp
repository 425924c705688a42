// SPDX-License-Identifier: MIT
/// \file
/// config.json of models that rotate: what each layer does, and the description put together.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <posenc/models/description.hpp>
#include <posenc/models/families/huggingface.hpp>
#include <posenc/models/huggingface/rope_block.hpp>
#include <posenc/models/json.hpp>

namespace posenc::inline v0_2::detail::huggingface {

/// Reads one configuration.
class reader final : public rope_blocks {
 public:
  using rope_blocks::rope_blocks;

  [[nodiscard]] model_description read() {
    enter_text_model();
    out_.model_type = type_;
    for (const refused_type& one : refused_types)
      if (one.model_type == type_) refuse("this model type is not described: ", one.reason);
    if (!read_other_kind()) read_rotary();
    report_unread(!unknown_);
    drop_empty();
    check_ropes(out_);
    return std::move(out_);
  }

 private:
  /// What distinguishes one layer's encoding from another's.
  struct layer_facts {
    std::string type;
    layer_sort sort = layer_sort::full;
    bool rotates = true;
    bool scaled = true;  // the rope block applies
    index_t heads = 0, kv_heads = 0;
    layer_numbers numbers{};
    bool operator<(const layer_facts& other) const {
      return std::tie(type, sort, rotates, scaled, heads, kv_heads, numbers) <
             std::tie(other.type, other.sort, other.rotates, other.scaled, other.heads, other.kv_heads,
                      other.numbers);
    }
  };

  void read_rotary() {
    if (const family* known = find_family(type_))
      family_ = *known;
    else
      adopt_unknown_family();
    if (has_trait(stated_pairing) && !config().boolean("rope_interleave").value_or(true))
      family_.pairing = half_split;
    if (const auto stated = config().boolean("rotary_emb_interleaved"))
      family_.pairing = *stated ? interleaved : half_split;
    read_block();
    read_heads();
    out_.context_length = or_default(context(), "max_position_embeddings", family_.context);
    out_.layers = number_of_layers();
    read_layers();
    touch_keys_without_effect();
  }

  /// A model_type that is not in the table: the caller, or a key that can mean nothing else, states the pairing.
  void adopt_unknown_family() {
    std::optional<posenc::pairing> stated = options_.pairing;
    for (const char* key : {"rope_interleave", "rope_interleaved", "rotary_emb_interleaved"})
      if (const auto states = config().boolean(key); states && !stated)
        stated = *states ? interleaved : half_split;
    if (!stated) refuse("this model_type is not known: ", how_to_state_the_pairing, ". ", nearest_types());
    for (const char* key : {"rope_scaling", "rope_parameters"})
      if (config().has(key) && !config().find(key)->is_object())
        config().complain(key, *config().find(key), "an object");
    family_ = {.model_type = "",
               .pairing = *stated,
               .layers = 0,
               .base = 0,
               .traits = honours_partial | absolute_width,
               .context = 0,
               .list = list_form::words};
    // These keys mean latent attention, whatever else the file says.
    if (config().has("qk_rope_head_dim") || config().has("kv_lora_rank")) {
      family_.traits = latent | honours_partial;
      for (const char* key : {"qk_rope_head_dim", "qk_nope_head_dim"})
        if (!config().has(key)) refuse("latent attention needs the key ", key);
    }
    if (!context()) refuse("needs the key max_position_embeddings");
    unknown_causal_ = direction_of_unknown();
    warn(type_.empty() ? "the model type" : type_, " is not known: described as ",
         unknown_causal_ ? "a causal decoder" : "an encoder",
         " without sinks or softcap whose attention layers all rotate, as far as its file does not say "
         "otherwise");
    unknown_ = true;
  }

  /// Whether a model that is not known looks back only: as the caller says, or the name of its class.
  [[nodiscard]] bool direction_of_unknown() const {
    if (options_.causal) return *options_.causal;
    if (has_trait(latent) || config().boolean("is_decoder").value_or(false)) return true;
    for (const json_object* object : {&root_, &config()})
      for (const std::string& one : object->texts("architectures").value_or(std::vector<std::string>{}))
        for (const std::string_view head : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"})
          if (one.ends_with(head)) return true;
    refuse(
        "this model_type is not known, and no name of a class in the key architectures (…ForCausalLM) says "
        "whether "
        "its tokens see what comes after them: state it (huggingface_options::causal; --causal or "
        "--bidirectional)");
  }

  /// Refuses what files of known classes leave to their code in more than one way.
  void refuse_what_an_unknown_file_leaves_open(const std::vector<layer_facts>& layers) const {
    if (!config().has("num_hidden_layers") && config().has("num_layers"))
      refuse(
          "this model_type is not known, and num_layers counts pairs of layers in some and layers in others");
    if (nested_)
      for (const auto& [type, block] : block_.items())
        if (block.is_null())
          refuse("this model_type is not known, and ", block_name_, ".", type,
                 " is null: whether those layers rotate is not guessed");
    if (nested_ || options_.all_layers_rotate || config().has("layer_rope_theta")) return;
    const auto has = [&](bool full) {
      return std::any_of(layers.begin(), layers.end(), [&](const layer_facts& one) {
        return one.sort != layer_sort::none && (one.sort == layer_sort::full) == full;
      });
    };
    if (has(true) && has(false))
      refuse(
          "this model_type is not known, and its key layer_types lists layers with windows beside others. "
          "Some "
          "classes rotate only one of the two, or give sinks to them: state that all rotate alike "
          "(huggingface_options::all_layers_rotate; --all-layers-rotate), or use a model_type that is known");
  }

  /// Head counts, with the defaults of the model class.
  void read_heads() {
    out_.heads = head_count() ? *head_count() : needed_count({"num_attention_heads"}, widest, family_.heads);
    const std::initializer_list<const char*> names{"num_key_value_heads", "num_kv_heads",
                                                   "num_attention_groups"};
    const auto stated = first_count(names, 1, widest);
    // An explicit null means as many as query heads.
    const bool null =
        std::any_of(names.begin(), names.end(), [&](const char* key) { return config().mentions(key); });
    out_.kv_heads = stated ? *stated : null || family_.kv_heads == 0 ? out_.heads : family_.kv_heads;
    if (!stated && !null && family_.kv_heads != 0 && out_.heads % family_.kv_heads != 0)
      out_.kv_heads = out_.heads;
    if (falcon_kv_heads_)
      out_.kv_heads = *falcon_kv_heads_;
    else if (!stated && !null && family_.kv_heads != 0)
      warn("num_key_value_heads is missing: ", out_.kv_heads, " is the default of ", type_);
    if (has_trait(latent))
      out_.kv_heads = out_.heads;  // keys and values of every head come from one latent row
    check_groups(out_.heads, out_.kv_heads);
  }
  void check_groups(index_t heads, index_t kv_heads) const {
    if (heads % kv_heads != 0)
      refuse("num_attention_heads ", heads, " is no multiple of num_key_value_heads ", kv_heads);
  }

  [[nodiscard]] index_t number_of_layers() {
    if (has_trait(two_per_layer)) {
      if (const auto whole = first_count({"num_layers"}, 1, most_layers)) {
        (void)config().has("num_hidden_layers");
        return 2 * *whole;
      }
      if (const auto halves = first_count({"num_hidden_layers"}, 1, most_layers)) return *halves;
      warn("num_layers is missing: ", family_.layers, " is the default of ", type_);
      return 2 * family_.layers;
    }
    if (family_.list == list_form::letters && !config().has("num_hidden_layers"))
      if (const auto letters = config().text("hybrid_override_pattern"); letters && !letters->empty())
        return static_cast<index_t>((std::min)(letters->size(), std::size_t{most_layers}));
    // A list of the layers says how many there are where no number does.
    if (!first_count({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, 1, most_layers))
      for (const char* key : {"layer_types", "layers_block_type"})
        if (const json* listed = config().find(key); listed != nullptr && listed->is_array() &&
                                                     !listed->empty() &&
                                                     listed->size() <= static_cast<std::size_t>(most_layers))
          return static_cast<index_t>(listed->size());
    return layer_count(family_.layers);
  }

  // ---- Layers -----------------------------------------------------------------------------------------------------

  void read_layers() {
    window_ = window();
    const std::vector<layer_facts> layers = facts();
    if (unknown_) refuse_what_an_unknown_file_leaves_open(layers);
    std::map<layer_facts, std::size_t> places;
    for (index_t layer = 0; layer < out_.layers; ++layer) {
      const layer_facts& one = layers[static_cast<std::size_t>(layer)];
      const auto [place, is_new] = places.try_emplace(one, out_.encodings.size());
      if (is_new) describe(one);
      out_.encodings[place->second].layers.push_back(layer);
    }
    for (const layer_facts& one : layers) {
      out_.heads = (std::max)(out_.heads, one.heads);
      out_.kv_heads = (std::max)(out_.kv_heads, one.kv_heads);
    }
    if (has_trait(indexed))
      warn("beyond index_topk ", first_count({"index_topk"}, 0, most_positions).value_or(2048),
           " tokens an indexer chooses the keys of a query; attention to all of them is described");
    if (const auto share = config().number("attention_value_scale"); share && *share != 1)
      warn("values are multiplied by attention_value_scale ", *share,
           " before attention, which is not described");
  }

  /// The words and numbers of every layer.
  [[nodiscard]] std::vector<layer_facts> facts() {
    const auto count = static_cast<std::size_t>(out_.layers);
    const std::vector<std::string> words = layer_words_of_file();
    const std::vector<bool> by_list = rope_list();
    const std::vector<layer_numbers> numbers = numbers_by_layer();
    const std::vector<index_t> heads = heads_by_layer();
    const std::vector<bool> scaled = scaled_layers();
    std::vector<layer_facts> all(count);
    for (std::size_t i = 0; i < count; ++i) {
      layer_facts& one = all[i];
      one.type = words[i];
      one.sort = *sort_of(one.type);
      if (one.sort == layer_sort::none) {
        one.rotates = false;
        continue;
      }
      one.rotates = rotates(one, by_list.empty() || by_list[i]);
      one.scaled = scaled.empty() || scaled[i];
      one.heads = heads.empty() ? out_.heads : heads[i];
      one.kv_heads = out_.kv_heads;
      if (one.rotates && !numbers.empty()) one.numbers = numbers[i];
      if (one.numbers.base == 0.0) one.rotates = false, one.numbers = {};
      if (one.sort == layer_sort::window) {
        if (has_trait(window_kv_twice)) one.kv_heads *= 2;
        if (const auto own = first_count({"num_sliding_attention_heads"}, 1, widest)) one.heads = *own;
        if (const json* other = config().find("attention_other_setting");
            other != nullptr && other->is_object()) {
          const json_object setting(*other, "attention_other_setting", &log_);
          if (const auto own = setting.count("num_attention_heads", 1, widest)) one.heads = *own;
          if (const auto own = setting.count("num_attention_groups", 1, widest)) one.kv_heads = *own;
        }
      } else if (has_trait(global_head)) {
        if (const auto own = first_count({"num_global_key_value_heads"}, 1, widest)) one.kv_heads = *own;
      }
      check_groups(one.heads, one.kv_heads);
    }
    return all;
  }

  [[nodiscard]] bool rotates(const layer_facts& one, bool by_list) const {
    const bool local = one.sort == layer_sort::window;
    bool turns_here = one.sort != layer_sort::cross && by_list && !has_trait(no_rotation);
    if (has_trait(local_only)) turns_here = local;
    if (has_trait(local_if_window) && window_ > 0) turns_here = local;
    if (has_trait(rope_if_told)) turns_here = config().boolean("use_mem_rope").value_or(false);
    if (has_trait(nope_by_name)) turns_here = config().text("position_embedding_type").value_or("") == "rope";
    if (nested_ && block_.contains(one.type) && block_[one.type].is_null()) turns_here = false;
    return turns_here;
  }

  /// How many tokens the window of local layers has; 0: there is none.
  [[nodiscard]] index_t window() {
    const auto or_standard = [&](const std::optional<index_t>& value, const char* key) {
      return family_.window == 0 ? value.value_or(0) : or_default(value, key, family_.window);
    };
    if (const auto before = first_count({"sliding_window_size"}, 1, most_positions);
        before && has_trait(window_kv_twice))
      return *before + 1;  // tokens before the query's own
    if (family_.list == list_form::periodic_words)
      return or_standard(first_count({"attention_window_size"}, 1, most_positions), "attention_window_size");
    const auto stated = [&] {
      if (config().mentions("sliding_window"))
        return first_count({"sliding_window"}, 0, most_positions).value_or(0);
      return or_standard(std::nullopt, "sliding_window");
    };
    if (unknown_) return stated();
    switch (family_.rule) {
      case layer_rule::all_full:
        return family_.list == list_form::words ? stated() : 0;
      case layer_rule::none_attend:
      case layer_rule::full_at_offset:
        return 0;
      case layer_rule::qwen2:
      case layer_rule::qwen2_moe:
      case layer_rule::window_if_used:
        return config().boolean("use_sliding_window").value_or(false) ? stated() : 0;
      case layer_rule::full_starts_period:
        if (!has_trait(two_bases)) return stated();
        if (!has_trait(bidirectional))
          if (const auto own = first_count({"sliding_window"}, 1, most_positions)) return *own;
        return or_standard(first_count({"local_attention"}, 1, most_positions), "local_attention") / 2;
      case layer_rule::rope_in_chunks:
        if (!config().mentions("attention_chunk_size"))
          return or_standard(std::nullopt, "attention_chunk_size");
        return first_count({"attention_chunk_size"}, 1, most_positions).value_or(0);
      default:
        return has_trait(others_recurrent) ? 0 : stated();
    }
  }

  [[nodiscard]] index_t period() const {
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
                            "full_attention_interval", "layer_group_size", "attn_layer_period"}) {
      const json* found = config().find(key);
      if (found == nullptr) continue;
      // EXAONE writes "LLLG" for a period of 4.
      if (found->is_string() && std::string_view(key) == "sliding_window_pattern") {
        const std::string letters = found->template get<std::string>();
        if (letters.empty() || letters.find_first_not_of('L') != letters.size() - 1 || letters.back() != 'G')
          refuse("sliding_window_pattern ", letters.substr(0, 64), " is not of the form LLLG");
        return static_cast<index_t>(letters.size());
      }
      return config().count(key, 1, most_layers).value_or(family_.period);
    }
    return family_.period;
  }

  // ---- Where the layers are listed --------------------------------------------------------------------------------

  /// The word of each layer: as config.json lists them, or as the model class works them out.
  [[nodiscard]] std::vector<std::string> layer_words_of_file() {
    for (const char* key : {"layer_types", "layers_block_type"})
      if (auto listed = config().texts(key)) {
        check_words(key, *listed);
        if (ignores_words(*listed)) {
          warn(key, " has no effect: ", type_, " has layers of one kind");
          break;
        }
        return std::move(*listed);
      }
    if (auto listed = listed_otherwise()) return std::move(*listed);
    if (unknown_ && window_ > 0 && config().boolean("use_sliding_window").value_or(true))
      refuse("sliding_window is ", window_, ", and which layers it is for is not said (layer_types)");
    if (has_trait(needs_words)) refuse("needs the key layer_types");
    return words_by_rule();
  }

  void check_words(const char* key, std::vector<std::string>& words) {
    const auto count = static_cast<std::size_t>(out_.layers);
    // Draft heads (multi-token prediction) may be listed after the layers.
    const auto drafts = static_cast<std::size_t>(
        first_count({"num_nextn_predict_layers", "num_mtp_layers"}, 0, most_layers).value_or(0));
    if (words.size() == count + drafts) words.resize(count);
    if (words.size() != count) refuse(key, " lists ", words.size(), " layers, num_hidden_layers is ", count);
    for (const std::string& one : words)
      if (!sort_of(one)) {
        std::string known;
        for (const layer_word& word : huggingface::layer_words)
          known.append(known.empty() ? "" : ", ").append(word.word);
        refuse(key, " has ", one.substr(0, 64), "; known are ", known);
      }
  }

  /// True for a class that has full layers alone, whatever its file lists.
  [[nodiscard]] bool ignores_words(const std::vector<std::string>& words) const {
    if (unknown_ || family_.rule != layer_rule::all_full || family_.list != list_form::none || nested_)
      return false;
    return std::any_of(words.begin(), words.end(), [](const std::string& one) {
      const layer_sort sort = *sort_of(one);
      return sort == layer_sort::window || sort == layer_sort::chunk;
    });
  }

  /// The words that a list of numbers, letters or a pattern means; nothing if the file has none.
  [[nodiscard]] std::optional<std::vector<std::string>> listed_otherwise() {
    const auto count = static_cast<std::size_t>(out_.layers);
    const std::string other = has_trait(others_recurrent) ? "linear_attention" : "sliding_attention";
    const auto from_indices = [&](const char* key, index_t first, const char* marked,
                                  const std::string& rest) -> std::optional<std::vector<std::string>> {
      const auto indices = config().integers(key);
      if (!indices) return std::nullopt;
      return marked_words(key, *indices, first, marked, rest);
    };
    const auto from_numbers = [&](const char* key,
                                  const auto& word_of) -> std::optional<std::vector<std::string>> {
      const auto numbers = config().integers(key);
      if (!numbers) return std::nullopt;
      if (numbers->size() < count) refuse(key, " lists ", numbers->size(), " layers of ", count);
      std::vector<std::string> words;
      for (std::size_t i = 0; i < count; ++i) words.push_back(word_of((*numbers)[i]));
      return words;
    };
    switch (family_.list) {
      case list_form::attention_indices:
        for (const char* key : {"attn_layer_indices", "full_attn_idxs"})
          if (auto words = from_indices(key, 0, "full_attention", other)) return words;
        return std::nullopt;
      case list_form::cross_indices: {
        constexpr const char* key = "cross_attention_layers";
        if (auto words = from_indices(key, 0, "cross_attention", "full_attention")) return words;
        warn(key, " is missing: every fifth layer from layer 3 on is the default of ", type_);
        std::vector<std::string> words(count, "full_attention");
        for (std::size_t i = 3; i < count; i += 5) words[i] = "cross_attention";
        return words;
      }
      case list_form::ones_attend:
        return from_numbers("attn_type_list", [&](index_t n) { return n == 1 ? "full_attention" : other; });
      case list_form::ones_have_windows:
        return from_numbers("hybrid_layer_pattern",
                            [](index_t n) { return n == 1 ? "sliding_attention" : "full_attention"; });
      case list_form::compress_ratios:
        return from_numbers("compress_ratios", [&](index_t n) {
          if (n != 0 && n != 4 && n != 128) refuse("compress_ratios has ", n, "; known are 0, 4 and 128");
          return n == 0   ? "sliding_attention"
                 : n == 4 ? "compressed_sparse_attention"
                          : "heavily_compressed_attention";
        });
      case list_form::linear_attn_config: {
        const auto inner = config().object("linear_attn_config");
        if (!inner) return std::nullopt;
        const auto indices = inner->integers("full_attn_layers");
        if (!indices) return std::nullopt;
        return marked_words("linear_attn_config.full_attn_layers", *indices, 1, "full_attention", other);
      }
      case list_form::letters: {
        const auto letters = config().text("hybrid_override_pattern");
        if (!letters) return std::nullopt;
        if (letters->size() != count)
          refuse("hybrid_override_pattern has ", letters->size(), " letters for ", count, " layers");
        std::vector<std::string> words;
        for (const char letter : *letters) {
          if (std::string_view("M*-E").find(letter) == std::string_view::npos)
            refuse("hybrid_override_pattern has the letter ", std::string(1, letter),
                   "; known are M, *, - and E");
          words.emplace_back(letter == '*'   ? "full_attention"
                             : letter == 'M' ? "linear_attention"
                             : letter == '-' ? "mlp"
                                             : "moe");
        }
        return words;
      }
      case list_form::periodic_words: {
        std::vector<std::string> pattern =
            config()
                .texts("block_types")
                .value_or(std::vector<std::string>{"recurrent", "recurrent", "attention"});
        if (pattern.empty()) refuse("block_types is empty");
        std::vector<std::string> words;
        for (std::size_t i = 0; i < count; ++i) {
          const std::string& one = pattern[i % pattern.size()];
          if (one != "recurrent" && one != "attention")
            refuse("block_types has ", one.substr(0, 64), "; known are recurrent and attention");
          words.emplace_back(one == "attention" ? "sliding_attention" : "linear_attention");
        }
        return words;
      }
      default:
        return std::nullopt;
    }
  }

  [[nodiscard]] std::vector<std::string> marked_words(const char* key, const std::vector<index_t>& indices,
                                                      index_t first, const char* marked,
                                                      const std::string& rest) const {
    std::vector<std::string> words(static_cast<std::size_t>(out_.layers), rest);
    for (const index_t index : indices) {
      if (index < first || index - first >= out_.layers)
        refuse(key, " has layer ", index, "; there are ", out_.layers, ", counted from ", first);
      words[static_cast<std::size_t>(index - first)] = marked;
    }
    return words;
  }

  [[nodiscard]] std::vector<std::string> words_by_rule() {
    const layer_rule rule = family_.rule;
    const bool by_first = rule == layer_rule::qwen2 || rule == layer_rule::qwen2_moe;
    const index_t every = family_.period > 0 ? (std::max)(period(), index_t{1}) : 1;
    const index_t first_windowed =
        by_first && window_ > 0
            ? or_default(first_count({"max_window_layers"}, 0, most_layers), "max_window_layers", index_t{28})
            : index_t{0};
    const index_t offset = rule == layer_rule::full_at_offset
                               ? first_count({"attn_layer_offset"}, 0, most_layers).value_or(4)
                               : index_t{0};
    const std::vector<bool> by_list = rope_list();
    std::vector<std::string> words;
    for (index_t i = 0; i < out_.layers; ++i) {
      const bool turns_here = by_list.empty() || by_list[static_cast<std::size_t>(i)];
      bool other = false;
      switch (rule) {
        case layer_rule::all_full:
          break;
        case layer_rule::none_attend:
          other = true;
          break;
        case layer_rule::all_in_window:
        case layer_rule::window_if_used:
          other = window_ > 0;
          break;
        case layer_rule::qwen2:
          other = window_ > 0 && i >= first_windowed;
          break;
        case layer_rule::qwen2_moe:
          other = window_ > 0 && i % 2 == 0 && i < first_windowed;
          break;
        case layer_rule::full_ends_period:
          other = (i + 1) % every != 0;
          break;
        case layer_rule::full_first_and_ends_period:
          other = i != 0 && (i + 1) % every != 0;
          break;
        case layer_rule::full_starts_period:
          other = i % every != 0;
          break;
        case layer_rule::full_starts_period_but_first:
          other = i == 0 || i % every != 0;
          break;
        case layer_rule::full_at_offset:
          other = i % every != offset;
          break;
        case layer_rule::rope_in_chunks:
          other = window_ > 0 && turns_here;
          break;
        case layer_rule::compressed:
          break;
      }
      if (has_trait(global_head) && i + 1 == out_.layers) other = false;
      if (has_trait(local_without_rope)) other = other && !turns_here;
      if (has_trait(local_needs_window) && window_ == 0) other = false;
      if (family_.rule == layer_rule::compressed)
        words.emplace_back(i >= 2 && i % 2 == 1 ? "compressed_sparse_attention"
                                                : "heavily_compressed_attention");
      else
        words.emplace_back(!other                                       ? "full_attention"
                           : has_trait(others_recurrent)                ? "linear_attention"
                           : family_.rule == layer_rule::rope_in_chunks ? "chunked_attention"
                                                                        : "sliding_attention");
    }
    return words;
  }

  // ---- What lists say of each layer -------------------------------------------------------------------------------

  /// Whether each layer rotates by no_rope_layers, whose name is its opposite: 1 marks a layer with rope. Empty: all do.
  [[nodiscard]] std::vector<bool> rope_list() {
    if (!has_trait(no_rope_list)) return {};
    const auto count = static_cast<std::size_t>(out_.layers);
    std::vector<bool> rotates;
    const auto listed = config().integers("no_rope_layers");
    if (listed && !listed->empty()) {
      if (listed->size() != count)
        refuse("no_rope_layers lists ", listed->size(), " layers, num_hidden_layers is ", count);
      for (const index_t one : *listed) rotates.push_back(one != 0);
      return rotates;
    }
    const auto stated = first_count({"no_rope_layer_interval"}, 1, most_layers);
    if (!listed && !stated)
      warn("no_rope_layers is missing: every layer but each ", family_.period, "th rotates, as in ", type_);
    const index_t every = stated.value_or(family_.period);
    for (index_t i = 0; i < out_.layers; ++i) rotates.push_back((i + 1) % every != 0);
    return rotates;
  }

  /// Layers to which the rope block applies; empty: all.
  [[nodiscard]] std::vector<bool> scaled_layers() const {
    if (family_.list != list_form::scaled_indices) return {};
    const auto listed = config().integers("rope_scaling_layers");
    if (!listed) return {};
    std::vector<bool> scaled(static_cast<std::size_t>(out_.layers), false);
    for (const index_t index : *listed) {
      if (index < 0 || index >= out_.layers)
        refuse("rope_scaling_layers has layer ", index, "; there are ", out_.layers, ", counted from 0");
      scaled[static_cast<std::size_t>(index)] = true;
    }
    return scaled;
  }

  /// Bases and shares that the file lists layer by layer; empty: it does not.
  [[nodiscard]] std::vector<layer_numbers> numbers_by_layer() {
    std::vector<layer_numbers> all;
    const auto take = [&](const char* key, std::optional<double> layer_numbers::*member) {
      const json* found = config().find(key);
      if (found == nullptr || (found->is_number() && std::string_view(key) == "rope_theta")) return;
      const std::vector<double> listed = *config().numbers(key);
      const auto count = static_cast<std::size_t>(out_.layers);
      if (listed.size() < count)
        refuse(key, " lists ", listed.size(), " layers, num_hidden_layers is ", count);
      all.resize(count);
      for (std::size_t i = 0; i < count; ++i) all[i].*member = listed[i];
    };
    take("rope_theta", &layer_numbers::base);
    take("layer_rope_theta", &layer_numbers::base);
    if (has_trait(lists_bases) && !config().has("layer_rope_theta"))
      warn("layer_rope_theta is missing: all layers rotate by the same base");
    take("partial_rotary_factors", &layer_numbers::share);
    for (const layer_numbers& one : all)
      if (one.share && !(*one.share >= 0 && *one.share <= 1))
        refuse("partial_rotary_factors has ", *one.share);
    return all;
  }

  /// Query heads that the file lists layer by layer; empty: it does not.
  [[nodiscard]] std::vector<index_t> heads_by_layer() const {
    for (const char* key : {"num_attention_heads_per_layer"})
      if (auto listed = config().integers(key)) {
        if (listed->size() != static_cast<std::size_t>(out_.layers))
          refuse(key, " lists ", listed->size(), " layers, num_hidden_layers is ", out_.layers);
        for (const index_t heads : *listed)
          if (heads < 1 || heads > widest) refuse(key, " has ", heads, " heads");
        return std::move(*listed);
      }
    return {};
  }

  // ---- One encoding -----------------------------------------------------------------------------------------------

  void describe(const layer_facts& kind) {
    encoding_description encoding;
    encoding.layer_type = kind.type;
    encoding.attends = kind.sort != layer_sort::none;
    if (!encoding.attends) {
      out_.encodings.push_back(std::move(encoding));
      return;
    }
    encoding.causal = kind.sort != layer_sort::cross && !is_bidirectional();
    encoding.learned_sinks = has_trait(sinks) || (has_trait(window_sinks) && kind.sort == layer_sort::window);
    encoding.prefix_lm = is_prefix_lm();
    encoding.image_blocks = sees_images_both_ways();
    encoding.heads = kind.heads;
    encoding.kv_heads = kind.kv_heads;
    set_window(kind, encoding);
    if (has_trait(softcap)) {
      encoding.softcap = config().mentions("attn_logit_softcapping")
                             ? config().number("attn_logit_softcapping").value_or(0)
                             : or_default<double>(std::nullopt, "attn_logit_softcapping", 50);
      if (encoding.softcap < 0) refuse("attn_logit_softcapping ", encoding.softcap, " is negative");
    }
    const index_t head_dim = head_dim_of(kind);
    encoding.head_dim = encoding.value_dim = head_dim;
    if (has_trait(latent | own_value_dim)) {
      encoding.value_dim = unknown_ ? first_count({"v_head_dim"}, 1, widest_head).value_or(0)
                                    : needed_count({"v_head_dim"}, widest_head, family_.value_dim);
    }
    encoding.softmax_scale = plain_softmax_scale(head_dim);
    if (kind.rotates) describe_rope(kind, head_dim, encoding);
    if (has_trait(llama4_scale) && !kind.rotates) {
      const json* tuning = config().find("attn_temperature_tuning");
      bool on = true;
      if (tuning != nullptr)
        on = tuning->is_boolean() ? tuning->template get<bool>()
                                  : config().integer("attn_temperature_tuning").value_or(0) != 0;
      const double scale = config().number("attn_scale").value_or(0.1);
      const double floor = config().number("floor_scale").value_or(8192);
      if (on) encoding.position_scale = logit_scale::llama4(scale, floor);
    }
    out_.encodings.push_back(std::move(encoding));
  }

  void describe_rope(const layer_facts& kind, index_t head_dim, encoding_description& encoding) {
    if (kind.scaled) return rope_blocks::describe_rope(kind.type, head_dim, kind.numbers, encoding);
    // The base of the block without its scaling.
    const json block = std::exchange(block_, json::object());
    layer_numbers numbers = kind.numbers;
    if (!numbers.base && block.contains("rope_theta") && block["rope_theta"].is_number())
      numbers.base = block["rope_theta"].template get<double>();
    rope_blocks::describe_rope(kind.type, head_dim, numbers, encoding);
    block_ = block;
  }

  void set_window(const layer_facts& kind, encoding_description& encoding) {
    if (kind.sort == layer_sort::chunk && window_ > 0) {
      encoding.chunk = window_;
    } else if (kind.sort == layer_sort::compressed) {
      encoding.lookback = window_ - 1;
      encoding.beyond = "beside the window it attends to keys that a layer of its own compresses";
    } else if (kind.sort == layer_sort::window && window_ > 0) {
      if (has_trait(window_each_side) || (has_trait(two_bases) && !encoding.causal))
        encoding.lookback = encoding.lookahead = window_;  // ModernBERT: half of local_attention
      else if (encoding.causal)
        encoding.lookback = window_ - 1;  // sliding_window counts the query's own token
      else
        encoding.lookback = encoding.lookahead = window_ / 2;
    } else if (kind.sort == layer_sort::window && unknown_) {
      refuse("layer_types has ", kind.type, " and there is no sliding_window");
    }
  }

  [[nodiscard]] bool is_bidirectional() const {
    if (unknown_ && !unknown_causal_) return true;
    if (has_trait(bidirectional)) return true;
    if (has_trait(prefix_if_both_ways)) return false;
    const json* flag = config().find("use_bidirectional_attention");
    if (flag == nullptr) return false;
    return flag->is_boolean() ? flag->template get<bool>()
                              : config().text("use_bidirectional_attention") == "all";
  }

  /// PaliGemma saves its Gemma with this flag: image and prompt see one another.
  [[nodiscard]] bool is_prefix_lm() {
    if (!has_trait(prefix_if_both_ways) || !config().boolean("use_bidirectional_attention").value_or(false))
      return false;
    warn(
        "use_bidirectional_attention: the tokens of image and prompt see one another both ways, those of the "
        "answer "
        "look back (options.visible = posenc::prefix_lm(tokens))");
    return true;
  }
  [[nodiscard]] bool sees_images_both_ways() {
    const json* flag = config().find("use_bidirectional_attention");
    if (flag == nullptr || !flag->is_string() || flag->template get<std::string>() != "vision") return false;
    warn(
        "use_bidirectional_attention is vision: the tokens of one image see one another both ways, "
        "everything else "
        "looks back (options.visible = posenc::blocks(rows of the images))");
    return true;
  }

  [[nodiscard]] index_t head_dim_of(const layer_facts& kind) {
    (void)config().has("head_dim");  // files of latent models have it, for the part that rotates
    if (has_trait(latent)) {
      const index_t nope_head_dim = needed_count({"qk_nope_head_dim"}, widest_head, family_.nope_head_dim);
      if (has_trait(no_rotation) && config().count("qk_rope_head_dim", 0, widest_head) == index_t{0})
        return nope_head_dim;
      return nope_head_dim + needed_count({"qk_rope_head_dim"}, widest_head, family_.rope_head_dim);
    }
    if (has_trait(global_head) && kind.sort == layer_sort::full)
      return first_count({"global_head_dim"}, 1, widest_head).value_or(512);
    if (has_trait(wide_heads)) {
      if (const auto stated = first_count({"attention_head_dim"}, 1, widest_head)) return *stated;
      const index_t width =
          model_width() ? *model_width() : needed_count({"hidden_size"}, widest, family_.hidden);
      return divided(2 * width, out_.heads, "2 x hidden_size", "num_attention_heads");
    }
    // kv_channels of an unknown type: JetMoE's experts choose heads by it, so that the guard has it.
    if (const auto stated =
            unknown_ ? first_count({"head_dim"}, 1, widest_head)
                     : first_count({"head_dim", "kv_channels", "attention_head_dim"}, 1, widest_head))
      return *stated;
    if (family_.head_dim > 0 && !config().mentions("head_dim"))
      return or_default<index_t>(std::nullopt, "head_dim", family_.head_dim);
    return head_width(family_.hidden, family_.heads);
  }

  [[nodiscard]] double plain_softmax_scale(index_t head_dim) {
    if (has_trait(unit_scale)) return 1;
    if (has_trait(wide_heads)) return inverse_root(static_cast<double>(head_dim) / 2);
    if (has_trait(multiplier | multiplier_or_root)) {
      if (const auto stated = config().number("attention_multiplier")) {
        if (!(*stated > 0)) refuse("attention_multiplier ", *stated, " is not positive");
        return *stated;
      }
      if (has_trait(multiplier)) return or_default<double>(std::nullopt, "attention_multiplier", 1);
    }
    if (has_trait(query_scalar)) {
      const double scalar =
          or_default<double>(config().number("query_pre_attn_scalar"), "query_pre_attn_scalar", 256);
      if (!(scalar > 0)) refuse("query_pre_attn_scalar ", scalar, " is not positive");
      return inverse_root(scalar);
    }
    return inverse_root(static_cast<double>(head_dim));
  }

  // ---- Keys whose names alarm the guard and that change nothing ---------------------------------------------------

  void touch_keys_without_effect() {
    if (const auto says = config().boolean("rope_interleaved");
        says && *says != (family_.pairing == interleaved))
      warn("rope_interleaved is ", *says ? "true" : "false", ", and ", type_,
           " pairs channels the other way: it has no effect");
    const auto touch = [&](std::initializer_list<const char*> names) {
      for (const char* key : names) (void)config().has(key);
    };
    if (!config().boolean("use_sliding_window").value_or(true))
      touch({"sliding_window", "max_window_layers"});
    if (unknown_) {
      if (has_trait(latent)) touch({"kv_lora_rank", "qk_head_dim"});
      return;
    }
    // What the list of words has answered already.
    if (family_.period > 0)
      touch({"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
             "full_attention_interval", "layer_group_size", "attn_layer_period", "attn_layer_offset"});
    if (has_trait(no_rope_list)) touch({"no_rope_layer_interval"});
    if (family_.rule == layer_rule::qwen2 || family_.rule == layer_rule::qwen2_moe)
      touch({"max_window_layers"});
    if (family_.list != list_form::none)
      touch({"full_attn_idxs", "attn_layer_indices", "attn_type_list", "hybrid_layer_pattern",
             "layers_block_type", "hybrid_override_pattern", "compress_ratios", "linear_attn_config",
             "compress_rates"});
    if (has_trait(latent)) touch({"kv_lora_rank", "qk_head_dim"});
    if (has_trait(indexed)) touch({"indexer_types", "index_topk_freq", "index_topk_pattern"});
    if (has_trait(alpha)) touch({"attention_head_dim", "use_rotary_pos_emb"});
    touch({"rope_interleave", "partial_rotary_factor", "layers_block_type"});
  }

  index_t window_ = 0;
  bool unknown_causal_ = true;
};

}  // namespace posenc::inline v0_2::detail::huggingface
