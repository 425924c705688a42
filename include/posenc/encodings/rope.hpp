// SPDX-License-Identifier: MIT
/// \file
/// Rotary position embedding (RoPE): door *rotate*.
///
/// Channels are taken in pairs and pair p of a query or key at position i is rotated by the angle i·w_p, so
/// that the dot product of a rotated query and a rotated key depends on the distance alone: R(i)ᵀR(j) = R(j−i).
///
///     (a, b) → ( a·cos φ − b·sin φ,  a·sin φ + b·cos φ ) · m,    φ = i·w_p,   w_p = θ^(−2p/r)
///
/// Su et al. 2021, "RoFormer", arXiv:2104.09864. θ = base, r = rotary_dim, m = 1 unless a scaling says
/// otherwise.
///
/// | angle mode | angle | error of cos and sin |
/// |---|---|---|
/// | exact (default) | 128-bit fixed point, see rope/phase.hpp | ≤ 1 ulp of T up to ±2^26 (T = float) |
/// | framework_float32 | float32 frequency, float32 product | 7e-4 at 10^4, 5e-2 at 10^6 |
///
/// The frequencies of framework_float32 are those of Hugging Face transformers under torch's portable
/// kernels, bit for bit, for every rope type (tests/rope/transformers_test.cpp: 6044 of 6044). Torch's AVX2
/// and AVX-512 kernels give about one in a hundred otherwise, because their vector power function is not
/// correctly rounded.
///
/// Golden values: tests/golden/rope_apply.json, rope_schemes.json, rope_models.json.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <posenc/detail/floating.hpp>
#include <posenc/errors.hpp>
#include <posenc/positions.hpp>
#include <posenc/rope/frequencies.hpp>
#include <posenc/rope/pairing.hpp>
#include <posenc/rope/rotation.hpp>
#include <posenc/rope/scaling.hpp>

namespace posenc::inline v0_2 {

/// How angles are formed.
enum class angle_mode : unsigned char {
  exact,              ///< right to the last bit at any position
  framework_float32,  ///< as Hugging Face and others do it in float32, for those who must match their tables
};

/// What a RoPE is, before any context extension.
struct rope_options {
  index_t head_dim = 0;  ///< channels of a head
  /// r: how many of them rotate, even; all from rotary_offset on if not given.
  std::optional<index_t> rotary_dim{};
  /// The first channel that rotates (DeepSeek's MLA rotates the tail of the head).
  index_t rotary_offset = 0;
  double base = 10'000.0;  ///< θ, "rope_theta"
  /// Which channels pair up; comes with the weights, so there is no default.
  required<posenc::pairing> pairing;
  angle_mode angles = angle_mode::exact;  ///< exact, or the frameworks' float32
  bool rotates_values =
      false;  ///< keys serve as values, and carry positions there too (rotation::rotates_values)
};

namespace detail {
/// The rotary_dim of the options, all checked. \throws std::invalid_argument
[[nodiscard]] inline index_t checked_rotary_dim(const rope_options& options) {
  const index_t d = options.head_dim, offset = options.rotary_offset;
  require(d >= 1, "rope: head_dim ", d, " is not positive");
  require(offset >= 0 && offset <= d, "rope: rotary_offset ", offset, " lies outside head_dim ", d);
  const index_t r = options.rotary_dim.value_or(d - offset);
  require(r >= 0 && r % 2 == 0, "rope: rotary_dim ", r, " must be even and not negative (head_dim ", d, ")");
  require(r <= d - offset, "rope: rotary_dim ", r, " at offset ", offset, " exceeds head_dim ", d);
  require(is_finite(options.base) && options.base > 0, "rope: base ", options.base,
          " must be positive and finite");
  return r;
}

/// Puts a ladder into a rotation. \throws std::invalid_argument when a frequency is refused by
/// phase_of_frequency or their number is not that of the pairs.
inline void set_ladder(rotation& target, const frequency_ladder<long double>& ladder) {
  require(static_cast<index_t>(ladder.inv_freq.size()) == target.pairs(), "rope: ", ladder.inv_freq.size(),
          " frequencies given for ", target.pairs(), " pairs");
  target.phase_per_token.clear();
  for (const long double w : ladder.inv_freq) target.phase_per_token.push_back(phase_of_frequency(w, "rope"));
  target.attention_factor = ladder.attention_factor;
}

/// Frequencies as numbers that can be shown: rounded to double.
[[nodiscard]] inline std::vector<double> rounded(const std::vector<long double>& inv_freq) {
  std::vector<double> result;
  result.reserve(inv_freq.size());
  for (const long double w : inv_freq) result.push_back(static_cast<double>(w));
  return result;
}
}  // namespace detail

/// RoPE with any scaling. T is the precision of cos and sin; heads of any scalar can be rotated.
///
///     posenc::rope<float> plain{{.head_dim = 128, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
///     posenc::rope<float> longer{{.head_dim = 128, .pairing = posenc::pairing::half_split},
///                                posenc::yarn{.factor = 4.0, .original_context = 32'768}};
template <std::floating_point T>
class rope {
 public:
  /// \param scaling a context-extension scheme (rope/scaling.hpp) or a user's own; see the concept rope_scaling
  /// \param context_length tokens of the sequence, for schemes that depend on it (dynamic NTK, LongRoPE): the
  /// caller decides once per sequence
  /// \throws std::invalid_argument when the options or the scaling mean nothing.
  template <rope_scaling Scaling = no_scaling>
  explicit rope(const rope_options& options, const Scaling& scaling = {},
                std::optional<position> context_length = std::nullopt) {
    const index_t r = detail::checked_rotary_dim(options);
    const rotary_shape shape{options.head_dim, r, options.base};
    rotation_ = {.head_dim = options.head_dim,
                 .offset = options.rotary_offset,
                 .rotary_dim = r,
                 .pairing = options.pairing,
                 .rotates_values = options.rotates_values};
    if (r == 0) return;
    set_ladder(scaling.template ladder<long double>(shape, context_length));
    if (options.angles == angle_mode::framework_float32)
      rotation_.framework_frequencies = scaling.template ladder<float>(shape, context_length).inv_freq;
  }

  /// RoPE with frequencies of the caller's own, in radians per token, one for each pair of the options'
  /// rotary_dim. The options' base and angle mode are not used.
  [[nodiscard]] static rope from_frequencies(const rope_options& options,
                                             const frequency_ladder<long double>& ladder) {
    rope result{options};
    result.rotation_.framework_frequencies.clear();
    result.set_ladder(ladder);
    return result;
  }

  /// Door *rotate*: rotates a query or key of head_dim channels at position `p`, in place.
  template <class S>
  void rotate(std::span<S> head, position p) const {
    rotation_.template apply<T>(head, p, rotation_side::query);
  }

  /// cos φ and sin φ of one pair at position `p`, without the attention factor.
  [[nodiscard]] cos_sin<T> angle(index_t pair, position p) const {
    return rotation_.template cos_sin_at<T>(pair, p);
  }

  /// Radians per token of each pair, after scaling.
  [[nodiscard]] std::span<const double> inv_freq() const noexcept { return inv_freq_; }

  /// m, which multiplies cos and sin of queries and of keys.
  [[nodiscard]] double attention_factor() const noexcept { return rotation_.attention_factor; }

  /// The settled description, for kernels.
  [[nodiscard]] const rotation& lowered() const noexcept { return rotation_; }

 private:
  void set_ladder(const frequency_ladder<long double>& ladder) {
    detail::set_ladder(rotation_, ladder);
    inv_freq_ = detail::rounded(ladder.inv_freq);
  }

  rotation rotation_;
  std::vector<double> inv_freq_;
};

}  // namespace posenc::inline v0_2
