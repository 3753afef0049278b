"""Compares the sampler with diffusers': its times with FlowMatchEulerDiscreteScheduler's under the dynamic shift of FLUX.1-dev, and whole
samplings with those of FluxTransformer2DModel from the same weights and noise, with and without classifier-free guidance, with and
without a guidance embedder, on one rank and on two context ranks.

The scheduler stores its times and adds in fp32, so samplings in fp64 follow Euler's formula here, and those in fp32 its step()."""

import json
import logging
import math
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)

import numpy  # noqa: E402
import torch  # noqa: E402
from diffusers import FlowMatchEulerDiscreteScheduler  # noqa: E402
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline, calculate_shift  # noqa: E402
from diffusers_flux import CHANNELS, PROGRAMS, TXT, VEC, diffusers_model, exact_rotation  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

SAMPLER = PROGRAMS / "run_sampler"
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
ROWS, TXT_TOKENS, HIGH, WIDE, STEPS, SCALE = 2, 6, 4, 8, 4, 3.5
TOKENS = HIGH // 2 * (WIDE // 2)


def scheduler(dynamic):
    """The scheduler of FLUX.1-dev, or without dynamic shift that of FLUX.1-schnell."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dynamic, shift=3.0 if dynamic else 1.0, base_shift=0.5, max_shift=1.15,
                                           base_image_seq_len=256, max_image_seq_len=4096)


def schedule(steps, tokens, dynamic):
    """Returns diffusers' times in fp32 and the same computed by its functions in fp64."""
    made = scheduler(dynamic)
    even = numpy.linspace(1.0, 1 / steps, steps)
    mu = calculate_shift(tokens, 256, 4096, 0.5, 1.15)
    made.set_timesteps(sigmas=even, mu=mu if dynamic else None)
    exact = made.time_shift(mu, 1.0, even) if dynamic else even
    return made, numpy.append(exact, 0.0)


def check_times():
    cases = [(steps, tokens, dynamic) for steps in (1, 2, 4, 28, 50) for tokens in (16, 256, 1024, 4096, 5000) for dynamic in (True, False)]
    text = "".join(f"{steps} {tokens} {int(dynamic)}\n" for steps, tokens, dynamic in cases)
    out = subprocess.run([SAMPLER, "times"], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    worst = {"fp64": 0.0, "fp32": 0.0}
    for case, line in zip(cases, out, strict=True):
        ours = numpy.array(json.loads(line))
        made, exact = schedule(*case)
        if len(ours) != len(exact):
            sys.exit(f"{case}: {len(ours)} times, not {len(exact)}")
        worst["fp64"] = max(worst["fp64"], abs(ours - exact).max())
        worst["fp32"] = max(worst["fp32"], abs(ours - made.sigmas.double().numpy()).max())
    print(f"times: {len(cases)} schedules, off by {worst['fp64']:.2g} from the functions, {worst['fp32']:.2g} from the scheduler's fp32")
    if not (worst["fp64"] <= 1e-12 and worst["fp32"] <= 1e-6):
        sys.exit("the times differ")


def velocity(model, tokens, time, txt, y, scale):
    ids = FluxPipeline._prepare_latent_image_ids(1, HIGH // 2, WIDE // 2, "cpu", torch.float32)
    rows = len(tokens)
    guidance = torch.full((rows,), scale).float() if model.config.guidance_embeds else None
    with exact_rotation():
        return model(hidden_states=tokens, encoder_hidden_states=txt.expand(rows, -1, -1), pooled_projections=y.expand(rows, -1),
                     timestep=torch.full((rows,), time).float(), guidance=guidance, txt_ids=torch.zeros(txt.shape[1], 3), img_ids=ids).sample


@torch.no_grad()
def sampled(model, inputs, guided, dtype):
    made, exact = schedule(STEPS, TOKENS, True)
    channels = CHANNELS // 4
    tokens = FluxPipeline._pack_latents(inputs["noise"], ROWS, channels, HIGH, WIDE)
    for step in range(STEPS):
        v = velocity(model, tokens, exact[step], inputs["txt"], inputs["y"], SCALE)
        if guided:
            empty = velocity(model, tokens, exact[step], inputs["empty_txt"], inputs["empty_y"], SCALE)
            v = empty + SCALE * (v - empty)
        if dtype == torch.float64:
            tokens = tokens + (exact[step + 1] - exact[step]) * v
        else:
            tokens = made.step(v, made.timesteps[step], tokens, return_dict=False)[0]
    return FluxPipeline._unpack_latents(tokens, HIGH * 8, WIDE * 8, 8)


def check(guidance, dtype, root):
    model = diffusers_model(guidance)
    folder = root / f"weights-{guidance}-{dtype}"
    model.save_pretrained(folder)
    model.to(dtype)
    shapes = {"noise": (ROWS, CHANNELS // 4, HIGH, WIDE), "txt": (ROWS, TXT_TOKENS, TXT), "y": (ROWS, VEC),
              "empty_txt": (1, TXT_TOKENS, TXT), "empty_y": (1, VEC)}
    inputs = {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}
    _, times = schedule(STEPS, TOKENS, True)
    numbers = {"times": torch.from_numpy(times), "scale": torch.tensor(SCALE, dtype=torch.float64)}
    save_file(inputs | numbers, folder / "inputs")
    subprocess.run([SAMPLER, folder, folder / "inputs", folder / "out"], check=True)
    ours = load_file(folder / "out/latents.safetensors")
    theirs = {kind: sampled(model, inputs, kind == "guided", dtype) for kind in ("plain", "guided")}
    worst = 0.0
    for name, latents in ours.items():
        want = theirs[name.removesuffix(".context")]
        if latents.dtype != dtype or latents.shape != want.shape:
            sys.exit(f"{name}: {list(latents.shape)} of {latents.dtype}")
        error = ((latents - want).abs().max() / want.abs().max()).item()
        if not error <= BOUNDS[dtype]:
            sys.exit(f"{name}, guidance embedder {guidance}: relative error {error:.3g} in {dtype}")
        worst = max(worst, error)
    if len(ours) != 4 or math.isclose((ours["plain"] - ours["guided"]).abs().max().item(), 0, abs_tol=1e-3):
        sys.exit(f"{sorted(ours)}: guidance has no effect")
    return worst


def main():
    torch.set_num_threads(1)
    check_times()
    torch.manual_seed(3)
    with tempfile.TemporaryDirectory() as root:
        for dtype in BOUNDS:
            worst = max(check(guidance, dtype, pathlib.Path(root)) for guidance in (False, True))
            print(f"samplings of {STEPS} steps: largest relative error {worst:.2g} in {dtype}")


if __name__ == "__main__":
    main()
