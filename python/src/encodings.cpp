// SPDX-License-Identifier: MIT
// Encodings as Python classes: each is made from its options and stands for a posenc::any_encoding<float>.
#include <span>
#include <vector>

#include <nanobind/eigen/dense.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "encodings.hpp"

namespace posenc_python {
namespace {
using posenc::index_t, posenc::position;
using nb::literals::operator""_a;
using table = posenc::row_major_matrix<float>;

/// The value that a name stands for. \throws std::invalid_argument that lists the names
template <class T>
[[nodiscard]] T named(const char* option, const std::string& given,
                      std::initializer_list<std::pair<const char*, T>> names) {
  std::string known;
  for (const auto& [name, value] : names) {
    if (given == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  posenc::detail::fail<std::invalid_argument>(option, " is '", given, "', not one of: ", known);
}

[[nodiscard]] posenc::pairing pairing_of(const std::string& name) {
  return named<posenc::pairing>(
      "pairing", name,
      {{"half_split", posenc::pairing::half_split}, {"interleaved", posenc::pairing::interleaved}});
}

[[nodiscard]] posenc::relative_clip clip_of(const std::string& direction, position left, position right) {
  using enum posenc::relative_direction;
  return {named<posenc::relative_direction>(
              "direction", direction,
              {{"key_minus_query", key_minus_query}, {"query_minus_key", query_minus_key}}),
          left, right};
}

/// A class for one kind of scaling, with its fields as they are.
template <class Scheme>
auto scaling_class(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<Scheme>(module, name, doc);
}

void bind_scalings(nb::module_& m) {
  using namespace posenc;
  scaling_class<position_interpolation>(m, "position_interpolation",
                                        "Every position divided by factor (config.json: linear).")
      .def(
          "__init__",
          [](position_interpolation* self, double factor) { new (self) position_interpolation{factor}; },
          "factor"_a);
  scaling_class<theta_scaling>(m, "theta_scaling", "NTK-aware scaling: the base grows with factor.")
      .def(
          "__init__", [](theta_scaling* self, double factor) { new (self) theta_scaling{factor}; },
          "factor"_a);
  scaling_class<dynamic_ntk>(m, "dynamic_ntk", "The base grows with the length of the sequence (dynamic).")
      .def(
          "__init__",
          [](dynamic_ntk* self, double factor, double max_context) {
            new (self) dynamic_ntk{.factor = factor, .max_context = max_context};
          },
          "factor"_a, "max_context"_a);
  scaling_class<yarn>(m, "yarn", "YaRN; original_context in tokens.")
      .def(
          "__init__",
          [](yarn* self, double factor, double original_context, double beta_fast, double beta_slow,
             std::optional<double> attention_factor, double mscale, double mscale_all_dim, bool truncate) {
            new (self) yarn{.factor = factor,
                            .original_context = original_context,
                            .beta_fast = beta_fast,
                            .beta_slow = beta_slow,
                            .attention_factor = attention_factor,
                            .mscale = mscale,
                            .mscale_all_dim = mscale_all_dim,
                            .truncate = truncate};
          },
          "factor"_a, "original_context"_a, nb::kw_only(), "beta_fast"_a = 32.0, "beta_slow"_a = 1.0,
          "attention_factor"_a = nb::none(), "mscale"_a = 0.0, "mscale_all_dim"_a = 0.0, "truncate"_a = true);
  scaling_class<llama3>(m, "llama3", "Llama 3's three bands of wavelengths; original_context in tokens.")
      .def(
          "__init__",
          [](llama3* self, double factor, double low, double high, double original_context) {
            new (self) llama3{factor, low, high, original_context};
          },
          "factor"_a, "low_freq_factor"_a, "high_freq_factor"_a, "original_context"_a);
  scaling_class<longrope>(m, "longrope",
                          "LongRoPE: one factor a pair, short or long by the length of the sequence.")
      .def(
          "__init__",
          [](longrope* self, std::vector<double> short_factor, std::vector<double> long_factor,
             double original_context, std::optional<double> factor, std::optional<double> max_context,
             std::optional<double> attention_factor) {
            new (self) longrope{.short_factor = std::move(short_factor),
                                .long_factor = std::move(long_factor),
                                .original_context = original_context,
                                .factor = factor,
                                .max_context = max_context,
                                .attention_factor = attention_factor};
          },
          "short_factor"_a, "long_factor"_a, "original_context"_a, nb::kw_only(), "factor"_a = nb::none(),
          "max_context"_a = nb::none(), "attention_factor"_a = nb::none());
}

using any_scheme = std::variant<posenc::position_interpolation, posenc::theta_scaling, posenc::dynamic_ntk,
                                posenc::yarn, posenc::llama3, posenc::longrope>;

[[nodiscard]] posenc::any_scaling scaling_of(const std::optional<any_scheme>& scheme) {
  if (!scheme) return {};
  return std::visit([](const auto& which) { return posenc::any_scaling(which); }, *scheme);
}

/// A subclass of Encoding. Its constructor is added by the caller.
struct rope_class : encoding {};
struct xpos_class : encoding {};
struct alibi_class : encoding {};
struct t5_class : encoding {};
struct clip_class : encoding {};
struct shaw_class : encoding {};
struct sinusoidal_class : encoding {};
struct learned_class : encoding {};
struct scale_class : encoding {};

void bind_rotations(nb::module_& m) {
  nb::class_<rope_class, encoding>(m, "rope",
                                   "Rotary position embedding (Su et al. 2021). head_dim and rotary_dim in "
                                   "channels; pairing is 'half_split' or\n"
                                   "'interleaved' and comes with the weights. Angles are exact at any "
                                   "position, or those of float32 frameworks.")
      .def(
          "__init__",
          [](rope_class* self, index_t head_dim, const std::string& pairing,
             std::optional<index_t> rotary_dim, index_t rotary_offset, double base, const std::string& angles,
             const std::optional<any_scheme>& scaling, std::optional<position> context_length) {
            using enum posenc::angle_mode;
            const posenc::rope_options options{
                .head_dim = head_dim,
                .rotary_dim = rotary_dim,
                .rotary_offset = rotary_offset,
                .base = base,
                .pairing = pairing_of(pairing),
                .angles = named<posenc::angle_mode>(
                    "angles", angles, {{"exact", exact}, {"framework_float32", framework_float32}})};
            new (self) rope_class{{posenc::rope<float>(options, scaling_of(scaling), context_length)}};
          },
          "head_dim"_a, nb::kw_only(), "pairing"_a, "rotary_dim"_a = nb::none(), "rotary_offset"_a = 0,
          "base"_a = 10'000.0, "angles"_a = "exact", "scaling"_a = nb::none(),
          "context_length"_a = nb::none())
      .def_prop_ro(
          "inv_freq",
          [](const rope_class& self) {
            const auto w = self.any.get_if<posenc::rope<float>>()->inv_freq();
            return std::vector<double>(w.begin(), w.end());
          },
          "Radians per token of each pair, after scaling.")
      .def_prop_ro(
          "attention_factor",
          [](const rope_class& self) { return self.any.get_if<posenc::rope<float>>()->attention_factor(); },
          "What multiplies cos and sin of queries and of keys.");
  nb::class_<xpos_class, encoding>(m, "xpos",
                                   "xPos (Sun et al. 2022): a rotation whose scores fade with distance.")
      .def(
          "__init__",
          [](xpos_class* self, index_t head_dim, const std::string& pairing, double base, double gamma,
             double scale_base, position origin) {
            new (self) xpos_class{{posenc::xpos<float>(
                {.rope = {.head_dim = head_dim, .base = base, .pairing = pairing_of(pairing)},
                 .gamma = gamma,
                 .scale_base = scale_base,
                 .origin = origin})}};
          },
          "head_dim"_a, nb::kw_only(), "pairing"_a, "base"_a = 10'000.0, "gamma"_a = 0.4,
          "scale_base"_a = 512.0, "origin"_a = 0);
}

void bind_biases(nb::module_& m) {
  nb::class_<alibi_class, encoding>(
      m, "alibi", "ALiBi (Press et al. 2021): a bias of -slope * distance. form is 'symmetric' or 'causal'.")
      .def(
          "__init__",
          [](alibi_class* self, index_t heads, double bias_max, const std::string& form, index_t head_offset,
             std::optional<index_t> total_heads) {
            using enum posenc::alibi_form;
            new (self) alibi_class{
                {posenc::alibi<float>({.heads = heads,
                                       .bias_max = bias_max,
                                       .form = named<posenc::alibi_form>(
                                           "form", form, {{"symmetric", symmetric}, {"causal", causal}}),
                                       .head_offset = head_offset,
                                       .total_heads = total_heads})}};
          },
          "heads"_a, nb::kw_only(), "bias_max"_a = 8.0, "form"_a = "symmetric", "head_offset"_a = 0,
          "total_heads"_a = nb::none())
      .def_prop_ro("slopes", [](const alibi_class& self) {
        const auto s = self.any.get_if<posenc::alibi<float>>()->slopes();
        return std::vector<double>(s.begin(), s.end());
      });
  nb::class_<t5_class, encoding>(
      m, "t5_bias",
      "T5's learned bias by bucket of distance. weights is buckets x heads, float32, and is copied.")
      .def(
          "__init__",
          [](t5_class* self, const table& weights, bool bidirectional, position max_distance) {
            new (self) t5_class{{posenc::t5_bias<float>(
                {.buckets = weights.rows(), .max_distance = max_distance, .bidirectional = bidirectional},
                posenc::bias_table<float>::rows_by_heads(weights))}};
          },
          "weights"_a, nb::kw_only(), "bidirectional"_a, "max_distance"_a = 128);
  nb::class_<clip_class, encoding>(
      m, "relative_clip",
      "A learned bias by clipped distance. weights is (left + right + 1) x heads, float32, and is copied; "
      "direction is\n"
      "'key_minus_query' or 'query_minus_key': which end of the table lies before the query.")
      .def(
          "__init__",
          [](clip_class* self, const table& weights, const std::string& direction, position left,
             position right) {
            new (self) clip_class{{posenc::relative_bias<float>(
                clip_of(direction, left, right), posenc::bias_table<float>::rows_by_heads(weights))}};
          },
          "weights"_a, nb::kw_only(), "direction"_a, "left"_a, "right"_a);
  nb::class_<shaw_class, encoding>(m, "relative_key",
                                   "Shaw et al. 2018: a row by clipped distance is added to the key. rows is "
                                   "(left + right + 1) x head_dim.")
      .def(
          "__init__",
          [](shaw_class* self, const table& rows, const std::string& direction, position left,
             position right) {
            new (self) shaw_class{{posenc::shaw<float>(clip_of(direction, left, right), rows)}};
          },
          "rows"_a, nb::kw_only(), "direction"_a, "left"_a, "right"_a);
  nb::class_<scale_class, encoding>(m, "logit_scale", "The temperature by position of Llama-4.")
      .def(
          "__init__",
          [](scale_class* self, double attn_scale, double floor_scale) {
            new (self) scale_class{{posenc::logit_scale::llama4(attn_scale, floor_scale)}};
          },
          "attn_scale"_a = 0.1, "floor_scale"_a = 8192.0);
}

void bind_embeddings(nb::module_& m) {
  const auto table_of = [](const encoding& self, position first, index_t count) {
    return self.any.get_if<posenc::sinusoidal<float>>()->table(first, count);
  };
  nb::class_<sinusoidal_class, encoding>(m, "sinusoidal",
                                         "Vaswani et al. 2017. width in channels; convention is 'paper', "
                                         "'marian', 'tensor2tensor' or 'whisper'.")
      .def(
          "__init__",
          [](sinusoidal_class* self, index_t width, const std::string& convention, double base) {
            using enum posenc::sinusoid;
            new (self) sinusoidal_class{{posenc::sinusoidal<float>(
                {.width = width,
                 .base = base,
                 .convention = named<posenc::sinusoid>("convention", convention,
                                                       {{"paper", paper},
                                                        {"marian", marian},
                                                        {"tensor2tensor", tensor2tensor},
                                                        {"whisper", whisper}})})}};
          },
          "width"_a, nb::kw_only(), "convention"_a, "base"_a = 10'000.0)
      .def("table", table_of, "first"_a, "count"_a,
           "Positions first ... first + count - 1: count x width, float32.");
  nb::class_<learned_class, encoding>(
      m, "learned_absolute", "A learned vector a position. weights is rows x width, float32, and is copied.")
      .def(
          "__init__",
          [](learned_class* self, const table& weights, index_t row_offset) {
            new (self) learned_class{{posenc::learned_absolute<float>(weights, {.row_offset = row_offset})}};
          },
          "weights"_a, nb::kw_only(), "row_offset"_a = 0);
}

}  // namespace

void bind_encodings(nb::module_& m) {
  nb::class_<encoding>(m, "Encoding", "One of posenc's encodings; Encoding() is none.")
      .def(nb::init<>())
      .def_prop_ro("name", [](const encoding& self) { return self.any.name(); })
      .def("__repr__", [](const encoding& self) { return "<posenc " + std::string(self.any.name()) + ">"; });
  bind_scalings(m);
  bind_rotations(m);
  bind_biases(m);
  bind_embeddings(m);
  m.def(
      "combine",
      [](const rope_class& rotation, const scale_class& scale) {
        return encoding{posenc::combine(*rotation.any.get_if<posenc::rope<float>>(),
                                        *scale.any.get_if<posenc::logit_scale>())};
      },
      "rotation"_a, "scale"_a, "A rope and a logit_scale as one encoding.");
}

}  // namespace posenc_python
