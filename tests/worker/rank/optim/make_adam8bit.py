"""Writes adam8bit.json: five steps of bitsandbytes' 8-bit Adam and AdamW, and its dynamic maps, for comparison in
low_precision_states_test.

  python -m venv --system-site-packages V && V/bin/pip install --no-deps bitsandbytes==0.50.2    (with torch installed)
  V/bin/python tests/worker/rank/optim/make_adam8bit.py > tests/worker/rank/optim/adam8bit.json

Weights and gradients come from a formula that both sides compute, so the file holds only results, of every 13th number.
"""

import contextlib
import json
import math
import sys

with contextlib.redirect_stdout(sys.stderr):
    import torch

    import bitsandbytes
    from bitsandbytes.functional import create_dynamic_map, dequantize_blockwise

ROWS, COLUMNS, STEPS, EVERY, RATE = 16, 512, 5, 13, 1e-3


def wave(number, step):
    """Returns numbers of both signs that span two decades within a block, so that bitsandbytes does not lose their squares."""
    return math.sin(0.37 * number + 1.3 * step + 0.001 * number * step) * 10.0 ** (-0.5 * (number * 7 % 5))


def tensor(step):
    values = [wave(i, step) for i in range(ROWS * COLUMNS)]
    return torch.tensor(values, dtype=torch.float64).float().view(ROWS, COLUMNS)


def run(kind, weight_decay):
    weight = torch.nn.Parameter(tensor(0) * 0.1)
    optimizer = kind([weight], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)
    for step in range(1, STEPS + 1):
        weight.grad = tensor(step) * 0.01
        optimizer.step()
    state = optimizer.state[weight]
    moments = [
        dequantize_blockwise(state[f"state{i}"], absmax=state[f"absmax{i}"], code=state[f"qmap{i}"], blocksize=256)
        for i in (1, 2)
    ]
    pick = lambda values: [float(f"{x:.9g}") for x in values.detach().flatten()[::EVERY].tolist()]
    return {"value": pick(weight), "exp_avg": pick(moments[0]), "exp_avg_sq": pick(moments[1])}


json.dump(
    {
        "bitsandbytes": bitsandbytes.__version__, "rows": ROWS, "columns": COLUMNS, "steps": STEPS, "every": EVERY, "rate": RATE,
        "signed": create_dynamic_map(True).tolist(), "unsigned": create_dynamic_map(False).tolist(),
        "AdamW": run(bitsandbytes.optim.AdamW8bit, 0.1),
        "Adam": run(bitsandbytes.optim.Adam8bit, 0),  # Adam's decay in bitsandbytes is AdamW's.
    },
    sys.stdout,
)
print()
