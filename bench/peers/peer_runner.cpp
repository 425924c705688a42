// SPDX-License-Identifier: MIT
/// \file
/// The posenc side of compare.py: reads q, k and v from raw float files, stores k and v as asked, and runs the fused
/// attention, or its gradient, once for every line on standard input, answering with the seconds of the processor that it
/// took. Keeping the process alive lets the script take turns with its peers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "peak.hpp"

namespace {

/// Aligned to a vector, as the peers' own tensors are: a std::vector's start lies across cache lines, which costs
/// decode a fifth.
using floats = std::vector<float, Eigen::aligned_allocator<float>>;

[[nodiscard]] floats read_floats(const std::string& path, std::size_t count) {
  floats values(count);
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr || std::fread(values.data(), sizeof(float), count, file) != count) {
    std::fprintf(stderr, "peer_runner: cannot read %zu floats from %s\n", count, path.c_str());
    std::exit(2);
  }
  std::fclose(file);
  return values;
}

void write_floats(const std::string& path, const floats& values) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(values.data(), sizeof(float), values.size(), file) != values.size()) {
    std::fprintf(stderr, "peer_runner: cannot write %s\n", path.c_str());
    std::exit(2);
  }
  std::fclose(file);
}

using float_rows = posenc::heads_view<const float>;

/// Calls use(k, v) with sources of the kind `cache`: float, half, q8_0 or int8. What they point to lives as long as the
/// program.
template <class Use>
void with_cache(const std::string& cache, const float_rows& k, const float_rows& v, const Use& use) {
  if (cache == "half") {
    static std::vector<Eigen::half, Eigen::aligned_allocator<Eigen::half>> of_k, of_v;
    const auto narrow = [](const float_rows& rows, auto& to) {
      for (posenc::index_t n = 0; n < rows.tokens * rows.token_stride; ++n) to.emplace_back(rows.data[n]);
      return posenc::token_major(std::as_const(to).data(), rows.tokens, rows.heads, rows.head_dim);
    };
    use(narrow(k, of_k), narrow(v, of_v));
  } else if (cache == "q8_0") {
    static posenc::q8_0_cache of_k(k.heads, k.head_dim), of_v(v.heads, v.head_dim);
    of_k.append(k), of_v.append(v);
    use(of_k.view(), of_v.view());
  } else if (cache == "int8") {
    static posenc::quantised_key_cache of_k(k.heads, k.head_dim);
    static posenc::quantised_value_cache of_v(v.heads, v.head_dim);
    of_k.append(k), of_v.append(v);
    use(of_k.view(), of_v.view());
  } else if (cache == "float") {
    use(k, v);
  } else {
    std::fprintf(stderr, "peer_runner: a cache of %s?\n", cache.c_str());
    std::exit(2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(
        stderr,
        "usage: peer_runner DIR QUERIES KEYS HEADS KV_HEADS HEAD_DIM BASE float|half|bfloat16|q8_0|int8\n");
    return 2;
  }
  const std::string folder = argv[1];
  const posenc::index_t queries = std::atol(argv[2]), keys = std::atol(argv[3]), heads = std::atol(argv[4]),
                        kv_heads = std::atol(argv[5]), head_dim = std::atol(argv[6]);
  const auto size = [&](posenc::index_t tokens, posenc::index_t of_heads) {
    return static_cast<std::size_t>(tokens * of_heads * head_dim);
  };
  const floats q = read_floats(folder + "/q.f32", size(queries, heads));
  const floats k = read_floats(folder + "/k.f32", size(keys, kv_heads));
  const floats v = read_floats(folder + "/v.f32", size(keys, kv_heads));
  floats out(q.size()), d_out, d_q(q.size()), d_k(k.size()), d_v(v.size());
  floats log_sum_exp(static_cast<std::size_t>(queries * heads));
  posenc::fused::workspace memory;

  const posenc::rope<float> rope{
      {.head_dim = head_dim, .base = std::atof(argv[7]), .pairing = posenc::pairing::half_split}};
  const posenc::attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};

  std::function<void()> attend;
  // With bfloat16 everything is stored so, queries and output too: what a matrix unit takes.
  using bfloat16 = Eigen::bfloat16;
  std::vector<bfloat16, Eigen::aligned_allocator<bfloat16>> narrow_q, narrow_k, narrow_v, narrow_out;
  if (std::strcmp(argv[8], "bfloat16") == 0) {
    const auto narrow = [](const floats& from, auto& to) {
      for (const float x : from) to.emplace_back(x);
    };
    narrow(q, narrow_q), narrow(k, narrow_k), narrow(v, narrow_v);
    narrow_out.resize(out.size());
    attend = [&] {
      const auto rows = [&](const auto& of, posenc::index_t tokens, posenc::index_t of_heads) {
        return posenc::token_major(of.data(), tokens, of_heads, head_dim);
      };
      posenc::fused::attention_into(rows(narrow_q, queries, heads), rows(narrow_k, keys, kv_heads),
                                    rows(narrow_v, keys, kv_heads), rope, options,
                                    posenc::token_major(narrow_out.data(), queries, heads, head_dim), {},
                                    {.memory = &memory});
    };
  } else {
    with_cache(argv[8], posenc::token_major(k.data(), keys, kv_heads, head_dim),
               posenc::token_major(v.data(), keys, kv_heads, head_dim),
               [&](const auto& k_rows, const auto& v_rows) {
                 attend = [&, k_rows, v_rows] {
                   posenc::fused::attention_into(
                       posenc::token_major(q.data(), queries, heads, head_dim), k_rows, v_rows, rope, options,
                       posenc::token_major(out.data(), queries, heads, head_dim), {}, {.memory = &memory});
                 };
               });
  }

  const auto rows = [&](auto& values, posenc::index_t tokens, posenc::index_t of_heads) {
    return posenc::token_major(values.data(), tokens, of_heads, head_dim);
  };
  const auto backward = [&] {
    const posenc::head_scalars_view<float> lse{log_sum_exp.data(), queries, heads, heads, 1};
    if (d_out.empty()) {  // the first time, which is not timed
      d_out = read_floats(folder + "/d_out.f32", q.size());
      posenc::fused::attention_into(rows(q, queries, heads), rows(k, keys, kv_heads), rows(v, keys, kv_heads),
                                    rope, options, rows(out, queries, heads), lse);
    }
    posenc::fused::attention_backward_into(
        posenc::backward_sequence<float>{rows(q, queries, heads),
                                         rows(k, keys, kv_heads),
                                         rows(v, keys, kv_heads),
                                         rows(out, queries, heads),
                                         {log_sum_exp.data(), queries, heads, heads, 1},
                                         rows(d_out, queries, heads),
                                         rows(d_q, queries, heads),
                                         rows(d_k, keys, kv_heads),
                                         rows(d_v, keys, kv_heads),
                                         options},
        rope, {.memory = &memory});
  };

  std::printf("ready %s\n", posenc::fused::target_name());
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::clock_t start = std::clock();
    double answer = 0;
    const bool is_gradient = std::strstr(line, "gradient") != nullptr;
    if (std::strncmp(line, "peak", 4) == 0) {
      answer = posenc::bench::fma_peak();
    } else if (std::strncmp(line, "bandwidth", 9) == 0) {
      answer = (posenc::bench::read_bandwidth(k) + posenc::bench::read_bandwidth(v)) / 2;
    } else {
      is_gradient ? backward() : attend();
      answer = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    }
    if (std::strncmp(line, "save", 4) == 0) {
      std::transform(narrow_out.begin(), narrow_out.end(), out.begin(),
                     [](bfloat16 x) { return static_cast<float>(x); });
      if (is_gradient)
        write_floats(folder + "/d_q.f32", d_q), write_floats(folder + "/d_k.f32", d_k),
            write_floats(folder + "/d_v.f32", d_v);
      else
        write_floats(folder + "/out.f32", out);
    }
    std::printf("%.9g\n", answer);
    std::fflush(stdout);
  }
  return 0;
}
