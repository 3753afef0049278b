"""Trains a class of transformers as torchtitan's trainer would: its loss, clipping, AdamW and schedule, on CPU in fp32.

Only the bias that balances experts is missing, because those classes have none (or never move it); Titan's side does not move it
either (model.load_balance_coeff = 0). The learning rate has torchtitan's shape: 2 steps of warm-up, then a linear decay over the
rest of the run.
"""

import json
import os

import torch

WARMUP, LEARNING_RATE = 2, 8e-4


def factor(step, steps):
    warmup = min(WARMUP, steps)
    decay = steps - warmup
    if step < warmup:
        return (step + 1) / warmup
    stable = steps + 1 - warmup - decay
    if step + 1 < warmup + stable:
        return 1.0
    return 1 - (step + 1 - warmup - stable) / decay


def train_transformers(model, batches, steps, out):
    """Writes steps.jsonl as run_peer.py does."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, steps))
    with open(os.path.join(out, "steps.jsonl"), "w") as file:
        for step in range(1, steps + 1):
            tokens, labels = next(batches)
            optimizer.zero_grad()
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / labels.numel()
            loss.backward()
            for parameter in parameters:
                if parameter.grad is None:  # A separate expert without tokens: weight decay applies to it as to all others.
                    parameter.grad = torch.zeros_like(parameter)
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            row = {"step": step, "loss": loss.item(), "max_loss": loss.item(), "grad_norm": norm.item()}
            file.write(json.dumps(row) + "\n")
