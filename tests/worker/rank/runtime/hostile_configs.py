"""Tries random configurations of the whole mesh, most of them with some error. If `titanctl validate` refuses one, it must name the
key; if it accepts one, a dry step of one rank must run (comm.mode = "fake_backend"). Some with few ranks also train two real
steps, with all ranks as threads (comm.mode = "local_tensor"), on a small model of the family from a library. Only ranks know that
model's sizes, so a rank may refuse what does not fit, and must name the key, too.

--seed repeats a run, --case N runs only one case.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "numerics"))
from rank_runs import ASSETS, BIN, small_model, to_toml  # noqa: E402

MODELS = [("llama3", "debugmodel"), ("llama4", "debugmodel"), ("llama4", "debugmodel_irope"), ("deepseek_v3", "debugmodel"),
          ("qwen3", "debugmodel"), ("qwen3", "debugmodel_moe"), ("gpt_oss", "debugmodel")]
SMALL = {("llama4", "debugmodel_irope"): "llama4_irope", ("qwen3", "debugmodel_moe"): "qwen3_moe"}
REAL_RANKS = 8
BAD_CONFIG = 10  # rank_protocol::kExitBadConfig
SCHEDULES = ["1F1B", "gpipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "1F2B",
             "PipelineScheduleMulti"]
PARTS = [[["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "layers.4", "layers.5", "norm", "output"]],
         [["tok_embeddings"], ["layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5"], [], ["norm", "output"]],
         [["tok_embeddings", "layers.0", "layers.1", "layers.2"], ["layers.3"], ["layers.4", "layers.5"], ["norm", "output"]]]


def often(dice, usual, *others, chance=0.3):
    return dice.choice(others) if dice.random() < chance else usual


def random_config(dice):
    name, flavor = dice.choice(MODELS)
    pp, rep, fsdp, cp, tp = (often(dice, 1, 2, 2, 2, 3, 4, 8, chance=0.4) for _ in range(5))
    ranks = pp * rep * fsdp * cp * tp
    local = dice.choice([1, 2, 2, 3, 4, 4, 6, 8])
    config = {
        "model.name": name, "model.flavor": flavor,
        "resources.ranks": often(dice, ranks, ranks + 1, max(1, ranks // 2), chance=0.05),
        "parallelism.pipeline_parallel_degree": pp,
        "parallelism.data_parallel_replicate_degree": rep,
        "parallelism.data_parallel_shard_degree": often(dice, fsdp, -1, chance=0.3),
        "parallelism.context_parallel_degree": cp,
        "parallelism.tensor_parallel_degree": tp,
        "parallelism.expert_parallel_degree": often(dice, 1, 2, 2, 4, 8, 3, fsdp * cp, fsdp * cp * tp, chance=0.4),
        "parallelism.expert_tensor_parallel_degree": dice.choice([1, tp, tp]),
        "parallelism.expert_parallel_dispatcher": dice.choice(["alltoall", "allgather"]),
        "parallelism.pipeline_parallel_schedule": often(dice, "1F1B", *SCHEDULES, chance=0.7),
        "parallelism.pipeline_parallel_microbatch_size": often(dice, 1, 2, 3, 4),
        "parallelism.pipeline_parallel_first_stage_less_layers": often(dice, 1, 0, 2, 3, chance=0.2),
        "parallelism.pipeline_parallel_last_stage_less_layers": often(dice, 1, 0, 2, 3, chance=0.2),
        "parallelism.pipeline_parallel_expert_parallel_overlap": dice.random() < 0.7,
        "parallelism.fsdp_reshard_after_forward": dice.choice(["default", "always", "never"]),
        "parallelism.enable_sequence_parallel": dice.random() < 0.7,
        "parallelism.disable_loss_parallel": dice.random() < 0.3,
        "parallelism.enable_async_tensor_parallel": dice.random() < 0.3,
        "parallelism.context_parallel_load_balancer": often(dice, "headtail", "ptrr", "None"),
        "parallelism.context_parallel_rotate_method": dice.choice(["allgather", "alltoall"]),
        "training.local_batch_size": local,
        "training.global_batch_size": often(dice, -1, local * rep * fsdp, 2 * local * rep * fsdp, 12, chance=0.3),
        "training.seq_len": often(dice, 64, 32, 48, 96, 100, 33, 1),
        "training.dtype": often(dice, "float32", "bfloat16", "float64", chance=0.2),
        "training.mixed_precision_param": dice.choice(["bfloat16", "float32"]),
        "training.enable_cpu_offload": dice.random() < 0.2,
        "training.nonfinite_policy": often(dice, "fail", "skip", chance=0.2),
        "compile.enable": often(dice, False, True, chance=0.3),
        "compile.graphs": often(dice, "auto", "off", chance=0.3),
        "training.read_step": often(dice, "auto", "late", "at_once", chance=0.3),
        "optimizer.early_step_in_backward": dice.random() < 0.15,
        "optimizer.name": dice.choice(["AdamW", "Adam"]),
        "optimizer.implementation": dice.choice(["fused", "foreach", "for-loop"]),
        "activation_checkpoint.mode": dice.choice(["none", "full", "selective", "selective", "memory_budget"]),
        "activation_checkpoint.selective_ac_option": often(dice, "op", "0", "1", "3", "-1", "layers"),
        "activation_checkpoint.memory_budget": dice.choice([0.0, 0.3, 0.5, 1.0]),
        "debug.moe_force_load_balance": dice.random() < 0.2,
        "checkpoint.enable": dice.random() < 0.5,
        "checkpoint.last_save_model_only": dice.random() < 0.5,
        "checkpoint.async_mode": dice.choice(["disabled", "async", "async_with_pinned_mem"]),
        "validation.enable": dice.random() < 0.3,
        "validation.local_batch_size": often(dice, local, 1, 2, 5, chance=0.5),
        "validation.seq_len": often(dice, 64, 32, 128, 30),
    }
    if dice.random() < 0.15:
        config["parallelism.pipeline_parallel_layers_per_stage"] = dice.choice([1, 2, 3, 4, 9])
    if dice.random() < 0.05:
        config["parallelism.module_fqns_per_model_part"] = dice.choice(PARTS)
    if dice.random() < 0.1:
        config["activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"] = dice.choice(
            [[], ["attention.wq"], ["moe.router.gate", "feed_forward"], ["atention.wo"]])
    if dice.random() < 0.15:
        config["activation_checkpoint.layers"] = dice.choice([[], [0], [1, 3], [3, 1], [2, 2], [-1], [99]])
    return config


class Fuzz:
    def __init__(self, folder, seed, real):
        self.folder, self.seed, self.real_wanted = folder, seed, real
        self.accepted = self.refused = self.real = 0
        self.failures = []

    def run(self, *words):
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)

    def fail(self, case, config, what, done):
        self.failures.append(case)
        print(f"--- case {case} (--seed {self.seed} --case {case}): {what}, exit {done.returncode}\n{done.stderr[-3000:]}"
              f"{done.stdout[-1000:]}\n{to_toml(config)}", flush=True)

    def explained(self, output):
        """Returns whether every problem names its key."""
        problems = [line for line in output.splitlines() if line.strip()]
        return problems and all(re.search(r"\b([a-z_]+\.[a-z_]+|parallelism)( = .*)?: |warning: ", line) for line in problems)

    def case(self, case):
        dice = random.Random(f"{self.seed}/{case}")
        config = random_config(dice)
        config |= {"training.steps": 2, "lr_scheduler.warmup_steps": 1, "metrics.enable_tensorboard": False,
                   "job.dump_folder": str(self.folder / str(case)), "model.hf_assets_path": str(ASSETS / "tokenizer"),
                   "training.dataset": "c4_test", "training.dataset_path": str(ASSETS / "c4_test"), "validation.freq": 1,
                   "validation.steps": 1, "validation.dataset": "c4_test", "validation.dataset_path": str(ASSETS / "c4_test"),
                   "resources.threads_per_rank": 1}
        path = self.folder / f"{case}.toml"
        path.write_text(to_toml(config))
        checked = self.run(BIN / "titanctl", "validate", path)
        if checked.returncode != 0:
            self.refused += 1
            if checked.returncode != 2 or not self.explained(checked.stderr + checked.stdout):
                self.fail(case, config, "refused without a key", checked)
            return
        self.accepted += 1
        ranks = config["resources.ranks"]
        done = self.run(BIN / "titan-rank", "--config", path, "--comm.mode", "fake_backend", "--rank", dice.randrange(ranks),
                        "--json")
        if done.returncode != 0:
            self.fail(case, config, "dry step", done)
        if 1 < ranks <= REAL_RANKS and self.real < self.real_wanted:
            self.train(case, config)

    def train(self, case, config):
        name, flavor = config["model.name"], config["model.flavor"]
        small = config | small_model(SMALL.get((name, flavor), name)) | {"comm.mode": "local_tensor"}
        path = self.folder / f"{case}-small.toml"
        path.write_text(to_toml(small))
        done = self.run(BIN / "titan-rank", "--config", path)
        if done.returncode == 0:
            self.real += 1
        elif done.returncode != BAD_CONFIG or not re.search(r"^titan-rank: .*(parallelism|training)\.", done.stderr, re.M):
            self.fail(case, small, "real steps", done)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accepted", type=int, default=100, help="configurations to run")
    parser.add_argument("--real", type=int, default=20, help="of them with real steps too")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    with tempfile.TemporaryDirectory(prefix="titan-hostile-") as temporary:
        fuzz = Fuzz(Path(temporary), options.seed, options.real)
        if options.case is not None:
            fuzz.case(options.case)
        case = 0
        while options.case is None and fuzz.accepted < options.accepted:
            fuzz.case(case)
            case += 1
    used = os.times()
    print(f"{fuzz.refused} refused, {fuzz.accepted} accepted and run, {fuzz.real} of them with real steps; "
          f"{used.children_user + used.children_system:.0f} s of processor time")
    if options.case is None and fuzz.real < options.real / 2:
        raise SystemExit(f"only {fuzz.real} configurations took real steps")
    if fuzz.failures:
        raise SystemExit(f"cases {fuzz.failures} of seed {options.seed} failed")


if __name__ == "__main__":
    main()
