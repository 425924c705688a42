#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/fuzz/corpus: model files that are right (good_*) and wrong in every way we could think of.

Run by hand from this folder; the files are committed. Python 3.9, nothing else. The families are those that the judge
has built (tests/golden/judge.json) and the architectures of families/gguf.hpp.
"""
import json
import pathlib
import re
import struct

corpus = pathlib.Path(__file__).parent / "corpus"


def save(folder, name, data):
    path = corpus / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


# ---- config.json ---------------------------------------------------------------------------------------------
llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
         "max_position_embeddings": 4096, "rope_theta": 10000.0}
scalings = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 32,
             "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False, "attention_factor": 1.1},
    "longrope": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
                 "original_max_position_embeddings": 1024},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 1024},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
}
for name, block in scalings.items():
    save("config_json", f"good_{name}.json", json.dumps({**llama, "rope_scaling": block}))
good = {
    "llama": llama,
    "nested": {"model_type": "gpt_oss", "head_dim": 64, "num_hidden_layers": 4, "max_position_embeddings": 4096,
               "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 32.0, "rope_theta": 150000.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "gemma3": {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 8,
                                                       "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}},
    "llama4": {"model_type": "llama4_text", "num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]},
    "deepseek": {"model_type": "deepseek_v3", "num_hidden_layers": 2, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                 "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
                                                       "mscale_all_dim": 1.0,
                                                       "original_max_position_embeddings": 4096}},
    "qwen2_vl": {"model_type": "qwen2_vl", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
                 "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "falcon": {"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "alibi": True},
    "mpt": {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2,
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "softmax_scale": None}},
    "t5": {"model_type": "t5", "num_heads": 4, "num_layers": 2, "relative_attention_num_buckets": 32},
    "roberta": {"model_type": "roberta", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
                "max_position_embeddings": 514, "pad_token_id": 1},
    "whisper": {"model_type": "whisper", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "marian": {"model_type": "marian", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
               "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 512},
    "modernbert": {"model_type": "modernbert", "num_hidden_layers": 6, "global_rope_theta": 160000.0},
}
hybrid = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
          "max_position_embeddings": 4096}
good.update({
    "bailing": {"model_type": "bailing_hybrid", **hybrid, "layer_group_size": 2, "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8, "v_head_dim": 16},
    "bamba": {"model_type": "bamba", **hybrid, "attn_layer_indices": [1, 3]},
    "deepseek_v4": {"model_type": "deepseek_v4", **hybrid, "head_dim": 32, "qk_rope_head_dim": 8,
                    "compress_ratios": [0, 4, 128, 0], "rope_scaling": {"type": "yarn", "factor": 16,
                                                                       "original_max_position_embeddings": 1024}},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 4,
                "attention_types": [[["global", "local"], 2]], "window_size": 8},
    "granite_swa": {"model_type": "granite_swa", **hybrid, "layer_rope_theta": [1e4, 1e4, 0, 5e5]},
    "jamba": {"model_type": "jamba", **hybrid, "attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"model_type": "kimi_linear", **hybrid, "linear_attn_config": {"full_attn_layers": [2, 4],
                                                                                  "kda_layers": [1, 3]}},
    "laguna": {"model_type": "laguna", **hybrid, "num_attention_heads_per_layer": [4, 4, 8, 8],
               "layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8},
    "longformer": {"model_type": "longformer", **hybrid, "attention_window": [8, 8, 16, 16]},
    "mimo": {"model_type": "mimo_v2_flash", **hybrid, "num_attention_heads": 8, "hybrid_layer_pattern": [0, 1, 1, 0]},
    "mllama": {"model_type": "mllama_text_model", **hybrid, "cross_attention_layers": [1]},
    "nanochat": {"model_type": "nanochat", **hybrid},
    "nemotron_h": {"model_type": "nemotron_h", **hybrid, "hybrid_override_pattern": "M*-E"},
    "recurrent_gemma": {"model_type": "recurrent_gemma", **hybrid, "block_types": ["recurrent", "attention"]},
    "step3p5": {"model_type": "step3p5", **hybrid, "rope_theta": [1e4, 1e4, 1e6, 1e6],
                "partial_rotary_factors": [1.0, 1.0, 0.5, 0.5]},
    "zamba2": {"model_type": "zamba2", **hybrid, "use_mem_rope": True,
               "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
})
for name, config in good.items():
    save("config_json", f"good_{name}.json", json.dumps(config))
for name, config in {
        "guarded_unknown": {**llama, "model_type": "brand_new", "rope_interleave": True, "local_attention_span": 5},
        "refused_by_name": {"model_type": "mpnet"}, "indices_beyond": {**good["bamba"], "attn_layer_indices": [9]},
        "letters_unknown": {**good["nemotron_h"], "hybrid_override_pattern": "MX-E"},
        "letters_short": {**good["nemotron_h"], "hybrid_override_pattern": "M"},
        "ratios_unknown": {**good["deepseek_v4"], "compress_ratios": [0, 5, 0, 0]},
        "thetas_short": {**good["granite_swa"], "layer_rope_theta": [1e4]},
        "theta_of_a_layer_negative": {**good["granite_swa"], "layer_rope_theta": [1e4, -1, 0, 5e5]},
        "words_unknown": {**good["laguna"], "layer_types": ["full_attention", "wavelet", "mamba", "conv"]},
        "heads_of_a_layer_zero": {**good["laguna"], "num_attention_heads_per_layer": [4, 0, 8, 8]},
        "shares_beyond_one": {**good["step3p5"], "partial_rotary_factors": [1.0, 2.0, 0.5, 0.5]},
        "from_one_zero": {**good["kimi_linear"], "linear_attn_config": {"full_attn_layers": [0]}},
        "blocks_empty": {**good["recurrent_gemma"], "block_types": []},
        "types_repeat_for_ever": {**good["gpt_neo"], "attention_types": [[["global"], 2 ** 60]]}}.items():
    save("config_json", f"{name}.json", json.dumps(config))
text = json.dumps({**llama, "rope_scaling": scalings["yarn"]})
for length in (0, 1, len(text) // 3, len(text) // 2, len(text) - 1):
    save("config_json", f"cut_at_{length}.json", text[:length])
save("config_json", "deep_lists.json", "[" * 5000)
save("config_json", "deep_objects.json", '{"a":' * 5000)
save("config_json", "deep_but_closed.json", '{"a":' * 200 + "1" + "}" * 200)
save("config_json", "key_twice.json", '{"model_type": "llama", "rope_theta": 1e4, "rope_theta": 1e6}')
save("config_json", "huge_exponent.json", '{"model_type": "llama", "rope_theta": 1e99999}')
save("config_json", "not_a_number.json", '{"model_type": "llama", "rope_theta": NaN}')
save("config_json", "list_at_the_top.json", "[]")
save("config_json", "bad_utf8.json", b'{"model_type": "\xff\xfe"}')
save("config_json", "nul_inside.json", b'{"model_type": "llama\x00"')
save("config_json", "trailing.json", json.dumps(llama) + "x")
wrong = {
    "heads_as_text": {"num_attention_heads": "4"}, "heads_zero": {"num_attention_heads": 0},
    "heads_negative": {"num_attention_heads": -4}, "heads_fraction": {"num_attention_heads": 4.5},
    "heads_huge": {"num_attention_heads": 2 ** 60}, "heads_no_divisor": {"num_attention_heads": 7},
    "layers_huge": {"num_hidden_layers": 2 ** 40}, "width_huge": {"hidden_size": 2 ** 50},
    "context_huge": {"max_position_embeddings": 2 ** 62}, "theta_zero": {"rope_theta": 0},
    "theta_list": {"rope_theta": [1]}, "theta_negative": {"rope_theta": -1e4},
    "block_is_text": {"rope_scaling": "yarn"}, "block_is_list": {"rope_scaling": [1]},
    "unknown_type": {"rope_scaling": {"rope_type": "ntk", "factor": 2}},
    "type_is_number": {"rope_scaling": {"rope_type": 2, "factor": 2}},
    "no_factor": {"rope_scaling": {"rope_type": "linear"}},
    "factor_small": {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
    "factor_text": {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
    "factor_huge": {"rope_scaling": {"rope_type": "dynamic", "factor": 1e308}},
    "lists_short": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
    "lists_mixed": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1, "x"], "long_factor": [1]}},
    "lists_zero": {"rope_scaling": {"rope_type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}},
    "edges_crossed": {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                                       "high_freq_factor": 1}},
    "head_dim_odd": {"head_dim": 15}, "head_dim_zero": {"head_dim": 0}, "layer_types_number": {"layer_types": 2},
    "layer_types_short": {"layer_types": ["full_attention"]}, "text_config_text": {"text_config": "x"},
}
for name, change in wrong.items():
    save("config_json", f"{name}.json", json.dumps({**llama, **change}))

root = pathlib.Path(__file__).parents[2]
rows = (root / "include/posenc/models/families/huggingface.hpp").read_text()
refused = set(re.findall(r'refused_type\{\s*"([^"]+)"', rows))
for case in json.loads((root / "tests/golden/judge.json").read_text())["cases"]:
    if case["config"].get("model_type") not in refused:
        save("config_json", f"good_judged_{case['type']}.json", json.dumps(case["config"], separators=(",", ":")))


# ---- GGUF ----------------------------------------------------------------------------------------------------
def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def u32(key, value):
    return string(key) + struct.pack("<II", 4, value)


def f32(key, value):
    return string(key) + struct.pack("<If", 6, value)


def text_key(key, value):
    return string(key) + struct.pack("<I", 8) + string(value)


def array(key, kind, count, data):
    return string(key) + struct.pack("<IIQ", 9, kind, count) + data


def tensor(name, extents, kind, offset):
    return string(name) + struct.pack("<I", len(extents)) + struct.pack(f"<{len(extents)}Q", *extents) + \
        struct.pack("<IQ", kind, offset)


def file(keys, tensors=(), data=b"", version=3, key_count=None, tensor_count=None):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if tensor_count is None else tensor_count,
                                 len(keys) if key_count is None else key_count)
    head += b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def model(name, *more):
    return [text_key("general.architecture", name), u32(f"{name}.block_count", 4),
            u32(f"{name}.attention.head_count", 2), u32(f"{name}.embedding_length", 16),
            u32(f"{name}.context_length", 4096), f32(f"{name}.rope.freq_base", 10000.0), *more]


freqs = struct.pack("<4f", 1, 2, 4, 8) + b"\0" * 16
llama_file = file(model("llama", u32("llama.rope.dimension_count", 8)), [tensor("rope_freqs.weight", [4], 0, 0)], freqs)
save("gguf", "good_llama.gguf", llama_file)
save("gguf", "good_version_2.gguf", file(model("qwen2"), version=2))
save("gguf", "good_yarn.gguf", file(model(
    "deepseek2", text_key("deepseek2.rope.scaling.type", "yarn"), f32("deepseek2.rope.scaling.factor", 40),
    f32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707), u32("deepseek2.rope.dimension_count", 4))))
save("gguf", "good_longrope.gguf", file(model("phi3"), [tensor("rope_factors_short.weight", [4], 0, 0),
                                                        tensor("rope_factors_long.weight", [4], 0, 32)], freqs + freqs))
save("gguf", "good_gemma3.gguf", file(model("gemma3", u32("gemma3.attention.sliding_window", 16))))
save("gguf", "good_pattern.gguf", file(model("gemma4", u32("gemma4.attention.sliding_window", 16), array(
    "gemma4.attention.sliding_window_pattern", 7, 4, b"\1\1\1\0"))))
save("gguf", "good_sections.gguf", file(model("qwen3vl", array("qwen3vl.rope.dimension_sections", 5, 4,
                                                               struct.pack("<4i", 2, 1, 1, 0)))))
save("gguf", "good_bloom.gguf", file(model("bloom")))
save("gguf", "good_t5.gguf", file(model("t5", u32("t5.attention.relative_buckets_count", 32))))
save("gguf", "good_gpt2.gguf", file(model("gpt2"), [tensor("position_embd.weight", [16, 64], 1, 0)], b"\0" * 2048))
for name in re.findall(r'architecture\{\.name = "([^"]+)"', (root / "include/posenc/models/families/gguf.hpp").read_text()):
    save("gguf", f"good_row_{name}.gguf", file(model(
        name, u32(f"{name}.attention.relative_buckets_count", 16), u32(f"{name}.attention.head_count_kv", 1),
        u32(f"{name}.attention.sliding_window", 16), text_key(f"{name}.rope.scaling.type", "yarn"),
        f32(f"{name}.rope.scaling.factor", 4.0), u32(f"{name}.rope.scaling.original_context_length", 1024))))
for length in (0, 4, 8, 23, 24, 40, 100, len(llama_file) // 2, len(llama_file) - 17, len(llama_file) - 32):
    save("gguf", f"cut_at_{length}.gguf", llama_file[:length])
huge = 0xFFFFFFFFFFFFFFF0
save("gguf", "version_1.gguf", file(model("llama"), version=1))
save("gguf", "big_endian.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
save("gguf", "huge_key_count.gguf", file(model("llama"), key_count=huge))
save("gguf", "huge_tensor_count.gguf", file(model("llama"), tensor_count=huge))
save("gguf", "huge_string.gguf", file([string("k") + struct.pack("<IQ", 8, huge)]))
save("gguf", "huge_array.gguf", file([array("k", 10, huge // 8, b"")]))
save("gguf", "huge_string_array.gguf", file([array("k", 8, 1 << 60, b"")]))
save("gguf", "nested_arrays.gguf", file([string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 2000]))
save("gguf", "unknown_type.gguf", file([string("k") + struct.pack("<IQ", 99, 0)]))
save("gguf", "key_twice.gguf", file([u32("k", 1), u32("k", 2)]))
save("gguf", "no_architecture.gguf", file([u32("k", 1)]))
save("gguf", "architecture_number.gguf", file([u32("general.architecture", 1)]))
save("gguf", "unknown_architecture.gguf", file(model("brand-new")))
save("gguf", "alignment_24.gguf", file([u32("general.alignment", 24), *model("llama")]))
save("gguf", "odd_width.gguf", file(model("llama", u32("llama.rope.dimension_count", 7))))
save("gguf", "wide_rotation.gguf", file(model("llama", u32("llama.rope.dimension_count", 64))))
save("gguf", "huge_width.gguf", file(model("llama", u32("llama.attention.key_length", 0xFFFFFFFF))))
save("gguf", "freqs_short.gguf", file(model("llama"), [tensor("rope_freqs.weight", [3], 0, 0)], freqs))
save("gguf", "freqs_quantised.gguf", file(model("llama"), [tensor("rope_freqs.weight", [32], 8, 0)], b"\0" * 64))
save("gguf", "freqs_zero.gguf", file(model("llama"), [tensor("rope_freqs.weight", [4], 0, 0)], b"\0" * 32))
save("gguf", "freqs_nan.gguf", file(model("llama"), [tensor("rope_freqs.weight", [4], 0, 0)], b"\xff" * 32))
save("gguf", "tensor_beyond_the_end.gguf", file(model("llama"), [tensor("t", [1 << 40], 0, 0)], freqs))
save("gguf", "too_many_elements.gguf", file(model("llama"), [tensor("t", [1 << 40, 1 << 40], 0, 0)], freqs))
save("gguf", "base_nan.gguf", file([k if b"freq_base" not in k else f32("llama.rope.freq_base", float("nan"))
                                    for k in model("llama")]))
save("gguf", "factor_small.gguf", file(model("llama", f32("llama.rope.scaling.factor", 0.25))))
