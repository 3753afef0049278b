"""A rank for torchrun that "trains" as little as possible: a sum over both ranks every 20 ms, and a line for each in a
file.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 torchrun_steps.py FILE
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
with open(f"{sys.argv[1]}.{dist.get_rank()}", "a") as lines:
    for step in range(1, 100_000):
        dist.all_reduce(value.fill_(1))
        lines.write(f"{time.time():.6f} {os.getpid()} {step}\n")
        lines.flush()
        time.sleep(0.02)
