// SPDX-License-Identifier: MIT
/// \file
/// Bars of caches: one query of 32/8 heads × 128 over 8192 and 32,768 keys against RoPE over a plain float cache.
#include <cstdint>
#include <memory>

#include "measure.hpp"
#include "peak.hpp"

namespace bars {

void plain_loop(const float* q, const float* k, const float* v, float* out, float* scores, index_t keys,
                index_t of_heads, index_t width);  // plain_loop.cpp

namespace {

constexpr index_t heads = 32, kv_heads = 8, head_dim = 128;

/// A float cache laid out anew in pages of its own, in an order that is not that of memory.
struct pages {
  pages(const matrix<float>& rows, index_t page_tokens) : tokens(rows.rows()), of(page_tokens) {
    const index_t count = (tokens + of - 1) / of, floats = of * kv_heads * head_dim;
    pool.resize(static_cast<std::size_t>(count * floats));
    addresses = posenc::pages_of_pool(static_cast<const float*>(pool.data()), count, floats);
    for (index_t n = 0; n < count; ++n) table.push_back(static_cast<std::int32_t>(n));
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    for (index_t t = 0; t < tokens; ++t)
      std::copy_n(
          rows.data() + t * kv_heads * head_dim, kv_heads * head_dim,
          pool.data() + (table[static_cast<std::size_t>(t / of)] * of + t % of) * kv_heads * head_dim);
  }
  [[nodiscard]] posenc::paged_view<const float> view() const {
    return {addresses, table, of, tokens, kv_heads, head_dim};
  }
  index_t tokens, of;
  std::vector<float> pool{};
  std::vector<const float*> addresses{};
  std::vector<std::int32_t> table{};
};

/// Decode over one length of cache, everything relative to the plain one.
void at_length(index_t keys) {
  const std::string suffix = "-decode-" + std::to_string(keys);
  const auto name_of = [&](const char* what) { return "cache-" + std::string(what) + suffix; };
  const auto rope = rope_of(head_dim);
  call<float> c{.queries = 1, .keys = keys, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  const auto q = posenc::as_heads(c.q, heads), k = posenc::as_heads(c.k, kv_heads),
             v = posenc::as_heads(c.v, kv_heads);
  const auto out = posenc::as_heads(c.out, heads);
  c.check(rope, c.options(), "cache");
  const matrix<float> expected = c.out;
  posenc::fused::plan plain(rope, c.options(), {.queries = 1, .keys = keys});
  const action base = [&] { plain.run(q, k, v, out); };
  const auto against = [&](const char* what, const action& run, double aim, double tolerance) {
    const std::string name = name_of(what);
    if (!wanted(name.c_str())) return;
    run();
    const double error = (c.out - expected).norm() / expected.norm();
    if (!(error <= tolerance)) {
      std::printf("%s: wrong by %g\n", name.c_str(), error);
      std::exit(2);
    }
    report(name.c_str(), ratio_of(run, base), "x plain", aim);
  };
  for (const auto& [of, aim] : {std::pair{index_t{16}, 1.15}, std::pair{index_t{64}, 1.05}}) {
    const std::string what = "pages-of-" + std::to_string(of);
    if (!wanted(name_of(what.c_str()).c_str())) continue;
    const pages kp(c.k, of), vp(c.v, of);
    against(
        what.c_str(), [&] { plain.run(q, kp.view(), vp.view(), out); }, aim, 0);
  }
  const auto stored_as = [&]<class S>(S, const char* what, double aim, double tolerance) {
    if (!wanted(name_of(what).c_str())) return;
    const matrix<S> narrow_k = c.k.template cast<S>(), narrow_v = c.v.template cast<S>();
    constexpr auto type = sizeof(S) == 1                       ? posenc::fused::storage::float8_e4m3
                          : std::is_same_v<S, Eigen::bfloat16> ? posenc::fused::storage::bfloat16
                                                               : posenc::fused::storage::float16;
    posenc::fused::plan plan(rope, c.options(), {.queries = 1, .keys = keys, .k = type, .v = type});
    const auto nk = posenc::token_major(narrow_k.data(), keys, kv_heads, head_dim),
               nv = posenc::token_major(narrow_v.data(), keys, kv_heads, head_dim);
    against(
        what, [&] { plan.run(q, nk, nv, out); }, aim, tolerance);
  };
  stored_as(Eigen::bfloat16{}, "bfloat16", 0.60, 1e-2);
  stored_as(Eigen::half{}, "half", 0.60, 2e-3);
  if (wanted(name_of("q8_0").c_str())) {
    posenc::q8_0_cache kq(kv_heads, head_dim), vq(kv_heads, head_dim);
    kq.append(k), vq.append(v);
    constexpr auto type = posenc::fused::storage::q8_0;
    posenc::fused::plan plan(rope, c.options(), {.queries = 1, .keys = keys, .k = type, .v = type});
    against(
        "q8_0", [&] { plan.run(q, kq.view(), vq.view(), out); }, 0.40, 2e-2);
  }
  if (wanted(name_of("int8").c_str())) {
    posenc::quantised_key_cache kq(kv_heads, head_dim);
    posenc::quantised_value_cache vq(kv_heads, head_dim);
    kq.append(k), vq.append(v);
    posenc::fused::plan plan(rope, c.options(),
                             {.queries = 1,
                              .keys = keys,
                              .k = posenc::fused::storage::int8_by_channel,
                              .v = posenc::fused::storage::int8_by_token});
    against(
        "int8", [&] { plan.run(q, kq.view(), vq.view(), out); }, 0.35, 2e-2);
  }
  if (wanted(name_of("float8").c_str())) {
    std::vector<posenc::float8_e4m3> kf, vf;
    for (const auto& [from, to] : {std::pair{&c.k, &kf}, std::pair{&c.v, &vf}})
      for (index_t n = 0; n < from->size(); ++n) to->push_back(posenc::float8_e4m3(from->data()[n]));
    constexpr auto type = posenc::fused::storage::float8_e4m3;
    posenc::fused::plan plan(rope, c.options(), {.queries = 1, .keys = keys, .k = type, .v = type});
    const auto nk = posenc::token_major(static_cast<const posenc::float8_e4m3*>(kf.data()), keys, kv_heads,
                                        head_dim),
               nv = posenc::token_major(static_cast<const posenc::float8_e4m3*>(vf.data()), keys, kv_heads,
                                        head_dim);
    against(
        "float8", [&] { plan.run(q, nk, nv, out); }, 0.40, 1e-1);
  }
}

/// RoPE in other forms over 8192 plain keys, against plain RoPE.
void rotations() {
  constexpr index_t keys = 8192;
  call<float> c{.queries = 1, .keys = keys, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  const auto plain = rope_of(head_dim);
  const auto against = [&](const char* name, const auto& encoding, const posenc::attention_options& how,
                           double aim) {
    if (!wanted(name)) return;
    c.check(encoding, how, name);
    report(name, ratio_of([&] { c.run(encoding, how); }, [&] { c.run(plain, c.options()); }), "x RoPE", aim);
  };
  const posenc::rope_options options{
      .head_dim = head_dim, .base = 500'000.0, .pairing = posenc::pairing::half_split};
  const posenc::multi_axis_rope<float> axes(options, {16, 24, 24}, posenc::axis_order::chunked);
  // An image of 64 × 64 patches in the middle of text.
  std::vector<posenc::axis_positions> places;
  for (position row = 0; row < keys; ++row) {
    const position patch = row - 2048;
    if (patch >= 0 && patch < 4096)
      places.push_back({2048, 2048 + patch / 64, 2048 + patch % 64, 0});
    else
      places.push_back({row, row, row, 0});
  }
  const std::vector<posenc::axis_positions> last(places.end() - 1, places.end());
  posenc::attention_options on_axes = c.options();
  on_axes.key_positions = posenc::positions::on_axes(places);
  on_axes.query_positions = posenc::positions::on_axes(last, keys - 1);
  if (const char* name = "cache-multi-axis-decode-8192"; wanted(name)) {
    c.run(axes, on_axes);
    report(name, ratio_of([&] { c.run(axes, on_axes); }, [&] { c.run(plain, c.options()); }), "x RoPE", 1.25);
  }
  posenc::rope_options float32 = options;
  float32.angles = posenc::angle_mode::framework_float32;
  against("cache-framework-float32-decode-8192", posenc::rope<float>{float32}, c.options(), 3);
  posenc::attention_options dense = c.options();
  const matrix<float> bias = random<float>(1, keys, 9);
  dense.visible = posenc::dense_bias(posenc::dense_scores(bias.data(), 1, 1, keys));
  if (const char* name = "cache-dense-bias-decode-8192"; wanted(name)) {
    c.run(plain, dense);
    report(name, ratio_of([&] { c.run(plain, dense); }, [&] { c.run(plain, c.options()); }), "x RoPE", 1.5);
  }
}

/// Widths that are no multiple of 16, per channel against the next one that is.
void widths() {
  constexpr index_t keys = 2048;
  const auto cost_of = [&](index_t width, index_t rotary) {
    auto c = std::make_shared<call<float>>(
        call<float>{.queries = 1, .keys = keys, .heads = 8, .kv_heads = 8, .head_dim = width});
    const posenc::rope<float> rope{
        {.head_dim = width, .rotary_dim = rotary, .base = 500'000.0, .pairing = posenc::pairing::half_split}};
    c->check(rope, c->options(), "cache-width");
    return action([c, rope] { c->run(rope, c->options()); });
  };
  const auto against = [&](const std::string& name, const action& odd, const action& even) {
    report(name.c_str(), ratio_of(odd, even), "x next", 1.25);
  };
  for (const index_t rotary : {16, 20, 48, 80}) {
    const std::string name = "cache-rotary-width-" + std::to_string(rotary) + "-of-128";
    if (wanted(name.c_str())) against(name, cost_of(128, rotary), cost_of(128, (rotary + 31) / 32 * 32));
  }
  for (const index_t width : {40, 56, 72, 80, 112, 120}) {
    const std::string name = "cache-head-width-" + std::to_string(width);
    const index_t next = (width + 15) / 16 * 16;
    if (!wanted(name.c_str())) continue;
    against(name, cost_of(width, width), cost_of(next == width ? width : next, next == width ? width : next));
  }
}

void without_groups() {
  struct shape {
    index_t of_heads, width;
  };
  for (const shape& s : {shape{6, 48}, shape{8, 32}, shape{12, 64}})
    for (const index_t keys : {32, 64, 128, 256, 512}) {
      const std::string name = "cache-no-groups-" + std::to_string(s.of_heads) + "x" +
                               std::to_string(s.width) + "-" + std::to_string(keys) + "-keys";
      if (!wanted(name.c_str())) continue;
      call<float> c{
          .queries = 1, .keys = keys, .heads = s.of_heads, .kv_heads = s.of_heads, .head_dim = s.width};
      const auto rope = rope_of(s.width);
      c.check(rope, c.options(), name.c_str());
      matrix<float> rotated_q = c.q, rotated_k = c.k, theirs = c.out;
      posenc::rotate_heads(posenc::as_heads(rotated_k, s.of_heads), rope, posenc::positions::from(0));
      posenc::rotate_heads(posenc::as_heads(rotated_q, s.of_heads), rope, posenc::positions::from(keys - 1),
                           posenc::rotation_side::query);
      std::vector<float> scores(static_cast<std::size_t>(keys));
      posenc::fused::plan plan(rope, c.options(), {.queries = 1, .keys = keys});
      const auto q = posenc::as_heads(c.q, s.of_heads), k = posenc::as_heads(c.k, s.of_heads),
                 v = posenc::as_heads(c.v, s.of_heads), out = posenc::as_heads(c.out, s.of_heads);
      const action loop = [&] {
        plain_loop(rotated_q.data(), rotated_k.data(), c.v.data(), theirs.data(), scores.data(), keys,
                   s.of_heads, s.width);
      };
      loop();
      plan.run(q, k, v, out);
      if ((theirs - c.out).norm() > 1e-5f * c.out.norm()) std::exit(2);
      report(name.c_str(), ratio_of(loop, [&] { plan.run(q, k, v, out); }), "x faster",
             keys >= 128 ? 1.3 : 1.0, false);
    }
}

/// 16 sequences of 128 keys of their own behind a prefix of 8192, in one call and one by one.
void shared_prefix() {
  const char* const name = "cache-shared-prefix-8192-of-16";
  if (!wanted(name)) return;
  constexpr index_t prefix = 8192, own = 128, sequences = 16, row = kv_heads * head_dim;
  using source = posenc::joined<posenc::heads_view<const float>>;
  const matrix<float> before_k = random<float>(prefix, row, 1), before_v = random<float>(prefix, row, 2);
  const matrix<float> own_k = random<float>(sequences * own, row, 3),
                      own_v = random<float>(sequences * own, row, 4);
  const matrix<float> q = random<float>(sequences, heads * head_dim, 5);
  matrix<float> together = matrix<float>(sequences, heads * head_dim), apart = together;
  const auto rope = rope_of(head_dim);
  const posenc::attention_options options{.heads = heads, .kv_heads = kv_heads, .mask = posenc::causal};
  std::vector<posenc::attention_sequence<float, source>> batch;
  const auto rows_of = [](const matrix<float>& from, index_t first, index_t count, index_t of_heads) {
    return posenc::token_major(from.data() + first * from.cols(), count, of_heads, head_dim);
  };
  for (index_t n = 0; n < sequences; ++n)
    batch.push_back({rows_of(q, n, 1, heads),
                     {rows_of(before_k, 0, prefix, kv_heads), rows_of(own_k, n * own, own, kv_heads)},
                     {rows_of(before_v, 0, prefix, kv_heads), rows_of(own_v, n * own, own, kv_heads)},
                     posenc::token_major(together.data() + n * heads * head_dim, 1, heads, head_dim),
                     {},
                     options});
  posenc::fused::workspace memory;
  const action one_call = [&] { posenc::fused::attention_batch(batch, rope, {.memory = &memory}); };
  const action one_by_one = [&] {
    for (index_t n = 0; n < sequences; ++n) {
      const auto& s = batch[static_cast<std::size_t>(n)];
      posenc::fused::attention_into(
          s.q, s.k, s.v, rope, options,
          posenc::token_major(apart.data() + n * heads * head_dim, 1, heads, head_dim), {},
          {.memory = &memory});
    }
  };
  one_call(), one_by_one();
  if ((together - apart).norm() > 1e-5f * apart.norm()) std::exit(2);
  report(name, ratio_of(one_by_one, one_call, 11), "x faster", 5, false);
}

/// Latent heads: 128 query heads over 8192 rows of 576, their first 512 channels the values.
void latent() {
  const char* const name = "cache-latent-128-heads-8192x576";
  if (!wanted(name)) return;
  constexpr index_t keys = 8192, rows = 128, width = 576, values = 512;
  const matrix<float> q = random<float>(1, rows * width, 1), cache = random<float>(keys, width, 2);
  matrix<float> out = matrix<float>(1, rows * values);
  const posenc::rope<float> rope{{.head_dim = width,
                                  .rotary_dim = 64,
                                  .rotary_offset = 512,
                                  .base = 10'000.0,
                                  .pairing = posenc::pairing::interleaved}};
  const posenc::attention_options options{
      .heads = rows, .kv_heads = 1, .mask = posenc::causal, .scale = 1 / std::sqrt(192.0)};
  posenc::fused::plan plan(rope, options, {.queries = 1, .keys = keys, .value_dim = values});
  const auto k = posenc::token_major(cache.data(), keys, 1, width);
  const posenc::heads_view<const float> v{cache.data(), keys, 1, values, width, width};
  const auto run = [&] {
    plan.run(posenc::token_major(q.data(), 1, rows, width), k, v,
             posenc::token_major(out.data(), 1, rows, values));
  };
  run();
  std::vector<double> shares;
  const double operations = 2.0 * keys * rows * (width + values);
  for (int n = 0; n < 11; ++n) {
    const double peak = posenc::bench::fma_peak();
    shares.push_back(operations / seconds_of(run, 3) * 3 / peak);
  }
  report(name, quartiles_of(std::move(shares)), "of peak", 0.6, false);
}

/// 16 drafts over 8192 keys against one query.
void drafts() {
  const char* const name = "cache-tree-of-16-drafts-8192";
  if (!wanted(name)) return;
  constexpr index_t keys = 8192;
  call<float> one{.queries = 1, .keys = keys, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  call<float> many{.queries = 16, .keys = keys, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  std::vector<index_t> parents;
  for (index_t d = 0; d < 16; ++d) parents.push_back(d == 0 ? -1 : (d - 1) / 2);
  posenc::attention_options tree = many.options();
  tree.visible = posenc::draft_tree(std::span<const index_t>(parents));
  const auto rope = rope_of(head_dim);
  many.run(rope, tree), one.run(rope, one.options());
  report(name, ratio_of([&] { many.run(rope, tree); }, [&] { one.run(rope, one.options()); }), "x one", 2);
}

}  // namespace

void caches() {
  if (!only.empty() && only.find("cache") == std::string::npos) return;
  at_length(8192);
  at_length(32768);
  rotations();
  widths();
  without_groups();
  shared_prefix();
  latent();
  drafts();
}

}  // namespace bars
