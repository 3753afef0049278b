"""Compares adapters with the PEFT library: titan-rank and transformers with peft train a small Llama from the same base.

PEFT starts from Titan's step 1 with its optimizer state, and both train five more steps. Compared are losses, norms, the
gradients of every matrix (from Adam's first moment) and the results. Then the way back: the exported adapter and the merged model
in PEFT and transformers, resuming from a checkpoint on another mesh, and from another base. With 4-bit weights PEFT's base is the
one that bitsandbytes dequantizes.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from rank_runs import ASSETS, BIN, LOSS, NORM, LocalRun, Report, relative_rms
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

STEPS, ROWS, SEQ_LEN, RANK, ALPHA = 6, 4, 64, 4, 12.0
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
# The two programs add in different orders in fp32. Limits of gradients and matrices are relative rms.
LOSS_LIMIT, GRADIENT_LIMIT, MATRIX_LIMIT, LOGIT_LIMIT = 2e-6, 2e-4, 2e-4, 2e-5
NAMES = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
         "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
         "feed_forward.w3": "mlp.up_proj"}
HEADS = {"attention.wq": 16, "attention.wk": 16}


def clear_of_ties(weight):
    """Moves numbers away from the middle of two 4-bit values, where two programs' last digits decide."""
    from bitsandbytes.functional import get_4bit_type
    numbers = get_4bit_type("nf4", device="cpu")
    blocks = weight.view(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True)
    middles = (numbers[1:] + numbers[:-1]) / 2
    for middle in middles:
        tied = ((blocks / scales - middle).abs() < 1e-5)
        blocks.copy_(torch.where(tied, (middle + 1e-4) * scales, blocks))


def tiny_llama(folder):
    """The debugmodel of llama3, with weights large enough to matter."""
    torch.manual_seed(3)
    config = LlamaConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16,
                         intermediate_size=768, vocab_size=2048, rms_norm_eps=1e-5, rope_theta=500000.0,
                         max_position_embeddings=2048, tie_word_embeddings=False,
                         rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                       "original_max_position_embeddings": 8192})
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.5 if "embed" in name else 0.06
            parameter.copy_(torch.ones_like(parameter) if parameter.dim() == 1 else torch.randn_like(parameter) * scale)
            if "proj" in name:
                clear_of_ties(parameter)
    model.save_pretrained(folder)
    return model


def flags_of(base, targets, form):
    return {"model.name": "llama3", "model.flavor": "debugmodel", "model.converters": ["lora"], "lora.rank": RANK,
            "lora.alpha": ALPHA, "lora.targets": targets, "lora.base": form, "training.seq_len": SEQ_LEN,
            "training.local_batch_size": ROWS, "training.global_batch_size": ROWS, "training.steps": STEPS,
            "training.mixed_precision_param": "float32", "lr_scheduler.warmup_steps": 2, "lr_scheduler.total_steps": STEPS,
            "optimizer.lr": 5e-3, "activation_checkpoint.mode": "none", "checkpoint.enable": True, "checkpoint.interval": 1,
            "checkpoint.keep_latest_k": 0, "checkpoint.last_save_model_only": False, "checkpoint.initial_load_in_hf": True,
            "checkpoint.initial_load_path": str(base)}


def batches():
    options = {"dataset": "c4_test", "path": str(ASSETS / "c4_test"), "tokenizer": str(ASSETS / "tokenizer"), "batch": ROWS,
               "seq_len": SEQ_LEN, "order": "global", "dp_rank": 0, "dp_size": 1, "batches": STEPS}
    lines = subprocess.check_output([BIN.parent / "tests/dump_batches", json.dumps(options)], text=True)
    return [(torch.tensor(row["tokens"]), torch.tensor(row["labels"])) for row in map(json.loads, lines.splitlines())]


def titan_name(peft_name):
    """Returns layers.0.attention.wq.lora_A.weight for base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight."""
    name = peft_name.removeprefix("base_model.model.model.").replace(".default", "")
    for ours, theirs in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def as_there(name, tensor):
    """Returns a tensor of Titan's checkpoint with the rows in Hugging Face's order."""
    tensor = torch.from_numpy(numpy.array(tensor))  # A copy: the optimizer changes it.
    heads = next((count for layer, count in HEADS.items() if layer in name), 0)
    if not heads or "lora_B" not in name:
        return tensor
    rows, columns = tensor.shape
    return tensor.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


class Peft:
    """The same training, starting after Titan's step 1."""

    def __init__(self, model, targets, state):
        names = [theirs.split(".")[1] for ours, theirs in NAMES.items()
                 if any(target in ("*", ours, *ours.split(".")) for target in targets)]
        self.model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names, task_type="CAUSAL_LM"))
        self.parameters = {titan_name(name): parameter for name, parameter in self.model.named_parameters()
                           if parameter.requires_grad}
        trained = {key.removeprefix("model.") for key in state if key.startswith("model.")}
        assert set(self.parameters) == trained, sorted(set(self.parameters) ^ trained)[:6]
        self.optimizer = torch.optim.AdamW(list(self.parameters.values()), lr=1e-3, betas=BETAS, eps=EPS, weight_decay=DECAY)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(as_there(name, state["model." + name]))
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(state["optim.step"])),
                    "exp_avg": as_there(name, state["optim.exp_avg." + name]),
                    "exp_avg_sq": as_there(name, state["optim.exp_avg_sq." + name])}

    def step(self, tokens, labels, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        logits = self.model(input_ids=tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), CLIP)
        self.optimizer.step()
        return loss.item(), norm.item()


def in_four_bits(model):
    """Replaces every matrix inside the layers by its 4-bit value of bitsandbytes."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                packed, state = quantize_4bit(parameter.data, blocksize=64, quant_type="nf4")
                parameter.copy_(dequantize_4bit(packed, state))


def compare_training(report, folder, base, targets, form):
    """Compares five steps of both; returns Titan's run and PEFT's model."""
    run = LocalRun(folder, flags_of(base, targets, form), 1).wait()
    metrics, states = run.metrics(), {step: run.checkpoint(step) for step in range(1, STEPS + 1)}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if form == "nf4":
        in_four_bits(model)
    peft = Peft(model, targets, states[1])
    losses = norms = gradients = 0.0
    for step, (tokens, labels) in enumerate(batches(), 1):
        if step == 1:
            continue
        loss, norm = peft.step(tokens, labels, metrics[step]["lr"])
        losses = max(losses, abs(loss / metrics[step][LOSS] - 1))
        norms = max(norms, abs(norm / metrics[step][NORM] - 1))
        for name, parameter in peft.parameters.items():
            before, after = (states[at]["optim.exp_avg." + name] for at in (step - 1, step))
            got = as_there(name, (after - BETAS[0] * before) / (1 - BETAS[0]))
            gradients = max(gradients, relative_rms(got.numpy(), parameter.grad.numpy()))
    what = f"{form}, {', '.join(targets)}: "
    report.below(what + "loss of five steps", losses, LOSS_LIMIT)
    report.below(what + "norm of five steps", norms, GRADIENT_LIMIT)
    report.below(what + "gradient of each matrix", gradients, GRADIENT_LIMIT)
    matrices = max(relative_rms(as_there(name, states[STEPS]["model." + name]).numpy(), parameter.detach().numpy())
                   for name, parameter in peft.parameters.items())
    report.below(what + "each matrix in the end", matrices, MATRIX_LIMIT)
    first, last = metrics[1][LOSS], metrics[STEPS][LOSS]
    report.below(what + "share of the first loss that is left", last / first, 0.995)
    return run, peft


def tool(*words, expect=0):
    done = subprocess.run([BIN / "titan-checkpoint", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == expect, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def compare_exports(report, folder, base, run, peft):
    step, tokens = run.dump / f"checkpoint/step-{STEPS}", batches()[0][0]
    peft.model.eval()
    with torch.no_grad():
        want = peft.model(input_ids=tokens).logits
    tool("export", step, folder / "adapter", "--format", "peft", "--base", base)
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert config["target_modules"] == sorted(theirs.split(".")[1] for theirs in NAMES.values()), config["target_modules"]
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder / "adapter").eval()
    with torch.no_grad():
        report.below("logits of the exported adapter", relative_rms(loaded(input_ids=tokens).logits.numpy(), want.numpy()), LOGIT_LIMIT)
        tool("export", step, folder / "merged", "--merge")  # The base is found where the job loaded it from.
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).eval()
        by_peft = loaded.merge_and_unload().state_dict()
        ours = merged.state_dict()
        assert set(by_peft) == set(ours)
        report.below("merged weights compared with PEFT's", max(relative_rms(ours[key].numpy(), by_peft[key].numpy()) for key in ours), 1e-7)
        report.below("logits of the merged model", relative_rms(merged(input_ids=tokens).logits.numpy(), want.numpy()), LOGIT_LIMIT)
    # titan-generate adds the adapters itself, on several ranks too.
    prompt = ["--prompt-tokens", " ".join(map(str, tokens[0, :12].tolist())), "--max-new-tokens", 8, "--ignore-eos", "-o", "json", "-q"]
    texts = [subprocess.run([BIN / "titan-generate", "--checkpoint", *map(str, [*where, *prompt])], check=True, capture_output=True, text=True).stdout
             for where in ([folder / "merged"], [step], [step, "--tensor-parallel", 2], [step, "--base", base])]
    made = [json.loads(text)["tokens"] for text in texts]
    assert made.count(made[0]) == len(made), made
    without = subprocess.run([BIN / "titan-generate", "--checkpoint", *map(str, [base, *prompt])], check=True, capture_output=True, text=True).stdout
    assert json.loads(without)["tokens"] != made[0], "the adapters change the text"
    # The base may be a step of Titan, and errors name mistakes.
    tool("import", base, folder / "seed/step-0", "--model", "llama3", "--flavor", "debugmodel")
    tool("export", step, folder / "again", "--merge", "--base", folder / "seed/step-0")
    one, other = (load_file(folder / name / "model-00001-of-00001.safetensors") for name in ("merged", "again"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert "--format peft" in tool("export", step, folder / "none", expect=1)
    assert "no adapters" in tool("export", folder / "seed/step-0", folder / "none", "--format", "peft", expect=1)
    assert "nowhere" in tool("export", step, folder / "none", "--merge", "--base", folder / "nowhere", expect=3)
    assert not (folder / "none").exists()


def go_on(run, folder, world, **flags):
    """Resumes the run's folder after step 3 on another mesh."""
    step = run.dump / "checkpoint"
    dump = folder / "dump"
    dump.mkdir(parents=True)
    (dump / "checkpoint").mkdir()
    subprocess.check_call(["cp", "-r", step / "step-3", dump / "checkpoint/step-3"])
    rows = {"parallelism.data_parallel_shard_degree": world, "training.local_batch_size": ROWS // world} if "mesh" not in flags else {}
    return LocalRun(folder, {**run.flags, **rows, **flags.get("mesh", {}), **flags.get("more", {})}, world)


def compare_resumption(report, folder, run, what):
    want = run.metrics()
    meshes = {"FSDP 2": go_on(run, folder / "fsdp", 2),
              "TP 2": go_on(run, folder / "tp", 2, mesh={"parallelism.tensor_parallel_degree": 2})}
    for name, again in meshes.items():
        got = again.wait().metrics()
        assert min(got) == 4, sorted(got)
        worst = max(abs(got[step][LOSS] / want[step][LOSS] - 1) for step in got)
        report.below(f"{what}: loss of steps 4 to 6, resumed on {name}", worst, LOSS_LIMIT)


def refused(run, folder, more, text):
    again = go_on(run, folder, 1, more=more)
    try:
        again.wait()
    except RuntimeError:
        printed = (folder / "rank-0.out").read_text()
        assert text in printed, printed[-2000:]
        return
    raise AssertionError(f"{more} was not refused")


def compare_experts(report, folder):
    """Every expert has a separate adapter: PEFT's modules of DeepSeek V3's experts, merged by PEFT and by Titan."""
    model = {"model.name": "deepseek_v3", "model.flavor": "debugmodel", "debug.seed": 4}
    seed = LocalRun(folder / "seed", {**model, "checkpoint.enable": True, "checkpoint.create_seed_checkpoint": True}, 1).wait()
    base = folder / "base"
    tool("export", seed.dump / "checkpoint/step-0", base)
    flags = {**flags_of(base, ["moe.experts", "shared_experts"], "compute"), **model, "training.steps": 3, "lr_scheduler.total_steps": 3,
             "training.local_batch_size": 2, "training.global_batch_size": 4, "parallelism.expert_parallel_degree": 2}
    run = LocalRun(folder / "run", flags, 2).wait()
    step = run.dump / "checkpoint/step-3"
    tool("export", step, folder / "adapter", "--format", "peft", "--base", base)
    tool("export", step, folder / "merged", "--merge")
    named = json.loads((folder / "adapter/adapter_config.json").read_text())["target_modules"]
    assert "gate_proj" not in named and "model.layers.1.mlp.experts.3.gate_proj" in named, named[:9]  # The first layer has no experts.
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {key: value.clone() for key, value in whole.state_dict().items()}
    by_peft = PeftModel.from_pretrained(whole, folder / "adapter").merge_and_unload().state_dict()
    ours = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).state_dict()
    assert set(by_peft) == set(ours) == set(before)
    report.below("experts: merged weights compared with PEFT's", max(relative_rms(ours[key].numpy(), by_peft[key].numpy()) for key in ours), 1e-7)
    moved = {key for key in ours if not torch.equal(ours[key], before[key])}
    adapted = {key for key in ours if "experts" in key and "proj" in key}
    assert moved <= adapted and len(moved) > len(adapted) / 2, sorted(moved ^ adapted)[:9]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="work in this folder and keep its files")
    options = parser.parse_args()
    torch.set_num_threads(2)
    report = Report()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        base = root / "base"
        tiny_llama(base)
        run, peft = compare_training(report, root / "whole", base, ["attention", "feed_forward"], "compute")
        run.flags = flags_of(base, ["attention", "feed_forward"], "compute")
        steps = sorted((run.dump / "checkpoint/step-3").iterdir())
        adapters = sum(parameter.numel() for parameter in peft.parameters.values())
        size = sum(path.stat().st_size for path in steps if path.suffix == ".safetensors")
        report.below("bytes of a step over three numbers per adapter weight", size / (12 * adapters), 1.15)
        compare_exports(report, root, base, run, peft)
        compare_resumption(report, root / "on", run, "compute")

        compare_experts(report, root / "experts")

        packed, _ = compare_training(report, root / "packed", base, ["wq", "wv"], "nf4")
        packed.flags = flags_of(base, ["wq", "wv"], "nf4")
        compare_resumption(report, root / "packed-on", packed, "nf4")

        # With another base, another scale or other layers, the job refuses to resume.
        other = root / "other"
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        with torch.no_grad():
            model.model.layers[2].mlp.up_proj.weight[5, 7] += 1e-3
        model.save_pretrained(other)
        refused(run, root / "base-changed", {"checkpoint.initial_load_path": str(other)}, "is not the one on which they were trained")
        refused(run, root / "form-changed", {"lora.base": "nf4"}, "is not the one on which they were trained")
        refused(run, root / "alpha-changed", {"lora.alpha": 16.0}, "were trained with 12")
        refused(run, root / "rank-changed", {"lora.rank": 8}, "does not fit this model")
        refused(run, root / "fewer", {"lora.targets": ["attention"]}, "that this model lacks")
        refused(run, root / "base-gone", {"checkpoint.initial_load_path": str(root / "nowhere")}, "is not a folder")
    report.finish()


if __name__ == "__main__":
    main()
