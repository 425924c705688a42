// SPDX-License-Identifier: MIT
/// \file
/// Bars of the matrix units, and of the products of floats beside them.
///
/// The tile unit of a virtual machine is shared with others: its peak moves by a factor of four within an hour. It is
/// measured beside each call that is compared with it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <posenc/fused/highway.hpp>

#include <posenc/fused/units/amx-inl.hpp>
#include <posenc/fused/units/machine.hpp>

#include "measure.hpp"
#include "peak.hpp"

namespace bars {
namespace {
using posenc::fused::matrix_unit;

/// Operations per second of tile products whose operands come from the L1 cache; 0 without AMX.
double tile_peak() {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
  namespace kernels = posenc::detail::fused_kernels::HWY_NAMESPACE;
  if (!posenc::detail::fused_units::may_use_tiles()) return 0;
  constexpr index_t steps = 8, blocks = 20'000;
  static const std::vector<std::uint16_t> operand(2 * steps * kernels::a_tile_size, 0x3c00);
  std::vector<float> c(32 * 32);
  const kernels::tile_operand half{operand.data(), steps * kernels::a_tile_size, 0};
  const kernels::amx_unit::session tiles;
  kernels::nothing_between nothing;
  double best = 0;
  for (int n = 0; n < 3; ++n) {
    const auto start = std::chrono::steady_clock::now();
    for (index_t block = 0; block < blocks; ++block)
      kernels::amx_unit::multiply({half, half, c.data(), 32, steps, 1, false}, nothing);
    best = (std::max)(best, 2.0 * blocks * 32 * 32 * 32 * steps / posenc::bench::seconds_since(start));
  }
  return best;
#else
  return 0;
#endif
}

/// Useful operations of a causal prefill.
template <class S>
double operations_of(const call<S>& c) {
  return 2.0 * static_cast<double>(c.queries * (c.queries + 1)) * static_cast<double>(c.heads * c.head_dim);
}

/// A call by name, in its storage.
template <class S>
struct shaped : call<S> {
  std::string name;
  posenc::fused::arithmetic arithmetic = posenc::fused::arithmetic::automatic;
  matrix_unit unit = matrix_unit::automatic;

  shaped(std::string of, index_t tokens, index_t of_heads, index_t of_kv_heads, index_t channels)
      : call<S>{tokens, tokens, of_heads, of_kv_heads, channels}, name(std::move(of)) {}
  template <class E>
  void attend(const E& encoding) {
    posenc::fused::attention_into(posenc::as_heads(this->q, this->heads),
                                  posenc::as_heads(this->k, this->kv_heads),
                                  posenc::as_heads(this->v, this->kv_heads), encoding, this->options(),
                                  posenc::as_heads(this->out, this->heads), {},
                                  {.memory = &this->memory, .arithmetic = arithmetic, .unit = unit});
  }
  [[nodiscard]] double rate() {
    const auto rope = rope_of(this->head_dim);
    return operations_of(*this) / seconds_of([&] { attend(rope); }, 1);
  }
};

template <class S>
std::vector<shaped<S>> shapes() {
  std::vector<shaped<S>> all;
  all.reserve(4);
  all.emplace_back("32/8x128-1024", 1024, 32, 8, 128), all.emplace_back("32/8x128-2048", 2048, 32, 8, 128);
  all.emplace_back("32/8x128-4096", 4096, 32, 8, 128), all.emplace_back("12x64-1024", 1024, 12, 12, 64);
  return all;
}
template <class S>
bool is_long(const shaped<S>& c) {
  return c.queries >= 2048;
}

/// A rate over the aim of that very moment, so that met is at least 1.
template <class S, class Aim>
void against(shaped<S>& c, const std::string& what, const Aim& aim) {
  const std::string name = "units-" + what + "-" + c.name;
  if (!wanted(name.c_str())) return;
  (void)c.rate();
  std::vector<double> shares;
  for (int n = 0; n < 9; ++n) shares.push_back(c.rate() / aim(posenc::bench::fma_peak(), tile_peak()));
  report(name.c_str(), quartiles_of(std::move(shares)), "of aim", 1, false);
}

void skip(const char* what, const char* why) { std::printf("%-46s skipped: %s\n", what, why); }

void amx() {
  for (shaped<Eigen::bfloat16>& c : shapes<Eigen::bfloat16>())
    against(c, "amx-bfloat16", [&](double fma, double tile) {
      return is_long(c) ? (std::min)(3.3 * fma, 0.7 * tile) : (std::min)(2.2 * fma, 0.5 * tile);
    });
  for (shaped<float>& c : shapes<float>()) {
    if (!is_long(c)) continue;
    c.arithmetic = posenc::fused::arithmetic::bfloat16x3;
    against(c, "amx-float-in-three-pieces",
            [](double fma, double tile) { return tile >= 12 * fma ? 1.2 * fma : 0.6 * tile / 6; });
    c.arithmetic = posenc::fused::arithmetic::bfloat16x2;
    against(c, "amx-float-in-two-pieces",
            [](double fma, double tile) { return (std::min)(2 * fma, 0.6 * tile / 3); });
  }
}

void avx512_bf16() {
  shaped<Eigen::bfloat16> narrow("32/8x128-2048", 2048, 32, 8, 128);
  shaped<float> wide("32/8x128-2048", 2048, 32, 8, 128);
  narrow.unit = matrix_unit::avx512_bf16;
  const auto rope = rope_of(128);
  report("units-avx512_bf16-against-float-2048",
         ratio_of([&] { wide.attend(rope); }, [&] { narrow.attend(rope); }, 9), "x float", 1.4, false);
}

}  // namespace

void matrix_units() {
  if (!wanted("units")) return;
  const posenc::detail::fused_units::processor& has = posenc::detail::fused_units::this_processor();
  // Cores with two 512-bit units lose more of their peak to what is no product.
  for (shaped<float>& c : shapes<float>())
    if (c.queries != 1024 || c.head_dim == 64)
      against(c, "float", [&](double fma, double) { return (is_long(c) ? 0.75 : 0.68) * fma; });
  shaped<float> narrow("12x64-1024", 1024, 12, 12, 64);
  const auto rope = rope_of(64);
  const posenc::no_encoding none;
  report("units-float-rope-12x64-1024",
         ratio_of([&] { narrow.attend(rope); }, [&] { narrow.attend(none); }, 15), "x none", 1.05);
  if (posenc::detail::fused_units::may_use_tiles()) {
    std::printf("# tile peak %.0f GFLOP/s\n", tile_peak() * 1e-9);
    amx();
  } else {
    skip("units-amx-*", "no AMX on this processor");
  }
  if (has.is_fast_at_avx512_bf16)
    avx512_bf16();
  else
    skip("units-avx512_bf16-*", has.has_avx512_bf16 ? "AVX-512 BF16 does not pay on this processor"
                                                    : "no AVX-512 BF16 on this processor");
}

}  // namespace bars
