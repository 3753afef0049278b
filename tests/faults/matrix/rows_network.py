"""Rows of the network between workers, clients and the controller."""

import json
import subprocess
import sys
import time
from pathlib import Path

from matrix.proxy import Proxy
from matrix.row import TESTS, Measured, row

from cluster import Cluster, wait_until
from jobs import last_step, metric_lines, tiny, wait_step

NAMESPACES = Path(__file__).resolve().parents[1] / "namespaces.py"
STEPS = 100_000  # Longer than any row.


class ProxiedCluster(Cluster):
    """Each worker reaches the controller through a separate proxy, titanctl directly."""

    def __init__(self, **options):
        self.proxies = {}
        super().__init__(**options)

    def add_worker(self, name, devices=None):
        direct, self.proxies[name] = self.address, Proxy(self.address)
        self.address = self.proxies[name].address
        try:
            return super().add_worker(name, devices)
        finally:
            self.address = direct

    def state(self, node):
        return self.node(node)["state"]

    def node(self, node):
        return next(n for n in self.ask("node", "list")["nodes"] if n["name"] == f"nodes/{node}")

    def close(self):
        super().close()
        for proxy in self.proxies.values():
            proxy.close()


def start(case, workers=2, **options):
    """Starts a job over all nodes that trains; returns the node of its last rank."""
    case.start(ProxiedCluster, workers=workers, devices=1, **options)
    case.job = case.cluster.submit(*tiny(case.dump, steps=STEPS, ranks=workers, ranks_per_node=1,
                                         extra=["--checkpoint.keep_latest_k", 3]))
    wait_step(case.dump, 3)
    case.before = [p.identity for p in case.cluster.ranks()]
    return case.attempts(case.job)[0]["placements"][-1]["node"]


def assert_untouched(case):
    case.assertEqual(case.before, [p.identity for p in case.cluster.ranks()])
    case.assertEqual(1, len(case.attempts(case.job)))
    wrote = [line["attempt"] for line in metric_lines(case.dump)]
    case.assertEqual(sorted(wrote), wrote)


def seen_within(case, node, seconds):
    """Returns after how many seconds the controller no longer sees the node as READY, or None."""
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        if case.cluster.state(node) != "READY":
            return time.monotonic() - begun
        time.sleep(0.05)
    return None


@row(9, "a worker and the controller cannot reach each other",
     how="for 2 s, and in one direction, by a TCP proxy that holds traffic; also between network namespaces (tests/faults/namespaces.py): "
         "blackhole routes for 2 s, 60 s and in one direction, and a host whose link is down for 2 s and 60 s with a spare host",
     anchor="Nomad has a disconnect policy",
     invariant="a node that cannot reach the controller trains on in the same processes and attempt; 2 s go unnoticed; if the host is cut "
               "off from everything, one successor trains, and no attempt publishes after its successor",
     ci="faults_matrix", limit=900)
def partition(case: Measured):
    node = start(case)
    proxy = case.cluster.proxies[node]
    proxy.hold("up", "down")
    case.assertIsNone(seen_within(case, node, 2), "a partition of 2 s was reported")
    proxy.mend()
    for direction in ("up", "down"):
        at = last_step(case.dump)
        proxy.hold(direction)
        seen = seen_within(case, node, 30)
        case.assertIsNotNone(seen, f"nobody noticed that nothing passes {direction}wards")
        case.figure(f"{direction}ward cut noticed after", seen, "s", at_most=5.5)
        wait_step(case.dump, at + 2)
        proxy.mend()
        wait_until("the node back", lambda: case.cluster.state(node) == "READY")
        assert_untouched(case)
    if case.short:
        return
    done = subprocess.run([sys.executable, NAMESPACES], capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    case.assertEqual(0, done.returncode, f"{done.stdout}{done.stderr[-3000:]}")
    for one in found:
        if one["seen_after_s"] is not None:
            case.figure(f"namespaces, {one['case']}: noticed after", one["seen_after_s"], "s", at_most=6)
        if one.get("trained_again_after_s") is not None:
            case.figure(f"namespaces, {one['case']}: next attempt trains after", one["trained_again_after_s"], "s", at_most=10)
        case.figure(f"namespaces, {one['case']}: ranks restarted", one["restarted_ranks"], "")


@row(10, "a link goes up and down every second",
     how="a proxy breaks and refuses every connection of a worker for half of each second",
     anchor="Kubernetes: storms of NotReady",
     invariant="at most one restart, no attempt writes after its successor, the job trains on, and the node is marked and takes no new "
               "ranks",
     ci="none: what it asserts needs a minute")
def flapping(case: Measured):
    seconds = 10 if case.short else 60
    node = start(case)
    case.cluster.add_worker("spare")  # With three nodes the controller may take one out of service.
    proxy = case.cluster.proxies[node]
    accepted, at, begun = proxy.accepted, last_step(case.dump), time.monotonic()
    while time.monotonic() < begun + seconds:
        proxy.cut()
        time.sleep(0.5)
        proxy.mend()
        time.sleep(0.5)
    wait_step(case.dump, at + 3)
    wait_until("a ready node", lambda: case.cluster.state(node) == "READY")
    marked = case.cluster.node(node)
    if not case.short:
        case.assertTrue(marked.get("flapping"), marked)
        case.assertIn("goes up and down", marked["cordon_reason"])
    restarts = len(case.attempts(case.job)) - 1
    case.assertLessEqual(restarts, 1)
    wrote = [line["attempt"] for line in metric_lines(case.dump)]
    case.assertEqual(sorted(wrote), wrote)
    case.figure("restarts", restarts, "", at_most=1)
    case.figure("reconnections", proxy.accepted - accepted, "")
    case.figure("steps during the fault", last_step(case.dump) - at, "")


@row(11, "the control plane is slow and loses packets",
     how="proxies between workers, clients and the controller delay every chunk of data by 50 to 150 ms each way, and 5 % of them by 200 "
         "ms more",
     anchor="etcd's own tests: 75 ± 50 ms, 50 % dropped",
     invariant="no node is lost or unreachable, and no rank is restarted",
     ci="none: what it asserts needs a minute", limit=900)
def slow_network(case: Measured):
    seconds = 15 if case.short else 120
    node = start(case)
    journal = Path(case.cluster.controller.log)
    client = case.enterContext(Proxy(case.cluster.address))
    for proxy in [*case.cluster.proxies.values(), client]:
        proxy.delay, proxy.loss = (0.05, 0.15), 0.05
    registered = journal.read_text().count("event=NodeRegistered")
    begun = time.monotonic()
    case.cluster.worker(node).kill()  # A worker connects under the load, too.
    wait_until("the node again", lambda: journal.read_text().count("event=NodeRegistered") > registered)
    case.figure("restarted worker registered after", time.monotonic() - begun, "s")
    out = case.program(TESTS / "submit_load", "--controller", client.address, "--in-flight", 8, "--seconds", seconds,
                       "--acknowledged", case.folder / "acknowledged")[0]
    figures = json.loads(out)
    assert_untouched(case)
    bad = [line for line in journal.read_text().splitlines()
           if "event=NodeLost" in line or "event=NodeUnreachable" in line]
    case.assertEqual([], bad)
    case.figure("duration of the fault", seconds, "s")
    case.figure("nodes reported lost", len(bad), "", at_most=0)
    case.figure("chunks delayed as if retransmitted", sum(p.lost for p in case.cluster.proxies.values()) + client.lost, "")
    case.figure("submissions", figures["acknowledged"], "")
    case.figure("submission latency, p99", figures["p99_ms"] / 1000, "s", at_most=1)


@row(12, "the reply to a call is lost after its effect is durable",
     how="a proxy holds the replies of 64 submissions at a time and breaks the connection; the client retries with the same request_id",
     anchor="AIP-155",
     invariant="each submission exists once, under the acknowledged uid",
     ci="faults_matrix")
def lost_reply(case: Measured):
    least = 128 if case.short else 1000
    case.start(workers=0)
    acknowledged = case.folder / "acknowledged"
    proxy = case.enterContext(Proxy(case.cluster.address))
    load = subprocess.Popen([TESTS / "submit_load", "--controller", proxy.address, "--in-flight", "64", "--channels", "4", "--seconds", "100000",
                             "--acknowledged", acknowledged], stdout=subprocess.PIPE, text=True)
    case.addCleanup(load.kill)

    def known():
        return case.cluster.ask("cluster", "info")["live_jobs"]

    def count_acknowledged():
        return acknowledged.read_bytes().count(b"\n") if acknowledged.exists() else 0

    lost = 0
    wait_until("the first acknowledgements", lambda: count_acknowledged() > 64)
    while lost < least:
        proxy.hold("down")
        time.sleep(0.1)  # Data that was in flight when the hold began has arrived.
        before = count_acknowledged()
        wait_until("unacknowledged submissions", lambda: known() >= before + 60)
        lost += known() - count_acknowledged()
        proxy.cut(refuse=False)
        proxy.mend()
        at = count_acknowledged()
        wait_until("acknowledgements", lambda: count_acknowledged() > at + 64)
    load.terminate()
    out, _ = load.communicate(timeout=60)
    case.assertEqual(0, load.returncode, out)
    figures = json.loads(out)
    checked = json.loads(case.program(TESTS / "submit_load", "--controller", case.cluster.address, "--acknowledged", acknowledged, "--verify")[0])
    case.assertEqual((figures["acknowledged"], 0, figures["acknowledged"]), (checked["checked"], checked["lost"], checked["jobs"]))
    case.assertGreaterEqual(figures["repeated"], lost)
    case.figure("replies lost after the job was stored", lost, "", at_least=least)
    case.figure("calls repeated", figures["repeated"], "")
    case.figure("jobs duplicated or missing", checked["jobs"] - figures["acknowledged"] + checked["lost"], "", at_most=0)
