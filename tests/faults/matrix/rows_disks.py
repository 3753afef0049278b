"""Rows of disks: full, torn, flipped, failing."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import failpoints  # From the parent folder: a controller without nodes.
from matrix.observe import revive
from matrix.row import Measured, NotRun, row

from cluster import Cluster, wait_until
from jobs import committed_steps, last_step, tiny, wait_committed, wait_step

STEPS = 100_000  # Longer than any row.
MIB = 1 << 20


class SmallDisk:
    """A separate tmpfs, which can be filled to the last byte and freed."""

    def __init__(self, case, folder, mebibytes):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", self.folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotRun(f"cannot mount a tmpfs here: {done.stderr.strip()}", "as root: tests/faults/measure.sh 13")
        case.addCleanup(subprocess.run, ["umount", "-l", self.folder], check=False)

    def fill(self):
        with open(self.folder / "ballast", "ab", buffering=0) as file:
            for piece in (MIB, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * piece)
                except OSError:
                    pass

    def free(self):
        (self.folder / "ballast").unlink()


def error_of(done):
    return json.loads(done.stderr.splitlines()[-1])["error"]["code"] if done.returncode else "OK"


def full_store(case):
    case.assertEqual("OK", error_of(case.cluster.titanctl("list", "-o", "json", check=False)))
    disk, submit = case.store_disk, ("submit", *tiny(case.folder / "other"), "-q", "-o", "json", "--timeout", 5)
    disk.fill()
    refused = 0
    for i in range(30):  # Requests that fit into free pages of the file are still accepted.
        code = error_of(case.cluster.titanctl(*submit, "--job.description", "x" * 4000, "--job.dump_folder", case.folder / f"o{i}", check=False))
        case.assertIn(code, ("OK", "RESOURCE_EXHAUSTED"))
        refused += code != "OK"
        if refused >= 3:
            break
    case.assertGreaterEqual(refused, 3)
    case.assertEqual("RUNNING", case.cluster.job(case.job)["state"])  # Reads work.
    at = last_step(case.dump)
    wait_step(case.dump, at + 2)
    case.cluster.controller.kill(restart=False)
    case.figure("full store: controller started on it serves after", revive(case), "s", at_most=1)
    wait_until("the node on the new controller", lambda: case.cluster.ask("cluster", "info")["ready_nodes"] == 1)
    case.assertEqual("RUNNING", case.cluster.job(case.job)["state"])
    case.assertEqual("RESOURCE_EXHAUSTED", error_of(case.cluster.titanctl(*submit, "--job.dump_folder", case.folder / "o", check=False)))
    at = last_step(case.dump)
    wait_step(case.dump, at + 2)
    copy = case.folder / "copy.db"
    case.cluster.titanctl("cluster", "backup", copy)  # The backup needs no space on the full disk.
    case.assertGreater(copy.stat().st_size, 0)
    wait_until("a report of the full disk", lambda: "is full" in case.cluster.ask("cluster", "info").get("state_folder_problem", ""))
    disk.free()
    freed = time.monotonic()
    wait_until("submissions", lambda: error_of(case.cluster.titanctl(*submit, check=False)) == "OK")
    case.figure("full store: submissions refused (RESOURCE_EXHAUSTED)", refused, "")
    case.figure("full store: submissions accepted again after", time.monotonic() - freed, "s", at_most=2)


def full_node(case):
    """Fills the disk of the ranks' logs and event files and the node's records."""
    def node():
        return case.cluster.ask("node", "describe", "n1")

    case.node_disk.fill()
    filled = time.monotonic()
    wait_until("a node that takes no ranks", lambda: node()["state"] == "UNUSABLE")
    case.figure("full node: takes no ranks after", time.monotonic() - filled, "s", at_most=5)
    case.assertIn("is full", node()["unusable"])
    at = last_step(case.dump)
    wait_step(case.dump, at + 5)
    case.assertEqual("RUNNING", case.cluster.job(case.job)["state"])
    case.node_disk.free()
    freed = time.monotonic()
    wait_until("a node that takes ranks again", lambda: node()["state"] == "READY")
    case.figure("full node: takes ranks again after", time.monotonic() - freed, "s", at_most=5)
    at = last_step(case.dump)
    wait_step(case.dump, at + 2)
    (log,) = case.node_disk.folder.glob("jobs/*/attempt-*/rank-0.log")
    wait_until("the log again", lambda: f"step: {last_step(case.dump):2}" in log.read_text() or None)
    case.figure("full node: steps trained during the fault", 5, "", at_least=1)


def full_checkpoints(case):
    wait_committed(case.dump, 5)
    case.dump_disk.fill()
    before = committed_steps(case.dump)
    wait_until("a report of the failed checkpoint",
               lambda: [e for e in case.cluster.events(case.job) if e["reason"] == "CheckpointFailed"], 60)
    case.assertTrue(set(committed_steps(case.dump)) & set(before), "the checkpoint from before is gone")
    case.dump_disk.free()
    freed = time.monotonic()
    wait_until("a new checkpoint", lambda: max(committed_steps(case.dump)) > max(before), 60)
    case.figure("full dump folder: next checkpoint after", time.monotonic() - freed, "s")
    case.figure("full dump folder: attempts", len(case.attempts(case.job)), "")


@row(13, "a disk is full",
     how="small tmpfs file systems under the store, a node's state (logs, event files) and the dump folder, filled to the last byte",
     anchor="Slurm cannot save its state and loses logs",
     invariant="the store refuses changes with RESOURCE_EXHAUSTED, still answers reads, also after a restart on the full disk, and "
               "recovers by itself; a job trains on without space for its logs, and its node takes no ranks meanwhile; the previous "
               "checkpoint is kept and the failed one is reported",
     ci="faults_matrix", limit=300)
def full_disks(case: Measured):
    folder = Path("/tmp") / f"titan-full-{os.getpid()}"
    # Cleanups run in reverse order, so this one follows the unmounts.
    case.addCleanup(shutil.rmtree, folder, ignore_errors=True)
    case.store_disk, case.node_disk = SmallDisk(case, folder / "controller", 8), SmallDisk(case, folder / "n1", 16)
    case.dump_disk = SmallDisk(case, folder / "dumps", 400)
    case.start(Cluster, folder=folder)
    case.dump = case.dump_disk.folder / "dump"
    case.job = case.cluster.submit(*tiny(case.dump, steps=STEPS, extra=["--checkpoint.keep_latest_k", 2]))
    wait_step(case.dump, 3)
    case.before = [p.identity for p in case.cluster.ranks()]
    full_store(case)
    full_node(case)
    case.assertEqual(case.before, [p.identity for p in case.cluster.ranks()])
    full_checkpoints(case)
    case.cluster.titanctl("cancel", case.job, "--now")


def page_class(pages, number, size):
    """Returns the kind of a page of an SQLite file, by its first byte."""
    page = pages[number * size:(number + 1) * size]
    if number == 0:
        return "header and schema"
    kinds = {2: "interior index", 5: "interior table", 10: "leaf index", 13: "leaf table"}
    return kinds.get(page[0], "overflow, free or pointer map")


def described(alone):
    return {job: json.loads(alone.titanctl("describe", job, "-o", "json").stdout)["spec"]["config_source"] for job in alone.jobs()}


def served_after(alone, truth, what, case):
    """Starts on the file; returns whether it was served whole, served with reported damage, or rejected by name."""
    alone.launch()
    wait_until("an answer or an end", lambda: alone.ports.exists() or alone.process.poll() is not None)
    if not alone.ports.exists():
        case.assertIn(alone.process.returncode, (1, 3), f"{what}: {alone.log.read_text()[-1000:]}")
        return "refused"
    try:
        found = described(alone)
        info = json.loads(alone.titanctl("cluster", "info", "-o", "json").stdout)
    except (AssertionError, ValueError):  # The controller met the damage and ended, or rejects the call.
        return "refused"
    for job, text in found.items():
        case.assertIn(job, truth, f"{what}: a job that was never submitted")
        case.assertEqual(truth[job], text, f"{what}: a job is served with another content")
    if set(found) == set(truth):
        return "whole" if info["damaged_records"] == 0 else "reported"
    case.assertGreater(info["damaged_records"], 0, f"{what}: {set(truth) - set(found)} are missing and nothing is reported")
    return "reported"


@row(14, "the store's file is damaged",
     how="one bit of a page is flipped, in every class of page, and the log's tail is torn, zeroed or made of garbage; then the real "
         "controller starts on the file. The store's tests do the same to every byte class",
     anchor="etcd reads its log back, bbolt panics",
     invariant="nothing is served that was not written: each job is intact, or its loss is reported, or the file is refused by name; a "
               "torn tail loses nothing that was acknowledged",
     ci="faults_matrix", limit=900)
def damaged_file(case: Measured):
    dice = random.Random(14)
    jobs, flips = (12, 8) if case.short else (60, 150)
    with failpoints.LoneController() as alone:
        alone.start()
        for _ in range(jobs):
            alone.submit()
        truth = described(alone)
        time.sleep(0)
        alone.process.send_signal(signal.SIGKILL)
        alone.process.wait()
        log = alone.state / "titan.db-wal"
        good_log = log.read_bytes()
        tails = {"torn": good_log[-3000:-1500], "zeroes": b"\0" * 5000, "garbage": dice.randbytes(5000)}
        for name, tail in tails.items():
            log.write_bytes(good_log + tail)
            case.assertEqual("whole", served_after(alone, truth, f"log with {name} at its end", case), name)
            alone.kill()
        alone.start()  # A regular stop folds the log into the file.
        alone.process.send_signal(signal.SIGTERM)
        alone.process.wait()
        log.unlink(missing_ok=True)
        file = alone.state / "titan.db"
        good = file.read_bytes()
        size = int.from_bytes(good[16:18], "big")
        classes = [page_class(good, n, size) for n in range(len(good) // size)]
        outcomes, by_class = Counter(), Counter()
        pages = list(range(len(classes)))
        order = [dice.choice([p for p in pages if classes[p] == kind]) for kind in sorted(set(classes))]  # Each class at least once.
        order += [dice.choice(pages) for _ in range(flips - len(order))]
        for page in order:
            at, bit = page * size + dice.randrange(size), dice.randrange(8)
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            for other in alone.state.glob("titan.db*"):
                other.unlink()
            file.write_bytes(bad)
            outcomes[served_after(alone, truth, f"bit {bit} of byte {at} ({classes[page]})", case)] += 1
            by_class[classes[page]] += 1
            alone.kill()
    case.figure("damaged log tails without loss", len(tails), f"of {len(tails)}")
    case.figure("flipped bits", sum(outcomes.values()), "")
    case.figure("damaged jobs served as intact", 0, "", at_most=0)
    for name, count in sorted(outcomes.items()):
        case.figure({"whole": "flips outside job state (all jobs intact)", "reported": "flips reported, all other jobs intact",
                     "refused": "flips for which the file was refused"}[name], count, "")
    case.note("Flips by class of page: " + ", ".join(f"{name} {count}" for name, count in sorted(by_class.items())))
    if not case.short:
        passed, _, _ = case.test_program("store_test", "DiskFaultsTest.*:QuarantineTest.*:SqliteTest.*")
        case.figure("store tests under faults", passed, "")
        case.note("Store tests: DiskFaultsTest, QuarantineTest and SqliteTest of store_test.")


@row(15, "fsync fails once",
     how="a file system under SQLite (tests/controller/store/faulty_vfs.h) fails each read, write and sync once, in turn",
     anchor="PostgreSQL stopped trusting a second fsync in 2018",
     invariant="the store ends without retrying, and everything acknowledged is there after the next start",
     ci="store_test")
def failed_sync(case: Measured):
    passed, _, seconds = case.test_program("store_test", "DiskFaultsTest.DiskErrorEndsTheStoreWithoutLoss:WriterTest.ErrorEndsTheWriter")
    case.assertEqual(2, passed)
    case.figure("tests", passed, "")
    case.figure("time", seconds, "s")
