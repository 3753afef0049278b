"""Who may include whom: the folders form layers, and an #include may only point at the same folder or a lower layer."""

import os
import re
import sys
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("TITAN_SOURCE", Path(__file__).resolve().parents[2]))
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
OURS = ("common/", "controller/", "worker/", "tests/", "titan/v1/")
TORCH = ("torch/", "ATen/", "c10/", "c10d/")
WIRE = ("grpcpp/", "grpc/", "google/protobuf/", "google/rpc/", "titan/v1/")

# Every folder with the folders that it may include besides itself; "common" stands for all of common/, "wire" for proto and gRPC.
_ENGINE = ["common", "worker/comm", "worker/kernels", "worker/data"]
_MODEL = [*_ENGINE, "worker/nn", "worker/parallel"]
MAY_INCLUDE = {
    "controller/job": ["common", "wire"],
    "controller/scheduler": ["common", "controller/job"],
    "controller/store": ["common", "wire", "controller/job"],
    "controller/cluster": ["common", "wire", "controller/job"],
    "controller/planner": ["common", "controller/job"],
    "controller/core": ["common", "wire", "controller/job", "controller/scheduler", "controller/store", "controller/cluster",
                        "controller/planner"],
    "controller/auth": ["common", "wire", "controller/store"],
    "controller/reconcile": ["common", "wire", "controller/job", "controller/store", "controller/planner", "controller/cluster",
                             "controller/core"],
    "controller/api": ["common", "wire", "controller/job", "controller/scheduler", "controller/store", "controller/cluster",
                       "controller/planner", "controller/core", "controller/reconcile", "controller/auth"],
    "controller/main": ["common", "wire", "controller/job", "controller/store", "controller/cluster", "controller/reconcile", "controller/api",
                        "controller/auth"],
    "controller/pki": ["common"],
    "controller/cli": ["common", "wire", "controller/pki"],
    "worker/comm": ["common"],
    "worker/kernels": ["common"],
    "worker/data": ["common"],
    "worker/nn": _ENGINE,
    "worker/parallel": [*_ENGINE, "worker/nn"],
    "worker/model": [*_MODEL, "worker/checkpoint"],  # Implements the interface by which checkpoints name Hugging Face tensors.
    "worker/optim": _MODEL,
    "worker/checkpoint": _MODEL,
    "worker/generate": [*_ENGINE, "worker/nn"],
    "worker/runtime": [*_MODEL, "worker/model", "worker/optim", "worker/checkpoint", "worker/generate"],
    "worker/tools": [*_MODEL, "worker/model", "worker/optim", "worker/checkpoint", "worker/generate", "worker/runtime"],
    "worker/core": ["common", "wire"],
    # The daemon does what the core decides; it speaks the shim's protocol and reads its files.
    "worker/daemon": ["common", "wire", "worker/core", "worker/shim"],
    "worker/shim": ["common"],
    "worker/stacks": ["common", "worker/shim"],
}
FLAVORS = "/flavors.cc"  # Of worker/model/FAMILY: belongs to common/models, which everybody links.
NO_TORCH = ("common/", "controller/", "worker/core/", "worker/daemon/", "worker/shim/", "worker/stacks/", "worker/kernels/cpu/", "worker/data/chat/", "worker/tools/data/")
NO_WIRE = tuple(f"{folder}/" for folder, allowed in MAY_INCLUDE.items() if folder.startswith("worker/") and "wire" not in allowed)
PURE = ("controller/job/", "controller/scheduler/", "controller/planner/", "controller/core/", "worker/core/", "common/mesh/", "common/pipeline/")  # No clock, disk, socket or lock.
PURE_ALL_THE_SAME = ("common/rpc/error.h",)  # Makes a status.
IMPURE = ("common/sync/", "common/clock/", "common/storage/", "common/rpc/", "sqlite3.h", "fstream", "filesystem", "mutex", "thread",
          "chrono", "absl/time/clock.h", "sys/socket.h", "fcntl.h", "unistd.h")


def sources():
    for top in ("common", "controller", "worker"):
        for path in sorted((SOURCE / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                yield path.relative_to(SOURCE).as_posix(), path.read_text()


def includes(text):
    return [(mark, name) for mark, name in INCLUDE.findall(text)]


def folder_of(name):
    return "/".join(name.split("/")[:2])


def broken_direction(path, name):
    """Why `path` may not include `name`, or None."""
    if name.startswith("titan/v1/") or not name.startswith(OURS):
        return None
    if path.startswith("common/") or path.endswith(FLAVORS):
        return None if name.startswith("common/") else "common includes only common"
    here, there = folder_of(path), folder_of(name)
    if path.count("/") == 1 or here == there:  # A main beside the folders wires everything.
        return None
    if here not in MAY_INCLUDE:
        return f"{here} has no rule in this test"
    allowed = MAY_INCLUDE[here]
    if there in allowed or (there.startswith("common/") and "common" in allowed):
        return None
    return f"{here} may not include {there}"


class IncludeDirection(unittest.TestCase):
    def complaints(self, judge):
        return [f"{path}: #include {name}: {why}" for path, text in sources() for _, name in includes(text)
                if (why := judge(path, name))]

    def test_layers(self):
        self.assertEqual([], self.complaints(broken_direction))

    def test_torch_stays_in_the_ranks(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "no LibTorch here" if (path.startswith(NO_TORCH) or path.endswith(FLAVORS)) and name.startswith(TORCH) else None))

    def test_wire_stays_out_of_the_ranks(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "no gRPC or Protobuf here" if path.startswith(NO_WIRE) and name.startswith(WIRE) else None))

    def test_curl_stays_in_two_folders(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "downloads go through common/hub, objects through common/s3"
            if name.startswith("curl/") and not path.startswith(("common/hub/", "common/s3/")) else None))

    def test_pure_folders(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "this folder is pure" if path.startswith(PURE) and name.startswith(IMPURE) and name not in PURE_ALL_THE_SAME else None))

    def test_headers_have_pragma_once(self):
        missing = [path for path, text in sources() if path.endswith(".h") and "#pragma once" not in text]
        self.assertEqual([], missing)

    def test_the_rules_catch_what_they_should(self):
        self.assertTrue(broken_direction("common/config/load.cc", "worker/nn/block.h"))
        self.assertTrue(broken_direction("worker/model/qwen3/flavors.cc", "worker/model/families.h"))
        self.assertTrue(broken_direction("worker/nn/linear.cc", "worker/parallel/fsdp.h"))
        self.assertTrue(broken_direction("controller/cli/run.cc", "controller/reconcile/reconciler.h"))
        self.assertFalse(broken_direction("worker/runtime/step/trainer.cc", "worker/nn/block.h"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
