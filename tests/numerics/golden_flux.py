"""Compares Titan's training of a tiny Flux with torchtitan 0.2.2's own FluxTrainer, live, in fp32: on 1 rank and under FSDP 2.

Both programs read the same folders of random weights (tests/peer/flux_folders.py): T5, CLIP and their tokenizers, the autoencoder, the
transformer under diffusers' names, and pictures in a tar archive. Each decodes, resizes, cuts, tokenizes and encodes by itself. Only the
random numbers of rows are given to torchtitan (tests/peer/train_flux.py), whose own depend on the number of ranks.

Compared are loss and gradient norm of each step, the first step's gradients, each tensor's total update, and on 1 rank the loss of
validation. Every run draws a seed (--seed repeats one). --all also trains longer, and compares Titan's other meshes, recomputation, HSDP,
and validation at all eight times with torchtitan on 1 rank.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE  # noqa: E402
from peer_runs import Peer, compare_run, compare_updates, model_of  # noqa: E402
from rank_runs import RankRun, Report  # noqa: E402

ROWS, SAMPLES, SIZE, TOKENS, ELEMENTS = 4, 16, 32, 12, 16 * 4 * 4  # As in train_flux.py.
DROP = 0.447  # Both captions of a fifth of the rows.
VALIDATION_STREAM = 0x9E3779B97F4A7C15  # Validation draws with the seed xor this.
NORM_LIMIT, UPDATE_LIMIT, VALIDATION_LIMIT = 1e-5, 1e-2, 1e-5  # In addition to those of peer_runs.py.
VALIDATION = {"validation.enable": True, "validation.dataset": "cc12m-test", "validation.local_batch_size": ROWS, "validation.steps": -1,
              "validation.save_img_count": 0}
REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
MESHES = {"1 rank": (1, {}), "FSDP 2": (2, {SHARD: 2})}
MORE_MESHES = {"DDP 2": (2, {REPLICATE: 2, SHARD: 1}), "HSDP 2x2": (4, {REPLICATE: 2, SHARD: 2}),
               "CP 2": (2, {"parallelism.context_parallel_degree": 2}), "TP 2": (2, {"parallelism.tensor_parallel_degree": 2}),
               "PP 2": (2, {"parallelism.pipeline_parallel_degree": 2}),
               "FSDP 2, full recomputation": (2, {SHARD: 2, "activation_checkpoint.mode": "full"})}


def flags_of(options):
    return {"training.steps": options.steps, "training.classifier_free_guidance_prob": DROP, "optimizer.lr": 1e-3, "lr_scheduler.warmup_steps": 2,
            "validation.freq": options.steps, "validation.dataset_path": options.folder / "pictures"}


def write_draws(path, seed, rows, drop):
    with open(path, "wb") as file:
        subprocess.run([BIN.parent / "tests/dump_flux_draws", str(seed), str(rows), str(drop), str(ELEMENTS)], stdout=file, check=True)
    return path


class TorchtitanRuns:
    """torchtitan's runs on 1 or more numbers of ranks, one after the other. The constructor returns once the folders are written."""

    def __init__(self, options, nproc, extra):
        folder = options.folder
        words = []
        for key, value in {**flags_of(options), **extra}.items():
            words += ["--" + key] if value is True else ["--" + key, value]
        draws = write_draws(folder / "draws", options.seed, ROWS * options.steps, DROP)
        validation_draws = write_draws(folder / "validation-draws", options.seed ^ VALIDATION_STREAM, SAMPLES, 0)
        command = [sys.executable, SOURCE / "tests/peer/train_flux.py", folder, "--draws", draws, "--validation-draws", validation_draws,
                   "--nproc", nproc, "--steps", options.steps, "--seed", options.seed, "--", *words]
        self.log = folder / "peer.log"
        with open(self.log, "wb") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=file)
        if not self.process.stdout.readline():
            self.wait()

    def wait(self):
        self.process.communicate()
        if self.process.returncode:
            sys.exit(f"torchtitan failed:\n{self.log.read_text(errors='replace')[-4000:]}")


def start_titan(options, name, extra=()):
    """Starts the run on a mesh."""
    world, mesh = {**MESHES, **MORE_MESHES}[name]
    root = options.folder
    batch_ranks = mesh.get(REPLICATE, 1) * mesh.get(SHARD, 1)
    flags = {"model.name": "flux", "model.flavor": "flux-tiny-debug", "training.dataset": "cc12m-test", "training.dataset_path": root / "pictures",
             "training.img_size": SIZE, "training.local_batch_size": ROWS // batch_ranks, "training.global_batch_size": ROWS,
             "training.mixed_precision_param": "float32", "encoder.t5_encoder": root / "t5", "encoder.clip_encoder": root / "clip",
             "encoder.autoencoder_path": root / "ae.safetensors", "encoder.max_t5_encoding_len": TOKENS, "activation_checkpoint.mode": "none",
             "checkpoint.enable": True, "checkpoint.initial_load_path": root / "transformer", "checkpoint.initial_load_in_hf": True,
             "checkpoint.enable_first_step_checkpoint": True, "checkpoint.interval": options.steps, "checkpoint.last_save_model_only": False,
             "debug.seed": options.seed, **flags_of(options), **mesh, **dict(extra)}
    return RankRun(root / name.replace(" ", "-").replace(",", ""), flags, world)


def compare(report, options, name, run, peer):
    compare_run(report, name, run.wait(), peer, norm_limit=NORM_LIMIT)
    compare_updates(report, name, model_of(run.checkpoint(options.steps)), peer, UPDATE_LIMIT)


def compare_validation(report, name, run, peer):
    """torchtitan's loss is a batch's sum, averaged over batches; Titan's is a mean over elements."""
    rows = [json.loads(line) for line in (peer.folder / "validation.jsonl").read_text().splitlines()]
    key = "validation_metrics/loss"
    ours = {step: row[key] for step, row in run.metrics().items() if key in row}
    if len(rows) != 2 or sorted(ours) != [row["step"] for row in rows]:
        sys.exit(f"{name}: validation at steps {sorted(ours)}, torchtitan's {rows}")
    ratios = [row["loss"] / ours[row["step"]] / (ROWS * ELEMENTS) for row in rows]
    times = round(ratios[0])  # How many times each row counts.
    report.below(f"{name}: loss of validation, {times} times a row", max(abs(ratio / times - 1) for ratio in ratios), VALIDATION_LIMIT)
    return times


def more(report, options, peer):
    for name in MORE_MESHES:
        compare(report, options, name, start_titan(options, name), peer)
    for name in ("peer-1", "1-rank"):
        (options.folder / name).rename(options.folder / f"{name}-first")
    all_times = {**VALIDATION, "validation.all_timesteps": True}
    peer = TorchtitanRuns(options, 1, all_times)
    run = start_titan(options, "1 rank", all_times).wait()
    peer.wait()
    report.below("all times: wrong number of times", abs(compare_validation(report, "all times", run, Peer(options.folder / "peer-1")) - 8), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep its files")
    options = parser.parse_args()
    options.steps = options.steps or (20 if options.all else 5)
    print("seed", options.seed, flush=True)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-flux-") as temporary:
        options.folder = options.keep or Path(temporary)
        options.folder.mkdir(exist_ok=True)
        theirs = TorchtitanRuns(options, "1,2", VALIDATION)
        ours = {name: start_titan(options, name, VALIDATION if name == "1 rank" else {}) for name in MESHES}
        theirs.wait()
        for nproc, (name, run) in enumerate(ours.items(), start=1):
            peer = Peer(options.folder / f"peer-{nproc}")
            compare(report, options, name, run, peer)
            if nproc == 1:
                report.below("wrong number of times", abs(compare_validation(report, name, run, peer) - 1), 0)
        if options.all:
            more(report, options, Peer(options.folder / "peer-1"))
    report.finish()


if __name__ == "__main__":
    main()
