"""Tests what hostile clients, nodes, ranks and users of the machine can reach in a real cluster, as one table.

    hostile_test.py [--store]       --store: writes docs/generated/security-table.md

The test fails if its table differs from the stored one. docs/security.md says what each caller should be able to reach. Needs
root, to become another user.
"""

import datetime
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
from cluster import BIN, SOURCE, Cluster, wait_until
from jobs import TINY
from memory import SANITIZED

try:
    import client
except ImportError as missing:
    client, NO_CLIENT = None, f"needs grpcio: {missing}"

PAGE = SOURCE / "docs/generated/security-table.md"
FAKE_RANK = BIN.parent / "tests/fake_rank"
PROBE = Path(__file__).with_name("probe.py")
NOBODY = pwd.getpwnam("nobody").pw_uid
PYTHON = "/usr/bin/python3"  # Another user may not enter our folder.
PLANTED = {"TITAN_TOKEN_FILE": "/planted", "PLANTED_PASSWORD": "planted"}  # Set in the environment of the daemons.
VICTIM = "projects/p/jobs/victim"
RANK = """#!/bin/sh
# A rank of the job "hostile" looks around; of any other job it is a stand-in.
folder=$(dirname "$0")
case "$*" in *launch.json*) launch=$(cat "$2") ;; esac
case "$launch" in
  *jobs/hostile*) {python} "$folder/probe.py" "$folder/targets.json" "$folder/results/rank.json" && exec sleep 600 ;;
  *) TITAN_TEST_FAKE_RANK='{{"steps": -1}}' exec "$folder/fake_rank" "$@" ;;
esac
"""


class Victims(Cluster):
    """A cluster that runs a victim's job. With `tls`, callers are known by certificates and tokens; without, by the kernel."""

    def __init__(self, tls, rank_user=""):
        self.folder = Path(tempfile.mkdtemp(prefix="titan-hostile-"))
        self.folder.chmod(0o755)
        self.rank_user = rank_user
        self.programs = self.folder / "programs"
        (self.programs / "results").mkdir(parents=True)
        (self.programs / "results").chmod(0o777)
        # Another user may not enter our folder, which may be in root's home: programs for that user are copied.
        for program in (BIN / "titanctl", BIN / "titan-shim", BIN / "titan-stacks", FAKE_RANK, PROBE):
            shutil.copy(program, self.programs)
        (self.programs / "rank").write_text(RANK.format(python=PYTHON))
        (self.programs / "rank").chmod(0o755)
        self.tls = None
        if tls:
            self.tls = self.folder / "tls"
            self.pki("init-ca", self.folder / "ca")
            self.pki("issue", "--ca", self.folder / "ca", "--controller", "--address", "127.0.0.1", "--node", "n1,n9", "--user", "eve", "--out", self.tls)
            self.pki("init-ca", self.folder / "foreign")
        super().__init__(workers=0, folder=self.folder, supervise=False, lease_ms=60_000)  # A slow machine must not look like a lost node.
        if tls:
            self.environment["TITAN_TLS"] = str(self.folder / "ca/admin")
        self.add_worker("n1", devices=2)
        wait_until("a ready node", lambda: self.ask("cluster", "info")["ready_nodes"] == 1)
        (self.folder / "dump").mkdir()
        (self.folder / "dump").chmod(0o777)
        self.start_job("victim")

    def start_job(self, name):
        self.submit(TINY, "--scheduling.project", "p", "--job-id", name, "--job.dump_folder", self.folder / "dump" / name, "--nproc", 1)
        if name == "victim":
            wait_until("its rank", lambda: self.job(VICTIM)["state"] == "RUNNING")

    def _add(self, name, command):
        if self.tls:
            command = [*command, "--tls", self.tls / name]
        if name != "controller":
            command = [*command, "--rank-binary", self.programs / "rank", "--shim-binary", self.programs / "titan-shim",
                       *(["--rank-user", self.rank_user] if self.rank_user else [])]
        environment, self.environment = self.environment, {**self.environment, **PLANTED}
        self.environment.pop("TITAN_TLS", None)
        try:
            return super()._add(name, command)
        finally:
            self.environment = environment

    @property
    def port(self):
        return int(self.address.rsplit(":", 1)[1])

    def token(self, *words):
        return self.titanctl("auth", "token", "create", *words).stdout.strip()

    def victim_is_well(self):
        job = self.job(VICTIM)
        return job["state"] == "RUNNING" and len(job["attempts"]) == 1 and self.ask("node", "describe", "n1")["state"] == "READY"


class Table:
    """Sections of rows; the test prints them and the page keeps them."""

    def __init__(self):
        self.sections = {}

    def put(self, section, row, column, value):
        self.sections.setdefault(section, {}).setdefault(row, {})[column] = value

    def lines(self):
        out = []
        for section, rows in self.sections.items():
            columns = list(dict.fromkeys(column for row in rows.values() for column in row))
            out += ["", f"## {section}", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
            out += [f"| {name} | " + " | ".join(row.get(column, "") or "nothing" for column in columns) + " |" for name, row in rows.items()]
        return out


def as_nobody(work):
    """Returns the result of work() in a process of another user. Call it before gRPC starts here: gRPC does not survive a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with os.fdopen(writer, "w") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def rss_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)) >> 10


@unittest.skipIf(client is None, NO_CLIENT if client is None else "")
@unittest.skipUnless(os.geteuid() == 0, "only root may become another user")
class Hostile(unittest.TestCase):
    maxDiff = None

    def test_access_of_every_caller(self):
        table = Table()
        with Victims(tls=True, rank_user="root") as cluster:
            self.calls(table, cluster)
            self.bytes_at_the_port(table, cluster)
            self.node(table, cluster)
            wait_until("the undisturbed victim", cluster.victim_is_well)
        self.machine(table, "a rank of another job, as the worker's user")
        if "--rank-user" in subprocess.run([BIN / "titan-worker", "--help"], capture_output=True, text=True).stdout:
            self.machine(table, "a rank of another job, with --rank-user", rank_user="daemon")
        lines = table.lines()
        print("\n".join(lines))
        if "--store" in sys.argv:
            return store(lines)
        kept = PAGE.read_text().splitlines()
        self.assertEqual(kept[kept.index("## Calls") - 1:], lines, "hostile_test.py --store writes docs/generated/security-table.md")

    # --- Calls ---

    def calls(self, table, cluster):
        ca, foreign = (cluster.folder / "ca/ca.crt").read_bytes(), cluster.folder / "foreign"
        port = cluster.port
        expires = cluster.token("--user", "ex", "--role", "admin", "--project", "*", "--expires", "8s")
        tokens = {
            "viewer of the project": cluster.token("--user", "vera", "--role", "viewer", "--project", "p"),
            "operator of another project": cluster.token("--user", "otto", "--role", "operator", "--project", "q"),
            "revoked token": cluster.token("--user", "rita", "--role", "admin", "--project", "*"),
            "expired token": expires,
        }
        for token in cluster.ask("auth", "token", "list")["tokens"]:
            if token["user"] == "rita":
                cluster.titanctl("auth", "token", "revoke", token["id"])
        identities = {"admin of another CA": client.identity_in(foreign / "admin"), "user certificate": client.identity_in(cluster.tls / "eve"),
                      "node certificate": client.identity_in(cluster.tls / "n9")}
        requests = [(path, client.request_of(message, VICTIM, "n1")) for path, message in [*client.methods(), *client.OPEN]]
        for path, who, code in as_nobody(lambda: self.call_everything(requests, port, ca, identities, tokens)):
            table.put("Calls", f"`{path.split('.')[-1]}`", who, client.got(code))
        for row, columns in table.sections["Calls"].items():
            for who, what in columns.items():
                if "Health" in row or "Reflection" in row or what != "allowed":
                    continue
                reads = re.search(r"/(Get|List|Watch|Tail)", row) is not None
                allowed = reads and who in ("viewer of the project", "operator of another project") or (row, who) == \
                    ("`WorkerService/Session`", "node certificate")
                self.assertTrue(allowed, f"{who} is allowed to call {row}")

    @staticmethod
    def call_everything(requests, port, ca, identities, tokens):
        """Calls every method as every caller; returns (path, caller, code). Opens no file: another user may not read this checkout."""
        good, expired = tokens["viewer of the project"], tokens["expired token"]
        tokens["wrong token"] = good[:-4] + ("0000" if not good.endswith("0000") else "1111")
        anybody = client.channel(port, ca)
        wait_until("the token's end", lambda: client.call(anybody, "/titan.v1.AuthService/ListTokens", token=expired) == "UNAUTHENTICATED")
        callers = {"plaintext": (client.channel(port), ""), "neither certificate nor token": (anybody, "")}
        callers |= {who: (client.channel(port, ca, identity), "") for who, identity in identities.items()}
        callers |= {who: (anybody, token) for who, token in tokens.items()}
        found = []
        for path, request in requests:
            found += [(path, who, client.call(channel, path, request, token)) for who, (channel, token) in callers.items()]
        return found

    # --- Bytes ---

    def bytes_at_the_port(self, table, cluster):
        section, what = "Hostile bytes at the controller's port", "result"
        ca, pid = cluster.folder / "ca/ca.crt", cluster.controller.pid
        before = rss_mib(pid)

        def others_are_served():
            self.assertIsNone(cluster.controller.process.poll(), "the controller has ended")
            wait_until("an answer to others", lambda: cluster.ask("cluster", "info")["ready_nodes"] == 1)
            self.assertLess(rss_mib(pid) - before, 512 * SANITIZED)
            return "no effect; other clients are served"

        for name, garbage in {"random bytes": os.urandom(1 << 20), "HTTP/2 without TLS": client.PREFACE + bytes(1 << 10),
                              "a TLS record with a false length": b"\x16\x03\x01\xff\xff" + bytes(100)}.items():
            with client.socket.create_connection(("127.0.0.1", cluster.port), 30) as peer:
                client.send(peer, [garbage])
            table.put(section, name, what, others_are_served())
        silent = [client.socket.create_connection(("127.0.0.1", cluster.port), 30) for _ in range(300)]
        table.put(section, "300 silent connections", what, others_are_served())
        for peer in silent:
            peer.close()
        for name, pieces in client.floods("/titan.v1.JobService/ListJobs").items():
            with client.connect_tls(cluster.port, ca) as peer:
                client.send(peer, pieces)
            table.put(section, name, what, others_are_served())
        channel = client.channel(cluster.port, ca.read_bytes())
        admin = client.channel(cluster.port, ca.read_bytes(), client.identity_in(cluster.folder / "ca/admin"))
        for name, who, request, metadata in (("a message of 100 MiB", channel, bytes(100 << 20), ()),
                                             ("a message of 100 MiB from an admin", admin, bytes(100 << 20), ()),
                                             ("64 KiB of metadata", channel, b"", (("x-much", "v" * (64 << 10)),)),
                                             ("bytes that are not a message from an admin", admin, b"\xff" * 100, ())):
            code = client.call(who, "/titan.v1.JobService/GetJob", request, metadata=metadata)
            self.assertNotIn(code, ("answered", "OK"), name)
            table.put(section, name, what, others_are_served())
        channel.close()
        admin.close()

    # --- A node ---

    def node(self, table, cluster):
        section, what = "A node with a valid certificate", "result"
        ca = cluster.folder / "ca/ca.crt"
        uid = cluster.job(VICTIM)["uid"]
        identity = client.field(1, uid) + client.field(2, 1)
        path = "/titan.v1.WorkerService/Session"

        def hello(node="n9", instance="i", inventory=b""):
            return client.field(1, client.field(1, node) + client.field(3, "127.0.0.1") + client.field(6, instance) + inventory)

        def session(*messages):
            """Returns how the session ends after the node has sent these messages."""
            channel = client.channel(cluster.port, ca.read_bytes(), client.identity_in(cluster.tls / "n9"))
            stream = channel.stream_stream(path)(iter(messages), timeout=30)
            try:
                answers = [bytes(answer) for answer in stream]
                return "OK", answers
            except client.grpc.RpcError as error:
                return error.code().name, []
            finally:
                channel.close()

        def events(node="n9"):
            return [json.loads(line)["reason"] for line in cluster.titanctl("events", "--node", node, "-o", "json", check=False).stdout.splitlines()]

        def untouched():
            wait_until("the undisturbed victim", cluster.victim_is_well)

        code, _ = session(hello("n1"))
        self.assertEqual("PERMISSION_DENIED", code)
        table.put(section, "registers as another node", what, "refused: PERMISSION_DENIED")
        code, answers = session(hello())
        self.assertEqual("OK", code)
        table.put(section, "registers as itself", what, "its session")
        code, _ = session(hello(instance="another"))
        self.assertEqual("ALREADY_EXISTS", code)
        table.put(section, "registers from a second state folder", what, "refused: ALREADY_EXISTS")
        code, _ = session(client.field(2, client.field(2, 1)))
        self.assertEqual("INVALID_ARGUMENT", code)
        table.put(section, "sends a message before it registers", what, "refused: INVALID_ARGUMENT")
        code, _ = session(hello(), client.field(2, client.field(1, 1) + client.field(2, 1)))
        self.assertEqual("OK", code)
        untouched()
        table.put(section, "sends a heartbeat with an old lease epoch", what, "ignored: the lease belongs to the session")
        line = client.field(3, client.field(1, 99) + client.field(2, '{"kind":"step","step":500,"metrics":{}}'))
        lies = {
            "reports the end of another node's ranks": client.field(3, client.field(1, identity) + client.field(2, 3)),
            "sends events for another node's rank": client.field(4, client.field(1, identity) + line),
            "sends a heartbeat for another node's attempt": client.field(2, client.field(3, client.field(1, identity) + client.field(2, client.field(3, 500)))),
        }
        for lie, message in lies.items():
            before = events().count("NodeSpeaksForOthers")
            session(hello(), message)
            wait_until("the event", lambda n=before: events().count("NodeSpeaksForOthers") > n)
            untouched()
            table.put(section, lie, what, "ignored; an event reports it")
        session(hello(), client.field(5, client.field(1, 1)))
        untouched()
        table.put(section, "answers a request that was not made", what, "ignored")
        placement = client.field(5, client.field(1, "n9") + client.field(3, 1))
        newer = client.field(5, client.field(1, client.field(1, uid) + client.field(2, 7)) + client.field(2, 2) + placement)
        session(hello(inventory=newer))
        untouched()
        table.put(section, "claims a newer attempt of another node's job", what, "ignored; an event reports it")
        for name, message in {"bytes that are not a message": b"\xff" * 100, "a message of 100 MiB": bytes(100 << 20)}.items():
            code, _ = session(hello(), message)
            self.assertNotEqual("OK", code)
            untouched()
            table.put(section, name, what, "its session ends")
        for _ in range(10):
            session(hello())
        wait_until("the mark", lambda: "NodeFlapping" in events())
        untouched()
        table.put(section, "opens ten sessions", what, "one at a time; the node is marked as flapping")

    # --- The machine ---

    def machine(self, table, rank_column, rank_user=""):
        """Adds what a hostile rank and another user can reach in a cluster on loopback, which knows its callers by the kernel."""
        with Victims(tls=False, rank_user=rank_user) as cluster:
            token = cluster.folder / "token"
            token.touch(mode=0o600)
            token.write_text(cluster.token("--user", "root", "--role", "admin", "--project", "*"))
            victim = next(p for p in cluster.processes("fake_rank"))
            run_folder = next((cluster.folder / "n1/jobs").glob("*/attempt-1"))
            wait_until("all files of a running attempt", (run_folder / "offsets.json").exists)  # The file that is written last.
            uid = run_folder.parent.name
            folders = {"the controller's state": cluster.folder / "controller", "the worker's state": cluster.folder / "n1"}
            targets = {
                "folders": {what: str(folder) for what, folder in folders.items()},
                "known": {what: [str(path.relative_to(folder)) for path in folder.rglob("*")] for what, folder in folders.items()},
                "uids": [uid],
                "pids": {"the controller": cluster.controller.pid, "the worker": cluster.worker("n1").pid, "the shim of another job": cluster.shims()[0].pid,
                         "a rank of another job": victim.pid},
                "ports": {"the controller's": cluster.port, "the controller's metrics": cluster.metrics_port,
                          "the worker's metrics": json.loads((cluster.folder / "n1-ports.json").read_text())["metrics"],
                          "the store of another job": json.loads((run_folder / "shim.json").read_text())["store_port"]},
                "titanctl": str(cluster.programs / "titanctl"),
                "controller": cluster.address,
                "calls": [["reads another job", ["describe", VICTIM], ""], ["cordons a node", ["node", "cordon", "n1"], ""],
                          ["uses an admin's token file", ["auth", "token", "list"], str(token)]],
                "variables": {"the daemon's secrets": sorted(PLANTED)},
            }
            (cluster.programs / "targets.json").write_text(json.dumps(targets))
            # Another user first: a rank may cordon the node.
            result = cluster.programs / "results/other.json"
            subprocess.run([PYTHON, cluster.programs / "probe.py", cluster.programs / "targets.json", result], user=NOBODY, group=NOBODY,
                           extra_groups=[], env={"PATH": "/usr/bin:/bin"}, cwd="/", check=True, timeout=120)
            self.reached(table, "another user of the machine", json.loads(result.read_text()))
            self.bystander_gets_nothing(json.loads(result.read_text()))
            cluster.start_job("hostile")
            result = cluster.programs / "results/rank.json"
            wait_until("the rank's results", result.exists, 60)
            self.reached(table, rank_column, json.loads(result.read_text()))
            if rank_user:
                self.bystander_gets_nothing(json.loads(result.read_text()), excluded="ranks")  # All these ranks run as one user.

    def reached(self, table, who, result):
        for what, files in result["files"].items():
            for name, got in files.items():
                table.put("On the machine: files", f"{what}: `{name}`", who, ", ".join(got))
        for what, got in result["processes"].items():
            table.put("On the machine: processes, ports, calls, variables", f"process of {what}", who, ", ".join(got))
        for what, got in result["ports"].items():
            table.put("On the machine: processes, ports, calls, variables", f"port: {what}", who, ", ".join(got))
        for what, got in result["calls"].items():
            table.put("On the machine: processes, ports, calls, variables", f"calls the controller: {what}", who, got)
        for what, got in result["variables"].items():
            table.put("On the machine: processes, ports, calls, variables", f"in its own environment: {what}", who, ", ".join(got))

    def bystander_gets_nothing(self, result, excluded=None):
        for files in result["files"].values():
            self.assertEqual({}, {name: got for name, got in files.items() if got and not (excluded and name.startswith(excluded))})
        for what, got in result["processes"].items():
            if not (excluded and "rank" in what):
                self.assertEqual([], got, what)
        for what, got in result["calls"].items():
            self.assertNotEqual("done", got, what)
        self.assertEqual({}, {what: names for what, names in result["variables"].items() if names})


def store(lines):
    page = ["# What hostile callers can reach", "",
            f"`tests/integration/hostile/hostile_test.py --store` found this on {datetime.date.today()}, on a real cluster. The test compares every run",
            "with this page. The defences, and the reasons for them, are in [security.md](../security.md).", *lines]
    PAGE.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[word for word in sys.argv if word != "--store"])
