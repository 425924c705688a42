// SPDX-License-Identifier: MIT
/// \file
/// AMX as a matrix unit: tiles of 16 × 16 floats, four of C, two of A and two of B. Included once per instruction set.
///
/// Its instructions are written by their names, as the functions of a header would need flags that the kernels are
/// compiled without.
#if defined(POSENC_FUSED_AMX_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef POSENC_FUSED_AMX_INL_HPP
#undef POSENC_FUSED_AMX_INL_HPP
#else
#define POSENC_FUSED_AMX_INL_HPP
#endif

#include <algorithm>
#include <cstddef>
#include <utility>

#include <posenc/fused/units/avx512_bf16-inl.hpp>

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE {

/// The shapes of the eight tiles, as ldtilecfg reads them.
struct alignas(64) tile_shapes {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(tile_shapes) == 64);

struct amx_unit {
  static constexpr index_t tiles = 8, tile_bytes = 1024;

  template <int Tile>
  static HWY_INLINE void load_tile(const void* from, index_t row_bytes) {
    asm volatile("{tileloadd (%1,%2,1), %%tmm%c0|tileloadd tmm%c0, [%1+%2*1]}" ::"i"(Tile), "r"(from),
                 "r"(row_bytes)
                 : "memory");
  }
  template <int Tile>
  static HWY_INLINE void store_tile(void* to, index_t row_bytes) {
    asm volatile("{tilestored %%tmm%c0, (%1,%2,1)|tilestored [%1+%2*1], tmm%c0}" ::"i"(Tile), "r"(to),
                 "r"(row_bytes)
                 : "memory");
  }
  template <int Tile>
  static HWY_INLINE void zero_tile() {
    asm volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" ::"i"(Tile));
  }
  /// C += A·B
  template <int C, int A, int B>
  static HWY_INLINE void multiply_tiles() {
    asm volatile("{tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps tmm%c0, tmm%c1, tmm%c2}" ::"i"(C), "i"(A),
                 "i"(B));
  }
  static HWY_INLINE void set_shapes(const tile_shapes& shapes) {
    asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
  }
  static HWY_INLINE void get_shapes(tile_shapes& shapes) {
    asm volatile("sttilecfg %0" : "=m"(shapes)::"memory");
  }
  static HWY_INLINE void release() { asm volatile("tilerelease"); }

  /// Sets the thread's tiles while it lives. Where they were in use, they are afterwards what they were before.
  class session {
   public:
    HWY_NOINLINE session() {
      get_shapes(before_);
      if (before_.palette != 0) for_each_tile<true>(std::make_integer_sequence<int, int{tiles}>());
      tile_shapes ours;
      ours.palette = 1;
      std::fill_n(ours.row_bytes, tiles, std::uint16_t{64});
      std::fill_n(ours.rows, tiles, static_cast<std::uint8_t>(tile_rows));
      set_shapes(ours);
    }
    session(const session&) = delete;
    session& operator=(const session&) = delete;
    HWY_NOINLINE ~session() {
      if (before_.palette == 0) {
        release();
      } else {
        set_shapes(before_);
        for_each_tile<false>(std::make_integer_sequence<int, int{tiles}>());
      }
    }

   private:
    template <bool Saves, int... Tile>
    HWY_INLINE void for_each_tile(std::integer_sequence<int, Tile...>) {
      (keep<Saves, Tile>(), ...);
    }
    template <bool Saves, int Tile>
    HWY_INLINE void keep() {
      if (before_.rows[Tile] == 0 || before_.row_bytes[Tile] == 0) return;  // a tile without a shape
      if constexpr (Saves)
        store_tile<Tile>(data_ + Tile * tile_bytes, 64);
      else
        load_tile<Tile>(data_ + Tile * tile_bytes, 64);
    }

    tile_shapes before_;
    alignas(64) std::byte data_[tiles * tile_bytes];
  };

  template <class Between>
  static HWY_NOINLINE void multiply(const tile_product& product, Between& between) {
    constexpr index_t row_bytes = 64;
    const index_t c_bytes = product.c_row * static_cast<index_t>(sizeof(float));
    float* const c = product.c;
    float* const lower = c + tile_rows * product.c_row;
    if (product.adds) {
      load_tile<0>(c, c_bytes), load_tile<1>(c + tile_rows, c_bytes);
      load_tile<2>(lower, c_bytes), load_tile<3>(lower + tile_rows, c_bytes);
    } else {
      zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    }
    Between here = between;
    for_each_product(product, [&](const std::uint16_t* a, const std::uint16_t* b) HWY_ATTR {
      for (index_t s = 0; s < product.steps; ++s, a += a_tile_size, b += tile_depth * tile_rows) {
        load_tile<4>(a, row_bytes), load_tile<6>(b, row_bytes);
        multiply_tiles<0, 4, 6>();
        load_tile<7>(b + product.b.tile, row_bytes);
        multiply_tiles<1, 4, 7>();
        load_tile<5>(a + product.a.tile, row_bytes);
        multiply_tiles<2, 5, 6>();
        multiply_tiles<3, 5, 7>();
        here.step();
      }
    });
    between = here;
    store_tile<0>(c, c_bytes), store_tile<1>(c + tile_rows, c_bytes);
    store_tile<2>(lower, c_bytes), store_tile<3>(lower + tile_rows, c_bytes);
  }
};

}  // namespace posenc::inline v0_2::detail::fused_kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
