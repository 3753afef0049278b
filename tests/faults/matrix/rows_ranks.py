"""Rows of the ranks: killed, stopped, out of memory."""

import datetime
import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs import committed_steps, last_step, metric_lines, tiny, wait_committed, wait_step
from matrix.row import Measured, row, spread
from cluster import wait_until

TORCHRUN_STEPS = Path(__file__).resolve().parent / "torchrun_steps.py"


def seconds_of(stamp):
    """Unix seconds of a timestamp such as 2026-01-31T12:00:00.123456789Z."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{fraction or 0}")


def event_after(case, job, reason, moment):
    """Unix time of the first such event that the controller noted after `moment`."""
    def find():
        found = [seconds_of(e["time"]) for e in case.cluster.events(job) if e["reason"] == reason]
        return next((at for at in found if at >= moment), None)
    return wait_until(f"event {reason}", find, 30, poll=0.05)


def rank(case, number):
    return wait_until(f"rank {number}", lambda: next((p for p in case.cluster.ranks() if p.rank == number), None))


def progress(case):
    """A commit and a step that no attempt had reached: then the next fault is the first one again."""
    wait_committed(case.dump, max(committed_steps(case.dump), default=0) + 1, 90)
    wait_step(case.dump, last_step(case.dump) + 1, 90)


@row(1, "a rank is killed", how="SIGKILL of rank 1 of 2, again after progress",
     anchor="torchrun looks each 0.1 s, NVRx each 0.3 s; both restart nothing unless asked to; torchrun is measured beside it",
     invariant="each attempt resumes from the newest commit, the cause is RANK_KILLED, and the losses are the undisturbed run's bit for bit",
     ci="faults_ranks")
def rank_killed(case: Measured):
    kills = 3 if case.short else 5
    steps = 12 * kills + 10
    case.start()
    job = case.cluster.submit(*tiny(case.dump, steps=steps))
    detected, recovered, commits = [], [], []
    for _ in range(kills):
        progress(case)
        killed = time.time()
        commits.append(max(committed_steps(case.dump)))
        recovered.append(case.first_new_step_after(lambda: rank(case, 1).kill(signal.SIGKILL)))
        detected.append(event_after(case, job, "RankExited", killed) - killed)
    case.finish(job)
    attempts = case.attempts(job)
    case.assertEqual(["RANK_KILLED"] * kills + ["FINISHED"], [a["end_cause"] for a in attempts])
    for commit, attempt in zip(commits, attempts[1:]):
        case.assertGreaterEqual(attempt["resumed_step"], commit)
    case.assert_same_curve(steps)
    spread(case, "the controller knows after", detected, "s", at_most=0.2)
    spread(case, "first new step after", recovered, "s", at_most=1)
    for phase in ("detect", "stop", "place", "start", "load", "replay"):
        case.figure(f"of it {phase}, most", max(a["phase_seconds"].get(phase, 0) for a in attempts[1:]), "s")
    torchrun_beside(case, kills)


def torchrun_beside(case, kills):
    """The same kill under torchrun, whose ranks do nothing but a sum over both: no model, no checkpoint, no data."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return case.note("torchrun beside it: not run, this Python has no torch")
    path = case.folder / "torchrun"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(kills),
               TORCHRUN_STEPS, path]

    def lines():
        file = Path(f"{path}.1")
        return [line.split() for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def new_rank(old):
        return wait_until("steps under torchrun", lambda: next((line for line in lines() if int(line[1]) not in old and line[2] == "3"), None), 120)
    times, old = [], set()
    with open(case.folder / "torchrun.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        victim = new_rank(old)
        for _ in range(kills):
            old.add(int(victim[1]))
            killed = time.time()
            subprocess.run(["kill", "-9", victim[1]], check=True)
            victim = new_rank(old)
            first = next(line for line in lines() if line[1] == victim[1])
            times.append(float(first[0]) - killed)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    spread(case, "torchrun, first step of the new ranks after", times, "s")
    case.note("torchrun's ranks only add one number over both ranks: they load no model and no checkpoint.")
