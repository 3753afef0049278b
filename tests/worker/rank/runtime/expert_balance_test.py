"""Tests model.load_balance_coeff: which trainings move the biases that balance experts. The key applies if it is set, otherwise
the family's default does, unless a job starts from weights without such biases. A resumed job continues as it started. If an
export would lose moved biases, the job warns before the first step."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from dry_run_test import small
from titan_rank_test import CONFIG, RANK

JOB = {
    "training.seq_len": 32, "training.local_batch_size": 2, "training.global_batch_size": 2, "training.steps": 2, "lr_scheduler.warmup_steps": 1,
    "lr_scheduler.total_steps": 8, "training.mixed_precision_param": "float32", "metrics.log_freq": 1, "metrics.enable_tensorboard": "false",
    "validation.enable": "false", "resources.ranks": 1, "resources.threads_per_rank": 1, "comm.mode": "local_tensor", "checkpoint.enable": "true",
    "checkpoint.interval": 100, "checkpoint.last_save_model_only": "false", "checkpoint.keep_latest_k": 0,
}  # fmt: skip
KEY = "model.load_balance_coeff"
LOST = "cannot store them"


def biases(folder, step):
    """Returns all balance biases of a step, as one list."""
    place, found = os.path.join(folder, "checkpoint", f"step-{step}"), []
    for name in sorted(os.listdir(place)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(place, name), "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            for key, about in header.items():
                if "moe.expert_bias" in key:
                    begin, end = about["data_offsets"]
                    file.seek(8 + size + begin)
                    found += struct.unpack(f"<{(end - begin) // 4}f", file.read(end - begin))
    assert found, header.keys()
    return found


class ExpertBalance(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = lambda name: os.path.join(scratch.name, name)

    def train(self, name, family, **settings):
        """Trains, and returns the warnings before the first step."""
        folder = self.folder(name)
        words = {**JOB, "job.dump_folder": folder, **{key.replace("__", "."): value for key, value in settings.items()}}
        done = subprocess.run([RANK, "--config", CONFIG, *small(family), *(f"--{key}={value}" for key, value in words.items())],
                              capture_output=True, text=True, timeout=90)  # fmt: skip
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        with open(os.path.join(folder, "run", "rank-0.events.jsonl")) as file:
            events = [json.loads(line) for line in file]
        kinds = [event["kind"] for event in events]
        begin = max(i for i, kind in enumerate(kinds) if kind == "started")  # Earlier attempts come first.
        return [event["message"] for event in events[begin:kinds.index("step", begin)] if event["kind"] == "warning"]

    def assert_moved(self, moved, name, step):
        self.assertEqual(moved, any(biases(self.folder(name), step)), name)

    def test_families_and_the_key(self):
        for family, moves, warns in (("deepseek_v3", True, False), ("gpt_oss", True, True), ("qwen3_moe", False, False)):
            messages = self.train(family, family)
            self.assert_moved(moves, family, 2)
            self.assertEqual(warns, LOST in " ".join(messages), messages)
            # The key turns the default off, or on.
            messages = self.train(family + " key", family, **{KEY: 0 if moves else 0.002})
            self.assert_moved(not moves, family + " key", 2)
            self.assertEqual(not moves, LOST in " ".join(messages), messages)
        # Each bias moves by two steps of 0.002 in either direction, less the mean of all experts.
        largest = max(map(abs, biases(self.folder("qwen3_moe key"), 2)))
        self.assertTrue(0.0005 < largest < 0.008, largest)

    def test_weights_without_biases(self):
        self.train("first", "gpt_oss", checkpoint__last_save_model_only="true", checkpoint__last_save_in_hf="true")
        weights = {"checkpoint.initial_load_path": os.path.join(self.folder("first"), "checkpoint", "step-2"), "checkpoint.initial_load_in_hf": "true"}
        self.assertNotIn(LOST, " ".join(self.train("tuned", "gpt_oss", **weights)))
        self.assert_moved(False, "tuned", 2)
        # The job resumes as it started, though its own steps have biases. A set key counts from then on.
        messages = " ".join(self.train("tuned", "gpt_oss", training__steps=4, **weights))
        self.assertNotIn(LOST, messages)
        self.assert_moved(False, "tuned", 4)
        self.train("on", "gpt_oss", **{"checkpoint.initial_load_path": os.path.join(self.folder("tuned"), "checkpoint", "step-4")})
        self.assert_moved(False, "on", 2)
        self.assertIn(LOST, " ".join(self.train("tuned", "gpt_oss", training__steps=6, **{KEY: 0.001})))
        self.assert_moved(True, "tuned", 6)
        self.train("tuned", "gpt_oss", training__steps=7)
        self.assertNotEqual(biases(self.folder("tuned"), 6), biases(self.folder("tuned"), 7))
        self.assertIn(LOST, " ".join(self.train("explicit", "gpt_oss", **weights, **{KEY: 0.001})))
        self.assert_moved(True, "explicit", 2)


if __name__ == "__main__":
    unittest.main()
