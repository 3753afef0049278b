"""Trains the small autoencoder on random pictures of shapes and writes autoencoder.safetensors, which make.py expands.

    .deps/venv/bin/python deploy/image_assets/train_autoencoder.py [--steps 1200] [--halved 0.75] [--start FILE] [--out FILE]

It has Flux's architecture with 16 and 32 channels: factor 8, 16 latent channels. Blocks of the lowest resolution and the second block of each
level of the decoder stay the identity. Trained weights are stored as 8-bit integers with a scale for each output channel. Needs the oracles
of the tests (deploy/bootstrap.sh --with-oracles). Nothing else runs this: the file is part of the source. It had 1,200 steps, and 700 more
with --start.
"""

import argparse
import json
import pathlib
import random

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

import shapes
from autoencoder import CONFIG, expand, is_identity

KL_WEIGHT = 2e-5
HERE = pathlib.Path(__file__).resolve().parent


def pictures(count, random_numbers):
    """Returns pictures [count, 3, 64, 64] in [-1, 1]; a fourth of them have colours without a name."""
    rows = []
    for _ in range(count):
        scene = shapes.draw_scene(random_numbers, held_out=random_numbers.random() < 0.15)
        scene = scene._replace(place=random_numbers.choice(["", *shapes.PLACES]))
        picture = torch.frombuffer(bytearray(shapes.render(scene, random_numbers)), dtype=torch.uint8)
        picture = picture.view(shapes.SIDE, shapes.SIDE, 3).permute(2, 0, 1) / 127.5 - 1
        rows.append(picture[torch.randperm(3)] if random_numbers.random() < 0.25 else picture)
    return torch.stack(rows)


def build():
    """Returns the model. Blocks that stay the identity have zeros in the last layer and are not trained."""
    model = AutoencoderKL.from_config(CONFIG)
    for name, parameter in model.named_parameters():
        if is_identity(name):
            torch.nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)
            parameter.requires_grad_(False)
    return model


def skip_identities(model):
    """Replaces the blocks that stay the identity by nothing, which saves time."""
    class Same(torch.nn.Module):
        def forward(self, x, *_, **__):
            return x

    model.encoder.mid_block = model.decoder.mid_block = Same()
    for block in model.decoder.up_blocks:
        block.resnets[1] = Same()


def eight_bits(model):
    """Returns the trained parameters: vectors in float16, others as integers with a scale for each first index."""
    stored = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        value = parameter.detach()
        if value.dim() == 1:
            stored[name] = value.half()
            continue
        scale = (value.flatten(1).abs().amax(1) / 127).clamp_min(1e-8).half()
        integers = (value / scale.float().view(-1, 1, 1, 1)).round().clamp(-127, 127)
        stored[name], stored[f"{name}.scale"] = integers.to(torch.int8), scale
        parameter.data.copy_(integers * scale.float().view(-1, 1, 1, 1))
    return stored


def difference(decoded, pictures):
    """Returns the mean absolute difference, in which a pixel of a shape counts four times, and differences of colour in addition."""
    shape = (pictures - pictures[:, :, :1, :1]).abs().amax(1, keepdim=True) > 0.1
    weights = 1 + 3.0 * shape
    error = (decoded - pictures) * weights / weights.mean()
    return error.abs().mean() + (error - error.mean(1, keepdim=True)).abs().mean()


def report(model, step):
    with torch.no_grad():
        batch = pictures(16, random.Random(1))
        moments = model.encode(batch).latent_dist
        difference = (model.decode(moments.sample()).sample.clamp(-1, 1) - batch).abs().mean() * 127.5
        print(f"step {step}: mean error {difference:.2f} of 255, latents {moments.mean.mean():.4f} +- {moments.mean.std():.4f}, "
              f"deviation {moments.std.mean():.4f}", flush=True)
        return moments.mean.mean().item(), moments.sample().std().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--halved", type=float, default=0.75, help="share of the steps with pictures of half the size, which take a fourth of the time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--start", type=pathlib.Path, help="weights to continue with")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "autoencoder.safetensors")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    random_numbers, model = random.Random(arguments.seed), build()
    if arguments.start:
        weights, _ = expand(arguments.start)
        model.load_state_dict({name: torch.tensor(values).view(shape) for name, (shape, values) in weights.items()})
    skip_identities(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(sum(parameter.numel() for parameter in trained), "parameters")
    optimizer = torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (step + 1) / 50, 3 * (1 - step / arguments.steps) + 0.01)
        batch = pictures(8, random_numbers)
        if step < arguments.halved * arguments.steps:
            batch = torch.nn.functional.avg_pool2d(batch, 2)
        moments = model.encode(batch).latent_dist
        loss = difference(model.decode(moments.sample()).sample, batch) + KL_WEIGHT * moments.kl().mean() / moments.mean[0, 0].numel()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if step % 100 == 0:
            report(model, step)
    stored = eight_bits(model)
    mean, deviation = report(model, arguments.steps)
    metadata = {"scaling_factor": f"{1 / deviation:.4f}", "shift_factor": f"{mean:.4f}"}
    save_file(stored, arguments.out, metadata=metadata)
    print(json.dumps(metadata), arguments.out.stat().st_size, "bytes")


main()
