# SPDX-License-Identifier: MIT
"""Writes tests/golden/judge.json: what the attention classes of Hugging Face transformers do, executed.

Run by hand, in a virtual environment of its own, from the root of the project:

    pip install torch==2.15.0 transformers==5.24.0 numpy
    python tools/judge_transformers.py

Every text model that the package can build is built small, with random weights and its class's own defaults otherwise.
The attention function is replaced by one that records the queries, keys, mask and scale of every layer, and the input
of every attention module by rows that are all the same, so that queries differ between tokens by the rotation alone.
What is recorded per kind of layer: heads, widths, scale, softcap, sinks, the mask's form, and the rotation (pairing,
channels, frequencies of some pairs, attention factor). tests/models/judge_test.cpp reads each configuration and
compares.

Each type is then judged again with every one of CHANGES that its configuration has room for: what published files of the
family differ in. A variant holds what its configuration changes and what the layers then do.
"""
import copy
import json
import logging
import math
import os
import sys
import warnings

os.environ["OMP_NUM_THREADS"] = "1"
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM  # noqa: E402
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

TORCH, TRANSFORMERS = "2.15.0", "5.24.0"
TOKENS = 40
calls = []


def record(module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **kwargs):
    calls.append((module, query.detach(), key.detach(), value.detach(), attention_mask, scaling, kwargs))
    out = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    if out.shape[2] != query.shape[2]:
        out = out[:, :, :1].expand(-1, -1, query.shape[2], -1)
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("record", record)
ALL_MASK_ATTENTION_FUNCTIONS.register("record", eager_mask)

SMALL = {
    "vocab_size": 64, "intermediate_size": 32, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "ffn_hidden_size": 32, "expert_ffn_hidden_size": 16, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8, "decoder_ffn_dim": 32, "encoder_ffn_dim": 32, "d_ff": 32, "n_inner": 32,
    "ffn_dim": 32, "moe_num_experts": 4, "intermediate_size_mlp": 32, "moe_topk": 2, "zero_expert_num": 0,
    "num_experts_per_token": 2, "mamba_d_state": 8, "ssm_state_size": 8, "n_shared_experts": 1, "share_expert_dim": 16,
    "num_nextn_predict_layers": 0, "num_mtp_layers": 0, "audio_vocab_size": 64, "moe_num_shared_experts": 1,
    "type_vocab_size": 2, "entity_vocab_size": 64, "num_labels": 2}
TOKEN_IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 2, "image_token_id": 2,
             "video_token_id": 2, "audio_token_id": 2, "sep_token_id": 2, "cls_token_id": 2, "unk_token_id": 2}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
          "num_decoder_layers", "num_encoder_layers")
WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention", "attention_window_size", "window_size")
BORING = ("token", "dropout", "eps", "_act", "act_", "activation", "initializer", "label", "dtype", "_name", "loss",
          "return_dict", "output_", "use_cache", "expert", "moe", "router", "topk_", "mamba", "vocab", "intermediate",
          "ffn", "tie_", "chunk_size_feed", "is_encoder_decoder_", "problem_type", "architectures", "transformers",
          "pruned", "torchscript", "bias", "prefix", "mlp", "gating", "conv", "pretraining", "routed", "init_",
          "norm", "time_step", "ssm", "summary", "beam", "classifier", "std", "altup", "laurel", "audio", "vision")


def small(model_type):
    cls = CONFIG_MAPPING[model_type]
    d = cls().to_dict()
    if "num_experts_per_tok" in d:
        d["num_experts_per_tok"] = 2
    d = {k: v for k, v in d.items() if v is not None and k not in ("transformers_version", "model_type", "architectures", "dtype",
                                                 "_name_or_path")}
    for key, value in list(d.items()):
        if key in SMALL and isinstance(value, int) and not isinstance(value, bool):
            d[key] = SMALL[key]
        if key in TOKEN_IDS and value is not None:
            d[key] = TOKEN_IDS[key]
        if key in LAYERS and isinstance(value, int):
            d[key] = min(value, 8)
        if key in WINDOWS and isinstance(value, int) and value > 0:
            d[key] = 6
    layers = d.get("num_hidden_layers")
    for key, value in list(d.items()):
        per_layer = isinstance(value, list) and isinstance(layers, int) and len(value) > layers
        if per_layer and all(isinstance(x, (str, int, float)) for x in value):
            d[key] = value[:layers]
    return cls, d


def variants(d):
    heads, hidden, width = d.get("num_attention_heads"), d.get("hidden_size"), d.get("head_dim")
    kv = d.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(hidden, int):
        few = 8 if isinstance(kv, int) and kv < heads else 4
        a = dict(d, num_attention_heads=few)
        if isinstance(kv, int):
            a["num_key_value_heads"] = few if kv == heads else min(2, kv)
        # With a width of its own the head keeps it, else heads of 32.
        if isinstance(width, int):
            yield dict(a, hidden_size=64)
            yield dict(a, hidden_size=few * width)
        yield dict(a, hidden_size=few * 32)
        yield dict(a, hidden_size=few * 64)
        yield dict(a, hidden_size=few * 128)
    for width in ("n_embd", "d_model"):
        if width in d:
            heads = next((d[k] for k in ("n_head", "num_heads", "n_heads", "decoder_attention_heads") if k in d), 4)
            yield dict(d, **{width: heads * 64})
            yield dict(d, **{width: heads * 16})
    yield d


def rope_blocks(d):
    """The rope block, or the one of each kind of layer."""
    block = d.get("rope_parameters")
    if not isinstance(block, dict):
        return []
    nested = [b for b in block.values() if isinstance(b, dict)]
    return nested[:1] if nested else [block]


def with_scaling(**scaling):
    def change(d):
        blocks = [b for b in rope_blocks(d) if b.get("rope_type", "default") == "default"]
        for block in blocks:
            block.update(scaling)
        return bool(blocks)
    return change


def with_base(d):
    blocks = [b for b in rope_blocks(d) if "rope_theta" in b]
    for block in blocks:
        block["rope_theta"] = 500000.0
    return bool(blocks)


def with_number(key, value, but_not_with=()):
    def change(d):
        old = d.get(key)
        if isinstance(old, bool) or not isinstance(old, (int, float)) or old == value or any(k in d for k in but_not_with):
            return False
        d[key] = value
        return True
    return change


def with_other_heads(d):
    """Twice as many query heads in the same width, or of the same head_dim."""
    for key in ("num_attention_heads", "n_head", "num_heads"):
        if isinstance(d.get(key), int) and not isinstance(d[key], bool):
            d[key] *= 2
            return True
    return False


def with_head_dim(d):
    """Sections of a multi-axis rope would no longer fit."""
    return not any("mrope_section" in b for b in rope_blocks(d)) and with_number("head_dim", 48)(d)


CHANGES = {
    "linear": with_scaling(rope_type="linear", factor=4.0),
    "dynamic": with_scaling(rope_type="dynamic", factor=2.0),
    "yarn": with_scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=1024),
    "llama3": with_scaling(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=1024),
    "base": with_base,
    "one KV head": with_number("num_key_value_heads", 1),
    "heads": with_other_heads,
    "head_dim": with_head_dim,
    "window": with_number("sliding_window", 9),
    "three layers": with_number("num_hidden_layers", 3, but_not_with=("rope_scaling_layers",)),
    "context": with_number("max_position_embeddings", 777),
}


def class_name(model_type):
    """The name that published files of the type have under "architectures"; parts of models have the whole's."""
    for names in (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
                  modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_MAPPING_NAMES):
        name = names.get(model_type)
        if name:
            name = name if isinstance(name, str) else name[0]
            return name.replace("TextModel", "ForConditionalGeneration")
    return ""


def known(auto, cls):
    return cls in auto._model_mapping.keys()


def build(model_type):
    cls, d = small(model_type)
    last = ""
    for one in variants(d):
        for auto in (AutoModel, AutoModelForCausalLM):
            if not known(auto, cls):
                continue
            try:
                config = cls(**one)
                with torch.device("meta"):
                    size = sum(p.numel() for p in auto.from_config(config, attn_implementation="record").parameters())
                if size > 2e8:
                    raise RuntimeError("too large: %d parameters" % size)
                torch.manual_seed(0)
                model = auto.from_config(config, attn_implementation="record").float().eval()
                run(model, config)
                if not calls:
                    raise RuntimeError("attention was not called")
                return config, model, auto, one
            except Exception as error:  # the next variant may be possible
                last = RuntimeError("%s; %s" % (last, repr(error)[:100]))
    raise RuntimeError(last or "no model class of its own")


def run(model, config):
    calls.clear()
    ids = torch.full((1, TOKENS), 3)
    more = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        try:
            model(input_ids=ids, use_cache=False, **more)
        except TypeError:
            model(input_ids=ids, **more)


def mask_form(mask, window_says):
    """Causal or not, how far it reaches, or the chunk."""
    if mask is None:
        return None
    mask = mask[0, 0]
    seen = mask if mask.dtype == torch.bool else mask > -1e30
    if seen.shape[0] != seen.shape[1]:
        return None
    i, j = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)[None]
    distance = i - j
    reach = distance[seen]
    back, ahead = int(reach.max()), int(-reach.min())
    if bool((((distance <= back) & (distance >= -ahead)) == seen).all()):
        return {"back": back if back < TOKENS - 1 else None, "ahead": ahead if ahead < TOKENS - 1 else None}
    for chunk in range(2, TOKENS):
        if bool(((i // chunk == j // chunk) & (j <= i)).eq(seen).all()):
            return {"chunk": chunk}
    return {"other": True}


def rotation(rows):
    """What turns the equal rows of one head into each other."""
    rows = rows.double()
    moved = (rows - rows[:1]).abs().amax(0) / rows.abs().amax().clamp_min(1e-30)
    if float(moved.max()) < 1e-6:
        return None
    width = rows.shape[1]
    moving = torch.nonzero(moved > 3e-7)[:, 0]
    first, last = int(moving[0]), int(moving[-1]) + 1
    best = None
    for end in range(last, min(width, last + 8) + 1):
        size = end - first
        if size % 2:
            continue
        for pairing in ("half_split", "interleaved"):
            a, b = ((rows[:, first:first + size // 2], rows[:, first + size // 2:end]) if pairing == "half_split" else
                    (rows[:, first:end:2], rows[:, first + 1:end:2]))
            norm = a * a + b * b
            error = float(((norm - norm[:1]).abs() / norm.amax().clamp_min(1e-30)).max())
            angle = torch.atan2(b, a)
            step = torch.remainder(angle[1] - angle[0] + math.pi, 2 * math.pi) - math.pi
            if best is None or error < 0.2 * best[0]:
                best = (error, pairing, size, step)
    error, pairing, size, step = best
    if float(step.abs().max()) < 1e-6:  # the rounding of a product, no rotation
        return None
    pairs = size // 2
    some = sorted({0, 1, pairs // 4, pairs // 2})
    return {"first": first, "channels": size, "pairing": pairing, "error": error,
            "pairs": some, "frequencies": [float("%.6g" % step[p]) for p in some]}


def judge(model_type):
    config, model, auto, one = build(model_type)
    case = dict(observe(model_type, config, model), architecture=class_name(model_type))
    case["variants"] = []
    for name, change in CHANGES.items():
        d = copy.deepcopy(one)
        try:
            if not change(d):
                continue
            changed = type(config)(**d)
            torch.manual_seed(0)
            model = auto.from_config(changed, attn_implementation="record").float().eval()
            run(model, changed)
            seen = observe(model_type, changed, model)
        except Exception:  # the class does not take it
            continue
        changes = {k: v for k, v in seen["config"].items() if case["config"].get(k) != v}
        removed = [k for k in case["config"] if k not in seen["config"]]
        if changes or removed:
            case["variants"].append({"name": name, "changes": changes, "removed": removed, "factors": seen["factors"],
                                     "layers": seen["layers"]})
    return case


def observe(model_type, config, model):
    generator = torch.Generator().manual_seed(1)

    def equal_rows(module, args, kwargs):
        def row(t):
            return torch.randn(t.shape[0], 1, t.shape[-1], generator=generator).expand(t.shape).contiguous()
        args = list(args)
        if torch.is_tensor(kwargs.get("hidden_states")):
            kwargs["hidden_states"] = row(kwargs["hidden_states"])
        elif args and torch.is_tensor(args[0]) and args[0].dim() == 3:
            args[0] = row(args[0])
        return tuple(args), kwargs

    for module in {id(c[0]): c[0] for c in calls}.values():
        if isinstance(module, torch.nn.Module):
            module.register_forward_pre_hook(equal_rows, with_kwargs=True)
    run(model, config)
    names = {m: n for n, m in model.named_modules()}
    factors = set()
    for module in model.modules():
        for attribute in dir(module):
            if attribute.endswith("attention_scaling"):
                factors.add(float("%.7g" % getattr(module, attribute)))
    layers = []
    for module, q, k, v, mask, scaling, kwargs in calls:
        name = names.get(module, "")
        side = "cross" if "cross" in name.lower() or "encoder_attn" in name or "EncDec" in name else \
            "decoder" if "decoder" in name else "encoder" if "encoder" in name else ""
        index = getattr(module, "layer_idx", None)
        if index is None:
            index = next((int(part) for part in name.split(".") if part.isdigit()), None)
        sink = kwargs.get("s_aux")
        layers.append({
            "side": side, "layer": index, "heads": q.shape[1], "kv_heads": k.shape[1], "head_dim": q.shape[3],
            "value_dim": v.shape[3], "scale": None if scaling is None else float("%.9g" % scaling),
            "softcap": kwargs.get("softcap") or 0, "sinks": sink is not None,
            "mask": mask_form(mask, kwargs.get("sliding_window")), "no_mask": mask is None,
            "rotation": rotation(q[0, 0]) if q.shape[2] == TOKENS else None})
    source = sys.modules[type(model).__module__]
    permutes = any(hasattr(source, f) for f in ("apply_rotary_pos_emb_interleave", "apply_rotary_emb"))
    text = config.to_dict()
    text = {k: v for k, v in text.items()
            if v is not None and not any(b in k for b in BORING) and not isinstance(v, bool) or
            k in ("use_sliding_window", "is_decoder", "multi_query", "new_decoder_architecture", "alibi",
                  "rope_interleave", "use_bidirectional_attention", "is_encoder_decoder", "use_mem_rope")}
    return {"type": model_type, "config": text, "factors": sorted(factors), "permutes": permutes, "layers": group(layers)}


def group(layers):
    """Layers that are alike as one entry with their indexes."""
    groups = {}
    for one in layers:
        key = {k: v for k, v in one.items() if k != "layer"}
        if key["rotation"]:
            key["rotation"] = dict(key["rotation"])
            key["rotation"].pop("error")
            key["rotation"]["frequencies"] = [float("%.4g" % f) for f in key["rotation"]["frequencies"]]
        groups.setdefault(json.dumps(key), (one, []))[1].append(one["layer"])
    return [dict({k: v for k, v in one.items() if k != "layer"}, layers=sorted(set(i for i in indexes if i is not None)))
            for one, indexes in groups.values()]


def text_types():
    """The types that have heads and a vocabulary, of whatever part."""
    for name in CONFIG_MAPPING.keys():
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:
            continue
        d = config.to_dict()
        heads = any(k in d or hasattr(config, k) for k in ("num_attention_heads", "encoder_attention_heads", "n_head"))
        if heads and "vocab_size" in d and "text_config" not in d:
            yield name


def main():
    assert torch.__version__.startswith(TORCH) and transformers.__version__ == TRANSFORMERS
    names = sys.argv[2:] or list(text_types())
    with open(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/judge.json", "w") as out:
        out.write('{"torch": "%s", "transformers": "%s", "cases": [\n' % (TORCH, TRANSFORMERS))
        first = True
        for name in names:
            try:
                case = judge(name)
            except Exception as error:
                print(name, "is not judged:", repr(error)[:600], file=sys.stderr, flush=True)
                continue
            out.write(("" if first else ",\n") + json.dumps(case, separators=(",", ":"), default=str))
            out.flush()
            first = False
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
