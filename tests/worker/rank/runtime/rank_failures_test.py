"""Tests that if one rank of a 4D mesh fails, is killed or stops, all others end within seconds, each with the right exit code,
and report which rank was first. Ranks run as processes, and as threads of one process (comm.mode = "local_tensor")."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import CONFIG, RANK, SMALL, Ranks  # noqa: E402

INTERNAL, PEER_LOST, OUT_OF_MEMORY = 1, 12, 13
WORLD = 4
# There are two stages of two ranks each: 0 and 1 share the first, 2 and 3 the last, which computes the loss.
JOB = [
    "--experimental.custom_import", os.path.join(os.path.dirname(os.environ["TITAN_BIN"]), "tests", "libfailing_model.so"),
    "--model.name", "failing", "--model.flavor", "small", "--parallelism.pipeline_parallel_degree", "2",
    "--parallelism.tensor_parallel_degree", "2", "--training.local_batch_size", "2", "--training.steps", "100000",
    "--checkpoint.no_enable", "--comm.train_timeout_seconds", "3", "--validation.enable", "--validation.freq", "3",
    "--validation.steps", "1", "--validation.seq_len", "64",
]
# Far below a collective's timeout before the first step is done (30 s), and far above what a loaded machine needs.
SOON = 15.0


class RankFailures(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.addCleanup(os.environ.pop, "TITAN_TEST_FAILURE", None)

    def folder(self, name):
        return os.path.join(self.scratch.name, name)

    def start(self, name, failure=""):
        os.environ["TITAN_TEST_FAILURE"] = failure
        ranks = Ranks(self.folder(name), WORLD, JOB)
        self.addCleanup(ranks.kill)
        return ranks

    def since_last_step(self, ranks):
        """Returns the seconds since the last completed step. Ranks fail in a later one."""
        last = ranks.events(0, "step")[-1]["time"]
        return time.time() - last / 1e9

    def reasons(self, ranks):
        """Returns (reason, message) of each rank's last error, or None."""
        errors = [ranks.events(rank, "error") for rank in range(WORLD)]
        return [(events[-1]["reason"], events[-1]["message"]) if events else None for events in errors]

    def kill_one(self, victim, kind, *reasons):
        ranks = self.start("%s-%d" % (kind.name, victim))
        ranks.wait_for_step(2)
        began = time.monotonic()
        ranks.processes[victim].send_signal(kind)
        others = [rank for rank in range(WORLD) if rank != victim]
        for rank in others:
            ranks.processes[rank].wait(60)
        seconds = time.monotonic() - began
        ranks.processes[victim].kill()  # A stopped rank has not ended.
        codes = ranks.wait()
        for rank in others:
            self.assertEqual(PEER_LOST, codes[rank], ranks.outputs[rank])
            self.assertIn(self.reasons(ranks)[rank][0], reasons)
        print("rank %d: %s: all others have ended after %.2f s" % (victim, kind.name, seconds))
        return seconds, self.reasons(ranks), codes

    def test_a_killed_rank_ends_all_others_at_once(self):
        for victim in (0, 3):
            seconds, reasons, codes = self.kill_one(victim, signal.SIGKILL, "PEER_LOST")
            self.assertEqual(-signal.SIGKILL, codes[victim])
            self.assertLess(seconds, SOON)
            # Some rank was connected to the victim, and names it.
            named = [message for reason in reasons if reason for message in [reason[1]]
                     if re.search(r"(rank|ranks [0-9, ]*)\b%d\b" % victim, message)]
            self.assertTrue(named, reasons)

    def test_stopped_rank_is_lost_after_the_timeout(self):
        for victim in (0, 2):
            # Ranks that wait for it report the timeout; ranks that first learn of that report a lost peer.
            seconds, reasons, _ = self.kill_one(victim, signal.SIGSTOP, "COLLECTIVE_TIMEOUT", "PEER_LOST")
            self.assertIn("COLLECTIVE_TIMEOUT", [reason[0] for reason in reasons if reason])
            self.assertGreater(seconds, 2.5)
            self.assertLess(seconds, 3 + SOON)

    def test_failing_rank_reports_its_reason_to_the_others(self):
        cases = {"forward": INTERNAL, "backward": INTERNAL, "validation": INTERNAL, "memory": OUT_OF_MEMORY,
                 "shape": INTERNAL}
        for place, code in cases.items():
            ranks = self.start("fails-" + place, "3 %s %d" % (place, 3 if place == "validation" else 5))
            codes = ranks.wait()
            self.assertEqual([PEER_LOST] * 3 + [code], codes, "%s\n%s" % (place, "\n".join(ranks.outputs)))
            self.assertLess(self.since_last_step(ranks), SOON)
            reasons = self.reasons(ranks)
            cause = {INTERNAL: "INTERNAL", OUT_OF_MEMORY: "OUT_OF_MEMORY"}[code]
            self.assertEqual(cause, reasons[3][0])
            for reason, message in reasons[:3]:
                self.assertEqual("PEER_LOST", reason)
                self.assertIn("the first to fail was rank 3: %s: %s" % (cause, reasons[3][1].split("\n")[0]), message)

    def test_a_thread_that_fails_ends_the_process_with_its_code(self):
        for place, code in {"forward": INTERNAL, "backward": INTERNAL, "validation": INTERNAL,
                            "memory": OUT_OF_MEMORY, "shape": INTERNAL}.items():
            folder = self.folder("thread-" + place)
            os.environ["TITAN_TEST_FAILURE"] = "2 %s %d" % (place, 3 if place == "validation" else 5)
            words = [RANK, "--config", CONFIG, *SMALL, *JOB, "--job.dump_folder", folder, "--comm.mode", "local_tensor",
                     "--resources.ranks", str(WORLD)]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            self.assertEqual(code, done.returncode, "%s\n%s" % (place, done.stdout))
            threads = Ranks.__new__(Ranks)
            threads.folder = folder
            self.assertLess(self.since_last_step(threads), SOON)
            reasons = self.reasons(threads)
            for rank in (0, 1, 3):
                self.assertEqual("PEER_LOST", reasons[rank][0])
                self.assertIn("rank 2 failed: %s" % reasons[2][0], reasons[rank][1])


if __name__ == "__main__":
    unittest.main()
