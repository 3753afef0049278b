"""Compares images per second of one core: Pillow, and worker/rank/data/images by the test's program process_image.

    image_rates.py [--rounds 5] [--images 100]

The first row of a format only decodes the file. The second also resizes the shorter side to 256 and cuts 256 x 256 pixels; the third also
makes the floats for Flux, as torchtitan does. Seconds are the thread's processor time, the median of rounds that alternate."""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BUILD  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

WIDTH, HEIGHT, SIZE = 512, 384, 256


def picture():
    """Returns smooth colours with some noise, which compress about as a photograph does."""
    numbers = np.random.default_rng(1)
    smooth = Image.fromarray(numbers.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
    return Image.fromarray(np.clip(np.asarray(smooth) + numbers.normal(0, 8, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8))


def files():
    image = picture()
    for name, source, options in (("JPEG", image, {"quality": 85}), ("JPEG, gray", image.convert("L"), {"quality": 85}),
                                  ("JPEG, progressive", image, {"quality": 85, "progressive": True}), ("PNG", image, {}),
                                  ("WebP", image, {"quality": 85})):
        file = io.BytesIO()
        source.save(file, name.split(",")[0], **options)
        yield name, file.getvalue()


def pillow_decoded(data):
    Image.open(io.BytesIO(data)).load()


def pillow_cut(data):
    image = Image.open(io.BytesIO(data)).resize((WIDTH * SIZE // HEIGHT + 1, SIZE))
    return image.crop((40, 0, 40 + SIZE, SIZE))


def pillow_floats(data):
    return torch.tensor(np.array(pillow_cut(data).convert("RGB")).transpose((2, 0, 1))).float() / 255.0 * 2.0 - 1.0


def seconds_of_pillow(work, data, images):
    began = time.thread_time()
    for _ in range(images):
        work(data)
    return time.thread_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=100)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    program = subprocess.Popen([BUILD / "tests/process_image"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(**request):
        program.stdin.write(json.dumps({"times": flags.images, **request}) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())["seconds"]

    resized = ["resize", WIDTH * SIZE // HEIGHT + 1, SIZE, 40, 0, SIZE, SIZE]
    print("| file | result | Pillow, images/s | Titan, images/s | ratio |\n|---|---|---|---|---|")
    with tempfile.NamedTemporaryFile() as file:
        for name, data in files():
            Path(file.name).write_bytes(data)
            for result, work, request in (("decoded", pillow_decoded, {"steps": []}), ("pixels", pillow_cut, {"steps": [resized]}),
                                          ("floats", pillow_floats, {"result": "square", "size": SIZE, "draw": 40})):
                rounds = [(seconds_of_pillow(work, data, flags.images), seconds(file=file.name, **request)) for _ in range(flags.rounds)]
                theirs, ours = (flags.images / statistics.median(column) for column in zip(*rounds))
                print(f"| {name} | {result} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f} |", flush=True)
    program.stdin.close()
    program.wait()


if __name__ == "__main__":
    main()
