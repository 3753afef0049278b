"""Every family's debug model from transformers' class into a step and out again: the folder opens by itself, bit for bit.

The dense ones, another form of one, and GPT-OSS, whose debug model has the family's large vocabulary, only with --long."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

BIN = pathlib.Path(os.environ["TITAN_BIN"])
FLAVORS = [("llama4", "debugmodel"), ("deepseek_v3", "debugmodel"), ("qwen3", "debugmodel_moe")]
LONG = [("llama3", "debugmodel"), ("llama4", "debugmodel_released"), ("qwen3", "debugmodel"), ("gpt_oss", "debugmodel")]


def run(*arguments, expect=0):
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done.stdout


def configs():
    """Each debug flavor's config.json, as exports write it."""
    rows = map(json.loads, run(BIN.parent / "tests" / "list_hf_tensors", 100).splitlines())
    return {(row["name"], row["flavor"]): row["config"] for row in rows}


def drawn(config):
    config = dict(config)
    torch.manual_seed(1)
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config)).float().eval()
    with torch.no_grad():
        for parameter in [*model.parameters(), *(b for n, b in model.named_buffers() if n.endswith("correction_bias"))]:
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.05))
    return model


def check(folder, name, flavor, config):
    model = drawn(config)
    model.save_pretrained(folder / "in")
    run(BIN / "titan-checkpoint", "import", folder / "in", folder / "step-0", "--model", name, "--flavor", flavor)
    run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "out", "--model", name, "--flavor", flavor, "--max-file-bytes", 8_000_000)
    again, said = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32, output_loading_info=True)
    # DeepSeek V2, whose form flavors with softmax scores have, lacks the bias; transformers leaves it out.
    surplus = [key for key in said["unexpected_keys"] if not key.endswith("e_score_correction_bias")]
    assert not said["missing_keys"] and not surplus and not said["mismatched_keys"], said
    want, got = model.state_dict(), again.state_dict()
    assert want.keys() == got.keys()
    for key, value in want.items():
        assert torch.equal(got[key], value), f"{name} {flavor}: {key}"
    tokens = torch.arange(64).reshape(1, 64) * 31 % 2048
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens).logits, model(tokens).logits), f"{name} {flavor}: logits"
    # The files themselves, once more through the tool: not a bit changes.
    run(BIN / "titan-checkpoint", "import", folder / "out", folder / "again", "--model", name, "--flavor", flavor)
    run(BIN / "titan-checkpoint", "export", folder / "again", folder / "out2", "--model", name, "--flavor", flavor)
    once, twice = tensors(folder / "out"), tensors(folder / "out2")
    assert once.keys() == twice.keys() and all(torch.equal(once[key], twice[key]) for key in once)
    if name == "llama4":
        check_bias(folder, name, flavor)
    print(f"{name} {flavor}: {len(once)} tensors")


def check_bias(folder, name, flavor):
    """What balances experts has no place in this family's weights: it is not lost in silence."""
    run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "torch", "--format", "torch")
    state = torch.load(folder / "torch" / "model.pt", weights_only=True)
    biases = sorted(key for key in state if key.endswith("moe.expert_bias"))
    assert biases and not any(state[key].any() for key in biases), "as training starts"
    state[biases[-1]][0] = 0.5
    torch.save(state, folder / "biased.pt")
    run(BIN / "titan-checkpoint", "import", folder / "biased.pt", folder / "biased" / "step-0", "--model", name, "--flavor", flavor)
    lost = f"model.{biases[-1]}"
    said = run(BIN / "titan-checkpoint", "export", folder / "biased" / "step-0", folder / "biased-out")
    assert [line for line in said.splitlines() if line.startswith("warning")] == [
        f"warning: {lost} is not zero and is left out: Hugging Face weights of this family have no place for it"], said
    said = run(BIN / "titan-checkpoint", "diff", folder / "biased" / "step-0", folder / "biased-out", expect=1).splitlines()
    assert len(said) == 2 and said[0].startswith(f"{lost}  only in A"), said
    assert "the same" in run(BIN / "titan-checkpoint", "diff", folder / "step-0", folder / "out")


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def main():
    torch.set_num_threads(1)
    known = configs()
    for name, flavor in FLAVORS + (LONG if "--long" in sys.argv else []):
        with tempfile.TemporaryDirectory(prefix="titan-interop-") as root:
            check(pathlib.Path(root), name, flavor, known[name, flavor])


main()
