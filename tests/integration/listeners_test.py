"""Tests where a default cluster and its ranks listen: only on loopback, even on a node that others know by a network address.

Prints the listing that docs/security-threats.md keeps.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, Cluster, wait_until
from jobs import last_step, tiny
from sockets import is_loopback, listening

FAKE_RANK = BIN.parent / "tests/fake_rank"
TRAINS = (BIN / "titan-rank").exists()
UNASSIGNED_ADDRESS = "192.0.2.7"  # An address that no machine has (RFC 5737).
STEPS = 100_000  # More steps than the test lasts.


class Listening(Cluster):
    """Two workers; the second is known by an address that it cannot even listen on."""

    def _add(self, name, command):
        if name == "n2":
            command = [UNASSIGNED_ADDRESS if word == "127.0.0.1" else word for word in command]
        return super()._add(name, command if name == "controller" or TRAINS else [*command, "--rank-binary", FAKE_RANK])


class Listeners(unittest.TestCase):
    def listing(self, cluster, others):
        """Returns sockets by program, of every process that has the cluster's mark in its environment."""
        seen = cluster.processes()
        self.assertLessEqual({"titan-controller", "titan-worker", "titan-shim", "titanctl", *others}, {p.program for p in seen})
        return Counter((p.program, table, str(address), is_loopback(address)) for p in seen for table, address, _ in listening(p.pid))

    def started(self, cluster, dump, ranks):
        """Returns whether every rank has connected to every other one, so that all its sockets exist."""
        if TRAINS:
            return last_step(dump) >= 1
        return len(cluster.processes("fake_rank")) >= ranks

    def test_listens_only_on_loopback(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        os.environ["TITAN_TEST_FAKE_RANK"] = '{"steps": -1}'
        self.addCleanup(os.environ.pop, "TITAN_TEST_FAKE_RANK")
        rank = "titan-rank" if TRAINS else "fake_rank"
        with Listening(workers=0, supervise=False) as cluster:
            cluster.add_worker("n1", devices=1)
            cluster.add_worker("n2", devices=2)
            wait_until("two ready nodes", lambda: cluster.ask("cluster", "info")["ready_nodes"] == 2)
            # Only the second node has enough devices for both ranks. Without shared memory they use sockets.
            cluster.submit(*tiny(folder / "dump", steps=STEPS, ranks_per_node=2, extra=["--comm.no_shared_memory"]))
            if TRAINS:
                local = subprocess.Popen([BIN / "titanctl", "run", *map(str, tiny(folder / "run", steps=STEPS, extra=["--comm.no_shared_memory"]))],
                                         env={**cluster.environment, "XDG_CACHE_HOME": str(folder / "cache")}, stdout=subprocess.DEVNULL)
            else:
                local = subprocess.Popen([BIN / "titanctl", "events", "-f"], env={**cluster.environment, "TITAN_CONTROLLER": cluster.address},
                                         stdout=subprocess.DEVNULL)
            self.addCleanup(local.wait)
            self.addCleanup(local.kill)
            wait_until("the job's ranks", lambda: self.started(cluster, folder / "dump", 2), 60)
            if TRAINS:
                wait_until("the ranks of `titanctl run`", lambda: self.started(cluster, folder / "run", 2), 60)
            found = self.listing(cluster, {rank})
        for (program, table, address, local), sockets in sorted(found.items()):
            print(f"{program:<17} {table:<5} {address:<10} {sockets} {'socket' if sockets == 1 else 'sockets'}{'' if local else ', NOT ON LOOPBACK'}")
        self.assertEqual([], [where for where in found if not where[-1]])
        if TRAINS:
            self.assertIn(("titan-rank", "tcp", "127.0.0.1", True), found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
