"""Every alert of deploy/prometheus/alerts.yml fires on a live Prometheus in its fault, and ends when the fault is over.

    alerts_live.py [ALERT...]        these alerts, or all: a few minutes on a quiet machine
    alerts_live.py --check           a few, for CI; with TITAN_LONG=1 all
    alerts_live.py --write [FILE]    all, and writes the table to docs/generated/alerts-live.md or FILE

The rules are the committed ones with unchanged thresholds, but `for:` and range windows are SPEEDUP times shorter.
Controller, workers and shims are real, ranks are stand-ins (tests/worker/node/shim/fake_rank.cc). For thresholds of
half an hour or more the controller's clock is set ahead (libfaketime); a slow disk is simulated by a library in front
of fsync (slow_sync.c). Each scene has its own cluster, and scenes run in parallel.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "integration/watching"), str(HERE.parent / "testing")]
from cluster import BIN, SOURCE, wait_until  # noqa: E402
from live import NODES, RULES, WatchedCluster, need  # noqa: E402

SPEEDUP = 30
CI_SPEEDUP = 60  # For CI, so that alerts about the last quarter of an hour end soon.
TIMEOUT = 300.0  # Seconds to wait for an alert while other tests run on a busy machine.
MEMORY_GROUPS, CPU_GROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/cpu")
TRAINS = {"steps": -1, "step_ms": 50, "loads": 0}
PATIENT = ["--restart.no_progress_limit", 1000, "--restart.backoff_initial_seconds", 0.1, "--restart.backoff_max_seconds", 0.2]
FAULTS = {}  # Fault functions by their alerts.
GPU_ALERTS = {"GpuLost", "GpuMemoryErrors", "GpuXid", "GpuSlowed", "GpusNotSeen"}  # No fault here makes a GPU sick.


class Unsupported(Exception):
    """Raised if this machine cannot make the fault; the message gives the reason."""


def shortened(text, shorter):
    """Returns the rules with shorter waits, otherwise unchanged."""
    seconds = {"s": 1, "m": 60, "h": 3600}

    def short(number, unit):
        return f"{max(1, int(number) * seconds[unit] // shorter)}s"

    text = re.sub(r"(?m)^(\s+for: )(\d+)([smh])$", lambda m: m[1] + short(m[2], m[3]), text)
    return re.sub(r"\[(\d+)([smh])\]", lambda m: f"[{short(m[1], m[2])}]", text)


def fault(*alerts, how, **options):
    """Registers a generator that prepares and yields, makes the fault and yields, then ends it. `options` configure its
    cluster."""
    def register(make):
        FAULTS[alerts] = (make, how, options)
        return make
    return register


class Scene(WatchedCluster):
    def __init__(self, folder, fake=None, interval="500ms", lease_ms=None, shorter=SPEEDUP):
        self.cleanups, self.groups = [], []  # Cleanups run before its processes end; groups are removed after.
        rules = Path(folder) / "alerts.yml"
        rules.write_text(shortened(RULES.read_text(), shorter))
        (Path(folder) / "cluster").mkdir()
        super().__init__(TRAINS if fake is None else fake, rules=rules, interval=interval, lease_ms=lease_ms, folder=Path(folder) / "cluster", devices=2)
        for name in NODES:  # A restarted worker keeps its metrics port.
            command = self.daemons[name].command
            command[command.index("--metrics-port") + 1] = str(json.loads((self.folder / f"{name}-ports.json").read_text())["metrics"])
        wait_until("both nodes", lambda: self.ask("cluster", "info")["ready_nodes"] == 2, TIMEOUT, 0.1)
        wait_until("first scrapes", lambda: len(self.prometheus.query("up == 1")) == 1 + len(NODES), TIMEOUT, 0.1)

    def start(self, name="job", ranks=1, until="step=5", dump=None, extra=()):
        job = self.submit(SOURCE / "configs/llama3_tiny.toml", "--job-id", name, "--job.dump_folder", dump or self.folder / "dumps" / name,
                          "--resources.ranks", ranks, "--resources.threads_per_rank", 1, "--checkpoint.enable", *PATIENT, *extra)
        if until:
            self.wait(job, until, timeout=TIMEOUT)
        return job

    def start_again(self, name, prefix=(), **environment):
        """Restarts a daemon with these changes."""
        daemon = self.daemons[name]
        daemon.kill(restart=False)
        daemon.command = [*map(str, prefix), *daemon.command]
        daemon.environment = {**daemon.environment, **environment}
        daemon.revive()
        self.wait_for_page(name)

    def submit_later(self, name, ranks, *extra):
        return subprocess.Popen([BIN / "titanctl", "submit", SOURCE / "configs/llama3_tiny.toml", "--job-id", name, "--job.dump_folder",
                                 self.folder / "dumps" / name, "--resources.ranks", str(ranks), "--resources.threads_per_rank", "1", *extra, "-q",
                                 "--timeout", "120"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                env={**self.environment, "TITAN_CONTROLLER": self.address}, cwd=self.folder)

    def sessions(self, node):
        """Returns how often the controller's journal reports the node's registration."""
        return sum(f"node={node} " in line for line in self.controller.log.read_text().splitlines() if "event=NodeRegistered" in line)

    def move_store(self, folder):
        """Moves the controller's state there; takes effect at its next start."""
        command = self.controller.command
        command[command.index("--state") + 1] = folder

    def wait_for_page(self, name):
        address = f"127.0.0.1:{self.metrics_port}"
        if name != "controller":
            address = f"127.0.0.1:{json.loads((self.folder / f'{name}-ports.json').read_text())['metrics']}"

        def answers():
            try:
                return bool(self.page(address))
            except OSError:
                return False

        wait_until(f"the page of {name}", answers, TIMEOUT, 0.1)

    def fake_ranks(self):
        return sorted(self.processes("fake_rank"), key=lambda p: p.rank)

    def repeat(self, what):
        """Calls `what` repeatedly until the scene ends or the returned function is called."""
        enough = threading.Event()

        def run():
            while not enough.is_set():
                what()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def end():
            enough.set()
            thread.join()

        self.cleanups.append(end)
        return end

    def is_up(self, job="titan-controller"):
        values = [float(one["value"][1]) for one in self.prometheus.query(f'up{{job="{job}"}}')]
        return bool(values) and min(values) == 1

    def alerts(self):
        """Returns the worst state of each alert, by name."""
        return {rule["name"]: rule["state"] for rule in self.prometheus.rules() if rule["type"] == "alerting"}

    def firing(self, name):
        """Returns the alert's firing instances, or None. Nearly full file systems of this machine do not count."""
        for rule in self.prometheus.rules():
            if rule["name"] != name:
                continue
            ours = [one for one in rule["alerts"] if one["state"] == "firing" and
                    (name != "DiskAlmostFull" or "small" in one["labels"].get("folder", ""))]
            return ours or None
        raise AssertionError(f"no alert is called {name}")

    def close(self):
        for cleanup in reversed(self.cleanups):
            cleanup()
        super().close()
        for group in self.groups:
            wait_until(f"the end of what is in {group}", lambda g=group: remove(g), TIMEOUT, 0.1)

    def group(self, root):
        """Creates a temporary cgroup of version 1."""
        group = root / f"titan-alerts-{os.getpid()}-{random.randrange(1 << 30)}"
        try:
            group.mkdir()
        except OSError as error:
            raise Unsupported(f"no cgroup of version 1 can be made below {root}: {error.strerror}") from error
        self.groups.append(group)
        return group

    def small_disk(self, name, mebibytes):
        folder = self.folder / name
        folder.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unsupported(f"no tmpfs can be mounted: {done.stderr.strip()}")
        self.cleanups.append(lambda: subprocess.run(["umount", "-l", folder], check=False))
        return folder


def fill(folder):
    with open(folder / "ballast", "ab", buffering=0) as file:
        for piece in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * piece)
            except OSError:
                pass


def in_bursts(processes, stopped, running):
    """Gives processes too little CPU for one round."""
    for number, seconds in ((signal.SIGSTOP, stopped), (signal.SIGCONT, running)):
        for process in processes:
            process.kill(number)
        time.sleep(seconds)


# ---- Control plane ----


@fault("NoLeader", "ControllerDown", "WorkerDisconnected", how="the controller is killed and not restarted")
def controller_dies(scene):
    yield
    scene.controller.kill(restart=False)
    yield
    scene.controller.revive()


@fault("CertificateEnds", how="a worker's certificate expires in three days, and is renewed without a restart")
def certificate_ends(scene):
    def issue(days, *words):
        scene.pki("issue", "--ca", scene.folder / "ca", "--node", "n2", "--days", days, "--out", scene.folder / "tls", *words)
    scene.pki("init-ca", scene.folder / "ca")
    yield
    issue(3)
    scene.worker("n2").command += ["--tls", str(scene.folder / "tls")]
    scene.start_again("n2")
    yield
    issue(365, "--renew")


@fault("TwoLeaders", how="Prometheus also scrapes a second controller with its own store")
def second_controller(scene):
    yield
    ports = scene.folder / "second.json"
    second = subprocess.Popen([BIN / "titan-controller", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--port-file", ports, "--state",
                               scene.folder / "second"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=scene.environment)
    scene.cleanups.append(lambda: (second.kill(), second.wait()))
    wait_until("its ports", ports.exists, TIMEOUT)
    pages = scene.pages()
    scene.prometheus.scrape({**pages, "titan-controller": [*pages["titan-controller"], f"127.0.0.1:{json.loads(ports.read_text())['metrics']}"]})
    yield
    scene.prometheus.scrape(pages)


@fault("LeaderFlap", how="the controller is killed and restarted five times")
def controller_flaps(scene):
    def started():
        """Returns the start times in the newest scrape."""
        return [one["value"][1] for one in scene.prometheus.query('process_start_time_seconds{job="titan-controller"}')]

    yield
    for _ in range(5):
        before = wait_until("a scrape", started, TIMEOUT, 0.05)
        starts = scene.controller.starts
        scene.controller.kill()
        wait_until("its next start", lambda n=starts: scene.controller.starts > n, TIMEOUT)
        wait_until("a scrape of it", lambda old=before: started() not in ([], old), TIMEOUT, 0.05)
    yield


@fault("StoreSlow", "RpcSlow", how="each fsync of the controller takes 3 s while a client updates a job")
def slow_disk(scene):
    slow = scene.folder / "slow_ms"
    slow.write_text("0")
    library = scene.folder / "slow_sync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "slow_sync.c", "-ldl"], check=True)
    scene.start_again("controller", LD_PRELOAD=str(library), TITAN_SLOW_SYNC=str(slow))
    job = scene.start()
    number = iter(range(1 << 30))
    scene.repeat(lambda: scene.titanctl("update", job, "--label", f"turn={next(number)}", "--timeout", 60, check=False, timeout=120))
    yield
    slow.write_text("3000")
    yield
    slow.write_text("0")


@fault("StoreQueueGrows", "DiskAlmostFull", how="the controller's state file system is full while four ranks report a step every 3 ms",
       fake={**TRAINS, "step_ms": 3})
def full_disk(scene):
    disk = scene.small_disk("small", 64)
    controller = scene.controller
    controller.kill(restart=False)
    scene.move_store(disk / "state")
    for name in ("n1", "n2"):
        worker = scene.worker(name)
        worker.kill(restart=False)
        worker.command += ["--adopt-cluster"]
        worker.revive()
    controller.revive()
    wait_until("both nodes", lambda: scene.titanctl("cluster", "info", check=False).returncode == 0
               and scene.ask("cluster", "info")["ready_nodes"] == 2, TIMEOUT, 0.1)
    scene.start(ranks=4)
    yield
    fill(disk)
    yield
    (disk / "ballast").unlink()


@fault("StoreDamaged", "RpcErrors", how="bytes of a job's specification are changed in the store file before the controller starts; its user keeps "
       "requesting the job")
def damaged_store(scene):
    job = scene.start(until="step=1")
    uid = scene.job(job)["uid"]
    scene.titanctl("cancel", job, "--now", "--wait")
    scene.controller.kill(signal.SIGTERM, restart=False)
    with sqlite3.connect(scene.folder / "controller/titan.db") as store:
        changed = store.execute("UPDATE log SET value = CAST('{' || value AS BLOB) WHERE key = ?", (f"spec/{uid}".encode(),)).rowcount
        changed = changed or store.execute("UPDATE log SET value = CAST('{' || value AS BLOB) WHERE key = ?", (f"spec/{uid}",)).rowcount
    store.close()
    assert changed == 1, changed
    yield
    scene.controller.revive()
    scene.wait_for_page("controller")
    ask = scene.repeat(lambda: (scene.titanctl("describe", job, check=False), time.sleep(0.05)))
    yield
    ask()
    scene.start_again("controller")


@fault("SchedulerSlow", how="a cgroup (version 1) gives the controller 4 ms of CPU per second while 600 jobs wait and a node is cordoned and "
       "uncordoned (waits only 5 times shorter)", interval="5s", lease_ms=600_000, shorter=5)
def starved_controller(scene):
    for i in range(0, 600, 5):
        for one in [scene.submit_later(f"waits-{i + k}", ranks=5) for k in range(5)]:
            one.wait()
    group = scene.group(CPU_GROUPS)
    (group / "cpu.cfs_period_us").write_text("1000000")
    scene.repeat(lambda: [scene.titanctl("node", verb, "n2", "--timeout", 60, check=False, timeout=120) for verb in ("cordon", "uncordon")])
    yield
    (group / "cgroup.procs").write_text(str(scene.controller.pid))
    (group / "cpu.cfs_quota_us").write_text("4000")
    yield
    (group / "cpu.cfs_quota_us").write_text("-1")


def remove(group):
    """Removes a cgroup once its processes have ended."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


@fault("DescriptorsAlmostOut", how="clients keep 95 of the controller's 100 descriptors open and reopen the idle connections that it closes")
def descriptors(scene):
    subprocess.run(["prlimit", "--pid", str(scene.controller.pid), "--nofile=100:100"], check=True)
    folder = f"/proc/{scene.controller.pid}/fd"
    host, port = scene.address.rsplit(":", 1)
    held, over = [], threading.Event()

    def hold():
        while not over.wait(0.02):
            if len(os.listdir(folder)) < 95:
                held.append(socket.create_connection((host, int(port))))

    yield
    clients = threading.Thread(target=hold, daemon=True)
    clients.start()
    yield
    over.set()
    clients.join()
    for one in held:
        one.close()


@fault("SeriesLeftOut", how="505 failed jobs wait for their next attempt; the metrics page shows 500",
       fake={"steps": 1, "step_ms": 1, "exit_code": 14})
def many_jobs(scene):
    names = [f"many-{i}" for i in range(505)]
    patient = ["--restart.no_progress_limit", "1000", "--restart.backoff_initial_seconds", "3000", "--restart.backoff_max_seconds", "3000"]

    def submit(some):
        for i in range(0, len(some), 5):
            for one in [scene.submit_later(name, 1, *patient) for name in some[i:i + 5]]:
                one.wait()

    submit(names[:495])
    yield
    submit(names[495:])
    yield
    scene.titanctl("cancel", "--all", "--yes", "--now", timeout=TIMEOUT)


# ---- Nodes ----


@fault("HeartbeatStale", "NodeLost", "WorkerDown", how="a worker is stopped (SIGSTOP), as on a hung machine")
def silent_node(scene):
    yield
    scene.worker("n2").process.send_signal(signal.SIGSTOP)
    yield
    scene.worker("n2").process.send_signal(signal.SIGCONT)


@fault("NodeRefused", how="a worker starts with another cluster's state folder, and is then restarted with --adopt-cluster")
def other_cluster(scene):
    worker = scene.worker("n2")
    worker.kill(restart=False)
    (scene.folder / "n2/cluster").write_text("another-cluster")
    yield
    worker.revive()
    yield
    scene.start_again("n2")
    worker.kill(restart=False)
    worker.command += ["--adopt-cluster"]
    worker.revive()


@fault("NodeFlapping", how="a worker is killed and restarted ten times")
def node_flaps(scene):
    yield
    for _ in range(10):
        worker = scene.worker("n2")
        starts = worker.starts
        sessions = scene.sessions("n2")
        worker.kill()
        wait_until("its next start", lambda n=starts, w=worker: w.starts > n, TIMEOUT)
        wait_until("its next session", lambda s=sessions: scene.sessions("n2") > s, TIMEOUT, 0.05)
    yield


@fault("ShimsLost", how="the shim of a running job is killed")
def shim_dies(scene):
    scene.start()
    wait_until("a scrape", lambda: scene.is_up("titan-worker"), TIMEOUT, 0.1)
    yield
    scene.shims()[0].kill()
    yield


@fault("RanksOutOfMemory", how="the workers' memory cgroup (version 1) is too small for their ranks", fake={**TRAINS, "eat_mib": 400, "eat_at": 10})
def out_of_memory(scene):
    group = scene.group(MEMORY_GROUPS)
    for name in ("n1", "n2"):
        scene.start_again(name, prefix=["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"])
    (group / "memory.limit_in_bytes").write_text("250M")
    wait_until("a scrape", lambda: scene.is_up("titan-worker"), TIMEOUT, 0.1)
    yield
    scene.start(until=None)
    yield
    (group / "memory.limit_in_bytes").write_text("-1")


@fault("LogsDropped", how="a rank prints more than its log limit of 1 MiB")
def flood(scene):
    for name in ("n1", "n2"):
        worker = scene.worker(name)
        worker.kill(restart=False)
        worker.command += ["--log-max-mib", "1"]
        worker.revive()
        scene.wait_for_page(name)
    scene.start()
    rank = scene.fake_ranks()[0]
    yield
    with open(f"/proc/{rank.pid}/fd/1", "wb", buffering=0) as output:
        for _ in range(4096):
            output.write(b"x" * 1023 + b"\n")
    yield


@fault("UnknownAttempts", how="the controller's store is replaced by a backup from before a job")
def older_store(scene):
    scene.titanctl("cluster", "backup", scene.folder / "before.db")
    job = scene.start()
    uid, node = scene.job(job)["uid"], scene.job(job)["attempts"][0]["placements"][0]["node"]
    yield
    scene.controller.kill(restart=False)
    scene.titanctl("cluster", "restore", scene.folder / "before.db", "--state", scene.folder / "restored")
    scene.move_store(scene.folder / "restored")
    scene.controller.revive()
    yield
    scene.titanctl("node", "stop", node, "--unknown", uid)


@fault("RankSlow", how="a rank is stopped for 65 of every 80 ms, so its steps take 80 ms and its peers' 50 ms", fake={**TRAINS, "measured": True})
def slow_rank(scene):
    scene.start(ranks=4)
    ranks = scene.fake_ranks()
    yield
    end = scene.repeat(lambda: in_bursts([ranks[1]], 0.065, 0.015))
    yield
    end()


# ---- Jobs ----


@fault("NoProgress", "CheckpointStale", "QueueStuck", how="a rank is stopped, nothing is saved, and a job waits for more devices than are free; the "
       "controller's clock is set 70 minutes ahead")
def clock_ahead(scene):
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
    if library is None:
        raise Unsupported("no libfaketime: apt-get install faketime")
    stamp = scene.folder / "clock"
    stamp.write_text("+0\n")
    scene.start_again("controller", LD_PRELOAD=library, FAKETIME_TIMESTAMP_FILE=str(stamp), FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1")
    job = scene.start(extra=["--comm.train_timeout_seconds", 1000])
    waits = scene.start("waits", ranks=4, until=None)
    wait_until("its reason", lambda: scene.job(waits)["pending_reason"], TIMEOUT, 0.1)
    yield
    scene.fake_ranks()[0].kill(signal.SIGSTOP)
    new = stamp.with_suffix(".new")
    new.write_text("+4200\n")
    new.rename(stamp)
    yield
    scene.fake_ranks()[0].kill(signal.SIGCONT)
    scene.titanctl("checkpoint", job)
    scene.titanctl("cancel", waits)


@fault("RecoverySlow", how="the only node of a job is down for 130 s")
def long_away(scene):
    scene.start(ranks=2)
    node = scene.job("job")["attempts"][0]["placements"][0]["node"]
    other = ({"n1", "n2"} - {node}).pop()
    scene.titanctl("node", "cordon", other)
    yield
    scene.kill_node(node)
    time.sleep(130)
    scene.worker(node).revive()
    yield


@fault("RestartsInVain", "AttemptsFail", how="the rank of a job is killed eight times, each time before it makes progress")
def again_and_again(scene):
    scene.start(until="step=200")
    yield
    for attempt in range(1, 9):
        wait_until("its rank", lambda n=attempt: len(scene.job("job")["attempts"]) == n and scene.fake_ranks(), TIMEOUT, 0.05)[0].kill()
        wait_until("the next attempt", lambda n=attempt: len(scene.job("job")["attempts"]) > n, TIMEOUT, 0.05)
    yield
    scene.wait("job", "step=250", timeout=TIMEOUT)


@fault("CheckpointFailing", how="the dump folder's file system is full when the job saves", fake={**TRAINS, "save_bytes": 4 << 20})
def full_dump_folder(scene):
    disk = scene.small_disk("small-dump", 16)
    scene.start(dump=disk / "dump")
    yield
    fill(disk)
    scene.titanctl("checkpoint", "job")
    yield
    (disk / "ballast").unlink()
    scene.titanctl("checkpoint", "job", "--wait")


@fault("CheckpointStallLong", how="a save stalls training for 55 s", fake={**TRAINS, "save_ms": 55_000})
def long_stall(scene):
    scene.start()
    yield
    scene.titanctl("checkpoint", "job")
    yield


# ---- Runner ----

CHECKED = [("ShimsLost",), ("LogsDropped",), ("NoLeader", "ControllerDown", "WorkerDisconnected")]


def run(alerts, wanted, shorter):
    """Returns rows of the table: alert, fault, seconds to firing, seconds to its end."""
    make, how, options = FAULTS[alerts]
    wanted = [name for name in alerts if name in wanted]
    with tempfile.TemporaryDirectory(prefix="titan-alerts-") as folder:
        scene = None
        try:
            scene = Scene(folder, **{"shorter": shorter, **options})
            steps = make(scene)
            next(steps)
            wait_until(f"quiet before the fault: {wanted}", lambda: not any(scene.firing(name) for name in wanted), TIMEOUT, 0.1)
            begun = time.monotonic()
            fired, ended = {}, {}
            errors = []

            def make_it():
                try:
                    next(steps)
                except BaseException as error:  # pylint: disable=broad-except; reported below.
                    errors.append(error)

            made = threading.Thread(target=make_it, daemon=True)
            made.start()

            def all_fired():
                if errors:
                    raise errors[0]
                for name in wanted:
                    if name not in fired and scene.firing(name):
                        fired[name] = time.monotonic() - begun
                return all(name in fired for name in wanted)

            wait_until(f"alerts {wanted}", all_fired, TIMEOUT, 0.1)
            made.join()
            if errors:
                raise errors[0]
            over = time.monotonic()
            try:
                next(steps)
            except StopIteration:
                pass

            def all_ended():
                for name in wanted:
                    if name not in ended and not scene.firing(name):
                        ended[name] = time.monotonic() - over
                return len(ended) == len(wanted)

            wait_until(f"end of {wanted}", all_ended, TIMEOUT, 0.1)
            return [(name, how, fired[name], ended[name]) for name in wanted]
        except Unsupported as why:
            return [(name, f"not made here: {why}", None, None) for name in wanted]
        except BaseException as error:
            if scene is not None:
                states = {n: s for n, s in scene.alerts().items() if s != "inactive"} if scene.prometheus.process.poll() is None else {}
                print(f"--- {alerts}: {error}\nalerts: {states}", file=sys.stderr)
                scene.show_logs(5)
            raise
        finally:
            if scene is not None:
                scene.close()


def table(rows):
    lines = ["| alert | fault | firing after | over after |", "|---|---|---:|---:|"]
    for name, how, fired, ended in rows:
        lines.append(f"| {name} | {how} | {'–' if fired is None else f'{fired:.0f} s'} | {'–' if ended is None else f'{ended:.0f} s'} |")
    return "\n".join(lines)


def document(rows):
    version = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return f"""# Alerts tested with live faults

On {time.strftime("%Y-%m-%d", time.gmtime())}, with Prometheus {version}, each alert below fired in the fault that it is for and ended after it.
`tests/faults/alerts_live.py` makes each fault on real daemons with stand-in ranks; `--write` generates this page.

- The rules are those of [alerts.yml](../../deploy/prometheus/alerts.yml) with unchanged thresholds, but `for:` and range windows are
  {SPEEDUP} times shorter. The times show that a rule works, not how soon it fires in production.
- "Over after" counts from the end of the fault. An alert about a past window ends with that window. A dash means that the machine could not
  make the fault.
- GPU alerts are tested only with promtool.

{table(rows)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("alerts", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", nargs="?", const=SOURCE / "docs/generated/alerts-live.md", type=Path)
    parser.add_argument("--parallel", type=int, default=4, help="scenes that run at the same time")
    words = parser.parse_args()
    try:
        need("prometheus")
    except Exception as why:  # pylint: disable=broad-except
        print(why)
        return 0 if not os.environ.get("CI") else 1
    known = re.findall(r"- alert: (\w+)", RULES.read_text())
    brought = sorted(name for alerts in FAULTS for name in alerts)
    known = [name for name in known if name not in GPU_ALERTS]
    if sorted(known) != brought:
        print(f"alerts without a fault here: {sorted(set(known) - set(brought))}; faults without an alert: {sorted(set(brought) - set(known))}")
        return 1
    wanted = words.alerts or known
    if set(wanted) - set(known):
        print(f"unknown alerts {sorted(set(wanted) - set(known))}; known alerts: {known}")
        return 2
    scenes = CHECKED if words.check and os.environ.get("TITAN_LONG") != "1" else [alerts for alerts in FAULTS if set(alerts) & set(wanted)]
    few = scenes is CHECKED
    rows, failed = [], 0
    with concurrent.futures.ThreadPoolExecutor(words.parallel) as pool:
        running = {pool.submit(run, alerts, wanted, CI_SPEEDUP if few else SPEEDUP): alerts for alerts in scenes}
        for done in concurrent.futures.as_completed(running):
            try:
                rows += done.result()
                print(*table(done.result()).splitlines()[2:], sep="\n", flush=True)
            except BaseException:  # pylint: disable=broad-except; the other scenes are still reported.
                failed += 1
                print(f"--- {running[done]}", file=sys.stderr)
                traceback.print_exc()
    rows.sort(key=lambda one: known.index(one[0]))
    print(table(rows))
    if words.write and not failed:
        words.write.write_text(document(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
