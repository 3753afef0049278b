"""Checks that resident memory does not grow with the steps: RSS of every rank after step --to is at most 2 % above that after
step --from.

Each figure is the least within as many steps as contain one save, because a save temporarily holds what it writes. A rank
never frees the most blocks that were in use at once. When its threads run in another order, that may be one more (4 MiB in this
job, once or twice in a thousand steps), but such growth stops. So growth above 2 % fails only if the same number of steps adds as
much again.

  steady_memory.py [--from 100] [--to 500] [--nproc 2] [--dtype float32]
"""

import argparse
import re
import tempfile
import time
from pathlib import Path

from rank_runs import RankRun, Report

SAVE_EVERY = 20  # Steps.
LIMIT = 2  # Percent.


def rss_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))


def least_rss(run, step, deadline):
    """Returns the least KiB of each rank after `step`, over the steps up to the next save."""
    least = [float("inf")] * len(run.ranks)
    while True:
        try:
            reached = max(run.metrics(), default=0)
        except FileNotFoundError:
            reached = 0
        if reached >= step:
            least = [min(seen, rss_kib(rank.pid)) for seen, rank in zip(least, run.ranks)]
        if reached >= step + SAVE_EVERY:
            return least
        if any(rank.poll() is not None for rank in run.ranks) or time.monotonic() > deadline:
            raise SystemExit(f"the job did not reach step {step}")
        time.sleep(0.02)


def growth(before, after):
    """Returns the growth in percent."""
    return 100 * (after / before - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=int, default=100, dest="first")
    parser.add_argument("--to", type=int, default=500, dest="last")
    parser.add_argument("--nproc", type=int, default=2)
    # bfloat16 takes ten times as long on a processor without bfloat16 instructions.
    parser.add_argument("--dtype", default="float32", help="mixed_precision_param")
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-memory-") as folder:
        # The tiny job, with more steps than are measured, so that no rank ends during the test.
        run = RankRun(Path(folder) / "job", {
            "training.local_batch_size": 1, "training.seq_len": 256, "training.steps": options.last + 100000,
            "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "none", "checkpoint.enable": True,
            "checkpoint.interval": SAVE_EVERY, "checkpoint.keep_latest_k": 2,
            "training.mixed_precision_param": options.dtype,
            "parallelism.data_parallel_shard_degree": options.nproc}, options.nproc)
        try:
            deadline = time.monotonic() + 600
            length = options.last - options.first
            seen = [least_rss(run, step, deadline) for step in (options.first, options.last)]
            if any(growth(*rss) > LIMIT for rss in zip(*seen)):
                seen.append(least_rss(run, options.last + length, deadline))
        finally:
            run.kill()
    for rank, rss in enumerate(zip(*seen)):
        print(f"rank {rank}: {', '.join(f'{kib / 1024:.1f}' for kib in rss)} MiB, each from {length} steps later on, the first from step {options.first}")
        report.below(f"rank {rank}: growth in percent", min(map(growth, rss, rss[1:])), LIMIT)
    report.finish()


if __name__ == "__main__":
    main()
