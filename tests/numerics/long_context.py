"""Tests context parallelism through titan-rank: a job gives the same curve on one rank and on a ring of processes.

By default it runs a short row in float64, with and without documents, with both rotate methods and with validation (1e-10). The
long form is `long_context.py --tokens 16384 --ranks 4 --dtype float32`; `--attention 65536` adds attention alone on a row of that
length, 4 ranks against one (tests/worker/rank/parallel/context_test.cc).
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from rank_runs import ASSETS, BIN, LOSS, NORM, RankRun, Report

LIMIT = {"float64": 1e-10, "float32": 1e-5}
VALIDATION = "validation_metrics/loss"


def train(folder, options, ranks, extra):
    flags = {"training.seq_len": options.tokens, "training.steps": options.steps, "training.dtype": options.dtype,
             "training.mixed_precision_param": "float32", "training.local_batch_size": options.rows,
             "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "full", "debug.seed": 7,
             "validation.enable": True, "validation.seq_len": options.tokens, "validation.local_batch_size": 1,
             "validation.freq": options.steps, "validation.steps": 1, "validation.dataset": "c4_test",
             "validation.dataset_path": ASSETS / "c4_test",
             "parallelism.data_parallel_shard_degree": 1, "parallelism.context_parallel_degree": ranks, **extra}
    began = time.monotonic()
    metrics = RankRun(folder, flags, ranks).wait(timeout=3600).metrics()
    return metrics, time.monotonic() - began


def compare(report, name, got, want, limit):
    for step, row in want.items():
        for key in (LOSS, NORM, VALIDATION):
            if key in row:
                report.below(f"{name}: {key} of step {step}", abs(got[step][key] - row[key]) / abs(row[key]), limit)


def long_rows(options, report):
    cases = {"gathered": {"parallelism.context_parallel_rotate_method": "allgather"},
             "ring": {"parallelism.context_parallel_rotate_method": "alltoall"},
             "ring by work": {"parallelism.context_parallel_rotate_method": "alltoall",
                              "parallelism.context_parallel_load_balancer": "ptrr"},
             "ring, not balanced": {"parallelism.context_parallel_rotate_method": "alltoall",
                                    "parallelism.context_parallel_load_balancer": "None"}}
    masks = {"causal": {}, "documents": {"model.attn_mask_type": "block_causal"}}
    curves = []
    with tempfile.TemporaryDirectory(prefix="titan-context-") as folder:
        for mask, chosen in masks.items():
            want, seconds = train(Path(folder) / mask / "one", options, 1, chosen)
            curves.append(want[options.steps][LOSS])
            print(f"{mask}: one rank {seconds:.1f} s")
            for name, extra in cases.items():
                if name != "ring" and (mask == "documents") != (name == "ring by work"):
                    continue
                got, seconds = train(Path(folder) / mask / name, options, options.ranks, {**chosen, **extra})
                print(f"{mask}: {name} on {options.ranks} ranks {seconds:.1f} s")
                compare(report, f"{mask}, {name}", got, want, LIMIT[options.dtype])
    report.below("the mask changes nothing", float(curves[0] == curves[1]), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", choices=sorted(LIMIT), default="float64")
    parser.add_argument("--attention", type=int, default=0, metavar="TOKENS")
    options = parser.parse_args()
    if options.attention:
        subprocess.run([BIN.parent / "tests" / "parallel_test", "--gtest_filter=ContextTest.LongRow"], check=True,
                       env={**os.environ, "TITAN_LONG_ROW": str(options.attention)})
    report = Report()
    long_rows(options, report)
    report.finish()


if __name__ == "__main__":
    main()
