"""Runs torchtitan's own program for Flux on a machine without an accelerator; flux_speed.py starts it under torchrun."""

import runpy

import torchtitan_cpu  # noqa: F401

runpy.run_module("torchtitan.models.flux.train", run_name="__main__")
