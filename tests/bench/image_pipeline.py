"""Compares the whole reading of pictures for Flux: images per second of one core, by Titan and by torchtitan's own dataset, from the same files.

    image_pipeline.py [--rounds 3] [--rows 400] [--size 256] [--pictures 64]

Both read files of 512 x 384 pixels with captions of 20 words, decode, resize the shorter side to SIZE, cut SIZE x SIZE pixels, make floats,
tokenize the caption twice (256 and 77 ids) and drop captions. Titan also draws the noise of the training, and forms batches. The files are tar
archives of JPEG, of progressive JPEG and of PNG, a Parquet file of JPEG, and a folder of JPEG with metadata.jsonl. torchtitan's dataset for tests
reads only tar archives, so for the last two it reads the same pictures from the first. Processor seconds of all threads count, in rounds that
alternate, so that other work on the machine changes little.

The last lines show whether the reading stays ahead of a step: one caller takes batches of four from N threads and pauses after each, so that it
needs half of the images that a core makes in this time; `waited` is the share of the time in which it waited."""

import argparse
import io
import json
import logging
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BUILD  # noqa: E402

import numpy as np  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from programs import DEPS  # noqa: E402

WIDTH, HEIGHT, T5_LENGTH, CLIP_LENGTH, DROPPED = 512, 384, 256, 77, 0.447
TOKENIZER = DEPS / "assets/tokenizer"
WORDS = "a photograph of the old harbour with small boats under heavy clouds in evening light seen from near stone pier".split()


def pictures(count):
    """Returns images of smooth colours with some noise, which compress about as photographs do, and their captions."""
    numbers = np.random.default_rng(1)
    for number in range(count):
        smooth = Image.fromarray(numbers.integers(0, 256, (48, 64, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
        noisy = np.asarray(smooth) + numbers.normal(0, 8, (HEIGHT, WIDTH, 3))
        yield Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), " ".join(numbers.permutation(WORDS)) + f" {number}"


def encoded(image, name, **options):
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def write_tar(path, samples, ending):
    with tarfile.open(path, "w") as archive:
        for number, (data, caption) in enumerate(samples):
            for name, content in ((f"{number:06d}.{ending}", data), (f"{number:06d}.txt", caption.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_files(folder, count):
    """Returns (name of the kind, path for Titan, the same pictures in tar archives for torchtitan)."""
    made = list(pictures(count))
    jpeg = [(encoded(image, "JPEG", quality=85), caption) for image, caption in made]
    kinds = {"tar, JPEG": (jpeg, "jpg"),
             "tar, progressive JPEG": ([(encoded(image, "JPEG", quality=85, progressive=True), caption) for image, caption in made], "jpg"),
             "tar, PNG": ([(encoded(image, "PNG"), caption) for image, caption in made], "png")}
    paths = []
    for number, (kind, (samples, ending)) in enumerate(kinds.items()):
        (folder / str(number)).mkdir()
        write_tar(folder / str(number) / "shard-000.tar", samples, ending)
        paths.append((kind, folder / str(number), folder / str(number)))
    (folder / "parquet").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"image": [{"bytes": data, "path": None} for data, _ in jpeg], "caption": [text for _, text in jpeg]}),
                                folder / "parquet/part-0.parquet")
    (folder / "folder").mkdir()
    with open(folder / "folder/metadata.jsonl", "w") as lines:
        for number, (data, caption) in enumerate(jpeg):
            (folder / f"folder/{number:06d}.jpg").write_bytes(data)
            lines.write(json.dumps({"file_name": f"{number:06d}.jpg", "text": caption}) + "\n")
    return [*paths, ("Parquet, JPEG", folder / "parquet", folder / "0"), ("folder, JPEG", folder / "folder", folder / "0")]


def torchtitan_rows(path, size):
    """Returns an iterator over torchtitan's rows, without end."""
    from torchtitan.config import JobConfig  # noqa: F401
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.models.flux import flux_datasets
    from torchtitan.models.flux.tokenizer import FluxTestTokenizer

    logging.disable(logging.WARNING)

    def as_jpg(sample, *rest, **options):
        """Names the picture as torchtitan's processor expects it, whatever its format."""
        if "jpg" not in sample:
            sample = {"jpg": sample["png"], "txt": sample["txt"]}
        return flux_datasets._cc12m_wds_data_processor(sample, *rest, **options)

    test = flux_datasets.DATASETS["cc12m-test"]
    flux_datasets.DATASETS["cc12m-test"] = DatasetConfig(path=test.path, loader=test.loader, sample_processor=as_jpg)
    training = types.SimpleNamespace(img_size=size, classifier_free_guidance_prob=DROPPED)
    return iter(flux_datasets.FluxDataset("cc12m-test", str(path), FluxTestTokenizer(str(TOKENIZER), max_length=T5_LENGTH),
                                          FluxTestTokenizer(str(TOKENIZER), max_length=CLIP_LENGTH),
                                          types.SimpleNamespace(training=training), infinite=True))


def torchtitan_rate(rows, count):
    began = time.process_time()
    for _ in range(count):
        next(rows)
    return count / (time.process_time() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--pictures", type=int, default=64)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    program = subprocess.Popen([BUILD / "tests/image_pipeline", TOKENIZER, str(flags.size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def titan(**request):
        program.stdin.write(json.dumps({"rows": flags.rows, **request}) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    print("| files | Titan, images/s | torchtitan, images/s | ratio | Titan with 2 threads, images/s a core |\n|---|---|---|---|---|")
    rate_of = {}
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), flags.pictures)
        for kind, path, for_torchtitan in files:
            rows = torchtitan_rows(for_torchtitan, flags.size)
            torchtitan_rate(rows, 4)
            ours, theirs, threaded = [], [], []
            for _ in range(flags.rounds):
                for rates, threads in ((ours, 0), (threaded, 2)):
                    found = titan(path=str(path), threads=threads)
                    rates.append(found["rows"] / found["processor_seconds"])
                theirs.append(torchtitan_rate(rows, flags.rows // 2))
            rate_of[kind], their_rate = statistics.median(ours), statistics.median(theirs)
            print(f"| {kind} | {rate_of[kind]:.0f} | {their_rate:.0f} | {rate_of[kind] / their_rate:.2f} | {statistics.median(threaded):.0f} |", flush=True)
        kind, path, _ = files[0]
        for threads in (1, 2, 4):
            found = titan(path=str(path), threads=threads, pause=2 * 4 / rate_of[kind])
            print(f"{threads} threads ahead of a step of four images: {found['rows'] / found['seconds']:.0f} images/s, "
                  f"waited {100 * found['waited']:.1f} %, {found['busy_threads']:.2f} threads busy", flush=True)
    program.stdin.close()
    sys.exit(program.wait())


if __name__ == "__main__":
    main()
