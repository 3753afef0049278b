"""Compares ten training steps of every model with its oracle, live, through titan-rank, with random weights (--seed repeats
them).

  TITAN_BIN=... TITAN_SOURCE=... TITAN_DEPS=... golden_training.py [--seed S] [--cases a,b] [--meshes "1 rank,EP 2"] [--keep FOLDER]

tests/peer/ten_steps.py trains the small models of tests/peer/oracle_models.py in torchtitan's Trainer or in transformers'
classes. titan-rank trains the same models from the same Hugging Face weights and text (golden_plugin.cc describes them), on 1
rank and on other meshes, one of them against torchtitan's own expert parallelism. Compared are loss and gradient norm of every
step, and for torchtitan also the first step's gradients (from Adam's first moment) and the movement of the biases that balance
experts. In the first step no router is close to another choice; later, rounding may route a token to another expert, so these
models have wider limits.

--cases also takes torchtitan's debug models, which need minutes: llama4_debug, deepseek_v3_debug, qwen3_debug.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from peer_runs import LOSS_LIMIT, NORM_LIMIT, SOURCE, STEPS, Peer, compare_run, compare_steps, compare_updates, model_of
from rank_runs import ASSETS, RankRun, Report, relative_rms

PLUGIN = Path(os.environ["TITAN_BIN"]).parent / "tests/libgolden_plugin.so"
ROWS, SEQ_LEN = 8, 40
MOE_LOSS_LIMIT, MOE_NORM_LIMIT, BIAS_LIMIT = 1e-3, 1e-2, 0.3

# name -> flags, ranks, and data-parallel ranks
MESHES = {"1 rank": ({}, 1, 1),
          "TP 2": ({"parallelism.tensor_parallel_degree": 2}, 2, 1),
          "PP 2": ({"parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_schedule": "1F1B"}, 2, 1),
          "EP 2": ({"parallelism.data_parallel_shard_degree": 2, "parallelism.expert_parallel_degree": 2}, 2, 2),
          "EP 2 compared with torchtitan's": ({"parallelism.data_parallel_shard_degree": 2, "parallelism.expert_parallel_degree": 2,
                                        "training.dataloader.order": "per_rank"}, 2, 2)}

TORCHTITAN_EP = "EP 2 compared with torchtitan's"
# Meshes to run in addition to 1 rank.
CASES = {"llama3_torchtitan": ["TP 2", "PP 2"],
         "llama4_torchtitan": ["TP 2", TORCHTITAN_EP],
         "llama4_irope_transformers": ["TP 2"],
         "llama4_released_transformers": ["EP 2"],
         "deepseek_v2_torchtitan": [TORCHTITAN_EP],
         "deepseek_v3_torchtitan": ["TP 2", "PP 2", TORCHTITAN_EP],
         "deepseek_v3_transformers": ["EP 2"],
         "qwen3_torchtitan": ["TP 2"],
         "qwen3_transformers": ["PP 2"],
         "qwen3_moe_torchtitan": [TORCHTITAN_EP],
         "qwen3_moe_transformers": ["TP 2", "EP 2"],
         "gpt_oss_transformers": ["TP 2", "EP 2"]}
DEBUG_CASES = {"llama4_debug": ["TP 2", TORCHTITAN_EP], "deepseek_v3_debug": ["TP 2", TORCHTITAN_EP], "qwen3_debug": ["TP 2"]}


def run_oracles(folder, seed, cases, *extra):
    command = [sys.executable, SOURCE / "tests/peer/ten_steps.py", folder, "--assets", ASSETS, "--seed", seed, "--steps", STEPS,
               "--cases", ",".join(cases), *extra]
    with open(folder / "oracles.log", "a+") as log:
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=log, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(done.stdout, end="", flush=True)
        if done.returncode:
            log.seek(0)
            sys.exit(f"the oracles failed:\n{log.read()[-4000:]}")


def balance(about):
    """Whether steps move the biases that balance experts, as in the oracle. Qwen3 has none by default, as in torchtitan."""
    experts = any(key.startswith("moe.") for key in about["spec"])
    if about["library"] == "transformers":
        return {"model.load_balance_coeff": 0} if experts else {}
    return {"model.load_balance_coeff": 1e-3} if about["family"] in ("deepseek_v3", "llama4", "gpt_oss") else {}


def train(folder, case, mesh):
    flags, world, data_parallel = MESHES[mesh]
    # No oracle here limits attention to documents; the flavors of some cases would.
    return RankRun(folder, {"model.name": case.name, "model.flavor": "golden", "model.attn_mask_type": "causal",
                            "experimental.custom_import": PLUGIN, "training.seq_len": SEQ_LEN, "training.steps": STEPS,
                            "training.local_batch_size": ROWS // data_parallel, "training.mixed_precision_param": "float32",
                            "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "none", "checkpoint.enable": True,
                            "checkpoint.initial_load_path": case, "checkpoint.initial_load_in_hf": True,
                            "checkpoint.enable_first_step_checkpoint": True, "checkpoint.interval": STEPS + 1,
                            "checkpoint.last_save_model_only": False, **balance(json.loads((case / "case.json").read_text())), **flags},
                   world).wait()  # fmt: skip


def compare(report, folder, case, mesh):
    about = json.loads((case / "case.json").read_text())
    experts = any(key.startswith("moe.") for key in about["spec"])
    limits = (MOE_LOSS_LIMIT, MOE_NORM_LIMIT) if experts else (LOSS_LIMIT, NORM_LIMIT)
    beside_ep = mesh == TORCHTITAN_EP
    peer = Peer(case.with_name(f"{case.name}.{2 if beside_ep else 1}"), same_ranks=beside_ep)
    run = train(folder, case, mesh)
    name = f"{case.name}, {mesh}"
    if experts:
        compare_steps(report, f"{name}, first step", run, peer, LOSS_LIMIT, NORM_LIMIT, steps=1)
    if about["library"] == "transformers":  # Its names differ; golden_models compares gradients.
        compare_steps(report, name, run, peer, *limits)
        return
    compare_run(report, name, run, peer, *limits)
    if not experts:
        compare_updates(report, name, model_of(run.checkpoint(STEPS)), peer)
        return
    biases = [fqn for fqn in peer.final if fqn.endswith("expert_bias")]
    last = run.checkpoint(STEPS)
    if about["family"] == "qwen3":
        still = [bool((last["model." + fqn] == peer.initial[fqn]).all() and (peer.updates[fqn] == 0).all()) for fqn in biases]
        report.below(f"{name}: experts' biases that moved, of both", still.count(False), 0)
        return
    moved = [relative_rms(last["model." + fqn] - peer.initial[fqn], peer.updates[fqn]) for fqn in biases]
    report.below(f"{name}: movement of the experts' biases, worst layer", max(moved), BIAS_LIMIT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--meshes", default=",".join(MESHES))
    parser.add_argument("--keep", type=Path, help="work in this folder and keep its files")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    cases, wanted, meshes = options.cases.split(","), options.meshes.split(","), {**CASES, **DEBUG_CASES}
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-training-") as temporary:
        folder = options.keep or Path(temporary)
        oracles = folder / "oracles"
        oracles.mkdir(parents=True)
        run_oracles(oracles, options.seed, cases)
        if TORCHTITAN_EP in wanted and (again := [case for case in cases if TORCHTITAN_EP in meshes[case]]):
            run_oracles(oracles, options.seed, again, "--expert-parallel", 2)
        os.environ["TITAN_GOLDEN_CASES"] = ":".join(str(oracles / case / "case.json") for case in cases)
        for case in cases:
            for number, mesh in enumerate(["1 rank", *meshes[case]]):
                if mesh in wanted:
                    compare(report, folder / case / str(number), oracles / case, mesh)
    report.finish()


main()
