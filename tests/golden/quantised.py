# SPDX-License-Identifier: MIT
"""Writes quantised.json: q8_0 blocks of gguf-py and what torch makes of float8_e4m3fn.

    pip install gguf==0.19.0 numpy==2.4.6 torch==2.15.0
    python3 quantised.py > quantised.json

Numbers are given as the bits of their float32, since JSON has no infinities and no NaN.
"""
import json

import gguf
import numpy as np
import torch


def bits(x):
    return [int(b) for b in np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)]


def q8_0_blocks():
    random = np.random.default_rng(5)
    blocks = [
        random.standard_normal(32),
        random.standard_normal(32) * np.where(np.arange(32) % 16 == 3, 40, 1),  # a few large channels
        np.zeros(32),
        random.standard_normal(32) * 1e-7,  # a scale that half holds as a denormal, with few digits
        random.standard_normal(32) * 1e-9,  # a scale that half does not hold
        random.standard_normal(32) * 1e6,
        np.linspace(-127, 127, 32),
        np.concatenate([[127.0], np.arange(31) + 0.5]),  # scale 1: halves, away from zero
        np.concatenate([[-127.0], -(np.arange(31) + 0.5)]),
        np.where(np.arange(32) == 9, -3.0, 0.0),
    ]
    x = np.array(blocks, np.float32)
    packed = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    return [{"x": bits(row), "block": block.tobytes().hex()} for row, block in zip(x, packed)]


def float8_numbers():
    """Around every number of float8, its midpoints and its ends; the neighbours in float32 of each of them."""
    every = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    finite = every[np.isfinite(every)].astype(np.float64)
    middles = np.concatenate([(finite[1:] + finite[:-1]) / 2, [464, 480, 512, 2**-10, 2**-11]]).astype(np.float32)
    near = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))])
    rest = np.array([0, 1e-45, 1e-38, 3.3e-5, 0.1, 1 / 3, 3.14159, 100, 447, 449, 1e5, 3.4e38, np.inf, np.nan], np.float32)
    x = np.concatenate([near, rest])
    return np.concatenate([x, -x])


numbers = float8_numbers()
with np.errstate(all="ignore"):
    codes = torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8)
patterns = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
cases = [
    {"name": "q8_0", "blocks": q8_0_blocks()},
    {"name": "float8_e4m3", "of_patterns": bits(patterns), "numbers": bits(numbers), "codes": [int(c) for c in codes]},
]
about = "python tests/golden/quantised.py > tests/golden/quantised.json; gguf 0.19.0, numpy 2.4.6, torch 2.15.0"
print('{"about": ' + json.dumps(about) + ', "cases": [' + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]}")
