"""Checks what the benchmarks read from a program's output, without a program: steps, the stall of a save, a recovery, alternating
runs."""

import tempfile
import unittest
from pathlib import Path

from alternating import run_alternating, middle, ratio, ratio_with_spread, with_spread
from measures import Run, published, recovery_of, stall_of, stamp, steps_of
from programs import Ended


def line(seconds, step, tps="1,000"):
    return (f"[titan] 2026-11-23 08:00:{seconds:06.3f} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  8.12346  grad_norm:  1.5000  "
            f"memory:  1.23GiB(4.50%)  tps: {tps}  tflops: 0.10  mfu: -\x1b[39m\n").replace(".", ",", 1)


def start(seconds):
    return f"[titan] 2026-11-23 08:00:{seconds:06.3f} - root - INFO - Training starts at step 1\n".replace(".", ",", 1)


AT_ZERO = stamp("2026-11-23 08:00:00,000")


class Measures(unittest.TestCase):
    def test_each_step_counts_once(self):
        steps = steps_of(start(1) + line(3, 1) + line(3.5, 1, "5") + "[rank1] noise\n" + line(4.25, 2, "2,345"))
        self.assertEqual([1, 2], [step.number for step in steps])
        self.assertEqual([1000, 2345], [step.speed for step in steps])
        self.assertEqual([3, 4.25], [step.at - AT_ZERO for step in steps])

    def test_stall_is_the_delay_of_the_next_step(self):
        ends = {1: 1, 2: 9, 3: 10, 4: 11, 5: 12.5, 6: 13.5, 7: 14.5}
        steps = steps_of("".join(line(seconds, step) for step, seconds in ends.items()))
        self.assertAlmostEqual(0.5, stall_of(steps, saved=4))
        self.assertIsNone(stall_of(steps, saved=7))

    # A step that the survivors still finish is not a recovery.
    def test_a_recovery_ends_with_a_step_of_the_new_ranks(self):
        first = start(1) + line(2, 1) + line(3, 2)
        killed = AT_ZERO + 3.5
        self.assertIsNone(recovery_of(first + line(4, 3), killed))
        self.assertAlmostEqual(6.5, recovery_of(first + line(4, 3) + start(8) + line(10, 3) + line(11, 4), killed))

    def test_checkpoint_is_published_with_its_last_file(self):
        with tempfile.TemporaryDirectory() as dump:
            folder = Path(dump) / "checkpoint/step-4"
            folder.mkdir(parents=True)
            (folder / "__0_0.distcp").write_text("x")
            self.assertIsNone(published(Path(dump), 4))
            (folder / ".metadata").write_text("x")
            self.assertEqual(folder / ".metadata", published(Path(dump), 4))

    def test_runs_alternate_and_failed_programs_are_dropped(self):
        order, speeds = [], iter((10.0, 30.0, 20.0))

        def good():
            order.append("good")
            return Run(next(speeds), 1.0, 5, 2.0)

        def bad():
            order.append("bad")
            if order.count("bad") == 2:
                raise Ended("out of memory")
            return Run(5.0, 1.0, 1, 1.0)

        def never():
            raise Ended("not found")

        found, failed = run_alternating({"good": good, "bad": bad, "never": never}, 3)
        self.assertEqual(["good", "bad", "good", "bad", "good"], order)
        self.assertEqual({"bad": "out of memory", "never": "not found"}, failed)
        self.assertEqual([5], [run.speed for run in found["bad"]])
        self.assertEqual([], found["never"])
        self.assertEqual(20, middle(found["good"], "speed"))
        self.assertEqual("20 (10 to 30)", with_spread(found["good"], "speed"))
        self.assertEqual(("-", None, None), (with_spread(found["never"], "speed"), middle(found["good"], "stall"), ratio(found["never"], found["good"], "speed")))
        self.assertEqual(1, ratio(found["good"], found["good"], "speed"))

    def test_a_ratio_has_the_spread_of_its_rounds(self):
        ours = [Run(speed, 1.0, 5, 2.0) for speed in (10.0, 30.0, 20.0)]
        theirs = [Run(speed, 1.0, 5, 2.0) for speed in (5.0, 10.0, 4.0)]
        self.assertEqual("4 (2 to 5)", ratio_with_spread(ours, theirs, "speed"))
        self.assertEqual("2", ratio_with_spread(ours[:1], theirs[:1], "speed"))
        self.assertEqual("-", ratio_with_spread(ours, [], "speed"))
        self.assertEqual("-", ratio_with_spread(ours, theirs, "stall"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
