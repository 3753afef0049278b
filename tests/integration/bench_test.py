"""Tests `titanctl bench`: its figures agree with each other, bad words are refused before anything runs, and nothing is left
over."""

import json
import signal
import statistics
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import wait_until
from jobs import TINY, metric_lines
from titanctl_case import TitanctlCase

# The flags of jobs.tiny(), without those that bench sets itself.
SMALL = [TINY, "--nproc", 2, "--resources.threads_per_rank", 1, "--training.mixed_precision_param", "float32", "--training.seq_len", 128]


class Bench(TitanctlCase):
    def bench(self, *arguments, code=0):
        process = self.start("bench", *arguments, NO_COLOR="1")
        out, err = process.communicate(timeout=300)
        self.assertEqual(code, process.returncode, err)
        return out, err

    def nothing_is_left(self):
        self.assertEqual([], self.left())
        self.assertEqual([], list((self.folder / "cache/titan").iterdir()))

    def test_figures_agree_with_each_other(self):
        out, _ = self.bench(*SMALL, "--steps", 4, "--warmup", 2, "--repeat", 2, "--checkpoint", "--variant",
                            "long=--training.seq_len 256", "-o", "json")
        found = json.loads(out)
        base, long = found["configurations"]
        self.assertEqual(["base", "long"], [base["name"], long["name"]])
        for configuration, tokens in ((base, 128), (long, 256)):
            self.assertEqual(2, len(configuration["runs"]))
            for run in configuration["runs"]:
                self.assertAlmostEqual(tokens, run["tokens_per_second"] * run["step_seconds"], delta=1e-6 * tokens)
                phases = [run[f"{phase}_seconds"] for phase in ("data", "forward", "backward", "optimizer")]
                self.assertTrue(all(seconds > 0 for seconds in phases), run)
                self.assertGreater(run["first_step_seconds"], run["step_seconds"])
                self.assertGreater(run["save_stall_seconds"], 0)
                self.assertGreaterEqual(run["save_seconds"], run["save_stall_seconds"])
                self.assertAlmostEqual(run["save_bytes"] / run["save_seconds"], run["save_bytes_per_second"], delta=1)
                self.assertGreater(run["save_bytes"], 1 << 20)
                self.assertGreater(run["memory_bytes"], run["save_bytes"])
            speeds = [run["tokens_per_second"] for run in configuration["runs"]]
            self.assertEqual({"median": statistics.median(speeds), "least": min(speeds), "greatest": max(speeds)},
                             configuration["figures"]["tokens_per_second"])
        ratios = [ours["step_seconds"] / theirs["step_seconds"] for ours, theirs in zip(long["runs"], base["runs"])]
        self.assertAlmostEqual(statistics.median(ratios), long["ratios"]["step_seconds"]["median"], places=9)
        self.nothing_is_left()

    def test_a_table_for_people(self):
        out, err = self.bench(*SMALL, "--steps", 2, "--warmup", 1, "--repeat", 1)
        rows = {line.split("  ")[0].strip() or line.split(",")[0].strip(): line for line in out.splitlines()}
        for row in ("tokens/s a rank", "step, ms", "launch to first step, s", "peak memory of all processes, MiB"):
            self.assertIn(row, rows)
        for phase in ("data", "forward", "backward", "optimizer"):
            self.assertRegex(out, rf"(?m)^  {phase}, ms +[\d,.]+ \d+%$")
        self.assertNotIn("save", out)
        self.assertIn("run 1 of 1: base", err)
        self.nothing_is_left()

    def test_bad_arguments_are_refused_before_anything_runs(self):
        for words, why in (((), "a configuration file is required"),
                           (("missing.toml",), "missing.toml"),
                           ((TINY, "--training.stepz", 3), "training.steps"),
                           ((TINY, "--training.steps", 3), "--steps"),
                           ((TINY, "--job.dump_folder=x"), "--folder"),
                           ((TINY, "--steps", 1), "--steps"),
                           ((TINY, "--repeat", 0), "--repeat"),
                           ((TINY, "--folder", "nowhere"), "nowhere"),
                           ((TINY, "--stpes", 3), "--steps"),
                           ((TINY, "--variant", "reference"), "there is no '='"),
                           ((TINY, "--variant", "x=--training.seq_lem 3"), "training.seq_len"),
                           ((TINY, "--variant", "x=--training.seq_len 128", "--variant", "x=--training.seq_len 64"), "is taken")):
            with self.subTest(words=words):
                out, err = self.bench(*words, code=2)
                self.assertEqual("", out)
                self.assertIn(why, err)
        self.assertFalse((self.folder / "cache").exists())

    def test_a_run_that_fails_gives_its_reason(self):
        text = self.folder / "text"
        text.mkdir()
        (text / "a.json").write_text('{"text": "hello"}\n' + "broken\n" * 50)
        out, err = self.bench(*SMALL, "--training.dataset_path", text, "--training.dataloader.max_bad_lines", 3, code=1)
        self.assertEqual("", out)
        self.assertIn("run 1 of 3: base: ", err)
        self.assertIn("a.json", err)
        self.assertIn("what the ranks printed: ", err)
        self.assertEqual([], self.left())

    def test_an_interrupt_leaves_nothing(self):
        dumps = self.folder / "dumps"
        dumps.mkdir()
        process = self.start("bench", *SMALL, "--steps", 100000, "--folder", dumps, NO_COLOR="1")
        wait_until("a step", lambda: any(metric_lines(dump) for dump in dumps.iterdir()), 60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(130, process.returncode, err)
        self.assertEqual("", out)
        self.assertEqual([], list(dumps.iterdir()))
        self.nothing_is_left()


if __name__ == "__main__":
    unittest.main(verbosity=2)
