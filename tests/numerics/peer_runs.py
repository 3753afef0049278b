"""Training runs of torchtitan and Titan from the same weights and text, and comparisons of their numbers."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy
from rank_runs import ASSETS, LOSS, MAX_LOSS, NORM, RankRun, mesh_flags, read_safetensors, relative_rms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

STEPS, ROWS, SEQ_LEN = 10, 4, 256
MAX_NORM, BETA1 = 1.0, 0.9
COMMON = {"training.seq_len": SEQ_LEN, "training.steps": STEPS, "training.mixed_precision_param": "float32",
          "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "none"}

# All relative. torchtitan's norm is inexact on CPU (naive fp32 sums), so Titan's is also compared with the norm of
# Titan's gradients.
LOSS_LIMIT, NORM_LIMIT, OWN_NORM_LIMIT, GRAD_LIMIT, UPDATE_LIMIT = 1e-5, 2e-4, 1e-6, 1e-4, 0.1


def run_peer(out, weights, seed, nproc, extra=(), name="llama3", flavor="debugmodel", words=(), gain=5):
    batch_ranks = nproc // dict(extra).get("parallelism.tensor_parallel_degree", 1)
    flags = {**COMMON, **dict(extra), "training.local_batch_size": ROWS // batch_ranks, "model.hf_assets_path": ASSETS / "tokenizer",
             "training.dataset_path": ASSETS / "c4_test"}
    command = [sys.executable, SOURCE / "tests/peer/run_peer.py", "--out", out, "--weights", weights, "--seed", seed,
               "--gain", gain, "--nproc", nproc, "--name", name, "--flavor", flavor, *words, "--"]
    for key, value in flags.items():
        command += ["--" + key] if value is True else ["--" + key, value]
    out.mkdir(parents=True)
    log = out / "log"
    with open(log, "wb") as file:
        result = subprocess.run([str(word) for word in command], stdout=file, stderr=subprocess.STDOUT)
    if result.returncode:
        sys.exit(f"torchtitan failed:\n{log.read_text(errors='replace')[-4000:]}")
    versions = json.loads((out / "result.json").read_text())
    print("torchtitan ran:", json.dumps({key: versions[key] for key in ("versions", "nproc", "seed", "sha256")}), flush=True)


class Peer:
    """The record of one run of an oracle; tensors only from torchtitan."""

    def __init__(self, folder, same_ranks=False):
        self.same_ranks = same_ranks  # Whether the Titan run splits the rows over ranks in the same way.
        lines = (folder / "steps.jsonl").read_text().splitlines()
        self.steps = {row["step"]: row for row in map(json.loads, lines)}
        self.folder = folder

    @functools.cached_property
    def first(self):
        return read_safetensors(self.folder / "step1.safetensors")

    @functools.cached_property
    def initial(self):
        return read_safetensors(self.folder / "initial.safetensors")

    @functools.cached_property
    def final(self):
        return read_safetensors(self.folder / "final.safetensors")

    @functools.cached_property
    def updates(self):
        return {fqn: numpy.float64(value) - self.initial[fqn] for fqn, value in self.final.items()}


def run_titan(folder, weights, mesh, extra, how=RankRun, **waiting):
    flags, world = mesh_flags(mesh, ROWS)
    run = how(folder, {**COMMON, **flags, "checkpoint.enable": True, "checkpoint.initial_load_path": str(weights),
                           "checkpoint.initial_load_in_hf": True, "checkpoint.enable_first_step_checkpoint": True,
                           "checkpoint.interval": STEPS + 1, **extra}, world)
    return run.wait(**waiting)


def compare_steps(report, name, run, peer, loss_limit=LOSS_LIMIT, norm_limit=NORM_LIMIT, steps=STEPS):
    metrics = run.metrics()
    if sorted(metrics) != sorted(peer.steps):
        sys.exit(f"{name}: metrics.jsonl has steps {sorted(metrics)}")
    for ours, theirs, limit in ((LOSS, "loss", loss_limit), (MAX_LOSS, "max_loss", loss_limit), (NORM, "grad_norm", norm_limit)):
        if theirs == "max_loss" and not peer.same_ranks:
            continue  # The largest loss of any rank depends on how rows are split.
        off = max(abs(metrics[step][ours] / row[theirs] - 1) for step, row in peer.steps.items() if step <= steps)
        report.below(f"{name}: {theirs}", off, limit)


def first_gradients(run, peer):
    """Returns gradients by name, since Adam's first moment after one step is (1 - beta1) times the clipped gradient."""
    first = run.checkpoint(1)
    factor = (1 - BETA1) * min(1.0, MAX_NORM / (run.metrics()[1][NORM] + 1e-6))
    names = [name[len("grad."):] for name in peer.first if name.startswith("grad.")]
    return {fqn: numpy.float64(first["optim.exp_avg." + fqn]) / factor for fqn in names}


def compare_run(report, name, run, peer, loss_limit=LOSS_LIMIT, norm_limit=NORM_LIMIT):
    compare_steps(report, name, run, peer, loss_limit, norm_limit)
    norm = run.metrics()[1][NORM]
    errors, squares = {}, 0.0
    for fqn, gradient in first_gradients(run, peer).items():
        errors[fqn] = relative_rms(gradient, peer.first["grad." + fqn])
        squares += float(numpy.sum(gradient * gradient))
    worst = max(errors, key=errors.get)
    report.below(f"{name}: first step's gradients, worst {worst}", errors[worst], GRAD_LIMIT)
    report.below(f"{name}: its grad_norm against an fp64 norm", abs(norm / squares**0.5 - 1), OWN_NORM_LIMIT)


def compare_errors(report, name, run, peer, exact, limit):
    """Compares first gradients of another precision: each tensor's distance from the exact one, divided by the peer's."""
    ratios = {}
    for fqn, gradient in first_gradients(run, peer).items():
        truth = exact.first["grad." + fqn]
        ratios[fqn] = relative_rms(gradient, truth) / relative_rms(numpy.float64(peer.first["grad." + fqn]), truth)
    worst = max(ratios, key=ratios.get)
    print(f"{name}: errors of the first step's gradients over torchtitan's: median {sorted(ratios.values())[len(ratios) // 2]:.3f}")
    report.below(f"{name}: the same, worst {worst}", ratios[worst], limit)


def compare_updates(report, name, final, peer, limit=UPDATE_LIMIT):
    errors = {fqn: relative_rms(numpy.float64(final[fqn]) - peer.initial[fqn], update)
              for fqn, update in peer.updates.items()}
    worst = max(errors, key=errors.get)
    report.below(f"{name}: total update, worst {worst}", errors[worst], limit)


def model_of(tensors):
    return {key[len("model."):]: value for key, value in tensors.items() if key.startswith("model.")}
