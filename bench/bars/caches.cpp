// SPDX-License-Identifier: MIT
/// \file
/// Bars of caches: one query of 32/8 heads × 128 over 8192 and 32,768 keys against RoPE over a plain float cache.
#include <cstdint>
#include <memory>

#include "measure.hpp"

namespace bars {
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

}  // namespace

void caches() {
  if (!only.empty() && only.find("cache") == std::string::npos) return;
  at_length(8192);
  at_length(32768);
}

}  // namespace bars
