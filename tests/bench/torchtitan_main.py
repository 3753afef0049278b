"""Runs torchtitan's own program on a machine without an accelerator; the benchmarks start it under torchrun."""

import runpy
import sys

import torchtitan_flavors

names = [value for key, value in zip(sys.argv, sys.argv[1:]) if key == "--model.name"]
if names[-1:] != ["llama3"]:
    torchtitan_flavors.install_models()
torchtitan_flavors.add()
runpy.run_module("torchtitan.train", run_name="__main__")
