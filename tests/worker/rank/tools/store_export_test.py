"""Tests that exports and imports with an object store are complete or absent, whatever the store does and whenever they are
killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "testing"))
from dcp_test import TOOL, identity, weights
from object_store import Fault, ObjectStore
from paths import SOURCE

TIMEOUT = 60
MODEL = ["--model", "llama3", "--flavor", "debugmodel"]
SMALL = ["--max-file-bytes", "5000000"]  # Each file is one put; without this limit a single file is uploaded in two parts.
SAME = "the same: 57 tensors"
RANK, ALPHA = 4, 12.0


class StoreExportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = ObjectStore()
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
            del os.environ[name]
        os.environ.update(cls.store.environment())
        torch.save(weights(), cls.folder / "model.pt")
        cls.step = cls.folder / "step-0"
        subprocess.run([TOOL, "import", cls.folder / "model.pt", cls.step, *MODEL], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.store.close()

    def setUp(self):
        self.store.reset()

    def tool(self, code, *args):
        done = subprocess.run([TOOL, *map(str, args)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT)
        self.assertEqual(code, done.returncode, done.stdout)
        return done.stdout

    def export(self, place, *args, code=0):
        return self.tool(code, "export", self.step, f"s3://titan/{place}", *args)

    def assert_complete(self, place):
        self.assertIn(SAME, self.tool(0, "diff", self.step, f"s3://titan/{place}"))
        self.assertNotIn(f"{place}/.writer", self.store.keys())
        self.assertEqual(0, self.store.uploads())

    def killed(self, where, *args):
        """Runs the tool and kills it at the first request for which `where` holds; the store does not execute that request."""
        reached, ended = threading.Event(), threading.Event()
        self.addCleanup(ended.set)

        def stop(request):
            if where(request):
                reached.set()
                ended.wait(TIMEOUT)
                return Fault("reset")
        self.store.rule = stop
        process = subprocess.Popen([TOOL, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(reached.wait(TIMEOUT))
        process.kill()
        self.assertEqual(-signal.SIGKILL, process.wait(TIMEOUT))
        self.store.rule = lambda request: None
        ended.set()

    def test_every_format_exports_completely(self):
        for form, last in (("hf", "model.safetensors.index.json"), ("dcp", ".metadata")):
            self.store.requests.clear()
            self.export(form, "--format", form)
            self.assert_complete(form)
            writes = [request.key for request in self.store.requests if request.what in ("put", "complete")]
            self.assertEqual(f"titan/{form}/{last}", writes[-1], "the file that readers open first is written last")
        self.assertGreater(self.store.counted("part"), 1)
        self.assertIn("exists already", self.export("hf", code=1))
        self.export("torch", "--format", "torch")
        (self.folder / "back.pt").write_bytes(self.store.get("torch/model.pt"))
        back, state = torch.load(self.folder / "back.pt", weights_only=True), weights()
        self.assertEqual(back.keys(), state.keys())
        self.assertTrue(all(torch.equal(back[key], value.float()) for key, value in state.items()))
        # Imports again, from one folder of the store to another.
        self.tool(0, "import", "s3://titan/hf", "s3://titan/from-hf/step-0", *MODEL)
        self.assert_complete("from-hf/step-0")

    def test_retries_transient_store_errors(self):
        seen = set()

        def fail_once(request):
            if (request.what, request.key, str(request.query)) in seen or request.what in ("get", "head"):
                return None
            seen.add((request.what, request.key, str(request.query)))
            return Fault("lost") if request.what in ("put", "complete") else Fault("status", 503, "SlowDown")
        self.store.rule = fail_once
        self.export("hf")
        self.store.rule = lambda request: None
        self.assertTrue({"put", "part", "complete", "upload"} <= {what for what, _, _ in seen}, seen)
        self.assert_complete("hf")

    def test_refused_export_leaves_nothing(self):
        self.store.rule = lambda request: Fault("status", 403, "AccessDenied") if "00002-of" in request.key else None
        self.assertIn("model-00002-of", self.export("hf", *SMALL, code=1))
        self.assertEqual([], self.store.keys(prefix="hf"))
        self.store.rule = lambda request: None
        self.export("hf", *SMALL)
        self.assert_complete("hf")

    def test_foreign_files_are_kept(self):
        """Whatever fails and whatever marker exists, a writer deletes only what it wrote into a folder that it had found empty."""
        gone = identity(os.getpid()) + "0"  # A process that began at another time.
        theirs = ["data/deep/more.txt", "data/precious.txt"]
        for key in theirs:
            self.store.put(key, b"theirs")
        for refused in (["list"], ["put", "upload"], ["delete"], ["list", "delete"]):
            self.store.rule = lambda request: Fault("status", 403, "AccessDenied") if request.what in refused else None
            self.export("data", code=1)
            self.store.rule = lambda request: None
            self.assertIn("exists already", self.export("data", "--format", "torch", code=1))
            self.assertEqual(theirs, self.store.keys(prefix="data/"), refused)
        # A marker written before its writer had listed the folder, and one next to a file that appeared meanwhile.
        self.store.put("data/.writer", gone.encode())
        self.assertIn("exists already", self.export("data", code=1))
        self.assertEqual(theirs, self.store.keys(prefix="data/"))
        self.killed(lambda request: request.key.endswith("late/.writer") and "if-match" in {name.lower() for name in request.headers},
                    "export", self.step, "s3://titan/late")
        self.store.put("late/precious.txt", b"theirs")
        self.assertIn("exists already", self.export("late", code=1))
        self.assertEqual(["late/precious.txt"], self.store.keys(prefix="late/"))
        # A folder with only a dead writer's marker is free.
        self.store.put("free/.writer", gone.encode())
        self.export("free")
        self.assert_complete("free")

    def test_killed_export_is_incomplete_and_replaced(self):
        there = ["export", self.step, "s3://titan/hf"]
        for end, args in ((lambda request: request.key.endswith(".writer") and request.method == "PUT", []),
                           (lambda request: request.what == "part" and request.query["partNumber"] == "2", []),
                           (lambda request: "00002-of" in request.key and request.method == "PUT", SMALL),
                           (lambda request: request.key.endswith("index.json") and request.method == "PUT", [])):
            self.killed(end, *there, *args)
            self.assertNotIn("hf/model.safetensors.index.json", self.store.keys(prefix="hf/"))
        # Only the files of the last export are there, without the index.
        self.assertEqual(["hf/.writer", "hf/config.json", "hf/model-00001-of-00001.safetensors"], self.store.keys(prefix="hf/"))
        self.assertEqual(0, self.store.uploads())
        self.assertIn("was stopped while writing it", self.tool(2, "diff", self.step, "s3://titan/hf"))
        # An export with its index is complete, even if the last request fails.
        self.killed(lambda request: request.key.endswith(".writer") and request.method == "DELETE", *there)
        self.assertIn(SAME, self.tool(0, "diff", self.step, "s3://titan/hf"))
        self.export("hf")
        self.assert_complete("hf")

    def test_exports_adapters_and_merged_weights(self):
        """Has the bytes of an export into a local folder, also after it was killed while merging, whose intermediate files are
        there too."""
        flags = {"model.name": "llama3", "model.flavor": "debugmodel", "model.converters": "lora", "lora.rank": RANK,
                 "lora.alpha": ALPHA, "training.seq_len": 32,
                 "training.local_batch_size": 1, "training.steps": 1, "training.mixed_precision_param": "float32",
                 "lr_scheduler.warmup_steps": 1, "validation.enable": "false", "checkpoint.enable": "true",
                 "checkpoint.last_save_model_only": "false", "checkpoint.initial_load_path": self.step,
                 "job.dump_folder": self.folder / "lora"}  # fmt: skip
        subprocess.run([TOOL.replace("titan-checkpoint", "titan-rank"), "--config", SOURCE / "configs/llama3_tiny.toml",
                        *(f"--{key}={value}" for key, value in flags.items())], check=True, capture_output=True,
                       env={**os.environ, "TITAN_ASSETS": f"{os.environ['TITAN_DEPS']}/assets"})  # fmt: skip
        adapters = self.folder / "lora/checkpoint/step-1"
        self.killed(lambda request: "/.merged/" not in request.key and request.key.endswith("safetensors") and request.method == "PUT",
                    "export", adapters, "s3://titan/merge", "--merge", *SMALL)
        self.assertIn("was stopped while writing it", self.tool(2, "diff", self.step, "s3://titan/merge"))
        for form, args in (("peft", ["--format", "peft"]), ("merge", ["--merge", *SMALL]), ("onnx", ["--format", "onnx", "--merge"])):
            self.tool(0, "export", adapters, self.folder / form, *args)
            self.tool(0, "export", adapters, f"s3://titan/{form}", *args)
            files = sorted(path.name for path in (self.folder / form).iterdir())
            self.assertEqual([f"{form}/{name}" for name in files], sorted(self.store.keys(prefix=f"{form}/")))
            for name in files:
                self.assertEqual((self.folder / form / name).read_bytes(), self.store.get(f"{form}/{name}"), f"{form}/{name}")
        self.assertEqual(0, self.store.uploads())
        self.is_base_with_adapters(self.folder / "merge", self.folder / "peft")

    def is_base_with_adapters(self, merged, adapters):
        """Merged weights are W + alpha / rank B A for every matrix with an adapter, and the base's own numbers elsewhere."""
        config = json.loads((adapters / "adapter_config.json").read_text())
        self.assertEqual((RANK, ALPHA), (config["r"], config["lora_alpha"]))
        self.tool(0, "export", self.step, self.folder / "base")
        base, merged, adapters = ({key: value for file in folder.glob("*.safetensors") for key, value in load_file(file).items()}
                                  for folder in (self.folder / "base", merged, adapters))
        self.assertEqual(base.keys(), merged.keys())
        adapted = 0
        for key, weight in base.items():
            a, b = (adapters.get(f"base_model.model.{key.removesuffix('.weight')}.lora_{part}.weight") for part in "AB")
            if a is None:
                self.assertTrue(torch.equal(weight, merged[key]), key)
                continue
            delta = ALPHA / RANK * (b.double() @ a.double())
            self.assertGreater(delta.norm(), 1e-4 * weight.norm(), key)  # A smaller one would vanish in the weight's rounding.
            self.assertLess((merged[key].double() - weight.double() - delta).norm(), 1e-2 * delta.norm(), key)
            adapted += 1
        self.assertEqual(6 * 7, adapted)  # Every matrix of the layers.

    def test_killed_import_is_not_a_step(self):
        args = ["import", self.folder / "model.pt", "s3://titan/step-0", *MODEL]
        self.killed(lambda request: request.key.endswith("manifest.json") and request.method == "PUT", *args)
        self.tool(3, "inspect", "s3://titan/step-0")
        self.tool(0, *args)
        self.assert_complete("step-0")

    def test_next_export_finishes_a_killed_cleanup(self):
        self.killed(lambda request: request.key.endswith("index.json") and request.method == "PUT", "export", self.step, "s3://titan/hf", *SMALL)
        before = len(self.store.keys(prefix="hf/"))
        seen = []
        self.killed(lambda request: request.method == "DELETE" and (seen.append(request.key) or len(seen) == 3),
                    "export", self.step, "s3://titan/hf")
        self.assertEqual(before - 2, len(self.store.keys(prefix="hf/")))
        self.export("hf")
        self.assert_complete("hf")

    def test_other_writers_files_are_left_alone(self):
        # A writer of another machine, whose state is unknown here, and later one that lives.
        self.store.put("hf/.writer", b"another-boot pid:[1] 5 6")
        self.store.put("hf/model-00001-of-00002.safetensors", b"theirs")
        self.assertIn("another process writes there", self.export("hf", code=1))
        self.assertEqual(b"theirs", self.store.get("hf/model-00001-of-00002.safetensors"))

        reached, resume = threading.Event(), threading.Event()
        self.addCleanup(resume.set)

        def wait(request):
            if request.key.endswith("index.json") and request.method == "PUT":
                reached.set()
                resume.wait(TIMEOUT)
        self.store.rule = wait
        first = subprocess.Popen([TOOL, "export", self.step, "s3://titan/two"], stdout=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.assertTrue(reached.wait(TIMEOUT))
        self.assertIn("another process writes there", self.export("two", code=1))
        resume.set()
        self.assertEqual(0, first.wait(TIMEOUT))
        self.assert_complete("two")

        # Complete exports, and files that no export wrote, are kept too.
        self.store.put("data/notes.txt", b"mine")
        self.assertIn("exists already", self.export("data", code=1))
        self.assertEqual(["data/notes.txt"], self.store.keys(prefix="data/"))


if __name__ == "__main__":
    unittest.main()
