"""Tests that the loader's batches are torchtitan's own, token for token: order per_rank for several data-parallel degrees, order
global for one rank, past the end of the dataset, and streamed from compressed files as torchtitan streams c4."""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_DATASETS_OFFLINE"] = "1"
work = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = os.path.join(work.name, "hf")

from datasets import load_dataset  # noqa: E402
from torchtitan.components.tokenizer import HuggingFaceTokenizer  # noqa: E402
from torchtitan.hf_datasets import DatasetConfig, text_datasets  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "dump_batches"
ASSETS = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets"
TOKENIZER = ASSETS / "tokenizer"


def torchtitan_rows(dataset, path, rank, size, seq_len, count):
    rows = iter(text_datasets.HuggingFaceTextDataset(
        dataset, str(path), HuggingFaceTokenizer(str(TOKENIZER)), seq_len, rank, size, infinite=True))
    return [(inputs["input"].tolist(), labels.tolist()) for _, (inputs, labels) in zip(range(count), rows)]


def titan_rows(dataset, path, rank, size, seq_len, batch, count, order):
    options = {"dataset": dataset, "path": str(path), "tokenizer": str(TOKENIZER), "batch": batch, "seq_len": seq_len,
               "order": order, "dp_rank": rank, "dp_size": size, "batches": count // batch}
    out = subprocess.run([PROGRAM, json.dumps(options)], check=True, capture_output=True, text=True).stdout
    batches = [json.loads(line) for line in out.splitlines()]
    return [(tokens, labels) for b in batches for tokens, labels in zip(b["tokens"], b["labels"])]


def compare(name, expected, got):
    assert len(expected) == len(got), f"{name}: {len(got)} rows of {len(expected)}"
    for i, (a, b) in enumerate(zip(expected, got)):
        if a != b:
            sys.exit(f"{name}: row {i} differs: torchtitan {a[0][:12]}, Titan {b[0][:12]}")
    print(f"{name}: {len(got)} rows equal", flush=True)


def write_shards(folder, documents, shards, compress):
    folder.mkdir(parents=True)
    for shard in range(shards):
        name = folder / f"c4-train.{shard:05d}-of-{shards:05d}.json{'.gz' if compress else ''}"
        with (gzip.open if compress else open)(name, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(d) + "\n" for d in documents[shard::shards])


def main():
    root = pathlib.Path(work.name)
    documents = [json.loads(line) for line in open(ASSETS / "c4_test" / "data.json", encoding="utf-8")]
    folder = ASSETS / "c4_test"
    for size in (1, 2, 3):
        for rank in range(size):
            compare(f"c4_test, rank {rank} of {size}", torchtitan_rows("c4_test", folder, rank, size, 512, 240),
                    titan_rows("c4_test", folder, rank, size, 512, 8, 240, "per_rank"))
    compare("c4_test, global", torchtitan_rows("c4_test", folder, 0, 1, 2048, 64), titan_rows("c4_test", folder, 0, 1, 2048, 4, 64, "global"))

    small = root / "small"
    write_shards(small, documents[:11], 1, compress=False)
    for rank in range(3):  # Four passes over 3 or 4 documents.
        compare(f"short dataset, rank {rank} of 3", torchtitan_rows("c4_test", small, rank, 3, 100, 160),
                titan_rows("c4_test", small, rank, 3, 100, 1, 160, "per_rank"))

    mirror = root / "c4"
    write_shards(mirror / "en", documents[:60], 4, compress=True)
    # Without a network the hub's configuration "en" is missing, so the same stream is loaded by its files.
    text_datasets.DATASETS["c4"] = DatasetConfig(
        path="", sample_processor=text_datasets._process_c4_text, loader=lambda path: load_dataset(
            "json", data_files=sorted(str(p) for p in (mirror / "en").iterdir()), split="train", streaming=True))
    # Whole files for 2 ranks, every third document for 3. Two passes: after the second pass `datasets` shuffles its
    # files.
    for size in (2, 3):
        for rank in range(size):
            compare(f"c4 streamed, rank {rank} of {size}", torchtitan_rows("c4", mirror, rank, size, 256, 120),
                    titan_rows("c4", mirror, rank, size, 256, 1, 120, "per_rank"))


main()
