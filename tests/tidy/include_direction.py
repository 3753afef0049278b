"""Checks include directions: parts share only common/ and proto/, and inside a part a folder includes only folders of lower
layers."""

import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import SOURCE

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
OURS = ("common/", "controller/", "worker/", "tests/")
TORCH = ("torch/", "ATen/", "c10/", "c10d/")
WIRE = ("grpcpp/", "grpc/", "google/protobuf/", "google/rpc/", "titan/v1/")

# Each part, with the parts that it may include besides itself. If a path begins with two parts, the longer one counts.
PARTS = {
    "common": [],
    "controller": ["common"],
    "controller/cli": ["common"],
    "worker/node": ["common"],
    "worker/rank": ["common"],
}
# Folders of a part, or of a folder with folders in this table, from the lowest layer up; folders of one layer do not
# include each other. Files directly in the folder, or in a folder that is not listed, are above all of them.
LAYERS = {
    "common": [["base"], ["io", "rank_protocol", "service"], ["plan"]],
    "common/base": [["clock", "redact", "status", "sync", "text", "version"], ["host", "json"]],
    "common/io": [["http", "jinja", "storage", "tokenizer_files"], ["hub", "s3"], ["data_files"]],
    "common/plan": [["mesh", "pipeline"], ["models"], ["hf_config"], ["config"], ["encoders", "meta_config"], ["memory"], ["planner"]],
    "common/service": [["failpoint", "journal", "metrics", "rpc", "systemd"]],
    "controller": [["job", "scheduler", "store"], ["auth", "core"], ["reconcile"], ["api"], ["main"]],
    "worker/node": [["core", "shim"], ["daemon", "stacks"]],
    "worker/rank": [["pickle", "plugin", "random", "topology", "trace"], ["data", "device", "kernels"], ["comm"], ["nn"], ["generate", "optim", "parallel"],
                    ["checkpoint"], ["model"], ["runtime"], ["tools"]],
    "worker/rank/checkpoint": [["shards", "formats/pickle"], ["formats/dcp", "formats/hugging_face"], ["formats/gguf", "formats/meta", "formats/onnx"], ["steps"], ["saving"], ["loading"]],
    "worker/rank/data": [["images", "plugin", "tokenizer"], ["chat", "tokens"], ["documents"], ["rows"], ["samples", "multimodal"], ["loader"]],
    "worker/rank/runtime": [["failure", "metrics_out"], ["memory"], ["engine", "profiling"], ["step"]],
}
FLAVORS = re.compile(r"worker/rank/model/\w+/flavors\.cc")  # Belongs to common/plan/models, which every program links.
NO_TORCH = ("common/", "controller/", "worker/node/", "worker/rank/kernels/cpu/", "worker/rank/data/chat/", "worker/rank/data/multimodal/", "worker/rank/data/samples/",
            "worker/rank/tools/data/")
NO_WIRE = ("worker/rank/", "worker/node/shim/", "worker/node/stacks/")
PURE = ("controller/job/", "controller/scheduler/", "controller/core/", "worker/node/core/", "common/plan/mesh/", "common/plan/pipeline/",
        "common/plan/planner/")  # No clock, disk, socket or lock.
PURE_EXCEPTIONS = ("common/base/clock/now.h", "common/service/rpc/error.h")  # Holds two times; makes a status.
IMPURE = ("common/base/sync/", "common/base/clock/", "common/io/storage/", "common/service/rpc/", "sqlite3.h", "fstream", "filesystem", "mutex",
          "thread", "chrono", "absl/time/clock.h", "sys/socket.h", "fcntl.h", "unistd.h")
VALUES = ("controller/core/", "controller/scheduler/")  # Takes and returns plain values: no bytes, no messages, no JSON.
ENCODINGS = (*WIRE, "nlohmann/")
CURL = ("common/io/http/", "common/io/hub/", "common/io/s3/")

# The last word of a file's namespace is a folder of its path. In a nested namespace of a subject it is the word before
# the last.
NAMESPACE = re.compile(r"^namespace (titan(?:::\w+)*) \{\n(.*?)^\}  // namespace \1$", re.MULTILINE | re.DOTALL)
FORWARD = re.compile(r"(?:\s|//[^\n]*\n|(?:class|struct) \w+;|enum class \w+(?: : \w+)?;)*")
SUBJECTS = ("titan::daemon::nvml", "titan::kernels::device", "titan::kernels::TITAN_LEVEL", "titan::nn::on_device", "titan::reconcile::failpoints")
PLAIN_TITAN = ("common/base/", "controller/main/")  # Used by every file, or by the programs that connect everything.


def sources():
    for top in ("common", "controller", "worker"):
        for path in sorted((SOURCE / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh"):
                yield path.relative_to(SOURCE).as_posix(), path.read_text()


def includes(text):
    return [(mark, name) for mark, name in INCLUDE.findall(text)]


def part_of(path):
    return max((part for part in PARTS if path.startswith(part + "/")), key=len, default=None)


def layer_of(path, folder):
    """Returns the layer of `path` in `folder`, and its folder there."""
    for number, folders in enumerate(LAYERS[folder]):
        for one in folders:
            if path.startswith(f"{folder}/{one}/"):
                return number, one
    return len(LAYERS[folder]), None


def broken_direction(path, name):
    """Returns why `path` may not include `name`, or None."""
    if not name.startswith(OURS):
        return None
    if FLAVORS.fullmatch(path):
        return None if name.startswith("common/") else "common includes only common"
    here, there = part_of(path), part_of(name)
    if here is None:
        return "it belongs to no part"
    if here != there:
        return None if there in PARTS[here] else f"{here} may not include {there or 'tests'}"
    for folder in LAYERS:
        if not path.startswith(folder + "/") or not name.startswith(folder + "/") or len(folder) < len(here):
            continue
        (mine, own), (its, other) = layer_of(path, folder), layer_of(name, folder)
        if own != other and its >= mine:
            return f"in {folder}, {other or 'what is above the layers'} is not below {own}"
    return None


def encoded(path, name):
    """Returns why `path` may not include `name`, or None."""
    return "messages and JSON are decoded at the edge" if path.startswith(VALUES) and name.startswith(ENCODINGS) else None


def wrong_namespace(path, name):
    folders = path.split("/")[:-1]
    if name == "titan":
        return not path.startswith(PLAIN_TITAN)
    words = name.split("::")
    if FLAVORS.fullmatch(path):
        return words[-1] != "models"
    return (words[-2] if name in SUBJECTS else words[-1]) not in folders


class IncludeDirection(unittest.TestCase):
    def complaints(self, judge):
        return [f"{path}: #include {name}: {why}" for path, text in sources() for _, name in includes(text)
                if (why := judge(path, name))]

    def test_include_directions(self):
        self.assertEqual([], self.complaints(broken_direction))

    def test_every_folder_has_a_layer(self):
        folders = {path.split("/")[len(part.split("/"))] for part in PARTS if part in LAYERS for path, _ in sources() if part_of(path) == part}
        self.assertEqual(set(), folders - {one for part in PARTS for layer in LAYERS.get(part, []) for one in layer})
        listed = [f"{folder}/{one}" for folder, layers in LAYERS.items() for layer in layers for one in layer]
        self.assertEqual([], [one for one in listed if not (SOURCE / one).is_dir()])

    def test_torch_stays_in_the_ranks(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "no LibTorch here" if (path.startswith(NO_TORCH) or FLAVORS.fullmatch(path)) and name.startswith(TORCH) else None))

    def test_wire_stays_out_of_the_ranks(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "no gRPC or Protobuf here" if path.startswith(NO_WIRE) and name.startswith(WIRE) else None))

    def test_curl_stays_in_three_folders(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "downloads go through common/io/hub, objects through common/io/s3"
            if name.startswith("curl/") and not path.startswith(CURL) else None))

    def test_pure_folders(self):
        self.assertEqual([], self.complaints(
            lambda path, name: "this folder is pure" if path.startswith(PURE) and name.startswith(IMPURE) and name not in PURE_EXCEPTIONS else None))

    def test_values_have_no_encoding(self):
        self.assertEqual([], self.complaints(encoded))

    def test_headers_have_pragma_once(self):
        missing = [path for path, text in sources() if path.endswith(".h") and "#pragma once" not in text]
        self.assertEqual([], missing)

    def test_namespaces_are_folders(self):
        self.assertEqual([], [f"{path}: {name}" for path, text in sources() for name, body in NAMESPACE.findall(text)
                              if not FORWARD.fullmatch(body) and wrong_namespace(path, name)])

    def test_the_rules_catch_what_they_should(self):
        self.assertTrue(broken_direction("common/plan/config/load.cc", "worker/rank/nn/block.h"))
        self.assertTrue(broken_direction("common/base/text/utf8.cc", "common/io/storage/file.h"))
        self.assertTrue(broken_direction("worker/rank/model/qwen3/flavors.cc", "worker/rank/model/families.h"))
        self.assertTrue(broken_direction("worker/rank/nn/linear.cc", "worker/rank/parallel/fsdp.h"))
        self.assertTrue(broken_direction("worker/rank/data/tokenizer/bpe.cc", "worker/rank/data/rows/token_rows.h"))
        self.assertTrue(broken_direction("worker/node/daemon/daemon.cc", "worker/rank/comm/group.h"))
        self.assertTrue(broken_direction("controller/cli/run.cc", "controller/reconcile/reconciler.h"))
        self.assertTrue(encoded("controller/core/input.h", "titan/v1/worker.pb.h"))
        self.assertTrue(encoded("controller/core/update.cc", "nlohmann/json.hpp"))
        self.assertTrue(wrong_namespace("worker/rank/device/device.h", "titan::comm"))
        self.assertFalse(encoded("controller/reconcile/decode_report.h", "titan/v1/worker.pb.h"))
        self.assertFalse(wrong_namespace("worker/rank/data/tokenizer/bpe.h", "titan::data"))
        self.assertFalse(broken_direction("worker/rank/runtime/step/trainer.cc", "worker/rank/nn/block.h"))
        self.assertFalse(broken_direction("worker/node/daemon/daemon.cc", "common/rank_protocol/launch.h"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
