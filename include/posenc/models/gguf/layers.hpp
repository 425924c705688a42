// SPDX-License-Identifier: MIT
/// \file
/// GGUF metadata → the positional encoding of every layer.
///
///     const posenc::model_description model = posenc::read_gguf_model("model.gguf");
///
/// The architecture implies the pairing: it is that of the weights *in the file*, which the converters of
/// some architectures have permuted (a llama is interleaved in GGUF and half_split in Hugging Face's files).
/// An architecture that is not in the list below is refused. Facts read off llama.cpp (2026-11) and gguf
/// 0.19.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <Eigen/Core>

#include <posenc/errors.hpp>
#include <posenc/models/description.hpp>
#include <posenc/models/families/gguf.hpp>
#include <posenc/models/families/guard.hpp>
#include <posenc/models/families/nearest.hpp>
#include <posenc/models/gguf/file.hpp>
#include <posenc/rope/axes.hpp>
#include <posenc/rope/pairing.hpp>

namespace posenc::inline v0_2 {

/// Where llama.cpp computes something else than the authors of a model.
struct gguf_options {
  /// gpt-oss: the ends of YaRN's ramp are rounded to whole pairs, which its authors do not; interleaved
  /// multi-axis rope: pairs that no section reaches follow a fourth axis and stand still for text.
  bool as_llama_cpp = false;
};

namespace detail::gguf {

/// Reads one file.
class reader {
 public:
  using tensor_source = std::function<std::vector<std::byte>(const gguf_tensor&)>;

  reader(const gguf_file& file, const tensor_source& tensor_bytes, const gguf_options& options)
      : file_(file), tensor_bytes_(tensor_bytes), options_(options) {}

  [[nodiscard]] model_description read() {
    const auto name = file_.text("general.architecture");
    if (!name) fail<format_error>("GGUF: there is no key general.architecture");
    architecture_ = *name;
    out_.model_type = architecture_;
    row_ = row_of_architecture();
    out_.layers = needed("block_count", 1, most_layers);
    is_large_ = out_.layers == row_.large_layers;
    if (has(alibi_large) && is_large_) row_.pairing.reset();
    if (!has(no_attention) && file_.find(key_of("attention.head_count")) == nullptr)
      refuse("there is no key ", key_of("attention.head_count"));
    heads_ = per_layer("attention.head_count");
    kv_heads_ = file_.find(key_of("attention.head_count_kv")) ? per_layer("attention.head_count_kv") : heads_;
    out_.heads = *std::max_element(heads_.begin(), heads_.end());
    out_.kv_heads = *std::max_element(kv_heads_.begin(), kv_heads_.end());
    out_.context_length = count("context_length", 1, most_positions);
    row_.pairing ? read_rotary() : read_other_kind();
    report_unread();
    std::erase_if(out_.encodings, [](const encoding_description& one) { return one.layers.empty(); });
    check_ropes(out_);
    return std::move(out_);
  }

 private:
  static constexpr std::int64_t most_layers = 10'000, widest = 1 << 18, widest_head = 1 << 14,
                                most_buckets = 4096, most_positions = std::int64_t{1} << 40;

  // ---- Access to "[architecture].key" -------------------------------------------------------------------

  /// The whole name of a key; notes that it was read.
  [[nodiscard]] std::string key_of(std::string_view key) const {
    std::string name = architecture_ + "." + std::string(key);
    read_.insert(name);
    return name;
  }
  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    const auto value = file_.number(key_of(key));
    if (value && !is_finite(*value)) fail<format_error>("GGUF: key ", key_of(key), " is not finite");
    return value;
  }
  [[nodiscard]] std::optional<index_t> count(std::string_view key, std::int64_t least,
                                             std::int64_t most) const {
    const auto value = file_.integer(key_of(key));
    if (value) check_count(key, *value, least, most);
    return value;
  }
  void check_count(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value < least || value > most)
      fail<format_error>("GGUF: key ", key_of(key), " is ", value, ", not from ", least, " to ", most);
  }
  [[nodiscard]] index_t needed(std::string_view key, std::int64_t least, std::int64_t most) const {
    const auto value = count(key, least, most);
    if (!value) refuse("there is no key ", key_of(key));
    return *value;
  }
  /// The value of each layer of a key that is one integer or one per layer; zeros where there is no such key.
  [[nodiscard]] std::vector<index_t> per_layer(std::string_view key) const {
    const auto layers = static_cast<std::size_t>(out_.layers);
    const auto values = file_.integers(key_of(key));
    if (!values || values->empty()) return std::vector<index_t>(layers, 0);
    for (const std::int64_t value : *values) check_count(key, value, 0, widest);
    if (!is_list(key)) return std::vector<index_t>(layers, values->front());
    if (values->size() < layers)
      fail<format_error>("GGUF: key ", key_of(key), " lists ", values->size(), " layers of ", layers);
    return {values->begin(), values->begin() + out_.layers};
  }
  /// True when the key holds an array.
  [[nodiscard]] bool is_list(std::string_view key) const {
    const gguf_value* found = file_.find(key_of(key));
    return found != nullptr && std::holds_alternative<gguf_array>(found->value);
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<std::invalid_argument>("GGUF ", architecture_, ": ", parts...);
  }
  template <class... Parts>
  void warn(const Parts&... parts) {
    std::string sentence;
    (append(sentence, parts), ...);
    out_.warnings.push_back(std::move(sentence));
  }
  [[nodiscard]] bool has(std::uint32_t which) const noexcept { return (row_.traits & which) != 0; }

  /// \throws std::invalid_argument for an unknown one.
  [[nodiscard]] architecture row_of_architecture() const {
    if (const architecture* known = find_architecture(architecture_)) return *known;
    std::string nearest;
    for (const std::string_view one : nearest_names(architecture_, known_architectures(), 3))
      nearest.append(nearest.empty() ? "" : ", ").append(one);
    refuse(
        "this architecture is not known, and which channels pair up is not guessed; the known ones nearest "
        "in "
        "name are ",
        nearest, " (docs/models.md has them all)");
  }

  [[nodiscard]] std::vector<index_t> all_layers(index_t count) const {
    std::vector<index_t> layers;
    for (index_t i = 0; i < count; ++i) layers.push_back(i);
    return layers;
  }

  /// Keys of rotations, masks and widths that nothing has read.
  void report_unread() {
    key_list left;
    for (const auto& [key, value] : file_.metadata)
      if (key.starts_with(architecture_ + ".") && !read_.contains(key) &&
          speaks_of_positions(std::string_view(key).substr(architecture_.size() + 1)))
        left.add(key);
    if (left.size() > 0) warn("not read: the ", left.words());
  }

  // ---- Encodings other than RoPE ------------------------------------------------------------------------

  void read_other_kind() {
    encoding_description encoding;
    encoding.layer_type = "full_attention";
    encoding.layers = all_layers(out_.layers);
    encoding.causal = file_.boolean(key_of("attention.causal")).value_or(!has(encoder));
    if (has(buckets)) return read_t5();
    encoding.attends = !has(no_attention);
    if (encoding.attends) {
      set_widths(encoding, out_.heads, out_.kv_heads, false);
      encoding.softmax_scale = softmax_scale(encoding.head_dim, out_.heads);
      const double fixed = has(alibi | alibi_large) ? 8 : 0;
      const double bias_max = number("attention.max_alibi_bias").value_or(fixed);
      if (bias_max > 0) {
        if (out_.heads == 0) refuse("there is no key ", key_of("attention.head_count"));
        encoding.parameters =
            alibi_description{{.heads = out_.heads,
                               .bias_max = bias_max,
                               .form = encoding.causal ? alibi_form::causal : alibi_form::symmetric}};
      } else if (const gguf_tensor* table = file_.find_tensor("position_embd.weight")) {
        if (table->extents.size() != 2 || table->extents[1] > static_cast<std::uint64_t>(most_positions))
          fail<format_error>("GGUF: tensor position_embd.weight is no table of positions");
        encoding.parameters = learned_description{static_cast<index_t>(table->extents[1]), 0,
                                                  static_cast<index_t>(table->extents[0])};
      } else if (!has(positions_if_given)) {
        encoding.parameters = learned_description{needed("context_length", 1, most_positions), 0,
                                                  count("embedding_length", 1, widest).value_or(0)};
      }
    }
    out_.encodings.push_back(std::move(encoding));
  }

  void read_t5() {
    const index_t buckets = needed("attention.relative_buckets_count", 1, most_buckets);
    const auto side = [&](bool bidirectional, index_t layers) {
      encoding_description encoding;
      encoding.parameters = t5_description{
          {.buckets = buckets, .max_distance = 128, .bidirectional = bidirectional}, out_.heads};
      encoding.layer_type = bidirectional ? "encoder" : "decoder";
      encoding.layers = all_layers(layers);
      encoding.softmax_scale = 1;
      encoding.causal = !bidirectional;
      set_widths(encoding, out_.heads, out_.kv_heads, false);
      out_.encodings.push_back(std::move(encoding));
    };
    const index_t encoder_layers = out_.layers;
    side(true, encoder_layers);
    if (has(no_decoder)) return;
    const index_t decoder_layers = count("decoder_block_count", 1, most_layers).value_or(encoder_layers);
    out_.layers += decoder_layers;
    side(false, decoder_layers);
  }

  // ---- RoPE ---------------------------------------------------------------------------------------------

  struct layer_kind {
    bool local = false, rotates = true, recurrent = false;
    index_t heads = 0, kv_heads = 0;
    bool operator<(const layer_kind& other) const {
      return std::tie(local, rotates, recurrent, heads, kv_heads) <
             std::tie(other.local, other.rotates, other.recurrent, other.heads, other.kv_heads);
    }
  };

  void read_rotary() {
    if (!out_.context_length) refuse("there is no key ", key_of("context_length"));
    (void)file_.find(key_of("rope.scaling.finetuned"));  // how the model was trained, but for Granite
    read_divisors();
    window_ = local_window();
    const std::vector<bool> local = local_layers();
    std::map<layer_kind, std::size_t> places;
    for (index_t layer = 0; layer < out_.layers; ++layer) {
      const layer_kind kind = kind_of(layer, local[static_cast<std::size_t>(layer)]);
      const auto [place, is_new] = places.try_emplace(kind, out_.encodings.size());
      if (is_new) out_.encodings.push_back(describe(kind));
      out_.encodings[place->second].layers.push_back(layer);
    }
  }

  [[nodiscard]] index_t local_window() const {
    if (has(window_unused)) return 0;
    const index_t stated = count("attention.sliding_window", 0, most_positions).value_or(row_.window);
    return has(chunks) && stated > 0 ? row_.window : stated;
  }

  /// Which layers see a window only.
  [[nodiscard]] std::vector<bool> local_layers() const {
    const auto count = static_cast<std::size_t>(out_.layers);
    std::vector<bool> local(count, false);
    if (window_ == 0) return local;
    index_t period = row_.period;
    if (const auto pattern = file_.integers(key_of("attention.sliding_window_pattern"))) {
      if (is_list("attention.sliding_window_pattern")) {
        if (pattern->size() < count)
          fail<format_error>("GGUF: key ", key_of("attention.sliding_window_pattern"), " lists ",
                             pattern->size(), " layers of ", count);
        for (std::size_t i = 0; i < count; ++i) local[i] = (*pattern)[i] != 0;
        return local;
      }
      check_count("attention.sliding_window_pattern", pattern->front(), 0, most_layers);
      period = pattern->front();
    }
    if (period == 0) return std::vector<bool>(count, true);
    for (index_t i = 0; i < out_.layers; ++i)
      local[static_cast<std::size_t>(i)] = has(full_starts) ? i % period != 0 : (i + 1) % period != 0;
    return local;
  }

  [[nodiscard]] layer_kind kind_of(index_t layer, bool local) const {
    const auto i = static_cast<std::size_t>(layer);
    if (has(recurrent_but_last)) {
      const index_t every = count("full_attention_interval", 1, most_layers).value_or(4);
      if ((layer + 1) % every != 0) return {false, false, true, 0, 0};
    }
    // Layers without attention in files whose other layers have it (LFM2, Falcon-H1's kin, pruned models).
    if (out_.kv_heads > 0 && kv_heads_[i] == 0) return {false, false, true, 0, 0};
    bool rotates = true;
    if (has(local_only)) rotates = local;
    if (has(local_if_window)) rotates = local || window_ == 0;
    if (has(no_rope_ends)) rotates = (layer + 1) % 4 != 0;
    if (has(chunks)) rotates = window_ == 0 || (layer + 1) % 4 != 0;
    if (has(rotates_by_key)) rotates = file_.boolean(key_of("rope.scaling.finetuned")).value_or(true);
    return {local, rotates, false, heads_[i], kv_heads_[i]};
  }

  [[nodiscard]] encoding_description describe(const layer_kind& kind) {
    encoding_description encoding;
    encoding.causal = file_.boolean(key_of("attention.causal")).value_or(!has(encoder));
    encoding.learned_sinks = has(learned_sinks);
    encoding.layer_type = kind.recurrent              ? "linear_attention"
                          : kind.local && has(chunks) ? "chunked_attention"
                          : kind.local                ? "sliding_attention"
                                                      : "full_attention";
    encoding.attends = !kind.recurrent;
    if (kind.recurrent) return encoding;
    if (kind.local) {
      if (has(chunks))
        encoding.chunk = window_;
      else if (has(window_both_ways))
        encoding.lookback = encoding.lookahead = window_ / 2;
      else
        encoding.lookback = window_ - 1;
    }
    if (row_.softcap > 0) encoding.softcap = number("attn_logit_softcapping").value_or(row_.softcap);
    set_widths(encoding, kind.heads, kind.kv_heads, kind.local);
    const index_t width = encoding.head_dim;
    encoding.softmax_scale = softmax_scale(width, kind.heads);
    const auto temperature = number("attention.temperature_scale");
    if (has(chunks) && !kind.rotates)
      encoding.position_scale = logit_scale::llama4(temperature.value_or(0.1),
                                                    number("attention.temperature_length").value_or(8192));
    if (has(ministral_scale) && temperature && *temperature != 0)
      encoding.position_scale = logit_scale::ministral(*temperature, original_context());
    if (kind.rotates) describe_rope(kind, width, encoding);
    return encoding;
  }

  void set_widths(encoding_description& encoding, index_t heads, index_t kv_heads, bool local) const {
    encoding.heads = heads;
    encoding.kv_heads = kv_heads;
    encoding.head_dim = head_dim("key", heads, local);
    encoding.value_dim = head_dim("value", heads, local);
    // Multi-head latent attention: keys and values of every head come from one latent row.
    if (count("attention.key_length_mla", 1, widest_head)) {
      encoding.kv_heads = heads;
      (void)key_of("attention.kv_lora_rank");  // the latent row's width plays no part
    }
    if (encoding.kv_heads > 0 && heads % encoding.kv_heads != 0)
      refuse("attention.head_count ", heads, " is no multiple of attention.head_count_kv ",
             encoding.kv_heads);
  }

  /// Channels of a key or of a value.
  [[nodiscard]] index_t head_dim(const std::string& of, index_t heads, bool local) const {
    const std::string key = "attention." + of + "_length";
    if (const auto latent = count(key + "_mla", 1, widest_head)) return *latent;
    if (local)
      if (const auto width = count(key + "_swa", 1, widest_head)) return *width;
    if (const auto width = count(key, 1, widest_head)) return *width;
    if (heads == 0) refuse("there is no key ", key_of("attention.head_count"));
    const index_t width = needed("embedding_length", 1, widest) / heads;
    check_count("embedding_length", width, 1, widest_head);
    return width;
  }

  [[nodiscard]] double softmax_scale(index_t width, index_t heads) const {
    if (const auto stated = number("attention.scale"); stated && *stated != 0) return *stated;
    if (has(unit_scale)) return 1;
    if (has(output_scale))
      return number("attention.output_scale").value_or(1 / std::sqrt(static_cast<double>(width)));
    // The 27 B models of Gemma 2 and 3 scale by the width of the model over its heads.
    if (is_large_ && !has(alibi_large) && heads > 0) width = needed("embedding_length", 1, widest) / heads;
    return 1 / std::sqrt(static_cast<double>(width));
  }

  [[nodiscard]] double original_context() {
    if (const auto stated = count("rope.scaling.original_context_length", 1, most_positions))
      return static_cast<double>(*stated);
    if (!warned_original_)
      warn("there is no key ", key_of("rope.scaling.original_context_length"), ": context_length ",
           *out_.context_length, " is taken for it");
    warned_original_ = true;
    return static_cast<double>(*out_.context_length);
  }

  void describe_rope(const layer_kind& kind, index_t width, encoding_description& encoding) {
    const bool local = kind.local;
    rope_description rope{.options = {.head_dim = width, .base = base_of(local), .pairing = *row_.pairing}};
    const index_t stated = count("rope.dimension_count", 0, widest).value_or(width);
    rope.options.rotary_dim =
        local ? count("rope.dimension_count_swa", 0, widest).value_or((std::min)(stated, width)) : stated;
    const bool is_latent = has(latent) && *rope.options.rotary_dim < width;
    if (is_latent) rope.options.rotary_offset = width - *rope.options.rotary_dim;
    rope.context_length = out_.context_length;
    // Gemma-3 and OLMo-3 extend their global layers only, and gemma4's divisors are for those.
    const bool extended = !(local && has(global_scaling));
    if (extended) {
      if (divisors_.size() == static_cast<std::size_t>(*rope.options.rotary_dim / 2))
        rope.frequency_divisors = divisors_;
      else if (!divisors_.empty())
        refuse("rope_freqs.weight has ", divisors_.size(), " entries for ", *rope.options.rotary_dim / 2,
               " pairs");
      rope.scaling = scaling(encoding);
    }
    read_sections(rope);
    encoding.parameters = std::move(rope);
  }

  [[nodiscard]] double base_of(bool local) {
    const auto stated = number("rope.freq_base");
    if (local) {
      if (const auto own = number("rope.freq_base_swa")) return *own;
      if (has(local_base)) return 10'000;
    }
    if (!stated && !warned_base_) {
      warn("there is no key ", key_of("rope.freq_base"), ": 10000 is the default of the format");
      warned_base_ = true;
    }
    return stated.value_or(10'000);
  }

  void read_sections(rope_description& rope) const {
    const auto all = file_.integers(key_of("rope.dimension_sections"));
    if (!all) return;
    std::vector<index_t> sections(all->begin(), all->end());
    while (sections.size() > 3 && sections.back() == 0) sections.pop_back();
    if (std::all_of(sections.begin(), sections.end(), [](index_t one) { return one == 0; })) return;
    const bool taking_turns = has(axes_in_turn);
    const axis_order order = !taking_turns           ? axis_order::chunked
                             : options_.as_llama_cpp ? axis_order::ggml_interleaved
                                                     : axis_order::interleaved;
    set_axes(rope, std::move(sections), order);
  }

  // ---- Scaling ------------------------------------------------------------------------------------------

  [[nodiscard]] any_scaling scaling(encoding_description& encoding) {
    const std::string type = file_.text(key_of("rope.scaling.type")).value_or("linear");
    const double stated = number("rope.scaling.factor").value_or(number("rope.scale_linear").value_or(0));
    const double factor = stated == 0 ? 1 : stated;
    const double attn_factor = number("rope.scaling.attn_factor").value_or(1);
    const bool has_sets = file_.find_tensor("rope_factors_long.weight") != nullptr;
    if (type == "longrope" || (has_sets && type != "yarn")) return longrope_of(attn_factor);
    if (type == "yarn" && number("rope.scaling.yarn_ext_factor").value_or(-1) != 0)
      return yarn_of(factor, attn_factor, encoding);
    if (type != "none" && type != "linear" && type != "yarn")
      refuse("rope.scaling.type ", type, " is not known; known are none, linear, yarn, longrope");
    if (attn_factor != 1) refuse("rope.scaling.attn_factor ", attn_factor, " with scaling type ", type);
    if (const auto stretch = number("rope.scaling.alpha"); stretch && *stretch != 0)
      return theta_scaling{.factor = *stretch};
    if (type == "none" || factor == 1) return no_scaling{};
    return position_interpolation{.factor = factor};
  }

  [[nodiscard]] yarn yarn_of(double factor, double attn_factor, encoding_description& encoding) {
    const double extension = number("rope.scaling.yarn_ext_factor").value_or(-1);
    if (extension > 0 && extension != 1)
      refuse("rope.scaling.yarn_ext_factor ", extension, ": only 0 and 1 are known");
    yarn scheme{.factor = factor, .original_context = original_context()};
    scheme.beta_fast = number("rope.scaling.yarn_beta_fast").value_or(32);
    scheme.beta_slow = number("rope.scaling.yarn_beta_slow").value_or(1);
    scheme.truncate = !has(ramp_not_rounded) || options_.as_llama_cpp;
    double all_dim = number("rope.scaling.yarn_log_multiplier").value_or(0);
    if (has(log_multiplier)) {
      all_dim /= 0.1;  // these files hold 0.1·mscale_all_dim
      const double m = yarn::attention_factor_of(factor, all_dim);
      encoding.softmax_scale = *encoding.softmax_scale * m * m;
      // mscale is not in the file; it equals mscale_all_dim in the published models.
      scheme.attention_factor = attn_factor * (all_dim == 0 ? yarn::attention_factor_of(factor, 1) : 1);
    } else {
      scheme.attention_factor = attn_factor * yarn::attention_factor_of(factor, 1) /
                                (all_dim == 0 ? 1 : yarn::attention_factor_of(factor, all_dim));
    }
    return scheme;
  }

  [[nodiscard]] longrope longrope_of(double attn_factor) {
    longrope scheme;
    for (const auto& [name, list] : {std::pair{"rope_factors_short.weight", &scheme.short_factor},
                                     std::pair{"rope_factors_long.weight", &scheme.long_factor}}) {
      const gguf_tensor* tensor = file_.find_tensor(name);
      if (tensor == nullptr) refuse("there is no tensor ", name, ", which longrope needs");
      *list = floats_of(*tensor);
    }
    scheme.original_context = original_context();
    scheme.max_context = static_cast<double>(*out_.context_length);
    scheme.attention_factor = attn_factor;
    return scheme;
  }

  void read_divisors() {
    for (const char* name : {"rope_freqs.weight", "blk.0.rope_freqs.weight"})
      if (const gguf_tensor* tensor = file_.find_tensor(name); tensor != nullptr && divisors_.empty())
        divisors_ = floats_of(*tensor);
  }

  [[nodiscard]] std::vector<double> floats_of(const gguf_tensor& tensor) const {
    if (tensor.elements > static_cast<std::uint64_t>(widest))
      fail<format_error>("GGUF: tensor ", tensor.name, " has ", tensor.elements,
                         " elements, more than one per pair");
    const bool whole = tensor.type == 0, is_half = tensor.type == 1;
    if (!whole && !is_half)
      fail<format_error>("GGUF: tensor ", tensor.name, " has element type ", tensor.type, ", not F32 or F16");
    const std::vector<std::byte> bytes = tensor_bytes_(tensor);
    const std::size_t width = whole ? 4 : 2;
    if (bytes.size() != static_cast<std::size_t>(tensor.elements) * width)
      fail<format_error>("GGUF: tensor ", tensor.name, " has ", bytes.size(), " bytes");
    std::vector<double> values;
    for (std::size_t at = 0; at < bytes.size(); at += width) {
      const std::uint64_t raw = little_endian(bytes.data() + at, width);
      const double value = whole
                               ? static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(raw)))
                               : static_cast<double>(static_cast<float>(
                                     Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(raw))));
      if (!is_finite(value))
        fail<format_error>("GGUF: tensor ", tensor.name, " holds a number that is not finite");
      values.push_back(value);
    }
    return values;
  }

  mutable std::set<std::string, std::less<>> read_;
  const gguf_file& file_;
  const tensor_source& tensor_bytes_;
  gguf_options options_;
  std::string architecture_;
  architecture row_{.name = "", .pairing = std::nullopt};
  bool is_large_ = false;
  std::vector<index_t> heads_, kv_heads_;  // of each layer
  index_t window_ = 0;
  bool warned_base_ = false, warned_original_ = false;
  std::vector<double> divisors_;
  model_description out_;
};

}  // namespace detail::gguf

/// What a GGUF file says about positions. \param tensor_bytes gives the data of a tensor: asked for those
/// that hold frequency factors only. \throws format_error when a key has the wrong type or a tensor the wrong
/// shape; std::invalid_argument when the architecture is not known or the values mean nothing.
[[nodiscard]] inline model_description describe_gguf(
    const gguf_file& file, const std::function<std::vector<std::byte>(const gguf_tensor&)>& tensor_bytes,
    const gguf_options& options = {}) {
  return detail::gguf::reader(file, tensor_bytes, options).read();
}

/// The same for a file that lies in memory as a whole.
[[nodiscard]] inline model_description parse_gguf_model(std::span<const std::byte> bytes,
                                                        const gguf_options& options = {}) {
  const gguf_file file = parse_gguf(bytes);
  return describe_gguf(
      file,
      [&](const gguf_tensor& tensor) {
        // parse_gguf has checked that the data of a tensor of known type lies within the bytes.
        const auto data = bytes.subspan(static_cast<std::size_t>(tensor.file_offset),
                                        static_cast<std::size_t>(tensor.bytes.value_or(0)));
        return std::vector<std::byte>(data.begin(), data.end());
      },
      options);
}

/// The same for a file, of which the header and the frequency factors are read.
/// \throws format_error also when the file cannot be read.
[[nodiscard]] inline model_description read_gguf_model(const std::filesystem::path& path,
                                                       const gguf_options& options = {}) {
  return detail::naming_the_file(path, [&] {
    detail::file_bytes source{path};
    const gguf_file file = detail::gguf_parser{source, source.size()}.parse();
    return describe_gguf(
        file, [&](const gguf_tensor& tensor) { return read_tensor_bytes(path, tensor); }, options);
  });
}

}  // namespace posenc::inline v0_2
