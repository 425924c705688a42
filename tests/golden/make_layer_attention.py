#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the attention of Hugging Face transformers inside tiny random models and saves what went in and what came out.

Run by hand; layers/ is committed and read by tests/models/layer_attention_test.cpp. Nothing is downloaded: models are
built from configurations, with random weights.

    pip install transformers==5.24.0 torch==2.15.0 numpy==2.4.6
    python make_layer_attention.py layers

For each model its own forward runs over random embeddings in float32 (attn_implementation "eager"), so that masks,
rotations and scales are those of transformers. Functions of the model's module are wrapped to record, per layer:

    q, k, v   after the projections and after the norms of q and k, before the rotation and before Llama-4's
              temperature
    out       what goes into the output projection
    sinks     gpt-oss's
    bias      T5's table, buckets x heads

Tensors are tokens x heads x head_dim. layers/NAME.json is the config.json that transformers writes for the model, and
layers/index.json lists the layers with the range of keys that each query saw (a check on masks alone).
layers/layers.safetensors holds the tensors.

Each layer is checked here before it is saved: the attention is computed again in float64 from what was recorded, and
everything that the layer has (causal mask, window, chunk, rotation, rotary scheme, softcap, sinks, temperature, bias)
must change the output when it is left out: a test on these numbers notices when it is missing.
"""
import contextlib
import importlib.metadata
import json
import pathlib
import struct
import sys

pinned = {"transformers": "5.24.0", "torch": "2.15.0", "numpy": "2.4.6"}
for package, version in pinned.items():
    found = importlib.metadata.version(package).split("+")[0]
    if found != version:
        sys.exit(f"{package} {version} is needed, {found} is installed")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

small = dict(vocab_size=32, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
             bos_token_id=1, eos_token_id=2, max_position_embeddings=64)
yarn = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)

# name, configuration, model, its keys, tokens, recorded attention modules
models = [
    ("llama", "LlamaConfig", "LlamaModel",
     dict(small, hidden_size=64, num_hidden_layers=1,
          rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=1.0,
                               high_freq_factor=4.0, original_max_position_embeddings=16)), 32, [0]),
    ("gemma2", "Gemma2Config", "Gemma2Model",
     dict(small, hidden_size=48, head_dim=16, num_hidden_layers=2, sliding_window=8, query_pre_attn_scalar=24,
          attn_logit_softcapping=3.0), 28, [0, 1]),
    ("gemma3", "Gemma3TextConfig", "Gemma3TextModel",
     dict(small, hidden_size=48, head_dim=16, num_hidden_layers=3, sliding_window=8, query_pre_attn_scalar=24,
          sliding_window_pattern=3, rope_theta=2e4, rope_local_base_freq=1e3,
          rope_scaling=dict(rope_type="linear", factor=8.0)), 28, [0, 2]),
    ("gpt_oss", "GptOssConfig", "GptOssModel",
     dict(small, hidden_size=48, head_dim=16, num_hidden_layers=2, sliding_window=8, num_local_experts=2,
          num_experts_per_tok=1, rope_parameters=dict(yarn, truncate=False, beta_fast=4.0, beta_slow=1.0)), 28, [0, 1]),
    ("qwen3_yarn", "Qwen3Config", "Qwen3Model",
     dict(small, hidden_size=48, head_dim=16, num_hidden_layers=2, use_sliding_window=True, sliding_window=8,
          max_window_layers=1, rope_parameters=dict(yarn, beta_fast=4.0, beta_slow=1.0)), 28, [0, 1]),
    ("llama4", "Llama4TextConfig", "Llama4TextModel",
     dict(small, hidden_size=48, head_dim=16, num_hidden_layers=4, attention_chunk_size=8, floor_scale=8,
          attn_scale=0.5, num_local_experts=2, intermediate_size_mlp=32), 28, [0, 3]),
    ("phi3_long", "Phi3Config", "Phi3Model",
     dict(small, hidden_size=64, num_hidden_layers=1, original_max_position_embeddings=16,
          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                               short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
                               long_factor=[1.5, 2.0, 3.0, 4.0, 6.0, 9.0])), 28, [0]),
    ("phi3_short", "Phi3Config", "Phi3Model",
     dict(small, hidden_size=64, num_hidden_layers=1, original_max_position_embeddings=16,
          rope_parameters=dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                               short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
                               long_factor=[1.5, 2.0, 3.0, 4.0, 6.0, 9.0])), 14, [0]),
    ("mistral", "MistralConfig", "MistralModel",
     dict(small, hidden_size=64, num_hidden_layers=1, sliding_window=8), 28, [0]),
    ("modernbert", "ModernBertConfig", "ModernBertModel",
     dict({k: v for k, v in small.items() if k != "num_key_value_heads"}, hidden_size=32, num_hidden_layers=2,
          global_attn_every_n_layers=2, local_attention=8, cls_token_id=1, sep_token_id=2), 28, [0, 1]),
    ("t5", "T5Config", "T5Model",
     dict(vocab_size=32, d_model=48, d_kv=8, d_ff=32, num_heads=4, num_layers=2, num_decoder_layers=1,
          relative_attention_num_buckets=8, relative_attention_max_distance=16, pad_token_id=0, eos_token_id=1,
          decoder_start_token_id=0), 28,
     ["encoder.block.0.layer.0.SelfAttention", "encoder.block.1.layer.0.SelfAttention",
      "decoder.block.0.layer.0.SelfAttention"]),
]


def randomise(model, generator):
    """Weights under which scores are of order 1; initial ones are so small that every key weighs the same."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        kind = name.split(".")[-2]
        if name.endswith("sinks"):
            new = noise
        elif kind in ("q_norm", "k_norm"):
            new = parameter + 0.2 * noise
        elif kind == "relative_attention_bias":
            new = noise
        elif kind in ("q_proj", "k_proj", "v_proj", "qkv_proj", "Wqkv"):
            new = 0.3 * noise if name.endswith("bias") else 1.3 * noise / parameter.shape[1] ** 0.5
        elif kind in ("q", "k", "v"):  # T5 does not scale its scores
            new = 0.7 * noise / parameter.shape[1] ** 0.5
        elif parameter.dim() == 2:
            new = noise / parameter.shape[1] ** 0.5
        else:
            continue
        with torch.no_grad():
            parameter.copy_(new)


class recorder:
    """Stands in for the module's functions that rotate q and k and that attend."""

    def __init__(self, model):
        self.module = sys.modules[type(model).__module__]
        self.name_of = {id(m): name for name, m in model.named_modules()}
        self.unrotated, self.calls = None, {}

    def attend(self, original):
        def eager(attention, query, key, value, mask, **options):
            out, weights = original(attention, query, key, value, mask, **options)
            name = self.name_of[id(attention)]
            if self.unrotated is None:
                self.unrotated = query, key
            assert name not in self.calls
            self.calls[name] = dict(module=attention, before=self.unrotated, rotated=(query, key), value=value,
                                    mask=mask, out=out, options=options)
            self.unrotated = None
            return out, weights
        return eager

    def rotate(self, original, token_axis):
        def rotate(q, k, *arguments, **options):
            self.unrotated = tuple(x.transpose(1, 2) if token_axis == 1 else x for x in (q, k))
            return original(q, k, *arguments, **options)
        return rotate

    @contextlib.contextmanager
    def in_place(self):
        kept = {}
        for name, stand_in in (("eager_attention_forward", self.attend),
                               ("apply_rotary_pos_emb", lambda f: self.rotate(f, 2)),
                               ("apply_rotary_emb", lambda f: self.rotate(f, 1))):
            if hasattr(self.module, name):
                kept[name] = getattr(self.module, name)
                setattr(self.module, name, stand_in(kept[name]))
        try:
            yield
        finally:
            for name, function in kept.items():
                setattr(self.module, name, function)


def llama4_inputs(call, projected):
    """q and k of Llama-4 as an attention call gets them. It normalises heads after the rotation, which changes no
    length: the norm before it is the same. Without rotation there is no norm, and the temperature follows instead."""
    attention = call["module"]
    shape = (1, -1, attention.head_dim)
    q, k = (x.view(x.shape[1], *shape[1:]).unsqueeze(0).transpose(1, 2) for x in projected)
    return tuple(attention.qk_norm(x) for x in (q, k)) if hasattr(attention, "qk_norm") else (q, k)


def attend(q, k, v, mask, options, sinks):
    """Attention in float64 from rotated q and k; arrays are heads x tokens x head_dim."""
    group = q.shape[0] // k.shape[0]
    scores = q @ np.repeat(k, group, 0).transpose(0, 2, 1) * options["scaling"]
    if options.get("softcap"):
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    if options.get("position_bias") is not None:
        scores = scores + options["position_bias"]
    scores = np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    return (weights / total @ np.repeat(v, group, 0)).transpose(1, 0, 2)


def array(tensor):
    return tensor.detach()[0].double().numpy()


def plain_rope(x, rope, interleaved):
    """Rotary embedding without scaling: heads x tokens x head_dim, channels i and i + half together, or 2i and 2i+1."""
    width = int(x.shape[2] * rope.get("partial_rotary_factor", 1.0))
    angles = np.arange(x.shape[1])[:, None] * rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
    one, two = (np.arange(0, width, 2), np.arange(1, width, 2)) if interleaved else (
        np.arange(width // 2), np.arange(width // 2) + width // 2)
    turned = x.copy()
    turned[..., one] = x[..., one] * np.cos(angles) - x[..., two] * np.sin(angles)
    turned[..., two] = x[..., two] * np.cos(angles) + x[..., one] * np.sin(angles)
    return turned


def is_causal(visible):
    return not np.triu(visible, 1).any()


def check(name, call, q, k, visible, rope):
    """Recomputes the layer, and sees that each part of it matters. The parts found are returned."""
    options = {key: value for key, value in call["options"].items() if key in ("scaling", "softcap")}
    if call["options"].get("position_bias") is not None:
        options["position_bias"] = array(call["options"]["position_bias"])
    sinks = getattr(call["module"], "sinks", None)
    sinks = None if sinks is None else sinks.detach().double().numpy()
    turned_q, turned_k = (array(x) for x in call["rotated"])
    v, out = array(call["value"]), array(call["out"])
    tokens = len(out)
    parts = {"all": np.abs(attend(turned_q, turned_k, v, visible, options, sinks) - out).max()}
    assert parts["all"] < 5e-6, (name, parts)

    def without(part, *arguments):
        parts[part] = np.abs(attend(*arguments) - out).max()
        assert parts[part] > 0.02, (name, part, parts[part])

    plain = np.ones((tokens, tokens), bool)
    if is_causal(visible):
        without("causal", turned_q, turned_k, v, plain, options, sinks)
        plain = np.tril(plain)
    if not np.array_equal(plain, visible):
        without("chunk" if name.startswith("llama4") else "window", turned_q, turned_k, v, plain, options, sinks)
    q, k = q.transpose(1, 0, 2), k.transpose(1, 0, 2)
    if not np.allclose(turned_k, k):
        without("rotation", q, k, v, visible, options, sinks)
        plain_q, plain_k = (plain_rope(x, rope, name.startswith("llama4")) for x in (q, k))
        if rope["rope_type"] == "default":
            parts["all"] = max(parts["all"], np.abs(attend(plain_q, plain_k, v, visible, options, sinks) - out).max())
            assert parts["all"] < 2e-5, (name, parts)
        else:
            without("scheme", plain_q, plain_k, v, visible, options, sinks)
    elif not np.allclose(turned_q, q):
        without("temperature", q, k, v, visible, options, sinks)
    if options.get("softcap"):
        without("softcap", turned_q, turned_k, v, visible, dict(options, softcap=None), sinks)
    if sinks is not None:
        without("sinks", turned_q, turned_k, v, visible, options, None)
    if "position_bias" in options:
        without("bias", turned_q, turned_k, v, visible, dict(options, position_bias=None), sinks)
    if abs(options["scaling"] - q.shape[2] ** -0.5) > 1e-9:
        without("scale", turned_q, turned_k, v, visible, dict(options, scaling=q.shape[2] ** -0.5), sinks)
    return parts


def visible_keys(call, tokens):
    """Which keys each query sees, by transformers' own mask."""
    if call["mask"] is None:
        return np.ones((tokens, tokens), bool)
    mask = call["mask"][0, 0]
    visible = (mask == 0).numpy() if mask.dtype != torch.bool else mask.numpy()
    visible = np.broadcast_to(visible, (tokens, tokens))
    ranges = [np.flatnonzero(row) for row in visible]
    assert all(len(r) and r[-1] - r[0] + 1 == len(r) for r in ranges)
    return visible


def record(name, config_class, model_class, keys, tokens, wanted, tensors):
    config = getattr(transformers, config_class)(**keys)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(len(name) * 1000 + tokens)
    model = getattr(transformers, model_class)(config).eval()
    randomise(model, generator)
    config.architectures = [model_class]
    width = getattr(config, "d_model", None) or config.hidden_size
    inputs = torch.randn(1, tokens, width, generator=generator)
    seen, projected = recorder(model), {}
    hooks = [m.register_forward_hook(lambda _, __, out, n=n: projected.update({n: out}))
             for n, m in model.named_modules() if n.endswith(("q_proj", "k_proj"))]
    with torch.no_grad(), seen.in_place():
        if name == "t5":
            model(inputs_embeds=inputs, decoder_inputs_embeds=inputs, use_cache=False)
        else:
            model(inputs_embeds=inputs, use_cache=False)
    for hook in hooks:
        hook.remove()

    entries = []
    for layer in wanted:
        path = layer if isinstance(layer, str) else next(
            n for n in seen.calls if f"layers.{layer}." in n)
        call = seen.calls[path]
        before = call["before"]
        if name == "llama4":
            before = llama4_inputs(call, [projected[f"{path}.{p}"] for p in ("q_proj", "k_proj")])
        q, k, v = (x.detach()[0].transpose(0, 1).contiguous().numpy() for x in (*before, call["value"]))
        out = call["out"].detach()[0].contiguous().numpy()
        visible = visible_keys(call, tokens)
        index = layer if isinstance(layer, int) else int(path.split(".")[2])
        rope = getattr(config, "rope_parameters", None)
        if rope and "rope_theta" not in rope:
            rope = rope[config.layer_types[index]]
        parts = check(f"{name} {path}", call, q, k, visible, rope)
        stack = "decoder" if is_causal(visible) else "encoder"
        key = f"{name}.{stack}.{index}" if name == "t5" else f"{name}.{index}"
        tensors.update({f"{key}.q": q, f"{key}.k": k, f"{key}.v": v, f"{key}.out": out})
        entry = {"key": key, "config": f"{name}.json", "layer": index, "stack": stack, "tokens": tokens,
                 "heads": q.shape[1], "kv_heads": k.shape[1], "head_dim": q.shape[2],
                 "scale": call["options"]["scaling"], "softcap": call["options"].get("softcap") or 0.0,
                 "visible": [[int(np.flatnonzero(r)[0]), int(np.flatnonzero(r)[-1])] for r in visible],
                 "has": [p for p in parts if p != "all"]}
        if hasattr(call["module"], "sinks"):
            tensors[f"{key}.sinks"] = call["module"].sinks.detach().numpy()
        if name == "t5":
            first = getattr(model, stack).block[0].layer[0].SelfAttention
            tensors[f"{key}.bias"] = first.relative_attention_bias.weight.detach().numpy()
        entries.append(entry)
        print(f"{key:22}", " ".join(f"{p} {d:.2g}" for p, d in parts.items()))
    return config, entries


def write_safetensors(path, tensors):
    header, blocks, end = {}, [], 0
    for name, values in tensors.items():
        assert values.dtype == np.float32
        data = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end + len(data)]}
        blocks.append(data)
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors, entries = {}, []
    for model in models:
        config, found = record(*model, tensors)
        (folder / f"{model[0]}.json").write_text(config.to_json_string(use_diff=True))
        entries += found
    write_safetensors(folder / "layers.safetensors", tensors)
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    head = json.dumps({"made_by": "tests/golden/make_layer_attention.py", "versions": pinned})
    (folder / "index.json").write_text(head[:-1] + ', "layers": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
