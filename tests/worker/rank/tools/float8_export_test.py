"""Exports debug models as float8 in blocks, and reads them with Python and with Titan: what is float8, how it is rounded, which files there are, and
what is refused.

Only --long exports models with experts, and opens folders with transformers 5, which dequantizes them on a CPU."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from interop_models import DEPS, configs, drawn, run
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

FLAVORS = [("llama3", "debugmodel")]
LONG = [("deepseek_v3", "debugmodel"), ("qwen3", "debugmodel_moe")]
TOKENS = [i * 31 % 2048 for i in range(64)]
TRANSFORMERS5 = DEPS / "transformers5"
LARGEST = 448.0  # Of float8.
DEQUANTIZED = "we will default to dequantizing the model to bf16"


def export(step, out, *arguments, expect=0):
    return run(BIN / "titan-checkpoint", "export", step, out, "--dtype", "float8_block", *arguments, expect=expect)


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def spread(scales, shape):
    """Returns each number's scale."""
    return scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:shape[0], :shape[1]]


def is_float8(key, value):
    return value.dim() == 2 and ".layers." in key and not key.endswith("mlp.gate.weight")


def check_matrix(key, source, numbers, scales):
    rows, columns = source.shape
    assert numbers.dtype == torch.float8_e4m3fn and numbers.shape == source.shape, key
    assert scales.dtype == torch.float32 and scales.shape == (-(-rows // 128), -(-columns // 128)), (key, scales.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            assert scales[i, j] == source[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128].abs().max() / LARGEST, (key, i, j)
    every, source = spread(scales, source.shape).double(), source.double()
    # Half of the distance between neighbouring float8 numbers: 3 bits after the leading one, and 2^-9 below 2^-6.
    exponent = torch.floor(torch.log2((source / every).abs().clamp_min(2.0 ** -6)))
    half = torch.exp2(exponent - 4) * every
    difference = (numbers.double() * every - source).abs()
    assert bool((difference <= half * (1 + 1e-5)).all()), (key, float((difference / half).max()))


def check(folder, config, name, flavor):
    model = drawn(config)
    with torch.no_grad():  # A block of zeros, and one of numbers that only its scale makes small enough.
        model.model.layers[0].self_attn.o_proj.weight[:128, :128] = 0
        model.model.layers[0].self_attn.o_proj.weight[128:, 128:] *= 100
    model.save_pretrained(folder / "in")
    run(BIN / "titan-checkpoint", "import", folder / "in", folder / "step-0", "--model", name, "--flavor", flavor)
    limit = 1_000_000
    export(folder / "step-0", folder / "out", "--max-file-bytes", limit, "--tokenizer", DEPS / "assets/tokenizer")
    source, found = model.state_dict(), tensors(folder / "out")
    matrices = {key for key, value in source.items() if is_float8(key, value)}
    assert found.keys() == source.keys() | {f"{key}_scale_inv" for key in matrices}, found.keys() ^ source.keys()
    dequantized = {}
    for key, value in source.items():
        if key not in matrices:
            kept = name == "deepseek_v3" and key.endswith("mlp.gate.weight")  # By the class.
            dtype = torch.float32 if kept else torch.bfloat16
            assert torch.equal(found[key], value.to(dtype)), key
            dequantized[key] = found[key].float()
            continue
        numbers, scales = found[key], found[f"{key}_scale_inv"]
        if "layers.0.self_attn.o_proj" in key:
            assert not numbers[:128, :128].float().any() and scales[0, 0] == 1, scales
            scales[0, 0] = 0
            check_matrix(key, value[128:], numbers[128:], scales[1:])
        else:
            check_matrix(key, value, numbers, scales)
        dequantized[key] = numbers.float() * spread(scales, value.shape)

    # Files by size, an index with their total, and a configuration that transformers parses.
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in found.values())
    files = sorted((folder / "out").glob("*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == {path.name for path in files}
    for path in files:
        held = load_file(path)
        assert sum(value.nbytes for value in held.values()) <= limit * 1.01 or len(held) <= 2 or name != "llama3", path  # All experts of a layer are in one file.
        assert all(index["weight_map"][key] == path.name for key in held)
    said = json.loads((folder / "out" / "config.json").read_text())
    assert said["torch_dtype"] == "bfloat16"
    quantization = said["quantization_config"]
    skipped = quantization.pop("modules_to_not_convert")
    assert quantization == {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, quantization
    matrices_left = {key.removesuffix(".weight") for key, value in source.items() if value.dim() == 2 and key not in matrices}
    assert set(skipped) == matrices_left | {"lm_head"}, (skipped, matrices_left)
    parsed = transformers.quantizers.auto.AutoQuantizationConfig.from_dict(said["quantization_config"])
    assert isinstance(parsed, transformers.FineGrainedFP8Config) and tuple(parsed.weight_block_size) == (128, 128)

    # Titan's reader returns the same numbers.
    reported = run(BIN / "titan-checkpoint", "import", folder / "out", folder / "back" / "step-0", "--model", name, "--flavor", flavor)
    assert f"{len(matrices)} quantized tensors to float32" in reported and "weight_block_size" not in reported, reported
    run(BIN / "titan-checkpoint", "export", folder / "back" / "step-0", folder / "wide")
    again = tensors(folder / "wide")
    assert again.keys() == dequantized.keys() and all(torch.equal(again[key], value) for key, value in dequantized.items())
    if "--long" in sys.argv and name != "deepseek_v3":  # transformers 5.24 cannot dequantize the partial blocks of its 576 rows.
        check_newer(folder, name, model, dequantized)
    if name == "deepseek_v3":
        check_further_layer(folder, found)
    print(f"{name} {flavor}: {len(matrices)} of {len(source)} tensors as float8")


def check_further_layer(folder, found):
    """DeepSeek's releases have one more layer, for multi-token prediction: it is left out, and the log says so."""
    further = {key.replace("layers.5.", "layers.6."): value.clone() for key, value in found.items() if ".layers.5." in key}
    further |= {"model.layers.6.enorm.weight": torch.ones(4), "model.layers.6.eh_proj.weight": torch.ones(4, 4).to(torch.float8_e4m3fn),
                "model.layers.6.eh_proj.weight_scale_inv": torch.ones(1, 1)}
    (folder / "release").mkdir()
    save_file(found | further, folder / "release" / "model.safetensors")
    shutil.copy(folder / "out" / "config.json", folder / "release")
    reported = run(BIN / "titan-checkpoint", "import", folder / "release", folder / "release-step", "--model", "deepseek_v3", "--flavor", "debugmodel")
    assert f"{len(further)} tensors of layer 6, which predicts further tokens, not read" in reported, reported
    assert "the same" in run(BIN / "titan-checkpoint", "diff", folder / "release-step", folder / "back" / "step-0")


def check_newer(folder, name, model, dequantized):
    """transformers 5 opens the folder without a missing key, and computes what the dequantized weights do without experts."""
    if not TRANSFORMERS5.is_dir():
        assert not os.environ.get("CI"), f"{TRANSFORMERS5} is missing: run deploy/bootstrap.sh"
        return
    command = json.dumps({"open": "folder", "folder": str(folder / "out"), "tokens": TOKENS, "out": str(folder / "logits.pt")}) + "\n"
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("open_export.py")], env={**os.environ, "PYTHONPATH": str(TRANSFORMERS5)},
                          input=command, capture_output=True, text=True)
    answer = json.loads(done.stdout.splitlines()[1])
    assert "error" not in answer, answer
    assert not any(answer[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), answer
    assert not [line for line in answer["reported"] if DEQUANTIZED not in line], answer["reported"]
    if name != "llama3":  # Choices of experts that flip change logits at once.
        return
    model.load_state_dict(dequantized)
    with torch.no_grad():
        want = model.bfloat16()(torch.tensor([TOKENS])).logits.float()
    got = torch.load(folder / "logits.pt", weights_only=True)
    difference = float((got - want).abs().max() / want.abs().max())
    assert difference < 3e-2, difference
    print(f"logits in bfloat16 differ by {difference:.1e}")


def check_refusals(folder, known):
    model = drawn(known["llama3", "debugmodel"])
    with torch.no_grad():
        model.model.layers[3].mlp.up_proj.weight[0, 5] = float("nan")
    model.save_pretrained(folder / "nan")
    run(BIN / "titan-checkpoint", "import", folder / "nan", folder / "step-0", "--model", "llama3", "--flavor", "debugmodel")
    refused = export(folder / "step-0", folder / "no", expect=1)
    assert "model.layers.3.feed_forward.w3.weight: has NaN or infinite numbers" in refused, refused
    refused = export(folder / "step-0", folder / "no", "--format", "torch", expect=2)
    assert "float8_block is for --format hf" in refused, refused
    if "--long" not in sys.argv:
        return
    drawn(known["llama4", "debugmodel"]).save_pretrained(folder / "llama4")
    run(BIN / "titan-checkpoint", "import", folder / "llama4", folder / "experts" / "step-0", "--model", "llama4", "--flavor", "debugmodel")
    refused = export(folder / "experts" / "step-0", folder / "no", expect=1)
    assert "float8_block: model.layers.1.moe.experts.w1 is exported as a part of language_model.model.layers.1.feed_forward.experts.gate_up_proj" in refused, refused
    assert not (folder / "no").exists()


def main():
    torch.set_num_threads(1)
    known = configs()
    for name, flavor in FLAVORS + (LONG if "--long" in sys.argv else []):
        with tempfile.TemporaryDirectory(prefix="titan-float8-") as root:
            check(pathlib.Path(root), known[name, flavor], name, flavor)
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as root:
        check_refusals(pathlib.Path(root), known)


main()
