// SPDX-License-Identifier: MIT
/// \file
/// One of posenc's own encodings, chosen when the program runs: what a model file says.
///
///     posenc::any_encoding<float> encoding = posenc::read_model("config.json").layer(0).encoding;
///     Eigen::MatrixXf out = posenc::reference::attention(q, k, v, encoding, options);
///
/// Attention looks at the type once per call, so this is as fast as the encoding that it holds. For encodings of
/// your own write the type itself, or a std::variant of your own with a `visit` like the one below.
#pragma once

#include <concepts>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include <posenc/encoding.hpp>
#include <posenc/encodings/alibi.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/encodings/logit_scale.hpp>
#include <posenc/encodings/multi_axis_rope.hpp>
#include <posenc/encodings/relative_bias.hpp>
#include <posenc/encodings/relative_key.hpp>
#include <posenc/encodings/rope.hpp>
#include <posenc/encodings/sinusoidal.hpp>
#include <posenc/encodings/t5_bias.hpp>
#include <posenc/encodings/xpos.hpp>

namespace posenc::inline v0_2 {

namespace detail {
template <class E, class Variant>
inline constexpr bool is_alternative = false;
template <class E, class... Ones>
inline constexpr bool is_alternative<E, std::variant<Ones...>> = (std::same_as<E, Ones> || ...);
}  // namespace detail

/// Any of posenc's encodings, or a rotation together with a temperature by position. T is their scalar.
template <std::floating_point T>
class any_encoding {
 public:
  /// Every encoding that it can be.
  using alternatives = std::variant<no_encoding, rope<T>, multi_axis_rope<T>, xpos<T>, alibi<T>, t5_bias<T>,
                                    relative_bias<T>, shaw<T>, shaw_with_values<T>, learned_absolute<T>,
                                    sinusoidal<T>, logit_scale, combined<rope<T>, logit_scale>>;

  /// no_encoding.
  any_encoding() = default;

  /// From one of posenc's own encodings.
  template <class E>
  requires detail::is_alternative<std::remove_cvref_t<E>, alternatives> any_encoding(
      E&& encoding)  // NOLINT(google-explicit-constructor): stands for the encoding
      : encoding_(std::in_place_type<std::remove_cvref_t<E>>, std::forward<E>(encoding)) {}

  /// f(encoding) with the encoding's own type.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit(std::forward<F>(f), encoding_);
  }

  /// The encoding if it is of type E, else nullptr.
  template <class E>
  requires detail::is_alternative<E, alternatives>
  [[nodiscard]] const E* get_if() const noexcept { return std::get_if<E>(&encoding_); }

  /// The name of the encoding as this library writes it: "rope", "combine(rope, logit_scale)".
  [[nodiscard]] const char* name() const noexcept {
    constexpr const char* names[]{"no_encoding",
                                  "rope",
                                  "multi_axis_rope",
                                  "xpos",
                                  "alibi",
                                  "t5_bias",
                                  "relative_bias",
                                  "shaw",
                                  "shaw_with_values",
                                  "learned_absolute",
                                  "sinusoidal",
                                  "logit_scale",
                                  "combine(rope, logit_scale)"};
    static_assert(std::size(names) == std::variant_size_v<alternatives>);
    return names[encoding_.index()];
  }

 private:
  alternatives encoding_{};
};

}  // namespace posenc::inline v0_2
