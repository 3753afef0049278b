"""Trains across hosts that are network namespaces, and partitions them.

    namespaces.py [CASE...]        cases: quiet short long one-way-out one-way-in host-short host-long

Four hosts train one job of four ranks (a fifth stands by if a host is lost), the controller is on another host, and the
dump folder is shared. Prints one line of JSON per case: what happened, and whether the invariants held. Exits with 1 if
they did not. Needs root and iproute2.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "matrix"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import wait_until  # noqa: E402
from jobs import last_step, metric_lines, tiny, wait_committed, wait_step  # noqa: E402
from netns import CONTROLLER, NetworkCluster, available  # noqa: E402

STEPS = 100_000  # Longer than any case; the job is cancelled at its end.


def publications(dump):
    """Returns the attempt numbers by metrics line and by manifest, in the order of publication."""
    manifests = sorted(Path(dump).glob("checkpoint/step-*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    return [line["attempt"] for line in metric_lines(dump)], [json.loads(path.read_text())["attempt"] for path in manifests]


class Case:
    def __init__(self, workers):
        self.cluster = NetworkCluster(workers=workers)
        self.network = self.cluster.network
        self.folder = tempfile.TemporaryDirectory(prefix="titan-namespaces-")
        self.dump = Path(self.folder.name) / "dump"

    def __enter__(self):
        # Only through the network, as between hosts.
        extra = ("--checkpoint.keep_latest_k", 3, "--comm.no_shared_memory")
        self.job = self.cluster.submit(*tiny(self.dump, steps=STEPS, interval=20, ranks=4, ranks_per_node=1, extra=extra))
        wait_committed(self.dump, 20, 120)
        wait_step(self.dump, 22)  # Between two checkpoints, so that the ranks' counters show progress.
        self.before = self.identities()
        self.placed = [p["node"] for p in self.attempt()["placements"]]
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None:
            self.cluster.show_logs()
        self.cluster.close()
        self.folder.cleanup()

    def identities(self):
        return {p.identity for p in self.cluster.ranks()}

    def attempt(self):
        return self.cluster.job(self.job)["attempts"][-1]

    def state(self, node):
        nodes = self.cluster.ask("node", "list")["nodes"]
        return next(n["state"] for n in nodes if n["name"] == f"nodes/{node}")

    def first_seen(self, node, begun, limit):
        """Returns the seconds from `begun` until the controller no longer sees the node as READY, or None."""
        while time.monotonic() < begun + limit:
            if self.state(node) != "READY":
                return round(time.monotonic() - begun, 2)
            time.sleep(0.05)
        return None

    def end(self, figures):
        """Checks that the repaired job trains at least three more steps, and cancels it."""
        wait_step(self.dump, last_step(self.dump) + 3, 120)
        wait_until("four READY hosts", lambda: all(self.state(n) == "READY" for n in self.placed), 60)
        wrote, manifests = publications(self.dump)
        fence = json.loads((self.dump / "fence.json").read_text())
        attempts = self.cluster.job(self.job)["attempts"]
        figures |= {"attempts": len(attempts), "restarted_ranks": len(self.before - self.identities()), "step": last_step(self.dump),
                    "one_publishes": wrote == sorted(wrote) and manifests == sorted(manifests),
                    "fence_is_the_newest": fence["attempt"] == attempts[-1]["number"]}
        self.cluster.titanctl("cancel", self.job, "--now")
        self.cluster.wait(self.job)
        wait_until("end of all ranks", lambda: not self.cluster.ranks(), 60)
        return figures


def hold(case, seconds, begun, step):
    """Waits for the rest of a fault that began at `step`; returns the steps that the job made meanwhile."""
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    return last_step(case.dump) - step


def quiet(seconds=10):
    """Makes no fault, for comparison with the other cases."""
    with Case(4) as case:
        steps = hold(case, seconds, time.monotonic(), last_step(case.dump))
        return case.end({"steps_meanwhile": steps, "seen_after_s": None})


def control_cut(seconds, directions):
    """Cuts one host from the controller while the ranks' network works: the job must not notice."""
    with Case(4) as case:
        victim = case.placed[1]
        pairs = {"out": [(victim, CONTROLLER)], "in": [(CONTROLLER, victim)],
                 "both": [(victim, CONTROLLER), (CONTROLLER, victim)]}[directions]
        step, begun = last_step(case.dump), time.monotonic()
        for sender, receiver in pairs:
            case.network.blackhole(sender, receiver, True)
        seen = case.first_seen(victim, begun, min(seconds, 15))
        steps = hold(case, seconds, begun, step)
        for sender, receiver in pairs:
            case.network.blackhole(sender, receiver, False)
        mended = time.monotonic()
        wait_until("the host back", lambda: case.state(victim) == "READY", 60)
        back = round(time.monotonic() - mended, 2)
        return case.end({"steps_meanwhile": steps, "seen_after_s": seen, "back_after_s": back})


def host_cut(seconds):
    """Unplugs a host while a fifth one is free."""
    with Case(5) as case:
        victim = case.placed[1]
        step, begun = last_step(case.dump), time.monotonic()
        case.network.link(victim, up=False)
        seen = case.first_seen(victim, begun, min(seconds, 15))
        trained = None
        if seen is not None:
            wait_until("the second attempt's steps", lambda: 2 in {line["attempt"] for line in metric_lines(case.dump)}, 60)
            trained = round(time.monotonic() - begun, 2)
        steps = hold(case, seconds, begun, step)
        case.network.link(victim, up=True)
        old = case.before if seen is not None else set()
        wait_until("end of the first attempt's ranks", lambda: not old & case.identities(), 60)
        return case.end({"steps_meanwhile": steps, "seen_after_s": seen, "trained_again_after_s": trained})


# For each case, how it runs and what must hold of its figures in addition to a single publisher.
CASES = {
    "quiet": (quiet, lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0),
    "short": (lambda: control_cut(2, "both"), lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0 and f["seen_after_s"] is None),
    "long": (lambda: control_cut(60, "both"), lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0 and f["steps_meanwhile"] > 0),
    "one-way-out": (lambda: control_cut(15, "out"), lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0),
    "one-way-in": (lambda: control_cut(15, "in"), lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0),
    "host-short": (lambda: host_cut(2), lambda f: f["attempts"] == 1 and f["restarted_ranks"] == 0),
    "host-long": (lambda: host_cut(60), lambda f: f["attempts"] == 2 and f["trained_again_after_s"] is not None),
}


def measure(name):
    run, holds = CASES[name]
    figures = run()
    figures["holds"] = bool(holds(figures) and figures["one_publishes"] and figures["fence_is_the_newest"])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    flags = parser.parse_args()
    if why := available():
        sys.exit(f"namespaces.py: {why}")
    failed = False
    for name in flags.cases:
        figures = measure(name)
        failed |= not figures["holds"]
        print(json.dumps({"case": name, **figures}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
