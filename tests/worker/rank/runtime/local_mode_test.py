"""Tests comm.mode = "local_tensor": all ranks of a mesh are threads of one process, with the same outputs as separate
processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import CONFIG, RANK, SMALL, Ranks, losses

WORLD = 4
MESH = ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "2",
        "--training.global_batch_size", "4"]


def local(folder, *extra, ranks=WORLD):
    words = [RANK, "--config", CONFIG, *SMALL, *MESH, "--job.dump_folder", folder, "--comm.mode", "local_tensor",
             "--resources.ranks", str(ranks), *extra]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process, seconds=60):
    output = process.communicate(timeout=seconds)[0]
    return process.returncode, output


def events(folder, rank, kind):
    with open(os.path.join(folder, "run", "rank-%d.events.jsonl" % rank)) as file:
        return [entry for entry in map(json.loads, file) if entry["kind"] == kind]


def last_traffic(folder, rank):
    with open(os.path.join(folder, "run", "rank-%d.ledger.json" % rank)) as file:
        return json.load(file)["last_step"]


class LocalMode(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def folder(self, name):
        return os.path.join(self.scratch.name, name)

    def test_threads_train_as_processes_do_bit_for_bit(self):
        threads, processes = self.folder("threads"), self.folder("processes")
        code, output = end(local(threads))
        self.assertEqual(0, code, output)
        ranks = Ranks(processes, WORLD, MESH)
        self.assertEqual([0] * WORLD, ranks.wait(), "\n".join(ranks.outputs))
        self.assertEqual(losses(processes), losses(threads))
        self.assertEqual(12, len(losses(threads)))
        for rank in range(WORLD):
            self.assertEqual(1, len(events(threads, rank, "finished")), rank)
            self.assertTrue(os.path.exists(os.path.join(threads, "run", "rank-%d.beacon" % rank)))
            self.assertEqual(last_traffic(processes, rank), last_traffic(threads, rank))
        self.assertEqual(12, output.count("grad_norm:"), "one rank writes to the console")

    def test_processes_resume_what_an_interrupt_saved(self):
        folder, whole = self.folder("stopped"), self.folder("whole")
        process = local(folder, "--training.steps", "2000")
        waiting = Ranks.__new__(Ranks)
        waiting.folder, waiting.processes = folder, [process]
        waiting.wait_for_step(3)
        process.send_signal(signal.SIGINT)
        code, output = end(process)
        self.assertEqual(16, code, output)
        stopped_at = events(folder, 0, "stopped")[0]["step"]
        for rank in range(WORLD):
            self.assertEqual(stopped_at, events(folder, rank, "stopped")[0]["step"])
        steps = str(stopped_at + 2)
        schedule = ["--training.steps", steps, "--lr_scheduler.total_steps", "2000"]
        ranks = Ranks(folder, WORLD, MESH + schedule)
        self.assertEqual([0] * WORLD, ranks.wait(), "\n".join(ranks.outputs))
        code, output = end(local(whole, *schedule))
        self.assertEqual(0, code, output)
        self.assertEqual(losses(whole), losses(folder))

    # Pipeline, tensor and context ranks run as threads: their curve, held-out loss and checkpoint equal one rank's.
    def test_eight_ranks_train_validate_and_save(self):
        job = ["--training.seq_len", "64", "--training.local_batch_size", "4", "--training.global_batch_size", "4", "--training.steps",
               "3", "--lr_scheduler.warmup_steps", "2", "--training.dtype", "float64", "--metrics.log_freq", "1",
               "--metrics.no_enable_tensorboard", "--validation.freq", "3", "--validation.steps", "1",
               "--validation.local_batch_size", "4", "--validation.seq_len", "64", "--resources.threads_per_rank", "1"]
        mesh = ["--parallelism.pipeline_parallel_degree", "2", "--parallelism.tensor_parallel_degree", "2",
                "--parallelism.context_parallel_degree", "2"]
        lines = {}
        for name, ranks, extra in [("one", 1, []), ("eight", 8, mesh)]:
            words = [RANK, "--config", CONFIG, *job, "--job.dump_folder", self.folder(name), "--comm.mode", "local_tensor",
                     "--resources.ranks", str(ranks), *extra]
            done = subprocess.run(words, capture_output=True, text=True, timeout=90)
            self.assertEqual(0, done.returncode, done.stderr)
            with open(os.path.join(self.folder(name), "metrics.jsonl")) as file:
                lines[name] = [json.loads(line) for line in file]
        self.assertEqual([1, 1, 2, 3, 3], [line["step"] for line in lines["eight"]])  # Step 1 and 3 again, with their validation.
        for one, eight in zip(lines["one"], lines["eight"], strict=True):
            for key in ("loss_metrics/global_avg_loss", "grad_norm", "n_tokens_seen", "validation_metrics/loss"):
                self.assertEqual(key in one, key in eight)
                if key in one:
                    self.assertAlmostEqual(1, eight[key] / one[key], delta=1e-10)
        with open(os.path.join(self.folder("eight"), "checkpoint", "step-3", "manifest.json")) as file:
            self.assertEqual(3, json.load(file)["step"])
        words = [RANK, "--config", CONFIG, *job, "--training.steps", "4", "--job.dump_folder", self.folder("eight")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(4, len(losses(self.folder("eight"))), "one process resumes from what eight threads saved")

    def test_one_rank_that_fails_ends_all_with_its_exit_code(self):
        folder = self.folder("failing")
        os.makedirs(os.path.join(folder, "run", "rank-2.events.jsonl"))  # This rank's spool cannot be opened.
        code, output = end(local(folder), seconds=30)
        self.assertEqual(14, code, output)
        self.assertIn("rank 2: RUN_FOLDER", output)
        for rank in (0, 1, 3):
            self.assertEqual("PEER_LOST", events(folder, rank, "error")[0]["reason"])

    def test_refuses_a_single_rank(self):
        code, output = end(local(self.folder("one"), "--rank", "1"))
        self.assertEqual(10, code, output)
        self.assertIn("one process runs all ranks", output)


if __name__ == "__main__":
    unittest.main()
