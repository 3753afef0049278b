"""Tests that a tiny Flux learns colours from captions: it trains on the pictures of deploy/image_assets, then paints prompts that were not in the
training set, and each picture must have the colour that its prompt names.

    colours_test.py [--steps N] [--dump FOLDER] [--sheet FILE]     --sheet writes all pictures as one

Prints for each prompt the colour that most of the pixels have, among those that are not background, and the losses.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3].parent / "testing"))
from paths import BIN, SOURCE

sys.path.insert(0, str(SOURCE / "deploy/image_assets"))
import shapes  # noqa: E402

FEWEST_PIXELS = 60  # Fewer of one colour are not a shape: a small one has 150 or more.
SHARE = 0.8  # Of the pictures that must have the right colour.


def train(dump, steps):
    subprocess.run([BIN / "titanctl", "run", SOURCE / "configs/flux_tiny.toml", "--training.steps", str(steps), "--job.dump_folder", dump,
                    "--checkpoint.interval", "1000000", "--validation.freq", str(max(1, steps // 10)), "--validation.steps", "8",
                    "--validation.save_img_count", "0", "--metrics.log_freq", str(max(1, steps // 20))],
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def validation_losses(dump):
    lines = [json.loads(line) for line in (dump / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["validation_metrics/loss"]) for line in lines if "validation_metrics/loss" in line]


def paint(dump, prompts):
    """Returns the pictures of the prompts."""
    folder = dump / "painted"
    (dump / "prompts.txt").write_text("".join(prompt + "\n" for prompt in prompts))
    subprocess.run([BIN / "titan-generate", "--checkpoint", dump / "checkpoint", "--prompts", dump / "prompts.txt", "--image", f"{folder}/",
                    "--steps", "30", "--guidance", "3", "--batch", "6"], check=True)  # fmt: skip
    return [Image.open(folder / f"image_prompt{i}.png").convert("RGB") for i in range(len(prompts))]


def main_colour(picture):
    """Returns the colour of most pixels that are not background, and their number."""
    named = {**shapes.COLOURS, **shapes.BACKGROUNDS}
    counts = dict.fromkeys(shapes.COLOURS, 0)
    data = picture.tobytes()
    for pixel in zip(data[::3], data[1::3], data[2::3]):
        nearest = min(named, key=lambda name: sum((a - b) ** 2 for a, b in zip(named[name], pixel)))
        if nearest in counts:
            counts[nearest] += 1
    best = max(counts, key=counts.get)
    return best, counts[best]


def write_sheet(path, pictures):
    columns, side = 6, shapes.SIDE
    sheet = Image.new("RGB", (columns * (side + 4) - 4, -(-len(pictures) // columns) * (side + 4) - 4), "white")
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * (side + 4), i // columns * (side + 4)))
    sheet.save(path, optimize=True)


def check(dump, arguments):
    began = time.monotonic()
    train(dump, arguments.steps)
    wall, usage = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"trained {arguments.steps} steps in {wall:.0f} s with {(usage.ru_utime + usage.ru_stime) / wall:.2f} of {os.cpu_count()} cores")
    losses = validation_losses(dump)
    print("validation:", ", ".join(f"{loss:.4f} at step {step}" for step, loss in losses))
    wanted = shapes.measured_prompts()
    pictures = paint(dump, [prompt for _, prompt in wanted])
    right = 0
    for (scene, prompt), picture in zip(wanted, pictures):
        colour, pixels = main_colour(picture)
        good = colour == scene.colour and pixels >= FEWEST_PIXELS
        right += good
        print(f"{'right' if good else 'WRONG'}: {prompt!r}: {pixels} pixels {colour}")
    print(f"{right} of {len(wanted)} prompts have their colour", flush=True)
    if arguments.sheet:
        write_sheet(arguments.sheet, pictures)
    assert losses[-1][1] < 0.7 * losses[0][1], losses
    assert right >= SHARE * len(wanted), f"only {right} of {len(wanted)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--dump", type=pathlib.Path)
    parser.add_argument("--sheet", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.dump:
        return check(arguments.dump, arguments)
    with tempfile.TemporaryDirectory() as folder:
        check(pathlib.Path(folder), arguments)


main()
