"""Prints Markdown tables of `titanctl bench`: what a step costs against the number of layers, of tokens in a row, of experts and
of ranks.

  .deps/venv/bin/python tests/bench/cost_table.py [--repeat 3] [--steps 6] [--only layers,rows,experts,ranks]

The runs alternate. They train debug models (sized_models.cc) in bf16 on two ranks of one thread each, except where the number of
ranks grows. A table shows milliseconds per step, median (lowest to highest), and what a doubling costs. When a row's tokens
double, the tokens per step stay the same until a rank has one row.
"""

import argparse
import json
import subprocess
import sys
from itertools import pairwise

from programs import BIN, SIZED_MODELS, SOURCE

COMMON = ["--experimental.custom_import", SIZED_MODELS, "--training.mixed_precision_param", "bfloat16", "--resources.threads_per_rank", 1]


def flavor(family, name):
    return f"--model.name sized_{family} --model.flavor {name}"


def batch(rows, tokens):
    return f"--training.local_batch_size {rows} --training.seq_len {tokens}"


# Keyed by what grows: (unit, words that all runs share, {count: words of this run}).
TABLES = {
    "layers": ("layers, Llama 3, 4 rows of 512 tokens", batch(4, 512),
               {count: flavor("llama3", f"layers_{count}") for count in (2, 4, 8, 16)}),
    "rows": ("tokens a row, Llama 3, 4 layers, 16,384 tokens a rank up to one row of 32,768", flavor("llama3", "layers_4"),
             {tokens: batch(max(1, 16384 // tokens), tokens) for tokens in (1024, 2048, 4096, 8192, 16384, 32768)}),
    "experts": ("experts, DeepSeek V3, 2 rows of 512 tokens", batch(2, 512),
                {count: flavor("deepseek_v3", f"experts_{count}") for count in (8, 16, 32, 64)}),
    "ranks": ("ranks, Llama 3, 4 layers, 4 rows of 512 tokens each", f"{flavor('llama3', 'layers_4')} {batch(4, 512)}",
              {count: f"--resources.ranks {count}" for count in (1, 2, 4, 8)}),
}


def measured(shared, sizes, options):
    """Returns {count: {least, median, greatest} seconds per step}. The first size is the configuration, the others are its variants."""
    first, *others = sizes
    words = [BIN / "titanctl", "bench", SOURCE / "configs/llama3_tiny.toml", "--repeat", options.repeat, "--steps", options.steps,
             "--warmup", 2, "-o", "json", "--resources.ranks", 2, *COMMON, *shared.split(), *sizes[first].split()]
    for count in others:
        words += ["--variant", f"{count}={sizes[count]}"]
    done = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr or done.stdout)
    return dict(zip(sizes, (one["figures"]["step_seconds"] for one in json.loads(done.stdout)["configurations"])))


def table(title, found):
    print(f"\n| {title} | ms a step | of a doubling |\n|---|---|---|")
    growth = [None, *(after["median"] / before["median"] for before, after in pairwise(found.values()))]
    for (count, step), factor in zip(found.items(), growth):
        median, least, greatest = (f"{1e3 * step[name]:,.0f}" for name in ("median", "least", "greatest"))
        print(f"| {count:,} | {median} ({least} to {greatest}) | {f'{factor:.2f} x' if factor else ''} |", flush=True)


def chosen(text):
    names = text.split(",")
    if wrong := [name for name in names if name not in TABLES]:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is none of {', '.join(TABLES)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", type=chosen, default=list(TABLES), help="tables, of " + ", ".join(TABLES))
    options = parser.parse_args()
    for name in options.only:
        title, shared, sizes = TABLES[name]
        table(title, measured(shared, sizes, options))


if __name__ == "__main__":
    main()
