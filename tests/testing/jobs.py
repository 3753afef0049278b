"""The tiny job of all process tests, and readers of its output."""

import json
from pathlib import Path

from cluster import SOURCE, wait_until

TINY = SOURCE / "configs/llama3_tiny.toml"
LOSS = "loss_metrics/global_avg_loss"


def tiny(dump, steps=30, interval=5, ranks=2, ranks_per_node=0, extra=()):
    """Returns arguments of `titanctl submit` (or run) for the tiny job: a checkpoint every `interval` steps, each step
    logged.

    One thread per rank, whatever the placement, because results depend on the number of threads bit for bit. float32
    and short rows, because a bfloat16 step takes seconds on a processor without such products (AVX2), and these tests
    do not test the model.
    """
    return [TINY, "--job.dump_folder", dump, "--training.steps", steps, "--lr_scheduler.total_steps", steps, "--metrics.log_freq", 1,
            "--metrics.no_enable_tensorboard", "--validation.no_enable", "--checkpoint.enable", "--checkpoint.interval", interval,
            "--checkpoint.keep_latest_k", 0, "--resources.ranks", ranks, "--resources.ranks_per_node", ranks_per_node,
            "--resources.threads_per_rank", 1, "--training.mixed_precision_param", "float32", "--training.seq_len", 128, *extra]


def metric_lines(dump):
    """Returns all complete lines of metrics.jsonl in file order."""
    try:
        text = (Path(dump) / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def losses(dump):
    """Returns the loss by step; the last line of a replayed step counts. (Validation writes separate lines.)"""
    return {line["step"]: line[LOSS] for line in metric_lines(dump) if LOSS in line}


def last_step(dump):
    return max(losses(dump), default=0)


def wait_step(dump, step, timeout=60):
    """Waits until `step` was logged, directly from the file, without any daemon."""
    wait_until(f"step {step} in {dump}", lambda: last_step(dump) >= step, timeout)


def committed_steps(dump, folder="checkpoint"):
    """Returns the steps with a published manifest."""
    return sorted(int(p.parent.name[len("step-"):]) for p in (Path(dump) / folder).glob("step-*/manifest.json"))


def wait_committed(dump, step, timeout=60):
    wait_until(f"commit of step {step}", lambda: any(s >= step for s in committed_steps(dump)), timeout)
