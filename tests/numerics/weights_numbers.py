"""Tests that position parameters come with the weights: a flavor of Titan trains with those of the Hugging Face folder from which
it starts.

For each folder, written by transformers, the loss of step 1 equals that of transformers, the job resumes from its own step
without the folder, and the config.json of `titan-checkpoint export` has the same numbers. DeepSeek's YaRN acts on sequences of
any length in transformers; since transformers 4 loses half of it in the second generation, that case runs only with 5.

With model.flavor = "config.json" the folder may have any size. Then [model.override] changes its numbers: the loss equals that of
transformers with the same change, and a larger vocabulary keeps the stored rows and draws the others.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from rank_runs import ASSETS, BIN, LOSS, LocalRun, Report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from transformers_5 import is_second_run, run_again_with_5  # noqa: E402

ROWS, SEQ_LEN, LIMIT = 2, 64, 2e-6
LLAMA = dict(hidden_size=256, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16, intermediate_size=768,
             vocab_size=2048, max_position_embeddings=131072, tie_word_embeddings=False)
DEEPSEEK = dict(hidden_size=256, intermediate_size=1024, moe_intermediate_size=256, num_hidden_layers=6, num_attention_heads=16,
                num_key_value_heads=16, vocab_size=2048, max_position_embeddings=16384, n_routed_experts=8, n_shared_experts=2,
                num_experts_per_tok=3, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
                qk_rope_head_dim=64, v_head_dim=128, topk_method="greedy", n_group=1, topk_group=1)
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, mscale=0.9, mscale_all_dim=0.9, original_max_position_embeddings=32)
ANY_SIZE = dict(hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=88, vocab_size=2048,
                max_position_embeddings=256, tie_word_embeddings=True, rms_norm_eps=3e-6, rope_theta=7000.0,
                rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
# name -> flavor, model type, its config
CASES = {
    "no scaling, as Llama 3.0": ("llama3", "llama", {**LLAMA, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}),
    "linear, and the class's theta and epsilon": ("llama3", "llama", {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
}
if is_second_run():
    CASES = {"DeepSeek V2 with YaRN below its original length": ("deepseek_v3", "deepseek_v2", {**DEEPSEEK, "rope_scaling": YARN})}


def drawn(kind, config, folder):
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager").float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.5 if "embed" in name else 0.08
            parameter.copy_(torch.ones_like(parameter) if parameter.dim() == 1 else torch.randn_like(parameter) * scale)
    model.save_pretrained(folder)
    return model.eval()


def batch():
    options = {"dataset": "c4_test", "path": str(ASSETS / "c4_test"), "tokenizer": str(ASSETS / "tokenizer"), "batch": ROWS,
               "seq_len": SEQ_LEN, "order": "global", "dp_rank": 0, "dp_size": 1, "batches": 1}
    row = json.loads(subprocess.check_output([BIN.parent / "tests/dump_batches", json.dumps(options)], text=True).splitlines()[0])
    return torch.tensor(row["tokens"]), torch.tensor(row["labels"])


def loss_of(model, tokens, labels):
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(input_ids=tokens, use_cache=False).logits.flatten(0, 1), labels.flatten()).item()


def flags_of(family, weights, steps, world=1):
    return {"model.name": family, "model.flavor": "debugmodel", "training.seq_len": SEQ_LEN, "training.local_batch_size": ROWS // world,
            "training.global_batch_size": ROWS, "training.steps": steps, "training.mixed_precision_param": "float32",
            "lr_scheduler.warmup_steps": 0, "optimizer.lr": 1e-13, "optimizer.weight_decay": 0.0, "checkpoint.enable": True,
            "checkpoint.interval": 1, "checkpoint.keep_latest_k": 0, "checkpoint.last_save_model_only": False,
            "checkpoint.initial_load_in_hf": True, "checkpoint.initial_load_path": str(weights)}


def positions(config):
    """Returns the settings that determine positions, in one form for both generations of transformers."""
    table = dict(getattr(config, "rope_parameters", None) or config.rope_scaling or {})
    table["rope_theta"] = table.get("rope_theta", getattr(config, "rope_theta", None))
    table["rope_type"] = table.pop("rope_type", None) or table.get("type") or "default"
    table.pop("type", None)
    return {"rms_norm_eps": config.rms_norm_eps, **table}


def check(report, folder, name, family, kind, config):
    tokens, labels = batch()
    model = drawn(kind, config, folder / "hf")
    want = loss_of(model, tokens, labels)
    first = LocalRun(folder / "first", flags_of(family, folder / "hf", 1), 1).wait()
    report.below(f"{name}: loss of step 1", abs(first.metrics()[1][LOSS] / want - 1), LIMIT)
    shutil.rmtree(folder / "hf")  # A job with its own steps no longer needs the folder.
    LocalRun(folder / "first", flags_of(family, folder / "hf", 2, 2), 2).wait()
    step, out = folder / "first/dump/checkpoint/step-2", folder / "out"
    subprocess.run([BIN / "titan-checkpoint", "export", step, out], check=True, capture_output=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    report.below(f"{name}: loss of the export", abs(loss_of(again, tokens, labels) / want - 1), LIMIT)
    assert positions(again.config) == positions(model.config), (positions(again.config), positions(model.config))


def by_config(weights, steps, world=1, **override):
    flags = {**flags_of(None, weights, steps, world), "model.flavor": "config.json", "model.hf_assets_path": str(weights)}
    del flags["model.name"], flags["checkpoint.initial_load_path"]
    return flags | {f"model.override.{name}": value for name, value in override.items()}


def check_any_size(report, folder):
    """A Llama of a size that no flavor has, with the class's YaRN: as it is, with another theta, and with more tokens."""
    tokens, labels = batch()
    model = drawn("llama", ANY_SIZE, folder / "hf")
    for file in (ASSETS / "tokenizer").iterdir():
        shutil.copy(file, folder / "hf")
    run = LocalRun(folder / "plain", by_config(folder / "hf", 1, 2), 2).wait()
    report.below("any size: loss of step 1 on two ranks", abs(run.metrics()[1][LOSS] / loss_of(model, tokens, labels) - 1), LIMIT)
    run = LocalRun(folder / "theta", by_config(folder / "hf", 1, rope_theta=3e4), 1).wait()
    other = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", rope_theta=3e4, dtype=torch.float32).eval()
    assert abs(loss_of(other, tokens, labels) / loss_of(model, tokens, labels) - 1) > 10 * LIMIT, "theta matters"
    report.below("another theta: loss of step 1", abs(run.metrics()[1][LOSS] / loss_of(other, tokens, labels) - 1), LIMIT)
    run = LocalRun(folder / "tokens", by_config(folder / "hf", 1, 2, vocab_size=2051), 2).wait()
    subprocess.run([BIN / "titan-checkpoint", "export", folder / "tokens/dump/checkpoint/step-1", folder / "out"], check=True, capture_output=True)
    grown = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32).eval()
    rows, stored = grown.get_input_embeddings().weight.detach(), model.get_input_embeddings().weight.detach()
    assert rows.shape == (2051, ANY_SIZE["hidden_size"]), rows.shape
    assert torch.equal(rows[:2048], stored), "the stored rows"
    deviation = ANY_SIZE["hidden_size"] ** -0.5  # A tied embedding is drawn like the head.
    assert 0.7 * deviation < rows[2048:].std() < 1.3 * deviation, rows[2048:].std()
    report.below("more tokens: loss of step 1 on two ranks", abs(run.metrics()[1][LOSS] / loss_of(grown, tokens, labels) - 1), LIMIT)


def main():
    torch.set_num_threads(1)
    report = Report()
    for name, (family, kind, config) in CASES.items():
        with tempfile.TemporaryDirectory(prefix="titan-weights-") as folder:
            check(report, Path(folder), name, family, kind, config)
    if not is_second_run():
        with tempfile.TemporaryDirectory(prefix="titan-weights-") as folder:
            check_any_size(report, Path(folder))
    report.finish()
    run_again_with_5()


main()
