# SPDX-License-Identifier: MIT
"""Writes tests/golden/backward.json: gradients of attention by PyTorch's automatic differentiation, in float64.

Run by hand, in a virtual environment of its own, from the root of the project:

    pip install torch==2.15.0
    python tools/make_backward_golden.py

Inputs are not in the file: both sides make them by `numbers`, multiples of 1/64, which every scalar type holds exactly.
"""
import json
import math

import torch

torch.set_default_dtype(torch.float64)


def numbers(shape, seed):
    count = math.prod(shape)
    values = [(((n * 2654435761 + seed * 40503 + 12345) % 2**32 >> 16) % 193 - 96) / 64 for n in range(count)]
    return torch.tensor(values).reshape(shape).requires_grad_()


def rotate(x, positions, interleaved, factor=1.0, growth=None):
    """x: tokens × heads × dim, as complex numbers."""
    d = x.shape[-1]
    w = 10000.0 ** (-torch.arange(0, d, 2) / d)
    if interleaved:
        z = torch.complex(x[..., 0::2], x[..., 1::2])
    else:
        z = torch.complex(x[..., : d // 2], x[..., d // 2:])
    z = z * torch.polar(torch.ones(()) * factor, positions[:, None] * w)[:, None, :]
    if growth is not None:
        z = z * torch.exp(growth)[:, None, :]
    if interleaved:
        return torch.stack([z.real, z.imag], -1).flatten(-2)
    return torch.cat([z.real, z.imag], -1)


def xpos_growth(d, positions, sign):
    zeta = (torch.arange(0, d, 2) / d + 0.4) / 1.4
    return sign * positions[:, None] * torch.log(zeta) / 512


def t5_bucket(offset, buckets, most, both):
    """The published formula, with logarithms."""
    result = 0
    if both:
        buckets //= 2
        result = buckets if offset > 0 else 0
        a = abs(offset)
    else:
        a = max(-offset, 0)
    exact = buckets // 2
    if a < exact:
        return result + a
    large = exact + int(math.log(a / exact) / math.log(most / exact) * (buckets - exact) + 1e-9)
    return result + min(large, buckets - 1)


ENCODINGS = ["none", "rope", "rope_interleaved", "xpos", "alibi", "clipped", "t5", "shaw", "rope_alibi", "temperature"]
SHAPES = [
    dict(name="4:2", heads=4, kv_heads=2, queries=5, keys=5, head_dim=4, value_dim=4, mask="causal"),
    dict(name="6:2 unequal", heads=6, kv_heads=2, queries=3, keys=7, head_dim=4, value_dim=6, mask="bidirectional",
         softcap=2.0, sinks=True),
    dict(name="packed documents", heads=2, kv_heads=1, queries=7, keys=7, head_dim=4, value_dim=4, mask="causal",
         documents=[0, 3]),
]


def run(encoding, s):
    h, g, n, m, d, e = (s[key] for key in ("heads", "kv_heads", "queries", "keys", "head_dim", "value_dim"))
    q, k, v = numbers((n, h, d), 1), numbers((m, g, d), 2), numbers((m, g, e), 3)
    d_out = numbers((n, h, e), 4).detach()
    leaves = {"q": q, "k": k, "v": v}
    at_q, at_k = torch.arange(m - n, m).double(), torch.arange(m).double()
    offset = (at_k[None, :] - at_q[:, None]).long()
    rq, rk = q, k
    if encoding in ("rope", "rope_alibi"):
        rq, rk = rotate(q, at_q, False), rotate(k, at_k, False)
    if encoding == "rope_interleaved":  # YaRN's attention factor for a scaling by 4, frequencies left alone
        factor = 0.1 * math.log(4) + 1
        rq, rk = rotate(q, at_q, True, factor), rotate(k, at_k, True, factor)
    if encoding == "xpos":
        rq = rotate(q, at_q, True, 1.0, xpos_growth(d, at_q, 1))
        rk = rotate(k, at_k, True, 1.0, xpos_growth(d, at_k, -1))
    group = h // g
    rk, vv = rk.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    x = torch.einsum("ihc,jhc->hij", rq, rk)
    scale = torch.tensor([1 / math.sqrt(d)] * h, requires_grad=True)
    leaves["head_scales"] = scale
    clipped = offset.clamp(-2, 1) + 2
    if encoding == "shaw":
        key_rows, value_rows = numbers((4, d), 5), numbers((4, e), 6)
        leaves |= {"key_rows": key_rows, "value_rows": value_rows}
        x = x + torch.einsum("ihc,ijc->hij", q, key_rows[clipped])
    x = x * scale[:, None, None]
    if encoding == "temperature":
        beta = torch.tensor([[0.25]], requires_grad=True)
        leaves["beta"] = beta
        x = x * (1 + beta[0, 0] * torch.log1p(torch.floor(at_q / 2)))[None, :, None]
    if s.get("softcap"):
        x = s["softcap"] * torch.tanh(x / s["softcap"])
    if encoding in ("alibi", "rope_alibi"):
        slopes = torch.tensor([[2.0 ** -(i + 1)] for i in range(h)], requires_grad=True)
        leaves["slopes"] = slopes
        x = x - slopes[:, :, None] * offset.abs()[None]
    if encoding == "clipped":
        table = numbers((h, 4), 5)
        leaves["table"] = table
        x = x + table[:, clipped]
    if encoding == "t5":
        both = s["mask"] != "causal"
        table = numbers((h, 6), 5)
        leaves["table"] = table
        bucket = torch.tensor([[t5_bucket(int(o), 6, 8, both) for o in row] for row in offset])
        x = x + table[:, bucket]
    seen = torch.ones(n, m, dtype=torch.bool) if s["mask"] != "causal" else offset <= 0
    if "documents" in s:
        document = torch.bucketize(torch.arange(m), torch.tensor(s["documents"]), right=True)
        seen = seen & (document[None, :] == document[m - n:, None])
    x = x.masked_fill(~seen, -math.inf)
    logits = x
    if s.get("sinks"):
        sinks = torch.tensor([0.25 * i - 0.5 for i in range(h)], requires_grad=True)
        leaves["sinks"] = sinks
        logits = torch.cat([x, sinks[:, None, None].expand(h, n, 1)], -1)
    weights = torch.softmax(logits, -1)[..., :m]
    out = torch.einsum("hij,jhc->ihc", weights, vv)
    if encoding == "shaw":
        out = out + torch.einsum("hij,ijc->ihc", weights, value_rows[clipped])
    (out * d_out).sum().backward()
    flat = lambda t: [y for y in t.flatten().tolist()]
    return {"encoding": encoding, "shape": s, "output": flat(out.detach()),
            "gradients": {name: flat(leaf.grad) for name, leaf in leaves.items()}}


with open("tests/golden/backward.json", "w", encoding="utf-8") as file:
    json.dump({"about": "python tools/make_backward_golden.py; torch " + torch.__version__.split("+")[0],
               "cases": [run(e, s) for s in SHAPES for e in ENCODINGS]}, file, separators=(",", ":"))
    file.write("\n")
