"""Runs the tiny job with one random fault per minute, and then the same job undisturbed: both must have trained the
same, bit for bit.

    soak.py [--minutes 20] [--seed N] [--out FILE]

Two ranks on two nodes of three. Faults: a rank is killed or stopped, a worker daemon is killed or stopped for 3 s, the
controller is killed, a node is lost (it returns as the spare one). Each fault comes after progress; the machine may be
arbitrarily busy.
"""

import argparse
import json
import random
import signal
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path

from matrix.observe import FOREVER, WITHOUT_END, assert_one_truth, seconds_of
from matrix.row import Row, run, spread

from cluster import wait_until
from jobs import LOSS, committed_steps, last_step, losses, metric_lines, tiny
from measure import raises_at_its_limit

EVERY = 60.0
# Far above any recovery, because a soak on a busy machine is slow without an error.
RECOVERY_LIMIT = 300.0
NODES = ("n1", "n2", "n3")
JOB = [*WITHOUT_END, "--checkpoint.keep_latest_k", 2, "--comm.train_timeout_seconds", 5]
RESTARTS = ("rank killed", "rank stopped", "node lost")


class Soak:
    def __init__(self, case, minutes, seed):
        self.case, self.minutes, self.dice = case, minutes, random.Random(seed)
        self.recoveries = defaultdict(list)  # Seconds from a fault to the next step that no attempt had reached, by kind.
        self.to_come = []
        self.committed = []  # The newest committed step at each fault that ends an attempt.
        self.uncordoned = 0

    def start(self):
        self.cluster = self.case.start(workers=len(NODES), devices=1)
        self.dump = self.case.dump
        self.job = self.cluster.submit(*tiny(self.dump, steps=FOREVER, interval=20, ranks_per_node=1, extra=JOB))

    # --- Faults ---

    def some_rank(self):
        return wait_until("a rank", lambda: self.dice.choice(self.cluster.ranks() or [None]))

    def rank_killed(self):
        self.some_rank().kill(signal.SIGKILL)

    def rank_stopped(self):
        self.some_rank().kill(signal.SIGSTOP)

    def daemon_killed(self):
        self.cluster.worker(self.dice.choice(NODES)).kill()

    def daemon_stopped(self):
        daemon = self.cluster.worker(self.dice.choice(NODES)).process
        daemon.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until("3 s", lambda: time.monotonic() - stopped >= 3 or None, 30)
        daemon.send_signal(signal.SIGCONT)

    def controller_killed(self):
        self.cluster.controller.kill()

    def node_lost(self):
        lost = self.dice.choice(self.case.attempts(self.job)[-1]["placements"])["node"]
        self.cluster.kill_node(lost)
        return lost

    def mend(self, lost):
        """Restarts the lost node, and uncordons it, like an operator, if its losses have cordoned it."""
        if lost:
            self.cluster.worker(lost).revive()
        def ready():
            nodes = {node["name"].split("/")[-1]: node for node in self.cluster.ask("node", "list")["nodes"]}
            return nodes if all(nodes.get(name, {}).get("state") == "READY" for name in NODES) else None
        for name, node in wait_until("all nodes", ready, 120, poll=0.2).items():
            if node["cordoned"]:
                self.cluster.titanctl("node", "uncordon", name)
                self.uncordoned += 1

    def new_step(self, reached):
        wait_until(f"a step after {reached}", lambda: last_step(self.dump) > reached or None, RECOVERY_LIMIT, poll=0.02)

    def disturb(self):
        faults = {"rank killed": self.rank_killed, "rank stopped": self.rank_stopped, "daemon killed": self.daemon_killed,
                  "daemon stopped for 3 s": self.daemon_stopped, "controller killed": self.controller_killed, "node lost": self.node_lost}
        # First waits for progress: a commit, then a step that no attempt had reached.
        committed = max(committed_steps(self.dump), default=0)
        wait_until("a commit", lambda: max(committed_steps(self.dump), default=0) > committed or None, RECOVERY_LIMIT, poll=0.05)
        self.new_step(last_step(self.dump))
        if not self.to_come:  # Each kind once in a random order, repeatedly, so that none is left out.
            self.to_come = self.dice.sample(list(faults), len(faults))
        kind = self.to_come.pop()
        begun, reached = time.time(), last_step(self.dump)
        before = {process.identity for process in self.cluster.ranks()}
        lost = faults[kind]()
        if kind in RESTARTS:
            self.committed.append(max(committed_steps(self.dump)))
            wait_until("the end of the old ranks", lambda: not before & {p.identity for p in self.cluster.ranks()} or None, RECOVERY_LIMIT)
            reached = last_step(self.dump)
        self.new_step(reached)
        new = next(line for line in metric_lines(self.dump) if line["step"] > reached)
        self.recoveries[kind].append(seconds_of(new["time"]) - begun)
        print(f"{time.strftime('%H:%M:%S')} {kind}: {self.recoveries[kind][-1]:.2f} s, step {last_step(self.dump)}", file=sys.stderr, flush=True)
        self.mend(lost)

    def run(self):
        begun = time.monotonic()
        self.new_step(0)
        for fault in range(1, int(self.minutes * 60 / EVERY) + 1):
            self.disturb()
            due = begun + EVERY * fault
            wait_until("the next fault's time", lambda: time.monotonic() >= due or None, EVERY + 1, poll=0.1)
        self.reported_ettr = self.metric("titan_job_ettr_ratio")
        self.cluster.titanctl("cancel", self.job, "--wait", "--timeout", 60, timeout=90)

    def metric(self, name):
        """Returns a metric of the only job from the controller's page."""
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.metrics_port}/metrics", timeout=30).read().decode()
        return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{"))

    # --- Results ---

    def ettr(self):
        """Returns the share of the time from the first to the last logged step in which steps were trained that no
        attempt had reached before."""
        lines = [line for line in metric_lines(self.dump) if LOSS in line]
        productive, reached = 0.0, lines[0]["step"]
        for before, line in zip(lines, lines[1:]):
            if line["step"] > reached and line["attempt"] == before["attempt"]:
                productive += seconds_of(line["time"]) - seconds_of(before["time"])
            reached = max(reached, line["step"])
        return productive / (seconds_of(lines[-1]["time"]) - seconds_of(lines[0]["time"]))

    def assert_nothing_lost(self, attempts):
        case = self.case
        case.assertEqual(1 + len(self.committed), len(attempts), [(a["end_cause"], a["end_message"]) for a in attempts])
        assert_one_truth(case, self.dump)
        reached = last_step(self.dump)
        case.assertEqual(list(range(1, reached + 1)), sorted(losses(self.dump)))
        for committed, attempt in zip(self.committed, attempts[1:]):
            case.assertGreaterEqual(attempt["resumed_step"], committed, f"attempt {attempt['number']} lost a commit")
        known = {int(e["message"].split()[1]) for e in case.commits(self.job)} | {a["resumed_step"] for a in attempts}
        case.assertLessEqual(set(committed_steps(self.dump)), known, "a commit without an event")

    def report(self):
        case, attempts = self.case, self.case.attempts(self.job)
        case.figure("ETTR", 100 * self.ettr(), "%", at_least=99)
        case.figure("ETTR reported by the controller (titan_job_ettr_ratio)", 100 * self.reported_ettr, "%")
        case.figure("faults", sum(map(len, self.recoveries.values())), "")
        case.figure("attempts", len(attempts), "")
        case.figure("steps", last_step(self.dump), "")
        for kind, seconds in sorted(self.recoveries.items()):
            spread(case, f"{kind}: next new step after", seconds, "s")
        for phase in ("detect", "stop", "place", "start", "load", "replay"):
            seconds = [a["phase_seconds"][phase] for a in attempts[1:] if phase in a["phase_seconds"]]
            if seconds:
                spread(case, f"phase {phase}", seconds, "s")
        case.note(f"Nodes cordoned after their losses were uncordoned {self.uncordoned} times, as an operator would.")
        self.assert_nothing_lost(attempts)

    def compare_with_undisturbed(self):
        steps = last_step(self.dump)
        self.case.assertEqual(self.case.undisturbed(steps, extra=[*JOB, "--checkpoint.no_enable"]), losses(self.dump))
        self.case.note(f"The losses of all {steps} steps equal the undisturbed run's bit for bit.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    raises_at_its_limit()
    print(f"seed {flags.seed}", file=sys.stderr, flush=True)

    def measure(case):
        soak = Soak(case, flags.minutes, flags.seed)
        case.note(f"{flags.minutes:g} minutes, seed {flags.seed}.")
        soak.start()
        soak.run()
        soak.report()
        soak.compare_with_undisturbed()

    result = run(Row(0, "soak", "", "", "", "", measure, 0))
    if flags.out:
        flags.out.write_text(json.dumps(result))
    else:
        print(json.dumps(result, indent=1))
    return int(result["verdict"] == "broken")


if __name__ == "__main__":
    sys.exit(main())
