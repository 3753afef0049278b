"""Runs the rows of torchtitan's integration matrix that test more than five steps on a mesh, as real processes in float64: they
save, load, validate and recompute the same as one rank with the same switches, to 1e-10.

The matrix's other rows for language models are tested in:
  meshes, schedules, activation checkpointing     mesh_table/rows.cc (column "torchtitan's test" of docs/generated/mesh-table.md)
  the same over processes                         process_meshes.py
  any mesh to any other, seed checkpoints         reshard_meshes.py
  memory estimation                               worker/rank/runtime/dry_run_test.py (no mesh is refused)
  gradients of a step against torchtitan's own    golden_models.py, golden_parity.py
Compilation, float8 and fault-tolerant replicas are other features; torchtitan no longer has text generation.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy

from meshes import Mesh, pipeline
from rank_runs import ASSETS, BIN, LOSS, LocalRun, RankRun, Report, read_safetensors, small_model

STEPS, ROWS, LIMIT = 4, 8, 1e-10
VALIDATION = "validation_metrics/loss"
COMMON = {**small_model("llama3"), "training.seq_len": 64, "training.steps": STEPS, "training.dtype": "float64",
          "lr_scheduler.warmup_steps": 2, "lr_scheduler.total_steps": 20, "activation_checkpoint.mode": "none",
          "metrics.enable_tensorboard": False, "debug.seed": 7, "checkpoint.enable": True, "checkpoint.interval": STEPS,
          "checkpoint.last_save_model_only": False}


class Matrix:
    def __init__(self, folder, report):
        self.folder, self.report, self.count, self.known = folder, report, 0, {}

    def run(self, mesh, flags=None, dump=None, kind=RankRun):
        """Runs one job. With `dump` it resumes in that folder of another job."""
        self.count += 1
        flags = {**COMMON, **mesh.job_flags(ROWS), **(flags or {})}
        if dump:
            flags["job.dump_folder"] = dump
        run = kind(self.folder / str(self.count), flags, mesh.world())
        run.dump = dump or run.dump
        return run.wait()

    def one_rank(self, flags=None):
        key = json.dumps(flags or {}, default=str, sort_keys=True)
        if key not in self.known:
            self.known[key] = self.run(Mesh(), flags)
        return self.known[key]

    def same(self, name, run, want, steps=STEPS):
        """Compares the curves up to `steps` and the last checkpoint."""
        self.report.same_curves(name, run.metrics(), want.metrics(), steps, LIMIT)
        self.report.same_state(name, run.checkpoint(steps), want.checkpoint(steps), LIMIT)

    def trains_alike(self, mesh, flags=None, note="", one_rank_flags=None):
        name = f"{mesh}{', ' if note else ''}{note}"
        self.same(name, self.run(mesh, flags), self.one_rank(one_rank_flags))


def resumed(matrix):
    """"Full checkpoint, save and resume"; "PP 2, DP 2, TP 2, resume" (8)."""
    flags = {"checkpoint.interval": 2, "training.steps": 2}
    for mesh in (Mesh(fsdp=4), pipeline("1F1B", pp=2, fsdp=2, tp=2)):
        first = matrix.run(mesh, flags)
        matrix.same(f"{mesh}, saved and resumed", matrix.run(mesh, dump=first.dump), matrix.one_rank())


def hugging_face(matrix):
    """"HF model-only save", then "load": a mesh and one rank write the same folder, up to rounding to its data type, and a new
    training starts equally from either."""
    mesh, saving = Mesh(fsdp=2, tp=2), {"checkpoint.last_save_model_only": True, "checkpoint.last_save_in_hf": True}
    folder = matrix.run(mesh, saving).dump / "checkpoint" / f"step-{STEPS}"
    got, want = (weights_of(f) for f in (folder, matrix.one_rank(saving).dump / "checkpoint" / f"step-{STEPS}"))
    if sorted(got) != sorted(want):
        raise SystemExit(f"Hugging Face folders hold other tensors: {sorted(set(got) ^ set(want))}")
    matrix.report.below(f"{mesh}: Hugging Face folder, largest difference in units of the last place of float32",
                        max(float(numpy.max(numpy.abs(got[k] - want[k]) / numpy.spacing(numpy.abs(want[k])))) for k in want), 1)
    loading = {"checkpoint.initial_load_in_hf": True, "checkpoint.initial_load_path": folder}
    start = matrix.one_rank(loading)
    matrix.same(f"{mesh}, from Hugging Face weights", matrix.run(mesh, loading), start)
    fresh = matrix.one_rank().metrics()[1][LOSS]
    matrix.report.above("Hugging Face weights are not the initial ones, loss", abs(start.metrics()[1][LOSS] / fresh - 1), 1e-3)


def weights_of(folder):
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in read_safetensors(file).items()}


def last_model_only(matrix):
    """"Last save model-only", fp32 and bf16: only weights, rounded to the requested type."""
    mesh, want = Mesh(fsdp=2, tp=2), matrix.one_rank().checkpoint(STEPS)
    for kind in ("float32", "bfloat16"):
        run = matrix.run(mesh, {"checkpoint.last_save_model_only": True, "checkpoint.export_dtype": kind})
        got = run.checkpoint(STEPS)
        if sorted(got) != sorted(key for key in want if key.startswith("model.")):
            raise SystemExit(f"{mesh}: a model-only checkpoint holds {sorted(got)}")
        wrong = sum(int(numpy.sum(value != rounded(want[key], kind))) for key, value in got.items())
        matrix.report.below(f"{mesh}, last save model-only in {kind}: elements that are not one rank's, rounded", wrong, 0)


def rounded(values, kind):
    single = numpy.asarray(values, numpy.float64).astype(numpy.float32)
    if kind == "float32" or values.dtype != numpy.float64:
        return single
    bits = single.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(numpy.uint32).view(numpy.float32)


def excluded(matrix):
    """"Checkpoint of DP 4 into TP 2, without lr_scheduler, dataloader and optimizer": only weights and step count are loaded."""
    steps = STEPS + 3
    flags = {"training.steps": steps, "checkpoint.interval": steps,
             "checkpoint.exclude_from_loading": ["lr_scheduler", "dataloader", "optimizer"]}
    first = matrix.run(Mesh(fsdp=4))
    again = matrix.run(Mesh(tp=2), flags, dump=first.dump)
    alone = matrix.run(Mesh(), flags, dump=matrix.run(Mesh()).dump)
    matrix.same("FSDP 4 to TP 2, without lr_scheduler, dataloader and optimizer", again, alone, steps)
    metrics = again.metrics()
    matrix.report.below("the learning rate restarts", abs(metrics[STEPS + 1]["lr"] / metrics[1]["lr"] - 1), 0)
    straight = matrix.one_rank({"training.steps": steps, "checkpoint.interval": steps}).metrics()
    matrix.report.above("as the data do, loss", abs(metrics[STEPS + 1][LOSS] / straight[STEPS + 1][LOSS] - 1), 1e-6)


def validated(matrix):
    """"Validation on TP 2, CP 2, PP 2" (8), and with experts."""
    flags = {"validation.enable": True, "validation.dataset_path": ASSETS / "c4_validation", "validation.seq_len": 128,
             "validation.freq": 2, "validation.steps": 3}
    for model, mesh in (("llama3", pipeline("1F1B", pp=2, cp=2, tp=2)), ("deepseek_v3", Mesh(fsdp=2, tp=2, ep=4))):
        rows = mesh.degrees["rep"] * mesh.degrees["fsdp"]
        both = [{**flags, **small_model(model), "validation.local_batch_size": local} for local in (ROWS // rows, ROWS)]
        got, want = matrix.run(mesh, both[0]), matrix.one_rank(both[1])
        matrix.same(f"{model} {mesh}, with validation", got, want)
        seen = [[step for step, row in run.metrics().items() if VALIDATION in row] for run in (got, want)]
        if seen[0] != [1, 2, 4] or seen[1] != seen[0]:
            raise SystemExit(f"{mesh}: validated after steps {seen[0]}, one rank after {seen[1]}")
        matrix.report.below(f"{model} {mesh}: {VALIDATION}", max(
            abs(got.metrics()[step][VALIDATION] / want.metrics()[step][VALIDATION] - 1) for step in seen[0]), LIMIT)


def early_steps(matrix):
    """"CPU offload, optimizer in backward, TP 2, CP 2, DP 2" (8), saved and then resumed with replicas. Early steps do not clip,
    so the one rank runs without them and with a max_norm that never clips."""
    flags = {"training.enable_cpu_offload": True, "optimizer.early_step_in_backward": True}
    first = matrix.run(Mesh(fsdp=2, cp=2, tp=2), {**flags, "training.steps": 2, "checkpoint.interval": 2})
    again = matrix.run(Mesh(rep=2, cp=2, tp=2), flags, dump=first.dump)
    matrix.same("fsdp2 cp2 tp2 with offload and early steps, then rep2 cp2 tp2", again,
                matrix.one_rank({"training.max_norm": 1e9}))


def accumulated(matrix):
    """"Gradient accumulation" (2)."""
    matrix.trains_alike(Mesh("4 microbatches", fsdp=2), {"training.local_batch_size": 1})


def recomputed(matrix):
    """"Selective AC op"; memory budget; "Flex and Varlen with selective AC op" on documents."""
    per_op = {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
    matrix.trains_alike(Mesh(fsdp=4), per_op, "selective AC op")
    matrix.trains_alike(Mesh(fsdp=2, tp=2), {"activation_checkpoint.mode": "memory_budget"}, "memory budget")
    longer = {"training.seq_len": 256}  # Rows in which documents end.
    packed = {**small_model("llama3", "packed"), **longer}
    matrix.trains_alike(Mesh(fsdp=4), {**packed, **per_op}, "documents, selective AC op", packed)
    losses = [matrix.one_rank(flags).metrics()[STEPS][LOSS] for flags in (packed, longer)]
    matrix.report.above("documents matter, loss", abs(losses[0] / losses[1] - 1), 1e-8)


def asynchronous_tensor(matrix):
    """"Async TP"."""
    flags = {"parallelism.enable_async_tensor_parallel": True}
    for mesh in (Mesh(tp=2), Mesh(fsdp=2, tp=2)):
        matrix.trains_alike(mesh, flags, "asynchronous TP")


def schedule_file(matrix):
    """"PP 2, CSV"."""
    csv = matrix.folder / "schedule.csv"
    with open(csv, "wb") as out:
        subprocess.run([BIN / "titanctl", "schedule", "show", "--schedule", "InterleavedZeroBubble", "--ranks", "2",
                        "--microbatches", str(ROWS), "--as-csv"], stdout=out, check=True)
    mesh = Mesh("schedule from CSV", {"parallelism.pipeline_parallel_schedule": "PipelineScheduleMulti",
                                      "parallelism.pipeline_parallel_schedule_csv": csv}, pp=2)
    matrix.trains_alike(mesh)


def other_switches(matrix):
    """"Optimizer foreach" (2); "loader workers" (2)."""
    matrix.trains_alike(Mesh(fsdp=2), {"optimizer.implementation": "foreach"}, "foreach")
    matrix.trains_alike(Mesh(fsdp=2), {"training.dataloader.num_workers": 2}, "2 loader workers")


def threads(matrix):
    """Ranks as threads of one process compute the same as processes."""
    mesh = pipeline("Interleaved1F1B", pp=2, cp=2, tp=2)
    name = f"{mesh} as threads"
    alone, apart = matrix.run(mesh, kind=LocalRun), matrix.run(mesh)
    matrix.same(f"{name}, compared with one rank", alone, matrix.one_rank())
    matrix.same(f"{name}, compared with processes", alone, apart)


PARTS = [resumed, hugging_face, last_model_only, excluded, validated, early_steps, accumulated, recomputed,
         asynchronous_tensor, schedule_file, other_switches, threads]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts whose name contains this: " + ", ".join(p.__name__ for p in PARTS))
    only = parser.parse_args().only
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-integration-") as temporary:
        matrix = Matrix(Path(temporary), report)
        for part in PARTS:
            if only in part.__name__:
                part(matrix)
    report.finish()


if __name__ == "__main__":
    main()
