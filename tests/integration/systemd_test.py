"""Tests the daemons under systemd, with a socket in its place: they report that they are ready once they serve, then keepalives
with a status, and their end. systemd accepts the unit files without a complaint."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, SOURCE, wait_until

FAKE_RANK = BIN.parent / "tests/fake_rank"
WATCHDOG_SECONDS = 2


class Manager:
    """Receives a daemon's messages to systemd."""

    def __init__(self, folder):
        self.path = folder / "notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)
        self.messages = []

    def received(self):
        while True:
            try:
                self.messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.messages

    def count(self, text):
        return len([message for message in self.received() if message == text])

    def status(self):
        return next((message.removeprefix("STATUS=") for message in reversed(self.received()) if message.startswith("STATUS=")), "")


class Systemd(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def start(self, name, *flags):
        """Starts a daemon. Returns its process and its manager."""
        folder = self.folder / name
        folder.mkdir()
        manager = Manager(folder)
        self.addCleanup(manager.socket.close)
        environment = {**os.environ, "NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": str(WATCHDOG_SECONDS * 1_000_000)}
        environment.pop("WATCHDOG_PID", None)
        self.log = folder / "log"
        log = open(self.log, "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen([BIN / name, "--state", folder / "state", *flags], env=environment, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        wait_until(f"readiness of {name}", lambda: manager.count("READY=1"))
        return process, manager

    def start_controller(self):
        ports = self.folder / "ports"
        process, manager = self.start("titan-controller", "--listen", "127.0.0.1:0", "--metrics-port", "-1", "--port-file", ports)
        return process, manager, re.search(r'"port": (\d+)', ports.read_text())[1]  # The file exists before the daemon is ready.

    def check_life(self, process, manager):
        ignored_signals = ["SIGALRM", "SIGHUP", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGXCPU"]
        for ignored in [signal.Signals[name] for name in ignored_signals] + [signal.SIGXFSZ]:  # A closed terminal, a rotated log, a limit.
            process.send_signal(ignored)
        before = manager.count("WATCHDOG=1")
        wait_until("watchdog messages", lambda: manager.count("WATCHDOG=1") >= before + 3)
        reported = re.findall(r'event=SignalIgnored message="(SIG\w+): [^"]*; continuing"', self.log.read_text())
        self.assertEqual(ignored_signals, sorted(reported))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(0, process.wait(timeout=30))
        self.assertEqual(1, manager.count("STOPPING=1"))
        self.assertEqual(1, manager.count("READY=1"))

    def test_the_controller(self):
        process, manager, _ = self.start_controller()
        wait_until("status", manager.status)
        self.assertRegex(manager.status(), r"^leads cluster \S+: 0 of 0 nodes ready$")
        self.check_life(process, manager)

    def test_the_worker(self):
        _, _, port = self.start_controller()
        process, manager = self.start("titan-worker", "--controller", f"127.0.0.1:{port}", "--node", "n1", "--devices", "cpu:2", "--rank-binary",
                                      FAKE_RANK)
        wait_until("connection in the status", lambda: manager.status() == f"connected to 127.0.0.1:{port}, 0 ranks of 0 attempts")
        self.check_life(process, manager)

    # A worker serves its ranks without a controller, and is not restarted because of one.
    def test_worker_without_a_controller_is_ready(self):
        process, manager = self.start("titan-worker", "--controller", "127.0.0.1:1", "--node", "n1", "--devices", "cpu:2", "--rank-binary", FAKE_RANK)
        wait_until("status", manager.status)
        self.assertEqual("without a controller, 0 ranks of 0 attempts", manager.status())
        self.check_life(process, manager)

    # Every line is an event with its time, level and fields; systemd's journal also gets the priority of each.
    def test_logs_have_the_requested_format(self):
        for form, priorities in (("text", False), ("json", False), ("json", True)):
            with self.subTest(form=form, priorities=priorities):
                folder = self.folder / f"{form}-{priorities}"
                folder.mkdir()
                with open(folder / "log", "wb") as log:
                    file = os.fstat(log.fileno())
                    stream = {"JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino}"} if priorities else {}
                    for name in ("titan-controller", "titan-worker"):
                        done = subprocess.run([BIN / name, "--state", "/proc/none", "--log-format", form, "--metrics-port", "-1"], stderr=log,
                                              env={**os.environ, **stream})
                        self.assertEqual(1, done.returncode)
                lines = (folder / "log").read_text().splitlines()
                self.assertEqual(2, len([line for line in lines if "StartFailed" in line]), lines)
                for line in lines:
                    prefix, rest = re.match(r"(<[346]>)?(.*)", line).groups()
                    self.assertEqual(priorities, prefix is not None)
                    if form == "json":
                        self.assertLessEqual({"time", "level", "event", "message"}, set(json.loads(rest)))
                    else:
                        self.assertRegex(rest, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error) event=\w+ message=")

    # Wrong settings exit with 2, with which a unit is not restarted; temporary failures are tried again.
    def test_wrong_settings_exit_without_restart(self):
        controller = ["titan-controller", "--state", self.folder / "c"]
        worker = ["titan-worker", "--state", self.folder / "w"]
        for code, expected, words in (
                (2, "is beyond this machine", [*controller, "--listen", "0.0.0.0:0"]),
                (2, "metrics-port", [*controller, "--listen", "127.0.0.1:0", "--metrics-port", "99999"]),
                (2, "metrics-port", [*controller, "--listen", "127.0.0.1:0", "--metrics-port", ""]),
                (1, "has no tls.crt and tls.key", [*controller, "--listen", "127.0.0.1:0", "--tls", self.folder / "none"]),
                (2, "is beyond this machine", [*worker, "--controller", "c1.example:7700"]),
                (2, "--devices", [*worker, "--controller", "127.0.0.1:1", "--devices", "cpu:x"]),
                (1, "No such file or directory", [*worker, "--controller", "127.0.0.1:1", "--tls", self.folder / "none"])):
            with self.subTest(words=words[3:]):
                done = subprocess.run([BIN / words[0], *words[1:]], capture_output=True, text=True, timeout=60)
                self.assertEqual(code, done.returncode, done.stderr)
                self.assertIn(expected, done.stderr)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd is not installed")
    def test_systemd_accepts_the_units(self):
        page = BIN.parent / "share/doc/titan/operate/start-a-cluster.md"
        for daemon, exposure in (("titan-controller", 20), ("titan-worker", 100)):
            with self.subTest(daemon):
                text = (SOURCE / f"deploy/systemd/{daemon}.service").read_text()
                unit = self.folder / f"{daemon}.service"
                unit.write_text(text.replace(f"@PREFIX@/{page.relative_to(BIN.parent)}", str(SOURCE / "docs/operate/start-a-cluster.md"))
                                .replace("@PREFIX@", str(BIN.parent)))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True)
                self.assertEqual([], [line for line in done.stderr.splitlines() if "titan" in line])
                done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={exposure}", unit],
                                      capture_output=True, text=True)
                self.assertEqual(0, done.returncode, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
