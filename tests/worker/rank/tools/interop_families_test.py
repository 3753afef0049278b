"""Converts every family's debug model from transformers' class into a step and back: the folder opens by itself, bit for bit, in
the two generations of transformers, and neither warns about it.

Only --long runs the dense families, a second form of Llama 4, and GPT-OSS, whose debug model has the family's large vocabulary."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from interop_models import DEPS, configs, drawn, run
from open_export import open_folder
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

TRANSFORMERS5 = DEPS / "transformers5"  # An overlay of the virtual environment, which has the fourth generation.
FLAVORS = [("llama4", "debugmodel"), ("deepseek_v3", "debugmodel"), ("qwen3", "debugmodel_moe"), ("phi3", "debugmodel"), ("mixtral", "debugmodel")]
LONG = [("llama3", "debugmodel"), ("llama4", "debugmodel_released"), ("qwen3", "debugmodel"), ("gpt_oss", "debugmodel")]
LONG += [(name, "debugmodel") for name in ("mistral", "qwen2", "smollm3", "olmo2", "glm4", "gemma2", "gemma3", "granite")]
NO_TENSOR = {"llama4", "deepseek_v3"}  # Families whose class in transformers has no bias; torch.save's format can give them one.
# Llama 4's release itself has two equal factors, of which transformers 5 warns.
RELEASED = "high_freq_factor field must be greater than low_freq_factor, got high_freq_factor=1.0 and low_freq_factor=1.0"
TOKENS = [i * 31 % 2048 for i in range(64)]


def rows():
    """Returns the output of list_hf_tensors for each flavor, limited to its first layers."""
    return [json.loads(line) for line in run(BIN.parent / "tests" / "list_hf_tensors", 5).splitlines()]


class Newer:
    """Runs transformers 5 in a separate process."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": str(TRANSFORMERS5)}
        self.process = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("open_export.py")], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        version = json.loads(self.process.stdout.readline())["version"]
        assert version.startswith("5."), f"{TRANSFORMERS5} holds transformers {version}"

    def send(self, **command):
        self.process.stdin.write(json.dumps({key: str(value) if isinstance(value, pathlib.Path) else value for key, value in command.items()}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, (command, answer["error"])
        return answer

    def close(self):
        self.process.communicate()
        assert self.process.returncode == 0


def tokenizer_folder(folder):
    """Titan's own tokenizer with a chat template, as chat models have one."""
    shutil.copytree(DEPS / "assets/tokenizer", folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return folder


def with_mscale(model):
    """Adds YaRN's factor of the softmax scale, which DeepseekV2 of transformers 4.57.3 omits; DeepSeek's own code and
    transformers 5.24 have it."""
    scaling = getattr(model.config, "rope_scaling", None)
    if model.config.model_type == "deepseek_v2" and scaling:
        for layer in model.model.layers:
            layer.self_attn.scaling *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    return model


def unexpected(reported):
    return [line for line in reported["reported"] if RELEASED not in line]


def check_quiet(reported, what):
    assert not unexpected(reported), (what, reported["reported"])
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not reported[key], (what, key, reported[key])
    assert reported["ids"] == reported["tokenizer_ids"] == reported["generation_ids"] and None not in reported["ids"], (what, reported)
    assert reported["chat"] is not None, what


def check(folder, name, flavor, config, newer):
    model = drawn(config)
    model.save_pretrained(folder / "in")
    tokenizer = tokenizer_folder(folder / "tokenizer")
    run(BIN / "titan-checkpoint", "import", folder / "in", folder / "step-0", "--model", name, "--flavor", flavor)
    reported = run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "out", "--model", name, "--flavor", flavor, "--max-file-bytes",
               8_000_000, "--tokenizer", tokenizer)
    assert "warning" not in reported, reported
    # The class reads the same numbers, in the type of the weights.
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "out", dtype="auto")
    want, got = model.state_dict(), again.state_dict()
    assert want.keys() == got.keys()
    for key, value in want.items():
        assert torch.equal(got[key], value), f"{name} {flavor}: {key}"
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits
        assert torch.equal(again.eval()(torch.tensor([TOKENS])).logits, logits), f"{name} {flavor}: logits"
    check_quiet(open_folder(str(folder / "out")), f"{name} {flavor}")
    if newer:
        reported = newer.send(open="folder", folder=folder / "out", tokens=TOKENS, out=folder / "logits.pt")
        check_quiet(reported, f"{name} {flavor}, transformers 5")
        assert reported["dtype"] == "torch.float32" and reported["architectures"] == config["architectures"], reported
        theirs = torch.load(folder / "logits.pt", weights_only=True)
        with torch.no_grad():
            logits = with_mscale(model)(torch.tensor([TOKENS])).logits
        difference = (theirs - logits).abs().max() / logits.abs().max()
        assert difference < 1e-5, f"{name} {flavor}, transformers 5: logits differ by {difference}"
    # Importing and exporting the files again changes no bit.
    run(BIN / "titan-checkpoint", "import", folder / "out", folder / "again", "--model", name, "--flavor", flavor)
    run(BIN / "titan-checkpoint", "export", folder / "again", folder / "out2", "--model", name, "--flavor", flavor)
    once, twice = tensors(folder / "out"), tensors(folder / "out2")
    assert once.keys() == twice.keys() and all(torch.equal(once[key], twice[key]) for key in once)
    if name in ("llama3", "llama4", "deepseek_v3", "gpt_oss", "mixtral"):  # The others are cast as a whole.
        check_narrow(folder, name, flavor, once, newer)
    if name in NO_TENSOR:
        check_bias(folder, name, flavor)
    print(f"{name} {flavor}: {len(once)} tensors")


def check_narrow(folder, name, flavor, full, newer):
    """A 16-bit export has float32 exactly where the class keeps it."""
    dtype, kept = {"deepseek_v3": ("bfloat16", "mlp.gate.weight"), "gpt_oss": ("float16", "norm.weight")}.get(name, ("bfloat16", "nothing"))
    run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "narrow", "--dtype", dtype, "--tokenizer", folder / "tokenizer")
    narrow = tensors(folder / "narrow")
    wide = {key for key, value in narrow.items() if value.dtype == torch.float32}
    assert wide == {key for key in full if key.endswith(kept)}, wide
    for key, value in narrow.items():
        assert torch.equal(value, full[key].to(value.dtype)), key
    check_quiet(open_folder(str(folder / "narrow")), f"{name} {flavor} in {dtype}")
    if newer:
        reported = newer.send(open="folder", folder=folder / "narrow")
        check_quiet(reported, f"{name} {flavor} in {dtype}, transformers 5")
        assert reported["dtype"] == f"torch.{dtype}", reported


def check_bias(folder, name, flavor):
    """The class's weights have no place for the bias that balances experts: an export warns that it is lost. Other formats keep
    it in float32."""
    run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "torch", "--format", "torch")
    state = torch.load(folder / "torch" / "model.pt", weights_only=True)
    biases = sorted(key for key in state if key.endswith("moe.expert_bias"))
    assert biases and not any(state[key].any() for key in biases), "as training starts"
    state[biases[-1]][0] = 0.3
    torch.save(state, folder / "biased.pt")
    step = folder / "biased" / "step-0"
    run(BIN / "titan-checkpoint", "import", folder / "biased.pt", step, "--model", name, "--flavor", flavor)
    lost = f"model.{biases[-1]}"
    reported = run(BIN / "titan-checkpoint", "export", step, folder / "biased-out")
    assert [line for line in reported.splitlines() if line.startswith("warning")] == [
        f"warning: {lost} is not zero and is left out: Hugging Face weights of this family have no place for it"], reported
    assert not any(key.endswith("correction_bias") for key in tensors(folder / "biased-out"))
    reported = run(BIN / "titan-checkpoint", "diff", step, folder / "biased-out", expect=1).splitlines()
    assert len(reported) == 2 and reported[0].startswith("1 of ") and reported[1].startswith(f"{lost}  only in A"), reported
    assert "the same" in run(BIN / "titan-checkpoint", "diff", folder / "step-0", folder / "out")
    if name == "deepseek_v3":  # torchtitan writes the biases of this generation too.
        theirs = tensors(folder / "out") | {f"model.layers.{layer}.mlp.gate.e_score_correction_bias": state[f"layers.{layer}.moe.expert_bias"] for layer in range(1, 6)}
        (folder / "theirs").mkdir()
        save_file(theirs, folder / "theirs" / "model.safetensors")
        run(BIN / "titan-checkpoint", "import", folder / "theirs", folder / "read" / "step-0", "--model", name, "--flavor", flavor)
        for other in (step, folder / "theirs"):
            assert "the same" in run(BIN / "titan-checkpoint", "diff", folder / "read" / "step-0", other)
    for form in ("torch", "dcp"):
        more = ["--model-only"] if form == "dcp" else []
        run(BIN / "titan-checkpoint", "export", step, folder / f"biased-{form}", "--format", form, "--dtype", "bfloat16", *more)
        reported = run(BIN / "titan-checkpoint", "import", folder / f"biased-{form}" / ("model.pt" if form == "torch" else ""), folder / f"back-{form}" / "step-0",
                   "--model", name, "--flavor", flavor)
        differing = run(BIN / "titan-checkpoint", "diff", step, folder / f"back-{form}" / "step-0", expect=1)
        assert "expert_bias" not in differing, differing


def check_configs(newer, folder):
    """Every flavor's config.json is valid for transformers 5's strict classes, which keep in float32 what an export does."""
    for row in rows():
        what = f"{row['name']} {row['flavor']}"
        (folder / "config.json").write_text(json.dumps(row["config"]))
        reported = newer.send(open="config", folder=folder)
        assert not unexpected(reported), (what, reported["reported"])
        assert reported["class"] == row["config"]["architectures"][0], (what, reported)
        strict, other = reported["_keep_in_fp32_modules_strict"], reported["_keep_in_fp32_modules"]
        for dtype, modules in (("bfloat16", strict), ("float16", strict + other)):
            kept = re.compile("|".join(rf"(^|\.){module}($|\.)" for module in modules) or "$^")
            want = {key for key in row["tensors"] if kept.search(key)}
            assert set(row["float32"].get(dtype, [])) == want, (what, dtype, want ^ set(row["float32"].get(dtype, [])))


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def main():
    torch.set_num_threads(1)
    known = configs()
    newer = Newer() if TRANSFORMERS5.is_dir() else None
    if newer is None:
        assert not os.environ.get("CI"), f"{TRANSFORMERS5} is missing: run deploy/bootstrap.sh"
        print(f"without transformers 5: {TRANSFORMERS5} is missing, which deploy/bootstrap.sh makes")
    else:
        with tempfile.TemporaryDirectory(prefix="titan-interop-") as root:
            check_configs(newer, pathlib.Path(root))
    for name, flavor in FLAVORS + (LONG if "--long" in sys.argv else []):
        with tempfile.TemporaryDirectory(prefix="titan-interop-") as root:
            check(pathlib.Path(root), name, flavor, known[name, flavor], newer)
    if newer:
        newer.close()


main()
