"""Writes a seeded torchtitan model as a Hugging Face folder, the common start of a comparison.

  .deps/venv/bin/python tests/peer/make_weights.py OUT [--name llama3] [--flavor debugmodel] [--seed 0] [--gain 5]
"""

import argparse
import hashlib
import json
import os

import torchtitan_cpu

import torch
from safetensors.torch import save_file
from weights import disturb


def make_weights(out, flavor="debugmodel", seed=0, gain=5.0, name="llama3"):
    """Writes OUT/model.safetensors and its index; returns the file's SHA-256."""
    from torchtitan.protocols.train_spec import get_train_spec

    if name != "llama3":
        torchtitan_cpu.install_models()
    spec = get_train_spec(name)
    model_args = spec.model_args[flavor]
    model_args.moe_impl = "standard"
    torch.manual_seed(seed)
    model = spec.model_cls(model_args)
    with torch.no_grad():
        model.init_weights()
    disturb(model, gain, expert_bias=name == "deepseek_v3")  # The other models' weights have no entry for it.
    names = spec.state_dict_adapter(model_args, None)
    state = {key: value for key, value in model.state_dict().items() if key not in ("freqs_cis", "rope_cache")}
    tensors = {key: value.detach().clone().contiguous() for key, value in names.to_hf(state).items()}
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "model.safetensors")
    save_file(tensors, path, metadata={"format": "pt"})
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as index:
        json.dump({"metadata": {"total_size": size}, "weight_map": {key: "model.safetensors" for key in sorted(tensors)}}, index)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--name", default="llama3")
    parser.add_argument("--flavor", default="debugmodel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=5)
    options = parser.parse_args()
    print(make_weights(options.out, options.flavor, options.seed, options.gain, options.name))
