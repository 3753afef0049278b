"""A row of the fault matrix: one kind of fault, what must hold under it, and the figures that measure it.

A row is a function of a Measured, which is a FaultCase: it starts a cluster, makes the fault, asserts what must hold
(any failed assertion breaks the row, however good its figures are) and notes figures. A figure may have a target; a
missed target is reported and breaks nothing, because times depend on the machine.

    @row(1, "a rank is killed", how="SIGKILL of rank 1", anchor="torchrun polls every 0.1 s", invariant="the same losses", ci="faults_ranks")
    def rank_killed(case):
        case.start()
        ...
        case.figure("a new step after", seconds, "s", at_most=1)
"""

import math
import os
import subprocess
import sys
import time
import unittest
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fault_case import FaultCase  # noqa: E402
from cluster import BIN  # noqa: E402  (fault_case knows where it is)

TESTS = Path(os.environ.get("TITAN_TESTS", BIN.parent / "tests"))
ROWS = {}
CHECKED = "faults_matrix"


@dataclass(frozen=True)
class Row:
    number: int
    title: str
    how: str  # How the fault is made.
    anchor: str  # Behaviour of other systems, according to their own sources and documentation.
    invariant: str  # The invariant in words; the function asserts it.
    ci: str  # The ctest entry that checks the invariant; CHECKED runs the row itself, in its short form.
    measure: Callable
    limit: float  # Seconds after which a row is ended as hung: many times its duration on a busy machine.


def row(number, title, *, how, anchor, invariant, ci, limit=900):
    def register(measure):
        assert number not in ROWS, f"row {number} occurs twice"
        ROWS[number] = Row(number, title, how, anchor, invariant, ci, measure, limit)
        return measure
    return register


class NotRun(unittest.SkipTest):
    """Raised with a reason if this machine or build cannot run the row, and with the command that makes it possible."""

    def __init__(self, reason, command=""):
        super().__init__(f"{reason}; {command}" if command else reason)


@dataclass
class Figure:
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None  # None without a target.


class Measured(FaultCase):
    """One run of one row."""

    def __init__(self, row, short=False):
        super().__init__("runTest")
        self.row, self.short = row, short
        self.figures, self.notes = [], []

    def __str__(self):
        return f"row {self.row.number}: {self.row.title}"

    def runTest(self):
        self.row.measure(self)

    def figure(self, name, value, unit, at_most=None, at_least=None):
        """Notes a figure and its target, if it has one."""
        target, met = "", None
        if at_most is not None:
            target, met = f"≤ {at_most:g} {unit}".strip(), value <= at_most
        elif at_least is not None:
            target, met = f"≥ {at_least:g} {unit}".strip(), value >= at_least
        self.figures.append(Figure(name, value, unit, target, met))

    def note(self, text):
        """Notes what the reader of the figures must know, such as a part that could not run and why."""
        self.notes.append(text)

    def program(self, *command, timeout=None, environment=None):
        """Runs a program to its end; returns its output and its seconds. Any exit code other than 0 breaks the row."""
        begun = time.monotonic()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(0, done.returncode, f"{command[0]}:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout, time.monotonic() - begun

    def test_program(self, name, only="*", **environment):
        """Runs the tests of a built test program that the GoogleTest filter `only` selects; returns (tests passed,
        output, seconds)."""
        path = TESTS / name
        if not path.exists():
            raise NotRun(f"{name} is not built", f"ninja {name}")
        output, seconds = self.program(path, f"--gtest_filter={only}", environment=environment)
        passed = output.count("[       OK ]")
        self.assertGreater(passed, 0, f"{name} has no test {only}")
        return passed, output, seconds


def spread(case, name, values, unit, **target):
    """Notes the median and the greatest of several values; the target applies to the greatest."""
    ordered = sorted(values)
    case.figure(f"{name}, median of {len(ordered)}", ordered[(len(ordered) - 1) // 2], unit)
    case.figure(f"{name}, most", ordered[-1], unit, **target)


def run(row, short=False):
    """Runs a row; returns its entry of the results file."""
    case = Measured(row, short)
    result = unittest.TestResult()
    begun = time.monotonic()
    case.run(result)
    broken = [trace for _, trace in result.failures + result.errors]
    skipped = [reason for _, reason in result.skipped]
    verdict = "broken" if broken else "not run" if skipped else "holds"
    return {"verdict": verdict, "why": broken[0].strip().splitlines()[-1] if broken else skipped[0] if skipped else "",
            "trace": broken[0] if broken else "", "figures": [asdict(figure) for figure in case.figures if math.isfinite(figure.value)],
            "notes": case.notes, "seconds": round(time.monotonic() - begun, 1), "short": short}
