# SPDX-License-Identifier: MIT
"""Writes rotary_tables.json: cos and sin as transformers' own classes give them, and what ONNX Runtime's RotaryEmbedding
makes of a vector with tables that posenc-inspect has exported.

usage: python make_rotary_tables.py POSENC_INSPECT OUT.json
Needs transformers 5.24.0, torch 2.15, onnxruntime 1.32.0, onnx, safetensors.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import onnxruntime
import torch
from onnx import TensorProto, helper
from safetensors.numpy import load_file
from transformers import AutoConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "configs"
POSITIONS = [0, 1, 2, 100, 4095]
CHANNELS = [0, 1, 5, 20, 31]  # of cos and sin as transformers hands them out, and the same from the end


def of_transformers(name, rotary):
    config = AutoConfig.for_model(**json.loads((CONFIGS / name).read_text()))
    cos, sin = rotary(config)(torch.zeros(1, dtype=torch.float32), torch.tensor([POSITIONS]))
    chosen = CHANNELS + [cos.shape[-1] - 1 - c for c in CHANNELS]
    pick = lambda t: [[float(t[0, p, c]) if c < t.shape[-1] else None for c in chosen] for p in range(len(POSITIONS))]
    return {"config": name, "width": cos.shape[-1], "positions": POSITIONS, "channels": chosen, "cos": pick(cos), "sin": pick(sin)}


def of_onnxruntime(inspect, interleaved):
    """One head of 16 channels, of which 12 rotate, at positions 3 and 40."""
    gptj = {"model_type": "gptj", "n_head": 1, "n_embd": 16, "n_layer": 1, "rotary_dim": 12, "n_positions": 64}
    neox = {"model_type": "gpt_neox", "num_attention_heads": 1, "hidden_size": 16, "num_hidden_layers": 1, "rotary_pct": 0.75,
            "max_position_embeddings": 64, "rotary_emb_base": 10000}
    config = gptj if interleaved else neox
    with tempfile.TemporaryDirectory() as folder:
        file, out = pathlib.Path(folder, "config.json"), pathlib.Path(folder, "out.safetensors")
        file.write_text(json.dumps(config))
        subprocess.run([inspect, file, "--export-tables", out, "--layout", "onnxruntime", "--length", "64"], check=True,
                       stdout=subprocess.DEVNULL)
        tables = load_file(out)
    x = numpy.random.default_rng(5).standard_normal((1, 2, 16)).astype(numpy.float32)
    node = helper.make_node("RotaryEmbedding", ["x", "positions", "cos", "sin"], ["y"], domain="com.microsoft", num_heads=1,
                            interleaved=int(interleaved), rotary_embedding_dim=12)
    value = lambda name, kind, array: helper.make_tensor_value_info(name, kind, array.shape)
    positions = numpy.array([[3, 40]], numpy.int64)
    graph = helper.make_graph([node], "g", [
        value("x", TensorProto.FLOAT, x), value("positions", TensorProto.INT64, positions),
        value("cos", TensorProto.FLOAT, tables["cos_cache"]), value("sin", TensorProto.FLOAT, tables["sin_cache"])],
        [value("y", TensorProto.FLOAT, x)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x, "positions": positions, "cos": tables["cos_cache"], "sin": tables["sin_cache"]})
    return {"config": config, "positions": [3, 40], "x": x[0].tolist(), "y": y[0].tolist()}


def main(inspect, out):
    result = {
        "about": "python tests/golden/make_rotary_tables.py posenc-inspect tests/golden/rotary_tables.json; transformers 5.24.0, "
                 "torch " + torch.__version__.split("+")[0] + ", onnxruntime " + onnxruntime.__version__,
        "transformers": [of_transformers("llama-2-7b.json", LlamaRotaryEmbedding),
                         of_transformers("llama-3.1-8b.json", LlamaRotaryEmbedding),
                         of_transformers("smollm2-135m.json", LlamaRotaryEmbedding),
                         of_transformers("qwen2.5-7b-yarn.json", Qwen2RotaryEmbedding),
                         of_transformers("gpt-oss-20b.json", GptOssRotaryEmbedding)],
        "onnxruntime": [of_onnxruntime(inspect, False), of_onnxruntime(inspect, True)],
    }
    pathlib.Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
