"""Checks that every mesh trains alike in float64: 1 rank, FSDP 2, DDP 2, HSDP 2x2 (and accumulation, and recomputation) agree to
1e-10.

In float64 the tolerance needs no derivation, because only the order of sums differs.
"""

import tempfile
from pathlib import Path

from rank_runs import MESHES, RankRun, Report, mesh_flags

STEPS, ROWS, LIMIT = 5, 4, 1e-10
COMMON = {"training.seq_len": 128, "training.steps": STEPS, "training.dtype": "float64", "lr_scheduler.warmup_steps": 2,
          "activation_checkpoint.mode": "none", "debug.seed": 7, "checkpoint.enable": True,
          "checkpoint.interval": STEPS, "checkpoint.last_save_model_only": False}

VARIANTS = {"1 rank, 4 microbatches": ("1 rank", {"training.local_batch_size": 1, "training.global_batch_size": ROWS}),
            "FSDP 2, 2 microbatches, full recomputation, never resharding": (
                "FSDP 2", {"training.local_batch_size": 1, "training.global_batch_size": ROWS,
                           "activation_checkpoint.mode": "full",
                           "parallelism.fsdp_reshard_after_forward": "never"})}


def train(folder, mesh, extra):
    flags, world = mesh_flags(mesh, ROWS)
    run = RankRun(folder, {**COMMON, **flags, **extra}, world).wait()
    return run.metrics(), run.checkpoint(STEPS)


def main():
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-float64-") as folder:
        cases = {**{mesh: (mesh, {}) for mesh in MESHES}, **VARIANTS}
        reference = None
        for number, (name, (mesh, extra)) in enumerate(cases.items()):
            metrics, state = train(Path(folder) / str(number), mesh, extra)
            if reference is None:
                reference = metrics, state
                continue
            want_metrics, want_state = reference
            report.same_curves(name, metrics, want_metrics, STEPS, LIMIT)
            report.same_state(name, state, want_state, LIMIT)
    report.finish()


if __name__ == "__main__":
    main()
