"""Runs one forward and backward pass of each family's oracle (oracle_models.py) and records it for tests/numerics.

  .deps/venv/bin/python tests/peer/one_step.py OUT [--seed S] [--gain 5] [--cases a,b]

Writes to OUT/CASE:
  model.safetensors     weights by Hugging Face names
  step1.safetensors     tokens, labels, logits, loss, gradients, routing
  bfloat16.safetensors  logits, loss, gradients and routing of the same weights rounded to bfloat16, computed in fp32; with the prefix
                        "bfloat16." computed in bfloat16, with the same experts for each token and without effective clamps
  case.json             family, flavor, changed numbers of the spec and of bfloat16's, the token that ends documents, seed, versions,
                        transformers' configuration
  calls.json            how often the oracle calls operations of PyTorch

It skips a seed with a router or clamp that was nearly undecided: there rounding alone may change the results.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os

import dispatcher_calls
import torch
from oracle_models import CASES, DOCUMENTS, IGNORED, ROWS, SEQ_LEN, VOCABULARY
from routing import NO_LIMIT, PinnedChoices, RoutingRecorder
from safetensors.torch import save_file
from weights import disturb, draw


def run(oracle, recorder, seed, gain):
    """Tensors of one step, or None if rounding might have changed a decision in it."""
    torch.manual_seed(seed)
    if oracle.library == "torchtitan":
        with torch.no_grad():
            oracle.module.init_weights()
        disturb(oracle.module, gain)
    else:
        draw(oracle.module, gain)
    tokens = torch.randint(VOCABULARY, (ROWS, SEQ_LEN))
    if oracle.document_end is not None:
        for number, row in enumerate(tokens):  # The last document ends with the row, and the first row's last one is longer than any window.
            row[torch.randperm(SEQ_LEN // 3 if number == 0 else SEQ_LEN - 1)[:DOCUMENTS - 1]] = oracle.document_end
    labels = torch.randint(VOCABULARY, (ROWS, SEQ_LEN))
    labels[torch.rand(labels.shape) < 0.1] = IGNORED
    recorder.clear()
    result = step(oracle, tokens, labels, recorder.decided)
    return result and {"tokens": tokens, "labels": labels, **result, **recorder.choices, **oracle.buffers()}


def step(oracle, tokens, labels, decided=lambda: True):
    oracle.module.zero_grad(set_to_none=True)
    logits = oracle.logits(tokens)
    if not decided():
        return None
    valid = (labels != IGNORED).sum()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=IGNORED) / valid
    loss.backward()
    return {"logits": logits.detach(), "loss": loss.detach().reshape(1), **oracle.gradients()}


def rounded(oracle, recorder, tensors):
    """The same step from weights rounded to bfloat16: computed in fp32, and in bfloat16 by the oracle with the same experts.

    Clamping is a decision like the choice of an expert, and in bfloat16 rounding decides: a program that happens to decide as
    fp32 did has half the error in the gradients. So clamps have no effect in either.
    """
    for module in oracle.module.modules():
        if type(module).__name__ == "GptOssExperts":
            module.limit = NO_LIMIT
    tokens, labels = tensors["tokens"], tensors["labels"]
    for parameter in oracle.module.parameters():
        parameter.data = parameter.data.bfloat16().float()
    recorder.clear()
    exact = step(oracle, tokens, labels)
    choices = dict(recorder.choices)
    recorder.remove()  # The recorder's operations must not count, and in bfloat16 rounding alone may change a choice.
    for parameter in oracle.module.parameters():
        parameter.data = parameter.data.bfloat16()
    with PinnedChoices(choices):
        own = step(oracle, tokens, labels)
    oracle.module.zero_grad(set_to_none=True)
    return {**exact, **choices, **{"bfloat16." + key: value.float() for key, value in own.items()}}


def record(out, name, seed, gain):
    folder = os.path.join(out, name)
    os.makedirs(folder)
    oracle = CASES[name]()
    recorder = RoutingRecorder(oracle)
    drawn = 0
    while (tensors := run(oracle, recorder, seed + drawn, gain)) is None:
        drawn += 1
        if drawn == 1000:
            raise RuntimeError(f"{name}: no seed from {seed} on decides clearly")
    write_case(folder, name, oracle, seed + drawn, recorder.said())
    for file, all_of_it in (("step1", tensors), ("bfloat16", rounded(oracle, recorder, tensors))):
        save_file({key: value.contiguous() for key, value in all_of_it.items()}, os.path.join(folder, file + ".safetensors"))
    count_calls(folder, oracle, tensors)


def write_case(folder, name, oracle, seed, margins):
    """Writes the model's weights by Hugging Face names, and case.json; `margins` are for the log."""
    path = os.path.join(folder, "model.safetensors")
    save_file({key: value.detach().clone().contiguous() for key, value in oracle.hf_weights().items()}, path, metadata={"format": "pt"})
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    versions = {package: importlib.metadata.version(package) for package in ("torch", oracle.library)}
    with open(os.path.join(folder, "case.json"), "w") as file:
        json.dump({"case": name, "library": oracle.library, "versions": versions, "family": oracle.family, "flavor": oracle.flavor,
                   "spec": oracle.spec, "bfloat16_spec": {key: NO_LIMIT for key in oracle.spec if key == "swiglu_limit"}, "seed": seed,
                   "document_end": oracle.document_end, "weights_sha256": digest, "config": oracle.config}, file, indent=1)
    print(f"{name}: {oracle.library} {versions[oracle.library]}, seed {seed}{margins}", flush=True)


def count_calls(folder, oracle, tensors):
    """Must be the last use of `oracle`: its weights are different afterwards."""
    with open(os.path.join(folder, "calls.json"), "w") as file:
        json.dump(dispatcher_calls.count(oracle, tensors["tokens"], tensors["labels"]), file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.cases.split(","):
        record(options.out, name, options.seed, options.gain)


if __name__ == "__main__":
    main()
