"""Tests that checkpoints load on other meshes, in chains of runs over random meshes (other axes, other world size, other
schedules and batch pieces), each resumed from the one before. The joined curve of loss and gradient norm equals the uninterrupted
one of one rank: within the fp32 tolerance, or 1e-10 in the chains that train in float64.

Each chain trains another family of models. The first chains start from a seed checkpoint that one rank made from another seed
than the chain's own, on meshes of four axes. Every second run is real processes, the others are one process with ranks as threads
(comm.mode = "local_tensor"). --seed repeats all of it.
"""

import argparse
import os
import random
import tempfile
from pathlib import Path

from random_meshes import DENSE_4D, EXPERTS_4D, ROWS, random_mesh
from rank_runs import LocalRun, RankRun, Report, small_model

DENSE = ["llama3", "qwen3"]
EXPERTS = ["qwen3_moe", "deepseek_v3", "llama4", "llama4_irope", "gpt_oss"]
STEPS, PAIRS = 2, 3  # Steps per run; pairs of runs per chain.
LIMIT, EXPERTS_LIMIT, FLOAT64_LIMIT = 1e-4, 1e-3, 1e-10
SEEDED_CHAINS = 3
COMMON = {"training.seq_len": 64, "training.mixed_precision_param": "float32",
          "lr_scheduler.warmup_steps": 2, "lr_scheduler.total_steps": 100, "activation_checkpoint.mode": "none",
          "metrics.enable_tensorboard": False, "checkpoint.enable": True, "checkpoint.last_save_model_only": False,
          "optimizer.lr": 3e-3}  # Large enough that weights and optimizer state are visible in the curve.


class Chain:
    """Runs of one model over several meshes, in one dump folder."""

    def __init__(self, folder, dice, index, model):
        self.folder, self.model, self.experts = folder, model, model in EXPERTS
        self.precise = dice.random() < 0.5
        self.limit = FLOAT64_LIMIT if self.precise else EXPERTS_LIMIT if self.experts else LIMIT
        self.seeded = index < SEEDED_CHAINS
        start = dice.choice(EXPERTS_4D if self.experts else DENSE_4D) if self.seeded else None
        self.meshes = [random_mesh(dice, self.experts, resumed=False, degrees=start)]
        while len(self.meshes) <= PAIRS:
            mesh = random_mesh(dice, self.experts, resumed=True)
            if mesh.degrees != self.meshes[-1].degrees:
                self.meshes.append(mesh)

    def name(self):
        return f"{self.model} {'fp64' if self.precise else 'fp32'}"

    def flags(self, steps, seed):
        kind = {"training.dtype": "float64"} if self.precise else {}
        return {**COMMON, **kind, **small_model(self.model), "training.steps": steps, "debug.seed": seed}

    def one_rank(self):
        """The curve without interruption."""
        steps = STEPS * (PAIRS + 1)
        flags = {**self.flags(steps, seed=11), "training.local_batch_size": ROWS, "checkpoint.enable": False}
        return RankRun(self.folder / "one", flags, 1).wait().metrics()

    def seed(self):
        """Weights from another seed than that of the runs on meshes, which must load them from here."""
        flags = {**self.flags(1, seed=11), "job.dump_folder": self.folder / "job", "checkpoint.create_seed_checkpoint": True}
        RankRun(self.folder / "seed", flags, 1).wait()

    def run(self, report, first_kind):
        want, got = self.one_rank(), {}
        if self.seeded:
            self.seed()
        for index, mesh in enumerate(self.meshes):
            kind = [LocalRun, RankRun][(first_kind + index) % 2]
            flags = {**self.flags(STEPS * (index + 1), seed=12 if self.seeded else 11), **mesh.job_flags(ROWS),
                     "job.dump_folder": self.folder / "job"}
            run = kind(self.folder / str(index), flags, mesh.world())
            run.dump = self.folder / "job"
            before = set(got)
            got = run.wait().metrics()
            made = sorted(set(got) - before)
            if made != list(range(STEPS * index + 1, STEPS * (index + 1) + 1)):
                raise SystemExit(f"{self.name()} on {mesh}: made steps {made}")
            what = "seed" if index == 0 and self.seeded else "start" if index == 0 else self.meshes[index - 1]
            report.same_curves(f"{self.name()}: {what} -> {mesh}{' as threads' if kind is LocalRun else ''}",
                               got, want, STEPS * (index + 1), self.limit)
        return len(self.meshes) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    report, pairs, index, deck = Report(), 0, 0, []
    with tempfile.TemporaryDirectory(prefix="titan-reshard-") as temporary:
        while pairs < options.pairs:
            dice = random.Random(f"{options.seed}/{index}")
            if not deck:
                deck = DENSE + EXPERTS
                dice.shuffle(deck)
            chain = Chain(Path(temporary) / str(index), dice, index, deck.pop())
            pairs += chain.run(report, first_kind=index)
            index += 1
    used = os.times()
    print(f"{pairs} pairs, {used.children_user + used.children_system:.0f} s of processor time")
    report.finish()


if __name__ == "__main__":
    main()
