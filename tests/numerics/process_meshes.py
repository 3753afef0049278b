"""Rows of the mesh table (tests/numerics/mesh_table) as real processes over Gloo, in float64: loss, gradient norm, weights
and optimizer state after five steps equal one rank's to 1e-10, read from the metrics and checkpoints that titan-rank writes.
"""

import argparse
import tempfile
from pathlib import Path

from meshes import Mesh, pipeline
from rank_runs import LOSS, NORM, RankRun, Report, relative_rms

STEPS, ROWS, LIMIT = 5, 8, 1e-10
COMMON = {"training.seq_len": 64, "training.steps": STEPS, "training.dtype": "float64", "lr_scheduler.warmup_steps": 2,
          "activation_checkpoint.mode": "none", "debug.seed": 7, "checkpoint.enable": True,
          "checkpoint.interval": STEPS, "checkpoint.last_save_model_only": False}
RING = {"parallelism.context_parallel_rotate_method": "alltoall"}
PLAIN_TP = {"parallelism.enable_sequence_parallel": False}

TABLE = [
    (("llama3", "debugmodel"), [
        Mesh(fsdp=2, tp=2), Mesh("no sequence parallelism", PLAIN_TP, tp=2), Mesh(cp=2), Mesh("alltoall", RING, cp=4),
        Mesh(rep=2, fsdp=2, tp=2), Mesh(fsdp=2, cp=2, tp=2), pipeline("1F1B", pp=2, fsdp=2),
        pipeline("ZBVZeroBubble", pp=2, tp=2), pipeline("InterleavedZeroBubble", pp=4),
        pipeline("Interleaved1F1B", pp=2, cp=2, tp=2)]),
    (("qwen3", "debugmodel"), [Mesh(fsdp=2, tp=2), pipeline("1F1B", pp=2, tp=2)]),
    (("deepseek_v3", "debugmodel"), [
        Mesh(fsdp=4, ep=2), Mesh(fsdp=2, tp=2, ep=4), pipeline("DualPipeV", pp=2, fsdp=2, ep=2),
        pipeline("Interleaved1F1B", pp=2, fsdp=2, tp=2, ep=2, etp=2)]),
    (("llama4", "debugmodel"), [Mesh(fsdp=2, tp=2, ep=2, etp=2)]),
]


def train(folder, model, mesh):
    flags = {"model.name": model[0], "model.flavor": model[1], **COMMON, **mesh.job_flags(ROWS)}
    run = RankRun(folder, flags, mesh.world()).wait()
    return run.metrics(), run.checkpoint(STEPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    only = parser.parse_args().only
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-process-meshes-") as temporary:
        for number, (model, meshes) in enumerate(TABLE):
            folder = Path(temporary) / str(number)
            meshes = [mesh for mesh in meshes if only in f"{model[0]} {mesh}"]
            if not meshes:
                continue
            want_metrics, want_state = train(folder / "one", model, Mesh())
            for row, mesh in enumerate(meshes):
                metrics, state = train(folder / str(row), model, mesh)
                name = f"{model[0]} {mesh}"
                for key in (LOSS, NORM):
                    report.below(f"{name}: {key}",
                                 max(abs(metrics[s][key] / want_metrics[s][key] - 1) for s in range(1, STEPS + 1)), LIMIT)
                if sorted(state) != sorted(want_state):
                    raise SystemExit(f"{name}: other tensors than on 1 rank: {sorted(set(state) ^ set(want_state))}")
                errors = {key: relative_rms(value, want_state[key]) for key, value in state.items()}
                worst = max(errors, key=errors.get)
                report.below(f"{name}: weights and optimizer state, worst {worst}", errors[worst], LIMIT)
    report.finish()


if __name__ == "__main__":
    main()
