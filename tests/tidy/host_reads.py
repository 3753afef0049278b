"""Lists where the host waits for a device: it reads a result, or copies between the two in a way that blocks. Each place has its
reason here."""

import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

STEP = ["nn", "nn/low_precision", "parallel", "optim", "device", "comm", "model/language", "runtime/engine", "runtime/step"]  # Folders of worker/rank/ that a training step runs through.
READ = re.compile(r"\.item(<[\w:]+>)?\(\)|\.cpu\(\)|\bto\(at::kCPU|\.item\b|device::AsyncRead\b")

# File under worker/rank/ -> how many, and why.
ALLOWED = {
    "nn/row_groups.cc": (1, "rows an expert, once a layer, where no kernel takes all experts in one call"),
    "parallel/expert_dispatch.cc": (1, "split sizes of the all-to-all between expert ranks, once a layer"),
    "parallel/expert_balance.cc": (1, "tokens an expert, in steps that are logged"),
    "parallel/qk_clip.cc": (1, "the largest logit and how many heads were clipped, in steps that are logged"),
    "nn/attention_pairs.cc": (1, "numbers of documents, which are kept on the CPU"),
    "optim/adam.cc": (2, "the step's number and gate, by optimizer.implementation foreach and for-loop"),
    "runtime/step/frozen_base.cc": (3, "the digest of a model that is not trained, once before the first step"),
    "model/language/samples.cc": (2, "the tokens that a text continues with, and whether their logits are finite, once a token"),
    "runtime/step/validation.cc": (1, "the sums of a validation, once at its end"),
    "runtime/step/step_report.h": (1, "the step's report of all ranks: a step later, or where the host needs it"),
}

NESTED = r"[^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*"
TO_DEVICE = re.compile(r"\.to\((" + NESTED + r"[dD]evice" + NESTED + r")\)|\.cuda\(\)")
# Operations with a result size that depends on values on the device.
SIZED_BY_VALUES = re.compile(r"\b(nonzero\w*|argwhere|masked_select|unique_dim|unique_consecutive|_unique2?)\(|\.index\(\{")
# Like ALLOWED: copies to a device that may block.
BLOCKING = {
    "parallel/shard_unit.cc": (6, "gradients of offloaded shards, to the host and back; elsewhere both are on one device"),
    "optim/adam.cc": (3, "the step's number, once after it was loaded, and its gate: on the device but for offloaded shards"),
    "nn/nf4.cc": (1, "bounds between codes, where a matrix is packed: at the start"),
    "optim/block_codes.cc": (5, "the codes' tables, where a slot's state is made or read for a checkpoint"),
    "optim/muon.cc": (2, "the gate and the updates of offloaded shards; elsewhere all is on one device"),
    "parallel/qk_clip.cc": (2, "the gate, and the factors of offloaded shards; elsewhere all is on one device"),
    "runtime/engine/model_slices.cc": (1, "a packed matrix's initial numbers"),
    "runtime/engine/tied_units.cc": (2, "a tied embedding's gradients, between the pipeline's ends: on the device but for offloaded shards"),
    "runtime/step/frozen_base.cc": (1, "the digest of a frozen base, at the start and at a resumption"),
    "model/language/samples.cc": (1, "validation: the tokens that rank 0 chose, once a token"),
}


def source_of(path):
    return "\n".join(line.split("//")[0] for line in path.read_text().splitlines())


def reads(path):
    return len(READ.findall(source_of(path)))


def blocking_copies(path):
    return sum("non_blocking=*/true" not in found.group(0) for found in TO_DEVICE.finditer(source_of(path)))


def sized_by_values(path):
    return len(SIZED_BY_VALUES.findall(source_of(path)))


def count(what):
    """Returns {file under worker/rank/: what(its path)}, where it is not zero."""
    found = {}
    for folder in STEP:
        for path in sorted((SOURCE / "worker/rank" / folder).glob("*.cc")) + sorted((SOURCE / "worker/rank" / folder).glob("*.h")):
            if number := what(path):
                found[path.relative_to(SOURCE / "worker/rank").as_posix()] = number
    return found


class HostReads(unittest.TestCase):
    def test_each_host_read_is_listed(self):
        self.assertEqual({name: number for name, (number, _) in ALLOWED.items()}, count(reads))

    def test_each_blocking_copy_is_listed(self):
        self.assertEqual({name: number for name, (number, _) in BLOCKING.items()}, count(blocking_copies))

    def test_no_size_depends_on_values(self):
        self.assertEqual({}, count(sized_by_values))

    def test_copies_are_recognized(self):
        for text, blocks in (("a.to(device)", True), ("a.to(b.device(), at::kFloat)", True), ("a.cuda()", True),
                             ("a.to(f(b[0]).device())", True), ("a.to(at::kFloat)", False),
                             ("a.to(device, at::kFloat, /*non_blocking=*/true)", False)):
            found = TO_DEVICE.search(text)
            self.assertEqual(blocks, found is not None and "non_blocking=*/true" not in found.group(0), text)
        self.assertEqual(2, len(SIZED_BY_VALUES.findall("a.nonzero(); b.index({mask})")))


if __name__ == "__main__":
    unittest.main()
