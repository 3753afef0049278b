"""Measures how far torchtitan's losses drift from torchtitan's own when only the order of its sums changes.

  peer_drift.py [MODEL ...]     minutes each; prints figures for docs/interop-torchtitan.md, without limits

For each model torchtitan trains 30 steps on one rank and saves the tenth. From there it resumes once in the same way, and once
over two tensor ranks, which see the same rows. If the first drifts, saving is at fault; the second shows the effect of rounding
in fp32.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from dcp_interop import SHORT, TENSOR, Case, run_peer

STEPS, SAVED = 30, 10
MODELS = {"llama3": "debugmodel", "deepseek_v3": "debugmodel"}  # Other models have no tensor ranks on a CPU.


def again(folder, case, mesh, truth):
    checkpoints = folder / "dump/checkpoint"
    checkpoints.mkdir(parents=True)
    shutil.copytree(folder.parent / f"truth/dump/checkpoint/step-{SAVED}", checkpoints / f"step-{SAVED}")
    losses = run_peer(folder, case, mesh, STEPS, STEPS)
    return {step: abs(loss / truth[step] - 1) for step, loss in sorted(losses.items())}


def main():
    for model in sys.argv[1:] or MODELS:
        case = Case(model, MODELS[model], extra=SHORT)
        with tempfile.TemporaryDirectory(prefix="peer_drift.") as root:
            truth = run_peer(Path(root) / "truth", case, {}, STEPS, SAVED)
            for what, mesh in (("one rank again", {}), ("two tensor ranks", {TENSOR: 2})):
                off = again(Path(root) / what.replace(" ", "_"), case, mesh, truth)
                print(f"{model}, {what}: loss differs by {off[SAVED + 1]:.1e} at step {SAVED + 1}, {off[SAVED + 2]:.1e} at the next, "
                      f"{max(off.values()):.1e} at most by step {STEPS}", flush=True)


if __name__ == "__main__":
    main()
