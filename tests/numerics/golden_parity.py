"""Compares Titan's training with torchtitan 0.2.2's own, live, from the same Hugging Face weights and text, at fp32.

Every run draws a random seed (--seed repeats one). The weights carry a gain (tests/peer/README.md says why). The comparisons:
  one step    logits and every parameter's gradient, in one process (compare_with_peer): the bare model, the engine on all four
              meshes as threads, and the test of the test;
  on meshes   titan-rank on 1 rank, FSDP 2, HSDP 2x2 and (--all) DDP 2: first step's gradients (from Adam's first moment), ten steps of
              loss and gradient norm, and each tensor's total update; global order against torchtitan on 1 rank, per_rank order
              against torchtitan's FSDP 2;
  daemons     such jobs submitted to a controller with two workers, ranks on both: HSDP 2x2, with --all all meshes and both orders;
  bf16        (--all) torchtitan's FSDP 2 with bf16 parameters against ours: with LibTorch's operations, and with Titan's own kernels, which
              round differently: their gradients may not be farther from the fp32 ones than torchtitan's are;
  export      the Hugging Face folder that the last save writes.
"""

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import Cluster  # noqa: E402
from peer_runs import STEPS, Peer, compare_errors, compare_run, compare_steps, compare_updates, model_of, run_peer, run_titan  # noqa: E402
from rank_runs import MESHES, DaemonRun, RankRun, Report, read_safetensors  # noqa: E402

TESTS = Path(os.environ["TITAN_BIN"]).parent / "tests"

# In bf16 the first step is as exact as in fp32; in later steps rounding amplifies the norms' last digits (measured 1.3e-4
# and 2e-4).
BF16 = {"training.mixed_precision_param": "bfloat16", "training.steps": 3}
BF16_LOSS_LIMIT, BF16_NORM_LIMIT = 2e-3, 2e-3
BF16_ERROR_LIMIT = 1.25  # Limit of the error of a tensor's gradient with Titan's own kernels, divided by the error of torchtitan's.


def hf_weights(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def unpermute(weight, heads):
    """Reorders Hugging Face's halves to neighbouring pairs: the documented inverse, written out here."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


HF_LAYER = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
HF_MODEL = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight",
            "lm_head.weight": "output.weight"}


def from_hf(tensors, heads=16):
    """Converts Hugging Face names and layout to torchtitan's, for the debug model."""
    result = {}
    for key, value in tensors.items():
        if key in HF_MODEL:
            result[HF_MODEL[key]] = value
            continue
        _, _, layer, rest = key.split(".", 3)
        name = HF_LAYER[rest.removesuffix(".weight")]
        result[f"layers.{layer}.{name}.weight"] = unpermute(value, heads) if name.endswith(("wq", "wk")) else value
    return result


def one_step(report, weights, peer):
    """Compares the first step of the peer's run as a case of compare_with_peer."""
    (peer / "model.safetensors").symlink_to(weights / "model.safetensors")
    (peer / "case.json").write_text(json.dumps({"case": "llama3 debugmodel", "family": "llama3", "flavor": "debugmodel", "spec": {},
                                                "document_end": None, "config": None}))
    for command in (["compare_with_peer", peer, "--noise"], ["engine_with_peer", peer]):
        check = subprocess.run([TESTS / command[0], *command[1:]], stdout=subprocess.PIPE)
        rows = [json.loads(line) for line in check.stdout.splitlines()]
        for row in rows:
            if row["must_pass"]:
                print(f"one step, {row['check']}: logits {row['logits']:.3g}, gradients {row['grad']:.3g}", flush=True)
        wrong = [row["check"] for row in rows if not row["good"]]
        report.below(f"one step, {command[0]}: wrong checks", len(wrong) + (check.returncode != 0), 0)
        for name in wrong:
            print("  wrong:", name)


def in_bf16(report, folder, weights, seed, per_rank, peer_per_rank):
    """Compares torchtitan's FSDP 2 in bf16 with ours, each by the distance of its gradients from the fp32 ones
    (peer_per_rank)."""
    run_peer(folder / "peer-bf16", weights, seed, 2, BF16)
    peer = Peer(folder / "peer-bf16", same_ranks=True)
    run = run_titan(folder / "bf16", weights, "FSDP 2", {**per_rank, **BF16, "resources.kernels": "reference"})
    compare_run(report, "FSDP 2, bf16", run, peer, BF16_LOSS_LIMIT, BF16_NORM_LIMIT)
    name = "FSDP 2, bf16, Titan's kernels"
    run = run_titan(folder / "bf16-own", weights, "FSDP 2", {**per_rank, **BF16, "resources.kernels": "avx2"})
    compare_steps(report, name, run, peer, BF16_LOSS_LIMIT, BF16_NORM_LIMIT)
    compare_errors(report, name, run, peer, peer_per_rank, BF16_ERROR_LIMIT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--all", action="store_true", help="also run all meshes under daemons, and bf16")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep its files")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-parity-") as temporary:
        folder = options.keep or Path(temporary)
        weights = folder / "weights"
        run_peer(folder / "peer-1", weights, options.seed, 1)
        one_step(report, weights, folder / "peer-1")
        peer = Peer(folder / "peer-1")
        full = {"checkpoint.last_save_model_only": False}
        for mesh in [mesh for mesh in MESHES if options.all or mesh != "DDP 2"]:
            # One mesh ends with an export instead of a full checkpoint, from which the test reads its updates.
            export = mesh == "HSDP 2x2"
            run = run_titan(folder / mesh.replace(" ", "-"), weights, mesh,
                            {"checkpoint.last_save_in_hf": True} if export else full)
            compare_run(report, mesh, run, peer)
            last = run.dump / "checkpoint" / f"step-{STEPS}"
            final = from_hf(hf_weights(last)) if export else model_of(run.checkpoint(STEPS))
            compare_updates(report, mesh + (" (exported)" if export else ""), final, peer)

        run_peer(folder / "peer-2", weights, options.seed, 2)
        peer_per_rank = Peer(folder / "peer-2", same_ranks=True)
        per_rank = {**full, "training.dataloader.order": "per_rank"}

        def on_fsdp_2_per_rank(where, how):
            run = run_titan(folder / where / "per-rank", weights, "FSDP 2", per_rank, how)
            name = f"FSDP 2, per_rank order, {where}"
            compare_run(report, name, run, peer_per_rank)
            compare_updates(report, name, model_of(run.checkpoint(STEPS)), peer_per_rank)

        on_fsdp_2_per_rank("by hand", RankRun)
        with Cluster(workers=2, devices=2) as cluster:
            how = functools.partial(DaemonRun, cluster)
            for mesh in MESHES if options.all else ["HSDP 2x2"]:
                run = run_titan(folder / "daemons" / mesh.replace(" ", "-"), weights, mesh, full, how)
                compare_run(report, f"{mesh}, daemons", run, peer)
                compare_updates(report, f"{mesh}, daemons", model_of(run.checkpoint(STEPS)), peer)
            if options.all:
                on_fsdp_2_per_rank("daemons", how)

        if options.all:
            in_bf16(report, folder, weights, options.seed, per_rank, peer_per_rank)
    report.finish()


if __name__ == "__main__":
    main()
