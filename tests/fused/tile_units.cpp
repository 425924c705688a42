// SPDX-License-Identifier: MIT
/// \file
/// The matrix units one by one, against what the manuals say of their instructions. Where this processor has no AMX, its
/// instructions raise SIGILL: a handler then does what the manual says that they do, so that the unit's code runs
/// everywhere, operands and tile state included.
#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <posenc/fused/highway.hpp>

#include <posenc/fused/units/amx-inl.hpp>
#include <posenc/fused/units/avx512_bf16-inl.hpp>
#include <posenc/fused/units/emulated-inl.hpp>
#include <posenc/fused/units/machine.hpp>

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3 && defined(__linux__)
#include <ucontext.h>
#endif

namespace tile_units {
namespace kernels = posenc::detail::fused_kernels::HWY_NAMESPACE;
using posenc::index_t;
using half = std::uint16_t;

float widened(half x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }
/// The nearer of the two neighbours, of two as near the larger one.
half nearest(float x) {
  const auto smaller = static_cast<half>(std::bit_cast<std::uint32_t>(x) >> 16);
  const auto larger = static_cast<half>(smaller + 1);
  return std::fabs(x - widened(smaller)) < std::fabs(widened(larger) - x) ? smaller : larger;
}
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// tdpbf16ps by the manual: even and odd products of a row and a column apart, then both sums, then C.
float tile_dot(const half* a, const half* b, index_t column_stride, float c) {
  float sums[2] = {};
  for (index_t k = 0; k < 32; ++k) {
    float& sum = sums[k % 2];
    sum = flushed(std::fma(flushed(widened(a[k])), flushed(widened(b[k / 2 * column_stride + k % 2])), sum));
  }
  return flushed(flushed(c) + flushed(sums[0] + sums[1]));
}
/// vdpbf16ps by the manual, along a row: the odd product of a pair first.
float vector_dot(const half* a, const half* b, index_t column_stride, float c) {
  for (index_t k = 0; k < 32; k += 2)
    for (const index_t n : {k + 1, k})
      c = flushed(
          std::fma(flushed(widened(a[n])), flushed(widened(b[k / 2 * column_stride + n % 2])), flushed(c)));
  return c;
}

struct counter {
  index_t steps = 0;
  void step() { ++steps; }
};

/// A block of operands with all sorts of numbers in it: denormals, zeros of both signs, sizes far apart.
struct block {
  static constexpr index_t steps = 3, pieces = 3;
  index_t columns = kernels::lanes(), c_row = 2 * columns + 5;
  std::vector<half> a, b;
  std::vector<float> c;

  explicit block(unsigned seed)
      : a(static_cast<std::size_t>(pieces * 2 * steps * kernels::a_tile_size)),
        b(static_cast<std::size_t>(pieces * 2 * steps * kernels::b_tile_size())),
        c(static_cast<std::size_t>(32 * c_row)) {
    std::mt19937 draw(seed);
    std::normal_distribution<float> normal;
    const auto some = [&] {
      const float size = draw() % 8 == 0 ? 0x1p-70f : draw() % 8 == 0 ? 0x1p20f : 1.0f;
      const half bits = static_cast<half>(std::bit_cast<std::uint32_t>(normal(draw) * size) >> 16);
      return draw() % 16 == 0 ? static_cast<half>(bits & 0x803fu) : bits;  // a denormal
    };
    for (half& x : a) x = some();
    for (half& x : b) x = some();
    for (float& x : c) x = draw() % 9 == 0 ? 0x1p-130f : normal(draw);
  }

  [[nodiscard]] kernels::tile_product product(float* to, index_t of_pieces, bool adds) const {
    return {{a.data(), steps * kernels::a_tile_size, 2 * steps * kernels::a_tile_size},
            {b.data(), steps * kernels::b_tile_size(), 2 * steps * kernels::b_tile_size()},
            to,
            c_row,
            steps,
            of_pieces,
            adds};
  }

  template <class Dot>
  [[nodiscard]] std::vector<float> expected(const Dot& dot, index_t of_pieces, bool adds) const {
    std::vector<float> result = c;
    for (index_t r = 0; r < 32; ++r)
      for (index_t x = 0; x < 2 * columns; ++x) {
        float sum = adds ? c[static_cast<std::size_t>(r * c_row + x)] : 0.0f;
        for (index_t order = of_pieces - 1; order >= 0; --order)
          for (index_t i = 0; i <= order; ++i)
            for (index_t s = 0; s < steps; ++s) {
              const half* const row =
                  a.data() + ((i * 2 + r / 16) * steps + s) * kernels::a_tile_size + r % 16 * 32;
              const half* const column =
                  b.data() + (((order - i) * 2 + x / columns) * steps + s) * kernels::b_tile_size() +
                  x % columns * 2;
              sum = dot(row, column, columns * 2, sum);
            }
        result[static_cast<std::size_t>(r * c_row + x)] = sum;
      }
    return result;
  }
};

/// Runs a unit over blocks and compares bits.
template <class Unit, class Dot>
void expect_bits(const Dot& dot, bool has_steps) {
  for (const unsigned seed : {1u, 2u})
    for (const index_t pieces : {1, 2, 3})
      for (const bool adds : {false, true}) {
        const block of(seed);
        std::vector<float> found = of.c;
        counter between;
        Unit::multiply(of.product(found.data(), pieces, adds), between);
        const std::vector<float> expected = of.expected(dot, pieces, adds);
        for (std::size_t n = 0; n < found.size(); ++n)
          ASSERT_EQ(std::bit_cast<std::uint32_t>(found[n]), std::bit_cast<std::uint32_t>(expected[n]))
              << "element " << n << ", " << pieces << " pieces: " << found[n] << ", by the manual "
              << expected[n];
        EXPECT_EQ(between.steps, has_steps ? block::steps * pieces * (pieces + 1) / 2 : 0);
      }
}

TEST(TileUnits, TheEmulationGivesTheBitsOfTheManual) { expect_bits<kernels::emulated_unit>(tile_dot, true); }

TEST(TileUnits, PiecesAreTheNearestOfWhatIsLeft) {
  std::mt19937 draw(3);
  std::normal_distribution<float> normal;
  constexpr index_t channels = 40, rows = 20, stride = 70, depth = 64;
  std::vector<float> from(32 * stride);
  for (float& x : from) x = normal(draw);
  from[0] = 1.00390625f, from[1] = 1.01171875f;  // halfway: away from zero
  std::vector<half> cut(3 * 32 * depth, half{0x1234});
  EXPECT_TRUE(kernels::cut_rows(from.data(), stride, rows, channels, 3, 32 * depth, 0x5d800000u, cut.data()));
  for (index_t r = 0; r < 32; ++r)
    for (index_t c = 0; c < depth; ++c) {
      float rest = r < rows && c < channels ? from[static_cast<std::size_t>(r * stride + c)] : 0.0f;
      for (index_t piece = 0; piece < 3; ++piece) {
        const half found = cut[static_cast<std::size_t>(piece * 32 * depth + (r / 16 * 2 + c / 32) * 512 +
                                                        r % 16 * 32 + c % 32)];
        EXPECT_EQ(found, nearest(rest)) << r << ", " << c << ", piece " << piece;
        rest -= widened(found);
      }
      EXPECT_EQ(rest, 0.0f);
    }
  EXPECT_EQ(widened(cut[0]), 1.0078125f);
  EXPECT_EQ(widened(cut[1]), 1.015625f);

  from[stride] = 0x1p60f;
  EXPECT_FALSE(kernels::cut_rows(from.data(), stride, rows, channels, 1, 0, 0x5d800000u, cut.data()));
}

TEST(TileUnits, ColumnsBecomeWordsOfTwoRows) {
  const index_t lanes = kernels::lanes(), width = 2 * lanes;
  constexpr index_t rows = 35, depth = 64;
  std::vector<float> from(static_cast<std::size_t>(rows * width));
  for (std::size_t n = 0; n < from.size(); ++n) from[n] = static_cast<float>(n % 251);
  std::vector<half> cut(static_cast<std::size_t>(depth * width), half{0x1234});
  kernels::cut_columns(from.data(), rows, 1, 0, cut.data());
  for (index_t r = 0; r < depth; ++r)
    for (index_t x = 0; x < width; ++x) {
      const half found =
          cut[static_cast<std::size_t>(x / lanes * lanes * depth + r / 2 * width + x % lanes * 2 + r % 2)];
      EXPECT_EQ(widened(found), r < rows ? from[static_cast<std::size_t>(r * width + x)] : 0.0f)
          << r << ", " << x;
    }
}

TEST(TileUnits, ATableOfProcessorsDecidesWhereAvx512Bf16Pays) {
  using posenc::detail::fused_units::is_fast_at_avx512_bf16;
  EXPECT_TRUE(is_fast_at_avx512_bf16(true, 0x19));   // Zen 4
  EXPECT_TRUE(is_fast_at_avx512_bf16(true, 0x1a));   // Zen 5
  EXPECT_FALSE(is_fast_at_avx512_bf16(true, 0x17));  // Zen 2
  EXPECT_FALSE(is_fast_at_avx512_bf16(false, 6));    // Xeon
}

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
TEST(TileUnits, Avx512Bf16GivesTheBitsOfTheManual) {
  if (!posenc::detail::fused_units::this_processor().has_avx512_bf16)
    GTEST_SKIP() << "no AVX-512 BF16 on this processor";
  expect_bits<kernels::avx512_bf16_unit>(vector_dot, false);
}

#if defined(__linux__)
/// The tiles of a thread, and what the six instructions do to them.
struct tile_state {
  kernels::tile_shapes shapes{};
  std::array<std::array<std::uint8_t, 1024>, 8> data{};

  void zero(int tile) { data[static_cast<std::size_t>(tile)].fill(0); }
  void release() {
    shapes = {};
    for (int n = 0; n < 8; ++n) zero(n);
  }
  void load_shapes(const void* from) {
    std::memcpy(&shapes, from, sizeof shapes);
    for (int n = 0; n < 8; ++n) zero(n);
  }
  void move(int tile, std::uint8_t* memory, std::int64_t stride, bool loads) {
    const auto n = static_cast<std::size_t>(tile);
    if (loads) zero(tile);
    for (int r = 0; r < shapes.rows[n]; ++r) {
      std::uint8_t* const row = data[n].data() + r * 64;
      if (loads)
        std::memcpy(row, memory + r * stride, shapes.row_bytes[n]);
      else
        std::memcpy(memory + r * stride, row, shapes.row_bytes[n]);
    }
  }
  void multiply(int c, int a, int b) {
    const auto at = [&](int tile, int r) { return data[static_cast<std::size_t>(tile)].data() + r * 64; };
    for (int r = 0; r < shapes.rows[static_cast<std::size_t>(c)]; ++r)
      for (int x = 0; x < shapes.row_bytes[static_cast<std::size_t>(c)] / 4; ++x) {
        half row[32], column[32];
        std::memcpy(row, at(a, r), 64);
        for (int k = 0; k < 16; ++k) std::memcpy(column + 2 * k, at(b, k) + 4 * x, 4);
        float sum;
        std::memcpy(&sum, at(c, r) + 4 * x, 4);
        sum = tile_dot(row, column, 2, sum);
        std::memcpy(at(c, r) + 4 * x, &sum, 4);
      }
  }
};
tile_state tiles;

/// Does what the AMX instruction at hand does, and goes on after it. Any other ends the program.
void run_instruction(int, siginfo_t*, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]);
  // A prefix of three bytes: C4, inverted bits R, X, B and the map 2, then vvvv inverted and the kind of instruction.
  const bool is_vex = code[0] == 0xc4 && (code[1] & 0x1fu) == 2;
  const unsigned kind = code[2] & 3u, opcode = code[3], form = code[4];
  const int third = static_cast<int>(~code[2] >> 3 & 7u), reg = static_cast<int>(form >> 3 & 7u);
  constexpr int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  const auto value = [&](unsigned low, unsigned bit) {
    return registers[order[low + ((code[1] & bit) != 0 ? 0u : 8u)]];
  };
  std::int64_t length = 5, address = 0, stride = 0;
  const auto operand = [&] {  // mod, base, index and displacement
    const unsigned mod = form >> 6, low = form & 7u;
    if (low == 4) {
      const unsigned sib = code[5];
      length = 6;
      address = value(sib & 7u, 0x20u);
      const bool has_index = (sib >> 3 & 7u) != 4 || (code[1] & 0x40u) == 0;
      if (has_index) stride = value(sib >> 3 & 7u, 0x40u) * (std::int64_t{1} << (sib >> 6));
    } else {
      address = value(low, 0x20u);
    }
    if (mod == 1) address += static_cast<std::int8_t>(code[length]), length += 1;
    if (mod == 2) {
      std::int32_t far;
      std::memcpy(&far, code + length, sizeof far);
      address += far, length += 4;
    }
    return reinterpret_cast<std::uint8_t*>(address);
  };
  const bool in_memory = form >> 6 != 3;
  if (is_vex && opcode == 0x49 && kind == 0 && form == 0xc0)
    tiles.release();
  else if (is_vex && opcode == 0x49 && kind == 0 && in_memory)
    tiles.load_shapes(operand());
  else if (is_vex && opcode == 0x49 && kind == 1 && in_memory)
    std::memcpy(operand(), &tiles.shapes, sizeof tiles.shapes);
  else if (is_vex && opcode == 0x49 && kind == 3 && !in_memory)
    tiles.zero(reg);
  else if (is_vex && opcode == 0x4b && (kind == 3 || kind == 2) && in_memory) {
    std::uint8_t* const memory = operand();
    tiles.move(reg, memory, stride, kind == 3);
  } else if (is_vex && opcode == 0x5c && kind == 2 && !in_memory)
    tiles.multiply(reg, static_cast<int>(form & 7u), third);
  else
    std::abort();
  registers[REG_RIP] += length;
}

/// AMX, of the processor or of the handler, while it lives.
class some_amx {
 public:
  some_amx() : is_real_(posenc::detail::fused_units::may_use_tiles()) {
    if (is_real_) return;
    struct sigaction action {};
    action.sa_sigaction = run_instruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  some_amx(const some_amx&) = delete;
  some_amx& operator=(const some_amx&) = delete;
  ~some_amx() {
    if (!is_real_) sigaction(SIGILL, &before_, nullptr);
  }
  [[nodiscard]] const char* name() const { return is_real_ ? "the processor" : "a handler of SIGILL"; }

 private:
  bool is_real_;
  struct sigaction before_ {};
};

TEST(TileUnits, AmxGivesTheBitsOfTheManual) {
  const some_amx amx;
  RecordProperty("amx", amx.name());
  const kernels::amx_unit::session session;
  expect_bits<kernels::amx_unit>(tile_dot, true);
}

TEST(TileUnits, ASessionLeavesNoTileStateWhereThereWasNone) {
  const some_amx amx;
  { const kernels::amx_unit::session session; }
  kernels::tile_shapes after;
  after.palette = 9;
  kernels::amx_unit::get_shapes(after);
  EXPECT_EQ(after.palette, 0);
}

TEST(TileUnits, ASessionGivesBackTheTilesOfAProgramThatUsesThem) {
  const some_amx amx;
  kernels::tile_shapes theirs;
  theirs.palette = 1;
  theirs.rows[0] = 5, theirs.row_bytes[0] = 48;
  theirs.rows[7] = 16, theirs.row_bytes[7] = 64;
  kernels::amx_unit::set_shapes(theirs);
  std::array<std::uint8_t, 1024> numbers{}, first{}, last{};
  for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<std::uint8_t>(n * 7);
  kernels::amx_unit::load_tile<0>(numbers.data(), 64);
  kernels::amx_unit::load_tile<7>(numbers.data(), 64);
  {
    const kernels::amx_unit::session session;
    expect_bits<kernels::amx_unit>(tile_dot, true);
  }
  kernels::tile_shapes after;
  kernels::amx_unit::get_shapes(after);
  EXPECT_EQ(std::memcmp(&after, &theirs, sizeof after), 0);
  kernels::amx_unit::store_tile<0>(first.data(), 64);
  kernels::amx_unit::store_tile<7>(last.data(), 64);
  kernels::amx_unit::release();
  EXPECT_EQ(last, numbers);
  for (std::size_t n = 0; n < first.size(); ++n)
    EXPECT_EQ(first[n], n / 64 < 5 && n % 64 < 48 ? numbers[n] : 0) << n;
}
#endif
#endif

}  // namespace tile_units
