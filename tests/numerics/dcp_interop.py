"""torchtitan and Titan alternate in one training through torch.distributed.checkpoint: losses are as in an uninterrupted run.

  dcp_interop.py [CASE ...]     all cases by default; without TITAN_LONG=1 only the first one, shortened

In each case torchtitan trains and saves; Titan resumes from that folder on another mesh and saves; `titan-checkpoint export
--format dcp` writes the step, and torchtitan resumes from it on a third mesh. Every step's loss must equal that of torchtitan's
uninterrupted run within the limit of peer_runs.py.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from peer_runs import COMMON, LOSS_LIMIT, SOURCE
from rank_runs import ASSETS, BIN, LOSS, LocalRun, RankRun

LONG = os.environ.get("TITAN_LONG") == "1"
ROWS = 4


@dataclasses.dataclass
class Case:
    model: str
    flavor: str
    peer: dict = dataclasses.field(default_factory=dict)   # torchtitan's first mesh.
    titan: dict = dataclasses.field(default_factory=dict)  # Titan's mesh.
    last: dict = dataclasses.field(default_factory=dict)   # The mesh on which torchtitan resumes.
    extra: dict = dataclasses.field(default_factory=dict)
    # Steps of each part in the long form. Models with routers get few, because losses drift apart later
    # (docs/interop-torchtitan.md).
    turn: int = 10


SHARD, TENSOR = "parallelism.data_parallel_shard_degree", "parallelism.tensor_parallel_degree"
EXPERT = "parallelism.expert_parallel_degree"
SHORT = {"training.seq_len": 64}  # For models with large vocabularies.
CASES = {
    "llama3 dp1 > tp2 > dp1": Case("llama3", "debugmodel", titan={TENSOR: 2}),
    "llama3 dp2 > dp2 tp2 > dp2": Case("llama3", "debugmodel", {SHARD: 2}, {SHARD: 2, TENSOR: 2}, {SHARD: 2}),
    "llama3 tp2 > fsdp4 > tp2": Case("llama3", "debugmodel", {TENSOR: 2}, {SHARD: 4}, {TENSOR: 2}),
    "deepseek_v3 dp1 > ep2 > dp1": Case("deepseek_v3", "debugmodel", titan={SHARD: 2, EXPERT: 2}, extra=SHORT, turn=2),
    "qwen3 dp1 > fsdp2 > dp1": Case("qwen3", "debugmodel", titan={SHARD: 2}),
    "llama4 dp1 > fsdp2 > dp1": Case("llama4", "debugmodel", titan={SHARD: 2}, extra=SHORT, turn=2),
}


def ranks(mesh):
    return mesh.get(SHARD, 1) * mesh.get(TENSOR, 1)


def flags_of(case, mesh, steps):
    return {**COMMON, "training.steps": steps, "lr_scheduler.total_steps": 40, **case.extra, **mesh,
            "training.local_batch_size": ROWS // mesh.get(SHARD, 1), "checkpoint.enable": True}


def run_peer(out, case, mesh, steps, interval):
    flags = {**flags_of(case, mesh, steps), "checkpoint.interval": interval, "checkpoint.no_last_save_model_only": True,
             "checkpoint.keep_latest_k": 0, "model.hf_assets_path": ASSETS / "tokenizer", "training.dataset_path": ASSETS / "c4_test"}
    command = [sys.executable, SOURCE / "tests/peer/run_peer.py", "--out", out, "--save", "--nproc", ranks(mesh), "--name", case.model,
               "--flavor", case.flavor, "--"]
    for key, value in flags.items():
        command += ["--" + key] if value is True else ["--" + key, value]
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "log", "wb") as log:
        done = subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"torchtitan failed:\n{(out / 'log').read_text(errors='replace')[-4000:]}")
    return {row["step"]: row["loss"] for row in map(json.loads, (out / "steps.jsonl").read_text().splitlines())}


def run_titan(out, case, start, steps, interval):
    order = "per_rank" if case.peer.get(SHARD, 1) > 1 else "global"
    flags = {**flags_of(case, case.titan, steps), "model.name": case.model, "model.flavor": case.flavor,
             "training.dataloader.order": order, "checkpoint.interval": interval, "checkpoint.last_save_model_only": False,
             "checkpoint.initial_load_path": start, "checkpoint.initial_load_model_only": False}
    run = (RankRun if LONG else LocalRun)(out, flags, ranks(case.titan)).wait(timeout=400)
    metrics = run.metrics()
    if metrics[steps]["n_tokens_seen"] != steps * ROWS * flags["training.seq_len"]:
        sys.exit(f"{out}: n_tokens_seen is {metrics[steps]['n_tokens_seen']} after step {steps}")
    return {step: row[LOSS] for step, row in metrics.items()}


def export(step, target):
    done = subprocess.run([BIN / "titan-checkpoint", "export", step, target, "--format", "dcp"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"export failed: {done.stdout}{done.stderr}")
    return done.stdout


def compare(what, losses, truth, first, last):
    if sorted(losses) != list(range(first, last + 1)):
        sys.exit(f"{what}: steps {sorted(losses)}, not {first} to {last}")
    off = {step: abs(losses[step] / truth[step] - 1) for step in losses}
    worst = max(off.values())
    print(f"{what}: steps {first} to {last}, loss differs by {worst:.1e}, at the first step by {off[first]:.1e} (limit {LOSS_LIMIT:.0e})",
          flush=True)
    return worst <= LOSS_LIMIT


def text_of(checkpoint, *words):
    done = subprocess.run([BIN / "titan-generate", "--checkpoint", checkpoint, "--prompt", "Once upon a time", "--max-new-tokens", "16",
                           "-o", "json", "-q", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"titan-generate from {checkpoint}: {done.stderr}")
    return done.stdout


# A text generated from torchtitan's checkpoint equals the one from the same weights as a Hugging Face folder.
def same_text(case, saved, folder):
    model = ["--model", case.model, "--flavor", case.flavor]
    for words in (["import", saved, folder / "text/step-0", *model], ["export", folder / "text/step-0", folder / "text/hf"]):
        subprocess.run([BIN / "titan-checkpoint", *words], check=True, capture_output=True)
    tokenizer = ["--tokenizer", ASSETS / "tokenizer"]
    ours, theirs = text_of(saved, *model, *tokenizer), text_of(folder / "text/hf", *tokenizer)
    if ours != theirs:
        sys.exit(f"{saved} writes {ours}, the Hugging Face folder of its weights {theirs}")


def take_turns(name, case, folder):
    every = case.turn if LONG else 2
    total = 3 * every
    truth = run_peer(folder / "truth", case, case.peer, total, every)
    saved = folder / f"truth/dump/checkpoint/step-{every}"
    titan = run_titan(folder / "titan", case, saved, total, every)
    good = compare(f"{name}: Titan from torchtitan", titan, truth, every + 1, total)
    same_text(case, saved, folder)
    export(folder / f"titan/dump/checkpoint/step-{2 * every}", folder / f"back/dump/checkpoint/step-{2 * every}")
    back = run_peer(folder / "back", case, case.last, total, total)
    return compare(f"{name}: torchtitan from Titan", back, truth, 2 * every + 1, total) and good


def main():
    names = sys.argv[1:] or list(CASES)[:len(CASES) if LONG else 1]
    root = Path(tempfile.mkdtemp(prefix="dcp_interop."))
    try:
        good = [take_turns(name, CASES[name], root / str(i)) for i, name in enumerate(names)]
    finally:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(0 if all(good) else "losses differ by more than the limit")


if __name__ == "__main__":
    main()
