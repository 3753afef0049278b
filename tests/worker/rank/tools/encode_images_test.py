"""Tests titan-data encode-images and trainings from stored encodings: losses equal those from the images; a killed call, and several
processes, make the same bytes; damage, other sizes and other encoders are named; and unusable samples are counted over all ranks, once
for each also after a resume. Images come from archives on disk, in an object store and on a hub."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(TESTS / "testing"), str(TESTS / "common/io/hub"), str(TESTS / "worker/rank/model/flux"), str(TESTS / "worker/rank/runtime")]
from fake_hub import FakeHub  # noqa: E402
from object_store import ObjectStore  # noqa: E402
from paths import BIN  # noqa: E402
from tiny_flux import flags_of, job_keys, write_archive, write_encoders  # noqa: E402
from titan_rank_test import SMALL, Ranks, losses  # noqa: E402

SAMPLES = 20


def contents(folder):
    """Returns the bytes of the files of a dataset of encodings."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".safetensors", ".json")}


class EncodeImages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        write_encoders(cls.folder)
        write_archive(cls.folder / "images/a.tar", SAMPLES, lambda i: (40 + i, 36), damaged=())
        write_archive(cls.folder / "squares/a.tar", 6, lambda i: (40, 40), damaged=())
        write_archive(cls.folder / "bad/a.tar", SAMPLES, lambda i: (16, 40) if i == 3 else (40, 40))
        for key in [name for name in os.environ if name.startswith(("AWS_", "HF_")) or name.lower().endswith("_proxy")]:
            del os.environ[key]

    def flags(self, **changes):
        keys = job_keys(self.folder, self.folder / "images", self.folder / "squares")
        return flags_of(keys | {key.replace("__", "."): value for key, value in changes.items()})

    def encode(self, out, *words, code=0, environment=None, **changes):
        """Returns what the program printed."""
        command = [BIN / "titan-data", "encode-images", "--out", self.folder / out, *words, *SMALL, *self.flags(**changes)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | (environment or {}))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def encoded(self, name):
        """Returns encodings of the images, six samples in each shard. Made once."""
        if not (self.folder / name).exists():
            self.encode(name, "--crop", "random", "--shard-samples", "6")
        return self.folder / name

    def train(self, name, world=1, code=0, extra=("--checkpoint.no_enable",), **changes):
        """Returns the losses by step and the output."""
        ranks = Ranks(str(self.folder / name), world, [*self.flags(**changes), *extra])
        codes = ranks.wait()
        output = "\n".join(ranks.outputs)
        self.assertEqual(max(codes), code, output)
        return losses(ranks.folder) if code == 0 else {}, output

    def metrics(self, name):
        return [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def from_encodings(self, path, **changes):
        missing = {f"encoder__{key}": "/missing" for key in ("t5_encoder", "clip_encoder", "autoencoder_path")}
        return missing | {"training__dataset_path": path, "training__dataloader.format": "encodings"} | changes

    # Encoders' paths are not read: without images a job needs none.
    def test_losses_equal_those_of_images(self):
        validation = ["--checkpoint.no_enable", "--validation.enable", "--validation.freq", "4", "--validation.steps", "-1"]
        images, _ = self.train("from-images", extra=validation)
        train = self.encoded("encodings")
        self.encode("encoded-squares", "--data", "validation")
        squares = {"validation__dataset_path": self.folder / "encoded-squares", "validation__dataloader.format": "encodings"}
        stored, _ = self.train("from-encodings", extra=validation, **self.from_encodings(train, **squares))
        self.assertEqual(sorted(images), [1, 2, 3, 4])
        for step, loss in images.items():
            self.assertAlmostEqual(stored[step], loss, delta=1e-10, msg=f"step {step}")
        held_out = lambda name: [line["validation_metrics/loss"] for line in self.metrics(name) if "validation_metrics/loss" in line]  # noqa: E731
        self.assertEqual(len(held_out("from-images")), 2)
        for mine, theirs in zip(held_out("from-encodings"), held_out("from-images"), strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-10)
        split, _ = self.train("from-encodings-cp", 2, **self.from_encodings(train, **{"parallelism__context_parallel_degree": 2}))
        for step, loss in images.items():
            self.assertAlmostEqual(split[step], loss, delta=1e-10, msg=f"step {step}")
        verified = subprocess.run([BIN / "titan-data", "verify", train], capture_output=True, text=True)
        self.assertEqual((verified.returncode, verified.stdout), (0, f"{train}: encodings of {SAMPLES} samples in {self.shards(train)} shards, intact\n"))
        self.check_mismatches(train)

    def shards(self, folder):
        return len(json.loads((folder / "titan-encodings.json").read_text())["shards"])

    # Every mismatch of the job and its encodings is an error that names both.
    def check_mismatches(self, train):
        for words, message in {("training__img_size", 48): "holds images of width 32, but training.img_size is 48",
                               ("encoder__max_t5_encoding_len", 16): "T5 encodings of length 12, but encoder.max_t5_encoding_len is 16"}.items():  # fmt: skip
            _, output = self.train("other-size", code=11, **self.from_encodings(train, **dict([words])))
            self.assertIn(message, output)
        # A validation with images needs encoders, which must be those of the encodings.
        changes = {"training__dataset_path": train, "training__dataloader.format": "encodings", "debug__seed": 6}
        _, output = self.train("other-encoders", code=11, extra=["--validation.enable", "--validation.steps", "1"], **changes)
        self.assertIn("its encodings were made with another", output)
        _, output = self.train("no-manifest", code=11, **self.from_encodings(self.folder / "images"))
        self.assertIn("holds no titan-encodings.json", output)
        self.assertIn("set dataloader.format to encodings", self.train("no-format", code=11, training__dataset_path=train)[1])

    def test_a_killed_call_and_several_processes_make_the_same_bytes(self):
        whole = contents(self.encoded("encodings"))
        self.assertGreater(self.shards(self.folder / "encodings"), 2)
        arguments = ("killed", "--crop", "random", "--shard-samples", "6")
        self.encode(*arguments, code=-9, environment={"TITAN_FAILPOINT": "encodings.shard.written:2"})
        self.assertNotIn("titan-encodings.json", contents(self.folder / "killed"))
        verified = subprocess.run([BIN / "titan-data", "verify", self.folder / "killed"], capture_output=True, text=True)
        self.assertEqual(verified.returncode, 3, verified.stderr)
        self.assertIn("holds no titan-encodings.json, which titan-data encode-images writes when all is encoded", verified.stderr)
        self.assertIn("(1 already existed)", self.encode(*arguments))
        self.assertEqual(contents(self.folder / "killed"), whole)
        parts = ("parts", "--crop", "random", "--shard-samples", "6", "--shard")
        self.assertIn("not complete", self.encode(*parts, "1/2"))
        self.assertIn(f"complete with {SAMPLES} samples", self.encode(*parts, "0/2"))
        self.assertEqual(contents(self.folder / "parts"), whole)
        self.assertIn("crop was \"random by seed 5\" and is \"center\"", self.encode("parts", "--shard-samples", "6", code=1))
        self.assertIn("write PART/PARTS", self.encode("parts", "--shard", "2/2", code=2))
        self.assertIn("holds other files (a.tar)", self.encode("images", code=1))
        self.assertEqual(contents(self.folder / "images"), {})

    def test_damage_is_named(self):
        folder = self.folder / "damaged"
        self.encode("damaged", "--crop", "random", "--shard-samples", "6", "--dtype", "bfloat16")
        shard = folder / "shard-00000.safetensors"
        whole = shard.read_bytes()
        size = json.loads((folder / "titan-encodings.json").read_text())["shards"][0]["head_bytes"] + 64
        shard.write_bytes(whole[:size] + bytes([whole[size] ^ 1]) + whole[size + 1:])  # Latents of the first sample.
        _, output = self.train("one-damaged", **self.from_encodings(folder))
        self.assertIn("shard-00000.safetensors: sample 0: its encodings are damaged (checksum), skipped", output)
        verified = subprocess.run([BIN / "titan-data", "verify", folder], capture_output=True, text=True)
        self.assertEqual(verified.returncode, 1)
        self.assertIn("sample 0: its encodings are damaged", verified.stdout)
        for change, message in {whole[:-1]: "and its manifest says", whole[:8] + b"[" + whole[9:]: "damaged before byte"}.items():
            shard.write_bytes(change)
            self.assertIn(message, self.train("all-damaged", code=11, **self.from_encodings(folder))[1])
        shard.write_bytes(whole)
        manifest = folder / "titan-encodings.json"
        manifest.write_text(manifest.read_text().replace('"image_size": 32', '"image_size": 48'))
        self.assertIn("does not match its checksum", self.train("bad-manifest", code=11, **self.from_encodings(folder))[1])

    # Samples 3 and 9 are unusable; on two ranks each has one.
    def test_unusable_samples_are_counted_over_all_ranks(self):
        bad = {"training__dataset_path": self.folder / "bad"}
        _, output = self.train("counted", 2, extra=["--checkpoint.interval", "2"], **bad)
        for name in ("000003", "000009"):
            self.assertEqual(output.count(f"{name}: "), 1, output)
        self.assertEqual([line["data/bad_samples"] for line in self.metrics("counted")], [1, 1, 2, 2])
        self.assertIn("data/waited(%)", self.metrics("counted")[0])
        _, output = self.train("too-many", 2, code=11, **bad, **{"training__dataloader.max_bad_samples": 1})
        self.assertIn("2 unusable samples of all ranks in the pass, more than dataloader.max_bad_samples = 1", output)
        shutil.rmtree(self.folder / "counted/checkpoint/step-4")
        resumed = {"training__steps": 6, "training__dataloader.max_bad_samples": 2, **bad}
        self.train("counted", 1, extra=["--checkpoint.interval", "2"], **resumed)
        # Steps 3 to 5 end the pass of five steps, and step 6 begins the next one with three good samples and number 3.
        self.assertEqual([line["data/bad_samples"] for line in self.metrics("counted")[4:]], [2, 2, 2, 1])
        self.train("any", 1, **bad, **{"training__dataloader.max_bad_samples": -1})

    def test_unusable_samples_are_left_out_of_encodings(self):
        bad = {"training__dataset_path": self.folder / "bad"}
        output = self.encode("without-bad", **bad)
        self.assertIn("2 unusable images skipped", output)
        self.assertIn(f"complete with {SAMPLES - 2} samples", output)
        self.assertIn("000003: an image of 16 x 40 pixels", output)
        output = self.encode("too-bad", code=2, **bad, **{"training__dataloader.max_bad_samples": 1})
        self.assertIn("more than dataloader.max_bad_samples = 1", output)
        self.assertFalse((self.folder / "too-bad/titan-encodings.json").exists())

    def test_images_and_encodings_of_an_object_store_and_of_a_hub(self):
        archive = (self.folder / "images/a.tar").read_bytes()
        plain, _ = self.train("on-disk")
        store = ObjectStore()
        self.addCleanup(store.close)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(store.environment())
        store.put("images/a.tar", archive)
        for name, data in contents(self.encoded("encodings")).items():
            store.put(f"encodings/{name}", data)
        self.assertEqual(self.train("in-store", training__dataset_path="s3://titan/images/")[0], plain)
        stored, _ = self.train("encodings-in-store", **self.from_encodings("s3://titan/encodings"))
        for step, loss in plain.items():
            self.assertAlmostEqual(stored[step], loss, delta=1e-10)
        hub = FakeHub()
        self.addCleanup(hub.close)
        hub.add("pixparse/cc12m-wds", {"cc12m-train-0000.tar": archive, "cc12m-validation-0000.tar": b"never read"}, kind="datasets")
        os.environ.update({"HF_ENDPOINT": hub.url(), "HF_HOME": str(self.folder / "home")})
        without_path = self.flags(training__dataset="cc12m-wds")
        at = without_path.index("--training.dataset_path")
        ranks = Ranks(str(self.folder / "on-hub"), 1, [*without_path[:at], *without_path[at + 2:], "--checkpoint.no_enable"])
        self.assertEqual(ranks.wait(), [0], ranks.outputs)
        self.assertEqual(losses(ranks.folder), plain)


if __name__ == "__main__":
    unittest.main()
