"""Two controllers on one etcd: one leads, the other stands by and takes over within five seconds of the leader's end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import wait_until  # noqa: E402
from jobs import last_step, tiny  # noqa: E402
from paths import BIN  # noqa: E402
from processes import all_with, free_port  # noqa: E402

TIMEOUT = 30.0  # Seconds for what takes three to four seconds on a quiet machine; measure.sh 8 measures it.
MARK = "TITAN_TEST_LEADER"  # Name of a variable that a worker and its child processes have.
JOB = '[model]\nname = "llama3"\nflavor = "debugmodel"\n[training]\nsteps = 5\n'


class Etcd:
    def __init__(self, folder):
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.address = client.removeprefix("http://")
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
             "--logger", "zap", "--log-outputs", folder / "etcd.log"], stdin=subprocess.DEVNULL)

    def close(self):
        self.process.kill()
        self.process.wait()


class Controller:
    def __init__(self, folder, name, etcd):
        self.folder, self.ports = folder, folder / f"{name}.json"
        self.log = folder / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [BIN / "titan-controller", "--listen", "127.0.0.1:0", "--store", f"etcd://{etcd.address}/test", "--metrics-port",
                 "0", "--port-file", self.ports], stdin=subprocess.DEVNULL, stderr=log)
        self.address = f"127.0.0.1:{wait_until(f'ports of {name}', lambda: self._ports().get('port'))}"

    def _ports(self):
        if self.process.poll() is not None:
            raise AssertionError(self.log.read_text())
        return json.loads(self.ports.read_text()) if self.ports.exists() else {}

    def page(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports()['metrics']}/metrics", timeout=10) as page:
            return page.read().decode()

    def titanctl(self, *arguments, addresses=None, timeout=1):
        return subprocess.run(
            [BIN / "titanctl", "--controller", addresses or self.address, "--timeout", str(timeout), *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout + 10, env={**os.environ, "NO_COLOR": "1"})

    def leads(self):
        return self.titanctl("cluster", "info").returncode == 0

    def has_node(self):
        done = self.titanctl("node", "list", "-o", "json")
        return done.returncode == 0 and any(node["state"] == "READY" for node in json.loads(done.stdout)["nodes"])

    def jobs(self):
        done = self.titanctl("list", "-o", "json")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return {job["name"].split("/")[-1] for job in json.loads(done.stdout)["jobs"]}

    def submit(self):
        done = self.titanctl("submit", self.folder / "job.toml", "--job.dump_folder", self.folder / f"dump-{time.time_ns()}", "-q")
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    def send(self, number):
        self.process.send_signal(number)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class LeaderTest(unittest.TestCase):
    def setUp(self):
        if shutil.which("etcd") is None:
            self.skipTest("no etcd in PATH: not tested here; deploy/bootstrap.sh installs Debian's etcd-server")
        self.folder = Path(tempfile.mkdtemp(prefix="titan-leader-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "job.toml").write_text(JOB)
        self.etcd = Etcd(self.folder)
        self.addCleanup(self.etcd.close)

    def start(self, name):
        controller = Controller(self.folder, name, self.etcd)
        self.addCleanup(controller.close)
        return controller

    # Starts a worker that knows all controllers and marks its child processes.
    def worker(self, controllers, *options):
        mark = uuid.uuid4().hex
        with open(self.folder / "worker.log", "ab") as log:
            process = subprocess.Popen(
                [BIN / "titan-worker", "--controller", ",".join(one.address for one in controllers), "--node", "n1", "--state",
                 self.folder / "n1", "--metrics-port", "0", *options], stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, MARK: mark})
        self.addCleanup(process.wait)
        self.addCleanup(lambda: [left.kill(signal.SIGKILL) for left in all_with(MARK, mark)])
        return mark

    # Starts a titanctl that keeps running, with its output in a file.
    def follower(self, name, controllers, *arguments):
        path = self.folder / f"{name}.txt"
        with open(path, "wb") as out:
            process = subprocess.Popen([BIN / "titanctl", "--controller", controllers, *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, path

    def pair(self):
        first = self.start("first")
        wait_until("leader", first.leads)
        return first, self.start("second")

    # Tokens that one controller created stay valid with the next one, and those that it revoked stay revoked.
    def test_tokens_outlive_the_leader(self):
        first, second = self.pair()
        files = []
        for user in ("alice", "bob"):
            made = first.titanctl("auth", "token", "create", "--user", user, "--role", "viewer", "--project", "*")
            self.assertEqual(made.returncode, 0, made.stderr)
            files.append(self.folder / user)
            files[-1].touch(mode=0o600)
            files[-1].write_text(made.stdout)
        ids = {token["user"]: token["id"] for token in json.loads(first.titanctl("auth", "token", "list", "-o", "json").stdout)["tokens"]}
        self.assertEqual(first.titanctl("auth", "token", "revoke", ids["bob"]).returncode, 0)
        first.send(signal.SIGKILL)
        wait_until("the next leader", second.leads)
        kept, gone = (second.titanctl("list", "--token-file", file) for file in files)
        self.assertEqual(kept.returncode, 0, kept.stderr)
        self.assertEqual(gone.returncode, 1, gone.stdout)
        self.assertIn("was revoked", gone.stderr)

    def test_the_second_takes_over_when_the_leader_is_killed(self):
        first, second = self.pair()
        refused = second.titanctl("list", "-o", "json")
        self.assertEqual(refused.returncode, 5, refused.stderr)
        error = json.loads(refused.stderr.splitlines()[-1])["error"]
        self.assertEqual((error["code"], error["reason"]), ("UNAVAILABLE", "NOT_LEADER"))
        self.assertEqual(error["metadata"]["leader"], first.address)
        self.worker((second, first), "--devices", "cpu:1", "--rank-binary", "/bin/true")
        wait_until("node at the leader", first.has_node)
        acknowledged = {first.submit() for _ in range(3)}
        self.assertIn("\ntitan_leader 1\n", first.page())
        self.assertIn("\ntitan_leader 0\n", second.page())
        both = f"{second.address},{first.address}"  # The standby first.
        self.assertEqual(second.titanctl("list", addresses=both).returncode, 0)
        killed = time.monotonic()
        first.send(signal.SIGKILL)
        listed = second.titanctl("list", addresses=both, timeout=TIMEOUT)
        took = time.monotonic() - killed
        self.assertEqual(listed.returncode, 0, listed.stderr)
        print(f"a controller took over {took:.2f} s after the leader's SIGKILL")
        self.assertEqual(second.jobs(), acknowledged)
        self.assertIn("\ntitan_leader 1\n", second.page())
        wait_until("node at the next leader", second.has_node)
        print(f"and its node was connected {time.monotonic() - killed:.2f} s after it")
        acknowledged.add(second.submit())
        third = self.start("third")
        second.send(signal.SIGTERM)
        ended = time.monotonic()
        wait_until("third leader", third.leads, timeout=TIMEOUT)
        print(f"and another one {time.monotonic() - ended:.2f} s after SIGTERM")
        self.assertEqual(second.process.wait(10), 0)
        self.assertEqual(third.jobs(), acknowledged)

    def test_paused_leader_exits(self):
        first, second = self.pair()
        acknowledged = {first.submit()}
        first.send(signal.SIGSTOP)
        wait_until("new leader", second.leads, timeout=TIMEOUT)
        acknowledged.add(second.submit())
        first.send(signal.SIGCONT)
        self.assertEqual(first.process.wait(TIMEOUT), 3)
        self.assertIn("etcd: ", first.log.read_text())
        self.assertEqual(second.jobs(), acknowledged)

    @unittest.skipUnless((BIN / "titan-rank").exists(), "this build has no ranks")
    def test_job_and_followers_survive_a_leader_change(self):
        first, second = self.pair()
        both, dump = f"{first.address},{second.address}", self.folder / "dump"
        mark = self.worker((first, second), "--devices", "cpu:2")
        wait_until("node at the leader", first.has_node)
        submitted = first.titanctl("submit", *tiny(dump, steps=100000), "-q", timeout=20)
        self.assertEqual(0, submitted.returncode, submitted.stderr)
        job = submitted.stdout.strip()
        waiting, result = self.follower("wait", both, "wait", job)
        reading, log = self.follower("log", both, "logs", "-f", job, "--rank", "0")
        wait_until("steps", lambda: last_step(dump) >= 2)
        wait_until("the log", lambda: "step" in log.read_text())

        def ranks():
            return sorted(one.identity for one in all_with(MARK, mark) if one.program == "titan-rank")

        before = ranks()
        self.assertEqual(2, len(before))
        first.send(signal.SIGKILL)
        wait_until("new leader", second.leads, timeout=TIMEOUT)
        wait_until("its node", second.has_node)
        at, log_size = last_step(dump), log.stat().st_size
        wait_until("more steps", lambda: last_step(dump) >= at + 3)
        wait_until("more of the log", lambda: log.stat().st_size > log_size)
        self.assertEqual(before, ranks())
        described = json.loads(second.titanctl("describe", job, "-o", "json", timeout=20).stdout)
        self.assertEqual((1, "RUNNING"), (len(described["attempts"]), described["state"]))
        self.assertEqual((None, None), (waiting.poll(), reading.poll()), f"{result.read_text()}{log.read_text()[-500:]}")
        self.assertEqual(0, second.titanctl("cancel", job, timeout=20).returncode)
        # The exit code of `wait` for a cancelled job.
        self.assertEqual(1, reading.wait(TIMEOUT), log.read_text()[-500:])
        waiting.wait(TIMEOUT)
        self.assertIn("CANCELLED", result.read_text())

    def test_standby_exits_on_sigterm(self):
        first, second = self.pair()
        second.send(signal.SIGTERM)
        self.assertEqual(second.process.wait(TIMEOUT), 0)
        self.assertTrue(first.leads())


if __name__ == "__main__":
    unittest.main()
