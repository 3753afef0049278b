"""A table, in Markdown, of Titan beside torchtitan: tokens a second and rank while training and the most memory of all processes, over
families, meshes of two ranks and types, in turns (training_speed.py has the details).

  .deps/venv/bin/python tests/bench/speed_table.py [--rounds 3] [--steps 5] [--only TEXT]

A program that does not run a case has no figures; why is told below the table.
"""

import argparse
import datetime
import statistics
from importlib.metadata import version

from training_speed import WARM, Ended, flags_of, run_titan, run_torchtitan

BF16, FP32 = (["--training.mixed_precision_param", name] for name in ("bfloat16", "float32"))
DEGREE = "--parallelism.{}_parallel_degree"
SHARD_1 = ["--parallelism.data_parallel_shard_degree", "1"]
STAGES = [*SHARD_1, DEGREE.format("pipeline"), "2", "--parallelism.pipeline_parallel_schedule"]
# name: model, rows of a batch, words for both programs. Without FSDP torchtitan knows no mixed precision: fp32 for both.
CASES = {
    "Llama 3, FSDP 2, bf16": ("llama3/debugmodel", 1, BF16),
    "Llama 3, FSDP 2, fp32": ("llama3/debugmodel", 1, FP32),
    "Llama 3, TP 2, fp32": ("llama3/debugmodel", 1, [*FP32, *SHARD_1, DEGREE.format("tensor"), "2"]),
    "Llama 3, CP 2, bf16": ("llama3/debugmodel", 1, [*BF16, *SHARD_1, DEGREE.format("context"), "2"]),
    "Llama 3, PP 2 (1F1B), fp32": ("llama3/debugmodel", 4, [*FP32, *STAGES, "1F1B"]),
    "Qwen3, FSDP 2, bf16": ("qwen3/debugmodel", 1, BF16),
    "Qwen3 with experts, FSDP 2, bf16": ("qwen3/debugmodel_moe", 1, BF16),
    "DeepSeek V3, FSDP 2, bf16": ("deepseek_v3/debugmodel", 1, BF16),
    "DeepSeek V3, EP 2, bf16": ("deepseek_v3/debugmodel", 1, [*BF16, DEGREE.format("expert"), "2"]),
    "Llama 4, FSDP 2, bf16": ("llama4/debugmodel", 1, BF16),
}
SEQ_LEN = 256


def attempts(programs, rounds):
    """{program: its runs}, in turns; a program that ended without figures has none, but what it said in the second result."""
    found, failed = {name: [] for name in programs}, {}
    for _ in range(rounds):
        for name, start in programs.items():
            if name in failed:
                continue
            try:
                found[name].append(start())
            except Ended as why:
                failed[name] = str(why)
    return found, failed


def figures(runs):
    """Speed with its spread, memory."""
    if not runs:
        return "-", "-"
    speeds = sorted(run.speed for run in runs)
    return (f"{statistics.median(speeds):,.0f} ({speeds[0]:,.0f} to {speeds[-1]:,.0f})",
            f"{statistics.median(run.peak for run in runs) / 2**20:,.0f}")


def ratio(ours, theirs, member):
    if not ours or not theirs:
        return "-"
    middle = [statistics.median(getattr(run, member) for run in runs) for runs in (ours, theirs)]
    return f"{middle[0] / middle[1]:.2g}"


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown processor")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    print(f"{datetime.date.today():%d %B %Y}, {processor()}, torch {version('torch')}, torchtitan {version('torchtitan')}, rows of {SEQ_LEN} "
          f"tokens, one thread a rank, {options.rounds} rounds of {options.steps} steps.\n")
    print("| case | Titan, tokens/s a rank | torchtitan | ratio | Titan, MiB | torchtitan | ratio |\n|---|---|---|---|---|---|---|", flush=True)
    notes = []
    for name, (model, batch, words) in CASES.items():
        if options.only not in name:
            continue
        flags = flags_of(model, options.steps, SEQ_LEN, batch, words)
        found, failed = attempts({"Titan": lambda flags=flags: run_titan(flags, "auto"),
                                  "torchtitan": lambda flags=flags: run_torchtitan(flags)}, options.rounds)
        ours, theirs = found["Titan"], found["torchtitan"]
        (speed, memory), (peer_speed, peer_memory) = figures(ours), figures(theirs)
        print(f"| {name} | {speed} | {peer_speed} | {ratio(ours, theirs, 'speed')} | {memory} | {peer_memory} | "
              f"{ratio(ours, theirs, 'peak')} |", flush=True)
        notes += [f"{name}, {program}: {why.strip().splitlines()[-1][:200]}" for program, why in failed.items()]
    print("".join(f"\n{note}" for note in notes))


if __name__ == "__main__":
    main()
