# SPDX-License-Identifier: MIT
"""Writes tests/golden/gguf_tables.json: what gguf-py and llama.cpp say of each architecture of GGUF files.

Run by hand from the root of the project, with the sources that llama-cpp-python is distributed with, unpacked:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    pip install gguf==0.19.0
    python tools/gguf_tables.py llama_cpp_python-0.3.36/vendor/llama.cpp

Recorded are, of gguf-py, the names of the architectures and of the keys that speak of positions and attention, and for
each architecture how llama.cpp rotates (llama_model_rope_type: "norm" turns channel 2p with 2p + 1, "neox" p with
p + half, "mrope" and "imrope" do so by several axes, "none" not at all), and whether a converter changes the order of
the rows of W_q and W_k (its class calls permute). tests/models/gguf_tables_test.cpp compares.
"""
import importlib.metadata
import json
import os
import re
import sys

import gguf

GGUF = "0.19.0"


def rope_types(folder):
    """The word for each architecture; of those that ask a file's numbers, all words."""
    arch_source = open(os.path.join(folder, "src", "llama-arch.cpp")).read()
    names = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', arch_source))
    source = open(os.path.join(folder, "src", "llama-model.cpp")).read()
    body = source[source.index("llama_rope_type llama_model_rope_type(const llama_model * model) {"):]
    body = body[:body.index("\n}\n")]
    found, waiting = {}, []
    for line in body.splitlines():
        if case := re.search(r"case (LLM_ARCH_\w+):", line):
            waiting.append(case[1])
        words = [word.lower() for word in re.findall(r"LLAMA_ROPE_TYPE_(\w+)", line)]
        if "return" in line and words:
            for one in waiting:
                if one in names:
                    found[names[one]] = sorted(set(words))
            waiting = []
    return found


def permuting(folder):
    """Architectures of which a converter's class permutes W_q and W_k."""
    files = [os.path.join(folder, "convert_hf_to_gguf.py")]
    conversion = os.path.join(folder, "conversion")
    if os.path.isdir(conversion):
        files += [os.path.join(conversion, name) for name in sorted(os.listdir(conversion)) if name.endswith(".py")]
    classes, parents, archs = {}, {}, {}
    for file in files:
        if not os.path.exists(file):
            continue
        for name, bases, body in re.findall(r"^class (\w+)\(([^)]*)\):\n((?:(?:[ \t].*)?\n)*)", open(file).read(), re.M):
            classes[name], parents[name] = body, [one.strip().split(".")[-1] for one in bases.split(",")]
            if arch := re.search(r"model_arch\s*=\s*gguf\.MODEL_ARCH\.(\w+)", body):
                archs[name] = gguf.MODEL_ARCH_NAMES.get(getattr(gguf.MODEL_ARCH, arch[1], None))

    def permutes(name):
        if name not in classes:
            return False
        body = classes[name]
        if off := re.search(r"undo_permute\s*=\s*(True|False)", body):
            return off[1] == "True"
        if re.search(r"\.permute\(data_torch", body):
            return True
        if "def modify_tensors" in body and "super().modify_tensors" not in body:
            return False
        return any(permutes(parent) for parent in parents[name])

    return sorted({arch for name, arch in archs.items() if arch and permutes(name)})


def main():
    assert importlib.metadata.version("gguf") == GGUF
    folder = sys.argv[1]
    keys = [value.replace("{arch}.", "") for part in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope)
            for name, value in sorted(vars(part).items()) if name.isupper() and isinstance(value, str)]
    ropes = rope_types(folder)
    out = {"gguf": GGUF, "llama_cpp_python": "0.3.36", "keys": sorted(set(keys)),
           "architectures": sorted(gguf.MODEL_ARCH_NAMES.values()), "rope": dict(sorted(ropes.items())),
           "permuted": permuting(folder)}
    with open("tests/golden/gguf_tables.json", "w") as file:
        json.dump(out, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
