"""A checkpoint saved on one mesh goes on under another: random pairs of meshes (other axes, other world size, other
schedules), whose joined loss curve equals the uninterrupted one of one rank within the fp32 tolerance.

Every run is one process whose ranks are threads (comm.mode = "local_tensor"), so that 8 ranks fit anywhere. --seed repeats.
"""

import argparse
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from meshes import DENSE, EXPERTS, Mesh, random_mesh
from rank_runs import BIN, LOSS, NORM, RankRun, Report

SAVED_AT, STEPS, ROWS = 3, 6, 8
LIMIT, EXPERTS_LIMIT = 1e-4, 1e-3
COMMON = {"training.seq_len": 64, "training.mixed_precision_param": "float32", "lr_scheduler.warmup_steps": 2,
          "lr_scheduler.total_steps": 100, "activation_checkpoint.mode": "none", "debug.seed": 11,
          "checkpoint.enable": True, "checkpoint.interval": SAVED_AT, "checkpoint.last_save_model_only": False}


class LocalRun(RankRun):
    """All ranks as threads of one titan-rank."""

    def start(self, world):
        command = [BIN / "titan-rank", "--config", self.config, "--run-dir", self.folder / "run"]
        with open(self.folder / "rank-0.out", "wb") as out:
            self.ranks = [subprocess.Popen([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT)]


def train(folder, model, mesh, steps):
    flags = {"model.name": model[0], "model.flavor": model[1], **COMMON, **mesh.job_flags(ROWS), "training.steps": steps,
             "comm.mode": "local_tensor"}
    return LocalRun(folder, flags, mesh.world()).wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    dice = random.Random(options.seed)
    report, references = Report(), {}
    with tempfile.TemporaryDirectory(prefix="titan-reshard-") as temporary:
        folder = Path(temporary)
        for pair in range(options.pairs):
            experts = pair % 2 == 1
            model = dice.choice(EXPERTS if experts else DENSE)
            if model not in references:
                run = train(folder / ("one-" + "-".join(model)), model, Mesh(), STEPS)
                references[model] = run.metrics()
            before, after = random_mesh(dice, experts), random_mesh(dice, experts)
            while str(after) == str(before):
                after = random_mesh(dice, experts)
            first = train(folder / f"{pair}-a", model, before, SAVED_AT)
            metrics = first.metrics()
            shutil.copytree(first.dump / "checkpoint", folder / f"{pair}-b" / "dump" / "checkpoint")
            second = train(folder / f"{pair}-b", model, after, STEPS)
            metrics.update(second.metrics())
            name = f"{model[0]} {model[1]}: {before} -> {after}"
            if sorted(second.metrics()) != list(range(SAVED_AT + 1, STEPS + 1)):
                raise SystemExit(f"{name}: the second run made steps {sorted(second.metrics())}")
            want = references[model]
            limit = EXPERTS_LIMIT if experts else LIMIT
            for key in (LOSS, NORM):
                report.below(f"{name}: {key}",
                             max(abs(metrics[s][key] / want[s][key] - 1) for s in range(1, STEPS + 1)), limit)
    report.finish()


if __name__ == "__main__":
    main()
