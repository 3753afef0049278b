"""Writes lr_curves.json: learning-rate factors of torchtitan's own scheduler, for comparison in lr_schedule_test.

  .deps/venv/bin/python tests/worker/rank/optim/make_lr_curves.py > tests/worker/rank/optim/lr_curves.json
"""

import importlib.metadata
import json
import logging
import sys

import torch
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.config import LRScheduler

logging.disable(logging.CRITICAL)

CASES = [
    # training steps, lr_scheduler keys
    (10, {"warmup_steps": 2}),
    (10, {"warmup_steps": 2, "decay_ratio": 0.8, "decay_type": "linear", "min_lr_factor": 0.1}),
    (1000, {"warmup_steps": 200}),
    (20, {"warmup_steps": 5, "decay_ratio": 0.25, "decay_type": "sqrt"}),
    (20, {"warmup_steps": 5, "decay_ratio": 0.5, "decay_type": "cosine", "min_lr_factor": 0.3}),
    (20, {"warmup_steps": 0}),
    (20, {"warmup_steps": 50}),
    (20, {"warmup_steps": 15, "decay_ratio": 0.8}),
    (25, {"warmup_steps": 3, "decay_ratio": 0.1}),
    (15, {"warmup_steps": 3, "decay_ratio": 0.5, "decay_type": "cosine"}),
    (8, {"warmup_steps": 2, "total_steps": 30, "decay_ratio": 0.6, "decay_type": "sqrt"}),
    (12, {"warmup_steps": 4, "decay_ratio": 0.0}),
]


class OneOptimizer(list):
    """The part of an OptimizersContainer that build_lr_schedulers needs."""


def curve(steps, keys):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedulers = build_lr_schedulers(OneOptimizer([optimizer]), LRScheduler(**keys), steps)
    factors = []
    for _ in range(keys.get("total_steps") or steps):
        factors.append(schedulers.schedulers[0].get_last_lr()[0])
        optimizer.step()
        schedulers.step()
    return factors


json.dump({"torchtitan": importlib.metadata.version("torchtitan"),
           "cases": [{"training_steps": steps, **keys, "factors": curve(steps, keys)} for steps, keys in CASES]},
          sys.stdout, indent=None, separators=(",", ":"))
print()
