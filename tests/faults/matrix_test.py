"""Tests the frame of the fault matrix: what breaks a row and what does not, and that the page matches the results."""

import json
import re
import sys
import unittest

from matrix import report
from matrix.row import CHECKED, NotRun, Row, run
from matrix.rows import ALL

from cluster import SOURCE

CIRCUMSTANCES = {"date": "2026-01-31 12:00 UTC", "machine": "2 cores of a processor", "load": 0.5, "commit": "abcdef12"}


def result_of(measure):
    return {**CIRCUMSTANCES, **run(Row(1, "a fault", "a signal", "none", "all", "none", measure, 1))}


class Frame(unittest.TestCase):
    def test_broken_invariant_breaks_a_row(self):
        def measure(case):
            case.figure("after", 0.1, "s", at_most=1)
            case.assertEqual(1, 2, "the losses differ")
        result = result_of(measure)
        self.assertEqual("broken", result["verdict"])
        self.assertIn("the losses differ", result["why"])
        self.assertEqual([True], [figure["met"] for figure in result["figures"]])

    def test_missed_target_is_only_reported(self):
        def measure(case):
            case.figure("after", 2, "s", at_most=1)
            case.figure("rate", 2, "/s", at_least=1)
        result = result_of(measure)
        self.assertEqual("holds", result["verdict"])
        self.assertEqual([False, True], [figure["met"] for figure in result["figures"]])
        self.assertEqual("holds; 1 target missed", report.verdict(result))

    def test_unsupported_row_is_skipped_with_a_reason(self):
        def measure(case):
            raise NotRun("no memory cgroup", "as root")
        result = result_of(measure)
        self.assertEqual(("not run", "no memory cgroup; as root"), (result["verdict"], result["why"]))

    def test_script_error_breaks_a_row(self):
        self.assertEqual("broken", result_of(lambda case: case.nothing)["verdict"])

    def test_page_lists_every_row(self):
        result = result_of(lambda case: case.figure("first new step after", 0.75, "s", at_most=1))
        rows = {1: Row(1, "a rank dies", "SIGKILL", "0.1 s", "the losses", "none", None, 1), 2: Row(2, "a|b", "", "", "", "none", None, 1)}
        page = report.page(rows, {"rows": {"1": result}})
        self.assertIn("| 1 | [a rank dies](#1-a-rank-dies) | first new step after 0.75 s (≤ 1 s) | holds |", page)
        self.assertIn("\n## 1. A rank dies\n\n- **Fault**: SIGKILL.\n- **Must hold**: the losses.\n- **Other systems**: 0.1 s.\n", page)
        self.assertIn("| 2 | [a\\|b](#2-ab) |", page)
        self.assertIn("2026-01-31 12:00 UTC, 2 cores of a processor, load 0.5 before the run, commit abcdef12", page)


class Tree(unittest.TestCase):
    def test_the_page_matches_the_results(self):
        results = json.loads((SOURCE / "docs/generated/reliability-results.json").read_text())
        self.assertEqual(report.page(ALL, results), (SOURCE / "docs/generated/reliability.md").read_text(), "run: tests/faults/measure.sh --render")

    def test_ci_entries_of_rows_exist(self):
        declared = set(re.findall(r"titan_(?:script_)?test\((\w+)", "".join(path.read_text() for path in (SOURCE / "tests").rglob("CMakeLists.txt"))))
        self.assertIn(CHECKED, declared)
        for row in ALL.values():
            self.assertIn(re.match(r"\w+", row.ci)[0], declared | {"none"}, f"row {row.number}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
