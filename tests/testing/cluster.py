"""A real Titan cluster on loopback for tests: a controller, worker daemons, and a supervisor that restarts dead
daemons.

Everything is in one temporary folder and has one environment variable, so that close() finds and ends every process of
this cluster and no other. Nothing here waits for a fixed time: callers wait for a condition.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import processes
from paths import BIN, SOURCE

DEPS = Path(os.environ.get("TITAN_DEPS", SOURCE / ".deps"))
MARK = "TITAN_TEST_CLUSTER"
PASSED = ("--pass-env", "LD_PRELOAD", "--pass-env", "FAKETIME_*")  # Ranks use their machine's clock, too.
POLL = 0.005


class Timeout(AssertionError):
    pass


def wait_until(what, condition, timeout=30.0, poll=POLL):
    """Returns the first true value of condition(); raises Timeout, naming `what`, if there is none in time."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Timeout(f"no {what} within {timeout} s")
        time.sleep(poll)


class Daemon:
    """One supervised process. While `supervised`, it is restarted whenever it ends (as systemd would)."""

    def __init__(self, name, command, log, environment):
        self.name, self.command, self.log, self.environment = name, command, log, environment
        self.supervised = True
        self.process = None
        self.starts = 0

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=self.environment, start_new_session=True)
        self.starts += 1

    @property
    def pid(self):
        return self.process.pid

    def kill(self, number=signal.SIGKILL, restart=True):
        """Sends the signal and waits for the end; without `restart` the daemon stays down until start() is called."""
        self.supervised = restart
        self.process.send_signal(number)
        self.process.wait()

    def revive(self):
        self.start()
        self.supervised = True  # Only now, or the supervisor would start a second one.


class Cluster:
    def __init__(self, workers=1, devices=2, lease_ms=None, folder=None, supervise=True):
        self.folder = Path(folder or tempfile.mkdtemp(prefix="titan-test-"))
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "NO_COLOR": "1"}
        self.environment.pop("TITAN_CONTROLLER", None)
        self.devices = devices
        self.daemons = {}
        self.closing = threading.Event()
        self.address = None
        self._start_controller(lease_ms)
        for i in range(workers):
            self.add_worker(f"n{i + 1}")
        self.supervisor = threading.Thread(target=self._supervise, daemon=True)
        if supervise:
            self.supervisor.start()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.show_logs()
        self.close()

    @staticmethod
    def pki(*words):
        """Runs `titanctl cluster init-ca` and `issue`, which need no cluster."""
        subprocess.run([BIN / "titanctl", "cluster", *map(str, words)], check=True, capture_output=True, text=True)

    # --- Daemons ---

    @property
    def controller(self):
        return self.daemons["controller"]

    def worker(self, name):
        return self.daemons[name]

    def _start_controller(self, lease_ms):
        port_file = self.folder / "controller-ports.json"
        command = [BIN / "titan-controller", "--state", self.folder / "controller"]
        if lease_ms:
            command += ["--lease-ms", str(lease_ms)]
        daemon = self._add("controller", [*command, "--listen", "127.0.0.1:0", "--metrics-port", "0", "--port-file", port_file])
        ports = wait_until("controller port file", lambda: self._ports(port_file, daemon))
        self.address = f"127.0.0.1:{ports['port']}"
        self.metrics_port = ports["metrics"]
        # A restarted controller must have the same addresses.
        daemon.command = [*command, "--listen", self.address, "--metrics-port", str(self.metrics_port), "--port-file", port_file]

    @staticmethod
    def _ports(path, daemon):
        if daemon.process.poll() is not None:
            raise AssertionError(f"{daemon.name} ended with {daemon.process.returncode}: {Path(daemon.log).read_text()}")
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def add_worker(self, name, devices=None):
        return self._add(name, [BIN / "titan-worker", "--controller", self.address, "--node", name, "--state", self.folder / name,
                                "--devices", f"cpu:{devices or self.devices}", "--address", "127.0.0.1", "--metrics-port", "0",
                                "--port-file", self.folder / f"{name}-ports.json", *PASSED])

    def _add(self, name, command):
        daemon = Daemon(name, [str(word) for word in command], self.folder / f"{name}.log", self.environment)
        if name != "controller":
            # Marks the node's processes too, so that kill_node finds them.
            daemon.environment = {**self.environment, "TITAN_TEST_NODE": name}
        daemon.start()
        self.daemons[name] = daemon
        return daemon

    def _supervise(self):
        while not self.closing.wait(0.02):
            for daemon in list(self.daemons.values()):
                if daemon.supervised and daemon.process.poll() is not None and not self.closing.is_set():
                    daemon.start()

    def kill_node(self, name):
        """Kills every process of the node, like a power failure; the daemon is not restarted."""
        self.daemons[name].supervised = False
        victims = [p for p in self.processes() if p.environment.get("TITAN_TEST_NODE") == name]
        for process in victims:
            process.kill(signal.SIGKILL)
        self.daemons[name].process.wait()
        return victims

    # --- Processes of jobs ---

    def processes(self, program=None):
        return [p for p in processes.all_with(MARK, self.mark) if program is None or p.program == program]

    def ranks(self):
        """Returns live rank processes in rank order."""
        return sorted(self.processes("titan-rank"), key=lambda p: p.rank)

    def shims(self):
        return self.processes("titan-shim")

    # --- titanctl ---

    def titanctl(self, *arguments, check=True, text=None, timeout=60):
        done = subprocess.run([BIN / "titanctl", *map(str, arguments)], env={**self.environment, "TITAN_CONTROLLER": self.address},
                              input=text, capture_output=True, text=True, timeout=timeout, cwd=self.folder)
        if check and done.returncode != 0:
            raise AssertionError(f"titanctl {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def ask(self, *arguments):
        return json.loads(self.titanctl(*arguments, "-o", "json").stdout)

    def submit(self, *arguments):
        return self.titanctl("submit", *arguments, "-q").stdout.strip()

    def job(self, job):
        return self.ask("describe", job)

    def wait(self, job, until=None, timeout=60):
        """Waits for the end, or for a state, "step=N" or "committed=N"; returns the job."""
        arguments = ["wait", job, "--timeout", timeout, *(["--for", until] if until else [])]
        done = self.titanctl(*arguments, "-o", "json", check=False, timeout=timeout + 10)
        if done.returncode not in (0, 1) or (until and done.returncode):
            raise AssertionError(f"titanctl wait {job} {until or ''}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def succeed(self, job, timeout=90):
        end = self.wait(job, timeout=timeout)
        if end["state"] != "SUCCEEDED":
            raise AssertionError(f"job {job} {end['state']}: {end['failure_reason']}: {end['failure_message']}\n"
                                 f"{self.titanctl('describe', job, check=False).stdout}")
        return end

    def events(self, job):
        return [json.loads(line) for line in self.titanctl("events", job, "-o", "json").stdout.splitlines()]

    # --- End ---

    def _remove_groups(self):
        """Removes control groups of ranks whose shims were killed, because no later daemon does."""
        for spec in self.folder.glob("*/jobs/*/*/spec.json"):
            group = json.loads(spec.read_text()).get("group")
            if group:
                wait_until("end of a control group", lambda folder=Path(group["folder"]): self._removed(folder))

    @staticmethod
    def _removed(folder):
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True

    def show_logs(self, lines=15):
        for daemon in self.daemons.values():
            text = Path(daemon.log).read_text(errors="replace").splitlines()[-lines:]
            print(f"--- {daemon.name}", *text, sep="\n", file=sys.stderr)
        for log in sorted(self.folder.glob("n*/**/rank-*.log")):
            text = log.read_text(errors="replace").splitlines()[-lines:]
            print(f"--- {log}", *text, sep="\n", file=sys.stderr)

    def close(self):
        self.closing.set()
        if self.supervisor.is_alive():
            self.supervisor.join()
        # Twice: a process may have started another one in between.
        for _ in range(2):
            for process in self.processes():
                process.kill(signal.SIGKILL)
        for daemon in self.daemons.values():
            daemon.process.wait()
        wait_until("end of the cluster's processes", lambda: not self.processes())
        self._remove_groups()
        if not os.environ.get("TITAN_TEST_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)
