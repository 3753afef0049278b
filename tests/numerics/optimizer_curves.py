"""Compares loss curves of Llama 3's debug model under AdamW and Muon with those of torchtitan 0.2.2's Trainer and torch.optim.

Both start from the same Hugging Face weights and read the same text, in fp32 on one rank; both iterate Newton-Schulz in bf16,
where they round at different places. Five steps of Muon (golden_parity has AdamW's); TITAN_LONG=1: two hundred of both. --keep
FILE writes the curves for tests/bench/plot_curves.py.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from peer_runs import Peer, run_peer, run_titan
from rank_runs import LOSS, Report

LONG = bool(os.environ.get("TITAN_LONG"))
STEPS = 200 if LONG else 5
# Each optimizer with its learning rate, as in docs/benchmarks/low-precision.md.
OPTIMIZERS = {"AdamW": 4e-3, "Muon": 2e-2} if LONG else {"Muon": 2e-2}
MEAN_LIMIT = 0.01  # Relative to the last tenth's mean loss.
# The first step's losses have the same weights; later ones also differ by bf16's rounding of the updates.
FIRST_LIMIT, STEP_LIMIT = 1e-5, {"AdamW": 1e-5, "Muon": 2e-3}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--keep", type=Path, help="write the curves here")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    report, curves = Report(), {}
    with tempfile.TemporaryDirectory(prefix="titan-curves-") as temporary:
        folder = Path(temporary)
        for name, rate in OPTIMIZERS.items():
            flags = {"training.steps": STEPS, "lr_scheduler.warmup_steps": 5, "optimizer.lr": rate}
            run_peer(folder / f"peer-{name}", folder / "weights", options.seed, 1, flags, words=["--muon"] if name == "Muon" else [])
            theirs = [row["loss"] for _, row in sorted(Peer(folder / f"peer-{name}").steps.items())]
            run = run_titan(folder / name, folder / "weights", "1 rank",
                            {**flags, "optimizer.name": name, "checkpoint.enable_first_step_checkpoint": False}, timeout=60 + 6 * STEPS)
            ours = [row[LOSS] for _, row in sorted(run.metrics().items())]
            if len(ours) != STEPS or len(theirs) != STEPS:
                sys.exit(f"{name}: {len(ours)} steps, the other curve has {len(theirs)}")
            last = max(1, STEPS // 10)
            means = [sum(curve[-last:]) / last for curve in (ours, theirs)]
            print(f"{name}: loss {ours[0]:.4f} to {ours[-1]:.4f}, torch.optim's {theirs[-1]:.4f}; mean of the last {last}: "
                  f"{means[0]:.4f} and {means[1]:.4f}; farthest in one step "
                  f"{max(abs(a / b - 1) for a, b in zip(ours, theirs)):.5f}", flush=True)
            report.below(f"{name}: loss of the first step", abs(ours[0] / theirs[0] - 1), FIRST_LIMIT)
            report.below(f"{name}: loss of any of the first ten", max(abs(a / b - 1) for a, b in zip(ours[:10], theirs)), STEP_LIMIT[name])
            report.below(f"{name}: mean of the last {last} steps", abs(means[0] / means[1] - 1), MEAN_LIMIT)
            report.below(f"{name}: learns: last loss over first", ours[-1] / ours[0], 1)
            curves[name], curves[f"{name} of torch.optim"] = ours, theirs
    if options.keep:
        options.keep.write_text(json.dumps(curves))
    report.finish()


if __name__ == "__main__":
    main()
