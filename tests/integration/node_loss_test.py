"""Tests what remains readable when a node is lost for good: the end of a failed rank's log, and every acknowledged event."""

import json
import shutil
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, SOURCE, Cluster, wait_until  # noqa: E402

TIMEOUT = 60.0
# Rank 1 dies of a segmentation fault after it has printed 300 lines; the other one trains until it is stopped.
CRASHES = {"steps": -1, "step_ms": 20, "print": 300, "print_bytes": 20, "ranks": {"1": {"steps": 3, "signal": 11}}}
TRAINS = {"steps": -1, "step_ms": 20, "print": 2, "print_bytes": 4}


class StandIns(Cluster):
    """A cluster with stand-ins as ranks (tests/worker/node/shim/fake_rank.cc)."""

    def add_fake(self, name, fake):
        before = self.environment
        self.environment = {**before, "TITAN_TEST_FAKE_RANK": json.dumps(fake)}
        try:
            self._add(name, [BIN / "titan-worker", "--controller", self.address, "--node", name, "--state", self.folder / name, "--devices", "cpu:2",
                             "--address", "127.0.0.1", "--rank-binary", BIN.parent / "tests/fake_rank"])
        finally:
            self.environment = before

    def node_state(self, name):
        return {node["name"]: node["state"] for node in self.ask("node", "list")["nodes"]}.get(f"nodes/{name}")

    def lose(self, name):
        """Removes the node's processes and its disk."""
        self.kill_node(name)
        shutil.rmtree(self.folder / name)
        wait_until(f"the loss of {name}", lambda: self.node_state(name) == "LOST", TIMEOUT, 0.05)

    def start_job(self, name, node):
        """Starts the job on that node and leaves only that node uncordoned."""
        for other in set(self.daemons) - {"controller", node}:
            self.titanctl("node", "cordon", other)
        self.titanctl("node", "uncordon", node)
        return self.submit(SOURCE / "configs/llama3_tiny.toml", "--job-id", name, "--job.dump_folder", self.folder / "dumps" / name, "--resources.ranks", 2,
                           "--resources.threads_per_rank", 1, "--checkpoint.enable", "--restart.no_progress_limit", 1)


class NodeLossTest(unittest.TestCase):
    def setUp(self):
        self.cluster = self.enterContext(StandIns(workers=0, lease_ms=1000))
        self.cluster.add_fake("n1", CRASHES)
        self.cluster.add_fake("n2", TRAINS)
        wait_until("both nodes", lambda: self.cluster.ask("cluster", "info")["ready_nodes"] == 2, TIMEOUT)

    def logs(self, *words, code=0):
        done = self.cluster.titanctl("logs", *words, check=False)
        self.assertEqual(code, done.returncode, done.stderr)
        return done.stdout.splitlines(), done.stderr

    def kill_at(self, point):
        """Restarts the controller so that it dies at this failpoint once."""
        controller = self.cluster.controller
        controller.kill(restart=False)
        before = controller.environment
        controller.environment = {**before, "TITAN_FAILPOINT": point}
        controller.start()
        controller.environment = before
        starts = controller.starts
        controller.supervised = True
        wait_until("an armed controller", lambda: self.cluster.titanctl("cluster", "info", check=False).returncode == 0, TIMEOUT)
        return lambda: controller.starts > starts

    def test_log_of_a_lost_node_remains(self):
        """The log remains although the controller dies between the report of the exit and its record, the node is lost and
        then deleted, and the job is deleted last."""
        cluster = self.cluster
        has_died = self.kill_at("write.failed_log")
        job = cluster.start_job("crashes", "n1")
        self.assertEqual("FAILED", cluster.wait(job)["state"])
        self.assertTrue(has_died(), "the failpoint was not passed")
        whole, notice = self.logs(job, "--rank", 1)
        self.assertEqual((301, ""), (len(whole), notice), "the node still has all of it")
        events = cluster.events(job)
        self.assertIn("RankExited", {event["reason"] for event in events})

        cluster.lose("n1")
        kept, notice = self.logs(job, "--rank", 1)
        self.assertEqual(whole[-200:], kept)
        self.assertRegex(notice, r"^rank 1: node n1 cannot be reached: this is the end of its log that the controller kept when the rank failed")
        self.assertEqual(whole[-3:], self.logs(job, "--rank", 1, "--tail", 3)[0])
        self.assertEqual(whole[-200:], self.logs(job, "--rank", 1, "--attempt", 1, "-f", code=1)[0], "a follower gets it once, and its end")
        other, notice = self.logs(job, "--rank", 0)  # It was stopped, and did not fail.
        self.assertEqual(([], "rank 0: node n1 cannot be reached\n"), (other, notice))
        described = cluster.titanctl("describe", job).stdout
        newest = cluster.job(job)["attempts"][-1]
        self.assertIn(f"last lines of rank 1, which failed first in attempt {newest['number']}\n" + "".join(f"  {line}\n" for line in whole[-5:]),
                      described)
        exits = {one["rank"]: one for one in newest["exits"]}
        self.assertEqual(sum(len(line) + 1 for line in kept), int(exits[1]["kept_log_bytes"]))
        self.assertEqual(events, cluster.events(job))

        cluster.titanctl("node", "delete", "n1")
        self.assertEqual(kept, self.logs(job, "--rank", 1)[0])
        self.assertEqual(events, cluster.events(job))
        cluster.titanctl("delete", job)
        self.assertEqual(3, cluster.titanctl("logs", job, check=False).returncode)

    def test_last_lines_of_a_killed_rank_remain(self):
        cluster = self.cluster
        job = cluster.start_job("killed", "n2")
        cluster.wait(job, "step=3")
        next(rank for rank in cluster.processes("fake_rank") if rank.rank == 0).kill()
        wait_until("the next attempt", lambda: len(cluster.job(job)["attempts"]) == 2, TIMEOUT, 0.05)
        whole, _ = self.logs(job, "--rank", 0, "--attempt", 1)
        self.assertEqual(3, len(whole))
        cluster.titanctl("cancel", job, "--now", "--wait")
        cluster.lose("n2")
        kept, notice = self.logs(job, "--rank", 0, "--attempt", 1)
        self.assertEqual(whole, kept)
        self.assertIn("that the controller kept", notice)


if __name__ == "__main__":
    unittest.main(verbosity=2)
