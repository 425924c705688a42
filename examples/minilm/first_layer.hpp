// SPDX-License-Identifier: MIT
/// \file
/// What a BERT model does with positions: its embedding layer and its first attention layer.
///
///     x_i = norm(word[token_i] + type[0] + position[i])
///     q = x·W_qᵀ + b_q, …,   h = attention(q, k, v)·W_oᵀ + b_o
///
/// Devlin et al. 2018, arXiv:1810.04805. No residual or MLP. Positions enter at the door *embed* and nowhere else.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <Eigen/Core>

#include <posenc/attention/self_attention.hpp>
#include <posenc/encodings/learned_absolute.hpp>
#include <posenc/models/safetensors.hpp>

#if __has_include(<hwy/highway.h>)
#define MINILM_FUSED
#include <posenc/fused.hpp>
#endif

namespace minilm {

using matrix = posenc::row_major_matrix<float>;

constexpr posenc::index_t head_dim = 32;  ///< hidden_size / num_attention_heads of config.json

/// A tensor of a file, which must have `columns` columns and a row at least. \throws posenc::format_error
[[nodiscard]] inline matrix read_columns(const posenc::safetensors_file& file, const std::string& name,
                                         posenc::index_t columns) {
  matrix tensor = posenc::read_tensor_matrix(file, name);
  if (tensor.rows() < 1 || tensor.cols() != columns)
    posenc::detail::fail<posenc::format_error>(name, " is ", tensor.rows(), " x ", tensor.cols(),
                                               ", needed are rows of ", columns);
  return tensor;
}

/// x·Wᵀ + b with W as torch.nn.Linear stores it.
struct linear {
  matrix weight, bias;

  linear(const posenc::safetensors_file& file, const std::string& name, posenc::index_t inputs)
      : weight(read_columns(file, name + ".weight", inputs)),
        bias(read_columns(file, name + ".bias", weight.rows())) {}

  [[nodiscard]] matrix operator()(const matrix& x) const {
    return (x * weight.transpose()).rowwise() + bias.row(0);
  }
};

/// Rows to mean 0 and variance 1, then w·x + b.
struct layer_norm {
  matrix weight, bias;
  static constexpr float epsilon = 1e-12F;  ///< layer_norm_eps of config.json

  layer_norm(const posenc::safetensors_file& file, const std::string& name, posenc::index_t width)
      : weight(read_columns(file, name + ".weight", width)),
        bias(read_columns(file, name + ".bias", width)) {}

  void apply_to(matrix& x) const {
    for (posenc::index_t i = 0; i < x.rows(); ++i) {
      auto row = x.row(i).array();
      row -= row.mean();
      row *= 1 / std::sqrt(row.square().mean() + epsilon);
      row = row * weight.row(0).array() + bias.row(0).array();
    }
  }
};

/// The two layers of a model.safetensors, or of a file cut from one that has some of its rows and heads.
class first_layer {
 public:
  /// \throws posenc::format_error when a tensor is missing or its shape does not fit the others.
  explicit first_layer(const posenc::safetensors_file& file)
      : positions_(posenc::read_tensor_matrix(file, "embeddings.position_embeddings.weight")),
        words_(read_columns(file, "embeddings.word_embeddings.weight", width())),
        types_(read_columns(file, "embeddings.token_type_embeddings.weight", width())),
        norm_(file, "embeddings.LayerNorm", width()),
        query_(file, attention + "self.query", width()),
        key_(file, attention + "self.key", width()),
        value_(file, attention + "self.value", width()) {}

  /// The position table of the model.
  [[nodiscard]] const posenc::learned_absolute<float>& positions() const noexcept { return positions_; }
  [[nodiscard]] posenc::index_t width() const noexcept { return positions_.width(); }
  [[nodiscard]] posenc::index_t words() const noexcept { return words_.rows(); }
  [[nodiscard]] posenc::index_t heads() const noexcept { return query_.weight.rows() / head_dim; }

  /// The embedding layer. \param rows of the word table, one per token \param where they stand
  template <class E>
  [[nodiscard]] matrix embed(std::span<const std::int32_t> rows, const E& encoding,
                             const posenc::positions& where = posenc::positions::from(0)) const {
    matrix x(static_cast<posenc::index_t>(rows.size()), width());
    for (posenc::index_t i = 0; i < x.rows(); ++i) {
      const posenc::index_t row = rows[static_cast<std::size_t>(i)];
      posenc::detail::require(row >= 0 && row < words(), "token ", row, " of ", words());
      x.row(i) = words_.row(row) + types_.row(0);
    }
    posenc::embed_rows(x, encoding, where);
    norm_.apply_to(x);
    return x;
  }

  /// The attention up to W_o. \param length the first rows are tokens, the others padding
  template <class E, class Attention>
  [[nodiscard]] matrix attend(const matrix& x, const E& encoding, posenc::index_t length,
                              const Attention& attention_of) const {
    const posenc::attention_options options{
        .heads = heads(), .is_embedded = true, .valid_keys = posenc::row_range{0, length}};
    return attention_of(query_(x), key_(x), value_(x), encoding, options);
  }

  static inline const std::string attention = "encoder.layer.0.attention.";  ///< what the names begin with

 private:
  posenc::learned_absolute<float> positions_;
  matrix words_, types_;
  layer_norm norm_;
  linear query_, key_, value_;
};

/// posenc::reference::attention as a function object.
struct by_reference {
  template <class... Arguments>
  [[nodiscard]] matrix operator()(const Arguments&... arguments) const {
    return posenc::reference::attention(arguments...);
  }
};

#if defined(MINILM_FUSED)
/// posenc::fused::attention as a function object.
struct by_fused_kernels {
  template <class... Arguments>
  [[nodiscard]] matrix operator()(const Arguments&... arguments) const {
    return posenc::fused::attention(arguments...);
  }
};
using best_attention = by_fused_kernels;
#else
using best_attention = by_reference;
#endif

}  // namespace minilm
