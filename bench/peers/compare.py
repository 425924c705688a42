#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs one attention with RoPE through posenc and through other CPU systems, taking turns; see README.md beside this file."""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np

BASE = 10000.0
BYTES = {"float": 4, "half": 2, "bfloat16": 2, "q8_0": 34 / 32, "int8": 1}  # of a number; scales of int8 left out


class Shape:
    def __init__(self, name, queries, keys, heads, kv_heads, head_dim, cache="float", backward=False):
        self.name, self.queries, self.keys = name, queries, keys
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.cache = cache  # how keys and values are stored: float, half, q8_0 or int8; bfloat16 for queries and output too
        self.backward = backward  # the gradient of the call in place of the call

    def useful_flops(self):
        """Multiplications and additions of both products over the visible pairs, or of the gradient's five."""
        first = self.keys - self.queries
        visible = sum(first + i + 1 for i in range(self.queries))
        return (10.0 if self.backward else 4.0) * visible * self.heads * self.head_dim

    def cache_bytes(self):
        return 2.0 * self.keys * self.kv_heads * self.head_dim * BYTES[self.cache]


SHAPES = [
    Shape("prefill-1024", 1024, 1024, 32, 8, 128),
    Shape("prefill-2048", 2048, 2048, 32, 8, 128),
    Shape("prefill-4096", 4096, 4096, 32, 8, 128),
    Shape("prefill-12x64-1024", 1024, 1024, 12, 12, 64),
    Shape("decode-4096", 1, 4096, 32, 8, 128),
    Shape("decode-32768", 1, 32768, 32, 8, 128),
] + [Shape(f"decode-{keys}-{cache}", 1, keys, 32, 8, 128, cache) for keys in (4096, 32768) for cache in ("half", "q8_0", "int8")] + [
    Shape("backward-2048", 2048, 2048, 32, 32, 128, backward=True),
    Shape("backward-12x64-1024", 1024, 1024, 12, 12, 64, backward=True),
]
SHAPES += [Shape(f"{shape.name}-bfloat16", shape.queries, shape.keys, shape.heads, shape.kv_heads, shape.head_dim, "bfloat16")
           for shape in SHAPES[:4]]


def cos_sin(shape):
    """Angles in float64, rounded once; tokens × head_dim/2."""
    pairs = shape.head_dim // 2
    frequencies = BASE ** (-2.0 * np.arange(pairs) / shape.head_dim)
    angles = np.arange(shape.keys)[:, None] * frequencies[None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class Posenc:
    name = "posenc"

    def __init__(self, runner, shape, folder):
        self.shape, self.folder = shape, folder
        arguments = [shape.queries, shape.keys, shape.heads, shape.kv_heads, shape.head_dim, BASE, shape.cache]
        self.process = subprocess.Popen([runner, folder, *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.target = self.process.stdout.readline().split()[1]

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def seconds(self):
        return self.ask("gradient" if self.shape.backward else "run")

    def output(self):
        self.ask("save gradient" if self.shape.backward else "save")
        shape = self.shape
        if shape.backward:
            return np.concatenate([np.fromfile(f"{self.folder}/d_{x}.f32", np.float32) for x in "qkv"])
        return np.fromfile(self.folder + "/out.f32", np.float32).reshape(shape.queries, shape.heads, shape.head_dim)


class InProcess:
    """A peer called from here: subclasses have run(), which returns what convert() turns into tokens × heads × head_dim."""

    def seconds(self):
        start = time.process_time()
        self.result = self.run()
        return time.process_time() - start

    def output(self):
        return self.convert(self.run())


class Torch(InProcess):
    """In bfloat16 as models do it: rotate-half by tables in bfloat16."""

    name = "torch"
    caches = ("float", "bfloat16")

    def __init__(self, shape, q, k, v):
        import torch
        torch.set_num_threads(1)
        self.torch, self.shape = torch, shape
        to_type = lambda x: x.bfloat16() if shape.cache == "bfloat16" else x
        to_heads = lambda x: to_type(torch.from_numpy(x)).permute(1, 0, 2).unsqueeze(0).contiguous()
        self.q, self.k, self.v = to_heads(q), to_heads(k), to_heads(v)
        cos, sin = cos_sin(shape)
        self.cos = to_type(torch.from_numpy(np.concatenate([cos, cos], -1)))
        self.sin = to_type(torch.from_numpy(np.concatenate([sin, sin], -1)))

    def rotate(self, x, first):
        half = x.shape[-1] // 2
        turned = self.torch.cat((-x[..., half:], x[..., :half]), -1)
        rows = slice(first, first + x.shape[2])
        return x * self.cos[rows] + turned * self.sin[rows]

    def run(self):
        shape = self.shape
        with self.torch.inference_mode():
            q = self.rotate(self.q, shape.keys - shape.queries)
            k = self.rotate(self.k, 0)
            return self.torch.nn.functional.scaled_dot_product_attention(
                q, k, self.v, is_causal=shape.queries > 1, enable_gqa=shape.heads != shape.kv_heads)

    def convert(self, result):
        return result[0].permute(1, 0, 2).float().numpy()


class TorchBackward(Torch):
    """What autograd does after the forward: the gradient of scaled_dot_product_attention and that of the rotation."""

    def __init__(self, shape, q, k, v, d_out):
        super().__init__(shape, q, k, v)
        self.leaves = [x.requires_grad_() for x in (self.q, self.k, self.v)]
        q, k = self.rotate(self.q, shape.keys - shape.queries), self.rotate(self.k, 0)
        self.out = self.torch.nn.functional.scaled_dot_product_attention(
            q, k, self.v, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)
        self.d_out = self.torch.from_numpy(d_out).permute(1, 0, 2).unsqueeze(0).contiguous()

    def run(self):
        return self.torch.autograd.grad(self.out, self.leaves, self.d_out, retain_graph=True)

    def convert(self, result):
        return np.concatenate([x[0].permute(1, 0, 2).contiguous().numpy().ravel() for x in result])


class OnnxRuntime(InProcess):
    name = "onnxruntime"
    caches = ("float",)

    def __init__(self, shape, q, k, v):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        self.shape = shape
        d, past = shape.head_dim, shape.keys - shape.queries
        real = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        whole = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.INT32, dims)
        node = helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total", "cos", "sin"], ["out", "present_k", "present_v"],
            domain="com.microsoft", num_heads=shape.heads, kv_num_heads=shape.kv_heads, do_rotary=1)
        cache = [1, shape.kv_heads, shape.keys, d]
        graph = helper.make_graph(
            [node], "attention",
            [real("q", [1, shape.queries, shape.heads * d]), real("k", [1, shape.queries, shape.kv_heads * d]),
             real("v", [1, shape.queries, shape.kv_heads * d]), real("past_k", [1, shape.kv_heads, past, d]),
             real("past_v", [1, shape.kv_heads, past, d]), whole("seqlens_k", [1]), whole("total", []),
             real("cos", [shape.keys, d // 2]), real("sin", [shape.keys, d // 2])],
            [real("out", [1, shape.queries, shape.heads * d]), real("present_k", cache), real("present_v", cache)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
                                  ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        cos, sin = cos_sin(shape)
        heads_first = lambda x: np.ascontiguousarray(x.transpose(1, 0, 2))[None]
        past_k = self.rotated(k[:past], cos, sin)
        self.inputs = {
            "q": q.reshape(1, shape.queries, -1), "k": k[past:].reshape(1, shape.queries, -1),
            "v": v[past:].reshape(1, shape.queries, -1), "past_k": heads_first(past_k), "past_v": heads_first(v[:past]),
            "seqlens_k": np.array([shape.keys - 1], np.int32), "total": np.array(shape.keys, np.int32), "cos": cos, "sin": sin}

    @staticmethod
    def rotated(x, cos, sin):
        half = x.shape[-1] // 2
        a, b, c, s = x[..., :half], x[..., half:], cos[: len(x), None], sin[: len(x), None]
        return np.concatenate([a * c - b * s, a * s + b * c], -1).astype(np.float32)

    def run(self):
        return self.session.run(["out"], self.inputs)[0]

    def convert(self, result):
        return result.reshape(self.shape.queries, self.shape.heads, self.shape.head_dim)


class OnnxRuntimeInt8(InProcess):
    """GroupQueryAttention over a cache of int8 with a scale per channel and head, which it dequantises itself. The new key and
    value are quantised by the operator and written into the cache, which past and present share, as its documentation wants."""

    name = "onnxruntime-int8"
    caches = ("int8",)

    def __init__(self, shape, q, k, v):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        self.shape = shape
        d, past, g = shape.head_dim, shape.keys - shape.queries, shape.kv_heads
        tensor = helper.make_tensor_value_info
        node = helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total", "cos", "sin", "", "", "", "k_scale", "v_scale"],
            ["out", "present_k", "present_v"], domain="com.microsoft", num_heads=shape.heads, kv_num_heads=g, do_rotary=1,
            k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=8)
        cache = [1, g, shape.keys, d]
        real = lambda name, dims: tensor(name, TensorProto.FLOAT, dims)
        whole = lambda name, dims: tensor(name, TensorProto.INT32, dims)
        codes = lambda name: tensor(name, TensorProto.INT8, cache)
        graph = helper.make_graph(
            [node], "attention",
            [real("q", [1, shape.queries, shape.heads * d]), real("k", [1, shape.queries, g * d]),
             real("v", [1, shape.queries, g * d]), codes("past_k"), codes("past_v"), whole("seqlens_k", [1]), whole("total", []),
             real("cos", [shape.keys, d // 2]), real("sin", [shape.keys, d // 2]), real("k_scale", [1, g, 1, d]),
             real("v_scale", [1, g, 1, d])],
            [real("out", [1, shape.queries, shape.heads * d]), codes("present_k"), codes("present_v")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
                                  ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as reason:  # a release whose operator has no quantised cache
            raise RuntimeError(str(reason).splitlines()[0]) from reason
        cos, sin = cos_sin(shape)
        self.binding = self.session.io_binding()
        self.keep = []
        whole_k, whole_v = OnnxRuntime.rotated(k, cos, sin), v
        inputs = {"q": q.reshape(1, shape.queries, -1), "k": k[past:].reshape(1, shape.queries, -1),
                  "v": v[past:].reshape(1, shape.queries, -1), "seqlens_k": np.array([shape.keys - 1], np.int32),
                  "total": np.array(shape.keys, np.int32), "cos": cos, "sin": sin}
        for side, numbers in (("k", whole_k), ("v", whole_v)):
            scale = (np.abs(numbers).max(axis=0) / 127).astype(np.float32)  # heads x channels
            quantised = np.rint(numbers / scale).astype(np.int8)
            quantised[past:] = 0  # the operator writes the new token
            inputs[side + "_scale"] = scale[None, :, None, :]
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(quantised.transpose(1, 0, 2))[None])
            self.keep.append(value)
            self.binding.bind_ortvalue_input("past_" + side, value)
            self.binding.bind_ortvalue_output("present_" + side, value)
        for name, array in inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            self.keep.append(value)
            self.binding.bind_ortvalue_input(name, value)
        self.result_value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, shape.queries, shape.heads * d), np.float32))
        self.binding.bind_ortvalue_output("out", self.result_value)

    def run(self):
        self.session.run_with_iobinding(self.binding)
        return self.result_value

    def convert(self, result):
        return result.numpy().reshape(self.shape.queries, self.shape.heads, self.shape.head_dim).copy()


def peers_for(shape, inputs, names):
    if shape.backward:
        kinds = [TorchBackward]
    else:
        from ggml_peer import Ggml, GgmlFlash
        kinds = [Torch, OnnxRuntime, OnnxRuntimeInt8, Ggml, GgmlFlash]
    for peer in kinds:
        if (names and peer.name not in names) or shape.cache not in peer.caches:
            continue
        try:
            yield peer(shape, *inputs)
        except (ImportError, OSError, RuntimeError) as reason:
            print(f"  {peer.name}: skipped ({reason})")


def compare(shape, options):
    random = np.random.default_rng(7)
    draw = lambda tokens, heads: random.standard_normal((tokens, heads, shape.head_dim), np.float32)
    inputs = {"q": draw(shape.queries, shape.heads), "k": draw(shape.keys, shape.kv_heads), "v": draw(shape.keys, shape.kv_heads)}
    if shape.backward:
        inputs["d_out"] = draw(shape.queries, shape.heads)
    with tempfile.TemporaryDirectory() as folder:
        for name, array in inputs.items():
            array.tofile(f"{folder}/{name}.f32")
        ours = Posenc(options.runner, shape, folder)
        print(f"{shape.name}: {shape.queries} queries, {shape.keys} keys, {shape.heads}/{shape.kv_heads} heads x "
              f"{shape.head_dim}, {shape.cache} cache, posenc on {ours.target}")
        expected = ours.output()
        systems = [ours]
        for peer in peers_for(shape, inputs.values(), options.peers):
            worst = float(np.max(np.abs(peer.output() - expected)))
            if not worst <= peer_tolerance(peer, shape):
                print(f"  {peer.name}: disagrees by {worst:.3g}, not timed")
            else:
                print(f"  {peer.name}: agrees within {worst:.2g}")
                systems.append(peer)
        times, peaks = {system.name: [] for system in systems}, []
        decode = shape.queries == 1
        for round_number in range(options.rounds):
            print(f"\r  round {round_number + 1} of {options.rounds}", end="", file=sys.stderr, flush=True)
            peaks.append(ours.ask("bandwidth" if decode else "peak"))
            for system in systems:
                times[system.name].append(system.seconds())
        print("", file=sys.stderr)
        peak = max(peaks)
        work = shape.cache_bytes() if decode else shape.useful_flops()
        unit, what = ("GB/s", "read bandwidth") if decode else ("GFLOP/s", "FMA peak")
        print(f"  {what}: {peak / 1e9:.1f} {unit}")
        for name, seconds in times.items():
            median, best = statistics.median(seconds), min(seconds)
            lead = statistics.median(t / o for t, o in zip(seconds, times["posenc"]))
            print(f"  {name:<14} median {work / median / 1e9:7.1f} {unit} ({100 * work / median / peak:4.0f} %)   best "
                  f"{100 * work / best / peak:4.0f} %   posenc leads x {lead:.2f}")


def peer_tolerance(peer, shape):
    # Peers quantise keys after their rotation, posenc before it: the same only as far as eight bits go. ggml adds half values
    # up in half.
    return {"float": getattr(peer, "tolerance", 2e-4), "half": 5e-3, "bfloat16": 6e-2, "q8_0": 5e-3, "int8": 5e-3}[shape.cache]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", required=True, help="the built peer_runner")
    parser.add_argument("--shape", action="append", choices=[shape.name for shape in SHAPES], help="default: all")
    parser.add_argument("--peers", action="append", help="default: all that are installed")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with open("/proc/cpuinfo") as info:
        print(next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown processor"))
    for shape in SHAPES:
        if not options.shape or shape.name in options.shape:
            compare(shape, options)


if __name__ == "__main__":
    main()
