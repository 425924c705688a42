# SPDX-License-Identifier: MIT
"""Writes transformers.json: what Hugging Face transformers computes, executed, for the cross-check test.

Run by hand, in a virtual environment of its own, from this folder:

    pip install torch==2.15.0 transformers==5.24.0 numpy
    python make_transformers.py

It holds, for every rope type over a grid of parameters and for the golden models, the inverse frequencies (the
bits of the float32 numbers) and the attention factor; and, for both pairings and the multi-axis and vision
families, rotated vectors from the models' own rotation modules.

Torch's float32 results depend on the machine: its AVX2 and AVX-512 kernels use a power function that is right to
1 ulp, its portable kernels one that is correctly rounded in every case here. The bits recorded are the portable
ones; `differs` lists the pairs that come out otherwise on a machine with AVX-512.
"""
import json
import os
import subprocess
import sys

TORCH, TRANSFORMERS = "2.15.0", "5.24.0"


def rope_configs():
    """(name, config, sequence length) of every case; configs are config.json style with an explicit head_dim."""

    def config(head_dim, theta, limit=4096, **scaling):
        row = {"head_dim": head_dim, "hidden_size": 16 * head_dim, "num_attention_heads": 16,
               "max_position_embeddings": limit, "rope_theta": theta}
        if scaling:
            row["rope_scaling"] = scaling
        return row

    for d in (64, 80, 96, 128, 256):
        for theta in (1e4, 1.5e5, 5e5, 1e6):
            yield "default", config(d, theta), None
    for d, theta in ((64, 1e4), (128, 1e6)):
        for factor in (1.0, 2.0, 3.5, 8.0):
            yield "linear", config(d, theta, rope_type="linear", factor=factor), None
    for d in (64, 96):
        for factor in (2.0, 3.3):
            for length in (100, 2048, 2049, 8192):
                yield "dynamic", config(d, 1e4, 2048, rope_type="dynamic", factor=factor), length
    for theta, original, factor in ((1e4, 1024, 4.0), (1e6, 32768, 4.0), (1e4, 4096, 40.0), (1.5e5, 4096, 32.0),
                                    (5e5, 8192, 1.5)):
        for extra in ({}, {"truncate": False}, {"attention_factor": 0.75}, {"mscale": 1.0, "mscale_all_dim": 0.5},
                      {"beta_fast": 64.0, "beta_slow": 2.0}, {"partial_rotary_factor": 0.5}):
            yield "yarn", config(64, theta, 4 * original, rope_type="yarn", factor=factor,
                                 original_max_position_embeddings=original, **extra), None
    for theta, original in ((1e4, 4), (10.0, 1000000)):  # the ends of the ramp cross
        yield "yarn", config(64, theta, 4 * original, rope_type="yarn", factor=4.0,
                             original_max_position_embeddings=original), None
    short = [1 + p / 64 for p in range(32)]
    long = [1 + p * p / 16 for p in range(32)]
    for extra in ({}, {"factor": 4.0}, {"factor": 0.5}, {"attention_factor": 1.25}):
        for length in (2048, 2049):
            yield "longrope", config(64, 1e4, 8192, rope_type="longrope", short_factor=short, long_factor=long,
                                     original_max_position_embeddings=2048, **extra), length
    for d, theta in ((64, 5e5), (128, 5e5), (128, 1e4)):
        for factor, low, high, original in ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (16.0, 1.0, 1.0, 8192),
                                            (4.0, 2.0, 8.0, 4096)):
            yield "llama3", config(d, theta, 131072, rope_type="llama3", factor=factor, low_freq_factor=low,
                                   high_freq_factor=high, original_max_position_embeddings=original), None
    for d in (64, 256):
        for partial in (0.25, 0.5, 1.0):
            for factor in (1.0, 8.0):
                yield "proportional", config(d, 1e6, rope_type="proportional", factor=factor,
                                             partial_rotary_factor=partial), None
    with open("rope_models.json") as stream:
        for row in json.load(stream):
            given, expect = row["config"], row["expect"]
            scaling = dict(given.get("rope_scaling") or {})
            kind = scaling.pop("type", scaling.pop("rope_type", "default"))
            kind = {"mrope": "default", "su": "longrope"}.get(kind, kind)
            theta = given.get("rope_theta", given.get("rotary_emb_base", 10000))
            if "[sliding" in row["name"]:
                kind, theta = "default", given["rope_local_base_freq"]
            model = config(expect["rotary_dim"], theta, given.get("max_position_embeddings", 2048))
            if kind != "default":
                original = given.get("original_max_position_embeddings")
                if original:
                    scaling["original_max_position_embeddings"] = original
                model["rope_scaling"] = {"rope_type": kind, **scaling}
            yield "model " + row["name"], model, 131072 if "[long]" in row["name"] else 1 if kind == "longrope" else None


def frequencies():
    """[bits of inv_freq, attention factor] of every case."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    result = []
    for _, row, length in rope_configs():
        scaling = dict(row.get("rope_scaling") or {"rope_type": "default"})
        config = LlamaConfig(head_dim=row["head_dim"], hidden_size=row["hidden_size"],
                             num_attention_heads=row["num_attention_heads"],
                             max_position_embeddings=row["max_position_embeddings"],
                             rope_parameters={"rope_theta": row["rope_theta"], **scaling})
        if scaling["rope_type"] == "dynamic":  # the module: it hands the length over in a tensor
            module = LlamaRotaryEmbedding(config)
            module(torch.zeros(1), torch.tensor([[length - 1]]))
            inv_freq, factor = module.inv_freq, module.attention_scaling
        elif scaling["rope_type"] == "default":
            inv_freq, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            inv_freq, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"), seq_len=length)
        bits = inv_freq.view(torch.int32).tolist()
        result.append(["".join("%08x" % (b & 0xFFFFFFFF) for b in bits), float(factor)])
    return result


def vector(n, seed):
    return [((7 * c + 3 * seed + c * c) % 17 - 8) / 8 for c in range(n)]


def rotated_vectors():
    """Vectors turned by the models' own rotation code, in float32."""
    import torch
    from transformers import LlamaConfig
    from transformers.models.cohere import modeling_cohere
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.glm4 import modeling_glm4
    from transformers.models.gpt_neox import modeling_gpt_neox
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama
    from transformers.models.llama4 import configuration_llama4, modeling_llama4
    from transformers.models.pixtral import configuration_pixtral, modeling_pixtral
    from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl
    from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

    rows = []
    positions = [0, 1, 5, 100, 1000]

    def text_config(head_dim, theta=1e4, **parameters):
        return LlamaConfig(head_dim=head_dim, hidden_size=head_dim, num_attention_heads=1,
                           max_position_embeddings=4096,
                           rope_parameters={"rope_type": "default", "rope_theta": theta, **parameters})

    def heads(head_dim, count):  # [batch, head, token, channel]
        return torch.tensor([vector(head_dim, t) for t in range(count)]).reshape(1, 1, count, head_dim)

    def add(name, layout, head_dim, out, places, **more):
        rows.append({"name": name, "layout": layout, "head_dim": head_dim, "positions": places,
                     "output": [[float("%.9g" % x) for x in token] for token in out.reshape(len(places), head_dim).tolist()],
                     **more})

    def angles(rotary_dim, **parameters):
        module = modeling_llama.LlamaRotaryEmbedding(text_config(rotary_dim, **parameters))
        return module(torch.zeros(1), torch.tensor([positions]))

    q = heads(16, len(positions))
    cos, sin = angles(16)
    add("llama", "half", 16, modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0], positions, rotary_dim=16)
    add("cohere", "interleaved", 16, modeling_cohere.apply_rotary_pos_emb(
        q, q, cos[..., :8].repeat_interleave(2, -1), sin[..., :8].repeat_interleave(2, -1))[0], positions, rotary_dim=16)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    cos, sin = angles(16, **yarn)
    add("llama with yarn", "half", 16, modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0], positions,
        rotary_dim=16, rope_scaling=yarn)
    cos, sin = angles(8)
    add("gpt_neox, partial", "half", 16, modeling_gpt_neox.apply_rotary_pos_emb(q, q, cos, sin)[0], positions,
        rotary_dim=8)
    add("glm4, partial", "interleaved", 16, modeling_glm4.apply_rotary_pos_emb(q, q, cos, sin)[0], positions,
        rotary_dim=8)
    table = modeling_gptj.create_sinusoidal_positions(1001, 16)[positions][None]
    sin, cos = table.split(8, -1)
    add("gptj", "interleaved", 16, modeling_gptj.apply_rotary_pos_emb(q.transpose(1, 2), sin, cos), positions,
        rotary_dim=16)
    cos, sin = angles(16)
    add("deepseek_v3, written as halves", "interleaved", 16,
        modeling_deepseek_v3.apply_rotary_pos_emb_interleave(q, q, cos, sin)[0], positions, rotary_dim=16,
        output_layout="half")
    freqs = torch.tensor([positions]).float()[..., None] * (1.0 / (1e4 ** (torch.arange(0, 16, 2).float() / 16)))
    add("llama4", "interleaved", 16, modeling_llama4.apply_rotary_emb(
        q.transpose(1, 2), q.transpose(1, 2), torch.polar(torch.ones_like(freqs), freqs))[0], positions, rotary_dim=16)

    places = [[3, 11, 29], [0, 0, 0], [7, 7, 7], [100, 2, 50]]
    q = heads(32, len(places))
    ids = torch.tensor(places).T[:, None, :]
    for name, module, configuration, section in (
            ("qwen2_vl", modeling_qwen2_vl.Qwen2VLRotaryEmbedding, configuration_qwen2_vl.Qwen2VLTextConfig, [4, 6, 6]),
            ("qwen3_vl", modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding, configuration_qwen3_vl.Qwen3VLTextConfig, [6, 5, 5]),
            ("qwen3_vl, uneven", modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding, configuration_qwen3_vl.Qwen3VLTextConfig,
             [10, 4, 2])):
        config = configuration(hidden_size=32, num_attention_heads=1, head_dim=32, rope_parameters={
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": section})
        cos, sin = module(config)(torch.zeros(1), ids)
        add(name, "half", 32, modeling_llama.apply_rotary_pos_emb(q, q, cos, sin)[0], places, mrope_section=section,
            mrope_interleaved=name != "qwen2_vl")

    grid = [[h, w] for h in range(2) for w in range(3)] + [[11, 29]]
    q = heads(16, len(grid))
    ids = torch.tensor(grid).T[None]
    config = configuration_pixtral.PixtralVisionConfig(hidden_size=16, num_attention_heads=1, head_dim=16)
    cos, sin = modeling_pixtral.PixtralVisionRotaryEmbedding(config)(torch.zeros(1), ids)
    add("pixtral vision", "half", 16, modeling_pixtral.apply_rotary_pos_emb(q, q, cos, sin)[0], grid, vision="alternating")
    config = configuration_qwen2_vl.Qwen2VLVisionConfig(embed_dim=16, num_heads=1)
    config.num_attention_heads = 1
    cos, sin = modeling_qwen2_vl.Qwen2VLVisionRotaryEmbedding(config)(torch.zeros(1), ids)
    add("qwen2_vl vision", "half", 16, modeling_qwen2_vl.apply_rotary_pos_emb_vision(
        q.transpose(1, 2), q.transpose(1, 2), cos, sin)[0], grid, vision="restarting")
    config = configuration_llama4.Llama4VisionConfig(hidden_size=16, num_attention_heads=1, image_size=42, patch_size=14)
    freqs = modeling_llama4.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    q = heads(16, 10)
    patches = [[h, w] for h in range(3) for w in range(3)] + [[-1, -1]]
    add("llama4 vision, class token last", "interleaved", 16, modeling_llama4.vision_apply_rotary_emb(
        q.transpose(1, 2), q.transpose(1, 2), freqs)[0], patches, vision="llama4")
    return rows


def main():
    if len(sys.argv) > 1:
        print(json.dumps(frequencies()))
        return
    import torch
    import transformers
    assert torch.__version__.split("+")[0] == TORCH and transformers.__version__ == TRANSFORMERS

    def run_with(kernels):
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": kernels}
        return json.loads(subprocess.run([sys.executable, __file__, "frequencies"], env=environment, check=True,
                                         capture_output=True, text=True).stdout)

    portable, wide = run_with("default"), run_with("avx512")
    cases = []
    for (name, config, length), (bits, factor), (wide_bits, wide_factor) in zip(rope_configs(), portable, wide):
        assert factor == wide_factor
        differs = [p for p in range(len(bits) // 8) if bits[8 * p:8 * p + 8] != wide_bits[8 * p:8 * p + 8]]
        case = {"name": name, "config": config, "attention_factor": factor, "inv_freq_bits": bits}
        if length is not None:
            case["sequence_length"] = length
        if differs:
            case["differs"] = differs
        cases.append(case)
    content = {"about": "python tests/golden/make_transformers.py", "torch": TORCH, "transformers": TRANSFORMERS, "frequencies": cases, "rotated": rotated_vectors()}
    with open("transformers.json", "w") as stream:
        text = json.dumps(content, separators=(",", ":"))
        stream.write(text.replace('{"name"', '\n{"name"') + "\n")
    pairs = sum(len(c["inv_freq_bits"]) // 8 for c in cases)
    print(len(cases), "cases,", pairs, "frequencies,", sum(len(c.get("differs", [])) for c in cases),
          "of them otherwise under AVX-512;", len(content["rotated"]), "families of rotated vectors")


if __name__ == "__main__":
    main()
