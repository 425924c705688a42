# SPDX-License-Identifier: MIT
"""ggml, the library under llama.cpp, called through the shared objects that llama-cpp-python carries."""

import ctypes
import glob
import importlib.util
import math
import os
import time

import numpy as np

F32, F16, Q8_0, I32 = 0, 1, 8, 26
ROPE_NEOX = 2
BASE = 10000.0


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Library:
    """The handful of ggml functions an attention graph needs; every tensor is an opaque pointer."""

    def __init__(self):
        package = importlib.util.find_spec("llama_cpp")
        if package is None:
            raise ImportError("llama-cpp-python is not installed")
        folder = os.path.join(os.path.dirname(package.origin), "lib")
        self.libraries = []
        for name in ("libggml-base", "libggml-cpu", "libggml"):
            for path in glob.glob(os.path.join(folder, name + ".so*"))[:1]:
                self.libraries.append(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))
        pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self.declare("ggml_init", pointer, InitParams)
        self.declare("ggml_free", None, pointer)
        self.declare("ggml_new_tensor_3d", pointer, pointer, ctypes.c_int, number, number, number)
        self.declare("ggml_get_data", pointer, pointer)
        self.declare("ggml_permute", pointer, pointer, pointer, *[ctypes.c_int] * 4)
        self.declare("ggml_cont", pointer, pointer, pointer)
        self.declare("ggml_mul_mat", pointer, pointer, pointer, pointer)
        self.declare("ggml_soft_max_ext", pointer, pointer, pointer, pointer, real, real)
        self.declare("ggml_flash_attn_ext", pointer, *[pointer] * 5, real, real, real)
        self.declare("ggml_rope_ext", pointer, *[pointer] * 4, *[ctypes.c_int] * 3, *[real] * 6)
        self.declare("ggml_quantize_chunk", ctypes.c_size_t, ctypes.c_int, pointer, pointer, number, number, number, pointer)
        self.declare("ggml_new_graph", pointer, pointer)
        self.declare("ggml_build_forward_expand", None, pointer, pointer)
        self.declare("ggml_graph_compute_with_ctx", ctypes.c_int, pointer, pointer, ctypes.c_int)
        self.declare("ggml_cpu_init", None)
        self.ggml_cpu_init()

    def declare(self, name, result, *arguments):
        for library in self.libraries:
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype, function.argtypes = result, list(arguments)
                setattr(self, name, function)
                return
        raise OSError(f"no {name} in the libraries of llama-cpp-python")


class Ggml:
    """Rope, then mul_mat, soft_max_ext, mul_mat: what llama.cpp computes without its flash path, values kept transposed."""

    name = "ggml"
    tolerance = 2e-3  # its float32 angles drift from the exact ones within the first thousands of positions
    flash = False
    caches = ("float",)

    def __init__(self, shape, q, k, v):
        self.shape, self.lib = shape, Library()
        lib = self.lib
        scores = shape.keys * shape.queries * shape.heads * 4
        size = 4 * (6 * q.size + 6 * k.size + 6 * v.size) + (scores * 3 if not self.flash else 0) + 8 * shape.keys * (
            shape.queries + 64) + (256 << 20)
        self.context = lib.ggml_init(InitParams(size, None, False))
        if not self.context:
            raise OSError("ggml_init failed")
        past = shape.keys - shape.queries
        keys_are_new = past == 0
        tensor_q, tensor_k = self.tensor(q), self.tensor(k) if keys_are_new else self.cached(self.rotated(k))
        turned_q = self.rope(tensor_q, past, shape.queries)
        turned_k = self.rope(tensor_k, 0, shape.keys) if keys_are_new else tensor_k
        query = lib.ggml_permute(self.context, turned_q, 0, 2, 1, 3)
        key = lib.ggml_permute(self.context, turned_k, 0, 2, 1, 3)
        visible = np.arange(shape.keys)[None, :] <= (past + np.arange(shape.queries))[:, None]
        mask = np.where(visible, 0.0, -np.inf)
        self.result = self.attention(query, key, v, mask)
        self.graph = lib.ggml_new_graph(self.context)
        lib.ggml_build_forward_expand(self.graph, self.result)

    def attention(self, query, key, v, mask):
        lib, context = self.lib, self.context
        values = self.tensor(np.ascontiguousarray(v.transpose(1, 2, 0)))  # channels × tokens of each head
        weights = lib.ggml_mul_mat(context, lib.ggml_cont(context, key), query)
        weights = lib.ggml_soft_max_ext(context, weights, self.tensor(mask.astype(np.float32)[None]),
                                        1 / math.sqrt(self.shape.head_dim), 0.0)
        product = lib.ggml_mul_mat(context, values, weights)
        return lib.ggml_cont(context, lib.ggml_permute(context, product, 0, 2, 1, 3))

    def tensor(self, array):
        """A tensor over a copy of a 3-dimensional array, last dimension innermost."""
        kind = {np.dtype(np.float32): F32, np.dtype(np.float16): F16, np.dtype(np.int32): I32}[array.dtype]
        result = self.lib.ggml_new_tensor_3d(self.context, kind, *reversed(array.shape))
        array = np.ascontiguousarray(array)
        ctypes.memmove(self.lib.ggml_get_data(result), array.ctypes.data, array.nbytes)
        return result

    def cached(self, array):
        """Keys or values as the shape's cache stores them."""
        if self.shape.cache == "float":
            return self.tensor(array)
        if self.shape.cache == "half":
            return self.tensor(array.astype(np.float16))
        array = np.ascontiguousarray(array, np.float32)
        result = self.lib.ggml_new_tensor_3d(self.context, Q8_0, *reversed(array.shape))
        self.lib.ggml_quantize_chunk(Q8_0, array.ctypes.data, self.lib.ggml_get_data(result), 0, array.size // array.shape[-1],
                                     array.shape[-1], None)
        return result

    def rope(self, tensor, first, count):
        positions = self.lib.ggml_new_tensor_3d(self.context, I32, count, 1, 1)
        values = np.arange(first, first + count, dtype=np.int32)
        ctypes.memmove(self.lib.ggml_get_data(positions), values.ctypes.data, values.nbytes)
        return self.lib.ggml_rope_ext(self.context, tensor, positions, None, self.shape.head_dim, ROPE_NEOX, 0, BASE, 1.0, 0.0,
                                      1.0, 32.0, 1.0)

    def rotated(self, keys):
        """Keys as a rotated cache holds them."""
        half = keys.shape[-1] // 2
        angles = np.arange(len(keys))[:, None] * BASE ** (-np.arange(half) / half)[None, :]
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = keys[..., :half], keys[..., half:]
        return np.concatenate([a * c - b * s, a * s + b * c], -1).astype(np.float32)

    def seconds(self):
        start = time.perf_counter()
        self.lib.ggml_graph_compute_with_ctx(self.context, self.graph, 1)
        return time.perf_counter() - start

    def output(self):
        self.seconds()
        shape = self.shape
        count = shape.queries * shape.heads * shape.head_dim
        data = (ctypes.c_float * count).from_address(self.lib.ggml_get_data(self.result))
        return np.frombuffer(data, np.float32).reshape(shape.queries, shape.heads, shape.head_dim).copy()

    def __del__(self):
        if getattr(self, "context", None):
            self.lib.ggml_free(self.context)


class GgmlFlash(Ggml):
    """Rope, then flash_attn_ext on keys and values as the cache stores them: float, half (llama.cpp's default) or q8_0."""

    name = "ggml-flash"
    flash = True
    caches = ("float", "half", "q8_0")

    def attention(self, query, key, v, mask):
        lib, context = self.lib, self.context
        values = lib.ggml_permute(context, self.cached(v), 0, 2, 1, 3)
        padding = -len(mask) % 64
        mask = np.pad(mask, ((0, padding), (0, 0)), constant_values=-np.inf)
        return lib.ggml_flash_attn_ext(context, query, key, values, self.tensor(mask.astype(np.float16)[None]),
                                       1 / math.sqrt(self.shape.head_dim), 0.0, 0.0)
