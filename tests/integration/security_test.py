"""Tests a cluster with TLS and real programs: who has access, rotation, what a revoked token ends, and what another user may
do."""

import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

TINY = SOURCE / "configs/llama3_tiny.toml"
NOBODY = 65534  # A user who owns nothing.
TIMEOUT = 60


def wait_until(what, condition):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if (found := condition()):
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {TIMEOUT} s")


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("TITAN_")}


def tls(folder):
    return ["--tls-ca", folder / "ca.crt", "--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key"]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.address = None

    def titanctl(self, *arguments, code=0, **options):
        done = subprocess.run([BIN / "titanctl", *map(str, arguments)], env={**clean_environment(), "TITAN_CONTROLLER": self.address or ""},
                              capture_output=True, text=True, timeout=TIMEOUT, check=False, **options)
        self.assertEqual(code, done.returncode, f"titanctl {arguments}\n{done.stdout}{done.stderr}")
        return done

    def start(self, program, *arguments):
        log = self.folder / f"{program}-{time.time_ns()}.log"
        with open(log, "w") as out:
            process = subprocess.Popen([BIN / program, *map(str, arguments)], env=clean_environment(), stdout=out, stderr=out)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        process.log = log
        return process

    def start_controller(self, *arguments):
        ports = self.folder / "ports.json"
        self.start("titan-controller", "--listen", "127.0.0.1:0", "--state", self.folder / "state", "--port-file", ports,
                   *(arguments if "--metrics-port" in arguments else ("--metrics-port", "-1", *arguments)))
        wait_until("the controller's port", ports.exists)
        self.port = json.loads(ports.read_text())["port"]
        self.address = f"127.0.0.1:{self.port}"

    def audit(self):
        return [json.loads(line) for line in (self.folder / "state/audit.jsonl").read_text().splitlines()]

    def token(self, *arguments, as_admin=()):
        path = self.folder / f"token-{time.time_ns()}"
        made = self.titanctl("auth", "token", "create", *arguments, *as_admin)
        path.touch(mode=0o600)
        path.write_text(made.stdout)
        return path


class Metrics(Case):
    def test_pages_of_metrics_stay_on_this_machine(self):
        ports = self.folder / "worker.json"
        self.start_controller("--metrics-port", "0")
        self.start("titan-worker", "--controller", self.address, "--node", "n1", "--state", self.folder / "n1", "--devices", "cpu:1",
                   "--rank-binary", "/bin/true", "--shim-binary", "/bin/true", "--metrics-port", "0", "--port-file", ports)
        wait_until("the worker's port", lambda: ports.exists() and ports.read_text())
        mine = {json.loads(path.read_text())["metrics"] for path in (ports, self.folder / "ports.json")}
        listening = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for row in Path(table).read_text().splitlines()[1:]:
                local, state = row.split()[1], row.split()[3]
                host, port = local.split(":")
                if state == "0A" and int(port, 16) in mine:
                    listening.add((host, int(port, 16)))
        self.assertEqual({("0100007F", port) for port in mine}, listening)


class Tls(Case):
    def setUp(self):
        super().setUp()
        self.titanctl("cluster", "init-ca", self.folder / "ca")
        self.titanctl("cluster", "issue", "--ca", self.folder / "ca", "--controller", "--address", "127.0.0.1", "--out", self.folder / "c1")
        self.titanctl("cluster", "issue", "--ca", self.folder / "ca", "--node", "n1", "--out", self.folder / "n1")
        self.admin = tls(self.folder / "ca/admin")
        self.start_controller(*tls(self.folder / "c1"))

    def worker(self, node, certificate):
        return self.start("titan-worker", "--controller", self.address, "--node", node, "--state", self.folder / f"worker-{node}", "--devices",
                          "cpu:1", "--rank-binary", "/bin/true", "--shim-binary", "/bin/true", "--metrics-port", "-1",
                          *tls(self.folder / certificate))

    def nodes(self):
        nodes = json.loads(self.titanctl("node", "list", "-o", "json", *self.admin).stdout)["nodes"]
        return {node["name"]: node["state"] for node in nodes}

    def served(self):
        return ssl.get_server_certificate(("127.0.0.1", self.port))

    def test_node_must_match_its_certificate(self):
        self.worker("n1", "n1")
        wait_until("n1", lambda: self.nodes().get("nodes/n1") == "READY")
        other = self.worker("n2", "n1")
        wait_until("a refusal", lambda: "the certificate is node n1's" in other.log.read_text())
        self.assertNotIn("nodes/n2", self.nodes())
        event = json.loads(self.titanctl("events", "--node", "n1", "-o", "json", *self.admin).stdout.splitlines()[0])
        self.assertEqual("node:n1", event["actor"])
        message = self.titanctl("list", *tls(self.folder / "n1"), code=1).stderr
        self.assertIn("node:n1 is not one", message)

    def test_a_renewed_certificate_is_taken_without_a_restart(self):
        self.worker("n1", "n1")
        wait_until("n1", lambda: self.nodes().get("nodes/n1") == "READY")
        before = self.served()
        issue = ["cluster", "issue", "--ca", self.folder / "ca", "--controller", "--address", "127.0.0.1", "--out", self.folder / "c1"]
        self.assertIn("--renew", self.titanctl(*issue, code=1).stderr)  # A key is not overwritten by accident.
        self.titanctl(*issue, "--renew")
        wait_until("the new certificate", lambda: self.served() != before)
        self.assertEqual({"nodes/n1": "READY"}, self.nodes())

    def test_revoked_token_ends_open_streams(self):
        token = self.token("--user", "alice", "--role", "operator", "--project", "vision", "--expires", "1d", as_admin=self.admin)
        anybody = ["--tls-ca", self.folder / "c1/ca.crt", "--token-file", token]
        job = self.titanctl("submit", TINY, "--nproc", "1", "--scheduling.project", "vision", "--job.dump_folder", self.folder / "dump", "-q",
                            *anybody).stdout.strip()
        self.assertIn("default", self.titanctl("submit", TINY, "--nproc", "1", "--job.dump_folder", self.folder / "d", "-q", *anybody,
                                               code=1).stderr)
        with open(self.folder / "followed", "w") as out:
            follower = subprocess.Popen([BIN / "titanctl", "--controller", self.address, "events", job, "-f", *map(str, anybody)],
                                        env=clean_environment(), stdout=out, stderr=subprocess.PIPE, text=True)
        self.addCleanup(follower.kill)
        wait_until("an event", lambda: "JobQueued" in (self.folder / "followed").read_text())
        listed = self.titanctl("auth", "token", "list", "-o", "json", *self.admin).stdout
        secret = token.read_text().strip().split("_")[2]
        self.assertNotIn(secret, listed)
        self.titanctl("auth", "token", "revoke", json.loads(listed)["tokens"][0]["id"], *self.admin)
        _, message = follower.communicate(timeout=TIMEOUT)
        self.assertEqual(1, follower.returncode, message)
        self.assertIn("was revoked", message)
        self.assertIn("token", self.titanctl("list", *anybody, code=1).stderr)
        audited = [(line["actor"], line["method"], line["result"]) for line in self.audit()]
        self.assertEqual([("user:admin", "AuthService.CreateToken", "OK"), ("user:alice", "JobService.CreateJob", "OK"),
                          ("user:alice", "JobService.CreateJob", "ROLE_MISSING"), ("user:admin", "AuthService.RevokeToken", "OK")], audited)
        for path in (self.folder / "state").iterdir():
            if path.is_file():
                self.assertNotIn(secret.encode(), path.read_bytes(), path)

    def test_plaintext_finds_no_controller(self):
        self.titanctl("list", "--timeout", "1", code=5)


@unittest.skipUnless(os.geteuid() == 0, "only root may become another user")
class AnotherUser(Case):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o755)
        self.start_controller()
        self.program = self.folder / "titanctl"
        shutil.copy(BIN / "titanctl", self.program)

    def other(self, *arguments):
        return subprocess.run([self.program, "--controller", self.address, *map(str, arguments)], env={"PATH": os.environ["PATH"]}, user=NOBODY,
                              group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=TIMEOUT, check=False)

    def test_needs_a_token(self):
        self.titanctl("list")
        for words in (["list"], ["node", "list"], ["cluster", "info"], ["cancel", "x"], ["auth", "token", "list"], ["events"]):
            done = self.other(*words)
            self.assertEqual(1, done.returncode, done.stdout + done.stderr)
            self.assertIn(f"user {NOBODY} calls", done.stderr)
        self.assertEqual([(f"local:{NOBODY}", "JobService.CancelJob", "ANOTHER_USER")],
                         [(line["actor"], line["method"], line["result"]) for line in self.audit()])
        token = self.token("--user", "bob", "--role", "viewer", "--project", "*")
        self.assertIn("Permission denied", self.other("list", "--token-file", token).stderr)  # The other user may not read the file yet.
        os.chown(token, NOBODY, NOBODY)
        self.assertEqual(0, self.other("list", "--token-file", token).returncode)
        self.assertEqual(1, self.other("node", "cordon", "n1", "--token-file", token).returncode)


if __name__ == "__main__":
    unittest.main(verbosity=2)
