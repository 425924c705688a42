# SPDX-License-Identifier: MIT
"""Positional encodings for attention, over NumPy arrays, PyTorch CPU tensors and whatever else speaks DLPack.

Tensors have the axes tokens, heads, head_dim; the channels of a head are contiguous, the other two axes have any strides, so
that a tensor of heads x tokens x head_dim is passed transposed. Types are float32, float16 and bfloat16 (ml_dtypes in
NumPy). Nothing is copied. Angles are right to the last bit at any position, which is an integer in tokens.

Wrong use raises ValueError, a position that a table does not hold IndexError, with the sentences of the C++ library.
"""
from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _core
from ._core import (
    Encoding,
    alibi,
    combine,
    dynamic_ntk,
    learned_absolute,
    llama3,
    logit_scale,
    longrope,
    position_interpolation,
    relative_clip,
    relative_key,
    rope,
    sinusoidal,
    t5_bias,
    theta_scaling,
    xpos,
    yarn,
)

__version__: str = _core.version
__all__ = [
    "Encoding", "alibi", "attention", "combine", "dynamic_ntk", "learned_absolute", "llama3", "logit_scale", "longrope",
    "position_interpolation", "relative_clip", "relative_key", "rope", "rotate", "sinusoidal", "t5_bias", "theta_scaling",
    "xpos", "yarn",
]  # fmt: skip


def _readable(x: Any) -> Any:
    """x as the bindings take it: NumPy exports ml_dtypes.bfloat16 by no protocol, so its bits go as uint16."""
    if isinstance(x, np.ndarray):
        if x.dtype.name == "bfloat16":
            return x.view(np.uint16)
        if x.dtype == np.uint16:
            raise ValueError("posenc: an array must be float32, float16 or bfloat16, not uint16")
    return x


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An array of the framework and type of `like`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=like.dtype)
    return np.empty(shape, dtype=like.dtype)


def rotate(x: Any, encoding: Encoding, positions: Any = None, *, keys: bool = False, out: Any = None) -> Any:
    """Rotates every head of x, which has the axes tokens, heads, head_dim; channels that do not rotate are copied.

    positions: the position of the first token, or an int64 array with one for each; 0, 1, ... if not given.
    keys: x holds keys and not queries, which matters to xpos alone.
    out: where the result goes; it may be x itself. An array like x is made if not given.
    """
    if out is None:
        out = _empty(x, tuple(x.shape))
    _core.rotate_into(_readable(x), encoding, _readable(out), positions, keys)
    return out


def attention(q: Any, k: Any, v: Any, encoding: Encoding | None = None, *, out: Any = None,
              log_sum_exp: Any = None, **options: Any) -> Any:  # fmt: skip
    """Attention of queries (tokens x heads x head_dim) over keys and values (tokens x kv_heads x head_dim, value_dim).

    Gives tokens x heads x value_dim, in `out` where that is given. log_sum_exp is a float32 array of tokens x heads that
    receives ln Z, if wanted. Options, with their defaults:

    engine="fused"         or "reference", which reads like the paper
    mask="bidirectional"   or "causal" (by position), "causal_from_first" (PyTorch's is_causal), "causal_to_last"
    lookback, lookahead    how many tokens behind and ahead of its own position a query sees; no limit
    chunk                  a query sees keys of its own chunk of so many tokens only
    scale                  the factor on q.k; 1/sqrt(head_dim)
    softcap=0              c of c*tanh(s/c), applied after the scale; 0 is none
    sinks                  a logit for each head that joins the softmax without a value
    documents              the first rows of documents packed into one sequence
    query_positions        the first position or an int64 array; by default queries are the last of the keys' positions
    key_positions          likewise; 0, 1, ...
    keys_are_rotated       the encoding has rotated k already
    is_embedded            the positions were added to the embeddings
    threads=1              of this call; 0 is as many as the machine has
    """
    if out is None:
        out = _empty(q, (*q.shape[:2], v.shape[-1]))
    _core.attention_into(_readable(q), _readable(k), _readable(v), encoding or _none, _readable(out), log_sum_exp,
                         **options)  # fmt: skip
    return out


_none = Encoding()
