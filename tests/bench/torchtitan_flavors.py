"""Adds Titan's own flavors of Llama 3 (worker/rank/model/llama3/flavors.cc, sized_models.cc) to torchtitan's table."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peer"))
import torchtitan_cpu  # Adapts torch before torchtitan is imported.

from torchtitan.models.llama3 import TransformerModelArgs, llama3_args


def add():
    llama3_args["bench"] = TransformerModelArgs(dim=1024, n_layers=8, n_heads=16, n_kv_heads=8, vocab_size=2048, rope_theta=500000)
    llama3_args["vocabulary_128256"] = TransformerModelArgs(dim=256, n_layers=6, n_heads=16, vocab_size=128256, rope_theta=500000)


install_models = torchtitan_cpu.install_models
