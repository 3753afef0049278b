#!/usr/bin/env python3
"""Shows what a rank's collectives cost and how much work they overlapped, from Titan's traces.

  trace_overlap.py TRACE...

Prints one line for each operation of a mesh axis: how many, their MiB, milliseconds of issuing them, of waiting for them, and of
other work between their issue and the wait. Other work excludes issuing and waiting for any collective; if two collectives are in
flight at once, it counts for both. All figures are sums over the recorded steps.
"""

import json
import sys
from collections import defaultdict


def transfers(trace):
    """Returns the collectives and messages of a trace, in order of their start: dicts of operation, axis, bytes and five times
    in microseconds."""
    found = []
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        if event.get("ph") != "X" or "issued to wait us" not in args:
            continue
        issued = event["ts"] + args["issuing us"]
        wait = issued + args["issued to wait us"]
        found.append({"operation": event["name"].split(":", 1)[1], "axis": args["axis"], "bytes": args["bytes"], "begin": event["ts"],
                      "issued": issued, "wait": wait, "waited": wait + args["waiting us"], "end": event["ts"] + event["dur"]})
    return sorted(found, key=lambda one: one["begin"])


def united(intervals):
    """Returns the union of the intervals, without overlaps, in order."""
    result = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def within(intervals, begin, end):
    """Returns how much of [begin, end] the (united) intervals cover."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in intervals)


def table(trace):
    """Returns rows by operation and axis: number, bytes, and microseconds of issuing, waiting and other work."""
    found = transfers(trace)
    busy = united([(one["begin"], one["issued"]) for one in found] + [(one["wait"], one["waited"]) for one in found])
    rows = defaultdict(lambda: [0, 0, 0.0, 0.0, 0.0])
    for one in found:
        row = rows[one["operation"], one["axis"]]
        row[0] += 1
        row[1] += one["bytes"]
        row[2] += one["issued"] - one["begin"]
        row[3] += one["waited"] - one["wait"]
        row[4] += one["wait"] - one["issued"] - within(busy, one["issued"], one["wait"])
    return dict(rows)


def steps(trace):
    """Returns the milliseconds of each recorded step."""
    return [event["dur"] / 1e3 for event in trace["traceEvents"] if str(event.get("name", "")).startswith("ProfilerStep#")]


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return
    for path in sys.argv[1:]:
        with open(path) as file:
            trace = json.load(file)
        lengths = steps(trace)
        print(f"{path}: {len(lengths)} steps, {sum(lengths):.1f} ms")
        print(f"  {'operation':<16}{'axis':<14}{'number':>7}{'MiB':>9}{'issuing ms':>12}{'waiting ms':>12}{'other work ms':>15}")
        for (operation, axis), (count, size, issuing, waiting, other) in sorted(table(trace).items(), key=lambda row: -row[1][3]):
            print(f"  {operation:<16}{axis:<14}{count:>7}{size / 2**20:>9.2f}{issuing / 1e3:>12.2f}{waiting / 1e3:>12.2f}{other / 1e3:>15.2f}")


if __name__ == "__main__":
    main()
