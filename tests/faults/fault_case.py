"""What the fault tests share: the undisturbed run to compare with, and questions about attempts and events."""

import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import Cluster, Timeout, wait_until  # noqa: E402
from jobs import last_step, losses, metric_lines, tiny, wait_step  # noqa: E402

# The reference machine recovers within 3 s; a loaded one may take longer without anything being wrong.
RECOVERY_LIMIT = 30.0
# A job that logs no new step for so long stands still, on however busy a machine.
STALL_LIMIT = 60.0


def succeed_while_it_advances(cluster, job, dump):
    """Waits for the job's success as long as new steps come: how long they take in all depends on the machine."""
    reached, since = last_step(dump), time.monotonic()
    while cluster.titanctl("wait", job, "--timeout", 2, check=False).returncode == 4:  # Not over yet.
        if last_step(dump) > reached:
            reached, since = last_step(dump), time.monotonic()
        if time.monotonic() - since > STALL_LIMIT:
            raise Timeout(f"no step after {reached} within {STALL_LIMIT} s")
    return cluster.succeed(job)


class FaultCase(unittest.TestCase):
    """One cluster a test; undisturbed runs are made once a program."""

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
        """A context entered by a test is left without its exception, so the cluster cannot see that the test failed."""
        if any(case is self for case, _ in self._result.failures + self._result.errors):
            self.cluster.show_logs()

    @classmethod
    def undisturbed(cls, steps, ranks=2, extra=()):
        """Loss by step of the same job when nothing happens to it."""
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
        """Bit for bit: metrics.jsonl holds every digit."""
        self.assertEqual(self.undisturbed(steps, ranks, extra), losses(self.dump))

    def first_new_step_after(self, kill):
        """Runs `kill` and gives the seconds until a step that no earlier attempt has reached is logged."""
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
        """Steps of the CheckpointCommitted events, in the controller's order."""
        return [event for event in self.cluster.events(job) if event["reason"] == "CheckpointCommitted"]

    def attempts_that_wrote(self):
        """Attempt numbers in the order of metrics.jsonl."""
        return [line["attempt"] for line in metric_lines(self.dump)]
