"""Runs docs/operate/cluster-with-tls.md, command by command, on four machines that are namespaces, each with its own names,
network and mounts.

The test runs the page's commands; flags added at the end only make the job small and turn off the daemons' pages. Needs root and
iproute2.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults/matrix"))
from cluster import BIN, SOURCE, wait_until
from netns import Network, available

PAGE = SOURCE / "docs/operate/cluster-with-tls.md"
MACHINES = ("m1", "m2", "m3", "m4")
FAKE_RANK = BIN.parent / "tests/fake_rank"
TRAINS = (BIN / "titan-rank").exists()
STAND_IN = "" if TRAINS else f" --rank-binary {FAKE_RANK}"  # A worker looks for its programs before it connects to a controller.
SMALL = ["--training.steps", "3", "--lr_scheduler.total_steps", "3", "--training.seq_len", "64", "--validation.no_enable",
         "--training.mixed_precision_param", "float32", "--metrics.no_enable_tensorboard", "--resources.threads_per_rank", "1"]
# Makes a machine: its name, its names for the others, a shared /srv, and a private /var/lib.
MACHINE = """hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/srv" /srv && mount -t tmpfs none /var/lib && shift 2 && exec "$@" """
# Records every byte that a machine sends or receives, at its port of the switch.
RECORDER = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind((sys.argv[1], 0))
print("ready", flush=True)
with open(sys.argv[2], "wb", buffering=0) as out:
    while True:
        out.write(link.recv(65535))
"""

# Prints what a server answers to HTTP/2 without TLS.
ANSWERS_PLAINTEXT = """
import socket
with socket.create_connection(("m1", 7700), 10) as peer:
    peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(9))
    try:
        answer = peer.recv(4096)
    except ConnectionResetError:
        answer = b""
print(answer[:2].hex() if answer[:1] != b"\\x15" else "", end="")
"""


def commands():
    """Returns the page's commands, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    return [line for block in blocks for line in block.splitlines()]


@unittest.skipIf(available(), available() or "namespaces can be made")
class TlsCluster(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="titan-tls-")))
        self.network = Network(MACHINES)
        self.addCleanup(self.network.close)
        (self.folder / "srv/titan").mkdir(parents=True)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{self.network.address(m)} {m}\n" for m in MACHINES))
        (self.folder / "configs").symlink_to(SOURCE / "configs")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TITAN_")}
        self.environment = {**clean, "PATH": f"{BIN}:{os.environ['PATH']}", "TITAN_TEST_FAKE_RANK": '{"steps": 3}'}

    def on(self, machine, command):
        return [*self.network.prefix_of(machine), "unshare", "--mount", "--uts", "sh", "-c", MACHINE, "sh", machine, str(self.folder),
                "bash", "-c", command]

    def run_on(self, machine, command, code=0):
        done = subprocess.run(self.on(machine, command), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(code, done.returncode, f"{machine}: {command}\n{done.stdout}{done.stderr}{self.logs()}")
        return done.stdout + done.stderr

    def start_on(self, machine, command, name):
        log = self.folder / f"{name}.log"
        with open(log, "w") as out:
            process = subprocess.Popen(self.on(machine, f"exec {command}"), env=self.environment, cwd=self.folder, stdout=out, stderr=out,
                                       start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return log

    def logs(self):
        return "".join(f"\n--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def end_ranks(self):
        """Kills what is left on the machines: ranks and shims outlive their daemons."""
        for machine in MACHINES:
            held = subprocess.run(["ip", "netns", "pids", self.network.space(machine)], capture_output=True, text=True).stdout.split()
            subprocess.run(["kill", "-9", *held], check=False, capture_output=True) if held else None

    def record(self, machine):
        """Starts to record what the machine sends and receives."""
        file = self.folder / "wire"
        process = subprocess.Popen([*self.network.prefix_of("switch"), sys.executable, "-c", RECORDER, f"to-{MACHINES.index(machine) + 1}", file],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual("ready\n", process.stdout.readline())
        return file

    def nodes(self):
        listed = json.loads(self.run_on("m1", "titanctl --controller m1:7700 --tls ca/admin node list -o json"))
        return {node["name"].split("/")[1]: node["state"] for node in listed["nodes"]}

    def test_page_makes_a_cluster_that_refuses_strangers(self):
        make_authority, certify, controller, worker, submit = commands()
        self.run_on("m1", make_authority)
        self.run_on("m1", certify)
        self.addCleanup(self.end_ranks)
        wire = self.record("m1")
        self.start_on("m1", f"{controller} --metrics-port -1", "controller")
        for machine in MACHINES:
            self.start_on(machine, f"{worker} --metrics-port -1 --rank-user root --devices cpu:1{STAND_IN}", f"worker-{machine}")
        wait_until("four ready nodes", lambda: self.nodes() == dict.fromkeys(MACHINES, "READY"), 30, poll=0.1)
        answer = self.run_on("m4", " ".join([submit, *SMALL]))
        self.assertIn("SUCCEEDED", answer)
        if TRAINS:
            self.assertTrue(list((self.folder / "srv/titan/tiny").glob("checkpoint/step-3/manifest.json")), answer)

        self.strangers()
        self.assertEqual(set(MACHINES), set(self.nodes()))

        bytes_seen = wire.read_bytes()
        self.assertIn(b"\x16\x03\x01", bytes_seen)  # The beginning of a TLS connection.
        for plain in (b"PRI * HTTP/2.0", b"titan.v1", b"WorkerService", b"ANOTHER_NODE"):
            self.assertNotIn(plain, bytes_seen)
        self.assertEqual("", self.run_on("m2", f"exec {sys.executable} -c '{ANSWERS_PLAINTEXT}'"))
        self.run_on("m2", "titanctl --timeout 2 --insecure --controller m1:7700 node list", code=5)

    def strangers(self):
        """Tries strangers from m2, which has a certificate and the network, but not an admin's certificate."""
        self.run_on("m2", "titanctl cluster init-ca other && titanctl cluster issue --ca other --controller --address m2 --node m2,m5 --out fake")
        ask = "titanctl --timeout 2 --controller m1:7700 {} node list"
        refusals = {
            "a certificate of another authority": ask.format("--tls-ca ca/ca.crt --tls-cert other/admin/tls.crt --tls-key other/admin/tls.key"),
            "no certificate": ask.format("--tls-ca ca/ca.crt"),
            "a node's certificate": ask.format("--tls tls/m2"),
        }
        for what, command in refusals.items():
            with self.subTest(what):
                done = subprocess.run(self.on("m2", command), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60)
                self.assertIn(done.returncode, (1, 5), done.stdout + done.stderr)
                self.assertNotIn("m1", done.stdout)
        # A worker of this cluster does not follow a controller with a certificate of another authority.
        self.start_on("m2", "titan-controller --listen 0.0.0.0:7701 --tls fake/controller --state fake-state --metrics-port -1", "fake-controller")
        astray = self.start_on("m3", f"titan-worker --controller m2:7701 --node m3 --state astray --tls tls/m3 --metrics-port -1{STAND_IN}", "astray")
        # Nodes with a certificate of another authority, and with another node's.
        foreign = self.start_on("m2", "titan-worker --controller m1:7700 --node m5 --state foreign --tls-ca ca/ca.crt --tls-cert fake/m5/tls.crt "
                                f"--tls-key fake/m5/tls.key --metrics-port -1{STAND_IN}", "foreign")
        another = self.start_on("m2", f"titan-worker --controller m1:7700 --node m5 --state another --tls tls/m2 --metrics-port -1{STAND_IN}", "another")
        wait_until("refusals", lambda: all("warn" in log.read_text().lower() or "error" in log.read_text().lower() for log in (astray, foreign)), 30)
        wait_until("a refusal", lambda: "the certificate is node m2's" in another.read_text(), 30)
        for log in (astray, foreign, another):
            self.assertNotIn("StartFailed", log.read_text(), "they were refused, not misconfigured")


if __name__ == "__main__":
    unittest.main(verbosity=2)
