"""Compares five steps of Muon with torch.optim.Muon, for random shapes. Both iterate in bf16 and round at different places, so an
update may differ by as much as either differs from the same iteration in fp64. Momentum is float32 on both sides and may not
differ."""

import json
import os
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch

STEPS = os.environ["TITAN_BIN"] + "/../tests/muon_steps"
LR, STEP_COUNT = 0.05, 5


def fp64_update(update, steps=5):
    """Returns the result of the iteration in fp64."""
    x = update.double()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


class Muon(unittest.TestCase):
    def compare(self, seed, kernels, nesterov, adjust, weight_decay):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        shapes = [(1, 8), (8, 1)] + [(rng.randint(2, 200), rng.randint(2, 200)) for _ in range(5)]
        starts = [torch.randn(shape) for shape in shapes]
        grads = [[torch.randn(shape) * 10 ** rng.uniform(-4, 2) for shape in shapes] for _ in range(STEP_COUNT)]
        theirs = [torch.nn.Parameter(one.clone()) for one in starts]
        optimizer = torch.optim.Muon(theirs, lr=LR, weight_decay=weight_decay, momentum=0.95, nesterov=nesterov, adjust_lr_fn=adjust)
        exact, momenta = [one.double() for one in starts], [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
        for of_step in grads:
            for i, gradient in enumerate(of_step):
                theirs[i].grad = gradient.clone()
                momenta[i] = 0.95 * momenta[i] + 0.05 * gradient.double()
                update = 0.05 * gradient.double() + 0.95 * momenta[i] if nesterov else momenta[i]
                rows, columns = shapes[i]
                scale = max(1, rows / columns) ** 0.5 if adjust == "original" else 0.2 * max(rows, columns) ** 0.5
                exact[i] = (1 - LR * weight_decay) * exact[i] - LR * scale * fp64_update(update)
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            job = {"shapes": shapes, "steps": STEP_COUNT, "lr": LR, "weight_decay": weight_decay, "momentum": 0.95, "nesterov": nesterov,
                   "adjust_lr": adjust}
            (folder / "job.json").write_text(json.dumps(job))
            for i, start in enumerate(starts):
                start.numpy().tofile(folder / f"start-{i}.bin")
                for step in range(STEP_COUNT):
                    grads[step][i].numpy().tofile(folder / f"grad-{step}-{i}.bin")
            subprocess.run([STEPS, folder, kernels], check=True)
            worst = 0
            for i, shape in enumerate(shapes):
                ours = torch.from_file(str(folder / f"end-{i}.bin"), size=starts[i].numel()).view(shape).double()
                momentum = torch.from_file(str(folder / f"momentum-{i}.bin"), size=starts[i].numel()).view(shape).double()
                torch.testing.assert_close(momentum, momenta[i], rtol=0, atol=1e-6 * momenta[i].abs().max().item())
                moved = (exact[i] - starts[i].double()).norm()
                our_error = ((ours - exact[i]).norm() / moved).item()
                worst = max(worst, our_error)
                self.assertLess(our_error, 0.03, shape)
                self.assertLess(((ours - theirs[i].detach()).norm() / moved).item(), 0.035, shape)
        return worst

    def test_five_steps(self):
        for seed, (nesterov, adjust) in enumerate([(True, "original"), (True, "match_rms_adamw"), (False, "original")]):
            for kernels in ["auto", "reference"] if seed == 0 else ["auto"]:
                worst = self.compare(seed, kernels, nesterov, adjust, 0.1)
                print(f"nesterov {nesterov}, {adjust}, {kernels}: at most {worst:.4f} of a step from fp64")


if __name__ == "__main__":
    unittest.main()
