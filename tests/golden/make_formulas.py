# SPDX-License-Identifier: MIT
"""Computes what the golden files of formulas expect, with 60 digits and from each paper's own words; nothing of posenc.

    pip install mpmath==1.3.0 numpy==2.4.6
    python tests/golden/make_formulas.py            # writes "expect" of every case anew
    python tests/golden/make_formulas.py --check    # only says where the files differ from it

A case is its name, source, config and input; those stay as they are, so that a new case is a config without "expect". Words
in "expect" (which system does what) are read off the systems' sources by hand, and stay too, as do the fields hf_float32_*,
which were measured on torch 1.13 and which no test reads.
"""
import json
import math
import pathlib
import sys

import mpmath
import numpy
from mpmath import mpf

mpmath.mp.dps = 60
FOLDER = pathlib.Path(__file__).resolve().parent
ABOUT = "python tests/golden/make_formulas.py; mpmath 1.3.0, numpy 2.4.6"


def number(x):
    """The nearest double; whole numbers as such."""
    value = float(x)
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def numbers(values):
    return [numbers(v) if isinstance(v, list) else number(v) for v in values]


# Frequencies and scalings ---------------------------------------------------------------------------------------------


def plain(dim, base):
    """Su et al. 2021: w_p = base^(-2p/dim)."""
    return [mpf(base) ** (-mpf(2 * p) / dim) for p in range(dim // 2)]


def yarn_range(dim, base, s):
    """The pairs that make beta_fast and beta_slow turns within the original context (Peng et al. 2023, section 3.2)."""

    def pair_of(turns):
        return dim * mpmath.log(mpf(s["original_max_position_embeddings"]) / (mpf(turns) * 2 * mpmath.pi)) / (2 * mpmath.log(base))

    low, high = pair_of(s.get("beta_fast") or 32), pair_of(s.get("beta_slow") or 1)
    if s.get("truncate", True):
        low, high = mpmath.floor(low), mpmath.ceil(high)
    return max(low, mpf(0)), min(high, mpf(dim - 1))


def yarn(dim, base, s):
    low, high = yarn_range(dim, base, s)
    high += mpf("0.001") if low == high else 0
    ramp = [min(max((p - low) / (high - low), mpf(0)), mpf(1)) for p in range(dim // 2)]
    return [w * (1 - g) + w / mpf(s["factor"]) * g for w, g in zip(plain(dim, base), ramp)]


def magnitude(s, k):
    return mpf(1) if s <= 1 else mpf(k) / 10 * mpmath.log(s) + 1


def exact(decimal):
    """0.707 as it stands in the file, rather than the double nearest to it."""
    return mpf(repr(decimal))


def yarn_factor(s):
    if s.get("attention_factor") is not None:
        return mpf(s["attention_factor"])
    if s.get("mscale") and s.get("mscale_all_dim"):
        return magnitude(s["factor"], exact(s["mscale"])) / magnitude(s["factor"], exact(s["mscale_all_dim"]))
    return magnitude(s["factor"], 1)


def dynamic_base(dim, base, factor, limit, length):
    """bloc97's dynamic NTK: base·(s·n/L − (s − 1))^(d/(d−2)) beyond L."""
    n = max(length, limit)
    return mpf(base) * (mpf(factor) * n / limit - (mpf(factor) - 1)) ** (mpf(dim) / (dim - 2))


def llama3(dim, base, s):
    """Frequencies whose wavelength is long are divided, short ones kept, those between interpolated (Llama 3.1)."""
    original, low, high = (mpf(s[k]) for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))

    def one(w):
        turns = original * w / (2 * mpmath.pi)
        if turns > high:
            return w
        if turns < low:
            return w / mpf(s["factor"])
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * w / mpf(s["factor"]) + smooth * w

    return [one(w) for w in plain(dim, base)]


def longrope_factor(stretch, original):
    return mpf(1) if stretch <= 1 else mpmath.sqrt(1 + mpmath.log(stretch) / mpmath.log(original))


def proportional(dim, base, s):
    turning = int(s["partial_rotary_factor"] * dim // 2)
    return [w / mpf(s.get("factor", 1)) if p < turning else mpf(0) for p, w in enumerate(plain(dim, base))]


def scaled(dim, base, s, config, runtime):
    """(frequencies, attention factor, what else the file says) of a rope block."""
    kind = s.get("rope_type") or s.get("type") or "default"
    if kind in ("default", "mrope"):
        return plain(dim, base), mpf(1), {}
    if kind == "linear":
        return [w / mpf(s["factor"]) for w in plain(dim, base)], mpf(1), {}
    if kind == "dynamic":
        stretched = dynamic_base(dim, base, s["factor"], config["max_position_embeddings"], runtime["seq_len"])
        return plain(dim, stretched), mpf(1), {"effective_base": number(stretched)}
    if kind == "ntk":
        slower = mpf(s["factor"]) ** (mpf(2) / dim)
        return [w / slower for w in plain(dim, mpf(base) * mpf(s["factor"]))], mpf(1), {}
    if kind == "yarn":
        return yarn(dim, base, s), yarn_factor(s), {"yarn_range": numbers(list(yarn_range(dim, base, s)))}
    if kind == "llama3":
        return llama3(dim, base, s), mpf(1), {}
    if kind == "proportional":
        return proportional(dim, base, s), mpf(1), {"active_pairs": int(s["partial_rotary_factor"] * dim // 2)}
    if kind in ("longrope", "su"):
        original = s.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        factors = s["long_factor" if runtime["seq_len"] > original else "short_factor"]
        stretch = s.get("factor") or mpf(config["max_position_embeddings"]) / original
        return [w / mpf(f) for w, f in zip(plain(dim, base), factors)], longrope_factor(stretch, original), {}
    raise KeyError(kind)


def table(inv_freq, like):
    angles = [[mpf(p) * inv_freq[pair] for pair in like["pair_indices"]] for p in like["positions"]]
    return {"pair_indices": like["pair_indices"], "positions": like["positions"],
            "cos": [[number(mpmath.cos(a)) for a in row] for row in angles],
            "sin": [[number(mpmath.sin(a)) for a in row] for row in angles]}


def like_table(case, inv_freq):
    last = len(inv_freq) - 1
    return case.get("expect", {}).get("table") or {"pair_indices": [0, (last + 1) // 2, last],
                                                   "positions": [0, 1, 17, 4095, 4096, 131071, 1000003]}


def rope_schemes(case):
    c = case["config"]
    if c.get("scheme") == "ntk_fixed":
        d = c["head_dim"]
        stretched = mpf(c["rope_theta"]) * mpf(c["scale"]) ** (mpf(d) / (d - 2))
        inv_freq, factor, more = plain(d, stretched), mpf(1), {"effective_base": number(stretched)}
    else:
        head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        s = c["rope_scaling"]
        partial = 1 if s["rope_type"] == "proportional" else s.get("partial_rotary_factor", 1)
        inv_freq, factor, more = scaled(int(head_dim * partial), mpf(c["rope_theta"]), s, c, case.get("runtime", {}))
    return {**more, "attention_factor": number(factor), "inv_freq": numbers(inv_freq), "table": table(inv_freq, like_table(case, inv_freq))}


def rope_models(case):
    c, name = case["config"], case["name"]
    s = c.get("rope_scaling") or {}
    nope, rope = c.get("qk_nope_head_dim"), c.get("qk_rope_head_dim")
    hidden, heads = c.get("hidden_size") or c.get("n_embd"), c.get("num_attention_heads") or c.get("n_head")
    head_dim = nope + rope if rope else c.get("head_dim") or hidden // heads
    rotary = rope or c.get("rotary_dim") or int(head_dim * (c.get("rotary_pct") or c.get("partial_rotary_factor") or 1))
    base = c.get("rope_theta") or c.get("rotary_emb_base") or 10000
    runtime = {}
    if "[short]" in name or "[long]" in name:
        runtime["seq_len"] = c["original_max_position_embeddings"] + ("[long]" in name)
    if "[sliding_attention]" in name:
        s, base = {}, c["rope_local_base_freq"]
    inv_freq, factor, _ = scaled(rotary, mpf(base), s, c, runtime)
    multiplier = magnitude(s["factor"], exact(s["mscale_all_dim"])) ** 2 if s.get("mscale_all_dim") else mpf(1)
    result = {"head_dim": head_dim, "rotary_dim": rotary, "attention_factor": number(factor),
              "logit_scale_multiplier": number(multiplier),
              "softmax_scale": number(multiplier / mpmath.sqrt(c.get("query_pre_attn_scalar", head_dim))),
              "inv_freq": numbers(inv_freq), "table": table(inv_freq, like_table(case, inv_freq))}
    if rope:
        result["rotary_offset"] = nope
    if s.get("type") == "mrope":
        result["mrope_axis_of_pair"] = chunked(s["mrope_section"])
    return result


# Rotations ------------------------------------------------------------------------------------------------------------


def pairs_of(layout, rotary):
    half = rotary // 2
    return [(p, p + half) if layout == "half" else (2 * p, 2 * p + 1) for p in range(half)]


def rotated(x, layout, angles, offset=0, factor=mpf(1)):
    out = [mpf(v) for v in x]
    for (a, b), angle in zip(pairs_of(layout, 2 * len(angles)), angles):
        a, b, cos, sin = a + offset, b + offset, mpmath.cos(angle) * factor, mpmath.sin(angle) * factor
        out[a], out[b] = mpf(x[a]) * cos - mpf(x[b]) * sin, mpf(x[a]) * sin + mpf(x[b]) * cos
    return out


def dot(a, b):
    return mpmath.fsum(mpf(x) * mpf(y) for x, y in zip(a, b))


def chunked(sections):
    return [axis for axis, count in enumerate(sections) for _ in range(count)]


def interleaved_axes(sections, pairs):
    """Qwen3-VL: axis 1 at 1, 4, … below 3·h, axis 2 at 2, 5, … below 3·w, axis 0 elsewhere."""
    return [p % 3 if p % 3 and p < 3 * sections[p % 3] else 0 for p in range(pairs)]


def ggml_axes(sections, pairs):
    """ggml's IMROPE: the same for t too, and what no section covers goes to the fourth axis."""
    return [p % 3 if p < 3 * sections[p % 3] else 3 for p in range(pairs)]


def rope_apply(case):
    c, x = case["config"], case["input"]
    d, base = c["head_dim"], mpf(c["rope_theta"])
    if "q_position" in c:
        w = plain(d, base)
        q = rotated(x["q"], c["layout"], [w_p * c["q_position"] for w_p in w])
        return {"dot": number(dot(q, rotated(x["k"], c["layout"], [w_p * c["k_position"] for w_p in w])))}
    if "mrope_section" in c or "sections" in c:
        axes = chunked(c["mrope_section"]) if "mrope_section" in c else ggml_axes(c["sections"], d // 2)
        angles = [w * c["position"][axis] for w, axis in zip(plain(d, base), axes)]
        return {"output": numbers(rotated(x, "half", angles)), "axis_of_pair": axes}
    if "position_h" in c:
        w, quarter = plain(d, base), d // 4
        frequencies = w[0::2] + w[1::2]
        angles = [f * c["position_h" if n < quarter else "position_w"] for n, f in enumerate(frequencies)]
        return {"output": numbers(rotated(x, "half", angles)), "pair_freq": numbers(frequencies)}
    if c.get("rope_type") == "proportional":
        angles = [w * c["position"] for w in proportional(d, base, c)]
        return {"output": numbers(rotated(x, c["layout"], angles))}
    s = c.get("rope_scaling")
    rotary = c.get("rotary_dim", d)
    w = yarn(rotary, base, s) if s else plain(rotary, base)
    factor = yarn_factor(s) if s else mpf(1)
    result = {"output": numbers(rotated(x, c["layout"], [f * c["position"] for f in w], c.get("rotary_offset", 0), factor))}
    return {**result, "attention_factor": number(factor)} if s else result


def mrope(case):
    c = case["config"]
    if "pairs" in c:
        axes = interleaved_axes(c["mrope_section"], c["pairs"]) if c["mrope_interleaved"] else chunked(c["mrope_section"])
        ggml = ggml_axes(c["mrope_section"], c["pairs"]) if c["mrope_interleaved"] else axes
        return {"axis_of_pair": axes, "axis_of_pair_ggml": ggml, "pairs_where_ggml_uses_4th_axis": [p for p, a in enumerate(ggml) if a == 3]}
    places, at, following, images = [], 0, 0, iter(c["image_grid_thw"])
    while at < len(c["token_types"]):
        if c["token_types"][at] == 0:
            places.append((following,) * 3)
            following, at = following + 1, at + 1
            continue
        frames, rows, columns = next(images)
        rows, columns = rows // c["spatial_merge_size"], columns // c["spatial_merge_size"]
        places += [(following + t, following + h, following + w) for t in range(frames) for h in range(rows) for w in range(columns)]
        at, following = at + frames * rows * columns, following + max(frames, rows, columns)
    return {**{axis: [p[n] for p in places] for n, axis in enumerate("thw")}, "rope_delta": following - len(places),
            "next_decode_position": following}


def xpos(case):
    """Sun et al. 2022 as torchscale computes it: queries grow by zeta^(n/B), keys by zeta^(-n/B)."""
    c = case["config"]
    d, gamma = c["head_dim"], exact(c.get("gamma", 0.4))
    zeta = [(mpf(2 * p) / d + gamma) / (1 + gamma) for p in range(d // 2)]
    w = plain(d, c.get("base", 10000))
    if "q_position" in c:
        def side(x, position, sign):
            turned = rotated(x, c["layout"], [f * position for f in w])
            for (a, b), z in zip(pairs_of(c["layout"], d), zeta):
                turned[a], turned[b] = (v * z ** (sign * mpf(position) / c["scale_base"]) for v in (turned[a], turned[b]))
            return turned
        return {"dot": number(dot(side(case["input"]["q"], c["q_position"], 1), side(case["input"]["k"], c["k_position"], -1)))}
    power = mpf(c["position"]) / c["scale_base"]
    return {"zeta": numbers(zeta), "q_scale": numbers([z**power for z in zeta]), "k_scale": numbers([z**-power for z in zeta]),
            "inv_freq": numbers(w)}


# Biases and tables ----------------------------------------------------------------------------------------------------


def slopes_of(heads, bias_max=8):
    """Press et al. 2022 and their code: powers for a power of two, then every other slope of the next."""
    below = 2 ** int(math.log2(heads))
    return [mpf(2) ** (-mpf(bias_max) * (h + 1) / below) for h in range(below)] + [
        mpf(2) ** (-mpf(bias_max) * (2 * h + 1) / (2 * below)) for h in range(heads - below)]


def alibi(case):
    c = case["config"]
    slopes = slopes_of(c["num_heads"], c["alibi_bias_max"])
    result = {"slopes": numbers(slopes)}
    if c["alibi_bias_max"] == 8:
        query, keys = 5, [0, 1, 4, 5]
        result["bias_row"] = {"query": query, "keys": keys, "head0": numbers([-slopes[0] * (query - k) for k in keys])}
    return result


def clip(value, low, high):
    return min(max(value, low), high)


def t5_bucket(offset, bidirectional, buckets, max_distance):
    """Raffel et al. 2020: exact up to half of them, then by the logarithm; in whole numbers, so without rounding."""
    start = 0
    if bidirectional:
        buckets //= 2
        start, n = (buckets if offset > 0 else 0), abs(offset)
    else:
        n = max(-offset, 0)
    plain_buckets = buckets // 2
    if n < plain_buckets:
        return start + n
    rungs, step = buckets - plain_buckets, 0
    while step < rungs - 1 and (n**rungs) * plain_buckets ** (step + 1) >= max_distance ** (step + 1) * plain_buckets**rungs:
        step += 1
    return start + plain_buckets + step


def t5_buckets(case):
    c = case["config"]
    return {"buckets": [t5_bucket(o, c["bidirectional"], c["num_buckets"], c["max_distance"]) for o in range(-200, 201)]}


def deberta_bucket(distance, buckets, most):
    """He et al. 2021: sign(d)·(ceil(log(|d|/mid)/log((most − 1)/mid)·(mid − 1)) + mid) beyond mid = buckets/2."""
    middle, far = buckets // 2, abs(distance)
    if far <= middle:
        return distance
    step = 0
    while (far ** (middle - 1)) * middle**step > (most - 1) ** step * middle ** (middle - 1):
        step += 1
    return int(math.copysign(middle + step, distance))


def relative(case):
    c, expect = case["config"], case.get("expect", {})
    if "table_size" in c:
        k = c["max_distance"]
        deltas = list(range(-k - 3, k + 4))
        return {"delta": deltas, "index": [clip(d, -k, k) + k for d in deltas]}
    if "left_max_position_embeddings" in c:
        left, right = c["left_max_position_embeddings"], c["right_max_position_embeddings"]
        offsets = expect.get("key_minus_query") or [-left - 1, -left, 0, right, right + 1]
        return {"key_minus_query": offsets, "index": [clip(o, -left, right) + left for o in offsets]}
    if "position_buckets" in c:
        return {"bucket": [deberta_bucket(d, c["position_buckets"], c["max_relative_positions"]) for d in range(-600, 601)]}
    if "offset" in c:
        positions = [0, 1, c["max_position_embeddings"] - 1]
        return {"table_rows": c["max_position_embeddings"] + c["offset"], "position": positions, "row": [p + c["offset"] for p in positions]}
    if "padding_idx" in c:
        ids, seen = [], 0
        for token in c["input_ids"]:
            seen += token != c["padding_idx"]
            ids.append(c["padding_idx"] + seen if token != c["padding_idx"] else c["padding_idx"])
        return {"position_ids": ids, "usable_positions_of_514": 514 - c["padding_idx"] - 1}
    x = case["input"]
    return {"scores": [[number(dot(q, [mpf(a) + mpf(b) for a, b in zip(k, x["aK"][clip(j - i, -c["max_distance"], c["max_distance"]) + c["max_distance"]])])
                               / mpmath.sqrt(c["head_dim"])) for j, k in enumerate(x["k"])] for i, q in enumerate(x["q"])]}


def sinusoidal(case):
    c = case["config"]
    d, layout = c["d_model"], c["layout"]
    position = c["position"] if "position" in c else c["from"] + c["shift"]
    half = d // 2
    if "2i/d" in layout or layout == "interleaved":
        w = plain(2 * half, c["base"])
    else:
        w = [mpf(c["base"]) ** (-mpf(i) / (half - 1)) for i in range(half)]
    sines, cosines = [mpmath.sin(position * f) for f in w], [mpmath.cos(position * f) for f in w]
    values = [v for pair in zip(sines, cosines) for v in pair] if layout.startswith("interleaved") else sines + cosines
    result = {"values": numbers(values + [mpf(0)] * (d - len(values)))}
    return {**result, "equals_position": position} if "shift" in c else result


def logit_scale(case):
    c = case["config"]
    if "floor_scale" in c:
        return {"q_scale": number(1 + exact(c["attn_scale"]) * mpmath.log((c["position"] + 1) // c["floor_scale"] + 1))}
    all_dim = magnitude(c["factor"], exact(c["mscale_all_dim"])) if c["mscale_all_dim"] else mpf(1)
    return {"attention_factor": number(yarn_factor(c)), "logit_scale_multiplier": number(all_dim**2)}


def attention(case):
    c, x = case["config"], case["input"]
    n, d = len(x["q"]), len(x["q"][0])
    q, k = x["q"], x["k"]
    result = {}
    if c["position"] == "rope":
        w = plain(d, c["rope_theta"])
        q, k = ([rotated(row, c["layout"], [f * p for f in w]) for p, row in enumerate(rows)] for rows in (q, k))

    def score(i, j):
        key = k[j]
        if c["position"] == "shaw":
            key = [mpf(a) + mpf(b) for a, b in zip(key, c["aK"][clip(j - i, -c["max_distance"], c["max_distance"]) + c["max_distance"]])]
        s = dot(q[i], key) / mpmath.sqrt(d)
        if c["position"] == "alibi":
            s -= slopes_of(c["num_heads"])[c["head"]] * abs(i - j)
        if c["position"] == "relative_bias":
            s += mpf(c["table"][clip(i - j, -c["max_distance"], c["max_distance"]) + c["max_distance"]])
        return s

    output = []
    for i in range(n):
        seen = range(i + 1 if c["causal"] else n)
        weights = [mpmath.exp(score(i, j)) for j in seen]
        output.append([number(dot(weights, [x["v"][j][channel] for j in seen]) / mpmath.fsum(weights)) for channel in range(d)])
    result["output"] = output
    if c["position"] == "alibi":
        result["slope"] = number(slopes_of(c["num_heads"])[c["head"]])
    return result


def disagreements(case):
    """Where systems differ, each one's rule by its own words; which system has which rule stays as it was read."""
    c, name = case["config"], case["name"]
    m = magnitude(c["factor"], 1) if c.get("rope_type") == "yarn" and "factor" in c else None
    one = {"attention_factor": 1}
    if name.startswith("yarn explicit"):
        multiplied = {"attention_factor": number(m * mpf(c["attention_factor"]))}
        return {"transformers": {"attention_factor": number(c["attention_factor"])}, "vllm_without_PR48351": multiplied,
                "llama.cpp": {"attention_factor": number(m)}, "jquesnelle_yarn_attn_factor_semantics_multiplies": multiplied}
    if name.startswith("yarn mscale = "):
        return {"transformers": one, "vllm_generic_yarn_ignoring_mscale": {"attention_factor": number(m)}, "llama.cpp (log_mul 1)": one}
    if name.startswith("yarn mscale 0"):
        return {"transformers": {"attention_factor": number(m)}, "vllm_deepseek_yarn": one}
    if name.startswith("gpt-oss"):
        sides = {}
        for side, truncate in (("transformers_and_vllm_after_28244", False), ("ggml", True)):
            s = {**c, "truncate": truncate}
            sides[side] = {"range": numbers(list(yarn_range(c["head_dim"], mpf(c["rope_theta"]), s))), "inv_freq": yarn(c["head_dim"], mpf(c["rope_theta"]), s)}
        return largest_difference(sides)
    if name.startswith("dynamic NTK"):
        d, limit = c["head_dim"], c["max_position_embeddings"]
        bases = {"transformers": dynamic_base(d, c["rope_theta"], c["factor"], limit, c["seq_len"]),
                 "vllm_before_41277": dynamic_base(d, c["rope_theta"], c["factor"], limit, int(limit * c["factor"]))}
        return {side: {"effective_base": number(base), "inv_freq_last": number(plain(d, base)[-1])} for side, base in bases.items()}
    if name.startswith("longrope factor"):
        original = c["original_max_position_embeddings"]
        return {"transformers_current": {"attention_factor": number(longrope_factor(mpf(c["factor"]), original))},
                "transformers_older_vllm_llama.cpp": {"attention_factor": number(longrope_factor(mpf(c["max_position_embeddings"]) / original, original))}}
    if name.startswith("llama3"):
        sides = {side: {"inv_freq": llama3(c["head_dim"], mpf(c["rope_theta"]), {**c, "original_max_position_embeddings": original})}
                 for side, original in (("transformers_vllm", c["original_max_position_embeddings"]), ("llama.cpp_converter", 8192))}
        return {k: v for k, v in largest_difference(sides).items() if k != "at_pair"}
    if name.startswith("interleaved M-RoPE"):
        w = plain(c["head_dim"], c["rope_theta"])
        axes = {"transformers_vllm": interleaved_axes(c["mrope_section"], 64), "ggml": ggml_axes(c["mrope_section"], 64)}
        return {side: {f"angle_{p}": number(w[p] * ([*c["position"], 0][of[p]])) for p in (61, 62)} for side, of in axes.items()}
    if name.startswith("MLA"):
        plain_scale = 1 / mpmath.sqrt(c["qk_head_dim"])
        return {"transformers_after_47435_vllm_llama.cpp_deepseek_original": {"softmax_scale": number(plain_scale * magnitude(c["factor"], exact(c["mscale_all_dim"])) ** 2)},
                "transformers_before_47435": {"softmax_scale": number(plain_scale)}}
    if name.startswith("ALiBi"):
        slope = slopes_of(c["num_heads"])[0]
        return {"bloom_mpt_paper_ggml": {"effective_slope_head0": number(slope)}, "falcon": {"effective_slope_head0": number(slope / mpmath.sqrt(c["head_dim"]))}}
    if name.startswith("partial_rotary"):
        return {"transformers_llama": {"rotary_dim": c["head_dim"]}, "vllm": {"rotary_dim": int(c["head_dim"] * c["partial_rotary_factor"])}}
    return {}


def largest_difference(sides):
    """Adds by how much the first side's frequencies differ from the second's, relative to the smaller of the two."""
    a, b = (side["inv_freq"] for side in sides.values())
    difference = [abs(x - y) / min(x, y) for x, y in zip(a, b)]
    for side in sides.values():
        side["inv_freq"] = numbers(side["inv_freq"])
    return {**sides, "max_relative_difference": number(max(difference)), "at_pair": difference.index(max(difference))}


def float32_deviation(case):
    """How far cos and sin are off where angles are formed in less than they need; every cosine itself is rounded once."""
    c = case["config"]
    base, d = c["base"], c["head_dim"]
    half, single = d // 2, numpy.float32
    true_w = plain(d, base)
    in_order = [single(1) / single(mpf(float(single(base))) ** mpf(float(single(2 * p) / single(d)))) for p in range(half)]
    rounded = [single(float(w)) for w in true_w]
    doubles = [float(base) ** (-2.0 * p / d) for p in range(half)]
    step32, step64 = single(float(base) ** (-2.0 / d)), float(base) ** (-2.0 / d)

    def recurrence(start, step):
        values = [start]
        for _ in range(half - 1):
            values.append(values[-1] * step)
        return values

    variants = {
        "A HF: f32 inv_freq, f32 product, f32 cos/sin": lambda p: ([single(p) * w for w in in_order], True),
        "A2 correctly rounded f32 inv_freq, f32 product": lambda p: ([single(p) * w for w in rounded], True),
        "B f32 inv_freq, f64 product and cos/sin": lambda p: ([float(p) * float(w) for w in in_order], False),
        "C all f64 (pow per pair)": lambda p: ([float(p) * w for w in doubles], False),
        "D ggml: f32 recurrence theta*=theta_scale": lambda p: (recurrence(single(p), step32), True),
        "E f64 angle, reduced mod 2pi, f32 cos/sin": lambda p: ([single(math.remainder(float(p) * w, 2 * math.pi)) for w in doubles], True),
        "F f64 recurrence": lambda p: (recurrence(float(p), step64), False),
    }

    def errors(position, variant):
        angles, in_single = variant(position)
        of_pair = []
        for angle, w in zip(angles, true_w):
            a, b = mpf(float(angle)), mpf(position) * w
            kept = (lambda v: mpf(float(single(float(v))))) if in_single else (lambda v: mpf(float(v)))
            of_pair.append(max(abs(kept(mpmath.cos(a)) - mpmath.cos(b)), abs(kept(mpmath.sin(a)) - mpmath.sin(b))))
        return of_pair

    mpmath.mp.dps = 40
    found = {}
    for name, variant in variants.items():
        here = errors(c["position"], variant)
        near = max(max(errors(c["position"] + n, variant)) for n in range(16))
        found[name] = {"at_P": number(max(here)), "worst_pair_at_P": here.index(max(here)), "max_over_16_positions_near_P": number(near)}
    mpmath.mp.dps = 60
    return {"max_abs_error_of_cos_or_sin": found}


FILES = [rope_schemes, rope_models, rope_apply, mrope, xpos, alibi, t5_buckets, relative, sinusoidal, logit_scale, attention,
         disagreements, float32_deviation]


def compare(old, new, where, found):
    """Every number of `new` beside that of `old`."""
    if isinstance(new, dict):
        for key, value in new.items():
            compare(old.get(key) if isinstance(old, dict) else None, value, f"{where}.{key}", found)
    elif isinstance(new, list):
        for n, value in enumerate(new):
            compare(old[n] if isinstance(old, list) and n < len(old) else None, value, f"{where}[{n}]", found)
    elif old != new:
        numeric = isinstance(old, (int, float)) and isinstance(new, (int, float)) and not isinstance(old, bool)
        found.append((abs(old - new) / max(abs(old), abs(new), 1e-300) if numeric else math.inf, where, old, new))


def merged(old, new):
    """`new`, and of `old` what `new` does not compute."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**{k: merged(old[k], new[k]) if k in new else old[k] for k in old}, **{k: v for k, v in new.items() if k not in old}}


if __name__ == "__main__":
    chosen = [a for a in sys.argv[1:] if not a.startswith("--")]
    differences = 0
    for make in FILES:
        if chosen and make.__name__ not in chosen:
            continue
        path = FOLDER / f"{make.__name__}.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        cases = content["cases"] if isinstance(content, dict) else content
        found = []
        for case in cases:
            expect = make(case)
            compare(case.get("expect"), expect, case["name"], found)
            case["expect"] = merged(case.get("expect"), expect)
        print(f"{path.name}: {len(cases)} cases, {len(found)} numbers differ" +
              (f", at most by {max(found)[0]:.2g} relative: {max(found)[1:]}" if found else ""))
        differences += len(found)
        if "--check" not in sys.argv[1:]:
            lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
            path.write_text(f'{{"about": {json.dumps(ABOUT)}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    sys.exit(1 if differences and "--check" in sys.argv[1:] else 0)
