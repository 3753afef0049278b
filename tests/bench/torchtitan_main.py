"""torchtitan's own program on a machine without an accelerator: what the benchmarks start under torchrun."""

import runpy
import sys

import torchtitan_cpu  # tests/peer; adapts torch before torchtitan is imported.
from torchtitan.models.llama3 import TransformerModelArgs, llama3_args

names = [value for key, value in zip(sys.argv, sys.argv[1:]) if key == "--model.name"]
if names[-1:] != ["llama3"]:
    torchtitan_cpu.install_models()
# Titan's flavor of this name (worker/model/llama3/flavors.cc).
llama3_args["bench"] = TransformerModelArgs(dim=1024, n_layers=8, n_heads=16, n_kv_heads=8, vocab_size=2048, rope_theta=500000)
runpy.run_module("torchtitan.train", run_name="__main__")
