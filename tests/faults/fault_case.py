"""Shared parts of the fault tests: the undisturbed run to compare with, and queries about attempts and events."""

import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import Cluster, Timeout, wait_until  # noqa: E402
from jobs import last_step, losses, metric_lines, tiny, wait_step  # noqa: E402

# The reference machine recovers within 3 s; a loaded one may be slower without an error.
RECOVERY_LIMIT = 30.0
# A job that logs no new step for this long hangs, however busy the machine is.
STALL_LIMIT = 60.0


def succeed_while_it_advances(cluster, job, dump):
    """Waits for the job's success as long as new steps come: the total time depends on the machine."""
    reached, since = last_step(dump), time.monotonic()
    while cluster.titanctl("wait", job, "--timeout", 2, check=False).returncode == 4:  # Not finished yet.
        if last_step(dump) > reached:
            reached, since = last_step(dump), time.monotonic()
        if time.monotonic() - since > STALL_LIMIT:
            raise Timeout(f"no step after {reached} within {STALL_LIMIT} s")
    return cluster.succeed(job)


class FaultCase(unittest.TestCase):
    """One cluster per test; undisturbed runs are made once per program."""

    _undisturbed = {}

    def run(self, result=None):
        self._result = result if result is not None else self.defaultTestResult()
        return super().run(self._result)

    def start(self, kind=Cluster, **options):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cluster = self.enterContext(kind(**options))
        self.addCleanup(self._show_logs_of_a_failure)
        self.dump = self.folder / "dump"
        return self.cluster

    def _show_logs_of_a_failure(self):
        """Shows the logs if the test failed, which the cluster cannot see: contexts are left without the exception."""
        if any(case is self for case, _ in self._result.failures + self._result.errors):
            self.cluster.show_logs()

    @classmethod
    def undisturbed(cls, steps, ranks=2, extra=()):
        """Returns the loss by step of the same job without faults."""
        key = (steps, ranks, tuple(map(str, extra)))
        if key not in cls._undisturbed:
            with tempfile.TemporaryDirectory() as folder, Cluster(workers=1) as cluster:
                dump = Path(folder) / "dump"
                job = cluster.submit(*tiny(dump, steps=steps, ranks=ranks, extra=extra))
                succeed_while_it_advances(cluster, job, dump)
                cls._undisturbed[key] = losses(dump)
        return cls._undisturbed[key]

    def finish(self, job):
        succeed_while_it_advances(self.cluster, job, self.dump)

    def assert_same_curve(self, steps, ranks=2, extra=()):
        """Compares bit for bit: metrics.jsonl has every digit."""
        self.assertEqual(self.undisturbed(steps, ranks, extra), losses(self.dump))

    def first_new_step_after(self, kill):
        """Runs `kill` and returns the seconds until a step is logged that no earlier attempt has reached."""
        before = {p.identity for p in self.cluster.ranks()}
        start = time.monotonic()
        kill()
        wait_until("end of the old ranks", lambda: not before & {p.identity for p in self.cluster.ranks()} or None, RECOVERY_LIMIT)
        reached = last_step(self.dump)
        wait_step(self.dump, reached + 1, RECOVERY_LIMIT)
        return time.monotonic() - start

    def attempts(self, job):
        return self.cluster.job(job)["attempts"]

    def commits(self, job):
        """Returns the CheckpointCommitted events in the controller's order."""
        return [event for event in self.cluster.events(job) if event["reason"] == "CheckpointCommitted"]

    def attempts_that_wrote(self):
        """Returns attempt numbers in the order of metrics.jsonl."""
        return [line["attempt"] for line in metric_lines(self.dump)]
