#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks Hugging Face transformers what it makes of configurations: layer types, frequencies, magnitudes, scales.

Run by hand; model_configs.json is committed and read by tests/models/transformers_test.cpp.
Pinned: transformers 5.24.0, torch 2.15.0 (CPU). Nothing is downloaded: models are built from configurations.

    python model_configs.py > model_configs.json
"""
import copy
import importlib
import inspect
import json
import logging
import sys

import torch
import transformers
from transformers import AutoConfig

logging.disable(logging.WARNING)
common = dict(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=8,
              max_position_embeddings=4096, intermediate_size=64, vocab_size=128)
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=1024)

mrope = dict(type="mrope", mrope_section=[16, 8, 8])


def case(model_type, name="plain", drop=(), **changes):
    config = {"model_type": model_type, **common, **changes}
    for key in drop:
        config.pop(key)
    return f"{model_type} {name}", config


cases = [
    case("llama"), case("llama", "linear", rope_theta=5e5, rope_scaling=dict(type="linear", factor=2.0)),
    case("llama", "yarn", rope_theta=1e6, rope_scaling=yarn),
    case("llama", "yarn mscale", rope_scaling={**yarn, "mscale": 1.0, "mscale_all_dim": 0.5}),
    case("llama", "yarn attention_factor", rope_scaling={**yarn, "attention_factor": 1.5, "beta_fast": 16.0}),
    case("llama", "yarn factor null", rope_scaling={**yarn, "factor": None}),
    case("llama", "yarn truncate", rope_scaling={**yarn, "truncate": False}),
    case("llama", "llama3", rope_theta=5e5, rope_scaling=llama3),
    case("llama", "dynamic", rope_scaling=dict(type="dynamic", factor=2.0)),
    case("llama", "partial default", partial_rotary_factor=0.5),
    case("llama", "partial linear", partial_rotary_factor=0.5, rope_scaling=dict(rope_type="linear", factor=2.0)),
    case("llama", "new style", rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=12345.0)),
    case("llama", "inner theta", rope_theta=5e5, rope_scaling=dict(rope_type="linear", factor=2.0, rope_theta=777.0)),
    case("llama", "outer original", original_max_position_embeddings=512, rope_scaling=yarn),
    case("llama", "head_dim", head_dim=96),
    case("mistral"), case("mistral", "no window", sliding_window=None), case("mixtral"), case("ministral", head_dim=64),
    case("ministral3"), case("qwen2"), case("qwen2", "window", use_sliding_window=True, max_window_layers=5),
    case("qwen2_moe", "window", use_sliding_window=True, max_window_layers=5), case("qwen3"),
    case("qwen3", "head_dim", head_dim=64, rope_theta=1e6), case("qwen3_moe"), case("qwen3_next"),
    case("qwen3_next", "theta", rope_theta=1e7), case("qwen2_vl_text", rope_scaling=mrope),
    case("qwen2_5_vl_text", rope_scaling=mrope),
    case("qwen3_vl_text"), case("qwen3_vl_moe_text", rope_scaling={**mrope, "type": "default"}), case("qwen3_5_text"),
    case("gemma"), case("gemma2"), case("gemma2", "scalar", query_pre_attn_scalar=144, head_dim=128),
    case("gemma3_text"), case("gemma3_text", "linear", rope_scaling=dict(rope_type="linear", factor=8.0)),
    case("gemma3_text", "bases", rope_theta=2e6, rope_local_base_freq=2e4, sliding_window_pattern=3),
    case("gemma3_text", "both ways", use_bidirectional_attention=True, sliding_window=512),
    case("gemma3n_text", num_kv_shared_layers=0), case("gemma4_text"),
    case("phi"), case("phi", "partial", partial_rotary_factor=0.25),
    case("phi3"), case("phi3", "longrope", original_max_position_embeddings=1024, rope_scaling=dict(
        type="longrope", short_factor=[1.0 + 0.01 * i for i in range(32)], long_factor=[2.0 + i for i in range(32)])),
    case("phi3", "partial", original_max_position_embeddings=1024, partial_rotary_factor=0.75, rope_scaling=dict(
        type="longrope", short_factor=[1.0 + 0.01 * i for i in range(24)], long_factor=[2.0 + i for i in range(24)])),
    case("gpt_neox"), case("gpt_neox", "names", rotary_pct=0.5, rotary_emb_base=20000.0),
    case("glm"), case("glm4"), case("glm4_moe"), case("glm4v_text"), case("cohere"), case("cohere2"),
    case("deepseek_v2", qk_nope_head_dim=128, qk_rope_head_dim=64, kv_lora_rank=16, q_lora_rank=16),
    case("deepseek_v3", "yarn", qk_nope_head_dim=128, qk_rope_head_dim=64, kv_lora_rank=16, q_lora_rank=16,
         rope_scaling={**yarn, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}),
    case("mistral4"), case("gpt_oss"),
    case("gpt_oss", "plain rope", rope_parameters=dict(rope_type="default", rope_theta=1e4)),
    case("llama4_text"), case("llama4_text", "list", no_rope_layers=[0, 1, 1, 1, 0, 1, 1, 1]),
    case("smollm3"), case("modernbert"), case("modernbert", "keys", global_attn_every_n_layers=2, local_attention=64,
                                              global_rope_theta=5e4, local_rope_theta=5e3),
    case("olmo"), case("olmo2"), case("olmo3"), case("olmo3", "yarn", rope_theta=5e5, rope_scaling=yarn), case("olmoe"),
    case("flex_olmo"), case("starcoder2"), case("stablelm"), case("persimmon"), case("nemotron"), case("granite"),
    case("granite", "multiplier", attention_multiplier=0.0078125), case("granitemoe"), case("apertus"), case("arcee"),
    case("bitnet"), case("seed_oss"), case("exaone4"), case("exaone4", "no window", sliding_window=None,
                                                            layer_types=["full_attention"] * 8),
    case("ernie4_5"), case("ernie4_5_moe"), case("helium"),
    case("hunyuan_v1_dense", "alpha", head_dim=64, rope_scaling=dict(
        type="dynamic", alpha=1000.0, factor=1.0)), case("minimax_m2", "rotary_dim", rotary_dim=64), case("cwm"),
    case("dots1"), case("nomic_bert"), case("jina_embeddings_v3"), case("eurobert"), case("falcon"),
    case("glm4_moe_lite"), case("gpt_neox_japanese"), case("minicpm3", qk_nope_head_dim=64, qk_rope_head_dim=32),
]


def classes(config):
    """The rotary and the attention class of a configuration's text model."""
    package = type(config).__module__.replace(".configuration_", ".modeling_")
    module = importlib.import_module(package)
    found = {name: value for name, value in vars(module).items()
             if inspect.isclass(value) and value.__module__ == package and "Vision" not in name and "Audio" not in name}
    rotary = [v for n, v in found.items() if n.endswith(("RotaryEmbedding", "RotaryPositionEmbedding"))]
    attention = [v for n, v in found.items() if n.endswith("Attention") and "Linear" not in n and "Cross" not in n]
    prefer = [v for v in rotary if "Text" in v.__name__] or rotary
    return prefer[0], ([v for v in attention if "Text" in v.__name__] or attention)[0]


def floats(tensor):
    return [float(f"{x:.9g}") for x in tensor.float().tolist()]


def partner_of_first_channel(config, rotary, layer_type):
    """The channel that turns together with channel 0, found by turning a unit vector; None where the class has no
    plain apply function."""
    apply = getattr(importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_")),
                    "apply_rotary_pos_emb", None)
    if getattr(config, "rope_interleave", False) or apply is None:
        return None
    if list(inspect.signature(apply).parameters)[:4] != ["q", "k", "cos", "sin"]:
        return None
    width = 2 * len(next(value for name, value in rotary.named_buffers() if "inv_freq" in name))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    unit = torch.zeros(1, 1, 1, max(head_dim, width))
    unit[..., 0] = 1
    try:
        extra = (layer_type,) if "layer_type" in inspect.signature(rotary.forward).parameters else ()
        cos, sin = rotary(unit[:, 0], torch.ones(1, 1, dtype=torch.long), *extra)
        turned = apply(unit, unit, cos, sin)[0].flatten()
    except Exception:
        return None
    others = [i for i, value in enumerate(turned.tolist()) if i > 0 and value != 0]
    return others[0] if len(others) == 1 else None


def ask(given):
    given = copy.deepcopy(given)
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    rotary_class, attention_class = classes(config)
    rotary = rotary_class(config=config)
    answer = {"layer_types": list(getattr(config, "layer_types", None) or [])}
    ladders = {}
    for name in ("full_attention", "sliding_attention", ""):
        frequencies = getattr(rotary, f"{name}_inv_freq" if name else "inv_freq", None)
        if frequencies is not None:
            ladders[name] = {
                "inv_freq": floats(frequencies),
                "attention_factor": float(getattr(rotary, f"{name}_attention_scaling" if name else "attention_scaling",
                                                  1.0)),
                "partner": partner_of_first_channel(config, rotary, name)}
    answer["ladders"] = ladders
    layers = []
    for layer in range(config.num_hidden_layers):
        if answer["layer_types"] and answer["layer_types"][layer] == "linear_attention":
            layers.append({})
            continue
        with torch.device("meta"):
            names = inspect.signature(attention_class.__init__).parameters
            attention = attention_class(config, layer_idx=layer) if "layer_idx" in names else attention_class(config)
        one = {}
        for key in ("scaling", "sliding_window", "use_rope"):
            value = getattr(attention, key, None)
            if value is not None and not callable(value):
                one[key] = float(value) if key == "scaling" else int(value)
        layers.append(one)
    answer["layers"] = layers
    return answer


def main():
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    rows = []
    for name, config in cases:
        try:
            rows.append({"name": name, "config": config, "expect": ask(config)})
        except Exception as error:  # reported, so that a class that moved is seen
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    about = "python tests/golden/model_configs.py > tests/golden/model_configs.json; " \
        f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    print('{"about": ' + json.dumps(about) + ', "cases": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}")


main()
