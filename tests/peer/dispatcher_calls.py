"""Counts calls of PyTorch's operations in one forward and backward pass of an oracle (tests/testing/call_counter.h has the
rule)."""

import torch
from oracle_models import IGNORED


def _is_operation(event):
    return event is not None and event.name.startswith("aten::")


def _calls(oracle, tokens, labels):
    def step():
        logits = oracle.logits(tokens)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED).backward()
        oracle.module.zero_grad(set_to_none=True)

    step()  # Warm-up: one-time work is not part of a step.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    return sum(_is_operation(event) and not _is_operation(event.cpu_parent) for event in profile.events())


def count(oracle, tokens, labels):
    """{type of the weights: calls}. Afterwards the oracle's weights are bfloat16 and its experts use grouped products, as in
    training."""
    for parameter in oracle.module.parameters():
        parameter.data = parameter.data.float()
    found = {"float32": _calls(oracle, tokens, labels)}
    for parameter in oracle.module.parameters():
        parameter.data = parameter.data.bfloat16()
    for module in oracle.module.modules():
        if hasattr(module, "use_grouped_mm"):
            module.use_grouped_mm = True
    found["bfloat16"] = _calls(oracle, tokens, labels)
    return found
