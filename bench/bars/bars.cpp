// SPDX-License-Identifier: MIT
/// \file
/// The bars that this library holds itself to, one line each:
///
///     NAME VALUE UNIT AIM met|missed
///
/// A value is a ratio of two things measured by turns in this run (the median of the pairs, and in brackets the first
/// and third quartile), or a share. Nothing is compared with a number from another machine. Each variant's result is
/// checked against the reference before it is timed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <posenc/fused.hpp>
#include <posenc/posenc.hpp>

#include "measure.hpp"
#include "peak.hpp"
#if defined(POSENC_BARS_BASELINE)
#include "baseline.hpp"
#endif

using namespace bars;

namespace {

void planning() {
  if (!wanted("plan-share")) return;
  call<float> c{.queries = 1, .keys = 256, .heads = 9, .kv_heads = 3, .head_dim = 64};
  const auto rope = rope_of(64);
  c.check(rope, c.options(), "plan-share");
  posenc::fused::plan made(rope, c.options(), {.queries = 1, .keys = 256});
  const auto q = posenc::as_heads(c.q, 9), k = posenc::as_heads(c.k, 3), v = posenc::as_heads(c.v, 3);
  const auto out = posenc::as_heads(c.out, 9);
  const action step = [&] {
    posenc::fused::plan fresh(rope, c.options(), {.queries = 1, .keys = 256});
    for (int layer = 0; layer < 30; ++layer) fresh.run(q, k, v, out);
  };
  const action without = [&] {
    for (int layer = 0; layer < 30; ++layer) made.run(q, k, v, out);
  };
  const action grown = [&] {
    made.reshape(1, 256);
    for (int layer = 0; layer < 30; ++layer) made.run(q, k, v, out);
  };
  quartiles share = ratio_of(step, without);
  for (double* x : {&share.low, &share.median, &share.high}) *x = 1 - 1 / *x;
  report("plan-share-of-a-decode-step-9/3x64-256", share, "of step", 0.05);
  share = ratio_of(grown, without);
  for (double* x : {&share.low, &share.median, &share.high}) *x = 1 - 1 / *x;
  report("reshape-share-of-a-decode-step-9/3x64-256", share, "of step", 0.05);
}

void against_the_first_edition() {
#if defined(POSENC_BARS_BASELINE)
  struct shape {
    const char* name;
    index_t queries, keys, heads, kv_heads, head_dim;
    bool bfloat16, own_scratch;
    double aim;
  };
  for (const shape& s : {shape{"one-call-9/3x64-32-keys", 1, 32, 9, 3, 64, false, true, 0.75},
                         shape{"one-call-9/3x64-32-keys-with-workspace", 1, 32, 9, 3, 64, false, false, 0.75},
                         shape{"decode-32/8x128-4096", 1, 4096, 32, 8, 128, false, false, 1.03},
                         shape{"decode-32/8x128-32768", 1, 32768, 32, 8, 128, false, false, 1.03},
                         shape{"decode-32/8x128-32768-bfloat16", 1, 32768, 32, 8, 128, true, false, 1.03},
                         shape{"decode-9/3x64-256", 1, 256, 9, 3, 64, false, false, 1.03},
                         shape{"prefill-32/8x128-512", 512, 512, 32, 8, 128, false, false, 1.03},
                         shape{"prefill-32/8x128-2048", 2048, 2048, 32, 8, 128, false, false, 1.03},
                         shape{"prefill-12x64-1024", 1024, 1024, 12, 12, 64, false, false, 1.03}}) {
    const std::string name = std::string(s.name) + "-against-0.1";
    if (!wanted(name.c_str())) continue;
    const auto rope = rope_of(s.head_dim);
    const auto time = [&]<class S>(S) {
      call<S> c{s.queries, s.keys, s.heads, s.kv_heads, s.head_dim};
      c.check(rope, c.options(), s.name);
      matrix<S> theirs(s.queries, s.heads * s.head_dim);
      const action ours = [&] { c.run(rope, c.options(), s.own_scratch); };
      const action before = [&] {
        if constexpr (sizeof(S) == 4)
          baseline::attention(c.q.data(), c.k.data(), c.v.data(), theirs.data(), s.queries, s.keys, s.heads,
                              s.kv_heads, s.head_dim, s.own_scratch);
        else
          baseline::attention_bfloat16(reinterpret_cast<const unsigned short*>(c.q.data()),
                                       reinterpret_cast<const unsigned short*>(c.k.data()),
                                       reinterpret_cast<const unsigned short*>(c.v.data()),
                                       reinterpret_cast<unsigned short*>(theirs.data()), s.queries, s.keys,
                                       s.heads, s.kv_heads, s.head_dim);
      };
      before();
      const double apart = (theirs.template cast<double>() - c.out.template cast<double>()).norm() /
                           c.out.template cast<double>().norm();
      if (apart > (s.bfloat16 ? 1e-2 : 1e-5)) std::printf("%s: the editions differ by %g\n", s.name, apart);
      report(name.c_str(), ratio_of(ours, before, s.queries > 1000 ? 15 : 31), "x 0.1", s.aim);
    };
    if (s.bfloat16)
      time(Eigen::bfloat16{});
    else
      time(float{});
  }
#else
  std::printf("%-46s not measured: the headers of 0.1 are not in this checkout's history\n", "*-against-0.1");
#endif
}

void biases() {
  if (!wanted("combine-rope-t5")) return;
  call<float> c{.queries = 1, .keys = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128};
  const auto rope = rope_of(128);
  const auto both = posenc::combine(rope, t5_of(32));
  c.check(both, c.options(), "combine-rope-t5");
  report("combine-rope-t5-decode-8192",
         ratio_of([&] { c.run(both, c.options()); }, [&] { c.run(rope, c.options()); }), "x rope", 1.15);
}

/// Caches as engines keep and edit them: 8192 keys whose positions come one by one.
void edited_caches() {
  if (!wanted("edited-cache")) return;
  constexpr index_t keys = 8192;
  const auto rope = rope_of(128);
  call<float> c{.queries = 1, .keys = keys, .heads = 32, .kv_heads = 8, .head_dim = 128};
  const auto against = [&](const char* name, const std::vector<position>& where, double aim) {
    posenc::attention_options edited = c.options();
    edited.query_positions = posenc::positions::from(3 * keys);
    edited.key_positions = posenc::positions::each(where);
    c.run(rope, edited);
    report(name, ratio_of([&] { c.run(rope, edited); }, [&] { c.run(rope, c.options()); }), "x plain", aim);
  };
  std::vector<position> ring, one_block, ten_blocks;
  for (index_t row = 0; row < keys; ++row) {
    ring.push_back(row < 3000 ? row + 2 * keys : row + keys);
    one_block.push_back(row < 4000 ? row : row + 100);
    ten_blocks.push_back(row + row / 800 * 64);
  }
  against("edited-cache-ring-8192", ring, 1.10);
  against("edited-cache-one-evicted-block-8192", one_block, 1.10);
  against("edited-cache-ten-evicted-blocks-8192", ten_blocks, 1.25);
}

void masks() {
  const auto rope = rope_of(64);
  if (wanted("packed-documents")) {
    call<float> c{.queries = 1024, .keys = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64};
    posenc::attention_options packed = c.options();
    packed.visible = posenc::documents({0, 128, 256, 384, 512, 640, 768, 896});
    std::vector<posenc::fused::sequence<float>> batch;
    for (index_t n = 0; n < 8; ++n) {
      const auto part = [&](auto& m) { return posenc::token_major(m.data() + n * 128 * 768, 128, 12, 64); };
      batch.push_back({part(c.q), part(c.k), part(c.v), part(c.out), {}, c.options()});
      batch.back().options.key_positions = posenc::positions::from(n * 128);
    }
    const std::span<const posenc::fused::sequence<float>> all(batch);
    const action as_batch = [&] { posenc::fused::attention_batch(all, rope, {.memory = &c.memory}); };
    as_batch();
    const matrix<float> expected = c.out;
    c.run(rope, packed);
    if ((c.out - expected).norm() > 1e-4f * expected.norm()) std::exit(2);
    report("packed-documents-8-of-128-12x64", ratio_of([&] { c.run(rope, packed); }, as_batch), "x batch",
           1.15);
    posenc::attention_options uneven = c.options();
    uneven.visible = posenc::documents({0, 77, 190, 333, 470, 601, 780, 900});
    c.run(rope, uneven);
    report("packed-documents-uneven-12x64", ratio_of([&] { c.run(rope, uneven); }, as_batch), "x batch", 1.3);
  }
  if (wanted("dense-float-mask")) {
    call<float> c{.queries = 1024, .keys = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64};
    const matrix<float> bias = random<float>(1024, 1024, 9);
    posenc::attention_options dense = c.options(), none = c.options();
    dense.mask = none.mask = posenc::bidirectional;
    dense.visible = posenc::dense_bias(posenc::dense_scores(bias.data(), 1, 1024, 1024));
    report("dense-float-mask-prefill-12x64-1024",
           ratio_of([&] { c.run(rope, dense); }, [&] { c.run(rope, none); }, 15), "x no mask", 1.5);
  }
  const auto wide = rope_of(128);
  if (wanted("prefix-lm")) {
    call<float> c{.queries = 16, .keys = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128};
    posenc::attention_options prefix = c.options();
    prefix.visible = posenc::prefix_lm(4000);
    report("prefix-lm-16-queries-8192",
           ratio_of([&] { c.run(wide, prefix); }, [&] { c.run(wide, c.options()); }), "x causal", 1.3);
    call<float> whole{.queries = 1024, .keys = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64};
    prefix = whole.options();
    prefix.visible = posenc::prefix_lm(100);
    report("prefix-lm-prefill-12x64-1024",
           ratio_of([&] { whole.run(rope, prefix); }, [&] { whole.run(rope, whole.options()); }, 15),
           "x causal", 1.3);
  }
  if (wanted("tree-of-16")) {
    call<float> c{.queries = 16, .keys = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128};
    std::vector<index_t> parents;
    for (index_t d = 0; d < 16; ++d) parents.push_back(d == 0 ? -1 : (d - 1) / 2);
    posenc::attention_options tree = c.options();
    tree.visible = posenc::draft_tree(std::span<const index_t>(parents));
    report("tree-of-16-drafts-8192", ratio_of([&] { c.run(wide, tree); }, [&] { c.run(wide, c.options()); }),
           "x causal", 1.3);
  }
}

}  // namespace

/// usage: bars [PART_OF_A_NAME]
int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  std::printf("# %s, %s, one thread, FMA peak %.0f GFLOP/s\n", processor().c_str(),
              posenc::fused::target_name(), posenc::bench::fma_peak() * 1e-9);
  planning();
  against_the_first_edition();
  biases();
  edited_caches();
  masks();
  caches();
  backward();
  matrix_units();
  std::printf("# %d missed\n", missed);
  return 0;
}
