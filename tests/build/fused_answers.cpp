// SPDX-License-Identifier: MIT
/// \file
/// Answers of the fused path worked out by hand, compiled under each set of flags that users bring. Keys
/// are all alike, so that a weight is what the encoding makes of it and every answer is a sum of a few
/// known numbers.
#include <bit>
#include <cstdint>
#include <limits>

#include <posenc/fused.hpp>

#include "answers.hpp"

namespace {

using posenc::index_t;
using posenc::position;

/// Asked for by its bits, since -ffast-math knows no infinities.
bool is_minus_infinity(float x) { return std::bit_cast<std::uint32_t>(x) == 0xff800000u; }

/// A user's bias that hides every third distance.
struct comb_bias {
  [[nodiscard]] float bias(int, position offset) const {
    return offset % 3 == 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
  }
};

constexpr index_t keys = 40, head_dim = 2;

/// Queries (1, 0) and keys (1, 0) at scale 1 from position `start` on, values 0, 1, 2, …: the weight of a
/// key should be weight(query − key), and 0 where it is negative.
template <class E, class Weight>
void check_weights(answers::checker& check, const char* what, index_t queries, position start,
                   const E& encoding, const Weight& weight) {
  Eigen::MatrixXf q(queries, head_dim), k(keys, head_dim), v(keys, 1);
  q.col(0).setOnes(), q.col(1).setZero();
  k.col(0).setOnes(), k.col(1).setZero();
  for (index_t j = 0; j < keys; ++j) v(j, 0) = static_cast<float>(j);
  const auto result = posenc::fused::attention_with_log_sum_exp(
      q, k, v, encoding,
      {.mask = posenc::causal, .scale = 1.0, .key_positions = posenc::positions::from(start)});
  for (index_t i = 0; i < queries; ++i) {
    const index_t row = keys - queries + i;
    double total = 0, sum = 0;
    for (index_t j = 0; j <= row; ++j) {
      const double w = weight(row - j);
      if (w < 0) continue;
      total += w;
      sum += w * static_cast<double>(j);
    }
    if (total > 0) {
      check.near_to(what, result.output(i, 0), sum / total, 2e-5);
      check.near_to(what, result.log_sum_exp(i, 0), std::log(total), 1e-6);
    } else {
      check.holds(what, result.output(i, 0) == 0 && is_minus_infinity(result.log_sum_exp(i, 0)));
    }
  }
}

void check_encodings(answers::checker& check, index_t queries) {
  const double e = std::exp(1.0);
  check_weights(check, "no encoding", queries, 0, posenc::no_encoding{}, [&](index_t) { return e; });
  const posenc::rope<float> rope{{.head_dim = head_dim, .pairing = posenc::pairing::half_split}};
  for (const position start : {0, 1'000'000})
    check_weights(check, "RoPE", queries, start, rope,
                  [](index_t behind) { return std::exp(std::cos(static_cast<double>(behind))); });
  const auto slopes = std::vector<double>{0.25};
  check_weights(check, "ALiBi", queries, 1'000'000, posenc::alibi<float>::from_slopes(slopes),
                [](index_t behind) { return std::exp(1 - 0.25 * static_cast<double>(behind)); });
  check_weights(check, "a bias of minus infinity", queries, 5, comb_bias{},
                [&](index_t behind) { return behind % 3 == 0 ? -1 : e; });
}

/// A query at −1 sees nothing under a causal mask, nor does any query where no key is valid.
void check_rows_that_see_nothing(answers::checker& check, index_t queries) {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Ones(queries, head_dim),
                        k = Eigen::MatrixXf::Ones(keys, head_dim), v = Eigen::MatrixXf::Constant(keys, 1, 3);
  const posenc::no_encoding none;
  const auto before = posenc::fused::attention_with_log_sum_exp(
      q, k, v, none, {.mask = posenc::causal, .query_positions = posenc::positions::from(-1)});
  check.holds("a row that sees no key gives 0 and minus infinity",
              before.output(0, 0) == 0 && is_minus_infinity(before.log_sum_exp(0, 0)));
  if (queries > 1) check.near_to("the next row sees one", before.output(1, 0), 3);
  const auto nothing =
      posenc::fused::attention_with_log_sum_exp(q, k, v, none, {.valid_keys = posenc::row_range{4, 4}});
  for (index_t i = 0; i < queries; ++i)
    check.holds("a call without valid keys gives 0 and minus infinity",
                nothing.output(i, 0) == 0 && is_minus_infinity(nothing.log_sum_exp(i, 0)));
}

}  // namespace

int main() {
  answers::checker check;
  for (const index_t queries : {1, 2, 8, 40}) {
    check_encodings(check, queries);
    check_rows_that_see_nothing(check, queries);
  }
  return check.wrong;
}
