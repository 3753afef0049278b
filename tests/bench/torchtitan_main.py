"""torchtitan's own program on a machine without an accelerator: what the benchmarks start under torchrun."""

import runpy
import sys

import torchtitan_cpu  # tests/peer; adapts torch before torchtitan is imported.

names = [value for key, value in zip(sys.argv, sys.argv[1:]) if key == "--model.name"]
if names[-1:] != ["llama3"]:
    torchtitan_cpu.install_models()
runpy.run_module("torchtitan.train", run_name="__main__")
