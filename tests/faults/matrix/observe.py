"""Queries of rows about a running cluster: times of events and of the controller's journal, and whether attempts agree.
"""

import datetime
import re
import socket
import time
from pathlib import Path

from matrix.row import Measured

from cluster import wait_until
from jobs import LOSS, committed_steps, last_step, losses, metric_lines, tiny, wait_committed, wait_step

# Rows whose length depends on the machine's speed train without an end; their losses are compared after the row.
FOREVER = 1_000_000
WITHOUT_END = ["--lr_scheduler.total_steps", FOREVER]


def seconds_of(stamp):
    """Returns the Unix seconds of a timestamp such as 2026-01-31T12:00:00.123456789Z."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def event_after(case: Measured, job, reason, moment, limit=30):
    """Returns the Unix time of the first such event of the job that the controller noted after `moment`."""
    def find():
        found = [seconds_of(e["time"]) for e in case.cluster.events(job) if e["reason"] == reason]
        return next((at for at in found if at >= moment), None)
    return wait_until(f"event {reason}", find, limit, poll=0.05)


def revive(case):
    """Starts the controller again; returns the seconds from its exec to its first answer."""
    host, port = case.cluster.address.rsplit(":", 1)
    (case.cluster.folder / "controller-ports.json").unlink(missing_ok=True)
    begun = time.monotonic()
    case.cluster.controller.revive()
    # Written once the controller accepts calls.
    wait_until("the controller", lambda: (case.cluster.folder / "controller-ports.json").exists(), poll=0.002)
    with socket.create_connection((host, int(port)), timeout=5):
        return time.monotonic() - begun


def journal(case: Measured, event, moment=0.0, words=""):
    """Returns the Unix times of the controller's journal lines of an event after `moment` that contain `words`."""
    lines = Path(case.cluster.controller.log).read_text(errors="replace").splitlines()
    times = [seconds_of(line.split(" ", 1)[0]) for line in lines if f"event={event} " in line and words in line]
    return [at for at in times if at >= moment - 0.001]  # Journal times are whole milliseconds.


def journal_after(case: Measured, event, moment, words="", limit=30):
    return wait_until(f"event {event} {words}", lambda: next(iter(journal(case, event, moment, words)), None), limit)


def rank(case: Measured, number):
    return wait_until(f"rank {number}", lambda: next((p for p in case.cluster.ranks() if p.rank == number), None))


def progress(case: Measured, dump=None):
    """Waits for a commit and a step that no attempt had reached, so that the next fault counts as a first one."""
    dump = dump or case.dump
    wait_committed(dump, max(committed_steps(dump), default=0) + 1, 90)
    wait_step(dump, last_step(dump) + 1, 90)


def submit_without_end(case: Measured, extra=(), **options):
    return case.cluster.submit(*tiny(case.dump, steps=FOREVER, extra=["--checkpoint.keep_latest_k", 2, *WITHOUT_END, *extra], **options))


def cancel_and_compare(case: Measured, job, ranks=2):
    """Cancels the job and checks that its losses equal those of an undisturbed run of the same length, bit for bit."""
    case.cluster.titanctl("cancel", job, "--wait")
    assert_one_truth(case, case.dump)
    reference = case.undisturbed(last_step(case.dump), ranks, extra=[*WITHOUT_END, "--checkpoint.no_enable"])
    case.assertEqual(reference, losses(case.dump))


def assert_one_truth(case: Measured, dump):
    """Checks that no attempt wrote after its successor, and that steps trained by several attempts have one loss, bit
    for bit."""
    lines = [line for line in metric_lines(dump) if LOSS in line]
    wrote = [line["attempt"] for line in lines]
    case.assertEqual(sorted(wrote), wrote, "an old attempt wrote after its successor")
    known = {}
    for line in lines:
        case.assertEqual(known.setdefault(line["step"], line[LOSS]), line[LOSS], f"step {line['step']} of attempt {line['attempt']}")


def logged(dump, step, attempt):
    """Returns the Unix time at which an attempt logged a step, or None."""
    return next((seconds_of(line["time"]) for line in metric_lines(dump) if line["step"] == step and line["attempt"] == attempt), None)


def resident_mib(pid):
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024
