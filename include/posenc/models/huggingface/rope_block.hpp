// SPDX-License-Identifier: MIT
/// \file
/// The rope block of a config.json ("rope_scaling", "rope_parameters"), flat or nested by layer type, and one rotation
/// made from it.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <posenc/models/description.hpp>
#include <posenc/models/families/huggingface.hpp>
#include <posenc/models/huggingface/other_kinds.hpp>
#include <posenc/models/json.hpp>
#include <posenc/rope/axes.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2::detail::huggingface {

/// What a list in the file gives to one layer.
struct layer_numbers {
  std::optional<double> base{}, share{};
  bool operator<(const layer_numbers& other) const {
    return std::tie(base, share) < std::tie(other.base, other.share);
  }
};

/// Reads rotations.
class rope_blocks : public other_kinds {
 protected:
  using other_kinds::other_kinds;

  [[nodiscard]] bool has_trait(traits_t which) const noexcept { return (family_.traits & which) != 0; }

  static constexpr std::size_t most_keys = 1000;  // of a block, which is copied

  /// Finds the rope block and whether it is nested by layer type.
  void read_block() {
    const auto usable = [&](const char* key) -> const json* {
      const json* found = config().find(key);
      if (found == nullptr) return nullptr;
      if (!found->is_object()) config().complain(key, *found, "an object");
      if (found->size() > most_keys)
        fail<format_error>(log_.file, ": key ", config().name_of_key(key), " has ", found->size(),
                           " keys, more than ", most_keys);
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
    } else if (!family_.block.empty()) {
      block_ = json::parse(family_.block);
      warn("there is no rope block: the one that ", type_, " has by default is used");
    }
    if (family_.list == list_form::compress_ratios) nest_by_compression();
    for (const auto& [key, value] : block_.items())
      if (is_layer_type(key) && (value.is_object() || value.is_null())) nested_ = true;
    if (!nested_) return;
    // One value may stand beside the blocks and count for all of them.
    constexpr const char* shared = "original_max_position_embeddings";
    if (const auto found = block_.find(shared); found != block_.end() && !found->is_null()) {
      const json value = *found;
      block_.erase(found);
      for (auto& [key, entry] : block_.items())
        if (entry.is_object() && !entry.contains(shared) && entry.value("rope_type", "default") != "default")
          entry[shared] = value;
    }
    key_list others;
    for (const auto& [key, value] : block_.items())
      if (!is_layer_type(key)) others.add(block_name_ + "." + key);
    if (others.size() > 0) warn("unknown ", others.words(), " beside layer types");
  }

  /// DeepSeek-V4: "rope_scaling" is for the layers whose keys are compressed, the others rotate by the plain base.
  void nest_by_compression() {
    const json given = block_.contains("main") && block_.contains("compress") ? block_ : json();
    json plain = {{"rope_type", "default"},
                  {"rope_theta", config().number("rope_theta").value_or(family_.base)}};
    json compressed = block_;
    compressed["rope_theta"] = config().number("compress_rope_theta").value_or(family_.local_base);
    if (compressed.value("rope_type", compressed.value("type", "default")) == "yarn" &&
        !compressed.contains("attention_factor"))
      compressed["attention_factor"] = 1.0;  // the class leaves cos and sin alone
    if (!given.is_null()) plain = given["main"], compressed = given["compress"];
    block_ = {{"sliding_attention", plain},
              {"compressed_sparse_attention", compressed},
              {"heavily_compressed_attention", compressed}};
  }

  [[nodiscard]] static bool is_layer_type(std::string_view name) { return sort_of(name).has_value(); }

  /// The rope block of a layer type; nothing if there is none.
  [[nodiscard]] std::optional<json_object> entry_of(const std::string& layer_type) {
    if (!nested_) {
      // Gemma-3's old style: rope_scaling is for the global layers.
      if (block_.empty() || (has_trait(global_scaling) && layer_type == "sliding_attention"))
        return std::nullopt;
      return json_object(block_, block_name_, &log_);
    }
    const auto found = block_.find(layer_type);
    if (found != block_.end()) return json_object(*found, block_name_ + "." + layer_type, &log_);
    if (has_trait(global_scaling | two_bases)) return std::nullopt;
    refuse(block_name_, " is nested by layer type and has no ", layer_type);
  }

  /// \param listed what the file says for the layer alone
  [[nodiscard]] double base_of_layer(const std::optional<double>& listed, const std::string& layer_type,
                                     const std::optional<json_object>& entry) {
    if (listed && !has_trait(bases_are_switches)) return *listed;
    const double base = base_of(layer_type, entry);
    if (listed && *listed != base)
      warn("layer_rope_theta has ", *listed, ", which only says that layers rotate: their base is ", base);
    return base;
  }

  [[nodiscard]] double base_of(const std::string& layer_type, const std::optional<json_object>& entry) {
    if (entry)
      if (const auto inner = entry->number("rope_theta")) {
        warn_of_outer_base(*inner, *entry);
        return *inner;
      }
    const bool local = layer_type == "sliding_attention";
    double standard = family_.base;
    std::vector<const char*> names{"rope_theta", "rotary_emb_base"};
    if (has_trait(two_bases)) {
      names = {local ? "local_rope_theta" : "global_rope_theta"};
      if (local) standard = family_.local_base;
    } else if (has_trait(global_scaling) && family_.local_base > 0 && local) {
      names = {"rope_local_base_freq"};
      standard = family_.local_base;
    }
    std::optional<double> stated;
    for (const char* key : names) {
      const auto value = config().number(key);
      if (value && stated && *value != *stated)
        refuse(names.front(), " is ", *stated, " and ", key, " is ", *value, ": which one is meant?");
      if (value) stated = value;
    }
    if (stated) return *stated;
    if (unknown_) refuse("there is no rope_theta, and defaults differ by model");
    if (!has_trait(fixed_base)) warn(names.front(), " is missing: ", standard, " is the default of ", type_);
    return standard;
  }

  /// Says so where the top of the file names another base than the block, which counts.
  void warn_of_outer_base(double inner, const json_object& entry) {
    const json* outer = config().find("rope_theta");
    if (nested_ || outer == nullptr || !outer->is_number() || outer->get<double>() == inner) return;
    warn("rope_theta is ", outer->get<double>(), " at the top and ", inner, " in ",
         entry.name_of_key("rope_theta"), ": ", inner, " is used");
  }

  [[nodiscard]] double partial_of(const std::optional<json_object>& entry) {
    std::optional<double> outer = config().number("partial_rotary_factor"), inner;
    if (entry) inner = entry->number("partial_rotary_factor");
    if (outer && inner && *outer != *inner)
      warn("partial_rotary_factor is ", *outer, " at the top and ", *inner, " in the rope block: ", *outer,
           " is used");
    std::optional<double> stated = outer ? outer : inner;
    if (!stated)
      for (const char* key :
           {"rotary_pct", "rope_pct", "rope_percent", "rotary_percentage", "rotary_emb_fraction"})
        if (const auto alias = config().number(key)) stated = alias;
    // 1 is what every reader takes a missing share for.
    const double share = family_.partial == 1 ? stated.value_or(1)
                                              : or_default(stated, "partial_rotary_factor", family_.partial);
    if (!(share >= 0 && share <= 1)) refuse("partial_rotary_factor ", share, " is not from 0 to 1");
    return share;
  }

  /// The name of the scaling, aliases resolved.
  [[nodiscard]] std::string scaling_type(const std::optional<json_object>& entry) {
    if (!entry) return "default";
    const auto now = entry->text("rope_type"), before = entry->text("type");
    const auto resolved = [&](const std::string& name) -> std::string {
      if ((name == "xdrope" && has_trait(axes_by_hunyuan))) return "dynamic";
      if (name == "mrope" && (has_trait(axes_chunked | axes_interleaved | axes_by_ernie) || unknown_))
        return "default";
      // Phi-3's class renames "yarn": its files mean LongRoPE by it.
      if (name == "su" || (name == "yarn" && has_trait(phi3_names))) return "longrope";
      return name;
    };
    if (now && before && resolved(*now) != resolved(*before))
      warn("rope_type is ", *now, " and type is ", *before, ": rope_type is used");
    return resolved(now ? *now : before.value_or("default"));
  }

  /// \param of_layer base and share that a list gives to a layer; nothing: as the block says
  void describe_rope(const std::string& layer_type, index_t head_dim, const layer_numbers& of_layer,
                     encoding_description& encoding) {
    const std::optional<json_object> entry = entry_of(layer_type);
    const std::string type = scaling_type(entry);
    const double share = of_layer.share ? *of_layer.share : partial_of(entry);
    rope_description rope{.options = {.head_dim = head_dim,
                                      .base = base_of_layer(of_layer.base, layer_type, entry),
                                      .pairing = family_.pairing}};
    rope.turns_backwards = has_trait(backwards);
    rope.context_length = out_.context_length;
    if (has_trait(latent | tail)) {
      rope.options.rotary_dim = needed_count({"qk_rope_head_dim"}, widest_head, family_.rope_head_dim);
      rope.options.rotary_offset = head_dim - *rope.options.rotary_dim;
    } else if (const auto width = first_count({"rotary_dim"}, 0, widest);
               width && has_trait(absolute_width)) {
      rope.options.rotary_dim = *width;
    } else if (family_.pairing == interleaved && has_trait(absolute_width) && !unknown_) {
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
    if (type == "default") read_ntk_of_the_authors(rope);
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

  /// Nomic's code stretches the base with the sequence, outside of any rope block.
  void read_ntk_of_the_authors(rope_description& rope) {
    const auto factor = config().number("rotary_scaling_factor");
    if (!factor) return;
    const auto trained = config().count("max_trained_positions", 1, most_positions);
    if (!trained) refuse("rotary_scaling_factor ", *factor, " needs max_trained_positions");
    rope.scaling = dynamic_ntk{.factor = *factor, .max_context = static_cast<double>(*trained)};
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
    const bool of_class = has_trait(axes_chunked | axes_interleaved | axes_by_ernie);
    std::optional<std::vector<index_t>> sections;
    if (entry) sections = entry->integers("mrope_section");
    if (has_trait(axes_by_hunyuan)) {
      if (sections || (entry && entry->has("xdrope_section")))
        warn("the sections of ", type_,
             " divide channels and not pairs: its rotation is described for text, where all "
             "axes are equal");
      return;
    }
    if (!of_class && !(unknown_ && sections)) {
      if (sections) warn("mrope_section has no effect: ", type_, " has one axis");
      return;
    }
    if (!sections) {
      sections.emplace(family_.sections.begin(), family_.sections.end());
      if (sections->front() == 0) refuse("needs the key ", block_name_, ".mrope_section");
      warn("mrope_section is missing: the default of ", type_, " is used");
    }
    const bool mixed =
        has_trait(axes_interleaved) || (entry && entry->boolean("mrope_interleaved").value_or(false));
    set_axes(rope, std::move(*sections),
             has_trait(axes_by_ernie) ? axis_order::plane_then_time
             : mixed                  ? axis_order::interleaved
                                      : axis_order::chunked);
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
    const auto knows = [&](std::initializer_list<std::string_view> more) {
      known.insert(known.end(), more.begin(), more.end());
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
    if (has_trait(axes_chunked | axes_interleaved | axes_by_ernie | axes_by_hunyuan) || unknown_)
      knows({"mrope_section", "mrope_interleaved", "xdrope_section"});
    if (has_trait(ministral_scale))
      knows({"llama_4_scaling_beta", "max_position_embeddings", "original_max_position_embeddings"});
    key_list unknown;
    for (const auto& [key, value] : entry.raw().items())
      if (std::find(known.begin(), known.end(), key) == known.end() && key != "mrope_section")
        unknown.add(entry.name_of_key(key));
    if (unknown.size() == 0) return;
    warn("unknown ", unknown.words(), " for rope type ", type,
         unknown.size() == 1 ? ": it has no effect" : ": they have no effect");
  }

  family family_{.model_type = "", .pairing = half_split};
  bool unknown_ = false;
  json block_ = json::object();
  std::string block_name_;
  bool nested_ = false;
};

}  // namespace posenc::inline v0_2::detail::huggingface
