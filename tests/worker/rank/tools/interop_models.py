"""Debug models of every family by transformers' classes, with the config.json of Titan's exports and random weights."""

import json
import os
import pathlib
import subprocess
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

DEPS = pathlib.Path(os.environ["TITAN_DEPS"])


def run(*arguments, expect=0):
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def configs():
    """Returns each debug flavor's config.json, as exports write it."""
    lines = map(json.loads, run(BIN.parent / "tests" / "list_hf_tensors", 100).splitlines())
    return {(row["name"], row["flavor"]): row["config"] for row in lines}


def drawn(config):
    import transformers  # Takes seconds, which tests without its models save.

    config = dict(config)
    torch.manual_seed(1)
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.05))
    return model
