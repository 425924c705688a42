// SPDX-License-Identifier: MIT
/// \file
/// The optional parts from outside: a rope read from a model's description, through fused and reference
/// attention.
#include <cstdio>
#include <string_view>

#include <posenc/fused.hpp>
#include <posenc/models.hpp>
#include <posenc/posenc.hpp>

int main() {
  constexpr std::string_view config =
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 128, "rope_theta": 10000.0})";
  const posenc::model model(posenc::parse_huggingface(config));
  if (model.layers() != 1 || model.layer(0).options.head_dim != 32) return 1;

  const posenc::rope<float> rope{{.head_dim = 32, .pairing = posenc::pairing::half_split}};
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(9, 64);
  const posenc::attention_options options{.heads = 2, .mask = posenc::causal};
  const Eigen::MatrixXf slow = posenc::reference::attention(x, x, x, rope, options);
  const Eigen::MatrixXf fast = posenc::fused::attention(x, x, x, rope, options);
  // No -m flag was given, and yet the kernels are those of the machine.
  const std::string_view target = posenc::fused::target_name();
  if (target == "SCALAR" || target == "EMU128" || target == "SSE2") {
    std::printf("the fused kernels are %s\n", posenc::fused::target_name());
    return 1;
  }
  const float error = (fast - slow).norm() / slow.norm();
  if (error > 1e-6F) std::printf("fused differs from reference by %g\n", static_cast<double>(error));
  return error > 1e-6F ? 1 : 0;
}
