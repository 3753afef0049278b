"""Tests validation.sample_prompts: the texts that a model generates while it trains are the same on every mesh, equal those of
titan-generate, and do not affect training."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import CONFIG, RANK, SMALL, losses

PROMPTS = ["The file", "Perl", "a \"quoted\"\tline"]
PRECISE = ["--training.dtype", "float64", "--training.steps", "4", "--training.global_batch_size", "4", "--comm.mode", "local_tensor"]
VALIDATION = ["--validation.enable", "--validation.freq", "2", "--validation.steps", "1", "--validation.local_batch_size", "1", "--validation.seq_len", "32"]
SAMPLES = ["--validation.sample_prompts", ",".join(PROMPTS), "--validation.sample_max_new_tokens", "6"]
MESHES = {
    "one rank": (1, []),
    "shards": (2, ["--parallelism.data_parallel_shard_degree", "2"]),
    "tensor": (2, ["--parallelism.tensor_parallel_degree", "2"]),
    "tensor without sequences": (2, ["--parallelism.tensor_parallel_degree", "2", "--parallelism.no_enable_sequence_parallel"]),
}


def train(folder, ranks, *words):
    done = subprocess.run([RANK, "--config", CONFIG, *SMALL, "--job.dump_folder", folder, *PRECISE, *VALIDATION, "--resources.ranks", str(ranks), *words],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def samples(output):
    return re.findall(r"step (\d+): (\".*\" continues as \".*\")$", output, re.MULTILINE)


class SamplesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = lambda name: os.path.join(scratch.name, name)

    def test_samples_are_the_same_on_every_mesh(self):
        code, output = train(self.folder("without"), 1)
        self.assertEqual(0, code, output)
        self.assertEqual([], samples(output))
        seen = {}
        for name, (ranks, words) in MESHES.items():
            code, output = train(self.folder(name), ranks, *words, *SAMPLES)
            self.assertEqual(0, code, output)
            seen[name] = samples(output)
        self.assertEqual(["1", "2", "4"], [step for step, _ in seen["one rank"][::3]], seen)
        self.assertEqual(len(PROMPTS) * 3, len(seen["one rank"]))
        self.assertIn(r'"a \"quoted\"\tline" continues as ', seen["one rank"][2][1])
        for name in MESHES:
            self.assertEqual(seen["one rank"], seen[name], name)
        self.assertEqual(losses(self.folder("without")), losses(self.folder("one rank")), "bit for bit")

    def test_unsupported_meshes_are_refused(self):
        for words, text in ((["--parallelism.pipeline_parallel_degree", "2"], "without pipeline and context parallelism"),
                            (["--validation.no_enable"], "has no effect without validation.enable")):
            code, output = train(self.folder("refused"), 2, *words, *SAMPLES)
            self.assertNotEqual(0, code)
            self.assertIn(text, output)


if __name__ == "__main__":
    unittest.main()
