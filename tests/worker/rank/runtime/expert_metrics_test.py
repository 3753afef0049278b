"""Tests the number of tokens of every expert in metrics.jsonl: it covers the whole step and is the same on every mesh."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from dry_run_test import flags, small, world
from titan_rank_test import CONFIG, RANK

ROWS, TOKENS, STEPS = 4, 64, 3
TOP_K = 2  # From tests/numerics/small_models/small_specs.h.
JOB = ["--training.steps", str(STEPS), "--lr_scheduler.warmup_steps", "1", "--training.seq_len", str(TOKENS),
       "--training.dtype", "float64", "--training.global_batch_size", str(ROWS), "--validation.no_enable",
       "--checkpoint.no_enable", "--metrics.no_enable_tensorboard", "--metrics.log_freq", "1",
       "--resources.threads_per_rank", "1"]


class ExpertMetrics(unittest.TestCase):
    def lines(self, family, mesh, *extra):
        ranks = world(mesh)
        batch = ROWS // (mesh.get("dp", 1) * mesh.get("fsdp", 1))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [RANK, "--config", CONFIG, *JOB, *flags(mesh), *small(family), "--job.dump_folder", folder,
                 "--training.local_batch_size", str(batch), "--comm.mode", "local_tensor", "--resources.ranks", str(ranks), *extra],
                capture_output=True, text=True, timeout=90)
            self.assertEqual(0, done.returncode, done.stderr)
            with open(os.path.join(folder, "metrics.jsonl")) as file:
                return [{key: value for key, value in json.loads(line).items() if key.startswith("moe/")} for line in file]

    def same_counts(self, family, meshes):
        whole = self.lines(family, {})
        counts = [key for key in whole[0] if key.endswith("/tokens_per_expert")]
        self.assertEqual(STEPS, len(whole))
        self.assertGreater(len(counts), 0)
        for line in whole:
            for key in counts:
                self.assertEqual(ROWS * TOKENS * TOP_K, sum(line[key]), key)
                mean = sum(line[key]) / len(line[key])
                self.assertAlmostEqual(max(line[key]) / mean, line[key.replace("tokens_per_expert", "max_over_mean")], places=12)
            worst = max(line[key.replace("tokens_per_expert", "max_over_mean")] for key in counts)
            self.assertEqual(worst, line["moe/max_over_mean"])
        for mesh, extra in meshes:
            with self.subTest(mesh=mesh, extra=extra):
                for expected, line in zip(whole, self.lines(family, mesh, *extra), strict=True):
                    self.assertEqual({key: expected[key] for key in counts}, {key: line[key] for key in counts})
                    self.assertEqual(expected.keys(), line.keys())

    # Counts are summed over data, context, pipeline and (if they route separately) tensor ranks, each once.
    def test_deepseek(self):
        self.same_counts("deepseek_v3", [
            ({"fsdp": 2, "ep": 2}, []),
            ({"dp": 2, "fsdp": 2, "ep": 2}, []),
            ({"fsdp": 2, "tp": 2, "ep": 4, "etp": 1}, []),
            ({"fsdp": 2, "tp": 2, "ep": 2, "etp": 2}, []),
            ({"tp": 2}, []),
            ({"fsdp": 2, "cp": 2, "ep": 4}, []),
            ({"pp": 2, "fsdp": 2, "ep": 2}, ["--activation_checkpoint.mode", "full"])])

    # Tokens count once if a block runs twice, and over several microbatches.
    def test_qwen_counts_once(self):
        self.same_counts("qwen3_moe", [
            ({"fsdp": 2, "ep": 2}, ["--activation_checkpoint.mode", "full"]),
            ({"fsdp": 2}, ["--training.local_batch_size", "1"])])


if __name__ == "__main__":
    unittest.main()
