"""Rows of the controller: killed, replaced, upgraded, starved."""

import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from matrix.observe import revive
from matrix.row import TESTS, Measured, NotRun, row, spread

from cluster import BIN, wait_until
from jobs import last_step, metric_lines, tiny, wait_step

FAULTS = Path(__file__).resolve().parents[1]
STEPS = 100_000  # Longer than any row.
KILLS = int(os.environ.get("TITAN_KILLS", "200"))


def train(case, **options):
    """Starts a job on all devices, so that other submitted jobs wait."""
    case.start(**options)
    case.job = case.cluster.submit(*tiny(case.dump, steps=STEPS, extra=["--checkpoint.keep_latest_k", 3]))
    wait_step(case.dump, 3)
    case.before = [p.identity for p in case.cluster.ranks()]


def assert_untouched(case):
    case.assertEqual(case.before, [p.identity for p in case.cluster.ranks()])
    job = case.cluster.job(case.job)
    case.assertEqual(("RUNNING", 1), (job["state"], len(job["attempts"])))
    case.assertEqual({1}, {line["attempt"] for line in metric_lines(case.dump)})


def submit_load(case, **options):
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    load = subprocess.Popen([TESTS / "submit_load", "--controller", case.cluster.address, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    case.addCleanup(lambda: (load.kill(), load.communicate()))
    return load


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ended(case, load):
    """Returns the final figures of submit_load, which must exit with 0."""
    load.send_signal(signal.SIGTERM)
    out, errors = load.communicate(timeout=120)
    case.assertEqual(0, load.returncode, errors)
    return json.loads(out)


@row(6, "the controller is killed repeatedly",
     how="SIGKILL at random moments, 200 times (TITAN_KILLS), with 64 submissions in flight and a job that trains",
     anchor="Slurm's backup takes over after 120 s, etcd elects within 1 to 3 s",
     invariant="every acknowledged job exists once under its uid, no other call fails, and the training ranks are untouched",
     ci="faults_submit_kills and faults_daemons", limit=1800)
def controller_killed(case: Measured):
    kills = 4 if case.short else KILLS
    train(case)
    acknowledged = case.folder / "acknowledged"
    load = submit_load(case, in_flight=64, seconds=100000, acknowledged=acknowledged)
    starts, counted = [], 0
    for _ in range(kills):
        wait_until("100 acknowledgements", lambda: lines(acknowledged) >= counted + 100 or load.poll() is not None, 60)
        case.assertIsNone(load.poll())
        time.sleep(random.uniform(0, 0.05))
        case.cluster.controller.kill(restart=False)
        counted = lines(acknowledged)
        starts.append(revive(case))
    figures = ended(case, load)
    checked = json.loads(case.program(TESTS / "submit_load", "--controller", case.cluster.address, "--acknowledged", acknowledged, "--verify")[0])
    case.assertEqual((figures["acknowledged"], 0), (checked["checked"], checked["lost"]))
    at = last_step(case.dump)
    wait_step(case.dump, at + 2)
    assert_untouched(case)
    case.figure("kills", kills, "")
    case.figure("acknowledged jobs", checked["checked"], "")
    case.figure("acknowledged jobs lost or duplicated", checked["lost"] + checked["jobs"] - 1 - checked["checked"], "", at_most=0)
    case.figure("ranks restarted", 0, "", at_most=0)
    spread(case, "serving after exec", starts, "s", at_most=1)


@row(7, "the controller or a worker is killed at a failpoint",
     how="the process sends itself SIGKILL at each failpoint (common/service/failpoint) under a scripted load, with stand-in ranks",
     anchor="etcd has about 35 failpoints",
     invariant="each acknowledged call holds, no job is duplicated, every job continues its attempt, and running ranks are untouched; a "
               "worker's failpoint costs at most one extra attempt, of a job that did not train yet",
     ci="faults_matrix", limit=1800)
def failpoints(case: Measured):
    done = subprocess.run([sys.executable, FAULTS / "failpoints.py", "--every", "16" if case.short else "1"], capture_output=True, text=True,
                          check=False)
    case.assertEqual(0, done.returncode, (done.stdout + done.stderr)[-4000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    case.figure("failpoints", figures["points"], "")
    case.figure("failpoints killed at and recovered from", figures["recovered"], "", **({} if case.short else {"at_least": 40}))
    case.figure("slowest time from start to first answer", figures["slowest_serving_s"], "s")
    for point, why in figures["not_passed_here"].items():
        case.note(f"{point}: {why}")


@row(8, "the leading controller is lost",
     how="two controllers on one etcd: SIGKILL, and SIGSTOP with SIGCONT after the other one leads",
     anchor="Slurm 120 s",
     invariant="the new leader has all acknowledged jobs; the old one, awake again, changes nothing and exits",
     ci="faults_leader", limit=600)
def leader_lost(case: Measured):
    import leader_test  # pylint: disable=import-outside-toplevel; it needs the environment of the built programs.
    if shutil.which("etcd") is None:
        raise NotRun("no etcd in PATH", "deploy/bootstrap.sh installs Debian's etcd-server")
    folder = Path(case.enterContext(tempfile.TemporaryDirectory()))
    (folder / "job.toml").write_text(leader_test.JOB)
    etcd = leader_test.Etcd(folder)
    case.addCleanup(etcd.close)
    number = 0

    def another():
        nonlocal number
        number += 1
        controller = leader_test.Controller(folder, f"c{number}", etcd)
        case.addCleanup(controller.close)
        return controller

    leader = another()
    wait_until("leader", leader.leads)
    acknowledged, after_kill, after_stop = set(), [], []
    for _ in range(1 if case.short else 5):
        other = another()
        acknowledged.add(leader.submit())
        begun = time.monotonic()
        leader.send(signal.SIGKILL)
        wait_until("another leader", other.leads, 30)
        after_kill.append(time.monotonic() - begun)
        case.assertEqual(acknowledged, other.jobs())
        leader, other = other, another()
        acknowledged.add(leader.submit())
        begun = time.monotonic()
        leader.send(signal.SIGSTOP)
        wait_until("another leader", other.leads, 30)
        after_stop.append(time.monotonic() - begun)
        acknowledged.add(other.submit())
        # The old leader gets writes before it can have noticed anything; none of them may be acknowledged and lost.
        late = [subprocess.Popen([BIN / "titanctl", "--controller", leader.address, "--timeout", "3", "submit", folder / "job.toml",
                                  "--job.dump_folder", folder / f"late-{i}", "-q"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                for i in range(4)]
        time.sleep(0.3)
        leader.send(signal.SIGCONT)
        case.assertEqual(3, leader.process.wait(10))
        case.assertIn("etcd: ", leader.log.read_text())
        for call in late:
            out, _ = call.communicate(timeout=30)
            case.assertNotEqual(0, call.returncode, f"a former leader acknowledged {out}")
        case.assertEqual(acknowledged, other.jobs())
        leader = other
    spread(case, "new leader after SIGKILL", after_kill, "s", at_most=5)
    spread(case, "new leader after SIGSTOP", after_stop, "s", at_most=5)
    case.figure("calls acknowledged by a former leader", 0, "", at_most=0)


def replace(case, name, folder):
    """Restarts a daemon with another version of its program, on the same state."""
    daemon = case.cluster.daemons[name]
    daemon.kill(signal.SIGTERM, restart=False)
    daemon.command[0] = str(Path(folder) / Path(daemon.command[0]).name)
    if name == "controller":
        revive(case)
    else:
        daemon.revive()
    wait_until("every node READY", lambda: all(n["state"] == "READY" for n in case.cluster.ask("node", "list")["nodes"]))
    at = last_step(case.dump)
    wait_step(case.dump, at + 2)
    assert_untouched(case)


@row(25, "programs are upgraded and downgraded during training",
     how="controller and workers are stopped and started from another folder one at a time, in both orders; TITAN_OLD_BIN names the older "
         "programs",
     anchor="Slurm: three major releases; etcd: one minor release, also down",
     invariant="the same rank processes continue in the same attempt",
     ci="none: needs two builds", limit=600)
def upgraded(case: Measured):
    old = os.environ.get("TITAN_OLD_BIN")
    if not old:
        raise NotRun("TITAN_OLD_BIN does not name the folder of an older build's programs", "TITAN_OLD_BIN=DIR tests/faults/measure.sh 25")
    train(case, workers=2, devices=1)
    orders = (("controller", "n1", "n2"), ("n1", "n2", "controller"))
    changes = 0
    for order in orders:
        for folder in (old, BIN):
            for name in order:
                replace(case, name, folder)
                changes += 1
    case.figure("programs replaced during one attempt", changes, "")
    case.figure("ranks restarted", 0, "", at_most=0)
    versions = {folder: subprocess.run([Path(folder) / "titan-controller", "--version"], capture_output=True, text=True, check=True).stdout.strip()
                for folder in (old, BIN)}
    case.note(f"Older: {versions[old]}; newer: {versions[BIN]}")


@row(26, "the controller runs out of file descriptors",
     how="its limit is lowered to what it has open, and 200 clients connect",
     anchor="none known",
     invariant="nodes stay READY and the job trains on; calls are served again once there are descriptors",
     ci="none: half a minute of waiting")
def no_descriptors(case: Measured):
    seconds = 7 if case.short else 20  # Longer than a lease.
    train(case)
    pid = case.cluster.controller.pid
    known = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (known + 4, before[1]))
    host, port = case.cluster.address.rsplit(":", 1)
    clients = [socket.create_connection((host, int(port)), timeout=5) for _ in range(200)]
    at, begun, shed, calls = last_step(case.dump), time.monotonic(), 0, 0
    while time.monotonic() < begun + seconds:
        calls += 1
        shed += case.cluster.titanctl("list", "--timeout", 1, check=False).returncode != 0
        time.sleep(0.2)
    case.assertGreater(last_step(case.dump), at)
    for client in clients:
        client.close()
    mended = time.monotonic()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    case.cluster.titanctl("submit", *tiny(case.folder / "later"), "--timeout", 60, timeout=90)
    case.figure("serves calls again after", time.monotonic() - mended, "s")
    journal = Path(case.cluster.controller.log).read_text()
    case.assertNotIn("event=NodeLost", journal)
    case.assertNotIn("event=NodeUnreachable", journal)
    case.figure("controllers that exited to recover", int(pid != case.cluster.controller.pid), "")
    assert_untouched(case)
    case.figure("new calls shed", shed, f"of {calls}")
    case.figure("nodes reported lost", 0, "", at_most=0)


def start_on(case, change):
    """Kills the controller, calls `change` on its folder, and starts it again."""
    case.cluster.controller.kill(restart=False)
    change()
    seconds = revive(case)
    time.sleep(0.1)
    return seconds


@row(27, "the controller starts on another store",
     how="an older backup is restored, then the folder is emptied; SIGKILL before each",
     anchor="Kubernetes removes pods that the API server does not know",
     invariant="no rank stops: with the older store the attempt continues unchanged; with an empty store its ranks are left alone, and the "
               "worker follows no unknown controller",
     ci="faults_identity")
def another_store(case: Measured):
    case.start()
    state, copy = case.cluster.folder / "controller", case.folder / "copy.db"
    case.cluster.titanctl("cluster", "backup", copy)
    case.job = case.cluster.submit(*tiny(case.dump, steps=STEPS, extra=["--checkpoint.keep_latest_k", 3]))
    wait_step(case.dump, 3)
    with_job = case.folder / "with-job.db"
    case.cluster.titanctl("cluster", "backup", with_job)
    case.before = [p.identity for p in case.cluster.ranks()]
    wait_step(case.dump, 12)

    def restore(which):
        shutil.rmtree(state)
        if which is not None:
            case.program(BIN / "titan-controller", "--restore", which, "--state", state)

    def trains_on():
        at = last_step(case.dump)
        wait_step(case.dump, at + 3)
        case.assertEqual(case.before, [p.identity for p in case.cluster.ranks()])
        case.assertEqual({1}, {line["attempt"] for line in metric_lines(case.dump)})

    case.figure("serving after exec with an older store", start_on(case, lambda: restore(with_job)), "s", at_most=1)
    wait_until("the node", lambda: case.cluster.ask("cluster", "info")["ready_nodes"] == 1)
    trains_on()
    assert_untouched(case)
    start_on(case, lambda: restore(copy))  # A copy from before the job.
    wait_until("the unknown attempt", lambda: case.cluster.ask("cluster", "info")["unknown_attempts"] == 1)
    trains_on()
    start_on(case, lambda: restore(None))
    wait_until("the refusal in the node's log", lambda: "belongs to cluster" in Path(case.cluster.worker("n1").log).read_text())
    trains_on()
    case.assertEqual(0, case.cluster.ask("cluster", "info")["ready_nodes"])
    case.figure("ranks stopped", 0, "", at_most=0)
