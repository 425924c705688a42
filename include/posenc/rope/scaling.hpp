// SPDX-License-Identifier: MIT
/// \file
/// Every context-extension scheme for RoPE; each is one struct in one file under rope/scaling/.
///
/// | in config.json | here |
/// |---|---|
/// | default | no_scaling |
/// | linear | position_interpolation |
/// | dynamic | dynamic_ntk |
/// | (vLLM's dynamic with alpha, xdrope) | theta_scaling |
/// | ntk (vLLM) | kexue_ntk |
/// | yarn | yarn |
/// | longrope, su | longrope |
/// | llama3 | llama3 |
/// | proportional | proportional |
#pragma once

#include <concepts>
#include <optional>
#include <utility>
#include <variant>

#include <posenc/rope/frequencies.hpp>
#include <posenc/rope/scaling/dynamic_ntk.hpp>
#include <posenc/rope/scaling/llama3.hpp>
#include <posenc/rope/scaling/longrope.hpp>
#include <posenc/rope/scaling/position_interpolation.hpp>
#include <posenc/rope/scaling/proportional.hpp>
#include <posenc/rope/scaling/theta_scaling.hpp>
#include <posenc/rope/scaling/yarn.hpp>

namespace posenc::inline v0_2 {

/// Any of the schemes above, chosen at run time: what a model file says. Itself a rope_scaling, so that it is
/// passed to rope like one of them; `std::visit` on `scheme` tells them apart.
struct any_scaling {
  std::variant<no_scaling, position_interpolation, dynamic_ntk, theta_scaling, kexue_ntk, yarn, longrope,
               llama3, proportional>
      scheme{};  ///< which scheme

  any_scaling() = default;
  /// From one of posenc's own schemes.
  template <class Scheme>
  requires(!std::same_as<std::remove_cvref_t<Scheme>, any_scaling> &&
           std::constructible_from<decltype(scheme), Scheme&&>)
      any_scaling(Scheme&& which)  // NOLINT(google-explicit-constructor): stands for the scheme
      : scheme(std::forward<Scheme>(which)) {}

  /// The ladder of the scheme that it holds.
  template <std::floating_point Real>
  [[nodiscard]] frequency_ladder<Real> ladder(const rotary_shape& shape,
                                              std::optional<position> length) const {
    return std::visit([&](const auto& which) { return which.template ladder<Real>(shape, length); }, scheme);
  }
};

/// True for a scheme whose frequencies depend on the length of the sequence.
[[nodiscard]] inline bool depends_on_length(const any_scaling& scaling) noexcept {
  if (const auto* dynamic = std::get_if<dynamic_ntk>(&scaling.scheme))
    return dynamic->rule != dynamic_ntk_rule::full_extension;
  if (const auto* two_sets = std::get_if<longrope>(&scaling.scheme))
    return two_sets->selection == longrope_selection::sequence_length;
  return false;
}

static_assert(rope_scaling<any_scaling>);

}  // namespace posenc::inline v0_2
