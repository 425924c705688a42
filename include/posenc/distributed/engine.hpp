// SPDX-License-Identifier: MIT
/// \file
/// The fused path as what a rank computes with.
#pragma once

#include <posenc/fused.hpp>

namespace posenc::inline v0_2::mpi {
#if defined(POSENC_FUSED_DISPATCH_ONLY)
inline namespace dispatched {
#else
inline namespace HWY_NAMESPACE {
#endif

/// The fused functions of this translation unit's instruction set (fused/target.hpp), to hand to what does not depend
/// on it.
struct local_engine {
  /// fused::attention_into.
  template <class... Arguments>
  void attention(Arguments&&... arguments) const {
    fused::attention_into(std::forward<Arguments>(arguments)...);
  }
  /// fused::attention_backward_into.
  template <class Sequence, class E>
  [[nodiscard]] parameter_gradients<float> backward(const Sequence& sequence, const E& encoding,
                                                    const fused::execution& how) const {
    return fused::attention_backward_into(sequence, encoding, how);
  }
};

}  // inline namespace
}  // namespace posenc::inline v0_2::mpi
