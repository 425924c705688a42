# SPDX-License-Identifier: MIT
"""A Llama of two small layers with random weights, and what Hugging Face transformers, the gguf package and Hugging
Face's tokenizers make of it (versions in requirements.txt), so that the whole example is tested without a download:

    python make_tiny.py tests/golden/tiny_llama
"""
import json
import pathlib
import sys

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import reference

WIDTH, HEADS, KV_HEADS, HIDDEN, LAYERS, CONTEXT = 64, 4, 2, 96, 2, 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "dog bites man",
    "  two spaces,   three,\n\n\ttabs and lines \n",
    "In 2017 and 1e-5; x[2*i+1] = a*sin(t)",
    "they've he'll I'm don't 'quoted' cat's",
    "Na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u00fcber \u65e5\u672c\u8a9e \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f600\U0001f600",
    "clocks123clocks 45 6 . . ...",
    " ", "a", "\n",
]
SCALINGS = {  # our syntax: Hugging Face's
    "none": None,
    "linear:factor=4": {"rope_type": "linear", "factor": 4.0},
    "yarn:factor=4,original=64": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def vocabulary():
    """Byte-level BPE of the prompt, cut as SmolLM2 cuts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.train_from_iterator([reference.PROMPT], trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    model = json.loads(bpe.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])], merges


def write_model(path):
    random = np.random.default_rng(1)
    file = GGUFWriter(path, "llama")
    file.add_name("tiny llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(HIDDEN)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_rope_freq_base(1000.0)
    file.add_layer_norm_rms_eps(1e-5)
    tokens, merges = vocabulary()
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("smollm")
    file.add_token_list(tokens)
    file.add_token_merges(merges)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)

    def add(name, rows, deviation, kind):
        values = random.normal(0, deviation, (rows, WIDTH if "down" not in name else HIDDEN)).astype(np.float32)
        file.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    def add_norm(name):
        file.add_tensor(name, random.uniform(0.8, 1.2, WIDTH).astype(np.float32))

    q8, q4, f16 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.F16
    add("token_embd.weight", len(tokens), 0.3, q8)
    add_norm("output_norm.weight")
    for layer in range(LAYERS):
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        kv_width = WIDTH // HEADS * KV_HEADS
        for name, rows, deviation, kind in [
                ("attn_q", WIDTH, 0.25, q4), ("attn_k", kv_width, 0.25, q8), ("attn_v", kv_width, 0.15, q4),
                ("attn_output", WIDTH, 0.15, f16), ("ffn_gate", HIDDEN, 0.15, q4), ("ffn_up", HIDDEN, 0.15, q4),
                ("ffn_down", WIDTH, 0.1, q4)]:
            add(f"blk.{layer}.{name}.weight", rows, deviation, kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@torch.no_grad()
def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_llama.gguf"
    write_model(path)
    words = reference.tokenizer(path)
    ids = words.encode(reference.PROMPT).ids[:160]
    tensors = {}
    facts = {"about": "python examples/llama/independent/make_tiny.py tests/golden/tiny_llama",
             "versions": "transformers 4.46.3, tokenizers 0.20.3, gguf 0.17.1, float32",
             "texts": [{"text": text, "tokens": words.encode(text).ids} for text in TEXTS], "tokens": ids}
    for name, scaling in SCALINGS.items():
        model = reference.load(path, scaling)
        logits = reference.logits_of(model, ids)
        tensors[name] = np.ascontiguousarray(logits[7::16])
        log_p = torch.log_softmax(torch.tensor(logits).double(), dim=1)
        facts.setdefault("nats", {})[name] = float(-log_p[range(len(ids) - 1), ids[1:]].mean())
        if scaling is None:
            sequence = model.generate(torch.tensor([ids[:40]]), max_new_tokens=60, do_sample=False, eos_token_id=None)
            facts["generated"] = sequence[0, 40:].tolist()
            best = torch.tensor(reference.logits_of(model, sequence[0].tolist())[39:-1]).topk(2).values
            print("smallest gap between the best two:", float((best[:, 0] - best[:, 1]).min()))
            print("tokens generated:", len(set(facts["generated"])), "different ones", facts["generated"])
    save_file(tensors, folder / "tiny_llama_logits.safetensors")
    (folder / "tiny_llama.json").write_text(json.dumps(facts, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(pathlib.Path(sys.argv[1]))
