"""Checks that Megatron-LM itself writes the files of tokens_test.py, byte for byte, and reads them. Run by hand: megatron-core is
not among the tests' packages.

    pip install --no-deps --target FOLDER megatron-core==0.16.1
    TITAN_BIN=build/release/bin TITAN_DEPS=.deps PYTHONPATH=FOLDER python tests/worker/rank/data/megatron_oracle.py
"""

import pathlib
import random
import tempfile
import warnings

import numpy as np
import torch

from tokens_test import KINDS, megatron

warnings.filterwarnings("ignore")
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402


def by_megatron(prefix, documents, kind, ends):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=KINDS[kind])
    for document, count in zip(documents, ends):
        lengths = [len(part) for part in np.array_split(document, count)]
        builder.add_document(torch.tensor(document, dtype=torch.int64), lengths)
    builder.finalize(f"{prefix}.idx")


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for seed in range(20):
            random_ = random.Random(seed)
            for kind in KINDS:
                top = np.iinfo(KINDS[kind]).max
                documents = [[random_.randrange(min(top, 1 << 20) + 1) for _ in range(random_.randrange(1, 60))]
                             for _ in range(random_.randrange(1, 40))]
                ends = [random_.randrange(1, min(4, len(document)) + 1) for document in documents]
                ours, theirs = root / f"ours-{seed}-{kind}", root / f"theirs-{seed}-{kind}"
                megatron(ours, documents, kind, ends)
                by_megatron(theirs, documents, kind, ends)
                for suffix in (".idx", ".bin"):
                    assert pathlib.Path(f"{ours}{suffix}").read_bytes() == pathlib.Path(f"{theirs}{suffix}").read_bytes(), (seed, kind, suffix)
                read = IndexedDataset(str(ours))
                assert np.concatenate([read[i] for i in range(len(read))]).tolist() == [token for document in documents for token in document]
        print(f"{20 * len(KINDS)} pairs of files are the same bytes and read as written: {sorted(np.dtype(kind).name for kind in KINDS.values())}")


if __name__ == "__main__":
    main()
