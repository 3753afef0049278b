"""torchtitan's own program on a machine without an accelerator: what first_step.py starts under torchrun."""

import runpy

import torchtitan_cpu  # noqa: F401  (tests/peer; adapts torch before torchtitan is imported)

runpy.run_module("torchtitan.train", run_name="__main__")
