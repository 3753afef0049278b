"""Where the host reads what a device computed: each place waits for all that the device was given, so each has its reason here."""

import os
import re
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("TITAN_SOURCE", Path(__file__).resolve().parents[2]))
STEP = ["nn", "parallel", "optim", "comm", "runtime/engine", "runtime/step"]  # Rooms of worker/ that a training step goes through.
READ = re.compile(r"\.item(<[\w:]+>)?\(\)|\.cpu\(\)|\bto\(at::kCPU|\.item\b|comm::LateRead\b")

# File under worker/ -> how many, and why.
ALLOWED = {
    "nn/row_groups.cc": (1, "rows an expert, once a layer, where no kernel takes all experts in one call"),
    "parallel/expert_exchange.cc": (1, "split sizes of the all-to-all between expert ranks, once a layer"),
    "parallel/expert_balance.cc": (1, "tokens an expert, in steps that are logged"),
    "nn/attention_pairs.cc": (1, "numbers of documents, which are kept on the CPU"),
    "optim/adam.cc": (2, "the step's number and gate, by optimizer.implementation foreach and for-loop"),
    "runtime/step/frozen_base.cc": (3, "the digest of a model that is not trained, once before the first step"),
    "runtime/step/step_report.h": (1, "the step's report of all ranks: a step later, or where the host needs it"),
    "runtime/step/validator.cc": (2, "validation: is there a batch, and its loss"),
}


def reads(path):
    lines = (line.split("//")[0] for line in path.read_text().splitlines())
    return sum(len(READ.findall(line)) for line in lines)


class HostReads(unittest.TestCase):
    def test_each_is_named(self):
        found = {}
        for room in STEP:
            for path in sorted((SOURCE / "worker" / room).glob("*.cc")) + sorted((SOURCE / "worker" / room).glob("*.h")):
                if count := reads(path):
                    found[path.relative_to(SOURCE / "worker").as_posix()] = count
        self.assertEqual({name: count for name, (count, _) in ALLOWED.items()}, found)


if __name__ == "__main__":
    unittest.main()
