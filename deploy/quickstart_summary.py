"""Prints the results of a finished quickstart: python3 quickstart_summary.py DUMP_FOLDER"""

import json
import os
import sys
from pathlib import Path

LOSS = "loss_metrics/global_avg_loss"
VALIDATION_LOSS = "validation_metrics/loss"
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40


def series(lines, name):
    """Returns the last value of each step that has one."""
    return {line["step"]: line[name] for line in lines if name in line}


def bars(values):
    picked = [values[i * (len(values) - 1) // max(1, min(WIDTH, len(values)) - 1)] for i in range(min(WIDTH, len(values)))]
    low, high = min(picked), max(picked)
    return "".join(BARS[round((value - low) / (high - low or 1) * (len(BARS) - 1))] for value in picked)


def newest_checkpoint(dump):
    steps = sorted(dump.glob("checkpoint/step-*/manifest.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    return steps[-1].parent if steps else None


def say(what, text, then=""):
    print(f"{what:<12}{text}" + (f"\n{'':<12}{then}" if then else ""))


def main():
    dump = Path(sys.argv[1])
    shown = Path(os.path.relpath(dump))
    lines = [json.loads(line) for line in (dump / "metrics.jsonl").read_text().splitlines()]
    loss, validation = series(lines, LOSS), series(lines, VALIDATION_LOSS)
    steps = sorted(loss)
    say("loss", f"{loss[steps[0]]:.3f} at step {steps[0]}  {bars([loss[s] for s in steps])}  {loss[steps[-1]]:.3f} at step {steps[-1]}",
        f"every step: {shown}/metrics.jsonl")
    if validation:
        first, last = min(validation), max(validation)
        say("text sample", f"loss {validation[last]:.3f} on text outside the training set (step {first}: {validation[first]:.3f})")
    checkpoint = newest_checkpoint(dump)
    if checkpoint:
        say("checkpoint", str(shown / checkpoint.relative_to(dump)),
            f"continue from it: build/release/bin/titanctl run configs/llama3_tiny.toml --nproc 2 --checkpoint.enable "
            f"--training.steps {steps[-1] * 2} --job.dump_folder {shown}")
    if (dump / "tb").is_dir():
        say("TensorBoard", f"{shown}/tb", f"view it: .deps/venv/bin/tensorboard --logdir {shown}/tb   (after deploy/bootstrap.sh --with-oracles)")
    say("next", "build/release/bin/titanctl --help; docs/operate/start-a-cluster.md for a cluster of several machines")


if __name__ == "__main__":
    main()
