"""Compares Titan with torchtitan: tokens per second and rank while training, and the peak memory of all processes (PSS), with
FSDP over two ranks of one thread each, alternating.

  .deps/venv/bin/python tests/bench/training_speed.py [--model llama3/debugmodel] [--rounds 5] [--steps 6] [--seq-len 256]
      [--batch 1] [--kernels auto,reference] [--no-peer] [-- --training.mixed_precision_param bfloat16 ...]

--model takes a family and one of its flavors that torchtitan has too: qwen3/debugmodel_moe, deepseek_v3/debugmodel,
llama4/debugmodel.

Both programs print their own tokens/s in each step's line; the median of each run counts, without the first two steps. Words
after -- go to both programs, --titan's to Titan alone. The last line of each program is the median of its runs with the lowest
and the highest, and Titan's ratio to torchtitan.
"""

import argparse
import shlex
import sys

from alternating import run_alternating, middle, ratio, with_spread
from measures import WARM, flags_of, run


def main():
    words = sys.argv[1:]
    common = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3/debugmodel")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--kernels", default="auto,reference")
    parser.add_argument("--titan", default="", help="flags for Titan only, in one argument")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    flags = flags_of(options.model, options.steps, options.seq_len, options.batch, common)
    programs = {}
    for kernels in options.kernels.split(","):
        words = [*flags, *shlex.split(options.titan), "--resources.kernels", kernels]
        programs[f"titan, kernels {kernels}"] = lambda words=words: run("Titan", words)
    if not options.no_peer:
        programs["torchtitan"] = lambda: run("torchtitan", flags)
    found, failed = run_alternating(programs, options.rounds)
    if failed:
        sys.exit("\n".join(failed.values()))
    for name, runs in found.items():
        relative = ratio(runs, found.get("torchtitan", []), "speed")
        print(f"{name:<26}{with_spread(runs, 'speed'):>8} tokens/s a rank, loss {runs[-1].loss:.4f}, {middle(runs, 'peak') / 2**20:,.0f} MiB"
              f"{f'  {relative:.1f} x torchtitan' if relative else ''}")


if __name__ == "__main__":
    main()
