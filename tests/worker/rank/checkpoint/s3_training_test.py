"""Tests that two ranks with checkpoints in an object store train as with a folder, whatever fails on the way."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "testing"))
from object_store import SECRET, Fault, ObjectStore
from paths import BIN, SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
from titan_rank_test import Ranks, losses  # noqa: E402

TOOL = BIN / "titan-checkpoint"
PLACE = "s3://titan/runs/one"
COMMON_ARGS = ["--checkpoint.interval", "2", "--training.steps", "5", "--checkpoint.keep_latest_k", "2", "--checkpoint.last_save_model_only",
         "false"]
TIMEOUT = 60


def checksums(manifest):
    """Returns checksums that cover everything in a step, since an index holds those of its shard's data; omits the shards' names,
    which differ."""
    return [(shard["bytes"], shard["index_crc32c"]) for shard in manifest["files"]], manifest["tensors"]


class S3TrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = ObjectStore()
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.printed = []
        # Secrets are in a file, as users keep them, and not in the ranks' environment.
        keys = cls.folder / "credentials"
        keys.write_text(f"[default]\naws_access_key_id = tester\naws_secret_access_key = {SECRET}\n")
        keys.chmod(0o600)
        for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
            del os.environ[name]
        environment = {name: value for name, value in cls.store.environment().items() if "_KEY" not in name}
        os.environ.update(environment, AWS_SHARED_CREDENTIALS_FILE=str(keys))

    @classmethod
    def tearDownClass(cls):
        cls.store.close()
        for file in cls.folder.rglob("*"):
            if file.is_file() and file.name != "credentials":
                assert SECRET.encode() not in file.read_bytes(), file
        assert SECRET not in "".join(cls.printed)

    def tearDown(self):
        self.store.rule = lambda request: None

    def train(self, name, *args, world=2):
        """Runs ranks that must end with 0."""
        ranks = Ranks(str(self.folder / name), world, [*COMMON_ARGS, *args])
        codes = ranks.wait()
        self.printed += ranks.outputs
        self.assertEqual([0] * world, codes, "\n".join(ranks.outputs))
        return ranks

    def tool(self, code, *args):
        done = subprocess.run([TOOL, *map(str, args)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT)
        self.printed.append(done.stdout)
        self.assertEqual(code, done.returncode, done.stdout)
        return done.stdout

    def steps(self):
        return {key.split("/")[2] for key in self.store.keys(prefix="runs/one/step-") if not self.gone(key)}

    def gone(self, key):
        return self.store.get(key).startswith(b"titan: nothing is here")

    def test_killed_training_resumes_bit_for_bit(self):
        self.train("folder")
        # Killed after the shards of step 4 were written and before its manifest.
        reached, ended = threading.Event(), threading.Event()
        self.addCleanup(ended.set)

        def stop(request):
            if request.what == "put" and request.key.endswith("step-4/manifest.json"):
                reached.set()
                ended.wait(TIMEOUT)
                return Fault("reset")
        self.store.rule = stop
        ranks = Ranks(str(self.folder / "store"), 2, [*COMMON_ARGS, "--checkpoint.folder", PLACE])
        self.assertTrue(reached.wait(TIMEOUT))
        ranks.kill()
        ranks.wait()
        ended.set()
        killed = {key for key in self.store.keys(prefix="runs/one/step-4/")}
        self.assertEqual(2, len(killed))

        # The next attempt does not see the fault: its manifest is written, but the answer is lost.
        due = [Fault("lost")]
        self.store.rule = lambda request: due.pop() if due and request.what == "put" and request.key.endswith("step-5/manifest.json") else None
        self.train("store", "--checkpoint.folder", PLACE)
        self.assertFalse(due)
        self.assertEqual(losses(self.folder / "folder"), losses(self.folder / "store"))
        self.assertEqual({"step-4", "step-5"}, self.steps())
        self.assertFalse(killed & set(self.store.keys()))
        self.assertEqual(0, self.store.uploads())
        self.assertEqual(checksums(json.loads((self.folder / "folder/checkpoint/step-5/manifest.json").read_text())),
                         checksums(json.loads(self.store.get("runs/one/step-5/manifest.json"))))
        fence = json.loads(self.store.get("runs/one/fence.json"))
        self.assertEqual((2, True, 5), (fence["attempt"], fence["released"], fence["committed"]["steps"]["step"]))

        # Tools read steps there, and name the one damaged byte.
        self.tool(0, "export", f"{PLACE}/step-5", self.folder / "weights")
        self.assertTrue((self.folder / "weights/model.safetensors.index.json").exists() or (self.folder / "weights/model.safetensors").exists())
        shard = next(key for key in self.store.keys(prefix="runs/one/step-5/a"))
        body = self.store.get(shard)
        self.store.put(shard, body[:-1] + bytes([body[-1] ^ 1]))
        printed = self.tool(1, "verify", f"{PLACE}/step-5")
        self.assertEqual(1, printed.count("checksum mismatch"), printed)
        self.assertIn(f"s3://titan/{shard}", printed)

        self.store.put(shard, body)
        self.assertIn("the same:", self.tool(0, "diff", f"{PLACE}/step-5", self.folder / "folder/checkpoint/step-5"))
        self.assertIn("differ", self.tool(1, "diff", f"{PLACE}/step-5", f"{PLACE}/step-4"))

        # A store that refuses access does not make a step damaged: no rank falls back to an older one, and nothing is
        # deleted.
        here = [key for key in self.store.keys(prefix="runs/one/step") if not self.gone(key)]
        self.store.clock = 2 * 3600  # By then the marker of a deleted step is no longer needed.
        self.store.rule = lambda request: Fault("status", 403, "AccessDenied") if request.what == "get" and request.key.endswith("safetensors") else None
        ranks = Ranks(str(self.folder / "store"), 1, [*COMMON_ARGS, "--checkpoint.folder", PLACE])
        self.assertNotEqual([0], ranks.wait())
        self.printed += ranks.outputs
        self.assertIn("these credentials need to list, read, write and delete in the bucket titan", ranks.outputs[0])
        self.assertEqual([], ranks.events(0, "checkpoint_rejected"))
        self.assertEqual(here, self.store.keys(prefix="runs/one/step"))

        # Another job starts from a step, on one rank, which reads both parts; the two meshes add in another order. Then
        # a third job takes over its folder: it publishes nothing more, and names that job.
        def taken(request):
            if "runs/two/step-5" in request.key:
                self.store.put("runs/two/fence.json", b'{"job_uid": "theirs/x", "job": "projects/p/jobs/theirs", "attempt": 3}')
        self.store.rule = taken
        ranks = Ranks(str(self.folder / "taken"), 1, [*COMMON_ARGS, "--checkpoint.folder", "s3://titan/runs/two", "--checkpoint.initial_load_path",
                                                      f"{PLACE}/step-4", "--checkpoint.no_initial_load_model_only"])
        self.assertEqual([15], ranks.wait(), ranks.outputs)
        self.assertEqual({"step": 4, "source": "initial"}, {name: ranks.events(0, "loaded")[-1][name] for name in ("step", "source")})
        self.assertAlmostEqual(losses(self.folder / "folder")[5], losses(self.folder / "taken")[5], delta=1e-5)
        error = ranks.events(0, "error")[-1]
        self.assertEqual(("FENCED", "projects/p/jobs/theirs", 3, False),
                         tuple(error[name] for name in ("reason", "holder_job", "holder_attempt", "same_job")))
        self.assertFalse([key for key in self.store.keys(prefix="runs/two/step") if key.endswith("manifest.json")])

        # Old steps are deleted if no job runs, but not under a running one.
        self.store.rule = lambda request: None
        self.store.clock = 0
        alive = self.store.get("runs/one/fence.json")
        elsewhere = {**json.loads(alive), "released": False, "process": "elsewhere"}
        self.store.put("runs/one/fence.json", json.dumps(elsewhere).encode())
        self.store.put("runs/one/.fence-alive", b"now")
        self.assertIn("which is alive", self.tool(1, "prune", PLACE, "--keep", 1))
        self.assertEqual({"step-4", "step-5"}, self.steps())
        self.store.put("runs/one/fence.json", alive)
        self.assertIn("1 step would be removed", self.tool(0, "prune", PLACE, "--keep", 1, "--dry-run"))
        self.assertEqual({"step-4", "step-5"}, self.steps())
        self.tool(0, "prune", PLACE, "--keep", 1)
        self.assertEqual({"step-5"}, self.steps())
        self.tool(0, "verify", f"{PLACE}/step-5")
        self.train("store", "--checkpoint.folder", PLACE, "--training.steps", "6")

        # Exports the whole state in torchtitan's format, under the names that both use.
        self.tool(0, "export", f"{PLACE}/step-6", self.folder / "dcp", "--format", "dcp")
        self.assertIn("the same:", self.tool(0, "diff", f"{PLACE}/step-6", self.folder / "dcp"))

    def test_last_save_in_hugging_face_format(self):
        last = ["--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only", "true"]
        place = "runs/hf"
        there = [*last, "--checkpoint.folder", f"s3://titan/{place}"]
        self.train("hf-folder", *last)
        # Killed after all files were written and before their index.
        reached, ended = threading.Event(), threading.Event()
        self.addCleanup(ended.set)

        def stop(request):
            if request.what == "put" and request.key.endswith("step-5/model.safetensors.index.json"):
                reached.set()
                ended.wait(TIMEOUT)
                return Fault("reset")
        self.store.rule = stop
        ranks = Ranks(str(self.folder / "hf-store"), 2, [*COMMON_ARGS, *there])
        self.assertTrue(reached.wait(TIMEOUT))
        ranks.kill()
        ranks.wait()
        ended.set()
        killed = set(self.store.keys(prefix=f"{place}/step-5/"))
        self.assertEqual(2, sum("/.export-" in key and key.endswith(".safetensors") for key in killed), killed)
        self.assertEqual(1, sum("/.export-" not in key and key.endswith(".safetensors") for key in killed), killed)

        # The next attempt resumes from step 4. Its first try is refused, so it tries again, and the answer for its
        # index is lost.
        faults = {"put": Fault("lost"), "step-5/model-": Fault("status", 403, "AccessDenied")}

        def fail_once(request):
            for what in list(faults):
                if (what in request.key and request.method == "PUT") or (what == request.what and request.key.endswith("index.json")):
                    return faults.pop(what)
        self.store.rule = fail_once
        ranks = self.train("hf-store", *there)
        self.assertFalse(faults)
        self.assertEqual(4, ranks.events(0, "loaded")[-1]["step"])
        self.store.rule = lambda request: None
        names = [key.removeprefix(f"{place}/step-5/") for key in self.store.keys(prefix=f"{place}/step-5/") if not self.gone(key)]
        self.assertEqual(["config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"],
                         [name for name in names if name.endswith(".json")])
        self.assertEqual(6, len(names), names)
        returning = {f"{place}/step-5/{name}" for name in names if name.endswith(".json")}
        self.assertFalse((killed - returning) & set(self.store.keys()))
        self.assertEqual(0, self.store.uploads())
        self.assertIn("the same:", self.tool(0, "diff", f"s3://titan/{place}/step-5", self.folder / "hf-folder/checkpoint/step-5"))
        # The export stays, and a job never resumes from it.
        ranks = self.train("hf-store", *there, "--training.steps", "6")
        self.assertEqual(4, ranks.events(0, "loaded")[-1]["step"])
        self.assertIn("the same:", self.tool(0, "diff", f"s3://titan/{place}/step-5", self.folder / "hf-folder/checkpoint/step-5"))


if __name__ == "__main__":
    unittest.main()
