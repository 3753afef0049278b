"""Prints how long each test of a run took, the slowest first, and their total.

    test_times.py RESULTS.xml [RESULTS.xml ...]             files of `ctest --output-junit RESULTS.xml`
    test_times.py --page RESULTS.xml [RESULTS.xml ...]      the same as docs/generated/all-tests.md
"""

import datetime
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/testing"))
from processor import machine

STATES = {"run": "passed", "fail": "FAILED", "notrun": "skipped", "disabled": "disabled"}


def times(paths):
    """Returns (seconds, name, status) of each test, the slowest first. A test that is in several files counts as in the last one."""
    cases = {case.get("name"): case for path in paths for case in ElementTree.parse(path).getroot().iter("testcase")}
    return sorted(((float(case.get("time", 0)), name, case.get("status")) for name, case in cases.items()), reverse=True)


def total(rows):
    return f"{len(rows)} tests, {sum(seconds for seconds, _, _ in rows):.0f} s in total"


def text(rows):
    lines = [f"{seconds:8.1f} s  {name}" + ("" if status == "run" else f"  ({status})") for seconds, name, status in rows]
    return "\n".join([total(rows), *lines])


def page(rows):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    states = [STATES.get(status, status) for _, _, status in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=states.count, reverse=True)))
    return "\n".join([
        "# The last whole run of all tests", "",
        f"{datetime.date.today()}, commit {commit}, {machine()}: {total(rows)}; {counts}.", "",
        "`deploy/test.sh --all` runs these tests, then `deploy/test_times.py --page build/release/tests.xml >docs/generated/all-tests.md` writes this",
        "page. Several tests run at a time, so a run takes less than the total. [tests.md](../decisions/tests.md) says which tests are long.", "",
        "| test | seconds | result |", "|---|---|---|",
        *(f"| {name} | {seconds:.1f} | {state} |" for (seconds, name, _), state in zip(rows, states))])


if __name__ == "__main__":
    as_page = sys.argv[1:2] == ["--page"]
    print((page if as_page else text)(times(sys.argv[2 if as_page else 1:])))
