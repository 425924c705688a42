// SPDX-License-Identifier: MIT
/// \file
/// A long text through the attention layers of a small model, its rows spread over several ranks, checked against one.
///
///     mpirun -n 4 ring --text build/opticks.txt --tokens 8192 --layers 4
///
/// The layers have the shape of SmolLM2-135M (9/3 heads of 64 channels, RoPE of base 100,000) and random weights; a token
/// is a byte. Each rank embeds, projects and adds up its own rows; only attention needs the others.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <mpi.h>

#include <posenc/distributed/mpi.hpp>
#include <posenc/posenc.hpp>

namespace {
using posenc::index_t;
using matrix = posenc::row_major_matrix<float>;

constexpr index_t heads = 9, kv_heads = 3, head_dim = 64, model_dim = heads * head_dim;

struct arguments {
  std::string text;
  index_t tokens = 4096, layers = 4;
  bool check = true;
};

arguments parse(int argc, char** argv) {
  arguments result;
  for (int n = 1; n < argc; ++n) {
    const std::string name = argv[n];
    if (name == "--no-check") {
      result.check = false;
      continue;
    }
    posenc::detail::require(n + 1 < argc, "ring: ", name, " needs a value");
    const char* const value = argv[++n];
    if (name == "--text")
      result.text = value;
    else if (name == "--tokens")
      result.tokens = std::atol(value);
    else if (name == "--layers")
      result.layers = std::atol(value);
    else
      posenc::detail::require(false, "ring: unknown argument ", name,
                              " (--text --tokens --layers --no-check)");
  }
  return result;
}

std::string read(const std::string& path, index_t bytes) {
  std::ifstream file(path, std::ios::binary);
  posenc::detail::require(static_cast<bool>(file), "ring: cannot read the text \"", path, "\"");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  posenc::detail::require(!text.empty(), "ring: the text is empty");
  while (static_cast<index_t>(text.size()) < bytes) text += text;
  text.resize(static_cast<std::size_t>(bytes));
  return text;
}

matrix random(index_t rows, index_t columns, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(model_dim)));
  return matrix::NullaryExpr(rows, columns, [&] { return normal(bits); });
}

/// The residual stream through all layers; attend(q, k, v) gives the output of attention.
template <class Attend>
matrix run(const std::vector<unsigned char>& bytes, index_t layers, const Attend& attend) {
  const matrix embedding = random(256, model_dim, 1) * std::sqrt(static_cast<float>(model_dim));
  matrix x(static_cast<index_t>(bytes.size()), model_dim);
  for (index_t row = 0; row < x.rows(); ++row)
    x.row(row) = embedding.row(bytes[static_cast<std::size_t>(row)]);
  for (index_t layer = 0; layer < layers; ++layer) {
    const auto seed = static_cast<unsigned>(10 * layer + 2);
    matrix normed = x;
    for (index_t row = 0; row < x.rows(); ++row)
      normed.row(row) *= std::sqrt(static_cast<float>(model_dim) / (x.row(row).squaredNorm() + 1e-6f));
    const matrix q = normed * random(model_dim, model_dim, seed);
    const matrix k = normed * random(model_dim, kv_heads * head_dim, seed + 1);
    const matrix v = normed * random(model_dim, kv_heads * head_dim, seed + 2);
    x += attend(q, k, v) * random(model_dim, model_dim, seed + 3);
  }
  return x;
}

int run_ring(int argc, char** argv) {
  const arguments given = parse(argc, argv);
  const posenc::mpi::context ring(MPI_COMM_WORLD, given.tokens);
  const std::string text = read(given.text, given.tokens);
  const posenc::rope<float> rope{
      {.head_dim = head_dim, .base = 100'000.0, .pairing = posenc::pairing::half_split}};
  const posenc::attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};

  std::vector<unsigned char> own;
  for (const index_t row : ring.keys().rows(ring.rank()))
    own.push_back(static_cast<unsigned char>(text[static_cast<std::size_t>(row)]));
  double seconds = 0;
  const matrix x = run(own, given.layers, [&](const matrix& q, const matrix& k, const matrix& v) {
    matrix out(q.rows(), q.cols());
    const double start = MPI_Wtime();
    posenc::mpi::attention_into(posenc::as_heads(q, heads), posenc::as_heads(k, kv_heads),
                                posenc::as_heads(v, kv_heads), rope, options, posenc::as_heads(out, heads),
                                ring);
    seconds += MPI_Wtime() - start;
    return out;
  });
  double slowest = 0;
  MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (ring.rank() == 0)
    std::printf("%ld tokens, %ld layers, %ld ranks: %.3f s in attention\n", static_cast<long>(given.tokens),
                static_cast<long>(given.layers), static_cast<long>(ring.ranks()), slowest);
  if (!given.check) return 0;

  // Everything once more on this rank alone.
  const std::vector<unsigned char> all(text.begin(), text.end());
  const matrix expected = run(all, given.layers, [&](const matrix& q, const matrix& k, const matrix& v) {
    return posenc::fused::attention(q, k, v, rope, options);
  });
  double worst = 0, apart = 0;
  index_t local = 0;
  for (const index_t row : ring.keys().rows(ring.rank())) {
    apart = std::max(
        apart, static_cast<double>((x.row(local) - expected.row(row)).norm() / expected.row(row).norm()));
    ++local;
  }
  MPI_Allreduce(&apart, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (ring.rank() == 0) std::printf("against one process: rows differ by at most %.1e\n", worst);
  return worst <= 1e-5 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, status = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  try {
    status = run_ring(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  MPI_Finalize();
  return status;
}
