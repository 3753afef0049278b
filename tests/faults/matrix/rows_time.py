"""Rows of clocks, contention and readers that do not read."""

import glob
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest.mock
from pathlib import Path

from matrix.row import TESTS, Measured, NotRun, row

from cluster import BIN, wait_until
from jobs import last_step, metric_lines, tiny, wait_step

STEPS = 100_000  # Longer than any row.
HOUR = 3600


def journal_has(case, *words):
    text = Path(case.cluster.controller.log).read_text()
    return [word for word in words if word in text]


@row(18, "the wall clock jumps",
     how="libfaketime under every process: an hour ahead, an hour back, then 30 s ahead or back every second",
     anchor="etcd's leases use monotonic time",
     invariant="no lease expires, no node is lost, no rank is touched, events keep their order, and calls are answered",
     ci="none: needs Debian's faketime")
def clock_jumps(case: Measured):
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
    if library is None:
        raise NotRun("no libfaketime here", "apt-get install faketime; tests/faults/measure.sh 18")
    seconds = 8 if case.short else 20
    stamp = Path(case.enterContext(tempfile.TemporaryDirectory())) / "clock"
    stamp.write_text("+0\n")

    def jump(offset):
        new = stamp.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        new.rename(stamp)

    with unittest.mock.patch.dict(os.environ, LD_PRELOAD=library, FAKETIME_TIMESTAMP_FILE=str(stamp), FAKETIME_NO_CACHE="1",
                                  FAKETIME_DONT_FAKE_MONOTONIC="1"):
        case.start()
    case.job = case.cluster.submit(*tiny(case.dump, steps=STEPS, extra=["--checkpoint.keep_latest_k", 3]))
    wait_step(case.dump, 3)
    before = [p.identity for p in case.cluster.ranks()]
    others = 0

    def lives():
        nonlocal others
        others += 1
        job = case.cluster.submit(*tiny(case.folder / f"other-{others}"))
        case.cluster.titanctl("cancel", job, "--now")
        case.cluster.wait(job, timeout=30)
        wait_step(case.dump, last_step(case.dump) + 2)

    for offset in (HOUR, -HOUR, 0):
        jump(offset)
        end = time.monotonic() + 6  # Longer than a lease.
        lives()
        while time.monotonic() < end:
            case.assertEqual("READY", case.cluster.ask("node", "list")["nodes"][0]["state"])
            time.sleep(0.2)
    for i in range(seconds):
        jump(30 * (-1) ** i)
        time.sleep(1)
    lives()
    case.assertEqual([], journal_has(case, "event=NodeLost", "event=NodeUnreachable", "event=AttemptHung"))
    case.assertEqual(before, [p.identity for p in case.cluster.ranks()])
    case.assertEqual(1, len(case.attempts(case.job)))
    case.assertEqual({1}, {line["attempt"] for line in metric_lines(case.dump)})
    revisions = [event["revision"] for event in case.cluster.events(case.job)]
    case.assertEqual(sorted(revisions), revisions)
    case.figure("jumps", 3 + seconds, "")
    case.figure("nodes reported lost", 0, "", at_most=0)
    case.figure("ranks restarted", 0, "", at_most=0)


@row(22, "gangs compete for nodes that come and go",
     how="simulations of the placement alone (tests/controller/scheduler/scheduler_simulation_test.cc) and of whole clusters of real cores "
         "under every fault (tests/simulation; TITAN_SIMULATION_SEED=N replays one)",
     anchor="volcano#5805: a gang that fits waits forever",
     invariant="every gang that fits is placed, no device is used twice, and every job ends once all faults are repaired",
     ci="scheduler_test and simulation_test", limit=3600)
def contention(case: Measured):
    seeds = 100 if case.short else 100_000
    _, _, seconds = case.test_program("scheduler_test", "SchedulerSimulationTest.DecidesLikeTheReference", TITAN_SCHEDULER_SEEDS=str(seeds))
    case.figure("placement: seeds", seeds, "")
    case.figure("placement: time", seconds, "s")
    seeds = 20 if case.short else 10_000
    _, _, seconds = case.test_program("simulation_test", "SimulationTest.RulesHoldUnderRandomFaults", TITAN_SIMULATION_SEEDS=str(seeds))
    case.figure("clusters: seeds", seeds, "")
    case.figure("clusters: time", seconds, "s")


def resident(pid):
    """Returns the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@row(24, "watchers do not read",
     how="SIGSTOP of 20 clients that follow all events while thousands of jobs are submitted, then SIGCONT",
     anchor="etcd#17529: lost events",
     invariant="the controller's memory does not grow with unread events, other watchers see everything, and the stopped ones then see "
               "every event in order",
     ci="faults_matrix")
def stuck_watchers(case: Measured):
    jobs = 500 if case.short else 5000
    case.start(workers=0)

    def load(name):
        case.program(TESTS / "submit_load", "--controller", case.cluster.address, "--count", jobs, "--in-flight", 32, "--acknowledged", case.folder / name)

    def follow(name):
        out = open(case.folder / name, "wb")
        case.addCleanup(out.close)
        process = subprocess.Popen([BIN / "titanctl", "--controller", case.cluster.address, "events", "-f", "-o", "json"], stdout=out,
                                   env=case.cluster.environment, stdin=subprocess.DEVNULL)
        case.addCleanup(lambda: (process.kill(), process.wait()))
        return process

    def seen(name):
        text = (case.folder / name).read_text()
        return [json.loads(line)["revision"] for line in text[:text.rfind("\n") + 1].splitlines()]

    def whole(name):
        return (case.folder / name).read_bytes().count(b"\n")

    pid = case.cluster.controller.pid
    load("without")
    begun = resident(pid)
    load("without too")
    without = resident(pid) - begun
    reader = follow("reader")
    stuck = [follow(f"stuck-{i}") for i in range(20)]
    for name in ("reader", *(f"stuck-{i}" for i in range(20))):
        wait_until(f"events that {name} sees", lambda name=name: whole(name) == 2 * jobs, 60, poll=0.2)
    for process in stuck:
        process.send_signal(signal.SIGSTOP)
    begun = resident(pid)
    load("with")
    wait_until("events that the reader sees", lambda: whole("reader") == 3 * jobs, 60, poll=0.2)
    growth = resident(pid) - begun
    for process in stuck:
        process.send_signal(signal.SIGCONT)
    for i in range(20):
        wait_until(f"events that {i} sees", lambda i=i: whole(f"stuck-{i}") == 3 * jobs, 60, poll=0.2)
        case.assertEqual(seen("reader"), seen(f"stuck-{i}"))
    case.assertEqual(sorted(seen("reader")), seen("reader"))
    size = (case.folder / "reader").stat().st_size / 3
    case.figure("events unread by 20 watchers, as JSON", 20 * size / 1e6, "MB")
    case.figure("controller memory growth", growth / 1e6, "MB")
    case.figure("controller memory growth without watchers", without / 1e6, "MB")
    case.figure("growth per stuck watcher", max(0.0, growth - without) / 20e6, "MB", at_most=1)
