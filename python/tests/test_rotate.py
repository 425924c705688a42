# SPDX-License-Identifier: MIT
"""Rotations against transformers' own function, memory against what was promised about it."""
import ml_dtypes
import numpy as np
import posenc
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

SCALINGS = {
    "default": ({}, None),
    "linear": ({"factor": 4.0}, posenc.position_interpolation(4.0)),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 2048},
        posenc.yarn(4.0, 2048),
    ),
    "llama3": (
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
        posenc.llama3(8.0, 1.0, 4.0, 2048),
    ),
}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_agrees_with_transformers(kind, dtype):
    extra, scaling = SCALINGS[kind]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **extra},
    )
    torch.manual_seed(1)
    q, k = torch.randn(1, 4, 33, 64), torch.randn(1, 2, 33, 64)
    q, k = q.to(dtype), k.to(dtype)
    where = torch.arange(33) + 100
    cos, sin = LlamaRotaryEmbedding(config)(q.float(), where[None])
    expected = apply_rotary_pos_emb(q.float(), k.float(), cos, sin)
    rope = posenc.rope(64, pairing="half_split", scaling=scaling)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for x, wanted in zip((q, k), expected):
        got = posenc.rotate(x[0].transpose(0, 1), rope, where.numpy())
        assert got.dtype == dtype
        torch.testing.assert_close(got.transpose(0, 1).float(), wanted[0], atol=tolerance, rtol=0)


def test_angle_by_hand():
    x = np.zeros((1, 1, 2), np.float32)
    x[..., 0] = 1
    got = posenc.rotate(x, posenc.rope(2, pairing="interleaved"), 1)
    np.testing.assert_allclose(got[0, 0], [np.cos(1), np.sin(1)], rtol=1e-7)


def test_strided_in_place_and_bytes_between():
    rng = np.random.default_rng(0)
    buffer = rng.standard_normal((7, 3, 4, 16)).astype(np.float32)  # tokens, q/k/v, heads
    before = buffer.copy()
    rope = posenc.rope(16, pairing="half_split")
    wanted = posenc.rotate(np.ascontiguousarray(buffer[:, 1]), rope, 5)
    q = buffer[:, 1]
    assert posenc.rotate(q, rope, 5, out=q) is q
    np.testing.assert_array_equal(buffer[:, 1], wanted)
    np.testing.assert_array_equal(buffer[:, [0, 2]], before[:, [0, 2]])
    assert not np.array_equal(wanted, before[:, 1])


def test_ml_dtypes_bfloat16_is_torchs():
    x = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    rope = posenc.rope(8, pairing="interleaved")
    array = x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    got = posenc.rotate(array, rope)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.view(np.uint16), posenc.rotate(x, rope).view(torch.uint16).numpy())


def test_refusals_keep_their_sentences():
    x = np.zeros((2, 1, 6), np.float32)
    with pytest.raises(ValueError, match="posenc: rope: rotary_dim 3 must be even"):
        posenc.rope(6, pairing="half_split", rotary_dim=3)
    with pytest.raises(ValueError, match="heads of 6 channels, the encoding rotates heads of 8"):
        posenc.rotate(x, posenc.rope(8, pairing="half_split"))
    with pytest.raises(ValueError, match="2 rows|3 given for 2 rows"):
        posenc.rotate(x, posenc.rope(6, pairing="half_split"), np.arange(3))
    with pytest.raises(ValueError, match="alibi does not rotate"):
        posenc.rotate(x, posenc.alibi(1))
    with pytest.raises(ValueError, match="pairing is 'neox', not one of: half_split, interleaved"):
        posenc.rope(6, pairing="neox")
    with pytest.raises(ValueError, match="float32, float16 or bfloat16"):
        posenc.rotate(x.astype(np.float64), posenc.rope(6, pairing="half_split"))
    with pytest.raises(ValueError, match="contiguous"):
        posenc.rotate(np.zeros((2, 1, 12), np.float32)[:, :, ::2], posenc.rope(6, pairing="half_split"))
