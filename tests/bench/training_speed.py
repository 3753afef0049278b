"""Tokens a second and rank while training, and the most memory of all processes (PSS): Titan beside torchtitan, FSDP over two ranks of one
thread each, in turns.

  .deps/venv/bin/python tests/bench/training_speed.py [--model llama3/debugmodel] [--rounds 5] [--steps 6] [--seq-len 256]
      [--batch 1] [--kernels auto,reference] [--no-peer] [-- --training.mixed_precision_param bfloat16 ...]

--model takes a family and one of its flavors that torchtitan has too: qwen3/debugmodel_moe, deepseek_v3/debugmodel, llama4/debugmodel.

Both print a line a step with their own tokens/s; of each run the median counts, without the first two steps. Words after -- go to
both programs, --titan's to Titan alone. The last line of each program is the median of its runs, with the least and the greatest, and Titan's
ratio to torchtitan.
"""

import argparse
import dataclasses
import re
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

from programs import measured, titan_command, titan_environment, torchtitan_command, torchtitan_environment

LINE = re.compile(r"step:\s*(\d+)\s+loss:\s*([\d.]+).*tps:\s*([\d,]+)")
WARM = 2  # Steps that do not count.


class Ended(Exception):
    """A program ended without figures; its last output is the text."""


@dataclasses.dataclass
class Run:
    speed: float  # Tokens a second and rank, the median of steps.
    loss: float  # Of the last step.
    peak: int  # Bytes of all processes.


def run(command, environment, folder):
    code, output, peak = measured(command, environment, folder)
    # Of torchtitan's ranks each prints; a step's lines agree but for the time.
    steps = [(int(step), float(loss), int(tps.replace(",", ""))) for step, loss, tps in LINE.findall(re.sub(r"\x1b\[[\d;]*m", "", output))]
    speeds = [tps for step, _, tps in steps if step > WARM]
    if code != 0 or not speeds:
        raise Ended(f"{command[0]} ended with {code}:\n{output[-3000:]}")
    return Run(statistics.median(speeds), steps[-1][1], peak)


def run_titan(flags, kernels):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        return run(titan_command(folder, [*flags, "--resources.kernels", kernels]), titan_environment(folder), folder)


def run_torchtitan(flags):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        return run(torchtitan_command(folder, flags), torchtitan_environment(), folder)


def flags_of(model, steps, seq_len, batch, words=()):
    """For both programs."""
    family, _, flavor = model.partition("/")
    return ["--model.name", family, "--model.flavor", flavor, "--training.steps", steps, "--training.seq_len", seq_len,
            "--training.local_batch_size", batch, "--metrics.log_freq", 1, "--lr_scheduler.warmup_steps", 1, *words]


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
    parser.add_argument("--titan", default="", help="words for Titan alone, in one argument")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    flags = flags_of(options.model, options.steps, options.seq_len, options.batch, common)
    found = {}
    try:
        for _ in range(options.rounds):  # In turns, so that what else the machine does hits all.
            for kernels in options.kernels.split(","):
                found.setdefault(f"titan, kernels {kernels}", []).append(run_titan([*flags, *shlex.split(options.titan)], kernels))
            if not options.no_peer:
                found.setdefault("torchtitan", []).append(run_torchtitan(flags))
    except Ended as why:
        sys.exit(str(why))
    peer = statistics.median(run.speed for run in found["torchtitan"]) if "torchtitan" in found else None
    for name, runs in found.items():
        speeds = sorted(run.speed for run in runs)
        memory = statistics.median(run.peak for run in runs) / 2**20
        middle = statistics.median(speeds)
        ratio = f"  {middle / peer:.1f} x torchtitan" if peer else ""
        print(f"{name:<26}{middle:>8,.0f} tokens/s a rank ({speeds[0]:,.0f} to {speeds[-1]:,.0f}), loss {runs[-1].loss:.4f}, {memory:,.0f} MiB{ratio}")


if __name__ == "__main__":
    main()
