"""Tests weights in the released formats of DeepSeek V3 (float8 in blocks) and GPT-OSS (MXFP4): Titan loads the same numbers as
the Python libraries, bit for bit.

The test quantizes small models of oracle_models.py by the documented formats and writes such folders. Their numbers by
  torchtitan     torch's QuantizedHuggingFaceStorageReader, with which torchtitan 0.2.2 reads both,
  transformers   from_pretrained(), which converts MXFP4 to bfloat16 without a GPU, and convert_moe_packed_tensors,
must equal those that titan-checkpoint imports and those that ranks have on each mesh, where each reads its own part. The first
step's loss and gradient norm must equal those of transformers' class with these weights. TITAN_LONG=1: more meshes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

sys.path.insert(0, str(SOURCE / "tests/peer"))
import oracle_models  # noqa: E402  (before torchtitan)
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from peer_runs import LOSS_LIMIT, NORM_LIMIT  # noqa: E402
from rank_runs import ASSETS, BIN, LOSS, NORM, LocalRun, Report, read_checkpoint  # noqa: E402
from routing import RoutingRecorder  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from ten_steps import batches  # noqa: E402
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors  # noqa: E402
from weights import draw  # noqa: E402

PLUGIN = BIN.parent / "tests/libgolden_plugin.so"
BLOCK, GROUP, ROWS, SEQ_LEN = 16, 32, 8, oracle_models.SEQ_LEN
FLOAT8_MAX = 448.0

# name -> flags, ranks, and data-parallel ranks; all but the first only with TITAN_LONG=1.
MESHES = {"TP 2 x EP 2": ({"parallelism.tensor_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 2,
                           "parallelism.expert_parallel_degree": 2}, 4, 2),
          "1 rank": ({}, 1, 1),
          "FSDP 2": ({"parallelism.data_parallel_shard_degree": 2}, 2, 2),
          "TP 2": ({"parallelism.tensor_parallel_degree": 2}, 2, 1),
          "EP 4": ({"parallelism.data_parallel_shard_degree": 4, "parallelism.expert_parallel_degree": 4}, 4, 4)}
SHORT = list(MESHES)[:1]


# --- The formats

def to_float8(weight):
    """Scales each block so that its largest magnitude is the format's; the last row and column of blocks may be partial."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    values = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            box = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            scales[i, j] = weight[box].abs().max() / FLOAT8_MAX
            values[box] = (weight[box] / scales[i, j]).to(torch.float8_e4m3fn)
    return values, scales


def to_mxfp4(weight):
    """Quantizes [..., n] to [..., n / 32, 16] bytes and [..., n / 32] exponents: each group has one power of two, and its largest
    magnitude is below 8 times that."""
    groups = weight.unflatten(-1, (-1, GROUP))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    distance = (groups / exponents.exp2().unsqueeze(-1)).unsqueeze(-1) - torch.tensor(FP4_VALUES)
    codes = distance.abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def quantize_deepseek(state):
    """Quantizes like the release: all matrices of the layers except the router's, and each expert's separately."""
    out = {}
    for key, value in state.items():
        if value.dim() == 2 and ".layers." in key and not key.endswith("mlp.gate.weight"):
            out[key], out[key + "_scale_inv"] = to_float8(value)
        else:
            out[key] = value.clone()
    return out


def quantize_gpt_oss(state):
    """Quantizes like the release: the experts' matrices, outputs first; everything else becomes bfloat16."""
    out = {}
    for key, value in state.items():
        if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[key + "_blocks"], out[key + "_scales"] = to_mxfp4(value.transpose(1, 2).contiguous())
        else:
            out[key] = value.bfloat16()
    return out


def gpt_oss():
    """Returns the small GPT-OSS with experts whose width is a multiple of a group."""
    spec = {**oracle_models.GROUPED, **oracle_models.EXPERTS, "moe.hidden": 64, "sliding_window": 16, "yarn.original_seq_len": 256}
    return oracle_models._transformers(
        "gpt_oss", "debugmodel", spec, "GptOss", intermediate_size=64, head_dim=16, num_local_experts=8, num_experts_per_tok=2,
        sliding_window=16, rms_norm_eps=1e-5, rope_theta=150000.0, tie_word_embeddings=False,
        rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                      "original_max_position_embeddings": 256})


CASES = {"float8_deepseek": (oracle_models.deepseek_v3_transformers, quantize_deepseek,
                             {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}),
         "mxfp4_gpt_oss": (gpt_oss, quantize_gpt_oss, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})}


# --- The oracles

def write_release(folder, tensors, oracle, quantization):
    """Writes two files and their index; the scales of half of the tensors are in the other file."""
    folder.mkdir()
    keys = sorted(tensors)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    where = {key: names[number % 2] for number, key in enumerate(keys)}
    for name in names:
        save_file({key: tensors[key].contiguous() for key in keys if where[key] == name}, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    about = {**oracle.module.config.to_dict(), "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(about))


def by_torchtitan(folder, tensors):
    """Reads the folder with the reader that torchtitan uses for quantized weights. For MXFP4, torch 2.11's reader reads only as
    many numbers of a row as it has groups and leaves the others unchanged, so its arithmetic is called directly."""
    reader = QuantizedHuggingFaceStorageReader(str(folder), block_size=BLOCK)
    state = {key: torch.empty(value.shape) for key, value in tensors.items() if not key.endswith(("_scale_inv", "_blocks", "_scales"))}
    dcp.load(state, storage_reader=reader, no_dist=True)
    for key, value in tensors.items():
        if key.endswith("_blocks"):
            whole = types.SimpleNamespace(storage_offsets=[0, 0, 0], lengths=[*value.shape[:2], value.shape[2] * GROUP])
            scales = tensors[key.removesuffix("_blocks") + "_scales"]
            state[key] = reader._dequantize_tensor_mxfp4(value, scales, whole, group_start=0, offset_in_first_group=0)
    return state


def as_transformers_names(state):
    return {key.removesuffix("_blocks"): value.transpose(1, 2).contiguous() if key.endswith("_blocks") else value
            for key, value in state.items()}


def first_step(oracle, tokens, labels):
    oracle.module.zero_grad(set_to_none=True)
    logits = oracle.logits(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()
    loss.backward()
    return loss.item(), torch.linalg.vector_norm(torch.stack(
        [p.grad.norm() for p in oracle.module.parameters() if p.grad is not None])).item()


def make_case(folder, name, seed, batch):
    """A released folder of random weights, from the first seed with clear routing decisions; also its numbers, and the first
    step's."""
    build, quantize, quantization = CASES[name]
    oracle = build()
    recorder = RoutingRecorder(oracle)
    for drawn in range(seed, seed + 200):
        torch.manual_seed(drawn)
        draw(oracle.module, 5)
        tensors = quantize(dict(oracle.module.state_dict()))
        release = folder / f"{name}.{drawn}"
        write_release(release, tensors, oracle, quantization)
        numbers = as_transformers_names(by_torchtitan(release, tensors))
        oracle.module.load_state_dict(numbers)
        recorder.clear()
        loss, norm = first_step(oracle, *batch)
        if recorder.decided():
            break
    else:
        sys.exit(f"{name}: no seed from {seed} on decides clearly")
    (release / "case.json").write_text(json.dumps({"case": name, "family": oracle.family, "flavor": oracle.flavor, "spec": oracle.spec}))
    return release, tensors, numbers, loss, norm


def same(what, got, want):
    assert sorted(got) == sorted(want), f"{what}: {sorted(got.keys() ^ want.keys())}"
    for key, value in want.items():
        assert got[key].shape == value.shape and torch.equal(got[key].float(), value.float()), f"{what}: {key}"
    print(f"ok   {what}: {len(want)} tensors, equal", flush=True)


def check_transformers(release, numbers):
    """Compares with transformers' own reading of the whole folder."""
    model = AutoModelForCausalLM.from_pretrained(release, dtype=torch.bfloat16)
    same("mxfp4 by transformers' from_pretrained", model.state_dict(), {key: value.bfloat16() for key, value in numbers.items()})


# --- Titan

def tool(*words):
    done = subprocess.run([str(word) for word in (BIN / "titan-checkpoint", *words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def check_tool(folder, name, release, numbers):
    """Imports in pieces of a few rows, and exports by transformers' names."""
    model = ["--model", name, "--flavor", "golden", "--library", PLUGIN]
    printed = tool("import", release, folder / "step-0", *model, "--max-file-bytes", 20_000)
    assert "quantized tensors to float32" in printed and "reading layers.2" in printed, printed
    # With these weights transformers uses the file's epsilon for all norms except those of latents.
    warnings = [line for line in printed.splitlines() if "warning" in line]
    assert len(warnings) == ("deepseek" in name) and all("rms_norm_eps 1e-05" in line for line in warnings), printed
    tool("export", folder / "step-0", folder / "out", *model)
    exported = {}
    for path in folder.glob("out/*.safetensors"):
        exported.update(load_file(path))
    same(f"{name}: titan-checkpoint import, export", exported, numbers)
    return read_checkpoint(folder / "step-0")


def check_random_blocks(folder, name, release, tensors):
    """Tries any byte and any exponent that keeps float32 finite."""
    folder.mkdir()
    (folder / "config.json").write_text((release / "config.json").read_text())
    tensors = {key: torch.randint(253 if key.endswith("_scales") else 256, value.shape, dtype=torch.uint8)
               if key.endswith(("_blocks", "_scales")) else value for key, value in tensors.items()}
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors")
    model = ["--model", name, "--flavor", "golden", "--library", PLUGIN]
    tool("import", folder, folder / "step-0", *model)
    tool("export", folder / "step-0", folder / "out", *model, "--dtype", "bfloat16")
    exported = load_file(next(folder.glob("out/*.safetensors")))
    names = [key.removesuffix("_blocks") for key in tensors if key.endswith("_blocks")]
    same("mxfp4, random bytes by transformers' convert_moe_packed_tensors", {key: exported[key] for key in names},
         {key: convert_moe_packed_tensors(tensors[key + "_blocks"], tensors[key + "_scales"]) for key in names})


def check_mesh(report, folder, name, mesh, release, whole, loss, norm):
    """Compares a mesh's weights and first step. The first step moves nothing, so its checkpoint holds the loaded weights."""
    flags, world, data_parallel = MESHES[mesh]
    run = LocalRun(folder, {"model.name": name, "model.flavor": "golden", "model.attn_mask_type": "causal",
                            "experimental.custom_import": PLUGIN, "training.seq_len": SEQ_LEN, "training.steps": 1,
                            "training.local_batch_size": ROWS // data_parallel, "training.mixed_precision_param": "float32",
                            "training.max_norm": 1e9, "optimizer.lr": 1e-300, "activation_checkpoint.mode": "none",
                            "model.load_balance_coeff": 0, "checkpoint.enable": True, "checkpoint.initial_load_path": release,
                            "checkpoint.initial_load_in_hf": True,
                            **flags}, world).wait()
    step = run.metrics()[1]
    report.below(f"{name}, {mesh}: loss", abs(step[LOSS] / loss - 1), LOSS_LIMIT)
    report.below(f"{name}, {mesh}: gradient norm", abs(step[NORM] / norm - 1), NORM_LIMIT)
    loaded = run.checkpoint(1)
    same(f"{name}, {mesh}: what the ranks loaded",
         *({key: torch.from_numpy(value) for key, value in some.items()} for some in (loaded, whole)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    torch.set_num_threads(1)
    report = Report()
    data = types.SimpleNamespace(assets=str(ASSETS), steps=1, nproc=1)
    batch = next(iter(batches(data)))
    with tempfile.TemporaryDirectory(prefix="titan-quantized-") as temporary:
        folder = Path(temporary)
        made = {name: make_case(folder, name, options.seed, batch) for name in CASES}
        os.environ["TITAN_GOLDEN_CASES"] = ":".join(str(release / "case.json") for release, *_ in made.values())
        for name, (release, tensors, numbers, loss, norm) in made.items():
            if name.startswith("mxfp4"):
                check_transformers(release, numbers)
                check_random_blocks(folder / "random", name, release, tensors)
            (folder / name).mkdir()
            whole = check_tool(folder / name, name, release, numbers)
            for number, mesh in enumerate(MESHES if os.environ.get("TITAN_LONG") == "1" else SHORT):
                check_mesh(report, folder / name / str(number), name, mesh, release, whole, loss, norm)
    report.finish()


main()
