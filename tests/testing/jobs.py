"""The tiny job of all process tests, and what it leaves behind."""

import json
from pathlib import Path

from cluster import SOURCE, wait_until

TINY = SOURCE / "configs/llama3_tiny.toml"
LOSS = "loss_metrics/global_avg_loss"


def tiny(dump, steps=30, interval=5, ranks=2, ranks_per_node=0, extra=()):
    """Arguments of `titanctl submit` (or run) for the tiny job: a checkpoint every `interval` steps, each step logged.

    One thread a rank, whatever the placement: results depend on the number of threads bit for bit. float32 and short rows: a step
    in bfloat16 takes seconds on a processor without such products (AVX2), and what is tested here is not the model.
    """
    return [TINY, "--job.dump_folder", dump, "--training.steps", steps, "--lr_scheduler.total_steps", steps, "--metrics.log_freq", 1,
            "--metrics.no_enable_tensorboard", "--validation.no_enable", "--checkpoint.enable", "--checkpoint.interval", interval,
            "--checkpoint.keep_latest_k", 0, "--resources.ranks", ranks, "--resources.ranks_per_node", ranks_per_node,
            "--resources.threads_per_rank", 1, "--training.mixed_precision_param", "float32", "--training.seq_len", 128, *extra]


def metric_lines(dump):
    """All whole lines of metrics.jsonl in file order."""
    try:
        text = (Path(dump) / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


def losses(dump):
    """Loss by step; of a replayed step the last line counts. (Validation writes lines of its own.)"""
    return {line["step"]: line[LOSS] for line in metric_lines(dump) if LOSS in line}


def last_step(dump):
    return max(losses(dump), default=0)


def wait_step(dump, step, timeout=60):
    """Waits until `step` was logged, straight from the file (no daemon is asked)."""
    wait_until(f"step {step} in {dump}", lambda: last_step(dump) >= step, timeout)


def committed_steps(dump, folder="checkpoint"):
    """Steps with a published manifest."""
    return sorted(int(p.parent.name[len("step-"):]) for p in (Path(dump) / folder).glob("step-*/manifest.json"))


def wait_committed(dump, step, timeout=60):
    wait_until(f"commit of step {step}", lambda: any(s >= step for s in committed_steps(dump)), timeout)
