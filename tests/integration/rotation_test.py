"""Changes certificates, their authority and tokens under a training job: it loses no step, and no caller gains access that it
should not have.

Prints the figures that docs/benchmarks/control-plane.md keeps.
"""

import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults/matrix"))
from cluster import BIN, Cluster, wait_until
from jobs import last_step, losses, metric_lines, tiny, wait_step
from proxy import Proxy

NODES = ("n1", "n2")
LIFETIME = 8  # Lifetime of a token in seconds; calls made with it are open before it expires.
STEPS = 100_000  # More steps than the test lasts: the job is stopped at the end.


class TlsCluster(Cluster):
    """A controller and two workers with certificates. Workers connect through a proxy that can cut their connections."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="titan-rotation-"))
        self.ca, self.tls = self.folder / "ca", self.folder / "tls"
        self.pki("init-ca", self.ca)
        self.issue()
        super().__init__(workers=0, devices=1, folder=self.folder)
        self.environment["TITAN_TLS"] = str(self.ca / "admin")
        self.proxy = Proxy(self.address)
        for node in NODES:
            self.add_worker(node)

    def issue(self, *more, ca=None):
        self.pki("issue", "--ca", ca or self.ca, "--controller", "--address", "127.0.0.1", "--node", ",".join(NODES), "--out", self.tls, *more)

    def trust(self, *authorities):
        """Makes every ca.crt hold exactly these authorities."""
        text = "".join((folder / "ca.crt").read_text() for folder in authorities)
        for folder in (*self.tls.iterdir(), self.ca / "admin"):
            fresh = folder / "ca.crt.new"
            fresh.write_text(text)
            fresh.rename(folder / "ca.crt")

    def _start_controller(self, lease_ms):
        super()._start_controller(lease_ms)
        self.controller.command += ["--tls", str(self.tls / "controller")]  # For every later start.

    def _add(self, name, command):
        if name != "controller":
            command = [self.proxy.address if word == self.address else word for word in command]
            command += ["--rank-user", "root"] if os.geteuid() == 0 else []  # The user admin has no account on this machine.
        return super()._add(name, [*command, "--tls", self.tls / name])

    def served(self):
        host, port = self.address.split(":")
        return ssl.get_server_certificate((host, int(port)))

    def ends_of_certificates(self):
        """Returns expiry times of the certificates of the controller and of both nodes, from their metrics pages."""
        ports = [self.metrics_port, *(json.loads((self.folder / f"{name}-ports.json").read_text())["metrics"] for name in NODES)]
        pages = [urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode() for port in ports]
        return [float(re.search(r"^titan_certificate_expiry_timestamp_seconds\S* (\S+)$", page, re.M)[1]) for page in pages]

    def ready(self):
        return self.ask("cluster", "info")["ready_nodes"] == len(NODES)

    def close(self):
        super().close()
        self.proxy.close()


class Rotation(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cluster = self.enterContext(TlsCluster())
        self.figures = []

    def tearDown(self):
        if self._outcome.result.failures or self._outcome.result.errors:
            self.cluster.show_logs()

    def training_continues(self):
        wait_step(self.dump, last_step(self.dump) + 2)

    def note(self, what, begun=None):
        took = "" if begun is None else f"{time.monotonic() - begun:.1f} s"
        self.figures.append((what, took, last_step(self.dump)))

    def token(self, user, *more):
        path = self.folder / f"{user}.token"
        path.touch(mode=0o600)
        path.write_text(self.cluster.titanctl("auth", "token", "create", "--user", user, "--role", "operator", "--project", "default", *more).stdout)
        return path

    def by_token(self, path):
        """Returns the environment of a user who has a token and no certificate."""
        return {**self.cluster.environment, "TITAN_TLS": "", "TITAN_TLS_CA": str(self.cluster.ca / "ca.crt"), "TITAN_TOKEN_FILE": str(path),
                "TITAN_CONTROLLER": self.cluster.address}

    def follow(self, path):
        """Opens streams with a token: a watch of the job, its events and its log."""
        verbs = {"wait": ["wait", self.job], "events": ["events", self.job, "-f"], "logs": ["logs", self.job, "-f"]}
        opened = {}
        for verb, words in verbs.items():
            with open(self.folder / f"{path.name}-{verb}", "w") as out:
                opened[verb] = subprocess.Popen([BIN / "titanctl", *words], env=self.by_token(path), stdout=out, stderr=out)
            self.addCleanup(opened[verb].wait)
            self.addCleanup(opened[verb].kill)
        for verb in ("events", "logs"):
            wait_until(f"the first of {verb}", lambda v=verb: (self.folder / f"{path.name}-{v}").stat().st_size > 0)
        return opened

    def expect_ended(self, path, opened, begun, word):
        for verb, process in opened.items():
            process.wait(timeout=60)
            printed = (self.folder / f"{path.name}-{verb}").read_text()
            self.assertEqual(1, process.returncode, printed)
            self.assertIn(word, printed)
        self.note(f"{', '.join(opened)} have ended: {word}", begun)

    def refused(self, path):
        done = subprocess.run([BIN / "titanctl", "list"], env=self.by_token(path), capture_output=True, text=True, timeout=60)
        return done.returncode == 1 and "token" in done.stderr

    def cut(self):
        """Cuts every worker's connection and waits until each has a new one."""
        accepted = self.cluster.proxy.accepted
        self.cluster.proxy.cut(refuse=False)
        wait_until("new connections", lambda: self.cluster.proxy.accepted >= accepted + len(NODES))
        wait_until("both nodes again", self.up)

    def kill_daemons(self):
        for daemon in self.cluster.daemons.values():
            daemon.kill()

    def test_rotation_does_not_disturb_a_job(self):
        cluster = self.cluster
        wait_until("two ready nodes", cluster.ready)
        self.dump = self.folder / "dump"
        self.job = cluster.submit(*tiny(self.dump, steps=STEPS, interval=STEPS, ranks_per_node=1))
        wait_step(self.dump, 2)
        ranks = {p.identity for p in cluster.ranks()}
        alice = self.token("alice")
        opened = self.follow(alice)

        begun, before, ends = time.monotonic(), cluster.served(), cluster.ends_of_certificates()
        cluster.issue("--renew")
        wait_until("the new certificate", lambda: cluster.served() != before)
        self.assertTrue(all(new > old for new, old in zip(cluster.ends_of_certificates(), ends)), "the expiry times on the metrics pages")
        self.cut()
        self.training_continues()
        self.note("certificates of controller and nodes renewed, sockets cut", begun)
        self.assertEqual({None}, {process.poll() for process in opened.values()}, "streams stay open")

        begun = time.monotonic()
        cluster.titanctl("auth", "token", "revoke", next(t["id"] for t in cluster.ask("auth", "token", "list")["tokens"] if t["user"] == "alice"))
        revoked = time.monotonic()
        self.assertTrue(self.refused(alice), "the first call after the revocation")
        self.note("token revoked; the next call is refused", begun)
        self.expect_ended(alice, opened, revoked, "was revoked")

        ends = time.monotonic() + LIFETIME  # Exact to a second, as token expiry is.
        bob = self.token("bob", "--expires", f"{LIFETIME}s")
        opened = self.follow(bob)
        self.expect_ended(bob, opened, ends, "expired")
        self.assertTrue(self.refused(bob))

        begun = time.monotonic()
        following = self.folder / "next"
        cluster.pki("init-ca", following)
        cluster.trust(cluster.ca, following)
        self.kill_daemons()
        wait_until("both nodes, both authorities trusted", self.up)
        before = cluster.served()
        cluster.issue("--renew", ca=following)
        wait_until("a certificate of the new authority", lambda: cluster.served() != before)
        self.cut()
        old_admin = self.folder / "old-admin"
        subprocess.run(["cp", "-r", cluster.ca / "admin", old_admin], check=True)
        reaching = {**cluster.environment, "TITAN_CONTROLLER": cluster.address}
        by_old = [BIN / "titanctl", "--tls", old_admin, "--tls-ca", following / "ca.crt"]
        with open(self.folder / "old-events", "w") as out:
            opened = {"events": subprocess.Popen([*by_old, "events", self.job, "-f"], env=reaching, stdout=out, stderr=out)}
        self.addCleanup(opened["events"].wait)
        self.addCleanup(opened["events"].kill)
        wait_until("the first of events", lambda: (self.folder / "old-events").stat().st_size > 0)
        cluster.pki("issue", "--ca", following, "--admin", "admin", "--out", cluster.ca / "admin", "--renew")
        forgotten = time.monotonic()
        cluster.trust(following)
        self.expect_ended(Path("old"), opened, forgotten, "not signed by an authority that this controller trusts")
        self.training_continues()
        wait_until("both nodes, the old authority forgotten", self.up)
        self.kill_daemons()
        wait_until("both nodes again", self.up)
        self.training_continues()
        self.note("authority replaced: both, then the new one alone; daemons killed after each", begun)
        old = subprocess.run([*by_old, "--timeout", "2", "list"], env=reaching, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(0, old.returncode, "an admin of the old authority is accepted")

        self.assertEqual(ranks, {p.identity for p in cluster.ranks()}, "a rank was restarted")
        self.assertEqual(1, len(cluster.job(self.job)["attempts"]))
        cluster.titanctl("cancel", self.job, "--wait", "--timeout", "60")
        disturbed = losses(self.dump)
        self.assertEqual({1}, {line["attempt"] for line in metric_lines(self.dump)})
        self.assertEqual(list(range(1, last_step(self.dump) + 1)), [line["step"] for line in metric_lines(self.dump) if line["step"]])
        calm = self.folder / "calm"
        arguments = tiny(calm, steps=STEPS, interval=STEPS, ranks_per_node=1, extra=["--training.steps", len(disturbed)])
        cluster.succeed(cluster.submit(*arguments), timeout=120)
        self.assertEqual(losses(calm), disturbed)
        self.note(f"loss curve of {len(disturbed)} steps, bit for bit that of an undisturbed run; attempt 1")
        for what, took, step in self.figures:
            print(f"{what:<85} {took:>7}  step {step}")

    def up(self):
        try:
            return self.cluster.ready()
        except (AssertionError, subprocess.TimeoutExpired, json.JSONDecodeError):
            return False  # The controller is restarting.


if __name__ == "__main__":
    unittest.main(verbosity=2)
