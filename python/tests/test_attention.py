# SPDX-License-Identifier: MIT
"""Attention against torch's scaled_dot_product_attention, biases and rotations against their definitions."""
import threading
import time

import numpy as np
import posenc
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

ENGINES = ["fused", "reference"]


def tensors(queries=17, keys=29, heads=4, kv_heads=2, head_dim=32, dtype=torch.float32):
    """q, k, v of heads x tokens x head_dim, as torch lays them out."""
    torch.manual_seed(3)
    shapes = (heads, queries), (kv_heads, keys), (kv_heads, keys)
    return [torch.randn(*shape, head_dim).to(dtype) for shape in shapes]


def ours(q, k, v, *arguments, **options):
    return posenc.attention(*(x.transpose(0, 1) for x in (q, k, v)), *arguments, **options).transpose(0, 1)


def theirs(q, k, v, **options):
    return scaled_dot_product_attention(q[None].double(), k[None].double(), v[None].double(), enable_gqa=True, **options)[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_plain(engine, dtype, tolerance):
    q, k, v = tensors(dtype=dtype)
    got = ours(q, k, v, engine=engine)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), theirs(q, k, v), atol=tolerance, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", [1, 3])
def test_causal_and_scale(engine, threads):
    q, k, v = tensors()
    got = ours(q, k, v, engine=engine, mask="causal_from_first", scale=0.3, threads=threads)
    torch.testing.assert_close(got.double(), theirs(q, k, v, is_causal=True, scale=0.3), atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_window_documents_and_last_queries(engine):
    q, k, v = tensors()
    at, key = torch.arange(12, 29)[:, None], torch.arange(29)[None]
    seen = (key <= at) & (at - key <= 5) & ((key >= 20) == (at >= 20))
    got = ours(q, k, v, engine=engine, mask="causal", lookback=5, documents=[0, 20])
    torch.testing.assert_close(got.double(), theirs(q, k, v, attn_mask=seen), atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_alibi(engine):
    q, k, v = tensors()
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    distance = (torch.arange(12, 29)[:, None] - torch.arange(29)[None]).abs()
    bias = -slopes[:, None, None] * distance
    got = ours(q, k, v, posenc.alibi(4), engine=engine)
    torch.testing.assert_close(got.double(), theirs(q, k, v, attn_mask=bias[None]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_relative_clip(engine):
    q, k, v = tensors()
    weights = np.random.default_rng(4).standard_normal((6, 4)).astype(np.float32)
    offset = torch.arange(29)[None] - torch.arange(12, 29)[:, None]
    bias = torch.tensor(weights).double()[offset.clamp(-3, 2) + 3].permute(2, 0, 1)
    encoding = posenc.relative_clip(weights, direction="key_minus_query", left=3, right=2)
    got = ours(q, k, v, encoding, engine=engine)
    torch.testing.assert_close(got.double(), theirs(q, k, v, attn_mask=bias[None]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_t5(engine):
    from transformers.models.t5.modeling_t5 import T5Attention

    q, k, v = tensors()
    q = q / 4  # no 1/sqrt(head_dim) in T5: keeps scores within the 16 for which the error is promised
    weights = np.random.default_rng(5).standard_normal((32, 4)).astype(np.float32)
    offset = torch.arange(29)[None] - torch.arange(12, 29)[:, None]
    bucket = T5Attention._relative_position_bucket(offset, bidirectional=True, num_buckets=32, max_distance=128)
    bias = torch.tensor(weights).double()[bucket].permute(2, 0, 1)
    got = ours(q, k, v, posenc.t5_bias(weights, bidirectional=True), engine=engine, scale=1)
    torch.testing.assert_close(got.double(), theirs(q, k, v, attn_mask=bias[None], scale=1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_rope_inside_is_rope_before(engine):
    q, k, v = tensors()
    where_q, where_k = np.arange(17) * 3 + 1000, np.arange(29) * 2 + 900
    half = 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)

    def rotated(x, where):
        angle = torch.tensor(where)[:, None].double() * half
        a, b = x.double().chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    rope = posenc.rope(32, pairing="half_split")
    got = ours(q, k, v, rope, engine=engine, query_positions=where_q, key_positions=where_k)
    wanted = theirs(rotated(q, where_q), rotated(k, where_k), v)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_log_sum_exp_and_sinks(engine):
    q, k, v = tensors(kv_heads=4)
    log_sum_exp = torch.empty(17, 4)
    sinks = [0.5, -1.0, 2.0, 0.0]
    got = ours(q, k, v, engine=engine, sinks=sinks, log_sum_exp=log_sum_exp)
    scores = q.double() @ k.double().transpose(1, 2) / 32**0.5
    sink = torch.tensor(sinks).double()[:, None, None].expand(4, 17, 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(got.double(), weights @ v.double(), atol=2e-6, rtol=0)
    wanted = torch.cat([scores, sink], -1).logsumexp(-1).T
    torch.testing.assert_close(log_sum_exp.double(), wanted, atol=2e-6, rtol=0)


def test_refusals():
    q, k, v = (np.zeros((3, heads, 8), np.float32) for heads in (4, 3, 3))
    with pytest.raises(ValueError, match="heads 4 is no multiple of kv_heads 3"):
        posenc.attention(q, k, v)
    with pytest.raises(ValueError, match="mask is 'casual', not one of"):
        posenc.attention(q, k, v, mask="casual")
    with pytest.raises(ValueError, match="one type"):
        posenc.attention(q, k.astype(np.float16), v)
    with pytest.raises(ValueError, match="output overlaps q, k or v in memory"):
        posenc.attention(q, q, q, out=q)
    with pytest.raises(ValueError, match="needs|embed"):
        posenc.attention(q, q, q, posenc.sinusoidal(8, convention="paper"))
    with pytest.raises(IndexError, match="posenc: "):
        posenc.attention(q, q, q, posenc.logit_scale(), query_positions=-3)


def test_other_threads_run_meanwhile():
    q = np.random.default_rng(6).standard_normal((300, 8, 64)).astype(np.float32)
    running, counted = threading.Event(), []

    def work():
        running.set()
        posenc.attention(q, q, q, engine="reference")
        running.clear()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    started = time.monotonic()
    while running.is_set() and time.monotonic() - started < 60:
        counted.append(time.monotonic())
        time.sleep(0.001)
    thread.join()
    assert len(counted) >= 5
