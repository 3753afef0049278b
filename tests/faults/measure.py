"""Measures rows of the fault matrix (tests/faults/matrix) one after another and writes docs/generated/reliability.md.

    measure.py [ROWS...]            such as 1 3-5 soak=20 (minutes of soak); by default every row
    measure.py --check [ROWS...]    the short form: asserts what must hold, prints figures, writes nothing; by default every row with ci="faults_matrix"
    measure.py --list               lists the rows
    measure.py --render             generates the page again from docs/generated/reliability-results.json

Each row runs in its own process with a time limit, so a row that hangs affects no other. Results accumulate: rows that
are not measured now keep their previous results. The exit code is 1 if an invariant is broken; a missed target is only
reported.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import processes
from matrix import report
from matrix.row import CHECKED, run
from matrix.rows import ALL
from paths import SOURCE
from processor import machine

RESULTS = SOURCE / "docs/generated/reliability-results.json"
PAGE = SOURCE / "docs/generated/reliability.md"
MARK = "TITAN_TEST_MATRIX"  # Name of a variable that every process of a row has.
GRACE = 20  # Seconds that a row has to take its cluster down.


def commit():
    """Returns the measured commit, with a + if the tree differs from it; docs do not count, because rows write there.
    """
    def git(*words):
        return subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True).stdout.strip()
    head = git("rev-parse", "--short=8", "HEAD")
    return (head + ("+" if git("status", "--porcelain", "--", ":!docs") else "")) if head else "unknown"


def circumstances():
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "machine": machine(),
            "load": round(os.getloadavg()[0], 1), "commit": commit()}


def chosen(words):
    """Returns the row numbers of words such as "3" and "3-5"; a range skips numbers without a row."""
    numbers = []
    for word in words:
        first, dash, last = word.partition("-")
        numbers += [number for number in range(int(first), int(last or first) + 1) if number in ALL or not dash]
    return numbers


def in_child_process(command, limit):
    """Runs this program with `command`, which writes its result to a file, and returns it. Kills it at its time limit,
    with its child processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        begun = circumstances()
        mark = uuid.uuid4().hex
        child = subprocess.Popen([sys.executable, Path(__file__).resolve().parent / command[0], *command[1:], "--out", out],
                                 env={**os.environ, MARK: mark})
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            # Raises an exception in the child process (raises_at_its_limit), which takes its cluster down and reports where it was.
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
        finally:  # Also after Ctrl-C.
            for process in processes.all_with(MARK, mark):
                process.kill()
            child.wait()
        if out.exists():
            return {**begun, **json.loads(out.read_text())}
        return {**begun, "verdict": "broken", "why": f"ended with {child.returncode} and no result", "trace": "", "figures": [], "notes": [],
                "seconds": limit, "short": False}


def raises_at_its_limit():
    def late(number, frame):
        raise TimeoutError("did not end within its time limit")
    signal.signal(signal.SIGTERM, late)


def show(what, result):
    print(f"{what}: {report.verdict(result)}{': ' + result['why'] if result['why'] else ''} ({result['seconds']:g} s)")
    for figure in result["figures"]:
        target = f" (target {figure['target']}{'' if figure['met'] else ': MISSED'})" if figure["target"] else ""
        print(f"    {figure['name']}: {report.amount(figure)}{target}")
    for note in result["notes"]:
        print(f"    {note}")
    if result["trace"]:
        print(result["trace"])
    sys.stdout.flush()


def load():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}


def render(results):
    PAGE.write_text(report.page(ALL, results))


def keep(where, name, result):
    """Replaces one result in the file and generates the page, after each row, because a later row may be interrupted.
    """
    results = load()
    (results.setdefault("rows", {}) if where == "rows" else results)[name] = {k: v for k, v in result.items() if k != "trace"}
    results["rows"] = dict(sorted(results.get("rows", {}).items(), key=lambda item: int(item[0])))
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    render(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # Runs a row in this process.
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.list:
        for row in ALL.values():
            print(f"{row.number:3}  {row.title} ({row.how})")
        return 0
    if flags.render:
        render(load())
        return 0
    if flags.one is not None:
        raises_at_its_limit()
        flags.out.write_text(json.dumps(run(ALL[flags.one], flags.check)))
        return 0
    soaks = [word.partition("=")[2] for word in flags.rows if word.startswith("soak=")]
    words = [word for word in flags.rows if not word.startswith("soak=")]
    everything = [number for number, row in ALL.items() if row.ci == CHECKED or not flags.check]
    numbers = chosen(words) if flags.rows else everything
    unknown = [number for number in numbers if number not in ALL]
    if unknown:
        parser.error(f"no row {unknown[0]}; --list names them")
    broken = False
    for number in numbers:
        row = ALL[number]
        result = in_child_process(["measure.py", "--one", str(number), *(["--check"] if flags.check else [])], row.limit)
        show(f"{number}. {row.title}", result)
        broken |= result["verdict"] == "broken"
        if not flags.check:
            keep("rows", str(number), result)
    for minutes in soaks:
        # The undisturbed run follows the soak.
        result = in_child_process(["soak.py", "--minutes", minutes], 60 * float(minutes) * 4 + 600)
        show(f"soak of {minutes} minutes", result)
        broken |= result["verdict"] == "broken"
        if not flags.check:
            keep("soak", "soak", result)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
