"""Measures how much of a machine's rate of products a whole training step reaches: the linear layers' operations per second of
Titan's step compared with those of LibTorch's products alone, at the same shapes, alternating.

  .deps/venv/bin/python tests/bench/linear_rate.py [--model llama3/bench] [--batch 4] [--seq-len 1024] [--rounds 5] [--steps 5]

Two ranks of one thread each train (FSDP, bf16), and two processes of one thread each multiply at the same time, so that all cores
are busy in both. It counts the operations of the three products of each linear layer, two for a multiply-add: all other work of a
step lowers the rate.
"""

import argparse
import multiprocessing
import statistics
import time

import torch
from alternating import run_alternating, middle, with_spread
from measures import WARM, Run, flags_of, run

BF16 = ["--training.mixed_precision_param", "bfloat16"]


def linears(dim, layers, heads, kv_heads, hidden, vocabulary):
    """Returns [(how many, out, in)] of the products of a Llama 3."""
    kv = dim // heads * kv_heads
    return [(2 * layers, dim, dim), (2 * layers, kv, dim), (2 * layers, hidden, dim), (layers, dim, hidden), (1, vocabulary, dim)]


MODELS = {"llama3/debugmodel": linears(256, 6, 16, 16, 768, 2048), "llama3/bench": linears(1024, 8, 16, 8, 2816, 2048)}


def seconds(product):
    """Returns the median of five runs."""
    product()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def multiply(layers, tokens, together, results):
    """Puts the seconds of all products of one step into results."""
    torch.set_num_threads(1)
    total = 0.0
    for count, rows, columns in layers:
        x, w, dy = (torch.randn(*shape).bfloat16() for shape in ((tokens, columns), (rows, columns), (tokens, rows)))
        together.wait()
        total += count * (seconds(lambda: x @ w.t()) + seconds(lambda: dy @ w) + seconds(lambda: dy.t() @ x))
    results.put(total)


def products_only(layers, tokens):
    """Returns the tokens per second and process of the products alone."""
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(2), context.Queue()
    both = [context.Process(target=multiply, args=(layers, tokens, together, results)) for _ in range(2)]
    for one in both:
        one.start()
    slowest = max(results.get() for _ in both)
    for one in both:
        one.join()
    return Run(tokens / slowest, 0.0, 0, 0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama3/bench")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    layers = MODELS[options.model]
    flags = flags_of(options.model, options.steps, options.seq_len, options.batch, BF16)
    found, failed = run_alternating({"a step of Titan": lambda: run("Titan", flags),
                              "LibTorch's products alone": lambda: products_only(layers, options.batch * options.seq_len)}, options.rounds)
    if failed:
        raise SystemExit("\n".join(failed.values()))
    gigaflops = 6e-9 * sum(count * rows * columns for count, rows, columns in layers)
    for name, runs in found.items():
        print(f"{name:<26} {with_spread(runs, 'speed', gigaflops)} GFLOP/s a core in linear layers")
    step, alone = (middle(runs, "speed") for runs in found.values())
    print(f"the step reaches {step / alone:.2f} of it")


if __name__ == "__main__":
    main()
