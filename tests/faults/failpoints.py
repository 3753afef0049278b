"""Kills controllers and workers at each of their failpoints, one after another, under a load that passes them all.

    failpoints.py [POINT...]     names from `titan-controller --list-failpoints` and `titan-worker --list-failpoints`; all by default
    failpoints.py --every 4      every fourth point, for a short run

Ranks are stand-ins (tests/worker/node/shim/fake_rank.cc), so that hundreds of attempts take seconds; everything else is
real. At each point the program dies (a point that is never passed is an error) and is started again. Then every
acknowledged call still holds, no job exists twice, every job continues with the attempt that it had, and the ranks of
the background job are the same processes.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, SOURCE, Cluster, wait_until  # noqa: E402

TESTS = Path(os.environ.get("TITAN_TESTS", BIN.parent / "tests"))
LIMIT = 30.0  # Seconds for any wait; a loaded machine may be slow without an error.
FOREVER = {"steps": -1, "step_ms": 100}
SHORT = {"steps": 120, "step_ms": 10, "ranks": {"1": {"steps": 100, "error": "a word"}}}  # The second rank exits first, after an error event.

# A rank waits for others until its timeout.
TIMES_OUT = {"steps": 60, "step_ms": 10, "print": 3, "ranks": {"1": {"steps": 30, "error": "waited", "reason": "COLLECTIVE_TIMEOUT", "exit_code": 1}}}


def names(program):
    return subprocess.run([BIN / program, "--list-failpoints"], capture_output=True, text=True, check=True).stdout.split()


def names_are_of(point, *beginnings):
    return any(point == b or point.startswith(b + ".") for b in beginnings)


class FakeCluster(Cluster):
    """n1 has one spare device and runs the background job, n2 runs the short jobs; both have stand-in ranks."""

    def __init__(self, **options):
        super().__init__(workers=0, supervise=False, **options)
        self.add_fake("n1", 5, FOREVER)
        self.background = self.submit_job("background", ranks=4)
        wait_until("the background job", lambda: self.job(self.background)["state"] == "RUNNING", LIMIT)
        self.add_fake("n2", 2, SHORT)
        wait_until("n2", lambda: self.ready("n2"), LIMIT)
        self.kept = {p.identity for p in self.of_background()}
        assert len(self.kept) == 4

    def add_fake(self, name, devices, fake):
        daemon = self.add_worker(name, devices)
        self.stop(name)
        daemon.command += ["--rank-binary", str(TESTS / "fake_rank")]
        daemon.environment["TITAN_TEST_FAKE_RANK"] = json.dumps(fake)
        daemon.start()

    def ready(self, name):
        return any(n["name"] == f"nodes/{name}" and n["state"] == "READY" for n in self.ask("node", "list")["nodes"])

    def stop(self, name):
        daemon = self.daemons[name]
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()

    def of_background(self):
        return [p for p in self.processes("fake_rank") if p.environment.get("TITAN_TEST_NODE") == "n1"]

    def submit_job(self, name, ranks):
        job = self.titanctl("submit", SOURCE / "configs/llama3_tiny.toml", "--job.dump_folder", self.folder / "dumps" / name,
                            "--resources.ranks", ranks, "--resources.threads_per_rank", 1, "--checkpoint.enable", "-q",
                            "--timeout", LIMIT).stdout.strip()
        return job


def start_armed(daemon, point):
    """Starts a daemon that dies at `point`."""
    before = daemon.environment
    daemon.environment = {**before, "TITAN_FAILPOINT": point}
    daemon.start()
    daemon.environment = before


def die(daemon, what, limit=LIMIT):
    wait_until(f"end of {daemon.name} at {what}", lambda: daemon.process.poll() is not None, limit)
    if daemon.process.returncode != -signal.SIGKILL:
        raise AssertionError(f"{daemon.name} at {what}: ended with {daemon.process.returncode}\n{Path(daemon.log).read_text()[-2000:]}")


class Script(threading.Thread):
    """Makes users' calls and repeats each until it is acknowledged. Ends early once `enough` is set."""

    def __init__(self, cluster, number):
        super().__init__(daemon=True)
        self.cluster, self.number = cluster, number
        self.enough = threading.Event()
        self.jobs, self.cancelled, self.deleted, self.error = [], set(), set(), None

    def run(self):
        try:
            for step in (self.submit, self.update, self.checkpoint, self.cancel, self.refuse, self.cordon, self.finish, self.delete):
                step()
                if self.enough.is_set():
                    return
        except BaseException as error:  # pylint: disable=broad-except; reported after the join.
            self.error = error

    def call(self, *words):
        return self.cluster.titanctl(*words, "--timeout", LIMIT, timeout=2 * LIMIT)

    def submit(self):
        for i in range(2):
            self.jobs.append(self.cluster.submit_job(f"{self.number}-{i}", ranks=2))

    def update(self):
        self.call("update", self.cluster.background, "--label", f"script={self.number}")

    def checkpoint(self):
        self.call("checkpoint", self.cluster.background)

    def cancel(self):
        self.call("wait", self.jobs[0], "--for", "running")
        done = self.cluster.titanctl("cancel", self.jobs[0], "--now", "--timeout", LIMIT, check=False, timeout=2 * LIMIT)
        # The job ended while the controller was down.
        if done.returncode != 0 and "SUCCEEDED: cannot cancel" not in done.stderr:
            raise AssertionError(done.stderr)
        self.cancelled.add(self.jobs[0])

    def refuse(self):
        """Submits a job whose dump folder is inside a path that is a file by the time of its placement: both of its
        nodes refuse it."""
        above = self.cluster.folder / f"above-{self.number}"
        above.mkdir()
        self.call("node", "cordon", "n2")
        job = self.cluster.submit_job(above / "dump", ranks=3)
        shutil.rmtree(above)
        above.touch()
        self.call("node", "uncordon", "n2")
        wait_until("a refusal", lambda: any(one["end_cause"] for one in self.cluster.job(job)["attempts"]), LIMIT)
        self.cluster.titanctl("cancel", job, "--now", "--timeout", LIMIT, check=False, timeout=2 * LIMIT)

    def cordon(self):
        self.call("node", "cordon", "n1")
        self.call("node", "uncordon", "n1")

    def finish(self):
        self.call("wait", self.jobs[1])

    def delete(self):
        self.call("delete", self.jobs[1])
        self.deleted.add(self.jobs[1])


class Walk:
    def __init__(self):
        self.cluster = FakeCluster()
        self.number = 0
        self.serving = []  # Seconds from exec to the first answer.

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.cluster.show_logs()
        self.cluster.close()

    def script(self):
        self.number += 1
        return Script(self.cluster, self.number)

    def restart(self, daemon):
        begun = time.monotonic()
        daemon.start()
        if daemon.name == "controller":
            self.cluster.titanctl("cluster", "info", "--timeout", LIMIT)
            self.serving.append(time.monotonic() - begun)

    def kill_at(self, name, point):
        """Starts the daemon `name`, which dies at `point` during the script, and starts it again."""
        daemon = self.cluster.daemons[name]
        self.cluster.stop(name)
        script = self.script()
        start_armed(daemon, point)
        script.start()
        die(daemon, point)
        script.enough.set()
        self.restart(daemon)
        script.join(4 * LIMIT)
        if script.is_alive() or script.error:
            raise AssertionError(f"{point}: a call was not acknowledged") from script.error
        self.verify(script, point, attempts=1 if name == "controller" else 2)

    def verify(self, script, point, attempts):
        cluster = self.cluster
        if {p.identity for p in cluster.of_background()} != cluster.kept:
            raise AssertionError(f"{point}: running ranks were disturbed")
        for job in script.jobs:
            if job in script.deleted:
                if cluster.titanctl("describe", job, check=False).returncode != 3:
                    raise AssertionError(f"{point}: a deleted job still exists")
                continue
            ends = ("CANCELLED", "SUCCEEDED") if job in script.cancelled else ("SUCCEEDED",)
            found = cluster.wait(job, timeout=LIMIT)
            if found["state"] not in ends or len(found["attempts"]) > attempts:
                raise AssertionError(f"{point}: {job} is {found['state']} after {len(found['attempts'])} attempts: "
                                     f"{found['failure_message']} {[a['end_cause'] for a in found['attempts']]}")
        background = cluster.job(cluster.background)
        if background["state"] != "RUNNING" or len(background["attempts"]) != 1:
            raise AssertionError(f"{point}: the background job is {background['state']}")
        listed = [job["id"] for job in cluster.ask("list")["jobs"]]
        if len(listed) != len(set(listed)) or not set(script.jobs) - script.deleted <= set(listed):
            raise AssertionError(f"{point}: lost or doubled jobs: {listed}")
        wait_until("the nodes back", lambda: cluster.ready("n1") and cluster.ready("n2"), LIMIT)


class LoneController:
    """A controller without nodes, in a temporary folder: tests how a store is opened, copied and folded."""

    def __init__(self, store=None):
        self.folder = Path(tempfile.mkdtemp(prefix="titan-failpoints-"))
        self.store = store
        self.ports = self.folder / "ports.json"
        self.state = self.folder / "state"
        self.log = self.folder / "log"
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self):
        where = ["--store", self.store] if self.store else ["--state", self.state]
        return [BIN / "titan-controller", *where, "--listen", "127.0.0.1:0", "--metrics-port", "-1", "--port-file", self.ports]

    def launch(self, point="", command=None):
        self.ports.unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command or self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "TITAN_FAILPOINT": point})

    def start(self, point=""):
        """Waits until it serves, and until it leads if it shares a store."""
        self.launch(point)
        wait_until("a controller", lambda: self.ports.exists() or self._ended(), LIMIT)
        wait_until("a leader", lambda: self.titanctl("cluster", "info").returncode == 0 or self._ended(), LIMIT)

    def _ended(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the controller ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        return False

    def dies(self, point, limit=LIMIT):
        if self.process.wait(limit) != -signal.SIGKILL:
            raise AssertionError(f"{point}: ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def titanctl(self, *words):
        address = f"127.0.0.1:{json.loads(self.ports.read_text())['port']}"
        return subprocess.run([BIN / "titanctl", *map(str, words)], capture_output=True, text=True, check=False, timeout=2 * LIMIT,
                              env={**os.environ, "TITAN_CONTROLLER": address, "NO_COLOR": "1"})

    def submit(self):
        done = self.titanctl("submit", SOURCE / "configs/llama3_tiny.toml", "--job.dump_folder", self.folder / f"dump-{time.time_ns()}", "-q",
                             "--timeout", LIMIT)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    def jobs(self):
        done = self.titanctl("list", "-o", "json", "--timeout", LIMIT)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return sorted(job["id"] for job in json.loads(done.stdout)["jobs"])

    def change(self, sql):
        """Changes the store while the controller is down."""
        with sqlite3.connect(self.state / "titan.db") as database:
            database.execute(sql)
            database.commit()
        database.close()


def opened(point):
    """Kills a controller that creates its store."""
    with LoneController() as alone:
        alone.launch(point)
        alone.dies(point)
        alone.start()
        job = alone.submit()
        assert alone.jobs() == [job], point


def set_aside(point, damage, lost):
    """Damages one of two job records: its job may be missing, but the other one is served, before and after the kill."""
    with LoneController() as alone:
        alone.start()
        jobs = sorted([alone.submit(), alone.submit()])
        alone.kill()
        alone.change(damage)
        alone.launch(point)
        alone.dies(point)
        alone.start()
        there = alone.jobs()
        assert len(there) >= 2 - lost and set(there) <= set(jobs), f"{point}: {there}"
        word = "event=RecordSetAside" if lost else "event=StoreDamaged"
        wait_until("a report of the damage", lambda: word in alone.log.read_text(), LIMIT)


def folded(point):
    """Kills a controller that folds its log into the file, which it does after two seconds without writes."""
    with LoneController() as alone:
        alone.start(point)
        job = alone.submit()
        alone.dies(point)
        alone.start()
        assert alone.jobs() == [job], point


def backed_up(point):
    with LoneController() as alone:
        alone.start(point)
        job = alone.submit()
        copy = alone.folder / "copy.db"
        assert alone.titanctl("cluster", "backup", copy, "--timeout", 1).returncode != 0, point
        alone.dies(point)
        assert not copy.exists(), f"{point}: a failed backup left a file"
        alone.start()
        assert alone.jobs() == [job], point
        assert alone.titanctl("cluster", "backup", copy, "--timeout", LIMIT).returncode == 0, point


def restored(point):
    """Kills a restore: either everything is there, or the folder has no store and the restore is repeated elsewhere."""
    with LoneController() as alone:
        alone.start()
        job = alone.submit()
        copy = alone.folder / "copy.db"
        assert alone.titanctl("cluster", "backup", copy, "--timeout", LIMIT).returncode == 0, point
        alone.kill()
        for folder in ("first", "second"):
            alone.state = alone.folder / folder
            restore = [BIN / "titan-controller", "--restore", copy, "--state", alone.state]
            alone.launch(point if folder == "first" else "", restore)
            alone.process.wait(LIMIT)
            if (alone.state / "titan.db").exists():
                break
        alone.start()
        assert alone.jobs() == [job], point


def in_etcd(point):
    from leader_test import Etcd  # pylint: disable=import-outside-toplevel; needed only with etcd.
    if shutil.which("etcd") is None:
        return "no etcd in PATH"
    with tempfile.TemporaryDirectory() as folder:
        etcd = Etcd(Path(folder))
        try:
            with LoneController(f"etcd://{etcd.address}/test") as alone:
                jobs = []
                if point in ("etcd.loaded",):  # This point needs an existing store.
                    alone.start()
                    jobs.append(alone.submit())
                    alone.kill()
                alone.launch(point)
                wait_until("its ports or its end", lambda: alone.ports.exists() or alone.process.poll() is not None, LIMIT)
                # A submission may be needed to reach the point.
                wait_until("its end", lambda: alone.process.poll() is not None or alone.titanctl(
                    "submit", SOURCE / "configs/llama3_tiny.toml", "--job.dump_folder", f"{folder}/dump-{time.time_ns()}", "-q",
                    "--timeout", 1) and alone.process.poll() is not None, LIMIT)
                alone.dies(point)
                alone.start()
                jobs.append(alone.submit())
                assert set(jobs) <= set(alone.jobs()), point
        finally:
            etcd.close()
    return None


def joined(walk, point):
    """Kills a worker that belongs to no cluster yet."""
    daemon = walk.cluster.add_worker("n3", 1)
    walk.cluster.stop("n3")
    shutil.rmtree(walk.cluster.folder / "n3", ignore_errors=True)
    start_armed(daemon, point)
    die(daemon, point)
    daemon.start()
    wait_until("n3", lambda: walk.cluster.ready("n3"), LIMIT)
    walk.cluster.stop("n3")
    del walk.cluster.daemons["n3"]
    # With three nodes, n2 would be cordoned because it dies repeatedly.
    wait_until("n3 gone", lambda: walk.cluster.titanctl("node", "delete", "n3", check=False).returncode == 0, LIMIT)


def adopted(walk, point):
    """Kills a worker that finds a shim of its predecessor."""
    daemon = walk.cluster.daemons["n1"]
    walk.cluster.stop("n1")
    start_armed(daemon, point)
    die(daemon, point)
    daemon.start()
    walk.verify(walk.script(), point, attempts=1)


def left_behind(walk, point):
    """Kills a worker that finds the folder of an attempt that its predecessor had only prepared."""
    daemon = walk.cluster.daemons["n2"]
    walk.cluster.stop("n2")
    start_armed(daemon, "worker.prepared")
    script = walk.script()
    script.start()
    die(daemon, "worker.prepared")
    script.enough.set()
    start_armed(daemon, point)
    die(daemon, point)
    daemon.start()
    script.join(4 * LIMIT)
    walk.verify(script, point, attempts=2)


def times_out(walk, point):
    """Lets a rank wait until its timeout: its node sends a diagnosis before anything is forgotten, and the end of the
    rank's log is kept."""
    cluster = walk.cluster
    cluster.add_fake("n3", 4, TIMES_OUT)
    try:
        wait_until("n3", lambda: cluster.ready("n3"), LIMIT)
        daemon = cluster.daemons["n3" if point.startswith("worker.") else "controller"]
        cluster.stop(daemon.name)
        start_armed(daemon, point)
        job = cluster.submit_job(f"gives-up-{point}", ranks=4)
        die(daemon, point)
        walk.restart(daemon)

        def prints(*words, what):
            done = cluster.titanctl(*words, "--timeout", LIMIT, check=False, timeout=2 * LIMIT)
            return done.returncode == 0 and what in done.stdout

        wait_until("a diagnosis", lambda: prints("diagnose", job, what="rank"), LIMIT)
        cluster.titanctl("cancel", job, "--now", "--timeout", LIMIT, check=False, timeout=2 * LIMIT)
        wait_until("the end of the job", lambda: cluster.job(job)["state"] in ("CANCELLED", "FAILED"), LIMIT)
    finally:
        cluster.stop("n3")
        del cluster.daemons["n3"]
    wait_until("the end of its log after the node is gone", lambda: prints("logs", job, "--attempt", 1, "--rank", 1, what="line 2"), LIMIT)
    wait_until("n3 gone", lambda: cluster.titanctl("node", "delete", "n3", check=False).returncode == 0, LIMIT)
    shutil.rmtree(cluster.folder / "n3", ignore_errors=True)
    walk.verify(walk.script(), point, attempts=1)


HEAD = "UPDATE heads SET crc = crc + 1 WHERE key = (SELECT min(key) FROM heads WHERE CAST(key AS TEXT) LIKE 'job/%')"
RECORD = ("UPDATE log SET value = CAST('x' AS BLOB) WHERE id = (SELECT id FROM heads WHERE key = "
          "(SELECT min(key) FROM heads WHERE CAST(key AS TEXT) LIKE 'job/%'))")
# Only a snapshot of the log in etcd passes these, and it needs a log of 16 MB:
# tests/controller/store/etcd_store_test.cc makes smaller ones.
ELSEWHERE = {"etcd.snapshot", "etcd.snapshot.parts", "etcd.snapshot.switched"}


def visit(walk, point):
    """Kills at one point and checks; returns a reason if this machine cannot do it."""
    if point in ELSEWHERE:
        return "needs a log of 16 MB in etcd"
    if names_are_of(point, "elect", "etcd"):
        return in_etcd(point)
    if names_are_of(point, "store.schema", "store.opened", "store.epoch"):
        return opened(point)
    if names_are_of(point, "store.heads"):
        return set_aside(point, HEAD, lost=0)
    if names_are_of(point, "store.aside"):
        return set_aside(point, RECORD, lost=1)
    if names_are_of(point, "store.fold", "store.folded"):
        return folded(point)
    if names_are_of(point, "backup"):
        return backed_up(point)
    if names_are_of(point, "restore"):
        return restored(point)
    if names_are_of(point, "worker.cluster"):
        return joined(walk, point)
    if names_are_of(point, "worker.shim.found"):
        return adopted(walk, point)
    if names_are_of(point, "worker.folder.removed"):
        return left_behind(walk, point)
    if any(word in point for word in ("diagnos", "failed_log", "log_tail")):
        return times_out(walk, point)
    # Opening a store already passes these points; the sixth passage is under the load.
    passage = ":6" if point in ("store.begin", "store.changed", "store.state", "store.committed") else ""
    return walk.kill_at("n2" if point.startswith("worker.") else "controller", point + passage)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--go-on", action="store_true", help="continue after a failure")
    flags = parser.parse_args()
    points = flags.points or (names("titan-controller") + names("titan-worker"))[::flags.every]
    skipped, failed, begun = {}, [], time.monotonic()
    with Walk() as walk:
        for point in points:
            at = time.monotonic()
            try:
                why = visit(walk, point)
            except Exception as error:  # pylint: disable=broad-except; reported below.
                if not flags.go_on:
                    raise AssertionError(f"at {point}") from error
                failed.append(point)
                print(f"{point}: FAILED {error!r}"[:600], flush=True)
                for daemon in walk.cluster.daemons.values():
                    if daemon.process.poll() is not None:
                        daemon.start()
                continue
            if why:
                skipped[point] = why
            print(f"{point}: {why or 'recovered'} ({time.monotonic() - at:.1f} s)", file=sys.stderr, flush=True)
        serving = walk.serving
    print(json.dumps({"points": len(points), "recovered": len(points) - len(skipped) - len(failed), "not_passed_here": skipped,
                      "failed": failed, "slowest_serving_s": round(max(serving, default=0), 3), "seconds": round(time.monotonic() - begun, 1)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
