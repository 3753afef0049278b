"""Measures how fast quantized weights are read, compared with the torch reader that torchtitan uses, and with reading the files
alone.

  TITAN_BIN=build/release/bin .deps/venv/bin/python tests/bench/quantized_load.py [--rounds 5]

The matrices have the shapes of DeepSeek V3's and GPT-OSS's experts, at least an eighth of a gibibyte of each, and are in the page
cache. One thread reads them, alternating between the programs. The first rounds of Titan and of Python are not counted. Prints
medians with the lowest and the highest, in gigabytes of stored weights per second of processor time, so that other processes on
the machine do not count.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import types
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

PROGRAM = Path(os.environ["TITAN_BIN"]).parent / "tests/quantized_load"
ROWS, COLUMNS, MATRICES = 2048, 7168, 12  # Shape of DeepSeek V3's experts.
EXPERTS, OUTPUTS, GROUPS, LAYERS = 16, 5760, 90, 1  # Shape of GPT-OSS 20b's gate and up projections.


def write(folder, tensors):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))


def float8(folder):
    tensors = {}
    for i in range(MATRICES):
        tensors[f"w{i}.weight"] = torch.randn(ROWS, COLUMNS).mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"w{i}.weight_scale_inv"] = torch.rand(ROWS // 128, COLUMNS // 128)
    write(folder, tensors)
    state = {key: torch.empty(value.shape) for key, value in tensors.items() if key.endswith(".weight")}

    def by_reader():
        dcp.load(state, storage_reader=QuantizedHuggingFaceStorageReader(str(folder), thread_count=1), no_dist=True)

    return ".weight", sum(value.nbytes for value in tensors.values()), by_reader


def mxfp4(folder):
    tensors = {}
    for i in range(LAYERS):
        tensors[f"w{i}_blocks"] = torch.randint(256, (EXPERTS, OUTPUTS, GROUPS, 16), dtype=torch.uint8)
        tensors[f"w{i}_scales"] = torch.randint(110, 130, (EXPERTS, OUTPUTS, GROUPS), dtype=torch.uint8)
    write(folder, tensors)
    reader = QuantizedHuggingFaceStorageReader(str(folder))
    whole = types.SimpleNamespace(storage_offsets=[0, 0, 0], lengths=[EXPERTS, OUTPUTS, GROUPS * 32])

    def by_arithmetic():  # The reader's own plan leaves out most of a row: call its arithmetic directly.
        for i in range(LAYERS):
            reader._dequantize_tensor_mxfp4(tensors[f"w{i}_blocks"], tensors[f"w{i}_scales"], whole, 0, 0)

    def by_transformers():
        for i in range(LAYERS):
            convert_moe_packed_tensors(tensors[f"w{i}_blocks"], tensors[f"w{i}_scales"])

    return "_blocks", sum(value.nbytes for value in tensors.values()), by_arithmetic, by_transformers


def seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory(prefix="titan-load-") as root:
        for make in (float8, mxfp4):
            folder = Path(root) / make.__name__
            suffix, size, *peers = make(folder)
            figures = {}
            for turn in range(options.rounds + 1):
                row = json.loads(subprocess.check_output([PROGRAM, folder, suffix], env={**os.environ, "OMP_NUM_THREADS": "1"}))
                timed = {"the bytes alone": row["bytes_seconds"], "Titan, read and decoded": row["numbers_seconds"],
                         **{peer.__name__.replace("_", " "): seconds(peer) for peer in peers}}
                for name, value in timed.items():
                    figures.setdefault(name, []).extend([size / value / 1e9] if turn else [])
            for name, values in figures.items():
                print(f"| {make.__name__} | {name} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) |", flush=True)


main()
