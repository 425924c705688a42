#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints what the two programs of docs/porting.md have to print, computed by PyTorch and by ONNX's own evaluator.

Run by hand; the page holds the output, and the test readme.port_* compares it with what the programs print.

    pip install torch==2.15.0 onnx==1.23.2 numpy==2.4.6
    python make_porting_output.py
"""
import warnings

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

warnings.simplefilter("ignore")


def show(rows):
    for row in rows:
        print("".join(f"{float(x):8.4f}" for x in row))


def document_mask():
    def numbers(a, b):
        row, column = torch.arange(8)[:, None], torch.arange(4)[None]
        return (((a * row + b * column) % 7 - 3).float() / 2)[None, None]

    document = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])

    def mask_mod(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    mask = create_block_mask(mask_mod, None, None, 8, 8, device="cpu")
    return flex_attention(numbers(3, 5), numbers(2, 3), numbers(1, 4), block_mask=mask)[0, 0]


def onnx_attention():
    B, H, KV, Q, K, D = 2, 4, 2, 3, 5, 2

    def numbers(shape, step):
        return ((np.arange(np.prod(shape)) * step % 7 - 3) / 2).astype(np.float32).reshape(shape)

    inputs = {"q": numbers((B, H, Q, D), 3), "k": numbers((B, KV, K, D), 2), "v": numbers((B, KV, K, D), 5),
              "attn_mask": numbers((B, 1, Q, K), 4)}
    node = onnx.helper.make_node("Attention", list(inputs), ["y"], is_causal=1, softcap=2.0)
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in [*inputs, "y"]]
    graph = onnx.helper.make_graph([node], "attention", value[:-1], value[-1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    y, = ReferenceEvaluator(model).run(None, inputs)
    return [y[b, :, i].reshape(-1) for b in range(B) for i in range(Q)]


if __name__ == "__main__":
    print("port_document_mask")
    show(document_mask())
    print("port_onnx_attention")
    show(onnx_attention())
