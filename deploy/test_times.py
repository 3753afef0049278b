"""Prints how long each test of a run took, the slowest first, and their total.

    test_times.py RESULTS.xml       a file of `ctest --output-junit RESULTS.xml`
"""

import sys
from xml.etree import ElementTree


def times(path):
    """Returns (seconds, name, status) of each test, the slowest first."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    return sorted(((float(case.get("time", 0)), case.get("name"), case.get("status")) for case in cases), reverse=True)


def main(path):
    rows = times(path)
    print(f"{len(rows)} tests, {sum(seconds for seconds, _, _ in rows):.0f} s in total")
    for seconds, name, status in rows:
        print(f"{seconds:8.1f} s  {name}" + ("" if status == "run" else f"  ({status})"))


if __name__ == "__main__":
    main(sys.argv[1])
