"""Worker daemons, the controller and whole machines die. Ranks need neither daemon and must not notice."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from fault_case import FaultCase, tiny, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN  # noqa: E402
from jobs import committed_steps, last_step, metric_lines, wait_committed, wait_step  # noqa: E402

# The long form (TITAN_LONG=1) keeps the daemon away for 30 s and takes minutes.
LONG = bool(os.environ.get("TITAN_LONG"))
AWAY = 30 if LONG else 6
STEPS = 400 if LONG else 80


class DaemonFaults(FaultCase):
    def identities(self):
        return [p.identity for p in self.cluster.ranks()]

    def keep_spool(self):
        """Keeps rank 0's event file open, because the worker deletes it once the controller has everything. (The worker
        rejects a file with two names, so a link does not work.)"""
        (path,) = self.cluster.folder.glob("n*/**/rank-0.events.jsonl")
        self.kept = path.open()
        self.addCleanup(self.kept.close)

    def spool(self, kind):
        """Returns the events of a kind that rank 0 wrote, in order."""
        self.kept.seek(0)
        lines = self.kept.read().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def assert_nothing_lost(self, job):
        """Checks that the controller has each event of the rank once and in order."""
        self.assertTrue(self.spool("checkpoint_committed"))
        self.assertEqual([f"step {event['step']}" for event in self.spool("checkpoint_committed")],
                         [event["message"].split(" (")[0] for event in self.commits(job)])
        staged = [event["message"] for event in self.cluster.events(job) if event["reason"] == "CheckpointStaged"]
        self.assertEqual(len(staged), len(set(staged)))

    def test_worker_daemon_dead_across_a_commit(self):
        self.start()
        job = self.cluster.submit(*tiny(self.dump, steps=STEPS))
        wait_step(self.dump, 3)
        self.keep_spool()
        before = self.identities()
        self.assertEqual(2, len(before))
        died = time.monotonic()
        self.cluster.worker("n1").kill(restart=False)
        committed = max(committed_steps(self.dump), default=0)
        wait_committed(self.dump, committed + 5)
        # The lease (5 s) expires meanwhile: the node is unreachable, and still nothing is restarted.
        wait_until("the daemon to be away long enough", lambda: time.monotonic() - died > AWAY or None, AWAY + 5)
        self.assertEqual(before, self.identities() or before)  # Empty if the job has finished by itself.
        self.cluster.worker("n1").revive()
        self.cluster.succeed(job, timeout=240)
        self.assertEqual(1, len(self.attempts(job)))
        self.assert_nothing_lost(job)
        self.assert_same_curve(STEPS)

    def test_worker_daemon_restarts_repeatedly(self):
        self.start()
        job = self.cluster.submit(*tiny(self.dump, steps=40))
        wait_step(self.dump, 1)
        self.keep_spool()
        before = self.identities()
        for step in (5, 11, 17):
            wait_step(self.dump, step)
            self.cluster.worker("n1").kill()  # Supervised: it restarts at once.
            self.assertEqual(before, self.identities())
        self.cluster.succeed(job)
        self.assertEqual(1, len(self.attempts(job)))
        self.assert_nothing_lost(job)

    def test_controller_killed(self):
        self.start()
        job = self.cluster.submit(*tiny(self.dump, steps=40))
        follower = subprocess.Popen([BIN / "titanctl", "--controller", self.cluster.address, "logs", "-f", job, "--rank", "0"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.cluster.environment)
        self.addCleanup(follower.communicate)
        wait_step(self.dump, 5)
        self.keep_spool()
        before = self.identities()
        for step in (7, 16):
            wait_step(self.dump, step)
            self.cluster.controller.kill(restart=False)
            wait_step(self.dump, step + 3)  # Training continues without a controller.
            self.cluster.controller.revive()
        self.assertEqual(before, self.identities() or before)
        self.cluster.succeed(job)
        self.assertEqual(1, len(self.attempts(job)))
        self.assert_nothing_lost(job)
        self.assert_same_curve(40)
        printed, _ = follower.communicate(timeout=30)
        (log,) = self.cluster.folder.glob("n*/**/rank-0.log")
        self.assertEqual([f" {step} " for step in range(1, 41)],
                         [f" {int(line.split('step:')[1].split('loss:')[0])} " for line in printed.splitlines() if "loss:" in line])
        self.assertEqual(len(log.read_text().splitlines()), len(printed.splitlines()))

    def test_a_node_lost_for_good_is_replaced_by_the_third(self):
        self.start(workers=3, devices=1, lease_ms=1500)
        job = self.cluster.submit(*tiny(self.dump, steps=25, ranks_per_node=1))
        wait_step(self.dump, 7)
        placed = [p["node"] for p in self.attempts(job)[0]["placements"]]
        spare = ({"n1", "n2", "n3"} - set(placed)).pop()
        self.cluster.kill_node(placed[0])  # The leader's node: rank 0, the store and the metrics are lost with it.
        self.cluster.succeed(job)
        first, second = self.attempts(job)
        self.assertIn(first["end_cause"], ("NODE_LOST", "RANK_FAILED", "RANK_KILLED", "SHIM_LOST"))
        self.assertEqual({placed[1], spare}, {p["node"] for p in second["placements"]})
        self.assert_same_curve(25)

    def test_a_paused_old_attempt_that_wakes_changes_nothing(self):
        self.start(workers=3, devices=1, lease_ms=1500)
        job = self.cluster.submit(*tiny(self.dump, steps=25, ranks_per_node=1))
        wait_step(self.dump, 7)
        placed = [p["node"] for p in self.attempts(job)[0]["placements"]]
        paused = [p for p in self.cluster.processes() if p.environment.get("TITAN_TEST_NODE") == placed[0]]
        for process in paused:
            process.kill(signal.SIGSTOP)
        wait_until("a commit of the successor", lambda: 2 in self.attempts_that_wrote() or None, 60)
        reached = last_step(self.dump)
        wait_committed(self.dump, reached + 1)
        for process in paused:
            process.kill(signal.SIGCONT)
        self.cluster.succeed(job)
        wait_until("end of the old attempt's ranks",
                   lambda: not [p for p in paused if p.program == "titan-rank" and p.alive()] or None, 30)
        self.assertEqual(2, len(self.attempts(job)))
        wrote = [line["attempt"] for line in metric_lines(self.dump)]
        self.assertEqual(sorted(wrote), wrote, "the old attempt wrote after its successor")
        self.assert_same_curve(25)


if __name__ == "__main__":
    unittest.main(verbosity=2)
