#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Converts ONNX's own node tests of Attention and RotaryEmbedding into two files that C++ reads without Python.

Run by hand; what it writes is committed and read by onnx_test.cpp. Nothing is computed here: inputs, outputs and
tolerances are those of the onnx package. The package makes its outputs when it is asked for them, with numpy in the
types of the inputs, so another processor may change their last bits.

    pip install onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0
    python make_onnx_cases.py ../golden/onnx

    cases.json         one entry a test: operator, opset, attributes (those left to their defaults too), inputs and
                       outputs in the order of the operator, tolerances of ONNX's test runner
    cases.safetensors  the tensors, each distinct one once, under the name of its first use ("attention_4d/Q")

Integer inputs (position_ids, nonpad_kv_seqlen) stand in cases.json as nested lists.

Every test has a twin "_expanded", the same numbers for the operator written as a graph of smaller ones. The twins
are checked to have the same inputs and outputs and are left out.

Versions before 1.23 have other numbers: there causal masks with nonpad_kv_seqlen began at the first key, and rows
that see no key were NaN.
"""
import importlib.metadata
import json
import pathlib
import struct
import sys
import warnings

pinned = {"onnx": "1.23.2", "numpy": "2.4.6", "ml_dtypes": "0.6.0"}
for package, version in pinned.items():
    found = importlib.metadata.version(package)
    if found != version:
        sys.exit(f"{package} {version} is needed, {found} is installed")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

operators = ("Attention", "RotaryEmbedding")
expected_count = {("Attention", 23): 69, ("Attention", 24): 13, ("Attention", 25): 11, ("RotaryEmbedding", 23): 8}
dtype_names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "int64": "I64"}


class tensor_store:
    """Tensors by content; equal ones are kept once."""

    def __init__(self):
        self.name_of = {}
        self.tensors = {}

    def entry(self, first_name, array):
        dtype = dtype_names[array.dtype.name]
        shape = list(array.shape)
        if dtype == "I64":
            return {"dtype": dtype, "shape": shape, "values": array.tolist()}
        data = np.ascontiguousarray(array).tobytes()
        name = self.name_of.setdefault((dtype, tuple(shape), data), first_name)
        self.tensors[name] = (dtype, shape, data)
        return {"dtype": dtype, "shape": shape, "tensor": name}

    def write_safetensors(self, path):
        """u64 length of the header, header, tensors; the widest types first, so that every tensor is aligned."""
        width = {"F32": 4, "F16": 2, "BF16": 2, "BOOL": 1}
        header, blocks, end = {}, [], 0
        for name, (dtype, shape, data) in sorted(self.tensors.items(), key=lambda item: -width[item[1][0]]):
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            blocks.append(data)
            end += len(data)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


def attributes(node, opset):
    """The attributes of a node, those that it leaves to their defaults too; absent where there is no default."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    schema = onnx.defs.get_schema(node.op_type, opset)
    result = {}
    for name in sorted(schema.attributes):
        default = schema.attributes[name].default_value
        if name in given:
            result[name] = given.pop(name)
        elif default.type != onnx.AttributeProto.UNDEFINED:
            result[name] = onnx.helper.get_attribute_value(default)
    assert not given, given
    return result


def tolerances(test, outputs):
    """Those of onnx.backend.test.runner: |ours - theirs| <= atol + rtol |theirs|, wider for bfloat16."""
    bfloat16 = any(array.dtype.name == "bfloat16" for array in outputs)
    return {"rtol": max(test.rtol, 2**-6) if bfloat16 else test.rtol, "atol": test.atol}


def same(one, other):
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
               for a, b in zip(one, other, strict=True))


def main(folder):
    warnings.simplefilter("ignore")
    tests = {test.name: test for test in load_model_tests(kind="node")}
    store, cases, count = tensor_store(), [], {}
    for test in tests.values():
        nodes = test.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in operators:
            continue
        node = nodes[0]
        opset = next(o.version for o in test.model.opset_import if o.domain == "")
        (inputs, outputs), = test.data_sets
        twin = tests[test.name + "_expanded"]
        assert same(inputs, twin.data_sets[0][0]) and same(outputs, twin.data_sets[0][1]), test.name
        name = test.name.removeprefix("test_")
        present_inputs = [x for x in node.input if x]
        present_outputs = [x for x in node.output if x]
        cases.append({
            "name": name, "op": node.op_type, "opset": opset, "attributes": attributes(node, opset),
            "inputs": {n: store.entry(f"{name}/{n}", a) for n, a in zip(present_inputs, inputs, strict=True)},
            "outputs": {n: store.entry(f"{name}/{n}", a) for n, a in zip(present_outputs, outputs, strict=True)},
            **tolerances(test, outputs)})
        count[node.op_type, opset] = count.get((node.op_type, opset), 0) + 1
    assert count == expected_count, count

    folder.mkdir(parents=True, exist_ok=True)
    header = {"made_by": "tests/conformance/make_onnx_cases.py", "versions": pinned, "count": len(cases)}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (folder / "cases.json").write_text(json.dumps(header)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    store.write_safetensors(folder / "cases.safetensors")
    print(f"{len(cases)} cases, {len(store.tensors)} tensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
