"""Compares Flux with diffusers' FluxTransformer2DModel and torchtitan's FluxModel: the prediction and every gradient, with random
weights, modulations included, because a fresh model's gates are zero and hide everything. Also reads and writes both programs'
names, and opens what was written with diffusers.

Both programs compute the rotation in fp32 even in an fp64 model; for comparisons in fp64 it is exact here. torchtitan 0.2.2 attends
causally by mistake and gives the norms of queries and keys another epsilon; both are set as in the released model."""

import contextlib
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from unittest import mock

sys.path.insert(0, str(pathlib.Path(os.environ["TITAN_SOURCE"]) / "tests" / "peer"))
import torchtitan_cpu  # noqa: E402, F401

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

logging.disable(logging.CRITICAL)
from diffusers import FluxTransformer2DModel  # noqa: E402
from diffusers_flux import CHANNELS, HEAD, HEADS, PROGRAMS, TXT, VEC, diffusers_model, exact_rotation  # noqa: E402
from torchtitan.models.attention import ScaledDotProductAttentionWrapper  # noqa: E402
from torchtitan.models.flux.model import layers  # noqa: E402
from torchtitan.models.flux.model.args import FluxModelArgs  # noqa: E402
from torchtitan.models.flux.model.model import FluxModel  # noqa: E402
from torchtitan.models.flux.model.state_dict_adapter import FluxStateDictAdapter  # noqa: E402

PROGRAM = PROGRAMS / "run_flux"
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
TYPES = {torch.float64: "fp64", torch.float32: "fp32"}
ROWS, TXT_TOKENS, GRID = 3, 5, (3, 4)
ADDED = re.compile(r"time_text_embed\.guidance_embedder\.linear_(\d)\.(\w+)")


def arguments():
    return FluxModelArgs(in_channels=CHANNELS, out_channels=CHANNELS, vec_in_dim=VEC, context_in_dim=TXT, hidden_size=HEADS * HEAD,
                         num_heads=HEADS, depth=2, depth_single_blocks=3, axes_dim=(4, 6, 6))


def draw_inputs(guidance, rows_differ=False):
    rows = torch.arange(GRID[0] * GRID[1]) // GRID[1]
    ids = torch.stack([torch.zeros_like(rows), rows, torch.arange(GRID[0] * GRID[1]) % GRID[1]], 1).float().unsqueeze(0)
    txt_ids = torch.zeros(1, TXT_TOKENS, 3)
    if rows_differ:
        ids, txt_ids = ids + 7 * torch.arange(ROWS).view(-1, 1, 1), torch.randint(0, 9, (ROWS, TXT_TOKENS, 3)).float()
    inputs = {"x_t": torch.randn(ROWS, ids.shape[1], CHANNELS), "txt": torch.randn(ROWS, TXT_TOKENS, TXT), "y": torch.randn(ROWS, VEC),
              "timesteps": torch.rand(ROWS), "txt_ids": txt_ids, "img_ids": ids,
              "grad_out": torch.randn(ROWS, ids.shape[1], CHANNELS)}
    if guidance:
        inputs["guidance"] = 1 + 3 * torch.rand(ROWS)
    return {name: tensor.contiguous() for name, tensor in inputs.items()}


@contextlib.contextmanager
def bidirectional():
    forward = ScaledDotProductAttentionWrapper.forward
    with mock.patch.object(ScaledDotProductAttentionWrapper, "forward",
                           lambda self, q, k, v, **named: forward(self, q, k, v, **(named | {"is_causal": False}))):
        yield


def backward(model, call, inputs, dtype):
    """Returns the prediction and all gradients, by the model's names."""
    model = model.to(dtype).requires_grad_()
    model.zero_grad()
    inputs = {name: tensor.to(dtype, copy=True) for name, tensor in inputs.items()}
    for name in ("x_t", "txt", "y"):
        inputs[name].requires_grad_()
    with exact_rotation(((layers, "apply_rope"), (layers, "rope"))):
        prediction = call(model, inputs)
        prediction.backward(inputs["grad_out"])
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return prediction.detach(), gradients, {name: inputs[name].grad for name in ("x_t", "txt", "y")}


def by_diffusers(model, inputs):
    return model(hidden_states=inputs["x_t"], encoder_hidden_states=inputs["txt"], pooled_projections=inputs["y"],
                 timestep=inputs["timesteps"], guidance=inputs.get("guidance"), txt_ids=inputs["txt_ids"][0],
                 img_ids=inputs["img_ids"][0]).sample


def by_torchtitan(model, inputs):
    ids = {name: inputs[name].expand(ROWS, -1, -1) for name in ("txt_ids", "img_ids")}
    return model(img=inputs["x_t"], txt=inputs["txt"], y=inputs["y"], timesteps=inputs["timesteps"], **ids)


def ours_from_diffusers(state):
    """Renames with torchtitan's adapter, which drops the guidance."""
    ours = dict(FluxStateDictAdapter(arguments(), None).from_hf(state))
    for name, tensor in state.items():
        if match := ADDED.fullmatch(name):
            ours[f"guidance_in.{'in' if match[1] == '1' else 'out'}_layer.{match[2]}"] = tensor
    return ours


def run_ours(folder, inputs, dtype, names, out):
    save_file(inputs, out.with_suffix(".inputs"))
    subprocess.run([PROGRAM, folder, out.with_suffix(".inputs"), TYPES[dtype], names, out], check=True)
    return load_file(out / "results.safetensors")


class Errors:
    def __init__(self):
        self.worst = {}

    def compare(self, what, dtype, got, want):
        if got.shape != want.shape or got.dtype != dtype or want.dtype != dtype:
            sys.exit(f"{what}: {list(got.shape)} of {got.dtype}, not {list(want.shape)} of {want.dtype}")
        error = ((got - want).abs().max() / want.abs().max()).item()
        if not error <= BOUNDS[dtype]:
            sys.exit(f"{what}: relative error {error:.3g} in {dtype}")
        self.worst[dtype] = max(self.worst.get(dtype, 0), error)

    def compare_all(self, what, dtype, ours, theirs):
        prediction, gradients, of_inputs = theirs
        expected = {"prediction": prediction} | {f"grad.{name}": value for name, value in gradients.items()}
        expected |= {f"grad_input.{name}": value for name, value in of_inputs.items()}
        if ours.keys() != expected.keys():
            sys.exit(f"{what}: other names: {sorted(ours.keys() ^ expected.keys())}")
        for name, value in expected.items():
            self.compare(f"{what}: {name}", dtype, ours[name], value)


def expect_same(what, one, other):
    if one.keys() != other.keys():
        sys.exit(f"{what}: other names: {sorted(one.keys() ^ other.keys())}")
    for name in one:
        if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name]):
            sys.exit(f"{what}: {name} changed")


def numbers_of(config):
    return json.loads(json.dumps({key: value for key, value in config.items() if not key.startswith("_")}))


def folder_tensors(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def check(guidance, errors, root):
    model = diffusers_model(guidance)
    folder = root / "weights"
    model.save_pretrained(folder)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = draw_inputs(guidance)
    for dtype in BOUNDS:
        out = root / f"out-{TYPES[dtype]}"
        ours = run_ours(folder, inputs, dtype, "diffusers", out)
        prediction, gradients, of_inputs = backward(model, by_diffusers, inputs, dtype)
        errors.compare_all("diffusers", dtype, ours, (prediction, ours_from_diffusers(gradients), of_inputs))
        expect_same("diffusers' names", folder_tensors(out / "exported"), state)
        opened = FluxTransformer2DModel.from_pretrained(out / "exported", low_cpu_mem_usage=False)
        expect_same("opened by diffusers", dict(opened.state_dict()), state)
        if numbers_of(opened.config) != numbers_of(model.config):
            sys.exit(f"config.json differs: {numbers_of(opened.config)}, not {numbers_of(model.config)}")
        model.float()
    check_released_names(root, ours_from_diffusers(state), inputs)
    if not guidance:
        check_torchtitan(root, state, inputs, errors)


def check_released_names(root, ours, inputs):
    """The released model's file, with diffusers' config.json next to it."""
    released = {re.sub(r"_norm\.weight$", "_norm.scale", name): tensor.contiguous() for name, tensor in ours.items()}
    folder = root / "released"
    folder.mkdir()
    save_file(released, folder / "flux1.safetensors")
    (folder / "config.json").write_text((root / "weights" / "config.json").read_text())
    results = run_ours(folder, inputs, torch.float64, "released", root / "out-released")
    expect_same("results with the released names", results, load_file(root / "out-fp64" / "results.safetensors"))
    expect_same("released names", folder_tensors(root / "out-released" / "exported"), released)


def check_torchtitan(root, state, inputs, errors):
    model = FluxModel(arguments())
    model.load_state_dict(ours_from_diffusers(state))
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.eps = 1e-6
    for rows_differ in (False, True):
        inputs = draw_inputs(False, rows_differ) if rows_differ else inputs
        for dtype in BOUNDS:
            ours = run_ours(root / "weights", inputs, dtype, "diffusers", root / f"titan-{rows_differ}-{TYPES[dtype]}")
            with bidirectional():
                errors.compare_all(f"torchtitan, rows_differ={rows_differ}", dtype, ours, backward(model, by_torchtitan, inputs, dtype))


def main():
    errors = Errors()
    for seed, guidance in enumerate((False, True)):
        torch.manual_seed(seed)
        with tempfile.TemporaryDirectory() as root:
            check(guidance, errors, pathlib.Path(root))
    print("largest relative errors: " + ", ".join(f"{TYPES[dtype]} {error:.2g}" for dtype, error in errors.worst.items()))


if __name__ == "__main__":
    main()
