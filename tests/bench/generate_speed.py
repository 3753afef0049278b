"""Compares tokens per second of titan-generate with transformers' generate(), from the same folder, one after the other.

    generate_speed.py [--dim 1024] [--layers 8] [--prompt 128] [--new 64] [--rounds 3] [--threads 2]

The model has Llama 3's form and random weights. Both programs continue the same prompts greedily by `--new` tokens.
titan-generate's own figure is used; it excludes loading, as the other figure does."""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402


def make(folder, flags):
    heads = flags.dim // 64
    config = transformers.LlamaConfig(vocab_size=32000, hidden_size=flags.dim, num_hidden_layers=flags.layers, num_attention_heads=heads,
                                      num_key_value_heads=max(1, heads // 2), intermediate_size=flags.dim * 7 // 2 // 64 * 64,
                                      max_position_embeddings=4096, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def theirs(folder, dtype, prompts, new):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    ids = torch.tensor(prompts)

    def once():
        began = time.monotonic()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new, pad_token_id=0)
        assert out.shape[1] == ids.shape[1] + new
        return ids.shape[0] * new / (time.monotonic() - began)

    once()
    return once


def ours(folder, dtype, prompts, new, threads):
    words = [str(word) for prompt in prompts for word in ("--prompt-tokens", " ".join(map(str, prompt)))]

    def once():
        done = subprocess.run([BIN / "titan-generate", "--checkpoint", folder, *words, "--max-new-tokens", str(new), "--ignore-eos", "--dtype", dtype,
                               "--batch", str(len(prompts)), "--threads", str(threads), "-o", "json"], capture_output=True, text=True, check=True)
        return float(re.search(r"([\d.]+) tokens/s", done.stderr)[1])

    return once


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("dim", 1024), ("layers", 8), ("prompt", 128), ("new", 64), ("rounds", 3), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    print(f"| dtype | rows | titan-generate | transformers {transformers.__version__} | ratio |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        make(folder, flags)
        for dtype in ("float32", "bfloat16"):
            for rows in (1, 8):
                prompts = [[(row * 7919 + i * 31) % 32000 for i in range(flags.prompt)] for row in range(rows)]
                one, other = ours(folder, dtype, prompts, flags.new, flags.threads), theirs(folder, dtype, prompts, flags.new)
                pairs = [(one(), other()) for _ in range(flags.rounds)]
                mine, hers = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
                print(f"| {dtype} | {rows} | {mine:.1f} tokens/s | {hers:.1f} tokens/s | {statistics.median(a / b for a, b in pairs):.2f} |", flush=True)


main()
