"""Compares families that torchtitan lacks with transformers' classes: both start from the same random weights in a Hugging Face
folder, and their losses, gradient norms and three steps of AdamW agree in double precision. The trained model's export then
opens in transformers without a missing or surplus tensor and has the trained weights.

    decoder_families.py [--long] [FAMILY ...]

Weights are large and biases are not zero, so that a missing factor, norm or bias changes the loss. --long also trains in float32 and on
two ranks.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from rank_runs import ASSETS, BIN, LOSS, NORM, LocalRun, Report

FAMILIES = ["mistral", "mixtral", "qwen2", "smollm3", "phi3", "olmo2", "glm4", "gemma2", "gemma3", "granite"]
STEPS, ROWS, SEQ_LEN, CLIP = 3, 2, 96, 1.0  # Rows are longer than the debug flavors' windows.
RATE, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
# Relative. transformers' experts and its tables of RoPE compute partly in float32.
# Adam's first updates have the size of the learning rate, whatever the gradient, so that numbers of float32 near 0 choose
# other updates: there only the first step is compared.
STEPS_OF, LIMITS = {"float64": 3, "float32": 1}, {"float64": 1e-9, "float32": 1e-4}


class InDouble:
    """Makes transformers compute in double what it always computes in single precision: norms, softmax and RoPE."""

    def __enter__(self):
        self.saved = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *error):
        torch.float32, torch.float, torch.Tensor.float = self.saved


def configs():
    lines = subprocess.check_output([BIN.parent / "tests/list_hf_tensors", "100"], text=True).splitlines()
    return {row["name"]: row["config"] for row in map(json.loads, lines) if row["flavor"] == "debugmodel"}


def drawn(config):
    """Random weights with gains of 2 to 3, and vectors around 1, or around 0 where a norm adds 1."""
    config = dict(config)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config.pop("model_type"), **config), attn_implementation="eager")
    centre = 0.0 if config["architectures"][0].startswith("Gemma") else 1.0
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.3 + (centre if "norm" in name else 0.0))
            else:
                gain = 1.0 if "embed" in name or "lm_head" in name else 2.5
                parameter.copy_(noise * gain / parameter.shape[-1] ** 0.5)
    return model


def batches():
    options = {"dataset": "c4_test", "path": str(ASSETS / "c4_test"), "tokenizer": str(ASSETS / "tokenizer"), "batch": ROWS,
               "seq_len": SEQ_LEN, "order": "global", "dp_rank": 0, "dp_size": 1, "batches": STEPS}
    lines = subprocess.check_output([BIN.parent / "tests/dump_batches", json.dumps(options)], text=True)
    return [(torch.tensor(row["tokens"]), torch.tensor(row["labels"])) for row in map(json.loads, lines.splitlines())]


def train(model, data):
    """Returns losses and norms of the steps, as Titan's job computes them."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)
    rows = {}
    for step, (tokens, labels) in enumerate(data, 1):
        optimizer.zero_grad()
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        for parameter in parameters:
            if parameter.grad is None:  # An expert without tokens: weight decay applies to it as to all others.
                parameter.grad = torch.zeros_like(parameter)
        norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        rows[step] = {LOSS: loss.item(), NORM: norm.item()}
    return rows


def flags_of(family, weights, dtype, world):
    return {"model.name": family, "model.flavor": "debugmodel", "training.dtype": dtype, "training.seq_len": SEQ_LEN,
            "training.local_batch_size": ROWS // world, "training.global_batch_size": ROWS, "training.steps": STEPS,
            "training.max_norm": CLIP, "lr_scheduler.warmup_steps": 0, "lr_scheduler.decay_ratio": 0.0,
            "optimizer.lr": RATE, "optimizer.weight_decay": DECAY, "checkpoint.enable": True,
            "checkpoint.interval": STEPS, "checkpoint.last_save_model_only": False, "checkpoint.initial_load_in_hf": True,
            "checkpoint.initial_load_path": str(weights),
            **({} if dtype == "float64" else {"training.mixed_precision_param": "float32"})}


def check_export(report, name, step, folder, model):
    subprocess.run([BIN / "titan-checkpoint", "export", step, folder], check=True, capture_output=True)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (name, kind, info[kind])
    want, got = model.state_dict(), again.state_dict()
    assert want.keys() == got.keys()
    if model.dtype != torch.float64:
        return
    worst = max(((got[key].double() - value.double()).norm() / value.double().norm()).item() for key, value in want.items())
    report.below(f"{name}: weights of the export", worst, 2e-6)


def check(report, family, config, data, dtype, world):
    with tempfile.TemporaryDirectory(prefix="titan-families-") as folder:
        folder = Path(folder)
        model = drawn(config)
        model.save_pretrained(folder / "hf")
        name = f"{family}, {dtype}, {world} rank{'s'[:world - 1]}"
        run = LocalRun(folder / "run", flags_of(family, folder / "hf", dtype, world), world)
        if dtype == "float64":
            with InDouble():
                model = drawn(config).double()
                scaled = getattr(model.model.embed_tokens, "embed_scale", None)
                if scaled is not None:  # Gemma 3 rounds the root of the width to float32.
                    scaled.fill_(config["hidden_size"] ** 0.5)
                want = train(model, data)
        else:
            want = train(model, data)
        run.wait()
        report.same_curves(name, run.metrics(), want, STEPS_OF[dtype], LIMITS[dtype])
        check_export(report, name, folder / f"run/dump/checkpoint/step-{STEPS}", folder / "out", model)


def main():
    torch.set_num_threads(1)
    long, chosen = "--long" in sys.argv, [word for word in sys.argv[1:] if word != "--long"] or FAMILIES
    report, known, data = Report(), configs(), batches()
    for family in chosen:
        for dtype, world in [("float64", 1), *([("float32", 1), ("float64", 2)] if long else [])]:
            check(report, family, known[family], data, dtype, world)
    report.finish()


main()
