"""Twenty random kills of ranks, shims, worker daemons and controllers in one run, each after progress; the loss curve
does not change."""

import os
import random
import signal
import sys
import unittest
from pathlib import Path

from fault_case import FaultCase, tiny

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from jobs import committed_steps, last_step, wait_committed, wait_step  # noqa: E402

KILLS = int(os.environ.get("TITAN_KILLS", "20"))
SEED = int(os.environ.get("TITAN_SEED", "7"))
STEPS = 8 * KILLS + 10


class RandomKills(FaultCase):
    def victims(self):
        return {"rank": lambda: self.dice.choice(self.cluster.ranks() or [None]),
                "shim": lambda: self.dice.choice(self.cluster.shims() or [None]),
                "worker": lambda: self.cluster.worker(self.dice.choice(["n1", "n2"])),
                "controller": lambda: self.cluster.controller}

    def kill_one(self):
        kind = self.dice.choice(list(self.victims()))
        victim = self.victims()[kind]()
        if victim is not None:
            victim.kill(signal.SIGKILL)
        return kind

    def test_twenty_random_kills(self):
        print(f"seed {SEED}, {KILLS} kills")
        self.dice = random.Random(SEED)
        self.start(workers=2, devices=1)
        job = self.cluster.submit(*tiny(self.dump, steps=STEPS, ranks_per_node=1))
        kinds = []
        for _ in range(KILLS):
            # Progress: a commit and a step that no attempt had reached.
            wait_committed(self.dump, max(committed_steps(self.dump), default=0) + 1, 90)
            wait_step(self.dump, last_step(self.dump) + 1, 90)
            kinds.append(self.kill_one())
        self.finish(job)
        attempts = self.attempts(job)
        print(f"{kinds}: {len(attempts)} attempts")
        for attempt in attempts:
            print(f"  {attempt['number']}: {attempt['end_cause']} {attempt['end_message']}")
        self.assertLessEqual(len(attempts), 1 + sum(kind in ("rank", "shim") for kind in kinds))
        self.assert_same_curve(STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
