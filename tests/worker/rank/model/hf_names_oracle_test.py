"""Compares every flavor's Hugging Face names, shapes and config.json with transformers' own classes and torchtitan's adapters.

Both build their models on the meta device: transformers from the config.json of Titan's export, torchtitan from its own flavor,
with tensor names from its state_dict_adapter."""

import dataclasses
import json
import logging
import os
import pathlib
import subprocess
import sys

import torch

logging.disable(logging.CRITICAL)
from torchtitan.protocols.train_spec import get_train_spec  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "list_hf_tensors"
LAYERS = 5  # Enough for both kinds of layers of every model.
BIAS = "e_score_correction_bias"


def transformers_tensors(config):
    config = dict(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    state = model.state_dict()
    tied = set(model._tied_weights_keys or []) if model.config.tie_word_embeddings else set()
    return {key: list(value.shape) for key, value in state.items() if key not in tied}


def torchtitan_tensors(name, flavor, layers):
    """Returns {Hugging Face name: shape}, or None if torchtitan has no such family or flavor."""
    try:
        spec = get_train_spec(name)
    except ValueError:  # It has no such family.
        return None
    if flavor not in spec.model_args:
        return None
    arguments = dataclasses.replace(spec.model_args[flavor], n_layers=layers)
    arguments.max_seq_len = min(arguments.max_seq_len, 8192)
    arguments.moe_impl = "standard"
    with torch.device("meta"):
        model = spec.model_cls(arguments)
    # Without the rotary table, which training does not save.
    state = {key: value for key, value in model.state_dict().items() if "freqs_cis" not in key and "rope_cache" not in key}
    return {key: list(value.shape) for key, value in spec.state_dict_adapter(arguments, None).to_hf(state).items()}


def differences(ours, theirs):
    return ([f"missing {key}" for key in sorted(theirs.keys() - ours.keys())] +
            [f"surplus {key}" for key in sorted(ours.keys() - theirs.keys())] +
            [f"{key}: {ours[key]}, not {theirs[key]}" for key in sorted(ours.keys() & theirs.keys()) if ours[key] != theirs[key]])


def against_transformers(row):
    ours = dict(row["tensors"])
    if row["name"] == "llama4":  # The class of the language model alone loads with or without this prefix.
        ours = {key.removeprefix("language_model."): shape for key, shape in ours.items()}
    return differences(ours, transformers_tensors(row["config"]))


def against_torchtitan(row):
    theirs = torchtitan_tensors(row["name"], row["flavor"], row["layers"])
    if theirs is None:
        return []
    if row["config"]["model_type"] == "deepseek_v2":  # Its class has no such tensor, but the adapter writes it.
        theirs = {key: shape for key, shape in theirs.items() if BIAS not in key}
    ours = dict(row["tensors"])
    if row["name"] == "llama4":  # Its adapter omits the dense layers' feed-forward.
        forgotten = [key for key in ours if ".feed_forward." in key and key.split(".feed_forward.")[1].split(".")[0] in
                     ("gate_proj", "up_proj", "down_proj")]
        for key in forgotten:
            del ours[key]
    if row["name"] == "gpt_oss":  # It uses the quantized release's names and keeps its own shapes.
        for key in [key for key in ours if key.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = ours.pop(key)
            ours[key + "_blocks"] = [experts, outputs, inputs]
    return differences(ours, theirs)


def main():
    wrong, checked = [], 0
    lines = subprocess.run([PROGRAM, str(LAYERS)], check=True, capture_output=True, text=True).stdout.splitlines()
    for row in map(json.loads, lines):
        for oracle, compare in (("transformers", against_transformers), ("torchtitan", against_torchtitan)):
            found = compare(row)
            wrong += [f"{row['name']} {row['flavor']}, {oracle}: {text}" for text in found[:5]]
            checked += 1
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{checked} comparisons of names and shapes hold")


main()
