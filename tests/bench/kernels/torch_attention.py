"""Times LibTorch's own attention at shapes of attention_bench.cc: the lowest of N passes forward and backward, in ms of CPU time.

    .deps/venv/bin/python tests/bench/kernels/torch_attention.py [--repeat 4] [CASE...]
"""

import argparse
import time

import torch

CASES = {"debug": (8, 16, 16, 2048, 16), "d64": (4, 16, 8, 1024, 64), "d128": (4, 16, 8, 1024, 128)}


def heads(batch, count, tokens, size):
    return torch.randn(batch, tokens, count, size).bfloat16().transpose(1, 2).requires_grad_()


def timed(work):
    begin = time.process_time()
    result = work()
    return result, (time.process_time() - begin) * 1e3


def measure(name, repeat, batch):
    usual_batch, count, kv_count, tokens, size = CASES[name]
    batch = batch or usual_batch
    q, k, v = heads(batch, count, tokens, size), heads(batch, kv_count, tokens, size), heads(batch, kv_count, tokens, size)
    attend = torch.nn.functional.scaled_dot_product_attention
    forward, backward = [], []
    for _ in range(repeat):
        out, spent = timed(lambda: attend(q, k, v, is_causal=True, enable_gqa=count != kv_count))
        forward.append(spent)
        backward.append(timed(lambda: torch.autograd.grad(out, (q, k, v), torch.ones_like(out)))[1])
    print(f"{name}, batch {batch}: forward {min(forward):.1f} ms, backward {min(backward):.1f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--batch", type=int, help="batch size; times grow in proportion")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.cases or CASES:
        measure(name, options.repeat, options.batch)


if __name__ == "__main__":
    main()
