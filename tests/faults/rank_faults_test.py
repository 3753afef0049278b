"""Ranks and shims die: the job resumes from its newest checkpoint, and its loss curve equals the undisturbed one, bit
for bit."""

import signal
import sys
import unittest
from pathlib import Path

from fault_case import FaultCase, losses, tiny, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from jobs import committed_steps, last_step, wait_committed, wait_step  # noqa: E402

STEPS = 25


class RankFaults(FaultCase):
    def submit(self, **options):
        return self.cluster.submit(*tiny(self.dump, **{"steps": STEPS, **options}))

    def rank(self, number):
        return wait_until(f"rank {number}", lambda: next((p for p in self.cluster.ranks() if p.rank == number), None))

    def test_rank_killed(self):
        self.start()
        job = self.submit()
        wait_committed(self.dump, 10)
        wait_step(self.dump, 11)
        seconds = self.first_new_step_after(lambda: self.rank(1).kill(signal.SIGKILL))
        print(f"rank killed: first new step finished after {seconds:.2f} s")
        self.cluster.succeed(job)
        self.assert_same_curve(STEPS)
        first, second = self.attempts(job)
        self.assertEqual("RANK_KILLED", first["end_cause"])
        self.assertEqual("FINISHED", second["end_cause"])
        self.assertEqual(10, second["resumed_step"])
        killed = next(e for e in first["exits"] if e["rank"] == 1)
        self.assertEqual(signal.SIGKILL, killed["signal"])

    def test_a_rank_that_hangs_is_named(self):
        """The peer of the hung rank times out and the controller kills the hung rank: that kill is not the cause."""
        self.start()
        job = self.submit(extra=["--comm.train_timeout_seconds", 3])
        wait_step(self.dump, 11)
        self.rank(1).kill(signal.SIGSTOP)
        self.cluster.succeed(job)
        first, second = self.attempts(job)
        self.assertEqual("HANG", first["end_cause"], first["end_message"])
        self.assertRegex(first["end_message"], r"^rank 1 (never came to|is in) .*\. rank 1 on n1 in \w+ made no progress for \d+ s; Titan ended it\. rank 0 on n1 exited with code")
        self.assertEqual("FINISHED", second["end_cause"])
        self.assert_same_curve(STEPS)

    def test_shim_killed(self):
        self.start()
        job = self.submit()
        wait_step(self.dump, 11)
        (shim,) = self.cluster.shims()
        seconds = self.first_new_step_after(lambda: shim.kill(signal.SIGKILL))
        print(f"shim killed: first new step finished after {seconds:.2f} s")
        self.cluster.succeed(job)
        self.assert_same_curve(STEPS)
        self.assertEqual(["SHIM_LOST", "FINISHED"], [a["end_cause"] for a in self.attempts(job)])

    def test_killed_before_the_first_commit_starts_from_the_initial_weights(self):
        self.start()
        job = self.submit(interval=15)
        wait_step(self.dump, 2)
        self.rank(0).kill(signal.SIGKILL)
        self.cluster.succeed(job)
        first, second = self.attempts(job)
        self.assertEqual((0, 0), (first["resumed_step"], second["resumed_step"]))
        self.assert_same_curve(STEPS)

    def test_three_attempts_without_progress_fail_the_job(self):
        self.start()
        job = self.submit(extra=["--restart.backoff_initial_seconds", "0.05", "--restart.no_progress_limit", 3])
        wait_step(self.dump, 6)
        seen = set()
        while (state := self.cluster.job(job)["state"]) not in ("FAILED", "SUCCEEDED"):
            for process in self.cluster.ranks():
                if process.identity not in seen:  # Killed right after its start, so that no step ends.
                    seen.add(process.identity)
                    process.kill(signal.SIGKILL)
        end = self.cluster.job(job)
        self.assertEqual(("FAILED", "NO_PROGRESS"), (state, end["failure_reason"]))
        self.assertTrue(all(a["end_cause"] == "RANK_KILLED" for a in end["attempts"]), end["attempts"])
        self.assertEqual([], self.cluster.ranks())

    def test_job_after_cancel_resumes_bit_for_bit(self):
        self.start()
        job = self.submit(interval=100)
        wait_step(self.dump, 7)
        self.cluster.titanctl("cancel", job, "--wait", "--timeout", 30)
        self.assertEqual("CANCELLED", self.cluster.job(job)["state"])
        stopped = last_step(self.dump)
        self.assertEqual([stopped], committed_steps(self.dump))
        again = self.submit(interval=100)
        self.cluster.succeed(again)
        self.assertEqual(stopped, self.attempts(again)[0]["resumed_step"])
        self.assert_same_curve(STEPS)

    def test_sigterm_saves_at_a_step_boundary(self):
        self.start()
        job = self.submit(interval=100)
        wait_step(self.dump, 7)
        before = [p.identity for p in self.cluster.ranks()]
        for process in self.cluster.ranks():
            process.kill(signal.SIGTERM)
        wait_until("end of the old ranks", lambda: not {p.identity for p in self.cluster.ranks()} & set(before) or None)
        self.assertTrue(committed_steps(self.dump), "SIGTERM did not save")
        self.cluster.succeed(job)
        self.assert_same_curve(STEPS)
        self.assertEqual(committed_steps(self.dump)[0], self.attempts(job)[-1]["resumed_step"])

    def test_resume_on_another_number_of_ranks_keeps_the_curve(self):
        """In the global order the batch stays the same, so the losses differ only by rounding."""
        self.start()
        job = self.submit(interval=100)
        wait_step(self.dump, 7)
        self.cluster.titanctl("cancel", job, "--wait", "--timeout", 30)
        again = self.cluster.submit(*tiny(self.dump, steps=STEPS, ranks=1, extra=["--training.global_batch_size", 2]))
        self.cluster.succeed(again)
        reference, curve = self.undisturbed(STEPS), losses(self.dump)
        self.assertEqual(sorted(reference), sorted(curve))
        for step, loss in curve.items():
            self.assertAlmostEqual(reference[step], loss, delta=2e-2 * reference[step], msg=f"step {step}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
