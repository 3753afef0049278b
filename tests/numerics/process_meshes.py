"""Runs rows of the mesh table (tests/numerics/mesh_table) as real processes over Gloo, in float64, with every family: loss,
gradient norm, tokens of each expert, weights and optimizer state after five steps equal one rank's to 1e-10, read from
titan-rank's metrics and checkpoints.
"""

import argparse
import tempfile
from pathlib import Path

from meshes import Mesh, pipeline
from rank_runs import RankRun, Report, small_model

STEPS, ROWS, LIMIT = 5, 8, 1e-10
COMMON = {"training.seq_len": 64, "training.steps": STEPS, "training.dtype": "float64", "lr_scheduler.warmup_steps": 2,
          "activation_checkpoint.mode": "none", "debug.seed": 7, "checkpoint.enable": True,
          "checkpoint.interval": STEPS, "checkpoint.last_save_model_only": False, "metrics.enable_tensorboard": False}
RING = {"parallelism.context_parallel_rotate_method": "alltoall"}
PLAIN_TP = {"parallelism.enable_sequence_parallel": False}

# The meshes of torchtitan's integration tests, and more: a comment names the test. FSDP, DDP and HSDP alone are in
# float64_meshes.py.
TABLE = [
    ("llama3", [
        Mesh(fsdp=2, tp=2), Mesh("no sequence parallelism", PLAIN_TP, tp=2), Mesh(cp=2),
        Mesh("alltoall", RING, cp=4),  # CP 4 alltoall
        Mesh(rep=2, fsdp=2, tp=2),  # HSDP and TP
        Mesh(fsdp=2, cp=2, tp=2),  # FSDP 2, TP 2, CP 2
        pipeline("1F1B", pp=2, fsdp=2),  # PP 2, DP 2, 1F1B
        pipeline("ZBVZeroBubble", pp=2, tp=2), pipeline("InterleavedZeroBubble", pp=4),
        pipeline("Interleaved1F1B", pp=2, cp=2, tp=2)]),
    ("qwen3", [Mesh(fsdp=2, tp=2), pipeline("1F1B", pp=2, tp=2)]),
    ("qwen3_moe", [Mesh(fsdp=2, tp=2, ep=2, etp=2),  # Qwen3 MoE FSDP 2, TP 2, EP 2, ETP 2
                   pipeline("InterleavedZeroBubble", pp=2, cp=2, ep=2)]),
    ("deepseek_v3", [
        Mesh(fsdp=4, ep=2),  # DeepSeek V3 FSDP 4, EP 2
        Mesh(fsdp=2, tp=2, ep=4),
        pipeline("DualPipeV", pp=2, fsdp=2, ep=2),  # DeepSeek V3 PP 2, EP 2, DualPipeV
        pipeline("Interleaved1F1B", pp=2, fsdp=2, tp=2, ep=2, etp=2)]),  # DeepSeek V3 ..., EP 2, ETP 2
    ("llama4", [Mesh(fsdp=2, tp=2, ep=2, etp=2),
                pipeline("1F1B", pp=2, fsdp=2, tp=2, ep=4)]),  # Llama 4 PP 2, FSDP 2, TP 2, EP 4
    ("llama4_irope", [Mesh("alltoall", RING, cp=2, tp=2), pipeline("GPipe", pp=2, fsdp=2, ep=2)]),
    ("gpt_oss", [Mesh(fsdp=4, tp=2, ep=4),  # GPT-OSS FSDP 4, TP 2, EP 4
                 pipeline("1F1B", pp=2, cp=2, ep=2)]),
]


# These run for every commit: an interleaved pipeline with rings, a bidirectional schedule with experts, and experts spread
# over four ranks.
SHORT = {"llama3 pp2 cp2 tp2 (Interleaved1F1B)", "deepseek_v3 pp2 fsdp2 ep2 (DualPipeV)", "gpt_oss fsdp4 tp2 ep4 etp1"}


def train(folder, family, mesh):
    flags = {**small_model(family), **COMMON, **mesh.job_flags(ROWS)}
    run = RankRun(folder, flags, mesh.world()).wait()
    return run.metrics(), run.checkpoint(STEPS)


def expert_counts(metrics):
    return [{key: row[key] for key in row if key.endswith("/tokens_per_expert")} for row in metrics.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--short", action="store_true", help="three rows")
    options = parser.parse_args()
    wanted = SHORT if options.short else {f"{family} {mesh}" for family, meshes in TABLE for mesh in meshes}
    wanted = {name for name in wanted if options.only in name}
    report, compared = Report(), set()
    with tempfile.TemporaryDirectory(prefix="titan-process-meshes-") as temporary:
        for family, meshes in TABLE:
            folder = Path(temporary) / family
            meshes = [mesh for mesh in meshes if f"{family} {mesh}" in wanted]
            if not meshes:
                continue
            want_metrics, want_state = train(folder / "one", family, Mesh())
            for row, mesh in enumerate(meshes):
                metrics, state = train(folder / str(row), family, mesh)
                name = f"{family} {mesh}"
                report.same_curves(name, metrics, want_metrics, STEPS, LIMIT)
                report.same_state(name, state, want_state, LIMIT)
                if expert_counts(metrics) != expert_counts(want_metrics):
                    raise SystemExit(f"{name}: experts got other numbers of tokens than on one rank")
                compared.add(name)
    if not wanted or compared != wanted:
        raise SystemExit(f"not in the table: {sorted(wanted - compared) or options.only}")
    report.finish()


if __name__ == "__main__":
    main()
