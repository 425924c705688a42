// SPDX-License-Identifier: MIT
/// \file
/// Sinusoidal position embedding: door *embed*.
///
///     x_i ← x_i + PE(i),   PE(i) holds sin(i·w_p) and cos(i·w_p) for p = 0, 1, …
///
/// Vaswani et al. 2017, arXiv:1706.03762, section 3.5. Frequencies and order of the channels vary on their
/// own, and four combinations ship (θ = base, d = width, h = ⌊d/2⌋):
///
/// | convention | w_p | channels | odd d | who |
/// |---|---|---|---|---|
/// | paper | θ^(−2p/d) | sin, cos, sin, cos, … | ends on a sine | the paper, DistilBERT, XLM |
/// | marian | θ^(−2p/d) | ⌈d/2⌉ sines, then ⌊d/2⌋ cosines | one sine more | Marian, RoFormer |
/// | tensor2tensor = fairseq | θ^(−p/(h−1)) | h sines, h cosines | last channel 0 | M2M100, FSMT, S2T |
/// | whisper | θ^(−p/(h−1)) | h sines, h cosines | refused | Whisper |
///
/// For d = 8 the second frequency is 0.1 under the first two and 10^(−4/3) ≈ 0.046 under the last two, which
/// divide by h−1 and therefore need d ≥ 4.
///
/// There is no hidden scale. Many models multiply the *token* embedding by √d_model before they add this
/// (fairseq's and Marian's scale_embedding): that is the caller's to do.
///
/// Angles are exact at any position, negative ones too, with the bounds that rope/phase.hpp states;
/// frameworks' float32 tables are off by up to 5e-5 at position 1000.
///
/// Golden values: tests/golden/sinusoidal.json.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <posenc/detail/floating.hpp>
#include <posenc/detail/table.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/required.hpp>
#include <posenc/rope/phase.hpp>
#include <posenc/views.hpp>

namespace posenc::inline v0_2 {

/// Which frequencies in which channels; see the table at the top of sinusoidal.hpp.
enum class sinusoid : unsigned char {
  paper,
  marian,
  tensor2tensor,
  fairseq = tensor2tensor,
  whisper,
};

/// The name of a convention as this library writes it.
[[nodiscard]] constexpr const char* name_of(sinusoid convention) noexcept {
  switch (convention) {
    case sinusoid::paper:
      return "paper";
    case sinusoid::marian:
      return "marian";
    case sinusoid::tensor2tensor:
      return "tensor2tensor";
    default:
      return "whisper";
  }
}

/// What a sinusoidal embedding is.
struct sinusoidal_options {
  index_t width = 0;              ///< d, channels of a token ("d_model")
  double base = 10'000.0;         ///< θ
  required<sinusoid> convention;  ///< comes with the weights, so there is no default
  /// The one position that gets zeros: M2M100 and Speech2Text blank the row of padding_idx and start at
  /// padding_idx + 1 (roberta_position_ids).
  std::optional<position> padding_position{};
};

/// Sines and cosines of the position. T is their precision; rows of any scalar can be added to.
///
///     posenc::sinusoidal<float> pe{{.width = 512, .convention = posenc::sinusoid::paper}};
template <std::floating_point T>
class sinusoidal {
 public:
  /// \throws std::invalid_argument when the width is refused by the convention or the base is not positive
  /// and finite.
  explicit sinusoidal(const sinusoidal_options& options) : options_(options) {
    const index_t d = options.width, half = d / 2;
    const sinusoid convention = options.convention;
    detail::require(d >= 1, "sinusoidal: width ", d, " is not positive");
    detail::require(detail::is_finite(options.base) && options.base > 0, "sinusoidal: base ", options.base,
                    " must be positive and finite");
    detail::require(convention != sinusoid::whisper || d % 2 == 0,
                    "sinusoidal: whisper needs an even width, not ", d);
    detail::require(exponents_by_width() || half >= 2, "sinusoidal: ", name_of(convention),
                    " divides by width/2 - 1 and needs a width of at least 4, not ", d);
    const index_t count = exponents_by_width() ? (d + 1) / 2 : half;
    for (index_t p = 0; p < count; ++p) {
      const long double exponent = exponents_by_width()
                                       ? static_cast<long double>(2 * p) / static_cast<long double>(d)
                                       : static_cast<long double>(p) / static_cast<long double>(half - 1);
      const long double w = std::pow(static_cast<long double>(options.base), -exponent);
      phase_per_token_.push_back(detail::phase_of_frequency(w, "sinusoidal"));
      inv_freq_.push_back(static_cast<double>(w));
    }
  }

  /// Door *embed*: adds PE(p) to a token's row. Any position, negative ones too.
  /// \throws std::invalid_argument when the row is not `width` wide.
  template <class S>
  void embed(std::span<S> token, position p) const {
    detail::require_width(token.size(), width(), "sinusoidal");
    each_channel(p, [&](index_t channel, T value) {
      detail::add_to(token[static_cast<std::size_t>(channel)], value);
    });
  }

  /// The rows PE(first) … PE(first + count − 1), as the frameworks tabulate them: count × width.
  [[nodiscard]] row_major_matrix<T> table(position first, index_t count) const {
    detail::require(count >= 0, "sinusoidal: a table of ", count, " rows");
    row_major_matrix<T> result = row_major_matrix<T>::Zero(count, width());
    for (index_t row = 0; row < count; ++row)
      each_channel(first + row, [&](index_t channel, T value) { result(row, channel) = value; });
    return result;
  }

  /// The linear map that moves every position by k: PE(i + k) = shift_matrix(k) · PE(i) for all i (column
  /// vectors, padding_position aside). It rotates each (sin, cos) pair by k·w_p,
  ///
  ///     ( sin, cos ) → ( cos(k·w)·sin + sin(k·w)·cos,  −sin(k·w)·sin + cos(k·w)·cos ),
  ///
  /// is orthogonal, and leaves tensor2tensor's zero channel alone.
  /// \throws std::invalid_argument for an odd width under paper or marian: the sine without a cosine is moved
  /// by no linear map.
  [[nodiscard]] row_major_matrix<T> shift_matrix(position k) const {
    detail::require(!exponents_by_width() || width() % 2 == 0, "sinusoidal: ", name_of(options_.convention),
                    " of odd width ", width(), " has a sine without a cosine, which no matrix can shift");
    row_major_matrix<T> result = row_major_matrix<T>::Identity(width(), width());
    for (index_t p = 0; p < pairs(); ++p) {
      const auto [s, c] = channels_of(p);
      const cos_sin<T> rotated = angle(p, k);
      result(s, s) = rotated.cos, result(s, c) = rotated.sin;
      result(c, s) = -rotated.sin, result(c, c) = rotated.cos;
    }
    return result;
  }

  /// cos and sin of position·w_p.
  [[nodiscard]] cos_sin<T> angle(index_t pair, position p) const noexcept {
    return cos_sin_of<T>(phase_per_token_[static_cast<std::size_t>(pair)] * p);
  }

  /// The channels of the sine and of the cosine of a pair; the cosine lies at `width` where an odd width
  /// leaves it out.
  [[nodiscard]] std::pair<index_t, index_t> channels_of(index_t pair) const noexcept {
    if (options_.convention == sinusoid::paper) return {2 * pair, 2 * pair + 1};
    return {pair, pairs() + pair};
  }

  /// The fraction of a turn that each pair makes per token.
  [[nodiscard]] std::span<const phase> phases() const noexcept { return phase_per_token_; }
  /// w_p, radians per token.
  [[nodiscard]] std::span<const double> inv_freq() const noexcept { return inv_freq_; }
  /// Pairs of channels.
  [[nodiscard]] index_t pairs() const noexcept { return static_cast<index_t>(inv_freq_.size()); }
  /// Channels of a row.
  [[nodiscard]] index_t width() const noexcept { return options_.width; }
  /// What it was made from.
  [[nodiscard]] const sinusoidal_options& options() const noexcept { return options_; }

 private:
  /// paper and marian: exponents 2p/d and ⌈d/2⌉ sines.
  [[nodiscard]] bool exponents_by_width() const noexcept {
    return options_.convention == sinusoid::paper || options_.convention == sinusoid::marian;
  }

  template <class Visit>
  void each_channel(position p, Visit visit) const {
    if (p == options_.padding_position) return;
    for (index_t pair = 0; pair < pairs(); ++pair) {
      const auto [sine, cosine] = channels_of(pair);
      const cos_sin<T> value = angle(pair, p);
      visit(sine, value.sin);
      if (cosine < width()) visit(cosine, value.cos);
    }
  }

  sinusoidal_options options_;
  std::vector<double> inv_freq_;
  std::vector<phase> phase_per_token_;
};

}  // namespace posenc::inline v0_2
