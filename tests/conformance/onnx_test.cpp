// SPDX-License-Identifier: MIT
/// \file
/// ONNX's own node tests of Attention (opsets 23, 24, 25) and RotaryEmbedding, all 101, through both engines, with the
/// tolerances of ONNX's test runner. Each Attention node is one call of attention_batch; no test needs a function of
/// the user's. make_onnx_cases.py says where the numbers come from.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <Eigen/Core>
#include <nlohmann/json.hpp>

#include <posenc/fused.hpp>
#include <posenc/models/safetensors.hpp>
#include <posenc/posenc.hpp>

#include "golden.hpp"

namespace onnx_test {

using nlohmann::json;
using posenc::index_t;
using posenc::position;

constexpr float infinity = std::numeric_limits<float>::infinity();

const json& all_cases() {
  static const json cases = golden::cases("onnx/cases.json").at("cases");
  return cases;
}

const posenc::safetensors_file& tensor_file() {
  static const auto file =
      posenc::read_safetensors(std::string(POSENC_GOLDEN_DIR) + "/onnx/cases.safetensors");
  return file;
}

std::vector<index_t> shape_of(const json& tensor) { return tensor.at("shape").get<std::vector<index_t>>(); }

/// The elements of a tensor of the file. Booleans are bytes.
template <class T>
std::vector<T> elements(const json& tensor) {
  const std::vector<std::byte> bytes =
      posenc::read_tensor_bytes(tensor_file(), tensor.at("tensor").get<std::string>());
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), result.size() * sizeof(T));
  return result;
}

/// Compares as ONNX's runner does: |ours − theirs| ≤ atol + rtol·|theirs|.
template <class S>
void expect_close(const std::vector<S>& ours, const std::vector<S>& theirs, const json& one,
                  const char* what) {
  const double rtol = one.at("rtol").get<double>(), atol = one.at("atol").get<double>();
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  for (std::size_t n = 0; n < ours.size(); ++n) {
    const double a = static_cast<double>(static_cast<float>(ours[n])),
                 b = static_cast<double>(static_cast<float>(theirs[n]));
    if (std::isinf(b))
      ASSERT_EQ(a, b) << what << ", element " << n;
    else
      ASSERT_LE(std::abs(a - b), atol + rtol * std::abs(b))
          << what << ", element " << n << ": " << a << ", not " << b;
  }
}

/// How a tensor lies in memory: 4D is [batch][heads][tokens][width], 3D is [batch][tokens][heads·width].
struct layout {
  bool token_first = false;
  index_t batch = 0, heads = 0, tokens = 0, width = 0;

  layout(const json& tensor, const json& attributes, const char* heads_attribute) {
    const std::vector<index_t> shape = shape_of(tensor);
    token_first = shape.size() == 3;
    batch = shape.at(0);
    heads = token_first ? attributes.at(heads_attribute).get<index_t>() : shape.at(1);
    tokens = shape.at(token_first ? 1 : 2);
    width = token_first ? shape.at(2) / heads : shape.at(3);
  }

  template <class T>
  [[nodiscard]] posenc::heads_view<T> item(T* data, index_t b) const {
    T* const begin = data + b * heads * tokens * width;
    return token_first ? posenc::token_major(begin, tokens, heads, width)
                       : posenc::head_major(begin, heads, tokens, width);
  }
};

/// Keys or values with those of the past before them, [batch][heads][tokens][width].
template <class S>
struct cache {
  layout lies;
  std::vector<S> data;

  cache(const json& one, const char* name, const char* past_name)
      : lies(one.at("inputs").at(name), one.at("attributes"), "kv_num_heads"),
        data(elements<S>(one.at("inputs").at(name))) {
    if (!one.at("inputs").contains(past_name)) return;
    const json& past_tensor = one.at("inputs").at(past_name);
    std::vector<S> past = elements<S>(past_tensor), both;
    const layout old(past_tensor, one.at("attributes"), "kv_num_heads");
    past_tokens = old.tokens;
    layout joined = old;
    joined.tokens += lies.tokens;
    both.resize(past.size() + data.size());
    for (index_t b = 0; b < lies.batch; ++b)
      for (index_t h = 0; h < lies.heads; ++h)
        for (index_t t = 0; t < joined.tokens; ++t) {
          const auto from =
              t < old.tokens ? old.item(past.data(), b)(t, h) : lies.item(data.data(), b)(t - old.tokens, h);
          std::copy(from.begin(), from.end(), joined.item(both.data(), b)(t, h).begin());
        }
    lies = joined, data = std::move(both);
  }

  index_t past_tokens = 0;
};

/// attn_mask of one batch item: numpy's broadcasting to batch × heads × queries × keys is a stride of 0.
template <class T>
posenc::scores_view<const T> mask_of(const T* data, std::vector<index_t> shape, index_t b, index_t queries,
                                     index_t keys) {
  while (shape.size() < 4) shape.insert(shape.begin(), 1);
  const index_t key_stride = shape[3] == 1 ? 0 : 1, query_stride = shape[2] == 1 ? 0 : shape[3],
                head_stride = shape[2] * shape[3], batch_stride = shape[0] == 1 ? 0 : shape[1] * head_stride;
  return {data + b * batch_stride, shape[1], queries, keys, head_stride, query_stride, key_stride};
}

/// An Attention node: its tensors, and what it says as options of one batch.
template <class S>
class attention_node {
 public:
  explicit attention_node(const json& one)
      : q_lies_(one.at("inputs").at("Q"), one.at("attributes"), "q_num_heads"),
        q_(elements<S>(one.at("inputs").at("Q"))),
        k_(one, "K", "past_key"),
        v_(one, "V", "past_value"),
        out_lies_(q_lies_) {
    out_lies_.width = v_.lies.width;
    out.resize(static_cast<std::size_t>(q_lies_.batch * q_lies_.tokens * q_lies_.heads * v_.lies.width));
    const json &attributes = one.at("attributes"), &inputs = one.at("inputs");
    index_t keys = k_.lies.tokens;
    if (inputs.contains("attn_mask")) {  // keys beyond a short mask are hidden
      mask_shape_ = shape_of(inputs.at("attn_mask"));
      if (mask_shape_.back() > 1) keys = (std::min)(keys, mask_shape_.back());
      read_mask(inputs.at("attn_mask"));
    }
    for (index_t b = 0; b < q_lies_.batch; ++b) {
      std::optional<index_t> filled;
      if (inputs.contains("nonpad_kv_seqlen"))
        filled = inputs.at("nonpad_kv_seqlen").at("values").at(static_cast<std::size_t>(b)).get<index_t>();
      auto k = k_.lies.item(k_.data.data(), b), v = v_.lies.item(v_.data.data(), b);
      k.tokens = v.tokens = keys;
      batch.push_back({.q = q_lies_.item(q_.data(), b),
                       .k = k,
                       .v = v,
                       .out = out_lies_.item(out.data(), b),
                       .options = options_of(attributes, b, keys, filled)});
    }
  }
  attention_node(const attention_node&) = delete;
  attention_node& operator=(const attention_node&) = delete;

  [[nodiscard]] const std::vector<S>& present_key() const { return k_.data; }
  [[nodiscard]] const std::vector<S>& present_value() const { return v_.data; }
  [[nodiscard]] index_t heads() const { return q_lies_.heads; }
  [[nodiscard]] index_t queries() const { return q_lies_.tokens; }

  std::vector<posenc::attention_sequence<S>> batch;
  std::vector<S> out;

 private:
  void read_mask(const json& tensor) {
    if (tensor.at("dtype") == "BOOL")
      seen_ = elements<std::uint8_t>(tensor);
    else
      added_ = elements<S>(tensor);  // always of the type of Q
  }

  posenc::attention_options options_of(const json& attributes, index_t b, index_t keys,
                                       const std::optional<index_t>& filled) const {
    posenc::attention_options options{.heads = q_lies_.heads, .kv_heads = k_.lies.heads};
    if (attributes.contains("scale")) options.scale = attributes.at("scale").get<double>();
    options.softcap = attributes.at("softcap").get<double>();
    if (attributes.at("is_causal") == 1) options.mask = posenc::causal;
    const auto limit = [&](const char* name) -> std::optional<position> {
      const position tokens = attributes.value(name, position{-1});
      return tokens < 0 ? std::nullopt : std::optional<position>(tokens);
    };
    options.window = {.lookback = limit("left_window_size"), .lookahead = limit("right_window_size")};
    // Keys stand where they lie in the cache. Queries follow the past, or are the last of what is filled.
    options.key_positions = posenc::positions::from(0);
    options.query_positions = posenc::positions::from(filled ? *filled - queries() : k_.past_tokens);
    if (filled) options.valid_keys = posenc::row_range{0, *filled};
    if (!seen_.empty())
      options.visible = posenc::dense_mask(mask_of(seen_.data(), mask_shape_, b, queries(), keys));
    if (!added_.empty())
      options.visible = posenc::dense_bias(mask_of(added_.data(), mask_shape_, b, queries(), keys));
    return options;
  }

  layout q_lies_;
  std::vector<S> q_;
  cache<S> k_, v_;
  layout out_lies_;
  std::vector<index_t> mask_shape_{};
  std::vector<std::uint8_t> seen_{};
  std::vector<S> added_{};
};

/// What qk_matmul_output_mode counts.
constexpr posenc::score_stage stages[] = {posenc::score_stage::scaled, posenc::score_stage::capped,
                                          posenc::score_stage::biased, posenc::score_stage::weights};

/// An Attention node through both engines.
template <class S>
void check_attention(const json& one) {
  attention_node<S> node(one);
  const json& outputs = one.at("outputs");
  const std::vector<S> expected = elements<S>(outputs.at("Y"));
  const std::span<const posenc::attention_sequence<S>> batch(node.batch);
  posenc::reference::attention_batch(batch, posenc::no_encoding{});
  expect_close(node.out, expected, one, "reference");
  std::fill(node.out.begin(), node.out.end(), static_cast<S>(infinity));
  posenc::fused::attention_batch(batch, posenc::no_encoding{});
  expect_close(node.out, expected, one, "fused");
  if (outputs.contains("present_key")) {
    EXPECT_TRUE(node.present_key() == elements<S>(outputs.at("present_key")));
    EXPECT_TRUE(node.present_value() == elements<S>(outputs.at("present_value")));
  }
  if (!outputs.contains("qk_matmul_output")) return;
  const std::vector<index_t> shape = shape_of(outputs.at("qk_matmul_output"));
  ASSERT_EQ(shape, (std::vector<index_t>{static_cast<index_t>(batch.size()), node.heads(), node.queries(),
                                         batch[0].k.tokens}));
  std::vector<S> scores(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  for (std::size_t b = 0; b < batch.size(); ++b)
    posenc::reference::scores_into(
        batch[b].q, batch[b].k, posenc::no_encoding{}, batch[b].options,
        stages[one.at("attributes").at("qk_matmul_output_mode").get<std::size_t>()],
        posenc::dense_scores(scores.data() + static_cast<index_t>(b) * shape[1] * shape[2] * shape[3],
                             shape[1], shape[2], shape[3]));
  expect_close(scores, elements<S>(outputs.at("qk_matmul_output")), one, "scores");
}

/// A RotaryEmbedding node: its tensors, and its tables as an encoding for the whole batch.
class rotary_node {
 public:
  explicit rotary_node(const json& one)
      : lies(one.at("inputs").at("input"), one.at("attributes"), "num_heads"),
        input(elements<float>(one.at("inputs").at("input"))),
        cos_(elements<float>(one.at("inputs").at("cos_cache"))),
        sin_(elements<float>(one.at("inputs").at("sin_cache"))) {
    const json& inputs = one.at("inputs");
    // Without position_ids the tables have a row for every token of every batch item.
    const bool has_ids = inputs.contains("position_ids");
    for (index_t b = 0; b < lies.batch; ++b)
      for (index_t t = 0; t < lies.tokens; ++t)
        rows_.push_back(has_ids ? inputs.at("position_ids")
                                      .at("values")
                                      .at(static_cast<std::size_t>(b))
                                      .at(static_cast<std::size_t>(t))
                                      .get<position>()
                                : b * lies.tokens + t);
    const auto rotary_dim = one.at("attributes").at("rotary_embedding_dim").get<index_t>();
    pairs_ = (rotary_dim == 0 ? lies.width : rotary_dim) / 2;
    interleaved_ = one.at("attributes").at("interleaved") == 1;
  }

  [[nodiscard]] posenc::rope_table<float> encoding() const {
    const index_t rows = static_cast<index_t>(cos_.size()) / pairs_;
    return {{.head_dim = lies.width,
             .rotary_dim = 2 * pairs_,
             .pairing = interleaved_ ? posenc::pairing::interleaved : posenc::pairing::half_split},
            posenc::dense_angles(cos_.data(), rows, pairs_),
            posenc::dense_angles(sin_.data(), rows, pairs_)};
  }
  /// The rows of the tables where the tokens of a batch item stand.
  [[nodiscard]] posenc::positions places(index_t b) const {
    return posenc::positions::each(std::span<const position>(rows_).subspan(
        static_cast<std::size_t>(b * lies.tokens), static_cast<std::size_t>(lies.tokens)));
  }
  /// Attention of the heads in `rotated_as` over themselves, with the node's input as values; the encoding acts by
  /// the node's positions.
  std::vector<posenc::attention_sequence<float>> batch(const std::vector<float>& rotated_as,
                                                       std::vector<float>& out) const {
    std::vector<posenc::attention_sequence<float>> result;
    for (index_t b = 0; b < lies.batch; ++b)
      result.push_back(
          {.q = lies.item(rotated_as.data(), b),
           .k = lies.item(rotated_as.data(), b),
           .v = lies.item(input.data(), b),
           .out = lies.item(out.data(), b),
           .options = {.heads = lies.heads, .query_positions = places(b), .key_positions = places(b)}});
    return result;
  }

  layout lies;
  std::vector<float> input;

 private:
  std::vector<float> cos_, sin_;
  std::vector<position> rows_{};
  index_t pairs_ = 0;
  bool interleaved_ = false;
};

/// A RotaryEmbedding node: as a rotation of a tensor, and inside attention, where ONNX's own output, attended without
/// an encoding, says what is right.
void check_rotary(const json& one) {
  const rotary_node node(one);
  const auto encoding = node.encoding();
  const std::vector<float> expected = elements<float>(one.at("outputs").at("output"));
  std::vector<float> turned(node.input.size());
  for (index_t b = 0; b < node.lies.batch; ++b)
    posenc::rotate_heads(node.lies.item(node.input.data(), b), node.lies.item(turned.data(), b), encoding,
                         node.places(b));
  expect_close(turned, expected, one, "rotate_heads");
  std::vector<float> right(node.input.size()), ours(node.input.size());
  const auto by_onnx = node.batch(expected, right), by_table = node.batch(node.input, ours);
  posenc::reference::attention_batch(std::span(by_onnx), posenc::no_encoding{});
  posenc::reference::attention_batch(std::span(by_table), encoding);
  const json bound{{"rtol", 1e-5}, {"atol", 1e-6}};
  expect_close(ours, right, bound, "reference");
  std::fill(ours.begin(), ours.end(), infinity);
  posenc::fused::attention_batch(std::span(by_table), encoding);
  expect_close(ours, right, bound, "fused");
}

/// An entry of cases.json, with a name that a test can show.
struct onnx_case {
  std::size_t number = 0;
  friend std::ostream& operator<<(std::ostream& to, const onnx_case& one) {
    return to << all_cases().at(one.number).at("name").get<std::string>();
  }
};
std::vector<onnx_case> numbered_cases() {
  std::vector<onnx_case> result(all_cases().size());
  for (std::size_t n = 0; n < result.size(); ++n) result[n].number = n;
  return result;
}

class onnx_node : public ::testing::TestWithParam<onnx_case> {};

TEST_P(onnx_node, agrees_with_onnx) {
  const json& one = all_cases().at(GetParam().number);
  if (one.at("op") == "RotaryEmbedding") return check_rotary(one);
  const std::string type = one.at("inputs").at("Q").at("dtype").get<std::string>();
  if (type == "F32") return check_attention<float>(one);
  if (type == "F16") return check_attention<Eigen::half>(one);
  ASSERT_EQ(type, "BF16");
  check_attention<Eigen::bfloat16>(one);
}

INSTANTIATE_TEST_SUITE_P(all, onnx_node, ::testing::ValuesIn(numbered_cases()), [](const auto& of) {
  return all_cases().at(of.param.number).at("name").template get<std::string>();
});

TEST(onnx_cases, are_all_there) {
  std::map<std::pair<std::string, int>, int> count;
  std::map<std::string, int> with;
  for (const json& one : all_cases()) {
    ++count[{one.at("op").get<std::string>(), one.at("opset").get<int>()}];
    for (const auto& [name, tensor] : one.at("inputs").items()) ++with[name];
    for (const auto& [name, tensor] : one.at("outputs").items()) ++with[name];
  }
  EXPECT_EQ((count[{"Attention", 23}]), 69);
  EXPECT_EQ((count[{"Attention", 24}]), 13);
  EXPECT_EQ((count[{"Attention", 25}]), 11);
  EXPECT_EQ((count[{"RotaryEmbedding", 23}]), 8);
  EXPECT_EQ(all_cases().size(), 101u);
  EXPECT_EQ(with["attn_mask"], 52);
  EXPECT_EQ(with["past_key"], 21);
  EXPECT_EQ(with["nonpad_kv_seqlen"], 13);
  EXPECT_EQ(with["qk_matmul_output"], 18);
}

template <class S>
int functions_in(const json& one) {
  const attention_node<S> node(one);
  int functions = 0;
  for (const auto& sequence : node.batch)
    if (!sequence.options.visible.empty() && sequence.options.visible.parts().where) ++functions;
  return functions;
}

/// Masks that can be said as data are: no node needs mask_where or an encoding of the user's, and each is one batch.
TEST(onnx_cases, need_no_function_of_the_users) {
  int functions = 0;
  for (const json& one : all_cases()) {
    if (one.at("op") != "Attention") continue;
    const std::string type = one.at("inputs").at("Q").at("dtype").get<std::string>();
    functions += type == "F32"   ? functions_in<float>(one)
                 : type == "F16" ? functions_in<Eigen::half>(one)
                                 : functions_in<Eigen::bfloat16>(one);
  }
  EXPECT_EQ(functions, 0);
}

}  // namespace onnx_test
